"""Any recipe or chain as a plain function of torch tensors on the CPU, as `creditjax.interop.numpy` is of arrays.

    from creditjax.interop import torch as credit

    advantages = credit.function("grpo")
    advantages(action_mask=response_mask, outcome=scores, group_ids=uids)  # a tensor [N, T]

JAX reads the tensors where they lie, and credit comes back through dlpack; what is not copied in between is told at
`credit`. No gradient flows: tensors that require one are read like others.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from creditjax.interop import numpy, rows
from creditjax.interop.numpy import RowCredit
from creditjax.interop.rows import Estimator


def credit(
    estimator: Estimator,
    *,
    group_ids: Any,
    step: int = 0,
    num_segments: int = 0,
    exact_shapes: bool = False,
    **tensors: Any,
) -> RowCredit:
    """Credit of flat rows as torch tensors; see `creditjax.interop.numpy.credit` for the arguments.

    Float32 tensors are not copied when rows are ordered by group, the groups are equally large, and N, G and T are of
    the sizes 1, 2, 3, 4, 6, 8, 12, … or `exact_shapes` is asked for; otherwise once, into the padded batch.

    Raises:
      TypeError: a tensor that is not on the CPU, or whose dtype or layout NumPy does not know.
      KeyError, ValueError: see `creditjax.interop.numpy.credit`.
    """
    given = {name: to_array(name, x) for name, x in tensors.items() if x is not None}
    made = rows.compute(
        rows.as_estimator(estimator),
        given,
        to_array("group_ids", group_ids),
        step=step,
        num_segments=num_segments,
        exact_shapes=exact_shapes,
    )
    extras = {name: _rows(x, made) for name, x in made.credit.extras.items()}
    return RowCredit(_rows(made.credit.value, made), _rows(made.credit.valid, made), extras)


def function(estimator: Estimator, **overrides: Any) -> Callable[..., Any]:
    """``credit(estimator, ...).value`` as a function of keyword tensors; its attribute `needs` says of which."""
    return numpy.bind(credit, estimator, **overrides)


def to_array(name: str, x: Any) -> np.ndarray:
    """A tensor on the CPU as an array in the same memory (half precisions are widened), anything else as NumPy has it.

    Raises:
      TypeError: a tensor elsewhere, or one that NumPy cannot show.
    """
    import torch

    if not isinstance(x, torch.Tensor):
        return np.asarray(x)
    if x.device.type != "cpu":
        raise TypeError(f"{name}: a tensor on {x.device}, wanted one on the CPU, where credit is computed: call .cpu()")
    if x.dtype in (torch.bfloat16, torch.float16):
        x = x.float()
    try:
        return x.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise TypeError(f"{name}: {x.dtype}, {x.layout}: {error}") from error


def _rows(x: jax.Array, made: rows.Made) -> Any:
    """Credit of the batch as rows; a view of JAX's memory, which nobody else holds, where no row has to be moved."""
    import torch

    places, tensor = made.places, torch.from_dlpack(x)
    if places.in_order:
        return tensor.flatten(0, 1)[: len(places.prompt), : made.length].contiguous()
    return tensor[torch.from_numpy(places.prompt), torch.from_numpy(places.rollout), : made.length].contiguous()
