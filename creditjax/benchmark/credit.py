"""Every registered recipe held against exact credit: card `ca_benchmark_protocol` on the tasks that can be solved.

A *setting* is a task, a horizon and a group size, with one fixed policy (softmax of standard normal logits) and one set
of groups that all recipes are given. Where all groups are few they are enumerated and weighted, and every number is
exact; otherwise 256 episodes are drawn, each in eight groups of fresh companions, and numbers carry a standard error
(jackknife over blocks of episodes). What is quadratic in a mean is freed of the noise of the mean.

Signals are perfect: exact numbers in place of a model's. Beside each recipe ``r`` that reads one there is a row
``r+noise``, the same with a model that is off by `NOISE` at each state, and beside each whose credit differs within
rollouts ``r+shuffled``, its own credit in random order over the steps. Controls have names that begin with "control:".
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
import dataclasses
import functools
import itertools
import math
import statistics
import time
from typing import Any, NamedTuple
import zlib

import jax
import numpy as np

from creditjax import exact, recipes
from creditjax.algebra import Transform
from creditjax.algebra.estimate import prune
from creditjax.benchmark import scores
from creditjax.benchmark.results import Results, Row
from creditjax.exact.paths import Paths
from creditjax.exact.process import Process
from creditjax.exact.signals import Oracle
from creditjax.exact.values import Solution, spread
from creditjax.naming import nearest
from creditjax.tasks import bifurcation, chains, hypergrid, pipeline, sums
from creditjax.tasks.lookup import LookupTask
from creditjax.tasks.lookup_game import LookupGame
from creditjax.tasks.stepwise import StepwiseTask
from creditjax.tasks.stepwise_game import StepwiseGame
from creditjax.trajectory import Trajectory

NOISE = 0.3
# Groups in flight, the same in all settings so that programs are compiled once a horizon.
CHUNK = 2048
_ENUMERATED = 4096
_EPISODES, _RESAMPLES, _BLOCKS = 256, 8, 16
# Credit against position is kept for one episode of so many steps at most.
_SHOWN_STEPS = 16

SCORES = ("sign_accuracy", "zero_share", "spearman", "kendall", "hit_at_1", "hit_at_3", "credit_mass")
METRICS = (*SCORES, "bias", "variance", "cosine", "relative_bias", "efficiency")
CONTROLS = ("control:oracle", "control:uniform", "control:random")


def _lookup(actions: int) -> exact.Game | None:
    """A turn is two tokens; one turn more than there are hops may be wasted."""
    if actions > 8 or actions % 2:
        return None
    turns = actions // 2
    return LookupGame(
        LookupTask(num_entities=2, num_relations=2, hops=max(turns - 2, 1), max_turns=turns, reach=2, num_skills=1),
        index=3,
    )


def _stepwise(actions: int) -> exact.Game | None:
    """A step is two tokens; one step more than addends and the answer need may be wasted on a filler."""
    if actions > 8 or actions % 2:
        return None
    steps = actions // 2
    return StepwiseGame(StepwiseTask(addends=max(steps - 2, 1), base=2, max_turns=steps), index=4)


# A task of a horizon, which is the number of the policy's actions; None where there is none.
TASKS: dict[str, Callable[[int], exact.Game | None]] = {
    "single": lambda h: bifurcation.single(h, h // 2),
    "conjunction": lambda h: bifurcation.conjunction(h, (h // 4, 3 * h // 4)),
    "sums": lambda h: sums.Sums(tuple(1 + k % 2 for k in range(h))),
    "threshold": lambda h: bifurcation.threshold(tuple((2, 0, 1, -1)[k % 4] for k in range(h)), 1),
    "recoverable": lambda h: bifurcation.recoverable(h, h // 4, h // 2),
    "flipped": lambda h: bifurcation.conjunction(h, (h // 4, 3 * h // 4), flip=0.1),
    "aliased": lambda h: bifurcation.threshold((1,) * h, 1, sees="turn"),
    "umbrella": chains.UmbrellaChain,
    "discounting": lambda h: chains.DiscountingChain((0, h // 4, h // 2, h - 1)),
    "hypergrid": lambda h: hypergrid.Hypergrid(side=h // 2) if h >= 6 else None,  # all cells of a 2 x 2 grid pay alike
    "stepwise": _stepwise,
    "lookup": _lookup,
    "pipeline": lambda h: pipeline.Pipeline((0.1, 0.4, 0.2, 0.3), {(0, 1): 0.5, (1, 3): -0.2}) if h == 4 else None,
}

_ELSEWHERE = {
    "coalition_value": "only the tasks pipeline and lookup say what each coalition is worth",
    "call_similarity": "only the task lookup has tool calls",
    "read_call": "only the task lookup has skill-read calls",
}


@dataclasses.dataclass(frozen=True)
class Setting:
    """A task with its groups, and what is known about each step.

    Attributes:
      task, horizon, group: its name, the number of actions, G.
      game, process, solution: the task laid out and solved under the fixed policy.
      paths: L episodes.
      index: i32 ``[N, G]``, the episodes of each group.
      weight: f64 ``[N]``, adds up to 1.
      exact: all groups are there; otherwise rollout 0 of groups ``a * R … a * R + R - 1`` is episode a.
      at: i32 ``[L, K]``, position of each step, which is an action of the policy.
      valid: bool ``[L, K]``, the step exists.
      true: f64 ``[L, K]``, exact credit.
      decisive: bool ``[L, K]``, the action changes what is to be expected.
    """

    task: str
    horizon: int
    group: int
    game: exact.Game
    process: Process
    solution: Solution
    paths: Paths
    index: np.ndarray
    weight: np.ndarray
    exact: bool
    at: np.ndarray
    valid: np.ndarray
    true: np.ndarray
    decisive: np.ndarray

    @functools.cached_property
    def own_signals(self) -> Mapping[str, np.ndarray]:
        """What the game itself knows about the episodes."""
        return self.game.signals(self.paths) if hasattr(self.game, "signals") else {}

    @functools.cached_property
    def gradient(self) -> np.ndarray:
        """The exact gradient, flat."""
        return exact.true_gradient(self.process, self.solution).ravel()

    @functools.cached_property
    def yardstick(self) -> dict[str, np.ndarray]:
        """Sums of REINFORCE, for efficiency."""
        return _gradient_sums(self, steps(self, credit_of(self, exact.reinforce(), {})))

    @functools.cached_property
    def shown(self) -> int:
        """The episode whose credit is shown: of those that are paid most, the one where exact credit moves most."""
        mean = _episodes(self)
        paid, moved = self.paths.outcome[mean], np.abs(self.true[mean]).max(1)
        return int(mean[np.lexsort((-moved, -np.round(paid, 9)))[0]])

    def rng(self, name: str) -> np.random.Generator:
        """Of whatever `name` draws in this setting."""
        return np.random.default_rng(zlib.crc32(f"{self.task} {self.horizon} {self.group} {name}".encode()))


def setting(task: str, horizon: int, group: int) -> Setting | None:
    """Lays a task out, solves it and forms the groups; None where the task has no such horizon."""
    game = TASKS[task](horizon)
    if game is None:
        return None
    process = exact.lay_out(game)
    rng = np.random.default_rng(zlib.crc32(f"{task} {horizon}".encode()))
    solution = exact.solve(process, exact.tabulate(process, lambda _: np.exp(rng.standard_normal(process.num_tokens))))
    whole = _all_groups(process, solution, group)
    if whole is not None:
        paths, index, weight = whole
    else:
        count = _EPISODES * (1 + _RESAMPLES * (group - 1))
        paths = exact.sample_paths(process, solution.policy, jax.random.key(group), count)
        own = np.repeat(np.arange(_EPISODES), _RESAMPLES)[:, None]
        others = np.arange(_EPISODES, count).reshape(len(own), group - 1)
        index, weight = np.concatenate([own, others], axis=1), np.full(len(own), 1 / len(own))
    # Actions first, in order: a step is an action.
    order = np.argsort(~paths.acts, axis=1, kind="stable")
    at = order[:, : int(paths.acts.sum(1).max())]
    valid = np.take_along_axis(paths.acts, at, axis=1)
    # Differences of equal values leave noise that would count as a sign.
    true = np.round(exact.exact_credit(paths, solution), 10)
    return Setting(
        task=task,
        horizon=horizon,
        group=group,
        game=game,
        process=process,
        solution=solution,
        paths=paths,
        index=index,
        weight=weight,
        exact=whole is not None,
        at=at,
        valid=valid,
        true=np.where(valid, np.take_along_axis(true, at, axis=1), 0.0),
        decisive=valid & (np.take_along_axis(paths.gather(spread(process, solution.q)), at, axis=1) > 1e-9),
    )


def _all_groups(process: Process, solution: Solution, group: int) -> tuple[Paths, np.ndarray, np.ndarray] | None:
    try:
        paths = exact.enumerate_paths(process, max_paths=_ENUMERATED)
    except ValueError:
        return None
    if exact.count_groups(len(paths.tokens), group) > _ENUMERATED:
        return None
    chances = exact.probability(process, paths, solution.policy)
    index, weight = next(exact.groups(chances, group, True, exact.count_groups(len(chances), group)))
    return paths, index, weight


def signals_of(given: Setting, names: tuple[str, ...], noise: float = 0.0) -> dict[str, np.ndarray]:
    """The signals called `names` for the episodes of a setting.

    Raises:
      KeyError: a signal that neither the process nor the game determines.
    """
    oracle = Oracle(given.process, given.solution, noise=noise, seed=1)
    own = given.own_signals
    return {name: own[name] for name in names if name in own} | oracle.signals(
        given.paths, tuple(name for name in names if name not in own)
    )


def credit_of(given: Setting, estimator: Transform, signals: Mapping[str, np.ndarray]) -> np.ndarray:
    """An estimator's credit of every token in every group, one prompt at a time, ``[N, G, T]``."""
    made = [np.asarray(exact.group_credit(estimator, batch)) for batch in _batches(given, estimator, signals)]
    return np.concatenate(made)[: len(given.index)]


