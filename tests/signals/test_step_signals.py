"""Labels and values of steps, the prompt's length, and the loss of the implicit reward over pairs."""

import functools

import jax
from jax import numpy as jnp
import numpy as np
from oracles import steps as reference
from oracles.batches import random_batch, to_trajectory
import pytest

from creditjax.kernels import steps
from creditjax.signals import grounded
from creditjax.signals.implicit import implicit_pair_loss
from creditjax.signals.steps import mutation_labels, prompt_length
from creditjax.trajectory import Trajectory


def test_of_four_cases_two_are_labels():
    labels = np.asarray(mutation_labels(jnp.array([[True, True], [False, False]])))
    np.testing.assert_array_equal(labels, [[1, np.nan], [np.nan, 0]])
    with pytest.raises(ValueError, match="passed"):
        mutation_labels(jnp.ones((2, 3), bool))


def test_prompt_length_counts_tokens_before_the_first_action():
    batch = Trajectory(
        tokens=np.zeros((2, 2, 5), int),
        action_mask=np.array([[[0, 0, 0, 1, 0], [0, 0, 0, 0, 0]], [[0, 1, 0, 1, 1], [0, 1, 1, 1, 1]]], bool),
        outcome=np.zeros((2, 2)),
        signals={"token_mask": np.array([[[0, 1, 1, 1, 0], [0, 1, 1, 1, 1]], [[1] * 5] * 2], bool)},
    )
    assert prompt_length(batch).tolist() == [2, 1]


def test_first_error_and_what_comes_before_it():
    score, valid = jnp.array([0.9, np.nan, 0.2, 0.1]), jnp.array([True, True, False, True])
    assert int(steps.first_error(score, valid, 0.5)) == 3
    assert int(steps.first_error(score, valid, 0.05)) == -1
    ids, mask = jnp.array([-1, 0, 0, 1, 1, -1]), jnp.array([True, True, False, True, True, True])
    assert steps.before_step(1, ids, mask).tolist() == [True, True, False, False, False, False]
    assert not steps.before_step(-1, ids, mask).any()
    assert not steps.before_step(2, ids, mask).any()
    assert not steps.before_step(1, ids, mask, 5.0).any()


@pytest.mark.parametrize("n", range(6))
def test_path_value_by_its_formula(n):
    rng, width = np.random.default_rng(n), 6
    v, final = rng.choice([-1.0, 1.0], n), rng.choice([-1.0, 1.0])
    wanted = final if n == 0 else sum((n - j) / n * v[j] for j in range(n)) / n + final / n
    padded, mask = np.full(width, np.nan, np.float32), np.arange(width) < n
    padded[:n] = v
    assert float(grounded.path_value(padded, mask, final)) == pytest.approx(wanted)
    assert float(grounded.path_value(-padded, mask, -final)) == pytest.approx(-wanted)
    most = float(grounded.path_value(np.ones(width), mask, 1.0))
    assert most == pytest.approx((n + 1) / (2 * n) + 1 / n if n else 1.0) and abs(wanted) <= most + 1e-9


def test_back_up_decays_by_distance():
    parent = jnp.array([-1, 0, 1, 0])
    values, visits = jax.jit(grounded.back_up)(parent, 2, 2.0, jnp.zeros(4), jnp.zeros(4))
    np.testing.assert_allclose(values, [2 * 0.81, 2 * 0.9, 2, 0], rtol=1e-6)
    assert visits.tolist() == [1, 1, 0, 0]
    values, visits = grounded.back_up(parent, 3, -1.0, values, visits)
    np.testing.assert_allclose(values, [1.62 - 0.9, 1.8, 2, -1], rtol=1e-6)
    assert visits.tolist() == [2, 1, 0, 0]


def test_uct_explores_what_was_seen_less_and_turns_around():
    scores = grounded.uct(jnp.array([1.0, 1.0]), jnp.array([5.0, 1.0]), 6.0)
    assert scores[1] > scores[0]
    np.testing.assert_allclose(scores[0], 1 + 1.414 * np.sqrt(np.log(7) / 6), rtol=1e-6)
    high = grounded.uct(jnp.array([1.0, -1.0]), jnp.array([1.0, 1.0]), 2.0, sign=-1.0)
    assert high[1] > high[0]


def test_labels_are_kept_where_search_and_tool_agree():
    verdicts, values = jnp.array([1.0, 1.0, -1.0, -1.0]), jnp.array([0.3, -0.2, -0.5, 0.0])
    np.testing.assert_array_equal(grounded.step_labels(verdicts, values), [1, np.nan, 0, np.nan])
    np.testing.assert_array_equal(grounded.step_labels(verdicts, values, agree=False), [1, 1, 0, 0])


def test_pair_loss_matches_reference_and_is_log_two_at_the_start():
    won = functools.partial(implicit_pair_loss, threshold=0.0, turns_only=True)
    loss = jax.jit(jax.value_and_grad(won, has_aux=True), static_argnames=("beta",))
    for seed in range(20):
        d = random_batch(np.random.default_rng(seed), outcome=("binary", "real")[seed % 2])
        batch = to_trajectory(d, ())
        (got, count), gradient = loss(d["logprob_prm"], d["logprob"], batch, 0.5)
        wanted, pairs = reference.pair_loss(d, 0.5)
        assert float(got) == pytest.approx(wanted, rel=2e-4, abs=1e-5) and int(count) == pairs
        assert np.isfinite(gradient).all() and not np.asarray(gradient)[~d["action_mask"]].any()
        (start, _), _ = loss(d["logprob"], d["logprob"], batch, 0.5)
        assert float(start) == pytest.approx(pairs * np.log(2), rel=1e-5)


def test_gradient_of_the_implicit_return_is_that_of_the_divergence():
    # E over pi of sum_t log(pi_prm / pi), differentiated by the score function, is minus the gradient of KL(pi || prm).
    rng = np.random.default_rng(0)
    logits, prm = rng.normal(size=4), jax.nn.log_softmax(rng.normal(size=4))

    def divergence(x):
        log_pi = jax.nn.log_softmax(x)
        return jnp.sum(jnp.exp(log_pi) * (log_pi - prm))

    log_pi = jax.nn.log_softmax(jnp.asarray(logits))
    pi = np.exp(log_pi)
    score = np.eye(4) - pi
    expected = (pi * (np.asarray(prm) - np.asarray(log_pi))) @ score
    np.testing.assert_allclose(expected, -np.asarray(jax.grad(divergence)(jnp.asarray(logits))), atol=1e-5)
