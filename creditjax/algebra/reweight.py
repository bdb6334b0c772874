"""Transforms that multiply a credit by a bounded weight, so that they move it between tokens and keep its sign.

The weight comes from where a token stands, how likely it was, or what it is part of. A weight that is an estimator of
its own goes through `modulate` instead: `exp_weight` and `group_unit_mean` make one out of a standardised signal.
"""

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import numerics
from creditjax.algebra.core import check_signal, transform
from creditjax.algebra.credit import Credit, Level
from creditjax.kernels import returns
from creditjax.trajectory import Trajectory

Array = jax.Array


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def emphasize_ends(
    credit: Credit, batch: Trajectory, *, strength: float = 0.3, mean_preserving: bool = False
) -> Credit:
    """Multiplies by ``1 + strength (2u - 1)^2``, u from 0 at a rollout's first action to 1 at its last (temporal
    advantage shaping, arXiv:2508.03100).

    A rollout of one action has u = 0. The mean weight of n > 1 actions is ``1 + strength (n + 1) / (3 (n - 1))``.

    Args:
      strength: what both ends have more than the middle.
      mean_preserving: divide by the mean weight of a long rollout, ``1 + strength / 3``.
    """

    def one(mask: Array) -> Array:
        left = returns.future_sum(jnp.ones(mask.shape, jnp.float32), mask)  # this action and those after it
        n = jnp.max(left)
        return (n - left) / jnp.maximum(n - 1, 1)

    weight = 1 + strength * jnp.square(2 * jax.vmap(one)(batch.action_mask) - 1)
    return credit.with_value(credit.value * (weight / (1 + strength / 3) if mean_preserving else weight))


def _check_tail(alpha, lam, logprob) -> None:
    check_signal("damp_tail", logprob, ("P", "G", "T"), dtype="float32", fields=("logprob",))
    if isinstance(alpha, np.float32) and alpha <= 0:
        raise ValueError(f"damp_tail: alpha = {float(alpha):g}, wanted > 0")
    if isinstance(lam, np.float32) and not 0 <= lam <= 1:
        raise ValueError(f"damp_tail: lam = {float(lam):g}, wanted a number in [0, 1]")


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=lambda logprob, **_: (logprob, "entropy"), check=_check_tail)
def damp_tail(
    credit: Credit, batch: Trajectory, *, alpha: float = 0.01, lam: float = 0.9, logprob: str = "logprob"
) -> Credit:
    """Takes reward away from tokens of the tail: implausible ones, far less likely than the entropy lets expect (TACO).

    ``risk = -log π(a) - H + log alpha``, and positive credit of risk > 0 is multiplied by ``1 - lam (1 - exp(-risk))``.
    The weight is continuous at risk 0 and lies in [1 - lam, 1]; it is 1 exactly where ``π(a) >= alpha exp(-H)``.

    Args:
      alpha: > 0, how much less likely than the typical token a token of the tail is.
      lam: in [0, 1], what the most implausible token loses.
      logprob: whose log-probability, of the policy that `entropy` is of: the field `logprob` or `logprob_current`.
    """
    surprise = -numerics.select(batch.get(logprob), credit.valid)
    risk = surprise - numerics.select(batch.signals["entropy"], credit.valid) + jnp.log(alpha)
    weight = 1 + lam * jnp.expm1(-jnp.maximum(risk, 0.0))
    return credit.with_value(jnp.where(credit.value > 0, weight * credit.value, credit.value))


@transform(takes=Level.TOKEN, gives=Level.TOKEN, needs=("logprob",))
def focal(credit: Credit, batch: Trajectory, *, gamma: float = 1.0) -> Credit:
    """Multiplies by ``(1 - π(a))^gamma``: what the policy was sure of earns nothing (focal loss, arXiv:1708.02002)."""
    doubt = -jnp.expm1(jnp.minimum(numerics.select(batch.logprob, credit.valid), 0.0))
    # The power's slope is infinite at 0 for gamma < 1, and 0^0 is 1.
    some = jnp.where(doubt > 0, doubt, 1.0) ** gamma
    return credit.with_value(credit.value * jnp.where((doubt > 0) | (gamma == 0), some, 0.0))


@transform(
    takes=Level.TOKEN,
    gives=Level.TOKEN,
    needs=lambda name, **_: (name,),
    check=lambda name, **_: check_signal("favor_marked", name, ("P", "G", "T"), dtype="bool"),
)
def favor_marked(credit: Credit, batch: Trajectory, *, name: str, alpha: float = 0.2) -> Credit:
    """``c + alpha |c|`` on the tokens that a bool signal marks: more praise and less blame (HICRA, arXiv:2509.03646).

    The sign stays for alpha <= 1.
    """
    bonus = alpha * jnp.abs(credit.value)
    return credit.with_value(credit.value + jnp.where(batch.signals[name], bonus, 0.0))


@transform(takes=Level.TOKEN, gives=Level.TOKEN)
def cap_rows(credit: Credit, batch: Trajectory, *, high: float) -> Credit:
    """Scales a rollout's credit down so that its largest absolute value is at most `high`; 0 or inf is no cap."""
    peak = jnp.max(jnp.abs(credit.value), axis=-1, keepdims=True)
    cap = jnp.where(high > 0, high, jnp.inf)
    return credit.with_value(credit.value * jnp.where(peak > cap, cap / jnp.where(peak > cap, peak, 1.0), 1.0))


@transform(takes=list(Level), gives=None)
def exp_weight(credit: Credit, batch: Trajectory, *, lam: float = 0.5, bound: float = 3.0) -> Credit:
    """``exp(lam clip(z, -bound, bound))``: a positive weight out of a z-score, falling in it for negative `lam`."""
    return credit.with_value(jnp.exp(lam * jnp.clip(credit.value, -bound, bound)))


@transform(takes=(Level.TOKEN, Level.SEGMENT, Level.TRAJECTORY), gives=None)
def group_unit_mean(credit: Credit, batch: Trajectory) -> Credit:
    """Divides a positive weight by its mean over all credited entries of the group, so that it shifts credit only."""
    return credit.with_value(numerics.safe_divide(credit.value, numerics.masked_mean(credit.value, credit.valid)))


__all__ = [
    "cap_rows",
    "damp_tail",
    "emphasize_ends",
    "exp_weight",
    "favor_marked",
    "focal",
    "group_unit_mean",
]
