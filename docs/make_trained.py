"""Trains every recipe on reasoning-gym for a few updates: the tables of docs/where_recipes_train.md.

    python -m docs.make_trained train      every recipe that has not been tried yet; forty minutes on one core
    python -m docs.make_trained write      the tables

A run is that of ``python -m experiments.train`` with a config of `CONFIGS` in its form that runs at once, a smaller
policy and another recipe. A recipe that the check of one config refuses, before anything compiles, is tried with the
next one.
"""

import argparse
import json
import pathlib
import tempfile

import jax
import numpy as np

from configs import judging, lookup, quickstart, stepwise
import creditjax
from creditjax.training import ConfigError, train
from docs.make_curves import read
from docs.make_tables import cell
from docs.markers import splice

PAGE = pathlib.Path(__file__).with_name("where_recipes_train.md")
ROWS = PAGE.with_suffix(".jsonl")
# What is trained on, first what asks least of a task: words spelled backward, sums step by step, solutions of sums.
CONFIGS = {
    "words": lambda: quickstart.get_config("runlocal"),
    "sums": lambda: stepwise.get_config("runlocal,questions=chain_sum"),
    "solutions": lambda: judging.get_config("runlocal,questions=chain_sum"),
    "lookup": lambda: lookup.get_config("runlocal"),  # the one that is not reasoning-gym's
}
# Words have no oracle of steps: each letter is a step, and whoever reads step rewards has a model of them learned.
STEPS = {"task.step_length": 1, "reward_model.kind": "steps"}
# A warm start that is short but not nothing: without it no rollout is right, and most credit is 0.
CHANGES = {
    "policy.width": 16,
    "policy.depth": 1,
    "policy.heads": 2,
    "warm_start.steps": 20,
    "steps": 3,
    "eval.every": 30,
    "checkpoint.every": 30,
    "eval.size": 16,
}


def known() -> dict[tuple[str, str], str]:
    """What was tried before: what came of each recipe on each task."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return {(row["recipe"], row["task"]): row["said"] for row in map(json.loads, lines)}


def tried(recipe: str, task: str) -> str:
    """ "trains", or why not."""
    config = CONFIGS[task]()
    config.update_from_flattened_dict(CHANGES | (STEPS if task == "words" else {}) | {"recipe.name": recipe})
    try:
        with tempfile.TemporaryDirectory() as workdir:
            if not train(config, workdir).finished:
                raise SystemExit("stopped")  # by SIGTERM: half a run says nothing
            _, loss = read(pathlib.Path(workdir), "loss")
            _, skipped = read(pathlib.Path(workdir), "skipped_updates")
    except ConfigError as error:
        return str(error)
    if not np.isfinite(loss[-3:]).all() or skipped.any():
        return f"fails: loss {loss[-3:].tolist()}, skipped updates {skipped.tolist()}"
    return "trains"


def run() -> None:
    """All that was not tried yet, each recipe up to the first task that it trains on."""
    done = known()
    for recipe in creditjax.list_recipes():
        for task in CONFIGS:
            said = done.get((recipe, task))
            if said is None:
                said = tried(recipe, task)
                with ROWS.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"recipe": recipe, "task": task, "said": said}, ensure_ascii=False) + "\n")
                print(f"{recipe} on {task}: {said}", flush=True)
                jax.clear_caches()
            if said == "trains":
                break


def table(said: dict[tuple[str, str], str]) -> str:
    """Who trains on what, and why not on words."""
    recipes = sorted({recipe for recipe, _ in said})
    trained = {task: [recipe for recipe in recipes if said.get((recipe, task)) == "trains"] for task in CONFIGS}
    lines = [
        f"Of {len(recipes)} recipes {sum(map(len, trained.values()))} train.",
        "",
        "| task | recipes |",
        "|---|---|",
    ]
    lines += [
        f"| {task}, {len(names)} | {', '.join(f'`{name}`' for name in names)} |" for task, names in trained.items()
    ]
    lines += ["", "| recipe | why not on words |", "|---|---|"]
    refused = [name for name in recipes if said[name, "words"] != "trains"]
    lines += [f"| `{name}` | {cell(said[name, 'words'])} |" for name in refused]
    return "\n".join(lines)


def main() -> None:
    """Flags to one call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("train", "write"))
    if parser.parse_args().part == "train":
        run()
    else:
        splice(PAGE, "trained", table(known()))


if __name__ == "__main__":
    main()