def _batches(given: Setting, estimator: Transform, signals: Mapping[str, np.ndarray]) -> Iterator[Trajectory]:
    for start in range(0, len(given.index), CHUNK):
        index = given.index[start : start + CHUNK]
        index = np.pad(index, ((0, CHUNK - len(index)), (0, 0)))
        yield prune(estimator, exact.batch(given.paths, index, signals, given.solution.policy))


def steps(given: Setting, credit: np.ndarray) -> np.ndarray:
    """Token credits ``[N, G, T]`` to those of the steps, ``[N, G, K]``."""
    taken = np.take_along_axis(credit.astype(np.float64), given.at[given.index], axis=-1)
    return np.where(given.valid[given.index], taken, 0.0)


def shuffled(given: Setting, credit: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The credits of each rollout in random order over its steps, ``[N, G, K]``."""
    valid = given.valid[given.index]
    # Steps that are not there keep the last places.
    source = np.argsort(np.where(valid, rng.random(credit.shape), 2.0), axis=-1)
    place = np.argsort(~valid, axis=-1, kind="stable")
    made = np.zeros_like(credit)
    np.put_along_axis(made, place, np.take_along_axis(credit, source, axis=-1), axis=-1)
    return made


def measure(given: Setting, credit: np.ndarray, randomised: bool = False) -> dict[str, tuple[float, float]]:
    """All `METRICS` of step credits ``[N, G, K]``, each with its standard error (NaN where it has none).

    ``bias`` and ``variance`` are those of ``a c - c*`` over the companions of an episode, with the one factor
    ``a = max(0, <c, c*> / <c, c>)`` of the protocol: the root of the mean square bias in units of the root mean square
    exact credit, and the mean variance in units of its square. ``cosine``, ``relative_bias`` and ``efficiency`` are
    those of `exact.judge`, about the policy gradient.

    Args:
      given: the setting.
      credit: of every step.
      randomised: the credit has been drawn, so that enumeration does not make its numbers exact.
    """
    parts = _score_sums(given, credit) | _credit_sums(given, credit) | _gradient_sums(given, credit)
    base = given.yardstick
    total = _evaluate(given, _sum(parts), _sum(base))
    errors = dict.fromkeys(total, math.nan if randomised else 0.0)
    if not given.exact:
        without = [
            _evaluate(given, _sum(parts, leave_out=b), _sum(base, leave_out=b), share=1 - 1 / _BLOCKS)
            for b in range(_BLOCKS)
        ]
        for name in total:
            others = np.array([w[name] for w in without])
            if np.isfinite(others).all():
                errors[name] = math.sqrt((_BLOCKS - 1) * np.var(others))
            else:  # it hangs on a block whether the gradient stands out of its noise
                total[name] = errors[name] = math.nan
    for name in ("bias", "relative_bias"):
        # A square that is freed of noise may come out below 0, and the root of a small one is less certain than it.
        root = math.sqrt(max(total[name], 0.0))
        errors[name] /= max(2 * root, math.sqrt(errors[name])) if errors[name] > 0 else 1.0
        total[name] = root if math.isfinite(total[name]) else math.nan
    total["cosine"] = max(-1.0, min(1.0, total["cosine"])) if math.isfinite(total["cosine"]) else math.nan
    return {name: (total[name], errors[name]) for name in METRICS}


def _sum(parts: dict[str, np.ndarray], leave_out: int | None = None) -> dict[str, np.ndarray]:
    """Adds up the blocks ``[B, …]``, all but one."""
    total = {name: x.sum(0) for name, x in parts.items()}
    return total if leave_out is None else {name: x - parts[name][leave_out] for name, x in total.items()}


def _episodes(given: Setting) -> np.ndarray:
    """The episodes whose credit is looked at given their companions."""
    return np.arange(len(given.paths.tokens) if given.exact else _EPISODES)


def _blocks(given: Setting) -> list[slice]:
    if given.exact:
        return [slice(0, len(given.index))]
    size = len(given.index) // _BLOCKS
    return [slice(b * size, (b + 1) * size) for b in range(_BLOCKS)]


def _score_sums(given: Setting, credit: np.ndarray) -> dict[str, np.ndarray]:
    """Of each score, ``Σ w s`` and ``Σ w`` over the rollouts that have one, by block ``[B, 2]``."""
    members = slice(None) if given.exact else slice(1)
    index = given.index[:, members]
    flat, rows = credit[:, members].reshape(-1, credit.shape[-1]), index.reshape(-1)
    true, valid, decisive = given.true[rows], given.valid[rows], given.decisive[rows]
    made = dict(
        zip(
            SCORES,
            (
                *scores.sign_accuracy(flat, true, valid),
                *scores.rank_correlation(flat, true, valid),
                scores.hit_at_m(flat, decisive, valid, 1),
                scores.hit_at_m(flat, decisive, valid, 3),
                scores.credit_mass(flat, decisive, valid),
            ),
            strict=True,
        )
    )
    parts = {}
    for name, score in made.items():
        score = score.reshape(index.shape)
        weight = np.where(np.isfinite(score), given.weight[:, None] / index.shape[1], 0.0)
        both = np.stack([weight * np.where(weight > 0, score, 0.0), weight], axis=-1).sum(1)
        parts[name] = np.stack([both[block].sum(0) for block in _blocks(given)])
    return parts


def _moments(given: Setting, credit: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Per episode of `_episodes`: its probability, mean credit and variance ``[E, K]``; and the resamples."""
    count = len(_episodes(given))
    if not given.exact:
        drawn = credit[:, 0].reshape(_EPISODES, _RESAMPLES, -1)
        return np.full(count, 1 / count), drawn.mean(1), drawn.var(1, ddof=1), _RESAMPLES
    rows, weight = given.index.reshape(-1), np.repeat(given.weight / given.group, given.group)
    flat = credit.reshape(len(rows), -1)
    mass = np.bincount(rows, weight, count)
    by = [[np.bincount(rows, weight * x, count) for x in power.T] for power in (flat, flat**2)]
    mean, square = (np.stack(x, axis=1) / np.maximum(mass, 1e-300)[:, None] for x in by)
    return mass, mean, np.maximum(square - mean**2, 0.0), 0


def _credit_sums(given: Setting, credit: np.ndarray) -> dict[str, np.ndarray]:
    """``E m²`` without the noise of m, ``E m c*``, ``E c*²``, ``E s²`` and ``E c²`` by block ``[B, 5]``."""
    mass, mean, variance, resamples = _moments(given, credit)
    true = given.true[_episodes(given)]
    noise = variance / resamples if resamples else 0.0
    columns = (mean**2 - noise, mean * true, true**2, variance, mean**2 + variance - noise)
    each = np.stack([mass * column.sum(-1) for column in columns], axis=-1)
    blocks = 1 if given.exact else _BLOCKS
    return {"credit": each.reshape(blocks, -1, 5).sum(1)}


def _gradient_sums(given: Setting, credit: np.ndarray) -> dict[str, np.ndarray]:
    """Sums over groups of their gradient, of its square, and of the square of its mean over an episode's groups."""
    observed = np.take_along_axis(given.paths.observation, given.at, axis=1)
    token = np.take_along_axis(given.paths.tokens, given.at, axis=1)
    policy = given.solution.policy
    place = observed * policy.shape[1] + token
    clusters = len(given.index) if given.exact else _EPISODES
    mean, square, own = [], [], []
    for block in _blocks(given):
        flat = place[given.index[block]].reshape(len(credit[block]), -1)
        rows = np.arange(len(flat))[:, None]
        at_token = np.bincount(
            (rows * policy.size + flat).ravel(), credit[block].ravel(), len(flat) * policy.size
        ).reshape(len(flat), *policy.shape)
        gradient = (at_token - at_token.sum(2, keepdims=True) * policy).reshape(len(flat), -1) / given.group
        weight = given.weight[block]
        mean.append(weight @ gradient)
        square.append(weight @ (gradient**2).sum(1))
        own.append(
            0.0 if given.exact else (gradient.reshape(-1, _RESAMPLES, policy.size).mean(1) ** 2).sum() / clusters
        )
    return {"gradient": np.stack(mean), "square": np.array(square), "clustered": np.array(own)}


class _Gradient(NamedTuple):
    """The mean gradient, its squared norm without the noise of the mean, that noise, and the variance of a group."""

    mean: np.ndarray
    norm2: float
    noise: float
    variance: float


def _gradient(given: Setting, total: dict[str, np.ndarray], share: float) -> _Gradient:
    mean, square, clustered = total["gradient"] / share, total["square"] / share, total["clustered"] / share
    norm2 = float(mean @ mean)
    noise = 0.0 if given.exact else max(float(clustered - norm2) / (_EPISODES * share - 1), 0.0)
    return _Gradient(mean, norm2 - noise, noise, float(square) - (norm2 - noise))


def _evaluate(
    given: Setting, total: dict[str, np.ndarray], base: dict[str, np.ndarray], share: float = 1.0
) -> dict[str, float]:
    """The metrics of sums over a share of the blocks; both biases squared."""
    made = {name: _divide(*total[name]) for name in SCORES}
    mean2, cross, true2, variance, square = total["credit"]
    factor = max(0.0, cross / square) if square > 0 else 0.0
    made["bias"] = _divide(factor**2 * mean2 - 2 * factor * cross + true2, true2)
    made["variance"] = _divide(factor**2 * variance, true2)
    own, reinforce, truth = _gradient(given, total, share), _gradient(given, base, share), given.gradient
    size2 = float(truth @ truth)
    # A mean that does not stand out of its noise has no direction.
    known = own.norm2 > max(2 * own.noise, 1e-15 * size2)
    silent = own.variance <= 0 and not own.noise
    cosine = _divide(float(own.mean @ truth), math.sqrt(max(own.norm2, 1e-300) * size2)) if known else math.nan
    made["cosine"] = 0.0 if silent and not known else cosine
    off = float(np.sum((own.mean - truth) ** 2)) - own.noise
    made["relative_bias"] = _divide(off, size2)
    # What lies along the truth is signal; what points elsewhere is none, however steady it is.
    along = [float(x.mean @ truth) / math.sqrt(max(size2, 1e-300)) for x in (own, reinforce)]
    along[0] *= known
    signal = (
        _divide(along[0] * abs(along[0]), own.variance),
        _divide(along[1] * abs(along[1]), reinforce.variance),
    )
    made["efficiency"] = _divide(*signal) if reinforce.norm2 > 2 * reinforce.noise else math.nan
    return made


def _divide(numerator: float, denominator: float) -> float:
    return float(numerator / denominator) if denominator > 0 else math.nan


def run(given: Setting, name: str) -> list[Row]:
    """The rows of one control, or of one recipe with its variants; for a recipe that cannot run, one that says why."""
    row = functools.partial(Row, task=given.task, group=given.group, horizon=given.horizon)
    if name in CONTROLS:
        return list(_rows(given, row, name, _control(given, name), randomised=name == "control:random"))
    # GDPO weighs the rewards that there are.
    components = given.own_signals.get("reward_components", np.zeros((1, 1))).shape[1]
    made = recipes.recipe(name, **({"weights": (1.0,) * components} if name == "gdpo" else {}))
    try:
        signals = signals_of(given, made.signals)
    except KeyError as error:
        why = next((_ELSEWHERE[signal] for signal in made.signals if signal in _ELSEWHERE), str(error.args[0]))
        return [row(name, metric="skipped", value=math.nan, stderr=math.nan, more={"reason": why})]
    credit = steps(given, credit_of(given, made.estimator, signals))
    if not np.isfinite(credit).all():
        why = f"{np.sum(~np.isfinite(credit))} of {credit.size} credits are not finite"
        return [row(name, metric="skipped", value=math.nan, stderr=math.nan, more={"reason": why})]
    rows = []
    noisy = signals_of(given, made.signals, NOISE)
    if any(not np.array_equal(noisy[key], x) for key, x in signals.items()):
        rows += _rows(given, row, f"{name}+noise", steps(given, credit_of(given, made.estimator, noisy)))
    if _varies(given, credit):
        mixed = shuffled(given, credit, given.rng(name))
        rows += _rows(given, row, f"{name}+shuffled", mixed, randomised=True)
    rows += _rows(given, row, name, credit)
    batch = jax.tree.map(jax.numpy.asarray, next(_batches(given, made.estimator, signals)))
    return [*rows, row(name, metric="cost_ms", value=_milliseconds(made.estimator, batch), stderr=math.nan)]


def _milliseconds(estimator: Transform, batch: Trajectory, budget_s: float = 1.0) -> float:
    """Median time of a chunk whose program has run before; some take so long that once has to do."""
    times: list[float] = []
    while len(times) < 5 and sum(times) < budget_s:
        began = time.perf_counter()
        jax.block_until_ready(exact.group_credit(estimator, batch))
        times.append(time.perf_counter() - began)
    return 1e3 * statistics.median(times)


def _varies(given: Setting, credit: np.ndarray) -> bool:
    """Whether any rollout has steps of different credit."""
    valid = given.valid[given.index]
    high, low = np.where(valid, credit, -np.inf).max(-1), np.where(valid, credit, np.inf).min(-1)
    return bool((high - low > scores.TIE * np.abs(credit).max(-1)).any())


def _control(given: Setting, name: str) -> np.ndarray:
    true = given.true[given.index]
    if name == "control:oracle":
        return true
    if name == "control:uniform":
        return steps(given, credit_of(given, recipes.recipe("grpo").estimator, {}))
    drawn = np.where(given.valid[given.index], given.rng(name).standard_normal(true.shape), 0.0)
    size, wanted = (np.linalg.norm(x, axis=-1, keepdims=True) for x in (drawn, true))
    return drawn * wanted / np.maximum(size, 1e-12)


def _rows(
    given: Setting, row: Callable[..., Row], name: str, credit: np.ndarray, randomised: bool = False
) -> Iterator[Row]:
    if given.valid.shape[1] <= _SHOWN_STEPS:
        _, mean, variance, resamples = _moments(given, credit)
        more = {"outcome": float(given.paths.outcome[given.shown]), "exact": None}
        for k in np.flatnonzero(given.valid[given.shown]):
            error = math.sqrt(variance[given.shown, k] / resamples) if resamples else 0.0
            more["exact"] = float(given.true[given.shown, k])
            yield row(name, metric=f"credit@{k}", value=float(mean[given.shown, k]), stderr=error, more=dict(more))
    for metric, (value, error) in measure(given, credit, randomised).items():
        yield row(name, metric=metric, value=value, stderr=error)


def names(only: tuple[str, ...] = ()) -> list[str]:
    """Controls and recipes to run.

    Raises:
      ValueError: a name in `only` that no recipe has, with the nearest that there are.
    """
    known = recipes.list_recipes()
    if unknown := [name for name in only if name not in known]:
        raise ValueError("; ".join(f"--only: {name!r} unknown, {nearest(name, known)}" for name in unknown))
    return [*CONTROLS, *(name for name in known if not only or name in only)]


class Plan(NamedTuple):
    """What is to be run: recipes and controls, tasks, horizons and group sizes."""

    names: tuple[str, ...]
    tasks: tuple[str, ...]
    horizons: tuple[int, ...]
    groups: tuple[int, ...]


def plan(
    *,
    quick: bool = False,
    only: Sequence[str] = (),
    tasks: Sequence[str] = (),
    horizons: Sequence[Any] = (),
    groups: Sequence[Any] = (),
) -> Plan:
    """Everything, or a quick part of it, unless some are named.

    Args:
      quick: two tasks at horizons 4 and 8 in groups of 4.
      only: recipes.
      tasks: of `TASKS`.
      horizons: at least 4.
      groups: at least 1.

    Raises:
      ValueError: a name that nothing has, with the nearest right ones, or a number that is none or too small.
    """
    if unknown := [name for name in tasks if name not in TASKS]:
        raise ValueError(f"--tasks: {unknown[0]!r} unknown, {nearest(unknown[0], TASKS)}")
    return Plan(
        tuple(names(tuple(only))),
        tuple(tasks) or (("single", "sums") if quick else tuple(TASKS)),
        _numbers("horizons", horizons, 4) or ((4, 8) if quick else (4, 8, 16, 32, 64)),
        _numbers("groups", groups, 1) or ((4,) if quick else (4, 8)),
    )


def _numbers(flag: str, given: Sequence[Any], least: int) -> tuple[int, ...]:
    for x in given:
        if not str(x).isdecimal() or int(x) < least:
            raise ValueError(f"--{flag}: {x}, wanted numbers of at least {least}")
    return tuple(map(int, given))


def run_all(wanted: Plan, found: Results) -> Iterator[str]:
    """Makes what is not there yet, and gives the lines of a table as it goes."""
    shape = None
    for horizon, group, task in itertools.product(wanted.horizons, wanted.groups, wanted.tasks):
        if shape != (horizon, group):
            # Thousands of compiled programs run into the system's limit on mapped memory.
            jax.clear_caches()
            shape = horizon, group
        left = [name for name in wanted.names if (name, task, group, horizon) not in found]
        given = setting(task, horizon, group) if left else None
        if given is None:
            continue
        how = f"all {len(given.index)} groups" if given.exact else f"{len(given.index)} groups drawn"
        yield f"\n{task}, {horizon} actions, groups of {group}, {how}"
        yield " ".join([f"{'recipe':32}", *(f"{heading:>9}" for heading in _COLUMNS.values())])
        for name in left:
            rows = run(given, name)
            found.add((name, task, group, horizon), rows)
            yield from _table(rows)


_COLUMNS = {
    "sign_accuracy": "sign",
    "zero_share": "zeros",
    "spearman": "spearman",
    "hit_at_1": "hit@1",
    "credit_mass": "mass",
    "bias": "bias",
    "variance": "variance",
    "cosine": "cosine",
    "relative_bias": "rel.bias",
    "efficiency": "effic.",
    "cost_ms": "ms",
}


def _table(rows: Sequence[Row]) -> Iterator[str]:
    entries: dict[str, dict[str, Row]] = {}
    for row in rows:
        entries.setdefault(row.recipe, {})[row.metric] = row
    for name, by in sorted(entries.items()):
        if "skipped" in by:
            yield f"{name:32} skipped: {by['skipped'].more['reason']}"
            continue
        values = [by[metric].value if metric in by else math.nan for metric in _COLUMNS]
        yield " ".join([f"{name:32}", *(f"{'-' if math.isnan(x) else f'{x:.3f}':>9}" for x in values)]).rstrip()
