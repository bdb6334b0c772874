"""Losses over the pairs of a group: the better rollout is to gain on the worse, more than the reference has it.

Pairs are formed where the rollouts are: every two of a prompt whose outcomes differ, so a data set of pairs is a batch
of groups of two with outcomes 1 and 0. Prompts are never split, so neither micro-batches nor shards part a pair, and
the loss is a sum over pairs with the number of pairs as its count.

    h_ij = β (z_i − z_j),  z_i = Σ_t w_t (log π − log π_ref)(a_t)          loss −log σ(h_ij)

The losses differ in the weights w of tokens or spans, in the weights of pairs, and in what they add. Of the credit they
read the extra `loss_mask` alone; what credit each implies is in :mod:`creditjax.algebra.pairs`.
"""

from typing import Literal, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.kernels import pairs, segments
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_count, masked_sum, safe_divide, select
from creditjax.objectives.base import CreditLike, loss_mask, loss_votes, objective, over_groups, require
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory

Array = jax.Array
_OFF = np.float32(0.0)  # the weight of a diagnostic


class Margins(NamedTuple):
    """What a group's pairs add up to: scalars of one group, or ``[...]`` of several."""

    loss: Array
    number: Array
    right: Array


def _margins(preferred: Array, other: Array, found: pairs.Pairs) -> Margins:
    """The loss of the pairs of one group, and how many of them the policy ranks right."""
    lead = jax.lax.stop_gradient(preferred[:, None] - other[None, :])
    right = jnp.sum(jnp.where(lead > 0, found.there, 0.0))
    return Margins(pairs.pair_logistic(preferred, other, found.weight), jnp.sum(found.there), right)


def _terms(found: Margins, name: str = "preference") -> Terms:
    count = jnp.sum(found.number)
    return {name: Term(jnp.sum(found.loss), count), f"{name}_accuracy": Term(jnp.sum(found.right), count, _OFF)}


def _gain(new: PolicyOutput, batch: Trajectory, mask: Array, owner: str) -> Array:
    """``log π − log π_ref`` of each token, 0 under the mask."""
    reference = select(require(batch, "logprob_ref", owner), mask)
    return select(new.logprob, mask) - jax.lax.stop_gradient(reference)


def _preference_needs(use_ref: bool, score: str, **_) -> tuple[str, ...]:
    return (*(("logprob_ref",) if use_ref else ()), *(("segment", "step_label") if score == "steps" else ()))


@objective(needs=_preference_needs)
def preference(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    beta: float = 0.1,
    use_ref: bool = True,
    score: Literal["outcome", "steps"] = "outcome",
) -> Terms:
    """``−w_ij log σ(β (z_i − z_j))`` over the pairs of each group: DPO, arXiv:2305.18290; W-DPO, arXiv:2509.22558.

    Args:
      beta: scale of the implicit reward.
      use_ref: whether z is taken relative to the reference; without it, z is the log-probability itself.
      score: "outcome" forms pairs of different outcomes, all of weight 1. "steps" also pairs equal outcomes by their
        shares of right steps (signal `step_label`), with the difference as weight (StepORLM); the loss is divided by
        the number of pairs and not by their weights.
    """
    mask = loss_mask(credit, batch)
    logprob = _gain(new, batch, mask, "preference") if use_ref else select(new.logprob, mask)
    right = None
    if score == "steps":
        label = jax.lax.stop_gradient(require(batch, "step_label", "preference"))
        segment = require(batch, "segment", "preference")
        owned = jnp.any(
            (segment[..., None, :] == jnp.arange(batch.num_segments)[:, None]) & mask[..., None, :], axis=-1
        )
        right = pairs.share_of_right(label, owned)

    def group(z, outcome, vote, right):
        return _margins(z, z, pairs.ranked_pairs(outcome, vote, right))

    z = beta * jnp.sum(logprob, axis=-1)
    return _terms(over_groups(group, batch)(z, batch.outcome, loss_votes(credit, batch), right))


@objective(needs=("logprob_ref", "logprob_better", "logprob_worse"))
def token_regularized_preference(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    beta: float = 0.1,
    alpha: float = 0.25,
    pair_weight: bool = True,
) -> Terms:
    """:func:`preference` plus ``−α Σ_both (1/n) Σ_t q_t h_t`` a pair: T-REG, arXiv:2412.02685.

    ``q_t = σ(log π_better − log π_worse) − 1/2`` is what the reference itself, asked for a good and for a bad answer,
    thinks of the token, and ``h_t = β (log π − log π_ref)``. It pulls at both rollouts of a pair alike.

    Args:
      beta: scale of the implicit reward.
      alpha: weight of the token term.
      pair_weight: whether a pair's token term counts as much as the pair is still ranked wrong, ``1 − σ(h_ij)``.
    """
    owner = "token_regularized_preference"
    mask = loss_mask(credit, batch)
    gain = beta * _gain(new, batch, mask, owner)
    better, worse = (select(require(batch, f"logprob_{kind}", owner), mask) for kind in ("better", "worse"))
    reward = jax.lax.stop_gradient(jax.nn.sigmoid(better - worse) - 0.5)
    aligned = safe_divide(masked_sum(reward * gain, mask, axis=-1), masked_count(mask, axis=-1))

    def group(z, aligned, outcome, vote):
        found = pairs.ranked_pairs(outcome, vote)
        short = jax.lax.stop_gradient(jax.nn.sigmoid(-pairs.gaps(z))) if pair_weight else 1.0
        return _margins(z, z, found), -jnp.sum(found.weight * short * (aligned[:, None] + aligned[None, :]))

    z = jnp.sum(gain, axis=-1)
    found, token = over_groups(group, batch)(z, aligned, batch.outcome, loss_votes(credit, batch))
    return {**_terms(found), "token_reward": Term(jnp.sum(token), jnp.sum(found.number), alpha)}


