"""Pieces that read how good a rollout looks on the way: potentials at boundaries, beliefs, critics, answers at budgets.

A potential ``[G, K+1]`` has an entry before each segment and one after the last; entry 0 is the bare prompt. What is
made of it is credit of segments. A segment that was not acted in has none, and a boundary that was never evaluated
(NaN) gives none to the segments beside it.
"""

import functools
from typing import Literal

import jax
from jax import lax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.algebra.combinators import _combinator
from creditjax.algebra.core import Context, Transform, as_leaf, check_piece, check_signal, run, transform
from creditjax.algebra.credit import Credit, Level, credit, lift
from creditjax.algebra.judged import _is_last
from creditjax.algebra.sources import acted, owned
from creditjax.kernels import budgets, returns, segments
from creditjax.trajectory import Trajectory, segment_mask, vote_mask, vote_weight

Array = jax.Array

_BOUNDARIES = ("P", "G", "K+1")


def best_of(value: Array, n: int) -> Array:
    """Success probability of the best of `n` independent tries, ``1 - (1 - V)^n``: increasing, 0 to 0 and 1 to 1."""
    return 1 - (1 - value) ** n


# ------------------------------------------------------------------------------------------------------------ sources


def _check_boundaries(owner: str):
    return lambda name, **_: check_signal(owner, name, _BOUNDARIES, dtype="float32")


def _with_segment(name: str, **_) -> tuple[str, ...]:
    return (name, "segment")


def _check_redistribute(name: str, tries: int) -> None:
    check_signal("redistribute", name, _BOUNDARIES, dtype="float32")
    if tries < 1:
        raise ValueError(f"redistribute: tries = {tries}, wanted at least 1")


@transform(takes=None, gives=Level.SEGMENT, needs=_with_segment, check=_check_redistribute)
def redistribute(batch: Trajectory, *, name: str = "potential", tries: int = 1) -> Credit:
    """Gain of a potential over each segment, where the outcome takes the place of what stands after the last one.

    ``V_{k+1} - V_k``, and ``outcome - V_k`` for the last segment. Without empty segments in between it adds up to
    ``outcome - V_0``: the outcome, handed out where it was decided.

    Args:
      name: a signal over the K+1 boundaries.
      tries: n > 1 reads it as the success probability of one try and takes that of the best of n.
    """
    potential, last = batch.signals[name], _is_last(owned(batch))
    after, before = potential[..., 1:], potential[..., :-1]
    valid = owned(batch) & jnp.isfinite(before) & (last | jnp.isfinite(after))
    before = best_of(numerics.select(before, valid), tries)
    after = best_of(numerics.select(after, valid & ~last), tries)
    return credit(jnp.where(last, batch.outcome[..., None], after) - before, valid, Level.SEGMENT)


@transform(takes=None, gives=Level.SEGMENT, needs=_with_segment, check=_check_boundaries("watermark_gain"))
def watermark_gain(batch: Trajectory, *, name: str = "potential") -> Credit:
    """By how much each segment lifts a potential above its best so far (MIG, arXiv:2602.01034).

    ``m_k = max(0, L_{k+1} - max(L_0, ..., L_k))``, at least 0. The sum is ``max L - L_0``, so a dip and its recovery
    earn nothing. Boundaries after empty segments and missing ones do not count; without L_0 there is no credit.
    """
    potential = batch.signals[name]
    start = potential[..., :1]
    known = owned(batch) & jnp.isfinite(potential[..., 1:]) & jnp.isfinite(start)
    reached = jnp.where(known, potential[..., 1:], -jnp.inf)
    start = jnp.where(jnp.isfinite(start), start, 0.0)
    mark = lax.cummax(jnp.concatenate([start, reached], axis=-1), axis=1)
    return credit(mark[..., 1:] - mark[..., :-1], known, Level.SEGMENT)


