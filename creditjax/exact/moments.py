"""What an estimator's credit and policy gradient are on average, and how they scatter: exactly, or by sampling.

For G rollouts of one prompt the law of the group is known, so every group is formed, weighted and given to the
estimator. An estimator that treats rollouts alike sees each *multiset* of episodes once, weighted by the number of its
orders: 64 episodes in groups of 4 are 766,480 multisets instead of 16.8 million groups.

The gradient of a group is ``(1/G) Σ_i Σ_t c_it ∇ log π(a_it | o_it)`` with respect to the logits of a softmax policy,
one an observation and token: what the estimator makes of the likelihood-ratio gradient, before any clipping or
averaging over tokens that an objective adds.
"""

from collections.abc import Iterator, Mapping
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.algebra import Transform, chain, estimate, outcome
from creditjax.exact import paths as path_lib
from creditjax.exact.paths import Paths
from creditjax.exact.process import Process
from creditjax.exact.values import Solution, in_float64
from creditjax.trajectory import Trajectory, signal_spec

Array = jax.Array

MAX_GROUPS = 4_000_000


class Moments(NamedTuple):
    """Of one estimator in groups of one size, f64 on the host.

    Attributes:
      gradient: ``[O, V]``, its expected policy gradient.
      covariance: ``[O * V, O * V]``, of one group's gradient.
      credit: ``[L, T]``, its expected credit given the rollout (the other rollouts of the group averaged over); NaN
        where a rollout never happens or the policy did not act. Empty for samples.
      credit_variance: ``[L, T]``, the variance of that credit over the other rollouts.
      stderr: ``[O, V]``, standard error of `gradient`; 0 where groups were enumerated.
      groups: number of groups looked at.
      exact: whether every group was.
    """

    gradient: np.ndarray
    covariance: np.ndarray
    credit: np.ndarray
    credit_variance: np.ndarray
    stderr: np.ndarray
    groups: int
    exact: bool

    @property
    def variance(self) -> float:
        """Total variance of a group's gradient, ``tr(covariance)``."""
        return float(np.trace(self.covariance))

    @property
    def signal_to_noise(self) -> float:
        """``‖gradient‖² / tr(covariance)``, inf without noise and 0 without signal."""
        signal = float(np.sum(self.gradient**2))
        return signal / self.variance if self.variance > 0 else math.inf if signal > 0 else 0.0


class Judgement(NamedTuple):
    """An estimator held against the truth.

    Attributes:
      moments: its own.
      true_gradient: ``[O, V]``, ``E[Σ_t c*_t ∇ log π]`` with the exact credit c*; without discount the gradient of J.
      bias: ``‖gradient - true_gradient‖``.
      relative_bias: that over ``‖true_gradient‖``.
      cosine: of expected and true gradient.
      scale: the factor that brings the expected gradient closest to the true one.
      bias_up_to_scale: the relative bias that is left then, ``sqrt(1 - cosine²)`` for a positive cosine.
      efficiency: signal-to-noise over that of REINFORCE (the bare outcome) in groups of the same size: how many of its
        rollouts one rollout is worth. Signal is what of the expected gradient lies along the true one; it is negative
        where that points against it.
    """

    moments: Moments
    true_gradient: np.ndarray
    bias: float
    relative_bias: float
    cosine: float
    scale: float
    bias_up_to_scale: float
    efficiency: float


def count_groups(num_paths: int, group_size: int, alike: bool = True) -> int:
    """Number of groups that enumeration looks at, as multisets if rollouts are treated `alike`."""
    return math.comb(num_paths + group_size - 1, group_size) if alike else num_paths**group_size


