"""Writes the tables of docs/benchmark.md from a file of results: `python -m docs.make_benchmark credit.jsonl`.

The file comes from ``python -m experiments.benchmark credit --out=credit.jsonl``. One row of the first table is one
recipe: medians over all settings of a horizon, and the worst cosine over all of them.
"""

import argparse
from collections.abc import Iterable, Sequence
import math
import pathlib
import statistics

from creditjax.benchmark.results import RUN, Results, Row
from docs.markers import splice

PAGE = pathlib.Path(__file__).parent / "benchmark.md"


def main() -> None:
    """Flags to one page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=pathlib.Path)
    path = parser.parse_args().results
    if not path.is_file():
        parser.error(f"{path}: no such file; python -m experiments.benchmark credit --out={path} makes it")
    rows = Results(path).rows
    if not any(row.recipe == RUN and row.metric == "complete" for row in rows):
        parser.error(f"{path}: no run has finished; the command that began it goes on with it")
    splice(PAGE, "benchmark", tables(rows))


def tables(rows: Sequence[Row]) -> str:
    """How the results were made, and three tables."""
    return "\n\n".join([_made(rows), _credit(rows), _noise(rows), _learning(rows)])


def _made(rows: Sequence[Row]) -> str:
    runs = [row for row in rows if row.recipe == RUN and row.metric == "seconds"]
    settings = {(row.task, row.horizon, row.group) for row in rows if row.metric == "bias"}
    seconds = sum(row.value for row in runs)
    last = runs[-1].more
    versions = ", ".join(f"{name} {version}" for name, version in last["versions"].items())
    return (
        f"{len(settings)} settings (tasks × actions × group sizes), {seconds / 60:.0f} minutes on {last['machine']} in "
        f"{len(runs)} run{'s' * (len(runs) > 1)} of `python -m experiments.benchmark credit`; {versions}."
    )


def _credit(rows: Sequence[Row]) -> str:
    by: dict[str, dict[str, dict[int, list[float]]]] = {}
    for row in rows:
        if math.isfinite(row.value):
            by.setdefault(row.recipe, {}).setdefault(row.metric, {}).setdefault(row.horizon, []).append(row.value)
    shown = sorted(name for name, metrics in by.items() if "bias" in metrics and "+" not in name)
    horizons = sorted({row.horizon for row in rows if row.metric == "bias"})
    ends = (horizons[0], horizons[-1])

    def median(name: str, metric: str, wanted: Iterable[int] = horizons) -> str:
        found = [x for horizon in wanted for x in by[name].get(metric, {}).get(horizon, [])]
        return f"{statistics.median(found):.2f}" if found else ""

    def worst(name: str) -> str:
        found = [x for values in by[name].get("cosine", {}).values() for x in values]
        return f"{min(found):.2f}" if found else ""

    head = ["recipe", "sign", "rank", "hit@1", "mass"]
    head += [f"bias, {h}" for h in ends] + [f"efficiency, {h}" for h in ends] + ["cosine", "worst cosine"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    alike: dict[tuple[str, ...], list[str]] = {}  # many methods differ in their loss alone
    for name in shown:
        cells = [median(name, metric) for metric in ("sign_accuracy", "spearman", "hit_at_1", "credit_mass")]
        cells += [median(name, metric, [h]) for metric in ("bias", "efficiency") for h in ends]
        alike.setdefault((*cells, median(name, "cosine"), worst(name)), []).append(f"`{name}`")
    lines += [f"| {', '.join(names)} | {' | '.join(cells)} |" for cells, names in alike.items()]
    return "\n".join(lines)


def _noise(rows: Sequence[Row]) -> str:
    # Where a task brings signals of its own there is no noisy row, so settings are paired.
    noisy = {(row.recipe.removesuffix("+noise"), *row[1:4]) for row in rows if row.recipe.endswith("+noise")}
    by: dict[str, list[float]] = {}
    for row in rows:
        paired = (row.recipe.split("+")[0], *row[1:4]) in noisy
        if paired and row.metric == "efficiency" and math.isfinite(row.value):
            by.setdefault(row.recipe, []).append(row.value)
    shown = sorted({name.split("+")[0] for name in by if name.endswith("+noise")} & set(by))
    lines = ["| recipe | efficiency, perfect signal | signal off by 0.3 | own credit shuffled |", "|---|---|---|---|"]
    for name in shown:
        cells = [by.get(f"{name}{variant}", []) for variant in ("", "+noise", "+shuffled")]
        lines.append(f"| `{name}` | {' | '.join(f'{statistics.median(x):.2f}' if x else '' for x in cells)} |")
    return "\n".join(lines)


def _learning(rows: Sequence[Row]) -> str:
    found = {(row.recipe, row.horizon): row for row in rows if row.metric == "return_area"}
    horizons = sorted({horizon for _, horizon in found})
    lines = [f"| recipe | {' | '.join(f'{h} actions' for h in horizons)} |", "|---" * (len(horizons) + 1) + "|"]
    for name in dict.fromkeys(name for name, _ in found):
        cells = [found.get((name, horizon)) for horizon in horizons]
        lines.append(
            f"| `{name}` | {' | '.join(f'{row.value:.2f} ± {row.stderr:.2f}' if row else '' for row in cells)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
