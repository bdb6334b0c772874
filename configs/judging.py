"""The policy as a judge of solutions, paid for its verdict on the answer alone: a noisy warm start, then TIPS.

    python -m experiments.train --config=configs/judging.py --workdir=runs/judging
    python -m experiments.train --config=configs/judging.py --config.recipe.name=grpo --workdir=runs/judging_grpo

With `configs/judging.py:questions=chain_sum` the solutions are of the sums of reasoning-gym.

The labels of the steps earn nothing (`tips_prm`); with `--config.recipe.name=pure` each true one is paid.
"""

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal`, `steps=…`, `warm=…` and `questions=chain_sum`."""
    arg = parse_arg(arg, runlocal=False, steps=0, warm=0, questions="uniform")
    config = default_config()
    config.steps = arg.steps or (3 if arg.runlocal else 100)

    # About as many right answers as wrong ones; one demonstrated label in five is false.
    config.task = {
        "name": "judging",
        "addends": 3,
        "questions": arg.questions,
        "base": 55 if arg.questions == "chain_sum" else 5,
        "errors": 0.2,
        "thoughts": 0,
        "gold_noise": 0.2,
        "eval_size": 16 if arg.runlocal else 256,
    }
    config.policy = {"name": "transformer", "width": 64, "depth": 2, "heads": 4}
    config.recipe = {"name": "tips_prm"}

    config.batch.prompts = 16 if arg.runlocal else 32
    config.batch.group_size = 4 if arg.runlocal else 8
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup = 5

    config.warm_start.steps = arg.warm or (3 if arg.runlocal else 300)
    config.warm_start.prompts = 16 if arg.runlocal else 128
    config.warm_start.learning_rate = 3e-3

    # The success of the judge as it acts.
    config.eval.temperature = 1.0
    config.eval.every = 3 if arg.runlocal else 25
    config.checkpoint.every = 3 if arg.runlocal else 100
    config.log.every = 1 if arg.runlocal else 10
    return config


def get_hyper() -> list[dict]:
    """The verdict alone, or a reward for each label, over five seeds."""
    return sweeps.product({"recipe.name": ["tips_prm", "pure"], "seed": range(5)})
