"""Credit of a file of rollouts under several recipes: statistics over all of them, and an offline page to look at them.

    from creditjax.report.inspect import inspect

    inspect("dump.jsonl", ("grpo", "tempo"), out="report.html")

The file is read as a stream (`creditjax.interop.files.read` says which formats there are), so memory does not grow with
it: statistics run over every rollout, the page holds a sample of whole groups, and `json` every number.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
import contextlib
import dataclasses
import heapq
import json as json_lib
import math
import os
import pathlib
from typing import Any, NamedTuple

import numpy as np

from creditjax import algebra
from creditjax.algebra import Transform
from creditjax.interop import files, output
from creditjax.interop.batches import Batch, batches, groups
from creditjax.interop.rollout import Rollout
from creditjax.recipes import Recipe, list_recipes, recipe
from creditjax.report import inspect_page
from creditjax.report.credit_stats import (
    Histogram,
    Pairwise,
    RecipeStats,
    against_outcome,
    dead_reason,
    segment_means,
    standing,
    votes,
)
from creditjax.report.shell import write_whole
from creditjax.trajectory import FIELDS, Trajectory, signal_spec

SCHEMA = "creditjax.credit/1"
"""Name and version of the machine-readable output; every line states it."""

LIMIT = 200
# Without names: these, and of the second list the first few whose needs the file meets.
_ALWAYS = ("grpo", "tempo", "tas")
_RICHER = (
    "gigpo",
    "matchtir",
    "a2tgpo",
    "tips",
    "pure",
    "implicit_prm",
    "prime",
    "gae",
    "pav",
    "spae",
    "vppo_prefix",
    "capo",
    "gdpo",
    "ucas",
    "miner",
    "frpo",
)
_DEFAULT = 5
# Positions that one page holds at most, so that a browser opens it.
_PAGE_POSITIONS = 400_000


class Group(NamedTuple):
    """A group with its credit.

    Attributes:
      rollouts: the members, G.
      credit: for each recipe that could run, the credit of each member, f32 ``[T]``, NaN where none was assigned.
      dead: why the group teaches nothing, a key of `credit_stats.DEAD`; "" for a live one.
      standing: f64 ``[G]``, outcome minus the mean of the group; NaN without a vote or in a dead group.
      ordinal: its place in the file.
      size: how many members it has; more than there are rollouts where some were left out of a page.
    """

    rollouts: list[Rollout]
    credit: dict[str, list[np.ndarray]]
    dead: str
    standing: np.ndarray
    ordinal: int
    size: int


@dataclasses.dataclass
class Summary:
    """What was found in a file.

    Attributes:
      source: name of the file.
      format: its format, one line for people.
      recipes: those that ran on at least one group.
      missing: for each recipe that could run on no group, the fields and signals that it lacks.
      partly: for each recipe that ran, the groups that it could not run on.
      usable: every registered recipe that the file has the needs of.
      carried: fields and signals that every group carries.
      left_out: signals of the file that could not be used, with the reason.
      rollouts, groups, scored, positive, positions, acted: counts.
      outcome: mean outcome of scored rollouts.
      dead: number of dead groups for each reason, a key of `credit_stats.DEAD`.
      lowest, highest: of the outcomes; infinite before the first.
      at_lowest, at_highest: dead groups whose outcomes all equal that one.
      moved: for each recipe, the dead groups in which it gives credit that is not 0.
      lengths: of rollouts, in positions.
      sizes: number of groups of each size, sizes above 64 as 65.
      stats: of each recipe.
      pairs: agreement of recipes.
      skipped: records that could not be read.
      reasons: the first reasons why.
      shown: rollouts on the page or pages.
      pages: files written.
    """

    source: str
    format: str = ""
    recipes: list[Recipe] = dataclasses.field(default_factory=list)
    missing: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    partly: Counter = dataclasses.field(default_factory=Counter)
    usable: list[str] = dataclasses.field(default_factory=list)
    carried: set[str] = dataclasses.field(default_factory=set)
    left_out: dict[str, str] = dataclasses.field(default_factory=dict)
    rollouts: int = 0
    groups: int = 0
    scored: int = 0
    positive: int = 0
    positions: int = 0
    acted: int = 0
    total: float = 0.0
    dead: Counter = dataclasses.field(default_factory=Counter)
    lowest: float = math.inf
    highest: float = -math.inf
    at_lowest: int = 0
    at_highest: int = 0
    moved: Counter = dataclasses.field(default_factory=Counter)
    lengths: Histogram = dataclasses.field(default_factory=Histogram)
    sizes: Counter = dataclasses.field(default_factory=Counter)
    stats: dict[str, RecipeStats] = dataclasses.field(default_factory=dict)
    pairs: Pairwise = dataclasses.field(default_factory=lambda: Pairwise(()))
    skipped: int = 0
    reasons: list[str] = dataclasses.field(default_factory=list)
    shown: int = 0
    pages: list[pathlib.Path] = dataclasses.field(default_factory=list)

    @property
    def outcome(self) -> float:
        """Mean outcome of the scored rollouts, NaN where there is none."""
        return self.total / self.scored if self.scored else math.nan

    def add(self, group: Group) -> None:
        """Counts a group."""
        self.groups += 1
        self.sizes[min(len(group.rollouts), 65)] += 1
        self._place([r.outcome for r in group.rollouts if math.isfinite(r.outcome)], group.dead == "equal")
        if group.dead:
            self.dead[group.dead] += 1
            self.moved.update(name for name, credits in group.credit.items() if any(map(_moves, credits)))
        for rollout in group.rollouts:
            self.rollouts += 1
            self.positions += rollout.length
            self.acted += int(rollout.action_mask.sum())
            self.lengths.add(np.array([rollout.length]))
            if math.isfinite(rollout.outcome):
                self.scored += 1
                self.positive += rollout.outcome > 0
                self.total += rollout.outcome
        for name, credits in group.credit.items():
            for rollout, credit, place in zip(group.rollouts, credits, group.standing, strict=True):
                self.stats[name].add(credit, rollout.action_mask, float(place))
        self.pairs.add(
            {
                name: np.concatenate([c[r.action_mask] for r, c in zip(group.rollouts, credits, strict=True)])
                for name, credits in group.credit.items()
            }
        )

    def _place(self, outcomes: list[float], equal: bool) -> None:
        """Moves the extremes of the outcomes, and counts a group of equal ones that lies at either."""
        if not outcomes:
            return
        low, high = min(outcomes), max(outcomes)
        if low < self.lowest:
            self.lowest, self.at_lowest = low, 0
        if high > self.highest:
            self.highest, self.at_highest = high, 0
        self.at_lowest += equal and low == self.lowest
        self.at_highest += equal and high == self.highest


def _moves(credit: np.ndarray) -> bool:
    return bool(np.nan_to_num(credit).any())


def inspect(
    rollouts: str | os.PathLike | files.Reader,
    recipes: Sequence[str] = (),
    *,
    out: str | os.PathLike | None = None,
    json: str | os.PathLike | None = None,
    title: str = "",
    limit: int = LIMIT,
    pages: bool = False,
    window: int = 4096,
    progress: Callable[[int], None] | None = None,
) -> Summary:
    """Computes the credit of every rollout with every recipe, and writes what was asked for.

    Args:
      rollouts: a file or directory, or what `creditjax.interop.files.read` makes of one.
      recipes: names of recipes; without any, a few that the first groups have the needs of.
      out: the page.
      json: file for one JSON object a rollout: `schema`, `id`, `group`, `outcome`, `standing`, `dead`, `pieces`,
        `action_mask`, `segment`, `roles`, and by recipe `credit` (null where none was assigned), `segments` (its mean
        over the assigned positions of each) and `against` (how many positions have the other sign than `standing`).
        Groups are together; they come as batches of like sizes are full, not always in the order of the file.
      title: of the page; by default the name of the file.
      limit: rollouts on a page, at most.
      pages: write every rollout, on as many pages as it takes: beside ``report.html`` then ``report-2.html`` and so on.
      window: see `creditjax.interop.batches.groups`.
      progress: called now and then with the number of rollouts that are done.

    Raises:
      FileNotFoundError: there is no such file.
      KeyError: no such recipe, with the nearest names.
      OSError: `out` or `json` cannot be written; before a record is read, where it is a directory, say.
      ValueError: `limit` below 1, one file for both `out` and `json`, a file without rollouts, a record that cannot be
        read (see `files.read`), or none of the recipes can run on any group: with what each lacks, and which could run.
    """
    if limit < 1:
        raise ValueError(f"limit: {limit}, wanted at least 1")
    chosen = [recipe(name) for name in dict.fromkeys(recipes)]
    targets = [os.path.realpath(target) for target in (out, json) if target is not None]
    for target in (out, json):
        if target is not None:
            output.check(target)
    if len(set(targets)) < len(targets) and not output.is_special(targets[0]):
        raise ValueError(f"out and json: both {json}, wanted two files")
    if isinstance(rollouts, files.Reader):
        reader = rollouts
    else:
        title = title or pathlib.Path(rollouts).name
        reader = files.read(rollouts)
    summary = Summary(title or "Rollouts")
    stream = batches(groups(reader, window))
    shelf = _Shelf(limit, pages, pathlib.Path(out) if out is not None else None, summary)
    with reader, _Lines(json) as lines:
        for batch in stream:
            if not summary.groups:
                chosen = [_fitted(made, batch.trajectory) for made in chosen or _default(batch.trajectory)]
                names = [made.name for made in chosen]
                summary.stats = {name: RecipeStats() for name in names}
                summary.pairs = Pairwise(names)
                summary.carried = _carried(batch.trajectory)
                summary.recipes = chosen
            summary.carried &= _carried(batch.trajectory)
            summary.left_out |= batch.left_out
            for group in _credited(batch, chosen, summary):
                summary.add(group)
                lines.write(group)
                shelf.put(group)
            if progress is not None:
                progress(summary.rollouts)
        if not summary.groups:
            why = f", {reader.skipped} could not be read: {reader.reasons[0]}" if reader.skipped else ""
            raise ValueError(f"{summary.source}: no rollouts{why}")
        summary.usable = [name for name in list_recipes() if set(_needs(recipe(name))) <= summary.carried]
        summary.recipes = [made for made in chosen if made.name not in summary.missing]
        summary.format = reader.format.title if reader.format is not None else ""
        summary.skipped, summary.reasons = reader.skipped, [str(reason) for reason in reader.reasons]
        if not summary.recipes:
            raise ValueError(_nothing_runs(summary))
        shelf.close()
    return summary


def _needs(made: Recipe) -> tuple[str, ...]:
    return algebra.needs(made.estimator)


def _carried(batch: Trajectory) -> set[str]:
    return {name for name in (*FIELDS, *batch.signals) if batch.get(name) is not None}


def _default(batch: Trajectory) -> list[Recipe]:
    """A few recipes that differ, and that the batch has the needs of."""
    there = _carried(batch)
    richer = [name for name in _RICHER if set(_needs(recipe(name))) <= there]
    return [recipe(name) for name in (*_ALWAYS, *richer[: _DEFAULT - len(_ALWAYS)])]


def _fitted(made: Recipe, batch: Trajectory) -> Recipe:
    """`gdpo` has as many weights as the file has rewards; any other recipe stays what it is."""
    rewards = batch.signals.get("reward_components")
    return recipe("gdpo", weights=(1.0,) * rewards.shape[-1]) if made.name == "gdpo" and rewards is not None else made


def _credited(batch: Batch, chosen: Sequence[Recipe], summary: Summary) -> Iterator[Group]:
    """The groups of a batch with their credit."""
    there = _carried(batch.trajectory)
    able: list[Recipe] = []
    for made in chosen:
        if lacking := tuple(name for name in _needs(made) if name not in there):
            summary.partly[made.name] += len(batch.groups)
            if not summary.stats[made.name].rollouts:
                summary.missing[made.name] = lacking
            continue
        summary.missing.pop(made.name, None)
        able.append(made)
    # What takes time is the compiler, which lets others run.
    with futures.ThreadPoolExecutor(max(1, len(able))) as pool:
        laid = list(pool.map(lambda made: _laid_back(batch, made.estimator), able))
    credit = {made.name: each for made, each in zip(able, laid, strict=True)}
    for members, ordinal in zip(batch.groups, batch.ordinals, strict=True):
        outcomes = [rollout.outcome for rollout in members]
        counts = votes(outcomes, [bool(rollout.action_mask.any()) for rollout in members])
        yield Group(
            rollouts=members,
            credit={name: [next(each) for _ in members] for name, each in credit.items()},
            dead=dead_reason(outcomes, counts),
            standing=standing(outcomes, counts),
            ordinal=ordinal,
            size=len(members),
        )


def _laid_back(batch: Batch, estimator: Transform) -> Iterator[np.ndarray]:
    made = algebra.estimate(estimator, batch.trajectory)
    value = np.where(np.asarray(made.valid), np.asarray(made.value), np.float32(np.nan))
    return (credit for _, credit in batch.lay_back(value))


def _nothing_runs(summary: Summary) -> str:
    lines = [f"{name}: needs {', '.join(lacking)}" for name, lacking in summary.missing.items()]
    said = [f"{lacking} is {_meaning(lacking)}" for lacking in dict.fromkeys(sum(summary.missing.values(), ()))]
    return "\n".join(
        [
            f"{summary.source}: none of the recipes can run on it.",
            *lines,
            *said,
            f"It has what these need: {', '.join(summary.usable)}",
        ]
    )


def _meaning(name: str) -> str:
    return "a field of the rollout" if name in FIELDS else signal_spec(name).meaning


# --- What is kept for the page ----------------------------------------------------------------------------------------


class _Shelf:
    """Groups on their way to the pages: a sample that stays within the limit, or one page full after the other.

    The sample is spread evenly over the stream whatever its length: a group stays while ``frac(ordinal * golden
    ratio)``, which fills the unit interval more evenly than chance would, is among the smallest.
    """

    def __init__(self, limit: int, pages: bool, out: pathlib.Path | None, summary: Summary):
        self._limit, self._pages, self._out, self._summary = limit, pages, out, summary
        self._kept: list[tuple[float, int, Group]] = []
        self._size = self._positions = 0
        self._first: list[Group] | None = None
        self._last: tuple[int, list[Group]] | None = None
        self._count = 1

    def put(self, group: Group) -> None:
        if self._out is None:
            return
        if self._pages:
            for part in _parts(group, self._limit):
                full = self._size + len(part.rollouts) > self._limit
                if self._kept and (full or self._positions + _positions(part) > _PAGE_POSITIONS):
                    self._turn()
                self._add(part)
            return
        # A group that would fill the page alone is shown in part.
        self._add(_thinned(group, max(1, self._limit // 4)))
        while len(self._kept) > 1 and (self._size > self._limit or self._positions > _PAGE_POSITIONS):
            _, _, dropped = heapq.heappop(self._kept)
            self._size -= len(dropped.rollouts)
            self._positions -= _positions(dropped)

    def close(self) -> None:
        if self._out is None:
            return
        kept = self._groups()
        if self._pages and kept and self._first is not None:
            self._turn()
        first = kept if self._first is None else self._first
        if self._last is not None:
            self._write(*self._last, more=False)
        self._summary.shown += sum(len(group.rollouts) for group in first)
        names = [self._name(number).name for number in range(1, self._count + 1)] if self._pages else []
        text = inspect_page.report(self._summary, first, names)
        self._summary.pages.insert(0, write_whole(self._out, text))

    def _add(self, group: Group) -> None:
        # The smallest of a heap of negated places is the largest place.
        place = (group.ordinal * 0.6180339887498949) % 1.0
        heapq.heappush(self._kept, (-place, group.ordinal, group) if not self._pages else (0, len(self._kept), group))
        self._size += len(group.rollouts)
        self._positions += _positions(group)

    def _groups(self) -> list[Group]:
        # Stable, so parts of one group stay in their order.
        return sorted((group for *_, group in self._kept), key=lambda group: group.ordinal)

    def _turn(self) -> None:
        """Begins a page. The first waits for the statistics, each other one for whether another follows."""
        page = self._groups()
        self._kept, self._size, self._positions = [], 0, 0
        if self._first is None:
            self._first = page
            return
        if self._last is not None:
            self._write(*self._last, more=True)
        self._count += 1
        self._last = self._count, page

    def _write(self, number: int, page: list[Group], more: bool) -> None:
        assert self._out is not None
        names = [self._name(n).name for n in (1, number - 1, *([number + 1] if more else []))]
        self._summary.shown += sum(len(group.rollouts) for group in page)
        self._summary.pages.append(
            write_whole(self._name(number), inspect_page.further(self._summary, page, number, names))
        )

    def _name(self, number: int) -> pathlib.Path:
        assert self._out is not None
        return self._out if number == 1 else self._out.with_name(f"{self._out.stem}-{number}{self._out.suffix}")


def _positions(group: Group) -> int:
    return sum(rollout.length for rollout in group.rollouts)


def _part(group: Group, index: Sequence[int]) -> Group:
    return group._replace(
        rollouts=[group.rollouts[i] for i in index],
        credit={name: [credits[i] for i in index] for name, credits in group.credit.items()},
        standing=group.standing[list(index)],
    )


def _parts(group: Group, size: int) -> Iterator[Group]:
    """The group in runs of at most `size` rollouts, and of at most a page's positions unless one rollout has more."""
    start = positions = 0
    for i, rollout in enumerate(group.rollouts):
        if i > start and (i - start >= size or positions + rollout.length > _PAGE_POSITIONS):
            yield _part(group, range(start, i))
            start, positions = i, 0
        positions += rollout.length
    yield _part(group, range(start, len(group.rollouts)))


