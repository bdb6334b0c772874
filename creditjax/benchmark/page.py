"""The benchmark's results as one HTML page that opens offline: figures, curves, tables, checklist, how it was made.

Every figure is inline SVG, nothing outside is referred to, and nothing runs. Colours are Okabe and Ito's, which common
forms of colour blindness keep apart; a line is told by its dashes too.
"""

from collections.abc import Iterable, Sequence
import math
import os
import pathlib

import numpy as np

from creditjax import reporting
from creditjax.benchmark.results import LAST, RUN, Row
from creditjax.report.curves import brief
from creditjax.report.shell import document, escaped, write_whole

_STYLE = """
.figures { display: grid; gap: 14px; grid-template-columns: repeat(auto-fill, minmax(345px, 1fr)); }
.figures.narrow { grid-template-columns: repeat(auto-fill, minmax(270px, 1fr)); }
.panel .axis { fill: var(--dim); font-weight: 600; }
.panel .dot { stroke: var(--card); stroke-width: 1.5; }
.panel .mark { fill: var(--ink); font-weight: 600; }
.panel .leader { stroke: var(--dim); stroke-width: .7; }
.panel .exact { fill: var(--dim); opacity: .45; }
.panel .zero { stroke: var(--dim); stroke-width: 1; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
section h3 { margin-top: 18px; }
ol.key { columns: 2; column-gap: 22px; margin: 6px 0 8px; padding-left: 20px; font-size: 12px; color: var(--dim); }
ol.key b { color: var(--ink); font-weight: 400; }
ol.key li { break-inside: avoid; overflow-wrap: anywhere; }
ol.key li.many { column-span: all; }
p.key { display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 10px; font-size: 13.5px; }
p.key svg { width: 34px; height: 10px; margin-right: 6px; }
details { margin: 8px 0; } summary { cursor: pointer; }
.wide { overflow-x: auto; } .wide table { width: auto; min-width: 100%; margin-top: 8px; }
.wide th, .wide td { width: auto; white-space: nowrap; padding: 3px 10px; }
.wide td { text-align: right; font-variant-numeric: tabular-nums; } .wide thead th { text-align: right; }
.wide th:first-child { text-align: left; }
.wide small { color: var(--dim); }
"""

# Okabe and Ito 2008; in figures by method, so that one method has one colour on the whole page.
_LOOKS: dict[str, tuple[str, str]] = {
    "control:oracle": ("#7f7f7f", "1 0"),
    "grpo": ("#0072b2", "1 0"),
    "rloo": ("#56b4e9", "7 3"),
    "reinforce": ("#e69f00", "2 3"),
    "gigpo": ("#009e73", "1 0"),
    "gae": ("#cc79a7", "7 3"),
    "tempo": ("#d55e00", "1 0"),
    "pure": ("#e69f00", "7 3"),
    "vtrace": ("#009e73", "2 3"),
    "prime": ("#56b4e9", "2 3"),
}
_OTHER = ("#0072b2", "1 0")
_SHOWN = ("grpo", "gigpo", "tempo", "gae", "pure", "vtrace")
_COLUMNS = {
    "sign_accuracy": "signs",
    "zero_share": "zeros",
    "spearman": "Spearman",
    "kendall": "Kendall",
    "hit_at_1": "hit@1",
    "hit_at_3": "hit@3",
    "credit_mass": "mass",
    "bias": "bias",
    "variance": "variance",
    "cosine": "cosine",
    "relative_bias": "gradient bias",
    "efficiency": "efficiency",
    "cost_ms": "ms",
}

Cell = tuple[str, int, int]  # task, horizon, group


def write(rows: Sequence[Row], path: str | os.PathLike) -> pathlib.Path:
    """Writes the page of the results that there are; what is absent is left out.

    Args:
      rows: of one benchmark file.
      path: of the page; replaced in one move.

    Returns:
      The path.
    """
    return write_whole(path, render(rows))


