"""Packing flat rows into groups and back, padding, concatenating, slicing."""

from hypothesis import given
from hypothesis import strategies as st
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import packing
from creditjax.trajectory import Trajectory, vote_mask, vote_weight


def rows(n, t=3, **more):
    return Trajectory(
        tokens=np.arange(n * t).reshape(n, t),
        action_mask=np.ones((n, t), bool),
        outcome=np.arange(n, dtype=float),
        segment=np.zeros((n, t), int),
        num_segments=1,
        **more,
    )


ids = st.lists(st.integers(-3, 3).map(lambda i: i * 10**12), min_size=1, max_size=12)


@given(ids)
def test_every_row_comes_back_in_its_place_for_any_ids(group_ids):
    flat = rows(len(group_ids))
    batch, index = packing.pack(flat, group_ids, num_groups=7, group_size=12)
    assert batch.batch_shape == (7, 12)
    back = packing.unpack(batch.tokens, index)
    np.testing.assert_array_equal(back, flat.tokens)
    # Rows share a group exactly if they share an id, and groups come in order of first appearance.
    where = {int(row): p for p, group in enumerate(np.asarray(index)) for row in group if row >= 0}
    firsts = list(dict.fromkeys(group_ids))
    assert [firsts[where[i]] for i in range(len(group_ids))] == group_ids
    assert int(vote_mask(batch).sum()) == len(group_ids)


def test_an_empty_place_acts_nowhere_and_does_not_vote():
    batch, index = packing.pack(rows(3, trajectory=np.array([4, 4, 5])), [8, 8, -2])
    assert index.tolist() == [[0, 1], [2, -1]]
    assert not batch.action_mask[1, 1].any() and not batch.votes[1, 1] and batch.segment[1, 1].tolist() == [-1] * 3
    assert batch.trajectory[1, 1] != batch.trajectory[1, 0]


def test_overflow_raises_on_the_host_and_is_counted_in_the_jitted_core():
    with pytest.raises(ValueError, match="3 groups, num_groups is 2"):
        packing.pack(rows(4), [1, 2, 3, 3], num_groups=2)
    with pytest.raises(ValueError, match="group 3 has 2 rows, group_size is 1"):
        packing.pack(rows(4), [1, 2, 3, 3], group_size=1)
    index, overflow = packing.pack_index(jnp.array([1, 2, 3, 3]), 2, 1)
    assert index.tolist() == [[0], [1]] and int(overflow) == 2


@pytest.mark.parametrize("bad", [[1, 2], [1.0, 2.0, 3.0], [[1], [2], [3]]])
def test_ids_that_are_not_one_integer_a_row_are_refused(bad):
    with pytest.raises(ValueError, match="group_ids"):
        packing.pack(rows(3), bad)


def test_signals_per_prompt_and_shared_ones_follow_their_axes():
    flat = rows(3, signals={"greedy_outcome": np.array([0.1, 0.2, 0.1]), "running_baseline": np.float32(0.5)})
    batch, _ = packing.pack(flat, [5, 6, 5])
    np.testing.assert_allclose(batch.signals["greedy_outcome"], [0.1, 0.2])
    assert batch.signals["running_baseline"].shape == ()


def test_ragged_rows_are_padded():
    parts = [jax.tree.map(lambda x: x[0], rows(1, t)) for t in (2, 5)]
    batch, _ = packing.pack(parts, [0, 0])
    assert batch.tokens.shape == (1, 2, 5)
    assert batch.action_mask[0, 0].tolist() == [True, True, False, False, False]
    assert batch.segment[0, 0].tolist() == [0, 0, -1, -1, -1]


def test_pad_concatenate_slice():
    batch, _ = packing.pack(rows(4), [0, 0, 1, 1])
    assert packing.pad_positions(batch, 6).tokens.shape == (2, 2, 6)
    grown = packing.pad_rollouts(batch, 3, 4)
    assert grown.batch_shape == (3, 4) and int(vote_mask(grown).sum()) == 4
    both = packing.concatenate([batch, packing.pad_positions(batch, 5)])
    assert both.tokens.shape == (4, 2, 5)
    wide = packing.concatenate([batch, batch], "G")
    assert wide.batch_shape == (2, 4)
    np.testing.assert_array_equal(packing.slice_positions(batch, 1, 3).tokens, batch.tokens[..., 1:3])
    with pytest.raises(ValueError, match="length: 1"):
        packing.pad_positions(batch, 1)
    with pytest.raises(ValueError, match="carries other fields"):
        packing.concatenate([batch, batch.replace(reward=jnp.zeros(batch.tokens.shape))])


