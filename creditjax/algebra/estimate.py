"""Running an estimator, and looking into it: `estimate`, `credit_trace`, `explain`, `needs`."""

import functools
from typing import Any

import jax
from jax import numpy as jnp
from jax.sharding import AxisType, Mesh, PartitionSpec

from creditjax.algebra.core import Context, Transform, _said, _show, check_piece, run
from creditjax.algebra.credit import LIFT_NEEDS, Credit, lift
from creditjax.trajectory import _FIELD_AXES, FIELDS, Trajectory, signal_spec

Array = jax.Array

# Every estimator sees these: where the policy acted, and who votes.
_STRUCTURE = ("tokens", "action_mask", "outcome", "votes", "trajectory")


def needs(estimator: Transform) -> tuple[str, ...]:
    """Fields and signals that the batch has to have, the lift to tokens included."""
    check_piece("estimator:", estimator)
    lifts = LIFT_NEEDS[estimator.gives] if estimator.gives else ()
    return tuple(dict.fromkeys([*estimator.needs, *lifts]))


def prune(estimator: Transform, batch: Trajectory) -> Trajectory:
    """The batch with nothing but what the estimator reads.

    Raises:
      TypeError: `estimator` does not start with a source.
      ValueError: the batch has not two leading axes, is empty, or lacks something, naming it, its axes and what
        produces it.
    """
    wanted = "a source or a chain that starts with one, such as outcome()"
    check_piece("estimator:", estimator, wanted)
    if not estimator.is_source:
        raise TypeError(f"estimator: {estimator!r}, wanted {wanted}")
    if not isinstance(batch, Trajectory):
        raise TypeError(f"batch: {type(batch).__name__}, wanted a Trajectory")
    if len(batch.batch_shape) != 2:
        raise ValueError(f"tokens: shape {list(batch.tokens.shape)}, wanted [P, G, T]")
    if 0 in batch.tokens.shape:
        raise ValueError(f"tokens: shape {list(batch.tokens.shape)}, wanted at least one prompt, rollout and position")
    required = needs(estimator)
    for name in required:
        if batch.get(name) is None:
            if name in FIELDS:
                axes, dtype = _FIELD_AXES[name]
                raise ValueError(
                    f"{name}: absent, but {_who_needs(estimator, name)} needs this field, "
                    f"wanted {dtype} [{', '.join(('...', *axes))}] as `Trajectory` says"
                )
            spec = signal_spec(name)
            raise ValueError(
                f"signal {name!r}: absent, wanted {spec.dtype} [{', '.join(spec.axes)}] ({spec.meaning}); "
                f"made by {spec.producer}"
            )
    kept = {*required, *estimator.uses}
    dropped = {name: None for name in FIELDS if name not in kept and name not in _STRUCTURE}
    signals = {name: x for name, x in batch.signals.items() if name in kept}
    segments = (
        batch.num_segments if "segment" in kept or any("K" in a for n in signals for a in signal_spec(n).axes) else 0
    )
    # A batch of another K is another shape only where K matters, so an unused K must not retrace.
    return batch.replace(**dropped, signals=signals, num_segments=segments)


def _who_needs(piece: Transform, name: str) -> str:
    """The innermost piece that declares the need; a combinator has it of its own where it lifts to tokens."""
    return next((_who_needs(child, name) for child in piece.children if name in child.needs), piece.name)


