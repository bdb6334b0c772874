"""Success on held-out prompts."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from creditjax.models.base import Params
from creditjax.tasks.base import Prompts
from creditjax.training import mesh as mesh_lib
from creditjax.trajectory import Trajectory

Array = jax.Array


def local_prompts(
    mesh: jax.sharding.Mesh, task: Any, split: str, start: int, rows: int, count: int | None = None
) -> Prompts:
    """The prompts of this process, as numpy: its rows of prompts `start` to `start + rows`.

    Args:
      mesh: the run's mesh.
      task: makes prompts on the host.
      split: "train" or "eval".
      start: index of the first prompt of the batch.
      rows: P, prompts of the batch over all processes.
      count: how many of them exist; rows after that repeat the first, so that every batch has one shape.
    """
    low, high = mesh_lib.local_rows(mesh, rows)
    real = max(min(high, rows if count is None else count) - low, 0)
    prompts = task.prompts(split, start + low, real) if real else task.prompts(split, start, 1)
    if real == high - low:
        return jax.tree.map(np.asarray, prompts)
    order = np.concatenate([np.arange(real), np.zeros(high - low - real, int)])
    return jax.tree.map(lambda x: np.asarray(x)[order], prompts)


def verify(mesh: jax.sharding.Mesh, task: Any, batch: Trajectory, prompts: Prompts) -> Trajectory:
    """Scores the rows of this process with the task's host verifier; a task without one leaves the batch as it is.

    Args:
      mesh: the run's mesh.
      task: may have `verify(batch, prompts)`.
      batch: rollouts ``[P, G, T]`` on the mesh.
      prompts: this process's rows, on the host.
    """
    if not hasattr(task, "verify"):
        return batch
    local = mesh_lib.to_local(batch)
    verified = task.verify(local, prompts)
    return batch if verified is local else mesh_lib.from_local(mesh, batch.batch_shape[0], verified)


def evaluate(
    mesh: jax.sharding.Mesh,
    task: Any,
    rollout: Callable[[Params, Prompts, Array], Trajectory],
    params: Params,
    key: Array,
    rows: int,
    size: int = 0,
    success_at: float = 1.0,
) -> dict[str, float]:
    """Mean outcome, success rate and length of one rollout of each held-out prompt.

    Prompts run in batches of one shape; the last one is padded, and what pads it is not counted.

    Args:
      mesh: the run's mesh.
      task: the task, verified on the host where it has a verifier.
      rollout: the sharded rollout with a group of one.
      params: the policy's parameters.
      key: PRNG key; batch i draws from ``fold_in(key, i)``.
      rows: prompts of a batch.
      size: held-out prompts to use, 0 for all.
      success_at: a rollout is a success if its `accuracy`, or without one its outcome, reaches this.

    Returns:
      `eval/reward`, `eval/success` and `eval/length`.
    """
    totals = np.zeros(4)
    for index, (start, count) in enumerate(parts(task, rows, size)):
        prompts = local_prompts(mesh, task, "eval", start, rows, count)
        batch = rollout(params, mesh_lib.from_local(mesh, rows, prompts), jax.random.fold_in(key, index))
        batch = verify(mesh, task, batch, prompts)
        totals += count_up(*mesh_lib.to_host(judged(batch)), count, success_at)
    return means(totals)


def parts(task: Any, rows: int, size: int = 0) -> list[tuple[int, int]]:
    """First prompt and number of prompts of each batch of an evaluation; arguments as of :func:`evaluate`."""
    size = min(size, task.eval_size) if size else task.eval_size
    return [(start, min(rows, size - start)) for start in range(0, size, rows)]


def judged(batch: Trajectory) -> tuple[Array, Array, Array]:
    """What an evaluation looks at: outcome ``[P, 1]``, accuracy ``[P, 1]`` and action mask ``[P, 1, T]``."""
    return batch.outcome, batch.signals.get("accuracy", batch.outcome), batch.action_mask


def count_up(outcome: np.ndarray, accuracy: np.ndarray, acted: np.ndarray, count: int, success_at: float) -> np.ndarray:
    """Sums of outcomes, successes, lengths and prompts over the first `count` rows of a batch, on the host."""
    outcome, accuracy, lengths = outcome[:count, 0], accuracy[:count, 0], acted[:count, 0].sum(-1)
    scored = np.isfinite(outcome)
    success = scored & (accuracy >= success_at - 1e-6)
    return np.array([outcome[scored].sum(), success.sum(), lengths.sum(), count], np.float64)


def means(totals: np.ndarray) -> dict[str, float]:
    """The numbers of an evaluation from the sums of its batches."""
    reward, success, length, count = totals
    return {"eval/reward": reward / count, "eval/success": success / count, "eval/length": length / count}
