"""A multi-turn agent: questions over a knowledge graph that it has to query, edge by edge, before it answers.

    python -m experiments.train --config=configs/lookup.py --workdir=runs/lookup
    python -m experiments.train --config=configs/lookup.py --config.recipe.name=gigpo --workdir=runs/lookup_gigpo

The outcome comes once, after the last turn; which of the queries earned it is the question that turn-level methods
answer. The supervised start imitates an expert that errs often enough to leave room.
"""

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal`, `steps=…` and `warm=…`."""
    arg = parse_arg(arg, runlocal=False, steps=0, warm=0)
    config = default_config()
    config.steps = arg.steps or (3 if arg.runlocal else 150)

    # Two hops, four turns: one query may be wasted.
    config.task = {
        "name": "lookup",
        "num_entities": 8,
        "num_relations": 3,
        "hops": 2,
        "gold_noise": 0.3,
        "eval_size": 16 if arg.runlocal else 256,
    }
    config.policy = {"name": "transformer", "width": 64, "depth": 2, "heads": 4}
    config.recipe = {"name": "grpo"}

    config.batch.prompts = 16 if arg.runlocal else 32
    config.batch.group_size = 4 if arg.runlocal else 16
    # Three times this makes the policy forget in ten steps what it was shown.
    config.optimizer.learning_rate = 3e-4
    config.optimizer.warmup = 5

    config.warm_start.steps = arg.warm or (3 if arg.runlocal else 50)
    config.warm_start.prompts = 16 if arg.runlocal else 128
    config.warm_start.learning_rate = 3e-3

    # The success of the policy as it acts; its most likely actions soon make no error.
    config.eval.temperature = 1.0
    config.eval.every = 3 if arg.runlocal else 25
    config.checkpoint.every = 3 if arg.runlocal else 100
    config.log.every = 1 if arg.runlocal else 10
    return config


def get_hyper() -> list[dict]:
    """One outcome for all turns, or credit by turn, over five seeds."""
    return sweeps.product({"recipe.name": ["grpo", "gigpo"], "seed": range(5)})