@transform(takes=None, gives=Level.SEGMENT, needs=("belief", "gold_mark", "segment"))
def belief_gain(batch: Trajectory, *, ordinal: bool = False) -> Credit:
    """What each segment adds to the belief in the true mark, ``phi_{k+1} - phi_k`` (EDIT, arXiv:2606.06350).

    Args:
      ordinal: phi is 1 minus the expected distance to the true mark, on a scale of 1, instead of its probability.
    """
    belief = batch.signals["belief"]  # [G, K+1, Y]
    valid = owned(batch) & jnp.all(jnp.isfinite(belief[:, 1:]) & jnp.isfinite(belief[:, :-1]), axis=-1)
    marks = belief.shape[-1]
    distance = jnp.abs(jnp.arange(marks) - batch.signals["gold_mark"])
    # Beliefs add up to 1, so the constant 1 of the ordinal form drops out of the difference.
    worth = -distance / max(marks - 1, 1) if ordinal else (distance == 0).astype(jnp.float32)
    gain = numerics.select(belief[:, 1:] - belief[:, :-1], jnp.broadcast_to(valid[..., None], belief[:, 1:].shape))
    return credit(jnp.sum(gain * worth, axis=-1), valid, Level.SEGMENT)


@transform(takes=None, gives=Level.TRAJECTORY, needs=("belief", "mark", "gold_mark"))
def mark_reward(batch: Trajectory) -> Credit:
    """``1 - |mark - true mark| / (Y - 1)`` on a scale of the Y marks that `belief` tells apart; 0 for a mark outside
    it (unparsable).
    """
    mark, marks = batch.signals["mark"], batch.signals["belief"].shape[-1]
    distance = jnp.abs(mark - batch.signals["gold_mark"])
    legal = (mark >= 0) & (mark < marks)
    return credit(jnp.where(legal, 1 - distance / max(marks - 1, 1), 0.0), vote_mask(batch), Level.TRAJECTORY)


@transform(takes=None, gives=Level.SEGMENT, needs=("correctness", "confidence", "segment"))
def step_potential(batch: Trajectory) -> Credit:
    """``1.5 a c + 0.5 a - c`` with a the correctness and c the confidence of an early answer (SPAE, arXiv:2601.03823).

    1 for right and sure, -1 for wrong and sure, 0 for neither, 0.5 for right and unsure.
    """
    correctness, confidence = batch.signals["correctness"], batch.signals["confidence"]
    valid = owned(batch) & jnp.isfinite(correctness) & jnp.isfinite(confidence)
    a, c = numerics.select(correctness, valid), numerics.select(confidence, valid)
    return credit(1.5 * a * c + 0.5 * a - c, valid, Level.SEGMENT)


def _check_prefix(name: str, start: str) -> None:
    check_signal("prefix_difference", name, ("P", "G", "T"), dtype="float32")
    check_signal("prefix_difference", start, ("P",), dtype="float32")


@transform(takes=None, gives=Level.TOKEN, needs=lambda name, start: (name, start), check=_check_prefix)
def prefix_difference(batch: Trajectory, *, name: str = "prefix_score", start: str = "prompt_score") -> Credit:
    """What each token adds to a score of the text so far; the sum is the score of the whole minus that of the prompt.

    Args:
      name: a signal ``[T]``, the score of everything up to and including the position. What observed positions add
        goes to the next acted one.
      start: a signal of the prompt, the score of the prompt alone.
    """
    valid = acted(batch)
    score = numerics.select(batch.signals[name], valid)
    before = jax.vmap(returns.previous_acted, in_axes=(0, 0, None))(score, valid, batch.signals[start])
    return credit(score - before, valid, Level.TOKEN)


@transform(takes=None, gives=Level.TRAJECTORY, needs=("segment",))
def segment_count(batch: Trajectory) -> Credit:
    """Number of segments that the rollout acted in; a condition that holds where there is one."""
    return credit(jnp.sum(segment_mask(batch), axis=-1), vote_mask(batch), Level.TRAJECTORY)


@transform(takes=None, gives=Level.SEGMENT, needs=("critic_value", "segment"))
def stated_value(batch: Trajectory) -> Credit:
    """Mean over a generative critic's draws of the value in [0, 1] that it states as each segment begins (GenAC,
    arXiv:2604.10701).

    A draw that states none (NaN) does not count; where none does, the value is the group's mean outcome.
    """
    said = batch.signals["critic_value"]  # [G, K, D]
    there = jnp.isfinite(said) & owned(batch)[..., None]
    fallback = numerics.masked_mean(batch.outcome, vote_weight(batch))
    value = numerics.masked_mean(jnp.clip(said, 0.0, 1.0), there, axis=-1)
    return credit(jnp.where(jnp.any(there, axis=-1), value, fallback), owned(batch), Level.SEGMENT)


