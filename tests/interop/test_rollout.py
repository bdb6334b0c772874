"""The record of a rollout: what it takes, what it refuses and in which words, and what equality means."""

import math

import numpy as np
import pytest

from creditjax.interop import Message, Rollout, Signal

PLAIN = {
    "id": "a",
    "group": "q",
    "pieces": ["two", " plus", " two"],
    "segment": [0, 1, 1],
    "roles": ["assistant", "tool"],
    "outcome": 1,
}


def test_defaults_say_that_the_policy_wrote_everything_in_one_turn():
    rollout = Rollout(id="a", group="q", pieces=("x", "y"))
    assert rollout.action_mask.tolist() == [True, True] and rollout.segment.tolist() == [0, 0]
    assert rollout.roles == ("assistant",) and math.isnan(rollout.outcome) and rollout.end == "unknown"
    assert (rollout.length, rollout.num_segments, rollout.text) == (2, 1, "xy")
    assert Rollout(id="a", group="q", pieces=()).num_segments == 0


def test_arrays_have_their_types_and_cannot_be_written_to():
    given = np.array([0.5, 0.25, 0.0])
    rollout = Rollout(**PLAIN, reward=given, tokens=[7, 8, 9], logprob=[-1, -2, -3])
    assert (rollout.reward.dtype, rollout.tokens.dtype) == (np.float32, np.int32)
    with pytest.raises(ValueError):
        rollout.reward[0] = 1.0
    given[0] = 3.0
    assert rollout.reward[0] == 0.5


def test_messages_are_the_prompt_and_what_each_segment_said():
    rollout = Rollout(**PLAIN, prompt=[("user", "2+2?")])
    assert rollout.messages() == [Message("user", "2+2?"), Message("assistant", "two"), Message("tool", " plus two")]


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        ({"id": 3}, TypeError, "id: 3, wanted a string"),
        ({"group": None}, TypeError, "group: None, wanted a string"),
        ({"pieces": "text"}, TypeError, "pieces: 'text', wanted a list of strings"),
        ({"pieces": ["a", 1, "b"]}, TypeError, r"pieces\[1\]: 1, wanted a string"),
        ({"pieces": ["a", "\ud83d", "\ude00"]}, ValueError, r"pieces\[1\]: the lone surrogate"),
        ({"prompt": [{"role": "user"}]}, TypeError, r"prompt\[0\]: dict, wanted a message"),
        ({"outcome": "1"}, TypeError, "outcome: '1', wanted a number"),
        ({"outcome": math.inf}, ValueError, "outcome: inf, wanted a finite float32"),
        ({"outcome": 1e39}, ValueError, r"outcome: 1e\+39, wanted a finite float32"),
        ({"outcome": 10**400}, ValueError, "outcome: 1000.*wanted one finite float32"),
        ({"action_mask": [1, 0, 1]}, TypeError, "action_mask: dtype int64, wanted bool"),
        ({"action_mask": [True]}, ValueError, r"action_mask: shape \[1\], wanted \[T=3\]"),
        ({"segment": [0, 2, 2]}, ValueError, r"segment: 2, wanted -1 or a segment in 0..1 \(there are 2 roles\)"),
        ({"segment": [-2, 0, 1]}, ValueError, "segment: -2, wanted -1"),
        ({"segment": [1, 1, 0]}, ValueError, "segment: 0 after 1, wanted segments in the order"),
        ({"segment": None}, ValueError, "roles: given without `segment`"),
        ({"tokens": [1.0, 2.0, 3.0]}, TypeError, "tokens: dtype float64, wanted int32"),
        ({"tokens": [1, 2, 2**31]}, ValueError, "tokens: 2147483648, wanted int32"),
        ({"reward": [0, math.nan, 0]}, ValueError, "reward: nan at 1, wanted finite numbers"),
        ({"reward": [[0], [1, 2], []]}, ValueError, "reward: ragged or no numbers"),
        ({"segment_reward": [1, 2, 3]}, ValueError, r"segment_reward: shape \[3\], wanted \[K=2\]"),
        ({"segment_reward": [1, math.inf]}, ValueError, "segment_reward: infinite"),
        ({"logprob": [0, -1, 0.5]}, ValueError, "logprob: 0.5 at 2, wanted a finite log-probability, at most 0"),
        ({"logprob": [0, -1, 1e39]}, ValueError, r"logprob: 1e\+39 at 2, wanted numbers that float32 can hold"),
        ({"unit": "line"}, ValueError, "unit: 'line', wanted one of turn, step"),
        ({"end": "done"}, ValueError, "end: 'done', wanted one of unknown, terminated, truncated"),
        ({"signals": {"x": [1, 2, 3]}}, TypeError, r"signals\['x'\]: list, wanted Signal"),
        ({"signals": {"x": (("T",), ["a", "b", "c"])}}, TypeError, r"signals\['x'\]: dtype <U1, wanted float32"),
        ({"signals": {"x": (("K+1",), [1, 2])}}, ValueError, r"signals\['x'\]: shape \[2\], wanted \[K\+1=3\]"),
        ({"signals": {"x": (("M",), [1]), "y": (("M",), [1, 2])}}, ValueError, r"signals\['y'\]: shape \[2\].*M=1"),
        ({"signals": {"x": (("M", "M"), [[1, 2]])}}, ValueError, "axis M of 2 and of 1, wanted one size"),
        ({"meta": {"a": math.nan}}, ValueError, r"meta\['a'\]: nan, wanted a finite number"),
        ({"meta": {"a": {1: 2}}}, TypeError, r"meta\['a'\] \(a key\): 1, wanted a string"),
        ({"meta": {"a": object()}}, TypeError, r"meta\['a'\]: object, wanted a JSON value"),
        ({"meta": []}, TypeError, "meta: list, wanted a mapping"),
    ],
    ids=lambda value: str(next(iter(value))) if isinstance(value, dict) else None,
)
def test_bad_fields_are_named_with_what_was_found_and_what_was_wanted(change, error, said):
    with pytest.raises(error, match=said):
        Rollout(**{**PLAIN, **change})


