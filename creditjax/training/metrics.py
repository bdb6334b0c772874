"""Where the numbers of a run go: `metrics.jsonl`, TensorBoard, and a progress bar or plain lines.

Metrics are (sum, count) pairs until :func:`means` divides them on the host. The writers have the methods of
`clu.metric_writers.MetricWriter` and can stand in a `clu.metric_writers.MultiWriter`; clu's own are not used because
importing them needs TensorFlow.
"""

from collections.abc import Mapping, Sequence
import json
import math
import os
import pathlib
import sys
from typing import Any, Protocol, TextIO

from clu import metrics as clu_metrics
import jax
import numpy as np


def means(metrics: Mapping[str, tuple[Any, Any]]) -> dict[str, float]:
    """The one division: every (sum, count) as a float, without those that counted nothing."""
    fetched = jax.device_get(dict(metrics))
    averages = {name: clu_metrics.Average(total=total, count=count) for name, (total, count) in sorted(fetched.items())}
    return {name: float(average.compute()) for name, average in averages.items() if average.count > 0}


class MetricWriter(Protocol):
    """The part of `clu.metric_writers.MetricWriter` that a run uses."""

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars of one step."""

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Writes the configuration, once."""

    def flush(self) -> None:
        """Makes sure that everything is written."""

    def close(self) -> None:
        """Flushes, and lets go of the files."""


class JsonlWriter:
    """One JSON object a line and step; a number that is not finite is null."""

    def __init__(self, path: str | pathlib.Path):
        self._file = pathlib.Path(path).open("a", encoding="utf-8")  # noqa: SIM115 — open for the whole run

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Appends ``{"step": step, ...}`` in one piece and hands it to the system, so that a kill cannot lose it."""
        row = {"step": int(step), **{name: _number(value) for name, value in scalars.items()}}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Nothing: they are in `config.json`."""

    def flush(self) -> None:
        """Asks the system to put everything on disk."""
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Flushes and closes the file."""
        self.flush()
        self._file.close()


class TensorBoardWriter:
    """TensorBoard event files, through `tensorboardX`: no TensorFlow."""

    def __init__(self, directory: str | pathlib.Path, purge_step: int | None = None):
        import tensorboardX

        self._writer = tensorboardX.SummaryWriter(str(directory), purge_step=purge_step)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Adds every scalar."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, global_step=int(step))

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Shows them as text."""
        text = "\n".join(f"    {name}: {value}" for name, value in hparams.items())
        self._writer.add_text("config", text)

    def flush(self) -> None:
        """Flushes the event file."""
        self._writer.flush()

    def close(self) -> None:
        """Closes the event file."""
        self._writer.close()


class Console:
    """A progress bar on a terminal, plain lines elsewhere.

    Args:
      total: number of steps of the whole run.
      start: steps finished already.
      shown: names of the metrics worth a place on the line, in order.
      stream: where to, stderr by default.
      quiet: show nothing: what all processes but the first do.
    """

    def __init__(
        self,
        total: int,
        start: int = 0,
        shown: Sequence[str] = (),
        stream: TextIO | None = None,
        quiet: bool = False,
    ):
        self._total, self._shown, self._quiet = total, shown, quiet
        self._stream = stream or sys.stderr
        self._bar = None
        if self._stream.isatty() and not quiet:
            import tqdm

            self._bar = tqdm.tqdm(total=total, initial=start, unit="step", file=self._stream, dynamic_ncols=True)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Shows one step."""
        text = "  ".join(f"{name} {scalars[name]:.4g}" for name in self._shown if name in scalars)
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            self.say(f"step {step}/{self._total}  {text}")

    def advance(self, step: int) -> None:
        """Moves the bar, between lines too."""
        if self._bar is not None:
            self._bar.update(step - self._bar.n)

    def say(self, text: str) -> None:
        """Prints a line without breaking the bar."""
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        elif not self._quiet:
            print(text, file=self._stream, flush=True)

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Nothing: the run says where `config.json` lies."""

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()

    def close(self) -> None:
        """Leaves the bar as it stands."""
        if self._bar is not None:
            self._bar.close()


class Writers:
    """Several writers as one."""

    def __init__(self, writers: Sequence[MetricWriter]):
        self._writers = tuple(writers)

    def write_scalars(self, step: int, scalars: Mapping[str, float]) -> None:
        """Writes the scalars with each."""
        for writer in self._writers:
            writer.write_scalars(step, scalars)

    def write_hparams(self, hparams: Mapping[str, Any]) -> None:
        """Writes the configuration with each."""
        for writer in self._writers:
            writer.write_hparams(hparams)

    def flush(self) -> None:
        """Flushes each."""
        for writer in self._writers:
            writer.flush()

    def close(self) -> None:
        """Closes each."""
        for writer in self._writers:
            writer.close()


def read_rows(path: str | pathlib.Path, number_name: str = "step") -> list[dict[str, Any]]:
    """The rows of a `metrics.jsonl`; a last line that was cut off by a kill is left out.

    Args:
      path: the file; without it there are no rows.
      number_name: the field that every row has, an integer.

    Raises:
      ValueError: any other line that is no JSON object with that field, by number.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    rows = []
    for number, line in enumerate(lines, 1):
        if not line:
            continue
        try:
            row = json.loads(line)
            row[number_name] = int(row[number_name])
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break
            raise ValueError(f"{path}, line {number}: {error}, wanted a JSON object with a `{number_name}`") from error
        rows.append(row)
    return rows


def truncate(path: str | pathlib.Path, step: int) -> None:
    """Removes the rows after `step`, which a run that resumes there writes again, and a half-written last line."""
    path = pathlib.Path(path)
    rows = [row for row in read_rows(path) if row["step"] <= step]
    replace_text(path, "".join(json.dumps(row) + "\n" for row in rows))


def replace_text(path: pathlib.Path, text: str) -> None:
    """Writes a file so that whoever reads it finds all of the old text or all of the new, whatever is killed when."""
    part = path.with_suffix(".part")
    part.write_text(text, encoding="utf-8")
    part.replace(path)


def _number(value: Any) -> float | int | None:
    value = value.item() if isinstance(value, np.generic) else value
    return value if math.isfinite(value) else None
