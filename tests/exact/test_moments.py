"""Estimators against the truth: enumeration of groups, sampling, and what theory says of both."""

import jax
import numpy as np
import pytest

from creditjax import exact, recipe
from creditjax.algebra import chain, leave_one_out, outcome
from creditjax.exact.signals import Oracle
from creditjax.tasks import bifurcation


@pytest.fixture(scope="module")
def solved():
    process = exact.lay_out(bifurcation.threshold((2, -1, 1), 1, flip=0.1, sees="state"))
    rng = np.random.default_rng(5)
    policy = exact.tabulate(process, lambda _: rng.dirichlet(np.ones(2) * 2))
    return process, exact.solve(process, policy)


def moments(name, solved, group_size=3, **options):
    process, solution = solved
    made = recipe(name, **options)
    signals = Oracle(process, solution).signals(exact.enumerate_paths(process), made.signals)
    return exact.enumerate_moments(made.estimator, process, solution, group_size, signals=signals)


@pytest.mark.parametrize("name", ["rloo", "remax", "reinforce", "dr_grpo"])
def test_what_is_unbiased(solved, name):
    found, truth = moments(name, solved), exact.true_gradient(*solved)
    scale = (3 - 1) / 3 if name == "dr_grpo" else 1.0  # its own outcome is in the mean it subtracts
    np.testing.assert_allclose(found.gradient, scale * truth, atol=2e-7)
    assert found.exact and not found.stderr.any()


def test_division_by_the_standard_deviation_is_not_and_by_how_much():
    # One choice, binary outcome: the expected gradient is f(p) dp/dlogits with f known in closed form.
    process = exact.lay_out(bifurcation.single(1, 0))
    size = 4
    for p in (0.1, 0.5, 0.8):
        solution = exact.solve(process, exact.tabulate(process, lambda _, p=p: np.array([1 - p, p])))
        found = exact.enumerate_moments(recipe("grpo", eps=0.0).estimator, process, solution, size)
        truth = exact.true_gradient(process, solution)
        from math import comb, sqrt

        # With k right of G: Σ_i A_i (a_i - p) / G = sqrt(k (G - k) (G - 1) / G) / G, as std has G - 1 below.
        expected = sum(
            comb(size, k) * p**k * (1 - p) ** (size - k) * sqrt(k * (size - k) * (size - 1) / size) / size
            for k in range(1, size)
        )
        np.testing.assert_allclose(found.gradient[0, 1], expected, rtol=1e-5)
        assert abs(found.gradient[0, 1] / truth[0, 1] - 1) > 0.2


