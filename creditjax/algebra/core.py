"""A piece of an estimator: a pure function with its hyperparameters, its levels and its needs.

A :class:`Transform` is a pytree. Float hyperparameters are float32 leaves, so that a sweep over them does not
recompile and `vmap` over one works; everything else is static. A "group" piece is written for one group (leading axis
``[G]``) and is vmapped over prompts here and nowhere else; a "batch" piece sees ``[P, G]`` and adds over the mesh
through its :class:`Context`; a "tree" piece is a combinator and runs its children.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import inspect
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax import hyperparameters
from creditjax.algebra.credit import Credit, Level
from creditjax.trajectory import Trajectory, signal_spec

Array = jax.Array


class Context(NamedTuple):
    """What a piece may know beside the batch.

    Attributes:
      step: i32 scalar, the training step, for schedules.
      mesh_axes: names of the mesh axes over which the prompts are split when running under `shard_map`; static.
    """

    step: Array
    mesh_axes: tuple[str, ...] = ()

    def sum(self, x: Array) -> Array:
        """Sum of a per-shard number over all shards."""
        return jax.lax.psum(x, self.mesh_axes) if self.mesh_axes else x

    def max(self, x: Array) -> Array:
        """Maximum of a per-shard number over all shards."""
        return jax.lax.pmax(x, self.mesh_axes) if self.mesh_axes else x


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Schedule:
    """A hyperparameter that moves linearly from `start` to `stop` over steps `begin` to `begin + length`."""

    start: Any
    stop: Any
    begin: Any
    length: Any

    def __call__(self, step: Array) -> Array:
        """The value at `step`."""
        return self.start + (self.stop - self.start) * self._progress(step)

    def _progress(self, step: Array) -> Array:
        """Share of the way, from 0 at `begin` to 1 at `begin + length`."""
        return jnp.clip((step - self.begin) / jnp.maximum(self.length, 1e-6), 0.0, 1.0)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Half a cosine from `start` to `stop`: slow at both ends, steepest in the middle."""

    def __call__(self, step: Array) -> Array:
        """The value at `step`."""
        # (1 + cos(pi x)) / 2 without the cancellation near its end.
        return self.stop + (self.start - self.stop) * jnp.square(jnp.sin(0.5 * jnp.pi * (1 - self._progress(step))))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ExponentialSchedule(Schedule):
    """The distance to `stop` halves every `half_life` steps; at `begin + length` what is left of it is dropped."""

    half_life: Any

    def __call__(self, step: Array) -> Array:
        """The value at `step`."""
        age = jnp.maximum(step - self.begin, 0.0)
        left = jnp.exp2(-age / jnp.maximum(self.half_life, 1e-6))
        return jnp.where(age < self.length, self.stop + (self.start - self.stop) * left, self.stop)


def linear_schedule(start: float, stop: float, length: float, begin: float = 0.0) -> Schedule:
    """A :class:`Schedule`; give it wherever a piece takes a float."""
    return Schedule(**_leaves("linear_schedule", start=start, stop=stop, begin=begin, length=length))


def cosine_schedule(start: float, stop: float, length: float, begin: float = 0.0) -> Schedule:
    """``stop + (start - stop) (1 + cos(pi x)) / 2``, x going from 0 to 1 over `length` steps from `begin` on."""
    return CosineSchedule(**_leaves("cosine_schedule", start=start, stop=stop, begin=begin, length=length))


def exponential_schedule(
    start: float, stop: float, length: float, half_life: float | None = None, begin: float = 0.0
) -> Schedule:
    """``stop + (start - stop) 2^(-n / half_life)``, n counted from `begin`, and `stop` from ``begin + length`` on.

    `half_life` is an eighth of `length` unless it is given, so that the drop at the end is 1/256 of the way.
    """
    given = {"start": start, "stop": stop, "begin": begin, "length": length}
    half_life = length / 8 if half_life is None else half_life
    return ExponentialSchedule(**_leaves("exponential_schedule", **given, half_life=half_life))


def _leaves(owner: str, **given: Any) -> dict[str, Any]:
    return {name: hyperparameters.as_leaf(f"{owner}: {name}", x) for name, x in given.items()}


