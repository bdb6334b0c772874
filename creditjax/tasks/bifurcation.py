"""Turns of which some decide the outcome and the rest do not, with exact credit at any horizon.

Four families over binary actions (card `bifurcation_task`; arXiv:2604.09459, section 9):

    threshold     score = Σ_k w_k (2 a_k - 1), outcome 1[score >= threshold]; w_k = 0 is a distractor
    single        one decisive turn: w_b = 1, every other 0, threshold 1
    conjunction   every decisive turn has to be right
    recoverable   turn b has to be right, or else turn b + r

An environment may flip each action with probability `flip`, which shows as a token of its own after it. The state holds
no more than the future depends on, so 64 turns are as exact as four; `exact.remember` makes a tree of it.
"""

from collections.abc import Hashable
import dataclasses
import functools
from typing import Literal, NamedTuple, get_args

from creditjax.exact.game import Act, Chance

Sight = Literal["state", "turn", "parity", "nothing"]


class State(NamedTuple):
    """Before a token: the turn, what the turns so far amount to, and the action that may yet be flipped (-1: none)."""

    turn: int
    sum: int
    pending: int = -1


@dataclasses.dataclass(frozen=True)
class Bifurcation:
    """A game over the tokens 0 (wrong) and 1 (right); see the constructors below.

    Attributes:
      weights: effect of each turn on the sum, 0 for a distractor.
      threshold: least sum that wins.
      centred: a wrong action takes the weight off (the threshold family) instead of adding nothing.
      flip: probability that the environment turns an action around.
      sees: what the policy knows: turn and sum ("state"), the turn, the sum's parity (states that differ look alike),
        or nothing at all.
    """

    weights: tuple[int, ...]
    threshold: int
    centred: bool = True
    flip: float = 0.0
    sees: Sight = "state"

    num_tokens = 2

    def __post_init__(self) -> None:
        if not self.weights:
            raise ValueError("weights: none, wanted one a turn")
        if not 0 <= self.flip < 1:
            raise ValueError(f"flip: {self.flip}, wanted a probability below 1")
        if self.sees not in get_args(Sight):
            raise ValueError(f"sees: {self.sees!r}, wanted one of {', '.join(get_args(Sight))}")

    @property
    def length(self) -> int:
        """Tokens of an episode."""
        return len(self.weights) * (2 if self.flip else 1)

    def start(self) -> State:
        """Nothing done."""
        return State(0, 0)

    def move(self, state: State) -> Act | Chance | None:
        """The policy, then where there are flips the environment."""
        if state.turn == len(self.weights):
            return None
        if state.pending >= 0:
            return Chance({state.pending: 1 - self.flip, 1 - state.pending: self.flip}, segment=state.turn)
        return Act(self._observation(state), segment=state.turn)

    def step(self, state: State, token: int) -> tuple[State, float]:
        """Takes the action, or what the environment made of it."""
        if self.flip and state.pending < 0:
            return state._replace(pending=token), 0.0
        weight = self.weights[state.turn]
        effect = weight * (2 * token - 1) if self.centred else weight * token
        after = State(state.turn + 1, self._clipped(state.turn + 1, state.sum + effect))
        over = after.turn == len(self.weights)
        return after, float(over and after.sum >= self.threshold)

    def _observation(self, state: State) -> Hashable:
        return {
            "state": (state.turn, state.sum),
            "turn": (state.turn,),
            "parity": (state.turn, state.sum % 2),
            "nothing": (),
        }[self.sees]

    def _clipped(self, turn: int, total: int) -> int:
        # Sums beyond recall are one state each: fewer states, the same future.
        ahead = self._reach[turn]
        return max(min(total, self.threshold + ahead), self.threshold - ahead - 1)

    @functools.cached_property
    def _reach(self) -> tuple[int, ...]:
        ahead = [0]
        for weight in reversed(self.weights):
            ahead.append(ahead[-1] + abs(weight))
        return tuple(reversed(ahead))


def threshold(weights: tuple[int, ...], least: int = 0, **options) -> Bifurcation:
    """The additive family: outcome ``1[Σ w_k (2 a_k - 1) >= least]``."""
    return Bifurcation(tuple(weights), least, **options)


def single(turns: int, decisive: int, **options) -> Bifurcation:
    """One decisive turn."""
    _check_turn("decisive", decisive, turns)
    return Bifurcation(tuple(int(k == decisive) for k in range(turns)), 1, **options)


def conjunction(turns: int, decisive: tuple[int, ...], **options) -> Bifurcation:
    """Every decisive turn has to be right."""
    for turn in decisive:
        _check_turn("decisive", turn, turns)
    weights = tuple(int(k in decisive) for k in range(turns))
    return Bifurcation(weights, sum(weights), centred=False, **options)


def recoverable(turns: int, decisive: int, repair: int, **options) -> Bifurcation:
    """Turn `decisive` has to be right, or else turn ``decisive + repair``."""
    _check_turn("decisive", decisive, turns)
    _check_turn("decisive + repair", decisive + repair, turns)
    return Bifurcation(
        tuple(int(k in (decisive, decisive + repair)) for k in range(turns)), 1, centred=False, **options
    )


def _check_turn(name: str, turn: int, turns: int) -> None:
    if not 0 <= turn < turns:
        raise ValueError(f"{name}: turn {turn} of {turns}, wanted 0 to {turns - 1}")
