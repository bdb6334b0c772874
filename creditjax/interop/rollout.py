"""The record of one rollout as it lies in a file: what was asked, what was written piece by piece, what it earned.

A :class:`Rollout` is on the host and of any length; `creditjax.interop.batches` lays groups of them into a
:class:`creditjax.Trajectory` ``[P, G, T]``. Here T are the positions of this rollout alone and K its own segments.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

SCHEMA = "creditjax.rollout/1"
"""Name and version of the schema; every record in a file states it."""

ENDS = ("unknown", "terminated", "truncated")
UNITS = ("turn", "step")

# Deeper `meta` is nobody's log, and would overflow the stack of whoever reads it.
_DEEPEST = 64
_DTYPES = {"float32": np.dtype(np.float32), "int32": np.dtype(np.int32), "bool": np.dtype(bool)}
_KINDS = {"float32": "fiub", "int32": "iu", "bool": "b"}


class Message(NamedTuple):
    """One message of a conversation: who spoke, and the text."""

    role: str
    content: str


class Signal(NamedTuple):
    """A named quantity of one rollout.

    Attributes:
      axes: names of the axes of `values`: those of the signal table without P and G, or names of your own. "T", "K" and
        "K+1" have the sizes of this rollout, and a name stands for one size throughout the record.
      values: float32, int32 or bool, with these axes. NaN: never evaluated.
    """

    axes: tuple[str, ...]
    values: Any


@dataclasses.dataclass(frozen=True, eq=False)
class Rollout:
    """One rollout of a policy. Equality is that of every bit of every field (a NaN equals any NaN, 0 is not -0).

    Arrays that have the type of their field are not copied, so write to none that was handed over.

    Attributes:
      id: name of the rollout, unique in its file.
      group: name of its group: rollouts of the same draw of a prompt (or start state) share it.
      prompt: messages before the first position, such as a system prompt and a question.
      pieces: the text of each position, ``[T]``; concatenated they are all that followed the prompt.
      outcome: the verifier's score of the whole rollout, a float32; NaN means unscored.
      action_mask: bool ``[T]``, True where the policy acted. Default: everywhere.
      segment: i32 ``[T]``, the segment of each position in 0..K-1, never decreasing, -1 for none. Default: the whole
        rollout is one segment.
      roles: who acted or spoke in each segment, ``[K]``: "assistant" (the policy), "tool", "user", "environment", …
        Default: "assistant" throughout.
      unit: what a segment is: a "turn" of an exchange, or a "step" (a line, an action) of a single one.
      tokens: i32 ``[T]``, token or action ids; None where the file has text alone.
      reward: f32 ``[T]``, the *whole* reward stream, 0 where none; it contains what the outcome pays.
      segment_reward: f32 ``[K]``, a reward for each turn or step, NaN where it was never scored.
      logprob: f32 ``[T]``, log-probability of each token under the distribution it was sampled from.
      end: "terminated" (nothing follows the last position), "truncated" (cut off there), or "unknown".
      signals: anything else that has numbers, by name.
      meta: anything else that is JSON: step, epoch, ground truth, data source.

    Raises:
      ValueError: a shape or value that does not fit, naming the field, what was found and what was wanted.
      TypeError: a value that is no string, number, array or mapping where one is wanted.

    >>> Rollout(id="a", group="q", pieces=["2", "+2", "=4"], outcome=1.0).segment.tolist()
    [0, 0, 0]
    """

    id: str
    group: str
    pieces: tuple[str, ...]
    outcome: float = math.nan
    prompt: tuple[Message, ...] = ()
    action_mask: Any = None
    segment: Any = None
    roles: tuple[str, ...] | None = None
    unit: str = "turn"
    tokens: Any = None
    reward: Any = None
    segment_reward: Any = None
    logprob: Any = None
    end: str = "unknown"
    signals: Mapping[str, Signal] = dataclasses.field(default_factory=dict)
    meta: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        put = object.__setattr__
        _text("id", self.id)
        _text("group", self.group)
        put(self, "pieces", _texts("pieces", self.pieces))
        put(self, "prompt", _messages(self.prompt))
        put(self, "outcome", _score("outcome", self.outcome))
        length = len(self.pieces)
        sizes = {"T": length}
        if self.action_mask is None:
            put(self, "action_mask", np.ones(length, bool))
        put(self, "action_mask", _array("action_mask", self.action_mask, "bool", ("T",), sizes))
        if self.segment is None:
            if self.roles is not None:
                raise ValueError("roles: given without `segment`, wanted both or neither")
            put(self, "segment", np.zeros(length, np.int32))
        put(self, "segment", _array("segment", self.segment, "int32", ("T",), sizes))
        owned = self.segment[self.segment >= 0]
        if self.roles is None:
            put(self, "roles", ("assistant",) * (int(owned[-1]) + 1 if owned.size else 0))
        put(self, "roles", _texts("roles", self.roles))
        count = self.num_segments
        sizes |= {"K": count, "K+1": count + 1}
        if length and not -1 <= self.segment.min() <= self.segment.max() < count:
            found = self.segment[(self.segment < -1) | (self.segment >= count)][0]
            raise ValueError(f"segment: {found}, wanted -1 or a segment in 0..{count - 1} (there are {count} roles)")
        if (falls := np.flatnonzero(owned[1:] < owned[:-1])).size:
            before, after = owned[falls[0]], owned[falls[0] + 1]
            raise ValueError(f"segment: {after} after {before}, wanted segments in the order in which they came")
        for name, dtype, axes in (
            ("tokens", "int32", ("T",)),
            ("reward", "float32", ("T",)),
            ("segment_reward", "float32", ("K",)),
            ("logprob", "float32", ("T",)),
        ):
            if (value := getattr(self, name)) is not None:
                put(self, name, _array(name, value, dtype, axes, sizes))
        if self.reward is not None and not np.isfinite(self.reward).all():
            raise ValueError(f"reward: {_first(self.reward, ~np.isfinite(self.reward))}, wanted finite numbers")
        if self.segment_reward is not None and np.isinf(self.segment_reward).any():
            raise ValueError("segment_reward: infinite, wanted finite numbers, or NaN where it was never scored")
        if self.logprob is not None:
            # A rounding error above 0 is what a float32 log-softmax gives for certainty.
            bad = self.action_mask & ~(np.isfinite(self.logprob) & (self.logprob <= 1e-4))
            if bad.any():
                found = _first(self.logprob, bad)
                raise ValueError(
                    f"logprob: {found}, wanted a finite log-probability, at most 0, where the policy acted"
                )
        if self.unit not in UNITS:
            raise ValueError(f"unit: {_shown(self.unit)}, wanted one of {', '.join(UNITS)}")
        if self.end not in ENDS:
            raise ValueError(f"end: {_shown(self.end)}, wanted one of {', '.join(ENDS)}")
        put(self, "signals", _signals(self.signals, sizes))
        if not isinstance(self.meta, Mapping):
            raise TypeError(f"meta: {type(self.meta).__name__}, wanted a mapping from names to JSON values")
        put(self, "meta", _json("meta", self.meta, 0) if self.meta else {})

    @property
    def length(self) -> int:
        """T, the number of positions."""
        return len(self.pieces)

    @property
    def num_segments(self) -> int:
        """K, the number of segments."""
        return len(self.roles or ())

    @property
    def text(self) -> str:
        """Everything after the prompt."""
        return "".join(self.pieces)

    def messages(self) -> list[Message]:
        """The whole conversation: the prompt, then what each segment said (positions outside them left out)."""
        said: list[list[str]] = [[] for _ in self.roles or ()]
        for piece, k in zip(self.pieces, self.segment.tolist(), strict=True):
            if k >= 0:
                said[k].append(piece)
        turns = [Message(role, "".join(words)) for role, words in zip(self.roles or (), said, strict=True)]
        return [*self.prompt, *turns]

    def replace(self, **changes: Any) -> "Rollout":
        """A copy with some fields changed, checked like a new one."""
        return dataclasses.replace(self, **changes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Rollout):
            return NotImplemented
        return all(_same(getattr(self, f.name), getattr(other, f.name)) for f in dataclasses.fields(self))

    __hash__ = None  # type: ignore[assignment]  # it holds arrays and mappings


def _shown(value: Any) -> str:
    """What was found, short enough for a message."""
    said = repr(value) if isinstance(value, str | int | float | bool | None) else type(value).__name__
    return said if len(said) <= 60 else said[:57] + "..."


def _first(values: np.ndarray, where: np.ndarray) -> str:
    at = int(np.flatnonzero(where)[0])
    return f"{values.reshape(-1)[at]} at {at}"


def _text(name: str, value: Any) -> None:
    if type(value) is not str:
        raise TypeError(f"{name}: {_shown(value)}, wanted a string")
    if not value.isascii():
        _encodable(name, value)


def _encodable(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = f"{error.object[error.start]!r} at character {error.start}"
        raise ValueError(f"{name}: the lone surrogate {found}, wanted Unicode text") from None


def _texts(name: str, values: Any) -> tuple[str, ...]:
    if type(values) is str or not isinstance(values, Sequence | np.ndarray):
        raise TypeError(f"{name}: {_shown(values)}, wanted a list of strings")
    values = tuple(values)
    try:
        whole = "".join(values)
    except TypeError:
        at = next(i for i, value in enumerate(values) if not isinstance(value, str))
        raise TypeError(f"{name}[{at}]: {_shown(values[at])}, wanted a string") from None
    # Strings of NumPy would not be equal to those that are read back.
    values = tuple(value if type(value) is str else str(value) for value in values)
    # A pair of surrogates in two pieces would look whole when joined, so the pieces are encoded one by one.
    if not whole.isascii():
        for i, value in enumerate(values):
            _encodable(f"{name}[{i}]", value)
    return values


def _messages(values: Any) -> tuple[Message, ...]:
    if type(values) is str or not isinstance(values, Sequence):
        raise TypeError(f"prompt: {_shown(values)}, wanted a list of messages (role, content)")
    done = []
    for i, value in enumerate(values):
        if not isinstance(value, Sequence) or isinstance(value, str) or len(value) != 2:
            raise TypeError(f"prompt[{i}]: {_shown(value)}, wanted a message (role, content)")
        _text(f"prompt[{i}].role", value[0])
        _text(f"prompt[{i}].content", value[1])
        done.append(Message(*value))
    return tuple(done)


def _score(name: str, value: Any) -> float:
    if isinstance(value, str) or not hasattr(value, "__float__"):
        raise TypeError(f"{name}: {_shown(value)}, wanted a number, NaN for unscored")
    try:
        with np.errstate(over="ignore"):
            score = float(np.float32(value))
    except (OverflowError, TypeError, ValueError):
        raise ValueError(f"{name}: {_shown(value)}, wanted one finite float32, NaN for unscored") from None
    if math.isinf(score):
        raise ValueError(f"{name}: {_shown(value)}, wanted a finite float32, NaN for unscored")
    return score


def _array(name: str, value: Any, dtype: str, axes: tuple[str, ...], sizes: dict[str, int]) -> np.ndarray:
    wanted = _DTYPES[dtype]
    if not isinstance(value, np.ndarray):
        try:
            value = np.asarray(value)
        except (ValueError, OverflowError, TypeError):
            raise ValueError(f"{name}: ragged or no numbers, wanted {dtype} [{', '.join(axes)}]") from None
    if value.dtype != wanted:
        # An empty list has no kind of its own.
        if value.size and value.dtype.kind not in _KINDS[dtype]:
            raise TypeError(f"{name}: dtype {value.dtype}, wanted {dtype}")
        if dtype == "int32" and value.size:
            limits = np.iinfo(np.int32)
            for extreme in (value.min(), value.max()):
                if not limits.min <= int(extreme) <= limits.max:
                    raise ValueError(f"{name}: {extreme}, wanted int32, in {limits.min}..{limits.max}")
        with np.errstate(over="ignore"):
            cast = value.astype(wanted)
        if dtype == "float32" and (over := np.isinf(cast) & np.isfinite(value)).any():
            raise ValueError(f"{name}: {_first(value, over)}, wanted numbers that float32 can hold")
        value = cast
    if value.ndim != len(axes) or any(sizes.get(a, n) != n for a, n in zip(axes, value.shape, strict=True)):
        said = ", ".join(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)
        raise ValueError(f"{name}: shape {list(value.shape)}, wanted [{said}]")
    value = value.view()
    value.flags.writeable = False
    return value


def _signals(signals: Any, sizes: dict[str, int]) -> dict[str, Signal]:
    if not isinstance(signals, Mapping):
        raise TypeError(f"signals: {type(signals).__name__}, wanted a mapping from names to Signal(axes, values)")
    done = {}
    known = dict(sizes)
    for name, signal in signals.items():
        _text("signals", name)
        label = f"signals[{name!r}]"
        if not isinstance(signal, Sequence) or isinstance(signal, str) or len(signal) != 2:
            raise TypeError(f"{label}: {_shown(signal)}, wanted Signal(axes, values)")
        axes = _texts(f"{label}.axes", signal[0])
        values = signal[1]
        try:
            values = values if isinstance(values, np.ndarray) else np.asarray(values)
        except (ValueError, OverflowError, TypeError):
            raise ValueError(f"{label}: ragged or no numbers, wanted an array [{', '.join(axes)}]") from None
        dtype = {"b": "bool", "i": "int32", "u": "int32", "f": "float32"}.get(values.dtype.kind)
        if dtype is None:
            raise TypeError(f"{label}: dtype {values.dtype}, wanted float32, int32 or bool")
        values = _array(label, values, dtype, axes, known)
        for axis, size in zip(axes, values.shape, strict=True):
            if known.setdefault(axis, size) != size:
                raise ValueError(f"{label}: axis {axis} of {size} and of {known[axis]}, wanted one size")
        done[name] = Signal(axes, values)
    return dict(sorted(done.items()))


def _json(name: str, value: Any, depth: int) -> Any:
    """A copy of a JSON value in the types that a reader of JSON makes."""
    if value is None or type(value) in (bool, int):
        return value
    if type(value) is str:
        if not value.isascii():
            _encodable(name, value)
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise ValueError(f"{name}: {value}, wanted a finite number (JSON has no other)")
        return value
    if depth == _DEEPEST:
        raise ValueError(f"{name}: nested deeper than {_DEEPEST}, wanted a plain record")
    if isinstance(value, Mapping):
        for key in value:
            _text(f"{name} (a key)", key)
        return {key: _json(f"{name}[{key!r}]", each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_json(f"{name}[{i}]", each, depth + 1) for i, each in enumerate(value)]
    raise TypeError(f"{name}: {type(value).__name__}, wanted a JSON value")


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        if a.dtype != np.float32:
            return bool(np.array_equal(a, b))
        signs = (np.signbit(a) == np.signbit(b)) | np.isnan(a)
        return bool(np.array_equal(a, b, equal_nan=True) and signs.all())
    if isinstance(a, float) and isinstance(b, float):
        return (math.isnan(a) and math.isnan(b)) or (a == b and math.copysign(1, a) == math.copysign(1, b))
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return list(a) == list(b) and all(_same(a[key], b[key]) for key in a)
    if isinstance(a, tuple | list):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
