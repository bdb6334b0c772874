"""Hyperparameters of pieces and objectives, checked where they are given: before anything is traced.

They are the keyword-only parameters of a pure function. The annotation says what each is: a `float` (or ``float |
None``) becomes a float32 leaf, so that another value is not another program; a `Literal` has to be one of its choices;
a `bool`, `int`, `str` or `tuple` has to be one; anything else stays as it is.
"""

from collections.abc import Callable
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
    # True == 1, but it is none of (0, 1).
    if typing.get_origin(kind) is Literal and not any(type(value) is type(part) and value == part for part in parts):
        raise ValueError(f"{label} = {value!r}; {nearest(value, parts)}")
    if is_float(kind):
        return value if value is None and type(None) in parts else leaf(label, value, limit=parameter.name in _LIMITS)
    check_type(label, value, kind)
    return value
