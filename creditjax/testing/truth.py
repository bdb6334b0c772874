"""Estimators held against the exact policy gradient, and why they miss it."""

from collections.abc import Sequence
import itertools
import math
from typing import NamedTuple

import numpy as np

from creditjax import exact
from creditjax.testing.check import Estimator, as_function, fail, name_of, reads
from creditjax.testing.expectation import expected
from creditjax.testing.games import Case, default_cases, shaped
from creditjax.trajectory import FIELDS

# Not 3: there the std of a binary group that is not constant has one value, and dividing by it would look harmless.
GROUP_SIZE = 4
RTOL = 1e-4


def assert_unbiased(
    estimator: Estimator, *, cases: Sequence[Case] | None = None, group_size: int = GROUP_SIZE, rtol: float = RTOL
) -> None:
    """The expected policy gradient is the exact one, in every game.

    The expectation is over all groups of all episodes, so nothing is left to chance. Without discount, with the
    gradient of a softmax policy as in `exact.moments`.

    Args:
      estimator: what is tested; a group's rollouts are treated alike.
      cases: games with policies; `default_cases` of what it reads by default.
      group_size: G.
      rtol: tolerated ``‖bias‖ / ‖exact gradient‖``.

    Raises:
      AssertionError: biased; with bias, cosine and scale by game, the observation that is most wrong, and hints.
      KeyError: the estimator reads a signal that the game does not determine and its `Case` does not give.
      ValueError: the exact gradient of a case is 0.
    """
    found = [_judge(estimator, x, group_size) for x in cases or default_cases(reads(estimator))]
    # A comparison with NaN is false, so `max` would pass over it.
    worst = max(found, key=lambda x: math.inf if math.isnan(x.relative_bias) else x.relative_bias)
    if not worst.relative_bias <= rtol:
        fail(
            "assert_unbiased",
            estimator,
            f"biased by {worst.relative_bias:.3g} of the exact gradient in game {worst.case.name!r} "
            f"({_cosine(worst)}, scale {worst.factor:.4f})",
            [*_report(found, worst, group_size), *_hints(estimator, found, group_size)],
        )


def assert_unbiased_up_to_scale(
    estimator: Estimator, *, cases: Sequence[Case] | None = None, group_size: int = GROUP_SIZE, rtol: float = RTOL
) -> None:
    """The expected policy gradient is the exact one times a positive number, the same in every game.

    A factor that differs between games is a bias as soon as a batch has several prompts: some count more than others.

    Args:
      estimator: see `assert_unbiased`.
      cases: see `assert_unbiased`.
      group_size: G.
      rtol: tolerated distance to the exact gradient, relative to it, after the best factor was divided out.
    """
    found = [_judge(estimator, x, group_size) for x in cases or default_cases(reads(estimator))]
    mean = np.concatenate([x.gradient.ravel() for x in found])
    truth = np.concatenate([x.truth.ravel() for x in found])
    factor = float(mean @ truth / (truth @ truth))
    left = float(np.linalg.norm(mean - factor * truth) / np.linalg.norm(truth))
    if factor <= 0 or not left <= rtol * factor:
        worst = max(found, key=lambda x: float(np.linalg.norm(x.gradient - factor * x.truth)))
        factors = [x.factor for x in found]
        what = (
            f"the expected gradient is {min(factors):.4f} to {max(factors):.4f} times the exact one, by game"
            if min(x.cosine for x in found) > 1 - rtol
            else f"the expected gradient points elsewhere in game {worst.case.name!r} ({_cosine(worst)})"
        )
        lines = [*_report(found, worst, group_size), *_hints(estimator, found, group_size)]
        fail("assert_unbiased_up_to_scale", estimator, what, lines)


def assert_variance_at_most(
    estimator: Estimator,
    other: Estimator,
    *,
    cases: Sequence[Case] | None = None,
    group_size: int = GROUP_SIZE,
    rtol: float = RTOL,
) -> None:
    """The policy gradient of one group scatters no more than that of another estimator, in every game.

    Args:
      estimator: what is tested.
      other: what it is compared with. Nothing is rescaled: compare estimators of equal expectation.
      cases: see `assert_unbiased`.
      group_size: G.
      rtol: tolerated excess, relative to the other's total variance.
    """
    for x in cases or default_cases({*reads(estimator), *reads(other)}):
        mine, yours = (expected(e, x, group_size).variance for e in (estimator, other))
        if not mine <= yours * (1 + rtol):
            what = f"variance {mine:.6g} in game {x.name!r}, wanted at most {yours:.6g}, that of {name_of(other)}"
            fail("assert_variance_at_most", estimator, what, [f"groups of {group_size}"])


def assert_policy_invariant(
    estimator: Estimator,
    *,
    cases: Sequence[Case] | None = None,
    group_size: int = GROUP_SIZE,
    seeds: Sequence[int] = (0, 1),
    rtol: float = RTOL,
) -> None:
    """Potential-based shaping leaves the expected policy gradient alone (Ng, Harada and Russell 1999).

    A random potential of the state, 0 at the end, is the signal `potential` or `answer_logprob` (there at most 0) if
    the estimator reads one of them, and otherwise pays ``Φ(s') - Φ(s)`` in every step. What is compared is the same
    with a potential of 0 everywhere.

    Args:
      estimator: what is tested.
      cases: see `assert_unbiased`; two of them by default.
      group_size: G.
      seeds: of the potentials.
      rtol: tolerated change, relative to the exact gradient.
    """
    signals = [name for name in ("potential", "answer_logprob") if name in reads(estimator)]
    for x, seed in itertools.product(cases or default_cases(reads(estimator))[:2], seeds):
        plain, moved = (expected(estimator, shaped(x, s, signals), group_size).gradient for s in (None, seed))
        change = float(np.linalg.norm(moved - plain))
        if not change <= rtol * float(np.linalg.norm(exact.true_gradient(x.process, x.solution))):
            worst = int(np.argmax(np.linalg.norm(moved - plain, axis=1)))
            fail(
                "assert_policy_invariant",
                estimator,
                f"potential-based shaping moves the expected gradient by {change:.3g} in game {x.name!r}",
                [
                    f"seed: {seed}",
                    f"most at observation {x.process.observations[worst]!r}: "
                    f"found {np.round(moved[worst], 5)}, wanted {np.round(plain[worst], 5)}",
                ],
            )


