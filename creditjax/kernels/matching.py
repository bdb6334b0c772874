"""Matching the calls of a rollout with reference calls: exact, greedy, or softly by optimal transport."""

import typing
from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array

Matcher = Literal["exact", "greedy", "sinkhorn"]


def match_reward(
    similarity: Array,
    call_mask: Array,
    reference_mask: Array,
    penalty: float | Array = 0.0,
    method: Matcher = "exact",
    regularizer: float = 0.1,
    iterations: int = 100,
) -> Array:
    """Reward of each call for being matched with a reference call, f32 ``[Q]`` (MatchTIR, arXiv:2601.10712).

    "exact" maximises the total similarity one to one (`optax.assignment.hungarian_algorithm`), "greedy" takes the
    best pair left again and again; a matched call gets its similarity, an unmatched one (or one matched at similarity
    0) `penalty`. "sinkhorn" spreads uniform mass over calls and references at cost ``-similarity``: a call gets
    ``sum_e T[q, e] similarity[q, e]``.

    Args:
      similarity: f32 ``[Q, E]`` in [0, 1], only read where both masks hold.
      call_mask: bool ``[Q]``, calls that were made.
      reference_mask: bool ``[E]``, reference calls that exist.
      penalty: reward of an unmatched call.
      method: one of `Matcher`.
      regularizer: entropy weight of "sinkhorn".
      iterations: of "sinkhorn".

    Raises:
      ValueError: an unknown method.
    """
    real = call_mask[:, None] & reference_mask[None, :]
    similarity = numerics.select(similarity, real)
    if method == "sinkhorn":
        return jnp.where(
            call_mask,
            jnp.sum(_plan(similarity, call_mask, reference_mask, regularizer, iterations) * similarity, -1),
            0.0,
        )
    if method == "exact":
        matched = _exact(similarity)
    elif method == "greedy":
        matched = _greedy(similarity)
    else:
        raise ValueError(f"method: {method!r}, wanted one of {typing.get_args(Matcher)}")
    reward = jnp.sum(jnp.where(matched, similarity, 0.0), axis=-1)
    return jnp.where(call_mask, jnp.where(reward > 0, reward, penalty), 0.0)


def _exact(similarity: Array) -> Array:
    import optax

    rows, columns = optax.assignment.hungarian_algorithm(-similarity)
    return jnp.zeros(similarity.shape, bool).at[rows, columns].set(True)


def _greedy(similarity: Array) -> Array:
    def take_best(_, state):
        left, matched = state
        q, e = jnp.unravel_index(jnp.argmax(left), left.shape)
        good = left[q, e] > 0
        matched = matched.at[q, e].set(matched[q, e] | good)
        gone = (jnp.arange(left.shape[0])[:, None] == q) | (jnp.arange(left.shape[1]) == e)
        return jnp.where(gone, 0.0, left), matched

    start = (similarity, similarity < 0)
    return jax.lax.fori_loop(0, min(similarity.shape), take_best, start)[1]


def _plan(similarity: Array, calls: Array, references: Array, regularizer: float, iterations: int) -> Array:
    """The entropic transport plan with uniform marginals over real calls and references, in logs."""
    real = calls[:, None] & references[None, :]
    log_kernel = jnp.where(real, similarity / regularizer, -jnp.inf)
    rows = -jnp.log(jnp.maximum(jnp.sum(calls), 1).astype(jnp.float32))
    columns = -jnp.log(jnp.maximum(jnp.sum(references), 1).astype(jnp.float32))

    def logsum(x: Array, axis: int) -> Array:
        total = jax.nn.logsumexp(x, axis=axis)
        return jnp.where(jnp.isfinite(total), total, 0.0)

    def balance(_, scales):
        _, v = scales
        u = rows - logsum(log_kernel + v[None, :], 1)
        return u, columns - logsum(log_kernel + u[:, None], 0)

    start = (similarity[:, 0] * 0, similarity[0] * 0)
    u, v = jax.lax.fori_loop(0, iterations, balance, start)
    return jnp.where(real, jnp.exp(log_kernel + u[:, None] + v[None, :]), 0.0)
