"""What can be said of credit over a stream of groups in constant memory: shares, distributions, agreement, dead groups.

The credit of one recipe for one rollout is an f32 array ``[T]`` with NaN where none was assigned. Only positions where
the policy acted are counted.
"""

from collections.abc import Mapping, Sequence
import math

import numpy as np

DEAD = {
    "single": "one rollout, nobody to be compared with",
    "unscored": "no rollout is scored",
    "one scored": "one rollout is scored, the others are not",
    "equal": "all outcomes are equal",
}
"""Why a group teaches a method that compares its rollouts nothing."""

_BINS = 128
# As the library tells a constant group: a rounded mean is no difference.
_EQUAL = 1e-6
# Ranks of groups of more positions than this would be all that a large file waits for.
_RANKED = 200_000


def votes(outcomes: Sequence[float], acted: Sequence[bool]) -> np.ndarray:
    """Who counts in a comparison, bool ``[G]``: rollouts that are scored and in which the policy acted."""
    return np.isfinite(np.asarray(outcomes, np.float64)) & np.asarray(acted, bool)


def dead_reason(outcomes: Sequence[float], counts: np.ndarray) -> str:
    """Why nothing can be learned from comparing the rollouts of a group, a key of `DEAD`; "" for a live group.

    >>> dead_reason([1.0, 1.0], np.array([True, True])), dead_reason([1.0, 0.0], np.array([True, True]))
    ('equal', '')
    """
    if len(outcomes) == 1:
        return "single"
    scored = np.asarray(outcomes, np.float64)[counts]
    if len(scored) < 2:
        return "one scored" if len(scored) else "unscored"
    largest = float(np.abs(scored).max())
    return "equal" if float(scored.max() - scored.min()) <= _EQUAL * largest else ""


def standing(outcomes: Sequence[float], counts: np.ndarray) -> np.ndarray:
    """Outcome of each rollout minus the mean of its group, f64 ``[G]``; NaN without a vote, and in dead groups."""
    values = np.asarray(outcomes, np.float64)
    if dead_reason(outcomes, counts):
        return np.full(len(values), np.nan)
    return np.where(counts, values - values[counts].mean(), np.nan)


def against_outcome(credit: np.ndarray, standing: float) -> np.ndarray:
    """Positions whose credit has the other sign than the rollout's standing in its group, bool ``[T]``."""
    if not math.isfinite(standing):
        return np.zeros(len(credit), bool)
    return np.nan_to_num(credit) * np.sign(standing) < 0


def segment_means(credit: np.ndarray, segment: np.ndarray, num_segments: int) -> np.ndarray:
    """Mean credit over the assigned positions of each segment, f64 ``[K]``; NaN where none is assigned."""
    there = np.isfinite(credit) & (segment >= 0)
    total = np.bincount(segment[there], credit[there].astype(np.float64), num_segments)
    count = np.bincount(segment[there], minlength=num_segments)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