def render(rows: Sequence[Row]) -> str:
    """The text of the page."""
    table: dict[Cell, dict[str, dict[str, Row]]] = {}
    for row in rows:
        if row.metric != LAST and row.recipe != RUN:
            table.setdefault((row.task, row.horizon, row.group), {}).setdefault(row.recipe, {})[row.metric] = row
    curves = {cell: by for cell, by in table.items() if any(_steps(row) for row in by.values())}
    credit = {cell: by for cell, by in table.items() if cell not in curves}
    body = (
        _frontier(credit),
        _positions(credit),
        _learning(curves),
        _tables(credit),
        _checklist(rows, credit, curves),
        _made(rows),
    )
    return document(
        title="Credit against the truth",
        brand="creditjax benchmark",
        subtitle="Every method is held against the exact credit of small tasks: how far off it is on average, how much "
        "it scatters, and what that costs in learning.",
        body="".join(body),
        styles=("page.css",),
        extra=_STYLE,
    )


def _frontier(credit: dict[Cell, dict[str, dict[str, Row]]]) -> str:
    panels = "".join(_frontier_panel(cell, credit[cell]) for cell in _typical(credit))
    if not panels:
        return ""
    return (
        '<section><h2>Bias against variance</h2><p class="sub">Of each method\'s credit for a step, after the one '
        "factor that brings it nearest to the exact credit; in units of the exact credit's size. Exact credit is at "
        "the origin, no credit at all at (1, 0). Methods with the same credit share a number, which the pointer shows "
        "where there is no room for it. Both axes are stretched where most methods are: across by how much of the "
        "exact credit is left, sqrt(1 - bias^2), upward by the root.</p>"
        f'<div class="figures">{panels}</div></section>'
    )


def _typical(credit: dict[Cell, dict[str, dict[str, Row]]]) -> list[Cell]:
    """One setting a task: the smallest group, and the longest horizon of 16 at most."""
    chosen: dict[str, Cell] = {}
    for cell in sorted(credit, key=lambda c: (c[2], -c[1] if c[1] <= 16 else c[1])):
        chosen.setdefault(cell[0], cell)
    order = list(dict.fromkeys(cell[0] for cell in credit))
    return sorted(chosen.values(), key=lambda cell: order.index(cell[0]))


def _frontier_panel(cell: Cell, by: dict[str, dict[str, Row]]) -> str:
    found = {
        name: (found["bias"].value, found["variance"].value)
        for name, found in by.items()
        if "+" not in name and all(m in found and math.isfinite(found[m].value) for m in ("bias", "variance"))
    }
    found.pop("control:oracle", None)  # at the origin, far from everything
    if not found:
        return ""
    biases, variances = zip(*found.values(), strict=True)
    plot = _Stretched(370, 250, min(0.95, *biases), max(0.02, *variances))
    # Same credit, same place: one mark for all of them.
    places: dict[tuple[float, float], list[str]] = {}
    for name, (x, y) in sorted(found.items(), key=lambda item: (not item[0].startswith("control"), item[1])):
        near = next((p for p in places if math.dist(plot.at(*p), plot.at(x, y)) < 1.5), (x, y))
        places.setdefault(near, []).append(name)
    parts, keys, taken = [], [], [plot.at(*place) for place in places]
    for number, (place, names) in enumerate(places.items(), 1):
        x, y = plot.at(*place)
        control = all(name.startswith("control:") for name in names)
        colour = "#7f7f7f" if control else _LOOKS.get(names[0], _OTHER)[0]
        said = f"{number}: {', '.join(names)}: bias {brief(place[0])}, variance {brief(place[1])}"
        if label := _free(x, y, taken, plot):
            taken.append(label)
            parts.append(
                f'<line class="leader" x1="{x:.1f}" y1="{y:.1f}" x2="{label[0]:.1f}" y2="{label[1]:.1f}"/>'
                f'<text class="mark" x="{label[0]:.1f}" y="{label[1] + 4:.1f}" text-anchor="middle">{number}</text>'
            )
        parts.append(
            f'<circle class="dot" cx="{x:.1f}" cy="{y:.1f}" r="4.5" style="fill:{colour}">'
            f"<title>{escaped(said)}</title></circle>"
        )
        shown = [f"{name.removeprefix('control:')} (control)" if "control:" in name else name for name in names]
        keys.append(f"<li{' class=many' if len(names) > 2 else ''}><b>{escaped(', '.join(shown))}</b></li>")
    return (
        f'<figure class="panel"><figcaption><b>{escaped(_named(cell))}</b></figcaption>'
        f"{plot.svg(''.join(parts), 'bias', 'variance', f'bias against variance on {cell[0]}')}"
        f'<ol class="key">{"".join(keys)}</ol></figure>'
    )


