"""Several actions from every visited state, one of them taken (state groups of VPR, arXiv:2605.10325).

In each state C candidates are drawn and scored by an oracle; the episode goes on with one of the best, or with any.
The candidates of a state are compared with each other alone, so the batch that comes out has a *state* for a prompt
and its candidates for a group.

:func:`state_groups` plays any pure `act` and `judge`. A language model on a `TextTask` has the ordinary decode loop
instead, ``samplers.build(task, policy, sampling, C, commit="max")``: the rows of a group are the candidates, and after
each turn all of them go on from the chosen one, so that the prefix is in the cache and never fed again. The other
functions here turn what that loop gives into a batch of states. The oracle is the task's own signal `process_reward`
``[K]``, what step k is worth given its prefix, which has to follow from the environment's state alone: it is asked
after every turn, when the rest of the batch does not exist yet.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, get_args

import jax
from jax import numpy as jnp

from creditjax.samplers.decode import Turns
from creditjax.tasks.base import Prompts, TextTask
from creditjax.trajectory import Trajectory, segment_mask

Array = jax.Array

Commit = Literal["max", "sample"]


class Candidate(NamedTuple):
    """One action ``[A]`` of a policy: its tokens, which of them are real, and their log-probabilities."""

    tokens: Array
    mask: Array
    logprob: Array


class Verdict(NamedTuple):
    """What an action amounts to.

    Attributes:
      reward: f32 scalar, the oracle's.
      success: bool, it ends the episode in success.
      terminated: bool, it ends the episode.
      state: the state after it.
    """

    reward: Array
    success: Array
    terminated: Array
    state: Any


def state_groups(
    act: Callable[[Any, Array], Candidate],
    judge: Callable[[Any, Candidate], Verdict],
    states: Any,
    key: Array,
    *,
    turns: int,
    candidates: int = 4,
    commit: Commit = "max",
) -> Trajectory:
    """Plays B episodes of at most `turns` turns; one pass of `jax.lax.scan`, to be jitted.

    Args:
      act: draws an action in a state, ``act(state, key)``; pure, of one state.
      judge: scores an action and takes it, ``judge(state, candidate)``; pure.
      states: start states, leaves ``[B, ...]``.
      key: PRNG key.
      turns: most turns of an episode, static.
      candidates: C, static.
      commit: "max" goes on with one of the best, drawn uniformly; "sample" with a uniformly drawn one, which keeps the
        policy's own distribution over states.

    Returns:
      A batch ``[B * turns, C, A]``: `tokens`, `action_mask`, `logprob`, the terminal success as `outcome`, the signal
      `candidate_reward`. A state that was never reached acts nowhere and is unscored.

    Raises:
      ValueError: an unknown `commit`, or fewer than one turn or candidate.
    """
    if commit not in ("max", "sample") or turns < 1 or candidates < 1:
        raise ValueError(
            f"commit, turns, candidates: {commit!r}, {turns}, {candidates}, wanted 'max' or 'sample', at least 1 each"
        )
    count = len(jax.tree.leaves(states)[0])

    def turn(carry, key):
        state, live = carry
        draw, choose = jax.random.split(key)
        keys = jax.random.split(draw, (count, candidates))
        drawn = jax.vmap(jax.vmap(act, (None, 0)))(state, keys)
        verdict = jax.vmap(jax.vmap(judge, (None, 0)))(state, drawn)
        chosen = _commit(verdict.reward, jax.random.uniform(choose, verdict.reward.shape), commit)
        row = jnp.arange(count)
        after = jax.tree.map(lambda x: x[row, chosen], verdict.state)
        return (after, live & ~verdict.terminated[row, chosen]), (drawn, verdict.reward, verdict.success, live)

    start = (states, jnp.ones(count, bool))
    _, (drawn, reward, success, live) = jax.lax.scan(turn, start, jax.random.split(key, turns))

    def rows(x: Array) -> Array:
        return jnp.swapaxes(x, 0, 1).reshape(count * turns, *x.shape[2:])

    there = rows(live)[:, None]
    return Trajectory(
        tokens=rows(drawn.tokens),
        action_mask=rows(drawn.mask) & there[..., None],
        outcome=jnp.where(there, rows(success).astype(jnp.float32), jnp.nan),
        logprob=rows(drawn.logprob),
        signals={"candidate_reward": rows(reward)},
    )


def check(task: TextTask, commit: str, greedy_baseline: bool = False) -> None:
    """Makes sure that a task can be played in state groups.

    Raises:
      ValueError: it has no turns, or makes no signal `process_reward`; an unknown `commit`; a greedy baseline, which is
        of a prompt and not of a state.
    """
    if commit not in get_args(Commit):
        raise ValueError(f"commit: {commit!r}, wanted {' or '.join(map(repr, get_args(Commit)))}")
    if getattr(task, "environment", None) is None:
        raise ValueError(f"commit: {commit!r}, wanted a task in turns; {type(task).__name__} has no environment")
    if "process_reward" not in getattr(task, "signal_names", ()):
        raise ValueError(
            f"commit: {commit!r}, wanted a task whose oracle scores each action: {type(task).__name__} does not make "
            "the signal 'process_reward'"
        )
    if greedy_baseline:
        raise ValueError("greedy_baseline: True, wanted False with state groups")


def chooser(
    task: TextTask, prompts: Prompts, keys: Array, candidates: int, commit: Commit
) -> Callable[[Array, Any], Array]:
    """The function ``choose(turn, states) -> i32 [P]`` for `samplers.decode.generate`.

    Args:
      task: one that passes :func:`check`.
      prompts: P of them.
      keys: ``[P]``; the choice after turn k is drawn with ``fold_in(key, k)``.
      candidates: C.
      commit: see :func:`state_groups`.
    """
    shape = (len(keys), candidates)
    nothing = jnp.zeros((*shape, 1), jnp.int32)
    blank = Trajectory(
        tokens=nothing,
        action_mask=nothing > 0,
        outcome=jnp.zeros(shape),
        segment=nothing,
        num_segments=task.turns.max_turns,
    )

    def choose(turn: Array, states: Any) -> Array:
        chance = jax.vmap(lambda key: jax.random.uniform(jax.random.fold_in(key, turn), (candidates,)))(keys)
        if commit == "sample":
            return jnp.argmax(chance, axis=1)
        states = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), states)
        worth = task.annotate(blank, prompts, states).signals["process_reward"]
        return _commit(jnp.take(worth, turn, axis=-1), chance, commit)

    return choose


def by_state(out: Turns, prompts: Prompts, candidates: int, pad_token: int = 0) -> tuple[Turns, Prompts]:
    """What ``P * C`` rows did in K turns, as the ``P * K * C`` candidates of ``P * K`` states, and the prompt of each.

    A candidate's row holds the actions and observations that were gone on with, up to its own turn, and in its own turn
    its own action; that alone is acted, and there the row ends. Every state has rows of its own, so there are K times
    as many as in ordinary rollouts, and the update feeds a prefix again in each.
    """
    count, turns = out.chosen.shape
    own = jnp.eye(turns, dtype=bool)  # [state, turn]
    before = jnp.tri(turns, k=-1, dtype=bool)
    groups = lambda x: x.reshape(count, candidates, *x.shape[1:])  # noqa: E731
    wide = lambda flag, x: flag.reshape(1, turns, 1, turns, *(1,) * (x.ndim - 3))  # noqa: E731

    def rows(x: Array, empty: int = 0, history: bool = False) -> Array:
        """``[P * C, K, ...]`` as ``[P * K * C, K, ...]``: the own turn, and `history` what came before it."""
        x = groups(x)
        y = jnp.where(wide(own, x), x[:, None], jnp.asarray(empty, x.dtype))
        if history:
            index = out.chosen.reshape(count, 1, turns, *(1,) * (x.ndim - 3))
            gone_on_with = jnp.take_along_axis(x, index, axis=1)
            y = jnp.where(wide(before, x), gone_on_with[:, None], y)
        return y.reshape(count * turns * candidates, *y.shape[3:])

    visited = jax.tree.map(lambda x: jnp.swapaxes(groups(x), 1, 2), out.states)
    made = Turns(
        tokens=rows(out.tokens, pad_token, history=True),
        mask=rows(out.mask, history=True),
        acted=rows(out.acted),
        logprob=rows(out.logprob),
        reward=rows(out.reward),
        terminated=rows(out.terminated),
        states=jax.tree.map(lambda x: x.reshape(-1, *x.shape[3:]), visited),
    )
    return made, jax.tree.map(lambda x: jnp.repeat(x, turns, axis=0), prompts)


def score(batch: Trajectory) -> Trajectory:
    """Adds `candidate_reward`, the `process_reward` of the one turn that each row acts in, to an annotated batch.

    The outcome is the terminal success of the action; a state that was never reached acts nowhere and is unscored.
    """
    own = segment_mask(batch)
    reward = jnp.sum(jnp.where(own, batch.signals["process_reward"], 0.0), axis=-1)
    outcome = jnp.where(jnp.any(own, axis=-1), batch.outcome, jnp.nan)
    return batch.replace(outcome=outcome).with_signals(candidate_reward=reward)


def _commit(reward: Array, chance: Array, commit: Commit) -> Array:
    """Which candidate of each state ``[B, C]`` the episode goes on with, i32 ``[B]``."""
    best = reward == jnp.max(reward, axis=1, keepdims=True)
    allowed = best if commit == "max" else jnp.ones_like(best)
    return jnp.argmax(jnp.where(allowed, chance, -1.0), axis=1)
