"""Masked arithmetic in one place: selected before it is computed, float32, with finite gradients.

Every function takes a bool or float `mask` (a float is a weight >= 0) and *selects* with it before any arithmetic, so
that NaN or inf under the mask reaches neither the value nor the gradient. An empty selection gives 0. The library's
conventions for the spread of a group live here too: `ddof` is an argument that every recipe states, variances are
two-pass, and a group counts as constant when its *raw values* are equal, never because a rounded statistic came out
small.
"""

import jax
from jax import numpy as jnp

Array = jax.Array


def select(x: Array, mask: Array) -> Array:
    """`x` in float32 where `mask` holds and 0 elsewhere."""
    return jnp.where(mask > 0 if mask.dtype != jnp.bool_ else mask, x.astype(jnp.float32), 0.0)


def masked_sum(x: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Weighted sum of the selected elements."""
    return jnp.sum(select(x, mask) * mask, axis=axis, keepdims=keepdims)


def masked_count(mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Total weight, float32."""
    return jnp.sum(mask, axis=axis, keepdims=keepdims, dtype=jnp.float32)


def masked_mean(x: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Weighted mean of the selected elements, 0 where there is none."""
    return safe_divide(masked_sum(x, mask, axis, keepdims), masked_count(mask, axis, keepdims))


def masked_var(x: Array, mask: Array, axis=None, keepdims: bool = False, ddof: int = 0) -> Array:
    """Two-pass weighted variance; 0 where the total weight does not exceed `ddof`."""
    centred = select(x, mask) - masked_mean(x, mask, axis, keepdims=True)
    return safe_divide(masked_sum(jnp.square(centred), mask, axis, keepdims), masked_count(mask, axis, keepdims) - ddof)


def masked_std(x: Array, mask: Array, axis=None, keepdims: bool = False, ddof: int = 0) -> Array:
    """Square root of :func:`masked_var` with a finite gradient at 0."""
    return safe_sqrt(masked_var(x, mask, axis, keepdims, ddof))


def masked_min(x: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Smallest selected element, +inf where there is none."""
    return jnp.min(jnp.where(mask > 0, x.astype(jnp.float32), jnp.inf), axis=axis, keepdims=keepdims)


def masked_max(x: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """Largest selected element, -inf where there is none."""
    return jnp.max(jnp.where(mask > 0, x.astype(jnp.float32), -jnp.inf), axis=axis, keepdims=keepdims)


def is_constant(x: Array, mask: Array, axis=None, keepdims: bool = False) -> Array:
    """True where all selected elements are equal (or fewer than two are selected), judged on the raw values."""
    high, low = masked_max(x, mask, axis, keepdims), masked_min(x, mask, axis, keepdims)
    return ~(high > low)


def safe_divide(numerator: Array, denominator: Array) -> Array:
    """`numerator / denominator`, 0 where the denominator is not positive, with finite gradients."""
    positive = denominator > 0
    return jnp.where(positive, numerator / jnp.where(positive, denominator, 1.0), 0.0)


def safe_sqrt(x: Array) -> Array:
    """Square root that is 0 with gradient 0 where `x <= 0`."""
    positive = x > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, x, 1.0)), 0.0)


def safe_exp(x: Array, limit: float = 20.0) -> Array:
    """`exp` of `x` clipped to ``[-limit, limit]``: finite, with gradient 0 outside."""
    return jnp.exp(jnp.clip(x, -limit, limit))
