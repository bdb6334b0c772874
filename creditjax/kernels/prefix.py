"""Values of prefixes, from comparing the rollouts of a group pairwise: the merged prefix tree without building it."""

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array


def common_prefix(tokens: Array, length: Array) -> Array:
    """Length of the longest common prefix of every two rows, i32 ``[G, G]``; ``length[i]`` on the diagonal.

    Args:
      tokens: i32 ``[G, T]``.
      length: i32 ``[G]``, number of real positions of each row.
    """
    real = jnp.arange(tokens.shape[1]) < length[:, None]

    def with_row(row: Array, mine: Array) -> Array:
        differs = (tokens != row) | ~real | ~mine
        return jnp.where(jnp.any(differs, axis=-1), jnp.argmax(differs, axis=-1), tokens.shape[1])

    # One row against all at a time: G^2 T comparisons, G T of them alive.
    return jax.lax.map(lambda x: with_row(*x), (tokens, real)).astype(jnp.int32)


def prefix_values(tokens: Array, length: Array, x: Array, weight: Array) -> Array:
    """Mean of `x` over the voters that share a row's first t positions, f32 ``[G, T + 1]`` for t = 0..T (TEMPO,
    arXiv:2509.18314).

    Beyond the end of a row its value stays that of the whole row. A prefix that no voter shares has value 0.

    Args:
      tokens: i32 ``[G, T]``.
      length: i32 ``[G]``.
      x: f32 ``[G]``, normalised outcomes.
      weight: f32 ``[G]``, votes; 0 for a row that does not vote.
    """
    shared = common_prefix(tokens, length)
    steps = jnp.arange(tokens.shape[1] + 1)
    weight = jnp.asarray(weight, jnp.float32)
    chosen = numerics.select(jnp.asarray(x), weight) * weight

    def of_row(mine: Array, own_length: Array) -> Array:
        def add(j, sums):
            total, count = sums
            here = jnp.minimum(steps, own_length) <= mine[j]
            return total + jnp.where(here, chosen[j], 0.0), count + jnp.where(here, weight[j], 0.0)

        zero = jnp.zeros(steps.shape, jnp.float32) * chosen[0]
        return numerics.safe_divide(*jax.lax.fori_loop(0, tokens.shape[0], add, (zero, zero)))

    return jax.lax.map(lambda row: of_row(*row), (shared, length))


def branch_td(tokens: Array, length: Array, x: Array, weight: Array) -> Array:
    """``V[t + 1] - V[t]`` of :func:`prefix_values`, f32 ``[G, T]``: 0 unless some row leaves this row's prefix
    exactly at t.
    """
    value = prefix_values(tokens, length, x, weight)
    return value[:, 1:] - value[:, :-1]
