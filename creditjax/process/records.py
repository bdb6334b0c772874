"""The record of one solution with judged steps, in which every reader's file ends up."""

from collections.abc import Iterable, Sequence
import dataclasses
import json
import math
import os
from typing import Any

Label = float | None


@dataclasses.dataclass(frozen=True)
class Record:
    """One solution. As JSON an object with these fields, one a line.

    >>> Record("0", "1 + 1 + 1", ("1 + 1 = 2", "2 + 1 = 4"), step_labels=(1, 0)).label
    1

    Attributes:
      id: of the solution.
      problem: its text.
      steps: their texts, in order.
      label: index of the first wrong step, -1 if every step is right (as in ProcessBench), None if unknown. Left out,
        it follows from step labels of 0 and 1, see :func:`first_error`.
      step_labels: for each step 1 if right, 0 if wrong, anything in between for a soft label (the share of right
        completions, say), None where there is none. Left out, no step has one.
      outcome: 1 if the final answer is right, 0 if not, None if unknown.
      answer: the final answer, or None.
      generator: what wrote the solution, or None.

    Raises:
      ValueError: a field of another kind or out of range, naming it, what was found and what was wanted.
    """

    id: str
    problem: str
    steps: tuple[str, ...]
    label: int | None = None
    step_labels: tuple[Label, ...] = ()
    outcome: int | None = None
    answer: str | None = None
    generator: str | None = None

    def __post_init__(self):
        for name in ("id", "problem"):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"{name}: {_shown(getattr(self, name))}, wanted a string")
        for name in ("answer", "generator"):
            if not isinstance(getattr(self, name), str | None):
                raise ValueError(f"{name}: {_shown(getattr(self, name))}, wanted a string or null")
        for name in ("steps", "step_labels"):
            if not isinstance(getattr(self, name), list | tuple):
                raise ValueError(f"{name}: {_shown(getattr(self, name))}, wanted a list")
        for index, step in enumerate(self.steps):
            if not isinstance(step, str):
                raise ValueError(f"steps[{index}]: {_shown(step)}, wanted a string")
        labels = tuple(map(_label, range(len(self.step_labels)), self.step_labels)) or (None,) * len(self.steps)
        if len(labels) != len(self.steps):
            raise ValueError(f"step_labels: {len(labels)} entries, wanted one for each of {len(self.steps)} steps")
        if self.outcome is not None and self.outcome not in (0, 1):
            raise ValueError(f"outcome: {_shown(self.outcome)}, wanted 0, 1 or null")
        if self.label is not None and (type(self.label) is not int or not -1 <= self.label < len(self.steps)):
            raise ValueError(f"label: {_shown(self.label)}, wanted null or a step of {len(self.steps)} from -1 on")
        object.__setattr__(self, "outcome", None if self.outcome is None else int(self.outcome))
        object.__setattr__(self, "steps", tuple(self.steps))
        object.__setattr__(self, "step_labels", labels)
        if self.label is None:
            object.__setattr__(self, "label", first_error(labels))

    def to_json(self) -> dict[str, Any]:
        """The object that stands for it in a file."""
        return dataclasses.asdict(self) | {"steps": list(self.steps), "step_labels": list(self.step_labels)}


def first_error(labels: Sequence[Label]) -> int | None:
    """The first step labelled 0 behind steps labelled 1, -1 if all are 1; None where the labels do not say.

    >>> first_error((1, 0, None)), first_error((1, 1)), first_error((1, None, 0)), first_error(())
    (1, -1, None, None)
    """
    for index, label in enumerate(labels):
        if label == 0:
            return index
        if label != 1:
            return None
    return -1 if labels else None


def labels_of(first: int, length: int) -> tuple[Label, ...]:
    """Step labels of a solution whose first wrong step is known: nothing is said of what follows it.

    >>> labels_of(1, 4), labels_of(-1, 2)
    ((1.0, 0.0, None, None), (1.0, 1.0))
    """
    if first < 0:
        return (1.0,) * length
    return (1.0,) * first + (0.0,) + (None,) * (length - first - 1)


def families(records: Sequence[Record]) -> list[str]:
    """For each record the family that it belongs to: what is split into training and test has to be split by these.

    Records are of one family if their problems are equal but for space around them, or their ids are up to the first
    "/" (readers name what comes from one line so: a problem and its changed wording, say), and so on from record to
    record. A family goes by the first of its problems in alphabetical order.

    >>> families([Record("1/a", "p", ()), Record("1/b", "q", ()), Record("2", "q ", ()), Record("3", "r", ())])
    ['p', 'p', 'p', 'r']
    """
    parent: dict[tuple[str, str], tuple[str, str]] = {}

    def root(node: tuple[str, str]) -> tuple[str, str]:
        while (above := parent.setdefault(node, node)) != node:
            node = above
        return node

    problems = [("problem", record.problem.strip()) for record in records]
    for record, problem in zip(records, problems, strict=True):
        parent[root(problem)] = root(("id", record.id.split("/")[0]))
    names: dict[tuple[str, str], str] = {}
    for problem in sorted(problems):
        names.setdefault(root(problem), problem[1])
    return [names[root(problem)] for problem in problems]


def rivals(records: Sequence[Record], family: Sequence[str]) -> list[int]:
    """For each record with a wrong step the first of its family with a right one in its place, behind equal steps.

    >>> good, bad = Record("1", "p", ("a", "b"), step_labels=(1, 1)), Record("1", "p", ("a", "c"), step_labels=(1, 0))
    >>> rivals([good, bad], ["p", "p"])
    [-1, 0]

    Returns:
      Indices of records, -1 where there is none.
    """
    rows: dict[str, list[int]] = {}
    for row, name in enumerate(family):
        rows.setdefault(name, []).append(row)

    def rival(record: Record, among: Sequence[int]) -> int:
        first = record.label
        if first is None or first < 0:
            return -1
        found = (
            row
            for row in among
            if records[row].step_labels[first : first + 1] == (1.0,)
            and records[row].steps[:first] == record.steps[:first]
        )
        return next(found, -1)

    return [rival(record, rows[name]) for record, name in zip(records, family, strict=True)]


def write_records(path: str | os.PathLike, records: Iterable[Record]) -> int:
    """Writes a file that :func:`creditjax.process.readers.read_records` reads; returns the number of lines."""
    count = 0
    with open(path, "w", encoding="utf-8") as file:
        for count, record in enumerate(records, start=1):  # noqa: B007
            file.write(json.dumps(record.to_json(), ensure_ascii=False) + "\n")
    return count


def _label(index: int, label: Any) -> Label:
    if label is None or isinstance(label, bool):
        return None if label is None else float(label)
    if not isinstance(label, int | float) or not (math.isfinite(label) and 0 <= label <= 1):
        raise ValueError(f"step_labels[{index}]: {_shown(label)}, wanted null or a number from 0 to 1")
    return float(label)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
