"""Steps that a formal tool can judge, small enough for a truth table, and training that stops at a step (FoVer,
arXiv:2505.15960).

A formula over n variables is its column of the truth table, bool ``[2^n]``; connectives are array operators:

>>> a, b = assignments(2).T
>>> bool(entails(jnp.stack([a, ~a | b]), b)), bool(entails(jnp.stack([a | b]), b))
(True, False)
"""

from typing import NamedTuple

import jax
from jax import numpy as jnp

Array = jax.Array

MAX_VARIABLES = 16


def assignments(variables: int) -> Array:
    """Every assignment of truth values, bool ``[2^n, n]``; column i is the formula "variable i".

    Raises:
      ValueError: `variables` is not from 1 to 16.
    """
    if not 1 <= variables <= MAX_VARIABLES:
        raise ValueError(f"variables: {variables}, wanted 1 to {MAX_VARIABLES} (a table has 2^n rows)")
    return (jnp.arange(2**variables)[:, None] >> jnp.arange(variables)) & 1 > 0


def entails(premises: Array, conclusion: Array, mask: Array | None = None) -> Array:
    """Whether ``premises and not conclusion`` has no solution, bool ``[...]``: what makes a logic step right.

    From contradictory premises anything follows, from none a tautology.

    Args:
      premises: bool ``[..., M, 2^n]``.
      conclusion: bool ``[..., 2^n]``.
      mask: bool ``[..., M]``, which premises there are; all if None.
    """
    if mask is not None:
        premises = premises | ~mask[..., None]
    return jnp.all(~jnp.all(premises, axis=-2) | conclusion, axis=-1)


def judge_steps(premises: Array, steps: Array, *, trust: bool = False) -> Array:
    """Which steps of a derivation follow from the premises and the conclusions before them, bool ``[K]``.

    Args:
      premises: bool ``[M, 2^n]``.
      steps: bool ``[K, 2^n]``, the conclusions in order.
      trust: later steps may also use wrong conclusions, as a verifier that looks at one step at a time would.
    """

    def judge(context: Array, step: Array):
        right = jnp.all(~context | step)
        return context & jnp.where(right | trust, step, True), right

    return jax.lax.scan(judge, jnp.all(premises, axis=0), steps)[1]


class Cut(NamedTuple):
    """Solutions cut after a step: i32 ``[N]`` row and step, whether that step is right bool ``[N]``."""

    row: Array
    step: Array
    right: Array


def balanced_cuts(key: Array, label: Array, valid: Array, count: int) -> Cut:
    """Draws places to cut solutions so that half of the last steps are wrong.

    First the class, then a solution that has a step of it, then one of those steps, each uniformly. Where all steps
    are of one class, all draws are of it. The loss is then taken at the last step alone: :func:`only_step`.

    Args:
      key: PRNG key.
      label: ``[B, K]``, right above 1/2.
      valid: bool ``[B, K]``, steps that have a label; at least one.
      count: N, static.
    """
    classes = jnp.stack([valid & (label <= 0.5), valid & (label > 0.5)])  # [2, B, K]
    available = jnp.any(classes, axis=(1, 2))
    draw_class, draw_step = jax.random.split(key)
    right = jax.random.bernoulli(draw_class, 0.5, (count,)) & available[1] | ~available[0]
    steps = jnp.sum(classes, axis=-1, keepdims=True)
    logits = jnp.where(classes, -jnp.log(jnp.maximum(steps, 1)), -jnp.inf).reshape(2, -1)
    flat = jax.random.categorical(draw_step, logits[right.astype(jnp.int32)])
    row, step = (x.astype(jnp.int32) for x in jnp.divmod(flat, label.shape[-1]))
    return Cut(row, step, right)


def only_step(cut: Cut, num_steps: int) -> Array:
    """The mask of a loss on the last steps of cut solutions, bool ``[N, K]``."""
    return jnp.arange(num_steps) == cut.step[:, None]
