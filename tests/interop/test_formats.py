"""Readers of other people's records: each format recognised, every field where it belongs, bad ones named."""

import json
import math
import pathlib
import re
import time

from hypothesis import given
from hypothesis import strategies as st
import numpy as np
import pytest

from creditjax.interop import Message, formats
from creditjax.interop.batches import batches, groups
from creditjax.interop.files import read
from creditjax.interop.formats import Place
from creditjax.interop.text import split_lines, split_words, word_ids
from creditjax.validation import validate

DATA = pathlib.Path(__file__).parents[1] / "data"

VERL = {
    "input": "Q",
    "output": "a b\nc",
    "gts": "3",
    "score": 1.0,
    "step": 7,
    "acc": True,
    "pred": "3",
    "uid": "ab_c_0_1",
}
TRL = {
    "step": 3,
    "prompt": [{"role": "user", "content": "Q"}],
    "completion": [{"role": "assistant", "content": "a b"}],
    "right_reward": 1.0,
    "format_reward": None,
    "length": 0.25,
    "note": "n",
    "advantage": 0.5,
}
CHAT = {
    "id": "m1",
    "problem_id": 4,
    "score": 0.5,
    "messages": [
        {"role": "system", "content": "S"},
        {"role": "user", "content": [{"type": "text", "text": "Q"}, {"type": "image_url"}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [{"function": {"name": "add", "arguments": '{"x": 1}'}}],
            "reward": 0.25,
        },
        {"role": "tool", "content": "2"},
        {"role": "assistant", "content": "two", "reward": 0.25},
    ],
}
RESULT = {
    "example_id": 5,
    "prompt": [{"role": "user", "content": "Q"}],
    "completion": [
        {"role": "assistant", "content": "", "tool_calls": ['{"function": {"name": "run", "arguments": "{}"}}']},
        {"role": "tool", "content": "ok", "tool_calls": None},
        {"role": "assistant", "content": "done", "tool_calls": None},
    ],
    "task": "default",
    "reward": 1.0,
    "metrics": {"correct": 1.0, "note": "x"},
    "info": {"k": [1]},
    "is_completed": True,
    "is_truncated": False,
    "error": None,
    "generation_ms": 12.5,
}
EPISODE = {
    "observations": [[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]],
    "actions": [1, 0],
    "rewards": [0.5, 1.0],
    "terminations": [False, False],
    "truncations": [False, True],
    "seed": 3,
}
GSM8K = json.loads((DATA / "gsm8k_solutions_excerpt.jsonl").read_text().splitlines()[0])
RECORDS = {"verl": VERL, "trl": TRL, "messages": CHAT, "verifiers": RESULT, "gymnasium": EPISODE, "gsm8k": GSM8K}


def only(name: str, record: dict, place: Place = Place()):
    (rollout,) = formats.named(name).read(record, place)
    return rollout


@pytest.mark.parametrize("name", RECORDS)
def test_each_format_is_recognised_and_reads_to_records_of_our_own(name):
    assert formats.recognise(RECORDS[name]).name == name
    for rollout in formats.named(name).read(RECORDS[name], Place(3)):
        record = json.loads(json.dumps(formats.to_record(rollout), allow_nan=False))
        assert formats.recognise(record).name == "creditjax" and list(formats.read_own(record)) == [rollout]


def test_verl():
    rollout = only("verl", VERL, Place(9))
    assert (rollout.id, rollout.group, rollout.outcome, rollout.unit) == ("7/9", "7/ab_c", 1.0, "step")
    assert rollout.prompt == (Message("prompt", "Q"),) and rollout.pieces == ("a", " b\n", "c")
    assert rollout.segment.tolist() == [0, 0, 1] and rollout.action_mask.all()
    assert float(rollout.signals["accuracy"].values) == 1.0 and list(rollout.signals) == ["accuracy"]
    assert rollout.meta == {"gts": "3", "step": 7, "pred": "3", "uid": "ab_c_0_1"}
    assert only("verl", {**VERL, "output": ""}).length == 0
    assert math.isnan(only("verl", {**VERL, "score": math.nan}).outcome)


def test_trl_sums_the_reward_columns_that_are_scored():
    rollout = only("trl", TRL)
    assert rollout.outcome == 1.0 and rollout.pieces == ("a", " b")
    assert rollout.signals["reward_components"].values.tolist() == [1.0, 0.0]
    assert float(rollout.signals["advantage"].values) == 0.5 and float(rollout.signals["length"].values) == 0.25
    assert rollout.meta == {"step": 3, "note": "n"}
    assert math.isnan(only("trl", {**TRL, "right_reward": math.nan}).outcome)
    unnamed = {k: v for k, v in TRL.items() if "reward" not in k}
    assert only("trl", unnamed).outcome == 0.25
    assert only("trl", {**TRL, "prompt": "Q", "completion": "a b"}).pieces == ("a", " b")


def test_messages_with_tools_thoughts_and_rewards_of_turns():
    rollout = only("messages", CHAT)
    assert (rollout.id, rollout.group, rollout.outcome, rollout.unit) == ("m1", "4", 0.5, "turn")
    assert rollout.prompt == (Message("system", "S"), Message("user", "Q[image_url]"))
    assert rollout.messages()[2:] == [
        Message("assistant", '<think>hm</think><tool_call>{"name": "add", "arguments": {"x": 1}}</tool_call>'),
        Message("tool", "2"),
        Message("assistant", "two"),
    ]
    assert rollout.action_mask.tolist() == (rollout.segment != 1).tolist()
    np.testing.assert_array_equal(rollout.segment_reward, np.float32([0.25, np.nan, 0.25]))


def test_messages_with_the_log_probabilities_of_the_api_have_its_tokens_as_pieces():
    tokens = [{"token": "tw", "logprob": -0.5, "bytes": [1]}, {"token": "o", "logprob": -0.25}]
    record = {
        "messages": [*CHAT["messages"][:2], {"role": "assistant", "content": "two", "logprobs": {"content": tokens}}]
    }
    rollout = only("messages", record)
    assert rollout.pieces == ("tw", "o") and rollout.logprob.tolist() == [-0.5, -0.25]
    assert math.isnan(rollout.outcome)


def test_verifiers():
    rollout = only("verifiers", RESULT, Place(2))
    assert (rollout.id, rollout.group, rollout.end) == ("2", "default/5", "terminated")
    assert rollout.roles == ("assistant", "tool", "assistant")
    assert rollout.messages()[1].content == '<tool_call>{"name": "run", "arguments": {}}</tool_call>'
    assert float(rollout.signals["correct"].values) == 1.0 and float(rollout.signals["generation_ms"].values) == 12.5
    assert rollout.meta["info"] == {"k": [1]}
    assert only("verifiers", {**RESULT, "is_truncated": True, "step": 4}).end == "truncated"
    assert only("verifiers", {**RESULT, "step": 4}).group == "4/default/5"
    older = {"id": 0, "prompt": "Q", "completion": [], "reward": 0.0, "task": "default"}
    assert only("verifiers", older).length == 0


def test_gymnasium():
    rollout = only("gymnasium", EPISODE)
    assert rollout.tokens.tolist() == [1, 0] and rollout.segment.tolist() == [0, 1] and rollout.outcome == 1.5
    assert (rollout.end, rollout.unit) == ("truncated", "step") and rollout.reward.tolist() == [0.5, 1.0]
    assert rollout.signals["observation"].values.tolist() == [[0, 1], [1, 1]]
    assert rollout.signals["next_observation"].values.tolist() == [[1, 1], [2, 1]]
    same = only("gymnasium", {**EPISODE, "actions": [[0.5], [1.5]], "terminations": [False, True]})
    assert same.group == rollout.group and same.tokens is None and same.pieces == ("[0.5] ", "[1.5] ")
    assert same.end == "terminated"
    renamed = {"action": [1], "reward": [1.0], "terminated": [True], "observation": [{"board": "x"}]}
    assert formats.recognise(renamed).name == "gymnasium"
    assert "observation" not in only("gymnasium", renamed).signals


def test_gsm8k_solutions_are_groups_with_outcomes_and_lines():
    reader = read(DATA / "gsm8k_solutions_excerpt.jsonl")
    groups = {}
    for rollout in reader:
        groups.setdefault(rollout.group, []).append(rollout)
    assert reader.format.name == "gsm8k" and [len(group) for group in groups.values()] == [4] * 4
    assert [sum(r.outcome for r in group) for group in groups.values()] == [1, 0, 4, 3]
    first = groups["1"][0]
    assert first.id == "1/6b_finetuning" and first.text == GSM8K["6b_finetuning"]["solution"]
    assert " <<16-3=13>>" in first.pieces and first.num_segments == 3
    marked = first.signals["answer_mask"].values
    assert "".join(p for p, m in zip(first.pieces, marked, strict=True) if m) == "A: 26"


def test_groups_without_a_name_are_equal_prompts_within_a_step():
    def group(**changes):
        return only("verl", {k: v for k, v in {**VERL, **changes}.items() if k != "uid"}).group

    assert group(output="x") == group() and group(step=8) != group() and group(input="R") != group()


def test_the_caller_may_say_which_field_is_the_group_and_which_the_outcome():
    record = {**VERL, "passed": 0.25, "problem": "p1"}
    rollout = only("verl", record, Place(1, "problem", "passed"))
    assert (rollout.group, rollout.outcome) == ("7/p1", 0.25)
    with pytest.raises(TypeError, match="problem: absent or null, wanted a string or an integer"):
        only("verl", VERL, Place(1, "problem", None))
    with pytest.raises(ValueError, match="passed: absent, wanted a number"):
        only("verl", VERL, Place(1, None, "passed"))


def test_what_is_nested_is_kept_whole():
    deep = json.loads("[" * 60 + "1" + "]" * 60)
    assert only("verl", {**VERL, "extra": deep}).meta["extra"] == deep


def test_numbers_that_float32_would_change_stay_in_meta():
    rollout = only("verl", {**VERL, "seed": 2**24 + 1, "hash": 10**60, "time": 1e300, "small": 2**24})
    assert rollout.meta["seed"] == 2**24 + 1 and rollout.meta["hash"] == 10**60 and rollout.meta["time"] == 1e300
    assert float(rollout.signals["small"].values) == 2**24


def test_a_whole_number_is_the_same_name_as_an_integer_or_a_float():
    # A column of integers with gaps is one of floats.
    for example, group in ((5, "default/5"), (5.0, "default/5"), ("5", "default/5"), (math.nan, "default/7")):
        assert only("verifiers", {**RESULT, "example_id": example, "id": 7.0}).group == group
    assert only("verifiers", {**RESULT, "env_id": 2.0, "step": 4.0}).group == "4/2/5"
    assert only("messages", {**CHAT, "problem_id": 4.0, "id": 8.0}).group == "4"
    assert only("messages", {**CHAT, "problem_id": 4.0, "id": 8.0}).id == "8"
    assert only("messages", {**CHAT, "group": math.nan, "step": 3.0}).group == "3/4"
    assert only("verl", {**VERL, "step": 7.0}, Place(9)).group == "7/ab_c"
    for change in ({"example_id": 0.5}, {"example_id": True}, {"task": {"name": "a"}}):
        with pytest.raises(TypeError, match=f"{next(iter(change))}: .*, wanted a string or an integer, the name"):
            only("verifiers", {**RESULT, **change})
        assert only("verifiers", {**RESULT, **change, "mine": "g"}, Place(1, "mine")).group == "g"


def test_the_reward_of_a_single_answer_is_that_of_its_turn():
    def answered(**fields):
        turn = {"role": "assistant", "content": "a\nb", **fields}
        return only("messages", {"messages": [{"role": "user", "content": "Q"}, turn]})

    for fields in ({"reward": 0.25}, {"score": 0.25}, {"reward": None, "score": 0.25}):
        rollout = answered(**fields)
        assert rollout.segment_reward.tolist() == [0.25] and rollout.unit == "turn" and rollout.text == "a\nb"
        (batch,) = batches(groups([rollout]), positions=64)
        assert np.nansum(batch.trajectory.signals["process_reward"]) == 0.25
    assert answered(reward=None).segment_reward is None and answered().unit == "step"


def test_no_number_takes_the_place_of_another_of_its_name():
    def measured(name, **fields):
        rollout = only(name, {**RECORDS[name], **fields})
        return {key: signal.values.tolist() for key, signal in rollout.signals.items()}, rollout.meta

    for fields in ({"acc": 0.0, "accuracy": 1.0}, {"accuracy": 1.0, "acc": 0.0}):
        signals, _ = measured("verl", **fields)
        assert signals == {"acc": 0.0, "accuracy": 1.0}
    signals, meta = measured("verifiers", metrics={"acc": 0.5, "note": "x", "huge": 1e300}, acc=0.5)
    assert signals["accuracy"] == 0.5 and "acc" not in signals and "acc" not in meta
    assert meta["metrics"] == {"note": "x", "huge": 1e300}
    signals, meta = measured("verifiers", metrics={"correct": 1.0}, correct=0.25)
    assert signals["correct"] == 1.0 and meta["correct"] == 0.25 and "metrics" not in meta
    signals, meta = measured("gymnasium", observation=3.0)
    assert signals["observation"] == [[0, 1], [1, 1]] and meta["observation"] == 3.0


def test_trl_counts_no_name_among_the_rewards():
    unnamed = {k: v for k, v in TRL.items() if "reward" not in k} | {"task_id": 7, "iteration": 2, "mine": 9}
    rollout = only("trl", unnamed, Place(1, "mine"))
    assert (rollout.outcome, rollout.group) == (0.25, "3/9")
    assert rollout.signals["reward_components"].values.tolist() == [0.25] and rollout.meta["task_id"] == 7


def test_actions_and_observations_stay_what_they_are():
    mixed = only("gymnasium", {**EPISODE, "actions": [1, "a"], "observations": [["1", "nan"], ["2", "3"]]})
    assert mixed.pieces == ("1 ", '"a" ') and mixed.tokens is None and not mixed.signals.keys() & {"observation"}
    gaps = only("gymnasium", {**EPISODE, "observations": [[None, 1], [2, 3]], "episode": {"r": 1.5}})
    np.testing.assert_array_equal(gaps.signals["observation"].values, np.float32([[np.nan, 1], [2, 3]]))
    assert gaps.meta["episode"] == {"r": 1.5} and only("gymnasium", {**EPISODE, "episode": 4}).id == "4"
    assert only("gymnasium", {**EPISODE, "episode": 4}).meta == {}


def test_names_are_those_of_the_file_where_several_are_read(tmp_path):
    lines = (DATA / "gsm8k_solutions_excerpt.jsonl").read_text().splitlines()
    for name, line in zip("ab", lines, strict=False):
        (tmp_path / f"{name}.jsonl").write_text(line)
    rollouts = list(read(tmp_path))
    assert [rollout.group for rollout in rollouts] == ["a.jsonl/1"] * 4 + ["b.jsonl/1"] * 4
    assert len({rollout.id for rollout in rollouts}) == 8
    assert [rollout.group for rollout in read(tmp_path / "b.jsonl")] == ["1"] * 4
    stepless = {k: v for k, v in VERL.items() if k != "step"}
    for name in "ab":
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(stepless) + "\n" for _ in range(2)))
    assert [rollout.id for rollout in read(tmp_path)] == ["a.jsonl/1", "a.jsonl/2", "b.jsonl/1", "b.jsonl/2"]
    assert [(r.id, r.group) for r in read(tmp_path / "a.jsonl")] == [("1", "ab_c"), ("2", "ab_c")]


