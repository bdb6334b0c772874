"""Classical control with a delayed reward: bsuite's discounting chain through gymnax, an MLP, PPO.

    python -m experiments.train --config=configs/chain.py --workdir=runs/chain

The first action chooses one of five chains; each pays once, after 1, 3, 10, 30 or 100 steps, and one of them pays 1.1
where the others pay 1. To find it, credit has to travel the whole way back to that first action. Nothing but the first
action matters, so what is shown is how well an estimator bridges a delay.
"""

from ml_collections import ConfigDict

from creditjax import sweeps
from creditjax.training import default_config, parse_arg


def get_config(arg: str | None = None) -> ConfigDict:
    """The config; `arg` may hold `runlocal` and `steps=…`."""
    arg = parse_arg(arg, runlocal=False, steps=0)
    config = default_config()
    config.steps = arg.steps or (4 if arg.runlocal else 200)

    # Reaching the time limit ends the problem: the observation shows the clock, and nothing is paid after it.
    config.task = {
        "name": "control",
        "environment": "DiscountingChain-bsuite",
        "time_limit": "terminates",
        "eval_size": 16 if arg.runlocal else 64,
    }
    config.policy = {"name": "mlp", "hidden": (64, 64)}
    # No discount: a late reward is worth as much as an early one.
    config.recipe = {"name": "ppo", "gamma": 1.0, "lam": 0.95}

    # Start states differ, so groups of one: PPO compares with its value function, not with siblings.
    config.batch.prompts = 16 if arg.runlocal else 64
    config.batch.group_size = 1
    config.batch.epochs = 1 if arg.runlocal else 4
    config.batch.minibatches = 1 if arg.runlocal else 4
    config.optimizer.learning_rate = 3e-4
    config.optimizer.clip = 0.5

    config.eval.every = 4 if arg.runlocal else 20
    # The best chain pays 1.1.
    config.eval.success_at = 1.1
    config.checkpoint.every = 4 if arg.runlocal else 100
    config.checkpoint.best_metric = "eval/reward"
    config.log.every = 1 if arg.runlocal else 10
    return config


def get_hyper() -> list[dict]:
    """How far back credit reaches: the trace decay, over five seeds."""
    return sweeps.product({"recipe.lam": [0.0, 0.8, 0.95, 1.0], "seed": range(5)})
