"""Laws of credit: each assertion passes for a right estimator and fails for one built to break it."""

import itertools

import numpy as np
import pytest
from testing_twins import at_the_end, centred, leave_one_out, normalized, reinforce, spread

from creditjax import recipe, testing
from creditjax.algebra import chain, gae, rewards


def squared(batch):
    return spread(batch, np.where(np.isfinite(batch.outcome), batch.outcome, 0.0) ** 2)


def forgets_one_action(batch):
    """Loses the first action's share of an even split."""
    split = shared_out(batch)
    first = batch.action_mask & (np.cumsum(batch.action_mask, -1) == 1)
    return np.where(first, 0.0, split)


def shared_out(batch):
    """The outcome, in equal parts on its actions."""
    return reinforce(batch) / np.maximum(batch.action_mask.sum(-1, keepdims=True), 1)


def turned_around(batch):
    return -centred(batch)


def value_gain(batch):
    """V of the next state less that of this: knows nothing of what comes later. The last action gets nothing."""
    after, value = np.zeros(batch.tokens.shape, np.float32), batch.signals["value"]
    coming = np.zeros(batch.tokens.shape[:2], np.float32)
    seen = np.zeros(batch.tokens.shape[:2], bool)
    for t in reversed(range(batch.length)):
        acted = batch.action_mask[..., t]
        after[..., t] = np.where(acted & seen, coming - np.where(acted, value[..., t], 0.0), 0.0)
        coming, seen = np.where(acted, value[..., t], coming), seen | acted
    return after


def looks_two_ahead(batch):
    """Reads the value after next."""
    gain = value_gain(batch)
    later = np.cumsum(gain[..., ::-1], -1)[..., ::-1]
    return np.where(batch.action_mask, later, 0.0)


value_gain.needs = looks_two_ahead.needs = ("value",)

TWINS = [
    (testing.assert_shift_invariant, leave_one_out, reinforce, {}, "when 1.5 is added to every outcome"),
    (testing.assert_scale_equivariant, leave_one_out, normalized, {}, "not multiplied by 3"),
    (testing.assert_scale_invariant, normalized, squared, {}, "multiplied by 3"),
    (testing.assert_telescopes, at_the_end, reinforce, {}, r"do not sum to outcome - baseline"),
    (testing.assert_telescopes, shared_out, forgets_one_action, {}, r"do not sum to outcome - baseline"),
    (testing.assert_sums_preserved, shared_out, reinforce, {"reference": at_the_end}, "do not sum to the reference's"),
    (testing.assert_sign_preserved, normalized, turned_around, {}, "opposite sign"),
    (testing.assert_sign_preserved, shared_out, turned_around, {"reference": reinforce}, "opposite sign"),
    (testing.assert_bounded, normalized, reinforce, {"bound": 2**0.5}, "beyond 1.41"),
    (testing.assert_causal, value_gain, looks_two_ahead, {}, "only later tokens decide"),
    (testing.assert_causal, value_gain, reinforce, {}, "only later tokens decide"),
]


@pytest.mark.parametrize(("assertion", "right", "broken", "options", "words"), TWINS)
def test_holds_for_the_right_one_and_fails_on_its_twin(assertion, right, broken, options, words):
    assertion(right, **options)
    with pytest.raises(AssertionError, match=words) as caught:
        assertion(broken, **options)
    assert f"estimator: {broken.__name__}" in str(caught.value)
    assert "found: " in str(caught.value) and "wanted: " in str(caught.value)


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "greedy_outcome"])
def test_telescoping_to_a_baseline(baseline):
    def subtracts(batch):
        count = np.maximum(np.isfinite(batch.outcome).sum(1, keepdims=True), 1)
        score = np.where(np.isfinite(batch.outcome), batch.outcome, 0.0)
        b = {
            "mean": lambda: score.sum(1, keepdims=True) / count,
            "leave_one_out": lambda: np.where(
                count > 1, (score.sum(1, keepdims=True) - score) / np.maximum(count - 1, 1), score
            ),
            "greedy_outcome": lambda: batch.signals["greedy_outcome"][:, None],
        }[baseline]()
        last = batch.action_mask & (np.cumsum(batch.action_mask, -1) == batch.action_mask.sum(-1, keepdims=True))
        return np.where(last, np.where(np.isfinite(batch.outcome), score - b, 0.0)[..., None], 0.0)

    def batches(seed):
        # Who does not act does not vote, which the estimator above leaves out of account.
        return testing.random_batch(seed, needs=("greedy_outcome",), degenerate=False)

    testing.assert_telescopes(subtracts, baseline=baseline, batches=batches)
    with pytest.raises(AssertionError, match="do not sum"):
        testing.assert_telescopes(subtracts, batches=batches)


def test_recipes_have_the_laws_that_are_theirs():
    testing.assert_shift_invariant(recipe("grpo").estimator)
    testing.assert_scale_invariant(recipe("grpo").estimator)
    testing.assert_scale_equivariant(recipe("rloo").estimator)
    testing.assert_bounded(recipe("grpo").estimator, (3 - 1) / 3**0.5)
    # Temporal differences with a critic sum to the outcome minus its first value.
    differences = chain(rewards(), gae(lam=0.0))
    testing.assert_telescopes(differences, baseline="value")
    testing.assert_shift_invariant(differences)
    testing.assert_causal(differences)
    with pytest.raises(AssertionError, match="only later"):
        testing.assert_causal(chain(rewards(), gae(lam=1.0)))


def shapley(batch):
    """Each agent's mean contribution over the orders in which three can come."""
    v = np.nan_to_num(batch.signals["coalition_value"])
    share = np.zeros((*batch.outcome.shape, 3))
    for order in itertools.permutations(range(3)):
        there = 0
        for agent in order:
            share[..., agent] += (v[..., there | 1 << agent] - v[..., there]) / 6
            there |= 1 << agent
    return by_agent(batch, share)


def alone(batch):
    """What each agent brings when it comes first: not efficient."""
    v = np.nan_to_num(batch.signals["coalition_value"])
    return by_agent(batch, np.stack([v[..., 1 << n] - v[..., 0] for n in range(3)], -1))


def in_order(batch):
    """What each brings in the order of their numbers: efficient, not symmetric."""
    v = np.nan_to_num(batch.signals["coalition_value"])
    return by_agent(batch, np.stack([v[..., (2 << n) - 1] - v[..., (1 << n) - 1] for n in range(3)], -1))


def equal_parts(batch):
    """The whole in equal parts: who adds nothing gets his."""
    v = np.nan_to_num(batch.signals["coalition_value"])
    return by_agent(batch, np.repeat((v[..., -1:] - v[..., :1]) / 3, 3, -1))


def by_agent(batch, share):
    agent = batch.signals["agent"]
    chosen = np.take_along_axis(share, np.maximum(agent, 0), -1)
    return np.where(batch.action_mask & (agent >= 0), chosen, 0.0).astype(np.float32)


@pytest.mark.parametrize(
    ("assertion", "broken", "words"),
    [
        (testing.assert_efficient, alone, r"sum to v\(all\) - v\(none\)"),
        (testing.assert_symmetric, in_order, "add the same get different credit"),
        (testing.assert_null_player, equal_parts, "adds nothing gets credit"),
    ],
)
def test_shapley_axioms(assertion, broken, words):
    assertion(recipe("shapley_exact").estimator)
    assertion(shapley)
    with pytest.raises(AssertionError, match=words) as caught:
        assertion(broken)
    assert "coalition_value: " in str(caught.value) or "found: " in str(caught.value)
