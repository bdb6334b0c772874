"""The report of a run: one HTML file that opens offline, with figures, curves, rollouts and the configuration."""

import math
import os
import pathlib
from typing import Any

import numpy as np

from creditjax.report.curves import MAX_POINTS, brief, panel, sections
from creditjax.report.data import Metrics, Series, read_json, read_metrics, read_rollouts
from creditjax.report.heatmap import Row, credit_scale, legend_html, number, row_html
from creditjax.report.shell import document, escaped, write_whole

SUCCESS = "eval/success"
_MAX_ROLLOUTS = 32


def write_report(workdir: str | os.PathLike) -> pathlib.Path:
    """Writes `report.html` into the directory of a run, from what lies there; nothing has to be complete.

    Reads `config.json` (the resolved configuration), `metrics.jsonl` (one JSON object a logged step) and
    `rollouts.json` (a list of `{prompt, tokens, action, credit, outcome, group}`). What is absent or unreadable is said
    on the page. The file refers to nothing outside itself, runs no script but its own (a content security policy pins
    its hash) and is replaced in one move, so a reader never sees half of it.

    Args:
      workdir: the run's directory.

    Returns:
      The path of the page.

    Raises:
      FileNotFoundError: there is no such directory.
    """
    workdir = pathlib.Path(workdir)
    if not workdir.is_dir():
        raise FileNotFoundError(f"workdir: {str(workdir)!r} is no directory")
    config = read_json(workdir / "config.json")
    metrics = read_metrics(workdir / "metrics.jsonl")
    rollouts, faults = read_rollouts(workdir / "rollouts.json")
    if metrics.unreadable:
        faults = [f"metrics.jsonl: {metrics.unreadable} unreadable line(s) left out", *faults]
    return write_whole(workdir / "report.html", _page(workdir.resolve().name, config, metrics, rollouts, faults))