def enumerate_moments(
    estimator: Transform,
    process: Process,
    solution: Solution,
    group_size: int,
    *,
    paths: Paths | None = None,
    signals: Mapping[str, np.ndarray] | None = None,
    alike: bool = True,
    chunk: int = 8192,
    max_groups: int = MAX_GROUPS,
) -> Moments:
    """Exact moments, every group weighted by its probability.

    A recipe that takes statistics over the whole batch sees one prompt at a time.

    Args:
      estimator: a chain such as ``recipe("grpo").estimator``.
      process: the game laid out.
      solution: of the policy that rolls out, see `values.solve`.
      group_size: G.
      paths: all episodes, if they are at hand.
      signals: what the estimator needs, see `paths.batch`.
      alike: permuting the rollouts permutes their credit; True for every registered recipe.
      chunk: groups in flight.
      max_groups: most groups.

    Raises:
      ValueError: too many groups, sample instead; `paths` that are not all episodes; a group or chunk below 1.
      TypeError: no `Transform`.
    """
    _check_estimator(estimator)
    _check_at_least(1, group_size=group_size, chunk=chunk)
    paths = path_lib.enumerate_paths(process) if paths is None else paths
    chances = path_lib.probability(process, paths, solution.policy)
    if not abs(chances.sum() - 1) <= 1e-4:
        raise ValueError(f"paths: their probabilities sum to {chances.sum():.6g}, wanted all episodes, each once")
    happens = np.flatnonzero(chances > 0)
    if (count := count_groups(len(happens), group_size, alike)) > max_groups:
        raise ValueError(
            f"group_size: {group_size} of {len(happens)} episodes are {count} groups, wanted at most {max_groups}; "
            "use sample_moments"
        )
    totals: tuple[np.ndarray, ...] = ()
    for members, weight in groups(chances[happens], group_size, alike, chunk):
        index = happens[members]
        totals = _add(totals, _chunk(estimator, paths, index, weight, solution.policy, signals, len(paths.tokens)))
    return to_moments(totals, paths, solution.policy.shape, count)


def to_moments(totals: tuple[np.ndarray, ...], paths: Paths, shape: tuple[int, ...], count: int) -> Moments:
    """Sums of `group_sums` over every group, as moments.

    Args:
      totals: the sums.
      paths: all episodes.
      shape: ``(O, V)``.
      count: number of groups.
    """
    gradient, second, mass, credit, square = totals
    mass = np.where(paths.acts & (mass[:, None] > 0), np.maximum(mass[:, None], 1e-300), np.nan)
    credit = credit / mass
    return Moments(
        gradient=gradient.reshape(shape),
        covariance=second - np.outer(gradient, gradient),
        credit=credit,
        credit_variance=np.maximum(square / mass - credit**2, 0.0),
        stderr=np.zeros(shape),
        groups=count,
        exact=True,
    )


def sample_moments(
    estimator: Transform,
    process: Process,
    solution: Solution,
    group_size: int,
    *,
    key: Array,
    num_groups: int,
    signals: Any = None,
    chunk: int = 8192,
) -> Moments:
    """Moments over independent groups, with the standard error of the mean gradient.

    Args:
      estimator: a chain.
      process: the game laid out.
      solution: of the policy that rolls out.
      group_size: G.
      key: PRNG key.
      num_groups: number of groups, at least 2.
      signals: a function from sampled `Paths` to signals, or None.
      chunk: groups in flight.

    Raises:
      ValueError: fewer than two groups, since there is no standard error then; a group or chunk below 1.
      TypeError: no `Transform`.
    """
    _check_at_least(2, num_groups=num_groups)
    _check_estimator(estimator)
    _check_at_least(1, group_size=group_size, chunk=chunk)
    totals: tuple[np.ndarray, ...] = ()
    starts = range(0, num_groups, chunk)
    for start, own in zip(starts, jax.random.split(key, len(starts)), strict=True):
        size = min(chunk, num_groups - start)
        paths = path_lib.sample_paths(process, solution.policy, own, size * group_size)
        index = np.arange(size * group_size).reshape(size, group_size)
        given = signals(paths) if signals is not None else None
        weight = np.full(size, 1 / num_groups)
        totals = _add(totals, _chunk(estimator, paths, index, weight, solution.policy, given, 0))
    gradient, second = totals[:2]
    shape = solution.policy.shape
    covariance = (second - np.outer(gradient, gradient)) * num_groups / (num_groups - 1)
    return Moments(
        gradient=gradient.reshape(shape),
        covariance=covariance,
        credit=np.zeros((0, process.length)),
        credit_variance=np.zeros((0, process.length)),
        stderr=np.sqrt(np.maximum(np.diag(covariance), 0.0) / num_groups).reshape(shape),
        groups=num_groups,
        exact=False,
    )


