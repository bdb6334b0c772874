"""The one machine behind all assertions: batches, comparison, the smallest counterexample, and the message."""

from collections.abc import Callable, Iterable, Iterator
import functools
import itertools
import math
from typing import Any, NamedTuple, NoReturn, TypedDict

import jax
import numpy as np

from creditjax.algebra import Credit, Transform, estimate, needs
from creditjax.testing.batches import random_batch, take
from creditjax.trajectory import Trajectory

Estimator = Transform | Callable[[Trajectory], Any]
"""A piece that starts a chain, or any function from a batch ``[P, G, T]`` to a `Credit` or an array ``[P, G, T]``."""

Function = Callable[[Trajectory], np.ndarray]

# Other batches of one shape are nearly free.
SEEDS = range(10)
# Eight prompts, so that on eight devices sharding is compared with a program that the other assertions run anyway.
SHAPE = (8, 3, 10)
RTOL, ATOL = 2e-4, 2e-5
# Programs compiled in search of the smallest counterexample.
_SHAPES = 12


class Options(TypedDict, total=False):
    """What every assertion over batches takes.

    Attributes:
      batches: from a seed to a batch; `random_batch` with all that a `Transform` reads, and for a function the fields
        and signals in its attribute `needs`, if it has one.
      seeds: which to try.
      rtol: relative tolerance.
      atol: absolute tolerance.
      shrink: whether a failure is searched for its smallest batch (the default), which compiles a program a shape.
    """

    batches: Callable[[int], Trajectory]
    seeds: Iterable[int]
    rtol: float
    atol: float
    shrink: bool


class Mismatch(NamedTuple):
    """A law that does not hold: what was to be seen, the numbers found, the numbers wanted.

    `batch` is what the numbers were found on, where that is not the batch that the property was asked of.
    """

    what: str
    found: np.ndarray
    wanted: np.ndarray
    batch: Trajectory | None = None


class NotTraced(AssertionError):
    """JAX cannot trace an estimator, which the question takes for granted."""


Property = Callable[[Function, Trajectory, np.random.Generator], Mismatch | None]


def reads(estimator: Estimator) -> tuple[str, ...]:
    """Fields and signals that an estimator reads; of a function, those in its attribute `needs`."""
    if isinstance(estimator, Transform):
        return tuple(dict.fromkeys([*needs(estimator), *estimator.uses]))
    return tuple(getattr(estimator, "needs", ()))


def as_traceable(estimator: Estimator) -> Callable[[Trajectory], Any]:
    """The estimator as a function from a batch to the value of its credit."""
    if isinstance(estimator, Transform):
        return lambda batch: estimate(estimator, batch).value
    if not callable(estimator):
        raise TypeError(f"estimator: {type(estimator).__name__}, wanted a Transform or a function of a Trajectory")

    def value(batch: Trajectory) -> Any:
        made = estimator(batch)
        return made.value if isinstance(made, Credit) else made

    return value


def as_function(estimator: Estimator) -> Function:
    """The estimator as a function from a batch to an array ``[P, G, T]`` on the host, of whatever dtype.

    Functions are given NumPy arrays.

    Raises:
      TypeError: neither a `Transform` nor a function.
      ValueError: the function returned another shape.
    """
    value = as_traceable(estimator)

    def function(batch: Trajectory) -> np.ndarray:
        # A copy: what an estimator does to its batch must not reach what it is compared with.
        made = np.asarray(value(jax.tree.map(np.array, batch)))
        if made.shape != batch.tokens.shape:
            raise ValueError(f"{name_of(estimator)}: returned {list(made.shape)}, wanted {list(batch.tokens.shape)}")
        return made

    return function


def name_of(estimator: Estimator) -> str:
    """How messages call it."""
    return repr(estimator) if isinstance(estimator, Transform) else getattr(estimator, "__name__", repr(estimator))


def default_batches(estimator: Estimator, **options: Any) -> Callable[[int], Trajectory]:
    """From a seed to a random batch with everything that the estimator reads."""
    return functools.partial(random_batch, **{"shape": SHAPE, "needs": reads(estimator), **options})


