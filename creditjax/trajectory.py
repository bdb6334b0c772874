"""The one type that flows through the library; `creditjax.signal_table` lists what may ride on it.

A :class:`Trajectory` is a frozen pytree of arrays with static shapes. Batches have the leading axes ``[P, G]``: P
prompts (or start states) and G rollouts of each, its *group*. The estimator of one group sees the same type with the
leading axis ``[G]``, and a single rollout has none. The last axis of a per-position field is T.

Three questions have three masks and never share one: where did the policy act (``action_mask``); which rollouts count
in a baseline (:func:`vote_mask`); which positions enter the loss, over which denominator (the objective's business).
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest
from creditjax.signal_table import SIGNALS, SignalSpec

Array = jax.Array


# Names that could be read two ways, with what to say instead.
AMBIGUOUS = {
    "done": "say `terminated` (the episode ended) or `truncated` (it was cut off)",
    "mask": "say `action_mask` (where the policy acted) or the signal `token_mask` (where there is a token)",
    "segment_id": "the field is called `segment`",
    "agent_id": "the signal is called `agent`",
}

_DTYPES = {"float32": jnp.float32, "int32": jnp.int32, "bool": jnp.bool_}


def declare_signal(name: str, spec: SignalSpec) -> None:
    """Adds a signal of your own to the table, so that a `Trajectory` may carry it.

    Raises:
      ValueError: the name is a field of `Trajectory`, an ambiguous name, or declared already with another meaning.
    """
    if name in _FIELD_AXES or name in AMBIGUOUS:
        raise ValueError(f"signal {name!r}: {AMBIGUOUS.get(name, 'this is the name of a Trajectory field')}")
    if SIGNALS.get(name, spec) != spec:
        raise ValueError(f"signal {name!r} is declared already: {SIGNALS[name]}")
    if spec.dtype not in _DTYPES:
        raise ValueError(f"signal {name!r}: dtype {spec.dtype!r}, wanted one of {sorted(_DTYPES)}")
    SIGNALS[name] = spec


def signal_spec(name: str) -> SignalSpec:
    """The table's row for `name`; a `KeyError` that names the nearest declared signals otherwise."""
    if name in SIGNALS:
        return SIGNALS[name]
    for declared, spec in SIGNALS.items():
        if name in spec.aliases:
            raise KeyError(f"signal {name!r} is called {declared!r} here")
    if name in AMBIGUOUS:
        raise KeyError(f"signal {name!r} is ambiguous: {AMBIGUOUS[name]}")
    raise KeyError(
        f"signal {name!r} is not declared (creditjax.declare_signal(name, SignalSpec(...)) does that); "
        f"{nearest(name, SIGNALS)}"
    )


# Axes of the fields, without the batch axes, and their dtypes. `outcome` comes first: it fixes nothing but the batch.
_FIELD_AXES: dict[str, tuple[tuple[str, ...], str]] = {
    "tokens": (("T",), "int32"),
    "action_mask": (("T",), "bool"),
    "outcome": ((), "float32"),
    "reward": (("T",), "float32"),
    "terminated": (("T",), "bool"),
    "truncated": (("T",), "bool"),
    "logprob": (("T",), "float32"),
    "segment": (("T",), "int32"),
    "votes": ((), "bool"),
    "trajectory": ((), "int32"),
}
FIELDS = tuple(_FIELD_AXES)


