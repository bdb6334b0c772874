"""Losses that tell the solved rollouts of a group from the unsolved ones; the group is the unit, and is counted."""

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.kernels import pairs
from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_mean
from creditjax.objectives.base import CreditLike, loss_mask, loss_votes, objective, over_groups, require
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory

Array = jax.Array


@objective(needs=("progress",), above={"temperature": 0.0, "warmup": 0.0})
def contrastive(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    temperature: float = 0.1,
    margin: float = 0.5,
    warmup: float = 1.0,
) -> Terms:
    """InfoNCE of each solved rollout against all unsolved ones of its group: ConSPO, arXiv:2605.12969.

    ``l_i = −log( e^{(s_i − m)/τ} / (e^{(s_i − m)/τ} + Σ_{j unsolved} e^{s_j/τ}) )`` with s the mean log-probability of
    a rollout, averaged over the solved rollouts and then over the groups that have both kinds. m grows to `margin` over
    the first `warmup` share of the run (signal `progress`). There is no ratio: on-policy, or nearly so. What credit it
    implies, `creditjax.algebra.contrast_credit` says; of the credit it reads the extra `loss_mask` alone.

    Args:
      temperature: τ.
      margin: how much a solved rollout has to lead in the end.
      warmup: share of the run until then.
    """
    mask, vote = loss_mask(credit, batch), loss_votes(credit, batch)
    score = masked_mean(new.logprob, mask, axis=-1)
    held = margin * jnp.minimum(jax.lax.stop_gradient(require(batch, "progress", "contrastive")) / warmup, 1.0)

    def group(score, outcome, vote):
        found = pairs.contrast(score, outcome > 0.5, vote, temperature, held)
        lead = masked_mean(score, jnp.where(outcome > 0.5, vote, 0.0)) - masked_mean(
            score, jnp.where(outcome > 0.5, 0.0, vote)
        )
        return found.loss, found.there, jnp.where(found.there, jax.lax.stop_gradient(lead), 0.0)

    loss, there, lead = over_groups(group, batch)(score, batch.outcome, vote)
    count = jnp.sum(there, dtype=jnp.float32)
    return {
        "contrast": Term(jnp.sum(loss), count),
        "score_lead": Term(jnp.sum(lead), count, np.float32(0.0)),
    }
