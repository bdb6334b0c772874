"""Credit of thinking that may be cut off at any of the budgets ``[B]``: plain arrays of one group ``[G]``."""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array

Prior = Literal["uniform", "linear", "base"]
Reduction = Literal["brpo", "v1only", "v2only", "none"]


def budget_prior(budget: Array, kind: Prior) -> Array:
    """Probability of each budget, f32 ``[B]``: equal, proportional to the budget, or all on the last."""
    weight = {
        "uniform": jnp.ones_like(budget),
        "linear": budget,
        "base": jnp.arange(budget.shape[0]) == budget.shape[0] - 1,
    }[kind].astype(jnp.float32)
    return numerics.safe_divide(weight, jnp.sum(weight))


def anytime_advantage(
    reward: Array, prior: Array, weight: Array, *, lam: Array | float = 0.5, reduction: Reduction = "brpo"
) -> Array:
    """``A_s = R_s - B_s`` of the thinking between budget s - 1 and budget s (BRPO, arXiv:2505.13438).

    With r_i the reward of an answer given at budget i and P the prior::

        R_s  = Σ_{i >= s} P_i r_i
        V1_s = (Σ_{i < s} lam^(s-i) r_i / Σ_{i < s} lam^(s-i)) Σ_{i >= s} P_i       V1_0 = 0
        V2_s = mean of R_s over the voters, 0 where fewer than two vote
        B_s  = (s V1_s + (B - s) V2_s) / B

    Args:
      reward: f32 ``[G, B]``.
      prior: f32 ``[B]``, adds up to 1.
      weight: f32 ``[G]``, votes; a row without one gets 0.
      lam: how fast earlier budgets lose their say in V1.
      reduction: "v1only" and "v2only" are one baseline alone, "none" is R.

    Returns:
      f32 ``[G, B]``.
    """
    count = prior.shape[0]
    s = jnp.arange(count)
    reward = numerics.select(reward, jnp.broadcast_to((weight > 0)[:, None], reward.shape))

    def from_here_on(x: Array) -> Array:
        return jnp.flip(jnp.cumsum(jnp.flip(x, -1), axis=-1), -1)

    returned = from_here_on(prior * reward)
    distance = s[:, None] - s
    recent = jnp.where(distance > 0, jnp.power(lam, jnp.maximum(distance, 1).astype(jnp.float32)), 0.0)  # [s, i]
    v1 = numerics.safe_divide(reward @ recent.T, jnp.sum(recent, axis=-1)) * from_here_on(prior)
    votes = jnp.broadcast_to(weight[:, None], reward.shape)
    v2 = jnp.where(jnp.sum(weight) < 1.5, 0.0, numerics.masked_mean(returned, votes, axis=0, keepdims=True))
    baseline = {
        "brpo": (s * v1 + (count - s) * v2) / count,
        "v1only": v1,
        "v2only": v2,
        "none": jnp.zeros_like(v1),
    }[reduction]
    return numerics.select(returned - baseline, votes)
