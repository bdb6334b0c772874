"""Learning curves as inline SVG: one small panel a metric, gaps where a value is missing."""

from collections.abc import Iterable
import fnmatch
import html
import json
import math

import numpy as np

from creditjax.report.data import Series

# Sections of the page and the metrics that belong to each; the first pattern that fits decides.
SECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Success and reward", ("eval/*", "best/*", "reward*", "success*", "accuracy", "outcome*", "return*")),
    ("Credit and groups", ("credit*", "*groups*", "advantage*", "rollout_batches")),
    (
        "Policy update",
        ("loss*", "*_loss", "kl*", "entropy*", "clip*", "ratio*", "logprob*", "grad*", "*updates", "learning_rate"),
    ),
    ("Length and speed", ("response_length*", "truncated*", "tokens*", "seconds*", "time*")),
    ("Warm start", ("warm*",)),
)
OTHER = "Other measurements"

_WIDTH, _HEIGHT = 300, 170
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 10, 24
MAX_POINTS = 150
# Beyond this magnitude a difference of two values may overflow, and nothing can be drawn.
_HUGE = 1e300


def sections(keys: Iterable[str]) -> list[tuple[str, list[str]]]:
    """The metrics by section, in the page's order; keys that fit nowhere come last, empty sections are left out."""
    found: dict[str, list[str]] = {title: [] for title in (*dict(SECTIONS), OTHER)}
    for key in sorted(keys):
        title = next((title for title, patterns in SECTIONS if _fits(key, patterns)), OTHER)
        found[title].append(key)
    return [(title, members) for title, members in found.items() if members]


def panel(name: str, series: Series) -> str:
    """One metric over the steps as a `figure` with an SVG; the page's script adds a crosshair from its `data-points`.

    Long runs are drawn as means of equal numbers of consecutive points, with the range of each bucket behind them.
    """
    steps, values = series
    values = np.where(np.abs(values) < _HUGE, values, np.nan)
    known = np.isfinite(values)
    caption = f"<figcaption><b>{html.escape(name)}</b>{_summary(values[known], len(values))}</figcaption>"
    if not known.any():
        return f'<figure class="panel">{caption}<p class="none">no finite value</p></figure>'
    x, low, mean, high = _thin(steps, values)
    ticks_y = _ticks(float(np.nanmin(low)), float(np.nanmax(high)), 4)
    ticks_x = _ticks(float(steps[0]), float(steps[-1]), 4, whole=True)
    to_x = _Axis(float(steps[0]), float(steps[-1]), _LEFT, _WIDTH - _RIGHT)
    to_y = _Axis(ticks_y[0], ticks_y[-1], _HEIGHT - _BOTTOM, _TOP)
    points = [
        [int(step), None if math.isnan(value) else float(f"{value:.6g}"), round(to_x(step), 1), round(to_y(value), 1)]
        for step, value in zip(x, mean, strict=True)
        if not math.isnan(value)
    ]
    band = _band(x, low, high, to_x, to_y) if len(x) < len(steps) else ""
    dots = "".join(f'<circle cx="{p[2]}" cy="{p[3]}" r="2.6"/>' for p in points) if len(points) <= 30 else ""
    return (
        f'<figure class="panel">{caption}<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" tabindex="0" role="img" '
        f'aria-label="{html.escape(name)} over steps" data-points="{html.escape(json.dumps(points))}">'
        f"{_grid(ticks_x, ticks_y, to_x, to_y)}{band}{_line(x, mean, to_x, to_y)}{dots}"
        f'<g class="cross" visibility="hidden"><line y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/><circle r="4"/></g>'
        "</svg></figure>"
    )


def brief(value: float) -> str:
    """A number with four significant digits, large ones with k, M or G."""
    if not math.isfinite(value):
        return "\N{EN DASH}"
    for bound, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if bound <= abs(value) < 1e12:
            return f"{value / (1e3 if unit == 'k' else bound):.4g}{unit}".replace("-", "\N{MINUS SIGN}")
    return f"{value:.4g}".replace("-", "\N{MINUS SIGN}")


class _Axis:
    """Maps data onto pixels linearly; a range of no length maps to the middle."""

    def __init__(self, low: float, high: float, start: float, end: float):
        self.low, self.span, self.start, self.length = low, high - low, start, end - start

    def __call__(self, value: float) -> float:
        share = (float(value) - self.low) / self.span if self.span > 0 else 0.5
        return self.start + share * self.length


def _fits(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns)


def _summary(known: np.ndarray, total: int) -> str:
    if not len(known):
        return ""
    missing = f", {total - len(known)} of {total} missing" if len(known) < total else ""
    return (
        f'<span>last {brief(known[-1])}</span><small class="read" '
        f'aria-live="polite">{brief(known.min())} to {brief(known.max())}{missing}</small>'
    )


def _thin(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """At most `MAX_POINTS` buckets: last step, least, mean and greatest finite value of each (NaN where none)."""
    if len(steps) <= MAX_POINTS:
        return steps, values, values, values
    edges = np.linspace(0, len(steps), MAX_POINTS + 1).astype(int)[:-1]
    known = np.isfinite(values)
    count = np.add.reduceat(known, edges, dtype=int)
    total = np.add.reduceat(np.where(known, values, 0.0), edges)
    low = np.minimum.reduceat(np.where(known, values, np.inf), edges)
    high = np.maximum.reduceat(np.where(known, values, -np.inf), edges)
    some = count > 0
    ends = np.append(edges[1:], len(steps)) - 1
    mean = np.where(some, total / np.maximum(count, 1), np.nan)
    return steps[ends], np.where(some, low, np.nan), mean, np.where(some, high, np.nan)


def _ticks(low: float, high: float, wanted: int, whole: bool = False) -> list[float]:
    """Round numbers (1, 2 or 5 times a power of ten apart) that cover the range."""
    if not high > low:
        half = 1.0 if whole else (abs(low) * 0.1 or 1.0)
        low, high = low - half, high + half
    raw = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * 0.999)
    if whole:
        step = max(1.0, step)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [index * step for index in range(first, last + 1)]


def _grid(ticks_x: list[float], ticks_y: list[float], to_x: _Axis, to_y: _Axis) -> str:
    parts = []
    for tick in ticks_y:
        y = to_y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 7}" y="{y + 3.8:.1f}" text-anchor="end">{brief(tick)}</text>')
    for tick in ticks_x:
        x = to_x(tick)
        if _LEFT - 0.5 <= x <= _WIDTH - _RIGHT + 0.5:
            anchor = "end" if x > _WIDTH - 30 else "middle"
            parts.append(f'<text x="{x:.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{brief(tick)}</text>')
    return "".join(parts)


def _runs(known: np.ndarray) -> list[np.ndarray]:
    """Indices of the stretches without a gap."""
    indices = np.flatnonzero(known)
    return np.split(indices, np.flatnonzero(np.diff(indices) > 1) + 1) if len(indices) else []


def _line(x: np.ndarray, y: np.ndarray, to_x: _Axis, to_y: _Axis) -> str:
    parts = []
    for run in _runs(np.isfinite(y)):
        points = " ".join(f"{to_x(x[i]):.1f},{to_y(y[i]):.1f}" for i in run)
        parts.append(f'<polyline class="curve" points="{points}"/>')
    return "".join(parts)


def _band(x: np.ndarray, low: np.ndarray, high: np.ndarray, to_x: _Axis, to_y: _Axis) -> str:
    parts = []
    for run in _runs(np.isfinite(low)):
        upper = [f"{to_x(x[i]):.1f},{to_y(high[i]):.1f}" for i in run]
        lower = [f"{to_x(x[i]):.1f},{to_y(low[i]):.1f}" for i in run[::-1]]
        parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
    return "".join(parts)
