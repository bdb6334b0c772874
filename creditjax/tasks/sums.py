"""Reasoning in steps that a symbolic oracle checks: a running total, written down addend by addend.

The prompt is a list of addends; step k writes one digit, the total so far modulo `base`. A step is *locally* right if
it follows from the digit before it, whatever that was; the *prefix* is right if every step so far was. The outcome is
whether the last digit is the true total, so an early error ruins the answer unless a later one undoes it by luck.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from creditjax.exact.game import Act, Chance


class State(NamedTuple):
    """The number of steps taken and the digit that stands last."""

    step: int
    digit: int


@dataclasses.dataclass(frozen=True)
class Sums:
    """The game; each step is a segment.

    Attributes:
      addends: what to add, step by step.
      base: digits are 0 to base - 1.
    """

    addends: tuple[int, ...]
    base: int = 3

    def __post_init__(self) -> None:
        if not self.addends or self.base < 2:
            raise ValueError(f"addends: {self.addends}, base: {self.base}, wanted at least one and at least 2")

    @property
    def num_tokens(self) -> int:
        """The digits."""
        return self.base

    @property
    def length(self) -> int:
        """One digit a step."""
        return len(self.addends)

    def start(self) -> State:
        """Total 0."""
        return State(0, 0)

    def move(self, state: State) -> Act | Chance | None:
        """The policy sees the step and the digit before it: it has to add, not to remember."""
        return None if state.step == len(self.addends) else Act((state.step, state.digit), segment=state.step)

    def step(self, state: State, token: int) -> tuple[State, float]:
        """Writes a digit."""
        last = state.step + 1 == len(self.addends)
        return State(state.step + 1, token), float(last and token == sum(self.addends) % self.base)

    def step_is_right(self, tokens: np.ndarray) -> np.ndarray:
        """Each step follows from the digit before it, bool ``[L, K]``."""
        before = np.pad(np.asarray(tokens), ((0, 0), (1, 0)))[:, :-1]
        return (before + np.asarray(self.addends)) % self.base == tokens

    def prefix_is_right(self, tokens: np.ndarray) -> np.ndarray:
        """All steps up to each one are right, bool ``[L, K]``."""
        return np.logical_and.accumulate(self.step_is_right(tokens), axis=1)

    def first_error(self, tokens: np.ndarray) -> np.ndarray:
        """Index of the first step that is not, K if there is none: i32 ``[L]``."""
        return self.prefix_is_right(tokens).sum(axis=1).astype(np.int32)
