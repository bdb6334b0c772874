"""Random batches with every irregularity that a valid batch may have."""

from collections.abc import Callable, Collection
from typing import Any, Literal

import jax
import numpy as np

from creditjax.trajectory import FIELDS, Trajectory, signal_spec

Outcome = Literal["any", "binary", "unit", "real"]

# What may stand wherever nothing is read.
_GARBAGE = (np.nan, np.inf, -np.inf, 1e30, -7.0)
# Signals with values in [0, 1].
_UNIT = (
    "answer_score",
    "attention_flow",
    "belief",
    "call_similarity",
    "confidence",
    "correctness",
    "critic_value",
    "greedy_outcome",
    "judge_verdict",
    "potential",
    "prover_value",
    "summary_reward",
)
_REQUIRED = ("tokens", "action_mask", "outcome")
_AXES = {"prompts": "P", "rollouts": "G", "positions": "T"}


def random_batch(
    seed: int,
    shape: tuple[int, int, int] = (3, 3, 10),
    *,
    needs: Collection[str] = (),
    outcome: Outcome = "any",
    segments: int = 4,
    agents: int = 3,
    degenerate: bool = True,
    hostile: bool = True,
) -> Trajectory:
    """A batch as untidy as the contracts allow, the same for the same seed; NumPy arrays.

    Prompts open with observed tokens, the same for their rollouts. Rows are ragged and have observed gaps between what
    the policy wrote; segments come in order and some are empty; some rows begin as a sibling does. Values are drawn in
    the range of validity that `SIGNALS` states.

    Args:
      seed: of everything.
      shape: ``(P, G, T)``.
      needs: fields and signals beside tokens, action mask and outcome; any that is declared.
      outcome: "binary", "unit" (in [0, 1]), "real" (normal, standard deviation 3) or "any" of the three.
      segments: K.
      agents: N.
      degenerate: some rows are missing, some act nowhere, some are unscored (NaN), one group may have equal outcomes.
      hostile: NaN, inf and large numbers wherever nothing is read; zeros otherwise.

    Raises:
      KeyError: a signal that is not declared.
      ValueError: an empty axis, or fewer than one segment or agent.
    """
    if min(*shape, segments, agents) < 1:
        raise ValueError(f"shape, segments, agents: {shape}, {segments}, {agents}, wanted at least 1 each")
    draw = _Draw(np.random.default_rng(seed), shape, segments, agents, hostile)
    draw.rows(degenerate)
    draw.score(outcome, degenerate)
    # Rows of one rollout share their outcome, so that comes before what depends on outcomes.
    for name in sorted(set(needs) - set(_REQUIRED), key=lambda name: (name != "trajectory", name)):
        draw.get(name)
    wanted = {name: draw.made[name] for name in {*_REQUIRED, *needs}}
    return Trajectory(
        **{name: x for name, x in wanted.items() if name in FIELDS},
        signals={name: x for name, x in wanted.items() if name not in FIELDS},
        num_segments=segments,
    )


def axes_of(batch: Trajectory, name: str) -> tuple[str, ...]:
    """Names of the axes of a field or signal of a batch ``[P, G, T]``."""
    if name in FIELDS:
        return ("P", "G", "T")[: np.ndim(batch.get(name))]
    return signal_spec(name).axes


def map_arrays(batch: Trajectory, change: Callable[[str, np.ndarray], Any]) -> Trajectory:
    """Every field and signal replaced by what `change(name, array)` makes of it."""
    batch = jax.tree.map(np.asarray, batch)
    fields = {name: change(name, x) for name in FIELDS if (x := batch.get(name)) is not None}
    return batch.replace(**fields, signals={name: change(name, x) for name, x in batch.signals.items()})


def take(batch: Trajectory, axis: str, index: np.ndarray) -> Trajectory:
    """The batch's "prompts", "rollouts" or "positions" at `index`, in that order."""

    def one(name: str, x: np.ndarray) -> np.ndarray:
        axes = axes_of(batch, name)
        return np.take(x, index, axis=axes.index(_AXES[axis])) if _AXES[axis] in axes else x

    return map_arrays(batch, one)


_OTHER = 3  # size of an axis that is not named below


