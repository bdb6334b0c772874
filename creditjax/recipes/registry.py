"""What a paper publishes, under its name: `register`, `recipe`, `list_recipes`.

A recipe function returns :class:`Parts`: the estimator, the objective and what it asks of the sampler. Its keyword
arguments are the paper's constants. The registry is what the trainer, the benchmark, the documentation and the
property tests iterate over, so a new method is one function in one file.
"""

from collections.abc import Callable, Iterable, Mapping
import dataclasses
import functools
import importlib.resources
import inspect
import json
from typing import Any, NamedTuple

from creditjax.algebra import Schedule, Transform, needs
from creditjax.hyperparameters import check_choice, check_ranges, check_type, is_float
from creditjax.naming import nearest
from creditjax.objectives import Objective
from creditjax.trajectory import FIELDS

COSTS = ("linear", "T log T", "pairwise in G", "quadratic in T")
TIERS = ("baseline", "published", "experimental")


class Card(NamedTuple):
    """Where a method comes from.

    Attributes:
      id: its name in the registry.
      name: its name in the paper.
      title: of the paper.
      paper: where it appeared.
      granularity: what it assigns credit to.
      methodology: how.
      family: of methods that it is listed with.
      symbol: what implements it, where it is no recipe: a metric, a sampler, a model, a task.
    """

    id: str
    name: str
    title: str
    paper: str
    granularity: str
    methodology: str
    family: str = ""
    symbol: str = ""


class Sampler(NamedTuple):
    """What a recipe asks of the rollouts.

    Attributes:
      group_size: G the paper uses; a hint, the config decides.
      greedy_baseline: one greedy rollout a prompt, whose outcome becomes the signal `greedy_outcome`.
      dynamic: resample prompts whose group teaches nothing: its outcomes are all equal, or their mean is not within
        `accuracy`. Where the task gives the signal `accuracy`, it is that and not the outcome.
      accuracy: the lowest and the highest mean of a group that is kept.
      max_batches: generation batches of a step with `dynamic` before it goes on with what there is.
      commit: a group is several actions drawn in one state, and the episode goes on with one of the best ("max") or
        with any ("sample"), see `samplers.state_groups`; "" for whole rollouts.
      replayed: older rollouts of the prompt that join each group, see `samplers.replay`.
      edited: beside each group one of a step of a right rollout and of the same step with an error in it, see
        `signals.edits.with_edited_steps`.
    """

    group_size: int = 8
    greedy_baseline: bool = False
    dynamic: bool = False
    accuracy: tuple[float, float] = (0.0, 1.0)
    max_batches: int = 10
    commit: str = ""
    replayed: int = 0
    edited: bool = False


class Parts(NamedTuple):
    """What a recipe function returns."""

    estimator: Transform
    objective: Objective
    sampler: Sampler = Sampler()


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A published method, ready to run.

    Attributes:
      name: its id in the registry.
      estimator: which credit.
      objective: which loss.
      sampler: which rollouts.
      card: where it comes from.
      hyperparameters: what it was made with.
      cost: how the estimator's time grows, one of `COSTS`; "T log T" sorts, in linear memory.
      tier: "baseline", "published" or "experimental".
      claims: laws of credit that it obeys, each with the arguments of its assertion in `creditjax.testing`.
      exempt: promises of the library that it does not keep, each with the reason.
    """

    name: str
    estimator: Transform
    objective: Objective
    sampler: Sampler
    card: Card
    hyperparameters: Mapping[str, Any]
    cost: str
    tier: str
    claims: Mapping[str, Mapping[str, Any]]
    exempt: Mapping[str, str]

    @property
    def needs(self) -> tuple[str, ...]:
        """Fields and signals that the batch has to have, for the estimator and for the objective."""
        return tuple(dict.fromkeys([*needs(self.estimator), *self.objective.needs]))

    @property
    def signals(self) -> tuple[str, ...]:
        """The signals to produce before the estimator runs: those it needs, and those it reads when they are there.

        The samplers always bring `token_mask`, so it is not listed.
        """
        names = dict.fromkeys([*self.needs, *self.estimator.uses])
        return tuple(name for name in names if name not in FIELDS and name != "token_mask")

    @property
    def batch_statistics(self) -> bool:
        """Whether one prompt's credit depends on other prompts."""
        return _uses_batch(self.estimator)


def _uses_batch(piece: Transform) -> bool:
    return piece.scope == "batch" or any(map(_uses_batch, piece.children))


class _Entry(NamedTuple):
    make: Callable[..., Parts]
    cost: str
    tier: str
    claims: Mapping[str, Mapping[str, Any]]
    exempt: Mapping[str, str]
    card: Card | None


_REGISTRY: dict[str, _Entry] = {}
_ALIASES: dict[str, str] = {}