def _thinned(group: Group, size: int) -> Group:
    """At most `size` of the rollouts, spread evenly, and no more than have room on a page, but one."""
    count = len(group.rollouts)
    if _positions(group) > _PAGE_POSITIONS:
        size = min(size, max(1, _PAGE_POSITIONS // max(rollout.length for rollout in group.rollouts)))
    if count <= size:
        return group
    return _part(group, sorted({int(i) for i in np.linspace(0, count - 1, size)}))


# --- Machine-readable output ------------------------------------------------------------------------------------------


class _Lines:
    """JSON lines of credit; the file appears under its name when it is whole."""

    def __init__(self, path: str | os.PathLike | None):
        self._whole = contextlib.nullcontext() if path is None else output.whole(path)

    def __enter__(self) -> "_Lines":
        self._file = self._whole.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._whole.__exit__(*error)

    def write(self, group: Group) -> None:
        """Writes the rollouts of a group."""
        if self._file is None:
            return
        for g, rollout in enumerate(group.rollouts):
            credits = {name: each[g] for name, each in group.credit.items()}
            place = float(group.standing[g])
            record = {
                "schema": SCHEMA,
                "id": rollout.id,
                "group": rollout.group,
                "outcome": _finite(rollout.outcome),
                "standing": _finite(place),
                "dead": group.dead or None,
                "pieces": rollout.pieces,
                "action_mask": rollout.action_mask.tolist(),
                "segment": rollout.segment.tolist(),
                "roles": rollout.roles,
                "credit": {name: _numbers(credit) for name, credit in credits.items()},
                "segments": {
                    name: _numbers(segment_means(credit, rollout.segment, rollout.num_segments))
                    for name, credit in credits.items()
                },
                "against": {name: int(against_outcome(credit, place).sum()) for name, credit in credits.items()},
            }
            self._file.write(json_lib.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _numbers(values: np.ndarray) -> list[float | None]:
    there = np.isfinite(values)
    numbers = values.tolist()
    return numbers if there.all() else [x if ok else None for x, ok in zip(numbers, there.tolist(), strict=True)]
