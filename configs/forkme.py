"""Made to be copied: change the lines marked <--.

    cp configs/forkme.py configs/mine.py
    python -m experiments.train --config=configs/mine.py:runlocal --workdir=runs/mine

State here what came out, how long it took and on what: result, time, machine, command. Every field and its default is
in `creditjax/training/config.py`; what is not set here keeps its default.
"""

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal` and `steps=…`, as in `configs/mine.py:runlocal,steps=10`."""
    # <-- arguments that change the structure of the config, each with its default, which gives it its type
    arg = parse_arg(arg, runlocal=False, steps=0)
    config = default_config()
    config.steps = arg.steps or (4 if arg.runlocal else 100)

    # <-- the task: a name of `creditjax.tasks.TASKS` and arguments of its class
    config.task = {
        "name": "reasoning_gym",
        "dataset": "chain_sum",
        "parameters": {"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
        "template": "formula",
        "alphabet": " 0123456789+-=",
        "max_prompt": 8,
        "max_answer": 4,
        "eval_size": 32,
        "binary": True,
    }
    # <-- the policy: "transformer" for text, "mlp" or "gru" for control, and fields of its configuration
    config.policy = {"name": "transformer", "width": 32, "depth": 1, "heads": 2}
    # <-- the method: a name of `creditjax.list_recipes()` and its hyperparameters
    config.recipe = {"name": "rloo"}

    # <-- sizes, by device memory; `micro_batches` divides the memory and changes nothing else
    config.batch.prompts = 16 if arg.runlocal else 64
    config.batch.group_size = 4 if arg.runlocal else 8
    config.optimizer.learning_rate = 1e-3

    config.warm_start.steps = 4 if arg.runlocal else 100
    config.warm_start.prompts = 32
    config.eval.every = 4 if arg.runlocal else 25
    config.checkpoint.every = 4 if arg.runlocal else 50
    return config


def get_hyper() -> list[dict]:
    """What `python -m experiments.sweep` trains: overrides by dotted path, one dictionary a run."""
    return sweeps.product({"optimizer.learning_rate": [3e-4, 1e-3], "seed": range(3)})
