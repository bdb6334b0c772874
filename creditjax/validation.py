"""What is wrong with a batch, all of it at once, on the host."""

import dataclasses

import jax
import numpy as np

from creditjax.trajectory import Trajectory, signal_spec, takes_part, vote_mask

# Faults of one kind and field beyond this many are counted, not listed.
_SHOWN = 8


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: where, what was found, what was wanted.

    Attributes:
      field: field or signal.
      index: where in the array.
      found: the value there.
      wanted: what it should have been.
    """

    field: str
    index: tuple[int, ...]
    found: str
    wanted: str

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.index))}]" if self.index else ""
        return f"{self.field}{place}: {self.found}, wanted {self.wanted}"


def validate(batch: Trajectory) -> list[Fault]:
    """Every fault of a batch ``[P, G, T]``, or of flat rows ``[N, T]``, with field and index; empty if there is none.

    Looked for: NaN or inf in a field or signal where the policy acted (NaN is accepted for signals that may be missing,
    and as an outcome: unscored); infinite outcomes; log-probabilities above 0; segment ids outside -1..K-1; agents
    below -1; segment ids that decrease along the acted positions; rows of one rollout with different outcomes; a
    position that is both terminated and truncated; groups ``[P, G]`` that act but have no voting rollout (a group that
    acts nowhere is padding); a batch that acts nowhere; an empty axis.

    Raises:
      TypeError: `batch` is no `Trajectory`.
    """
    if not isinstance(batch, Trajectory):
        raise TypeError(f"batch: {type(batch).__name__}, wanted a Trajectory")
    batch = jax.tree.map(np.asarray, batch)
    if 0 in batch.tokens.shape:
        return [Fault("tokens", (), f"shape {list(batch.tokens.shape)}", "at least one prompt, rollout and position")]
    mask = batch.action_mask
    faults: list[Fault] = []

    def report(field: str, bad: np.ndarray, values: np.ndarray, wanted: str) -> None:
        places = np.argwhere(bad)
        for place in places[:_SHOWN]:
            index = tuple(int(i) for i in place)
            faults.append(Fault(field, index, str(values[index]), wanted))
        if len(places) > _SHOWN:
            faults.append(Fault(field, (), f"{len(places) - _SHOWN} more such places", wanted))

    if not mask.any():
        faults.append(Fault("action_mask", (), "False everywhere", "True where the policy acted"))
    report("outcome", np.isinf(batch.outcome), batch.outcome, "a finite score, or NaN for unscored")
    for name in ("reward", "logprob"):
        if (x := batch.get(name)) is not None:
            report(name, mask & ~np.isfinite(x), x, "a finite number where the policy acted")
    for name in ("logprob", *(name for name in batch.signals if name.startswith("logprob"))):
        if (x := batch.get(name)) is not None:
            # A rounding error above 0 is what float32 log-softmax gives for certainty.
            report(name, mask & (x > 1e-4), x, "a log-probability, at most 0")
    if batch.segment is not None:
        x, k = batch.segment, batch.num_segments
        report("segment", (x < -1) | (x >= k), x, f"-1 or a segment in 0..{k - 1}")
        before = np.maximum.accumulate(np.where(mask & (x < k), x, -1), axis=-1)
        report("segment", mask & (x >= 0) & (x < before), x, "no segment before one already acted in")
    if batch.trajectory is not None and batch.trajectory.ndim:
        part = np.asarray(takes_part(batch))
        ids, score = batch.trajectory, batch.outcome
        same = (ids[..., :, None] == ids[..., None, :]) & part[..., None, :]
        first = np.take_along_axis(score, np.argmax(same, axis=-1), axis=-1)
        differs = part & ~((score == first) | (np.isnan(score) & np.isnan(first)))
        report("outcome", differs, score, "one outcome for all rows of a rollout (equal `trajectory`)")
    if batch.terminated is not None and batch.truncated is not None:
        both = batch.terminated & batch.truncated
        report("terminated", both, both, "not both terminated and truncated")
    for name, x in batch.signals.items():
        spec = signal_spec(name)
        if spec.dtype == "float32":
            bad = np.isinf(x) if spec.may_be_missing else ~np.isfinite(x)
            if "T" in spec.axes and x.shape[: mask.ndim] == mask.shape:
                bad = bad & mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
            wanted = (
                "a finite number, or NaN where it was never evaluated" if spec.may_be_missing else "a finite number"
            )
            report(name, bad, x, wanted)
        elif spec.dtype == "int32" and name in ("agent", "read_call", "call_turn"):
            report(name, x < -1, x, "-1 for none or an index")
    if len(batch.batch_shape) == 2:
        # A group that acts nowhere is padding, not a fault.
        silent = np.any(mask, axis=(-1, -2)) & ~np.any(np.asarray(vote_mask(batch)), axis=-1)
        report("votes", silent, silent, "at least one voting, scored rollout in every group")
    return faults


def check(batch: Trajectory) -> None:
    """Raises a `ValueError` that lists every fault found by :func:`validate`."""
    if faults := validate(batch):
        raise ValueError("the batch has faults:\n  " + "\n  ".join(map(str, faults)))
