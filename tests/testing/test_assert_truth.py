"""Held against the exact gradient: who is told that it is biased is told why."""

import re

from jax import numpy as jnp
import numpy as np
import pytest
from testing_twins import at_the_end, centred, leave_one_out, normalized, reinforce

from creditjax import exact, recipe, testing
from creditjax.testing.check import reads
from creditjax.testing.expectation import expected
from creditjax.testing.games import shaped
from creditjax.testing.truth import GROUP_SIZE
from creditjax.trajectory import FIELDS


def test_a_notebook_is_told_why_it_is_biased_and_mends_it():
    # The example of the package's docstring, as it stands there.
    code = re.findall(r"(?m)^(?:    .*\n|\n)+", testing.__doc__)
    names = {}
    first, mended = ["\n".join(line[4:] for line in x.splitlines()) for x in code if "def " in x]
    with pytest.raises(AssertionError) as caught:
        exec(first, names)
    for said in (
        "assert_unbiased: biased by 0.68",
        "cosine 1.0000",
        "the scale differs between prompts",
        "group's std",
    ):
        assert said in str(caught.value)
    assert len([line for line in first.splitlines() if line.strip()]) <= 10

    with pytest.raises(AssertionError, match="own outcome is in its baseline: scale .* = 0.75"):
        testing.assert_unbiased(centred)
    exec(mended, names)


def divides_by_its_length(batch):
    return leave_one_out(batch) / np.maximum(batch.action_mask.sum(-1, keepdims=True), 1)


@pytest.mark.parametrize("right", [leave_one_out, reinforce, recipe("rloo").estimator])
def test_unbiased(right):
    testing.assert_unbiased(right)


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        (normalized, "scale differs between prompts, 1.6.* to 1.6.*"),
        (centred, r"scale \(G - 1\) / G = 0.75"),
        (recipe("dr_grpo").estimator, r"scale \(G - 1\) / G = 0.75"),
        (recipe("grpo").estimator, "division by the group's std"),
        (lambda batch: 2 * leave_one_out(batch), "the right one times 2 in every game"),
        (at_the_end, "the direction is wrong, not the scale alone"),
        (divides_by_its_length, "wrong only where episodes differ in length"),
    ],
)
def test_biased_and_why(broken, words):
    with pytest.raises(AssertionError, match="biased by .* in game") as caught:
        testing.assert_unbiased(broken)
    message = str(caught.value)
    assert re.search(words, message), message
    for said in ("‖bias‖", "cosine", "scale", "most wrong in game", "at observation", "found", "wanted"):
        assert said in message


def test_unbiased_up_to_one_factor():
    testing.assert_unbiased_up_to_scale(centred)
    testing.assert_unbiased_up_to_scale(recipe("dr_grpo").estimator)
    with pytest.raises(AssertionError, match="1.6.* to 1.6.* times the exact one"):
        testing.assert_unbiased_up_to_scale(normalized)
    with pytest.raises(AssertionError, match="points elsewhere"):
        testing.assert_unbiased_up_to_scale(at_the_end)
    with pytest.raises(AssertionError, match="-1.0000 to -1.0000 times|points elsewhere"):
        testing.assert_unbiased_up_to_scale(lambda batch: -leave_one_out(batch))


def test_in_groups_of_three_a_binary_std_has_one_value():
    # Why the default group is not of three: there dividing by the std looks harmless.
    testing.assert_unbiased_up_to_scale(normalized, group_size=3, rtol=1e-3)


def test_variance():
    def twice(batch):
        return 2 * leave_one_out(batch)

    testing.assert_variance_at_most(leave_one_out, twice)
    testing.assert_variance_at_most(leave_one_out, leave_one_out)
    with pytest.raises(AssertionError, match="variance .* wanted at most .* that of leave_one_out"):
        testing.assert_variance_at_most(twice, leave_one_out)


