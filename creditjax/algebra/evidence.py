"""Pieces that read what the model's own computation says of a token: other prompts, attention, features, a judge.

Sources read the evidence; transforms turn it into a weight within its rollout (a z-score, a rank, a share, a mark),
and a recipe multiplies credit by that with `modulate`. The weight that DelTA learns from the batch is one piece of its
own.
"""

from collections.abc import Callable
import functools
from typing import Literal

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import numerics
from creditjax.algebra.core import Context, check_signal, transform
from creditjax.algebra.credit import Credit, Level, credit
from creditjax.algebra.sources import acted
from creditjax.kernels import group, kl, ranks, returns
from creditjax.trajectory import Trajectory, vote_mask

Array = jax.Array

_TOKENS = ("P", "G", "T")

# ------------------------------------------------------------------------------------------------------------ sources


@transform(
    takes=None,
    gives=Level.TOKEN,
    needs=lambda name, **_: ("logprob", name),
    check=lambda name, **_: check_signal("divergence_from", name, _TOKENS, dtype="float32"),
)
def divergence_from(batch: Trajectory, *, name: str = "logprob_ref", kind: kl.Kind = "k3") -> Credit:
    """Estimate, token by token, of the divergence of the policy that drew the tokens from another, in nats.

    Args:
      name: the other's log-probability.
      kind: see `creditjax.kernels.kl.kl_estimate`.
    """
    valid = acted(batch)
    own, other = numerics.select(batch.logprob, valid), numerics.select(batch.signals[name], valid)
    return credit(kl.kl_estimate(own, other, kind), valid, Level.TOKEN)


def _criterion_weights(owner: str, weights: tuple[float, ...], count: int) -> Array:
    if weights and len(weights) != count:
        raise ValueError(f"{owner}: {len(weights)} weights, wanted one for each of the {count} criteria, or none")
    return jnp.asarray(weights or (1.0 / count,) * count, jnp.float32)


@transform(takes=None, gives=Level.TRAJECTORY, needs=("judge_verdict",))
def rubric_reward(batch: Trajectory, *, weights: tuple = ()) -> Credit:
    """Weighted sum of a judge's verdicts over the criteria, ``Σ_c w_c verdict_c``.

    Args:
      weights: one a criterion; none for the plain mean.

    Raises:
      ValueError: the batch has another number of criteria.
    """
    valid, verdict = vote_mask(batch), batch.signals["judge_verdict"]
    w = _criterion_weights("rubric_reward", weights, verdict.shape[-1])
    return credit(jnp.sum(numerics.select(verdict, valid[..., None]) * w, axis=-1), valid, Level.TRAJECTORY)


@transform(takes=None, gives=Level.TOKEN, needs=("judge_grad_dot_emb",))
def rubric_support(batch: Trajectory, *, weights: tuple = ()) -> Credit:
    """How much each token speaks for the judge's approval: ``Σ_c w_c <d log p(verdict c) / d e_t, e_t>``.

    Arguments and errors are those of `rubric_reward`.
    """
    valid, support = acted(batch), batch.signals["judge_grad_dot_emb"]
    w = _criterion_weights("rubric_support", weights, support.shape[-1])
    return credit(jnp.sum(numerics.select(support, valid[..., None]) * w, axis=-1), valid, Level.TOKEN)


@transform(takes=None, gives=Level.TOKEN, needs=("attributions",))
def attributed_outcome(batch: Trajectory, *, index: int, count: int) -> Credit:
    """The outcome, handed out over tokens by the shares of explainer number `index` of `count`.

    It sums to the outcome, since an explainer's shares sum to 1; shares may be negative.

    Raises:
      ValueError: the batch has another number of explainers.
    """
    shares = batch.signals["attributions"]
    if shares.shape[-1] != count or not 0 <= index < count:
        raise ValueError(f"attributions: {shares.shape[-1]} explainers, wanted number {index} of {count}")
    valid = acted(batch)
    score = numerics.select(batch.outcome, vote_mask(batch))
    return credit(numerics.select(shares[..., index], valid) * score[..., None], valid, Level.TOKEN)


def _check_anchors(share, alpha, window: int) -> None:
    for name, x in (("share", share), ("alpha", alpha)):
        if isinstance(x, np.float32) and not 0 <= x <= 1:
            raise ValueError(f"anchor_bonus: {name} = {float(x):g}, wanted a number in [0, 1]")
    if window < 1:
        raise ValueError(f"anchor_bonus: window = {window}, wanted at least 1")


