"""Rollouts: one function builds the sampler that fits a task."""

from collections.abc import Callable

import jax

from creditjax.models.base import Params, Policy, Sampling
from creditjax.tasks.base import ControlTask, Prompts, TextTask
from creditjax.trajectory import Trajectory

Rollout = Callable[[Params, Prompts, jax.Array], Trajectory]

__all__ = ["Rollout", "build"]


def build(
    task: TextTask | ControlTask, policy: Policy, sampling: Sampling = Sampling(), group_size: int = 1, **options
) -> Rollout:
    """A pure function ``rollout(params, prompts, key) -> Trajectory`` with leading axes ``[P, G]``.

    Row g of prompt p draws from ``fold_in(fold_in(key, p), g)``, p being the position in the batch.

    Args:
      task: a `TextTask` or a `ControlTask`.
      policy: a policy of the same kind.
      sampling: how tokens or actions are drawn; static.
      group_size: G.
      **options: what the task's kind takes besides, see `samplers.text.build` and `samplers.control.build`.

    Raises:
      TypeError: a task that follows neither protocol.
    """
    if isinstance(task, TextTask):
        from creditjax.samplers import text

        return text.build(task, policy, sampling, group_size, **options)
    if isinstance(task, ControlTask):
        from creditjax.samplers import control

        return control.build(task, policy, sampling, group_size, **options)
    raise TypeError(f"task: {type(task).__name__} follows neither creditjax.tasks.base.TextTask nor ControlTask")
