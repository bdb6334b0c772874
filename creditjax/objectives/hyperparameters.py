"""Hyperparameters of objectives, checked where they are given: before anything is traced."""

from collections.abc import Mapping
import difflib
import inspect
import typing
from typing import Any, Literal

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.objectives.aggregate import Aggregation


def bind(
    signature: inspect.Signature, owner: str, given: Mapping[str, Any], above: Mapping[str, float]
) -> dict[str, Any]:
    """All hyperparameters of `owner`, defaults filled in, each as its annotation wants it.

    Raises:
      TypeError: an unknown or missing name.
      ValueError: a value that its annotation does not allow, or a number that is negative (or not above its bound).
    """
    if unknown := given.keys() - signature.parameters.keys():
        name = min(unknown)
        raise TypeError(f"{owner} has no hyperparameter {name!r}{_nearest(name, signature.parameters)}")
    bound = signature.bind(**given)
    bound.apply_defaults()
    kinds = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return {
        name: _as(f"{owner}: {name}", value, kinds[name], above.get(name)) for name, value in bound.arguments.items()
    }


def _as(label: str, value: Any, kind: Any, above: float | None) -> Any:
    arguments = typing.get_args(kind)
    if kind is Aggregation:
        return Aggregation.of(value)
    if typing.get_origin(kind) is Literal:
        if value not in arguments:
            wanted = ", ".join(map(repr, arguments))
            raise ValueError(f"{label} = {value!r}, wanted one of {wanted}{_nearest(str(value), arguments)}")
        return value
    if kind is float or (float in arguments and value is not None):
        return _number(label, value, above)
    return value


def _number(label: str, value: Any, above: float | None) -> Any:
    """A float32 leaf, so that another value is not another program. Arrays and tracers pass unchecked."""
    if isinstance(value, jax.Array | np.ndarray):
        return value.astype(jnp.float32)
    if isinstance(value, bool) or not isinstance(value, int | float | np.number):
        raise ValueError(f"{label} = {value!r}, wanted a number")
    if not (value >= 0 if above is None else value > above):
        raise ValueError(f"{label} = {value!r}, wanted {'>= 0' if above is None else f'> {above}'}")
    return np.float32(value)


def _nearest(name: str, among) -> str:
    near = difflib.get_close_matches(name, among, n=1)
    return f"; did you mean {near[0]!r}?" if near else ""
