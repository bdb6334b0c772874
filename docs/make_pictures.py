"""Draws docs/img/heatmap.svg: rollouts of real runs, coloured by the credit that each run's recipe gave them.

    python -m docs.make_pictures --workdir=runs/quickstart --workdir=runs/tempo

Text, outcomes and credit come from the rollouts.json of each run, the recipe's name from its config.json. Groups whose
outcomes differ come first: in the others there is no credit to see.
"""

import argparse
import json
import math
import pathlib
from typing import Any

import numpy as np

from creditjax.report import heatmap_svg, read_rollouts

IMAGE = pathlib.Path(__file__).parent / "img" / "heatmap.svg"


def main() -> None:
    """Flags to one call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--workdir", type=pathlib.Path, action="append", required=True, help="directory of a finished run; repeatable"
    )
    parser.add_argument("--rows", type=int, default=4, help="most rollouts to draw of each run")
    parser.add_argument("--out", type=pathlib.Path, default=IMAGE)
    arguments = parser.parse_args()
    runs = {}
    for workdir in arguments.workdir:
        rollouts, faults = read_rollouts(workdir / "rollouts.json")
        if not rollouts:
            parser.error(f"no rollouts in {workdir}: {'; '.join(faults) or 'rollouts.json is absent or empty'}")
        name = json.loads((workdir / "config.json").read_text(encoding="utf-8"))["config"]["recipe"]["name"]
        runs[name] = choose(rollouts, arguments.rows)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(draw(runs), encoding="utf-8")


def choose(rollouts: list[dict[str, Any]], rows: int) -> list[dict[str, Any]]:
    """The first `rows` rollouts, those of groups with different outcomes before the rest."""
    outcomes: dict[Any, set[float]] = {}
    for rollout in rollouts:
        if not math.isnan(rollout["outcome"]):
            outcomes.setdefault(rollout["group"], set()).add(rollout["outcome"])
    return sorted(rollouts, key=lambda rollout: len(outcomes.get(rollout["group"], ())) < 2)[:rows]


def draw(runs: dict[str, list[dict[str, Any]]]) -> str:
    """The picture: the rollouts of each run under its recipe's name, all on one scale, prompts in grey."""
    drawn = [(name, rollout) for name, rollouts in runs.items() for rollout in rollouts]
    tokens = [[rollout["prompt"], *rollout["tokens"]] for _, rollout in drawn]
    length = max(map(len, tokens))
    credit, mask = np.zeros((len(drawn), length)), np.zeros((len(drawn), length), bool)
    for row, (_, rollout) in enumerate(drawn):
        credit[row, 1 : len(tokens[row])] = rollout["credit"]
        mask[row, 1 : len(tokens[row])] = rollout["action"]
    tokens = [row + [""] * (length - len(row)) for row in tokens]
    labels = [f"{name} \N{MIDDLE DOT} {_outcome(rollout['outcome'])}" for name, rollout in drawn]
    return heatmap_svg(tokens, credit, mask, labels=labels, title="Credit over tokens", width=760)


def _outcome(outcome: float) -> str:
    return "unscored" if math.isnan(outcome) else f"outcome {outcome:g}"


if __name__ == "__main__":
    main()