def true_gradient(process: Process, solution: Solution) -> np.ndarray:
    """``Σ_s P(s) Σ_a π(a|s) c*(s, a) ∇ log π(a|s)``, f64 ``[O, V]``: ``dJ / dlogits`` if there is no discount."""
    shape = solution.policy.shape
    total = np.zeros(shape)
    for layer, reach, credit in zip(process.layers, solution.reach, solution.credit, strict=True):
        acts = np.asarray(layer.acts)
        flow = (reach[:, None] * solution.policy[layer.observation] * credit)[acts]
        np.add.at(total, np.asarray(layer.observation)[acts], flow)
    # Neutrality: the credits of a state average to 0, so the -π part of the score adds nothing.
    return total


def judge(moments: Moments, reinforce: Moments, process: Process, solution: Solution) -> Judgement:
    """Holds moments against the exact gradient, and against those of REINFORCE at the same group size."""
    truth = true_gradient(process, solution)
    mean, size = moments.gradient, float(np.linalg.norm(truth))
    bias, dot = float(np.linalg.norm(mean - truth)), float(np.sum(mean * truth))
    square = float(np.sum(mean**2))
    scale = dot / square if square > 0 else 0.0
    left = float(np.linalg.norm(max(scale, 0.0) * mean - truth))
    base = reinforce.signal_to_noise
    cosine = dot / (math.sqrt(square) * size) if square > 0 and size > 0 else 0.0
    return Judgement(
        moments=moments,
        true_gradient=truth,
        bias=bias,
        relative_bias=bias / size if size > 0 else math.inf if bias > 0 else 0.0,
        cosine=cosine,
        scale=scale,
        bias_up_to_scale=left / size if size > 0 else 0.0,
        efficiency=cosine * abs(cosine) * moments.signal_to_noise / base if base > 0 else math.nan,
    )


def reinforce() -> Transform:
    """The yardstick of efficiency: the bare outcome as credit of every token."""
    return chain(outcome())


