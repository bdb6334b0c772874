"""How near a method's credit comes to the exact one, step by step: the scores of card `ca_benchmark_protocol`.

Every function takes arrays ``[E, K]`` (E episodes of K steps) and gives one number an episode, ``[E]``, NaN where the
episode has nothing to score; :func:`average` makes one number of them. Another shape, or credit that is not finite at a
step that there is, is a `ValueError`. All are invariant to a positive factor on the credit. Credits count as equal when
they differ by less than `TIE` of the largest of their episode: rounding is no rank.

Source: arXiv:2604.09459, section 9.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

# Of float32, with room for a few operations.
TIE = 1e-5


class Signs(NamedTuple):
    """Share of right signs among the credits that are not 0, and share of those that are, ``[E]`` each."""

    accuracy: np.ndarray
    zeros: np.ndarray


class Ranks(NamedTuple):
    """Rank correlations of credit and exact credit over the steps of each episode, ``[E]`` each."""

    spearman: np.ndarray
    kendall: np.ndarray


def sign_accuracy(credit: ArrayLike, true: ArrayLike, valid: ArrayLike, tau: float = 1e-3) -> Signs:
    """``mean_k 1[sign(credit_k) = sign(true_k)]`` over the steps with ``|true_k| > tau``.

    Credit that is exactly 0 says nothing: it is left out of the accuracy and counted in `zeros`.

    Args:
      credit: ``[E, K]``, a method's.
      true: ``[E, K]``, the exact one.
      valid: bool ``[E, K]``, steps that there are.
      tau: exact credit up to this size has no sign.
    """
    credit, true, valid = _checked(credit=credit, true=true, valid=valid)
    asked = valid & (np.abs(true) > tau)
    said = asked & (credit != 0)
    right = said & (np.sign(credit) == np.sign(true))
    return Signs(_ratio(right.sum(-1), said.sum(-1)), _ratio((asked & ~said).sum(-1), asked.sum(-1)))


def rank_correlation(credit: ArrayLike, true: ArrayLike, valid: ArrayLike) -> Ranks:
    """Spearman's with average ranks and Kendall's tau-b; 0 where credit or exact credit is constant.

    Both are one formula (Daniels 1944) on the signs ``S_ij = sign(x_i - x_j)``: tau-b is the cosine of the two sign
    matrices, Spearman's that of their row sums. NaN for episodes of fewer than two steps.

    Args:
      credit: ``[E, K]``, a method's.
      true: ``[E, K]``, the exact one.
      valid: bool ``[E, K]``, steps that there are.
    """
    credit, true, valid = _checked(credit=credit, true=true, valid=valid)
    ranks = np.full((2, len(credit)), np.nan)
    # Pairs take K times the memory.
    rows = max(1, 2**22 // max(credit.shape[1], 1) ** 2)
    for start in range(0, len(credit), rows):
        part = slice(start, start + rows)
        one, other = (_order(x[part], valid[part]) for x in (credit, true))
        ranks[0, part] = _cosine(one.sum(-1), other.sum(-1))
        ranks[1, part] = _cosine(one.reshape(len(one), -1), other.reshape(len(one), -1))
    ranks[:, valid.sum(-1) < 2] = np.nan
    return Ranks(*ranks)


def hit_at_m(credit: ArrayLike, decisive: ArrayLike, valid: ArrayLike, m: int) -> np.ndarray:
    """Whether a decisive step is among the m of largest ``|credit|``; ties at the m-th by exact expectation.

    1 if a strictly larger ``|credit|`` is a decisive step's, else ``1 - C(n - b, s) / C(n, s)`` for n steps tied at
    the m-th place, b decisive ones among them, and s places left for them. m is at most the number of steps.

    Args:
      credit: ``[E, K]``, a method's.
      decisive: bool ``[E, K]``, steps whose action changes what is to be expected.
      valid: bool ``[E, K]``, steps that there are.
      m: places, at least 1.

    Returns:
      ``[E]``, NaN for episodes without a decisive step.
    """
    if m < 1 or m != int(m):
        raise ValueError(f"m: {m}, wanted at least 1, whole")
    credit, decisive, valid = _checked(credit=credit, decisive=decisive, valid=valid)
    decisive = (decisive != 0) & valid
    size = np.where(valid, np.abs(credit), -1.0)
    if not size.shape[1]:
        return np.full(len(size), np.nan)
    places = np.minimum(int(m), valid.sum(-1))
    at = np.take_along_axis(-np.sort(-size, axis=-1), np.maximum(places - 1, 0)[:, None], axis=-1)
    close = TIE * size.max(-1, keepdims=True, initial=0.0)
    larger, tied = valid & (size > at + close), valid & (np.abs(size - at) <= close)
    count, own = tied.sum(-1), (tied & decisive).sum(-1)
    left = places - larger.sum(-1)
    # C(n - b, s) / C(n, s) as a product, for K may be large.
    missed = np.ones(len(credit))
    for i in range(int(left.max(initial=0))):
        missed *= np.where(i < left, np.maximum(count - own - i, 0) / np.maximum(count - i, 1), 1.0)
    hit = np.where((larger & decisive).any(-1), 1.0, 1.0 - missed)
    return np.where(decisive.any(-1), hit, np.nan)


def credit_mass(credit: ArrayLike, decisive: ArrayLike, valid: ArrayLike) -> np.ndarray:
    """``Σ_k |credit_k| decisive_k / Σ_k |credit_k|``; the share of decisive steps where there is no credit (< 1e-8).

    Args:
      credit: ``[E, K]``, a method's.
      decisive: bool ``[E, K]``, steps whose action changes what is to be expected.
      valid: bool ``[E, K]``, steps that there are.

    Returns:
      ``[E]``, NaN for episodes without a decisive step.
    """
    credit, decisive, valid = _checked(credit=credit, decisive=decisive, valid=valid)
    decisive = (decisive != 0) & valid
    size = np.where(valid, np.abs(credit), 0.0)
    total = size.sum(-1)
    share = np.where(total < 1e-8, _ratio(decisive.sum(-1), valid.sum(-1)), _ratio((size * decisive).sum(-1), total))
    return np.where(decisive.any(-1), share, np.nan)


def average(scores: np.ndarray, weight: np.ndarray | None = None) -> float:
    """Weighted mean over the episodes that have a score, NaN if none has."""
    weight = np.ones(len(scores)) if weight is None else np.asarray(weight)
    if weight.shape != np.shape(scores) or not (weight >= 0).all():
        raise ValueError(f"weight: {weight}, wanted one of at least 0 for each of {len(scores)} episodes")
    known = np.isfinite(scores) & (weight > 0)
    return float(np.average(scores[known], weights=weight[known])) if known.any() else float("nan")


def _checked(**arrays: ArrayLike) -> tuple[np.ndarray, ...]:
    made = {name: np.asarray(x) for name, x in arrays.items()}
    shape = made["credit"].shape
    if len(shape) != 2:
        raise ValueError(f"credit: shape {list(shape)}, wanted [E, K]")
    for name, x in made.items():
        if x.shape != shape:
            raise ValueError(f"{name}: shape {list(x.shape)}, wanted {list(shape)} like credit")
    valid = made["valid"].astype(bool)
    for name in [name for name in made if name != "valid"]:
        made[name] = np.where(valid, made[name].astype(np.float64), 0.0)
        # A comparison with NaN is false, and would pass for a tie or a wrong sign.
        if len(bad := np.argwhere(~np.isfinite(made[name]))):
            at = tuple(map(int, bad[0]))
            raise ValueError(f"{name}: {made[name][at]} at {list(at)}, wanted finite numbers")
    return tuple((made | {"valid": valid}).values())


def _ratio(numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
    return np.where(denominator > 0, numerator / np.where(denominator > 0, denominator, 1), np.nan)


def _order(x: np.ndarray, valid: np.ndarray) -> np.ndarray:
    """``sign(x_i - x_j)`` of all pairs, 0 for ties and where a step is missing, f32 ``[E, K, K]``."""
    difference = x[:, :, None] - x[:, None, :]
    close = TIE * np.abs(x).max(-1, initial=0.0)[:, None, None]
    both = valid[:, :, None] & valid[:, None, :]
    return np.where(both & (np.abs(difference) > close), np.sign(difference), 0.0).astype(np.float32)


def _cosine(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    size = np.sqrt((one**2).sum(-1, dtype=np.float64) * (other**2).sum(-1, dtype=np.float64))
    return np.where(size > 0, (one * other).sum(-1, dtype=np.float64) / np.where(size > 0, size, 1.0), 0.0)
