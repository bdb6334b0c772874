"""Laws of credit: what a change of the outcome does to it, what it sums to, and what it may not see."""

from collections.abc import Callable
from typing import Unpack

import numpy as np

from creditjax.algebra import Transform, needs
from creditjax.testing.batches import axes_of, map_arrays
from creditjax.testing.check import (
    Estimator,
    Function,
    Mismatch,
    Options,
    as_function,
    check,
    compare,
    default_batches,
    same,
    tolerances,
    unchanged,
)
from creditjax.trajectory import Trajectory

Total = Callable[[Trajectory], np.ndarray]

# Signals that move with the outcome when a constant is added to it, and those measured in its units.
_SHIFTED = ("outcome", "value", "next_value", "greedy_outcome", "running_baseline")
_SCALED = (*_SHIFTED, "reward", "process_reward", "potential", "coalition_value", "reward_components")


def assert_shift_invariant(estimator: Estimator, *, by: float = 1.5, **options: Unpack[Options]) -> None:
    """A constant added to every outcome changes nothing.

    Values, the greedy outcome and the running baseline rise along. The reward stream and the ends of episodes are left
    out unless the estimator needs them, so that the outcome is what is read.
    """

    def shift(batch: Trajectory, rng: np.random.Generator) -> tuple:
        return map_arrays(batch, lambda name, x: x + np.float32(by) if name in _SHIFTED else x), same

    holds = unchanged(f"credit changes when {by:g} is added to every outcome", shift, options)
    check("assert_shift_invariant", estimator, holds, _paid_at_the_end(estimator, options))


def assert_scale_equivariant(estimator: Estimator, *, by: float = 3.0, **options: Unpack[Options]) -> None:
    """Outcomes, rewards, values and potentials in other units give credit in these units."""
    holds = unchanged(
        f"credit is not multiplied by {by:g} when outcomes are", _rescale(by), options, lambda credit: by * credit
    )
    check("assert_scale_equivariant", estimator, holds, options)


def assert_scale_invariant(estimator: Estimator, *, by: float = 3.0, **options: Unpack[Options]) -> None:
    """Outcomes, rewards, values and potentials in other units give the same credit."""
    holds = unchanged(f"credit changes when outcomes are multiplied by {by:g}", _rescale(by), options)
    check("assert_scale_invariant", estimator, holds, options)


def assert_telescopes(estimator: Estimator, *, baseline: str | Total | None = None, **options: Unpack[Options]) -> None:
    """The credits of a rollout sum to its outcome minus a baseline: nothing is lost and nothing is made.

    Args:
      estimator: what is tested.
      baseline: None for 0, "mean" or "leave_one_out" for those of the voting rollouts of the group, the name of a
        signal (its first acted position or boundary is read), or a function from a batch to ``[P, G]``.
      **options: see `Options`. Rollouts that do not act or are unscored are left out.
    """
    subtract = baseline if callable(baseline) else lambda batch: _baseline(baseline, batch)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        there = votes(batch)
        wanted = np.where(there, np.where(there, batch.outcome, 0.0) - subtract(batch), 0.0)
        found = np.where(there, function(batch).sum(axis=-1), 0.0)
        return compare("credits do not sum to outcome - baseline", found, wanted, **tolerances(options))

    check("assert_telescopes", estimator, holds, _paid_at_the_end(estimator, options))


def assert_sums_preserved(estimator: Estimator, reference: Estimator, **options: Unpack[Options]) -> None:
    """The credits of each rollout sum to what those of `reference` sum to: credit is moved, not made."""
    other = as_function(reference)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        found, wanted = function(batch).sum(axis=-1), other(batch).sum(axis=-1)
        return compare("credits do not sum to the reference's", found, wanted, **tolerances(options))

    check("assert_sums_preserved", estimator, holds, options)


def assert_sign_preserved(estimator: Estimator, reference: Estimator | None = None, **options: Unpack[Options]) -> None:
    """No credit has the opposite sign of `reference`'s, by default of the outcome minus its group's mean; 0 may be."""
    other = as_function(_centred if reference is None else reference)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        found, sign = function(batch), np.sign(other(batch))
        allowed = np.where(found * sign < -tolerances(options)["atol"], np.abs(found) * sign, found)
        return compare("credit has the opposite sign", found, allowed, 0.0, 0.0)

    check("assert_sign_preserved", estimator, holds, options)


def assert_bounded(estimator: Estimator, bound: float, **options: Unpack[Options]) -> None:
    """``|credit| <= bound``."""

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        found = function(batch)
        slack = bound * (1 + tolerances(options)["rtol"])
        inside = np.where(np.abs(found) <= slack, found, np.clip(found, -bound, bound))
        return compare(f"credit is beyond {bound:g}", found, inside, 0.0, 0.0)

    check("assert_bounded", estimator, holds, options)


