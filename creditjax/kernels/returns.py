"""Returns, advantages and value targets of one stream ``[T]``.

Conventions, for every function here (batch with `jax.vmap`; nothing takes an axis):

* `mask` is True where the policy acted. Other positions are transparent: "next" means the next acted position, one
  discount a step from one to the next, and outputs at other positions are 0. What lies under the mask is never read,
  rewards apart.
* A reward at a position that the policy did not act on (a tool's answer) belongs to the closest acted position before
  it and is dropped if there is none; a non-finite one there counts as 0. See :func:`gather_rewards`.
* `terminated` ends an episode: nothing follows, neither value nor trace. `truncated` cuts it off: the value of what
  would have followed stays, the trace does not. A flag at a position that was not acted on counts for the last acted
  position before it (the first flag counts where there are several; `terminated` wins where both are set). Several
  episodes may lie in one stream.
* `gamma` and `lam` are scalars (traced, so a new value does not recompile) or ``[T]``, read at acted positions.
* `value` is V of the state acted in, `next_value` V of the true state after the position (never of the state after an
  automatic reset). Without `next_value` it is `value` at the next acted position and 0 after the last one: give it
  where a truncated episode is followed by another.

Nothing stops gradients: `estimate` does that, once.
"""

import typing
from typing import Literal, NamedTuple

import jax
from jax import lax
from jax import numpy as jnp

from creditjax import numerics
from creditjax.kernels.recurrence import carry_in, reverse_linear_recurrence

Array = jax.Array
Scalar = jax.Array | float

Truncation = Literal["bootstrap", "drop"]


class Advantage(NamedTuple):
    """Advantages and the value targets that belong to them, each f32 ``[T]`` and 0 where the policy did not act."""

    advantage: Array
    value_target: Array


class Ends(NamedTuple):
    """Where episodes end, both flags moved to acted positions, bool ``[T]``.

    Attributes:
      terminated: the episode terminated after this acted position.
      truncated: it was cut off after this acted position.
      before_terminated: it terminated after the last acted position *before* this one.
      before_truncated: it was cut off after the last acted position before this one.
    """

    terminated: Array
    truncated: Array
    before_terminated: Array
    before_truncated: Array


def episode_ends(mask: Array, terminated: Array | None = None, truncated: Array | None = None) -> Ends | None:
    """Moves episode ends to acted positions; None if neither flag is given.

    Args:
      mask: bool ``[T]``, where the policy acted.
      terminated: bool ``[T]``, the episode ended after this position.
      truncated: bool ``[T]``, the episode was cut off after this position.

    Raises:
      ValueError: a flag whose shape is not that of `mask`.
    """
    _check(mask, terminated=terminated, truncated=truncated)
    if terminated is None and truncated is None:
        return None
    # One byte a position: bit 0 terminated, bit 1 truncated, bit 2 acted; 0 is transparent.
    acted = mask.astype(jnp.uint8) << 2
    flags = jnp.zeros(mask.shape, jnp.uint8)
    if truncated is not None:
        flags = jnp.where(truncated, jnp.uint8(2), flags)
    if terminated is not None:
        flags = jnp.where(terminated, jnp.uint8(1), flags)
    after = _held(acted | flags, reverse=True)
    flags = jnp.where((flags == 0) & (after < 4), after, flags)
    before = _held(jnp.where(mask, acted | flags, 0), reverse=False)
    return Ends((flags & 1) > 0, (flags & 2) > 0, (before & 1) > 0, (before & 2) > 0)


def gather_rewards(reward: Array, mask: Array) -> Array:
    """Moves every reward to the acted position that it belongs to.

    ``R[t] = sum(reward[t : n])`` at an acted t, n being the next acted position (T if none); 0 elsewhere.

    Args:
      reward: ``[T]``, reward received at each position; a non-finite one counts as 0 where the policy did not act.
      mask: bool ``[T]``, where the policy acted.

    Returns:
      f32 ``[T]``.
    """
    _check(mask, reward=reward)
    reward = _readable_reward(reward, mask)
    later = carry_in(_passes(mask), jnp.where(mask, 0.0, reward), reverse=True)
    return numerics.select(reward + later, mask)


def next_acted(x: Array, mask: Array) -> Array:
    """``x[n]`` at every position, n being the next acted position after it; 0 where there is none. f32 ``[T]``."""
    _check(mask, x=x)
    return carry_in(_passes(mask), numerics.select(x, mask), reverse=True)


