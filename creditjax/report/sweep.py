"""The report of a sweep: one HTML file that opens offline, with curves, intervals, tests, and what it cost."""

from collections.abc import Callable, Iterable, Sequence
import io
import pathlib
from typing import Any

import numpy as np

from creditjax.report.curves import brief
from creditjax.report.shell import document, escaped, write_whole
from creditjax.reporting import ITEMS, audit
from creditjax.sweeps import statistics
from creditjax.sweeps.outcome import Arm, Trained, arms, main_metric, read_sweep

# Okabe and Ito's, which the colour-blind can tell apart, and as many dashes.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
DASHES = ("-", "--", "-.", ":")
_MOST_CURVES = 12


def write_sweep_report(root: str | pathlib.Path, out: str | pathlib.Path = "", metric: str = "") -> pathlib.Path:
    """Writes the page of a sweep's directory, from what lies there; trials may still be missing.

    Args:
      root: the directory, see `creditjax.sweeps.store`.
      out: the page; ``report.html`` in the directory by default. Links to the trials' own reports are relative to it.
      metric: what trials are judged by at their end, more is better; what they keep the best parameters by, if not
        given.

    Returns:
      The path of the page.

    Raises:
      FileNotFoundError: the directory holds no sweep.
      ImportError: matplotlib is not installed.
      ValueError: nothing was logged, or not that metric.
    """
    root = pathlib.Path(root)
    trials = read_sweep(root)
    known = sorted({name for trial in trials for name in trial.series})
    metric = metric or main_metric(trials)
    if metric not in known:
        raise ValueError(f"metric: {metric!r} was not logged, wanted one of {', '.join(known)}")
    out = pathlib.Path(out) if str(out) not in ("", ".") else root / "report.html"
    links = _relative(root, out.parent)
    return write_whole(out, _page(root.resolve().name, trials, arms(trials), metric, links))


def write_table(root: str | pathlib.Path, out: str | pathlib.Path) -> pathlib.Path:
    """Writes every logged number of a sweep as a Parquet table: trial, step, metric, value, and a column an override.

    Raises:
      FileNotFoundError: the directory holds no sweep.
      ImportError: pyarrow is not installed.
    """
    import pyarrow
    from pyarrow import parquet

    trials = read_sweep(root)
    paths = list(dict.fromkeys(path for trial in trials for path in trial.overrides))
    columns: dict[str, list[Any]] = {name: [] for name in ("trial", "step", "metric", "value", *paths)}
    for trial in trials:
        for name, (steps, values) in trial.series.items():
            columns["trial"] += [trial.id] * len(steps)
            columns["step"] += steps.tolist()
            columns["metric"] += [name] * len(steps)
            columns["value"] += values.tolist()
            for path in paths:
                given = trial.overrides.get(path)
                columns[path] += [given if isinstance(given, int | float | str | bool) else str(given)] * len(steps)
    for path in paths:
        if len({type(x) for x in columns[path]} - {int, float}) > 1 or {str, int} <= {type(x) for x in columns[path]}:
            columns[path] = list(map(str, columns[path]))
    out = pathlib.Path(out)
    scratch = out.with_name(f".{out.name}.partial")
    parquet.write_table(pyarrow.table(columns), scratch)
    scratch.replace(out)
    return out


def _relative(root: pathlib.Path, folder: pathlib.Path) -> str:
    import os

    return pathlib.Path(os.path.relpath(root.resolve(), folder.resolve())).as_posix()


def _page(name: str, trials: Sequence[Trained], settings: Sequence[Arm], metric: str, links: str) -> str:
    ranked = sorted(settings, key=lambda arm: -_mean(arm.finals(metric)))
    finished = sum(trial.finished for trial in trials)
    seeds = sorted({len(arm.finals(metric)) for arm in settings})
    told = f"{min(seeds)} to {max(seeds)}" if len(seeds) > 1 else str(seeds[0])
    tiles = [
        ("Trials finished", f"{finished}<small> of {len(trials)}</small>"),
        ("Settings", str(len(settings))),
        ("Finished seeds a setting", told),
        ("Hours on devices", brief(sum(map(_hours, trials)))),
        ("Tokens", brief(sum(trial.total("tokens") for trial in trials))),
    ]
    head = "".join(f'<div class="tile"><span>{title}</span><b>{value}</b></div>' for title, value in tiles)
    body = (
        f'<section class="tiles">{head}</section>{_table(ranked, metric)}'
        f"{_figures(ranked, settings, metric)}{_checklist(trials, settings, metric)}{_trials(trials, metric, links)}"
    )
    subtitle = f"judged by the last {escaped(metric)} of finished trials, more is better"
    return document(title=name, brand="creditjax sweep", subtitle=subtitle, body=body, styles=("page.css", "sweep.css"))


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if values.size else float("-inf")