@transform(takes=None, gives=Level.TOKEN, needs=("attention_distance", "future_influence"), check=_check_anchors)
def anchor_bonus(batch: Trajectory, *, share: float = 0.4, alpha: float = 0.5, window: int = 3) -> Credit:
    """Bonus of the tokens that later ones come back to, part of it handed to the tokens that introduced them
    (arXiv:2510.13554, coupled credit).

    With ``delta_t = |WAAD_t - WAAD_{t+1}|`` (0 at the last action), anchors are the top `share` of future influence.
    An anchor is dominated if its WAAD is at most the rollout's median and the largest delta of the `window` actions
    before it at least the median delta; that action introduces it. An anchor has 1, a dominated one ``1 - alpha``, an
    introducer `alpha` (on top of what it has as an anchor), anything else 0.

    Args:
      share: of a rollout's actions that are anchors.
      alpha: what a dominated anchor hands on.
      window: actions before an anchor among which the one that introduced it is sought.
    """

    def one(distance: Array, influence: Array, valid: Array) -> Array:
        distance = numerics.select(distance, valid)
        delta = _step_size(distance, valid)
        introducer, largest = ranks.previous_window_argmax(delta, valid, window)
        anchor = ranks.top_share(influence, valid, share)
        dominated = anchor & (introducer >= 0) & (largest >= ranks.masked_median(delta, valid))
        dominated &= distance <= ranks.masked_median(distance, valid)
        # Whom an action introduces is among the next ones, so a look ahead takes the place of a scatter.
        owner, after, index = (
            jnp.where(dominated, introducer, -1),
            ranks.neighbour(valid, later=True),
            jnp.arange(len(valid)),
        )
        introduces, ahead = jnp.zeros(valid.shape, bool), jnp.where(valid, after, -1)
        for _ in range(window):
            introduces |= ranks.follow(ahead, owner, -1) == index
            ahead = ranks.follow(ahead, after, -1)
        return jnp.where(anchor, 1 - alpha * dominated, 0.0) + alpha * introduces

    valid = acted(batch)
    rows = batch.signals["attention_distance"], batch.signals["future_influence"], valid
    # One rollout after another: what each needs on the way is much, and kept for one alone.
    bonus = jax.lax.map(lambda row: one(*row), rows)
    return credit(bonus, valid, Level.TOKEN)


def _step_size(x: Array, mask: Array) -> Array:
    """``|x_t - x_{t+1}|`` to the next selected position, 0 at the last one."""
    following = returns.next_acted(x, mask)
    order = jnp.arange(mask.shape[0])
    last = jnp.max(jnp.where(mask, order, -1))
    return jnp.where(mask & (order < last), jnp.abs(x - following), 0.0)


# ------------------------------------------------------------------------------------------ weights within a rollout


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def step_size(credit: Credit, batch: Trajectory) -> Credit:
    """``|x_t - x_{t+1}|`` to the next credited position, 0 at the last one."""
    return credit.with_value(jax.vmap(_step_size)(credit.value, credit.valid))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def rollout_normalize(credit: Credit, batch: Trajectory, *, eps: float = 1e-6) -> Credit:
    """``(x - mean) / (std + eps)`` over the positions of each rollout, population std; equal values give exactly 0."""

    def one(x: Array, valid: Array) -> Array:
        return group.normalize(x, valid.astype(jnp.float32), ddof=0, eps=eps)

    return credit.with_value(jax.vmap(one)(credit.value, credit.valid))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def rollout_range_normalize(credit: Credit, batch: Trajectory, *, eps: float = 1e-8) -> Credit:
    """``(x - mean) / (max - min + eps)`` over the positions of each rollout: within [-1, 1]."""
    x, valid = credit.value, credit.valid
    high = numerics.masked_max(x, valid, axis=-1, keepdims=True)
    low = numerics.masked_min(x, valid, axis=-1, keepdims=True)
    width = jnp.where(high > low, high - low, 0.0)
    mean = numerics.masked_mean(x, valid, axis=-1, keepdims=True)
    return credit.with_value(jnp.where(width > 0, x - mean, 0.0) / (width + eps))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def rollout_share(credit: Credit, batch: Trajectory, *, of: Literal["one", "length"] = "one") -> Credit:
    """Scales weights >= 0 so that those of a rollout add up to 1, or to its number of positions; all 0 become equal.

    With "length" their mean is 1, so that a credit which is multiplied by them moves and keeps its sum.
    """
    x, valid = credit.value, credit.valid
    total = numerics.masked_sum(x, valid, axis=-1, keepdims=True)
    count = jnp.maximum(numerics.masked_count(valid, axis=-1, keepdims=True), 1.0)
    share = jnp.where(total > 0, numerics.safe_divide(x, total), 1.0 / count)
    return credit.with_value(share * count if of == "length" else share)


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def mark_top(credit: Credit, batch: Trajectory, *, share: float, positive: bool = False) -> Credit:
    """Condition: 1 at the largest `share` of a rollout's positions, rounded up, ties to the earlier one; else 0.

    Args:
      share: in [0, 1].
      positive: only where the credit is above 0.
    """
    top = jax.vmap(ranks.top_share, in_axes=(0, 0, None))(credit.value, credit.valid, share)
    return credit.with_value(jnp.where(top & (credit.value > 0) if positive else top, 1.0, 0.0))


