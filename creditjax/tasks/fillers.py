"""Running totals with filler steps, for process rewards that can be hacked: repeating the total costs nothing.

Each step writes a digit, the total so far after the next addend, or it is a *filler*: it repeats the total and consumes
nothing. The episode ends with the last addend, whose digit is the answer (outcome 1 if it is the true total), or when
the steps are used up, without an answer. The policy sees how many addends are left and the digit before, not the clock,
so a policy that likes fillers runs out of steps.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from creditjax.exact.game import Act, Chance


class State(NamedTuple):
    """Steps taken, addends consumed, the digit that stands last."""

    step: int
    consumed: int
    digit: int


@dataclasses.dataclass(frozen=True)
class Fillers:
    """The game; each step is a segment, and the token `base` is the filler.

    Attributes:
      addends: what to add.
      steps: most steps of an episode.
      base: digits are 0 to base - 1.
    """

    addends: tuple[int, ...]
    steps: int
    base: int = 3

    def __post_init__(self) -> None:
        if not self.addends or self.base < 2 or self.steps < len(self.addends):
            raise ValueError(
                f"addends: {self.addends}, steps: {self.steps}, base: {self.base}, wanted at least one, as many, and 2"
            )

    @property
    def num_tokens(self) -> int:
        """The digits and the filler."""
        return self.base + 1

    @property
    def length(self) -> int:
        """One token a step."""
        return self.steps

    def start(self) -> State:
        """Total 0."""
        return State(0, 0, 0)

    def move(self, state: State) -> Act | Chance | None:
        """The policy, until the last addend is consumed or the steps are used up."""
        if state.consumed == len(self.addends) or state.step == self.steps:
            return None
        return Act((state.consumed, state.digit), segment=state.step)

    def step(self, state: State, token: int) -> tuple[State, float]:
        """Writes a digit, or repeats the one before."""
        if token == self.base:
            return state._replace(step=state.step + 1), 0.0
        after = State(state.step + 1, state.consumed + 1, token)
        last = after.consumed == len(self.addends)
        return after, float(last and token == sum(self.addends) % self.base)

    def step_scores(
        self, tokens: np.ndarray, live: np.ndarray, right: float, wrong: float, filler: float
    ) -> np.ndarray:
        """What a judge gives each step, ``[L, K]``, 0 after the end.

        Args:
          tokens: i32 ``[L, K]``.
          live: bool ``[L, K]``, the episode had not ended.
          right: score of a digit that follows from the one before.
          wrong: score of one that does not.
          filler: score of a filler.
        """
        scores = np.zeros(tokens.shape)
        addends = np.array([*self.addends, 0])
        consumed, digit = np.zeros(len(tokens), int), np.zeros(len(tokens), int)
        for k in range(tokens.shape[1]):
            token, fills = tokens[:, k], tokens[:, k] == self.base
            follows = token == (digit + addends[np.minimum(consumed, len(self.addends))]) % self.base
            scores[:, k] = np.where(live[:, k], np.where(fills, filler, np.where(follows, right, wrong)), 0.0)
            consumed, digit = consumed + ~fills, np.where(fills, digit, token)
        return scores
