"""Order statistics against NumPy's sort."""

import hypothesis
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.kernels import ranks

LENGTH = 9
# XLA may flush what is smaller to 0.
FLOATS = st.floats(width=32, allow_nan=False, allow_subnormal=False)

every = jax.jit(jax.vmap(ranks.kth_smallest, in_axes=(None, 0)))
top = jax.jit(ranks.top_share)
median = jax.jit(ranks.masked_median)


@hypothesis.given(st.lists(FLOATS, min_size=LENGTH, max_size=LENGTH))
def test_every_order_statistic_is_that_of_a_sort(x):
    np.testing.assert_array_equal(every(np.float32(x), np.arange(LENGTH)), np.sort(np.float32(x)))


def test_zeros_are_one_value_and_nan_is_the_largest():
    x = np.float32([0.0, -0.0, -np.nan, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.0])
    np.testing.assert_array_equal(every(x, np.arange(LENGTH)), np.sort(x))
    # A zero of either sign is tied with the other, and ties go to the earlier position.
    kept = top(jnp.float32([-0.0, 0.0, 0.0, -1, -1, -1, -1, -1, -1]), jnp.ones(LENGTH, bool), 2 / 9)
    assert kept.tolist() == [True, True] + [False] * 7


@hypothesis.given(
    st.lists(st.sampled_from([-2.0, -0.5, 0.0, 1.0, 3.0]), min_size=LENGTH, max_size=LENGTH),
    st.lists(st.booleans(), min_size=LENGTH, max_size=LENGTH),
    st.sampled_from([0.0, 0.2, 0.4, 0.75, 1.0]),
)
def test_top_share_and_median_of_what_is_selected(x, mask, share):
    x, mask = np.float32(x), np.array(mask)
    places = sorted(np.flatnonzero(mask), key=lambda t: (-x[t], t))
    wanted = np.isin(np.arange(LENGTH), places[: int(np.ceil(share * mask.sum() - 1e-6))])
    hidden = np.where(mask, x, np.nan)
    np.testing.assert_array_equal(top(hidden, mask, share), wanted)
    assert float(median(hidden, mask)) == (np.median(x[mask]) if mask.any() else 0.0)


@pytest.mark.parametrize("kind", (jnp.int32, jnp.bfloat16))
def test_other_types_are_read_as_floats(kind):
    x = jnp.array([3, -4, 0, 7, 7, -1, 2, 5, 100], kind)
    np.testing.assert_array_equal(every(x, np.arange(LENGTH)), np.sort(np.asarray(x, np.float32)))


@pytest.mark.parametrize(("share", "n", "kept"), [(0.3, 800, 240), (0.6, 400, 240), (0.15, 1500, 225), (0.301, 10, 4)])
def test_rounding_of_a_share_keeps_no_item_too_many(share, n, kept):
    chosen = ranks.top_share(jnp.arange(n, dtype=jnp.float32), jnp.ones(n, bool), jnp.float32(share))
    assert int(chosen.sum()) == kept