@dataclasses.dataclass(frozen=True)
class Transform:
    """One piece: a source (`takes` is None), a transform, or a combinator of both.

    Attributes:
      fn: the pure function behind it.
      name: what `explain` prints.
      takes: levels it accepts, or None for a source.
      gives: the level it returns, or None for "the level it was given".
      needs: fields and signals that the batch has to have.
      uses: fields and signals that it reads when the batch has them.
      scope: "group", "batch" or "tree".
      hyperparameters: float32 leaves or schedules, by name.
      static: everything else it was made with.
      children: the pieces inside a combinator.
    """

    fn: Callable
    name: str
    takes: frozenset[Level] | None
    gives: Level | None
    needs: tuple[str, ...]
    uses: tuple[str, ...]
    scope: str
    static: tuple[tuple[str, Any], ...]
    hyperparameters: Mapping[str, Any]
    children: tuple["Transform", ...]

    @property
    def is_source(self) -> bool:
        """Whether it starts a chain; an estimator is a piece that does."""
        return self.takes is None

    def level_after(self, level: Level | None) -> Level:
        """The level it returns when it is given `level`."""
        return self.gives if self.gives is not None else level  # type: ignore[return-value]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join([*map(repr, self.children), *_said(self)])})"


jax.tree_util.register_dataclass(
    Transform,
    data_fields=["hyperparameters", "children"],
    meta_fields=["fn", "name", "takes", "gives", "needs", "uses", "scope", "static"],
)


def _said(piece: Transform) -> list[str]:
    """The hyperparameters of a piece as one would write them: a signal's name first and bare."""
    given = {**dict(piece.static), **piece.hyperparameters}
    given.pop("join", None)  # how a combinator does its work, nobody's choice
    name = [repr(given.pop("name"))] if "name" in given else []
    return name + [f"{k}={_show(v)}" for k, v in given.items()]


def _show(value: Any) -> str:
    if isinstance(value, np.generic) or (
        hasattr(value, "ndim") and not isinstance(value, jax.core.Tracer) and value.ndim == 0
    ):
        return f"{float(value):.7g}"
    if isinstance(value, Schedule):
        return f"{_show(value.start)}→{_show(value.stop)}"
    return repr(value) if isinstance(value, str | int | bool | tuple | type(None)) else "…"


def check_piece(label: str, value: Any, wanted: str = "a piece such as outcome() or group_normalize()") -> None:
    """Raises a `TypeError` for what is no :class:`Transform`."""
    if isinstance(value, Transform):
        return
    found, hint = repr(value), ""
    if hasattr(value, "estimator"):
        found, hint = type(value).__name__, "; did you mean .estimator?"
    elif isinstance(value, str):
        hint = f"; did you mean creditjax.recipe({value!r}).estimator?"
    elif isinstance(value, Trajectory):
        found, hint = "Trajectory", "; the estimator comes first, then the batch"
    elif isinstance(value, list | tuple):
        found, hint = type(value).__name__, "; give the pieces one by one"
    elif callable(value) and hasattr(value, "__wrapped__"):
        found, hint = f"the function {value.__name__}", f"; did you mean {value.__name__}()?"
    raise TypeError(f"{label} {found}, wanted {wanted}{hint}")


def check_signal(
    owner: str, name: str, *axes: tuple[str, ...], dtype: str | None = None, fields: tuple[str, ...] = ()
) -> None:
    """Raises for a signal that a piece cannot read: undeclared, or of other axes or dtype than it takes.

    Args:
      owner: the piece.
      name: the signal.
      *axes: the axes it may have.
      dtype: the dtype it has to have, None for any.
      fields: fields of the `Trajectory` that will do as well.
    """
    if name in fields:
        return
    spec = signal_spec(name)
    if spec.axes not in axes or dtype not in (None, spec.dtype):
        wanted = " or ".join(f"[{', '.join(x)}]" for x in axes)
        found = f"{spec.dtype} [{', '.join(spec.axes)}]"
        raise ValueError(f"{owner}: signal {name!r} is {found}, wanted {f'{dtype} ' if dtype else ''}{wanted}")


def as_leaf(label: str, value: Any, *, limit: bool = False) -> Any:
    """A float hyperparameter as a float32 leaf; schedules pass through.

    Raises:
      TypeError: it is no number.
      ValueError: NaN, or inf where it is no limit.
    """
    if isinstance(value, Schedule):
        return value
    return hyperparameters.as_leaf(label, value, wanted="a float or a schedule", limit=limit)