def _free(x: float, y: float, taken: list[tuple[float, float]], plot: "_Plot") -> tuple[float, float] | None:
    """A place for a label near a point that is far from all others, None in a crowd."""
    places = [
        (x + r * math.cos(angle), y + r * math.sin(angle))
        for r in (13, 20, 28)
        for angle in np.linspace(0, 2 * math.pi, 13)[:-1] - math.pi / 4
    ]
    inside = [p for p in places if plot.left + 6 < p[0] < plot.right - 4 and plot.top < p[1] < plot.bottom - 6]
    return next((p for p in inside if all(math.dist(p, other) > 12.5 for other in taken)), None)


def _positions(credit: dict[Cell, dict[str, dict[str, Row]]]) -> str:
    sections = []
    for cell in _typical(credit)[:4]:
        by = credit[cell]
        shown = [name for name in _SHOWN if name in by] or [n for n in by if "+" not in n and "control" not in n][:6]
        panels = "".join(_position_panel(name, by[name]) for name in shown)
        if panels:
            paid = [row.more["outcome"] for row in by[shown[0]].values() if _finite(row.more.get("outcome"))]
            heading = _named(cell) + (f"; the episode was paid {brief(paid[0])}" if paid else "")
            sections.append(f'<h3>{escaped(heading)}</h3><div class="figures narrow">{panels}</div>')
    if not sections:
        return ""
    return (
        '<section><h2>Credit against position</h2><p class="sub">One episode a task. Grey bars are the exact credit of '
        "each step, dots a method's mean credit over the company that the episode may keep in its group. Each is "
        f"scaled to its largest magnitude.</p>{''.join(sections)}</section>"
    )


def _position_panel(name: str, found: dict[str, Row]) -> str:
    rows = [(k, row) for k, row in _numbered(found, "credit@") if _finite(row.more.get("exact"))]
    if not rows:
        return ""
    at = [k for k, _ in rows]
    own, exact = np.array([row.value for _, row in rows]), np.array([row.more["exact"] for _, row in rows])
    own, exact = (x / max(np.abs(x).max(), 1e-12) for x in (own, exact))
    plot = _Plot(300, 130, (min(at) - 0.6, max(at) + 0.6), (-1.0, 1.0), whole=True)
    colour = _LOOKS.get(name, _OTHER)[0]
    parts, zero = [], plot.at(0, 0)[1]
    for k, mine, true in zip(at, own, exact, strict=True):
        x, top = plot.at(k, max(true, 0.0))
        bottom = plot.at(k, min(true, 0.0))[1]
        width = min(0.6 * (plot.at(1, 0)[0] - plot.at(0, 0)[0]), 18)
        parts.append(
            f'<rect class="exact" x="{x - width / 2:.1f}" y="{top:.1f}" width="{width:.1f}" '
            f'height="{max(bottom - top, 0.6):.1f}"/>'
        )
        y = plot.at(k, mine)[1]
        parts.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{zero:.1f}" y2="{y:.1f}" style="stroke:{colour}"/>'
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.4" style="fill:{colour}"/>'
        )
    line = f'<line class="zero" x1="{plot.left}" x2="{plot.right}" y1="{zero:.1f}" y2="{zero:.1f}"/>'
    return (
        f'<figure class="panel"><figcaption><b>{escaped(name)}</b></figcaption>'
        f"{plot.svg(line + ''.join(parts), 'step', '', f'credit of {name} against position')}</figure>"
    )


def _learning(curves: dict[Cell, dict[str, dict[str, Row]]]) -> str:
    if not curves:
        return ""
    names = list(dict.fromkeys(name for by in curves.values() for name in by))
    cells = sorted(curves, key=lambda cell: cell[1])
    panels = "".join(_curve_panel(cell, curves[cell]) for cell in cells)
    if len(cells) > 1:
        panels += _sweep_panel(cells, curves)
    key = "".join(f"<span>{_sample(name)}{escaped(name.removeprefix('control:'))}</span>" for name in names)
    return (
        f'<section><h2>Learning at equal budget</h2><p class="sub">{escaped(cells[0][0])}: what every turn but one '
        "adds to the gradient is noise. Exact return against environment steps; interquartile mean over seeds with "
        "95 % bootstrap bands. Each method has the learning rate that suited it best on other seeds.</p>"
        f'<p class="key">{key}</p><div class="figures">{panels}</div></section>'
    )


