"""Training: the mesh, the sharded steps, checkpoints, metrics and the loop. Needs the extra `[train]`."""

from creditjax.training.config import ConfigError, check_config, default_config, parse_arg
from creditjax.training.loop import FaultyBatch, LostProcess, Result, train

__all__ = [
    "ConfigError",
    "FaultyBatch",
    "LostProcess",
    "Result",
    "check_config",
    "default_config",
    "parse_arg",
    "train",
]
