"""What is added to a policy loss: divergence from a reference, entropy, a critic's regression.

All are objectives themselves, so they combine: ``with_value(with_kl(clipped_surrogate(), beta=0.001), clip=0.2)``.
"""

import jax

from creditjax.kernels.kl import Kind, kl_estimate
from creditjax.kernels.losses import value_loss
from creditjax.models.base import PolicyOutput
from creditjax.numerics import select
from creditjax.objectives.aggregate import Aggregation, Mode, aggregate
from creditjax.objectives.base import CreditLike, Objective, learned_mask, loss_mask, objective, require, require_extra
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory

Array = jax.Array


@objective(needs=("logprob_ref",))
def kl(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    beta: float = 0.001,
    kind: Kind = "k3",
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``β KL(π ‖ π_ref)`` from the signal `logprob_ref`; :mod:`creditjax.kernels.kl` tells the kinds apart."""
    mask = loss_mask(credit, batch)
    reference = jax.lax.stop_gradient(select(require(batch, "logprob_ref", "kl"), mask))
    return {"kl": Term(*aggregate(kl_estimate(select(new.logprob, mask), reference, kind), mask, aggregation), beta)}


@objective()
def entropy(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    coefficient: float = 0.01,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``−coefficient · H(π)``, a bonus: the term itself is the entropy, its weight is negative."""
    return {"entropy": Term(*aggregate(new.entropy, loss_mask(credit, batch), aggregation), -coefficient)}


@objective(needs=lambda clip, **_: () if clip is None else ("value",), above={"clip": 0.0})
def value(
    new: PolicyOutput,
    credit: CreditLike,
    batch: Trajectory,
    *,
    coefficient: float = 0.5,
    clip: float | None = None,
    aggregation: Aggregation | Mode = "token_mean",
) -> Terms:
    """``coefficient · ½ (V − target)²``, or the larger of it and its clipped form; target is the extra `value_target`.

    Unscored rollouts, whose target nobody knows, leave the loss and its count. Clipping needs the signal `value`, the
    critic's output at the time of the rollout.
    """
    if new.value is None:
        raise ValueError("the value objective needs `new.value` [..., T]; the policy has no value head")
    mask = learned_mask(credit, batch)
    target = require_extra(credit, "value_target", "value", "estimators with a critic (gae, vtrace) put it there")
    old = None if clip is None else jax.lax.stop_gradient(select(require(batch, "value", "value with clip"), mask))
    loss = value_loss(select(new.value, mask), jax.lax.stop_gradient(select(target, mask)), old, clip)
    return {"value": Term(*aggregate(loss, mask, aggregation), coefficient)}


def _prepare_parts(new, credit, batch, *, parts):
    for part in parts:
        credit = part.prepare(new, credit, batch)
    return credit


def _of_parts(field: str):
    return lambda parts: tuple(dict.fromkeys(name for part in parts for name in getattr(part, field)))


@objective(needs=_of_parts("needs"), statistics=_of_parts("statistics"), prepare=_prepare_parts)
def _combined(new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, parts: tuple[Objective, ...]) -> Terms:
    terms: Terms = {}
    for part in parts:
        theirs = part(new, credit, batch)
        if twice := terms.keys() & theirs.keys():
            raise ValueError(f"combine: two parts have a term named {', '.join(map(repr, sorted(twice)))}")
        terms |= theirs
    return terms


def combine(*parts: Objective) -> Objective:
    """The sum of objectives whose terms have different names; a `ValueError` otherwise, when it is called."""
    return _combined(parts=parts)


def _prepare_inner(new, credit, batch, *, inner, **_):
    return inner.prepare(new, credit, batch)


@objective(needs=lambda inner, **_: inner.needs, statistics=lambda inner, **_: inner.statistics, prepare=_prepare_inner)
def _scaled(
    new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, inner: Objective, factor: float = 1.0
) -> Terms:
    terms = inner(new, credit, batch)
    return {name: Term(term.sum, term.count, factor * term.weight) for name, term in terms.items()}


def scaled(objective: Objective, factor: float) -> Objective:
    """The objective with all its terms weighed by `factor`; what they show in a log stays."""
    return _scaled(inner=objective, factor=factor)


def with_kl(
    objective: Objective, beta: float = 0.001, kind: Kind = "k3", aggregation: Aggregation | Mode | None = None
) -> Objective:
    """`objective` plus :func:`kl`, aggregated alike unless told otherwise."""
    return combine(objective, kl(beta=beta, kind=kind, aggregation=aggregation or objective.aggregation))


def with_entropy(
    objective: Objective, coefficient: float = 0.01, aggregation: Aggregation | Mode | None = None
) -> Objective:
    """`objective` minus the entropy bonus of :func:`entropy`, aggregated alike unless told otherwise."""
    return combine(objective, entropy(coefficient=coefficient, aggregation=aggregation or objective.aggregation))


def with_value(
    objective: Objective,
    coefficient: float = 0.5,
    clip: float | None = None,
    aggregation: Aggregation | Mode | None = None,
) -> Objective:
    """`objective` plus the critic's :func:`value`, aggregated alike unless told otherwise."""
    aggregation = aggregation or objective.aggregation
    return combine(objective, value(coefficient=coefficient, clip=clip, aggregation=aggregation))
