"""FIPO (arXiv:2603.19835): a token's advantage weighs more, the more likely its own continuation has become.

Inside the inner loop the policy moves away from the one that drew the batch. ``d_u = log π − log π_behaviour`` says by
how much at each token, and its decayed sum over the future of t whether the update goes along with what t led to. The
weight changes with every inner step, so it lives in the loss and not in the credit; on the first step it is 1.
"""

import jax
from jax import numpy as jnp

from creditjax.kernels import losses, returns
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_count
from creditjax.objectives import policy
from creditjax.objectives.aggregate import Aggregation, Mode
from creditjax.objectives.base import CreditLike, objective
from creditjax.objectives.terms import Terms, diagnostic
from creditjax.trajectory import Trajectory

Array = jax.Array

# A punished token whose ratio ran away is never punished harder, and at most this much less.
_RUNAWAY_LOW = 0.8


def future_kl_weight(
    x: policy.Inputs,
    *,
    half_life: Array | float,
    eps: Array | float,
    high_only: bool,
    safe_ratio: Array | float,
    dual_clip: Array | float,
) -> Array:
    """``clip(exp(Σ_{u ≥ t} 2^{−d(t,u)/half_life} d_u), lo, hi)``, d(t,u) in acted positions; ``[..., T]``, no gradient.

    Tokens with a ratio above `dual_clip` do not enter the sum. The arguments are those of :func:`future_kl`.
    """
    moved = jnp.clip(jax.lax.stop_gradient(x.log_ratio), -20.0, 20.0)
    counted = jnp.where(moved <= jnp.log(dual_clip), moved, 0.0)
    decay = jnp.exp2(-1.0 / jnp.asarray(half_life, jnp.float32))
    total = jnp.vectorize(lambda d, mask: returns.future_sum(d, mask, decay), signature="(t),(t)->(t)")(counted, x.mask)
    # Any sum of ±20 a token is beyond the bounds: clip before exp.
    low, high = 0.0 if high_only else jnp.log1p(-eps), jnp.log1p(eps)
    weight = jnp.exp(jnp.clip(total, low, high))
    runaway = (x.advantage < 0) & (moved > jnp.log(safe_ratio))
    return jnp.where(runaway, jnp.clip(weight, _RUNAWAY_LOW, 1.0), weight)


def _prepare_future_kl(new, credit, batch, *, dual_clip, drop_runaway, **_):
    if not drop_runaway:
        return credit
    x = policy.read(new, credit, batch, "future_kl")
    over = (x.advantage < 0) & (x.log_ratio > jnp.log(dual_clip))
    return credit.with_extras(loss_mask=x.mask & (masked_count(over, axis=-1, keepdims=True) <= 1))


@objective(
    needs=("logprob",), prepare=_prepare_future_kl, above={"half_life": 0.0, "dual_clip": 1.0, "safe_ratio": 1.0}
)
def future_kl(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    half_life: float = 32.0,
    eps: float = 0.2,
    high_only: bool = True,
    safe_ratio: float = 4.0,
    eps_low: float = 0.2,
    eps_high: float = 0.28,
    dual_clip: float = 10.0,
    drop_runaway: bool = False,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """The clipped surrogate of the credit times ``clip(exp(F_t), lo, hi)``, ``F_t = d_t + 2^(−1/half_life) F_{t+1}``.

    The term `future_kl_weight` shows the mean weight.

    Args:
      half_life: acted positions after which a token counts half.
      eps: bound of the weight, below 1.
      high_only: the weight lies in [1, 1 + eps], else in [1 − eps, 1 + eps].
      safe_ratio: above it, the weight of a negative credit stays within [0.8, 1].
      eps_low: PPO's.
      eps_high: PPO's.
      dual_clip: bounds the loss of a negative credit; tokens beyond it stay out of the sums.
      drop_runaway: leave out, numerator and count, rollouts in which the bound of `dual_clip` holds at more than one
        token. That is decided in `prepare`, once a minibatch, so that counts do not move within it.
      aggregation: how token losses become one number.
    """
    x = policy.read(new, credit, batch, "future_kl")
    weight = future_kl_weight(
        x, half_life=half_life, eps=eps, high_only=high_only, safe_ratio=safe_ratio, dual_clip=dual_clip
    )
    r = policy.move(x, batch, "token")
    weighted = weight * x.advantage
    loss = losses.ppo_loss(r, weighted, eps_low, eps_high, dual_clip)
    clipped = losses.ppo_clipped(r, weighted, eps_low, eps_high, dual_clip)
    terms = policy.policy_terms(loss, x, credit, aggregation, r, clipped)
    return {**terms, "future_kl_weight": diagnostic(weight, x.mask)}
