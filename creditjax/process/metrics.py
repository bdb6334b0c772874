"""Metrics of judges of steps: ProcessBench F1, best of n, votes, step AUROC. Pure JAX, any leading axes.

`score` ``[..., K]`` is a probability that each step is right and `mask` bool ``[..., K]`` says which steps there are;
what lies under a mask is never read. Whatever an empty selection would be the mean of is 0.
"""

from collections.abc import Mapping, Sequence
import typing
from typing import Literal, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import numerics
from creditjax.kernels.steps import first_error

Array = jax.Array
Aggregate = Literal["product", "min", "mean", "last"]


def aggregate_score(score: Array, mask: Array, kind: Aggregate = "product") -> Array:
    """Score of each solution from those of its steps, f32 ``[...]``; 0 without a step.

    >>> aggregate_score(jnp.array([0.5, 0.8, 0.9]), jnp.array([True, True, False]), "min").tolist()
    0.5

    Args:
      score: ``[..., K]`` in [0, 1].
      mask: bool ``[..., K]``.
      kind: "product", "min", "mean", or "last" (step that there is).

    Raises:
      ValueError: an unknown `kind`.
    """
    if kind not in typing.get_args(Aggregate):
        raise ValueError(f"aggregate: {kind!r}, wanted one of {typing.get_args(Aggregate)}")
    some = jnp.any(mask, axis=-1)
    if kind == "product":
        return jnp.where(some, jnp.prod(jnp.where(mask, score, 1.0), axis=-1), 0.0)
    if kind == "min":
        return jnp.where(some, numerics.masked_min(score, mask, axis=-1), 0.0)
    if kind == "mean":
        return numerics.masked_mean(score, mask, axis=-1)
    return jnp.where(some, jnp.take_along_axis(score, _last(mask)[..., None], axis=-1)[..., 0], 0.0)


def _last(mask: Array) -> Array:
    """Index of the last step that there is, 0 where there is none."""
    return jnp.max(jnp.where(mask, jnp.arange(mask.shape[-1]), 0), axis=-1)


# ------------------------------------------------------------------------------------------------- first wrong steps


def predict_first_error(score: Array, mask: Array, threshold: float | Array = 0.5) -> Array:
    """The first step that scores below `threshold`, i32 ``[...]``; -1 for none (ProcessBench, arXiv:2412.06559)."""
    by_row = jnp.vectorize(first_error, signature="(k),(k),()->()")
    return by_row(score, mask, jnp.asarray(threshold))


def majority_first_error(prediction: Array, parsed: Array) -> Array:
    """What most of n critiques say, i32 ``[...]``: of equally frequent answers the smallest, -1 if none was parsed.

    Args:
      prediction: i32 ``[..., n]``, the first wrong step of each critique, -1 for none.
      parsed: bool ``[..., n]``; the others do not vote.
    """
    same = (prediction[..., :, None] == prediction[..., None, :]) & parsed[..., None, :]
    votes = jnp.where(parsed, jnp.sum(same, axis=-1), 0)
    most = parsed & (votes == jnp.max(votes, axis=-1, keepdims=True))
    nobody = jnp.iinfo(jnp.int32).max
    smallest = jnp.min(jnp.where(most, prediction, nobody), axis=-1)
    return jnp.where(jnp.any(parsed, axis=-1), smallest, -1).astype(jnp.int32)


class ErrorScores(NamedTuple):
    """How well first errors are found, scalars.

    Attributes:
      f1: harmonic mean of the two accuracies, 0 where both are.
      error_accuracy: share of the wrong solutions whose first wrong step is found exactly.
      correct_accuracy: share of the right solutions in which none is found.
      errors: number of wrong solutions.
      corrects: number of right ones.
    """

    f1: Array
    error_accuracy: Array
    correct_accuracy: Array
    errors: Array
    corrects: Array


def processbench_f1(prediction: Array, label: Array, valid: Array | None = None) -> ErrorScores:
    """ProcessBench's F1 (arXiv:2412.06559): it does not depend on how many solutions are wrong.

    ``F1 = 2 a b / (a + b)`` with the accuracies a on wrong and b on right solutions; a class without examples has
    accuracy 0.

    >>> scores = processbench_f1(jnp.array([1, -1, -1]), jnp.array([1, 2, -1]))
    >>> round(float(scores.f1), 4), float(scores.error_accuracy)
    (0.6667, 0.5)

    Args:
      prediction: i32 ``[B]``, -1 for none.
      label: i32 ``[B]``, the first wrong step, -1 if every step is right.
      valid: bool ``[B]``, rows that count; all if None.
    """
    valid = jnp.ones(label.shape, bool) if valid is None else valid
    wrong, right = valid & (label >= 0), valid & (label < 0)
    hit = (prediction == label).astype(jnp.float32)
    a, b = numerics.masked_mean(hit, wrong), numerics.masked_mean(hit, right)
    counts = (jnp.sum(wrong, dtype=jnp.int32), jnp.sum(right, dtype=jnp.int32))
    return ErrorScores(numerics.safe_divide(2.0 * a * b, a + b), a, b, *counts)


