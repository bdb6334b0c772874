"""Readers of published step-label files: JSON Lines of many forms in, one kind of record out.

==============  ==================================================================================================
format          fields of a line
==============  ==================================================================================================
record          id, problem, steps, step_labels, label, outcome, answer, generator
processbench    id, generator, problem, steps, final_answer_correct, label               (arXiv:2412.06559)
prm800k         question.problem, label.steps[i].completions[j].{text, rating}           (arXiv:2305.20050)
math_shepherd   input with a tag behind each step, label with + or - in its place        (arXiv:2312.08935)
trl             prompt, completions, labels: TRL's stepwise supervision
fover           problem, solution_steps, error_labels, true if the step is *right*       (arXiv:2505.15960)
prmbench        modified_question, modified_process, error_steps counted from 1          (arXiv:2501.03124)
consensus       problem, steps, mc_value, judge_label, outcome                           (arXiv:2501.07301)
spare           problem, steps, reference_steps, grading, em                             (arXiv:2506.15498)
omegaprm        problem, prefix_steps, step, mc_value: one edge of a searched tree       (arXiv:2406.06592)
omegaprm_tree   text, mc_value, children: the whole tree
==============  ==================================================================================================

Files are streamed; a line gives one record or several. A line that is none names file, line and reason.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
import json
import os
from typing import Any, NamedTuple

from creditjax.naming import nearest
from creditjax.process.records import Label, Record, labels_of

Row = Mapping[str, Any]
SHEPHERD_TAG = "ки"


class MalformedRecord(ValueError):
    """A line that is no record: "FILE, line N: reason".

    Attributes:
      path: of the file.
      line: counted from 1.
      reason: what was found and what was wanted.
    """

    def __init__(self, path: str, line: int, reason: str):
        super().__init__(f"{path}, line {line}: {reason}")
        self.path, self.line, self.reason = path, line, reason


class Format(NamedTuple):
    """A row of the table.

    Attributes:
      fields: those that a line has to have; the first format whose fields are all there is the file's.
      parse: ``parse(row, id)`` gives the records of a line; `id` names those whose line has no id.
    """

    fields: tuple[str, ...]
    parse: Callable[[Row, str], Iterable[Record]]


def read_records(
    path: str | os.PathLike, format: str = "auto", faults: list[MalformedRecord] | None = None
) -> Iterator[Record]:
    """Streams the records of a file.

    Args:
      path: of a JSON Lines file in UTF-8; empty lines do not count.
      format: a name of `FORMATS`, or "auto" to tell it from each line's fields.
      faults: where malformed lines are collected; without it the first one is raised.

    Yields:
      Records, in the file's order.

    Raises:
      MalformedRecord: a line that is none, unless `faults` is given.
      ValueError: an unknown format, with the nearest names.
      OSError: the file cannot be read.
    """
    if format != "auto" and format not in FORMATS:
        raise ValueError(f"format: {format!r} is unknown; {nearest(format, FORMATS)}")
    return _stream(os.fspath(path), format, faults)


def _stream(path: str, format: str, faults: list[MalformedRecord] | None) -> Iterator[Record]:
    # Bytes: a line that is no UTF-8 is that line's fault, and U+2028 inside a string ends none.
    with open(path, "rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                records = list(parse_line(line, format, str(number)))
            except (ValueError, RecursionError) as error:
                fault = MalformedRecord(path, number, str(error) or type(error).__name__)
                if faults is None:
                    raise fault from error
                faults.append(fault)
                continue
            yield from records


def parse_line(line: str | bytes, format: str = "auto", id: str = "") -> Iterable[Record]:
    """The records of one line, see :func:`read_records`.

    Raises:
      ValueError: the line is no JSON object of the format, with the reason.
    """
    try:
        row = json.loads(line)
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from error
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at column {error.colno}") from error
    if not isinstance(row, dict):
        raise ValueError(f"found {_kind(row)}, wanted an object")
    if format == "auto":
        format = _detect(row)
    if absent := [name for name in FORMATS[format].fields if name not in row]:
        raise ValueError(f"field {absent[0]} is absent, wanted {', '.join(FORMATS[format].fields)} ({format})")
    return FORMATS[format].parse(row, id)


def _detect(row: Row) -> str:
    for name, (fields, _) in FORMATS.items():
        if all(field in row for field in fields):
            return name
    raise ValueError(f"fields {', '.join(sorted(row)[:12]) or 'none'}: of none of the formats {', '.join(FORMATS)}")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _field(row: Any, name: str, kind: type | tuple[type, ...], wanted: str, where: str = "") -> Any:
    if not isinstance(row, dict):
        raise ValueError(f"{where.rstrip('.') or 'line'}: {_kind(row)}, wanted an object")
    value = row.get(name)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is int):
        raise ValueError(f"{where}{name}: {_kind(value)}, wanted {wanted}")
    return value


def _text(row: Any, name: str, where: str = "") -> str:
    return _field(row, name, str, "a string", where)


def _list(row: Any, name: str, where: str = "") -> list:
    return _field(row, name, list, "a list", where)


def _choices(values: Iterable[Any], name: str, meaning: Mapping[Any, Label], wanted: str) -> tuple[Label, ...]:
    """Labels by their meaning; types count, so that True is not 1."""
    found = []
    for index, value in enumerate(values):
        same = [label for key, label in meaning.items() if type(key) is type(value) and key == value]
        if not same:
            raise ValueError(f"{name}[{index}]: {value!r:.40}, wanted {wanted}")
        found.append(same[0])
    return tuple(found)


def _record(row: Row, id: str) -> Iterable[Record]:
    steps, labels = _list(row, "steps"), []
    if row["step_labels"] is not None:
        labels = _list(row, "step_labels")
        _same_length("step_labels", labels, steps)
    told = {name: row.get(name) for name in ("label", "outcome", "answer", "generator")}
    yield Record(row.get("id", id), row["problem"], tuple(steps), step_labels=tuple(labels), **told)


def _processbench(row: Row, id: str) -> Iterable[Record]:
    steps, label = _list(row, "steps"), _field(row, "label", int, "a number")
    outcome = int(_field(row, "final_answer_correct", bool, "a boolean"))
    if not -1 <= label < len(steps):
        raise ValueError(f"label: {label}, wanted a step of {len(steps)} from -1 on")
    labels = labels_of(label, len(steps))
    generator = row.get("generator")
    yield Record(row.get("id", id), row["problem"], tuple(steps), label, labels, outcome, generator=generator)


_RATINGS: dict[Any, Label] = {-1: 0.0, 0: 1.0, 1: 1.0, None: None}


def _prm800k(row: Row, id: str) -> Iterable[Record]:
    """The solution that the labellers followed; every other completion of a step is a record of its own, in which the
    last step alone is labelled. A rating of 0 (neutral) counts as right. What a labeller wrote has no label."""
    problem = _text(row["question"], "problem", "question.")
    path: list[str] = []
    labels: list[Label] = []
    branches: list[Record] = []
    for index, step in enumerate(_list(row["label"], "steps", "label.")):
        where = f"label.steps[{index}]."
        completions = _field(step, "completions", (list, type(None)), "a list or null", where) or []
        texts = [_text(one, "text", f"{where}completions[{j}].") for j, one in enumerate(completions)]
        ratings = _choices([one.get("rating") for one in completions], f"{where}rating", _RATINGS, "-1, 0, 1 or null")
        chosen = step.get("chosen_completion")
        written = step.get("human_completion")
        if chosen is not None and (type(chosen) is not int or not 0 <= chosen < len(texts)):
            raise ValueError(f"{where}chosen_completion: {chosen!r:.40}, wanted one of {len(texts)} or null")
        if chosen is None and written is None and texts:
            chosen = next((j for j, rating in enumerate(ratings) if rating == 0), 0)  # the labelling ended here
        for j, (text, rating) in enumerate(zip(texts, ratings, strict=True)):
            if j != chosen and rating is not None:
                branch = (*path, text)
                unsaid = (None,) * len(path)
                branches.append(Record(f"{id}/{index}.{j}", problem, branch, step_labels=(*unsaid, rating)))
        if chosen is not None:
            path.append(texts[chosen])
            labels.append(ratings[chosen])
        elif written is not None:
            path.append(_text(written, "text", f"{where}human_completion."))
            labels.append(None)
    yield Record(id, problem, tuple(path), step_labels=tuple(labels), generator=row.get("generator"))
    yield from branches


def _math_shepherd(row: Row, id: str) -> Iterable[Record]:
    text, label = _text(row, "input"), _text(row, "label")
    parts = text.split(SHEPHERD_TAG)
    labels: list[Label] = []
    at = 0
    for part in parts[:-1]:
        sign = label[at + len(part) : at + len(part) + 1]
        if label[at : at + len(part)] != part or sign not in ("+", "-"):
            raise ValueError(f"label: after {len(labels)} steps, wanted the input with + or - for {SHEPHERD_TAG}")
        labels.append(float(sign == "+"))
        at += len(part) + 1
    problem, cue, first = parts[0].partition("Step 1:")
    if not labels or not cue:
        raise ValueError(f"input: no 'Step 1:' with {SHEPHERD_TAG} behind it")
    steps = [cue + first, *parts[1:-1]]
    yield Record(id, problem.strip(), tuple(s.strip() for s in steps), step_labels=tuple(labels))


def _trl(row: Row, id: str) -> Iterable[Record]:
    labels = _choices(_list(row, "labels"), "labels", {True: 1.0, False: 0.0}, "a boolean")
    steps = _list(row, "completions")
    _same_length("labels", labels, steps)
    yield Record(id, _text(row, "prompt"), tuple(steps), step_labels=labels)


def _fover(row: Row, id: str) -> Iterable[Record]:
    meaning: dict[Any, Label] = {True: 1.0, False: 0.0, None: None}
    labels = _choices(_list(row, "error_labels"), "error_labels", meaning, "a boolean or null")
    steps = _list(row, "solution_steps")
    _same_length("error_labels", labels, steps)
    yield Record(row.get("id", id), row["problem"], tuple(steps), step_labels=labels)


def _prmbench(row: Row, id: str) -> Iterable[Record]:
    """The solution with the errors that were written into it, and the one before, whose steps count as right."""
    steps = _list(row, "modified_process")
    wrong = _list(row, "error_steps")
    for index, step in enumerate(wrong):
        if type(step) is not int or not 1 <= step <= len(steps):
            raise ValueError(f"error_steps[{index}]: {step!r:.40}, wanted a step from 1 to {len(steps)}")
    labels = tuple(float(k not in wrong) for k in range(1, len(steps) + 1))
    kind = row.get("classification") or "modified"
    name = f"{row.get('idx', id)}/{kind}"
    yield Record(name, _text(row, "modified_question"), tuple(steps), step_labels=labels, generator=kind)
    if "original_process" in row and kind != "multi_solutions":
        steps = _list(row, "original_process")
        labels = (1.0,) * len(steps)
        yield Record(f"{name}/original", _text(row, "original_question"), tuple(steps), step_labels=labels)


def _consensus(row: Row, id: str) -> Iterable[Record]:
    """`step_labels` are the Monte Carlo values and `label` the judge's first error: what `labels.consensus` takes."""
    values, steps = _list(row, "mc_value"), _list(row, "steps")
    _same_length("mc_value", values, steps)
    label = _field(row, "judge_label", int, "a number")
    yield Record(row.get("id", id), row["problem"], tuple(steps), label, tuple(values), row.get("outcome"))