def assert_causal(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Credit at a position does not use what only later ones decide.

    Of one rollout a prompt, everything from the first action after a random segment on is exchanged: tokens, rewards,
    outcome, what segments, boundaries and positions carry. The value at that action stays, since it is that of the
    state which was reached. The credit before has to stay too.
    """

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        changed, before = _other_future(batch, rng)
        found, wanted = (np.where(before, function(x), 0.0) for x in (changed, batch))
        return compare("credit changes with what only later tokens decide", found, wanted, **tolerances(options))

    check("assert_causal", estimator, holds, options)


def votes(batch: Trajectory) -> np.ndarray:
    """Rollouts that act, take part and are scored, bool ``[P, G]``."""
    part = batch.action_mask.any(axis=-1)
    return part & np.isfinite(batch.outcome) & (part if batch.votes is None else batch.votes)


def _centred(batch: Trajectory) -> np.ndarray:
    there = votes(batch)
    centred = np.where(there, np.where(there, batch.outcome, 0.0) - _baseline("mean", batch), 0.0)
    return np.where(batch.action_mask, centred[..., None], 0.0)


def _baseline(name: str | None, batch: Trajectory) -> np.ndarray:
    there = votes(batch)
    score = np.where(there, batch.outcome, 0.0)
    total, count = score.sum(axis=-1, keepdims=True), there.sum(axis=-1, keepdims=True)
    match name:
        case None:
            return np.zeros_like(score)
        case "mean":
            return np.broadcast_to(total / np.maximum(count, 1), score.shape)
        case "leave_one_out":
            # Who is alone has nobody to be compared with: credit 0.
            return np.where(count > 1, (total - score) / np.maximum(count - 1, 1), score)
    signal, axes = np.asarray(batch.signals[name]), axes_of(batch, name)
    if "T" in axes:
        first = np.argmax(batch.action_mask, axis=-1)[..., None]
        return np.where(there, np.take_along_axis(signal, first, axis=-1)[..., 0], 0.0)
    signal = signal[..., 0] if "K+1" in axes else signal
    return np.where(there, signal[:, None] if axes == ("P",) else signal, 0.0)


def _rescale(by: float) -> Callable:
    def rescale(batch: Trajectory, rng: np.random.Generator) -> tuple:
        return map_arrays(batch, lambda name, x: x * np.float32(by) if name in _SCALED else x), same

    return rescale


def _other_future(batch: Trajectory, rng: np.random.Generator) -> tuple[Trajectory, np.ndarray]:
    """The batch with another end to one rollout a prompt, and the positions before it, bool ``[P, G, T]``."""
    acted, segment = batch.action_mask, _segments(batch)
    last = np.where(acted, segment, -1).max(axis=-1)
    cut = rng.integers(0, np.maximum(last, 0) + 1)
    row = rng.integers(0, acted.shape[1], size=acted.shape[:1])
    chosen = (np.arange(acted.shape[1]) == row[:, None]) & (last > cut)
    # What is observed before the next action belongs to the last one: only from the next action on it is later.
    later = chosen[..., None] & np.logical_or.accumulate(acted & (segment > cut[..., None]), axis=-1)
    reached = later & acted & (np.cumsum(later & acted, axis=-1) == 1)
    keep = {"action_mask", "segment", "agent", "token_mask", "terminated", "truncated", "votes", "trajectory"}

    def one(name: str, x: np.ndarray) -> np.ndarray:
        axes = axes_of(batch, name)
        if name in keep or axes[:2] != ("P", "G"):
            return x
        where = chosen
        if "T" in axes:
            where = later & ~reached if name == "value" else later
        elif axes[2:3] in (("K",), ("K+1",)):
            # Boundary k + 1 is where segment k has led to.
            known = cut + (axes[2] == "K+1")
            where = chosen[..., None] & (np.arange(x.shape[2]) > known[..., None])
        where = where.reshape(*where.shape, *[1] * (x.ndim - where.ndim))
        return np.where(where, _other(name, x), x)

    return map_arrays(batch, one), chosen[..., None] & ~later


def _paid_at_the_end(estimator: Estimator, options: Options) -> Options:
    """Batches of whole episodes, paid by their outcome: without a reward stream or cuts, unless they are needed."""
    needed = needs(estimator) if isinstance(estimator, Transform) else ()
    batches = options.get("batches") or default_batches(estimator)

    def whole(seed: int) -> Trajectory:
        batch = batches(seed)
        left_out = [name for name in ("reward", "terminated", "truncated") if name not in needed]
        signals = {name: x for name, x in batch.signals.items() if name != "next_value" or name in needed}
        return batch.replace(**dict.fromkeys(left_out), signals=signals)

    return {**options, "batches": whole}


def _segments(batch: Trajectory) -> np.ndarray:
    """Segments as positions have them; without segments each position is its own."""
    if batch.segment is None:
        return np.broadcast_to(np.arange(batch.length), batch.tokens.shape)
    known = np.where(batch.segment >= 0, batch.segment, 0)
    return np.maximum.accumulate(known, axis=-1)


def _other(name: str, x: np.ndarray) -> np.ndarray:
    """Other values of the same kind in the same places."""
    if x.dtype == bool:
        return ~x
    if x.dtype == np.int32:
        return np.where(x >= 0, (x + 1) % 3, x)
    return np.where(np.isfinite(x), 0.5 * x - 0.25 if "logprob" in name else 1.7 * x + 0.3, x)
