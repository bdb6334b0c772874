"""Draws held-out learning curves of several seeds, and prints what they end at as a Markdown table.

    python -m docs.make_curves --out=docs/img/lookup.svg grpo=runs/grpo_0 grpo=runs/grpo_1 gigpo=runs/gigpo_0

Each argument is LABEL=DIRECTORY; directories of one label are the seeds of one curve. The line is the mean over
seeds, the band a 95% bootstrap interval of that mean, the thin lines are the seeds. Needs matplotlib (the `docs`
extra).
"""

import argparse
import collections
import json
import pathlib

import numpy as np

from creditjax.sweeps.statistics import interval

# Safe for the colour-blind (Okabe and Ito).
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")


def main() -> None:
    """Flags to one call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--metric", default="eval/success")
    parser.add_argument("--title", default="")
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("runs", nargs="+", metavar="LABEL=DIRECTORY")
    arguments = parser.parse_args()
    curves = collections.defaultdict(list)
    for run in arguments.runs:
        label, _, directory = run.partition("=")
        curves[label].append(read(pathlib.Path(directory), arguments.metric))
    draw(curves, arguments.metric, arguments.title, arguments.out)
    print(table(curves, arguments.metric))


def read(workdir: pathlib.Path, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values of the rows that have the metric."""
    rows = [json.loads(line) for line in (workdir / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if metric in row]
    if not rows:
        raise SystemExit(f"{workdir}: no {metric} in metrics.jsonl")
    return np.array([row["step"] for row in rows]), np.array([row[metric] for row in rows], float)


def draw(curves: dict, metric: str, title: str, out: pathlib.Path) -> None:
    """Writes the picture."""
    import matplotlib

    matplotlib.use("svg")
    # A fixed salt and no date: the same runs give the same file.
    matplotlib.rcParams["svg.hashsalt"] = "creditjax"
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 3.6), layout="constrained")
    for colour, (label, runs) in zip(COLOURS, curves.items(), strict=False):
        steps = runs[0][0]
        values = np.stack([y for _, y in runs])
        low, high = interval(values)
        axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.plot(steps, values.T, color=colour, alpha=0.25, linewidth=0.7)
        axes.plot(steps, values.mean(axis=0), color=colour, linewidth=2, label=f"{label} ({len(runs)} seeds)")
    axes.set(xlabel="step", ylabel=metric, title=title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out, metadata={"Date": None})


def table(curves: dict, metric: str) -> str:
    """What the curves end at."""
    lines = [
        f"| run | seeds | first {metric} | last, mean | 95% interval | least | most |",
        "|---|---|---|---|---|---|---|",
    ]
    for label, runs in curves.items():
        last = np.array([y[-1] for _, y in runs])
        low, high = interval(last[:, None])
        first = np.mean([y[0] for _, y in runs])
        lines.append(
            f"| {label} | {len(runs)} | {first:.3f} | {last.mean():.3f} | {low[0]:.3f} to {high[0]:.3f} "
            f"| {last.min():.3f} | {last.max():.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
