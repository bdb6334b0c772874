"""Differentiable losses as named sums and counts: what turns credit into a gradient."""

from creditjax.objectives.aggregate import MODES, Aggregation, Mode, aggregate
from creditjax.objectives.base import CreditLike, Objective, counts, loss_mask, objective
from creditjax.objectives.contrastive import contrastive
from creditjax.objectives.covariance import clip_cov, kl_cov
from creditjax.objectives.critic import aligned_value, in_turn, phases
from creditjax.objectives.future_kl import future_kl
from creditjax.objectives.gated import gated_supervised
from creditjax.objectives.grouped import entropy_grouped_surrogate
from creditjax.objectives.imitation import weighted_cloning
from creditjax.objectives.implied_value import implied_value
from creditjax.objectives.looped import looped_policy_gradient
from creditjax.objectives.origin import by_origin
from creditjax.objectives.policy import (
    cispo,
    clipped_surrogate,
    geometric_mean,
    policy_gradient,
    sapo,
    supervised,
)
from creditjax.objectives.preference import (
    edit_preference,
    preference,
    span_preference,
    token_regularized_preference,
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
    "aligned_value",
    "by_origin",
    "cispo",
    "clip_cov",
    "clipped_surrogate",
    "combine",
    "contrastive",
    "counts",
    "diagnostic",
    "edit_preference",
    "entropy",
    "entropy_grouped_surrogate",
    "future_kl",
    "gated_supervised",
    "geometric_mean",
    "implied_value",
    "in_turn",
    "kl",
    "kl_cov",
    "looped_policy_gradient",
    "loss_mask",
    "means",
    "objective",
    "phases",
    "policy_gradient",
    "preference",
    "sapo",
    "scaled",
    "span_preference",
    "step_surrogate",
    "supervised",
    "token_regularized_preference",
    "total",
    "value",
    "weighted_cloning",
    "with_entropy",
    "with_kl",
    "with_value",
]
