"""Functions of another library as estimators: NumPy, torch or JAX functions of flat rows, for every assertion here.

    from creditjax import testing

    theirs = testing.foreign(
        lambda rows: core_algos.compute_rloo_outcome_advantage(rows.reward, rows.action_mask.float(), rows.group_ids),
        arrays="torch",
    )
    testing.assert_unbiased(theirs)
    testing.check_all(theirs)

They run on the host, so what is asked of programs (sharding, gradients of JAX, cost) has no answer for them:
`check_all` says "not checked", and an assertion about it fails with "JAX cannot trace it".
"""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from creditjax.trajectory import FIELDS, Trajectory, signal_spec

Arrays = Literal["numpy", "torch", "jax"]


class Rows:
    """A batch as other libraries hold it: all rollouts one below the other, those of a group together.

    Every field and signal of the batch is an attribute, ``[N, ...]``, repeated where a group shares one value. Besides:

    Attributes:
      group_ids: integers ``[N]``, NumPy.
      group_size: G.
      reward: the reward stream ``[N, T]`` or, without one, the outcome at the last acted position.
      outcome: ``[N]``.
      action_mask: bool ``[N, T]``.
    """

    def __init__(self, arrays: dict[str, Any], group_ids: np.ndarray, group_size: int):
        self._arrays, self.group_ids, self.group_size = arrays, group_ids, group_size

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._arrays:
            raise AttributeError(
                f"rows have no {name}; name it in `needs`. There are {', '.join(sorted(self._arrays))}"
            )
        return self._arrays[name]


def foreign(
    function: Callable[[Rows], Any],
    *,
    needs: tuple[str, ...] = (),
    arrays: Arrays = "numpy",
    name: str = "",
    skip_idle: bool = False,
) -> Callable[[Trajectory], np.ndarray]:
    """An estimator that puts a batch into flat rows, calls `function`, and puts its answer back.

    Args:
      function: from `Rows` to advantages ``[N, T]``, or to ``[N]``, which then go to every acted position; of a tuple
        the first entry counts.
      needs: fields and signals that it reads beside tokens, mask and outcome.
      arrays: what the rows are made of: "numpy", "torch" or "jax".
      name: for messages; the function's own by default.
      skip_idle: leave out rollouts that act nowhere, as a trainer that never hands them over would; the groups that
        remain may be ragged.

    Raises:
      ValueError: `arrays` is none of these; when it is called, an answer of another shape.
    """
    if arrays not in ("numpy", "torch", "jax"):
        raise ValueError(f"arrays: {arrays!r}, wanted 'numpy', 'torch' or 'jax'")
    own_name = name or getattr(function, "__name__", "foreign")

    def estimator(batch: Trajectory) -> np.ndarray:
        mask = np.asarray(batch.action_mask)
        p, g, t = mask.shape
        keep = mask.any(axis=-1).reshape(-1) if skip_idle else np.ones(p * g, bool)
        made = np.zeros((p * g, t), np.float32)
        if not keep.any():
            return made.reshape(p, g, t)
        given = {key: _convert(x[keep], arrays) for key, x in _flat(batch).items()}
        answer = function(Rows(given, np.repeat(np.arange(p), g)[keep], g))
        answer = answer[0] if isinstance(answer, tuple) else answer
        found = np.asarray(answer.detach() if hasattr(answer, "detach") else answer)
        acted = mask.reshape(-1, t)[keep]
        if found.shape == acted.shape[:1]:
            found = np.where(acted, found[:, None], np.zeros((), found.dtype))
        if found.shape != acted.shape:
            raise ValueError(f"{own_name}: returned {list(found.shape)}, wanted {list(acted.shape)} or {len(acted)}")
        made = made.astype(found.dtype)
        made[keep] = found
        return made.reshape(p, g, t)

    estimator.__name__ = own_name
    estimator.needs = needs  # type: ignore[attr-defined]
    return estimator


def _flat(batch: Trajectory) -> dict[str, np.ndarray]:
    """Fields and signals with a row for each rollout."""
    p, g, _ = batch.tokens.shape
    made = {}
    for name in (*FIELDS, *batch.signals):
        if (x := batch.get(name)) is None:
            continue
        axes = ("P", "G") if name in FIELDS else signal_spec(name).axes
        x = np.asarray(x)
        if "G" not in axes:
            x = np.repeat(x[:, None], g, axis=1) if "P" in axes else np.broadcast_to(x, (p, g, *x.shape))
        made[name] = np.array(x).reshape(p * g, *x.shape[2:])
    if "reward" not in made:
        mask, outcome = made["action_mask"], made["outcome"]
        last = mask & (np.cumsum(mask, axis=-1) == mask.sum(axis=-1, keepdims=True))
        made["reward"] = np.where(last, outcome[:, None], np.zeros((), outcome.dtype))
    return made


def _convert(x: np.ndarray, arrays: Arrays) -> Any:
    if arrays == "torch":
        import torch

        return torch.from_numpy(x) if x.dtype.kind != "V" else torch.tensor(x.astype(np.float32)).bfloat16()
    if arrays == "jax":
        from jax import numpy as jnp

        return jnp.asarray(x)
    return x
