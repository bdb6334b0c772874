"""Several actions from every visited state, one of them taken (state groups of VPR, arXiv:2605.10325).

In each state C candidates are drawn and scored by an oracle; the episode goes on with one of the best, or with any.
The candidates of a state are compared with each other alone, so the batch that comes out has a *state* for a prompt
and its candidates for a group.
"""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
from jax import numpy as jnp

from creditjax.trajectory import Trajectory

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
        best = verdict.reward == jnp.max(verdict.reward, axis=1, keepdims=True)
        allowed = best if commit == "max" else jnp.ones_like(best)
        chosen = jnp.argmax(jnp.where(allowed, jax.random.uniform(choose, best.shape), -1.0), axis=1)
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