def groups(chances: np.ndarray, group_size: int, alike: bool, chunk: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """All groups in chunks of one size: members ``[chunk, G]`` and probabilities (0 for what fills the last chunk).

    Args:
      chances: ``[L]``, probability of each episode.
      group_size: G.
      alike: each multiset once, weighted by the number of its orders.
      chunk: groups at a time.
    """
    episodes = range(len(chances))
    every = (
        itertools.combinations_with_replacement(episodes, group_size)
        if alike
        else itertools.product(episodes, repeat=group_size)
    )
    factorials = np.array([math.factorial(n) for n in range(group_size + 1)], float)
    kind = np.dtype((np.int32, group_size))
    while len(members := np.fromiter(itertools.islice(every, chunk), kind)):
        members = members.reshape(-1, group_size)
        weight = np.prod(chances[members], axis=1)
        if alike:
            # n-th member equal to its predecessor: the run length gives the product of the multiplicities' factorials.
            run, orders = np.ones(len(members), int), np.full(len(members), factorials[group_size])
            for i in range(1, group_size):
                run = np.where(members[:, i] == members[:, i - 1], run + 1, 1)
                orders = orders / run
            weight = weight * orders
        short = chunk - len(members)
        yield np.pad(members, ((0, short), (0, 0))), np.pad(weight, (0, short))


def _check_estimator(estimator: Any) -> None:
    if not isinstance(estimator, Transform):
        hint = "its .estimator" if hasattr(estimator, "estimator") else "creditjax.testing takes any function"
        raise TypeError(f"estimator: {type(estimator).__name__}, wanted a Transform ({hint})")


def _check_at_least(least: int, **numbers: int) -> None:
    for name, number in numbers.items():
        if not number >= least:
            raise ValueError(f"{name}: {number}, wanted at least {least}")


def _add(totals: tuple[np.ndarray, ...], new: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
    return tuple(a + b for a, b in zip(totals, new, strict=True)) if totals else new


def _chunk(
    estimator: Transform,
    paths: Paths,
    index: np.ndarray,
    weight: np.ndarray,
    policy: np.ndarray,
    signals: Mapping[str, np.ndarray] | None,
    num_paths: int,
) -> tuple[np.ndarray, ...]:
    credit = group_credit(estimator, path_lib.batch(paths, index, signals, policy))
    return group_sums(credit, paths, index, weight, policy, num_paths)


def group_sums(
    credit: Array, paths: Paths, index: np.ndarray, weight: np.ndarray, policy: np.ndarray, num_paths: int
) -> tuple[np.ndarray, ...]:
    """Weighted sums over groups, f64: gradient ``[O V]``, its outer product, and by episode weight, credit, credit².

    Args:
      credit: ``[N, G, T]``.
      paths: the episodes.
      index: ``[N, G]``, the episodes of each group.
      weight: ``[N]``.
      policy: ``[O, V]``.
      num_paths: episodes with sums of their own, 0 for none.
    """
    observed, token, acts = paths.observation[index], paths.tokens[index], paths.acts[index]
    return _sums(credit, observed, token, acts, weight, policy, index, num_paths)


@jax.jit
def group_credit(estimator: Transform, batch: Trajectory) -> Array:
    """Credit ``[N, G, T]`` of N groups, one at a time, so that batch statistics are those of one group."""
    shared = {name: x for name, x in batch.signals.items() if "P" not in signal_spec(name).axes}
    own = batch.replace(signals={name: x for name, x in batch.signals.items() if name not in shared})

    def one(group: Trajectory) -> Array:
        alone = jax.tree.map(lambda x: x[None], group).with_signals(**shared)
        return estimate(estimator, alone).value[0]

    return jax.vmap(one)(own)


@in_float64
def _sums(*args: Any) -> tuple[Array, ...]:
    return _sums_jit(*args)


@functools.partial(jax.jit, static_argnums=7)
def _sums_jit(
    credit: Array,
    observed: Array,
    token: Array,
    acts: Array,
    weight: Array,
    policy: Array,
    index: Array,
    num_paths: int,
) -> tuple[Array, ...]:
    groups, size, _ = credit.shape
    credit = jnp.where(acts, credit.astype(policy.dtype), 0.0)
    place = (observed * policy.shape[1] + token).reshape(groups, -1)
    at_token = jnp.zeros((groups, policy.size), policy.dtype)
    at_token = at_token.at[jnp.arange(groups)[:, None], place].add(credit.reshape(groups, -1))
    at_token = at_token.reshape(groups, *policy.shape)
    # Σ_t c_t (1[a = a_t] - π(a)) over the visits to an observation.
    gradient = (at_token - at_token.sum(axis=2, keepdims=True) * policy).reshape(groups, -1) / size
    weighted = weight[:, None] * gradient
    member = index.reshape(-1)
    flat, each = credit.reshape(groups * size, -1), jnp.repeat(weight, size) / size

    def by_path(x: Array) -> Array:
        return jax.ops.segment_sum(x, member, num_paths)

    return (
        weighted.sum(axis=0),
        weighted.T @ gradient,
        by_path(each),
        by_path(each[:, None] * flat),
        by_path(each[:, None] * flat**2),
    )