def test_multisets_weigh_what_ordered_groups_weigh(solved):
    process, solution = solved
    estimator = recipe("grpo").estimator
    alike = exact.enumerate_moments(estimator, process, solution, 2, chunk=100)
    ordered = exact.enumerate_moments(estimator, process, solution, 2, alike=False)
    assert (alike.groups, ordered.groups) == (64 * 65 // 2, 64**2)
    for a, b in zip(alike[:4], ordered[:4], strict=True):
        np.testing.assert_allclose(a, b, atol=1e-9)


def test_expected_credit_of_leave_one_out(solved):
    process, solution = solved
    found = exact.enumerate_moments(chain(outcome(), leave_one_out()), process, solution, 3)
    paths = exact.enumerate_paths(process)
    want = np.broadcast_to((paths.outcome - solution.start)[:, None], paths.acts.shape)
    np.testing.assert_allclose(found.credit[paths.acts], want[paths.acts], atol=1e-6)
    variance = solution.start * (1 - solution.start) / 2
    np.testing.assert_allclose(found.credit_variance[paths.acts], variance, atol=1e-6)
    assert np.isnan(found.credit[~paths.acts]).all()


def test_exact_values_make_temporal_differences_exact(solved):
    found = moments("gae", solved, lam=0.0, whiten=False)
    process, solution = solved
    paths = exact.enumerate_paths(process)
    credit = exact.exact_credit(paths, solution)
    # The environment's tokens belong to the action before them.
    flips = np.where(paths.acts, 0, credit)
    want = credit + np.pad(flips, ((0, 0), (0, 1)))[:, 1:]
    np.testing.assert_allclose(found.credit[paths.acts], want[paths.acts], atol=1e-6)
    np.testing.assert_allclose(found.gradient, exact.true_gradient(process, solution), atol=1e-6)


def test_sampling_agrees_within_its_stated_error(solved):
    process, solution = solved
    estimator = recipe("grpo").estimator
    whole = exact.enumerate_moments(estimator, process, solution, 3)
    drawn = exact.sample_moments(estimator, process, solution, 3, key=jax.random.key(1), num_groups=20_000)
    z = (drawn.gradient - whole.gradient) / np.maximum(drawn.stderr, 1e-12)
    assert np.abs(z[drawn.stderr > 0]).max() < 4.5
    np.testing.assert_allclose(drawn.variance, whole.variance, rtol=0.05)
    assert not drawn.exact


def test_a_judgement_says_what_each_is_worth(solved):
    process, solution = solved
    base = exact.enumerate_moments(exact.reinforce(), process, solution, 3)
    rloo = exact.judge(moments("rloo", solved), base, process, solution)
    grpo = exact.judge(moments("grpo", solved), base, process, solution)
    perfect = exact.judge(moments("gae", solved, lam=0.0, whiten=False), base, process, solution)
    assert rloo.relative_bias < 1e-5 and grpo.relative_bias > 0.1
    assert grpo.bias_up_to_scale < grpo.relative_bias
    assert perfect.efficiency > 1.2 * rloo.efficiency > 1.2
    assert abs(exact.judge(base, base, process, solution).efficiency - 1) < 1e-12


def test_noise_costs_what_it_should(solved):
    process, solution = solved
    paths = exact.enumerate_paths(process)
    made = recipe("gae", lam=0.0, whiten=False)
    bias = []
    for noise in (0.0, 0.1, 0.4):
        signals = Oracle(process, solution, noise=noise, seed=1).signals(paths, made.signals)
        found = exact.enumerate_moments(made.estimator, process, solution, 1, signals=signals)
        bias.append(np.linalg.norm(found.gradient - exact.true_gradient(process, solution)))
    assert bias[0] < 1e-6 < bias[1] < bias[2]


def test_perfect_signals_are_exact(solved):
    process, solution = solved
    paths = exact.enumerate_paths(process)
    oracle = Oracle(process, solution)
    made = oracle.signals(paths, ("process_reward", "potential", "value", "logprob_prm", "logprob_ref", "state_key"))
    np.testing.assert_allclose(made["process_reward"].sum(1), paths.outcome - solution.start, atol=1e-12)
    np.testing.assert_allclose(made["potential"][:, 0], solution.start, atol=1e-12)
    np.testing.assert_allclose(made["potential"][:, -1], paths.outcome, atol=1e-12)
    credit = exact.exact_credit(paths, solution)
    implicit = 0.05 * (made["logprob_prm"] - made["logprob_ref"])
    np.testing.assert_allclose(implicit, np.where(paths.acts, credit, 0), atol=1e-12)
    assert made["state_key"].shape == (len(paths.tokens), 3)
    with pytest.raises(KeyError, match="coalition_value"):
        oracle.signals(paths, ("coalition_value",))


def test_too_many_groups_are_refused(solved):
    with pytest.raises(ValueError, match="group_size: 8 of 64 episodes are .* use sample_moments"):
        exact.enumerate_moments(recipe("grpo").estimator, *solved, 8)
    with pytest.raises(ValueError, match="at least 2"):
        exact.sample_moments(recipe("grpo").estimator, *solved, 2, key=jax.random.key(0), num_groups=1)
