"""Estimates of the divergence between the policy and a reference, element by element from two log-probabilities.

What an estimate is worth *reported* and what its gradient is worth are different questions. With tokens drawn from π
and ``d = log π − log π_ref`` (J. Schulman, "Approximating KL divergence", 2020):

    kind   value           E[value]       E[gradient]
    k1     d               KL(π‖π_ref)    0
    abs    |d|             ≥ KL           of no divergence
    k2     d²/2            ≈ KL           ∇KL(π‖π_ref)
    k3     e^{−d} + d − 1  KL(π‖π_ref)    ∇KL(π_ref‖π)
    k1+    that of k1      KL(π‖π_ref)    ∇KL(π‖π_ref), by k2
    k3+    that of k3      KL(π‖π_ref)    ∇KL(π‖π_ref), by k2
"""

from typing import Literal

import jax
from jax import numpy as jnp

from creditjax.numerics import select

Array = jax.Array
Kind = Literal["k1", "abs", "k2", "k3", "k1+", "k3+"]
Divergence = Literal["reverse_kl", "forward_kl", "chi_square"]


def kl_estimate(logprob: Array, logprob_ref: Array, kind: Kind = "k3") -> Array:
    """One of the estimates above, in nats.

    k3 clips d to [−20, 20] and its value to at most 10, as the trainers that use it do; where a clip binds, the
    gradient is 0.

    Args:
      logprob: any shape, log π of the drawn token.
      logprob_ref: same shape, log π_ref of it.
      kind: which estimate.

    Returns:
      The same shape.

    Raises:
      ValueError: `kind` is none of the above.
    """
    difference = logprob - logprob_ref
    match kind:
        case "k1":
            return difference
        case "abs":
            return jnp.abs(difference)
        case "k2":
            return 0.5 * jnp.square(difference)
        case "k3":
            bounded = jnp.clip(difference, -20.0, 20.0)
            return jnp.minimum(jnp.expm1(-bounded) + bounded, 10.0)
        case "k1+" | "k3+":
            value = kl_estimate(logprob, logprob_ref, "k1" if kind == "k1+" else "k3")
            slope = kl_estimate(logprob, logprob_ref, "k2")
            return jax.lax.stop_gradient(value) + (slope - jax.lax.stop_gradient(slope))
    raise ValueError(f"kl kind {kind!r}, wanted one of {', '.join(Kind.__args__)}")


def kl_full(log_probs: Array, log_probs_ref: Array) -> Array:
    """``Σ_v π(v) (log π(v) − log π_ref(v))``, the exact divergence, value and gradient.

    Args:
      log_probs: ``[..., V]``, normalised log-probabilities of π; −inf outside its support.
      log_probs_ref: ``[..., V]``, those of π_ref.

    Returns:
      ``[...]``; inf where π puts mass on what π_ref excludes.
    """
    support = log_probs > -jnp.inf
    inside, reference = jnp.where(support, log_probs, 0.0), jnp.where(support, log_probs_ref, 0.0)
    return jnp.sum(jnp.where(support, jnp.exp(inside) * (inside - reference), 0.0), axis=-1)


def kl_in_reward(
    reward: Array, logprob: Array, logprob_ref: Array, mask: Array, beta: Array, kind: Kind = "k1"
) -> Array:
    """``reward_t − beta · sg(kl_t)`` at acted positions: the penalty as part of the return, so that credit sees it.

    Here k1 is the right estimate: its *value* enters the return, and the policy gradient of that return is ∇KL.

    Args:
      reward: ``[..., T]``.
      logprob: ``[..., T]``, of the policy that drew the tokens.
      logprob_ref: ``[..., T]``.
      mask: bool ``[..., T]``, where the policy acted; elsewhere the reward stays as it is.
      beta: scalar.
      kind: which estimate.

    Returns:
      ``[..., T]``.
    """
    penalty = kl_estimate(select(logprob, mask), select(logprob_ref, mask), kind)
    return reward - beta * jax.lax.stop_gradient(penalty)


def divergence_terms(log_ratio: Array, kind: Divergence = "reverse_kl") -> tuple[Array, Array]:
    """What a drawn token contributes to the gradient of a divergence of sequences, ``Σ_t E[Σ_v π_ref f(π / π_ref)]``.

    With ``x = π / π_ref`` the score of token t multiplies ``f'(x_t) − f'(1) + Σ_{u>t} f(x_u) / x_u`` (FRPO,
    arXiv:2601.10201): its own divergence moves, and so does which later tokens are reached.

    ===========  ============  ===============  ==================
    kind         f(x)          f'(x) − f'(1)    f(x) / x
    reverse_kl   x log x       log x            log x
    forward_kl   −log x        1 − 1/x          −(log x) / x
    chi_square   (x − 1)²      2 (x − 1)        x − 2 + 1/x
    ===========  ============  ===============  ==================

    Args:
      log_ratio: any shape, ``log π − log π_ref`` of the drawn token; held within ±20 where it is exponentiated.
      kind: which divergence.

    Returns:
      ``f'(x) − f'(1)`` and ``f(x) / x``, the same shape each.

    Raises:
      ValueError: `kind` is none of the above.
    """
    held = jnp.clip(log_ratio, -20.0, 20.0)
    match kind:
        case "reverse_kl":
            return log_ratio, log_ratio
        case "forward_kl":
            return -jnp.expm1(-held), -held * jnp.exp(-held)
        case "chi_square":
            return 2 * jnp.expm1(held), 4 * jnp.square(jnp.sinh(held / 2))
    raise ValueError(f"divergence {kind!r}, wanted one of {', '.join(Divergence.__args__)}")