def _check_mass(share, mass) -> None:
    if isinstance(share, np.float32) and isinstance(mass, np.float32) and not 0 < share <= mass < 1:
        raise ValueError(f"concentrate: share = {float(share):g}, mass = {float(mass):g}, wanted 0 < share <= mass < 1")


@transform(takes=Level.TOKEN, gives=Level.TOKEN, check=_check_mass)
def concentrate(credit: Credit, batch: Trajectory, *, share: float = 0.4, mass: float = 0.8) -> Credit:
    """A weight that depends on ranks alone: the largest `share` of a long rollout's positions carries `mass` of it.

    ``q^kappa``, q the rank over n (ties share the average) and ``kappa = log(1 - mass) / log(1 - share) - 1``: the
    positions below carry ``∫_0^(1 - share) q^kappa dq`` over the whole, which is ``1 - mass``. Not scaled, see
    `rollout_share`.
    """
    kappa = jnp.log1p(-mass) / jnp.log1p(-share) - 1
    rank = jax.vmap(ranks.average_rank)(credit.value, credit.valid)
    n = jnp.maximum(numerics.masked_count(credit.valid, axis=-1, keepdims=True), 1.0)
    return credit.with_value(jnp.where(credit.valid, rank / n, 1.0) ** kappa)


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def rollout_softmax(credit: Credit, batch: Trajectory, *, temperature: float = 1.0) -> Credit:
    """``exp(x / temperature)`` over its sum within the rollout."""
    top = numerics.masked_max(credit.value, credit.valid, axis=-1, keepdims=True)
    below = jnp.where(credit.valid, credit.value - jnp.where(credit.valid, top, 0.0), 0.0)
    grown = numerics.select(jnp.exp(below / temperature), credit.valid)
    return credit.with_value(numerics.safe_divide(grown, jnp.sum(grown, axis=-1, keepdims=True)))


@transform(takes=list(Level), gives=None)
def tanh_weight(credit: Credit, batch: Trajectory, *, strength: float = 0.5, scale: float = 1.0) -> Credit:
    """``1 + strength tanh(x / scale)``: a weight around 1 out of a z-score, in ``(1 - strength, 1 + strength)``."""
    return credit.with_value(1 + strength * jnp.tanh(credit.value / scale))


@transform(takes=list(Level), gives=None)
def softplus(credit: Credit, batch: Trajectory) -> Credit:
    """``log(1 + exp(x))``: a positive weight out of a signed one."""
    return credit.with_value(jax.nn.softplus(credit.value))


# -------------------------------------------------------------------------------------------------- over a whole batch


