"""Transforms that use statistics of the whole batch: plain masked sums, added over the mesh under `shard_map`."""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.algebra.core import Context, transform
from creditjax.algebra.credit import Credit, Level
from creditjax.algebra.group import Ddof, first_value
from creditjax.kernels import group, returns, segments
from creditjax.trajectory import Trajectory, vote_weight

Array = jax.Array


def _mean(x: Array, mask: Array, context: Context) -> Array:
    return numerics.safe_divide(context.sum(numerics.masked_sum(x, mask)), context.sum(numerics.masked_count(mask)))


@transform(takes=(Level.TOKEN, Level.SEGMENT, Level.TRAJECTORY), gives=None, scope="batch")
def batch_whiten(
    credit: Credit,
    batch: Trajectory,
    context: Context,
    *,
    eps: float = 1e-8,
    ddof: Ddof = 1,
    shift: bool = True,
    under_root: bool = True,
) -> Credit:
    """``(x - mean) / sqrt(var + eps)`` over everything in the batch that has credit; equal values give 0.

    Args:
      eps: added to the variance; with `under_root` False to the standard deviation.
      ddof: 1 divides the squares by n - 1.
      shift: with False the mean stays, which keeps sums and silent groups as they are.
    """
    x, mask = credit.value, credit.valid
    count = context.sum(numerics.masked_count(mask))
    mean = _mean(x, mask, context)
    centred = numerics.select(x - mean, mask)
    variance = numerics.safe_divide(context.sum(jnp.sum(jnp.square(centred))), count - ddof)
    high = context.max(numerics.masked_max(x, mask))
    low = -context.max(-numerics.masked_min(x, mask))
    # Judged on the raw values: rounding noise over a small root must not become credit.
    differ = high - low > 1e-6 * jnp.maximum(jnp.abs(high), jnp.abs(low))
    varies = differ & (count > ddof)
    variance = jnp.where(varies, variance, 0.0)
    spread = jnp.sqrt(variance + eps) if under_root else numerics.safe_sqrt(variance) + eps
    value = numerics.safe_divide(centred if shift else x, spread)
    return credit.with_value(jnp.where(varies, value, 0.0))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, scope="batch")
def subtract_batch_mean(credit: Credit, batch: Trajectory, context: Context) -> Credit:
    """Subtracts the mean, over all voting rollouts of the batch, of the credit at their first acted position."""
    return credit.with_value(credit.value - _mean(first_value(credit), vote_weight(batch), context))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY, scope="batch")
def batch_center(credit: Credit, batch: Trajectory, context: Context) -> Credit:
    """Subtracts the mean over all voting rollouts of the batch that have credit."""
    weight = jnp.where(credit.valid, vote_weight(batch), 0.0)
    return credit.with_value(credit.value - _mean(credit.value, weight, context))


@transform(takes=(Level.TOKEN, Level.SEGMENT, Level.TRAJECTORY), gives=None, scope="batch")
def batch_unit_mean(credit: Credit, batch: Trajectory, context: Context) -> Credit:
    """Divides a positive weight by its mean over everything in the batch that has credit."""
    return credit.with_value(numerics.safe_divide(credit.value, _mean(credit.value, credit.valid, context)))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, scope="batch")
def limit_unanimous(
    credit: Credit, batch: Trajectory, context: Context, *, scale: float = 1.0, by: Literal["sum", "mean"] = "sum"
) -> Credit:
    """Scales down the credit of groups with equal outcomes, so that it cannot drown that of the others (Miner,
    arXiv:2601.04731).

    It is multiplied by ``min(1, scale S_others / S_unanimous)``. Without credit elsewhere it is 0.

    Args:
      scale: the largest share.
      by: S is the sum of the absolute credit ("sum"), or its mean over the tokens where it is not 0 ("mean").
    """
    constant = jax.vmap(group.is_constant)(batch.outcome, vote_weight(batch))[:, None, None]
    size = jnp.abs(credit.value)

    def amount(kept: Array) -> Array:
        total = context.sum(jnp.sum(jnp.where(kept, size, 0.0)))
        return total if by == "sum" else numerics.safe_divide(total, context.sum(jnp.sum(kept & (size > 0))))

    own, others = amount(constant), amount(~constant)
    factor = jnp.where(own > 0, jnp.minimum(scale * others / jnp.where(own > 0, own, 1.0), 1.0), 1.0)
    return credit.with_value(jnp.where(constant, factor * credit.value, credit.value))


