"""The Shapley value as one matrix product. Coalitions are bitmasks: bit n of the index is set when player n takes
part.
"""

import functools
import math

import jax
from jax import numpy as jnp
import numpy as np

Array = jax.Array


def shapley_values(coalition_value: Array) -> Array:
    """Exact Shapley value of N players (Shapley 1953), f32 ``[N]``.

    ``phi_n = sum over S without n of |S|! (N - |S| - 1)! / N! * (v(S + n) - v(S))``

    Args:
      coalition_value: f32 ``[2^N]``, v of every coalition.

    Raises:
      ValueError: the length is no power of two, or N is above 12.

    >>> shapley_values(jnp.array([0.0, 1.0, 2.0, 5.0])).tolist()
    [2.0, 3.0]
    """
    size = coalition_value.shape[-1]
    players = size.bit_length() - 1
    if size != 1 << players or not 1 <= players <= 12:
        raise ValueError(f"coalition_value: {size} coalitions, wanted 2^N with N in 1..12")
    return jnp.asarray(_weights(players)) @ coalition_value.astype(jnp.float32)


@functools.cache
def _weights(players: int) -> np.ndarray:
    """The matrix W of ``phi = W v``, f32 ``[N, 2^N]``."""
    coalition = np.arange(1 << players)
    size = np.array([int(s).bit_count() for s in coalition])
    share = np.array([1.0 / (players * math.comb(players - 1, m)) for m in range(players)])
    inside = (coalition >> np.arange(players)[:, None]) & 1 == 1
    gain = share[np.maximum(size - 1, 0)]
    loss = share[np.minimum(size, players - 1)]
    return np.where(inside, gain, -loss).astype(np.float32)
