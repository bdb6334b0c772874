"""Reads what a run wrote. A run may have been killed at any moment, so a bad line costs that line and is counted."""

import json
import math
import pathlib
from typing import Any, NamedTuple

import numpy as np

Series = tuple[np.ndarray, np.ndarray]

# Integers up to here are exact in JSON's numbers. NaN compares false.
_LARGEST_STEP = 2**53


class Metrics(NamedTuple):
    """The curves of one run.

    Attributes:
      series: for each key its steps, i64 ``[S]`` in increasing order, and values, f64 ``[S]``; NaN where the run logged
        null or NaN.
      unreadable: number of lines that held no JSON object with a finite `step`.
    """

    series: dict[str, Series]
    unreadable: int


def read_metrics(path: str | pathlib.Path) -> Metrics:
    """Reads a `metrics.jsonl`: one JSON object a logged step, with `step` and any numeric keys.

    A step that was logged twice (a run resumed from an earlier checkpoint) keeps what was logged last. Values that are
    no numbers are left out. A half-written or foreign line is counted, never an error.

    Args:
      path: the file; a file that does not exist reads as an empty one.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return Metrics({}, 0)
    logged: dict[str, dict[int, float]] = {}
    unreadable = 0
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        if not line.strip():
            continue
        row = _parse(line)
        step = _number(row.get("step")) if isinstance(row, dict) else None
        if step is None or not abs(step) < _LARGEST_STEP:
            unreadable += 1
            continue
        for key, value in row.items():
            if key != "step" and (number := _number(value)) is not None:
                logged.setdefault(key, {})[int(step)] = number
    series = {}
    for key, points in logged.items():
        steps = sorted(points)
        series[key] = (np.array(steps, dtype=np.int64), np.array([points[step] for step in steps], dtype=np.float64))
    return Metrics(series, unreadable)


def read_rollouts(path: str | pathlib.Path) -> tuple[list[dict[str, Any]], list[str]]:
    """Reads a `rollouts.json`: a list of objects with `prompt`, `tokens`, `action`, `credit`, `outcome` and `group`.

    Args:
      path: the file; a file that does not exist reads as an empty list.

    Returns:
      The rollouts that can be drawn (`action` as bool ``[T]``, `credit` as f64 ``[T]`` with NaN for null, `outcome` a
      float that is NaN where unscored), and one line for each that cannot, saying why.
    """
    path = pathlib.Path(path)
    if not path.exists():
        return [], []
    content = _parse(path.read_text(encoding="utf-8", errors="replace"))
    if not isinstance(content, list):
        return [], [f"{path.name}: no JSON list"]
    rollouts, faults = [], []
    for index, entry in enumerate(content):
        try:
            rollouts.append(_rollout(entry))
        except (KeyError, TypeError, ValueError) as error:
            faults.append(f"{path.name}[{index}]: {error}")
    return rollouts, faults


def read_json(path: pathlib.Path) -> Any:
    """The content of a JSON file, None where it is absent or unreadable."""
    return _parse(path.read_text(encoding="utf-8", errors="replace")) if path.exists() else None


def _rollout(entry: Any) -> dict[str, Any]:
    if not isinstance(entry, dict):
        raise TypeError(f"a {type(entry).__name__}, wanted an object")
    if absent := [name for name in ("tokens", "action", "credit") if not isinstance(entry.get(name), list)]:
        raise ValueError(f"{', '.join(absent)}: wanted a list each")
    tokens = [str(token) for token in entry["tokens"]]
    action = np.array([bool(flag) for flag in entry["action"]], dtype=bool)
    credit = np.array([math.nan if value is None else float(value) for value in entry["credit"]], dtype=np.float64)
    if not len(tokens) == len(action) == len(credit):
        raise ValueError(
            f"{len(tokens)} tokens, {len(action)} action flags, {len(credit)} credits, wanted as many of each"
        )
    outcome = _number(entry.get("outcome"))
    return {
        "prompt": str(entry.get("prompt") or ""),
        "tokens": tokens,
        "action": action,
        "credit": credit,
        "outcome": math.nan if outcome is None else outcome,
        "group": entry.get("group"),
    }


def _parse(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _number(value: Any) -> float | None:
    """A float, NaN for null, None for what is no number."""
    if value is None:
        return math.nan
    if not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return None
