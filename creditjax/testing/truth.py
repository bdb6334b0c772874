"""Estimators held against the exact policy gradient, on games so small that every group of episodes is looked at."""

from collections.abc import Callable, Mapping, Sequence
import functools
import itertools
import math
from typing import Any, NamedTuple

import jax
import numpy as np

from creditjax import exact
from creditjax.algebra import Credit, Level, Transform, transform
from creditjax.algebra.credit import credit
from creditjax.exact.signals import Oracle
from creditjax.testing.check import Estimator, as_function, as_traceable, fail, name_of, reads
from creditjax.trajectory import FIELDS, Trajectory

# Not 3: there the std of a binary group that is not constant has one value, and dividing by it would look harmless.
GROUP_SIZE = 4
RTOL = 1e-4


class Case(NamedTuple):
    """A game, the policy that plays it, and what it yields an estimator.

    Attributes:
      name: how messages call it.
      process: the game laid out, see `exact.lay_out`.
      solution: of the policy, see `exact.solve`.
      signals: by name, one entry an episode, see `exact.batch`; what is not given and declared is made exactly.
    """

    name: str
    process: exact.Process
    solution: exact.Solution
    signals: Mapping[str, np.ndarray] = {}


def case(
    name: str,
    game: Any,
    policy: Callable[[Any], np.ndarray] | int = 0,
    signals: Mapping[str, np.ndarray] | None = None,
) -> Case:
    """An `exact.Game` with a policy: a function from observations to probabilities, or the seed of a random one."""
    process = exact.lay_out(game)
    if not callable(policy):
        rng = np.random.default_rng(policy)
        table = exact.tabulate(process, lambda _: rng.dirichlet(np.full(process.num_tokens, 2.0)))
    else:
        table = exact.tabulate(process, policy)
    return Case(name, process, exact.solve(process, table), signals or {})


@functools.cache
def default_cases() -> tuple[Case, ...]:
    """Three turns each, so that an estimator is compiled once: decisive and idle turns, easy and hard prompts, sums."""
    from creditjax.tasks import bifurcation
    from creditjax.tasks.sums import Sums

    easy, hard = (lambda _, p=p: np.array([1 - p, p]) for p in (0.7, 0.35))
    return (
        case("threshold", bifurcation.threshold((2, -1, 1), 1), 5),
        case("easy conjunction", bifurcation.conjunction(3, (0, 2)), easy),
        case("hard conjunction", bifurcation.conjunction(3, (0, 2)), hard),
        case("sums", Sums((1, 0, 1), base=2), 7),
    )