def mean_f1(scores: Mapping[str, ErrorScores] | Sequence[ErrorScores]) -> float:
    """Plain mean of the F1 of subsets, as ProcessBench reports it.

    Raises:
      ValueError: there are none.
    """
    of_each = list(scores.values() if isinstance(scores, Mapping) else scores)
    if not of_each:
        raise ValueError("scores: found none, wanted one or more subsets")
    return float(np.mean([float(one.f1) for one in of_each]))


def tune_threshold(score: Array, mask: Array, label: Array, thresholds: Array) -> Array:
    """The threshold with the highest F1, the first of equals: to be tuned on one set and frozen.

    Args:
      score: ``[B, K]``.
      mask: bool ``[B, K]``.
      label: i32 ``[B]``.
      thresholds: ``[N]``.
    """
    by_threshold = lambda t: processbench_f1(predict_first_error(score, mask, t), label).f1  # noqa: E731
    return thresholds[jnp.argmax(jax.lax.map(by_threshold, thresholds))]


def outcome_process_gap(outcome: Array, label: Array) -> Array:
    """Share of the solutions with a right answer that have a wrong step: what an outcome reward cannot see.

    Args:
      outcome: ``[...]``, 1 where the final answer is right; NaN does not count.
      label: i32 ``[...]``, the first wrong step, -1 for none.
    """
    return numerics.masked_mean((label >= 0).astype(jnp.float32), outcome > 0)


# ----------------------------------------------------------------------------------------------------- single steps


def step_accuracy(score: Array, label: Array, valid: Array, threshold: float = 0.5) -> Array:
    """Share of the labelled steps on whose side of `threshold` the score is; a soft label is right above 1/2.

    A score at the threshold counts as right, as in :func:`predict_first_error`.
    """
    return numerics.masked_mean(((score >= threshold) == (label > 0.5)).astype(jnp.float32), valid)


def step_auroc(score: Array, label: Array, valid: Array) -> Array:
    """Probability that a right step outscores a wrong one, ties counting half; 1/2 where a class has no step.

    ``(sum of the mean ranks of the right steps - n (n + 1) / 2) / (n m)`` with n right and m wrong ones (Mann and
    Whitney 1947), over all axes at once.

    >>> ones = jnp.ones(4, bool)
    >>> float(step_auroc(jnp.array([0.1, 0.4, 0.4, 0.9]), jnp.array([0, 1, 0, 1]), ones))
    0.875
    """
    score, label, valid = (x.reshape(-1) for x in (score, label, valid))
    right, wrong = valid & (label > 0.5), valid & (label <= 0.5)
    key = jnp.where(valid, score.astype(jnp.float32), jnp.inf)
    # Where the equals of each score begin and end among all, sorted: with the wrong ones counted up to there, each
    # right step has beaten those before its equals and half of those among them. Counts stay exact integers.
    order = jnp.argsort(key, stable=True)
    ordered = key[order]
    below = jnp.pad(jnp.cumsum(wrong[order], dtype=jnp.int32), (1, 0))
    begin, end = (jnp.searchsorted(ordered, key, side=side) for side in ("left", "right"))
    beaten = (below[begin] + below[end]) / 2.0
    n, m = jnp.sum(right, dtype=jnp.float32), jnp.sum(wrong, dtype=jnp.float32)
    mean = numerics.masked_mean(numerics.safe_divide(beaten, m), right)
    return jnp.where((n > 0) & (m > 0), mean, 0.5)


def share_min_last(score: Array, mask: Array) -> Array:
    """Share of the solutions whose last step scores lowest (the first of equals): high if steps are scored by outcome.

    (arXiv:2501.07301.) Solutions without a step do not count.
    """
    lowest = jnp.argmin(jnp.where(mask, score, jnp.inf), axis=-1)
    return numerics.masked_mean((lowest == _last(mask)).astype(jnp.float32), jnp.any(mask, axis=-1))


# ------------------------------------------------------------------------------------------------------ n solutions


def _votes(score: Array, valid: Array | None) -> Array:
    there = ~jnp.isnan(score)
    return there if valid is None else there & valid


def best_index(score: Array, valid: Array | None = None) -> Array:
    """Index of the solution with the highest score, i32 ``[...]``: of equals the first, 0 where there is none."""
    return jnp.argmax(jnp.where(_votes(score, valid), score, -jnp.inf), axis=-1).astype(jnp.int32)


def best_of_n(score: Array, outcome: Array, valid: Array | None = None) -> Array:
    """Outcome of the solution with the highest score, f32 ``[...]``; 0 where there is none.

    Args:
      score: ``[..., N]``; a NaN is no candidate.
      outcome: ``[..., N]``.
      valid: bool ``[..., N]``, which solutions there are; all if None.
    """
    return _picked(best_index(score, valid), outcome, _votes(score, valid))