@objective(
    needs=("segment", "teacher_span_logprob", "teacher_span_better", "teacher_span_worse"),
    above={"low": -np.inf, "high": -np.inf},
)
def span_preference(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    beta: float = 0.1,
    low: float = -0.5,
    high: float = 1.5,
    scale: float = 1.0,
) -> Terms:
    """Preference with a teacher of another tokenizer as the reference: CTPD, arXiv:2601.11865.

    The segments are the spans at whose ends the tokenizers of student and teacher agree (`creditjax.signals.spans`).
    ``z = Σ_k w_k (log π(span k) − log π_teacher(span k))``, with the weight ``scale e^{±clip(d_k, low, high)}``, +
    in the preferred rollout, d_k the lead of a teacher trained on the preferences over one trained on their opposite.

    Args:
      beta: scale of the implicit reward.
      low: least of d.
      high: largest of d.
      scale: common factor of the weights.
    """
    owner = "span_preference"
    mask = loss_mask(credit, batch)
    names = ("segment", "teacher_span_logprob", "teacher_span_better", "teacher_span_worse")
    segment, teacher, better, worse = (require(batch, name, owner) for name in names)

    def group(logprob, mask, segment, teacher, better, worse, outcome, vote):
        def spans(logprob, segment, mask):
            own = segments.segment_sum(logprob, segment, mask, batch.num_segments)
            return own, segments.segment_count(segment, mask, batch.num_segments) > 0

        student, owned = jax.vmap(spans)(logprob, segment, mask)
        gain = student - select(teacher, owned)
        weights = pairs.span_weights(better, worse, owned, low, high, scale)
        preferred, other = (beta * masked_sum(weight * gain, owned, axis=-1) for weight in weights)
        return _margins(preferred, other, pairs.ranked_pairs(outcome, vote))

    given = (mask, segment, *map(jax.lax.stop_gradient, (teacher, better, worse)))
    vote = loss_votes(credit, batch)
    return _terms(over_groups(group, batch)(select(new.logprob, mask), *given, batch.outcome, vote))


def _edit_needs(edits: bool, **_) -> tuple[str, ...]:
    return ("logprob_ref", *(("step_mask", "edit_mask") if edits else ()))


@objective(needs=_edit_needs)
def edit_preference(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    beta: float = 0.1,
    rest_weight: float = 1.0,
    nll: float = 0.05,
    edits: bool = True,
) -> Terms:
    """Pairs of whole solutions, pairs of a step and its edited version, and imitation: RISE, arXiv:2410.06638.

    A group in which the signal `step_mask` marks a token is one of edited steps. Its margin sums over the tokens of the
    step: the edited ones (signal `edit_mask`) in full, the others times `rest_weight`. Every other group is an ordinary
    one of :func:`preference`, whose preferred rollouts are imitated too. Each of the three parts is a mean over its own
    pairs. `creditjax.signals.edits` makes the pairs and both masks.

    Args:
      beta: scale of the implicit reward.
      rest_weight: of the tokens of an edited step that did not change: 1 is step-wise DPO, 0 looks at the edit alone.
      nll: weight of the imitation, ``−(1/n) Σ_t log π`` of the preferred rollout of each ordinary pair.
      edits: whether there may be groups of edited steps; without, both signals are not read.
    """
    mask = loss_mask(credit, batch)
    gain = _gain(new, batch, mask, "edit_preference")
    negative = -safe_divide(jnp.sum(select(new.logprob, mask), axis=-1), masked_count(mask, axis=-1))

    def group(gain, negative, mask, step, edit, outcome, vote):
        weight, edited = pairs.edit_weights(mask, step, edit, rest_weight)
        found = pairs.ranked_pairs(outcome, vote)
        z = beta * jnp.sum(weight * gain, axis=-1)
        imitated = jnp.sum(jnp.sum(found.weight, axis=1) * negative)
        return _margins(z, z, found), imitated, edited

    names = ("step_mask", "edit_mask")
    signals = [require(batch, name, "edit_preference") if edits else None for name in names]
    given = (gain, negative, mask, *signals, batch.outcome, loss_votes(credit, batch))
    found, imitated, edited = over_groups(group, batch)(*given)

    def of(groups: Array) -> Margins:
        return jax.tree.map(lambda x: jnp.where(groups, x, 0.0), found)

    whole, steps = of(~edited), of(edited)
    imitation = Term(jnp.sum(jnp.where(edited, 0.0, imitated)), jnp.sum(whole.number), nll)
    return {**_terms(whole), **_terms(steps, "step_preference"), "nll": imitation}
