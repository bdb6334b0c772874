"""The page of `creditjax.report.inspect`: what a file holds, what recipes say of it, and a viewer for its rollouts."""

from __future__ import annotations

from collections.abc import Sequence
import math
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from creditjax.report.credit_stats import DEAD, Histogram, against_outcome, dead_reason, disagreement, votes
from creditjax.report.curves import brief
from creditjax.report.heatmap import number, visible
from creditjax.report.shell import data_block, document, escaped
from creditjax.signal_table import SIGNALS
from creditjax.trajectory import FIELDS

if TYPE_CHECKING:
    from creditjax.recipes import Recipe
    from creditjax.report.inspect import Group, Summary

_STYLES = ("heatmap.css", "page.css", "inspect.css")
_BRAND = "creditjax inspect"
_DEAD = {
    "highest": ("all outcomes equal, the largest of the file", "nothing is left to gain: too easy", "easy"),
    "lowest": (
        "all outcomes equal, the smallest of the file",
        "the prompt is too hard, or the verifier too strict",
        "hard",
    ),
    "between": ("all outcomes equal, neither the largest nor the smallest", "all earn the same part of it", "lone"),
    "equal": (DEAD["equal"], "nothing tells its rollouts apart", "lone"),
    "unscored": (DEAD["unscored"], "the verifier gave no outcome", "blank"),
    "one scored": (DEAD["one scored"], "there is nothing to compare it with", "blank"),
    "single": (DEAD["single"], "methods that compare need groups of at least two", "lone"),
}
_SAID = {**DEAD, "equal": "all outcomes are equal, so none is better or worse than the others"}
_BARS = 24
_BREAK = visible("\n")


def report(summary: Summary, groups: Sequence[Group], pages: Sequence[str]) -> str:
    """The first page: everything that was found, and a viewer for some rollouts."""
    body = "".join(
        (
            _tiles(summary),
            _missing(summary),
            _recipes(summary),
            _viewer(summary, groups),
            _pages(pages, 1),
            _agreement(summary),
            _groups(summary),
            _file(summary),
        )
    )
    return document(
        title=summary.source,
        brand=_BRAND,
        subtitle=f"{escaped(summary.format)} &middot; {summary.rollouts:,} rollouts in {summary.groups:,} groups "
        f"&middot; {len(summary.recipes)} recipes",
        body=body,
        styles=_STYLES,
        script="inspect.js",
    )


def further(summary: Summary, groups: Sequence[Group], page: int, names: Sequence[str]) -> str:
    """Another page; `names` are those of the first page, the one before, and the next if there is one."""
    links = [("the report", names[0]), (f"page {page - 1}", names[1])]
    links += [(f"page {page + 1}", names[2])] if len(names) > 2 else []
    listed = " &middot; ".join(f'<a href="{escaped(_link(name))}">{said}</a>' for said, name in links)
    return document(
        title=f"{summary.source}, page {page}",
        brand=_BRAND,
        subtitle=f"Rollouts of a larger file: {listed}",
        body=_viewer(summary, groups),
        styles=_STYLES,
        script="inspect.js",
    )


def _tiles(summary: Summary) -> str:
    dead = sum(summary.dead.values())
    tiles = [
        ("Rollouts", f"{summary.rollouts:,}", f"of {brief(summary.positions / summary.rollouts)} positions each"),
        ("Groups", f"{summary.groups:,}", _sizes(summary)),
        ("Mean outcome", brief(summary.outcome), f"{summary.scored:,} scored"),
        ("Dead groups", _share(dead, summary.groups), f"{dead:,}, see why below"),
        ("Chosen by the policy", _share(summary.acted, summary.positions), f"{summary.acted:,} positions"),
    ]
    shown = "".join(
        f'<div class="tile"><span>{name}</span><b>{value}</b><small>{note}</small></div>' for name, value, note in tiles
    )
    return f'<section class="tiles" aria-label="Headline figures">{shown}</section>'


def _sizes(summary: Summary) -> str:
    sizes = sorted(summary.sizes)
    said = [f"{size}" if size <= 64 else "more than 64" for size in (sizes[0], sizes[-1])]
    return f"of {said[0]} rollouts" if said[0] == said[1] else f"of {said[0]} to {said[1]} rollouts"


