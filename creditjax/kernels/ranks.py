"""Order statistics among the selected positions of one stream ``[T]``, by sorting: O(T log T), no ``[T, T]``.

Batch with `jax.vmap`. What is not selected is never read, whatever it holds.
"""

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array


def average_rank(x: Array, mask: Array) -> Array:
    """Rank from 1 (smallest) to n of the n selected positions, ties sharing their average, f32 ``[T]``; 0 elsewhere.

    >>> average_rank(jnp.array([2.0, 5.0, 2.0, 9.0]), jnp.array([True, True, True, False])).tolist()
    [1.5, 3.0, 1.5, 0.0]
    """
    values = jnp.where(mask, x.astype(jnp.float32), jnp.inf)
    ordered = jnp.sort(values)
    below, up_to = (jnp.searchsorted(ordered, values, side=side) for side in ("left", "right"))
    return jnp.where(mask, 0.5 * (below + up_to + 1), 0.0)


def top_share(x: Array, mask: Array, share: float | Array) -> Array:
    """The ``ceil(share n)`` largest of the n selected positions, ties to the earlier one, bool ``[T]``.

    >>> top_share(jnp.array([2.0, 5.0, 2.0, 9.0]), jnp.array([True, True, True, False]), 0.5).tolist()
    [True, True, False, False]
    """
    values = jnp.where(mask, x.astype(jnp.float32), -jnp.inf)
    # A share such as 0.4 is not exact in binary: 0.4 of 10 is 4, not 5.
    kept = jnp.ceil(share * numerics.masked_count(mask) - 1e-6).astype(jnp.int32)
    least = jnp.sort(values)[jnp.minimum(x.shape[0] - kept, x.shape[0] - 1)]
    above, tied = mask & (values > least), mask & (values == least)
    place = jax.lax.associative_scan(jnp.add, tied.astype(jnp.int32))  # linear, where a cumulative sum is a window of T
    return (kept > 0) & (above | (tied & (place <= kept - jnp.sum(above))))


def masked_median(x: Array, mask: Array) -> Array:
    """Median of the selected positions, the mean of the middle two of an even number; 0 where there is none."""
    n = jnp.sum(mask)
    ordered = jnp.sort(jnp.where(mask, x.astype(jnp.float32), jnp.inf))
    middle = ordered[jnp.maximum(n - 1, 0) // 2], ordered[jnp.minimum(n // 2, x.shape[0] - 1)]
    return jnp.where(n > 0, 0.5 * (middle[0] + middle[1]), 0.0)


def neighbour(mask: Array, *, later: bool = False) -> Array:
    """Index of the closest selected position before each one (after it with `later`), i32 ``[T]``; -1 where none is."""
    index, length = jnp.arange(mask.shape[0], dtype=jnp.int32), mask.shape[0]
    if later:
        after = jax.lax.associative_scan(jnp.minimum, jnp.where(mask, index, length), reverse=True)
        after = jnp.pad(after[1:], (0, 1), constant_values=length)
        return jnp.where(after < length, after, -1)
    before = jax.lax.associative_scan(jnp.maximum, jnp.where(mask, index, -1))
    return jnp.pad(before[:-1], (1, 0), constant_values=-1)


def follow(index: Array, x: Array, fill: Array | float | int) -> Array:
    """``x[index]``, and `fill` where the index is negative."""
    return jnp.where(index >= 0, x[jnp.maximum(index, 0)], fill)


def previous_window_argmax(x: Array, mask: Array, size: int) -> tuple[Array, Array]:
    """Where the largest of the `size` selected positions before each one is, the earliest on ties, and how large.

    Args:
      x: ``[T]``.
      mask: bool ``[T]``.
      size: of the window, static; costs O(size T).

    Returns:
      i32 ``[T]`` positions, -1 where no selected position comes before, and f32 ``[T]`` values, -inf there.
    """
    before = neighbour(mask)
    here = at = jnp.where(mask, before, -1)
    best = follow(here, x.astype(jnp.float32), -jnp.inf)
    for _ in range(size - 1):
        here = follow(here, before, -1)
        value = follow(here, x.astype(jnp.float32), -jnp.inf)
        at, best = jnp.where((here >= 0) & (value >= best), here, at), jnp.maximum(value, best)
    return at, best
