"""What joins pieces: `chain`, `blend`, `route`, `where`, `modulate`, `gate`, `only_where`.

Each returns a piece, so they nest.
"""

from collections.abc import Sequence
import functools
from typing import Any, Literal

import jax
from jax import numpy as jnp

from creditjax.algebra.core import Context, Transform, as_leaf, check_piece, run
from creditjax.algebra.credit import LIFT_NEEDS, Credit, Level, lift
from creditjax.hyperparameters import check_choice
from creditjax.trajectory import Trajectory

Array = jax.Array


def chain(*pieces: Transform) -> Transform:
    """Runs the pieces one after the other; with a source in front it is an estimator.

    Raises:
      TypeError: a source that is not in front, or a piece that does not take the level before it, naming both.
    """
    if not pieces:
        raise TypeError("chain: no pieces, wanted at least one")
    for i, piece in enumerate(pieces):
        check_piece(f"chain: piece {i} is", piece)
        if i and piece.is_source:
            raise TypeError(f"chain: {piece.name} is a source and has to come first, found it at place {i}")
    level = pieces[0].gives
    for before, piece in zip(pieces, pieces[1:], strict=False):
        if level is not None and level not in piece.takes:  # type: ignore[operator]
            wanted = " or ".join(sorted(x.name for x in piece.takes))  # type: ignore[union-attr]
            raise TypeError(f"chain: {piece.name} takes {wanted}, {before.name} gives {level.name}")
        level = piece.level_after(level)
    flat = [part for piece in pieces for part in (piece.children if piece.fn is _chain else (piece,))]
    return _combinator(_chain, "chain", flat, takes=pieces[0].takes, gives=level)


def _chain(children: Sequence[Transform], given: Credit | None, batch: Trajectory, context: Context) -> Credit:
    credit: Any = given  # None in front of a source alone
    for piece in children:
        credit = run(piece, credit, batch, context)
    return credit


def blend(*weighted: tuple[Transform, Any], require: Literal["any", "all"] = "any") -> Transform:
    """Weighted sum of estimators (or of transforms of one credit); weights are floats or schedules.

    Parts of one level are added at that level, parts of different levels at tokens. Credit is assigned where any part
    assigns it; with `require` "all", where every part does: a score that was never made is then no score of 0.
    `blend((a, 1.0), (b, 0.5))` equals ``a + 0.5 b``.

    Raises:
      TypeError: sources mixed with transforms, or no common level to take.
      ValueError: another `require`.
    """
    if not weighted or not all(isinstance(x, tuple) and len(x) == 2 for x in weighted):
        raise TypeError(f"blend: {weighted!r}, wanted pairs (estimator, weight)")
    check_choice("blend: require", require, Literal["any", "all"])
    parts = [part for part, _ in weighted]
    for i, part in enumerate(parts):
        check_piece(f"blend: part {i} is", part)
    weights = {f"weight_{i}": as_leaf(f"blend(weight {i})", weight) for i, (_, weight) in enumerate(weighted)}
    takes, gives = _common("blend", parts)
    static = (("require", require),) if require != "any" else ()
    return _combinator(_blend, "blend", parts, takes=takes, gives=gives, hyperparameters=weights, static=static)


def _blend(
    children: Sequence[Transform],
    given: Credit | None,
    batch: Trajectory,
    context: Context,
    require: Literal["any", "all"] = "any",
    **weights: Array,
) -> Credit:
    results = _aligned([run(child, given, batch, context) for child in children], batch)
    value = sum(weights[f"weight_{i}"] * x.value for i, x in enumerate(results))
    join = jnp.logical_or if require == "any" else jnp.logical_and
    valid = functools.reduce(join, [x.valid for x in results])
    value = value if require == "any" else jnp.where(valid, value, 0.0)
    return Credit(value, valid, _merge(results), results[0].level)


def route(*channels: tuple[Transform, Transform]) -> Transform:
    """Disjoint channels: each acted position gets the credit of the first channel whose condition holds there.

    Args:
      *channels: pairs (condition, estimator). A condition is a source whose value is not 0 where it holds. A position
      where
        none holds is assigned no credit.

    Raises:
      TypeError: what is given is not pairs of sources.
    """
    if not channels or not all(isinstance(x, tuple) and len(x) == 2 for x in channels):
        raise TypeError(f"route: {channels!r}, wanted pairs (condition, estimator)")
    parts = [part for pair in channels for part in pair]
    for part in parts:
        check_piece("route: a channel has", part)
    if not all(part.is_source for part in parts):
        raise TypeError("route: conditions and estimators have to start with a source")
    return _combinator(_route, "route", parts, takes=None, gives=Level.TOKEN)


def _route(children: Sequence[Transform], given: None, batch: Trajectory, context: Context) -> Credit:
    results = [lift(run(child, None, batch, context), batch) for child in children]
    valid = taken = jnp.zeros_like(batch.action_mask)
    value = jnp.zeros(taken.shape, jnp.float32)
    for condition, result in zip(results[::2], results[1::2], strict=True):
        mine = (condition.value != 0) & ~taken
        value = jnp.where(mine, result.value, value)
        valid = jnp.where(mine, result.valid, valid)
        taken = taken | mine
    return Credit(value, valid, _merge(results[1::2]), Level.TOKEN)


