"""Trains every recipe on words spelled backward for a few updates: the table of docs/where_recipes_train.md.

    python -m docs.make_trained train      every recipe that has not been tried yet; twenty minutes on one core
    python -m docs.make_trained write      the table

A run is that of ``python -m experiments.train --config=configs/quickstart.py:runlocal``, with a smaller policy and
another recipe. What is not trained is refused by the check of the config, before anything compiles; its words are in
the table.
"""

import argparse
import json
import pathlib
import re
import tempfile

import jax
import numpy as np

from configs import quickstart
import creditjax
from creditjax.training import ConfigError, train
from docs.make_curves import read
from docs.markers import splice

PAGE = pathlib.Path(__file__).with_name("where_recipes_train.md")
ROWS = PAGE.with_suffix(".jsonl")
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


def known() -> dict[str, str]:
    """What was tried before: what came of each recipe."""
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return {row["recipe"]: row["said"] for row in map(json.loads, lines)}


def tried(recipe: str) -> str:
    """ "trains", or why not."""
    config = quickstart.get_config("runlocal")
    config.update_from_flattened_dict(CHANGES | STEPS | {"recipe.name": recipe})
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
    """All that was not tried yet."""
    done = known()
    for recipe in creditjax.list_recipes():
        if recipe not in done:
            row = {"recipe": recipe, "said": tried(recipe)}
            with ROWS.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            print(f"{recipe}: {row['said']}", flush=True)
            jax.clear_caches()


def table(said: dict[str, str]) -> str:
    """Who trains, and a row for everybody else."""
    trains = [name for name, words in sorted(said.items()) if words == "trains"]
    lines = [
        f"Of {len(said)} recipes {len(trains)} train: {', '.join(f'`{name}`' for name in trains)}.",
        "",
        "| recipe | why it does not |",
        "|---|---|",
    ]
    lines += [f"| `{name}` | {cell(words)} |" for name, words in sorted(said.items()) if words != "trains"]
    return "\n".join(lines)


def cell(said: str) -> str:
    """A reason in one line."""
    return re.sub(r"\s+", " ", said).replace("|", "\\|")


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
