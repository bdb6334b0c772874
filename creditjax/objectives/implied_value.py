"""A regression that trains the policy as its own value function."""

import jax
from jax import numpy as jnp

from creditjax.kernels import group
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_sum, select
from creditjax.objectives.base import (
    CreditLike,
    loss_mask,
    loss_votes,
    objective,
    over_groups,
    require,
    require_statistic,
)
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory

Array = jax.Array


@objective(needs=("logprob_ref",), statistics=("token_kl",))
def implied_value(new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, beta: float = 5e-4) -> Terms:
    """``½ (Σ_t β (log π/π_ref − sg KL_t) − (R − mean R))²`` a rollout: the value loss of VIMPO, arXiv:2606.20008.

    At the optimum of the KL-regularised return, ``β log π/π_ref = r_t + V_{t+1} − V_t``: the policy holds the soft
    values of its own prefixes, and its log-ratios add up to the reward above the value of the prompt, for which the
    group's mean stands. ``KL_t = KL(π ‖ π_ref)`` over the vocabulary (statistic `token_kl`) centres the log-ratio; its
    one-sample estimate would cancel it. At ``π = π_ref`` the gradient is the group's policy gradient times β.

    Averaged over the rollouts that vote. A group of one, or of equal outcomes, is drawn to 0.

    Args:
      beta: price of a nat of divergence.
    """
    mask, vote = loss_mask(credit, batch), loss_votes(credit, batch)
    reference = jax.lax.stop_gradient(select(require(batch, "logprob_ref", "implied_value"), mask))
    divergence = jax.lax.stop_gradient(select(require_statistic(new, "token_kl", "implied_value"), mask))
    implied = beta * jnp.sum(select(new.logprob, mask) - reference - divergence, axis=-1)
    target = over_groups(group.center, batch)(jax.lax.stop_gradient(batch.outcome), vote)
    return {"implied_value": Term(masked_sum(0.5 * jnp.square(implied - target), vote), jnp.sum(vote))}
