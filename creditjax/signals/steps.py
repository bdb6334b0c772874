"""What follows from a batch and its verdicts alone: the prompt's length, labels of edited lines."""

import jax
from jax import numpy as jnp

from creditjax.trajectory import Trajectory

Array = jax.Array


def prompt_length(batch: Trajectory) -> Array:
    """Number of tokens before the policy first acts, i32 ``[P]``, from the signal `token_mask`.

    The rollouts of a prompt share it; those that never act do not count.
    """
    acted = batch.action_mask
    begun = jnp.cumsum(acted, axis=-1) > 0
    count = jnp.sum(batch.signals["token_mask"] & ~begun, axis=-1, dtype=jnp.int32)
    return jnp.max(jnp.where(jnp.any(acted, axis=-1), count, 0), axis=-1)


def mutation_labels(passed: Array) -> Array:
    """Labels of the lines that a teacher wrote in place of a passing program's (PRLCoder, arXiv:2502.01715).

    =============  ======  ======
    the new line   passes  fails
    =============  ======  ======
    a refactoring  1       NaN
    a mutation     NaN     0
    =============  ======  ======

    No label is positive without a pass or negative without a failure; the other two say nothing about the line. The
    lines of the program itself are positive.

    Args:
      passed: bool ``[..., 2]``, whether the tests passed with the refactored (0) and with the mutated line (1).

    Returns:
      f32 ``[..., 2]``.

    Raises:
      ValueError: another last axis.
    """
    if passed.shape[-1:] != (2,):
        raise ValueError(f"passed: shape {list(passed.shape)}, wanted [..., 2]: refactored, mutated")
    refactored = jnp.where(passed[..., 0], 1.0, jnp.nan)
    mutated = jnp.where(passed[..., 1], jnp.nan, 0.0)
    return jnp.stack([refactored, mutated], axis=-1)
