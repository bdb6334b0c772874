"""Optimisers from a config: a schedule, a clip, one of optax's updates."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import optax

from creditjax.naming import nearest

OPTIMIZERS: dict[str, Callable[..., optax.GradientTransformation]] = {
    "adam": optax.scale_by_adam,
    "adamw": optax.scale_by_adam,
    "lion": optax.scale_by_lion,
    "rmsprop": optax.scale_by_rms,
    "sgd": optax.identity,
}
SCHEDULES = ("constant", "cosine", "linear")


def learning_rate(config: Mapping[str, Any], steps: int) -> optax.Schedule:
    """Linear warm-up over `warmup` steps to `learning_rate`, then constant, or to 0 at `steps` by cosine or line.

    Raises:
      ValueError: an unknown schedule, with the nearest names.
    """
    peak, warmup, name = config["learning_rate"], config["warmup"], config["schedule"]
    rest = max(steps - warmup, 1)
    if name == "constant":
        after = optax.constant_schedule(peak)
    elif name == "cosine":
        after = optax.cosine_decay_schedule(peak, rest)
    elif name == "linear":
        after = optax.linear_schedule(peak, 0.0, rest)
    else:
        raise ValueError(f"optimizer.schedule: {name!r} is unknown; {nearest(name, SCHEDULES)}")
    if not warmup:
        return after
    return optax.join_schedules([optax.linear_schedule(0.0, peak, warmup), after], [warmup])


def make_optimizer(config: Mapping[str, Any], steps: int) -> optax.GradientTransformation:
    """The chain clip, update, weight decay (matrices only), learning rate.

    Args:
      config: `name`, `learning_rate`, `warmup`, `schedule`, `clip` (global norm, 0 for none), `weight_decay`, and
        `options`, further keywords of the optax update.
      steps: number of updates over which the schedule runs.

    Raises:
      ValueError: an unknown optimiser or schedule, with the nearest names.
    """
    name = config["name"]
    if name not in OPTIMIZERS:
        raise ValueError(f"optimizer.name: {name!r} is unknown; {nearest(name, OPTIMIZERS)}")
    parts = [optax.clip_by_global_norm(config["clip"])] if config["clip"] > 0 else []
    parts.append(OPTIMIZERS[name](**dict(config["options"])))
    if config["weight_decay"] > 0:
        matrices = lambda params: jax.tree.map(lambda p: p.ndim > 1, params)  # noqa: E731
        parts.append(optax.add_decayed_weights(config["weight_decay"], mask=matrices))
    parts.append(optax.scale_by_learning_rate(learning_rate(config, steps)))
    return optax.chain(*parts)
