"""Losses that treat the few tokens apart whose update costs most entropy (Cui et al., arXiv:2505.22617).

To first order, a policy-gradient step lowers the entropy by the covariance of log-probability and advantage. Token t's
part is ``cov_t = (A_t − mean A)(log π_t − mean log π)`` with the means over the whole minibatch under the current
policy. So the choice is made in `prepare`, once a minibatch and before it is split, and travels in
``credit.extras["covariance_selected"]``.
"""

import jax
from jax import numpy as jnp

from creditjax.kernels import losses
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_count, masked_mean
from creditjax.objectives import policy
from creditjax.objectives.aggregate import Aggregation, Mode
from creditjax.objectives.base import CreditLike, objective, require_extra
from creditjax.objectives.terms import Terms, diagnostic
from creditjax.trajectory import Trajectory

Array = jax.Array
SELECTED = "covariance_selected"
_MISSING = "call objective.prepare(new, credit, batch) once a minibatch, before it is split"


def token_covariance(logprob: Array, advantage: Array, mask: Array) -> Array:
    """``(A_t − mean A)(log π_t − mean log π)`` over the selected positions; any shape, unspecified under the mask."""
    return (advantage - masked_mean(advantage, mask)) * (logprob - masked_mean(logprob, mask))


def largest(score: Array, candidates: Array, count: Array) -> Array:
    """True at the `count` candidates of largest score, ties to the earlier; `count` may be traced."""
    order = jnp.argsort(-jnp.where(candidates, score, -jnp.inf).ravel(), stable=True)
    first = jnp.zeros(order.shape, bool).at[order].set(jnp.arange(order.size) < count)
    return first.reshape(score.shape) & candidates


def _count(fraction: Array, mask: Array) -> Array:
    """``max(⌊fraction · n⌋, 1)`` of the n selected positions; the margin undoes the fraction's float32 rounding."""
    return jnp.maximum(jnp.floor(fraction * masked_count(mask) * (1.0 + 1e-6)), 1.0)


def _prepare_clip_cov(new, credit, batch, *, eps_low, eps_high, fraction, lowest, highest, uniform, **_):
    x = policy.read(new, credit, batch, "clip_cov")
    covariance = token_covariance(x.logprob, x.advantage, x.mask)
    clipped = losses.ppo_clipped(policy.move(x, batch, "token"), x.advantage, eps_low, eps_high)
    candidates = x.mask & ~clipped & (covariance > lowest) & (covariance < highest)
    if uniform is None:
        score = covariance
    else:
        # The draw changes with the data, not with how it is sharded: an integer sum is exact in any order.
        drawn = jax.random.fold_in(jax.random.key(uniform), jnp.sum(jnp.where(x.mask, batch.tokens, 0)))
        score = jax.random.uniform(drawn, covariance.shape)
    return credit.with_extras(**{SELECTED: largest(score, candidates, _count(fraction, x.mask))})


@objective(needs=("logprob",), prepare=_prepare_clip_cov)
def clip_cov(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    eps_low: float = 0.2,
    eps_high: float = 0.2,
    fraction: float = 2e-4,
    lowest: float = 1.0,
    highest: float = 5.0,
    uniform: int | None = None,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """Clip-Cov: the PPO surrogate, without the loss of a few tokens of high covariance.

    Candidates are the unclipped tokens with ``lowest < cov < highest``, of which ``max(⌊fraction · n⌋, 1)`` are taken,
    n being the number of all tokens.

    Args:
      eps_low: PPO's.
      eps_high: PPO's.
      fraction: of all tokens, how many lose their loss.
      lowest: of a candidate's covariance.
      highest: of a candidate's covariance.
      uniform: None takes the candidates of largest covariance, which is deterministic and blind to padding; an integer
        is the seed of a uniform draw among them, as in the paper, made afresh from each minibatch's tokens.
      aggregation: how token losses become one number.
    """
    x = policy.read(new, credit, batch, "clip_cov")
    r = policy.move(x, batch, "token")
    selected = require_extra(credit, SELECTED, "clip_cov", _MISSING)
    clipped = losses.ppo_clipped(r, x.advantage, eps_low, eps_high) | selected
    loss = jnp.where(selected, 0.0, losses.ppo_loss(r, x.advantage, eps_low, eps_high))
    terms = policy.policy_terms(loss, x, credit, aggregation, r, clipped)
    return {**terms, "covariance_fraction": diagnostic(selected, x.mask)}


def _prepare_kl_cov(new, credit, batch, *, fraction, **_):
    x = policy.read(new, credit, batch, "kl_cov")
    covariance = token_covariance(x.logprob, x.advantage, x.mask)
    return credit.with_extras(**{SELECTED: largest(covariance, x.mask, _count(fraction, x.mask))})


@objective(needs=("logprob",), prepare=_prepare_kl_cov)
def kl_cov(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    beta: float = 1.0,
    fraction: float = 2e-4,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """KL-Cov: ``−A r`` unclipped, plus ``β |log r|`` on the ``max(⌊fraction · n⌋, 1)`` tokens of largest covariance."""
    x = policy.read(new, credit, batch, "kl_cov")
    r = policy.move(x, batch, "token")
    selected = require_extra(credit, SELECTED, "kl_cov", _MISSING)
    loss = -x.advantage * r + jnp.where(selected, beta * jnp.abs(x.log_ratio), 0.0)
    terms = policy.policy_terms(loss, x, credit, aggregation, r, jnp.zeros_like(x.mask))
    return {**terms, "covariance_fraction": diagnostic(selected, x.mask)}
