"""Transforms of one credit at a time: they read nothing but the credit."""

from jax import numpy as jnp

from creditjax.algebra.core import transform
from creditjax.algebra.credit import Credit, Level
from creditjax.trajectory import Trajectory


@transform(takes=list(Level), gives=None)
def identity(credit: Credit, batch: Trajectory) -> Credit:
    """The credit as it is: the part of a `blend` that keeps it."""
    return credit


@transform(takes=list(Level), gives=None)
def scale(credit: Credit, batch: Trajectory, *, factor: float) -> Credit:
    """Multiplies the credit by a number or a schedule."""
    return credit.with_value(factor * credit.value)


@transform(takes=list(Level), gives=None)
def clip(credit: Credit, batch: Trajectory, *, low: float, high: float) -> Credit:
    """Limits the credit to ``[low, high]``."""
    return credit.with_value(jnp.clip(credit.value, low, high))


@transform(takes=list(Level), gives=None)
def shift(credit: Credit, batch: Trajectory, *, by: float) -> Credit:
    """Adds a number or a schedule to the credit wherever it is assigned."""
    return credit.with_value(credit.value + by)


@transform(takes=list(Level), gives=None)
def absolute(credit: Credit, batch: Trajectory) -> Credit:
    """The size of the credit without its sign."""
    return credit.with_value(jnp.abs(credit.value))


@transform(takes=list(Level), gives=None)
def at_least(credit: Credit, batch: Trajectory, *, threshold: float) -> Credit:
    """Condition: 1 where the credit is no less than `threshold`, else 0."""
    return credit.with_value(jnp.where(credit.value >= threshold, 1.0, 0.0))
