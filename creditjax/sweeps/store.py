"""The directory of a sweep. What it holds is all that is known: there is no state elsewhere that a kill could spoil.

sweep.json                config and overrides of every trial, versions
results.jsonl             one object a finished trial, in the order of the sweep
trials/<id>/              the trial's workdir, see `creditjax.training.train`; its result.json says that it finished
trials/<id>/attempts.jsonl   one object when an attempt starts, and one when it ends
trials/<id>/log.txt       what it printed, all attempts
"""

from collections.abc import Iterator, Mapping, Sequence
import contextlib
import fcntl
import json
import os
import pathlib
import time
from typing import Any, NamedTuple

from creditjax.sweeps.trials import Trial
from creditjax.training import metrics as metrics_lib

# Read from the end of a file, to find its last rows: a row has a few hundred bytes.
_TAIL = 1 << 16


class Progress(NamedTuple):
    """How far a trial is.

    Attributes:
      step: of the last row that it wrote, 0 without any.
      metrics: of its last rows, each name with its newest number.
    """

    step: int
    metrics: Mapping[str, float | None]


class Busy(RuntimeError):
    """Another sweep runs in the directory."""


class Store:
    """A sweep's directory."""

    def __init__(self, root: str | os.PathLike):
        """Names the directory; makes nothing."""
        self.root = pathlib.Path(root)

    def directory(self, trial: Trial) -> pathlib.Path:
        """The trial's workdir; a sweep makes it when it comes to the trial."""
        return self.root / "trials" / trial.id

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Makes the directory, and keeps other sweeps out of it.

        Raises:
          Busy: another sweep runs there.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise Busy(f"{self.root}: another sweep runs in this directory") from error
            yield

    def begin(self, config: Sequence[str], trials: Sequence[Trial], versions: Mapping[str, str]) -> list[str]:
        """Writes `sweep.json`.

        Args:
          config: the flags that all trials share.
          trials: all of the sweep.
          versions: of whatever can change numbers.

        Returns:
          Versions that are others than when the directory was last used, as ``name: old -> new``.
        """
        path = self.root / "sweep.json"
        before = json.loads(path.read_text())["versions"] if path.exists() else versions
        described = {
            "config": list(config),
            "trials": [{"id": trial.id, "overrides": dict(trial.overrides)} for trial in trials],
            "versions": dict(versions),
        }
        metrics_lib.replace_text(path, json.dumps(described, indent=2) + "\n")
        names = sorted({*before, *versions})
        return [f"{n}: {before.get(n)} -> {versions.get(n)}" for n in names if before.get(n) != versions.get(n)]

    def result(self, trial: Trial) -> dict[str, Any] | None:
        """The step and the metrics of a trial that has all its steps, None of any other."""
        try:
            found = json.loads((self.directory(trial) / "result.json").read_text())
        except FileNotFoundError:
            return None
        return found if found["step"] >= trial.steps else None

    def progress(self, trial: Trial) -> Progress:
        """How far a trial is."""
        rows = list(_last_objects(self.directory(trial) / "metrics.jsonl"))
        metrics = {name: value for row in rows for name, value in row.items()}
        return Progress(int(metrics.pop("step", 0) or 0), metrics)

    def started(self, trial: Trial, command: Sequence[str]) -> None:
        """Records that an attempt starts."""
        self._record(trial, {"attempt": len(self._starts(trial)) + 1, "event": "started", "command": list(command)})

    def ended(self, trial: Trial, outcome: str, code: int | None) -> None:
        """Records that the last attempt ended: "finished", "failed" or "stopped"."""
        self._record(trial, {"attempt": len(self._starts(trial)), "event": outcome, "code": code})

    def failures(self, trial: Trial) -> int:
        """Number of attempts that failed; those that a sweep stopped, or that died with it, are none."""
        return sum(row["event"] == "failed" for row in self._attempts(trial))

    def last_failure(self, trial: Trial) -> int | None:
        """The exit code of the last attempt that failed."""
        return next((row["code"] for row in reversed(self._attempts(trial)) if row["event"] == "failed"), None)

    def last_line(self, trial: Trial) -> str:
        """The last line of the trial's log that says something."""
        lines = _tail(self.directory(trial) / "log.txt").splitlines()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def write_results(self, trials: Sequence[Trial]) -> list[dict[str, Any]]:
        """Writes `results.jsonl` from the trials' own files, and returns its rows."""
        rows = []
        for trial in trials:
            if (result := self.result(trial)) is not None:
                rows.append({"id": trial.id, "overrides": dict(trial.overrides), **result})
        metrics_lib.replace_text(self.root / "results.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        return rows

    def _attempts(self, trial: Trial) -> list[dict[str, Any]]:
        return metrics_lib.read_rows(self.directory(trial) / "attempts.jsonl", "attempt")

    def _starts(self, trial: Trial) -> list[dict[str, Any]]:
        return [row for row in self._attempts(trial) if row["event"] == "started"]

    def _record(self, trial: Trial, row: Mapping[str, Any]) -> None:
        row = {**row, "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        with (self.directory(trial) / "attempts.jsonl").open("a+b") as file:
            file.seek(0)
            # A line that was cut off by a kill would spoil the one behind it.
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(json.dumps(row).encode() + b"\n")


def _tail(path: pathlib.Path) -> str:
    try:
        with path.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL, 0))
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""


def _last_objects(path: pathlib.Path) -> Iterator[dict[str, Any]]:
    for line in _tail(path).splitlines():
        # The first may begin before the tail, the last may still be written.
        with contextlib.suppress(ValueError):
            if isinstance(found := json.loads(line), dict):
                yield found