def transform(
    *,
    takes: Level | Iterable[Level] | None,
    gives: Level | None,
    needs: tuple[str, ...] | Callable[..., tuple[str, ...]] = (),
    uses: tuple[str, ...] = (),
    scope: str = "group",
    check: Callable[..., None] | None = None,
) -> Callable[[Callable], Callable[..., Transform]]:
    """Makes a public factory of pieces out of one pure function.

    The function is called as ``fn(credit, batch, ...)``, a source as ``fn(batch, ...)``; with scope "batch" it also
    receives the :class:`Context` before the hyperparameters, which are keyword-only. The factory takes them,
    positionally too, and checks them (:mod:`creditjax.hyperparameters`): floats, arrays and schedules become leaves,
    everything else is static.

    Args:
      takes: level or levels of credit it accepts; None makes a source.
      gives: level of its result; None keeps the level it was given.
      needs: fields and signals it cannot do without, or a function of the (bound) hyperparameters that returns them.
      uses: fields and signals it reads when they are there.
      scope: "group" (vmapped over prompts) or "batch".
      check: called with the hyperparameters, raises for values that their types allow and the function does not.
    """
    levels = None if takes is None else frozenset([takes] if isinstance(takes, Level | str) else takes)
    if bad := [x for x in [*(levels or ()), gives] if not isinstance(x, Level | None)]:
        raise TypeError(f"transform: takes or gives {bad[0]!r}, wanted a Level, several, or None")
    for name, names in (("needs", needs), ("uses", uses)):
        if isinstance(names, str):
            raise TypeError(f"transform: {name} = {names!r}, wanted a tuple of names, ({names!r},)")
    if scope not in ("group", "batch"):
        raise ValueError(f"transform: scope = {scope!r}, wanted 'group' or 'batch'")

    def decorate(fn: Callable) -> Callable[..., Transform]:
        def make(values: dict[str, Any]) -> Transform:
            if check is not None:
                check(**values)
            leaves = {
                name: x for name, x in values.items() if isinstance(x, np.float32 | np.ndarray | Array | Schedule)
            }
            static = tuple((name, x) for name, x in values.items() if name not in leaves)
            required = needs(**values) if callable(needs) else needs
            return Transform(fn, fn.__name__.strip("_"), levels, gives, required, uses, scope, static, leaves, ())

        return hyperparameters.factory(fn, make, leaf=as_leaf, positional=True)

    return decorate


def run(piece: Transform, given: Credit | None, batch: Trajectory, context: Context) -> Credit:
    """Runs one piece on a batch ``[P, G]``: combinators at batch level, group pieces vmapped over prompts."""
    values = {k: v(context.step) if isinstance(v, Schedule) else v for k, v in piece.hyperparameters.items()}
    kinds = inspect.get_annotations(piece.fn)
    for name, value in values.items():
        if jnp.ndim(value) and hyperparameters.is_float(kinds.get(name, float)):
            # A vector would broadcast over rollouts or positions that happen to be as many.
            raise ValueError(f"{piece.name}: {name} has shape {list(value.shape)}, wanted a scalar (vmap over it)")
    call = functools.partial(piece.fn, **values, **dict(piece.static))
    inputs = () if piece.is_source else (given,)
    if piece.scope == "tree":
        return call(piece.children, given, batch, context)
    level = piece.level_after(given.level if given is not None else None)
    if piece.scope == "batch":
        return _checked(piece.name, call(*inputs, batch, context), level, batch)
    # Signals without a prompt axis are the same for every group.
    shared = {name: x for name, x in batch.signals.items() if "P" not in signal_spec(name).axes}
    own = {name: x for name, x in batch.signals.items() if name not in shared}

    def one_group(inputs, group: Trajectory) -> Credit:
        return _checked(piece.name, call(*inputs, group.with_signals(**shared) if shared else group), level, group)

    return jax.vmap(one_group)(inputs, batch.replace(signals=own) if shared else batch)


def _checked(name: str, result: Any, level: Level, batch: Trajectory) -> Credit:
    """What a piece returned, if it is what the piece declared."""
    if not isinstance(result, Credit):
        raise TypeError(f"{name}: returned {type(result).__name__}, wanted a Credit (credit.with_value(...))")
    if result.level is not level:
        raise TypeError(f"{name}: returned level {result.level!r}, declared {level!r}")
    sizes = {"T": batch.length, "K": batch.num_segments}
    axes = [axis for axis in level.value.split(", ") if axis]
    wanted = [*batch.batch_shape, *(sizes.get(axis, axis) for axis in axes)]
    for part, array in (("value", result.value), ("valid", result.valid)):
        shape = jnp.shape(array)
        fits = len(shape) == len(wanted) and all(w in (s, "N") for s, w in zip(shape, wanted, strict=True))
        if not fits:
            raise ValueError(f"{name}: returned {part} of shape {list(shape)}, wanted {wanted} for level {level!r}")
    return result
