"""What better credit buys: return against environment steps at equal budget, on the device from start to end.

One decisive turn among T, and a policy that does not see the turn: one pair of logits for all of them. What every turn
but one adds to the gradient is noise, so credit that cannot tell them apart learns more slowly the longer the episode
(arXiv:2604.09459, section 9). A policy with logits of its own for each turn would not notice.

Each method is trained with every learning rate of one grid; some seeds choose the rate (largest mean return over the
budget), others are shown. Curves are interquartile means over seeds with bootstrap intervals (Agarwal et al. 2021,
arXiv:2108.13264); the return is exact, not sampled. An interquartile mean does not see the quarter of the seeds that
did worst, and a large step can end in the wrong corner for good: `return_area` is the plain mean of all of them.
"""

from collections.abc import Callable, Iterator, Sequence
import functools
import math
from typing import NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import exact, recipes
from creditjax.algebra import estimate
from creditjax.benchmark.results import Results, Row
from creditjax.exact.process import Process
from creditjax.exact.values import Values, law
from creditjax.tasks import bifurcation
from creditjax.trajectory import Trajectory

Array = jax.Array

TASK = "single, one policy for all turns"
ORACLE = "control:oracle"
# "gae" has the exact value of every state as its critic.
METHODS = (ORACLE, "reinforce", "rloo", "grpo", "gigpo", "gae", "tempo")
RATES = (0.3, 1.0, 3.0, 10.0)
# Small batches: in large ones every credit is good enough for one decisive turn.
GROUP, PROMPTS = 4, 1
_START = -2.0  # logit of the right action


class Schedule(NamedTuple):
    """How long, how often looked at, and how many seeds are reported.

    Attributes:
      updates: SGD steps.
      every: updates between two looks.
      seeds: reported, ten at least.
      choosing: other seeds, whose mean return over the budget chooses the learning rate.
    """

    updates: int = 96
    every: int = 4
    seeds: int = 16
    choosing: int = 32


class Curve(NamedTuple):
    """Interquartile mean ``[looks + 1]`` over seeds with its standard error and 95 % interval; the chosen rate; and the
    mean return over the budget of each seed.
    """

    steps: np.ndarray
    mean: np.ndarray
    stderr: np.ndarray
    low: np.ndarray
    high: np.ndarray
    rate: float
    area: np.ndarray


class Rollouts(NamedTuple):
    """A batch ``[P, G, T]`` with what no estimator may see: observations, and the exact credit of each action."""

    batch: Trajectory
    observation: Array
    credit: Array


def rollouts(process: Process, policy: Array, table: Values, key: Array, shape: tuple[int, int]) -> Rollouts:
    """Episodes under a policy ``[O, V]``, sampled and put together inside the caller's program.

    They carry `logprob`, and the signals `value` (exact, of the policy that rolls out) and `state_key` (the state of
    the environment before each turn).

    Args:
      process: the game laid out; every token is an action and a segment of its own, and only the last is paid.
      policy: action probabilities.
      table: its `exact.values`.
      key: PRNG key.
      shape: ``(P, G)``.

    Raises:
      ValueError: another process.
    """
    if not all(np.asarray(layer.acts).all() for layer in process.layers):
        raise ValueError("process: tokens that are no actions, wanted actions alone")
    for position, layer in enumerate(process.layers):
        if position + 1 < process.length and np.asarray(layer.reward).any():
            raise ValueError(f"process: a reward at position {position}, wanted none before the last")
        if (np.asarray(layer.segment) != position).any():
            raise ValueError(f"process: segments {layer.segment} at position {position}, wanted one an action")
    count = math.prod(shape)
    uniform = jax.random.uniform(key, (process.length, count))
    state, offset, columns = jnp.zeros(count, jnp.int32), 0, []
    for layer, draw, v, q in zip(process.layers, uniform, table.v, table.q, strict=True):
        chances = law(layer, policy)[state]
        # Rounding may leave the sum short of 1.
        below = draw[:, None] * chances.sum(1, keepdims=True) >= jnp.cumsum(chances, axis=1)
        token = jnp.minimum(below.sum(1), process.num_tokens - 1)
        known = {
            "tokens": token,
            "logprob": jnp.log(chances[jnp.arange(count), token]),
            "reward": jnp.asarray(layer.reward, jnp.float32)[state, token],
            "observation": jnp.asarray(layer.observation)[state],
            "value": v[state],
            "state_key": offset + state,
            "credit": q[state, token] - v[state],
        }
        columns.append(known)
        offset += len(layer.acts)
        state = jnp.asarray(layer.next)[state, token]
    rows = {name: jnp.stack([column[name] for column in columns], axis=-1) for name in columns[0]}
    rows = {name: x.reshape(*shape, -1) for name, x in rows.items()}
    batch = Trajectory(
        tokens=rows["tokens"],
        action_mask=jnp.ones(rows["tokens"].shape, bool),
        outcome=rows["reward"].sum(-1),
        logprob=rows["logprob"],
        segment=jnp.broadcast_to(jnp.arange(process.length), rows["tokens"].shape),
        num_segments=process.length,
        signals={name: rows[name] for name in ("value", "state_key")},
    )
    return Rollouts(batch, rows["observation"], rows["credit"])


