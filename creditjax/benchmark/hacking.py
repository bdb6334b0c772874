"""Process rewards that can be hacked: which credit falls for fillers, and when.

The game is small enough to hold every episode: rollouts are drawn by their exact probabilities, the return and the
share of fillers are exact, and so is the expected gradient of credit whose baselines do not see the rollout itself. The
policy is a table of logits, one row an observation.
"""

from collections.abc import Mapping
import functools
from typing import NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import exact
from creditjax.algebra import Transform, estimate
from creditjax.numerics import masked_mean, masked_sum, select
from creditjax.tasks.fillers import Fillers
from creditjax.trajectory import Trajectory

Array = jax.Array


class Judge(NamedTuple):
    """What a process-reward model gives a step that is right, wrong, or a filler."""

    right: float
    wrong: float
    filler: float


class Episodes(NamedTuple):
    """All L episodes of a game, as rollouts of one group.

    Attributes:
      batch: ``[L, T]``, with the signal `process_reward`.
      observation: i32 ``[L, T]``, row of the policy's table.
      choices: bool ``[O, V]``, legal tokens.
      filler: bool ``[L, T]``, the token is a filler.
    """

    batch: Trajectory
    observation: np.ndarray
    choices: np.ndarray
    filler: np.ndarray


class Look(NamedTuple):
    """Exact numbers of a policy, f32 scalars or one a look.

    Attributes:
      outcome: expected outcome.
      process: expected mean score of an episode's steps.
      steps: expected number of steps.
      fillers: expected share of them that are fillers.
    """

    outcome: Array
    process: Array
    steps: Array
    fillers: Array


def episodes(game: Fillers, judge: Judge) -> Episodes:
    """Every episode of the game, judged."""
    process = exact.lay_out(game)
    paths = exact.enumerate_paths(process)
    scores = game.step_scores(paths.tokens, paths.live, *judge)
    batch = Trajectory(
        tokens=paths.tokens,
        action_mask=paths.acts,
        outcome=paths.outcome,
        segment=paths.segment,
        num_segments=game.length,
        signals={"process_reward": scores},
    )
    return Episodes(batch, paths.observation, process.choices, paths.acts & (paths.tokens == game.base))


def log_probability(made: Episodes, logits: Array) -> Array:
    """Of every episode, ``[L]``."""
    law = jax.nn.log_softmax(logits, axis=-1, where=made.choices)
    return masked_sum(law[made.observation, made.batch.tokens], made.batch.action_mask, axis=-1)


def look(made: Episodes, logits: Array) -> Look:
    """What the policy is worth, exactly."""
    chance = jnp.exp(log_probability(made, logits))
    acts = made.batch.action_mask

    def expected(x: Array) -> Array:
        return jnp.sum(chance * x)

    return Look(
        outcome=expected(made.batch.outcome),
        process=expected(masked_mean(made.batch.signals["process_reward"], acts, axis=-1)),
        steps=expected(jnp.sum(acts, axis=-1)),
        fillers=expected(jnp.mean(made.filler, axis=-1) * acts.shape[-1] / jnp.sum(acts, axis=-1)),
    )


def expected_gradient(made: Episodes, logits: Array, credit: Array) -> Array:
    """``E[Σ_t c_t ∇ log π(a_t)]`` over all episodes, ``[O, V]``, of the credit ``[L, T]`` of each."""
    policy = jax.nn.softmax(logits, axis=-1, where=made.choices)
    chance = jnp.exp(log_probability(made, logits))[:, None]
    weight = select(chance * credit, made.batch.action_mask)
    at_token = jnp.zeros_like(policy).at[made.observation, made.batch.tokens].add(weight)
    return at_token - at_token.sum(1, keepdims=True) * policy


