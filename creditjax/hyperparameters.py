"""Hyperparameters of pieces and objectives, checked where they are given: before anything is traced.

They are the keyword-only parameters of a pure function. The annotation says what each is: a `float` (or ``float |
None``) becomes a float32 leaf, so that another value is not another program; a `Literal` has to be one of its choices;
a `bool`, `int`, `str` or `tuple` has to be one; anything else stays as it is.
"""

from collections.abc import Callable, Mapping
import functools
import inspect
import types
import typing
from typing import Any, Literal, TypeVar

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest

T = TypeVar("T")


# Limits, for which inf means "no limit". Anywhere else a number that is not finite is a slip.
_LIMITS = {
    "clip",
    "dual_clip",
    "eps_high",
    "eps_low",
    "high",
    "highest",
    "low",
    "lowest",
    "rho_bar",
    "rho_pg_bar",
    "value_clip",
}

# What the constants of published methods may be, by name. Those that are not named here are not negative.
_SIGNED = {"low", "margin", "penalty", "stay_right", "stay_wrong", "threshold"}
_ABOVE_ZERO = {
    "bins",
    "decay_steps",
    "f_norm",
    "half_life",
    "min_group_size",
    "rho_bar",
    "rho_pg_bar",
    "tau",
    "tau_negative",
    "tau_positive",
    "temperature",
    "weight_bar",
}
_SHARES = {"fraction", "q", "rho", "share", "top_frac", "top_mass"}  # in [0, 1]
_ORDERED = (("lam_min", "lam_max"), ("low", "high"), ("lowest", "highest"), ("q_min", "q_max"), ("w_min", "w_max"))

_PLAIN = {bool: "a bool", int: "an int", float: "a float", str: "a str", tuple: "a tuple", type(None): "None"}


def as_leaf(label: str, value: Any, *, wanted: str = "a number", limit: bool = False) -> Any:
    """A number as a float32 leaf; arrays and tracers as float32.

    Args:
      label: what the error calls it.
      value: the number.
      wanted: what the error asks for.
      limit: whether it may be infinite. Arrays are not looked into.

    Raises:
      TypeError: it is no number.
      ValueError: NaN, or inf where it is no limit.
    """
    if not fits(value, float):
        raise TypeError(f"{label} = {value!r}, wanted {wanted}")
    if isinstance(value, jax.Array | np.ndarray):
        return value.astype(jnp.float32)
    with np.errstate(over="ignore"):
        leaf = np.float32(value)
    if np.isnan(leaf) or (np.isinf(leaf) and not limit):
        raise ValueError(f"{label} = {float(value)!r}, wanted {'a number or inf' if limit else 'a finite number'}")
    return leaf


def is_float(kind: Any) -> bool:
    """Whether an annotation is ``float`` or ``float | None``."""
    return kind is float or float in typing.get_args(kind)


def fits(value: Any, kind: Any) -> bool:
    """Whether a value is what a plain annotation says. A bool is no number here, an int is a float; so are arrays."""
    if kind is float and isinstance(value, jax.Array | np.ndarray | np.number):
        return bool(jnp.issubdtype(value.dtype, jnp.integer) or jnp.issubdtype(value.dtype, jnp.floating))
    if kind in (int, float):
        wide = int | float if kind is float else int | np.integer
        return isinstance(value, wide) and not isinstance(value, bool)
    return isinstance(value, kind)


def check_type(label: str, value: Any, kind: Any) -> None:
    """Raises a `TypeError` for a value that is not of its annotation, where that is a plain type or a union of them."""
    union = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    parts = [typing.get_origin(part) or part for part in union]
    if all(part in _PLAIN for part in parts) and not any(fits(value, part) for part in parts):
        raise TypeError(f"{label} = {value!r}, wanted {' or '.join(_PLAIN[part] for part in parts)}")