def _picked(index: Array, outcome: Array, valid: Array) -> Array:
    chosen = jnp.take_along_axis(outcome.astype(jnp.float32), index[..., None], axis=-1)[..., 0]
    return jnp.where(jnp.any(valid, axis=-1), chosen, 0.0)


def best_of_m(score: Array, outcome: Array, m: int, valid: Array | None = None) -> Array:
    """Expected outcome of best of m, over all subsets of m of the N solutions, f32 ``[...]``.

    ``sum_n outcome_(n) C(N - n, m - 1) / C(N, m)`` with the solutions ranked best first: the n-th wins if it is drawn
    and nobody before it is. Of equals the first ranks higher. With fewer than m solutions m is their number.

    >>> outcome = jnp.array([0.0, 1.0, 1.0])
    >>> [round(float(best_of_m(jnp.array([0.9, 0.8, 0.1]), outcome, m)), 4) for m in (1, 2, 3)]
    [0.6667, 0.3333, 0.0]

    Args:
      score: ``[..., N]``; a NaN is no candidate.
      outcome: ``[..., N]``.
      m: static, at least 1.
      valid: bool ``[..., N]``, which solutions there are; all if None.

    Raises:
      ValueError: m is less than 1.
    """
    if m < 1:
        raise ValueError(f"m: {m}, wanted at least 1")
    there = _votes(score, valid)
    order = jnp.argsort(jnp.where(there, -score, jnp.inf), axis=-1, stable=True)
    ranked = jnp.take_along_axis(outcome.astype(jnp.float32), order, axis=-1)
    count = jnp.sum(there, axis=-1, keepdims=True, dtype=jnp.float32)
    size = jnp.minimum(count, m)
    # The weight of rank n + 1 is that of rank n times (N - n - m + 1) / (N - n).
    n = jnp.arange(1, score.shape[-1], dtype=jnp.float32)
    ratio = numerics.safe_divide(jnp.maximum(count - n - size + 1.0, 0.0), count - n)
    weight = numerics.safe_divide(size, count) * jnp.concatenate(
        [jnp.ones_like(count), jnp.cumprod(jnp.broadcast_to(ratio, (*count.shape[:-1], n.shape[0])), axis=-1)], axis=-1
    )
    real = jnp.arange(score.shape[-1]) < count
    return jnp.sum(jnp.where(real, weight * ranked, 0.0), axis=-1)


def weighted_vote(score: Array, answer: Array, outcome: Array, valid: Array | None = None) -> Array:
    """Outcome of the answer with the highest total score, f32 ``[...]``; 0 if there is no answer.

    An answer's outcome is that of its first occurrence; of equal totals the answer seen first wins.

    Args:
      score: ``[..., N]``; a NaN does not vote.
      answer: i32 ``[..., N]``, equal for equal answers, -1 for none, which does not vote.
      outcome: ``[..., N]``.
      valid: bool ``[..., N]``, which solutions there are; all if None.
    """
    there = _votes(score, valid) & (answer >= 0)
    same = (answer[..., :, None] == answer[..., None, :]) & there[..., None, :]
    # Every occurrence of an answer sums the same numbers in the same order, so all of them have one total.
    total = jnp.sum(jnp.where(same, jnp.where(there, score, 0.0)[..., None, :], 0.0), axis=-1)
    return _picked(jnp.argmax(jnp.where(there, total, -jnp.inf), axis=-1), outcome, there)


def majority_vote(answer: Array, outcome: Array, valid: Array | None = None) -> Array:
    """Outcome of the most frequent answer, f32 ``[...]``; see :func:`weighted_vote`."""
    return weighted_vote(jnp.ones(answer.shape, jnp.float32), answer, outcome, valid)


def pass_at_n(outcome: Array, valid: Array | None = None) -> Array:
    """Highest outcome of the N solutions, f32 ``[...]``: what no selection can exceed; 0 where there is none."""
    there = _votes(outcome, valid)
    return jnp.where(jnp.any(there, axis=-1), numerics.masked_max(outcome, there, axis=-1), 0.0)


def mean_at_n(outcome: Array, valid: Array | None = None) -> Array:
    """Mean outcome of the N solutions, f32 ``[...]``: what a random pick gives."""
    return numerics.masked_mean(outcome, _votes(outcome, valid), axis=-1)


def best_of_n_process_gap(score: Array, outcome: Array, label: Array, valid: Array | None = None) -> Array:
    """Share of the best-of-n picks that have a right answer in spite of a wrong step (arXiv:2501.07301), scalar.

    Args:
      score: ``[P, N]``.
      outcome: ``[P, N]``.
      label: i32 ``[P, N]``, the first wrong step, -1 for none.
      valid: bool ``[P, N]``, which solutions there are; all if None.
    """
    index = best_index(score, valid)[..., None]
    right, first = (jnp.take_along_axis(x, index, axis=-1)[..., 0] for x in (outcome, label))
    some = jnp.any(_votes(score, valid), axis=-1)
    return numerics.masked_mean(((right > 0) & (first >= 0)).astype(jnp.float32), some)
