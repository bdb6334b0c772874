"""Imitation of the policy's own rollouts, for those that pass every gate."""

from jax import numpy as jnp

from creditjax.models.base import PolicyOutput
from creditjax.numerics import select
from creditjax.objectives.aggregate import Aggregation, Mode, aggregate
from creditjax.objectives.base import CreditLike, loss_mask, objective, require
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory


@objective(needs=lambda gate, **_: () if gate is None else (gate,))
def gated_supervised(
    new: PolicyOutput,
    credit: CreditLike | None,
    batch: Trajectory,
    *,
    coefficient: float = 0.1,
    right: float = 1.0,
    gate: str | None = "format_ok",
    aggregation: Aggregation | Mode = "seq_mean_token_mean",
) -> Terms:
    """``- coefficient · mean over rollouts of 1[outcome >= right and gate] · mean over its tokens of log π(a_t)`` (MIG,
    arXiv:2602.01034).

    Scored rollouts that fail a gate count in the mean and get no gradient, so the loss fades with the success rate.

    Args:
      coefficient: weight of the loss.
      right: the outcome from which on a rollout is right.
      gate: a signal ``[P, G]`` that has to hold too, None for none.
      aggregation: how token losses become one number.
    """
    mask = loss_mask(credit, batch) & jnp.isfinite(batch.outcome)[..., None]
    passes = batch.outcome >= right
    if gate is not None:
        passes = passes & (require(batch, gate, "gated_supervised") > 0)
    loss = jnp.where(passes[..., None], -select(new.logprob, mask), 0.0)
    return {"imitation": Term(*aggregate(loss, mask, aggregation), coefficient)}
