"""Statistics over one group: plain arrays ``[G]`` in, plain arrays out.

`weight` f32 ``[G]`` says how much each row counts: 0 for a row that does not vote, 1 for a rollout of its own row,
1/n for each of the n rows that one rollout was cut into (such rows carry the same number, and vote once together). A
row of weight 0 gets 0 and changes nobody else's result, whatever it contains. A group of one rollout has nobody to be
compared with: its result is 0, unless ``single="raw"`` asks for what several reference implementations do (mean 0,
spread 1).
"""

import typing
from typing import Literal

import jax
from jax import numpy as jnp

from creditjax import numerics

Array = jax.Array

Single = Literal["zero", "raw"]


def _check_single(single: str) -> None:
    if single not in typing.get_args(Single):
        raise ValueError(f"single: {single!r}, wanted one of {typing.get_args(Single)}")


def is_alone(weight: Array) -> Array:
    """Whether fewer than two rollouts vote."""
    return jnp.sum(weight) < 1.5


def is_constant(x: Array, weight: Array, tolerance: float = 1e-6) -> Array:
    """Whether the raw values of all voters are equal, up to `tolerance` relative to the largest of them.

    Judged on the values and not on their standard deviation: equal values can leave rounding noise in a mean, and
    dividing that noise by itself plus an epsilon would make it credit.
    """
    return ~_differ(numerics.masked_max(x, weight), numerics.masked_min(x, weight), tolerance)


def _differ(high: Array, low: Array, tolerance: float = 1e-6) -> Array:
    return high - low > tolerance * jnp.maximum(jnp.abs(high), jnp.abs(low))


def center(x: Array, weight: Array, *, mean_weight: Array | None = None, single: Single = "zero") -> Array:
    """``x - mean``, the mean over voters weighted by `mean_weight` (default `weight`), f32 ``[G]``.

    >>> center(jnp.array([1.0, 0.0, 2.0]), jnp.ones(3)).tolist()
    [0.0, -1.0, 1.0]
    """
    _check_single(single)
    mean_weight = weight if mean_weight is None else mean_weight
    mean = numerics.masked_mean(x, mean_weight)
    if single == "raw":
        mean = jnp.where(is_alone(weight), 0.0, mean)
    constant = is_constant(x, weight) if single == "zero" else is_constant(x, weight) & ~is_alone(weight)
    return jnp.where((weight > 0) & ~constant, numerics.select(x, weight) - mean, 0.0)


def normalize(
    x: Array,
    weight: Array,
    *,
    ddof: int = 1,
    eps: float | Array = 1e-6,
    mean_weight: Array | None = None,
    single: Single = "zero",
) -> Array:
    """``(x - mean) / (std + eps)`` over the voters of a group, f32 ``[G]`` (Shao et al. 2024, arXiv:2402.03300).

    A group whose raw values are all equal gets exactly 0, and so does one of no more than `ddof` voters. `ddof` is 1 in
    most trainers and 0 in some papers.

    >>> [round(x, 4) for x in normalize(jnp.array([1.0, 0.0, 1.0]), jnp.ones(3), eps=0.0).tolist()]
    [0.5774, -1.1547, 0.5774]
    """
    counts = weight if mean_weight is None else mean_weight
    centred = center(x, weight, mean_weight=mean_weight, single=single)
    scaled = divide_by_std(centred, x, counts, ddof=ddof, eps=eps)
    if single == "raw":
        scaled = jnp.where(is_alone(weight), numerics.safe_divide(centred, 1.0 + jnp.asarray(eps)), scaled)
    return scaled


def divide_by_std(value: Array, x: Array, weight: Array, *, ddof: int, eps: float | Array) -> Array:
    """``value / (std + eps)`` with the spread of `x` over the voters; 0 where ``n - ddof <= 0`` leaves no spread.

    Without this rule the spread would be 0, and the result a difference divided by `eps` alone.
    """
    return _over_std(value, numerics.masked_std(x, weight, ddof=ddof), numerics.masked_count(weight), ddof, eps)


def _over_std(value: Array, std: Array, count: Array, ddof: int, eps: float | Array) -> Array:
    # Shares of a vote add up to whole numbers only up to rounding.
    return jnp.where(count - ddof > 1e-3, numerics.safe_divide(value, std + eps), 0.0)