def previous_acted(x: Array, mask: Array, initial: Scalar = 0.0) -> Array:
    """``x[p]`` at every position, p being the closest acted position before it; `initial` where there is none.

    Args:
      x: ``[T]``, only read where `mask` holds.
      mask: bool ``[T]``.
      initial: scalar.

    Returns:
      f32 ``[T]``.
    """
    _check(mask, x=x)
    first = jnp.argmax(mask)
    there = jnp.any(mask) & (jnp.arange(mask.shape[0]) > first)
    return jnp.where(there, carry_in(_passes(mask), numerics.select(x, mask), reverse=False), initial)


def place_outcome(outcome: Scalar, mask: Array) -> Array:
    """`outcome` at the last acted position and 0 elsewhere, f32 ``[T]``; all 0 where the policy never acted."""
    return jnp.where(_is_last(mask), jnp.asarray(outcome, jnp.float32), 0.0)


def future_sum(x: Array, mask: Array, decay: Scalar = 1.0) -> Array:
    """Decayed sum over the present and future selected positions.

    ``S[t] = sum_{u >= t, mask[u]} decay^d(t, u) x[u]`` with d(t, u) the number of selected positions in [t, u). With
    `decay` ``[T]`` the power becomes the product of ``decay[s]`` over them. For segments, ``[K]`` with a valid mask
    works the same way.

    Args:
      x: ``[T]``, only read where `mask` holds.
      mask: bool ``[T]``.
      decay: scalar or ``[T]``.

    Returns:
      f32 ``[T]``, 0 where `mask` does not hold.
    """
    _check(mask, x=x)
    return numerics.select(reverse_linear_recurrence(_where(mask, decay, 1.0), numerics.select(x, mask)), mask)


def min_return(x: Array, mask: Array) -> Array:
    """Smallest present or future selected element, ``min_{u >= t, mask[u]} x[u]``: the return of min-form credit.

    Non-decreasing in t. Source: PURE (arXiv:2504.15275), the strict minimum.

    Args:
      x: ``[T]`` or ``[K]``, only read where `mask` holds.
      mask: bool, same shape.

    Returns:
      f32, same shape, 0 where `mask` does not hold.
    """
    _check(mask, x=x)
    return numerics.select(lax.cummin(jnp.where(mask, x.astype(jnp.float32), jnp.inf), reverse=True), mask)


def softmin_weights(x: Array, mask: Array, temperature: Scalar = 0.1) -> Array:
    """``w[k] = exp(-x[k] / temperature) / sum_j exp(-x[j] / temperature)`` over the selected elements.

    The weights sum to 1, so ``sum_k w[k] x[k]`` lies between the smallest and the mean element and tends to the
    smallest as the temperature falls. Source: PURE (arXiv:2504.15275).

    Args:
      x: ``[K]``, only read where `mask` holds.
      mask: bool ``[K]``.
      temperature: scalar > 0.

    Returns:
      f32 ``[K]``, 0 where `mask` does not hold; all 0 if it holds nowhere.
    """
    _check(mask, x=x)
    selected = numerics.select(x, mask)
    lowest = jnp.where(jnp.any(mask), numerics.masked_min(x, mask), 0.0)
    weight = jnp.where(mask, jnp.exp(-(selected - lax.stop_gradient(lowest)) / temperature), 0.0)
    return numerics.safe_divide(weight, jnp.sum(weight))


def discounted_return(
    reward: Array,
    mask: Array,
    gamma: Scalar,
    terminated: Array | None = None,
    truncated: Array | None = None,
    next_value: Array | None = None,
    count_observations: bool = False,
) -> Array:
    """Discounted reward-to-go of an acted position.

    ``G[t] = R[t] + gamma * G[n]``, n the next acted position; 0 in place of ``G[n]`` where the episode terminated, and
    ``next_value[t]`` where it was truncated or where no acted position follows (0 if it is not given).

    Args:
      reward: ``[T]``.
      mask: bool ``[T]``, where the policy acted.
      gamma: scalar or ``[T]``.
      terminated: bool ``[T]``, the episode ended after this position.
      truncated: bool ``[T]``, the episode was cut off after this position.
      next_value: ``[T]``, value of the true state after the position; only read where it is a bootstrap.
      count_observations: discount over every position, acted on or not, instead of acted ones: rewards on non-acted
        positions are then discounted by their distance too. `gamma` has to be a scalar.

    Returns:
      f32 ``[T]``.

    Raises:
      ValueError: shapes that do not fit, or a ``[T]`` gamma with `count_observations`.
    """
    _check(mask, reward=reward, terminated=terminated, truncated=truncated, next_value=next_value)
    ends = episode_ends(mask, terminated, truncated)
    reward = _readable_reward(reward, mask)
    now = reward
    if next_value is not None:
        bootstraps = _is_last(mask) if ends is None else (_is_last(mask) & ~ends.terminated) | ends.truncated
        now = reward + gamma * numerics.select(next_value, mask & bootstraps)
    continues = 1.0 if ends is None else jnp.where(ends.before_terminated | ends.before_truncated, 0.0, 1.0)
    if count_observations:
        if jnp.ndim(gamma):
            raise ValueError(f"gamma: shape {list(jnp.shape(gamma))}, wanted a scalar with count_observations")
        carry = _where(mask, gamma * continues, gamma)
    else:
        carry = _where(mask, _before(gamma, mask) * continues, 1.0)
    return numerics.select(now + carry_in(carry, carry * now, reverse=True), mask)


