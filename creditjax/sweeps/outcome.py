"""What a sweep's directory holds, trial by trial and setting by setting."""

from collections.abc import Mapping, Sequence
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from creditjax.report.data import Series, read_json, read_metrics


class Trained(NamedTuple):
    """One trial of a sweep as far as it got.

    Attributes:
      id: of the trial.
      overrides: what it was given beside the shared config.
      config: its resolved config, empty before it began.
      series: its metrics, see `creditjax.report.data.Metrics`.
      finished: whether it has all its steps.
      devices: on how many it ran last.
    """

    id: str
    overrides: Mapping[str, Any]
    config: Mapping[str, Any]
    series: Mapping[str, Series]
    finished: bool
    devices: int = 1

    def last(self, metric: str) -> float:
        """The last finite value of a metric, NaN without one."""
        values = self.series[metric][1] if metric in self.series else np.array([])
        known = values[np.isfinite(values)]
        return float(known[-1]) if known.size else float("nan")

    def total(self, metric: str) -> float:
        """Sum of a metric of one step over all steps; a logged row stands for those since the row before."""
        if metric not in self.series:
            return 0.0
        steps, values = self.series[metric]
        return float(np.nansum(values * np.diff(steps, prepend=min(int(steps[0]), 0))))


class Arm(NamedTuple):
    """The trials that differ in their seeds alone.

    Attributes:
      overrides: what they share.
      trials: finished or not.
    """

    overrides: Mapping[str, Any]
    trials: tuple[Trained, ...]

    @property
    def name(self) -> str:
        """Its overrides by the last part of their paths."""
        parts = [f"{path.rpartition('.')[2]}={_shown(value)}" for path, value in self.overrides.items()]
        names = [
            str(v) if p == "recipe.name" else part for (p, v), part in zip(self.overrides.items(), parts, strict=True)
        ]
        return ", ".join(names) or "all trials"

    def finals(self, metric: str) -> np.ndarray:
        """Last value of each finished trial that has one, f64 ``[seeds]``."""
        found = np.array([trial.last(metric) for trial in self.trials if trial.finished])
        return found[np.isfinite(found)] if found.size else found

    def curve(self, metric: str) -> tuple[np.ndarray, np.ndarray]:
        """Steps at which every trial with the metric has a finite value, and the values ``[seeds, steps]``."""
        series = [trial.series[metric] for trial in self.trials if metric in trial.series]
        series = [(steps[np.isfinite(values)], values[np.isfinite(values)]) for steps, values in series]
        if not series:
            return np.array([], int), np.zeros((0, 0))
        shared = series[0][0]
        for steps, _ in series[1:]:
            shared = np.intersect1d(shared, steps)
        return shared, np.stack([values[np.isin(steps, shared)] for steps, values in series])


def read_sweep(root: str | pathlib.Path) -> list[Trained]:
    """The trials of a sweep in their order.

    Raises:
      FileNotFoundError: the directory holds no sweep.
      ValueError: its `sweep.json` cannot be read.
    """
    root = pathlib.Path(root)
    path = root / "sweep.json"
    if not path.exists():
        raise FileNotFoundError(
            f"{root}: no sweep.json, wanted the directory of a sweep (experiments.sweep --sweep_dir)"
        )
    try:
        described = json.loads(path.read_text(encoding="utf-8"))["trials"]
        listed = [(str(trial["id"]), dict(trial["overrides"])) for trial in described]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from error
    trials = []
    for name, overrides in listed:
        workdir = root / "trials" / name
        found = read_json(workdir / "config.json")
        found = found if isinstance(found, dict) else {}
        metrics = read_metrics(workdir / "metrics.jsonl")
        finished, devices = (workdir / "result.json").exists(), found.get("devices", {}).get("count", 1)
        trials.append(Trained(name, overrides, found.get("config", {}), metrics.series, finished, devices))
    return trials


def arms(trials: Sequence[Trained]) -> list[Arm]:
    """The settings of a sweep in the order in which they first come."""
    found: dict[str, list[Trained]] = {}
    for trial in trials:
        found.setdefault(json.dumps(_setting(trial.overrides), sort_keys=True, default=str), []).append(trial)
    return [Arm(_setting(members[0].overrides), tuple(members)) for members in found.values()]


def main_metric(trials: Sequence[Trained]) -> str:
    """What the trials are judged by: what the config keeps the best parameters by, if it was logged.

    Raises:
      ValueError: nothing was logged.
    """
    names = list(dict.fromkeys(name for trial in trials for name in trial.series))
    wanted = [trial.config.get("checkpoint", {}).get("best_metric") for trial in trials]
    candidates = [*wanted, "eval/success", "eval/reward", "reward"]
    for name in (*candidates, *(name for name in names if name.startswith("eval/")), *names):
        if name in names:
            return str(name)
    raise ValueError("no trial has logged a metric yet")


def _setting(overrides: Mapping[str, Any]) -> dict[str, Any]:
    return {path: value for path, value in overrides.items() if path.rpartition(".")[2] != "seed"}


def _shown(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