def compare_equal(
    x: Array, key: Array, weight: Array, *, divide: bool = False, ddof: int = 1, eps: float | Array = 1e-6
) -> Array:
    """`x` minus the mean over the voters of equal `key`, f32 ``[N]``; with `divide` over their std + eps.

    A voter that is alone with its key gets 0, and so do equal values. Sorted by key, in O(N log N).

    >>> compare_equal(jnp.array([3.0, 5.0, 1.0]), jnp.array([7, 8, 7]), jnp.ones(3)).tolist()
    [1.0, 0.0, -1.0]

    Args:
      x: f32 ``[N]``, what is compared.
      key: i32 ``[N]``.
      weight: f32 ``[N]``, votes.
      divide: whether to divide.
      ddof: of the standard deviation.
      eps: added to it.
    """
    voters, n = weight > 0, x.shape[0]
    order = jnp.lexsort((key, ~voters))
    sorted_key, sorted_voters = key[order], voters[order]
    differs = (sorted_key[1:] != sorted_key[:-1]) | (sorted_voters[1:] != sorted_voters[:-1])
    rank = jnp.cumsum(jnp.pad(differs, (1, 0)), dtype=jnp.int32)
    group = jnp.zeros(n, jnp.int32).at[order].set(rank, unique_indices=True)
    x, weight = numerics.select(x, voters), numerics.select(weight, voters)

    def over_group(reduce, values: Array) -> Array:
        return reduce(values, group, num_segments=n)[group]

    count = over_group(jax.ops.segment_sum, weight)
    mean = numerics.safe_divide(over_group(jax.ops.segment_sum, weight * x), count)
    high, low = over_group(jax.ops.segment_max, x), over_group(jax.ops.segment_min, x)
    centred = jnp.where(_differ(high, low), x - mean, 0.0)
    if divide:
        variance = numerics.safe_divide(over_group(jax.ops.segment_sum, weight * jnp.square(x - mean)), count - ddof)
        centred = _over_std(centred, numerics.safe_sqrt(variance), count, ddof, eps)
    return jnp.where(voters & ~(count < 1.5), centred, 0.0)


def leave_one_out(x: Array, weight: Array, *, single: Single = "zero") -> Array:
    """``x_i - mean_{j != i} x_j``, f32 ``[G]`` (Kool et al. 2019; Ahmadian et al. 2024, arXiv:2402.14740).

    >>> leave_one_out(jnp.array([1.0, 0.0, 2.0]), jnp.ones(3)).tolist()
    [0.0, -1.5, 1.5]
    """
    n = jnp.sum(weight)
    scale = jnp.where(n > 1.5, n / jnp.where(n > 1.5, n - 1, 1.0), 1.0)
    return scale * center(x, weight, single=single)


def mean_normalize(x: Array, weight: Array, *, eps: float | Array = 1e-6) -> Array:
    """``(x - mean) / (mean + eps)`` for rewards >= 0, f32 ``[G]``: the weight 1/K of maximum-likelihood RL
    (arXiv:2602.02710).

    With K of N binary rewards at 1, the expectation of the induced gradient is that of the log-likelihood, truncated
    at order N.
    """
    return numerics.safe_divide(center(x, weight), numerics.masked_mean(x, weight) + eps)


def top_margin(x: Array, weight: Array, *, ddof: int = 1, eps: float | Array = 1e-6, divide: bool = False) -> Array:
    """``x_max - x_second`` for the best voter, 0 for the others, f32 ``[G]``: the pass@k advantage (arXiv:2503.19595).

    Ties for the best leave a margin of 0. Rows of one rollout count as one; all rows of the best rollout are paid.

    Args:
      x: f32 ``[G]``.
      weight: f32 ``[G]``.
      ddof: of the standard deviation.
      eps: added to it.
      divide: whether to divide by ``std + eps``.
    """
    voters = weight > 0
    best = numerics.masked_max(x, weight)
    is_best = voters & (x == best)
    best_mass = jnp.sum(jnp.where(is_best, weight, 0.0))
    second = numerics.masked_max(x, voters & ~is_best)
    # More than one rollout at the top: the second best equals the best.
    margin = jnp.where(
        (best_mass < 1.5) & jnp.isfinite(second), best - jnp.where(jnp.isfinite(second), second, 0.0), 0.0
    )
    if divide:
        margin = divide_by_std(margin, x, weight, ddof=ddof, eps=eps)
    return jnp.where(is_best, margin, 0.0)