def _page(run: str, config: Any, metrics: Metrics, rollouts: list[dict[str, Any]], faults: list[str]) -> str:
    settings = _settings(config)
    notes = "".join(f"<li>{escaped(fault)}</li>" for fault in faults)
    curves = _curves(metrics, _rollouts(rollouts))
    left_out = f"<section><h2>Left out</h2><ul>{notes}</ul></section>" if notes else ""
    return document(
        title=_title(settings, run),
        brand="creditjax report",
        subtitle=_subtitle(settings, metrics, run),
        body=f"{_headline(metrics, settings)}{curves}{_config(settings, config)}{left_out}",
        styles=("heatmap.css", "page.css"),
        script="page.js",
    )


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Leaves of nested dictionaries by their dotted path, the form that `--config.path=value` takes."""
    if not isinstance(tree, dict) or (prefix and not tree):
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for key, value in tree.items():
        leaves |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
    return leaves


def _settings(config: Any) -> dict[str, Any]:
    """The configuration by path; what lies under a top-level `config` key moves up beside the rest (versions, say)."""
    if not isinstance(config, dict):
        return {}
    inner = config.get("config")
    return flatten(
        {**inner, **{k: v for k, v in config.items() if k != "config"}} if isinstance(inner, dict) else config
    )


def _title(settings: dict[str, Any], run: str) -> str:
    recipe = settings.get("recipe.name", settings.get("recipe"))
    task = settings.get("task.name", settings.get("task"))
    return f"{recipe} on {task}" if recipe and task else str(recipe or run)


def _subtitle(settings: dict[str, Any], metrics: Metrics, run: str) -> str:
    last = max((int(steps[-1]) for steps, _ in metrics.series.values()), default=None)
    seed = settings.get("seed")
    facts = [
        f"run {run}",
        *([f"{last:,} steps"] if last is not None else []),
        *([f"seed {seed}"] if seed is not None else []),
    ]
    return " &middot; ".join(map(escaped, facts))


def _headline(metrics: Metrics, settings: dict[str, Any]) -> str:
    key = SUCCESS if SUCCESS in metrics.series else next((k for k in metrics.series if k.startswith("eval/")), None)
    if key is None or (points := _finite(metrics.series[key])) is None:
        return '<p class="none">No held-out evaluation was logged.</p>'
    steps, values = points
    best = int(np.argmax(values))
    share = key == SUCCESS and values.min() >= 0 and values.max() <= 1
    name = "Held-out success" if key == SUCCESS else key
    chosen = [("first", 0), ("last", -1), ("best", best)]
    # A policy that was shown how first is to be compared with what that gave it.
    if (warm := settings.get("warm_start.steps")) and (here := np.flatnonzero(steps == warm)).size:
        chosen.insert(1, ("after the warm start", int(here[0])))
    tiles = [_tile(f"{name}, {which}", values[i], steps[i], share) for which, i in chosen]
    if "reward" in metrics.series and (found := _finite(metrics.series["reward"])) is not None:
        tiles.append(_tile("Reward, last", found[1][-1], found[0][-1], False))
    if "tokens_per_second" in metrics.series and (found := _finite(metrics.series["tokens_per_second"])) is not None:
        tiles.append(_tile("Tokens per second, median", float(np.median(found[1])), None, False))
    return f'<section class="tiles" aria-label="Headline figures">{"".join(tiles)}</section>'


def _tile(title: str, value: float, step: int | None, share: bool) -> str:
    shown = f"{100 * value:.1f}<small>%</small>" if share else brief(value)
    where = "" if step is None else f"<small>step {int(step):,}</small>"
    return f'<div class="tile"><span>{escaped(title)}</span><b>{shown}</b>{where}</div>'


def _finite(series: Series) -> Series | None:
    steps, values = series
    known = np.isfinite(values)
    return (steps[known], values[known]) if known.any() else None


def _curves(metrics: Metrics, rollouts: str) -> str:
    """Sections of curves, the rollouts after the first."""
    if not metrics.series:
        return f'<section><h2>Learning curves</h2><p class="none">No metrics were logged.</p></section>{rollouts}'
    parts = []
    for title, keys in sections(metrics.series):
        panels = "".join(panel(key, metrics.series[key]) for key in keys)
        parts.append(f'<section><h2>{title}</h2><div class="panels">{panels}</div></section>')
    parts.insert(1, rollouts)
    longest = max(len(steps) for steps, _ in metrics.series.values())
    if longest > MAX_POINTS:
        note = f"Curves of more than {MAX_POINTS} points show means of consecutive points; the band is their range."
        parts.append(f'<p class="sub note">{note}</p>')
    return "".join(parts)


def _rollouts(rollouts: list[dict[str, Any]]) -> str:
    if not rollouts:
        return '<section><h2>Credit over tokens</h2><p class="none">No rollouts were saved.</p></section>'
    shown = rollouts[:_MAX_ROLLOUTS]
    rows = [Row(rollout["tokens"], rollout["credit"], rollout["action"]) for rollout in shown]
    scale = credit_scale(rows)
    groups: dict[str, list[str]] = {}
    for rollout, row in zip(shown, rows, strict=True):
        name = "No group" if rollout["group"] is None else f"Group {rollout['group']}"
        groups.setdefault(name, []).append(_rollout(rollout, _trimmed(row), scale))
    cards = "".join(
        f'<div class="group"><h3>{escaped(group)}</h3>{"".join(members)}</div>' for group, members in groups.items()
    )
    more = f" The first {_MAX_ROLLOUTS} of {len(rollouts)}." if len(rollouts) > _MAX_ROLLOUTS else ""
    return (
        '<section class="creditjax"><h2>Credit over tokens</h2><p class="sub">Hover over a token for its credit, or '
        f"focus a rollout and use the arrow keys. One scale for all.{more}</p>{legend_html(scale)}{cards}</section>"
    )


def _rollout(rollout: dict[str, Any], row: Row, scale: float) -> str:
    outcome = rollout["outcome"]
    kind = "unscored" if math.isnan(outcome) else "good" if outcome > 0 else "bad"
    text = "unscored" if math.isnan(outcome) else f"outcome {brief(outcome)}"
    assigned = row.credit[row.action_mask & np.isfinite(row.credit)]
    total = number(float(assigned.sum())) if len(assigned) else "none assigned"
    # A rollout whose masked positions spell the prompt out needs no second copy of it.
    repeated = rollout["prompt"].strip() in "".join(
        t for t, acted in zip(row.tokens, row.action_mask, strict=True) if not acted
    )
    prompt = "" if repeated else f'<p class="prompt">{escaped(rollout["prompt"])}</p>'
    return (
        f'<article class="rollout" tabindex="0"><p class="facts"><span class="chip {kind}">{text}</span>'
        f"{int(row.action_mask.sum())} tokens chosen &middot; credit in all {total}</p>"
        f"{prompt}{row_html(row, scale)}</article>"
    )


def _trimmed(row: Row) -> Row:
    """Without the empty masked positions that padding decodes to at the ends."""
    kept = [i for i, token in enumerate(row.tokens) if token or row.action_mask[i]]
    if not kept:
        return Row([], row.credit[:0], row.action_mask[:0], row.label)
    ends = slice(kept[0], kept[-1] + 1)
    return Row(row.tokens[ends], row.credit[ends], row.action_mask[ends], row.label)


def _config(settings: dict[str, Any], config: Any) -> str:
    if not settings:
        why = "config.json holds no JSON object." if config is not None else "No readable config.json was found."
        return f'<section><h2>Configuration</h2><p class="none">{why}</p></section>'
    tables: dict[str, list[str]] = {}
    for path, value in settings.items():
        heading = path.split(".")[0] if "." in path else "general"
        tables.setdefault(heading, []).append(f"<tr><th>{escaped(path)}</th><td>{escaped(_shown(value))}</td></tr>")
    body = "".join(
        f"<table><caption>{escaped(heading)}</caption>{''.join(rows)}</table>" for heading, rows in tables.items()
    )
    return f'<section><h2>Configuration</h2><div class="tables">{body}</div></section>'


def _shown(value: Any) -> str:
    return "\N{EN DASH}" if value is None or value == "" else str(value)