class _Judged(NamedTuple):
    """Expected and exact gradient of one case; `factor` times the exact one comes closest to the expected one."""

    case: Case
    gradient: np.ndarray
    truth: np.ndarray
    relative_bias: float
    cosine: float
    factor: float


def _judge(estimator: Estimator, case: Case, group_size: int) -> _Judged:
    gradient = expected(estimator, case, group_size).gradient
    truth = exact.true_gradient(case.process, case.solution)
    size, norm = float(np.linalg.norm(truth)), float(np.linalg.norm(gradient))
    if size < 1e-12:
        raise ValueError(f"case {case.name!r}: the exact gradient is 0, wanted a policy that the outcome depends on")
    dot = float(np.sum(gradient * truth))
    bias = float(np.linalg.norm(gradient - truth))
    return _Judged(case, gradient, truth, bias / size, dot / (size * norm) if norm > 0 else 0.0, dot / size**2)


def _report(found: Sequence[_Judged], worst: _Judged, group_size: int) -> list[str]:
    gap = np.linalg.norm(worst.gradient - worst.truth, axis=1)
    most = int(np.argmax(gap))
    lines = [f"groups of {group_size}, every group of episodes enumerated"]
    lines += [
        f"game {x.case.name!r}: ‖bias‖ {np.linalg.norm(x.gradient - x.truth):.4g} ({x.relative_bias:.3g} of the exact "
        f"gradient), {_cosine(x)}, scale {x.factor:.4f}"
        for x in found
    ]
    seen = worst.case.process.observations[most]
    return [
        *lines,
        f"most wrong in game {worst.case.name!r} at observation {seen!r}: "
        f"found {np.round(worst.gradient[most], 5)}, wanted {np.round(worst.truth[most], 5)}",
    ]


def _hints(estimator: Estimator, found: Sequence[_Judged], group_size: int) -> list[str]:
    """Why, as far as the numbers tell."""
    factors = np.array([x.factor for x in found])
    own = (group_size - 1) / group_size
    one_factor = np.ptp(factors) < 1e-3 * np.abs(factors).max()
    elsewhere = [x for x in found if x.cosine < 1 - 1e-4]
    hints = []
    if all(np.linalg.norm(x.gradient) < 1e-9 * np.linalg.norm(x.truth) for x in found):
        return ["hint: the expected gradient is 0: the credit of a token does not depend on which one was taken"]
    if _forgets_scale(estimator, found[0].case, group_size):
        hints.append("outcomes in other units give the same credit: division by the group's std or the like")
    if not elsewhere and one_factor and np.isclose(factors[0], own, rtol=1e-3):
        hints.append(f"each rollout's own outcome is in its baseline: scale (G - 1) / G = {own:.4g}")
    elif not elsewhere and one_factor:
        hints.append(f"the credit is the right one times {factors.mean():.4g} in every game")
    elif not elsewhere:
        span = f"{factors.min():.4g} to {factors.max():.4g}"
        hints.append(f"the scale differs between prompts, {span}: each is weighed by how its outcomes scatter")
    elif len(elsewhere) < len(found) and all(_lengths_differ(x.case) for x in elsewhere):
        hints.append("the direction is wrong only where episodes differ in length: rollouts are weighed by their own")
    else:
        hints.append(
            "the direction is wrong, not the scale alone: what is subtracted from the credit of a token depends on it, "
            "or tokens are weighed unequally"
        )
    return [f"hint: {hint}" for hint in hints]


def _cosine(x: _Judged) -> str:
    """Its cosine, with digits enough to be told from 1."""
    if np.linalg.norm(x.gradient) < 1e-9 * np.linalg.norm(x.truth):
        return "no direction"
    close = 1e-7 < 1 - x.cosine < 5e-5
    return f"cosine 1 - {1 - x.cosine:.1g}" if close else f"cosine {x.cosine:.4f}"


def _lengths_differ(case: Case) -> bool:
    return bool(np.ptp(exact.enumerate_paths(case.process).acts.sum(axis=1)) > 0)


def _forgets_scale(estimator: Estimator, case: Case, group_size: int) -> bool:
    """Whether the credit of one group is the same for twice its outcomes; not asked of those that read signals."""
    if any(name not in FIELDS and name != "token_mask" for name in reads(estimator)):
        return False
    paths, function = exact.enumerate_paths(case.process), as_function(estimator)
    order = np.argsort(paths.outcome)
    members = np.concatenate([order[:1], order[-(group_size - 1) :]])
    batch = exact.batch(paths, members[None], policy=case.solution.policy)
    once, twice = function(batch), function(batch.replace(outcome=2 * batch.outcome))
    return bool(np.abs(once).max() > 0 and np.allclose(once, twice, rtol=1e-3))