class Histogram:
    """Counts in equal bins around 0, whose range doubles when a value falls outside; exact zeros are counted apart.

    Attributes:
      counts: i64, an even number of bins from ``-width`` to ``width``.
      width: the range, a power of two; 0 before the first value that is not 0.
      zeros: how many values were 0.
    """

    def __init__(self):
        self.counts = np.zeros(_BINS, np.int64)
        self.width = 0.0
        self.zeros = 0

    def add(self, values: np.ndarray) -> None:
        """Counts finite values ``[N]``."""
        some = values[values != 0].astype(np.float64)
        self.zeros += len(values) - len(some)
        if not len(some):
            return
        largest = float(np.abs(some).max())
        if not self.width:
            self.width = 2.0 ** math.ceil(math.log2(largest))
        while largest > self.width:
            middle = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = np.pad(middle, _BINS // 4)
            self.width *= 2
        index = np.floor((some / self.width + 1) * (_BINS / 2)).astype(int)
        # Rounding must not move a value to the other side of 0.
        index = np.where(some > 0, np.clip(index, _BINS // 2, _BINS - 1), np.clip(index, 0, _BINS // 2 - 1))
        self.counts += np.bincount(index, minlength=_BINS)


class RecipeStats:
    """Running statistics of one recipe's credit over acted positions.

    Attributes:
      rollouts: how many it gave credit to.
      acted: positions of theirs where the policy acted.
      assigned: of these, with credit assigned.
      judged: with credit that is not 0, in rollouts that stand above or below their group.
      against: of these, of the other sign than the rollout's standing.
      square: sum of squared credit.
      histogram: of assigned credit.
    """

    def __init__(self):
        self.rollouts = self.acted = self.assigned = self.judged = self.against = 0
        self.square = 0.0
        self.histogram = Histogram()

    def add(self, credit: np.ndarray, acted: np.ndarray, standing: float) -> None:
        """Adds a rollout."""
        values = credit[acted]
        assigned = values[np.isfinite(values)]
        self.rollouts += 1
        self.acted += len(values)
        self.assigned += len(assigned)
        self.square += float(np.square(assigned, dtype=np.float64).sum())
        self.histogram.add(assigned)
        if math.isfinite(standing) and standing:
            self.judged += int(np.count_nonzero(assigned))
            self.against += int(against_outcome(assigned, standing).sum())

    @property
    def rms(self) -> float:
        """Root mean square of assigned credit; 0 where there is none."""
        return math.sqrt(self.square / self.assigned) if self.assigned else 0.0


class Pairwise:
    """Running agreement of every two recipes.

    Signs: share of equal signs among positions where both credits are assigned and not 0. Ranks: Spearman's correlation
    over the acted positions of a group, mean over groups; groups where one of the two is constant are left out, for
    they have no ranks to agree on.

    Attributes:
      names: of the recipes, R.
      both: i64 ``[R, R]``, positions where both credits are not 0.
      same: i64 ``[R, R]``, of these with equal sign.
      groups: i64 ``[R, R]``, groups with a rank correlation.
      total: f64 ``[R, R]``, sum of their correlations.
    """

    def __init__(self, names: Sequence[str]):
        self.names = tuple(names)
        shape = (len(self.names),) * 2
        self.both, self.same, self.groups = (np.zeros(shape, np.int64) for _ in range(3))
        self.total = np.zeros(shape)

    def add(self, credits: Mapping[str, np.ndarray]) -> None:
        """Adds a group: for each recipe that could run its credit over all acted positions of the group, ``[N]``."""
        rows = [i for i, name in enumerate(self.names) if name in credits]
        if not rows:
            return
        values = np.stack([credits[self.names[i]] for i in rows]).astype(np.float64)
        signs = np.sign(np.nan_to_num(values))
        at = np.ix_(rows, rows)
        there = (signs != 0).astype(np.float64)
        both = there @ there.T
        self.both[at] += both.astype(np.int64)
        self.same[at] += ((both + signs @ signs.T) / 2).round().astype(np.int64)
        if values.shape[1] > _RANKED:
            return
        known = np.isfinite(values)
        # Nearly always recipes assign at the same places, so most pairs share their ranks.
        ranked: dict[tuple[int, bytes], np.ndarray] = {}
        for a, i in enumerate(rows):
            for b, j in enumerate(rows):
                shared = known[a] & known[b]
                key = shared.tobytes()
                for row in (a, b):
                    if (row, key) not in ranked:
                        ranked[row, key] = centred_ranks(values[row, shared])
                one, other = ranked[a, key], ranked[b, key]
                size = math.sqrt(float(one @ one) * float(other @ other))
                if size > 0:
                    self.total[i, j] += float(one @ other) / size
                    self.groups[i, j] += 1

    def signs(self) -> np.ndarray:
        """Share of equal signs, f64 ``[R, R]``; NaN where the two never both said something."""
        return np.where(self.both > 0, self.same / np.maximum(self.both, 1), np.nan)

    def ranks(self) -> np.ndarray:
        """Mean Spearman correlation, f64 ``[R, R]``; NaN where there was none."""
        return np.where(self.groups > 0, self.total / np.maximum(self.groups, 1), np.nan)


def centred_ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from the mean rank, f64 ``[N]``, the mean of their ranks for equal values."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    middle = ends - (counts + 1) / 2  # mean of the 0-based ranks of each value
    return middle[inverse] - (len(values) - 1) / 2


def disagreement(credits: np.ndarray, rms: np.ndarray) -> float:
    """How far recipes are apart over a rollout: the standard deviation between them, mean over positions.

    Args:
      credits: ``[R, T]``, NaN where unassigned (read as 0).
      rms: ``[R]``, size of each recipe's credit over the whole file, by which it is divided; one of size 0 says nothing
        and is left out.
    """
    some = rms > 0
    if some.sum() < 2 or not credits.shape[1]:
        return 0.0
    return float(np.std(np.nan_to_num(credits[some]) / rms[some, None], axis=0).mean())