def assert_unbiased(
    estimator: Estimator, *, cases: Sequence[Case] | None = None, group_size: int = GROUP_SIZE, rtol: float = RTOL
) -> None:
    """The expected policy gradient is the exact one, in every game.

    The expectation is over all groups of all episodes, so nothing is left to chance. Without discount, with the
    gradient of a softmax policy as in `exact.moments`.

    Args:
      estimator: what is tested; a group's rollouts are treated alike.
      cases: games with policies; three families of three turns by default.
      group_size: G.
      rtol: tolerated ``‖bias‖ / ‖exact gradient‖``.
    """
    found = [_judge(estimator, x, group_size) for x in cases or default_cases()]
    worst = max(found, key=lambda x: x.relative_bias)
    if not worst.relative_bias <= rtol:
        fail(
            "assert_unbiased",
            estimator,
            f"biased by {worst.relative_bias:.3g} of the exact gradient in game {worst.case.name!r} "
            f"(cosine {worst.cosine:.4f}, scale {worst.factor:.4f})",
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
    found = [_judge(estimator, x, group_size) for x in cases or default_cases()]
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
            else f"the expected gradient points elsewhere in game {worst.case.name!r} (cosine {worst.cosine:.4f})"
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
    for x in cases or default_cases():
        mine, yours = (_moments(e, x, group_size).variance for e in (estimator, other))
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
    for x, seed in itertools.product(cases or default_cases()[:2], seeds):
        plain = _moments(estimator, _shaped(x, None, estimator), group_size).gradient
        shaped = _moments(estimator, _shaped(x, seed, estimator), group_size).gradient
        change = float(np.linalg.norm(shaped - plain))
        if not change <= rtol * float(np.linalg.norm(exact.true_gradient(x.process, x.solution))):
            worst = int(np.argmax(np.linalg.norm(shaped - plain, axis=1)))
            fail(
                "assert_policy_invariant",
                estimator,
                f"potential-based shaping moves the expected gradient by {change:.3g} in game {x.name!r}",
                [
                    f"seed: {seed}",
                    f"most at observation {x.process.observations[worst]!r}: "
                    f"found {np.round(shaped[worst], 5)}, wanted {np.round(plain[worst], 5)}",
                ],
            )


class _Judged(NamedTuple):
    case: Case
    gradient: np.ndarray
    truth: np.ndarray
    relative_bias: float
    cosine: float
    factor: float


def _judge(estimator: Estimator, case: Case, group_size: int) -> _Judged:
    gradient = _moments(estimator, case, group_size).gradient
    truth = exact.true_gradient(case.process, case.solution)
    size, norm = float(np.linalg.norm(truth)), float(np.linalg.norm(gradient))
    dot = float(np.sum(gradient * truth))
    bias = float(np.linalg.norm(gradient - truth))
    return _Judged(case, gradient, truth, bias / size, dot / (size * norm) if norm > 0 else 0.0, dot / size**2)


def _moments(estimator: Estimator, case: Case, group_size: int) -> exact.Moments:
    paths = exact.enumerate_paths(case.process)
    given = dict(case.signals)
    oracle = Oracle(case.process, case.solution)
    missing = tuple(n for n in reads(estimator) if n not in FIELDS and n not in given and n != "token_mask")
    given |= oracle.signals(paths, missing)
    chances = exact.probability(case.process, paths, case.solution.policy)
    count = exact.count_groups(int(np.sum(chances > 0)), group_size)
    chunk = 1 << min(13, max(8, (count - 1).bit_length()))
    made = _as_transform(estimator, exact.batch(paths, np.zeros((1, group_size), int), given))
    if made is None:
        return _moments_on_host(estimator, case, paths, given, chances, group_size)
    return exact.enumerate_moments(
        made, case.process, case.solution, group_size, paths=paths, signals=given, chunk=chunk
    )


def _as_transform(estimator: Estimator, batch: Trajectory) -> Transform | None:
    """The estimator as a `Transform`, None if it is a function that JAX cannot trace."""
    if isinstance(estimator, Transform):
        return estimator
    value = as_traceable(estimator)
    try:
        jax.eval_shape(value, batch)
    except Exception:
        return None

    @transform(takes=None, gives=Level.TOKEN, scope="batch", needs=reads(estimator), uses=("segment",))
    def traced(batch: Trajectory, context: Any) -> Credit:
        return credit(value(batch), batch.action_mask, Level.TOKEN)

    return traced()


def _moments_on_host(
    estimator: Estimator,
    case: Case,
    paths: exact.Paths,
    signals: Mapping[str, np.ndarray],
    chances: np.ndarray,
    group_size: int,
) -> exact.Moments:
    """What `exact.enumerate_moments` computes, group by group, for functions that run on the host."""
    function, policy = as_function(estimator), case.solution.policy
    shape, first, second, groups = policy.shape, 0.0, 0.0, 0
    for members in itertools.combinations_with_replacement(np.flatnonzero(chances > 0), group_size):
        index, counts = np.array(members), np.unique(members, return_counts=True)[1]
        orders = math.factorial(group_size) / math.prod(map(math.factorial, counts))
        credits = function(exact.batch(paths, index[None], signals))[0].astype(np.float64)
        credits = np.where(paths.acts[index], credits, 0.0)
        at_token = np.zeros(shape)
        np.add.at(at_token, (paths.observation[index], paths.tokens[index]), credits)
        gradient = ((at_token - at_token.sum(axis=1, keepdims=True) * policy) / group_size).ravel()
        weight = orders * np.prod(chances[index])
        first, second, groups = first + weight * gradient, second + weight * np.outer(gradient, gradient), groups + 1
    nothing = np.zeros((0, case.process.length))
    return exact.Moments(
        np.reshape(first, shape), second - np.outer(first, first), nothing, nothing, np.zeros(shape), groups, True
    )


def _report(found: Sequence[_Judged], worst: _Judged, group_size: int) -> list[str]:
    gap = np.linalg.norm(worst.gradient - worst.truth, axis=1)
    most = int(np.argmax(gap))
    lines = [f"groups of {group_size}, every group of episodes enumerated"]
    lines += [
        f"game {x.case.name!r}: ‖bias‖ {np.linalg.norm(x.gradient - x.truth):.4g} ({x.relative_bias:.3g} of the exact "
        f"gradient), cosine {x.cosine:.4f}, scale {x.factor:.4f}"
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
    aligned = all(x.cosine > 1 - 1e-4 for x in found)
    factors = np.array([x.factor for x in found])
    own = (group_size - 1) / group_size
    hints = []
    if aligned and np.allclose(factors, own, rtol=1e-3):
        hints.append(f"each rollout's own outcome is in its baseline: scale (G - 1) / G = {own:.4g}")
    elif aligned and np.ptp(factors) < 1e-3 * np.abs(factors).max():
        hints.append(f"the credit is the right one times {factors.mean():.4g} in every game")
    if _forgets_scale(estimator, found[0].case, group_size):
        hints.append("outcomes in other units give the same credit: division by the group's std or the like")
    if aligned and np.ptp(factors) > 1e-3 * np.abs(factors).max():
        hints.append(
            f"the scale differs between prompts, {factors.min():.4g} to {factors.max():.4g}: each is weighed by how "
            "its outcomes scatter"
        )
    if not aligned:
        hints.append(
            "the direction is wrong, not the scale alone: what is subtracted from the credit of a token depends on it, "
            "or tokens are weighed unequally"
        )
    return [f"hint: {hint}" for hint in hints]


def _forgets_scale(estimator: Estimator, case: Case, group_size: int) -> bool:
    """Whether the credit of one group is the same for twice its outcomes; not asked of those that read signals."""
    if any(name not in FIELDS and name != "token_mask" for name in reads(estimator)):
        return False
    paths, function = exact.enumerate_paths(case.process), as_function(estimator)
    order = np.argsort(paths.outcome)
    batch = exact.batch(paths, np.concatenate([order[:1], order[-(group_size - 1) :]])[None])
    once, twice = function(batch), function(batch.replace(outcome=2 * batch.outcome))
    return bool(np.abs(once).max() > 0 and np.allclose(once, twice, rtol=1e-3))


def _shaped(case: Case, seed: int | None, estimator: Estimator) -> Case:
    """The case with a random potential, or with that of 0."""
    rng = None if seed is None else np.random.default_rng(seed)

    def potential(size: int) -> np.ndarray:
        return np.zeros(size) if rng is None else rng.normal(size=size)

    # By layer; what has ended is worth nothing.
    layers = case.process.layers
    phi = [np.where(np.asarray(x.live), potential(len(x.acts)), 0.0) for x in layers]
    phi.append(np.zeros(len(case.process.states[-1])))
    if shaping := {"potential", "answer_logprob"} & set(reads(estimator)):
        made = _at_boundaries(exact.enumerate_paths(case.process), phi)
        as_signal = {"potential": made, "answer_logprob": -np.abs(made)[..., None]}
        return case._replace(signals={**case.signals, **{name: as_signal[name] for name in shaping}})
    paid = []
    for here, after, layer in zip(phi[:-1], phi[1:], layers, strict=True):
        rise = after[np.asarray(layer.next)] - here[:, None]
        reward: Any = np.asarray(layer.reward) + np.where(layer.legal, rise, 0.0)
        paid.append(layer._replace(reward=reward))
    process = exact.Process(tuple(paid), case.process.observations, case.process.states)
    return case._replace(process=process, solution=exact.solve(process, case.solution.policy))


def _at_boundaries(paths: exact.Paths, phi: Sequence[np.ndarray]) -> np.ndarray:
    """A potential by layer at the beginning of each segment, 0 at the end and after: ``[L, K + 1]``."""
    along = paths.gather(phi[: paths.tokens.shape[1]])
    made = np.zeros((len(along), int(paths.segment.max()) + 2))
    for k in range(made.shape[1] - 1):
        inside = paths.segment == k
        here = np.take_along_axis(along, np.argmax(inside, axis=1)[:, None], axis=1)[:, 0]
        made[:, k] = np.where(inside.any(axis=1), here, 0.0)
    return made
