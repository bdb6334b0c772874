"""Values and labels of steps from searched trees whose steps an external tool has checked (GroundedPRM,
arXiv:2510.14942).

A simulation goes on from a node to an answer; the tool judges each step on the way, +1 or -1, and the answer matches
the gold one (+1) or does not (-1). :func:`path_value` turns that into a value of the simulated node, :func:`back_up`
hands it to the ancestors, :func:`uct` chooses where to look next, :func:`step_labels` keeps what may be learned.
"""

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array


def path_value(verdicts: Array, mask: Array, final: Array) -> Array:
    """``u = (1/N) Σ_j d_j v_j + F / N`` with ``d_j = (N - j) / N``: earlier steps weigh more; ``u = F`` without a step.

    ``|u| <= (N + 1) / (2 N) + 1 / N``: 2 for one step, towards a half for many.

    >>> path_value(jnp.array([1.0, 1.0]), jnp.array([True, True]), jnp.array(1.0)).tolist()
    1.25

    Args:
      verdicts: ``[..., N]``, +1 or -1, the tool's verdict on each step between the node and the answer, in order.
      mask: bool ``[..., N]``, which steps there are, from the left.
      final: ``[...]``, +1 if the answer matches, else -1.
    """
    count = numerics.masked_count(mask, axis=-1, keepdims=True)
    order = jnp.cumsum(mask, axis=-1) - 1
    weight = numerics.safe_divide(count - order, count)
    total = numerics.masked_sum(weight * numerics.select(verdicts, mask), mask, axis=-1) + final
    return total / jnp.maximum(count[..., 0], 1.0)


def back_up(
    parent: Array, node: Array, value: Array, values: Array, visits: Array, decay: float = 0.9
) -> tuple[Array, Array]:
    """Adds a simulation to a tree: ``value`` to `node`, ``decay^m value`` to its ancestor at distance m.

    Values are sums, not means; an ancestor's visits grow by one, the node's own stay.

    Args:
      parent: i32 ``[M]``, -1 for the root. Parents come before children.
      node: i32 scalar.
      value: scalar.
      values: f32 ``[M]``, so far.
      visits: f32 ``[M]``, so far.
      decay: per level.

    Returns:
      The new values and visits.
    """

    def up(carry):
        at, share, values, visits = carry
        return parent[at], share * decay, values.at[at].add(share), visits.at[at].add(1.0)

    start = (parent[node], decay * value, values.at[node].add(value), visits)
    _, _, values, visits = jax.lax.while_loop(lambda carry: carry[0] >= 0, up, start)
    return values, visits


def uct(values: Array, visits: Array, parent_visits: Array, c: float = 1.414, sign: float = 1.0) -> Array:
    """``sign * value + c sqrt(log(parent_visits + 1) / (visits + 1))`` of each child.

    Args:
      values: ``[C]``.
      visits: ``[C]``.
      parent_visits: scalar.
      c: weight of exploration.
      sign: 1 while right solutions are collected, then -1.
    """
    return sign * values + c * jnp.sqrt(jnp.log(parent_visits + 1.0) / (visits + 1.0))


def step_labels(verdicts: Array, values: Array, *, agree: bool = True) -> Array:
    """The tool's verdict on each step as a label, 1 or 0; with `agree`, NaN where the searched value says otherwise.

    Args:
      verdicts: ``[...]``, +1 or -1.
      values: ``[...]``, of the same steps; 0 says nothing and agrees with neither.
      agree: whether the two have to have one sign.
    """
    label = (verdicts > 0).astype(jnp.float32)
    return jnp.where(~jnp.bool_(agree) | (verdicts * values > 0), label, jnp.nan)
