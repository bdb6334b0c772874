"""A run small enough to compile in seconds: Catch, a tiny MLP, GRPO or PPO."""

import json
import pathlib

import jax

from creditjax import training
from creditjax.training import checkpoint, loop
from creditjax.training import config as config_lib
from creditjax.training import mesh as mesh_lib


def catch_config(**changes):
    """A config whose every field may be changed by its dotted path, with `__` for the dot."""
    config = training.default_config()
    config.task = {"name": "control", "environment": "Catch-bsuite", "length": 9, "eval_size": 24}
    config.policy = {"name": "mlp", "hidden": (16,)}
    config.recipe = {"name": "grpo"}
    config.batch.prompts = 16
    config.batch.group_size = 4
    config.steps = 6
    config.eval.every = 4
    config.checkpoint.every = 2
    config.checkpoint.best_metric = "eval/reward"
    for path, value in changes.items():
        *parents, name = path.split("__")
        holder = config
        for parent in parents:
            holder = holder[parent]
        holder[name] = value
    return config


def rows(workdir):
    """The rows of metrics.jsonl without what tells the time."""
    lines = (pathlib.Path(workdir) / "metrics.jsonl").read_text().splitlines()
    return [{name: x for name, x in json.loads(line).items() if name not in loop.WALL_CLOCK} for line in lines]


def last_state(workdir, config=None):
    """The newest checkpoint of a run, on one device, whatever it was saved from."""
    config = catch_config() if config is None else config
    mesh = mesh_lib.make_mesh({"data": 1}, jax.devices()[:1])
    programs = loop.Programs(config, config_lib.check_config(config), mesh)
    checkpoints = checkpoint.Checkpointer(pathlib.Path(workdir) / "checkpoints")
    state = checkpoints.restore(programs.abstract)
    checkpoints.close()
    return state
