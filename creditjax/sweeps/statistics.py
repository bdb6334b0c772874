"""What a few seeds of each of several settings say, as Agarwal et al. advise (2021, arXiv:2108.13264)."""

from collections.abc import Callable, Sequence
import itertools
import math
from typing import Any

import numpy as np

RESAMPLES = 10_000
# Up to so many ways to split two samples all are looked at, beyond it random ones.
_EXACT = 20_000

Statistic = Callable[..., np.ndarray]


def interquartile_mean(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Mean of the middle half: a quarter of the values, rounded down, is left out at either end.

    >>> float(interquartile_mean(np.array([0.0, 1.0, 2.0, 9.0])))
    1.5
    """
    ordered = np.sort(np.asarray(values, np.float64), axis=axis)
    n = ordered.shape[axis]
    return np.take(ordered, range(n // 4, n - n // 4), axis=axis).mean(axis=axis)


def interval(values: np.ndarray, statistic: Statistic = np.mean, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """Percentile bootstrap interval of a statistic over the first axis, always of the same draws.

    Args:
      values: ``[seeds, ...]``.
      statistic: takes `axis`.
      level: of the interval.

    Raises:
      ValueError: no seed.
    """
    values = np.asarray(values, np.float64)
    if not len(values):
        raise ValueError("values: empty, wanted at least one seed")
    draws = np.random.default_rng(0).integers(len(values), size=(RESAMPLES, len(values)))
    tail = 50 * (1 - level)
    low, high = np.percentile(statistic(values[draws], axis=1), [tail, 100 - tail], axis=0)
    return low, high


def profile(values: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Performance profile: the share of seeds above each threshold, f64 ``[thresholds]``.

    >>> profile(np.array([0.1, 0.5, 0.9]), np.array([0.0, 0.5])).round(2).tolist()
    [1.0, 0.33]
    """
    return (np.asarray(values)[None, :] > np.asarray(thresholds)[:, None]).mean(axis=1)


def improvement(x: np.ndarray, y: np.ndarray) -> float:
    """Probability that a seed of x is better than one of y, ties counting half (Mann and Whitney).

    >>> improvement(np.array([1.0, 2.0]), np.array([1.0, 0.0]))
    0.875
    """
    gap = np.asarray(x)[:, None] - np.asarray(y)[None, :]
    return float((gap > 0).mean() + 0.5 * (gap == 0).mean())


def p_value(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> float:
    """Two-sided permutation test of equal means: the share of relabellings whose means differ at least as much.

    With few seeds it cannot be small: three against three seeds give 0.1 at least.

    >>> p_value([1.0, 2.0, 3.0], [7.0, 8.0, 9.0])
    0.1

    Raises:
      ValueError: an empty sample.
    """
    if not (len(x) and len(y)):
        raise ValueError(f"x, y: {len(x)} and {len(y)} values, wanted at least one of each")
    pooled = np.concatenate([np.asarray(x, np.float64), np.asarray(y, np.float64)])
    n, total = len(x), pooled.sum()

    def gap(first: Any) -> Any:
        return np.abs(first / n - (total - first) / len(y))

    observed = gap(np.float64(pooled[:n].sum()))
    least = observed - 1e-9 * (abs(observed) + np.abs(pooled).max())  # equal means up to rounding
    if math.comb(len(pooled), n) <= _EXACT:
        sums = np.array([pooled[list(chosen)].sum() for chosen in itertools.combinations(range(len(pooled)), n)])
        return float((gap(sums) >= least).mean())
    rng = np.random.default_rng(0)
    sums = np.array([rng.permutation(pooled)[:n].sum() for _ in range(RESAMPLES)])
    return float((1 + (gap(sums) >= least).sum()) / (1 + RESAMPLES))