@functools.partial(jax.jit, static_argnames=("updates",))
def ascend(made: Episodes, credit: Array, logits: Array, rate: float, updates: int) -> Look:
    """Exact gradient ascent on a credit that does not depend on the policy: no sampling, no seeds; one look an update,
    ``[updates + 1]``.
    """

    def update(logits: Array, _) -> tuple[Array, Look]:
        return logits + rate * expected_gradient(made, logits, credit), look(made, logits)

    last, looks = jax.lax.scan(update, logits, length=updates)
    return jax.tree.map(lambda x, y: jnp.append(x, y), looks, look(made, last))


@functools.partial(jax.jit, static_argnames=("shape", "updates", "every"))
def train(
    made: Episodes,
    estimator: Transform,
    logits: Array,
    rate: float,
    keys: Array,
    *,
    shape: tuple[int, int] = (4, 8),
    updates: int = 400,
    every: int = 10,
) -> Look:
    """SGD on ``mean_i Σ_t c_t ∇ log π(a_t)`` with sampled groups, for each of some seeds: ``[seeds, looks + 1]``.

    Args:
      made: the game.
      estimator: a recipe's; its schedules see the number of the update.
      logits: ``[O, V]`` to start from.
      rate: learning rate.
      keys: PRNG keys, one a seed.
      shape: ``(P, G)`` of a batch.
      updates: SGD steps.
      every: updates between two looks.
    """
    rows = shape[0] * shape[1]

    def update(logits: Array, given: tuple[Array, Array]) -> tuple[Array, None]:
        key, step = given
        drawn = jax.random.categorical(key, log_probability(made, logits), shape=shape)
        batch = jax.tree.map(lambda x: jnp.asarray(x)[drawn], made.batch)
        policy = jax.nn.softmax(logits, axis=-1, where=made.choices)
        credit = select(estimate(estimator, batch, step=step).value, batch.action_mask)
        at_token = jnp.zeros_like(policy).at[jnp.asarray(made.observation)[drawn], batch.tokens].add(credit)
        return logits + rate * (at_token - at_token.sum(1, keepdims=True) * policy) / rows, None

    def one(key: Array) -> Look:
        def block(logits: Array, given) -> tuple[Array, Look]:
            logits, _ = jax.lax.scan(update, logits, given)
            return logits, look(made, logits)

        looks = updates // every
        given = (jax.random.split(key, (looks, every)), jnp.arange(looks * every).reshape(looks, every))
        _, seen = jax.lax.scan(block, logits, given)
        return jax.tree.map(lambda x, y: jnp.append(x, y), look(made, logits), seen)

    return jax.vmap(one)(keys)


def is_hacked(seen: Look, window: int) -> np.ndarray:
    """Whether the process reward rises while the outcome falls over the last `window` looks: signs of their
    least-squares slopes, bool ``[...]``.

    Args:
      seen: ``[..., looks]``.
      window: looks, at least 2.
    """
    if window < 2:
        raise ValueError(f"window: {window}, wanted at least 2 looks")
    time = np.arange(window) - (window - 1) / 2

    def slope(x) -> np.ndarray:
        return np.asarray(x, np.float64)[..., -window:] @ time

    return (slope(seen.process) > 1e-9) & (slope(seen.outcome) < -1e-9)


def summary(seen: Look, early: int = 2, seed: int = 0) -> Mapping[str, tuple[float, float, float]]:
    """Mean over seeds with a 95 % bootstrap interval: the outcome at look `early`, at the look at which its mean is
    highest, and at the last one; the share of fillers at the last.
    """
    outcome, fillers = np.asarray(seen.outcome, np.float64), np.asarray(seen.fillers, np.float64)
    best = int(outcome.mean(axis=0).argmax())
    columns = {
        "early": outcome[:, early],
        "best": outcome[:, best],
        "end": outcome[:, -1],
        "fillers": fillers[:, -1],
    }
    drawn = np.random.default_rng(seed).integers(0, len(outcome), size=(2000, len(outcome)))

    def interval(x: np.ndarray) -> tuple[float, float, float]:
        low, high = np.quantile(x[drawn].mean(axis=1), (0.025, 0.975))
        return float(x.mean()), float(low), float(high)

    return {name: interval(x) for name, x in columns.items()}
