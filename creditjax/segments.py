"""Cutting rows into segments: by turn markers, by separator tokens, by fixed length. Host or jit, any leading axes.

Each function returns the pair ``(segment, K)``'s first half for a K that the caller states: i32 ``[..., T]``, -1
where a position belongs to no segment. Segments past the K-th are merged into the last one, so that no position
silently loses its segment.
"""

from collections.abc import Sequence

import jax
from jax import numpy as jnp

Array = jax.Array


def segments_from_starts(starts: Array, member: Array, num_segments: int) -> Array:
    """A segment begins at every marked position.

    Args:
      starts: bool ``[..., T]``, True at the first position of each segment (turn markers).
      member: bool ``[..., T]``, positions that belong to segments at all; markers elsewhere are ignored.
      num_segments: K.

    >>> s = segments_from_starts(jnp.array([1, 0, 1, 0], bool), jnp.array([1, 1, 1, 0], bool), 3)
    >>> s.tolist()
    [0, 0, 1, -1]
    """
    member = member.astype(bool)
    index = jnp.cumsum((starts & member).astype(jnp.int32), axis=-1) - 1
    # Positions before the first marker belong to the first segment.
    return jnp.where(member, jnp.clip(index, 0, num_segments - 1), -1)


def segments_from_separators(tokens: Array, member: Array, separators: Sequence[int], num_segments: int) -> Array:
    """A segment ends with every separator token (which belongs to it).

    Args:
      tokens: i32 ``[..., T]``.
      member: bool ``[..., T]``, positions that belong to segments at all.
      separators: token ids that end a segment.
      num_segments: K.
    """
    member = member.astype(bool)
    ends = jnp.isin(tokens, jnp.asarray(list(separators), jnp.int32)) & member
    index = jnp.cumsum(ends.astype(jnp.int32), axis=-1) - ends
    return jnp.where(member, jnp.clip(index, 0, num_segments - 1), -1)


def segments_of_length(member: Array, length: int, num_segments: int) -> Array:
    """Segments of `length` member positions each; positions in between that are no members do not count.

    Raises:
      ValueError: `length` is not positive.
    """
    if length < 1:
        raise ValueError(f"length: {length}, wanted at least 1")
    member = member.astype(bool)
    index = (jnp.cumsum(member.astype(jnp.int32), axis=-1) - 1) // length
    return jnp.where(member, jnp.clip(index, 0, num_segments - 1), -1)
