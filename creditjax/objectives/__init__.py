"""Differentiable losses as named sums and counts: what turns credit into a gradient."""

from creditjax.objectives.aggregate import MODES, Aggregation, Mode, aggregate
from creditjax.objectives.base import CreditLike, Objective, counts, loss_mask, objective
from creditjax.objectives.covariance import clip_cov, kl_cov
from creditjax.objectives.imitation import weighted_cloning
from creditjax.objectives.policy import (
    cispo,
    clipped_surrogate,
    geometric_mean,
    policy_gradient,
    sapo,
    supervised,
)
from creditjax.objectives.regularizers import combine, entropy, kl, scaled, value, with_entropy, with_kl, with_value
from creditjax.objectives.stepwise import step_surrogate
from creditjax.objectives.terms import Term, Terms, add, diagnostic, means, total

__all__ = [
    "MODES",
    "Aggregation",
    "CreditLike",
    "Mode",
    "Objective",
    "Term",
    "Terms",
    "add",
    "aggregate",
    "cispo",
    "clip_cov",
    "clipped_surrogate",
    "combine",
    "counts",
    "diagnostic",
    "entropy",
    "geometric_mean",
    "kl",
    "kl_cov",
    "loss_mask",
    "means",
    "objective",
    "policy_gradient",
    "sapo",
    "scaled",
    "step_surrogate",
    "supervised",
    "total",
    "value",
    "weighted_cloning",
    "with_entropy",
    "with_kl",
    "with_value",
]
