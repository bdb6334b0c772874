"""Comparison of equal keys against a loop over them, in float64."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.kernels import group


def reference(x, key, weight, divide, ddof, eps):
    result = np.zeros(len(x))
    for k in set(key[weight > 0].tolist()):
        mine = (key == k) & (weight > 0)
        count = weight[mine].sum()
        if count < 1.5 or np.ptp(x[mine]) <= 1e-6 * np.abs(x[mine]).max():
            continue
        mean = (weight[mine] * x[mine]).sum() / count
        centred = x[mine] - mean
        if divide:
            left = count - ddof
            std = np.sqrt((weight[mine] * centred**2).sum() / left) if left > 1e-3 else None
            centred = centred / (std + eps) if std is not None else 0 * centred
        result[mine] = centred
    return result


@pytest.mark.parametrize(("divide", "ddof"), [(False, 1), (True, 1), (True, 0)])
def test_equals_a_loop_over_the_keys(divide, ddof):
    compare = jax.jit(lambda *a: group.compare_equal(*a, divide=divide, ddof=ddof, eps=1e-6))
    for seed in range(20):
        rng = np.random.default_rng(seed)
        # Ties, negative and extreme keys, shares of a vote, and rows that do not vote.
        x = rng.integers(-2, 3, 24) * 0.5
        key = rng.choice([-1, 0, 3, np.iinfo(np.int32).max, np.iinfo(np.int32).min], 24).astype(np.int32)
        weight = rng.choice([0.0, 0.5, 1.0], 24)
        silent = np.where(weight > 0, x, np.nan)
        want = reference(x, key, weight, divide, ddof, 1e-6)
        np.testing.assert_allclose(compare(silent, key, jnp.asarray(weight)), want, rtol=1e-5, atol=1e-6)


def test_costs_less_than_all_pairs():
    def temporary_bytes(n):
        arrays = jnp.ones(n), jnp.zeros(n, jnp.int32), jnp.ones(n)
        return jax.jit(group.compare_equal).lower(*arrays).compile().memory_analysis().temp_size_in_bytes

    assert temporary_bytes(4096) < 4.5 * temporary_bytes(1024)
