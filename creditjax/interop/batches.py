"""From a stream of rollouts to batches ``[P, G, T]`` of few shapes, and from credit back to the pieces of each rollout.

    for batch in batches(groups(read("dump.jsonl"))):
        credit = creditjax.estimate(estimator, batch.trajectory)
        for rollout, value, valid in batch.lay_back(credit.value, credit.valid):
            ...                                                                            # [T] of this rollout

Axes are rounded up to a few sizes, and groups of like sizes share a batch, so that an estimator is compiled a few times
whatever the file holds. Places without a rollout act nowhere and do not vote.
"""

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
import hashlib
from typing import Any, NamedTuple

import numpy as np

from creditjax.interop.rollout import Rollout
from creditjax.interop.rows import round_up
from creditjax.interop.text import word_ids
from creditjax.packing import _BLANK_IS_MINUS_ONE
from creditjax.signal_table import SIGNALS, SignalSpec
from creditjax.trajectory import Trajectory

Array = Any

_BLANK = {"float32": 0.0, "int32": 0, "bool": False}


class Batch(NamedTuple):
    """A batch and whose it is.

    Attributes:
      trajectory: leading axes ``[P, G]``. Its segments are those of each rollout in which the policy acted, numbered
        anew; positions of the others have none.
      groups: the rollouts in their places: `groups[p][g]`. There may be fewer than P and G.
      ordinals: for each group its place in the stream, from 0.
      segments: for each rollout the numbers, in it, of the batch's segments, i32 ``[K_acted]``.
      left_out: signals that some rollouts have and the batch has not, with the reason.
    """

    trajectory: Trajectory
    groups: list[list[Rollout]]
    ordinals: list[int]
    segments: list[list[np.ndarray]]
    left_out: dict[str, str]

    def lay_back(self, *values: Array, axis: str = "T") -> Iterator[tuple]:
        """Arrays of the batch, cut back to each rollout: tuples ``(rollout, value, ...)``, groups in their order.

        Args:
          *values: arrays with the leading axes of the batch, then T, K, or nothing (`axis` says).
          axis: "T": values are ``[T]`` of the rollout. "K": ``[K]`` of the rollout's own segments; where the policy did
            not act in one, NaN (floats), -1 (integers) or False. "": one value.

        Raises:
          ValueError: another axis, or an array whose leading axes are not those of the batch.
        """
        sizes = {"T": self.trajectory.length, "K": self.trajectory.num_segments}
        if axis not in (*sizes, ""):
            raise ValueError(f"axis: {axis!r}, wanted 'T', 'K' or ''")
        wanted = (*self.trajectory.batch_shape, *((sizes[axis],) if axis else ()))
        arrays = [np.asarray(value) for value in values]
        for i, array in enumerate(arrays):
            if array.shape[: len(wanted)] != wanted:
                raise ValueError(f"values[{i}]: shape {list(array.shape)}, wanted {list(wanted)} in front")
        for p, group in enumerate(self.groups):
            for g, rollout in enumerate(group):
                yield (rollout, *(self._cut(array[p, g], rollout, self.segments[p][g], axis) for array in arrays))

    @staticmethod
    def _cut(x: np.ndarray, rollout: Rollout, kept: np.ndarray, axis: str) -> Any:
        if axis == "":
            return x
        if axis == "T":
            return x[: rollout.length]
        blank = {"f": np.nan, "i": -1}.get(x.dtype.kind, 0)
        whole = np.full((rollout.num_segments, *x.shape[1:]), blank, x.dtype)
        whole[kept] = x[: len(kept)]
        return whole


def groups(rollouts: Iterable[Rollout], window: int = 4096) -> Iterator[list[Rollout]]:
    """Gathers the rollouts of each group, which may be interleaved: groups in the order in which they are complete.

    A group is complete when `window` rollouts have passed since its last one, or the stream ends, so at most that many
    groups are open. The names of complete groups are remembered (by 8 bytes each), so that none is split unnoticed.

    Raises:
      ValueError: a group that goes on after it was complete, naming it; or a window below 1.
    """
    if window < 1:
        raise ValueError(f"window: {window}, wanted at least 1")
    waiting: OrderedDict[str, tuple[int, list[Rollout]]] = OrderedDict()
    done = _Seen()
    for number, rollout in enumerate(rollouts):
        name = rollout.group
        if name in waiting:
            members = waiting[name][1]
            waiting.move_to_end(name)
        else:
            if name in done:
                raise ValueError(
                    f"group {name[:60]!r}: goes on more than {window} rollouts after its last, wanted the rollouts of "
                    "a group near each other; a larger window holds more of them"
                )
            members = []
        members.append(rollout)
        waiting[name] = number, members
        while waiting and next(iter(waiting.values()))[0] <= number - window:
            complete, (_, members) = waiting.popitem(last=False)
            done.add(complete)
            yield members
    for _, members in waiting.values():
        yield members


