"""Transforms that compare the rollouts of a group: one fn a comparison, all on the kernels of
`creditjax.kernels.group`.
"""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.algebra.core import check_signal, transform
from creditjax.algebra.credit import Credit, Level
from creditjax.kernels import group, returns
from creditjax.trajectory import Trajectory, lengths, segment_mask, vote_weight

Array = jax.Array

Per = Literal["rollouts", "tokens", "segments"]
Ddof = Literal[0, 1]


def _weights(batch: Trajectory, credit: Credit, per: Per = "rollouts") -> tuple[Array, Array]:
    """Vote weights ``[G]``, and the weights with which voters enter the mean."""
    weight = jnp.where(credit.valid, vote_weight(batch), 0.0)
    if per == "rollouts":
        return weight, weight
    entries = lengths(batch) if per == "tokens" else jnp.sum(segment_mask(batch), axis=-1)
    return weight, jnp.where(weight > 0, entries, 0.0)


def _segment_need(per: str = "rollouts", **_) -> tuple[str, ...]:
    return ("segment",) if per == "segments" else ()


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY, needs=_segment_need)
def group_center(credit: Credit, batch: Trajectory, *, per: Per = "rollouts", single: group.Single = "zero") -> Credit:
    """Subtracts the mean of the group's voters (Dr. GRPO, arXiv:2503.20783).

    Args:
      per: each rollout enters the mean once ("rollouts"), once for each acted position ("tokens", the baseline of OPO,
        arXiv:2505.23585) or once for each of its segments ("segments").
      single: a group of one rollout gets 0 ("zero") or keeps its value ("raw").
    """
    weight, mean_weight = _weights(batch, credit, per)
    return credit.with_value(group.center(credit.value, weight, mean_weight=mean_weight, single=single))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY, needs=_segment_need)
def group_normalize(
    credit: Credit,
    batch: Trajectory,
    *,
    ddof: Ddof = 1,
    eps: float = 1e-6,
    per: Per = "rollouts",
    single: group.Single = "zero",
) -> Credit:
    """``(x - mean) / (std + eps)`` over the group's voters (GRPO, arXiv:2402.03300); equal raw values give exactly 0.

    Args:
      ddof: 1 divides the squares by G - 1 (most trainers), 0 by G.
      eps: added to the standard deviation.
      per: see `group_center`.
      single: see `group_center`; "raw" divides by 1.
    """
    weight, mean_weight = _weights(batch, credit, per)
    value = group.normalize(credit.value, weight, ddof=ddof, eps=eps, mean_weight=mean_weight, single=single)
    return credit.with_value(value)


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY)
def leave_one_out(credit: Credit, batch: Trajectory, *, single: group.Single = "zero") -> Credit:
    """Subtracts the mean of the *other* voters (RLOO, arXiv:2402.14740)."""
    weight, _ = _weights(batch, credit)
    return credit.with_value(group.leave_one_out(credit.value, weight, single=single))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY)
def mean_normalize(credit: Credit, batch: Trajectory, *, eps: float = 1e-6) -> Credit:
    """``(x - mean) / (mean + eps)`` over the group's voters (maximum-likelihood RL, arXiv:2602.02710)."""
    weight, _ = _weights(batch, credit)
    return credit.with_value(group.mean_normalize(credit.value, weight, eps=eps))


@transform(
    takes=Level.TRAJECTORY,
    gives=Level.TRAJECTORY,
    needs=lambda name, **_: (name,),
    check=lambda name, **_: check_signal("baseline_normalize", name, ("P",), (), dtype="float32"),
)
def baseline_normalize(
    credit: Credit, batch: Trajectory, *, name: str = "prompt_mean", ddof: Ddof = 1, eps: float = 1e-6
) -> Credit:
    """``(x - b) / (std + eps)``: the spread is that of the group's voters, the baseline b a signal of the prompt.

    Fewer than two voters, or equal ones, have no spread and get 0.
    """
    weight, _ = _weights(batch, credit)
    value = group.divide_by_std(credit.value - batch.signals[name], credit.value, weight, ddof=ddof, eps=eps)
    silent = group.is_alone(weight) | group.is_constant(credit.value, weight)
    return credit.with_value(jnp.where(silent, 0.0, value))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY)