def _steps(found: dict[str, Row]) -> list[tuple[int, Row]]:
    return _numbered(found, "return@")


def _numbered(found: dict[str, Row], metric: str) -> list[tuple[int, Row]]:
    """The rows that a number follows the metric of, in its order; what has no value is left out."""
    numbered = [(m.removeprefix(metric), row) for m, row in found.items() if m.startswith(metric)]
    return sorted((int(n), row) for n, row in numbered if n.isdecimal() and math.isfinite(row.value))


def _finite(x: object) -> bool:
    return isinstance(x, int | float) and math.isfinite(x)


def _curve_panel(cell: Cell, by: dict[str, dict[str, Row]]) -> str:
    end = max(1, *(step for found in by.values() for step, _ in _steps(found)))
    plot = _Plot(370, 220, (0, end), (0.0, 1.0))
    bands, lines = [], []
    for name, found in by.items():
        points = _steps(found)
        colour, dashes = _LOOKS.get(name, _OTHER)
        banded = [(step, row) for step, row in points if all(_finite(row.more.get(end)) for end in ("low", "high"))]
        upper = [plot.at(step, row.more["high"]) for step, row in banded]
        lower = [plot.at(step, row.more["low"]) for step, row in reversed(banded)]
        bands.append(f'<polygon points="{_pairs(upper + lower)}" style="fill:{colour};opacity:.14"/>')
        lines.append(_polyline([plot.at(step, row.value) for step, row in points], colour, dashes, name))
    figure = plot.svg("".join(bands + lines), "environment steps", "return", f"learning with {cell[1]} actions")
    return f'<figure class="panel"><figcaption><b>{cell[1]} actions</b></figcaption>{figure}</figure>'


def _sweep_panel(cells: list[Cell], curves: dict[Cell, dict[str, dict[str, Row]]]) -> str:
    plot = _Plot(370, 220, (math.log2(cells[0][1]), math.log2(cells[-1][1])), (0.0, 1.0), power=True)
    lines = []
    for name in dict.fromkeys(name for cell in cells for name in curves[cell]):
        areas = [(cell[1], curves[cell].get(name, {}).get("return_area")) for cell in cells]
        points = [plot.at(math.log2(h), row.value) for h, row in areas if row is not None and math.isfinite(row.value)]
        colour, dashes = _LOOKS.get(name, _OTHER)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" style="fill:{colour}"/>' for x, y in points)
        lines.append(_polyline(points, colour, dashes, name) + dots)
    return (
        '<figure class="panel"><figcaption><b>Mean return over the budget</b></figcaption>'
        f"{plot.svg(''.join(lines), 'actions of an episode', 'mean return', 'mean return against horizon')}</figure>"
    )


def _tables(credit: dict[Cell, dict[str, dict[str, Row]]]) -> str:
    if not credit:
        return ""
    # One setting a task, as in the figures: a page of hundreds of tables is read by nobody, and takes megabytes.
    shown = _typical(credit)
    parts = [_table(cell, credit[cell], first=i == 0) for i, cell in enumerate(shown)]
    rest = len(credit) - len(shown)
    more = (
        f" The file of results has {rest} more setting{'s' * (rest > 1)}, of other horizons and group sizes."
        if rest
        else ""
    )
    skipped = {
        (name, str(found["skipped"].more.get("reason", "")))
        for by in credit.values()
        for name, found in by.items()
        if "skipped" in found
    }
    left_out = "".join(f"<li>{escaped(name)}: {escaped(reason)}</li>" for name, reason in sorted(skipped))
    return (
        '<section><h2>Numbers</h2><p class="sub">Standard errors in small print where numbers were sampled. '
        "Signs: right ones among credits that are not 0, where exact credit has a sign; zeros: share of those that "
        "are. Mass: share of credit on decisive steps; where nearly every step decides, mass and hits say nothing. "
        "Cosine, gradient bias and efficiency are those of the policy gradient; efficiency is its signal along the "
        "exact gradient to its noise, over that of REINFORCE. +noise: with a model that errs; +shuffled: "
        f"the method's own credit in random order.{more}</p>{''.join(parts)}"
        f"{f'<h3>Left out where their signals do not exist</h3><ul>{left_out}</ul>' if left_out else ''}</section>"
    )