def _hours(trial: Trained) -> float:
    return trial.total("seconds_per_step") / 3600 * trial.devices


def _table(ranked: Sequence[Arm], metric: str) -> str:
    """Settings from the best to the worst, each with its interval and a test against the best."""
    heads = ["setting", "seeds", "mean", "95% interval", "middle half", "95% interval", "least", "most"]
    heads += ["beats the best", "p", "hours", "tokens"]
    best = ranked[0].finals(metric)
    rows = []
    for i, arm in enumerate(ranked):
        finals = arm.finals(metric)
        cells = [escaped(arm.name), f"{len(finals)} of {len(arm.trials)}"]
        if finals.size:
            iqm = statistics.interquartile_mean
            cells += [brief(finals.mean()), _between(*statistics.interval(finals)), brief(float(iqm(finals)))]
            cells += [_between(*statistics.interval(finals, iqm)), brief(finals.min()), brief(finals.max())]
            test = (f"{statistics.improvement(finals, best):.2f}", f"{statistics.p_value(finals, best):.3g}")
            cells += test if i else ("", "")
        else:
            cells += ["\N{EN DASH}"] * 8
        cells += [brief(sum(map(_hours, arm.trials))), brief(sum(trial.total("tokens") for trial in arm.trials))]
        rows.append(cells)
    note = (
        "Intervals are percentile bootstraps over seeds; <i>middle half</i> is the interquartile mean; <i>beats the "
        "best</i> is the probability that a seed of the setting ends above one of the best; p is a two-sided "
        "permutation test of equal means against the best, not corrected for how many are compared. Few seeds cannot "
        "give a small p."
    )
    return f'<section><h2>Settings</h2>{_grid(heads, rows)}<p class="sub note">{note}</p></section>'


def _between(low: Any, high: Any) -> str:
    return f"{brief(float(low))} to {brief(float(high))}"


