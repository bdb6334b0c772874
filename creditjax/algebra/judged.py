"""Pieces for steps that somebody has judged: labels, scores and verified rewards of segments, and what compares them.

Sources read a verdict of each step; transforms pool, share out, place or leave out the credit of steps. A step that
was not acted in is no step, except for :func:`every_segment`.
"""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.algebra.core import Context, check_signal, transform
from creditjax.algebra.credit import Credit, Level, credit
from creditjax.algebra.group import Ddof
from creditjax.algebra.sources import acted, owned
from creditjax.kernels import group, returns, segments, steps
from creditjax.trajectory import Trajectory, lengths, segment_mask, vote_mask, vote_weight

Array = jax.Array

Vote = Literal["intersection", "majority", "average"]
Margin = Literal["prompt", "ratio", "fixed"]

_K = ("P", "G", "K")


def _of_steps(owner: str, name: str) -> None:
    check_signal(owner, name, _K, dtype="float32")


# ------------------------------------------------------------------------------------------------------------ sources


@transform(
    takes=None,
    gives=Level.SEGMENT,
    needs=lambda name, **_: (name, "segment"),
    check=lambda name, **_: _of_steps("judged_wrong", name),
)
def judged_wrong(
    batch: Trajectory, *, name: str = "step_label", threshold: float = 0.5, spare_last: bool = False
) -> Credit:
    """Condition: 1 for a step whose label or score is below `threshold`, else 0; a missing one (NaN) is not wrong.

    Args:
      name: a signal ``[K]``, higher is better.
      threshold: below it a step is wrong.
      spare_last: the last step of a rollout is never wrong.
    """
    valid = owned(batch)
    wrong = valid & (batch.signals[name] < threshold)
    return credit(wrong & ~_is_last(valid) if spare_last else wrong, valid, Level.SEGMENT)


def _is_last(valid: Array) -> Array:
    """The last step of each row, bool ``[..., K]``."""
    k = jnp.arange(valid.shape[-1])
    return valid & (k == jnp.max(jnp.where(valid, k, -1), axis=-1, keepdims=True))


@transform(takes=None, gives=Level.SEGMENT, needs=("judge_error", "segment"))
def critique_vote(batch: Trajectory, *, vote: Vote = "majority") -> Credit:
    """How wrong each step is, in [0, 1], by the vote of several critiques (CAPO, arXiv:2508.02298).

    A critique that says nothing about a step (NaN: it could not be parsed) does not vote on it; without a vote a step
    is not wrong.

    Args:
      vote: "intersection", 1 if every critique flags the step; "majority", 1 if more than half do (a tie is not
        enough); "average", the mean of what they say.
    """
    said = batch.signals["judge_error"]
    there = ~jnp.isnan(said) & owned(batch)[..., None]
    share = numerics.masked_mean(said if vote == "average" else (said > 0.5), there, axis=-1)
    wrong = {"intersection": share >= 1 - 1e-6, "majority": share > 0.5 + 1e-6, "average": share}[vote]
    return credit(wrong, owned(batch), Level.SEGMENT)


def _check_prefix(name: str, **_) -> None:
    _of_steps("good_prefix", name)


@transform(
    takes=None,
    gives=Level.TOKEN,
    needs=lambda name, margin, **_: (name, "segment", *(("prompt_length",) if margin == "prompt" else ())),
    check=_check_prefix,
)
def good_prefix(
    batch: Trajectory,
    *,
    name: str = "step_score",
    threshold: float = 0.8,
    margin: Margin = "prompt",
    size: float = 0.1,
) -> Credit:
    """Condition: 1 on the acted positions that come well before the first step scored below `threshold`, else 0.

    Where no step is, the prefix is empty (VPPO, arXiv:2601.18984). It is shortened by a margin, counted in acted
    positions, since the error may begin before the step that shows it.

    Args:
      name: a signal ``[K]``, the probability that the step is right.
      threshold: below it a step is an error.
      margin: "prompt", the number of tokens of the prompt; "ratio", `size` times the rollout's acted positions;
        "fixed", `size` positions.
      size: see `margin`.
    """
    rows = lengths(batch).astype(jnp.float32)
    cut = jnp.broadcast_to(
        {"prompt": batch.signals.get("prompt_length", 0), "ratio": size * rows, "fixed": size}[margin], rows.shape
    )

    def one(score, valid, ids, mask, cut):
        return steps.before_step(steps.first_error(score, valid, threshold), ids, mask, cut)

    inside = jax.vmap(one)(batch.signals[name], owned(batch), batch.segment, batch.action_mask, cut)
    return credit(inside, acted(batch), Level.TOKEN)


