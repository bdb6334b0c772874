"""Functions of flat rows under the assertions: what they are given, what they may return, what is found."""

import numpy as np
import pytest

import creditjax
from creditjax import testing


def leave_one_out(rows):
    """Of consecutive groups, as many trainers have it."""
    score = rows.outcome.reshape(-1, rows.group_size)
    others = score.sum(axis=1, keepdims=True) - score
    return (score - others / (rows.group_size - 1)).reshape(-1)


def normalized(rows):
    score = rows.outcome.reshape(-1, rows.group_size)
    return ((score - score.mean(axis=1, keepdims=True)) / (score.std(axis=1, ddof=1, keepdims=True) + 1e-6)).reshape(-1)


def tidy(seed):
    return testing.random_batch(seed, (4, 3, 6), degenerate=False, hostile=False)


def test_rows_are_those_of_the_batch():
    batch = testing.random_batch(1, (2, 3, 5), needs=("value", "greedy_outcome"), degenerate=False)
    seen = []

    def look(rows):
        seen.append(rows)
        return np.zeros(6)

    credit = testing.foreign(look, needs=("value", "greedy_outcome"))(batch)
    (rows,) = seen
    assert credit.shape == (2, 3, 5)
    np.testing.assert_array_equal(rows.value, batch.signals["value"].reshape(6, 5))
    np.testing.assert_array_equal(rows.greedy_outcome, np.repeat(batch.signals["greedy_outcome"], 3))
    np.testing.assert_array_equal(rows.group_ids, [0, 0, 0, 1, 1, 1])
    np.testing.assert_allclose(rows.reward.sum(axis=1), rows.outcome)
    assert (rows.reward != 0).sum(axis=1).max() <= 1 and (rows.reward[~rows.action_mask] == 0).all()
    with pytest.raises(AttributeError, match="rows have no logprob; name it in `needs`"):
        _ = rows.logprob


def test_advantages_of_rows_go_to_acted_positions():
    batch = tidy(0)
    wanted = creditjax.estimate(creditjax.recipe("rloo").estimator, batch).value
    np.testing.assert_allclose(testing.foreign(leave_one_out)(batch), wanted, atol=2e-6)


def test_assertions_hold_and_fail_as_they_should():
    theirs = testing.foreign(leave_one_out, name="theirs")
    testing.assert_unbiased(theirs)
    testing.assert_shift_invariant(theirs, batches=tidy)
    biased = testing.foreign(normalized)
    with pytest.raises(AssertionError, match=r"assert_unbiased_up_to_scale(.|\n)*normalized"):
        testing.assert_unbiased_up_to_scale(biased)
    with pytest.raises(AssertionError, match="credit is not finite"):
        testing.assert_finite(theirs)
    with pytest.raises(AssertionError, match="JAX cannot trace it"):
        testing.assert_gradient_stopped(theirs, batches=tidy)


def test_idle_rollouts_can_be_left_out():
    batch = tidy(3)
    mask = np.array(batch.action_mask)
    mask[0, 1] = False
    batch = batch.replace(action_mask=mask)
    sizes = []

    def count(rows):
        sizes.append(np.bincount(rows.group_ids).tolist())
        return np.ones(len(rows.group_ids))

    credit = testing.foreign(count, skip_idle=True)(batch)
    assert sizes == [[2, 3, 3, 3]]
    np.testing.assert_array_equal(credit, mask.astype(float))
    assert not testing.foreign(count, skip_idle=True)(batch.replace(action_mask=np.zeros_like(mask))).any()


def test_jax_functions_and_wrong_answers():
    made = testing.foreign(lambda rows: (rows.reward.cumsum(axis=1), "aux"), arrays="jax")(tidy(0))
    assert made.shape == (4, 3, 6) and made.dtype == np.float32
    with pytest.raises(ValueError, match=r"returned \[12, 1\], wanted \[12, 6\] or 12"):
        testing.foreign(lambda rows: rows.outcome[:, None])(tidy(0))
    with pytest.raises(ValueError, match="arrays: 'tf', wanted"):
        testing.foreign(leave_one_out, arrays="tf")
