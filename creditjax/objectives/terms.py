"""A loss as named sums and counts, so that parts of a batch add up to the whole exactly."""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.numerics import safe_divide
from creditjax.objectives.aggregate import aggregate

Array = jax.Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Term:
    """One additive part of a loss, ``weight * sum / count``; with weight 0 a diagnostic.

    Attributes:
      sum: scalar; the only one that may depend on the policy.
      count: scalar, what `sum` is divided by once everything is added up.
      weight: scalar.
    """

    sum: Array
    count: Array
    weight: Any = np.float32(1.0)


Terms = dict[str, Term]


def total(terms: Terms, counts: Mapping[str, Array] | None = None) -> Array:
    """The loss ``Σ weight · sum / count``, over the counts of the terms themselves or of a larger batch."""
    loss = jnp.float32(0.0)
    for name, mean in means(terms, counts).items():
        weight = terms[name].weight
        loss = loss + jnp.where(weight != 0, weight * mean, 0.0)  # a diagnostic may be infinite, and 0 · inf is not 0
    return loss


def means(terms: Terms, counts: Mapping[str, Array] | None = None) -> dict[str, Array]:
    """``sum / count`` of every term, unweighted: what a log shows. 0 where the count is 0."""
    return {name: safe_divide(term.sum, term.count if counts is None else counts[name]) for name, term in terms.items()}


def add(left: Terms, right: Terms) -> Terms:
    """The terms of two parts of one batch together."""
    return {
        name: Term(term.sum + right[name].sum, term.count + right[name].count, term.weight)
        for name, term in left.items()
    }


def diagnostic(x: Array, mask: Array) -> Term:
    """The token mean of `x` as a term of weight 0 without gradient."""
    return Term(*aggregate(jax.lax.stop_gradient(x), mask), np.float32(0.0))
