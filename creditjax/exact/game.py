"""What a task small enough to be solved is described by: whose move it is, and where each token leads."""

from collections.abc import Hashable
import dataclasses
from typing import Any, NamedTuple, Protocol

State = Any  # anything hashable


class Act(NamedTuple):
    """The policy chooses the next token.

    Attributes:
      observation: what the policy knows; states that look alike get the same action probabilities.
      legal: the tokens that it may choose, all of them if empty.
      segment: the turn or step that the token belongs to.
      agent: who chooses.
    """

    observation: Hashable
    legal: tuple[int, ...] = ()
    segment: int = 0
    agent: int = 0


class Chance(NamedTuple):
    """The environment draws the next token.

    Attributes:
      law: the probability of each token, by token.
      segment: the turn or step that the token belongs to.
    """

    law: dict[int, float]
    segment: int = 0


class Game(Protocol):
    """A task of finite length over tokens ``0 … num_tokens - 1``. States are hashable; equal states are one state.

    A state that holds the whole prefix makes the game a tree, and everything about it is enumerated. One that holds
    only what the future depends on makes it a graph, and the same functions are dynamic programming.

    Attributes:
      num_tokens: size of the alphabet.
      length: T, most tokens of an episode.
    """

    num_tokens: int
    length: int

    def start(self) -> State:
        """The state before the first token."""
        ...

    def move(self, state: State) -> Act | Chance | None:
        """Who produces the next token; None after the end."""
        ...

    def step(self, state: State, token: int) -> tuple[State, float]:
        """The next state, and the reward that the token brought."""
        ...


@dataclasses.dataclass(frozen=True)
class Remembering:
    """A game whose states hold every token so far: a tree. Made by :func:`remember`."""

    game: Game

    @property
    def num_tokens(self) -> int:
        """As in the game."""
        return self.game.num_tokens

    @property
    def length(self) -> int:
        """As in the game."""
        return self.game.length

    def start(self) -> State:
        """The empty prefix."""
        return (), self.game.start()

    def move(self, state: State) -> Act | Chance | None:
        """As in the game: the policy sees no more."""
        return self.game.move(state[1])

    def step(self, state: State, token: int) -> tuple[State, float]:
        """The prefix grows."""
        after, reward = self.game.step(state[1], token)
        return ((*state[0], token), after), reward


def remember(game: Game) -> Remembering:
    """The same game as a tree of prefixes; the policy knows what it knew."""
    return Remembering(game)
