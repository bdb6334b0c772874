"""The estimator as a program: each assertion passes for a right one and fails for one built to break it."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest
from testing_twins import leave_one_out as on_the_host

from creditjax import recipe, testing
from creditjax.algebra import Level, batch_whiten, chain, outcome, transform
from creditjax.algebra.credit import credit

RIGHT = recipe("rloo").estimator


def traced(batch):
    """The outcome where the policy acted, gradient stopped."""
    score = jnp.where(jnp.isfinite(batch.outcome), batch.outcome, 0.0)
    return jax.lax.stop_gradient(jnp.where(batch.action_mask, score[..., None], 0.0))


def open_to_gradients(batch):
    return jnp.where(batch.action_mask, jnp.where(jnp.isfinite(batch.outcome), batch.outcome, 0.0)[..., None], 0.0)


def other_when_traced(batch):
    return traced(batch) * (2.0 if isinstance(batch.outcome, jax.core.Tracer) else 1.0)


@jax.custom_batching.custom_vmap
def _same(x):
    return x


@_same.def_vmap
def _twice(axis_size, in_batched, x):
    return 2 * x, in_batched[0]


def other_when_mapped(batch):
    return _same(traced(batch))


def in_double(batch):
    return np.asarray(traced(batch)).astype(np.float64)


def in_half(batch):
    return traced(batch).astype(jnp.float16)


def wider_with_x64(batch):
    return traced(batch) + jnp.zeros(batch.tokens.shape)


def refuses_x64(batch):
    if jnp.zeros(1).dtype != jnp.float32:
        raise TypeError("carry is float64")
    return traced(batch)


def one_program_a_value(batch):
    """Compiles the number in the first outcome into the program."""
    return jax.jit(lambda x, scale: x * scale, static_argnums=1)(traced(batch), float(batch.outcome[0, 0]))


def of_any_length(batch):
    """Gathers the scored rollouts: as many programs as there can be of them."""
    return traced(batch) - float(jnp.sum(jnp.asarray(batch.outcome[np.isfinite(batch.outcome)]) * 0.0))


def compares_all_positions(batch):
    pairs = traced(batch)[..., :, None] * traced(batch)[..., None, :]
    return jnp.sum(pairs, axis=-1)


@transform(takes=Level.TRAJECTORY, gives=None, scope="batch")
def minus_local_mean(given, batch, context):
    """The mean over the prompts of this device: forgets the others."""
    return given.with_value(given.value - jnp.sum(given.value) / jnp.maximum(jnp.sum(given.valid), 1))


@transform(takes=None, gives=Level.TOKEN)
def remembers_the_count(batch):
    """Differs from one trace to the next."""
    COUNT.append(None)
    return credit(jnp.full(batch.tokens.shape, float(len(COUNT))), batch.action_mask, Level.TOKEN)


COUNT = []


@pytest.mark.parametrize("right", [RIGHT, traced], ids=["transform", "function"])
@pytest.mark.parametrize(
    "assertion",
    [
        testing.assert_jit_vmap_agree,
        testing.assert_sharding_agrees,
        testing.assert_dtype_stable,
        testing.assert_gradient_stopped,
        testing.assert_no_recompilation,
        testing.assert_linear_cost,
    ],
)
def test_holds_for_the_right_ones(assertion, right):
    assertion(right)


@pytest.mark.parametrize(
    ("assertion", "broken", "words"),
    [
        (testing.assert_jit_vmap_agree, other_when_traced, "credit under jit differs from eager"),
        (testing.assert_jit_vmap_agree, other_when_mapped, "credit under vmap differs from eager"),
        (testing.assert_jit_vmap_agree, remembers_the_count(), "differs from eager"),
        (testing.assert_jit_vmap_agree, on_the_host, "JAX cannot trace it"),
        (testing.assert_sharding_agrees, chain(outcome(), minus_local_mean()), "on 8 devices differs from that on one"),
        (testing.assert_dtype_stable, in_double, "credit is float64 with bfloat16 outcomes, wanted float32"),
        (testing.assert_dtype_stable, in_half, "credit is float16 with bfloat16 outcomes, wanted float32"),
        (testing.assert_dtype_stable, wider_with_x64, "float64 .* and 64-bit types enabled, wanted float32"),
        (testing.assert_dtype_stable, refuses_x64, "cannot be computed .* 64-bit types enabled: carry is float64"),
        (testing.assert_gradient_stopped, open_to_gradients, "a gradient flows through credit to outcome"),
        (testing.assert_gradient_stopped, on_the_host, "JAX cannot trace it"),
        (testing.assert_no_recompilation, one_program_a_value, "a batch of the same shape: traced [0-9]+ times"),
        (testing.assert_no_recompilation, of_any_length, "a batch of the same shape: traced [0-9]+ times"),
        (testing.assert_linear_cost, compares_all_positions, r"512 positions cost [34]\.[0-9]+ times the operations"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_fails_on_its_twin(assertion, broken, words):
    with pytest.raises(AssertionError, match=words) as caught:
        assertion(broken)
    assert "estimator: " in str(caught.value)


def test_statistics_over_the_mesh_agree():
    testing.assert_sharding_agrees(chain(outcome(), batch_whiten()))


def test_other_recipes():
    testing.assert_linear_cost(recipe("gae").estimator, length=64)
    testing.assert_gradient_stopped(recipe("vtrace").estimator)
