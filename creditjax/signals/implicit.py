"""An implicit process-reward model: a language model trained on outcomes, whose log-ratio to its start is the reward.

With ``R(y) = beta * sum_t (log pi_prm(y_t | y_<t) - log pi_ref(y_t | y_<t))`` fitted to the outcome, the partial sums
are the exact soft values ``beta * log E_{y ~ pi_ref}[exp(R(y) / beta) | y_<=t]``, so every token gets a reward without
a step label (Yuan et al. 2024, arXiv:2412.01981). PRIME keeps training it on the policy's own rollouts (Cui et al.
2025, arXiv:2502.01456).
"""

import jax
from jax import numpy as jnp

from creditjax.models.base import Params, Policy
from creditjax.numerics import masked_sum
from creditjax.trajectory import Trajectory, vote_mask

Array = jax.Array


def implicit_prm_probe(policy: Policy, prm_params: Params, batch: Trajectory) -> Trajectory:
    """Adds `logprob_prm` ``[..., T]``: each acted token under `prm_params` at temperature 1; gradient stopped."""
    return batch.with_signals(logprob_prm=jax.lax.stop_gradient(policy.evaluate(prm_params, batch).logprob))


def implicit_prm_loss(
    logprob_prm: Array, logprob_ref: Array, batch: Trajectory, beta: float = 0.05
) -> tuple[Array, Array]:
    """Cross-entropy of the outcome under the implicit reward, as (sum, count).

        z = beta * sum_t mask_t (logprob_prm_t - logprob_ref_t)
        loss = - sum_rollouts [outcome * log sigmoid(z) + (1 - outcome) * log sigmoid(-z)]

    At ``pi_prm = pi_ref`` it is log 2 a rollout (PRIME, arXiv:2502.01456).

    Args:
      logprob_prm: ``[..., T]``, with gradient.
      logprob_ref: ``[..., T]``, under the frozen start; its gradient is stopped.
      batch: outcomes in [0, 1]; rows that do not vote (unscored, never acted, flagged) take no part.
      beta: scale of the reward.

    Returns:
      The summed loss and the number of rollouts in it, both f32 scalars.
    """
    counted = vote_mask(batch)
    ratio = masked_sum(logprob_prm, batch.action_mask, axis=-1) - masked_sum(
        jax.lax.stop_gradient(logprob_ref), batch.action_mask, axis=-1
    )
    z = beta * ratio
    outcome = jnp.where(counted, batch.outcome, 0.0)
    loss = -(outcome * jax.nn.log_sigmoid(z) + (1 - outcome) * jax.nn.log_sigmoid(-z))
    return masked_sum(loss, counted), jnp.sum(counted, dtype=jnp.float32)