def _table(cell: Cell, by: dict[str, dict[str, Row]], first: bool) -> str:
    ordered = sorted(
        (name for name, found in by.items() if "bias" in found),
        key=lambda name: (not name.startswith("control:"), _sorted_by(by[name])),
    )
    rows = "".join(
        f"<tr><th>{escaped(name)}</th>{''.join(_number(by[name].get(metric)) for metric in _COLUMNS)}</tr>"
        for name in ordered
    )
    heads = "".join(f"<th>{escaped(heading)}</th>" for heading in _COLUMNS.values())
    return (
        f'<details{" open" if first else ""}><summary>{escaped(_named(cell))}, by Spearman</summary><div class="wide">'
        f"<table><thead><tr><th>recipe</th>{heads}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def _sorted_by(found: dict[str, Row]) -> float:
    value = found["spearman"].value if "spearman" in found else math.nan
    return math.inf if math.isnan(value) else -value


def _number(row: Row | None) -> str:
    if row is None or not math.isfinite(row.value):
        return "<td>\N{EN DASH}</td>"
    digits = 3 if abs(row.value) < 100 else 0
    error = f" <small>\N{PLUS-MINUS SIGN}{row.stderr:.{digits}f}</small>" if row.stderr > 0 else ""
    return f"<td>{row.value:.{digits}f}{error}</td>".replace("-", "\N{MINUS SIGN}")


def _checklist(rows: Sequence[Row], credit: dict, curves: dict) -> str:
    methods = {name for by in (*credit.values(), *curves.values()) for name in by}
    record = {
        "base_model": "not applicable",
        "training_data": "not applicable",
        "granularity": "reported",
        "methodology": "reported",
        "episode_baseline": _said("grpo" in methods or "control:uniform" in methods),
        "compute_matched": _said(bool(curves)),
        "ablation": _said(any(name.endswith("+shuffled") for name in methods) or "control:uniform" in methods),
        "benchmarks": _said(bool(credit)),
        "metric": "reported",
        "spread": _said(any(row.stderr > 0 for row in rows)),
        "compute": _said(any(row.recipe == RUN for row in rows)),
        "credit_cost": _said(any(row.metric == "cost_ms" for row in rows)),
        "mean_length": "reported",
        "length_distribution": "reported",
    }
    where = {
        "base_model": "tabular policies",
        "training_data": "the tasks are their rules",
        "granularity": "on each recipe's card, see the table of methods",
        "methodology": "on each recipe's card, see the table of methods",
        "episode_baseline": "control:uniform, which is GRPO",
        "compute_matched": "equal environment steps, equal grids of learning rates",
        "ablation": "+shuffled rows, and the controls",
        "benchmarks": "tasks with exact answers, named with horizon and group",
        "metric": "above the tables",
        "spread": "standard errors; bootstrap intervals over seeds",
        "compute": "seconds and machine, below",
        "credit_cost": "column ms, for 2048 groups",
        "mean_length": "the horizon: all episodes are equally long, but those of hypergrid, which are shorter at times",
        "length_distribution": "the same",
    }
    found = reporting.audit(record)
    lines = "".join(
        f"<tr><th>{escaped(item.text)}{'' if item.required else ' (recommended)'}</th>"
        f"<td>{escaped(found.states[item.id])}</td><td>{escaped(where[item.id])}</td></tr>"
        for item in reporting.ITEMS
    )
    return (
        f'<section><h2>Reporting checklist</h2><p class="sub">Items of arXiv:2604.09459, appendix C: required '
        f"{100 * found.required:.0f} %, all {100 * found.all:.0f} %.</p><table>{lines}</table></section>"
    )


def _said(holds: bool) -> str:
    return "reported" if holds else "missing"


def _made(rows: Sequence[Row]) -> str:
    runs = [row for row in rows if row.recipe == RUN and row.metric == "seconds" and math.isfinite(row.value)]
    if not runs:
        return '<section><h2>How this page was made</h2><p class="none">The run has not finished.</p></section>'
    lines = "".join(
        f"<tr><td>{escaped(row.more.get('command', ''))}</td><td>{row.value:.0f} s</td>"
        f"<td>{escaped(row.more.get('machine', ''))}</td>"
        f"<td>{escaped(', '.join(f'{k} {v}' for k, v in row.more.get('versions', {}).items()))}</td></tr>"
        for row in runs
    )
    return f"<section><h2>How this page was made</h2><table>{lines}</table></section>"


class _Plot:
    """Axes of one figure, data to pixels."""

    def __init__(
        self,
        width: int,
        height: int,
        x: tuple[float, float],
        y: tuple[float, float],
        whole: bool = False,
        power: bool = False,
    ):
        self.width, self.height = width, height
        self.left, self.right, self.top, self.bottom = 46, width - 10, 8, height - 36
        self.ticks_y = _ticks(*y)
        self.y = (min(y[0], self.ticks_y[0]), max(y[1], self.ticks_y[-1]))
        if power:
            self.ticks_x = {float(v): str(2**v) for v in range(math.ceil(x[0]), math.floor(x[1]) + 1)}
            x = (x[0] - 0.15, x[1] + 0.15)
        else:
            found = _ticks(*x)
            self.ticks_x = {v: brief(v) for v in found if not whole or v == int(v)}
        # Room for dots that lie on the edge.
        pad = 0.0 if power or whole else 0.02 * (x[1] - x[0])
        self.x = (x[0] - pad, x[1] + pad)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a point."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return self.left + across * (self.right - self.left), self.bottom - up * (self.bottom - self.top)

    def svg(self, inside: str, label_x: str, label_y: str, said: str) -> str:
        """The figure with its grid."""
        parts = []
        for tick in self.ticks_y:
            y = self.at(0, tick)[1]
            parts.append(f'<line class="grid" x1="{self.left}" x2="{self.right}" y1="{y:.1f}" y2="{y:.1f}"/>')
            parts.append(f'<text x="{self.left - 6}" y="{y + 3.8:.1f}" text-anchor="end">{brief(tick)}</text>')
        for tick, text in self.ticks_x.items():
            x = self.at(tick, 0)[0]
            if self.left - 1 <= x <= self.right + 1:
                parts.append(f'<text x="{x:.1f}" y="{self.bottom + 15}" text-anchor="middle">{text}</text>')
        middle = (self.left + self.right) / 2
        parts.append(
            f'<text class="axis" x="{middle:.0f}" y="{self.height - 5}" text-anchor="middle">{escaped(label_x)}</text>'
        )
        if label_y:
            y = (self.top + self.bottom) / 2
            parts.append(
                f'<text class="axis" transform="translate(11 {y:.0f}) rotate(-90)" text-anchor="middle">'
                f"{escaped(label_y)}</text>"
            )
        return (
            f'<svg viewBox="0 0 {self.width} {self.height}" role="img" aria-label="{escaped(said)}">'
            f"{''.join(parts)}{inside}</svg>"
        )


class _Stretched(_Plot):
    """Axes with room where almost all estimators are, at biases near 1 and small variances."""

    def __init__(self, width: int, height: int, bias: float, variance: float):
        """From the least bias to 1, and from 0 to the largest variance."""
        low, high = self._stretch(bias, variance)
        super().__init__(width, height, (low, 1.0), (0.0, high))
        self.ticks_x = {v: brief(v) for v in (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 1.0) if v >= bias - 0.05}
        self.ticks_y = [v * v for v in self.ticks_y]
        self.y = (0.0, high)

    @staticmethod
    def _stretch(bias: float, variance: float) -> tuple[float, float]:
        return 1 - math.sqrt(max(0.0, 1 - bias * bias)), math.sqrt(max(0.0, variance))

    def at(self, x: float, y: float) -> tuple[float, float]:
        """The pixel of a bias and a variance."""
        return super().at(*self._stretch(x, y))


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers inside a range and at its ends, four or so."""
    raw = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= raw * 0.999)
    return [i * step for i in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _polyline(points: Iterable[tuple[float, float]], colour: str, dashes: str, name: str) -> str:
    style = f"stroke:{colour};stroke-dasharray:{dashes if dashes != '1 0' else 'none'}"
    return f'<polyline class="line" points="{_pairs(points)}" style="{style}"><title>{escaped(name)}</title></polyline>'


def _pairs(points: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _sample(name: str) -> str:
    colour, dashes = _LOOKS.get(name, _OTHER)
    return f'<svg viewBox="0 0 34 10" aria-hidden="true">{_polyline([(0, 5), (34, 5)], colour, dashes, name)}</svg>'


def _named(cell: Cell) -> str:
    return f"{cell[0]}, {cell[1]} actions, groups of {cell[2]}"
