"""The benchmark's file: one JSON object a line, written entry by entry, so that a run can go on where it stopped."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import fcntl
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import time
from typing import Any, BinaryIO, NamedTuple

import jax

from creditjax.version import __version__

FIELDS = ("recipe", "task", "group", "horizon", "metric", "value", "stderr")
# The rows of an entry end with one of this metric.
LAST = "complete"
# The "recipe" of rows about whole runs.
RUN = "run"


class Row(NamedTuple):
    """One number.

    Attributes:
      recipe: which method; "control:…" for what it is compared with.
      task: on what.
      group: G.
      horizon: actions of an episode.
      metric: what was measured.
      value: NaN where there is none.
      stderr: standard error, 0 for what is exact, NaN where it is not known.
      more: what else the line says.
    """

    recipe: str
    task: str
    group: int
    horizon: int
    metric: str
    value: float
    stderr: float
    more: Mapping[str, Any] = {}

    @property
    def entry(self) -> tuple[str, str, int, int]:
        """What is made in one go."""
        return self.recipe, self.task, self.group, self.horizon

    def as_json(self) -> dict[str, Any]:
        """The line as plain data; null for NaN and infinity."""
        line = {name: getattr(self, name) for name in FIELDS} | dict(self.more)
        return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}


def parse(line: str) -> Row | None:
    """A line of the file; None for one that is none, such as the last of a run that was killed."""
    try:
        found = json.loads(line)
        values = {name: found.pop(name) for name in FIELDS}
        values |= {name: math.nan if values[name] is None else float(values[name]) for name in ("value", "stderr")}
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    kinds = {"recipe": str, "task": str, "group": int, "horizon": int, "metric": str}
    right = all(type(values[name]) is kind for name, kind in kinds.items())
    return Row(**values, more=found) if right else None


class Results:
    """Rows by entry, in memory and, if it has a path, in a file that is as old as the last entry.

    Several runs may share a file: none loses another's rows, and of an entry that was made twice the last is kept.
    """

    def __init__(self, path: str | os.PathLike | None = None):
        """Reads what is there and takes out what is not complete: it will be made again. Makes missing folders.

        Raises:
          ValueError: the path is a folder, or a file that holds something else, which is left as it is.
        """
        self.path = pathlib.Path(path) if path else None
        self.rows: list[Row] = []
        if self.path:
            if self.path.is_dir():
                raise ValueError(f"results: {self.path} is a folder, wanted a file")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists():
                self._read()
        self._complete = {row.entry for row in self.rows if row.metric == LAST}

    def _read(self) -> None:
        with self._alone() as file:
            file.seek(0)
            text = file.read().decode("utf-8", "replace")
            found = [row for row in map(parse, text.split("\n")) if row]
            # The first line of a run that was killed may be torn.
            if text.strip("\0 \r\n") and not found and not text.startswith(_BEGINNING[: len(text)]):
                raise ValueError(
                    f"results: {self.path} begins with {text[:40]!r}, wanted a file of the benchmark's rows"
                )
            self.rows = _whole(found)
            tidy = "".join(map(_line, self.rows))
            if tidy != text:
                scratch = self.path.with_name(self.path.name + ".partial")
                scratch.write_text(tidy, encoding="utf-8")
                scratch.replace(self.path)

    @contextlib.contextmanager
    def _alone(self) -> Iterator[BinaryIO]:
        """The file, at its end, while no other run reads or writes it."""
        while True:
            with open(self.path, "a+b") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                # Another run may have put a new file in its place before the lock was had.
                if self.path.exists() and os.path.samestat(os.fstat(file.fileno()), os.stat(self.path)):
                    yield file
                    return

    def __contains__(self, entry: tuple[str, str, int, int]) -> bool:
        return entry in self._complete

    def get(self, entry: tuple[str, str, int, int], metric: str) -> Row | None:
        """The row of an entry and metric, None if there is none."""
        return next((row for row in self.rows if row.entry == entry and row.metric == metric), None)

    def add(self, entry: tuple[str, str, int, int], rows: Iterable[Row]) -> None:
        """Writes an entry, its rows and the mark that they are all; in place of those that it had."""
        new = [*rows, Row(*entry, metric=LAST, value=1.0, stderr=0.0)]
        self.rows = _whole([*self.rows, *new]) if entry in self._complete else [*self.rows, *new]
        self._complete.add(entry)
        if self.path:
            with self._alone() as file:
                file.write("".join(map(_line, new)).encode())


def _whole(rows: Iterable[Row]) -> list[Row]:
    """The rows of complete entries, of each the last that were made."""
    pending: dict[Any, dict[Any, Row]] = {}
    kept: dict[Any, list[Row]] = {}
    for row in rows:
        # Variants of a method are made with it.
        base = row._replace(recipe=row.recipe.split("+")[0]).entry
        pending.setdefault(base, {})[row.recipe, row.metric] = row
        if row.metric == LAST and row.entry == base:
            kept.pop(base, None)
            kept[base] = list(pending.pop(base).values())
    return [row for entry in kept.values() for row in entry]


# Of every line, as `Row.as_json` orders it.
_BEGINNING = '{"recipe": '


def _line(row: Row) -> str:
    return json.dumps(row.as_json()) + "\n"


@contextlib.contextmanager
def timed(found: Results, arguments: Sequence[str]) -> Iterator[None]:
    """Adds one row that says how a run was made: its command, versions, and the seconds that it took."""
    began = time.perf_counter()
    yield
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    # Not every system tells which cores are this process's own.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    more = {
        "command": " ".join(["python -m experiments.benchmark", *arguments]),
        "versions": {"creditjax": __version__, "python": platform.python_version(), **versions},
        "machine": f"{jax.devices()[0].platform}, {cores} cores",
    }
    made = sum(row.recipe == RUN for row in found.rows)
    entry = (RUN, "", 0, made)
    seconds = time.perf_counter() - began
    found.add(entry, [Row(*entry, metric="seconds", value=seconds, stderr=math.nan, more=more)])