def returns_to_go(batch):
    """What is paid from each position on, or the outcome."""
    if batch.reward is None:
        return reinforce(batch)
    paid = np.where(batch.signals["token_mask"], batch.reward, 0.0)
    to_go = np.flip(np.cumsum(np.flip(paid, -1), -1), -1)
    return np.where(batch.action_mask, to_go, 0.0).astype(np.float32)


def paid_at_once(batch):
    """The reward of the position itself: blind to what comes later."""
    if batch.reward is None:
        return at_the_end(batch)
    return np.where(batch.action_mask, batch.reward, 0.0).astype(np.float32)


def test_policy_invariance():
    testing.assert_policy_invariant(returns_to_go)
    testing.assert_policy_invariant(recipe("reinforce").estimator)
    with pytest.raises(AssertionError, match="shaping moves the expected gradient by .* in game") as caught:
        testing.assert_policy_invariant(paid_at_once)
    assert "seed: " in str(caught.value) and "most at observation" in str(caught.value)
    # A shaping signal counts as well as a reward.
    testing.assert_policy_invariant(recipe("tips").estimator)
    with pytest.raises(AssertionError, match="shaping moves"):
        testing.assert_policy_invariant(recipe("a2tgpo").estimator)


def test_functions_on_the_host_and_transforms_are_judged_alike():
    case = testing.default_cases()[0]
    host = expected(leave_one_out, case, GROUP_SIZE)
    device = expected(recipe("rloo").estimator, case, GROUP_SIZE)
    assert host.groups == device.groups and host.exact
    np.testing.assert_allclose(host.gradient, device.gradient, atol=1e-6)
    np.testing.assert_allclose(host.covariance, device.covariance, atol=1e-6)


@pytest.mark.parametrize("on_host", [False, True])
def test_functions_see_what_transforms_see(on_host):
    seen = set()

    def looks(batch):
        seen.update(name for name in ("logprob", "segment") if batch.get(name) is not None)
        return leave_one_out(batch) if on_host else jnp.where(batch.action_mask, batch.outcome[..., None], 0.0)

    expected(looks, testing.default_cases()[0], 2)
    assert seen == {"logprob", "segment"}


def test_a_game_of_ones_own():
    from creditjax.tasks import bifurcation

    mine = testing.case("two turns", bifurcation.single(2, 1), lambda seen: np.array([0.4, 0.6]))
    testing.assert_unbiased(leave_one_out, cases=[mine], group_size=2)
    with pytest.raises(AssertionError, match="in game 'two turns'.*scale 0.5000"):
        testing.assert_unbiased(centred, cases=[mine], group_size=2)
    assert isinstance(mine.process, exact.Process)
    hopeless = testing.case("nothing to win", bifurcation.threshold((1,), 9))
    with pytest.raises(ValueError, match="'nothing to win': the exact gradient is 0"):
        testing.assert_unbiased(leave_one_out, cases=[hopeless])


@pytest.mark.parametrize("name", ["gdpo", "matchtir", "shapley_exact", "skillgate"])
def test_estimators_of_calls_skills_components_and_coalitions_have_games(name):
    estimator = recipe(name).estimator
    found = testing.check_all(estimator, ["unbiased", "unbiased_up_to_scale", "policy_invariant"])
    assert "not checked" not in " ".join(found.values())
    for case in testing.default_cases(reads(estimator)):
        assert set(reads(estimator)) <= {*case.signals, *FIELDS, "agent"}


@pytest.mark.parametrize(
    ("signal", "total"), [("reward_components", lambda x: x.sum(-1)), ("coalition_value", lambda x: x[:, -1])]
)
def test_what_is_in_units_of_the_outcome_is_shaped_with_it(signal, total):
    for case in testing.default_cases([signal]):
        moved = shaped(case, 3)
        before, after = (exact.enumerate_paths(x.process).outcome for x in (case, moved))
        assert np.abs(after - before).min() > 0.01
        np.testing.assert_allclose(total(case.signals[signal]), before, atol=1e-6)
        np.testing.assert_allclose(total(moved.signals[signal]), after, atol=1e-6)
