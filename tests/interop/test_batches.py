"""Groups of rollouts as batches, and credit back on their pieces."""

import pathlib
import time

import numpy as np
import pytest

import creditjax
from creditjax.interop import Rollout, Signal
from creditjax.interop import batches as module
from creditjax.interop.batches import batches, groups
from creditjax.interop.files import read
from creditjax.validation import validate

EXCERPT = pathlib.Path(__file__).parents[1] / "data" / "gsm8k_solutions_excerpt.jsonl"


def plain(i: int, group: str = "g", length: int = 3, **changes) -> Rollout:
    fields = {"id": str(i), "group": group, "pieces": tuple("abcdefgh"[i % 8] for _ in range(length)), "outcome": i % 2}
    return Rollout(**{**fields, **changes})


def turns(**changes) -> Rollout:
    """Assistant, tool, assistant: two, one and two positions."""
    fields = {
        "pieces": tuple("abcde"),
        "segment": [0, 0, 1, 2, 2],
        "action_mask": [True, True, False, True, True],
        "roles": ("assistant", "tool", "assistant"),
    }
    return plain(1, **{**fields, **changes})


def one(*rollouts: Rollout, **options) -> module.Batch:
    (batch,) = batches([list(rollouts)], positions=64, **options)
    assert not validate(batch.trajectory)
    return batch


def test_interleaved_groups_are_gathered_in_the_order_of_their_completion():
    rollouts = [plain(i, "abc"[i % 3]) for i in range(9)]
    assert [[r.id for r in group] for group in groups(rollouts)] == [list("036"), list("147"), list("258")]
    assert [
        r.group for group in groups([plain(0, "a"), *(plain(i, "b") for i in range(3))], window=2) for r in group
    ] == [*"abbb"]


def test_a_group_that_comes_back_too_late_is_an_error_and_not_two_groups():
    rollouts = [plain(0, "a"), plain(1, "b"), plain(2, "c"), plain(3, "a")]
    with pytest.raises(ValueError, match="group 'a': goes on more than 2 rollouts after its last"):
        list(groups(rollouts, window=2))
    assert len(list(groups(rollouts, window=3))) == 3
    with pytest.raises(ValueError, match="window: 0"):
        list(groups(rollouts, window=0))


def test_names_that_were_seen_are_known_beyond_every_merge():
    seen = module._Seen()
    for i in range(20_000):
        seen.add(str(i))
    assert sum(map(len, seen._runs)) + len(seen._fresh) == 20_000 and len(seen._runs) < 8
    assert all(str(i) in seen for i in range(0, 20_000, 37)) and not any(str(-i) in seen for i in range(1, 500))


def test_rows_hold_what_the_rollouts_say_and_the_rest_neither_acts_nor_votes():
    short = plain(0, length=2, tokens=[5, 6], logprob=[-1, -2], reward=[0, 0.5], end="truncated")
    long = plain(1, length=4, logprob=[-1, -2, -3, -4], reward=[0, 0, 0, 1], end="terminated")
    batch = one(short, long, plain(2, length=0, tokens=[], logprob=[], reward=[], end="terminated"))
    rows = batch.trajectory
    assert rows.tokens.shape == (1, 3, 32)
    assert rows.tokens[0, 0, :3].tolist() == [5, 6, 0]
    assert rows.action_mask.sum(-1)[0].tolist() == [2, 4, 0] and rows.votes[0].tolist() == [True, True, False]
    assert rows.reward[0, 1, :5].tolist() == [0, 0, 0, 1, 0] and rows.logprob[0, 0, :3].tolist() == [-1, -2, 0]
    assert np.argwhere(rows.truncated).tolist() == [[0, 0, 1]] and np.argwhere(rows.terminated).tolist() == [[0, 1, 3]]
    assert rows.signals["token_mask"].sum() == 6
    wider = one(*(plain(i) for i in range(5)))  # G is rounded up
    assert wider.trajectory.tokens.shape == (1, 6, 32)
    assert not wider.trajectory.votes[0, 5] and not wider.trajectory.action_mask[0, 5].any()


def test_segments_are_the_turns_of_the_policy_and_credit_comes_back_to_those_of_the_rollout():
    batch = one(turns(), turns())
    rows = batch.trajectory
    assert rows.segment[0, 0, :6].tolist() == [0, 0, -1, 1, 1, -1] and batch.segments[0][0].tolist() == [0, 2]
    value = np.arange(rows.segment[..., :1].size * rows.num_segments, dtype=np.float32)
    value = value.reshape(*rows.batch_shape, rows.num_segments)
    (rollout, first), (_, second) = batch.lay_back(value, axis="K")
    assert rollout is batch.groups[0][0]
    np.testing.assert_array_equal(first, [0, np.nan, 1])
    np.testing.assert_array_equal(second, [rows.num_segments, np.nan, rows.num_segments + 1])
    assert [x.tolist() for _, x in batch.lay_back(value[..., 0] > 0, axis="")] == [False, True]
    with pytest.raises(ValueError, match=r"values\[0\]: shape .* in front"):
        list(batch.lay_back(value[:, :1], axis="K"))
    with pytest.raises(ValueError, match="axis: 'P', wanted 'T', 'K' or ''"):
        list(batch.lay_back(value, axis="P"))


