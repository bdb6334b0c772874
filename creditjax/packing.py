"""From flat rows with group ids to ``[P, G]`` and back; padding, concatenating and slicing.

An id names a *draw*, not a prompt: a prompt that occurs twice under two ids stays two groups. Ids may be any
integers, ragged, interleaved, sparse or negative. Groups come in the order in which their first row comes, rows in
their own order.
"""

from collections.abc import Callable, Sequence
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.trajectory import _FIELD_AXES, FIELDS, Trajectory, signal_spec

Array = jax.Array


class Packing(NamedTuple):
    """A packed batch and the way back.

    Attributes:
      batch: leading axes ``[P, G]``; a place without a row acts nowhere and does not vote.
      index: i32 ``[P, G]``, the flat row in each place, -1 for none.
    """

    batch: Trajectory
    index: Array  # type: ignore[assignment]  # hides tuple.index, which nobody wants of a Packing


@functools.partial(jax.jit, static_argnames=("num_groups", "group_size"))
def pack_index(group_ids: Array, num_groups: int, group_size: int) -> tuple[Array, Array]:
    """The jitted core of :func:`pack`: where each row goes, and how many rows found no place.

    Args:
      group_ids: i32 ``[N]``, any integers.
      num_groups: P, static.
      group_size: G, static.

    Returns:
      `index` i32 ``[P, G]`` with the row in each place (-1 for none), and the i32 number of rows that overflowed.
    """
    n = group_ids.shape[0]
    order = jnp.argsort(group_ids, stable=True)
    ids = group_ids[order]
    starts = jnp.concatenate([jnp.ones(min(n, 1), bool), ids[1:] != ids[:-1]])
    start = jax.lax.cummax(jnp.where(starts, jnp.arange(n), 0))
    place = jnp.arange(n) - start
    # The sort is stable, so the row at the start of a group is its first one: groups are ranked by it.
    first_row = order[start]
    heads = jnp.sort(jnp.where(starts, order, n))
    group = jnp.searchsorted(heads, first_row)
    fits = (group < num_groups) & (place < group_size)
    index = jnp.full((num_groups, group_size), -1, jnp.int32)
    index = index.at[jnp.where(fits, group, num_groups), place].set(order.astype(jnp.int32), mode="drop")
    return index, jnp.sum(~fits, dtype=jnp.int32)


def pack(
    rows: Trajectory | Sequence[Trajectory],
    group_ids: Any,
    *,
    num_groups: int | None = None,
    group_size: int | None = None,
) -> Packing:
    """Groups flat rows by id into a batch ``[P, G]``.

    Args:
      rows: a `Trajectory` with leading axis ``[N]``, or N trajectories without one, of any lengths (the shorter are
        padded).
      group_ids: N integers: rows with equal ids are rollouts of the same draw of a prompt.
      num_groups: P; default as many as there are. More leaves empty groups at the end.
      group_size: G; default the largest group. More leaves empty places.

    Returns:
      `Packing(batch, index)`.

    Raises:
      ValueError: ids that are not one integer a row, more groups or rows in a group than asked for, or rows of a group
        (of the batch) that disagree in a signal with one value for it, naming them.
    """
    if not isinstance(rows, Trajectory):
        rows = stack(list(rows))
    if len(rows.batch_shape) != 1:
        raise ValueError(f"rows: shape {list(rows.tokens.shape)}, wanted [N, T]")
    n = rows.batch_shape[0]
    ids = np.asarray(group_ids)
    if ids.shape != (n,) or ids.dtype.kind not in "iu":
        raise ValueError(f"group_ids: {ids.dtype} {list(ids.shape)}, wanted {n} integers, one a row")
    if n == 0:
        raise ValueError("rows: none, wanted at least one")
    # Ids of any width become small ranks, so that none is cut to 32 bits.
    values, first, inverse, counts = np.unique(ids, return_index=True, return_inverse=True, return_counts=True)
    if num_groups is not None and len(values) > num_groups:
        raise ValueError(f"group_ids: {len(values)} groups, num_groups is {num_groups}")
    if group_size is not None and counts.max() > group_size:
        raise ValueError(
            f"group_ids: group {values[counts.argmax()]} has {counts.max()} rows, group_size is {group_size}"
        )
    check_shared(rows, ids, first[inverse])
    index, _ = pack_index(jnp.asarray(inverse, jnp.int32), num_groups or len(values), group_size or int(counts.max()))
    return Packing(take(rows, index), index)


def check_shared(rows: Trajectory, group_ids: np.ndarray, first: np.ndarray) -> None:
    """Raises a `ValueError` if rows disagree in a signal that has one value for a group, or for the batch.

    Args:
      rows: ``[N, T]``.
      group_ids: ``[N]``, for the message.
      first: int ``[N]``, the first row of each row's group.
    """
    n = rows.batch_shape[0]
    for name, x in rows.signals.items():
        axes = signal_spec(name).axes
        if "G" not in axes and x.ndim == len(_own(axes)) + 1 and _is_concrete(x):
            x = np.asarray(x)
            source = first if "P" in axes else np.zeros(n, int)
            differs = (x != x[source]) & ~((x != x) & (x[source] != x[source]))  # NaN agrees with NaN
            for row in np.flatnonzero(differs.reshape(n, -1).any(axis=1))[:1]:
                where = f"group {group_ids[row]}" if "P" in axes else "the batch"
                found = f"{x[source[row]]} in row {source[row]} and {x[row]} in row {row}"
                raise ValueError(f"{name}: {found}, wanted one value for {where}")


