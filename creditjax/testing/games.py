"""Games with a policy, small enough that every group of episodes is looked at."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import numpy as np

from creditjax import exact


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


@dataclasses.dataclass(frozen=True)
class Stopping:
    """Token 1 stops, token 0 goes on, three times at most: episodes differ in length. To stop second pays, or never."""

    num_tokens = 2
    length = 3

    def start(self) -> int:
        """Nothing done."""
        return 0

    def move(self, state: int) -> exact.Act | None:
        """The policy, until it stops; it knows how often it went on."""
        return exact.Act(state, segment=state) if state < self.length else None

    def step(self, state: int, token: int) -> tuple[int, float]:
        """The next state, which after the last or a stop is the end."""
        pays = (state == 1 and token == 1) or (state == 2 and token == 0)
        return (self.length if token else state + 1), float(pays)


def default_cases(reads: Collection[str] = ()) -> tuple[Case, ...]:
    """The games on which an estimator that reads these fields and signals is held against the truth.

    Five games of one policy, unless a signal is read that no such game determines: a team whose coalitions have a
    value, or an agent that looks things up, with calls, skills and two rewards.

    Args:
      reads: names of fields and signals, see `check.reads`.
    """
    if _OF_AN_AGENT & set(reads):
        return _agents()
    return _teams() if "coalition_value" in reads else _turns()


_OF_AN_AGENT = {
    "call_similarity",
    "call_turn",
    "read_call",
    "read_identity",
    "read_is_oracle",
    "read_mask",
    "reference_mask",
    "reward_components",
}


@functools.cache
def _turns() -> tuple[Case, ...]:
    """Three turns each, so that an estimator is compiled once; outcomes are 0 or 1.

    Decisive and idle turns, an easy and a hard prompt of one kind, running sums, and episodes of unequal length.
    """
    from creditjax.tasks import bifurcation
    from creditjax.tasks.sums import Sums

    easy, hard = (lambda _, p=p: np.array([1 - p, p]) for p in (0.7, 0.35))
    return (
        case("threshold", bifurcation.threshold((2, -1, 1), 1), 5),
        case("easy conjunction", bifurcation.conjunction(3, (0, 2)), easy),
        case("hard conjunction", bifurcation.conjunction(3, (0, 2)), hard),
        case("sums", Sums((1, 0, 1), base=2), 7),
        case("stopping", Stopping(), easy),
    )


@functools.cache
def _teams() -> tuple[Case, ...]:
    """Three agents whose contributions add up, and three of whom two need each other."""
    from creditjax.tasks.pipeline import Pipeline

    games = {
        "team of three": Pipeline((0.5, 0.3, 0.2)),
        "team with a synergy": Pipeline((0.2, 0.3, 0.0), {(0, 2): 0.5}),
    }
    made = [case(name, game, seed) for seed, (name, game) in enumerate(games.items())]
    return tuple(
        x._replace(signals={"coalition_value": game.coalition_value(exact.enumerate_paths(x.process).tokens)})
        for x, game in zip(made, games.values(), strict=True)
    )


@functools.cache
def _agents() -> tuple[Case, ...]:
    """One question, two turns of two tokens and an answer, put to two policies: query, read a skill, or answer.

    The first component of the reward is the answer, the second the format less what the turns cost. In its last turn
    the policy neither reads nor asks about the second entity: fewer episodes, of every kind still.
    """
    from creditjax.tasks.lookup import READ, LookupTask
    from creditjax.tasks.lookup_game import LookupGame

    task = LookupTask(
        num_entities=2,
        num_relations=1,
        hops=1,
        max_turns=2,
        reach=2,
        num_skills=2,
        step_cost=0.1,
        format_reward=0.2,
    )
    game = LookupGame(task)
    second = task.vocabulary.entity + 1

    def policy(seed: int) -> Callable[[Any], np.ndarray]:
        rng = np.random.default_rng(seed)

        def law(seen: Any) -> np.ndarray:
            chances = rng.dirichlet(np.full(game.num_tokens, 2.0))
            if seen.turns and seen.head < 0:
                chances[[READ, second]] = 0.0
            return chances

        return law

    made = [case(name, game, policy(seed)) for seed, name in enumerate(("look-up", "look-up by another policy"))]
    signals = game.signals(exact.enumerate_paths(made[0].process))
    answer, form, cost = np.moveaxis(signals["reward_components"].astype(np.float64), -1, 0)
    signals["reward_components"] = np.stack([answer, form + cost], axis=-1)
    return tuple(x._replace(signals=signals) for x in made)


def shaped(case: Case, seed: int | None, signals: Sequence[str] = ()) -> Case:
    """The case with a random potential of the state, 0 at the end, or with one of 0 everywhere.

    Args:
      case: the game.
      seed: of the potential, None for 0.
      signals: those of `potential` and `answer_logprob` (there at most 0) that shall show it; without any, every step
        pays ``Φ(s') - Φ(s)``.
    """
    rng = None if seed is None else np.random.default_rng(seed)

    def potential(size: int) -> np.ndarray:
        return np.zeros(size) if rng is None else rng.normal(size=size)

    # By layer; what has ended is worth nothing.
    layers = case.process.layers
    phi = [np.where(np.asarray(x.live), potential(len(x.acts)), 0.0) for x in layers]
    phi.append(np.zeros(len(case.process.states[-1])))
    if signals:
        made = _at_boundaries(exact.enumerate_paths(case.process), phi)
        as_signal = {"potential": made, "answer_logprob": -np.abs(made)[..., None]}
        return case._replace(signals={**case.signals, **{name: as_signal[name] for name in signals}})
    paid = []
    for here, after, layer in zip(phi[:-1], phi[1:], layers, strict=True):
        rise = after[np.asarray(layer.next)] - here[:, None]
        reward: Any = np.asarray(layer.reward) + np.where(layer.legal, rise, 0.0)
        paid.append(layer._replace(reward=reward))
    process = exact.Process(tuple(paid), case.process.observations, case.process.states)
    # Every episode, and what any coalition would have had, is paid the same -Φ(start) more.
    more = -phi[0][0]
    raised = {"coalition_value": more, "reward_components": np.array([more, 0.0])}
    given = {name: x + raised[name] if name in raised else x for name, x in case.signals.items()}
    return Case(case.name, process, exact.solve(process, case.solution.policy), given)


def _at_boundaries(paths: exact.Paths, phi: Sequence[np.ndarray]) -> np.ndarray:
    """A potential by layer at the beginning of each segment, 0 at the end and after: ``[L, K + 1]``."""
    along = paths.gather(phi[: paths.tokens.shape[1]])
    made = np.zeros((len(along), int(paths.segment.max()) + 2))
    for k in range(made.shape[1] - 1):
        inside = paths.segment == k
        here = np.take_along_axis(along, np.argmax(inside, axis=1)[:, None], axis=1)[:, 0]
        made[:, k] = np.where(inside.any(axis=1), here, 0.0)
    return made
