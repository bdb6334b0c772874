"""Every assertion passes for a right estimator and fails, in the right words, for one built to break it."""

import numpy as np
import pytest
from testing_twins import at_the_end, leave_one_out, normalized, reinforce, score, spread, votes

from creditjax import recipe, testing

RIGHT = [leave_one_out, recipe("rloo").estimator]


def leaks_outside_the_mask(batch):
    return np.broadcast_to(score(batch)[..., None], batch.tokens.shape)


def divides_by_a_bare_std(batch):
    with np.errstate(all="ignore"):
        return spread(batch, score(batch) / score(batch).std(1, keepdims=True))


def divides_by_the_group_size(batch):
    # Rows that hold nothing are counted.
    return spread(batch, score(batch) - score(batch).sum(1, keepdims=True) / batch.outcome.shape[1])


def divides_by_the_length(batch):
    return (reinforce(batch) / batch.length).astype(np.float32)


def likes_the_first_rollout(batch):
    return spread(batch, score(batch) - score(batch)[:, :1])


def weighs_prompts_by_place(batch):
    return spread(batch, score(batch) * (1 + np.arange(len(batch.outcome)))[:, None])


def discounts_by_place(batch):
    return reinforce(batch) * np.float32(0.9) ** np.arange(batch.length)


def centres_over_the_batch(batch):
    return spread(batch, score(batch) - score(batch).sum() / max(votes(batch).sum(), 1))


TWINS = [
    (testing.assert_zero_outside_mask, leaks_outside_the_mask, "not 0 outside action_mask"),
    (testing.assert_finite, divides_by_a_bare_std, "not finite"),
    (testing.assert_padding_invariant, divides_by_the_group_size, "padded"),
    (testing.assert_padding_invariant, divides_by_the_length, "padded"),
    (testing.assert_permutation_equivariant, likes_the_first_rollout, "order of the rollouts"),
    (testing.assert_permutation_equivariant, weighs_prompts_by_place, "order of the prompts"),
    (testing.assert_expansion_invariant, discounts_by_place, "observed positions are inserted"),
    (testing.assert_prompt_independent, centres_over_the_batch, "with the other prompts"),
    (testing.assert_micro_batches_agree, centres_over_the_batch, "one at a time"),
]


@pytest.mark.parametrize(("assertion", "broken", "words"), TWINS, ids=lambda x: getattr(x, "__name__", ""))
def test_fails_on_its_twin(assertion, broken, words):
    with pytest.raises(AssertionError, match=words) as caught:
        assertion(broken)
    message = str(caught.value)
    assert message.startswith(f"{assertion.__name__}: ")
    for said in (
        f"estimator: {broken.__name__}",
        "seed: ",
        "smallest failing batch: ",
        "outcome: ",
        "found: ",
        "wanted: ",
    ):
        assert said in message


@pytest.mark.parametrize("estimator", RIGHT, ids=["function", "transform"])
@pytest.mark.parametrize("assertion", sorted({row[0] for row in TWINS}, key=lambda f: f.__name__))
def test_holds_for_leave_one_out(assertion, estimator):
    assertion(estimator)


@pytest.mark.parametrize("estimator", [reinforce, normalized, at_the_end])
def test_holds_for_what_the_other_tests_call_right(estimator):
    for assertion in {row[0] for row in TWINS}:
        assertion(estimator)


def test_padding_leaves_signals_without_axes_alone():
    testing.assert_padding_invariant(recipe("reinforce_baseline").estimator, seeds=[0])


def test_the_counterexample_is_small():
    with pytest.raises(AssertionError, match="1 prompts, 1 rollouts, 2 positions"):
        testing.assert_zero_outside_mask(leaks_outside_the_mask)
    with pytest.raises(AssertionError, match="2 prompts, 1 rollouts, 1 positions"):
        testing.assert_prompt_independent(centres_over_the_batch)


def test_a_transform_is_shown_as_it_would_be_written():
    with pytest.raises(AssertionError, match=r"chain\(outcome\(\), group_normalize\(.*") as caught:
        testing.assert_scale_equivariant(recipe("grpo").estimator, seeds=[2])
    assert "seed: 2" in str(caught.value)


def test_whatever_has_not_the_form_of_credit_is_refused():
    with pytest.raises(ValueError, match=r"returned \[8, 3\], wanted \[8, 3, 10\]"):
        testing.assert_finite(lambda batch: batch.outcome)
    with pytest.raises(TypeError, match="wanted a Transform or a function"):
        testing.assert_finite("rloo")