def top_margin(credit: Credit, batch: Trajectory, *, divide: bool = False, ddof: Ddof = 1, eps: float = 1e-6) -> Credit:
    """The best rollout's lead over the second best, 0 for all others (pass@k advantage, arXiv:2503.19595)."""
    weight, _ = _weights(batch, credit)
    return credit.with_value(group.top_margin(credit.value, weight, ddof=ddof, eps=eps, divide=divide))


@transform(takes=Level.SEGMENT, gives=Level.SEGMENT, needs=("segment",))
def turn_normalize(
    credit: Credit, batch: Trajectory, *, ddof: Ddof = 1, eps: float = 1e-6, divide: bool = True
) -> Credit:
    """Normalises each segment index over the rollouts of the group that reach it; one that alone reaches an index
    gets 0.

    With ``divide=False`` it only subtracts the mean. (A2TGPO, arXiv:2605.06200; MatchTIR, arXiv:2601.10712.)
    """
    weight = jnp.where(credit.valid, vote_weight(batch)[:, None], 0.0)

    def one(x: Array, w: Array) -> Array:
        return group.normalize(x, w, ddof=ddof, eps=eps) if divide else group.center(x, w)

    return credit.with_value(jax.vmap(one, in_axes=1, out_axes=1)(credit.value, weight))


@transform(
    takes=Level.SEGMENT,
    gives=Level.SEGMENT,
    needs=lambda key, **_: (key, "segment"),
    check=lambda key, **_: check_signal("state_normalize", key, ("P", "G", "K"), dtype="int32"),
)
def state_normalize(
    credit: Credit,
    batch: Trajectory,
    *,
    key: str = "state_key",
    divide: bool = False,
    ddof: Ddof = 1,
    eps: float = 1e-6,
) -> Credit:
    """Compares segments of the group that were acted in the same state (GiGPO, arXiv:2505.10978).

    An anchor group is all (rollout, segment) pairs with equal `key`; its mean is subtracted, with `divide` the result
    is divided by its std + eps. A state visited once is compared with nothing: 0.
    """
    weight = jnp.where(credit.valid, vote_weight(batch)[:, None], 0.0)
    flat = credit.value.reshape(-1), batch.signals[key].reshape(-1), weight.reshape(-1)
    value = group.compare_equal(*flat, divide=divide, ddof=ddof, eps=eps)
    return credit.with_value(value.reshape(credit.value.shape))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def token_leave_one_out(
    credit: Credit, batch: Trajectory, *, average: Literal["tokens", "rollouts", "all"] = "tokens"
) -> Credit:
    """Subtracts from every token the others' mean token credit, one number a rollout; 0 in a group of one.

    Args:
      average: "tokens" pools the tokens of all other rollouts (PURE, arXiv:2504.15275); "rollouts" takes the mean of
        the other rollouts' own means (PRIME, arXiv:2502.01456); "all" that of all n rollouts, and multiplies the
        difference by ``n / (n - 1)`` (PRIME's code).
    """
    votes = vote_weight(batch)
    rollout = jnp.arange(votes.shape[0]) if batch.trajectory is None else batch.trajectory
    others = ((rollout[:, None] != rollout[None, :]) & (votes > 0)).astype(jnp.float32)
    sums = numerics.masked_sum(credit.value, credit.valid, axis=-1)
    counts = numerics.masked_count(credit.valid, axis=-1)
    if average == "tokens":
        # Rows of one rollout hold different tokens, so here they add up instead of sharing a vote.
        baseline = numerics.safe_divide(others @ sums, others @ counts)
    else:
        share = jnp.where(counts > 0, votes, 0.0)
        means = share * numerics.safe_divide(sums, counts)
        if average == "all":
            n = jnp.sum(share)
            value = numerics.safe_divide(n, n - 1) * (credit.value - numerics.safe_divide(jnp.sum(means), n))
            return credit.with_value(jnp.where(group.is_alone(votes), 0.0, value))
        baseline = numerics.safe_divide(others @ means, others @ share)
    return credit.with_value(jnp.where(group.is_alone(votes), 0.0, credit.value - baseline[:, None]))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("logprob", "sum_pi_squared"))