def compare(what: str, found: Any, wanted: Any, rtol: float = RTOL, atol: float = ATOL) -> Mismatch | None:
    """None if the arrays agree; NaN agrees with nothing."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    if found.shape == wanted.shape:
        agree = np.isclose(found, wanted, rtol=rtol, atol=atol)
        if agree.all():
            return None
        if not np.isfinite(found[~agree]).any():
            # Every number that is one is as it should be.
            what = f"credit is not finite, so that it cannot be said whether {what}"
    return Mismatch(what, found, wanted)


def check(name: str, estimator: Estimator, holds: Property, options: Options) -> None:
    """Raises an `AssertionError` with the smallest counterexample if a property does not hold for some seed's batch.

    Args:
      name: of the assertion.
      estimator: what is tested.
      holds: the property: given the estimator as a function, a batch and a generator, None or what is wrong.
      options: see `Options`; the tolerances are the property's business.

    Raises:
      ValueError: no seeds, so that nothing would be looked at.
    """
    seeds = tuple(options.get("seeds", SEEDS))
    if not seeds:
        raise ValueError(f"{name}: seeds: none, wanted at least one")
    function = as_function(estimator)
    batches = options.get("batches") or default_batches(estimator)
    for seed in seeds:
        batch = batches(seed)
        wrong = _try(holds, function, batch, seed)
        if wrong is not None:
            shrink = options.get("shrink", True)
            if shrink:
                batch, wrong = _shrink(holds, function, batch, seed, wrong)
            raise AssertionError(_describe(name, estimator, seed, batch, wrong, "smallest " if shrink else ""))


def fail(
    name: str,
    estimator: Estimator,
    what: str,
    lines: Iterable[str] = (),
    kind: type[AssertionError] = AssertionError,
) -> NoReturn:
    """Raises the `AssertionError` of an assertion that is not about one batch."""
    raise kind("\n".join([f"{name}: {what}", f"  estimator: {name_of(estimator)}", *(f"  {x}" for x in lines)]))


def tolerances(options: Options) -> dict[str, float]:
    """The tolerances in the options, or the defaults."""
    return {"rtol": options.get("rtol", RTOL), "atol": options.get("atol", ATOL)}


def _try(holds: Property, function: Function, batch: Trajectory, seed: int) -> Mismatch | None:
    return holds(function, batch, np.random.default_rng(seed))


def _shrink(
    holds: Property, function: Function, batch: Trajectory, seed: int, wrong: Mismatch
) -> tuple[Trajectory, Mismatch]:
    """Drops prompts, rollouts and positions as long as the property still fails."""
    shapes = {batch.tokens.shape}
    smaller = True
    while smaller:
        smaller = False
        for axis, keep in _smaller(batch):
            candidate = take(batch, axis, keep)
            shapes.add(candidate.tokens.shape)
            # A new shape is a new program, other batches of one shape are nearly free.
            if len(shapes) > _SHAPES:
                break
            try:
                found = _try(holds, function, candidate, seed)
            except Exception:
                # A batch so small may be one that the estimator refuses: no counterexample.
                found = None
            if found is not None:
                batch, wrong, smaller = candidate, found, True
                break
    return batch, wrong


def _smaller(batch: Trajectory) -> Iterator[tuple[str, np.ndarray]]:
    """Parts of the batch along one axis, the smallest first."""
    for axis, size in zip(("prompts", "rollouts", "positions"), batch.tokens.shape, strict=True):
        for kept in sorted({1, 2, size // 2, size - 1} & set(range(1, size))):
            few = math.comb(size, kept) <= 50
            parts = itertools.combinations(range(size), kept) if few else _windows(size, kept)
            yield from ((axis, np.array(part)) for part in parts)


def _windows(size: int, kept: int) -> Iterator[range]:
    return (range(start, start + kept) for start in range(size - kept + 1))


def _describe(name: str, estimator: Estimator, seed: int, batch: Trajectory, wrong: Mismatch, size: str) -> str:
    found, wanted = np.asarray(wrong.found), np.asarray(wrong.wanted)
    at = ""
    if found.shape == wanted.shape and found.size:
        gap = np.abs(found.astype(np.float64) - wanted)
        worst = np.unravel_index(np.argmax(np.where(np.isnan(gap), np.inf, gap)), found.shape)
        number = "a number" if np.isnan(wanted[worst]) else f"{wanted[worst]:.6g}"
        at = f" (found {found[worst]:.6g}, wanted {number} at {[int(i) for i in worst]})"
    batch = batch if wrong.batch is None else wrong.batch
    p, g, t = batch.tokens.shape
    lines = [
        f"{name}: {wrong.what}{at}",
        f"  estimator: {name_of(estimator)}",
        f"  seed: {seed}",
        f"  {size}failing batch: {p} prompts, {g} rollouts, {t} positions",
        *_table("action_mask", batch.action_mask.astype(int)),
        *_table("outcome", batch.outcome),
    ]
    for key in reads(estimator):
        if key not in ("tokens", "action_mask", "outcome") and batch.get(key) is not None:
            lines += _table(key, np.asarray(batch.get(key)))
    return "\n".join([*lines, *_table("found", found), *_table("wanted", wanted)])


def _table(name: str, x: np.ndarray) -> list[str]:
    shown = np.array2string(np.asarray(x), precision=4, threshold=60, max_line_width=100)
    return [f"    {name}: " + shown.replace("\n", "\n" + " " * (6 + len(name)))]


def unchanged(
    what: str,
    change: Callable[[Trajectory, np.random.Generator], tuple[Trajectory, Callable[[np.ndarray], np.ndarray]]],
    options: Options,
    wanted: Callable[[np.ndarray], np.ndarray] = lambda credit: credit,
) -> Property:
    """The property that credit follows a change of the batch.

    Args:
      what: what it means if it does not.
      change: the changed batch, and how to bring its credit back to the old one's form.
      options: for the tolerances.
      wanted: what the old credit should have become; itself by default.
    """

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        changed, back = change(batch, rng)
        return compare(what, back(function(changed)), wanted(function(batch)), **tolerances(options))

    return holds


def same(credit: np.ndarray) -> np.ndarray:
    """For changes that leave the form alone."""
    return credit
