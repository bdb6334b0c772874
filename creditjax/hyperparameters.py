"""Hyperparameters of pieces and objectives, checked where they are given: before anything is traced.

They are the keyword-only parameters of a pure function. The annotation says what each is: a `float` (or ``float |
None``) becomes a float32 leaf, so that another value is not another program; a `Literal` has to be one of its choices;
anything else stays as it is.
"""

from collections.abc import Callable
import functools
import inspect
import typing
from typing import Any, Literal, TypeVar

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest

T = TypeVar("T")


def as_leaf(label: str, value: Any, wanted: str = "a number") -> Any:
    """A number as a float32 leaf; arrays and tracers as float32.

    Raises:
      TypeError: it is no number.
    """
    if isinstance(value, jax.Array | np.ndarray | np.number):
        return value.astype(jnp.float32)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{label} = {value!r}, wanted {wanted}")
    return np.float32(value)


def factory(
    function: Callable[..., Any],
    make: Callable[[dict[str, Any]], T],
    *,
    leaf: Callable[[str, Any], Any] = as_leaf,
    positional: bool = False,
) -> Callable[..., T]:
    """What takes the hyperparameters of `function`, checks them and returns ``make(all of them by name)``.

    Args:
      function: the pure function; its keyword-only parameters are the hyperparameters.
      make: receives defaults too, every float as a leaf.
      leaf: turns a labelled value into a leaf.
      positional: whether the factory takes them by position too.

    Returns:
      The factory, with the name and documentation of `function`. It raises a `TypeError` for an unknown or missing name
      and for what is no number, a `ValueError` for what is none of the choices.
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
        return make({p.name: _checked(f"{owner}: {p.name}", bound.arguments[p.name], p.annotation, leaf) for p in own})

    made.__signature__ = signature  # type: ignore[attr-defined]  # read by `inspect`, known to no stub
    return made


def _checked(label: str, value: Any, kind: Any, leaf: Callable[[str, Any], Any]) -> Any:
    parts = typing.get_args(kind)
    if typing.get_origin(kind) is Literal and value not in parts:
        raise ValueError(f"{label} = {value!r}; {nearest(value, parts)}")
    if kind is float or (float in parts and value is not None):
        return leaf(label, value)
    return value
