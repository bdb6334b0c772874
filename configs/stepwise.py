"""Running totals, step by step, under an oracle that knows which step is right: a noisy warm start, then GRPO.

    python -m experiments.train --config=configs/stepwise.py --workdir=runs/stepwise
    python -m experiments.train --config=configs/stepwise.py --config.recipe.name=pure --workdir=runs/stepwise_pure

The sums of reasoning-gym's `chain_sum`, each addition a step, graded as the package grades them:

    python -m experiments.train --config=configs/stepwise.py:questions=chain_sum --workdir=runs/chain_sum

Every step can be judged, exactly or with noise (`--config.task.noise=0.2`), and a judge can be fooled by fillers
(`--config.task.hackable=True --config.task.gold_fillers=0.3`): what process rewards are good for and where they fail.
"""

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal`, `steps=…`, `warm=…` and `questions=chain_sum`."""
    arg = parse_arg(arg, runlocal=False, steps=0, warm=0, questions="uniform")
    config = default_config()
    config.steps = arg.steps or (3 if arg.runlocal else 100)

    # Demonstrations err in one step of six, so that half of the answers are wrong.
    config.task = {
        "name": "stepwise",
        "questions": arg.questions,
        # With negative totals a digit is one of 55 numbers, -27 to 27.
        "addends": 3 if arg.questions == "chain_sum" else 4,
        "base": 55 if arg.questions == "chain_sum" else 5,
        "noise": 0.0,
        "hackable": False,
        "gold_noise": 0.15,
        "gold_fillers": 0.0,
        "instructed": 0.0,
        "eval_size": 16 if arg.runlocal else 256,
    }
    config.policy = {"name": "transformer", "width": 64, "depth": 2, "heads": 4}
    config.recipe = {"name": "grpo"}

    config.batch.prompts = 16 if arg.runlocal else 32
    config.batch.group_size = 4 if arg.runlocal else 8
    config.optimizer.learning_rate = 5e-4
    config.optimizer.warmup = 5

    config.warm_start.steps = arg.warm or (3 if arg.runlocal else 150)
    config.warm_start.prompts = 16 if arg.runlocal else 128
    config.warm_start.learning_rate = 3e-3

    # The success of the policy as it acts.
    config.eval.temperature = 1.0
    config.eval.every = 3 if arg.runlocal else 25
    config.checkpoint.every = 3 if arg.runlocal else 100
    config.log.every = 1 if arg.runlocal else 10
    return config


def get_hyper() -> list[dict]:
    """One outcome for all steps, or a reward for each, over five seeds."""
    return sweeps.product({"recipe.name": ["grpo", "pure"], "seed": range(5)})
