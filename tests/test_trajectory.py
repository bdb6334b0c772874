"""The Trajectory, its signal table, voting, segments."""

import importlib.util
import re

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import segments as cutting
from creditjax import trajectory as tj


def batch(p=2, g=3, t=4, **fields):
    base = dict(tokens=np.zeros((p, g, t), int), action_mask=np.ones((p, g, t), bool), outcome=np.zeros((p, g)))
    return tj.Trajectory(**{**base, **fields})


def test_is_a_pytree_with_named_paths_and_static_segments():
    b = batch(segment=np.zeros((2, 3, 4), int), num_segments=2, signals={"value": np.ones((2, 3, 4))})
    names = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(b)}
    assert names == {".tokens", ".action_mask", ".outcome", ".segment", ".signals['value']"}
    doubled = jax.tree.map(lambda x: x, b)
    assert doubled.num_segments == 2 and doubled.reward is None


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.ones((2, 3), bool), "float32"),
        (np.ones((2, 3), int), "float32"),
        (jnp.ones((2, 3), jnp.bfloat16), "float32"),
    ],
)
def test_outcomes_of_any_number_type_become_float32(value, dtype):
    assert batch(outcome=value).outcome.dtype == dtype


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(action_mask=np.ones((2, 3, 5), bool)), r"action_mask: shape \[2, 3, 5\], wanted \[2, 3, T=4\]"),
        (dict(outcome=np.zeros((2, 3, 4))), r"outcome: shape \[2, 3, 4\], wanted \[2, 3\]"),
        (dict(signals={"greedy_outcome": np.zeros((2, 3))}), r"greedy_outcome: shape \[2, 3\], wanted \[2\]"),
        (
            dict(signals={"process_reward": np.zeros((2, 3, 7))}),
            r"process_reward: shape \[2, 3, 7\], wanted \[2, 3, K=0\]",
        ),
        (dict(segment=np.zeros((2, 3, 4), int)), "num_segments"),
        (dict(tokens=None), "Trajectory needs tokens"),
    ],
)
def test_what_does_not_fit_is_named_with_found_and_wanted(fields, said):
    with pytest.raises(ValueError, match=said):
        batch(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(tokens=np.zeros((2, 3, 4))), "tokens: dtype float64, wanted int32"),
        (dict(action_mask=np.ones((2, 3, 4), int)), "action_mask: dtype int64, wanted bool"),
        (dict(signals=None), "signals: NoneType, wanted a mapping"),
        (dict(signals=[1]), "signals: list, wanted a mapping"),
        (dict(signals={"value": None}), "value: None, wanted float32; leave an absent signal out"),
        (dict(num_segments=2.0), "num_segments: 2.0, wanted a Python int"),
        (dict(num_segments=True), "num_segments: True, wanted a Python int"),
        (dict(num_segments=jnp.int32(2)), "num_segments: .*, wanted a Python int"),
        (dict(outcome=np.zeros((2, 3), complex)), "outcome: dtype complex128, wanted float32"),
    ],
)
def test_wrong_dtypes_are_refused(fields, said):
    with pytest.raises(TypeError, match=said):
        batch(**fields)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (dict(tokens=np.full((2, 3, 4), 2**31)), r"tokens: value 2147483648, wanted int32, in -2147483648..2147483647"),
        (dict(trajectory=np.array([[0, 1, 2], [0, 1, -(2**40)]])), "trajectory: value -1099511627776"),
        (dict(tokens=np.full((2, 3, 4), 2**32 - 1, np.uint32)), "tokens: value 4294967295"),
        (
            dict(signals={"state_key": np.full((2, 3, 2), 2**63, np.uint64)}, num_segments=2),
            "state_key: value 9223372036854775808",
        ),
    ],
)
def test_integers_that_would_wrap_are_refused(fields, said):
    with pytest.raises(ValueError, match=said):
        batch(**fields)


def test_wide_integers_that_fit_are_stored_as_they_are():
    ends = np.array([[0, 1, 2**31 - 1], [0, 1, -(2**31)]])
    np.testing.assert_array_equal(batch(trajectory=ends).trajectory, ends)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("done", "terminated"),
        ("mask", "action_mask"),
        ("process_rewards", "did you mean process_reward"),
        ("rmask", "called 'read_mask' here"),
        ("zzz", "declare_signal"),
    ],
)
def test_unknown_and_ambiguous_signals_are_refused_with_a_hint(name, said):
    with pytest.raises(KeyError, match=said):
        batch(signals={name: np.zeros((2, 3, 4))})


