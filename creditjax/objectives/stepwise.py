"""Losses whose unit is a step: one clipped ratio a step, one vote a step."""

import jax
from jax import numpy as jnp

from creditjax.kernels import losses, segments
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_count, masked_sum
from creditjax.objectives.base import CreditLike, objective
from creditjax.objectives.policy import move, policy_terms, read
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory


@objective(needs=("logprob", "segment"))
def step_surrogate(
    new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, eps_low: float = 0.2, eps_high: float = 0.2
) -> Terms:
    """``- (1/n) Σ_k min(ρ_k A_k, clip(ρ_k, 1 - eps_low, 1 + eps_high) A_k)`` over the n steps of the batch (OPRL,
    arXiv:2509.19199).

    ``ρ_k = exp Σ_{t in k} (log π - log π_behaviour)`` is not length-normalised, and a long step counts as much as a
    short one. A step's credit is that of its last position in the loss; positions of no step take no part.
    """
    x = read(new, credit, batch, "step_surrogate")
    ratio = move(x, batch, "segment_product")
    loss = losses.ppo_loss(ratio, x.advantage, eps_low, eps_high)

    def last(ids: jax.Array, mask: jax.Array) -> jax.Array:
        return segments.segment_last(ids, mask, batch.num_segments)

    ends = jnp.vectorize(last, signature="(t),(t)->(t)")(batch.segment, x.mask)
    clipped = losses.ppo_clipped(ratio, x.advantage, eps_low, eps_high)
    shown = policy_terms(loss, x, credit, "token_mean", ratio, clipped)
    return {**shown, "policy": Term(masked_sum(loss, ends), masked_count(ends))}
