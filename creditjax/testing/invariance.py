"""What must not matter: padding, order, company, observed positions, and whatever masks cover."""

from typing import Unpack

import numpy as np

from creditjax.testing.batches import axes_of, map_arrays, take
from creditjax.testing.check import (
    Estimator,
    Function,
    Mismatch,
    Options,
    check,
    compare,
    default_batches,
    tolerances,
    unchanged,
)
from creditjax.trajectory import Trajectory


def assert_zero_outside_mask(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Credit is exactly 0 wherever the policy did not act."""

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        outside = np.where(batch.action_mask, 0.0, function(batch))
        return compare("credit is not 0 outside action_mask", outside, np.zeros_like(outside), 0.0, 0.0)

    check("assert_zero_outside_mask", estimator, holds, options)


def assert_finite(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Credit is finite, whatever is masked, unscored, constant, huge or tiny.

    Each batch is tried as it is, with equal outcomes, with none, and with outcomes of order 1e15 and 1e-15.
    """

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        score = np.asarray(batch.outcome)
        trials = {
            "": score,
            " with equal outcomes": np.full_like(score, 0.1),
            " with no outcome": np.full_like(score, np.nan),
            " with outcomes of order 1e15": score * np.float32(1e15),
            " with outcomes of order 1e-15": score * np.float32(1e-15),
        }
        for when, outcome in trials.items():
            tried = batch.replace(outcome=outcome)
            found = function(tried)
            if not np.isfinite(found).all():
                return Mismatch(f"credit is not finite{when}", found, np.where(np.isfinite(found), found, 0.0), tried)
        return None

    check("assert_finite", estimator, holds, options)


def assert_padding_invariant(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Prompts, rollouts and positions that hold nothing change nobody's credit.

    They have False for flags, -1 for ids and NaN for numbers: nothing in them may be read.
    """
    more = {"P": 1, "G": 2, "T": 3}

    def pad(batch: Trajectory, rng: np.random.Generator) -> tuple:
        p, g, t = batch.tokens.shape
        if batch.votes is None:
            batch = batch.replace(votes=batch.action_mask.any(axis=-1))

        def one(name: str, x: np.ndarray) -> np.ndarray:
            blank = {"b": False, "i": 0 if name == "tokens" else -1, "f": np.nan}[x.dtype.kind]
            # Exactly one pair an axis: a signal without axes is the same for everybody.
            width = [(0, more.get(axis, 0)) for axis in axes_of(batch, name)]
            return np.pad(x, width, constant_values=blank) if width else x

        return map_arrays(batch, one), lambda credit: credit[:p, :g, :t]

    holds = unchanged("credit changes when the batch is padded", pad, options)
    check("assert_padding_invariant", estimator, holds, options)


def assert_permutation_equivariant(
    estimator: Estimator, *, axes: tuple[str, ...] = ("prompts", "rollouts"), **options: Unpack[Options]
) -> None:
    """Permuted prompts, and permuted rollouts, get their credit permuted.

    Args:
      estimator: what is tested.
      axes: "prompts", "rollouts" or both.
      **options: see `Options`.
    """
    for axis in axes:
        place = ("prompts", "rollouts").index(axis)

        def permute(batch: Trajectory, rng: np.random.Generator, axis=axis, place=place) -> tuple:
            size = batch.tokens.shape[place]
            order = rng.permutation(size)
            order = order[::-1] if (order == np.arange(size)).all() else order
            return take(batch, axis, order), lambda credit: np.take(credit, np.argsort(order), axis=place)

        holds = unchanged(f"credit depends on the order of the {axis}", permute, options)
        check("assert_permutation_equivariant", estimator, holds, options)


def assert_expansion_invariant(estimator: Estimator, **options: Unpack[Options]) -> None:
    """Observed positions inserted anywhere, the same tokens in all rollouts, change no action's credit."""

    def expand(batch: Trajectory, rng: np.random.Generator) -> tuple:
        length = batch.length
        # Each inserted position goes before an old one (length: after the last).
        before = np.sort(rng.integers(0, length + 1, size=3))
        old = np.arange(length) + np.searchsorted(before, np.arange(length), side="right")
        new = np.setdiff1d(np.arange(length + 3), old)
        blank = {"segment": -1, "agent": -1, "read_call": -1}

        def one(name: str, x: np.ndarray) -> np.ndarray:
            axes = axes_of(batch, name)
            if "T" not in axes:
                return x
            at = axes.index("T")
            made = np.insert(x, before, blank.get(name, 0), axis=at)
            if name == "token_mask":
                # There is a token if the old row goes on.
                goes_on = np.flip(np.logical_or.accumulate(np.flip(made, -1), axis=-1), -1)
                made[..., new] = goes_on[..., new]
            return made

        return map_arrays(batch, one), lambda credit: credit[..., old]

    holds = unchanged("credit changes when observed positions are inserted", expand, options)
    check("assert_expansion_invariant", estimator, holds, options)


def assert_prompt_independent(estimator: Estimator, **options: Unpack[Options]) -> None:
    """The credit of a prompt does not depend on the other prompts of the batch."""
    batches = options.get("batches") or default_batches(estimator)

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        other = batches(int(rng.integers(1000, 2000)))
        for axis, size in zip(("prompts", "rollouts", "positions"), batch.tokens.shape, strict=True):
            other = take(other, axis, np.arange(size))
        found, wanted = np.array(function(batch)), function(batch)
        for p in range(batch.tokens.shape[0]):

            def all_but_one(name: str, x: np.ndarray, p: int = p) -> np.ndarray:
                if axes_of(batch, name)[:1] != ("P",):
                    return x
                y = np.asarray(other.get(name))
                return np.concatenate([y[:p], x[p : p + 1], y[p + 1 :]])

            found[p] = function(map_arrays(batch, all_but_one))[p]
        return compare("credit changes with the other prompts", found, wanted, **tolerances(options))

    check("assert_prompt_independent", estimator, holds, options)


def assert_micro_batches_agree(estimator: Estimator, **options: Unpack[Options]) -> None:
    """A batch gets the credit that its prompts get one at a time."""

    def holds(function: Function, batch: Trajectory, rng: np.random.Generator) -> Mismatch | None:
        parts = [function(take(batch, "prompts", np.array([p]))) for p in range(batch.tokens.shape[0])]
        return compare(
            "a batch and its prompts one at a time get different credit", np.concatenate(parts), function(batch)
        )

    check("assert_micro_batches_agree", estimator, holds, options)
