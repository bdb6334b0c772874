"""Hypothesis strategies for batches. Needs the package `hypothesis`, which creditjax itself does not."""

from collections.abc import Collection

from hypothesis import strategies

from creditjax.testing.batches import random_batch
from creditjax.trajectory import Trajectory

SHAPES = ((1, 1, 1), (1, 2, 3), (2, 3, 6), (3, 4, 9))


def shapes(choices: Collection[tuple[int, int, int]] = SHAPES) -> strategies.SearchStrategy[tuple[int, int, int]]:
    """``(P, G, T)`` out of a few, since every shape is a program to compile; shrinks towards the first."""
    return strategies.sampled_from(tuple(choices))


def trajectories(
    needs: Collection[str] = (),
    *,
    shape: strategies.SearchStrategy[tuple[int, int, int]] | None = None,
    outcome: strategies.SearchStrategy[str] | None = None,
    segments: int = 4,
    agents: int = 3,
) -> strategies.SearchStrategy[Trajectory]:
    """Batches as `random_batch` makes them: ragged, with gaps and empty segments, tidy before hostile when shrinking.

    Args:
      needs: fields and signals beside tokens, action mask and outcome.
      shape: of ``(P, G, T)``; `shapes()` by default.
      outcome: of "binary", "unit" and "real"; all three by default.
      segments: K.
      agents: N.
    """
    return strategies.builds(
        random_batch,
        strategies.integers(0, 2**32 - 1),
        shape=shapes() if shape is None else shape,
        needs=strategies.just(tuple(needs)),
        outcome=strategies.sampled_from(("binary", "unit", "real")) if outcome is None else outcome,
        segments=strategies.just(segments),
        agents=strategies.just(agents),
        degenerate=strategies.booleans(),
        hostile=strategies.booleans(),
    )