def _share(part: float, whole: float) -> str:
    if not whole:
        return "\N{EN DASH}"
    share = 100 * part / whole
    shown = f"{share:.0f}" if share in (0, 100) else f"{min(max(share, 0.1), 99.9):.1f}"
    return f"{shown}<small>%</small>"


# --- Recipes ----------------------------------------------------------------------------------------------------------


def _recipes(summary: Summary) -> str:
    cards = "".join(_card(summary, made) for made in summary.recipes)
    return (
        '<section class="creditjax"><h2>Credit by recipe</h2><p class="sub">Over every position that the policy '
        "chose, in all rollouts. <b>Against the outcome</b>: positions with credit of the other sign than their "
        "rollout's outcome relative to the group. That is a reason to look, not a fault: a good step in a bad rollout "
        f'earns it, a broken reward too.</p><div class="cards">{cards}</div></section>'
    )


def _card(summary: Summary, made: Recipe) -> str:
    stats = summary.stats[made.name]
    zeros = stats.histogram.zeros
    facts = [
        ("assigned", _share(stats.assigned, stats.acted)),
        ("exactly 0", _share(zeros, stats.assigned)),
        ("against the outcome", _share(stats.against, stats.judged)),
        ("root mean square", brief(stats.rms)),
    ]
    rows = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts)
    notes = []
    if made.batch_statistics:
        notes.append("It normalises over a batch, here over the groups of like size that were computed together.")
    if left := summary.partly[made.name]:
        notes.append(f"{left:,} groups lack what it needs and got none.")
    return (
        f'<figure class="panel card"><figcaption><b>{escaped(made.name)}</b>'
        f"<span>{escaped(made.card.name)}, credit to the {escaped(made.card.granularity)}</span></figcaption>"
        f"{histogram(stats.histogram, f'distribution of credit by {made.name}')}<dl>{rows}</dl>"
        f"{''.join(f'<p class=note>{escaped(note)}</p>' for note in notes)}</figure>"
    )


def histogram(found: Histogram, label: str) -> str:
    """Credit that is not 0, negative left and positive right, as inline SVG."""
    half = len(found.counts) // 2
    used = np.flatnonzero(found.counts)
    if not len(used):
        return '<p class="none plot">All credit is exactly 0.</p>'
    reach = int(max(half - used.min(), used.max() - half + 1))
    each = math.ceil(reach / _BARS)
    bars = math.ceil(reach / each)
    padded = np.pad(found.counts, bars * each)
    middle = half + bars * each
    counts = padded[middle - bars * each : middle + bars * each].reshape(2 * bars, each).sum(axis=1)
    width, height, base = 300, 112, 92
    step = (width - 12) / (2 * bars)
    total = counts.sum() + found.zeros
    parts = []
    for i, count in enumerate(counts):
        if count:
            tall = max(1.5, (base - 8) * count / counts.max())
            low, high = ((i - bars + d) * each * found.width / half for d in (0, 1))
            parts.append(
                f'<rect class="{"positive" if i >= bars else "negative"}" x="{6 + i * step + 0.5:.1f}" '
                f'y="{base - tall:.1f}" width="{max(1, step - 1):.1f}" height="{tall:.1f}"><title>{number(low)} to '
                f"{number(high)}: {count:,} positions, {100 * count / total:.2g}%</title></rect>"
            )
    end = bars * each * found.width / half
    marks = "".join(
        f'<text x="{x}" y="{height - 4}" text-anchor="{anchor}">{number(value)}</text>'
        for x, anchor, value in ((6, "start", -end), (width / 2, "middle", 0.0), (width - 6, "end", end))
    )
    return (
        f'<svg class="plot" viewBox="0 0 {width} {height}" role="img" aria-label="{escaped(label)}">'
        f'<line class="axis" x1="6" x2="{width - 6}" y1="{base}" y2="{base}"/>'
        f'<line class="axis" x1="{width / 2}" x2="{width / 2}" y1="6" y2="{base + 4}"/>{"".join(parts)}{marks}</svg>'
    )


def _agreement(summary: Summary) -> str:
    names = [made.name for made in summary.recipes]
    if len(names) < 2:
        return ""
    at = [summary.pairs.names.index(name) for name in names]
    ranks, signs = (matrix[np.ix_(at, at)] for matrix in (summary.pairs.ranks(), summary.pairs.signs()))
    return (
        '<section class="creditjax"><h2>Agreement between recipes</h2><div class="pairs">'
        + _matrix(
            "Order: Spearman's correlation",
            "over the positions of a group, mean over groups in which both differ at all",
            names,
            ranks,
            lambda x: (x, f"{x:+.2f}".replace("-", "\N{MINUS SIGN}")),
        )
        + _matrix(
            "Sign: share of positions with the same",
            "among those to which both give credit that is not 0",
            names,
            signs,
            lambda x: (2 * x - 1, f"{100 * x:.0f}%"),
        )
        + "</div></section>"
    )