def where(condition: Transform, then: Transform, otherwise: Transform) -> Transform:
    """The credit of `then` where `condition` (a source) is not 0, that of `otherwise` elsewhere; at their common level.

    Raises:
      TypeError: the condition is no source, or the two do not fit together.
    """
    for part in (condition, then, otherwise):
        check_piece("where: given", part)
    if not condition.is_source:
        raise TypeError(f"where: condition {condition.name} is no source")
    takes, gives = _common("where", [then, otherwise])
    if gives is not None and condition.gives is not gives:
        gives = Level.TOKEN
    return _combinator(_where, "where", [condition, then, otherwise], takes=takes, gives=gives)


def _where(children: Sequence[Transform], given: Credit | None, batch: Trajectory, context: Context) -> Credit:
    condition, then, otherwise = children
    results = [run(condition, None, batch, context), *(run(x, given, batch, context) for x in (then, otherwise))]
    holds, yes, no = _aligned(results, batch)
    value = jnp.where(holds.value != 0, yes.value, no.value)
    valid = jnp.where(holds.value != 0, yes.valid, no.valid)
    return Credit(value, valid, _merge([yes, no]), yes.level)


def modulate(weight: Transform) -> Transform:
    """Multiplies credit by a weight, which is an estimator of its own; the result lives at their common level."""
    return _factor(weight, "modulate", _modulate)


def _modulate(credit: Credit, weight: Credit) -> Credit:
    return Credit(credit.value * weight.value, credit.valid & weight.valid, _merge([credit, weight]), credit.level)


def gate(condition: Transform) -> Transform:
    """Keeps credit where `condition` (a source) is not 0; elsewhere it becomes 0 and stays assigned."""
    return _factor(condition, "gate", _gate)


def _gate(credit: Credit, condition: Credit) -> Credit:
    return credit.with_value(jnp.where(condition.value != 0, credit.value, 0.0))


def only_where(condition: Transform) -> Transform:
    """Keeps credit where `condition` (a source) is not 0; elsewhere none is assigned.

    What comes after in the chain compares those that are left among themselves: a rollout without credit does not vote.
    """
    return _factor(condition, "only_where", _only_where)


def _only_where(credit: Credit, condition: Credit) -> Credit:
    return credit.replace(valid=credit.valid & (condition.value != 0)).with_value(credit.value)


def _factor(source: Transform, name: str, fn) -> Transform:
    check_piece(f"{name}: given", source)
    if not source.is_source:
        raise TypeError(f"{name}: {source.name} is no source")
    # At the source's own level credit keeps its level; any other pair meets at tokens.
    same = source.gives
    takes = frozenset(Level) if same is Level.TOKEN else frozenset([same, Level.TOKEN])
    gives = Level.TOKEN if same is Level.TOKEN else None
    return _combinator(_apply_factor, name, [source], takes=takes, gives=gives, static=(("join", fn),))


def _apply_factor(children: Sequence[Transform], given: Credit, batch: Trajectory, context: Context, *, join) -> Credit:
    return join(*_aligned([given, run(children[0], None, batch, context)], batch))


def _combinator(
    fn, name: str, children: Sequence[Transform], *, takes, gives, hyperparameters=None, static=()
) -> Transform:
    mixed = len({child.gives for child in children}) > 1
    lifts = {need for child in children if mixed and child.gives for need in LIFT_NEEDS[child.gives]}
    needs = dict.fromkeys(need for child in children for need in child.needs)
    uses = dict.fromkeys(use for child in children for use in child.uses)
    return Transform(
        fn=fn,
        name=name,
        takes=takes,
        gives=gives,
        needs=tuple(dict.fromkeys([*needs, *sorted(lifts if fn is not _chain else ())])),
        uses=tuple(uses),
        scope="tree",
        static=static,
        hyperparameters=hyperparameters or {},
        children=tuple(children),
    )


def _common(name: str, parts: Sequence[Transform]) -> tuple[frozenset[Level] | None, Level | None]:
    """What parts that stand side by side take and give."""
    if len({part.is_source for part in parts}) > 1:
        raise TypeError(f"{name}: sources and transforms mixed: {', '.join(part.name for part in parts)}")
    accepted = [part.takes for part in parts if part.takes is not None]
    takes = frozenset.intersection(*accepted) if accepted else None
    if takes is not None and not takes:
        raise TypeError(f"{name}: no level that {' and '.join(part.name for part in parts)} all take")
    given = {part.gives for part in parts}
    return takes, given.pop() if len(given) == 1 else Level.TOKEN


def _aligned(results: Sequence[Credit], batch: Trajectory) -> list[Credit]:
    """Credits of one level as they are, credits of several levels at tokens."""
    same = len({x.level for x in results}) == 1
    return list(results) if same else [lift(x, batch) for x in results]


def _merge(results: Sequence[Credit]) -> dict[str, Array]:
    """Extras of all parts. Two parts that both set one would silently lose a number."""
    merged: dict[str, Array] = {}
    for result in results:
        for key, x in result.extras.items():
            if key in merged and merged[key] is not x:
                raise ValueError(f"two parts of a combinator both set the extra {key!r}")
            merged[key] = x
    return merged


__all__ = ["blend", "chain", "gate", "modulate", "only_where", "route", "where"]
