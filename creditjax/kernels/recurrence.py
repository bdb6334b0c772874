"""The one recurrence under all returns: ``x[t] = b[t] + a[t] * x[t + 1]``, blocked so that it vectorises.

A `scan` over T positions does one short step after another. Here the stream is cut into blocks of `_BLOCK` neighbouring
positions and the *k*-th positions of all blocks are advanced together; the carries between blocks are the same
recurrence, `_BLOCK` times shorter, so log T / log `_BLOCK` levels of a few wide steps replace T narrow ones.
"""

import functools

import jax
from jax import lax
from jax import numpy as jnp

Array = jax.Array

# Wide enough to shorten the carry, small enough that a block of a row stays in the first cache while it is transposed.
_BLOCK = 64


def reverse_linear_recurrence(a: Array, b: Array) -> Array:
    """Solves ``x[t] = b[t] + a[t] * x[t + 1]`` with ``x[T] = 0``.

    Products of `a` are formed by multiplication alone, so `a` may be 0 anywhere and nothing is divided.
    Reverse-mode differentiable in `a` and `b`; the gradient is the same recurrence run the other way.

    Args:
      a: f32 ``[T]``, coefficients, usually in [0, 1].
      b: f32 ``[T]``, inputs.

    Returns:
      f32 ``[T]``.

    Raises:
      ValueError: `a` and `b` are not two streams of one length.
    """
    return (b + a * carry_in(a, b, reverse=True)).astype(jnp.float32)


def carry_in(a: Array, b: Array, *, reverse: bool) -> Array:
    """What the recurrence brings to each position from outside: ``y[t] = x[t + 1]`` if `reverse`, else ``x[t - 1]``.

    ``x[t] = b[t] + a[t] * y[t]``, and `y` is 0 at the end of the stream where the recurrence starts. Unsigned integers
    work as well, without gradient: with `a` in {0, 1} this holds the last marked value.

    Args:
      a: ``[T]``, coefficients.
      b: ``[T]``, inputs, same dtype.
      reverse: run from the end of the stream to its start.

    Returns:
      ``[T]``, the carry *before* each position's own step.

    Raises:
      ValueError: `a` and `b` are not two streams of one length and dtype.
    """
    if jnp.issubdtype(b.dtype, jnp.floating):
        # Float32 inside, also where 64-bit types are enabled and a constant is one.
        a, b = a.astype(jnp.float32), b.astype(jnp.float32)
    if a.shape != b.shape or a.ndim != 1 or a.dtype != b.dtype:
        found = f"{a.dtype} {list(a.shape)} and {b.dtype} {list(b.shape)}"
        raise ValueError(f"a, b: {found}, wanted two streams [T] of one length and dtype")
    return _carry_in(reverse, a, b)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _carry_in(reverse: bool, a: Array, b: Array) -> Array:
    length = b.shape[0]
    if length <= 2 * _BLOCK:
        return _carry_directly(reverse, a, b)
    blocks = -(-length // _BLOCK)
    a, x = (_split(stream, blocks) for stream in (a, b))

    def row(array, k):
        return lax.dynamic_index_in_dim(array, _BLOCK - 1 - k if reverse else k, 0, keepdims=False)

    def summarise(k, block):
        # A block maps its carry c to total + product * c.
        total, product = block
        return row(x, k) + row(a, k) * total, row(a, k) * product

    zero = x[0] * 0
    total, product = lax.fori_loop(0, _BLOCK, summarise, (zero, zero + 1))
    carry = _carry_in(reverse, product, total)

    def advance(k, state):
        # In place: a row holds its input until its turn and its solution from then on.
        carry, x = state
        carry = row(x, k) + row(a, k) * carry
        return carry, lax.dynamic_update_index_in_dim(x, carry, _BLOCK - 1 - k if reverse else k, 0)

    _, x = lax.fori_loop(0, _BLOCK, advance, (carry, x))
    # What comes into a row is the solution of the row before it, into the first row the carry of the block.
    y = jnp.concatenate([x[1:], carry[None]] if reverse else [carry[None], x[:-1]])
    return lax.optimization_barrier(y.T.reshape(-1))[:length]


def _forward(reverse, a, b):
    y = _carry_in(reverse, a, b)
    return y, (a, y)


def _backward(reverse, residuals, cotangent):
    # With the shift S, y = S x and x = b + a y. The transpose of S (1 - a S)^-1 is S' (1 - a S')^-1, the other
    # direction.
    a, y = residuals
    z = _carry_in(not reverse, a, cotangent)
    return z * y, z


_carry_in.defvjp(_forward, _backward)


def _split(x: Array, blocks: int) -> Array:
    """``[T]`` to ``[_BLOCK, blocks]``: row k holds the k-th position of every block, contiguous in memory.

    The barrier keeps the compiler from undoing the copy: read in place, the rows would be strided.
    """
    x = jnp.pad(x, (0, blocks * _BLOCK - x.shape[0]))
    return lax.optimization_barrier(x.reshape(blocks, _BLOCK).T.reshape(-1)).reshape(_BLOCK, blocks)


def _carry_directly(reverse: bool, a: Array, b: Array) -> Array:
    def step(x, inputs):
        coefficient, term = inputs
        return term + coefficient * x, x

    return lax.scan(step, b[0] * 0, (a, b), reverse=reverse)[1]
