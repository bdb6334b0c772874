"""The table of properties of one estimator."""

import re

import numpy as np
import pytest
from testing_twins import centred

from creditjax import recipe, testing


def test_says_what_holds_and_shows_what_does_not():
    claims = {
        "zero_outside_mask": {},
        "shift_invariant": {},
        "scale_invariant": {},
        "bounded": {"bound": 1e9},
        "unbiased": {},
        "efficient": {},
    }
    found = testing.check_all(recipe("dr_grpo").estimator, claims)
    assert list(found) == list(claims)
    assert found["zero_outside_mask"] == found["shift_invariant"] == found["bounded"] == "holds"
    assert found["scale_invariant"].startswith("does not hold: credit changes when outcomes are multiplied by 3 (found")
    assert found["unbiased"].startswith("does not hold: biased by 0.25 of the exact gradient")


def test_without_claims_it_asks_what_can_be_asked():
    found = testing.check_all(centred)
    left_out = {"bounded", "sums_preserved", "variance_at_most", "efficient", "symmetric", "null_player"}
    assert set(found) == set(testing.PROPERTIES) - left_out
    assert found["padding_invariant"] == found["unbiased_up_to_scale"] == "holds"
    # Nothing is known of the gradient of a function of NumPy, but that it cannot be transformed.
    assert found["jit_vmap_agree"].startswith("does not hold: JAX cannot trace it")
    for name in ("gradient_stopped", "linear_cost", "sharding_agrees"):
        assert found[name].startswith("not checked: JAX cannot trace it")


def test_credit_that_is_not_finite_is_named_as_that():
    """What mishandles unscored rollouts alone is no estimator of the wrong sign."""

    def unscored(batch):
        return np.where(
            batch.action_mask, (batch.outcome - np.mean(batch.outcome, axis=1, keepdims=True))[..., None], 0.0
        )

    found = testing.check_all(unscored, ["finite", "sign_preserved", "micro_batches_agree", "shift_invariant"])
    assert found.pop("finite").startswith("does not hold: credit is not finite (found nan, wanted 0 at")
    for verdict in found.values():
        assert verdict.startswith("does not hold: credit is not finite, so that it cannot be said whether ")
        assert "(found nan, wanted a number at [" in verdict


def test_the_batch_that_is_shown_is_the_one_that_fails():
    def unscored(batch):
        there = np.isfinite(batch.outcome).any()
        return np.where(batch.action_mask, 0.0 if there else np.nan, 0.0)

    with pytest.raises(
        AssertionError, match=r"not finite with no outcome(.|\n)*smallest failing(.|\n)*outcome: \[\[nan"
    ):
        testing.assert_finite(unscored)


def test_questions_that_cannot_be_put():
    with pytest.raises(KeyError, match="wanted some of"):
        testing.check_all(centred, ["unbaised"])
    assert testing.check_all(centred, ["bounded"])["bounded"].startswith("not checked: ")

    def sees(batch):
        return centred(batch) * batch.signals["observation"].sum(-1)

    sees.needs = ("observation",)
    found = testing.check_all(sees, ["unbiased"])["unbiased"]
    assert found.startswith("not checked: ") and "not determined by the process" in found


def test_every_assertion_is_public_and_in_the_table():
    public = {name.removeprefix("assert_") for name in testing.__all__ if name.startswith("assert_")}
    assert public == set(testing.PROPERTIES)


def test_one_line_needs_no_smallest_batch():
    with pytest.raises(AssertionError, match="\n  smallest failing batch: 1 prompts, 2 rollouts, 1 positions"):
        testing.assert_scale_invariant(centred)
    with pytest.raises(AssertionError, match="\n  failing batch: 8 prompts, 3 rollouts, 10 positions"):
        testing.assert_scale_invariant(centred, shrink=False)
    assert re.search(r"found .*, wanted .* at \[", testing.check_all(centred, ["scale_invariant"])["scale_invariant"])
