"""Order statistics among the selected positions of one stream ``[T]``; nothing of size ``[T, T]``.

A single order statistic is found in linear time (:func:`kth_smallest`), only ranks of all positions take a sort.
Batch with `jax.vmap`. What is not selected is never read, whatever it holds.
"""

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array


def kth_smallest(x: Array, k: Array | int) -> Array:
    """The entry of index `k` in ascending order, f32 ``[]``: 32 counts over the stream, where a sort takes T log T.

    It is built bit by bit, the highest first: floats are ordered as the integers that their bits make once those of
    negative ones are inverted. NaN counts as larger than infinity.

    >>> [float(kth_smallest(jnp.array([2.0, -5.0, 7.0]), k)) for k in range(3)]
    [-5.0, 2.0, 7.0]

    Args:
      x: ``[T]``.
      k: in [0, T).
    """
    x = jnp.where(jnp.isnan(x), jnp.nan, x.astype(jnp.float32) + 0.0)  # one NaN, one zero
    bits, sign = jax.lax.bitcast_convert_type(x, jnp.uint32), jnp.uint32(1 << 31)
    keys = jnp.where(bits & sign, ~bits, bits | sign)

    def narrow(i: Array, found: Array) -> Array:
        higher = found | (sign >> i.astype(jnp.uint32))
        return jnp.where(jnp.sum(keys < higher, dtype=jnp.int32) <= k, higher, found)

    found = jax.lax.fori_loop(0, 32, narrow, jnp.uint32(0))
    return jax.lax.bitcast_convert_type(jnp.where(found & sign, found ^ sign, ~found), jnp.float32)


def average_rank(x: Array, mask: Array) -> Array:
    """Rank from 1 (smallest) to n of the n selected positions, ties sharing their average, f32 ``[T]``; 0 elsewhere.

    By a sort, O(T log T).

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
    # A share such as 0.4 is not exact in binary, and its product is rounded once more: 0.4 of 10 is 4, not 5.
    wanted = share * numerics.masked_count(mask)
    kept = jnp.ceil(wanted - 2e-7 * wanted - 1e-6).astype(jnp.int32)
    least = kth_smallest(values, jnp.minimum(x.shape[0] - kept, x.shape[0] - 1))
    above, tied = mask & (values > least), mask & (values == least)
    place = jax.lax.associative_scan(jnp.add, tied.astype(jnp.int32))  # linear, where a cumulative sum is a window of T
    return (kept > 0) & (above | (tied & (place <= kept - jnp.sum(above))))


def masked_median(x: Array, mask: Array) -> Array:
    """Median of the selected positions, the mean of the middle two of an even number; 0 where there is none."""
    n, values = jnp.sum(mask), jnp.where(mask, x.astype(jnp.float32), jnp.inf)
    middle = kth_smallest(values, jnp.maximum(n - 1, 0) // 2), kth_smallest(values, jnp.minimum(n // 2, len(x) - 1))
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
