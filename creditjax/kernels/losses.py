"""The policy and value losses, element by element: no masks, no means, any shape.

Callers select before they call (``numerics.select``), so that nothing under a mask gets here, and aggregate afterwards.
A `ratio` comes from ``numerics.safe_exp`` and is finite. Gradients flow through `ratio`, `logprob` and `value`; the
caller stops the rest.
"""

import jax
from jax import numpy as jnp

Array = jax.Array
Scalar = jax.Array | float


def policy_gradient_loss(logprob: Array, advantage: Array) -> Array:
    """``−A log π``, whose gradient is REINFORCE's (Williams, 1992)."""
    return -advantage * logprob


def ppo_loss(
    ratio: Array, advantage: Array, eps_low: Scalar, eps_high: Scalar, dual_clip: Scalar | None = None
) -> Array:
    """``max(−A r, −A clip(r, 1 − eps_low, 1 + eps_high))``, the clipped surrogate (PPO, arXiv:1707.06347).

    With `dual_clip` C the loss of a negative advantage is at most ``−A C`` (arXiv:1912.09729). The gradient is exactly
    0 where A > 0 and r > 1 + eps_high, where A < 0 and r < 1 − eps_low, and where A < 0 and r > C.
    """
    clipped = jnp.clip(ratio, 1.0 - eps_low, 1.0 + eps_high)
    loss = jnp.maximum(-advantage * ratio, -advantage * clipped)
    if dual_clip is None:
        return loss
    return jnp.where(advantage < 0, jnp.minimum(loss, -advantage * dual_clip), loss)


def ppo_clipped(
    ratio: Array, advantage: Array, eps_low: Scalar, eps_high: Scalar, dual_clip: Scalar | None = None
) -> Array:
    """bool: where :func:`ppo_loss` passes no gradient because a clip binds."""
    clipped = ((advantage > 0) & (ratio > 1.0 + eps_high)) | ((advantage < 0) & (ratio < 1.0 - eps_low))
    return clipped if dual_clip is None else clipped | ((advantage < 0) & (ratio > dual_clip))


def cispo_loss(logprob: Array, ratio: Array, advantage: Array, eps_low: Scalar, eps_high: Scalar) -> Array:
    """``−sg(clip(r, 1 − eps_low, 1 + eps_high)) A log π``: the weight is clipped, the gradient never lost.

    MiniMax-M1, arXiv:2506.13585. The value is no surrogate of the return; only its gradient means something.
    """
    weight = jax.lax.stop_gradient(jnp.clip(ratio, 1.0 - eps_low, 1.0 + eps_high))
    return policy_gradient_loss(logprob, weight * advantage)


def sapo_loss(ratio: Array, advantage: Array, tau_positive: Scalar, tau_negative: Scalar) -> Array:
    """``−A (4/τ) σ(τ (r − 1))`` with τ by the sign of A (SAPO, arXiv:2511.20347): a soft gate where PPO has a hard one.

    The slope in r is ``−A 4 p (1 − p)`` with ``p = σ(τ (r − 1))``: at r = 1 that of the plain surrogate, and falling on
    both sides.
    """
    tau = jnp.where(advantage > 0, tau_positive, tau_negative)
    return -advantage * (4.0 / tau) * jax.nn.sigmoid(tau * (ratio - 1.0))


def value_loss(value: Array, target: Array, old_value: Array | None = None, clip: Scalar | None = None) -> Array:
    """``½ (v − target)²``; with `clip`, the larger of it and that of v held within `clip` of `old_value` (PPO2).

    Raises:
      ValueError: `clip` without `old_value`.
    """
    loss = jnp.square(value - target)
    if clip is not None:
        if old_value is None:
            raise ValueError("old_value: absent, wanted with clip")
        loss = jnp.maximum(loss, jnp.square(jnp.clip(value, old_value - clip, old_value + clip) - target))
    return 0.5 * loss
