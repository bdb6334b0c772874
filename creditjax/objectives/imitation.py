"""Losses that imitate: weighted behaviour cloning of tokens that somebody, or something, chose."""

import jax

from creditjax.models.base import PolicyOutput
from creditjax.numerics import masked_count, masked_sum, select
from creditjax.objectives.base import CreditLike, loss_mask, objective
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory


@objective()
def weighted_cloning(new: PolicyOutput, credit: CreditLike | None, batch: Trajectory) -> Terms:
    """``- Σ_t w_t log π(a_t) / Σ_t w_t`` over the batch, w the credit where it is positive.

    Without a credit, w is 1 where the policy acted. Tokens of weight 0 (a prompt, a suffix that is shown and not
    imitated) get no gradient. With weights 0 and 1 it is `supervised` over the chosen tokens: the first stage of InT
    (arXiv:2601.14209), whose spliced sequences `samplers.intervene.splice` makes. No weight anywhere is loss 0.
    """
    mask = loss_mask(credit, batch)
    if credit is None:
        weight = mask.astype("float32")
    else:
        chosen = mask & credit.valid & (credit.value > 0)
        weight = jax.lax.stop_gradient(select(credit.value, chosen))
    return {"policy": Term(-masked_sum(new.logprob, weight), masked_count(weight))}