def test_along_g_rollouts_of_two_batches_stay_two():
    one, _ = packing.pack(rows(4, trajectory=np.array([7, 7, 2**31 - 1, -(2**31)])), [0, 0, 1, 1])
    both = packing.concatenate([one, one], "G")
    np.testing.assert_allclose(vote_weight(both), [[0.5] * 4, [1.0] * 4])
    assert packing.concatenate([one, one]).trajectory.tolist() == [*one.trajectory.tolist()] * 2


def test_what_has_no_such_axis_has_to_agree():
    batch, _ = packing.pack(
        rows(4, signals={"greedy_outcome": np.array([0.1, 0.1, np.nan, np.nan]), "running_baseline": np.float32(0.5)}),
        [0, 0, 1, 1],
    )
    other = batch.with_signals(greedy_outcome=np.array([0.1, 0.3]))
    assert packing.concatenate([batch, batch], "G").signals["greedy_outcome"].shape == (2,)
    with pytest.raises(ValueError, match="greedy_outcome: batches 0 and 1 differ, wanted the same, .*no axis G"):
        packing.concatenate([batch, other], "G")
    assert packing.concatenate([batch, other], "P").signals["greedy_outcome"].shape == (4,)
    with pytest.raises(ValueError, match="running_baseline: batches 0 and 2 differ"):
        packing.concatenate([batch, other, batch.with_signals(running_baseline=np.float32(0.6))])
    # Under jit there are no values to compare.
    assert jax.jit(lambda a, b: packing.concatenate([a, b], "G"))(batch, other).batch_shape == (2, 4)


def test_along_t_a_rollout_has_one_outcome_and_no_segments():
    batch, _ = packing.pack(rows(4).replace(segment=None, num_segments=0), [0, 0, 1, 1])
    assert packing.concatenate([batch, batch], "T").length == 6
    with pytest.raises(ValueError, match="outcome: batches 0 and 1 differ"):
        packing.concatenate([batch, batch.replace(outcome=batch.outcome + 1)], "T")
    with pytest.raises(ValueError, match="votes: batches 0 and 1 differ"):
        packing.concatenate([batch, batch.replace(votes=~batch.votes)], "T")
    cut, _ = packing.pack(rows(2), [0, 0])
    with pytest.raises(ValueError, match="segment: each batch counts its own"):
        packing.concatenate([cut, cut], "T")


def test_rows_of_a_group_agree_on_what_belongs_to_the_prompt():
    flat = rows(3, signals={"greedy_outcome": np.array([0.1, 0.2, 0.3])})
    with pytest.raises(
        ValueError, match="greedy_outcome: 0.1.* in row 0 and 0.3.* in row 2, wanted one value for group 5"
    ):
        packing.pack(flat, [5, 6, 5])
    loose = [
        jax.tree.map(lambda x: x[0], rows(1)).with_signals(running_baseline=np.float32(b)) for b in (0.5, 0.5, 0.7)
    ]
    assert packing.pack(loose[:2], [0, 1]).batch.signals["running_baseline"].shape == ()
    with pytest.raises(
        ValueError, match="running_baseline: 0.5 in row 0 and 0.* in row 2, wanted one value for the batch"
    ):
        packing.pack(loose, [0, 1, 2])


def test_a_trajectory_comes_back_with_all_its_signals():
    signals = {
        "greedy_outcome": np.array([0.1, 0.2, 0.1]),
        "running_baseline": np.float32(0.5),
        "value": np.arange(9.0).reshape(3, 3),
    }
    flat = rows(3, signals=signals)
    batch, index = packing.pack(flat, [5, 6, 5])
    back = packing.unpack({"batch": batch, "outcome": batch.outcome}, index)
    np.testing.assert_array_equal(back["outcome"], flat.outcome)
    for name in ("tokens", "outcome", "segment", *signals):
        np.testing.assert_array_equal(back["batch"].get(name), flat.get(name))


def test_unpack_names_what_was_not_packed_with_this_index():
    batch, index = packing.pack(rows(4), [0, 0, 1, 1])
    with pytest.raises(ValueError, match=r"tree\['x'\]: shape \[4, 3\], wanted \[2, 2\] in front"):
        packing.unpack({"x": np.zeros((4, 3))}, index)
    with pytest.raises(ValueError, match=r"tokens: shape \[2, 2, 3\], wanted \[4, 1\]"):
        packing.unpack(batch, index.reshape(4, 1))


def test_rows_that_are_no_trajectories_are_named():
    with pytest.raises(TypeError, match="rows: dict, wanted a Trajectory"):
        packing.pack([{"tokens": [1]}], [0])