def take(rows: Trajectory, index: Array) -> Trajectory:
    """The rows ``[N]`` at each place of `index` i32 ``[P, G]``; a place of -1 acts nowhere and does not vote. Pure
    JAX.
    """
    there = index >= 0
    safe = jnp.maximum(index, 0)

    def pick(name: str, x: Array) -> Array:
        if name not in FIELDS and "G" not in (axes := signal_spec(name).axes):
            each = x.ndim > len(_own(axes))  # one a row, not one for all of them
            if "P" not in axes:
                return x[0] if each else x
            return jnp.asarray(x)[safe[:, 0]] if each else jnp.broadcast_to(x, (there.shape[0], *x.shape))
        picked = jnp.asarray(x)[safe]
        shape = there.reshape(there.shape + (1,) * (picked.ndim - 2))
        blank = jnp.asarray(-1 if name in _BLANK_IS_MINUS_ONE else 0, picked.dtype)
        return jnp.where(shape, picked, blank)

    fields = {name: pick(name, x) for name in FIELDS if (x := getattr(rows, name)) is not None}
    if rows.votes is None:
        fields["votes"] = there & jnp.any(fields["action_mask"], axis=-1)
    if rows.trajectory is not None:
        # An empty place is a rollout of its own, so that it shares nobody's vote.
        fields["trajectory"] = jnp.where(there, fields["trajectory"], -1 - jnp.arange(there.shape[1]))
    signals = {name: pick(name, x) for name, x in rows.signals.items()}
    return Trajectory(**fields, signals=signals, num_segments=rows.num_segments)


_BLANK_IS_MINUS_ONE = {"segment", "agent", "read_call", "call_turn"}


def unpack(tree: Any, index: Array) -> Any:
    """The flat rows ``[N, ...]`` of any pytree of arrays ``[P, G, ...]`` that was packed with `index`, in their first
    order.

    In a `Trajectory`, a signal with one value a prompt is repeated for its rows, one that all prompts share stays.

    Raises:
      ValueError: an array without the leading axes of `index`, naming it.
    """
    flat = np.asarray(index).reshape(-1)
    order = np.argsort(flat, kind="stable")[np.sum(flat < 0) :]

    def rows(name: str, x: Array) -> Array:
        if x.shape[:2] != index.shape:
            raise ValueError(f"{name}: shape {list(x.shape)}, wanted {list(index.shape)} in front, as in index")
        return x.reshape((-1, *x.shape[2:]))[order]

    def one(path: tuple, x: Any) -> Any:
        if not isinstance(x, Trajectory):
            return rows(f"tree{jax.tree_util.keystr(path)}", x)
        fields = {name: rows(name, field) for name in FIELDS if (field := getattr(x, name)) is not None}
        signals = {}
        for name, value in x.signals.items():
            axes = signal_spec(name).axes
            if "P" in axes and "G" not in axes:
                value = jnp.broadcast_to(jnp.asarray(value)[:, None], (*x.batch_shape, *value.shape[1:]))
            signals[name] = rows(name, value) if "P" in axes else value
        return Trajectory(**fields, signals=signals, num_segments=x.num_segments)

    return jax.tree_util.tree_map_with_path(one, tree, is_leaf=lambda x: isinstance(x, Trajectory))


def pad_positions(batch: Trajectory, length: int) -> Trajectory:
    """The batch with T grown to `length` by positions at the end that hold nothing.

    Raises:
      ValueError: `length` is below T.
    """
    if length < batch.length:
        raise ValueError(f"length: {length}, wanted at least T={batch.length}")
    return _pad_axis(batch, "T", length)


def slice_positions(batch: Trajectory, start: int, stop: int) -> Trajectory:
    """Positions `start` to `stop` of every row. What happened outside them is gone, the outcome stays."""
    return _map_axis([batch], "T", lambda x, at, blank: jax.lax.slice_in_dim(x[0], start, stop, axis=at))


def pad_rollouts(batch: Trajectory, prompts: int, rollouts: int) -> Trajectory:
    """A batch ``[P, G]`` grown to ``[prompts, rollouts]`` by rollouts that act nowhere and do not vote.

    Raises:
      ValueError: fewer than there are.
    """
    p, g = batch.batch_shape
    if prompts < p or rollouts < g:
        raise ValueError(f"prompts, rollouts: {prompts}, {rollouts}, wanted at least [P={p}, G={g}]")
    if batch.votes is None:
        batch = batch.replace(votes=jnp.any(batch.action_mask, axis=-1))
    return _pad_axis(_pad_axis(batch, "G", rollouts), "P", prompts)