@transform(takes=None, gives=Level.TOKEN, needs=("summary_reward", "budget", "thinking_mask"))
def budget_relative(
    batch: Trajectory,
    *,
    lam: float = 0.5,
    prior: budgets.Prior = "uniform",
    reduction: budgets.Reduction = "brpo",
) -> Credit:
    """Credit of thinking that is asked for an answer at several budgets (BRPO, arXiv:2505.13438).

    Acted thinking token number n (from 0) belongs to the first budget above n; past the last budget there is no credit.
    A rollout that stops thinking early gives its last answer at all later budgets too. See
    `creditjax.kernels.budgets.anytime_advantage`.

    Args:
      lam: how fast answers at earlier budgets lose their say in a rollout's own baseline.
      prior: which budget the answer will be asked at: "uniform", "linear" (proportional to the budget), "base" (the
        last).
      reduction: "brpo" for both baselines, "v1only" for the rollout's own, "v2only" for the group's, "none".
    """
    rewards = batch.signals["summary_reward"]  # [G, B, S]
    budget = batch.signals["budget"]  # [B]
    votes, count = vote_weight(batch), budget.shape[0]
    thinking = acted(batch) & batch.signals["thinking_mask"]
    thought = jnp.sum(thinking, axis=-1, keepdims=True)
    stops = jnp.minimum(jnp.sum(thought > budget, axis=-1, keepdims=True), count - 1)  # the budget that it stops at
    read = jnp.broadcast_to((votes > 0)[:, None, None], rewards.shape) & (jnp.arange(count) <= stops)[..., None]
    mean = numerics.masked_mean(rewards, read, axis=-1)
    answered = jnp.take_along_axis(mean, jnp.minimum(jnp.arange(count), stops), axis=-1)
    advantage = budgets.anytime_advantage(
        answered, budgets.budget_prior(budget, prior), votes, lam=lam, reduction=reduction
    )
    number = jax.vmap(segments.before)(thinking)
    index = jnp.searchsorted(budget, number, side="right")
    value = jnp.take_along_axis(advantage, jnp.minimum(index, count - 1), axis=-1)
    return credit(value, thinking & (index < count), Level.TOKEN)


# --------------------------------------------------------------------------------------------------- along a rollout


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT)
def consecutive_difference(credit: Credit, batch: Trajectory) -> Credit:
    """Each segment's credit minus that of the credited segment before it; 0 for the first one."""
    before = jax.vmap(returns.previous_acted)(credit.value, credit.valid)
    first = jnp.cumsum(credit.valid, axis=-1) == 1
    return credit.with_value(jnp.where(first, 0.0, credit.value - before))


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT)
def repeat_weight(credit: Credit, batch: Trajectory, *, good: float = 0.0, bad: float = 1.0) -> Credit:
    """Weight of each segment by whether it changed anything: 1 for the first one and where the credit differs from
    that of the segment before, else `good` where it is positive and `bad` where it is not (DASH, arXiv:2607.00482).
    """
    before = jax.vmap(returns.previous_acted)(credit.value, credit.valid)
    moved = (jnp.cumsum(credit.valid, axis=-1) == 1) | (credit.value != before)
    return credit.with_value(jnp.where(moved, 1.0, jnp.where(credit.value > 0, good, bad)))


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT, needs=("grounding", "segment"))
def flag_steps(credit: Credit, batch: Trajectory, *, threshold: float = 0.0) -> Credit:
    """Condition: 1 where the credit (a harm) is above 0 or the segment's `grounding` in its evidence is below
    `threshold` nats a token, else 0: the steps that EDIT (arXiv:2606.06350) has rewritten.
    """
    ungrounded = numerics.select(batch.signals["grounding"], credit.valid) < threshold
    return credit.with_value((credit.value > 0) | ungrounded)


@transform(takes=Level.SEGMENT, gives=Level.TRAJECTORY)
def max_segments(credit: Credit, batch: Trajectory) -> Credit:
    """The largest credit of a rollout's segments; 0 for a voting rollout that has none."""
    value = numerics.masked_max(credit.value, credit.valid, axis=-1)
    value = jnp.where(jnp.any(credit.valid, axis=-1), value, 0.0)
    return Credit(numerics.select(value, vote_mask(batch)), vote_mask(batch), credit.extras, Level.TRAJECTORY)


