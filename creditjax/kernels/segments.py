"""From positions to segments and back: sums, means, last positions, broadcasts. Segments need not be contiguous.

`ids` i32 ``[T]`` names the segment of each position; -1 (or anything outside ``0..K-1``) is none. Batch with
`jax.vmap`.
"""

from collections.abc import Callable

import jax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.kernels.recurrence import carry_in

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


def segment_decayed_mean(x: Array, ids: Array, mask: Array, num_segments: int) -> Array:
    """Mean in which the j-th selected position of a segment weighs 1/j, f32 ``[K]``; as :func:`segment_mean`."""
    x = x.astype(jnp.float32)

    def mean(owned: Array) -> Array:
        rank = 1.0 + before(owned.astype(jnp.float32))
        weight = jnp.where(owned, 1.0 / rank, 0.0)
        return numerics.safe_divide(jnp.sum(jnp.where(owned, weight * x, 0.0)), jnp.sum(weight))

    return _by_segment(mean, ids, mask, num_segments)


def before(x: Array) -> Array:
    """Sum of the elements before each one, f32 ``[T]``, in linear time."""
    return carry_in(jnp.ones(x.shape, jnp.float32), x.astype(jnp.float32), reverse=False)


def last_position(ids: Array, mask: Array, num_segments: int) -> Array:
    """Index of the last selected position of each segment, i32 ``[K]``; -1 where a segment has none."""
    positions = jnp.arange(ids.shape[0])
    return _by_segment(lambda owned: jnp.max(jnp.where(owned, positions, -1)), ids, mask, num_segments)


def segment_last(ids: Array, mask: Array, num_segments: int) -> Array:
    """True at the last selected position of each segment, bool ``[T]``."""
    last = last_position(ids, mask, num_segments)
    return mask & (broadcast(last, ids) == jnp.arange(ids.shape[0])) & (ids >= 0)


def rank_bins(x: Array, mask: Array, bins: int) -> Array:
    """Segments of equal size by rank: the selected positions in ascending order of `x`, cut into `bins` parts.

    ``bin = floor(bins * rank / n)``, ties in `x` to the earlier position. Sizes differ by at most one; with fewer
    positions than bins each has one of its own, and some bins have none. (For a group statistic of like positions,
    as ESPO's over entropy, arXiv:2512.00499.)

    Args:
      x: ``[T]``, only read where `mask` holds.
      mask: bool ``[T]``.
      bins: static.

    Returns:
      i32 ``[T]``, -1 where not selected.
    """
    order = jnp.argsort(jnp.where(mask, x.astype(jnp.float32), jnp.inf), stable=True)
    # An infinite value would sort among what is not selected, so the selected ones are counted in that order.
    rank = jnp.zeros(x.shape, jnp.int32).at[order].set(jnp.cumsum(mask[order], dtype=jnp.int32) - 1)
    return jnp.where(mask, bins * rank // jnp.maximum(jnp.sum(mask, dtype=jnp.int32), 1), -1)


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