def test_rewards_of_turns_are_the_stream_where_they_add_up_to_the_outcome():
    batch = one(turns(segment_reward=[0.25, 0.25, 0.5]))
    np.testing.assert_array_equal(batch.trajectory.reward[0, 0, :6], [0, 0.5, 0, 0, 0.5, 0])
    np.testing.assert_array_equal(batch.trajectory.signals["process_reward"][0, 0, :3], [0.5, 0.5, np.nan])
    other = one(turns(segment_reward=[0.25, np.nan, np.nan]))
    assert other.trajectory.reward is None
    np.testing.assert_array_equal(other.trajectory.signals["process_reward"][0, 0, :3], [0.25, np.nan, np.nan])
    both = one(turns(reward=[0, 0, 0, 0, 1], segment_reward=[0.5, 0, 0.5]))
    assert both.trajectory.reward[0, 0, :5].tolist() == [0, 0, 0, 0, 1]


def test_signals_of_the_table_ride_along_and_others_are_left_out_with_a_reason():
    signals = {
        "entropy": Signal(("T",), np.arange(5.0)),
        "potential": Signal(("K+1",), [0.0, 0.25, 0.5, 1.0]),
        "state_key": Signal(("K",), [7, 8, 9]),
        "reward_components": Signal(("M",), [0.25, 0.75]),
        "prompt_length": Signal((), 4),
        "accuracy": Signal((), True),
        "advantage": Signal((), 0.5),
        "value": Signal((), 0.5),
        "agent": Signal(("T",), np.zeros(5, np.float32)),
        "progress": Signal((), 0.5),
    }
    batch = one(turns(signals=signals), turns(signals=signals))
    carried = batch.trajectory.signals
    assert set(carried) - {"token_mask"} == set(list(signals)[:6])
    assert carried["entropy"][0, 1, :6].tolist() == [0, 1, 2, 3, 4, 0]
    assert carried["state_key"][0, 0, :3].tolist() == [7, 9, 0]
    # The boundaries before both turns of the policy, then the end, which is repeated.
    assert carried["potential"][0, 0, :5].tolist() == [0, 0.5, 1, 1, 1]
    assert carried["reward_components"][0].tolist() == [[0.25, 0.75]] * 2 and carried["prompt_length"][0] == 4
    assert batch.left_out["advantage"].startswith("not in the signal table")
    assert batch.left_out["value"] == "axes [], wanted [T]" and batch.left_out["agent"] == "float32, wanted int32"
    assert "whole batch" in batch.left_out["progress"]
    other = one(turns(signals=signals), turns(signals=signals | {"prompt_length": Signal((), 5)}))
    assert "prompt_length" not in other.trajectory.signals and "one value" in other.left_out["prompt_length"]
    fewer = one(turns(signals=signals), turns())
    assert fewer.left_out["entropy"] == "not in every rollout of its group"
    with pytest.raises(ValueError, match="entropy: absent in group 'g' .not in every rollout"):
        one(turns(signals=signals), turns(), fields=["entropy"])


def test_few_shapes_whatever_the_lengths_and_every_rollout_once():
    rng = np.random.default_rng(0)
    made = [
        [plain(i, str(n), int(rng.integers(0, 300))) for i in range(int(rng.integers(1, 6)))]
        for n in range(200)
    ]  # fmt: skip
    shapes, ordinals, seen = set(), [], 0
    for batch in batches(made, positions=4096):
        rows = batch.trajectory
        shapes.add((*rows.tokens.shape, rows.num_segments))
        assert rows.tokens.size <= 4096 and batch.ordinals == sorted(batch.ordinals)
        ordinals += batch.ordinals
        for group, ordinal in zip(batch.groups, batch.ordinals, strict=True):
            assert group == made[ordinal]
        for rollout, tokens in batch.lay_back(rows.tokens):
            assert tokens.shape == (rollout.length,) and len(set(tokens.tolist())) <= 1
            seen += 1
    assert sorted(ordinals) == list(range(200)) and seen == sum(map(len, made)) and len(shapes) <= 24


def test_credit_of_a_file_does_not_depend_on_the_batch_it_came_in():
    estimator = creditjax.recipe("grpo").estimator

    def credit(positions: int) -> dict[str, np.ndarray]:
        found = {}
        for batch in batches(groups(read(EXCERPT)), positions=positions):
            made = creditjax.estimate(estimator, batch.trajectory)
            found |= {rollout.id: value for rollout, value in batch.lay_back(made.value)}
        return found

    large, small = credit(1 << 13), credit(1)
    assert large.keys() == small.keys() and len(large) == 16
    for name, value in large.items():
        np.testing.assert_allclose(value, small[name], atol=1e-6)
    # One of four is right: the others share what it gains. All of four: nothing to tell.
    assert np.all(large["1/175b_verification"] > 1) and np.all(large["1/6b_finetuning"] < 0)
    assert not np.any(large["3/6b_finetuning"])


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match="groups: one without rollouts"):
        list(batches([[]]))
    with pytest.raises(ValueError, match="positions: 0"):
        list(batches([], positions=0))
    assert list(batches(groups([]))) == []


def test_a_reward_for_each_of_many_steps_takes_linear_time():
    count = 100_000
    rewards = np.arange(count) % 3 - 1.0
    mask = np.arange(2 * count) % 2 == 0
    rollout = Rollout(
        id="a",
        group="g",
        pieces=("x",) * (2 * count),
        action_mask=mask,
        segment=np.arange(2 * count) // 2,
        segment_reward=rewards,
        outcome=float(rewards.sum()),
    )
    started = time.process_time()
    (batch,) = batches([[rollout]], positions=1)
    # A pass over the text for each step takes a minute.
    assert time.process_time() - started < 15
    np.testing.assert_array_equal(batch.trajectory.reward[0, 0, : 2 * count : 2], rewards)
    assert not batch.trajectory.reward[0, 0, 1::2].any()
