"""validate() lists every fault with its place."""

import numpy as np
import pytest

from creditjax.trajectory import Trajectory
from creditjax.validation import check, validate


def batch(**changes):
    shape = (2, 2, 3)
    base = dict(
        tokens=np.zeros(shape, int),
        action_mask=np.ones(shape, bool),
        outcome=np.zeros(shape[:2]),
        reward=np.zeros(shape),
        logprob=np.full(shape, -1.0),
        segment=np.zeros(shape, int),
        num_segments=2,
    )
    return Trajectory(**{**base, **changes})


def at(shape, index, value, fill=0.0):
    x = np.full(shape, fill)
    x[index] = value
    return x


def test_a_sound_batch_has_no_fault():
    assert validate(batch()) == []


@pytest.mark.parametrize(
    ("changes", "field", "index"),
    [
        (dict(reward=at((2, 2, 3), (0, 1, 2), np.nan)), "reward", (0, 1, 2)),
        (dict(logprob=at((2, 2, 3), (1, 0, 0), 0.5, -1.0)), "logprob", (1, 0, 0)),
        (dict(outcome=at((2, 2), (1, 1), np.inf)), "outcome", (1, 1)),
        (dict(segment=at((2, 2, 3), (0, 0, 1), 2).astype(int)), "segment", (0, 0, 1)),
        (dict(signals={"value": at((2, 2, 3), (0, 0, 0), np.inf)}), "value", (0, 0, 0)),
        (dict(signals={"process_reward": at((2, 2, 2), (0, 0, 1), np.inf)}), "process_reward", (0, 0, 1)),
        (dict(outcome=np.array([[np.nan, np.nan], [1.0, 0.0]])), "votes", (0,)),
        (
            dict(terminated=np.ones((2, 2, 3), bool), truncated=at((2, 2, 3), (1, 1, 1), 1).astype(bool)),
            "terminated",
            (1, 1, 1),
        ),
    ],
)
def test_a_fault_is_found_where_it_is(changes, field, index):
    found = validate(batch(**changes))
    assert [(fault.field, fault.index) for fault in found] == [(field, index)]
    with pytest.raises(ValueError, match=field):
        check(batch(**changes))


@pytest.mark.parametrize("empty", [(0, 2, 3), (2, 0, 3), (2, 2, 0)])
def test_an_empty_axis_is_a_fault(empty):
    nothing = Trajectory(np.zeros(empty, int), np.zeros(empty, bool), np.zeros(empty[:2]))
    assert [str(fault) for fault in validate(nothing)] == [
        f"tokens: shape {list(empty)}, wanted at least one prompt, rollout and position"
    ]


def test_rows_of_one_rollout_have_one_outcome():
    outcome = np.array([[1.0, 0.5, 1.0], [np.nan, np.nan, 2.0]])
    tree = dict(tokens=np.zeros((2, 3, 2), int), action_mask=np.ones((2, 3, 2), bool), outcome=outcome)
    found = validate(Trajectory(**tree, trajectory=np.array([[4, 4, 4], [4, 4, 5]])))
    assert [(fault.field, fault.index, fault.found) for fault in found] == [("outcome", (0, 1), "0.5")]
    # A row that takes no part says nothing about the rollout.
    votes = np.array([[True, False, True], [True, True, True]])
    assert validate(Trajectory(**tree, trajectory=np.array([[4, 4, 4], [4, 4, 5]]), votes=votes)) == []


def test_segments_do_not_go_back_where_the_policy_acted():
    segment = np.array([[[0, 1, 0], [1, 0, 1]], [[1, -1, 1], [0, 0, 1]]])
    mask = np.ones((2, 2, 3), bool)
    mask[0, 1, 1] = False
    found = validate(batch(segment=segment, action_mask=mask))
    assert [(fault.field, fault.index) for fault in found] == [("segment", (0, 0, 2))]


def test_what_lies_under_the_mask_and_what_was_never_evaluated_is_no_fault():
    mask = np.ones((2, 2, 3), bool)
    mask[0, 0, 0] = False
    dirty = at((2, 2, 3), (0, 0, 0), np.nan)
    missing = {"process_reward": at((2, 2, 2), (0, 0, 1), np.nan)}
    assert validate(batch(action_mask=mask, reward=dirty, logprob=dirty - 1, signals=missing)) == []


def test_many_faults_are_counted():
    found = validate(batch(reward=np.full((2, 2, 3), np.nan)))
    assert len(found) == 9 and "4 more" in str(found[-1])


def test_a_batch_that_acts_nowhere_is_a_fault():
    batch = Trajectory(tokens=np.zeros((1, 2, 3), int), action_mask=np.zeros((1, 2, 3), bool), outcome=np.zeros((1, 2)))
    assert [str(fault) for fault in validate(batch)] == [
        "action_mask: False everywhere, wanted True where the policy acted"
    ]
