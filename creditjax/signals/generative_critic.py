"""How a critic that reasons before it states a value learns (GenAC, arXiv:2604.10701)."""

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.trajectory import Trajectory, segment_mask, vote_mask

Array = jax.Array


def generative_critic_loss(critic_value: Array, critic_logprob: Array, batch: Trajectory) -> tuple[Array, Array]:
    """REINFORCE on the critic's own draws, each paid for how close its value came to the outcome.

    Draw m at segment k earns ``rho = -(clip(v, 0, 1) - outcome)^2``, or -1 if it states no number (NaN), and

        loss = -sum (rho[k, m] - mean over m of rho[k]) * critic_logprob[k, m]

    over acted segments of scored rollouts and all draws. With one draw there is nothing to compare, and the loss is 0.

    Args:
      critic_value: f32 ``[..., K, M]``, what the draws state; no gradient flows into it.
      critic_logprob: f32 ``[..., K, M]``, the log-probability of all that a draw wrote, with gradient.
      batch: rollouts ``[..., T]`` with `segment`.

    Returns:
      The summed loss and the number of draws, f32 scalars; their quotient is the mean.

    Raises:
      ValueError: shapes that do not fit the batch, or a batch without segments.
    """
    if batch.segment is None:
        raise ValueError("segment: absent, wanted i32 [..., T]: the critic is asked as each segment begins")
    lead = (*batch.batch_shape, batch.num_segments)
    for name, x in (("critic_value", critic_value), ("critic_logprob", critic_logprob)):
        if x.ndim != len(lead) + 1 or x.shape[:-1] != lead or x.shape != critic_value.shape:
            raise ValueError(f"{name}: shape {list(x.shape)}, wanted {[*lead, critic_value.shape[-1]]}")
    asked = segment_mask(batch) & vote_mask(batch)[..., None]
    outcome = numerics.select(batch.outcome, vote_mask(batch))[..., None, None]
    stated = jnp.isfinite(critic_value)
    error = jnp.square(jnp.clip(numerics.select(critic_value, stated), 0.0, 1.0) - outcome)
    earned = jax.lax.stop_gradient(jnp.where(stated, -error, -1.0))
    compared = earned - jnp.mean(earned, axis=-1, keepdims=True)
    loss = -jnp.sum(numerics.select(compared * critic_logprob, asked[..., None]))
    return loss, jnp.sum(asked, dtype=jnp.float32) * critic_value.shape[-1]
