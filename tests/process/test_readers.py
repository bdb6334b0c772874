"""Every published form of step labels becomes one kind of record, and a line that is none is named."""

import dataclasses
import json
import pathlib

from hypothesis import given, settings
from hypothesis import strategies as st
import pytest

from creditjax.process.readers import FORMATS, MalformedRecord, parse_line, read_records
from creditjax.process.records import Record, first_error, labels_of, write_records

EXCERPT = pathlib.Path(__file__).parent.parent / "data" / "prmbench_excerpt.jsonl"


def parse(format="auto", **row):
    return list(parse_line(json.dumps(row), format, "7"))


def test_processbench_gives_labels_up_to_the_first_error():
    row = {"id": "gsm8k-0", "generator": "g", "problem": "p", "steps": ["a", "b", "c"], "final_answer_correct": True}
    [record] = parse(**row, label=1)
    assert record == Record("gsm8k-0", "p", ("a", "b", "c"), 1, (1.0, 0.0, None), 1, generator="g")
    assert parse(**row, label=-1)[0].step_labels == (1.0, 1.0, 1.0)
    with pytest.raises(ValueError, match="label: 3, wanted a step of 3"):
        parse(**row, label=3)


def test_prm800k_follows_the_labellers_and_keeps_what_they_left():
    steps = [
        {"completions": [{"text": "a", "rating": 1}, {"text": "x", "rating": -1}], "chosen_completion": 0},
        {"completions": None, "human_completion": {"text": "b", "rating": None}, "chosen_completion": None},
        {"completions": [{"text": "c", "rating": 0}], "human_completion": None, "chosen_completion": 0},
        {"completions": [{"text": "d", "rating": 0}, {"text": "e", "rating": -1}], "chosen_completion": None},
    ]
    path, *branches = parse(question={"problem": "p"}, label={"steps": steps, "finish_reason": "found_error"})
    assert path.steps == ("a", "b", "c", "e") and path.step_labels == (1.0, None, 1.0, 0.0) and path.label is None
    assert [(b.steps, b.step_labels) for b in branches] == [
        (("x",), (0.0,)),
        (("a", "b", "c", "d"), (None, None, None, 1.0)),
    ]
    with pytest.raises(ValueError, match=r"label.steps\[0\].rating\[0\]: 2, wanted -1, 0, 1 or null"):
        parse(question={"problem": "p"}, label={"steps": [{"completions": [{"text": "a", "rating": 2}]}]})
    with pytest.raises(ValueError, match=r"label.steps\[0\].chosen_completion: 5, wanted one of 1"):
        steps = [{"completions": [{"text": "a", "rating": 1}], "chosen_completion": 5}]
        parse(question={"problem": "p"}, label={"steps": steps})


def test_math_shepherd_tags_are_read_from_both_strings():
    text = "What is 1+1+1? Step 1: 1+1=2 ки\nStep 2: 2+1=4 ки"
    [record] = parse(input=text, label=text.replace("ки", "+", 1).replace("ки", "-"), task="GSM8K")
    assert record.problem == "What is 1+1+1?" and record.steps == ("Step 1: 1+1=2", "Step 2: 2+1=4")
    assert record.step_labels == (1.0, 0.0) and record.label == 1
    with pytest.raises(ValueError, match="label: after 1 steps"):
        parse(input=text, label=text.replace("ки", "+", 1))
    with pytest.raises(ValueError, match="input: no 'Step 1:'"):
        parse(input="What? 1+1=2 ки", label="What? 1+1=2 +")


def test_boolean_labels_of_trl_and_of_fover():
    [record] = parse(prompt="p", completions=["a", "b"], labels=[True, False])
    assert record.step_labels == (1.0, 0.0) and record.label == 1
    # Despite its name, true means that the step is right.
    [record] = parse(problem="p", solution_steps=["a", "b", "c"], error_labels=[True, None, False])
    assert record.step_labels == (1.0, None, 0.0) and record.label is None
    with pytest.raises(ValueError, match=r"labels\[1\]: 0, wanted a boolean"):
        parse(prompt="p", completions=["a", "b"], labels=[True, 0])
    with pytest.raises(ValueError, match="labels: 1 entries, wanted one for each of 2 steps"):
        parse(prompt="p", completions=["a", "b"], labels=[True])


def test_spare_completes_what_the_judge_left_out():
    row = {"problem": "p", "steps": ["a", "b", "c"], "reference_steps": ["r", "s"]}
    grading = [{"student_step": 1, "label": "CORRECT"}, {"student_step": 3, "label": "INCORRECT"}]
    student, reference = parse(**row, grading=grading, em=1)
    assert student.step_labels == (1.0, 0.0, 1.0)  # the outcome overrides the judge at the last step
    assert reference.step_labels == (1.0, 1.0) and reference.outcome == 1
    assert parse(**row, grading=[], em=0)[0].step_labels == (0.0, 0.0, 0.0)
    with pytest.raises(ValueError, match=r"grading\[0\].student_step: 4, wanted a step from 1 to 3"):
        parse(**row, grading=[{"student_step": 4, "label": "CORRECT"}], em=1)


