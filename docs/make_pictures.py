"""Draws docs/img/heatmap.svg: one group of rollouts of a real run, with the credit that several recipes give it.

    python -m docs.make_pictures --workdir=runs/quickstart --recipes=grpo,tempo

The rollouts and their outcomes come from the rollouts.json of the run; the credit is estimated here, so the recipes may
be any that read no more than tokens and outcomes. The group drawn is the first whose outcomes differ.
"""

import argparse
import math
import pathlib
from typing import Any

import numpy as np

import creditjax
from creditjax.report import heatmap_svg, read_rollouts

IMAGE = pathlib.Path(__file__).parent / "img" / "heatmap.svg"


def main() -> None:
    """Flags to one call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workdir", type=pathlib.Path, required=True, help="directory of a finished run")
    parser.add_argument("--recipes", default="grpo,tempo", help="names, separated by commas")
    parser.add_argument("--rows", type=int, default=4, help="most rollouts to draw for each recipe")
    parser.add_argument("--out", type=pathlib.Path, default=IMAGE)
    arguments = parser.parse_args()
    rollouts, faults = read_rollouts(arguments.workdir / "rollouts.json")
    if not rollouts:
        parser.error(f"no rollouts in {arguments.workdir}: {'; '.join(faults) or 'rollouts.json is absent or empty'}")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(
        draw(mixed_group(rollouts), arguments.recipes.split(","), arguments.rows), encoding="utf-8"
    )


def mixed_group(rollouts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first group in which outcomes differ.

    Raises:
      ValueError: no group has two different outcomes.
    """
    groups: dict[Any, list[dict[str, Any]]] = {}
    for rollout in rollouts:
        groups.setdefault(rollout["group"], []).append(rollout)
    for members in groups.values():
        if len({m["outcome"] for m in members if not math.isnan(m["outcome"])}) > 1:
            return members
    raise ValueError(f"all {len(groups)} groups have equal outcomes, so there is no credit to draw")


def batch_of(group: list[dict[str, Any]]) -> creditjax.Trajectory:
    """The group as a batch ``[1, G, T]``; equal token texts become equal ids."""
    length = max(len(rollout["tokens"]) for rollout in group)
    ids: dict[str, int] = {}
    tokens = np.zeros((1, len(group), length), np.int32)
    action_mask, token_mask = np.zeros_like(tokens, bool), np.zeros_like(tokens, bool)
    for row, rollout in enumerate(group):
        used = len(rollout["tokens"])
        tokens[0, row, :used] = [ids.setdefault(token, len(ids) + 1) for token in rollout["tokens"]]
        action_mask[0, row, :used] = rollout["action"]
        token_mask[0, row, :used] = True
    outcome = np.array([[rollout["outcome"] for rollout in group]], np.float32)
    return creditjax.Trajectory(tokens, action_mask, outcome, signals={"token_mask": token_mask})


def draw(group: list[dict[str, Any]], recipes: list[str], rows: int) -> str:
    """The picture: for each recipe, the first rollouts of the group under its credit, all on one scale."""
    batch = batch_of(group)
    tokens, credit, mask, labels = [], [], [], []
    for name in recipes:
        value = np.asarray(creditjax.estimate(creditjax.recipe(name).estimator, batch).value)[0]
        for row, rollout in enumerate(group[:rows]):
            tokens.append(rollout["tokens"] + [""] * (batch.length - len(rollout["tokens"])))
            credit.append(value[row])
            mask.append(np.asarray(batch.action_mask)[0, row])
            labels.append(f"{name} \N{MIDDLE DOT} outcome {rollout['outcome']:g}")
    return heatmap_svg(tokens, np.array(credit), np.array(mask), labels=labels, title="Credit over tokens", width=760)


if __name__ == "__main__":
    main()