def train(
    process: Process, assign: Callable[[Rollouts], Array], logits: Array, rate: Array, key: Array, schedule: Schedule
) -> Array:
    """Exact return at the start and at each look, ``[looks + 1]``, of SGD on ``Σ_t c_t ∇ log π(a_t)``.

    One `lax.scan`; vmapped over keys and learning rates it is a sweep.

    Args:
      process: see :func:`rollouts`.
      assign: from rollouts to credit ``[P, G, T]``.
      logits: ``[O, V]`` to start from.
      rate: learning rate.
      key: PRNG key.
      schedule: how long, and how often to look.
    """

    def update(logits: Array, key: Array) -> tuple[Array, None]:
        policy = exact.softmax(process, logits)
        made = rollouts(process, policy, exact.values(process, policy), key, (PROMPTS, GROUP))
        at_token = jnp.zeros_like(policy).at[made.observation, made.batch.tokens].add(assign(made))
        gradient = (at_token - at_token.sum(1, keepdims=True) * policy) / (PROMPTS * GROUP)
        return logits + rate * gradient, None

    def look(logits: Array, keys: Array) -> tuple[Array, Array]:
        logits, _ = jax.lax.scan(update, logits, keys)
        return logits, exact.start_value(process, exact.softmax(process, logits))

    looks = schedule.updates // schedule.every
    keys = jax.random.split(key, (looks, schedule.every))
    _, returns = jax.lax.scan(look, logits, keys)
    return jnp.concatenate([exact.start_value(process, exact.softmax(process, logits))[None], returns])


def curve(process: Process, name: str, schedule: Schedule, seed: int = 0) -> Curve:
    """The learning curve of one method at the best rate of the grid."""
    assign = _oracle if name == ORACLE else functools.partial(_estimated, recipes.recipe(name).estimator)
    logits = jnp.zeros(process.choices.shape).at[:, 1].set(_START)

    def run(rate: Array, key: Array) -> Array:
        return train(process, assign, logits, rate, key, schedule)

    keys = jax.random.split(jax.random.key(seed), schedule.choosing + schedule.seeds)
    every = jax.jit(jax.vmap(jax.vmap(run, (None, 0)), (0, None)))(jnp.asarray(RATES), keys)
    returns = np.asarray(every, np.float64)  # [rates, seeds, looks + 1]
    best = int(returns[:, : schedule.choosing].mean((1, 2)).argmax())
    shown = returns[best, schedule.choosing :]
    drawn = np.random.default_rng(seed).integers(0, len(shown), size=(2000, len(shown)))
    again = interquartile_mean(shown[drawn])
    low, high = np.quantile(again, (0.025, 0.975), axis=0)
    steps = np.arange(shown.shape[1]) * schedule.every * PROMPTS * GROUP * process.length
    return Curve(steps, interquartile_mean(shown), again.std(0), low, high, RATES[best], shown.mean(1))


def interquartile_mean(x: np.ndarray) -> np.ndarray:
    """Mean of the middle half over the axis of seeds, the last but one; ends of the half count in part."""
    ordered = np.sort(x, axis=-2)
    count = x.shape[-2]
    inside = np.clip(np.minimum(np.arange(1, count + 1) - count / 4, 3 * count / 4 - np.arange(count)), 0, 1)
    return np.einsum("...st,s->...t", ordered, inside / inside.sum())


def _oracle(made: Rollouts) -> Array:
    return made.credit


def _estimated(estimator, made: Rollouts) -> Array:
    return estimate(estimator, made.batch).value


def run_all(found: Results, *, quick: bool = False, only: Sequence[str] = ()) -> Iterator[str]:
    """Makes the curves that are not there yet, and gives the lines of a table as it goes.

    Args:
      found: where rows go.
      quick: horizons 4 and 16 and ten seeds, instead of 4 to 64 and sixteen.
      only: recipes; the oracle always runs.
    """
    schedule = Schedule(updates=48, seeds=10) if quick else Schedule()
    for horizon in (4, 16) if quick else (4, 8, 16, 32, 64):
        chosen = [name for name in METHODS if not only or name == ORACLE or name in only]
        left = [name for name in chosen if not _made(found, (name, TASK, GROUP, horizon), schedule)]
        if not left:
            continue
        process = exact.lay_out(bifurcation.single(horizon, horizon // 2, sees="nothing"))
        yield f"\nlearning: {TASK}, {horizon} actions, groups of {GROUP}, {schedule.seeds} seeds"
        yield f"{'recipe':32} {'rate':>9} {'start':>9} {'middle':>9} {'end':>9} {'area':>9}"
        for name in left:
            made = curve(process, name, schedule)
            found.add((name, TASK, GROUP, horizon), list(_rows(name, horizon, made, schedule)))
            at = (made.mean[0], made.mean[len(made.mean) // 2], made.mean[-1], made.area.mean())
            yield " ".join([f"{name:32}", f"{made.rate:9g}", *(f"{x:9.3f}" for x in at)])


def _made(found: Results, entry: tuple[str, str, int, int], schedule: Schedule) -> bool:
    """Whether the curve is there with at least this budget: that of a quick run is no part of a whole one."""
    row = found.get(entry, "learning_rate") if entry in found else None
    return row is not None and all(row.more.get(name, 0) >= size for name, size in schedule._asdict().items())


def _rows(name: str, horizon: int, made: Curve, schedule: Schedule) -> Iterator[Row]:
    row = functools.partial(Row, name, TASK, GROUP, horizon)
    for step, mean, error, low, high in zip(*made[:5], strict=True):
        yield row(f"return@{step}", float(mean), float(error), {"low": float(low), "high": float(high)})
    yield row("return_area", float(made.area.mean()), float(made.area.std(ddof=1) / math.sqrt(len(made.area))))
    yield row("learning_rate", made.rate, math.nan, schedule._asdict())