@transform(
    takes=None,
    gives=Level.SEGMENT,
    needs=lambda name: (name, "segment"),
    check=lambda name: _of_steps("every_segment", name),
)
def every_segment(batch: Trajectory, *, name: str) -> Credit:
    """A signal of segments, those that nobody acted in included: an answer that was not given is one that failed.

    They count in statistics and products; credit reaches tokens, so it never reaches them.
    """
    x = batch.signals[name]
    valid = jnp.broadcast_to(vote_mask(batch)[..., None], x.shape)
    return credit(jnp.where(segment_mask(batch), x, 0.0), valid, Level.SEGMENT)


# --------------------------------------------------------------------------------------------------------- transforms


@transform(
    takes=(Level.TRAJECTORY, Level.SEGMENT, Level.TOKEN),
    gives=None,
    needs=lambda name, **_: (name,),
    check=lambda name, **_: check_signal("rows_where", name, ("P", "G"), dtype="bool"),
)
def rows_where(credit: Credit, batch: Trajectory, *, name: str, holds: bool = True) -> Credit:
    """Takes the credit from rollouts for which a flag is not `holds`: what follows compares the others alone."""
    keep = batch.signals[name] == holds
    valid = credit.valid & keep.reshape(keep.shape + (1,) * (credit.valid.ndim - keep.ndim))
    return credit.replace(valid=valid, value=numerics.select(credit.value, valid))


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT)
def cumulative_product(credit: Credit, batch: Trajectory) -> Credit:
    """Product of the credits of this and the earlier segments: with 0 and 1, nothing after the first 0."""
    return credit.with_value(jnp.cumprod(jnp.where(credit.valid, credit.value, 1.0), axis=-1))


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT)
def share_segments(credit: Credit, batch: Trajectory) -> Credit:
    """Divides by the number of the rollout's credited segments, so that their sum is their mean: more steps are not
    more credit.
    """
    return credit.with_value(numerics.safe_divide(credit.value, numerics.masked_count(credit.valid, -1, True)))


@transform(takes=(Level.SEGMENT, Level.TOKEN), gives=None)
def pooled_normalize(credit: Credit, batch: Trajectory, *, ddof: Ddof = 1, eps: float = 1e-6) -> Credit:
    """``(x - mean) / (std + eps)`` with one mean and one std over all credited segments (or tokens) of the group.

    Each segment or token has one vote, so long rollouts have more. Equal values give exactly 0. A group of one keeps
    the contrast among its own.
    """
    flat = credit.value.reshape(-1), credit.valid.reshape(-1).astype(jnp.float32)
    return credit.with_value(group.normalize(*flat, ddof=ddof, eps=eps).reshape(credit.value.shape))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def subtract_rollout_mean(credit: Credit, batch: Trajectory) -> Credit:
    """Subtracts the group's mean of each rollout's mean token credit, its own included: one number a group.

    A group of one keeps the contrast inside its rollout.
    """
    counts = numerics.masked_count(credit.valid, axis=-1)
    mean = numerics.masked_mean(credit.value, credit.valid, axis=-1)
    share = jnp.where(counts > 0, vote_weight(batch), 0.0)
    return credit.with_value(credit.value - numerics.masked_mean(mean, share))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY)
def group_mean(credit: Credit, batch: Trajectory) -> Credit:
    """The mean over the group's voters, for each of them: of outcomes in {0, 1}, how easy the prompt is."""
    weight = jnp.where(credit.valid, vote_weight(batch), 0.0)
    return credit.with_value(jnp.broadcast_to(numerics.masked_mean(credit.value, weight), weight.shape))


@transform(takes=Level.TRAJECTORY, gives=Level.SEGMENT, needs=("segment",))
def to_segments(credit: Credit, batch: Trajectory) -> Credit:
    """Gives each segment its rollout's credit, and nothing to positions of no segment."""
    valid = owned(batch) & credit.valid[..., None]
    return Credit(jnp.where(valid, credit.value[..., None], 0.0), valid, credit.extras, Level.SEGMENT)