class _Draw:
    """One batch in the making: `made` holds what there is, `get` makes what is missing, with what it depends on."""

    def __init__(
        self, rng: np.random.Generator, shape: tuple[int, int, int], segments: int, agents: int, hostile: bool
    ):
        self.rng, self.shape, self.hostile = rng, shape, hostile
        p, g, t = shape
        self.sizes = {"P": p, "G": g, "T": t, "K": segments, "K+1": segments + 1, "N": agents, "2^N": 2**agents}
        self.sizes |= {"C": 2, "V": 2, "M": 2, "Q": 4, "E": 3, "R": 3, "F": 2, "J": 3}
        self.sizes |= {"B": 3, "S": 2, "Y": 3, "D": 2, "H": 3, "X": 3}
        self.made: dict[str, np.ndarray] = {}

    def rows(self, degenerate: bool) -> None:
        """Tokens, where there are any, where the policy acted, and the segments."""
        (p, g, t), rng = self.shape, self.rng
        position = np.arange(t)
        opening = rng.integers(0, min(3, t), size=(p, 1, 1))
        size = rng.integers(opening[..., 0] + 1, t + 1, size=(p, g))[..., None]
        acted = (rng.random((p, g, t)) < 0.7) | (position == size - 1)
        tokens = rng.integers(0, 3, size=(p, g, t))
        segment = np.sort(rng.integers(0, self.sizes["K"], size=(p, g, t)), axis=-1)
        # Some rows begin as their sibling does, up to a random position.
        shared = rng.integers(0, t + 1, size=(p, g, 1)) * (rng.random((p, g, 1)) < 0.35)
        for row in range(1, g):
            same = position < shared[:, row]
            for x in (tokens, acted, segment):
                x[:, row] = np.where(same, x[:, row - 1], x[:, row])
            segment[:, row] = np.maximum.accumulate(segment[:, row], axis=-1)
        acted |= position == size - 1
        tokens = np.where(position < opening, tokens[:, :1], tokens)
        kind = rng.random((p, g, 1)) if degenerate else np.ones((p, g, 1))
        live = (position < size) & (kind >= 0.1)
        acted &= live & (position >= opening) & (kind >= 0.18)
        segment = np.where(live & (rng.random((p, g, t)) < 0.95), segment, -1)
        self.made |= {
            "tokens": tokens.astype(np.int32),
            "token_mask": live,
            "action_mask": acted,
            "segment": segment.astype(np.int32),
        }
        later = np.flip(np.cumsum(np.flip(acted, -1), -1), -1) - acted
        self.ends = acted & (later == 0) & (rng.random(acted.shape) < 0.8)
        self.cuts = rng.random(acted.shape) < 0.4
        self.owned = np.stack([(acted & (segment == k)).any(-1) for k in range(self.sizes["K"])], axis=-1)

    def score(self, outcome: Outcome, degenerate: bool) -> None:
        """The outcomes."""
        rng, shape = self.rng, self.shape[:2]
        kind = ("binary", "unit", "real")[rng.integers(3)] if outcome == "any" else outcome
        made = {
            "binary": lambda: rng.integers(0, 2, size=shape).astype(float),
            "unit": lambda: rng.random(shape),
            "real": lambda: 3 * rng.normal(size=shape),
        }
        if kind not in made:
            raise ValueError(f"outcome: {outcome!r}, wanted one of any, {', '.join(made)}")
        score = made[kind]()
        if degenerate and rng.random() < 0.3:
            score[rng.integers(shape[0])] = rng.choice([0.0, 0.1, 1.0])
        if degenerate:
            score = np.where(rng.random(shape) < 0.08, np.nan, score)
        self.made["outcome"] = score.astype(np.float32)

    def get(self, name: str) -> np.ndarray:
        """The field or signal called `name`."""
        if name not in self.made:
            maker = _SPECIAL.get(name, lambda draw: draw.any_signal(name))
            self.made[name] = np.asarray(maker(self))
        return self.made[name]

    def size(self, *axes: str) -> tuple[int, ...]:
        return tuple(self.sizes.get(axis, _OTHER) for axis in axes)

    def under(self, values: np.ndarray, read: np.ndarray) -> np.ndarray:
        """`values` where they are read, and garbage elsewhere."""
        garbage = self.rng.choice(_GARBAGE, size=values.shape) if self.hostile else np.zeros(values.shape)
        return np.where(read, values, garbage).astype(np.float32)

    def read(self, axes: tuple[str, ...]) -> np.ndarray:
        """Where a signal of these axes is read."""
        alive = self.made["action_mask"].any(-1)
        bounds = np.zeros((*alive.shape, self.sizes["K+1"]), bool)
        bounds[..., 0] = alive
        for k in range(self.sizes["K"]):
            bounds[..., : k + 2] |= self.owned[..., k : k + 1]
        at = {"T": self.made["action_mask"], "K": self.owned, "K+1": bounds}
        third = axes[2] if len(axes) > 2 else ""
        mask = at.get(third, np.ones(self.size(*axes[:3]), bool))
        return mask.reshape(mask.shape + (1,) * (len(axes) - mask.ndim))

    def any_signal(self, name: str) -> np.ndarray:
        """A signal of which nothing but its row in the table is known."""
        spec = signal_spec(name)
        size = self.size(*spec.axes)
        if spec.dtype == "bool":
            return self.rng.random(size) < 0.5
        if spec.dtype == "int32":
            low, high = self._ids(name)
            return self.rng.integers(low, high, size=size).astype(np.int32)
        return self.under(np.asarray(self._floats(name, size)), self.read(spec.axes))

    def _ids(self, name: str) -> tuple[int, int]:
        return {"agent": (-1, self.sizes["N"]), "read_call": (-1, self.sizes["R"])}.get(name, (0, 3))

    def _floats(self, name: str, size: tuple[int, ...]) -> np.ndarray:
        if name.startswith("logprob") or name == "answer_logprob":
            return -self.rng.exponential(size=size)
        if name in ("entropy", "self_certainty"):
            return self.rng.exponential(size=size)
        if name in _UNIT:
            return self.rng.random(size)
        return self.rng.normal(size=size)

    def fragments(self) -> np.ndarray:
        """Rows that are pieces of one rollout share its outcome and its vote."""
        p, g = self.shape[:2]
        rollout, votes = np.tile(np.arange(g, dtype=np.int32), (p, 1)), self.get("votes")
        for prompt in np.flatnonzero(self.rng.random(p) < 0.6):
            first, second = self.rng.integers(0, g, size=2)
            for x in (rollout, votes, self.made["outcome"]):
                x[prompt, second] = x[prompt, first]
        return rollout