@transform(takes=Level.SEGMENT, gives=Level.TOKEN, needs=("segment",))
def extend_last(credit: Credit, batch: Trajectory) -> Credit:
    """The lift to tokens in which positions of no segment share the credit of the rollout's last segment."""
    lifted = lift(credit, batch)
    last = jnp.sum(jnp.where(_is_last(credit.valid), credit.value, 0.0), axis=-1, keepdims=True)
    outside = (batch.segment < 0) & acted(batch) & jnp.any(credit.valid, axis=-1, keepdims=True)
    value, valid = jnp.where(outside, last, lifted.value), lifted.valid | outside
    return Credit(value, valid, credit.extras, Level.TOKEN)


@transform(takes=(Level.TRAJECTORY, Level.SEGMENT, Level.TOKEN), gives=Level.TOKEN)
def center_tokens(credit: Credit, batch: Trajectory) -> Credit:
    """Subtracts from every acted position the rollout's mean over its acted positions, so that they add up to 0.

    Positions without credit count as 0 and get what is left.
    """
    lifted, valid = lift(credit, batch), acted(batch)
    value = lifted.value - numerics.masked_mean(lifted.value, valid, axis=-1, keepdims=True)
    return Credit(numerics.select(value, valid), valid, credit.extras, Level.TOKEN)


@transform(takes=Level.SEGMENT, gives=Level.TOKEN, needs=("segment",))
def saturation_weight(credit: Credit, batch: Trajectory, *, threshold: float = 0.9, strength: float = 0.5) -> Credit:
    """``1 - strength (1 - exp(-C))`` with C the number of earlier segments above `threshold` (SPAE, arXiv:2601.03823).

    It falls from 1 towards ``1 - strength`` once the matter is settled. For a position of no segment those count that
    ended before it.
    """
    settled = credit.valid & (credit.value > threshold)
    earlier = jnp.cumsum(settled, axis=-1) - settled

    def one(settled: Array, earlier: Array, ids: Array, mask: Array) -> Array:
        ends = segments.segment_last(ids, mask, batch.num_segments) & segments.broadcast(settled, ids)
        return jnp.where(ids < 0, segments.before(ends), segments.broadcast(earlier, ids).astype(jnp.float32))

    count = jax.vmap(one)(settled, earlier, batch.segment, batch.action_mask)
    valid = acted(batch)
    weight = 1 + strength * jnp.expm1(-count)
    return Credit(numerics.select(weight, valid), valid, credit.extras, Level.TOKEN)


Weights = Literal["equal", "unit", "decay"]


@transform(takes=Level.TOKEN, gives=Level.SEGMENT, needs=("segment",))
def average_by_segment(credit: Credit, batch: Trajectory, *, weights: Weights = "equal") -> Credit:
    """Weighted mean over each segment's credited positions (MA-RLHF, arXiv:2410.02743); none where there is none.

    Args:
      weights: "equal", "unit" (the last position alone) or "decay" (1/j for the j-th).
    """

    def one(x: Array, ids: Array, valid: Array) -> tuple[Array, Array]:
        last = segments.last_position(ids, valid, batch.num_segments)
        if weights == "unit":
            return x[jnp.maximum(last, 0)], last >= 0
        mean = {"equal": segments.segment_mean, "decay": segments.segment_decayed_mean}[weights]
        return mean(x, ids, valid, batch.num_segments), last >= 0

    value, valid = jax.vmap(one)(credit.value, batch.segment, credit.valid)
    return Credit(numerics.select(value, valid), valid, credit.extras, Level.SEGMENT)


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT, needs=("segment",))
def renormalize_with_outcome(credit: Credit, batch: Trajectory, *, final_center: bool = False) -> Credit:
    """``(score - 1/2) + (outcome - 1/2)`` on every segment but the last, which is paid the outcome (ReNorm,
    arXiv:2509.25598).

    For scores and outcomes in [0, 1]: agreement pays +1 or -1, disagreement nothing, and a good-looking segment of a
    failed rollout is never rewarded.

    Args:
      final_center: pay the last segment ``outcome - 1/2``.
    """
    last = _is_last(owned(batch))
    outcome = batch.outcome[..., None]
    final = outcome - 0.5 if final_center else outcome
    valid = credit.valid | last
    value = numerics.select(jnp.where(last, final, credit.value + outcome - 1), valid)
    return credit.replace(value=value, valid=valid)