@transform(takes=Level.TRAJECTORY, gives=Level.SEGMENT, needs=("segment",))
def at_last_segment(credit: Credit, batch: Trajectory) -> Credit:
    """Puts a rollout's credit on its last segment and 0 on the others."""
    valid = owned(batch) & credit.valid[..., None]
    value = jnp.where(_is_last(valid), credit.value[..., None], 0.0)
    return Credit(value, valid, credit.extras, Level.SEGMENT)


@transform(takes=Level.TOKEN, gives=Level.SEGMENT, needs=("segment",))
def sum_by_segment(credit: Credit, batch: Trajectory) -> Credit:
    """The sum over each segment's acted positions."""
    value = jax.vmap(lambda x, ids, valid: segments.segment_sum(x, ids, valid, batch.num_segments))(
        credit.value, batch.segment, credit.valid
    )
    return Credit(numerics.select(value, owned(batch)), owned(batch), credit.extras, Level.SEGMENT)


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("segment",))
def step_return(credit: Credit, batch: Trajectory, *, gamma: float = 1.0) -> Credit:
    """Sum of the credit from each position on, one discount for each *segment* that ends in between (not each token).

    What follows the end of the last segment is not discounted against it.
    """

    def one(x: Array, valid: Array, ids: Array, mask: Array) -> Array:
        last = segments.last_position(ids, mask, batch.num_segments)
        ends = mask & (segments.broadcast(last, ids) == jnp.arange(ids.shape[0])) & (ids >= 0)
        ends = ends & (jnp.arange(ids.shape[0]) < jnp.max(last))
        return returns.future_sum(x, valid, jnp.where(ends, gamma, 1.0))

    return credit.with_value(jax.vmap(one)(credit.value, credit.valid, batch.segment, batch.action_mask))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY)
def drop_silent_groups(credit: Credit, batch: Trajectory) -> Credit:
    """A group whose voters' credits are all equal, or that has one voter, leaves the loss and its denominators.

    `extras["loss_mask"]` holds the acted positions of the other groups' voters; `drop_constant_groups` judges by a
    signal instead.
    """
    weight = jnp.where(credit.valid, vote_weight(batch), 0.0)
    valid = credit.valid & ~group.is_constant(credit.value, weight)
    kept = credit.replace(valid=valid, value=numerics.select(credit.value, valid))
    return kept.with_extras(loss_mask=batch.action_mask & valid[..., None])


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT, scope="batch")
def batch_turn_normalize(
    credit: Credit, batch: Trajectory, context: Context, *, least: int = 4, ddof: Ddof = 1, eps: float = 1e-6
) -> Credit:
    """Normalises each segment index over the whole batch, ``(x - mean) / (std + eps)``; equal values give 0.

    Args:
      least: an index that fewer rollouts reach takes mean and std of all the batch's segments.
      ddof: of the standard deviation.
      eps: added to it.
    """
    x, valid = credit.value, credit.valid

    def moments(axis) -> tuple[Array, Array, Array]:
        count = context.sum(numerics.masked_count(valid, axis, True))
        mean = numerics.safe_divide(context.sum(numerics.masked_sum(x, valid, axis, True)), count)
        squares = context.sum(jnp.sum(jnp.square(numerics.select(x - mean, valid)), axis=axis, keepdims=True))
        high = context.max(numerics.masked_max(x, valid, axis, True))
        low = -context.max(-numerics.masked_min(x, valid, axis, True))
        varies = high - low > 1e-6 * jnp.maximum(jnp.abs(high), jnp.abs(low))
        std = numerics.safe_sqrt(numerics.safe_divide(squares, count - ddof))
        return count, mean, jnp.where(varies & (count > ddof), 1.0 / (std + eps), 0.0)

    count, mean, factor = moments((0, 1))
    _, all_mean, all_factor = moments((0, 1, 2))
    enough = count >= least
    return credit.with_value((x - jnp.where(enough, mean, all_mean)) * jnp.where(enough, factor, all_factor))


__all__ = [
    "at_last_segment",
    "batch_turn_normalize",
    "critique_vote",
    "cumulative_product",
    "drop_silent_groups",
    "every_segment",
    "good_prefix",
    "group_mean",
    "judged_wrong",
    "pooled_normalize",
    "rows_where",
    "share_segments",
    "step_return",
    "subtract_rollout_mean",
    "sum_by_segment",
    "to_segments",
]