def test_lines_of_a_text_of_blank_lines_take_linear_time():
    blank = "\n" * 1_000_000
    started = time.process_time()
    assert split_lines(blank + "a" + blank + "b") == [blank + "a" + blank, "b"]
    # Copying what came before for each line takes a minute.
    assert time.process_time() - started < 10


@pytest.mark.parametrize("name", RECORDS)
def test_each_format_comes_to_a_valid_batch(name, tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text(json.dumps(RECORDS[name]) + "\n")
    (batch,) = batches(groups(read(path)), positions=64)
    assert not validate(batch.trajectory) and batch.trajectory.action_mask.any()


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("verl", {"output": None}, "output: absent or null, wanted a string"),
        ("verl", {"score": "1"}, "score: '1', wanted a number"),
        ("verl", {"score": 10**400}, "score: inf, wanted a number that float32 can hold"),
        ("verl", {"score": math.inf}, "score: inf"),
        ("trl", {"completion": 3}, "completion: 3, wanted a list"),
        ("trl", {"right_reward": math.inf}, "right_reward: inf, wanted a number that float32 can hold"),
        ("trl", {"right_reward": 1e300, "reward": 1.0}, "right_reward: 1e.300, wanted a number that float32 can hold"),
        ("trl", {"right_reward": 10**400}, "right_reward: inf, wanted a number that float32 can hold"),
        ("trl", {"prompt": ["hi"]}, r"prompt\[0\]: 'hi', wanted an object with `role` and `content`"),
        ("messages", {"messages": [{"role": "user", "content": "Q"}]}, "messages: none of the role 'assistant'"),
        ("messages", {"messages": [{"role": "assistant", "content": 5}]}, r"messages\[0\].content: 5, wanted text"),
        ("messages", {"messages": [{"role": "assistant"}, {"content": "x"}]}, r"messages\[1\].role: absent or null"),
        ("verifiers", {"reward": [1]}, "reward: list, wanted a number"),
        ("gymnasium", {"rewards": [1.0]}, "rewards: 1 of them, wanted 2, one for each action"),
        ("gymnasium", {"rewards": [1.0, None]}, r"rewards\[1\]: absent or null, wanted a number"),
        ("gymnasium", {"truncations": [True, False]}, "an end at step 0 of 2, wanted one episode a record"),
        ("gymnasium", {"terminations": ["no", True]}, "terminations: 'no', wanted true or false"),
        ("gymnasium", {"actions": [[1], [1, 2]]}, "actions: of different shapes"),
        ("gymnasium", {"observations": [[1.0]]}, "observations: 1 of them, wanted 2 or 3"),
        ("gymnasium", {"observations": [[1e300], [1]]}, "observations: 1e.300, wanted numbers that float32 can hold"),
        ("gymnasium", {"observations": [[10**400], [1]]}, "observations: inf, wanted a number that float32 can hold"),
        ("gymnasium", {"actions": [10**30, 1]}, "tokens: dtype object, wanted int32"),
        (
            "gsm8k",
            {"175b_finetuning": {"solution": "x", "is_correct": 1}},
            "175b_finetuning.is_correct: 1, wanted true",
        ),
        ("verl", {"extra": json.loads("[" * 70 + "]" * 70)}, r"meta\['extra'\].*nested deeper than 64, wanted a plain"),
        ("gsm8k", {"question": None}, "question: absent or null"),
    ],
)
def test_bad_fields_are_named(name, change, said):
    with pytest.raises((ValueError, TypeError), match=said):
        list(formats.named(name).read({**RECORDS[name], **change}, Place()))


@given(st.text())
def test_words_and_lines_are_the_text(text):
    words, lines = split_words(text), split_lines(text)
    assert "".join(words) == text == "".join(lines) and all(words) and all(lines)
    assert "".join(word for line in lines for word in split_words(line)) == text
    assert sum(bool(line.strip()) for line in lines) == len([x for x in text.split("\n") if x.strip()])


def test_words_of_any_script_stay_whole():
    assert split_words("नमस्ते e\u0301té don't x_1") == ["नमस्ते", " e\u0301té", " don", "'", "t", " x_1"]
    assert split_words("我有3.5个") == ["我", "有", "3.5", "个"]
    assert split_words("=<<48/2=24>>24") == ["=", "<<48/2=24>>", "24"] and split_words(" ") == [" "]
    assert not re.search("[<>]", "".join(word for word in split_words("a <<1+1=2>>2") if "<<" not in word))


def test_ids_of_words_do_not_change_from_run_to_run():
    assert word_ids(["a", " b", "a", ""]).tolist() == [1952177953, 1005624084, 1952177953, 0]
