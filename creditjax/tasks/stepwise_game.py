"""Reasoning in steps on one question, enumerated: every transcript, with the verdicts of the symbolic oracle.

    game = StepwiseGame(StepwiseTask(addends=2, base=2, max_turns=3))
    process = exact.lay_out(game)
    signals = game.signals(exact.enumerate_paths(process))

The rules are those of `creditjax.tasks.stepwise`; only well-formed steps are legal, ``(2 b)^(K - 1) 3 b`` transcripts
and some that end earlier. With the task's `noise` the judge errs, with `hackable` fillers are paid.
"""

from collections.abc import Mapping
import dataclasses

from creditjax.tasks.stepwise import ANSWER, PLUS, SAME, StepwiseTask
from creditjax.tasks.turn_game import TurnGame


@dataclasses.dataclass(frozen=True)
class StepwiseGame(TurnGame):
    """One question of a :class:`StepwiseTask`: add, repeat, or answer, with any digit."""

    task: StepwiseTask
    index: int = 0

    @property
    def grammar(self) -> Mapping[int, tuple[int, ...]]:
        """A word and a digit."""
        digits = tuple(range(self.task.vocab_size - self.task.base, self.task.vocab_size))
        return dict.fromkeys((PLUS, SAME, ANSWER), digits)
