"""Any recipe or chain as a plain function of NumPy arrays, for a process that knows nothing of JAX.

    from creditjax.interop import numpy as credit

    advantages = credit.function("grpo")
    advantages(action_mask=response_mask, outcome=scores, group_ids=prompt_ids)  # [N, T], rows in their own order

Rows ``[N, T]`` come with an id each; groups may be ragged and interleaved. Fields of `Trajectory` and signals go by
their names. Whatever precision comes in, credit is float32. The computation is on JAX's CPU. In a process whose GPU
belongs to another library set ``JAX_PLATFORMS=cpu``, or a JAX with GPU support claims memory when it starts.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from creditjax import algebra
from creditjax.interop import rows
from creditjax.interop.rows import Estimator


class RowCredit(NamedTuple):
    """Credit of rows, in the order in which the rows came.

    Attributes:
      value: f32 ``[N, T]``, 0 where none is assigned.
      valid: bool ``[N, T]``, whether credit was assigned.
      extras: what the objective needs beside it, ``[N, T]`` each, such as `value_target`.
    """

    value: Any
    valid: Any
    extras: dict[str, Any]


def credit(
    estimator: Estimator,
    *,
    group_ids: Any,
    step: int = 0,
    num_segments: int = 0,
    exact_shapes: bool = False,
    **arrays: Any,
) -> RowCredit:
    """Credit of flat rows as NumPy arrays.

    Args:
      estimator: the name of a recipe, a recipe or a chain.
      group_ids: N integers or strings; rows with equal ids are rollouts of one draw of a prompt.
      step: training step, for schedules.
      num_segments: K; by default what the signals of segments say, else the largest segment.
      exact_shapes: compile for these shapes. By default P, G, T and K are rounded up to a few sizes, so that batches of
        varying lengths share programs; padding does not change credit but in rounding.
      **arrays: fields of `Trajectory` and signals by name: `action_mask` ``[N, T]``, `outcome` ``[N]`` (or `reward`
        ``[N, T]``, whose sum it then is), and what the estimator reads. Flags may be numbers that are 0 or 1. `tokens`
        may be left out where the estimator does not compare them.

    Raises:
      KeyError: a recipe, a field or a signal that there is not.
      TypeError, ValueError: an array of another type or shape, or one that is needed and absent; see `rows.compute`.
    """
    given = {name: _array(name, x) for name, x in arrays.items() if x is not None}
    made = rows.compute(
        rows.as_estimator(estimator),
        given,
        group_ids,
        step=step,
        num_segments=num_segments,
        exact_shapes=exact_shapes,
    )

    def back(x: jax.Array) -> np.ndarray:
        return rows.to_rows(np.asarray(x), made.places, made.length)

    extras = {name: back(x) for name, x in made.credit.extras.items()}
    return RowCredit(back(made.credit.value), back(made.credit.valid), extras)


def function(estimator: Estimator, **overrides: Any) -> Callable[..., np.ndarray]:
    """``credit(estimator, ...).value`` as a function of keyword arrays, with what it needs in its attribute `needs`.

    Args:
      estimator: the name of a recipe, a recipe or a chain.
      **overrides: hyperparameters, with the name of a recipe.

    >>> advantages = function("rloo")
    >>> advantages(action_mask=[[1, 1], [1, 0], [1, 1]], outcome=[1.0, 0.0, 4.0], group_ids=["a", "a", "b"])
    array([[ 1.,  1.],
           [-1.,  0.],
           [ 0.,  0.]], dtype=float32)
    """
    return bind(credit, estimator, **overrides)


def bind(credit: Callable[..., RowCredit], estimator: Estimator, **overrides: Any) -> Callable[..., Any]:
    """The value of `credit` with its estimator fixed, described for people who look at it."""
    made = rows.as_estimator(estimator, **overrides)
    needs = algebra.needs(made)

    def advantages(*, group_ids: Any, **arrays: Any) -> Any:
        return credit(made, group_ids=group_ids, **arrays).value

    asked = ", ".join(dict.fromkeys(["group_ids", "action_mask", "outcome", *needs]))
    advantages.__doc__ = f"{algebra.explain(made)}\n\nKeyword arrays: {asked}."
    advantages.needs = needs  # type: ignore[attr-defined]
    return advantages


def _array(name: str, x: Any) -> np.ndarray:
    try:
        return np.asarray(x)
    except (TypeError, RuntimeError, ValueError) as error:
        raise TypeError(f"{name}: {type(x).__name__} is no array: {str(error).splitlines()[0]}") from error
