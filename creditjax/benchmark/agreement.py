"""How well the credit of steps agrees with the exact one over a set of rollouts: in each, over all, and at errors.

What a process reward is asked for when it is learned (PRIME, arXiv:2502.01456) and no step label was shown to it.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from creditjax.benchmark.scores import average, rank_correlation
from creditjax.process.metrics import step_auroc


class Agreement(NamedTuple):
    """Scores of one credit; all are invariant to a positive factor on it.

    Attributes:
      within: Spearman's correlation over the steps of a rollout, mean over rollouts; 0 for constant credit.
      erring: the same over the rollouts with a wrong step; NaN if there is none.
      pooled: Spearman's correlation over the steps of all rollouts.
      auroc: probability that a right step has more credit than a wrong one of any rollout; 1/2 for constant credit.
    """

    within: float
    erring: float
    pooled: float
    auroc: float


def agreement(credit: ArrayLike, true: ArrayLike, right: ArrayLike, valid: ArrayLike) -> Agreement:
    """Holds the credit of steps against the exact one.

    Args:
      credit: ``[E, K]``, a method's, of E rollouts of K steps.
      true: ``[E, K]``, the exact one.
      right: bool ``[E, K]``, the step is right given its own prefix.
      valid: bool ``[E, K]``, steps that there are.

    Raises:
      ValueError: another shape, or credit that is not finite where there is a step.
    """
    credit, true, right, valid = map(np.asarray, (credit, true, right, valid))
    each = rank_correlation(credit, true, valid).spearman
    wrong = np.any(valid & ~right.astype(bool), axis=-1)
    flat = (x[valid][None] for x in (credit, true, valid))
    return Agreement(
        within=average(each),
        erring=average(each, wrong),
        pooled=float(rank_correlation(*flat).spearman[0]),
        auroc=float(step_auroc(credit, right, valid)),
    )


def shuffled(credit: ArrayLike, valid: ArrayLike, seed: int = 0) -> np.ndarray:
    """The same credit dealt out anew among the steps of each rollout ``[E, K]``: it agrees by chance alone."""
    credit, valid = np.array(credit), np.asarray(valid)
    rng = np.random.default_rng(seed)
    for row, there in zip(credit, valid, strict=True):
        row[there] = rng.permutation(row[there])
    return credit
