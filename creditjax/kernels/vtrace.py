"""V-trace: off-policy actor-critic targets with truncated importance weights, on one stream ``[T]``."""

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.kernels import returns
from creditjax.kernels.recurrence import carry_in

Array = jax.Array
Scalar = jax.Array | float


def vtrace(
    reward: Array,
    value: Array,
    logprob_current: Array,
    logprob: Array,
    mask: Array,
    gamma: Scalar,
    lam: Scalar = 1.0,
    rho_bar: Scalar = 1.0,
    rho_pg_bar: Scalar = 1.0,
    c_bar: Scalar = 1.0,
    next_value: Array | None = None,
    terminated: Array | None = None,
    truncated: Array | None = None,
) -> returns.Advantage:
    """V-trace value targets and policy-gradient advantages.

    With n the next acted position, g = gamma * (1 - terminated), cut = (1 - terminated) * (1 - truncated)::

        rho[t]    = exp(clip(logprob_current[t] - logprob[t], -20, 20))
        delta[t]  = min(rho_bar, rho[t]) * (R[t] + g[t] * next_value[t] - value[t])
        e[t]      = delta[t] + gamma * cut[t] * lam * min(c_bar, rho[t]) * e[n],     0 after the last
        target[t] = value[t] + e[t]
        A[t]      = min(rho_pg_bar, rho[t]) * (R[t] + g[t] * next_value[t] + gamma * cut[t] * lam * e[n] - value[t])

    On-policy both are GAE(lam) and its lambda-return. The advantage contains the importance weight of the policy
    gradient: pair it with a plain ``-A * logprob`` loss, not with another ratio.

    Source: Espeholt et al. 2018 (arXiv:1802.01561), section 4.1; lam as in its remark 2.

    Args:
      reward: ``[T]``.
      value: ``[T]``, V of the state acted in.
      logprob_current: ``[T]``, log-probability of the action under the policy being learned.
      logprob: ``[T]``, log-probability under the distribution that it was sampled from.
      mask: bool ``[T]``, where the policy acted.
      gamma: discount, scalar or ``[T]``.
      lam: trace decay, scalar or ``[T]``.
      rho_bar: clip of the weight in delta; the fixed point depends on it.
      rho_pg_bar: clip of the weight of the policy gradient.
      c_bar: clip of the trace; it changes the speed of contraction alone.
      next_value: ``[T]``, as in :func:`creditjax.kernels.returns.gae`.
      terminated: bool ``[T]``, the episode ended after this position.
      truncated: bool ``[T]``, the episode was cut off after this position.

    Returns:
      `Advantage`.

    Raises:
      ValueError: shapes that do not fit.
    """
    returns._check(mask, logprob_current=logprob_current, logprob=logprob)
    rho = numerics.safe_exp(numerics.select(logprob_current, mask) - numerics.select(logprob, mask))
    error = returns.td_error(reward, value, mask, gamma, next_value, terminated, truncated)
    trace = gamma * lam
    if (ends := returns.episode_ends(mask, terminated, truncated)) is not None:
        trace = jnp.where(ends.terminated | ends.truncated, 0.0, trace)
    decay = jnp.where(mask, trace * jnp.minimum(c_bar, rho), 1.0)
    delta = numerics.select(jnp.minimum(rho_bar, rho) * error, mask)
    later = carry_in(decay, delta, reverse=True)
    advantage = jnp.minimum(rho_pg_bar, rho) * (error + trace * later)
    target = value + delta + decay * later
    return returns.Advantage(numerics.select(advantage, mask), numerics.select(target, mask))