def register(
    name: str,
    *,
    aliases: tuple[str, ...] = (),
    cost: str = "linear",
    tier: str = "published",
    claims: Iterable[str] | Mapping[str, Mapping[str, Any]] = (),
    exempt: Mapping[str, str] | None = None,
    card: Card | None = None,
) -> Callable[[Callable[..., Parts]], Callable[..., Parts]]:
    """Registers a recipe function under a card id.

    Every recipe promises what `creditjax.testing.PROMISES` lists: nothing outside the mask, padding without effect,
    one program a shape, and so on. A recipe that breaks one on purpose says why in `exempt`. The promises about other
    prompts lapse by themselves for one with batch statistics, and that of linear cost for one that is quadratic in T.
    `claims` adds the laws that the method's card states or its formula shows, by the names of
    `creditjax.testing.PROPERTIES`; "unbiased" includes "unbiased_up_to_scale":

        @register("rloo", claims=("shift_invariant", "scale_equivariant", "sign_preserved", "unbiased"))
        @register("tempo", exempt={"expansion_invariant": "the tree compares observed tokens too"})
        @register("mine", claims={"bounded": {"bound": 1.0}, "telescopes": {"baseline": "leave_one_out"}})

    `tests/recipes/test_claims.py` asserts every promise and claim of every recipe, and that what is exempt does fail.
    What holds, claimed or not, ``creditjax.testing.check_all(recipe("mine").estimator)`` says and ``make properties``
    writes down. A recipe that reads signals of a new kind needs a game that yields them in
    `creditjax.testing.default_cases`, or its answers about bias read "?".

    Args:
      name: the card's id.
      aliases: other card ids that are the same thing.
      cost: how the estimator's cost grows.
      tier: how far it is to be trusted.
      claims: laws, or law → arguments of its assertion. A promise that would lapse can be claimed too.
      exempt: promise → reason, for promises that the method does not keep.
      card: where the method comes from, for one that is not part of this package; its own have theirs in `cards.json`.

    Raises:
      TypeError: `register` without a name.
      ValueError: the name is taken, or a `cost` or `tier` that does not exist.
    """
    if not isinstance(name, str):
        raise TypeError(f'register: {name!r}, wanted a name: @register("my_method")')
    for taken in (name, *aliases):
        if taken in _REGISTRY or taken in _ALIASES:
            raise ValueError(f"recipe {taken!r} is registered already")
    if cost not in COSTS or tier not in TIERS:
        raise ValueError(f"recipe {name!r}: cost {cost!r}, tier {tier!r}, wanted one of {COSTS} and one of {TIERS}")

    def decorate(make: Callable[..., Parts]) -> Callable[..., Parts]:
        laws = claims if isinstance(claims, Mapping) else dict.fromkeys(claims, {})
        _REGISTRY[name] = _Entry(make, cost, tier, dict(laws), dict(exempt or {}), card)
        _ALIASES.update(dict.fromkeys(aliases, name))
        return make

    return decorate


def is_on(weight: Any) -> bool:
    """Whether a term of this weight belongs in the program: all but a plain 0, so a traced number too."""
    return not isinstance(weight, int | float) or bool(weight)


def list_recipes() -> list[str]:
    """Every name that `recipe` knows, aliases included, sorted."""
    return sorted([*_REGISTRY, *_ALIASES])


def hyperparameters(name: str) -> dict[str, Any]:
    """The hyperparameters of a recipe with their defaults.

    Raises:
      KeyError: no such recipe, with the nearest names.
    """
    signature = inspect.signature(_entry(name).make)
    return {p.name: p.default for p in signature.parameters.values()}


def recipe(name: str, **overrides: Any) -> Recipe:
    """The recipe called `name`, with some of its constants changed.

    Raises:
      KeyError: no such recipe, with the nearest names.
      TypeError: no such hyperparameter, with the nearest names, or a value of another type.
      ValueError: a value that its piece refuses, or a method that was registered without a card.

    >>> recipe("grpo", eps=1e-4).estimator
    chain(outcome(), group_normalize(ddof=1, per='rollouts', single='zero', eps=0.0001))
    """
    entry = _entry(name)
    defaults = hyperparameters(name)
    kinds = inspect.signature(entry.make).parameters
    for given, value in overrides.items():
        if given not in defaults:
            raise TypeError(f"recipe {name!r} has no hyperparameter {given!r}; {nearest(given, defaults)}")
        kind = kinds[given].annotation
        if not (isinstance(value, Schedule) and is_float(kind)):
            check_type(f"recipe {name!r}: {given}", value, kind)
    try:
        parts = entry.make(**overrides)
        # After the pieces, which know better what to say.
        for given, value in overrides.items():
            check_choice(given, value, kinds[given].annotation)
        check_ranges({**defaults, **overrides})
    except (TypeError, ValueError) as error:
        # What the pieces say speaks of their own parameters.
        given = ", ".join(f"{key}={value!r}" for key, value in overrides.items())
        raise type(error)(f"recipe({name!r}, {given}): {error}") from error
    if not isinstance(parts, Parts):
        raise TypeError(
            f"recipe {name!r}: its function returned {type(parts).__name__}, wanted Parts(estimator, objective)"
        )
    card = _cards().get(name, entry.card)
    if card is None:
        raise ValueError(
            f"recipe {name!r} has no card, wanted a row in recipes/cards.json or register(..., card=Card(...))"
        )
    return Recipe(
        name=name,
        estimator=parts.estimator,
        objective=parts.objective,
        sampler=parts.sampler,
        card=card,
        hyperparameters={**defaults, **overrides},
        cost=entry.cost,
        tier=entry.tier,
        claims=entry.claims,
        exempt=entry.exempt,
    )


def cards() -> dict[str, Card]:
    """Every card of the package by its id, those of methods that are no recipes included."""
    return dict(_cards())


def canonical(name: str) -> str:
    """The name of the function behind a recipe's name: another one only for an alias."""
    return _ALIASES.get(name, name)


def _entry(name: str) -> _Entry:
    own = canonical(name)
    if own not in _REGISTRY:
        raise KeyError(f"no recipe {name!r}; {nearest(name, list_recipes())}")
    return _REGISTRY[own]


@functools.cache
def _cards() -> dict[str, Card]:
    text = importlib.resources.files("creditjax.recipes").joinpath("cards.json").read_text()
    return {row["id"]: Card(**row) for row in json.loads(text)}