def _spare(row: Row, id: str) -> Iterable[Record]:
    """The graded solution, its last step labelled by the outcome, and the reference, whose steps are right.

    A step that the grading leaves out counts as wrong (strict, as in the published code).
    """
    steps, reference = _list(row, "steps"), _list(row, "reference_steps")
    outcome = _choices([int(row["em"]) if row["em"] in (0, 1) else row["em"]], "em", {0: 0.0, 1: 1.0}, "0 or 1")[0]
    labels: list[Label] = [0.0] * len(steps)
    for index, graded in enumerate(_list(row, "grading")):
        where = f"grading[{index}]."
        number = _field(graded, "student_step", int, "a number", where)
        if not 1 <= number <= len(steps):
            raise ValueError(f"{where}student_step: {number}, wanted a step from 1 to {len(steps)}")
        meaning: dict[Any, Label] = {"CORRECT": 1.0, "INCORRECT": 0.0}
        labels[number - 1] = _choices([graded.get("label")], f"{where}label", meaning, "CORRECT or INCORRECT")[0]
    if labels:
        labels[-1] = outcome
    yield Record(row.get("id", id), row["problem"], tuple(steps), step_labels=tuple(labels), outcome=int(outcome or 0))
    name = f"{row.get('id', id)}/reference"
    yield Record(name, row["problem"], tuple(reference), step_labels=(1.0,) * len(reference), outcome=1)


