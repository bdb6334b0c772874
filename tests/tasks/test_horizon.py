"""Card `horizon_reduction`: its properties on exact games, and the measures."""

import numpy as np
import pytest

from creditjax import Trajectory, algebra, chain, estimate, exact
from creditjax.tasks import bifurcation, chains, horizon


@pytest.mark.parametrize("gamma", [1.0, 0.9])
@pytest.mark.parametrize("size", [1, 2, 3])
def test_a_fixed_policy_has_the_same_return_with_and_without_macro_actions(size, gamma):
    game = bifurcation.conjunction(5, (1, 3), sees="nothing")
    law = np.array([0.3, 0.7])
    plain = exact.lay_out(game)
    want = exact.solve(plain, exact.tabulate(plain, lambda _: law), gamma=gamma).start
    wrapped = horizon.Macro(game, size, gamma)
    process = exact.lay_out(wrapped)
    assert process.length == -(-5 // size)
    made = exact.solve(process, exact.tabulate(process, lambda _: wrapped.policy(law)), gamma=wrapped.discount)
    np.testing.assert_allclose(made.start, want, atol=1e-12)


def test_independent_steps_make_success_fall_exponentially():
    for distance in (1, 2, 4, 8):
        game = bifurcation.conjunction(distance, tuple(range(distance)))
        process = exact.lay_out(game)
        success = exact.solve(process, exact.tabulate(process, lambda _: np.array([0.2, 0.8]))).start
        np.testing.assert_allclose(success, 0.8**distance, atol=1e-12)
        np.testing.assert_allclose(horizon.implied_step_accuracy(success, distance), 0.8, atol=1e-12)


def test_credit_does_not_cross_a_subgoal():
    mask = np.ones((1, 1, 6), bool)
    mask[..., 2] = False
    batch = Trajectory(
        tokens=np.zeros((1, 1, 6), int),
        action_mask=mask,
        outcome=np.zeros((1, 1)),
        reward=np.arange(6.0).reshape(1, 1, 6),
        terminated=np.asarray(horizon.subgoal_ends(mask, 2)),
    )
    credit = np.asarray(estimate(chain(algebra.rewards(), algebra.discounted_return()), batch).value)[0, 0]
    # Actions 0 and 1 (with the observed 2), 3 and 4, 5 alone.
    np.testing.assert_allclose(credit, [3, 3, 0, 7, 4, 5])


def test_measures():
    curve = horizon.success_curve(np.array([1, 0, 1, 1]), np.array([1, 1, 2, 2]), 4)
    np.testing.assert_allclose(curve, [np.nan, 0.5, 1.0, np.nan])
    np.testing.assert_allclose(horizon.horizon_generalization(curve, 1, 2), 2.0)
    success = np.concatenate([np.linspace(0, 1, 40), np.full(40, 0.1)])
    # The mean of the last 20 falls below half of its peak, 0.757, in the middle of the fall.
    mean = np.array([success[max(0, t - 19) : t + 1].mean() for t in range(80)])
    want = next(t for t in range(int(mean.argmax()) + 1, 80) if mean[t] < mean.max() / 2)
    assert int(horizon.collapse_step(success, 20)) == want
    assert int(horizon.collapse_step(np.linspace(0, 1, 30), 5)) == -1


def test_hostile_games_and_numbers():
    with pytest.raises(ValueError, match="wanted actions of the policy alone"):
        exact.lay_out(horizon.Macro(chains.UmbrellaChain(3), 2))
    with pytest.raises(ValueError, match="size: 0"):
        horizon.Macro(bifurcation.single(2, 0), 0)
    with pytest.raises(ValueError, match="every: 0"):
        horizon.subgoal_ends(np.ones(3, bool), 0)
    with pytest.raises(ValueError, match="success: 1.5"):
        horizon.implied_step_accuracy(1.5, 2)
