"""V-trace against a float64 loop and its on-policy identities with GAE."""

from hypothesis import given
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest
import stream_reference as reference
from test_returns import close, gae, pick, stream

from creditjax.kernels.vtrace import vtrace

seeds = st.integers(0, 2**32 - 1)
jitted = jax.jit(vtrace)


def logprobs(seed, mask):
    rng = np.random.default_rng(seed + 1)
    return [np.where(mask, -rng.exponential(size=mask.shape), np.nan).astype(np.float32) for _ in range(2)]


@pytest.mark.parametrize("options", [(), ("next_value", "terminated", "truncated"), ("terminated", "truncated")])
def test_vtrace_is_the_loop(options):
    @given(seeds, st.floats(0, 1, width=32), st.floats(0, 1, width=32))
    def check(seed, gamma, lam):
        mask, arrays = stream(seed, 150)
        args = (arrays["reward"], arrays["value"], *logprobs(seed, mask), mask, gamma, lam, 1.5, 0.8, 1.2)
        flags = pick(arrays, *options)
        for actual, wanted in zip(jitted(*args, **flags), reference.vtrace(*args, **flags), strict=True):
            close(actual, wanted, 5e-5)
            assert not np.any(np.asarray(actual)[~mask])

    check()


@given(seeds)
def test_on_policy_it_is_gae(seed):
    mask, arrays = stream(seed, 150)
    logprob = logprobs(seed, mask)[0]
    flags = pick(arrays, "next_value", "terminated", "truncated")
    for lam in (1.0, 0.9):
        result = jitted(arrays["reward"], arrays["value"], logprob, logprob, mask, 0.97, lam, **flags)
        wanted = gae(arrays["reward"], arrays["value"], mask, 0.97, lam, **flags)
        close(result.value_target, wanted.value_target)
        close(result.advantage, wanted.advantage)


def test_huge_ratios_are_clipped_and_differentiable():
    mask = np.array([True, True, False])
    current, behaviour = np.array([0.0, -1.0, 800.0]), np.array([-800.0, -1.0, np.nan])

    def total(current, value):
        return jnp.sum(jitted(np.array([1.0, 2.0, 0.0]), value, current, behaviour, mask, 1.0).advantage)

    assert total(current, np.zeros(3)) == 5.0
    gradient = jax.grad(total, argnums=(0, 1))(current, np.zeros(3))
    assert np.all(np.isfinite(gradient))


def test_bad_shapes_are_named():
    row = jnp.ones(4)
    with pytest.raises(ValueError, match=r"logprob: shape \[3\], wanted \[4\] as mask"):
        vtrace(row, row, row, row[:3], jnp.ones(4, bool), 1.0)
