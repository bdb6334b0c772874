"""Several prompts at once: the same as one by one where prompts do not meet, and by brute force where they do."""

import itertools

import numpy as np
import pytest

from creditjax import algebra, estimate, exact, recipe
from creditjax.exact.signals import Oracle
from creditjax.tasks import bifurcation
from creditjax.testing.games import Stopping


def prompt(game, chance, names=()):
    process = exact.lay_out(game)
    solution = exact.solve(process, exact.tabulate(process, lambda _: np.array([1 - chance, chance])))
    paths = exact.enumerate_paths(process)
    return exact.Prompt(process, solution, Oracle(process, solution).signals(paths, names))


EASY, HARD = prompt(bifurcation.conjunction(2, (0, 1)), 0.8), prompt(bifurcation.conjunction(2, (0, 1)), 0.3)
SHORT = prompt(Stopping(), 0.4)


@pytest.mark.parametrize("name", ["grpo", "rloo"])
def test_without_batch_statistics_it_is_one_prompt_at_a_time(name):
    estimator = recipe(name).estimator
    # Episodes of two tokens and of one to three: the shorter game is padded.
    joint = exact.enumerate_joint_moments(estimator, (EASY, SHORT), 3)
    for made, given in zip(joint, (EASY, SHORT), strict=True):
        alone = exact.enumerate_moments(estimator, given.process, given.solution, 3)
        for field in ("gradient", "covariance", "credit", "credit_variance"):
            np.testing.assert_allclose(getattr(made, field), getattr(alone, field), atol=1e-6, err_msg=field)


def test_batch_statistics_by_brute_force():
    estimator = recipe("reinforce_plus_plus_baseline").estimator
    prompts, size = (EASY, HARD), 2
    paths = [exact.enumerate_paths(p.process) for p in prompts]
    chances = [exact.probability(p.process, own, p.solution.policy) for p, own in zip(prompts, paths, strict=True)]
    want = [np.zeros(p.solution.policy.shape) for p in prompts]
    for picks in itertools.product(range(4), repeat=4):
        index = np.array(picks).reshape(2, size)
        weight = np.prod([chances[p][i] for p in range(2) for i in index[p]])
        # Both games have the same episodes, so one table of them makes the batch.
        credit = np.asarray(estimate(estimator, exact.batch(paths[0], index)).value, float)
        for p in range(2):
            policy = prompts[p].solution.policy
            for g in range(size):
                for t in range(2):
                    seen, token = paths[p].observation[index[p, g], t], paths[p].tokens[index[p, g], t]
                    want[p][seen] += weight * credit[p, g, t] * (np.eye(2)[token] - policy[seen]) / size
    made = exact.enumerate_joint_moments(estimator, prompts, size)
    for p in range(2):
        np.testing.assert_allclose(made[p].gradient, want[p], atol=1e-6)


def test_a_batch_mean_lets_an_easy_prompt_eat_a_hard_one():
    """Card `reinforce_baseline`: one baseline for all prompts is unbiased up to 1 - 1/(PG), and noisier."""
    given = recipe("reinforce_baseline", baseline="batch").estimator
    size = 2
    joint = exact.enumerate_joint_moments(given, (EASY, HARD), size)
    for made, p in zip(joint, (EASY, HARD), strict=True):
        truth = exact.true_gradient(p.process, p.solution)
        np.testing.assert_allclose(made.gradient, (1 - 1 / (2 * size)) * truth, atol=1e-6)
        alone = exact.enumerate_moments(recipe("rloo").estimator, p.process, p.solution, size)
        assert made.exact and made.groups == 100 and alone.groups == 10


def test_whitening_over_prompts_weighs_easy_and_hard_ones_nearly_alike():
    """Card `reinforce_plus_plus`: one standard deviation for the batch, and the direction of each prompt is kept."""
    whitened = algebra.chain(algebra.outcome(), algebra.to_tokens(), algebra.batch_whiten())
    scales = []
    for moments, p in zip(exact.enumerate_joint_moments(whitened, (EASY, HARD), 2), (EASY, HARD), strict=True):
        truth = exact.true_gradient(p.process, p.solution)
        sizes = np.linalg.norm(truth), np.linalg.norm(moments.gradient)
        assert np.sum(truth * moments.gradient) > 0.999 * sizes[0] * sizes[1]
        scales.append(sizes[1] / sizes[0])
    assert abs(scales[0] / scales[1] - 1) < 0.02


def test_hostile_prompts():
    estimator = recipe("rloo").estimator
    with pytest.raises(ValueError, match="prompts: none, wanted at least one"):
        exact.enumerate_joint_moments(estimator, (), 2)
    with pytest.raises(ValueError, match="combinations of groups, wanted at most 50"):
        exact.enumerate_joint_moments(estimator, (EASY, HARD), 2, max_groups=50)
    with pytest.raises(ValueError, match="wanted the same of each"):
        exact.enumerate_joint_moments(estimator, (EASY, prompt(Stopping(), 0.5, ("value",))), 2)