def _grid(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A table; cells are HTML already."""
    top = "".join(f"<th>{head}</th>" for head in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table class="rows"><tr>{top}</tr>{body}</table></div>'


def _figures(ranked: Sequence[Arm], settings: Sequence[Arm], metric: str) -> str:
    shown = ranked[:_MOST_CURVES]
    drawn = [
        (
            "Learning curves",
            "Mean over seeds, with a 95% bootstrap interval.",
            lambda axes: _curves(axes, shown, metric),
        ),
        ("Performance profile", "Share of seeds that end above.", lambda axes: _profiles(axes, shown, metric)),
    ]
    drawn += [
        (
            f"{path.rpartition('.')[2]}",
            f"Every finished trial, and the mean at each {path}.",
            _against(path, settings, metric),
        )
        for path in _numeric(settings)
    ]
    parts = [
        f'<figure class="panel"><figcaption><b>{escaped(title)}</b><small>{escaped(note)}</small></figcaption>'
        f"{_svg(draw)}</figure>"
        for title, note, draw in drawn
    ]
    more = f'<p class="sub note">The first {_MOST_CURVES} settings.</p>' if len(ranked) > _MOST_CURVES else ""
    return f'<section><h2>Pictures</h2><div class="pictures">{"".join(parts)}</div>{more}</section>'


def _svg(draw: Callable[[Any], None]) -> str:
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    with matplotlib.rc_context({"svg.hashsalt": "creditjax", "svg.fonttype": "none", "font.size": 9}):
        figure, axes = pyplot.subplots(figsize=(5.6, 3.6), layout="constrained")
        draw(axes)
        axes.spines[["top", "right"]].set_visible(False)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
        pyplot.close(figure)
    return text.getvalue()[text.getvalue().index("<svg") :]


def _style(i: int) -> dict[str, Any]:
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": DASHES[i // len(COLOURS) % len(DASHES)]}


def _curves(axes: Any, shown: Sequence[Arm], metric: str) -> None:
    for i, arm in enumerate(shown):
        steps, values = arm.curve(metric)
        if steps.size:
            low, high = statistics.interval(values)
            axes.plot(steps, values.mean(axis=0), label=arm.name, **_style(i))
            axes.fill_between(steps, low, high, color=_style(i)["color"], alpha=0.15, linewidth=0)
    axes.set(xlabel="step", ylabel=metric)
    axes.legend(fontsize=7, frameon=False)


def _profiles(axes: Any, shown: Sequence[Arm], metric: str) -> None:
    finals = [arm.finals(metric) for arm in shown]
    known = np.concatenate([*finals, np.array([])])
    if known.size:
        margin = 0.02 * (known.max() - known.min()) or 1.0
        thresholds = np.linspace(known.min() - margin, known.max() + margin, 200)
        for i, (arm, values) in enumerate(zip(shown, finals, strict=True)):
            if values.size:
                axes.plot(thresholds, statistics.profile(values, thresholds), label=arm.name, **_style(i))
    axes.set(xlabel=f"last {metric}", ylabel="share of seeds above", ylim=(-0.03, 1.03))


def _numeric(settings: Sequence[Arm]) -> list[str]:
    """Overrides that are numbers, and not all the same."""
    values: dict[str, set[Any]] = {}
    for arm in settings:
        for path, value in arm.overrides.items():
            values.setdefault(path, set()).add(value if isinstance(value, int | float) else None)
    return [path for path, found in values.items() if len(found) > 1 and None not in found]


def _against(path: str, settings: Sequence[Arm], metric: str) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        found = [(arm.overrides[path], arm.finals(metric)) for arm in settings if path in arm.overrides]
        x = np.concatenate([np.full(len(finals), value, np.float64) for value, finals in found] or [np.array([])])
        y = np.concatenate([finals for _, finals in found] or [np.array([])])
        axes.plot(x, y, "o", color=COLOURS[0], alpha=0.5, markersize=4)
        ordered = np.unique(x)
        axes.plot(ordered, [y[x == value].mean() for value in ordered], color=COLOURS[1])
        if ordered.size and ordered.min() > 0 and ordered.max() / ordered.min() > 10:
            axes.set_xscale("log")
        axes.set(xlabel=path, ylabel=f"last {metric}")

    return draw


def _checklist(trials: Sequence[Trained], settings: Sequence[Arm], metric: str) -> str:
    """What a paper has to say, and what of it this sweep already says."""
    seeds = min((len(arm.finals(metric)) for arm in settings), default=0)
    logged = {name for trial in trials for name in trial.series}
    recipes = {trial.config.get("recipe", {}).get("name") for trial in trials}
    record = dict.fromkeys((item.id for item in ITEMS), "missing")
    record |= {name: "reported" for name in ("granularity", "methodology", "metric") if any(recipes)}
    record |= {"spread": "reported" if seeds >= 3 else "partial" if seeds == 2 else "missing"}
    record |= {"episode_baseline": "reported" if {"grpo", "rloo", "reinforce", "dr_grpo"} & recipes else "missing"}
    record |= {"compute": "partial" if "seconds_per_step" in logged else "missing"}
    record |= {"mean_length": "reported" if "response_length" in logged else "missing"}
    found = audit(record)
    rows = [(escaped(item.text), "required" if item.required else "recommended", record[item.id]) for item in ITEMS]
    note = (
        f"{100 * found.required:.0f}% of what the survey (arXiv:2604.09459, appendix C) requires can be read off this "
        "sweep; the rest is yours to write."
    )
    return f'<section><h2>Checklist</h2><p class="sub">{note}</p>{_grid(("item", "", "here"), rows)}</section>'


def _trials(trials: Sequence[Trained], metric: str, links: str) -> str:
    rows = []
    for trial in trials:
        given = ", ".join(f"{path}={value}" for path, value in trial.overrides.items())
        steps = max((int(steps[-1]) for steps, _ in trial.series.values()), default=0)
        link = f'<a href="{escaped(f"{links}/trials/{trial.id}/report.html")}">{escaped(trial.id)}</a>'
        state = "finished" if trial.finished else f"at step {steps}" if steps else "not begun"
        rows.append((link if trial.finished else escaped(trial.id), escaped(given), state, brief(trial.last(metric))))
    return f"<section><h2>Trials</h2>{_grid(('trial', 'overrides', 'state', escaped(metric)), rows)}</section>"
