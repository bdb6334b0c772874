"""Decoding by a token's value under another policy: card `transfer_q_star` (arXiv:2405.20495).

At each position C candidate tokens of the reference policy are valued by M continuations of an aligned baseline policy,
and the next token is drawn from the reference, tilted by that value. Inference alone, but the same value is a token's
credit: its advantage over what the reference would have expected.
"""

import jax
from jax import numpy as jnp

Array = jax.Array


def candidate_value(reward: Array, base_reward: Array | None = None, *, beta: float | Array = 0.1) -> Array:
    """Value of each candidate token, f32 ``[C]``.

    Direct: ``mean_m r``, if the baseline was aligned with r. Indirect: ``Σ_m w_m r_m`` with the weights ``w =
    softmax((r - r_base) / beta)``, if it was aligned with another reward: ``pi_r ∝ pi_base exp((r - r_base) / beta)``.

    Args:
      reward: ``[C, M]``, the wanted reward of M continuations after each candidate.
      base_reward: ``[C, M]``, the reward that the baseline was aligned with; None for the same.
      beta: KL weight of that alignment.
    """
    reward = jnp.asarray(reward, jnp.float32)
    if base_reward is None:
        return reward.mean(-1)
    return jnp.sum(jax.nn.softmax((reward - base_reward) / beta, axis=-1) * reward, axis=-1)


def soft_candidate_value(reward: Array, base_reward: Array, *, beta: float | Array = 0.1) -> Array:
    """``beta log mean_m exp((r - r_base) / beta)``, f32 ``[C]``: the soft value, up to a constant of the prompt."""
    gain = (jnp.asarray(reward, jnp.float32) - base_reward) / beta
    return beta * (jax.nn.logsumexp(gain, axis=-1) - jnp.log(gain.shape[-1]))


def tilted_logprob(logprob: Array, value: Array, *, alpha: float | Array = 1.0) -> Array:
    """``log softmax(log pi_ref + Q / alpha)`` over the candidates, f32 ``[C]``.

    A large alpha gives the reference policy, one close to 0 the candidate of the largest value.
    """
    return jax.nn.log_softmax(logprob + value / alpha)


def candidate_advantage(logprob: Array, value: Array) -> Array:
    """``Q_z - Σ_z' pi_ref(z') Q_z'`` with pi_ref over the candidates, f32 ``[C]``: credit whose expectation is 0."""
    return value - jnp.sum(jax.nn.softmax(logprob) * value)


def guided_token(
    key: Array,
    candidates: Array,
    logprob: Array,
    reward: Array,
    base_reward: Array | None = None,
    *,
    alpha: float | Array = 1.0,
    beta: float | Array = 0.1,
) -> tuple[Array, Array]:
    """Draws the next token, and gives its credit.

    Args:
      key: PRNG key.
      candidates: i32 ``[C]``, token ids.
      logprob: ``[C]``, their log-probabilities under the reference policy.
      reward: see :func:`candidate_value`.
      base_reward: likewise.
      alpha: how far the reference may be left behind.
      beta: KL weight of the baseline.

    Returns:
      The token, i32 scalar, and its advantage, f32 scalar.
    """
    value = candidate_value(reward, base_reward, beta=beta)
    place = jax.random.categorical(key, tilted_logprob(logprob, value, alpha=alpha))
    return candidates[place], candidate_advantage(logprob, value)[place]
