"""Losses by where a rollout comes from: fresh from the policy, or out of a replay buffer."""

import jax

from creditjax.models.base import PolicyOutput
from creditjax.objectives.base import CreditLike, Objective, loss_mask, objective, require
from creditjax.objectives.terms import Term, Terms
from creditjax.trajectory import Trajectory

Array = jax.Array


def _prepare_parts(new, credit, batch, *, parts, **_):
    for part in parts:
        credit = part.prepare(new, credit, batch)
    return credit


def _needs(parts, **_):
    return tuple(dict.fromkeys([*(name for part in parts for name in part.needs), "is_offpolicy"]))


def _statistics(parts, **_):
    return tuple(dict.fromkeys(name for part in parts for name in part.statistics))


@objective(needs=_needs, statistics=_statistics, prepare=_prepare_parts)
def _by_origin(
    new: PolicyOutput, credit: CreditLike, batch: Trajectory, *, parts: tuple[Objective, ...], alpha: float = 1.0
) -> Terms:
    fresh, replayed = parts
    mask = loss_mask(credit, batch)
    off = require(batch, "is_offpolicy", "by_origin")[..., None]
    terms = fresh(new, credit.with_extras(loss_mask=mask & ~off), batch)
    other = replayed(new, credit.with_extras(loss_mask=mask & off), batch)
    return {**terms, **{f"replay_{key}": Term(t.sum, t.count, alpha * t.weight) for key, t in other.items()}}


def by_origin(fresh: Objective, replayed: Objective, alpha: float = 1.0) -> Objective:
    """``L_fresh + alpha L_replayed``, each over the rows of its origin with a denominator of its own (AVATAR,
    arXiv:2508.03100).

    The signal `is_offpolicy` says which rows are replayed; their terms have the prefix ``replay_``.

    Args:
      fresh: the loss of rows that the current policy drew.
      replayed: the loss of the others; its ratio is against the log-probabilities stored with them.
      alpha: weight of the second.
    """
    return _by_origin(parts=(fresh, replayed), alpha=alpha)