def concatenate(batches: Sequence[Trajectory], axis: str = "P") -> Trajectory:
    """Batches one after the other along P (or "G", or "T"); the shorter are padded to the longest T first.

    Along G the ids in `trajectory` are numbered anew within each group: equal ids of two batches are two rollouts.

    Raises:
      ValueError: none given; they carry different fields, signals or K; they differ in what has no such axis (the
        `outcome` along T, say; tracers are not looked into); or segments along T, whose ids would mean two things.
    """
    if not batches:
        raise ValueError("batches: none, wanted at least one")
    if axis != "T":
        longest = max(batch.length for batch in batches)
        batches = [pad_positions(batch, longest) for batch in batches]
    first = batches[0]
    for i, batch in enumerate(batches):
        if jax.tree.structure(batch) != jax.tree.structure(first):  # type: ignore[operator]  # its stub lacks __eq__
            raise ValueError(f"batches: number {i} carries other fields, signals or num_segments than number 0")
    if axis == "T" and first.segment is not None and len(batches) > 1:
        raise ValueError("segment: each batch counts its own from 0, wanted batches without segments along T")
    if axis == "G" and first.trajectory is not None:
        batches = _distinct(batches)
    return _map_axis(batches, axis, lambda parts, at, blank: jnp.concatenate(parts, axis=at))


def stack(rows: Sequence[Trajectory]) -> Trajectory:
    """Trajectories without leading axes as one with the leading axis ``[N]``; the shorter are padded.

    Raises:
      TypeError: rows that are no trajectories.
      ValueError: see `concatenate`.
    """
    if not rows:
        raise ValueError("rows: none, wanted at least one")
    if other := [row for row in rows if not isinstance(row, Trajectory)]:
        raise TypeError(f"rows: {type(other[0]).__name__}, wanted a Trajectory [N, T] or a list of them")
    longest = max(row.length for row in rows)
    padded = [pad_positions(row, longest) for row in rows]
    if len({jax.tree.structure(row) for row in padded}) > 1:
        raise ValueError("rows: they carry different fields, signals or num_segments")
    return jax.tree.map(lambda *x: jnp.stack(x), *padded)


def _distinct(batches: Sequence[Trajectory]) -> list[Trajectory]:
    """The batches with ids in `trajectory` that no two of them share."""
    done, taken = [], 0
    for batch in batches:
        ids = jnp.asarray(batch.trajectory)
        # The first row with the same id: a small number, where an offset to ids of any size could overflow.
        place = jnp.argmax(ids[..., :, None] == ids[..., None, :], axis=-1)
        done.append(batch.replace(trajectory=place + taken))
        taken += ids.shape[-1]
    return done


def _own(axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in ("P", "G"))


def _is_concrete(x: Any) -> bool:
    return not isinstance(x, jax.core.Tracer) and getattr(x, "is_fully_addressable", True)


def _equal(x: Any, y: Any) -> bool:
    x, y = np.asarray(x), np.asarray(y)
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def _named_leaves(batch: Trajectory) -> list[tuple[str, Array]]:
    fields = [(name, x) for name in FIELDS if (x := getattr(batch, name)) is not None]
    return fields + list(batch.signals.items())


def _map_axis(batches: Sequence[Trajectory], axis: str, fn: Callable) -> Trajectory:
    """Applies ``fn(arrays, axis number, blank value)`` to each field and signal that has the axis; keeps the first of
    the others.
    """
    first = batches[0]
    present = {2: ("P", "G"), 1: ("G",), 0: ()}[len(first.batch_shape)]
    if axis not in (*present, "T"):
        raise ValueError(f"tokens: shape {list(first.tokens.shape)} has no axis {axis}")
    done = {}
    for parts in zip(*map(_named_leaves, batches), strict=True):
        name, x = parts[0]
        if name in FIELDS:
            axes = (*present, *_FIELD_AXES[name][0])
        else:
            axes = tuple(a for a in signal_spec(name).axes if a in present or a not in ("P", "G"))
        if axis in axes:
            blank = -1 if name in _BLANK_IS_MINUS_ONE or (name == "trajectory" and axis != "T") else 0
            x = fn([part for _, part in parts], axes.index(axis), blank)
        else:
            for i, (_, part) in enumerate(parts):
                if part is not x and _is_concrete(x) and _is_concrete(part) and not _equal(x, part):
                    raise ValueError(f"{name}: batches 0 and {i} differ, wanted the same, as it has no axis {axis}")
        done[name] = x
    signals = {name: x for name, x in done.items() if name not in FIELDS}
    fields = {name: x for name, x in done.items() if name in FIELDS}
    return Trajectory(**fields, signals=signals, num_segments=first.num_segments)


def _pad_axis(batch: Trajectory, axis: str, size: int) -> Trajectory:
    def pad(parts: list[Array], at: int, blank: int) -> Array:
        x = parts[0]
        widths = [(0, size - x.shape[at]) if i == at else (0, 0) for i in range(x.ndim)]
        return jnp.pad(x, widths, constant_values=jnp.asarray(blank, x.dtype))

    return _map_axis([batch], axis, pad)