def test_meta_that_is_nested_without_end_is_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(ValueError, match="nested deeper than 64"):
        Rollout(**PLAIN, meta={"a": endless})


def test_equality_tells_bits_apart_and_nothing_else():
    rollout = Rollout(**PLAIN, reward=[0.0, 1.0, 2.0], signals={"x": Signal(("T",), [math.nan, 1.0, 2.0])})
    assert rollout == rollout.replace()
    assert rollout != rollout.replace(reward=[-0.0, 1.0, 2.0])
    assert rollout != rollout.replace(reward=None) and rollout != rollout.replace(outcome=math.nan)
    assert rollout != rollout.replace(signals={"x": Signal(("T",), [0, 1, 2])}) and rollout != "a"
    assert rollout.replace(outcome=math.nan) == rollout.replace(outcome=-math.nan)
    positive, negative = np.float32([1.0, math.nan, 2.0]), np.float32([1.0, math.nan, 2.0])
    negative[1] = np.copysign(np.float32(math.nan), np.float32(-1))  # what 0 / 0 is on many machines
    assert np.signbit(negative[1]) != np.signbit(positive[1])
    for name in ("signals", "logprob"):
        made = [
            rollout.replace(signals={"x": Signal(("T",), x)})
            if name == "signals"
            else rollout.replace(logprob=np.where(np.isnan(x), x, -x), action_mask=[True, False, True])
            for x in (positive, negative)
        ]
        assert made[0] == made[1]


def test_strings_of_numpy_become_strings():
    rollout = Rollout(**{**PLAIN, "pieces": np.array(PLAIN["pieces"])})
    assert set(map(type, rollout.pieces)) == {str} and rollout == Rollout(**PLAIN)


def test_what_was_acted_on_has_a_log_probability_and_the_rest_need_not():
    masked = {**PLAIN, "action_mask": [True, False, True]}
    assert np.isnan(Rollout(**masked, logprob=[0, math.nan, -1]).logprob[1])