def _omegaprm(row: Row, id: str) -> Iterable[Record]:
    prefix = _list(row, "prefix_steps")
    labels = (*(None,) * len(prefix), row["mc_value"])
    # A value of 0 or 1 is an estimate of this step alone and says nothing of the solution's first error.
    yield Record(row.get("id", id), row["problem"], (*prefix, _text(row, "step")), step_labels=labels)


def _omegaprm_tree(row: Row, id: str) -> Iterable[Record]:
    """One record a leaf. A step that two leaves share is labelled in the first alone, so that each counts once."""
    count = 0
    stack: list[tuple[Row, tuple[str, ...], tuple[Label, ...], bool]] = [
        (child, (), (), True) for child in reversed(_list(row, "children"))
    ]
    problem = _text(row, "text")
    while stack:
        node, steps, labels, fresh = stack.pop()
        steps = (*steps, _text(node, "text", "children."))
        labels = (*(labels if fresh else (None,) * len(labels)), node.get("mc_value"))
        children = node.get("children") or []
        if not isinstance(children, list):
            raise ValueError(f"children.children: {_kind(children)}, wanted a list")
        for number, child in reversed(list(enumerate(children))):
            stack.append((child, steps, labels, number == 0))
        if not children:
            yield Record(f"{id}/{count}", problem, steps, step_labels=labels)
            count += 1


def _same_length(name: str, labels: Iterable[Any], steps: list) -> None:
    if len(list(labels)) != len(steps):
        raise ValueError(f"{name}: {len(list(labels))} entries, wanted one for each of {len(steps)} steps")


FORMATS: dict[str, Format] = {
    "processbench": Format(("problem", "steps", "label", "final_answer_correct"), _processbench),
    "spare": Format(("problem", "steps", "reference_steps", "grading", "em"), _spare),
    "consensus": Format(("problem", "steps", "mc_value", "judge_label"), _consensus),
    "record": Format(("problem", "steps", "step_labels"), _record),
    "omegaprm": Format(("problem", "prefix_steps", "step", "mc_value"), _omegaprm),
    "omegaprm_tree": Format(("text", "children"), _omegaprm_tree),
    "fover": Format(("problem", "solution_steps", "error_labels"), _fover),
    "prmbench": Format(("modified_question", "modified_process", "error_steps"), _prmbench),
    "trl": Format(("prompt", "completions", "labels"), _trl),
    "prm800k": Format(("question", "label"), _prm800k),
    "math_shepherd": Format(("input", "label"), _math_shepherd),
}
"""Every format by name; the more demanding first."""
