"""Losses of a looped policy, which runs the same block several times and can be read out after each."""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax.models.base import PolicyOutput
from creditjax.numerics import select
from creditjax.objectives.aggregate import Aggregation, Mode
from creditjax.objectives.base import CreditLike, loss_mask, objective, require_statistic
from creditjax.objectives.policy import policy_gradient
from creditjax.objectives.terms import Terms
from creditjax.trajectory import Trajectory

Array = jax.Array
Weighting = Literal["uniform", "progressive", "exit", "learned"]


def loop_weights(loops: int, weighting: Weighting, power: float, theta: Array | None, temperature: float) -> Array:
    """What each loop weighs, f32 ``[L]``, for the weightings that do not depend on the token; they add up to 1."""
    if weighting == "learned":
        if theta is None or theta.shape != (loops,):
            found = "None" if theta is None else f"shape {list(theta.shape)}"
            raise ValueError(f"looped_policy_gradient: theta = {found}, wanted [L={loops}]")
        return jax.nn.softmax(theta / temperature)
    weight = jnp.arange(1, loops + 1, dtype=jnp.float32) ** (0.0 if weighting == "uniform" else power)
    return weight / jnp.sum(weight)


@objective(statistics=lambda weighting, **_: ("loop_logprob", *(("exit_pdf",) if weighting == "exit" else ())))
def looped_policy_gradient(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    weighting: Weighting = "uniform",
    power: float = 1.0,
    theta: Array | None = None,
    temperature: float = 1.0,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``−A_t Σ_l ω_l log π_l(a_t)``: REINFORCE in every loop of a looped policy (RLTT, arXiv:2602.10520).

    Strictly on-policy: there is no ratio. With all weight on the last loop it is :func:`policy_gradient`. The mixture
    is a geometric one of the loops' policies and not normalised.

    Args:
      weighting: ω is ``1/L`` ("uniform"), ``l^power`` over its sum ("progressive"), the policy's own exit distribution
        at the token, without gradient ("exit"), or ``softmax(theta / temperature)`` ("learned").
      power: of "progressive".
      theta: f32 ``[L]`` of "learned": a leaf of the objective. A step trains the policy alone; who learns theta takes
        the derivative of the loss by the objective.
      temperature: of "learned".
      aggregation: how token losses become one number; the paper averages by sequence, its code over tokens.
    """
    mask = loss_mask(credit, batch)[..., None]
    logprob = select(require_statistic(new, "loop_logprob", "looped_policy_gradient"), mask)
    if weighting == "exit":
        weight = jax.lax.stop_gradient(select(require_statistic(new, "exit_pdf", "looped_policy_gradient"), mask))
    elif weighting == "learned" and logprob.shape[-1] == 1:
        weight = jnp.ones(1)  # the counts are taken without a policy, and do not depend on the loops
    else:
        weight = loop_weights(logprob.shape[-1], weighting, power, theta, temperature)
    mixed = new._replace(logprob=jnp.sum(weight * logprob, axis=-1))
    return policy_gradient(aggregation=aggregation)(mixed, credit, batch)