class _Seen:
    """A set of names that takes 8 bytes a name: sorted arrays of hashes, merged as they grow."""

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []
        self._fresh: set[int] = set()

    @staticmethod
    def _hash(name: str) -> int:
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")

    def add(self, name: str) -> None:
        self._fresh.add(self._hash(name))
        if len(self._fresh) == 4096:
            run = np.sort(np.fromiter(self._fresh, np.uint64, len(self._fresh)))
            self._fresh.clear()
            # Runs double, as the digits of a binary counter, so that merging costs a logarithm.
            while self._runs and len(self._runs[-1]) <= len(run):
                run = np.sort(np.concatenate([self._runs.pop(), run]))
            self._runs.append(run)

    def __contains__(self, name: str) -> bool:
        code = self._hash(name)
        if code in self._fresh:
            return True
        wanted = np.uint64(code)
        return any(run[min(int(np.searchsorted(run, wanted)), len(run) - 1)] == wanted for run in self._runs)


def batches(
    groups: Iterable[Sequence[Rollout]], *, positions: int = 1 << 16, fields: Sequence[str] = ()
) -> Iterator[Batch]:
    """Lays groups into batches.

    A batch holds groups whose G, T and K round up to the same sizes and whose rollouts carry the same fields (at the
    end of the stream, smaller ones too). Its P is so many that P * G * T is about `positions`, and always the same for
    these sizes. Batches come as they are full, at the end those that are not; `Batch.ordinals` says where their groups
    were in the stream.

    What of a rollout goes where: tokens, or the ids of its words where it has none, to `tokens`; the reward stream to
    `reward`, or, where there is none and the rewards of the segments add up to the outcome, these, each on the last
    acted position of its segment; the rewards of the segments to the signal `process_reward` too; `end` to
    `terminated` and `truncated`; signals by name to the signals of the table if axes and dtype fit. A field is there if
    all rollouts of the group have it. Segments in which the policy did not act are no segments of the batch; their
    rewards go to the one before.

    Args:
      groups: rollouts of each group, from :func:`groups` say.
      positions: of a batch, padding included: what bounds memory.
      fields: fields and signals that every group has to have.

    Raises:
      ValueError: a group without rollouts, or without one of `fields`, naming it.
    """
    if positions < 1:
        raise ValueError(f"positions: {positions}, wanted at least 1")
    waiting: dict[_Shape, list[_Group]] = {}
    for ordinal, members in enumerate(groups):
        group = _Group(list(members), ordinal)
        for name in fields:
            if name not in group.shape.has:
                reason = group.left_out.get(name, "not in every rollout")
                raise ValueError(f"{name}: absent in group {group.members[0].group[:60]!r} ({reason})")
        some = waiting.setdefault(group.shape, [])
        some.append(group)
        if len(some) == group.shape.prompts(positions):
            yield _batch(group.shape, waiting.pop(group.shape), positions)
    yield from _rest(waiting, positions)


