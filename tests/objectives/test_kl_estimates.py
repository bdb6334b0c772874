"""Divergence estimates: value and gradient, each right (case C23)."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.kernels.kl import kl_estimate, kl_full, kl_in_reward


def log_probs(logit):
    return jax.nn.log_softmax(jnp.array([1.0, 0.0]) * logit)


REFERENCE = jnp.log(jnp.array([0.5, 0.5]))
LOGIT = float(np.log(0.7 / 0.3))


@pytest.mark.parametrize(
    ("kind", "value", "gradient"),
    [
        ("k1", 0.082283, 0.0),
        ("k2", 0.078766, 0.177933),
        ("k3", 0.082283, 0.2),
        ("k1+", 0.082283, 0.177933),
        ("k3+", 0.082283, 0.177933),
        ("abs", 0.7 * np.log(1.4) - 0.3 * np.log(0.6), 0.21 * 2),
    ],
)
def test_c23_expected_value_and_expected_gradient(kind, value, gradient):
    pi = jax.nn.softmax(jnp.array([LOGIT, 0.0]))  # the tokens were drawn from it: no gradient through the draw

    def expected(logit):
        return jnp.sum(pi * kl_estimate(log_probs(logit), REFERENCE, kind))

    got, slope = jax.value_and_grad(expected)(LOGIT)
    np.testing.assert_allclose(got, value, atol=2e-6)
    np.testing.assert_allclose(slope, gradient, atol=2e-6)


def test_c23_full_divergence():
    got, slope = jax.value_and_grad(lambda logit: kl_full(log_probs(logit), REFERENCE))(LOGIT)
    np.testing.assert_allclose(got, 0.082283, atol=1e-6)
    np.testing.assert_allclose(slope, 0.177933, atol=1e-6)


def test_gradients_are_those_of_the_two_divergences():
    """Exact expectations over five tokens: E[grad k2] = grad KL(pi||ref), E[grad k3] = grad KL(ref||pi)."""
    key = jax.random.key(0)
    logits, reference = jax.random.normal(key, (2, 5))
    reference = jax.nn.log_softmax(reference)
    pi = jax.nn.softmax(logits)

    def expected(kind):
        return jax.grad(lambda x: jnp.sum(pi * kl_estimate(jax.nn.log_softmax(x), reference, kind)))(logits)

    reverse = jax.grad(lambda x: kl_full(jax.nn.log_softmax(x), reference))(logits)
    forward = jax.grad(lambda x: kl_full(reference, jax.nn.log_softmax(x)))(logits)
    np.testing.assert_allclose(expected("k2"), reverse, atol=1e-6)
    np.testing.assert_allclose(expected("k3+"), reverse, atol=1e-6)
    np.testing.assert_allclose(expected("k3"), forward, atol=1e-6)
    np.testing.assert_allclose(expected("k1"), 0.0, atol=1e-6)


def test_kl_as_reward_has_the_gradient_of_the_divergence():
    """The policy gradient of the return -k1 is -grad KL, by enumeration."""
    pi = jax.nn.softmax(jnp.array([LOGIT, 0.0]))
    reward = kl_in_reward(jnp.zeros(2), log_probs(LOGIT), REFERENCE, jnp.ones(2, bool), 1.0)
    slope = jax.grad(lambda logit: jnp.sum(pi * reward * log_probs(logit)))(LOGIT)
    np.testing.assert_allclose(slope, -0.177933, atol=1e-6)


def test_kl_in_reward_touches_acted_positions_only_and_stops_gradients():
    mask = jnp.array([1, 0, 1], bool)
    logprob, reference = jnp.array([-1.0, jnp.nan, -2.0]), jnp.array([-1.5, jnp.nan, -1.0])

    def shaped(logprob):
        return kl_in_reward(jnp.array([0.0, 3.0, 1.0]), logprob, reference, mask, 0.1)

    np.testing.assert_allclose(shaped(logprob), [-0.05, 3.0, 1.1], rtol=1e-6)
    assert not np.any(jax.jacobian(shaped)(logprob))


def test_k3_is_bounded_and_non_negative():
    difference = jnp.array([-800.0, -1.0, -1e-4, 0.0, 1e-4, 3.0, 800.0])
    got = kl_estimate(difference, jnp.zeros(7), "k3")
    exact = np.minimum(np.expm1(np.clip(-difference, -20, 20).astype(float)) + np.clip(difference, -20, 20), 10)
    np.testing.assert_allclose(got, exact, rtol=1e-2, atol=1e-9)
    assert np.all(np.asarray(got) >= 0) and got[3] == 0
    slope = jax.grad(lambda d: jnp.sum(kl_estimate(d, jnp.zeros(7), "k3")))(difference)
    assert np.all(np.isfinite(slope)) and slope[0] == 0 and slope[-1] == 0


def test_full_divergence_ignores_what_the_policy_excludes():
    log_p = jnp.array([jnp.log(0.5), jnp.log(0.5), -jnp.inf])
    log_q = jnp.log(jnp.array([0.25, 0.25, 0.5]))
    got, slope = jax.value_and_grad(lambda p: kl_full(p, log_q))(log_p)
    np.testing.assert_allclose(got, np.log(2), rtol=1e-6)
    assert np.all(np.isfinite(slope))
    assert kl_full(log_q, log_p) == jnp.inf


def test_unknown_kind():
    with pytest.raises(ValueError, match="k4.*k1, abs, k2"):
        kl_estimate(jnp.zeros(1), jnp.zeros(1), "k4")