def energy_baseline(credit: Credit, batch: Trajectory, *, eps: float = 1e-8) -> Credit:
    """Subtracts at each position index the group's mean, weighted by the score energy so far (optimal token baseline).

    The energy of a token is the squared norm of the softmax score, ``1 - 2 pi(a) + sum_v pi(v)^2``. Rows of a group
    have to start at the same position. A group of one gets 0.
    """
    valid = credit.valid
    chosen = jnp.exp(numerics.select(batch.logprob, valid))
    energy = 1 - 2 * chosen + numerics.select(batch.signals["sum_pi_squared"], valid)
    so_far = jax.vmap(returns.future_sum)(energy[:, ::-1], valid[:, ::-1])[:, ::-1]
    weight = so_far * vote_weight(batch)[:, None]
    baseline = jnp.sum(weight * credit.value, axis=0) / (jnp.sum(weight, axis=0) + eps)
    return credit.with_value(jnp.where(group.is_alone(vote_weight(batch)), 0.0, credit.value - baseline))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def subtract_first_mean(credit: Credit, batch: Trajectory) -> Credit:
    """Subtracts the group's mean of the credit at the first acted position (the return of the episode); 0 in a group
    of one.
    """
    weight = vote_weight(batch)
    baseline = numerics.masked_mean(first_value(credit), weight)
    return credit.with_value(jnp.where(group.is_alone(weight), 0.0, credit.value - baseline))


def first_value(credit: Credit) -> Array:
    """Credit at the first position that has any, f32 ``[...]``; 0 where there is none."""
    first = jnp.argmax(credit.valid, axis=-1, keepdims=True)
    return jnp.take_along_axis(credit.value, first, axis=-1)[..., 0]


@transform(
    takes=Level.TRAJECTORY,
    gives=Level.TRAJECTORY,
    needs=lambda by: () if by == "outcome" else (by,),  # every batch has outcomes
    check=lambda by: check_signal("drop_constant_groups", by, ("P", "G"), fields=("outcome",)),
)
def drop_constant_groups(credit: Credit, batch: Trajectory, *, by: str = "accuracy") -> Credit:
    """Dynamic sampling (DAPO, arXiv:2503.14476): a group whose voters all have the same `by` leaves the loss and its
    denominators.

    The credit stays what it is; `extras["loss_mask"]` holds the acted positions of the groups that are kept. `by`
    should be the correctness before any shaping, so that a length penalty cannot rescue a group that teaches nothing.
    """
    constant = numerics.is_constant(batch.get(by), vote_weight(batch))
    return credit.with_extras(loss_mask=batch.action_mask & ~constant)


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY, needs=("self_certainty",))
def certainty_modulation(
    credit: Credit,
    batch: Trajectory,
    *,
    alpha: float = 0.25,
    beta: float = 0.35,
    reduce: Literal["sum", "mean"] = "sum",
    eps: float = 1e-6,
) -> Credit:
    """Scales a rollout's credit by how certain of itself the policy was (UCAS, arXiv:2510.10649, step 1).

    With z the group z-score of the certainty, positive credit is multiplied by ``exp(-alpha z)`` and other credit by
    ``exp(beta z)``: confident successes earn less, confident failures cost more.
    """
    weight, _ = _weights(batch, credit)
    mask = batch.action_mask
    total = numerics.masked_sum(batch.signals["self_certainty"], mask, axis=-1)
    if reduce == "mean":
        total = numerics.safe_divide(total, numerics.masked_count(mask, axis=-1))
    z = group.normalize(total, weight, ddof=1, eps=eps)
    factor = numerics.safe_exp(jnp.where(credit.value > 0, -alpha * z, beta * z))
    return credit.with_value(credit.value * factor)


__all__ = [
    "baseline_normalize",
    "certainty_modulation",
    "drop_constant_groups",
    "energy_baseline",
    "group_center",
    "group_normalize",
    "leave_one_out",
    "mean_normalize",
    "state_normalize",
    "subtract_first_mean",
    "token_leave_one_out",
    "top_margin",
    "turn_normalize",
]
