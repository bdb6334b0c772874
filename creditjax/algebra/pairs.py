"""Transforms over the pairs of a group, and the credit that a loss over pairs implies.

A loss that compares rollouts has no credit of its own. What it would give is minus its derivative by each token's
log-probability; taken at the behaviour policy it is a credit like any other, to look at, to measure against exact
credit, and to train with. The losses themselves are in `creditjax.objectives.contrastive` and `preference`.
"""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.algebra.core import transform
from creditjax.algebra.credit import Credit, Level, credit
from creditjax.kernels import group, pairs, segments
from creditjax.trajectory import Trajectory, lengths, segment_mask, vote_mask, vote_weight

Array = jax.Array


def _mean_logprob(batch: Trajectory) -> Array:
    return numerics.masked_mean(batch.logprob, batch.action_mask, axis=-1)


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY, needs=("logprob",))
def likelihood_weighted_gap(credit: Credit, batch: Trajectory, *, temperature: float = 1.0) -> Credit:
    """Mean lead over the other voters, each pair weighed by how wrongly the policy ranks it (LamPO, arXiv:2605.21235).

    ``A_i = (1 / (G - 1)) sum_{j != i} w_ij (x_i - x_j)`` with ``w_ij = 2 sigmoid(-m_ij / temperature)``, and ``m_ij``
    the lead in mean log-probability of the better of the two: a pair whose better member is already likelier teaches
    less. Sums to 0 over the group; an infinite temperature gives leave-one-out. A group of one gets 0.

    Args:
      temperature: of the weight, > 0.
    """
    vote = jnp.where(credit.valid, vote_weight(batch), 0.0)
    gap, lead = pairs.gaps(numerics.select(credit.value, vote)), pairs.gaps(_mean_logprob(batch))
    weight = 2.0 * jax.nn.sigmoid(-jnp.sign(gap) * lead / temperature)
    others = jnp.maximum(jnp.sum(vote) - 1.0, 1.0)
    value = jnp.sum(weight * gap * vote[None, :], axis=1) / others
    alone = group.is_constant(credit.value, vote)
    return credit.with_value(jnp.where((vote > 0) & ~alone, value, 0.0))


@transform(takes=None, gives=Level.TOKEN, needs=("logprob", "progress"))
def contrast_credit(batch: Trajectory, *, temperature: float = 0.1, margin: float = 0.5, warmup: float = 1.0) -> Credit:
    """Minus the derivative of `objectives.contrastive` by each token's log-probability (ConSPO, arXiv:2605.12969).

    A solved rollout gets ``(1 - q_i) / (temperature n_i |solved|)`` a token, q_i its share against the unsolved ones;
    these pay for it together, the likeliest most. The credit of the rollouts, ``n_i`` times that of a token, sums to 0.
    """
    vote = vote_weight(batch)
    held = margin * jnp.minimum(batch.signals["progress"] / jnp.maximum(warmup, 1e-6), 1.0)
    found = pairs.contrast(_mean_logprob(batch), batch.outcome > 0.5, vote, temperature, held)
    value = jnp.where(vote > 0, numerics.safe_divide(found.pull, lengths(batch)), 0.0)
    return _to_tokens(value, batch)


def _to_tokens(value: Array, batch: Trajectory) -> Credit:
    """A number a rollout as credit of its tokens, assigned where it votes."""
    valid = batch.action_mask & vote_mask(batch)[:, None]
    return credit(jnp.broadcast_to(value[:, None], valid.shape), valid, Level.TOKEN)


def _score_need(score: str, use_ref: bool, **_) -> tuple[str, ...]:
    return (
        "logprob",
        *(("logprob_ref",) if use_ref else ()),
        *(("segment", "step_label") if score == "steps" else ()),
    )


@transform(takes=None, gives=Level.TRAJECTORY, needs=_score_need)
def preference_credit(
    batch: Trajectory, *, beta: float = 0.1, use_ref: bool = True, score: Literal["outcome", "steps"] = "outcome"
) -> Credit:
    """Minus the derivative of `objectives.preference` by the log-probability of each rollout, pairs of the group added.

    ``beta (sum_j w_ij sigmoid(-h_ij) - sum_j w_ji sigmoid(-h_ji))``: up from the pairs that a rollout should win, down
    from those that it should lose, and less where the policy already ranks the pair right (DPO, arXiv:2305.18290).
    Sums to 0 over the group. Arguments as in `objectives.preference`.
    """
    right = pairs.share_of_right(batch.signals["step_label"], segment_mask(batch)) if score == "steps" else None
    up, down = _pulls(batch, beta, use_ref, right)
    return credit(beta * (up - down), vote_mask(batch), Level.TRAJECTORY)