class _Shape(NamedTuple):
    """What the groups of a batch have in common: sizes, rounded up, and what they carry."""

    rollouts: int
    length: int
    segments: int
    has: frozenset[str]
    extra: tuple[tuple[str, tuple[int, ...]], ...]

    def prompts(self, positions: int) -> int:
        """P, so that a batch has about `positions` positions."""
        return max(1, positions // (self.rollouts * self.length))

    def holds(self, other: "_Shape") -> bool:
        """Whether a group of the other shape fits in."""
        return self[3:] == other[3:] and all(a >= b for a, b in zip(self[:3], other[:3], strict=True))


def _rest(waiting: dict[_Shape, list["_Group"]], positions: int) -> Iterator[Batch]:
    """Batches that did not become full, the largest first: what is left of smaller ones takes the free places."""
    left = sorted(waiting.items(), key=lambda item: item[0][:3], reverse=True)
    while left:
        shape, some = left.pop(0)
        free = shape.prompts(positions) - len(some)
        for other, more in left:
            if shape.holds(other):
                taken, more[:] = more[:free], more[free:]
                some += taken
                free -= len(taken)
        yield _batch(shape, sorted(some, key=lambda group: group.ordinal), positions)
        left = [(other, more) for other, more in left if more]


def _power(size: int, least: int) -> int:
    return max(least, 1 << max(size - 1, 0).bit_length())


class _Group:
    """The rollouts of a group, with what they have in common."""

    def __init__(self, members: list[Rollout], ordinal: int):
        if not members:
            raise ValueError("groups: one without rollouts, wanted at least one")
        self.members = members
        self.ordinal = ordinal
        self.kept = [_acted_segments(rollout) for rollout in members]
        self.left_out: dict[str, str] = {}
        rewards = [_reward_stream(*pair) for pair in zip(members, self.kept, strict=True)]
        self.reward = rewards if all(reward is not None for reward in rewards) else None
        has = {"reward"} if self.reward is not None else set()
        if all(rollout.logprob is not None for rollout in members):
            has.add("logprob")
        if all(rollout.end != "unknown" for rollout in members):
            has |= {"terminated", "truncated"}
        if all(rollout.segment_reward is not None for rollout in members):
            has.add("process_reward")
        extra: list[tuple[str, tuple[int, ...]]] = []
        for name in sorted({name for rollout in members for name in rollout.signals}):
            reason = self._reason(name)
            if reason is None:
                own = _own_axes(SIGNALS[name])
                shape = np.shape(members[0].signals[name].values)
                extra.append((name, tuple(n for n, a in zip(shape, own, strict=True) if a not in _STRETCHED)))
                has.add(name)
            else:
                self.left_out[name] = reason
        segments = max(len(kept) for kept in self.kept)
        # Coarse, so that a file of lengths of all kinds has a handful of shapes.
        length = _power(max(rollout.length for rollout in members), 32)
        self.shape = _Shape(round_up(len(members)), length, _power(segments, 8), frozenset(has), tuple(extra))

    def _reason(self, name: str) -> str | None:
        """Why a signal cannot be a signal of the batch, None if it can."""
        spec = SIGNALS.get(name)
        if spec is None:
            return "not in the signal table (creditjax.declare_signal adds it)"
        if "P" not in spec.axes:
            return "one value for a whole batch in the signal table"
        if name == "token_mask":
            return "made of the pieces"
        signals = [rollout.signals.get(name) for rollout in self.members]
        own = _own_axes(spec)
        shapes = set()
        for signal in signals:
            if signal is None:
                return "not in every rollout of its group"
            if signal.axes != own:
                return f"axes [{', '.join(signal.axes)}], wanted [{', '.join(own)}]"
            dtype = str(signal.values.dtype)
            if dtype != spec.dtype and spec.dtype != "float32":
                return f"{dtype}, wanted {spec.dtype}"
            shapes.add(tuple(n for n, a in zip(signal.values.shape, own, strict=True) if a not in _STRETCHED))
        if len(shapes) > 1:
            return "of different sizes in a group"
        if "G" not in spec.axes:
            first = signals[0].values  # type: ignore[union-attr]
            for signal in signals[1:]:
                if not np.array_equal(first, signal.values, equal_nan=first.dtype.kind == "f"):  # type: ignore[union-attr]
                    return "different in one group, wanted one value for its prompt"
        return None


_STRETCHED = ("T", "K", "K+1")


def _own_axes(spec: SignalSpec) -> tuple[str, ...]:
    return tuple(axis for axis in spec.axes if axis not in ("P", "G"))


def _acted_segments(rollout: Rollout) -> np.ndarray:
    """Numbers of the segments in which the policy acted."""
    acted = rollout.segment[rollout.action_mask]
    return np.unique(acted[acted >= 0]).astype(np.int32)


def _gathered(rollout: Rollout, kept: np.ndarray) -> np.ndarray:
    """Rewards of the kept segments, those of the others added to the one before (the first, where there is none);
    NaN where none of them was scored.
    """
    owner = np.maximum(np.searchsorted(kept, np.arange(rollout.num_segments), side="right") - 1, 0)
    reward = rollout.segment_reward
    scored = ~np.isnan(reward)
    sums = np.bincount(owner[scored], reward[scored], max(len(kept), 1))
    counts = np.bincount(owner[scored], minlength=max(len(kept), 1))
    return np.where(counts > 0, sums, np.nan).astype(np.float32)[: len(kept)]


def _reward_stream(rollout: Rollout, kept: np.ndarray) -> np.ndarray | None:
    if rollout.reward is not None:
        return rollout.reward
    if rollout.segment_reward is None or not len(kept):
        return None
    sums = np.nan_to_num(_gathered(rollout, kept), nan=0.0)
    total = float(sums.sum(dtype=np.float64))
    if not abs(total - rollout.outcome) <= 1e-4 * max(1.0, abs(rollout.outcome)):
        return None
    stream = np.zeros(rollout.length, np.float32)
    acted = np.flatnonzero(rollout.action_mask & (rollout.segment >= 0))
    # Segments never decrease, so the last position of each is found by bisection.
    stream[acted[np.searchsorted(rollout.segment[acted], kept, side="right") - 1]] = sums
    return stream


def _batch(shape: _Shape, some: list[_Group], positions: int) -> Batch:
    g_size, t_size, k_size, has, sizes = shape
    p_size = shape.prompts(positions)
    lead = (p_size, g_size)
    fields: dict[str, np.ndarray] = {
        "tokens": np.zeros((*lead, t_size), np.int32),
        "action_mask": np.zeros((*lead, t_size), bool),
        "outcome": np.full(lead, np.nan, np.float32),
        "segment": np.full((*lead, t_size), -1, np.int32),
        "votes": np.zeros(lead, bool),
    }
    for name, dtype in (("reward", np.float32), ("logprob", np.float32), ("terminated", bool), ("truncated", bool)):
        if name in has:
            fields[name] = np.zeros((*lead, t_size), dtype)
    signals = {"token_mask": np.zeros((*lead, t_size), bool)}
    if "process_reward" in has:
        signals["process_reward"] = np.full((*lead, k_size), np.nan, np.float32)
    stretched = {"T": t_size, "K": k_size, "K+1": k_size + 1}
    for name, fixed in sizes:
        spec = SIGNALS[name]
        rest = iter(fixed)
        own_sizes = [stretched[axis] if axis in stretched else next(rest) for axis in _own_axes(spec)]
        blank = np.nan if spec.may_be_missing else -1 if name in _BLANK_IS_MINUS_ONE else _BLANK[spec.dtype]
        batched = lead if "G" in spec.axes else lead[:1]
        signals[name] = np.full((*batched, *own_sizes), blank, spec.dtype)
    segments: list[list[np.ndarray]] = []
    left_out: dict[str, str] = {}
    for p, group in enumerate(some):
        left_out |= group.left_out
        segments.append(group.kept)
        for g, (rollout, kept) in enumerate(zip(group.members, group.kept, strict=True)):
            own = slice(rollout.length)
            acted = np.flatnonzero(rollout.action_mask)
            fields["tokens"][p, g, own] = rollout.tokens if rollout.tokens is not None else word_ids(rollout.pieces)
            fields["action_mask"][p, g, own] = rollout.action_mask
            fields["outcome"][p, g] = rollout.outcome
            fields["votes"][p, g] = acted.size > 0  # what nobody chose says nothing of what was chosen
            fields["segment"][p, g, own] = _renumbered(rollout, kept)
            signals["token_mask"][p, g, own] = True
            if group.reward is not None:
                fields["reward"][p, g, own] = group.reward[g]
            if "logprob" in has:
                fields["logprob"][p, g, own] = rollout.logprob
            if rollout.end != "unknown" and rollout.end in has and acted.size:
                fields[rollout.end][p, g, acted[-1]] = True
            if "process_reward" in has and not any(name == "process_reward" for name, _ in sizes):
                signals["process_reward"][p, g, : len(kept)] = _gathered(rollout, kept)
            for name, _ in sizes:
                place = (p, g) if "G" in SIGNALS[name].axes else (p,)
                _lay(signals[name][(*place, ...)], rollout.signals[name].values, _own_axes(SIGNALS[name]), kept)
    trajectory = Trajectory(**fields, signals=signals, num_segments=k_size)
    return Batch(trajectory, [group.members for group in some], [group.ordinal for group in some], segments, left_out)


def _renumbered(rollout: Rollout, kept: np.ndarray) -> np.ndarray:
    numbers = np.full(rollout.num_segments + 1, -1, np.int32)  # the last one is read by -1
    numbers[kept] = np.arange(len(kept))
    return numbers[rollout.segment]


def _lay(target: np.ndarray, values: np.ndarray, axes: tuple[str, ...], kept: np.ndarray) -> None:
    """Writes the values of one rollout into its place, its segments chosen and numbered as in the batch."""
    index: list[Any] = []
    for at, axis in enumerate(axes):
        if axis == "K":
            values = np.take(values, kept, at)
        elif axis == "K+1":
            # The boundary before each segment, then the end; which is repeated, so that no segment adds anything.
            values = np.take(values, [*kept, *[values.shape[at] - 1] * (target.shape[at] - len(kept))], at)
        index.append(slice(values.shape[at]))
    target[tuple(index)] = values
