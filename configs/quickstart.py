"""Words spelled backward, from reasoning-gym: a weak warm start, then GRPO.

    python -m experiments.train --config=configs/quickstart.py --workdir=runs/quickstart

A transformer of 0.1 M parameters sees `stone =` as characters and is to write `enots`; reasoning-gym's own verifier
tells whether it did. A few supervised steps on gold answers bring it to a weak start, reinforcement learning on its own
samples does the rest. `:runlocal` is the same in a few steps, for a smoke test.
"""

import string

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal`, `steps=…` and `warm=…`."""
    arg = parse_arg(arg, runlocal=False, steps=0, warm=0)
    config = default_config()
    config.steps = arg.steps or (4 if arg.runlocal else 450)

    # Words of three to six letters; the words around them are stripped, so that a prompt is short.
    config.task = {
        "name": "reasoning_gym",
        "dataset": "spell_backward",
        "parameters": {"min_word_len": 3, "max_word_len": 6},
        "template": "formula",
        # Characters that occur; they make the vocabulary.
        "alphabet": " =" + string.ascii_letters,
        "max_prompt": 8,
        "max_answer": 7,
        "eval_size": 64 if arg.runlocal else 256,
        # Right or wrong: the package's part scores would pay nearly as much for a word with letters behind it.
        "binary": True,
    }
    config.policy = {"name": "transformer", "width": 64, "depth": 2, "heads": 4}
    config.recipe = {"name": "grpo"}

    config.batch.prompts = 16 if arg.runlocal else 64
    config.batch.group_size = 4 if arg.runlocal else 16
    config.optimizer.learning_rate = 1e-3
    config.optimizer.warmup = 5

    # Enough to write words and to be right now and then, not more.
    config.warm_start.steps = arg.warm or (4 if arg.runlocal else 80)
    config.warm_start.prompts = 64 if arg.runlocal else 128
    config.warm_start.learning_rate = 3e-3

    config.eval.every = 4 if arg.runlocal else 50
    config.checkpoint.every = 4 if arg.runlocal else 100
    config.log.every = 1 if arg.runlocal else 10
    return config


def get_hyper() -> list[dict]:
    """A small sweep: three methods, three learning rates, five seeds."""
    return sweeps.product(
        {"recipe.name": ["grpo", "rloo", "dr_grpo"], "optimizer.learning_rate": [3e-4, 1e-3, 3e-3], "seed": range(5)}
    )
