"""Card `transfer_q_star`: its properties, and a float64 reference."""

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.samplers import guided


def draw(seed, candidates=6, continuations=4):
    rng = np.random.default_rng(seed)
    logprob = np.log(rng.dirichlet(np.ones(candidates)))
    return logprob, *(rng.normal(size=(2, candidates, continuations)))


def test_values_and_tilt_equal_a_loop():
    for seed in range(20):
        logprob, reward, base = draw(seed)
        want = []
        for r, b in zip(reward, base, strict=True):
            weight = np.exp((r - b) / 0.5 - np.max((r - b) / 0.5))
            want.append(np.sum(weight / weight.sum() * r))
        value = guided.candidate_value(reward, base, beta=0.5)
        np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
        tilted = np.exp(logprob + np.array(want) / 0.7)
        np.testing.assert_allclose(
            np.exp(guided.tilted_logprob(logprob, value, alpha=0.7)), tilted / tilted.sum(), rtol=1e-4
        )
        soft = [0.5 * np.log(np.mean(np.exp((r - b) / 0.5))) for r, b in zip(reward, base, strict=True)]
        np.testing.assert_allclose(guided.soft_candidate_value(reward, base, beta=0.5), soft, rtol=1e-4, atol=1e-5)


def test_alpha_goes_from_the_reference_to_the_greedy_choice():
    logprob, reward, _ = draw(1)
    value = guided.candidate_value(reward)
    np.testing.assert_allclose(guided.tilted_logprob(logprob, value, alpha=1e6), logprob, atol=1e-4)
    assert np.exp(guided.tilted_logprob(logprob, value, alpha=1e-3))[np.argmax(value)] > 0.999


def test_equal_rewards_are_the_direct_mode_and_a_constant_changes_nothing():
    logprob, reward, base = draw(2)
    direct = guided.candidate_value(reward)
    np.testing.assert_allclose(guided.candidate_value(reward, reward), direct, atol=1e-6)
    for first, second in (
        (direct, guided.candidate_value(reward + 3)),
        (guided.candidate_value(reward, base), guided.candidate_value(reward + 3, base)),
    ):
        np.testing.assert_allclose(
            guided.tilted_logprob(logprob, first), guided.tilted_logprob(logprob, second), atol=1e-5
        )


def test_credit_averages_to_zero_under_the_reference():
    logprob, reward, base = draw(3)
    credit = guided.candidate_advantage(logprob, guided.candidate_value(reward, base))
    assert abs(float(np.sum(np.exp(logprob) * np.asarray(credit)))) < 1e-6


def test_tokens_are_drawn_from_the_tilted_law():
    logprob, reward, _ = draw(4)
    names = jnp.arange(10, 16)
    draws = jax.jit(jax.vmap(lambda key: guided.guided_token(key, names, logprob, reward, alpha=0.5)))
    tokens, credit = draws(jax.random.split(jax.random.key(0), 20_000))
    share = np.bincount(np.asarray(tokens) - 10, minlength=6) / 20_000
    value = guided.candidate_value(reward)
    np.testing.assert_allclose(share, np.exp(guided.tilted_logprob(logprob, value, alpha=0.5)), atol=0.015)
    table = guided.candidate_advantage(logprob, value)
    np.testing.assert_allclose(credit, np.asarray(table)[np.asarray(tokens) - 10], atol=1e-6)