@transform(takes=Level.TRAJECTORY, gives=Level.TRAJECTORY, scope="batch")
def rescale_valid(
    credit: Credit, batch: Trajectory, context: Context, *, count_by: Literal["reward", "group"] = "reward"
) -> Credit:
    """Scales up for what carries no signal (GPG, arXiv:2504.02546): all over counted.

    Args:
      count_by: "reward" counts voting rollouts with a reward that is not 0 (as the reference code does), "group"
        counts groups whose rewards differ.
    """
    weight = vote_weight(batch)
    if count_by == "reward":
        total = context.sum(jnp.sum(weight))
        counted = context.sum(numerics.masked_count(jnp.where(batch.outcome != 0, weight, 0.0)))
    else:
        total = context.sum(jnp.sum(jnp.any(weight > 0, axis=-1), dtype=jnp.float32))
        differs = ~numerics.is_constant(batch.outcome, weight, axis=-1)
        counted = context.sum(jnp.sum(differs, dtype=jnp.float32))
    return credit.with_value(credit.value * total / jnp.maximum(counted, 1.0))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("chosen_logit",), scope="batch")
def logit_penalty(
    credit: Credit, batch: Trajectory, context: Context, *, scale: float = 0.05, eps: float = 1e-6
) -> Credit:
    """Subtracts the batch's min-max normalised logit of each token; positive credit stops at 0 (UCAS,
    arXiv:2510.10649, step 2).
    """
    logit, mask = batch.signals["chosen_logit"], credit.valid
    high = context.max(numerics.masked_max(logit, mask))
    low = -context.max(-numerics.masked_min(logit, mask))
    level = jnp.where(high > low, (numerics.select(logit, mask) - low) / (high - low + eps), 0.5)
    raw = credit.value - scale * level
    return credit.with_value(jnp.where(credit.value > 0, jnp.maximum(raw, 0.0), raw))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, scope="batch")
def scale_by_largest_future_sum(credit: Credit, batch: Trajectory, context: Context, *, eps: float = 1e-6) -> Credit:
    """Divides by the largest absolute suffix sum in the batch, so that no return leaves [-1, 1] (PRIME's code)."""
    suffix = jax.vmap(jax.vmap(returns.future_sum))(credit.value, credit.valid)
    return credit.with_value(credit.value / (context.max(jnp.max(jnp.abs(suffix))) + eps))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("read_call", "read_identity", "read_mask"), scope="batch")
def balance_loss_mass(credit: Credit, batch: Trajectory, context: Context, *, weight: float = 0.2) -> Credit:
    """Gives two channels a loss mass that does not depend on how many tokens each has (SkillGate, arXiv:2608.18852).

    With N acted positions in the batch, N_task of them outside skill reads, and M read actions with credit: an
    execution token weighs ``N / N_task``, the tokens that name the skill of one such action together ``weight * N /
    M``. The result is `extras["loss_weight"]`, by which the objective multiplies the loss of a token before it
    divides by N.
    """
    mask = batch.action_mask
    call, named = batch.signals["read_call"], mask & batch.signals["read_identity"]
    task = mask & (call < 0)
    n, n_task = (context.sum(numerics.masked_count(x)) for x in (mask, task))
    live = named & (credit.value != 0)
    reads = batch.signals["read_mask"].shape[-1]
    owner = jnp.where(named, call, -1)
    size = segments.broadcast(jnp.sum(owner[..., None, :] == jnp.arange(reads)[:, None], axis=-1), owner)
    actions = context.sum(jnp.sum(jnp.where(live, 1.0 / jnp.maximum(size, 1), 0.0)))
    per_name = numerics.safe_divide(weight * n, jnp.maximum(actions, 1.0) * size)
    loss_weight = jnp.where(task, n / jnp.maximum(n_task, 1.0), jnp.where(live, per_name, 0.0))
    return credit.with_extras(loss_weight=loss_weight)
