"""Labels of steps: from roll-outs, from a judge's pass, from a reference; and which solutions to keep. Pure JAX.

A label is 1 for a right step and 0 for a wrong one, soft labels lie between. `mask` bool ``[..., K]`` says which steps
there are, any leading axes; `valid` says which labels a loss may read.
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.kernels.matching import match_reward
from creditjax.process.metrics import predict_first_error

Array = jax.Array


class StepLabels(NamedTuple):
    """Labels of solutions.

    Attributes:
      label: f32 ``[..., K]``, 0 where not valid.
      valid: bool ``[..., K]``, which a loss reads.
    """

    label: Array
    valid: Array


def monte_carlo_value(success: Array, drawn: Array | None = None) -> Array:
    """Share of the completions drawn after each step that are right, f32 ``[..., K]``; NaN where none was drawn.

    >>> monte_carlo_value(jnp.array([[1.0, 0.0], [0.0, 0.0]])).tolist()
    [0.5, 0.0]

    Args:
      success: ``[..., K, N]``, 1 where the completion is right.
      drawn: bool ``[..., K, N]``, which completions there are; all if None.
    """
    drawn = jnp.ones(success.shape, bool) if drawn is None else drawn
    return jnp.where(jnp.any(drawn, axis=-1), numerics.masked_mean(success, drawn, axis=-1), jnp.nan)


def hard_labels(value: Array, mask: Array, threshold: float | Array = 0.0) -> Array:
    """``1[value > threshold]``, f32 ``[..., K]``: right if some completion succeeded; 0 outside the mask."""
    return (numerics.select(value, mask) > threshold).astype(jnp.float32) * mask


def up_to_error(first: Array, mask: Array) -> Array:
    """Steps up to and with the first wrong one, bool ``[..., K]``; all if `first` ``[...]`` is -1."""
    return mask & ((jnp.arange(mask.shape[-1]) <= first[..., None]) | (first[..., None] < 0))


class Consensus(NamedTuple):
    """What two annotators agree on.

    Attributes:
      keep: bool ``[...]``, whether they name the same first wrong step (or both none).
      first_error: i32 ``[...]``, the one that the roll-outs name, -1 for none.
      labels: of kept solutions, up to the first wrong step; nothing is valid in the others.
    """

    keep: Array
    first_error: Array
    labels: StepLabels


def consensus(
    value: Array, judged: Array, mask: Array, threshold: float | Array = 0.0, soft: bool = False
) -> Consensus:
    """Keeps the solutions on which roll-outs and a judge agree (arXiv:2501.07301).

    ``e = first k with value_k <= threshold, else -1``; kept where ``e`` is what the judge says. Then steps before e are
    right, e is wrong, and steps after it have no label.

    >>> kept = consensus(jnp.array([[0.5, 0.0], [0.5, 0.0]]), jnp.array([1, -1]), jnp.ones((2, 2), bool))
    >>> kept.keep.tolist(), kept.labels.label.tolist()
    ([True, False], [[1.0, 0.0], [0.0, 0.0]])

    Args:
      value: ``[..., K]``, share of right completions after each step.
      judged: i32 ``[...]``, the first wrong step according to the judge, -1 for none.
      mask: bool ``[..., K]``.
      threshold: a step whose value is not above it is wrong.
      soft: the label is the value itself.
    """
    first = predict_first_error(hard_labels(value, mask, threshold), mask)
    keep = first == judged
    valid = up_to_error(first, mask) & keep[..., None]
    hard = jnp.arange(mask.shape[-1]) != first[..., None]
    return Consensus(keep, first, StepLabels(numerics.select(value if soft else hard, valid), valid))


def complete_labels(judged: Array, outcome: Array, mask: Array, missing_as_outcome: bool = False) -> StepLabels:
    """A judge's labels with what it left out filled in and the last one checked (SPARE, arXiv:2506.15498).

    The last step is labelled by the outcome, whatever the judge says. Nothing is assumed about steps after a wrong one.

    >>> complete_labels(jnp.array([1.0, jnp.nan, 1.0]), jnp.array(0.0), jnp.ones(3, bool)).label.tolist()
    [1.0, 0.0, 0.0]

    Args:
      judged: ``[..., K]``, NaN where the judge's output lacks the step.
      outcome: ``[...]``, 1 if the final answer is right.
      mask: bool ``[..., K]``.
      missing_as_outcome: a missing step is labelled by the outcome instead of 0 (strict, the published default).
    """
    outcome = outcome.astype(jnp.float32)[..., None]
    missing = outcome if missing_as_outcome else jnp.zeros_like(outcome)
    label = jnp.where(jnp.isnan(judged), missing, judged)
    steps = jnp.arange(mask.shape[-1])
    last = jnp.max(jnp.where(mask, steps, -1), axis=-1, keepdims=True)
    return StepLabels(jnp.where(mask, jnp.where(steps == last, outcome, label), 0.0), mask)


def matched_labels(similarity: Array, mask: Array, reference_mask: Array, threshold: float | Array = 0.5) -> Array:
    """Labels without a judge: 1 where a step's match among the reference steps is similar enough, f32 ``[K]``.

    The matching maximises the total similarity, one to one; a step without a match is wrong.

    Args:
      similarity: ``[K, R]`` in [0, 1].
      mask: bool ``[K]``.
      reference_mask: bool ``[R]``.
      threshold: a match has to exceed it.
    """
    return hard_labels(match_reward(similarity, mask, reference_mask), mask, threshold)


class LabelPair(NamedTuple):
    """Of each problem the solutions with the most and the fewest right steps: indices ``[...]``, and whether they
    differ in that."""

    chosen: Array
    rejected: Array
    valid: Array


def label_pairs(labels: StepLabels) -> LabelPair:
    """Preference pairs from step labels: ``m = mean_k (2 y_k - 1)``, argmax over argmin, if the gap is above 0.

    The first index of equals; solutions without a valid label take no part (SPARE, arXiv:2506.15498).

    Args:
      labels: ``[..., N, K]``.
    """
    mean = numerics.masked_mean(2.0 * labels.label - 1.0, labels.valid, axis=-1)
    there = jnp.any(labels.valid, axis=-1)
    high, low = (jnp.where(there, mean, fill) for fill in (-jnp.inf, jnp.inf))
    gap = jnp.max(high, axis=-1) - jnp.min(low, axis=-1)
    return LabelPair(jnp.argmax(high, axis=-1), jnp.argmin(low, axis=-1), gap > 0)