def _matrix(title: str, note: str, names: Sequence[str], values: np.ndarray, show: Any) -> str:
    heads = "".join(f"<th scope=col>{escaped(name)}</th>" for name in names)
    rows = []
    for i, name in enumerate(names):
        cells = []
        for j in range(len(names)):
            if not math.isfinite(values[i, j]):
                cells.append('<td title="nothing to compare">\N{EN DASH}</td>')
                continue
            strength, said = show(values[i, j])
            kind = "same" if i == j else "cj-p" if strength > 0 else "cj-n" if strength < 0 else ""
            cells.append(f'<td class="{kind}" style="--c:{abs(strength):.3f}">{said}</td>')
        rows.append(f"<tr><th scope=row>{escaped(name)}</th>{''.join(cells)}</tr>")
    return (
        f'<div class="wide matrix"><table><caption>{title}<small>{note}</small></caption><thead>'
        f"<tr><td></td>{heads}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _missing(summary: Summary) -> str:
    if not summary.missing:
        return ""
    rows = "".join(
        f"<tr><th>{escaped(name)}</th><td>{'<br>'.join(map(_need, lacking))}</td></tr>"
        for name, lacking in summary.missing.items()
    )
    ran = {made.name for made in summary.recipes}
    others = ", ".join(escaped(name) for name in summary.usable if name not in ran)
    return (
        '<section><h2>Recipes that cannot run on this file</h2><div class="tables one"><table class="needs"><thead><tr>'
        f"<th>recipe</th><td>lacks</td></tr></thead><tbody>{rows}</tbody></table></div>"
        f'<p class="sub note">It has what these need too: {others or "no others"}.</p></section>'
    )


def _need(name: str) -> str:
    if name in FIELDS:
        return f"<code>{escaped(name)}</code>, a field of the rollout"
    spec = SIGNALS[name]
    axes = ", ".join(axis for axis in spec.axes if axis not in ("P", "G"))
    return f"<code>{escaped(name)}</code> [{axes}]: {escaped(spec.meaning)}"


# --- Groups and file --------------------------------------------------------------------------------------------------


def _groups(summary: Summary) -> str:
    dead = _dead(summary)
    live = summary.groups - sum(dead.values())
    kinds = [("live", live, "outcomes differ", "methods that compare rollouts learn from these")]
    kinds += [(look, dead[key], said, why) for key, (said, why, look) in _DEAD.items() if dead[key]]
    bar = "".join(
        f'<span class="part {look}" style="flex-grow:{count}" title="{count:,} groups: {said}"></span>'
        for look, count, said, _ in kinds
        if count
    )
    rows = "".join(
        f'<tr><th><span class="swatch {look}"></span>{"Live" if look == "live" else "Dead"}: {said}</th>'
        f"<td>{count:,}</td><td>{_share(count, summary.groups)}</td><td>{why}</td></tr>"
        for look, count, said, why in kinds
    )
    return (
        '<section><h2>Live and dead groups</h2><p class="sub">In a dead group the outcomes do not tell the rollouts '
        f"apart, so methods that only compare them find nothing to learn. {_in_dead_groups(summary)}"
        f'</p><div class="stack">{bar}</div>'
        f'<div class="tables one"><table class="why"><tbody>{rows}</tbody></table></div></section>'
    )


def _dead(summary: Summary) -> dict[str, int]:
    """Dead groups by the keys of `_DEAD`."""
    found = dict.fromkeys(_DEAD, 0) | summary.dead
    extremes = [summary.lowest, summary.highest]
    # Where every outcome of the file is the same one, none is the best or the worst.
    if not dead_reason(extremes, votes(extremes, [True, True])):
        found["highest"], found["lowest"] = summary.at_highest, summary.at_lowest
        found["between"] = found["equal"] - summary.at_highest - summary.at_lowest
        found["equal"] = 0
    return found


def _in_dead_groups(summary: Summary) -> str:
    """What the recipes of the page gave to dead groups."""
    dead = sum(summary.dead.values())
    if not dead:
        return "There is none here."
    still = [made.name for made in summary.recipes if not summary.moved[made.name]]
    lines = [f"Of {dead:,} dead groups, exactly 0 in all: {', '.join(map(escaped, still))}."] if still else []
    lines += [
        f"Not 0 in {summary.moved[made.name]:,} of {dead:,}: {escaped(made.name)}{_because(made)}."
        for made in summary.recipes
        if summary.moved[made.name]
    ]
    return " ".join(lines)


def _because(made: Recipe) -> str:
    return ", which normalises over a batch" if made.batch_statistics else ""


def _file(summary: Summary) -> str:
    rows = [
        ("format", summary.format),
        ("every group carries", ", ".join(sorted(summary.carried))),
        ("could run on it", ", ".join(summary.usable)),
    ]
    rows += [(f"signal {name!r} left out", reason) for name, reason in sorted(summary.left_out.items())]
    if summary.skipped:
        rows.append((f"{summary.skipped:,} records skipped", "; ".join(summary.reasons[:5])))
    body = "".join(f"<tr><th>{escaped(name)}</th><td>{escaped(value)}</td></tr>" for name, value in rows)
    table = f'<table class="needs"><tbody>{body}</tbody></table>'
    return f'<section><h2>The file</h2><div class="tables one">{table}</div></section>'


def _pages(names: Sequence[str], page: int) -> str:
    if len(names) < 2:
        return ""
    links = " ".join(
        f"<b>{i}</b>" if i == page else f'<a href="{escaped(_link(name))}">{i}</a>' for i, name in enumerate(names, 1)
    )
    return f'<nav class="pages" aria-label="Pages">More rollouts, page by page: {links}</nav>'


def _link(name: str) -> str:
    return f"./{quote(name)}"


# --- The viewer -------------------------------------------------------------------------------------------------------

_OUTCOMES = {
    "any": "any",
    "better": "better than its group",
    "worse": "worse than its group",
    "positive": "above 0",
    "negative": "not above 0",
    "unscored": "unscored",
    "live": "in a live group",
    "dead": "in a dead group",
}
_SORTS = {
    "file": "place in the file",
    "disagreement": "disagreement of recipes",
    "against": "credit against the outcome",
    "longest": "longest first",
    "shortest": "shortest first",
    "outcome": "highest outcome first",
}


def _viewer(summary: Summary, groups: Sequence[Group]) -> str:
    data = payload(summary, groups)
    count = len(data["rollouts"])
    here = f"{count:,} of {summary.rollouts:,} rollouts are on this page"
    how = ""
    if count < summary.rollouts and not summary.pages:
        whole = all(len(group.rollouts) == group.size for group in groups)
        how = f", {'whole ' if whole else ''}groups spread evenly over the file"
    fields = (
        _input("group", "Group", "contains")
        + _select("outcome", "Outcome", _OUTCOMES)
        + _input("min", "Positions, from", "", "number")
        + _input("max", "to", "", "number")
        + _input("text", "Text", "in prompt or rollout")
        + _select("sort", "Sort by", _SORTS)
    )
    return (
        f'<section class="creditjax" id="viewer"><h2>Rollouts</h2><p class="sub">{here}{how}. '
        "<kbd>j</kbd> <kbd>k</kbd> next and previous rollout, <kbd>\N{LEFTWARDS ARROW}</kbd> "
        "<kbd>\N{RIGHTWARDS ARROW}</kbd> tokens, <kbd>/</kbd> search. The address keeps what you see, so a view can be "
        "linked to.</p>"
        f'<div class="filters" role="search">{fields}<button type="button" id="reset">Reset</button>'
        '<output id="count"></output></div>'
        '<p class="cj-legend key"><span><span class="cj-t cj-p" style="--c:.7">blue</span> positive</span>'
        '<span><span class="cj-t cj-n" style="--c:.7">orange</span> negative</span>'
        '<span><span class="cj-t cj-m">grey</span> not chosen by the policy</span>'
        '<span><span class="cj-t cj-x">dotted</span> no credit assigned</span>'
        '<span><span class="cj-t cj-n cj-w" style="--c:.35">barred</span> against the outcome</span>'
        "<span>bar below an entry: how far the recipes are apart</span></p>"
        '<div class="split"><ol id="list" role="listbox" tabindex="0" aria-label="Rollouts"></ol>'
        '<div class="stage"><p id="readout" role="status"></p><p id="none" class="none" hidden>No rollout fits these '
        'filters.</p><article id="detail" tabindex="0" aria-label="The rollout"></article></div></div>'
        "<noscript><p>The viewer needs JavaScript; the figures above do not.</p></noscript>"
        f"{data_block('rollouts', data)}</section>"
    )


def _input(name: str, label: str, hint: str, kind: str = "search") -> str:
    more = ' min="0" inputmode="numeric"' if kind == "number" else ""
    return (
        f'<label class="by-{name}">{label}'
        f'<input id="f-{name}" type="{kind}" placeholder="{hint}" autocomplete="off"{more}></label>'
    )


def _select(name: str, label: str, options: dict[str, str]) -> str:
    listed = "".join(f'<option value="{value}">{said}</option>' for value, said in options.items())
    return f'<label class="by-{name}">{label}<select id="f-{name}">{listed}</select></label>'


def payload(summary: Summary, groups: Sequence[Group]) -> dict[str, Any]:
    """What the page's script reads: recipes with the scale of their colours, and rollouts with credit per position."""
    names = [made.name for made in summary.recipes] or list(summary.stats)
    rms = np.array([summary.stats[name].rms for name in names])
    rollouts = [_entry(group, g, names, rms) for group in groups for g in range(len(group.rollouts))]
    recipes = [
        {"name": name, "scale": _scale(groups, name), "to": f"credit to the {_granularity(summary, name)}"}
        for name in names
    ]
    most = max((entry["disagreement"] for entry in rollouts), default=0.0)
    return {"recipes": recipes, "rollouts": rollouts, "most": most or 1.0}


def _granularity(summary: Summary, name: str) -> str:
    return next((made.card.granularity for made in summary.recipes if made.name == name), "token")


def _scale(groups: Sequence[Group], name: str) -> float:
    """Where the colour saturates: a size that 1% of the credit on the page exceeds. One outlier would pale the rest."""
    sizes = [
        np.abs(credit[rollout.action_mask])
        for group in groups
        if name in group.credit
        for rollout, credit in zip(group.rollouts, group.credit[name], strict=True)
    ]
    flat = np.concatenate(sizes) if sizes else np.zeros(0)
    flat = flat[np.isfinite(flat) & (flat > 0)]
    return _short(float(np.quantile(flat, 0.99, method="higher"))) if len(flat) else 1.0


def _entry(group: Group, g: int, names: Sequence[str], rms: np.ndarray) -> dict[str, Any]:
    rollout, place = group.rollouts[g], float(group.standing[g])
    acted = rollout.action_mask
    credits = [group.credit[name][g] if name in group.credit else None for name in names]
    apart = np.stack([np.full(int(acted.sum()), np.nan) if c is None else c[acted] for c in credits])
    return {
        "id": visible(rollout.id),
        "group": visible(rollout.group),
        "members": group.size,
        "outcome": _short(rollout.outcome),
        "standing": _short(place),
        "dead": _SAID.get(group.dead, ""),
        "end": rollout.end,
        "unit": rollout.unit,
        "prompt": [[visible(role), _shown(content)] for role, content in rollout.prompt],
        "pieces": [_shown(piece) for piece in rollout.pieces],
        "roles": [visible(role) for role in rollout.roles or ()],
        "segment": rollout.segment.tolist(),
        "mask": 1 if acted.all() else acted.astype(int).tolist(),
        "credit": [None if credit is None else _credit(credit, acted) for credit in credits],
        "disagreement": _short(disagreement(apart, rms)),
        "against": int(sum(against_outcome(c[acted], place).sum() for c in credits if c is not None)),
    }


def _credit(credit: np.ndarray, acted: np.ndarray) -> float | list[float | None] | None:
    """One number where all acted positions have the same, else one a position."""
    there = credit[acted]
    if len(there) and np.isfinite(there).all() and (there == there[0]).all():
        return _short(float(there[0]))
    return [_short(x) if ok else None for x, ok in zip(credit.tolist(), acted.tolist(), strict=True)]


def _short(value: float) -> Any:
    """Five significant digits are more than the page shows; None for what is not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _shown(text: str) -> str:
    """With what would not show spelt out, and lines still broken where they were."""
    return visible(text).replace(
        "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}\n"
    )
