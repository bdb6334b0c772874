"""Building an object whose probability should be proportional to its reward, small enough to know that law.

A point starts at the origin of a grid of `side^dims` cells; a token moves it one step along an axis or stops.
Different orders of the same moves end in the same cell, which is what flow objectives have to see through. The reward
of a cell is ``floor + near + peak``: modes sit in the corners, with valleys between them (Bengio et al. 2021,
arXiv:2106.04399, section 4.1).
"""

import dataclasses
import itertools
from typing import NamedTuple

import numpy as np

from creditjax.exact.game import Act, Chance


class Cell(NamedTuple):
    """Where the point is and whether it has stopped."""

    place: tuple[int, ...]
    stopped: bool = False


@dataclasses.dataclass(frozen=True)
class Hypergrid:
    """Tokens 0 … dims-1 move along that axis, token `dims` stops.

    Attributes:
      side: cells along an axis, at least 2.
      dims: axes.
      floor: reward of every cell, above 0.
      near: extra reward in the outer quarter of all axes.
      peak: extra reward in the ring around the modes.
    """

    side: int = 4
    dims: int = 2
    floor: float = 0.1
    near: float = 0.5
    peak: float = 2.0

    def __post_init__(self) -> None:
        if self.side < 2 or self.dims < 1 or not self.floor > 0:
            raise ValueError(f"side: {self.side}, dims: {self.dims}, floor: {self.floor}, wanted >= 2, >= 1 and > 0")
        if not (self.near >= 0 and self.peak >= 0):
            raise ValueError(f"near: {self.near}, peak: {self.peak}, wanted at least 0: rewards are a law")

    @property
    def num_tokens(self) -> int:
        """Moves and the stop."""
        return self.dims + 1

    @property
    def length(self) -> int:
        """The longest walk and the stop."""
        return self.dims * (self.side - 1) + 1

    def start(self) -> Cell:
        """The origin."""
        return Cell((0,) * self.dims)

    def move(self, state: Cell) -> Act | Chance | None:
        """The policy sees the cell; it can leave the grid nowhere."""
        if state.stopped:
            return None
        inside = tuple(axis for axis in range(self.dims) if state.place[axis] + 1 < self.side)
        return Act(state.place, legal=(*inside, self.dims), segment=sum(state.place))

    def step(self, state: Cell, token: int) -> tuple[Cell, float]:
        """Moves or stops; stopping pays."""
        if token == self.dims:
            return state._replace(stopped=True), self.reward(state.place)
        return Cell(tuple(x + (axis == token) for axis, x in enumerate(state.place))), 0.0

    def reward(self, place: tuple[int, ...]) -> float:
        """The unnormalised probability of a cell."""
        distance = np.abs(np.asarray(place) / (self.side - 1) - 0.5)
        outer, ring = bool((distance > 0.25).all()), bool(((distance > 0.3) & (distance < 0.4)).all())
        return self.floor + self.near * outer + self.peak * ring

    def law(self) -> dict[tuple[int, ...], float]:
        """The true distribution over cells."""
        cells = list(itertools.product(range(self.side), repeat=self.dims))
        rewards = np.array([self.reward(cell) for cell in cells])
        return dict(zip(cells, rewards / rewards.sum(), strict=True))
