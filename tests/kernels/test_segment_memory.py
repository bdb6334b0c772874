"""What segment statistics keep while they run."""

import jax
from jax import numpy as jnp
import pytest

from creditjax.kernels import segments

G, T, K = 4, 2048, 64


@pytest.mark.parametrize("differentiated", [False, True])
def test_many_segments_need_no_array_of_segments_by_positions(differentiated):
    def mean(x, ids, mask):
        return jnp.sum(jnp.square(segments.segment_mean(x, ids, mask, K)))

    function = jax.grad(mean) if differentiated else mean
    arrays = jnp.ones((G, T)), jnp.zeros((G, T), jnp.int32), jnp.ones((G, T), bool)
    memory = jax.jit(jax.vmap(function)).lower(*arrays).compile().memory_analysis()
    # A few arrays [G, T]; 64 of them would be one [G, K, T].
    assert memory.temp_size_in_bytes < 8 * 4 * G * T