def _reward(draw: _Draw) -> np.ndarray:
    # A stream pays on observed positions too, so what a finite number in padding means nobody could tell.
    step = np.where(draw.rng.random(draw.shape) < 0.4, draw.rng.normal(size=draw.shape), 0.0)
    nothing = draw.rng.choice([0.0, np.nan, np.inf] if draw.hostile else [0.0], size=draw.shape)
    return np.where(draw.made["token_mask"], step, nothing).astype(np.float32)


def _sum_pi_squared(draw: _Draw) -> np.ndarray:
    acted = draw.made["action_mask"]
    chosen = np.exp(np.where(acted, draw.get("logprob"), 0.0))
    return draw.under(chosen**2 + (1 - chosen) ** 2 * draw.rng.random(draw.shape), acted)


def _components(draw: _Draw) -> np.ndarray:
    score, count = draw.made["outcome"], draw.sizes["M"]
    parts = draw.rng.integers(0, 3, size=(*score.shape, count)) * 0.5
    parts[..., -1] = score - parts[..., :-1].sum(-1)
    return np.where(np.isfinite(score)[..., None], parts, np.nan).astype(np.float32)


def _call_turn(draw: _Draw) -> np.ndarray:
    # Calls are made in turns that were acted in, before the last.
    turn = draw.rng.integers(-1, draw.sizes["K"], size=draw.size("P", "G", "Q"))
    final = np.where(draw.owned, np.arange(draw.sizes["K"]), -1).max(-1, keepdims=True)
    acted = np.take_along_axis(draw.owned, np.maximum(turn, 0), -1)
    return np.where(acted & (turn < final), turn, -1).astype(np.int32)


def _budget(draw: _Draw) -> np.ndarray:
    return np.sort(draw.rng.integers(1, draw.sizes["T"] + 1, size=draw.size("P", "B"))).astype(np.int32)


def _read_mask(draw: _Draw) -> np.ndarray:
    calls, acted = draw.get("read_call"), draw.made["action_mask"]
    return np.stack([(acted & (calls == r)).any(-1) for r in range(draw.sizes["R"])], axis=-1)


_SPECIAL: dict[str, Callable[[_Draw], np.ndarray]] = {
    "reward": _reward,
    "terminated": lambda draw: np.asarray(draw.ends & ~draw.cuts),
    "truncated": lambda draw: np.asarray(draw.ends & draw.cuts),
    "logprob": lambda draw: draw.under(-draw.rng.exponential(size=draw.shape), draw.made["action_mask"]),
    "budget": _budget,
    "votes": lambda draw: np.asarray(draw.made["action_mask"].any(-1)),
    "trajectory": _Draw.fragments,
    "accuracy": lambda draw: draw.made["outcome"],
    "reward_components": _components,
    "sum_pi_squared": _sum_pi_squared,
    "call_turn": _call_turn,
    # The references belong to the prompt.
    "reference_mask": lambda draw: np.repeat(draw.rng.random(draw.size("P", "E")) < 0.8, draw.shape[1], 0).reshape(
        draw.size("P", "G", "E")
    ),
    "read_mask": _read_mask,
    "read_identity": lambda draw: (draw.get("read_call") >= 0) & (draw.rng.random(draw.shape) < 0.7),
}