@dataclasses.dataclass(frozen=True)
class Trajectory:
    """Rollouts of a policy: a frozen pytree with leading axes ``[P, G]``, ``[G]`` or none.

    Only `tokens`, `action_mask` and `outcome` are required; an absent field is ``None`` and is no leaf of the pytree.
    Whatever float, integer or bool type comes in is stored as float32, int32 or bool.

    Attributes:
      tokens: i32 ``[..., T]``, the token or action at each position.
      action_mask: bool ``[..., T]``, True where the policy acted; prompt, tool output and padding are False.
      outcome: f32 ``[...]``, the verifier's score of the whole rollout; NaN means unscored.
      reward: f32 ``[..., T]``, the *whole* reward stream, 0 where none. When it is given, estimators that work on
        rewards read it alone, so it has to contain what the outcome pays; when it is absent they put the outcome on
        the last acted position. A reward at a position that the policy did not act on belongs to its last acted
        position before.
      terminated: bool ``[..., T]``, the episode ended after this position: nothing follows.
      truncated: bool ``[..., T]``, the episode was cut off after this position: its value goes on.
      logprob: f32 ``[..., T]``, log-probability of the token under the distribution that it was sampled from.
      segment: i32 ``[..., T]``, the segment (turn, step) that the position belongs to, -1 for none.
      votes: bool ``[...]``, whether the rollout counts in baselines. Absent: it does if it acted anywhere.
      trajectory: i32 ``[...]``, which rollout a row was cut from; rows of one rollout vote once. Absent: all differ.
      signals: everything else, by the names of `SIGNALS`.
      num_segments: K, static. Absent: no segments.

    Raises:
      ValueError: a field or signal whose shape does not fit, naming it, the shape found and the shape wanted; a NumPy
        integer that int32 cannot hold.
      TypeError: a dtype that cannot be what the field means, signals that are no mapping, a K that is no Python int.
      KeyError: a signal that is not in the table.
    """

    tokens: Any
    action_mask: Any
    outcome: Any
    reward: Any = None
    terminated: Any = None
    truncated: Any = None
    logprob: Any = None
    segment: Any = None
    votes: Any = None
    trajectory: Any = None
    signals: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_segments: int = 0

    def __post_init__(self):
        if self.tokens is None or self.action_mask is None or self.outcome is None:
            absent = [name for name in ("tokens", "action_mask", "outcome") if getattr(self, name) is None]
            raise ValueError(f"Trajectory needs {', '.join(absent)}")
        if not isinstance(self.signals, Mapping):
            raise TypeError(f"signals: {type(self.signals).__name__}, wanted a mapping from names to arrays")
        if absent := [name for name, value in self.signals.items() if value is None]:
            raise TypeError(f"{absent[0]}: None, wanted {signal_spec(absent[0]).dtype}; leave an absent signal out")
        if type(self.num_segments) is not int:
            raise TypeError(f"num_segments: {self.num_segments!r}, wanted a Python int (it is part of the program)")
        if self.num_segments < 0:
            raise ValueError(f"num_segments: {self.num_segments}, wanted at least 0")
        for name, (_, dtype) in _FIELD_AXES.items():
            object.__setattr__(self, name, _cast(name, getattr(self, name), dtype))
        signals = {name: _cast(name, value, signal_spec(name).dtype) for name, value in sorted(self.signals.items())}
        object.__setattr__(self, "signals", signals)
        if self.tokens.ndim < 1:
            raise ValueError(f"tokens: shape {self.tokens.shape}, wanted [..., T]")
        if self.segment is not None and self.num_segments < 1:
            raise ValueError("segment is given, so num_segments (K, a Python int) must be at least 1")
        sizes = {"T": self.tokens.shape[-1], "K": self.num_segments, "K+1": self.num_segments + 1}
        for name, (axes, _) in _FIELD_AXES.items():
            if (value := getattr(self, name)) is not None:
                _check_shape(name, value, self.batch_shape, axes, sizes)
        shared: dict[str, tuple[str, int]] = {}
        for name, value in signals.items():
            lead, axes = _split_axes(signal_spec(name).axes, self.batch_shape)
            if len(self.batch_shape) == 1 and "G" not in signal_spec(name).axes and value.ndim > len(axes):
                # One leading axis is a group, or flat rows [N] that are to be packed: there each row brings its
                # prompt's.
                lead = self.batch_shape
            _check_shape(name, value, lead, axes, sizes)
            for axis, size in zip(axes, value.shape[len(lead) :], strict=True):
                if axis not in sizes:
                    other = shared.setdefault(axis, (name, size))
                    if other[1] != size:
                        raise ValueError(f"{name}: {axis} = {size}, wanted {other[1]} as in {other[0]}")

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The leading axes: ``(P, G)``, ``(G,)`` or ``()``."""
        return self.tokens.shape[:-1]

    @property
    def length(self) -> int:
        """T, the number of positions of a row, padding included."""
        return self.tokens.shape[-1]

    def replace(self, **changes) -> "Trajectory":
        """A copy with some fields changed, checked like a new one."""
        return dataclasses.replace(self, **changes)

    def with_signals(self, **signals) -> "Trajectory":
        """A copy that carries more signals (or newer ones of the same name)."""
        return self.replace(signals={**self.signals, **signals})

    def get(self, name: str):
        """The field or signal called `name`, None where absent."""
        return getattr(self, name) if name in _FIELD_AXES else self.signals.get(name)


def _flatten_with_keys(batch: Trajectory):
    keys = [(jax.tree_util.GetAttrKey(name), getattr(batch, name)) for name in (*FIELDS, "signals")]
    return keys, batch.num_segments


def _flatten(batch: Trajectory):
    return [getattr(batch, name) for name in (*FIELDS, "signals")], batch.num_segments


def _unflatten(num_segments: int, children) -> Trajectory:
    # Transformations put tracers, specs and placeholders here, so nothing may be checked or cast.
    batch = object.__new__(Trajectory)
    for name, child in zip((*FIELDS, "signals"), children, strict=True):
        object.__setattr__(batch, name, child)
    object.__setattr__(batch, "num_segments", num_segments)
    return batch


jax.tree_util.register_pytree_with_keys(Trajectory, _flatten_with_keys, _unflatten, _flatten)


def _cast(name: str, value: Any, dtype: str):
    if value is None:
        return None
    if not hasattr(value, "dtype"):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise ValueError(
                f"{name}: lists of different lengths, wanted an array; pad them, or see creditjax.pack"
            ) from error
    kind = np.dtype(value.dtype).kind if value.dtype != jnp.bfloat16 else "f"
    # A float is no token and no flag: silently truncating it would hide a swapped argument.
    allowed = {"float32": "fiub", "int32": "iu", "bool": "b"}[dtype]
    if kind not in allowed and not (kind == "V" and dtype == "float32"):
        raise TypeError(f"{name}: dtype {value.dtype}, wanted {dtype}")
    if dtype == "int32" and isinstance(value, np.ndarray | np.generic) and value.dtype != np.int32 and value.size:
        # Two ids that differ above bit 31 would wrap to the same number.
        limits = np.iinfo(np.int32)
        for extreme in (value.min(), value.max()):
            if not limits.min <= int(extreme) <= limits.max:
                raise ValueError(f"{name}: value {extreme}, wanted int32, in {limits.min}..{limits.max}")
    target = _DTYPES[dtype]
    return value if value.dtype == target else value.astype(target)


def _split_axes(axes: tuple[str, ...], batch_shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[str, ...]]:
    """The sizes of a signal's own batch axes, given the batch's, and its other axes."""
    lead = [axis for axis in axes if axis in ("P", "G")]
    rest = tuple(axis for axis in axes if axis not in ("P", "G"))
    names = {2: ("P", "G"), 1: ("G",), 0: ()}.get(len(batch_shape))
    if names is None:
        raise ValueError(f"tokens: {len(batch_shape)} leading axes, wanted [P, G, T], [G, T] or [T]")
    sizes = dict(zip(names, batch_shape, strict=True))
    return tuple(sizes[axis] for axis in lead if axis in sizes), rest


def _check_shape(name: str, value, lead: tuple[int, ...], axes: tuple[str, ...], sizes: dict[str, int]) -> None:
    wanted = [*lead, *(sizes.get(axis, axis) for axis in axes)]
    shape = value.shape
    fits = len(shape) == len(wanted) and all(isinstance(w, str) or w == s for w, s in zip(wanted, shape, strict=True))
    if not fits:
        said = ", ".join([*map(str, lead), *(f"{axis}={sizes[axis]}" if axis in sizes else axis for axis in axes)])
        raise ValueError(f"{name}: shape {list(shape)}, wanted [{said}]")


def lengths(batch: Trajectory) -> Array:
    """Number of acted positions of each row, i32 ``[...]``."""
    return jnp.sum(batch.action_mask, axis=-1, dtype=jnp.int32)


def takes_part(batch: Trajectory) -> Array:
    """Rows whose `votes` flag holds or, where the caller gave no flags, that acted anywhere, bool ``[...]``."""
    return jnp.any(batch.action_mask, axis=-1) if batch.votes is None else batch.votes


def require_bootstrap(batch: Trajectory, owner: str) -> None:
    """A `ValueError` for a batch with `truncated` and without the signal `next_value`.

    What was cut off has to go on with the value of its own last observation. Without it the value at the next acted
    position would be taken, which is the next episode's.
    """
    if batch.truncated is not None and "next_value" not in batch.signals:
        raise ValueError(
            f"signal 'next_value': absent, but the batch has `truncated`: {owner} goes on with the value of what was "
            "last seen, not with the next episode's"
        )


def vote_mask(batch: Trajectory) -> Array:
    """Which rows count in baselines, bool ``[...]``: those that take part and are scored.

    A row votes if it is scored (finite outcome) and its `votes` flag holds; where the caller gave no flags, if it acted
    anywhere. A response without loss tokens but with a legitimate reward may vote, so the flag is not derived from
    the mask when it is given.
    """
    return takes_part(batch) & jnp.isfinite(batch.outcome)


def vote_weight(batch: Trajectory) -> Array:
    """Weight of each row in a baseline of its group, f32 ``[..., G]``: the rows of one rollout share one vote."""
    votes = vote_mask(batch)
    weight = votes.astype(jnp.float32)
    if batch.trajectory is None:
        return weight
    same = batch.trajectory[..., :, None] == batch.trajectory[..., None, :]
    return weight / jnp.maximum(jnp.sum(same & votes[..., None, :], axis=-1), 1)


def last_action(batch: Trajectory) -> Array:
    """True at the last acted position of each row (of the whole row, not of each episode in it), bool ``[..., T]``."""
    mask = batch.action_mask
    positions = jnp.arange(mask.shape[-1])
    last = jnp.max(jnp.where(mask, positions, -1), axis=-1, keepdims=True)
    return mask & (positions == last)


def segment_mask(batch: Trajectory) -> Array:
    """Which segments own at least one acted position, bool ``[..., K]``."""
    owned = jnp.where(batch.action_mask, batch.segment, -1)
    return jnp.any(owned[..., None, :] == jnp.arange(batch.num_segments)[:, None], axis=-1)
