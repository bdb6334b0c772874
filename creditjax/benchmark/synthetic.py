"""A batch of plausible random rollouts of any size, with every field and any declared signal."""

import numpy as np

from creditjax.trajectory import FIELDS, SIGNALS, Trajectory, signal_spec

# Sizes of the axes that the batch's shape does not fix; of one that is not here, `_OTHER`.
SIZES = {"K": 8, "K+1": 9, "N": 4, "2^N": 16, "C": 2, "V": 2, "M": 2, "Q": 8, "E": 8, "R": 4, "F": 4, "H": 8}
_OTHER = 3

# Integer signals that index something: the axis that they point into. Others are small keys.
_INDEXES = {"agent": "N", "call_turn": "K", "read_call": "R"}


def synthetic_batch(shape: tuple[int, int, int], signals: tuple[str, ...] = (), seed: int = 0) -> Trajectory:
    """Ragged rollouts of prompts, turns and tool answers, with binary outcomes.

    Every row opens with an observed prompt, acts in K turns of equal length with an observed answer at the end of each,
    and ends early at random. A few episodes end inside rows.

    Args:
      shape: ``(P, G, T)``.
      signals: names of `creditjax.SIGNALS` to add.
      seed: of NumPy's generator.
    """
    rng = np.random.default_rng(seed)
    prompts, group, length = shape
    turns = SIZES["K"]
    position = np.arange(length)
    start = length // 16
    end = rng.integers(length // 2, length + 1, size=(prompts, group, 1))
    turn_length = max((length - start) // turns, 1)
    inside = (position >= start) & (position < end)
    answer = (position - start) % turn_length >= turn_length - turn_length // 8
    mask = inside & ~answer
    outcome = rng.integers(0, 2, size=(prompts, group)).astype(np.float32)
    last = position == np.max(np.where(mask, position, -1), axis=-1, keepdims=True)
    rare = rng.integers(0, 512, size=shape, dtype=np.int16)
    tokens = rng.integers(0, 32, size=shape, dtype=np.int32)
    # Groups share their prompt and some of what follows, as samples of one policy do.
    tokens[..., : start + length // 64] = tokens[:, :1, : start + length // 64]
    reward = np.where(mask, 0.01 * _normal(rng, shape), 0.0) + np.where(last & mask, outcome[..., None], 0.0)
    sizes = {"P": prompts, "G": group, "T": length, **SIZES}
    return Trajectory(
        tokens=tokens,
        action_mask=mask,
        outcome=outcome,
        reward=reward.astype(np.float32),
        terminated=mask & (last | (rare == 0)),
        truncated=mask & (rare == 1),
        logprob=-np.abs(_normal(rng, shape)),
        segment=np.where(inside, np.minimum((position - start) // turn_length, turns - 1), -1).astype(np.int32),
        num_segments=turns,
        signals={name: _signal(rng, name, sizes) for name in signals},
    )


def _signal(rng: np.random.Generator, name: str, sizes: dict[str, int]) -> np.ndarray:
    spec = signal_spec(name)
    shape = tuple(sizes.get(axis, _OTHER) for axis in spec.axes)
    if spec.dtype == "bool":
        return np.asarray(rng.integers(0, 2, size=shape, dtype=np.int8) > 0)
    if spec.dtype == "int32":
        if name in _INDEXES:
            return np.asarray(rng.integers(-1, sizes[_INDEXES[name]], size=shape), np.int32)
        return np.asarray(rng.integers(0, 8, size=shape), np.int32)
    if "logprob" in name:
        return -np.abs(_normal(rng, shape))
    if "value" in name or "logit" in name:
        return _normal(rng, shape)
    return np.asarray(rng.random(shape, dtype=np.float32))


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return np.asarray(rng.standard_normal(shape, dtype=np.float32))


def readable(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those of `names` that are signals."""
    return tuple(name for name in names if name in SIGNALS and name not in FIELDS)
