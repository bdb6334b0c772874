"""Estimators that err in ways that an assertion must not pass over, and right ones that it must not accuse."""

import numpy as np
import pytest

from creditjax import testing


def leave_one_out(batch):
    size = batch.outcome.shape[1]
    others = (batch.outcome.sum(1, keepdims=True) - batch.outcome) / (size - 1)
    return np.where(batch.action_mask, (batch.outcome - others)[..., None], 0.0)


def test_numbers_that_are_none_in_one_game_alone_are_a_bias():
    def silent_in_one(batch):
        short = (batch.action_mask.sum(-1) == 1).any(1)[:, None, None]
        return np.where(short & batch.action_mask, np.nan, leave_one_out(batch))

    testing.assert_unbiased(leave_one_out)
    with pytest.raises(AssertionError, match="stopping"):
        testing.assert_unbiased(silent_in_one)


def test_an_estimator_that_writes_into_its_batch_is_judged_by_its_credit():
    def tidy(batch):
        known = np.nan_to_num(batch.outcome)
        made = np.where(batch.action_mask, (known - known.mean(1, keepdims=True))[..., None], 0.0)
        batch.outcome[:] = 0
        return made

    testing.assert_expansion_invariant(tidy)
    testing.assert_shift_invariant(tidy, batches=lambda seed: testing.random_batch(seed, degenerate=False))


def test_no_seeds_are_no_evidence():
    with pytest.raises(ValueError, match="seeds: none, wanted at least one"):
        testing.assert_finite(leave_one_out, seeds=())


def test_whatever_an_estimator_raises_is_a_reason():
    def broken(batch):
        raise IndexError

    verdicts = testing.check_all(broken, ("finite", "unbiased"))
    assert verdicts == {"finite": "not checked: IndexError", "unbiased": "not checked: IndexError"}


def test_integers_have_no_gradient_and_another_shape_is_an_error():
    def signs(batch):
        return batch.action_mask.astype(np.int32)

    testing.assert_gradient_stopped(signs)
    with pytest.raises(ValueError, match="returned"):
        testing.assert_jit_vmap_agree(lambda batch: batch.outcome)


def test_what_cannot_be_traced_is_said_so():
    def in_place(batch):
        made = np.zeros(batch.tokens.shape)
        made[batch.action_mask] = 1.0
        return made

    testing.assert_zero_outside_mask(in_place)
    with pytest.raises(AssertionError, match="JAX cannot trace it"):
        testing.assert_jit_vmap_agree(in_place)