def test_searched_labels_count_each_edge_once():
    leaf = lambda text, value: {"text": text, "mc_value": value}  # noqa: E731
    tree = {"text": "p", "mc_value": 0.5, "children": [leaf("a", 0.5) | {"children": [leaf("b", 1), leaf("c", 0)]}]}
    records = parse(**tree)
    assert [(r.steps, r.step_labels) for r in records] == [(("a", "b"), (0.5, 1.0)), (("a", "c"), (None, 0.0))]
    [record] = parse(problem="p", prefix_steps=["a"], step="b", mc_value=0.25)
    assert record.step_labels == (None, 0.25)
    [record] = parse(problem="p", steps=["a", "b"], mc_value=[0.5, 0], judge_label=1, outcome=0)
    assert (record.label, record.step_labels, record.outcome) == (1, (0.5, 0.0), 0)


def test_real_rows_of_prmbench_and_a_fault_in_them():
    faults = []
    wrong, original, several = read_records(EXCERPT, faults=faults)
    assert wrong.label == 2 and wrong.steps[:2] == original.steps[:2] and wrong.steps[2] != original.steps[2]
    assert original.label == several.label == -1
    [fault] = faults
    assert fault.line == 2 and str(fault) == f"{EXCERPT}, line 2: error_steps[1]: 54, wanted a step from 1 to 53"
    with pytest.raises(MalformedRecord, match="line 2"):
        list(read_records(EXCERPT))


def test_records_survive_a_file(tmp_path):
    records = [
        Record("0", "π\u2028?", ("a\n", ""), None, (1, 0.25), True, "3", "me"),
        Record("1", "q", (), outcome=0),
        Record("2", "q", ("a", "b"), 1),
    ]
    assert write_records(tmp_path / "r.jsonl", records) == 3
    assert list(read_records(tmp_path / "r.jsonl")) == records
    assert list(read_records(tmp_path / "r.jsonl", "record")) == records


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"{", "no JSON"),
        (b"\xff{}", "not UTF-8 at byte 0"),
        (b"[1]", "found a list, wanted an object"),
        (b"{}", "fields none: of none of the formats"),
        (b"[" * 100_000, "recursion"),
        (b'{"problem": "p", "steps": ["a"], "step_labels": [2]}', r"step_labels\[0\]: 2, wanted null or a number"),
        (b'{"problem": "p", "steps": ["a"], "step_labels": [NaN]}', r"step_labels\[0\]: nan"),
        (b'{"problem": "p", "steps": ["a"], "step_labels": []}', "step_labels: 0 entries, wanted one for each of 1"),
        (b'{"problem": "p", "steps": 3, "step_labels": []}', "steps: a number, wanted a list"),
        (b'{"problem": "p", "steps": [3], "step_labels": [1]}', r"steps\[0\]: 3, wanted a string"),
        (b'{"problem": 1, "steps": [], "step_labels": []}', "problem: 1, wanted a string"),
        (b'{"problem": "p", "steps": [], "step_labels": [], "label": 0}', "label: 0, wanted null or a step of 0"),
        (b'{"problem": "p", "steps": [], "step_labels": [], "outcome": 2}', "outcome: 2, wanted 0, 1 or null"),
        (b'{"question": "p", "label": 1}', "question: a string, wanted an object"),
        (b'{"question": {"problem": "p"}, "label": 1}', "label: a number, wanted an object"),
        (b'{"text": "p", "children": [3]}', "children: a number, wanted an object"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path, line, reason):
    good = b'{"problem": "p", "steps": ["a"], "step_labels": [1]}'
    path = tmp_path / "r.jsonl"
    path.write_bytes(b"\n".join([good, b"", line, good]))
    faults = []
    assert len(list(read_records(path, faults=faults))) == 2, "the others are read"
    assert [fault.line for fault in faults] == [3]
    with pytest.raises(MalformedRecord, match=f"r.jsonl, line 3: .*{reason}"):
        list(read_records(path))


def test_a_format_that_does_not_fit_says_what_is_absent(tmp_path):
    with pytest.raises(ValueError, match="field prompt is absent, wanted prompt, completions, labels"):
        parse("trl", problem="p")
    with pytest.raises(ValueError, match="fover"):
        read_records(tmp_path / "x", "fovr")
    with pytest.raises(OSError):
        list(read_records(tmp_path / "x"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "rating", "children", "completions", "steps", "problem"]), inner)
    ),
    max_leaves=8,
)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(sorted(FORMATS)))
def test_whatever_a_line_says_is_a_record_or_a_reason(data, name):
    row = {field: data.draw(JSON, field) for field in FORMATS[name].fields}
    try:
        assert all(isinstance(record, Record) for record in parse_line(json.dumps(row), name, "0"))
    except ValueError as error:
        assert str(error)


def test_records_are_streamed(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text('{"problem": "p", "steps": ["a"], "step_labels": [1]}\nnonsense')
    stream = read_records(path)
    assert next(stream).problem == "p"
    with pytest.raises(MalformedRecord):
        next(stream)


def test_labels_and_first_errors_are_inverse():
    for length in range(1, 4):
        for first in range(-1, length):
            labels = labels_of(first, length)
            assert len(labels) == length and first_error(labels) == first
            record = Record("", "", ("s",) * length, step_labels=labels)
            assert record.label == first and dataclasses.replace(record) == record