def _pulls(batch: Trajectory, beta: float, use_ref: bool = True, score: Array | None = None) -> tuple[Array, Array]:
    mask = batch.action_mask
    total = numerics.masked_sum(batch.logprob, mask, axis=-1)
    if use_ref:
        total = total - numerics.masked_sum(batch.signals["logprob_ref"], mask, axis=-1)
    found = pairs.ranked_pairs(batch.outcome, vote_weight(batch), score)
    return pairs.pair_pull(beta * total, beta * total, found.weight)


@transform(takes=None, gives=Level.TOKEN, needs=("logprob", "logprob_ref", "logprob_better", "logprob_worse"))
def regularized_preference_credit(
    batch: Trajectory, *, beta: float = 0.1, alpha: float = 0.25, pair_weight: bool = True
) -> Credit:
    """Minus the derivative of `objectives.token_regularized_preference` (T-REG, arXiv:2412.02685).

    That of the preference, plus ``alpha beta q_t / n`` for each pair of the rollout, whichever side it is on, with
    ``q_t = sigmoid(logprob_better_t - logprob_worse_t) - 1/2``.
    """
    mask = batch.action_mask
    up, down = _pulls(batch, beta)
    better, worse = (numerics.select(batch.signals[f"logprob_{kind}"], mask) for kind in ("better", "worse"))
    reward = jax.nn.sigmoid(better - worse) - 0.5
    touched = up + down
    if not pair_weight:
        weight = pairs.ranked_pairs(batch.outcome, vote_weight(batch)).weight
        touched = jnp.sum(weight, axis=1) + jnp.sum(weight, axis=0)
    per_token = alpha * numerics.safe_divide(touched, lengths(batch))[:, None] * reward
    spread = _to_tokens(up - down, batch)
    return spread.with_value(beta * (spread.value + per_token))


@transform(
    takes=None,
    gives=Level.SEGMENT,
    needs=("segment", "logprob", "teacher_span_logprob", "teacher_span_better", "teacher_span_worse"),
)
def span_preference_credit(
    batch: Trajectory, *, beta: float = 0.1, low: float = -0.5, high: float = 1.5, scale: float = 1.0
) -> Credit:
    """Minus the derivative of `objectives.span_preference` by each span's log-probability (CTPD, arXiv:2601.11865).

    ``beta (w_k up - w'_k down)``, w the span's weight in a preferred rollout, w' that in the other.
    """
    owned = segment_mask(batch)
    student = jax.vmap(segments.segment_sum, in_axes=(0, 0, 0, None))(
        batch.logprob, batch.segment, batch.action_mask, batch.num_segments
    )
    teacher = {name: batch.signals[f"teacher_span_{name}"] for name in ("logprob", "better", "worse")}
    preferred, other = pairs.span_weights(teacher["better"], teacher["worse"], owned, low, high, scale)
    gain = student - numerics.select(teacher["logprob"], owned)
    winning, losing = (beta * numerics.masked_sum(weight * gain, owned, axis=-1) for weight in (preferred, other))
    up, down = pairs.pair_pull(winning, losing, pairs.ranked_pairs(batch.outcome, vote_weight(batch)).weight)
    value = beta * (preferred * up[:, None] - other * down[:, None])
    return credit(value, owned & vote_mask(batch)[:, None], Level.SEGMENT)


def _edit_need(edits: bool, **_) -> tuple[str, ...]:
    return ("logprob", "logprob_ref", *(("step_mask", "edit_mask") if edits else ()))


@transform(takes=None, gives=Level.TOKEN, needs=_edit_need)
def edit_preference_credit(
    batch: Trajectory, *, beta: float = 0.1, rest_weight: float = 1.0, nll: float = 0.05, edits: bool = True
) -> Credit:
    """Minus the derivative of `objectives.edit_preference` (RISE, arXiv:2410.06638), pairs of the group added.

    In a group of edited steps only the tokens of the step have credit, those that were edited in full and the others
    by `rest_weight`. Elsewhere it is that of the preference, plus ``nll / n`` for each pair that the rollout wins.
    """
    mask, vote = batch.action_mask, vote_weight(batch)
    step, edit = (batch.signals[name] if edits else None for name in ("step_mask", "edit_mask"))
    weight, edited = pairs.edit_weights(mask, step, edit, rest_weight)
    gain = numerics.select(batch.logprob, mask) - numerics.select(batch.signals["logprob_ref"], mask)
    score = beta * jnp.sum(weight * gain, axis=-1)
    found = pairs.ranked_pairs(batch.outcome, vote)
    up, down = pairs.pair_pull(score, score, found.weight)
    wins = jnp.where(edited, 0.0, jnp.sum(found.weight, axis=1))
    imitated = nll * numerics.safe_divide(wins, lengths(batch))
    valid = mask & vote_mask(batch)[:, None]
    return credit(beta * weight * (up - down)[:, None] + imitated[:, None], valid, Level.TOKEN)


__all__ = [
    "contrast_credit",
    "edit_preference_credit",
    "likelihood_weighted_gap",
    "preference_credit",
    "regularized_preference_credit",
    "span_preference_credit",
]