def test_a_declared_signal_rides_along_and_cannot_change_its_meaning():
    spec = tj.SignalSpec(("P", "G", "T"), "float32", "mine", "me")
    tj.declare_signal("my_signal", spec)
    tj.declare_signal("my_signal", spec)
    try:
        assert batch(signals={"my_signal": np.zeros((2, 3, 4))}).get("my_signal").shape == (2, 3, 4)
        with pytest.raises(ValueError, match="declared already"):
            tj.declare_signal("my_signal", spec._replace(meaning="other"))
        with pytest.raises(ValueError, match="field"):
            tj.declare_signal("reward", spec)
    finally:
        del tj.SIGNALS["my_signal"]


def test_no_signal_is_named_like_a_field_or_ambiguously():
    assert not set(tj.SIGNALS) & (set(tj.FIELDS) | set(tj.AMBIGUOUS))


def test_who_votes():
    mask = np.array([[[1, 1], [0, 0], [1, 0], [1, 1]]], bool)
    b = batch(1, 4, 2, action_mask=mask, outcome=np.array([[1.0, 1.0, np.nan, 0.0]]))
    assert tj.vote_mask(b).tolist() == [[True, False, False, True]]
    # The caller's flags replace the mask: a response without loss tokens may vote, an infrastructure failure must not.
    b = b.replace(votes=np.array([[True, True, True, False]]))
    assert tj.vote_mask(b).tolist() == [[True, True, False, False]]


def test_rows_of_one_rollout_share_a_vote():
    b = batch(1, 4, 2, trajectory=np.array([[7, 7, 7, 9]]))
    np.testing.assert_allclose(tj.vote_weight(b), [[1 / 3, 1 / 3, 1 / 3, 1]], rtol=1e-6)


def test_last_action_and_segment_mask():
    mask = np.array([[[1, 0, 1, 0]]], bool)
    segment = np.array([[[0, 1, 2, 2]]])
    b = batch(1, 1, 4, action_mask=mask, segment=segment, num_segments=4)
    assert tj.last_action(b).tolist() == [[[False, False, True, False]]]
    assert tj.segment_mask(b).tolist() == [[[True, False, True, False]]]


def test_segments():
    member = jnp.array([1, 1, 0, 1, 1, 1], bool)
    starts = jnp.array([0, 1, 1, 1, 0, 1], bool)
    assert cutting.segments_from_starts(starts, member, 9).tolist() == [0, 0, -1, 1, 1, 2]
    assert cutting.segments_from_starts(starts, member, 2).tolist() == [0, 0, -1, 1, 1, 1]
    tokens = jnp.array([5, 9, 9, 5, 9, 5])
    assert cutting.segments_from_separators(tokens, member, [9], 9).tolist() == [0, 0, -1, 1, 1, 2]
    assert cutting.segments_of_length(member, 2, 9).tolist() == [0, 0, -1, 1, 1, 2]
    with pytest.raises(ValueError, match="length: 0"):
        cutting.segments_of_length(member, 0, 9)


def test_every_producer_that_is_named_as_a_module_is_one():
    for producer in re.findall(r"creditjax[.\w]+", " ".join(spec.producer for spec in tj.SIGNALS.values())):
        module, _, name = producer.rpartition(".")
        assert hasattr(importlib.import_module(module), name) or importlib.util.find_spec(producer), producer


@pytest.mark.parametrize(
    ("signals", "said"),
    [
        ({"budget": (1, 1), "summary_reward": (1, 2, 3, 1)}, "summary_reward: B = 3, wanted 1 as in budget"),
        (
            {"judge_verdict": (1, 2, 1), "judge_grad_dot_emb": (1, 2, 3, 2)},
            "judge_verdict: V = 1, wanted 2 as in judge_",
        ),
        ({"call_similarity": (1, 2, 3, 2), "call_turn": (1, 2, 4)}, "call_turn: Q = 4, wanted 3 as in call_similarity"),
    ],
)
def test_signals_agree_in_the_axes_that_they_share(signals, said):
    arrays = {name: np.zeros(shape, tj.signal_spec(name).dtype) for name, shape in signals.items()}
    with pytest.raises(ValueError, match=said):
        tj.Trajectory(
            tokens=np.zeros((1, 2, 3), int), action_mask=np.ones((1, 2, 3), bool), outcome=[[0, 1]], signals=arrays
        )