def check_choice(label: str, value: Any, kind: Any) -> None:
    """Raises a `ValueError` for what is none of the choices of a ``Literal``; any other annotation passes."""
    parts = typing.get_args(kind)
    # True == 1, but it is none of (0, 1).
    if typing.get_origin(kind) is Literal and not any(type(value) is type(part) and value == part for part in parts):
        raise ValueError(f"{label} = {value!r}; {nearest(value, parts)}")


def check_ranges(values: Mapping[str, Any]) -> None:
    """Whether the constants of a method can mean anything, by their names; arrays and tracers pass.

    Raises:
      ValueError: NaN, a negative number where the name is of none that may be, 0 where it divides, a share above 1, a
        lower limit above its upper one; naming it.
    """
    for name, x in values.items():
        if isinstance(x, tuple) and any(isinstance(part, str) or (fits(part, float) and np.isnan(part)) for part in x):
            raise ValueError(f"{name} = {x!r}, wanted numbers")
    plain = {name: x for name, x in values.items() if isinstance(x, int | float) and not isinstance(x, bool)}
    for name, x in plain.items():
        low = -np.inf if name in _SIGNED else 0
        fine = (x > 0 if name in _ABOVE_ZERO else x >= low) and (x <= 1 or name not in _SHARES)
        if not fine or (np.isinf(x) and name not in _LIMITS):
            wanted = "in [0, 1]" if name in _SHARES else "> 0" if name in _ABOVE_ZERO else ">= 0"
            raise ValueError(f"{name} = {x!r}, wanted a number{'' if name in _SIGNED else f' {wanted}'}")
    for low_name, high_name in _ORDERED:
        if {low_name, high_name} <= plain.keys() and plain[low_name] > plain[high_name]:
            raise ValueError(f"{low_name} = {plain[low_name]!r}, wanted at most {high_name} = {plain[high_name]!r}")


def factory(
    function: Callable[..., Any],
    make: Callable[[dict[str, Any]], T],
    *,
    leaf: Callable[..., Any] = as_leaf,
    positional: bool = False,
) -> Callable[..., T]:
    """What takes the hyperparameters of `function`, checks them and returns ``make(all of them by name)``.

    Args:
      function: the pure function; its keyword-only parameters are the hyperparameters.
      make: receives defaults too, every float as a leaf.
      leaf: turns a labelled value into a leaf; `limit` says whether it may be infinite.
      positional: whether the factory takes them by position too.

    Returns:
      The factory, with the name and documentation of `function`. It raises a `TypeError` for an unknown or missing name
      and for what is not of the annotated type, a `ValueError` for what is none of the choices or not finite.
    """
    own = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    signature = inspect.Signature([p.replace(kind=p.POSITIONAL_OR_KEYWORD) for p in own] if positional else own)
    owner = function.__name__

    @functools.wraps(function)
    def made(*args: Any, **given: Any) -> T:
        for name in given:
            if name not in signature.parameters:
                raise TypeError(f"{owner} has no hyperparameter {name!r}; {nearest(name, signature.parameters)}")
        try:
            bound = signature.bind(*args, **given)
        except TypeError as error:
            raise TypeError(f"{owner}{signature}: {error}") from None
        bound.apply_defaults()
        return make({p.name: _checked(f"{owner}: {p.name}", bound.arguments[p.name], p, leaf) for p in own})

    # `pickle` finds a function by this path, and the factory took its name.
    function.__qualname__ += ".__wrapped__"
    made.__signature__ = signature  # type: ignore[attr-defined]  # read by `inspect`, known to no stub
    return made


def _checked(label: str, value: Any, parameter: inspect.Parameter, leaf: Callable[..., Any]) -> Any:
    kind = parameter.annotation
    parts = typing.get_args(kind)
    check_choice(label, value, kind)
    if is_float(kind):
        if value is None and type(None) in parts:
            return value
        number = leaf(label, value, limit=parameter.name in _LIMITS)
        if parameter.name == "eps" and isinstance(number, np.float32) and number < 0:
            raise ValueError(f"{label} = {float(number):g}, wanted >= 0: it keeps a divisor away from 0")
        return number
    check_type(label, value, kind)
    return value
