"""Checkpoints through Orbax: asynchronous, the last few and the best few, and back to the same numbers.

    checkpoints/last/<step>/   the whole `TrainState`, the newest `keep_last` of them: what a run resumes from
    checkpoints/best/<step>/   the parameters at the best held-out scores, the best `keep_best` of them
    checkpoints/damaged/       what could not be read back

Last and best are two managers in two directories, because one Orbax manager that keeps by score throws the newest
checkpoints away, and with them the run.
"""

from collections.abc import Mapping
import pathlib
import shutil
from typing import Any

from absl import logging
import jax
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
import numpy as np
import orbax.checkpoint as ocp

from creditjax.training.state import TrainState

Array = jax.Array

_SUMS = "fingerprint"


class Checkpointer:
    """Saves and restores the state of one run. Every process of a run makes one and calls it at the same steps."""

    def __init__(self, directory: str | pathlib.Path, keep_last: int = 2, keep_best: int = 1):
        """Opens (or makes) the directory.

        Args:
          directory: the run's `checkpoints/`.
          keep_last: number of newest states to keep, at least 1; with 2 a damaged newest one has one before it.
          keep_best: number of best parameters to keep, 0 for none.

        Raises:
          ValueError: `keep_last` below 1.
        """
        if keep_last < 1:
            raise ValueError(f"checkpoint.keep_last: {keep_last}, wanted at least 1")
        self._root = pathlib.Path(directory).absolute()
        options = ocp.CheckpointManagerOptions(max_to_keep=keep_last, cleanup_tmp_directories=True)
        self._last = ocp.CheckpointManager(self._root / "last", options=options)
        self._best = None
        if keep_best:
            options = ocp.CheckpointManagerOptions(
                max_to_keep=keep_best, best_fn=lambda metrics: metrics["score"], cleanup_tmp_directories=True
            )
            self._best = ocp.CheckpointManager(self._root / "best", options=options)

    @property
    def latest(self) -> int | None:
        """The newest saved step."""
        return self._last.latest_step()

    @property
    def best(self) -> int | None:
        """The step of the best saved score."""
        return None if self._best is None else self._best.best_step()

    def save(self, step: int, state: TrainState) -> None:
        """Starts to save the state after `step`; a step that is saved already is left alone.

        Returns as soon as the arrays are copied, so the state may be donated at once.
        """
        if self.latest != step:
            plain = _plain(state)
            self._last.save(step, args=ocp.args.StandardSave({**plain, _SUMS: fingerprint(plain)}), force=True)

    def save_best(self, step: int, params: Any, score: float) -> None:
        """Starts to save parameters that reached `score`."""
        if self._best is not None and step not in self._best.all_steps():
            self._best.save(step, args=ocp.args.StandardSave(params), metrics={"score": float(score)}, force=True)

    def restore(self, abstract: TrainState) -> TrainState | None:
        """The newest state that can be read, or None where there is none.

        A checkpoint that cannot be read is moved to `damaged/` with a warning, and the one before is tried. Best
        checkpoints that are newer than the state are removed: the run will make them again.

        Args:
          abstract: shapes, dtypes and shardings of the state, see `state.abstract_state`. The mesh may be another one.

        Raises:
          RuntimeError: there are checkpoints, and none of them can be read.
        """
        errors, plain = [], _plain(abstract)
        somewhere = next(iter(plain.values())).sharding
        sums = jax.ShapeDtypeStruct((len(plain),), jnp.uint32, sharding=NamedSharding(somewhere.mesh, PartitionSpec()))
        for step in sorted(self._last.all_steps(), reverse=True):
            try:
                restored = dict(self._last.restore(step, args=ocp.args.StandardRestore({**plain, _SUMS: sums})))
                saved = np.asarray(restored.pop(_SUMS))
                if wrong := np.flatnonzero(np.asarray(fingerprint(restored)) != saved).tolist():
                    raise ValueError(f"the numbers of {sorted(plain)[wrong[0]]} are not those that were saved")
            except Exception as error:  # whatever Orbax, TensorStore or the file system makes of a damaged file
                logging.warning("Checkpoint %d cannot be read and is set aside: %s", step, _first_line(error))
                errors.append(f"{step}: {_first_line(error)}")
                self._set_aside(step)
                continue
            if self._best is not None:
                for newer in [s for s in self._best.all_steps() if s > step]:
                    self._best.delete(newer)
            return jax.tree.unflatten(jax.tree.structure(abstract), [restored[path] for path in plain])
        if errors:
            raise RuntimeError(f"no checkpoint under {self._root} can be read: {'; '.join(errors)}")
        return None

    def restore_best(self, abstract_params: Any) -> Any:
        """The parameters with the best score, or None."""
        if self.best is None:
            return None
        return self._best.restore(self.best, args=ocp.args.StandardRestore(abstract_params))

    def wait(self) -> None:
        """Returns when everything is on disk."""
        self._last.wait_until_finished()
        if self._best is not None:
            self._best.wait_until_finished()

    def close(self) -> None:
        """Waits, then lets go of the directories."""
        self._last.close()
        if self._best is not None:
            self._best.close()

    def _set_aside(self, step: int) -> None:
        if jax.process_index() == 0:
            target = self._root / "damaged" / str(step)
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            shutil.move(self._root / "last" / str(step), target)
        if jax.process_count() > 1:
            from jax.experimental import multihost_utils

            multihost_utils.sync_global_devices(f"set aside checkpoint {step}")
        self._last.reload()


@jax.jit
def fingerprint(leaves: Mapping[str, Array]) -> Array:
    """A number for each leaf, in the order of their names, that any changed bit changes: u32 ``[leaves]``.

    ``Σ bits_i · (2i + 1)`` modulo 2^32 over the flattened leaf: exact in any order of addition, so it does not depend
    on the sharding. What is stored has no checksum of its own where it is stored uncompressed.
    """

    def one(x: Array) -> Array:
        if x.ndim == 0:
            x = x[None]
        width = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}[x.dtype.itemsize]
        bits = x.astype(jnp.uint8) if x.dtype == jnp.bool_ else jax.lax.bitcast_convert_type(x, width)
        index = jnp.zeros(x.shape, jnp.uint32)
        for dim, size in enumerate(x.shape):
            index = index * jnp.uint32(size) + jax.lax.broadcasted_iota(jnp.uint32, x.shape, dim)
        return jnp.sum(bits.astype(jnp.uint32) * (2 * index + 1), dtype=jnp.uint32)

    return jnp.stack([one(leaves[name]) for name in sorted(leaves)])


def _plain(state: TrainState) -> dict[str, Any]:
    # A dictionary of leaves by path: what is stored does not depend on the classes that hold it.
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path, simple=True, separator="."): leaf for path, leaf in leaves}


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0][:200]}"


def same(left: Any, right: Any) -> bool:
    """Whether two states are bitwise equal (of this process's devices)."""
    pairs = zip(jax.tree.leaves(left), jax.tree.leaves(right), strict=True)
    return all(np.array_equal(np.asarray(a), np.asarray(b), equal_nan=True) for a, b in pairs)