def gae(
    reward: Array,
    value: Array,
    mask: Array,
    gamma: Scalar,
    lam: Scalar,
    next_value: Array | None = None,
    terminated: Array | None = None,
    truncated: Array | None = None,
    truncation: Truncation = "bootstrap",
) -> Advantage:
    """Generalised advantage estimation.

    With n the next acted position::

        delta[t] = R[t] + gamma * (1 - terminated[t]) * next_value[t] - value[t]
        A[t]     = delta[t] + gamma * lam * (1 - terminated[t]) * (1 - truncated[t]) * A[n]

    and ``A[t] + value[t]`` is the lambda-return. With lam = 1 it is the bootstrapped discounted return, with lam = 0
    the one-step target. For targets with a lambda of their own, call :func:`lambda_return` beside this.

    Source: Schulman et al. 2016 (arXiv:1506.02438), equation 16; time limits after Pardo et al. 2018
      (arXiv:1712.00378).

    Args:
      reward: ``[T]``.
      value: ``[T]``, V of the state acted in.
      mask: bool ``[T]``, where the policy acted.
      gamma: discount, scalar or ``[T]``.
      lam: trace decay, scalar or ``[T]``.
      next_value: ``[T]``, V of the true state after the position; not read where the episode terminated. Absent:
        `value` at the next acted position, 0 after the last.
      terminated: bool ``[T]``, the episode ended after this position.
      truncated: bool ``[T]``, the episode was cut off after this position.
      truncation: "bootstrap" keeps the value after a truncated step; "drop", for data whose final observation is gone,
        gives the truncated step advantage 0 and its own value as target (Brax's convention).

    Returns:
      `Advantage`, unwhitened.

    Raises:
      ValueError: shapes that do not fit or an unknown `truncation`.
    """
    _check(mask, reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    if truncation not in typing.get_args(Truncation):
        raise ValueError(f"truncation: {truncation!r}, wanted one of {typing.get_args(Truncation)}")
    ends = episode_ends(mask, terminated, truncated)
    reward, value = _readable_reward(reward, mask), numerics.select(value, mask)

    # One recurrence carries everything that flows to the left. At a position u it is what u and all later positions add
    # to the advantage of the acted position before u: a reward as it is, an acted position through its value and
    # advantage, with the discount and the ends of the position before.
    now = reward - value
    continues: Scalar = 1.0
    later_value: Scalar = 0.0
    if next_value is not None:
        bootstraps = mask if ends is None else mask & ~ends.terminated
        now = now + gamma * numerics.select(next_value, bootstraps)
    else:
        later_value = _before(gamma, mask) * value
        if ends is not None:
            later_value = jnp.where(ends.before_terminated, 0.0, later_value)
    if ends is not None:
        continues = jnp.where(ends.before_terminated | ends.before_truncated, 0.0, 1.0)
    kept = mask
    if truncation == "drop" and ends is not None:
        kept = mask & ~ends.truncated
    trace = _where(kept, _before(gamma, mask) * _before(lam, mask) * continues, jnp.where(mask, 0.0, 1.0))
    later = carry_in(trace, jnp.where(mask, trace * now + later_value, reward), reverse=True)
    advantage = numerics.select(now + later, kept)
    return Advantage(advantage, advantage + value)


def lambda_return(
    reward: Array,
    value: Array,
    mask: Array,
    gamma: Scalar,
    lam: Scalar,
    next_value: Array | None = None,
    terminated: Array | None = None,
    truncated: Array | None = None,
    truncation: Truncation = "bootstrap",
) -> Array:
    """The lambda-return ``G = A + value``, the value target of TD(lambda); arguments as in :func:`gae`.

    ``G[t] = R[t] + gamma * ((1 - lam) * V[n] + lam * G[n])``. Source: Sutton 1988. Its `lam` need not be the one that
    the advantages were made with.

    Returns:
      f32 ``[T]``.
    """
    return gae(reward, value, mask, gamma, lam, next_value, terminated, truncated, truncation).value_target


def td_error(
    reward: Array,
    value: Array,
    mask: Array,
    gamma: Scalar,
    next_value: Array | None = None,
    terminated: Array | None = None,
    truncated: Array | None = None,
) -> Array:
    """One-step TD error ``R[t] + gamma * (1 - terminated[t]) * next_value[t] - value[t]``; arguments as in :func:`gae`.

    Returns:
      f32 ``[T]``.
    """
    _check(mask, reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    ends = episode_ends(mask, terminated, truncated)
    target = _one_step_target(reward, numerics.select(value, mask), mask, gamma, next_value, ends)
    return numerics.select(target - numerics.select(value, mask), mask)


def n_step_return(
    reward: Array,
    value: Array,
    mask: Array,
    gamma: Scalar,
    n: int,
    next_value: Array | None = None,
    terminated: Array | None = None,
    truncated: Array | None = None,
) -> Array:
    """n-step bootstrapped return over acted steps.

    ``G1[t] = R[t] + gamma * next_value[t]`` and ``Gn[t] = R[t] + gamma * G(n-1)[next acted position]``, cut at the ends
    of episodes and of the stream as everywhere: fewer than n steps where fewer are left. The cost is n recurrences.

    Args:
      reward: ``[T]``.
      value: ``[T]``, V of the state acted in.
      mask: bool ``[T]``, where the policy acted.
      gamma: scalar or ``[T]``.
      n: number of steps, a Python int >= 1.
      next_value: ``[T]``, as in :func:`gae`.
      terminated: bool ``[T]``.
      truncated: bool ``[T]``.

    Returns:
      f32 ``[T]``.

    Raises:
      ValueError: shapes that do not fit, or n < 1.
    """
    _check(mask, reward=reward, value=value, next_value=next_value, terminated=terminated, truncated=truncated)
    if n < 1:
        raise ValueError(f"n: {n}, wanted at least 1 step")
    ends = episode_ends(mask, terminated, truncated)
    value = numerics.select(value, mask)
    first = _one_step_target(reward, value, mask, gamma, next_value, ends)
    stops = _is_last(mask) if ends is None else _is_last(mask) | ends.terminated | ends.truncated
    rewards = gather_rewards(reward, mask)

    def longer(_, target):
        return numerics.select(jnp.where(stops, first, rewards + gamma * next_acted(target, mask)), mask)

    return lax.fori_loop(1, n, longer, first)


def _one_step_target(reward, value, mask, gamma, next_value, ends: Ends | None) -> Array:
    """``R[t] + gamma * (1 - terminated[t]) * next_value[t]`` at acted positions; `value` is selected already."""
    reward = _readable_reward(reward, mask)
    now = reward
    later_value: Scalar = 0.0
    if next_value is not None:
        now = reward + gamma * numerics.select(next_value, mask if ends is None else mask & ~ends.terminated)
    else:
        later_value = _before(gamma, mask) * value
        if ends is not None:
            later_value = jnp.where(ends.before_terminated, 0.0, later_value)
    later = carry_in(_passes(mask), jnp.where(mask, later_value, reward), reverse=True)
    return numerics.select(now + later, mask)


def _check(mask: Array, **arrays: Array | None) -> None:
    if mask.ndim != 1 or mask.dtype != jnp.bool_:
        raise ValueError(f"mask: {mask.dtype} of shape {list(mask.shape)}, wanted bool [T] (vmap over batches)")
    for name, array in arrays.items():
        if array is not None and array.shape != mask.shape:
            raise ValueError(f"{name}: shape {list(array.shape)}, wanted {list(mask.shape)} as mask")


def _readable_reward(reward: Array, mask: Array) -> Array:
    reward = reward.astype(jnp.float32)
    return jnp.where(mask | jnp.isfinite(reward), reward, 0.0)


def _passes(mask: Array) -> Array:
    return jnp.where(mask, 0.0, 1.0)


def _where(mask: Array, x, y) -> Array:
    return jnp.where(mask, x, y).astype(jnp.float32)


def _is_last(mask: Array) -> Array:
    positions = jnp.arange(mask.shape[0])
    return mask & (positions == jnp.max(jnp.where(mask, positions, -1)))


def _before(coefficient: Scalar, mask: Array) -> Scalar:
    """A coefficient of the last acted position before each position: itself if it is a scalar."""
    if jnp.ndim(coefficient) == 0:
        return coefficient
    coefficient = jnp.asarray(coefficient)
    _check(mask, coefficient=coefficient)
    return carry_in(_passes(mask), numerics.select(coefficient, mask), reverse=False)


def _held(marked: Array, reverse: bool) -> Array:
    """The closest non-zero element before (after, if `reverse`) each position, 0 where there is none."""
    return carry_in((marked == 0).astype(marked.dtype), marked, reverse=reverse)
