"""From positions to segments and back: sums, means, last positions, broadcasts. Segments need not be contiguous.

`ids` i32 ``[T]`` names the segment of each position; -1 (or anything outside ``0..K-1``) is none. Batch with
`jax.vmap`.
"""

from collections.abc import Callable

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array


def _by_segment(reduce: Callable[[Array], Array], ids: Array, mask: Array, num_segments: int) -> Array:
    """`reduce` of the selected positions ``[T]`` of each segment, one segment after another.

    Compared with all at once they would be kept as an array ``[K, T]``; recomputed for the gradient, for it too.
    """
    one = jax.checkpoint(lambda k: reduce((ids == k) & mask))
    return jax.lax.map(one, jnp.arange(num_segments))


def segment_sum(x: Array, ids: Array, mask: Array, num_segments: int) -> Array:
    """Sum of the selected positions of each segment, f32 ``[K]``; 0 where a segment has none.

    Args:
      x: ``[T]``, only read where `mask` holds.
      ids: i32 ``[T]``.
      mask: bool ``[T]``.
      num_segments: K, static.
    """
    x = x.astype(jnp.float32)
    return _by_segment(lambda owned: jnp.sum(jnp.where(owned, x, 0.0)), ids, mask, num_segments)


def segment_count(ids: Array, mask: Array, num_segments: int) -> Array:
    """Number of selected positions of each segment, f32 ``[K]``."""
    return _by_segment(lambda owned: jnp.sum(owned, dtype=jnp.float32), ids, mask, num_segments)


def segment_mean(x: Array, ids: Array, mask: Array, num_segments: int) -> Array:
    """Mean over the selected positions of each segment, f32 ``[K]``; arguments as in :func:`segment_sum`."""
    return numerics.safe_divide(segment_sum(x, ids, mask, num_segments), segment_count(ids, mask, num_segments))


def last_position(ids: Array, mask: Array, num_segments: int) -> Array:
    """Index of the last selected position of each segment, i32 ``[K]``; -1 where a segment has none."""
    positions = jnp.arange(ids.shape[0])
    return _by_segment(lambda owned: jnp.max(jnp.where(owned, positions, -1)), ids, mask, num_segments)


def segment_last(ids: Array, mask: Array, num_segments: int) -> Array:
    """True at the last selected position of each segment, bool ``[T]``."""
    last = last_position(ids, mask, num_segments)
    return mask & (broadcast(last, ids) == jnp.arange(ids.shape[0])) & (ids >= 0)


def broadcast(x: Array, ids: Array) -> Array:
    """Each position's entry of `x`, 0 (False) where it has none.

    Args:
      x: ``[..., K]``.
      ids: i32 ``[..., T]``, same leading axes.

    Returns:
      ``[..., T]`` of the dtype of `x`.
    """
    there = (ids >= 0) & (ids < x.shape[-1])
    return jnp.where(there, jnp.take_along_axis(x, jnp.where(there, ids, 0), axis=-1), jnp.zeros((), x.dtype))
