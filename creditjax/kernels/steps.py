"""Judged steps of one rollout: where the first error is, and how much of the rollout comes before it.

`valid` bool ``[K]`` says which steps there are; what lies under it is never read. Batch with `jax.vmap`.
"""

import jax
from jax import numpy as jnp

from creditjax.kernels.returns import future_sum

Array = jax.Array
Scalar = jax.Array | float


def first_error(score: Array, valid: Array, threshold: Scalar = 0.5) -> Array:
    """Index of the first step whose score is below `threshold`, i32 scalar; -1 where there is none.

    >>> first_error(jnp.array([0.9, 0.1, 0.2]), jnp.array([True, True, True])).tolist()
    1

    Args:
      score: ``[K]``, higher is better. NaN is no error.
      valid: bool ``[K]``.
      threshold: scalar.
    """
    wrong = valid & (score < threshold)
    return jnp.where(jnp.any(wrong), jnp.argmax(wrong), -1).astype(jnp.int32)


def before_step(step: Array, ids: Array, mask: Array, margin: Scalar = 0.0) -> Array:
    """Acted positions more than `margin` acted positions before the first one of segment `step`, bool ``[T]``.

    With i(t) the number of acted positions before t: those with ``i(t) < i(first of step) - margin``. Nowhere if
    `step` is -1 or was not acted in.

    >>> ids, mask = jnp.array([-1, 0, 0, 1, 1]), jnp.array([True] * 5)
    >>> before_step(1, ids, mask, 1.0).tolist()
    [True, True, False, False, False]

    Args:
      step: i32 scalar.
      ids: i32 ``[T]``, the segment of each position.
      mask: bool ``[T]``, where the policy acted.
      margin: scalar >= 0.
    """
    # A running count as a recurrence: `jnp.cumsum` is quadratic work before it is compiled.
    index = future_sum(mask[::-1].astype(jnp.float32), mask[::-1])[::-1] - 1
    inside = mask & (ids == step) & (step >= 0)
    first = jnp.min(jnp.where(inside, index, jnp.inf))
    return mask & jnp.any(inside) & (index < first - margin)
