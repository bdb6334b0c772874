"""Losses and gradients over the pairs of one group: who is preferred to whom, and how hard that pulls.

A pair matrix ``[G, G]`` has the preferred row first. `vote` f32 ``[G]`` is the weight of each row in its group, as in
:mod:`creditjax.kernels.group`; a pair counts as the product of its two votes, and a row of vote 0 is in no pair.
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array
Scalar = jax.Array | float


class Pairs(NamedTuple):
    """Which pairs there are.

    Attributes:
      weight: f32 ``[G, G]``, how much the loss of (preferred, other) weighs, votes included; 0 where there is no pair.
      there: f32 ``[G, G]``, the votes alone: what each pair adds to a count.
    """

    weight: Array
    there: Array


def gaps(x: Array) -> Array:
    """``x_i - x_j``, ``[G, G]``."""
    return x[:, None] - x[None, :]


def ranked_pairs(outcome: Array, vote: Array, score: Array | None = None) -> Pairs:
    """Every pair of different outcomes; with `score`, of equal outcomes and different scores too, by how much.

    The better outcome is preferred with weight 1. Between equal outcomes the better score is, with weight
    ``score_i - score_j`` (StepORLM, arXiv:2509.22558), so that no score turns an outcome round.

    Args:
      outcome: ``[G]``, read where there is a vote.
      vote: f32 ``[G]``.
      score: ``[G]`` or None.
    """
    together = vote[:, None] * vote[None, :]
    gap = gaps(numerics.select(outcome, vote))
    preference = jnp.where(gap > 0, 1.0, 0.0)
    if score is not None:
        preference = jnp.where(gap == 0, jnp.maximum(gaps(numerics.select(score, vote)), 0.0), preference)
    return Pairs(preference * together, jnp.where(preference > 0, together, 0.0))


def share_of_right(label: Array, owned: Array) -> Array:
    """Mean of the step labels ``[..., K]`` over the steps that there are and that were judged (not NaN); 0 if none."""
    return numerics.masked_mean(label, owned & jnp.isfinite(label), axis=-1)


def pair_logistic(preferred: Array, other: Array, weight: Array) -> Array:
    """``-sum_ij weight_ij log sigmoid(preferred_i - other_j)``, scalar (Bradley-Terry; DPO, arXiv:2305.18290).

    Args:
      preferred: ``[G]``, what a row scores as the preferred one.
      other: ``[G]``, what it scores as the other one; mostly the same numbers.
      weight: ``[G, G]``.
    """
    return jnp.sum(weight * jax.nn.softplus(other[None, :] - preferred[:, None]))


def pair_pull(preferred: Array, other: Array, weight: Array) -> tuple[Array, Array]:
    """How hard :func:`pair_logistic` pulls each row up as the preferred one, and down as the other, ``[G]`` each.

    ``up_i = sum_j weight_ij sigmoid(other_j - preferred_i)`` is minus the derivative by ``preferred_i``, and
    ``down_j = sum_i weight_ij sigmoid(other_j - preferred_i)`` the derivative by ``other_j``. Their sums are equal.
    """
    pull = weight * jax.nn.sigmoid(other[None, :] - preferred[:, None])
    return jnp.sum(pull, axis=1), jnp.sum(pull, axis=0)


class Contrast(NamedTuple):
    """A contrast of the solved rows of a group with all unsolved ones.

    Attributes:
      loss: f32 scalar, 0 where one side is missing.
      there: bool scalar, whether both sides are there.
      pull: f32 ``[G]``, minus the derivative of the loss by each score; adds up to 0.
    """

    loss: Array
    there: Array
    pull: Array


def contrast(score: Array, solved: Array, vote: Array, temperature: Scalar, margin: Scalar) -> Contrast:
    """The mean over solved rows of InfoNCE against all unsolved ones (ConSPO, arXiv:2605.12969).

        l_i = -log( e^{(s_i - margin)/tau} / (e^{(s_i - margin)/tau} + sum_{j unsolved} e^{s_j/tau}) )

    Votes weigh the mean and the sum. Adding a number to all scores changes nothing.

    Args:
      score: ``[G]``.
      solved: bool ``[G]``.
      vote: f32 ``[G]``.
      temperature: tau > 0.
      margin: how much a solved row has to lead.
    """
    positive, negative = (jnp.where(side, vote, 0.0) for side in (solved, ~solved))
    there = jnp.any(positive > 0) & jnp.any(negative > 0)
    own = (numerics.select(score, vote) - margin) / temperature
    rival = numerics.select(score, negative) / temperature + jnp.log(jnp.where(negative > 0, negative, 1.0))
    # Without a rival the log-sum-exp would be -inf, and its gradient NaN.
    rival = jnp.where((negative > 0) | ~there, rival, -jnp.inf)
    rivals = jax.nn.logsumexp(rival)
    share = jnp.where(there, numerics.safe_divide(positive, jnp.sum(positive)), 0.0)
    short = share * jax.nn.sigmoid(rivals - own)
    pull = (short - jnp.sum(short) * jnp.where(negative > 0, jax.nn.softmax(rival), 0.0)) / temperature
    return Contrast(jnp.sum(share * jax.nn.softplus(rivals - own)), there, pull)


def span_weights(
    better: Array, worse: Array, owned: Array, low: Scalar, high: Scalar, scale: Scalar
) -> tuple[Array, Array]:
    """``scale exp(mu clip(better - worse, low, high))`` with mu 1 and -1: as a preferred row's span, as the other's.

    TIS-DPO (arXiv:2410.04350) and CTPD (arXiv:2601.11865). No gradient flows through the weights.

    Args:
      better: ``[..., K]``, log-probability of each span under a teacher that learned the preferences.
      worse: ``[..., K]``, under one that learned the opposite.
      owned: bool ``[..., K]``, spans that there are; 0 elsewhere.
      low: least of the difference.
      high: largest of the difference.
      scale: common factor.
    """
    lead = jnp.clip(numerics.select(better, owned) - numerics.select(worse, owned), low, high)
    up, down = (numerics.select(scale * jnp.exp(sign * lead), owned) for sign in (1.0, -1.0))
    return jax.lax.stop_gradient(up), jax.lax.stop_gradient(down)


def edit_weights(mask: Array, step: Array | None, edit: Array | None, rest: Scalar) -> tuple[Array, Array]:
    """What each token of a group weighs in the margin of its pairs, and whether the group is one of edited steps.

    In a group in which some acted token is in a `step`, tokens outside it weigh 0, edited ones 1 and the others `rest`
    (RISE, arXiv:2410.06638); in any other group all acted tokens weigh 1.

    Args:
      mask: bool ``[G, T]``, where the policy acted.
      step: bool ``[G, T]``, tokens of the step that was edited; None for none.
      edit: bool ``[G, T]``, tokens that the edit changed; None for all of the step.
      rest: weight of the unchanged tokens of the step.

    Returns:
      f32 ``[G, T]`` and a bool scalar.
    """
    if step is None:
        return mask.astype(jnp.float32), jnp.zeros((), bool)
    step = step & mask
    edited = jnp.any(step)
    changed = 1.0 if edit is None else jnp.where(edit, 1.0, rest)
    return jnp.where(edited, jnp.where(step, changed, 0.0), mask.astype(jnp.float32)), edited