def estimate(
    estimator: Transform,
    batch: Trajectory,
    *,
    step: int | Array = 0,
    mesh: Mesh | None = None,
    mesh_axes: tuple[str, ...] = (),
    stop_gradient: bool = True,
) -> Credit:
    """Credit of every acted position of a batch.

    Args:
      estimator: a source, or a chain that starts with one.
      batch: rollouts ``[P, G, T]``, with what the estimator needs.
      step: training step, for schedules.
      mesh: run under `shard_map` with the prompts split over `mesh_axes` of this mesh; the numbers are the same.
      mesh_axes: with `mesh`, the axes to split prompts over. Without a mesh, axes that the caller has mapped already.
      stop_gradient: whether no gradient flows through credit (the library's rule) or it does.

    Returns:
      A `Credit` at token level: `value` and `valid` are ``[P, G, T]``, 0 and False outside `action_mask`.

    Raises:
      TypeError, ValueError: see :func:`prune`; a `step` that is no integer, `mesh_axes` that the mesh does not
        have; a mesh with Explicit axes.
    """
    pruned = prune(estimator, batch)
    step = _as_step(step)
    if mesh is None:
        return _estimate(estimator, pruned, step, mesh_axes, stop_gradient)
    known = mesh.axis_names
    if not mesh_axes or not set(mesh_axes) <= set(known):
        raise ValueError(f"mesh_axes: {mesh_axes!r}, wanted the axes to split prompts over, some of {known}")
    if explicit := [axis for axis, kind in zip(known, mesh.axis_types, strict=True) if kind is AxisType.Explicit]:
        # There the arrays' own shardings would have to be exactly the split.
        raise ValueError(f"mesh: axes {', '.join(explicit)} are Explicit, wanted jax.sharding.AxisType.Auto")
    split = PartitionSpec(mesh_axes)
    specs = jax.tree.map(lambda x: split, pruned)
    shared = {name: PartitionSpec() for name in pruned.signals if "P" not in signal_spec(name).axes}
    specs = jax.tree_util.tree_unflatten(jax.tree.structure(pruned), jax.tree.leaves(specs))
    if shared:
        object.__setattr__(specs, "signals", {**specs.signals, **shared})
    body = functools.partial(_estimate, mesh_axes=mesh_axes, stop_gradient=stop_gradient)
    return jax.shard_map(
        body, mesh=mesh, in_specs=(PartitionSpec(), specs, PartitionSpec()), out_specs=split, check_vma=False
    )(estimator, pruned, step)


def _as_step(step: Any) -> Array:
    kind = getattr(step, "dtype", type(step))
    if jnp.shape(step) != () or kind is bool or not jnp.issubdtype(kind, jnp.integer):
        raise TypeError(f"step: {step!r}, wanted an integer")
    return jnp.asarray(step, jnp.int32)


@functools.partial(jax.jit, static_argnames=("mesh_axes", "stop_gradient"))
def _estimate(
    estimator: Transform, batch: Trajectory, step: Array, mesh_axes: tuple[str, ...], stop_gradient: bool
) -> Credit:
    credit = lift(run(estimator, None, batch, Context(step, mesh_axes)), batch)
    return jax.lax.stop_gradient(credit) if stop_gradient else credit


def credit_trace(estimator: Transform, batch: Trajectory, *, step: int | Array = 0) -> list[tuple[str, Credit]]:
    """The credit after every piece of a chain, at the piece's own level: pairs (piece as `explain` prints it,
    credit).
    """
    pruned = prune(estimator, batch)
    context = Context(_as_step(step))
    credit: Any = None
    trace = []
    for piece in estimator.children if estimator.name == "chain" else (estimator,):
        credit = run(piece, credit, pruned, context)
        trace.append((repr(piece), credit))
    return trace


def explain(estimator: Transform) -> str:
    """The estimator as an indented tree: pieces with hyperparameters, the level after each, and what each needs."""
    check_piece("estimator:", estimator)
    lines = [*_explain(estimator, None, 0)[0]]
    lines.append(f"→ tokens; needs: {', '.join(needs(estimator)) or 'outcome alone'}")
    return "\n".join(lines)


def _explain(piece: Transform, level: Any, depth: int) -> tuple[list[str], Any]:
    indent = "  " * depth
    if piece.name == "chain":
        lines = []
        for child in piece.children:
            more, level = _explain(child, level, depth)
            lines += more
        return lines, level
    weights = [x for key, x in piece.hyperparameters.items() if key.startswith("weight_")]
    said = "" if weights else ", ".join(_said(piece))
    after = piece.level_after(level)
    needed = f"  needs {', '.join(piece.needs)}" if piece.needs and not piece.children else ""
    lines = [f"{indent}{piece.name}({said})  → {after!r}{needed}"]
    for i, child in enumerate(piece.children):
        more, _ = _explain(child, None if child.is_source else level, depth + 2)
        # The first line of each part of a combinator is marked, so that chains in it stay apart.
        mark = f"{_show(weights[i])} ×" if weights else "-"
        lines += [f"{indent}  {mark} {more[0].strip()}", *more[1:]]
    return lines, after