# ------------------------------------------------------------------------------------------ over a group, over a batch


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT)
def subtract_outcome_mean(credit: Credit, batch: Trajectory) -> Credit:
    """Subtracts the mean outcome of the group's voters, as if each segment were a rollout that stopped at its end."""
    return credit.with_value(credit.value - numerics.masked_mean(batch.outcome, vote_weight(batch)))


@transform(takes=(Level.TRAJECTORY, Level.SEGMENT, Level.TOKEN), gives=None)
def scale_by_rms(credit: Credit, batch: Trajectory, *, eps: float = 1e-6) -> Credit:
    """Divides by the root mean square over all credited entries of the group, plus eps: no centring, no division by
    what equal values leave of a spread.
    """
    mean = numerics.masked_mean(jnp.square(credit.value), credit.valid)
    return credit.with_value(credit.value / (numerics.safe_sqrt(mean) + eps))


@transform(takes=(Level.SEGMENT, Level.TOKEN), gives=None, scope="batch")
def exponential_rank(credit: Credit, batch: Trajectory, context: Context) -> Credit:
    """``exp(u)`` minus its mean over the batch, u the credit scaled to [0, 1] over the batch; equal values give 0
    (SPAE, arXiv:2601.03823).
    """
    x, valid = credit.value, credit.valid
    high = context.max(numerics.masked_max(x, valid))
    low = -context.max(-numerics.masked_min(x, valid))
    varies = high - low > 1e-6 * jnp.maximum(jnp.abs(high), jnp.abs(low))
    width = jnp.where(varies, high - low, 1.0)
    grown = jnp.exp(jnp.where(varies, numerics.select(x - jnp.where(varies, low, 0.0), valid) / width, 0.0))
    total = context.sum(numerics.masked_sum(grown, valid))
    mean = numerics.safe_divide(total, context.sum(numerics.masked_count(valid)))
    return credit.with_value(jnp.where(varies, grown - mean, 0.0))


# ------------------------------------------------------------------------------------------------------------ critics


def segment_gae(critic: Transform, *, gamma: float = 1.0, lam: float = 1.0) -> Transform:
    """Generalised advantages whose steps are segments: ``delta_k = r_k + gamma V_{k+1} - V_k``,
    ``A_k = delta_k + gamma lam A_{k+1}``, k + 1 being the next segment that was acted in.

    The credit that comes in is the reward r of each segment. V and A are 0 after the last one: a row is one episode.
    `extras["value_target"]` is ``A_k + V_k`` at every position of the segment, and the old `value` at positions of no
    segment, where there is nothing to learn.

    Args:
      critic: a source of V at segments; where it assigns none, V is 0.
      gamma: discount per segment.
      lam: trace.

    Raises:
      TypeError: the critic is no source of segment credit.
    """
    check_piece("segment_gae: critic is", critic)
    if critic.gives is not Level.SEGMENT or not critic.is_source:
        raise TypeError(f"segment_gae: critic {critic.name} gives {critic.gives}, wanted a source at segments")
    traces = {name: as_leaf(f"segment_gae: {name}", x) for name, x in (("gamma", gamma), ("lam", lam))}
    takes = frozenset([Level.SEGMENT])
    return _combinator(_segment_gae, "segment_gae", [critic], takes=takes, gives=Level.SEGMENT, hyperparameters=traces)


def _segment_gae(children, given: Credit, batch: Trajectory, context: Context, *, gamma: Array, lam: Array) -> Credit:
    value = run(children[0], None, batch, context).value
    rows = jax.vmap(jax.vmap(functools.partial(returns.gae, gamma=gamma, lam=lam)))
    advantage, target = rows(given.value, value, given.valid)
    learned = lift(given.replace(value=target, extras={}), batch)
    old = batch.signals.get("value")
    rest = 0.0 if old is None else numerics.select(old, batch.action_mask & ~learned.valid)
    return given.with_value(advantage).with_extras(value_target=learned.value + rest)


__all__ = [
    "average_by_segment",
    "belief_gain",
    "budget_relative",
    "center_tokens",
    "consecutive_difference",
    "exponential_rank",
    "extend_last",
    "flag_steps",
    "mark_reward",
    "max_segments",
    "prefix_difference",
    "redistribute",
    "renormalize_with_outcome",
    "repeat_weight",
    "saturation_weight",
    "scale_by_rms",
    "segment_count",
    "segment_gae",
    "stated_value",
    "step_potential",
    "subtract_outcome_mean",
    "watermark_gain",
]