def _check_discriminate(refinements: int, low, high) -> None:
    if refinements < 0:
        raise ValueError(f"discriminate: refinements = {refinements}, wanted at least 0")
    if isinstance(low, np.float32) and isinstance(high, np.float32) and not 0 <= low <= high:
        raise ValueError(f"discriminate: low = {float(low):g}, high = {float(high):g}, wanted 0 <= low <= high")


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("hidden", "logprob"), scope="batch", check=_check_discriminate)
def discriminate(
    credit: Credit,
    batch: Trajectory,
    context: Context,
    *,
    refinements: int = 1,
    low: float = 0.8,
    high: float = 1.2,
) -> Credit:
    """Multiplies by a weight that grows with how well a token's gradient tells good rollouts from bad ones (DelTA,
    arXiv:2605.21467).

    ``v_t = (1 - π(a_t)) hidden_t`` stands for the token's gradient, and ``mu+``, ``mu-`` are its means over the batch
    weighted by the credit's positive and negative part. ``margin_t = |v_t - mu-|^2 - |v_t - mu+|^2`` for positive
    credit and minus that for negative, ``p_t = sigmoid(margin_t / s)`` with s the std of the margins of the same sign.
    Each refinement takes the means again, weighted by p too. The weight is ``low + (high - low) p``, `low` without
    credit, over its mean in the batch.

    The squares of v drop out of the margin, which is ``2 v (mu+ - mu-) + |mu-|^2 - |mu+|^2``. A side of the batch that
    is empty has mean 0. A credit of at most 1e-6 is none: what rounding leaves of a 0 belongs to no side.

    Args:
      refinements: of the means.
      low: weight of a token that speaks for the other side.
      high: of one that speaks for its own.
    """
    valid, hidden = credit.valid, batch.signals["hidden"]
    surprise = -jnp.expm1(jnp.minimum(numerics.select(batch.logprob, valid), 0.0))
    sided = jnp.where(jnp.abs(credit.value) > 1e-6, credit.value, 0.0)

    def by_rollout(reduce: Callable[[Array, Array], Array], x: Array) -> Array:
        # One rollout of every prompt after another, so that no copy of all features is made.
        def one(g: Array) -> Array:
            at = functools.partial(jax.lax.dynamic_index_in_dim, index=g, axis=1, keepdims=False)
            return reduce(at(surprise)[..., None] * numerics.select(at(hidden), at(valid)[..., None]), at(x))

        return jax.lax.map(one, jnp.arange(valid.shape[1]))

    def means(weight: Array) -> Array:
        """Of the features, weighted by the positive and by the negative part, ``[2, H]``."""

        def parts(w: Array) -> list[Array]:
            return [jnp.maximum(w, 0.0), jnp.maximum(-w, 0.0)]

        rows = by_rollout(lambda v, w: jnp.stack([jnp.sum(x[..., None] * v, (0, 1)) for x in parts(w)]), weight)
        mass = jnp.stack([jnp.sum(x) for x in parts(weight)])
        return context.sum(jnp.sum(rows, axis=0)) / jnp.maximum(context.sum(mass), 1e-8)[:, None]

    def std(x: Array, side: Array) -> Array:
        count = context.sum(numerics.masked_count(side))
        average = numerics.safe_divide(context.sum(numerics.masked_sum(x, side)), count)
        variance = numerics.safe_divide(context.sum(numerics.masked_sum(jnp.square(x - average), side)), count)
        return jnp.sqrt(jnp.maximum(variance, 1e-8))

    def preference(centers: Array) -> Array:
        direction, offset = centers[0] - centers[1], jnp.sum(jnp.square(centers), axis=-1)
        along = by_rollout(lambda v, _: jnp.sum(v * direction, axis=-1), sided)
        margin = 2 * jnp.moveaxis(along, 0, 1) + (offset[1] - offset[0])
        spread = jnp.where(sided > 0, std(margin, sided > 0), std(margin, sided < 0))
        return jnp.where(sided != 0, jax.nn.sigmoid(jnp.sign(sided) * margin / spread), 0.0)

    centers = means(sided)
    for _ in range(refinements):
        centers = means(preference(centers) * sided)
    weight = numerics.select(low + (high - low) * preference(centers), valid)
    count = jnp.maximum(context.sum(numerics.masked_count(valid)), 1.0)
    mean_weight = jnp.maximum(context.sum(jnp.sum(weight)), 1e-8) / count
    return credit.with_value(numerics.safe_divide(credit.value * weight, mean_weight))


__all__ = [
    "anchor_bonus",
    "attributed_outcome",
    "concentrate",
    "discriminate",
    "divergence_from",
    "mark_top",
    "rollout_normalize",
    "rollout_range_normalize",
    "rollout_share",
    "rollout_softmax",
    "rubric_reward",
    "rubric_support",
    "softplus",
    "step_size",
    "tanh_weight",
]
