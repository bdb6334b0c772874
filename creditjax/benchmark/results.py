"""The benchmark's file: one JSON object a line, written entry by entry, so that a run can go on where it stopped."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import contextlib
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import time
from typing import Any, NamedTuple

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
    except (ValueError, KeyError, AttributeError, TypeError):
        return None
    values |= {name: math.nan if values[name] is None else float(values[name]) for name in ("value", "stderr")}
    return Row(**values, more=found)


class Results:
    """Rows by entry, in memory and, if it has a path, in a file that is as old as the last entry."""

    def __init__(self, path: str | os.PathLike | None = None):
        """Reads what is there and takes out what is not complete: it will be made again."""
        self.path = pathlib.Path(path) if path else None
        self.rows: list[Row] = []
        if self.path and self.path.exists():
            found = [row for row in map(parse, self.path.read_text(encoding="utf-8").splitlines()) if row]
            complete = {row.entry for row in found if row.metric == LAST}
            self.rows = [row for row in found if self._base(row) in complete]
            scratch = self.path.with_name(self.path.name + ".partial")
            scratch.write_text("".join(map(_line, self.rows)), encoding="utf-8")
            scratch.replace(self.path)
        self._complete = {row.entry for row in self.rows if row.metric == LAST}

    @staticmethod
    def _base(row: Row) -> tuple[str, str, int, int]:
        # Variants of a method are made with it.
        return row._replace(recipe=row.recipe.split("+")[0]).entry

    def __contains__(self, entry: tuple[str, str, int, int]) -> bool:
        return entry in self._complete

    def add(self, entry: tuple[str, str, int, int], rows: Iterable[Row]) -> None:
        """Writes an entry, its rows and the mark that they are all."""
        new = [*rows, Row(*entry, metric=LAST, value=1.0, stderr=0.0)]
        self.rows += new
        self._complete.add(entry)
        if self.path:
            with open(self.path, "a", encoding="utf-8") as file:
                file.write("".join(map(_line, new)))


def _line(row: Row) -> str:
    return json.dumps(row.as_json()) + "\n"


@contextlib.contextmanager
def timed(found: Results, arguments: Sequence[str]) -> Iterator[None]:
    """Adds one row that says how a run was made: its command, versions, and the seconds that it took."""
    began = time.perf_counter()
    yield
    versions = {name: importlib.metadata.version(name) for name in ("jax", "jaxlib", "numpy")}
    more = {
        "command": " ".join(["python -m experiments.benchmark", *arguments]),
        "versions": {"creditjax": __version__, "python": platform.python_version(), **versions},
        "machine": f"{jax.devices()[0].platform}, {len(os.sched_getaffinity(0))} cores",
    }
    made = sum(row.recipe == RUN for row in found.rows)
    entry = (RUN, "", 0, made)
    seconds = time.perf_counter() - began
    found.add(entry, [Row(*entry, metric="seconds", value=seconds, stderr=math.nan, more=more)])
