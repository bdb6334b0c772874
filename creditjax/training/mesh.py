"""The device mesh, where every array of a run lives on it, and how host rows become global arrays.

Three axes: `data` (prompts only), `fsdp` (prompts, and every parameter split over it) and `tensor` (attention heads and
hidden units). The batch is split by prompts over `data` and `fsdp` together. The same code serves one device, many, and
several processes: a process only ever makes the rows that its own devices hold.
"""

from collections.abc import Mapping
import math
from typing import Any

import jax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
import numpy as np

AXES = ("data", "fsdp", "tensor")
BATCH = PartitionSpec(("data", "fsdp"))

# Axes of parameters that are split over `tensor`: units of a layer that its other units never see, so that only the
# projection back to the residual stream adds across devices.
TENSOR_AXES = frozenset({"vocab", "heads", "kv_heads", "mlp"})


def make_mesh(shape: Mapping[str, int], devices: list[jax.Device] | None = None) -> Mesh:
    """The mesh of a run.

    Args:
      shape: sizes of the axes `data`, `fsdp` and `tensor`, 1 by default; one may be -1, "all that is left".
      devices: the devices to use, in order; by default all of them, of every process.

    Raises:
      ValueError: an unknown axis, a size that cannot be, or a product that is not the number of devices.
    """
    devices = jax.devices() if devices is None else devices
    sizes = {axis: int(shape.get(axis, 1)) for axis in AXES}
    if unknown := set(shape) - set(AXES):
        raise ValueError(f"mesh: unknown axes {sorted(unknown)}, wanted {', '.join(AXES)}")
    if any(size < 1 and size != -1 for size in sizes.values()) or list(sizes.values()).count(-1) > 1:
        raise ValueError(f"mesh: {sizes}, wanted positive sizes, at most one of them -1")
    known = math.prod(size for size in sizes.values() if size > 0)
    sizes = {axis: len(devices) // known if size == -1 else size for axis, size in sizes.items()}
    if math.prod(sizes.values()) != len(devices):
        raise ValueError(f"mesh: {sizes} makes {math.prod(sizes.values())} devices, there are {len(devices)}")
    return Mesh(np.asarray(devices).reshape(tuple(sizes.values())), AXES, axis_types=(AxisType.Auto,) * len(AXES))


def batch_shards(mesh: Mesh) -> int:
    """Number of pieces the prompts are split into."""
    return mesh.shape["data"] * mesh.shape["fsdp"]


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """Where the rows ``[P, ...]`` of a batch live."""
    return NamedSharding(mesh, BATCH)


def replicated(mesh: Mesh) -> NamedSharding:
    """The same on every device."""
    return NamedSharding(mesh, PartitionSpec())


def _axis_names(path: str, rank: int) -> tuple[str, ...]:
    """Names of the axes of the parameter that a path ends in; none for one that no model has named."""
    from creditjax.models.transformer import PARAMETER_AXES

    keys = path.split("/")
    for start in range(len(keys)):
        axes = PARAMETER_AXES.get("/".join(keys[start:]), ())
        if len(axes) == rank:
            return axes
    return ("",) * rank


def partition_spec(path: str, shape: tuple[int, ...], mesh: Mesh) -> PartitionSpec:
    """How one parameter, or the optimiser's copy of it, is split.

    `tensor` takes the axis whose name is in `TENSOR_AXES`, and `fsdp` the largest other axis that it divides. An axis
    whose length is no multiple is left whole.
    """
    spec: list[str | None] = [None] * len(shape)
    names = _axis_names(path, len(shape))
    if (parts := mesh.shape["tensor"]) > 1:
        for dim in [d for d, name in enumerate(names) if name in TENSOR_AXES and shape[d] % parts == 0][:1]:
            spec[dim] = "tensor"
    if (parts := mesh.shape["fsdp"]) > 1:
        free = [d for d, size in enumerate(shape) if spec[d] is None and size % parts == 0 and names[d] != "layer"]
        if free:
            spec[max(free, key=lambda d: shape[d])] = "fsdp"
    while spec and spec[-1] is None:
        spec.pop()
    return PartitionSpec(*spec)


def shardings(mesh: Mesh, tree: Any) -> Any:
    """A `NamedSharding` for every leaf of a training state (arrays or shapes).

    Optimiser states repeat the paths of the parameters they belong to, so one rule places both.
    """

    def place(path, leaf) -> NamedSharding:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return NamedSharding(mesh, partition_spec(name, leaf.shape, mesh))

    return jax.tree_util.tree_map_with_path(place, tree)


def local_rows(mesh: Mesh, rows: int) -> tuple[int, int]:
    """The rows ``start, stop`` of a batch ``[rows, ...]`` that this process holds.

    Raises:
      ValueError: its rows do not lie together, which no mesh of :func:`make_mesh` over whole processes brings about.
    """
    indices = batch_sharding(mesh).addressable_devices_indices_map((rows,)).values()
    bounds = sorted({(s.start or 0, rows if s.stop is None else s.stop) for (s,) in indices})
    for (_, stop), (start, _) in zip(bounds[:-1], bounds[1:], strict=True):
        if stop != start:
            raise ValueError(f"mesh: the rows of process {jax.process_index()} do not lie together: {bounds}")
    return bounds[0][0], bounds[-1][1]


def from_local(mesh: Mesh, rows: int, tree: Any) -> Any:
    """Global arrays ``[rows, ...]`` from the rows of this process (see :func:`local_rows`)."""
    sharding, (start, _) = batch_sharding(mesh), local_rows(mesh, rows)

    def build(local) -> jax.Array:
        local = np.asarray(local)

        def piece(index):
            lead = slice((index[0].start or 0) - start, (rows if index[0].stop is None else index[0].stop) - start)
            return local[(lead, *index[1:])]

        return jax.make_array_from_callback((rows, *local.shape[1:]), sharding, piece)

    return jax.tree.map(build, tree)


def to_local(tree: Any) -> Any:
    """The rows of this process, as numpy, of global arrays split by rows: the inverse of :func:`from_local`."""

    def fetch(x) -> np.ndarray:
        if not isinstance(x, jax.Array) or x.is_fully_addressable:
            return np.asarray(x)
        pieces = {shard.index[0].start or 0: shard.data for shard in x.addressable_shards}
        return np.concatenate([np.asarray(pieces[start]) for start in sorted(pieces)])

    return jax.tree.map(fetch, tree)


def replicate(mesh: Mesh, tree: Any) -> Any:
    """The same host values on every device of every process."""
    sharding = replicated(mesh)

    def build(x) -> jax.Array:
        x = np.asarray(x)
        return jax.make_array_from_callback(x.shape, sharding, lambda index: x[index])

    return jax.tree.map(build, tree)


def to_host(tree: Any) -> Any:
    """Whole arrays as numpy, on every process, however they are split."""
    if jax.process_count() == 1:
        return jax.tree.map(np.asarray, tree)
    from jax.experimental import multihost_utils

    return jax.tree.map(np.asarray, multihost_utils.process_allgather(tree, tiled=True))


def initialize_distributed(
    address: str | None, processes: int | None, process: int | None, *, patience: int = 60
) -> None:
    """Joins this process to a run of several; does nothing for a run of one.

    Args:
      address: `host:port` of process 0, or "auto" to let JAX find the cluster (TPU pods, SLURM).
      processes: number of processes.
      process: index of this one.
      patience: seconds without a sign of life after which a process counts as lost, and the others end.

    Raises:
      ValueError: an address without the other two.
    """
    if not address:
        return
    limits = dict(heartbeat_timeout_seconds=patience, shutdown_timeout_seconds=patience)
    if address == "auto":
        jax.distributed.initialize(**limits)
        return
    if processes is None or process is None:
        raise ValueError("a coordinator address needs the number of processes and the index of this one")
    jax.distributed.initialize(address, num_processes=processes, process_id=process, **limits)


def held_fraction(tree: Any, placed: Any = None) -> float:
    """Bytes of a tree that one device holds over all its bytes.

    Args:
      tree: arrays, or shapes and dtypes.
      placed: their shardings, from a compiled program say; by default the arrays' own.
    """
    leaves = jax.tree.leaves(tree)
    places = [leaf.sharding for leaf in leaves] if placed is None else jax.tree.leaves(placed)
    size = lambda leaf, shape: math.prod(shape) * np.dtype(leaf.dtype).itemsize  # noqa: E731
    held = sum(size(leaf, where.shard_shape(leaf.shape)) for leaf, where in zip(leaves, places, strict=True))
    return held / max(sum(size(leaf, leaf.shape) for leaf in leaves), 1)
