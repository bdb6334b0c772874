"""A pipeline of agents with one reward: who earned it has an exact answer for every coalition.

Agent n sees what the agent before it did and chooses 0 (its default) or one of the other tokens; token 1 is the right
one. The team is paid

    Σ_n w_n [a_n = 1] + Σ_{n<m} u_nm [a_n = 1] [a_m = 1]

and a coalition S is worth what the team would have been paid if everybody outside S had played the default. With the
additive part alone an agent's Shapley value is ``w_n [a_n = 1]``; a synergy is split in halves.
"""

from collections.abc import Mapping
import dataclasses
from typing import NamedTuple

import numpy as np

from creditjax.exact.game import Act, Chance
from creditjax.exact.paths import Paths


class State(NamedTuple):
    """What the agents so far did."""

    actions: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class Pipeline:
    """The game; each agent is a segment of its own.

    Attributes:
      weights: w_n, one an agent.
      synergy: u_nm by the pair (n, m) with n < m.
      num_tokens: choices of each agent, at least 2.
    """

    weights: tuple[float, ...]
    synergy: Mapping[tuple[int, int], float] = dataclasses.field(default_factory=dict)
    num_tokens: int = 2

    def __post_init__(self) -> None:
        agents = len(self.weights)
        if agents < 1 or self.num_tokens < 2:
            raise ValueError(f"weights: {agents} agents, num_tokens: {self.num_tokens}, wanted at least 1 and 2")
        if bad := [pair for pair in self.synergy if not 0 <= pair[0] < pair[1] < agents]:
            raise ValueError(f"synergy: pair {bad[0]}, wanted n < m below {agents}")

    @property
    def length(self) -> int:
        """One token an agent."""
        return len(self.weights)

    def start(self) -> State:
        """Nobody acted."""
        return State()

    def move(self, state: State) -> Act | Chance | None:
        """The next agent, who sees the one before."""
        agent = len(state.actions)
        if agent == len(self.weights):
            return None
        return Act((agent, state.actions[-1:]), segment=agent, agent=agent)

    def step(self, state: State, token: int) -> tuple[State, float]:
        """The team is paid after its last agent."""
        after = State((*state.actions, token))
        return after, self.worth(after.actions) if len(after.actions) == len(self.weights) else 0.0

    def worth(self, actions: tuple[int, ...]) -> float:
        """What the team is paid."""
        right = [action == 1 for action in actions]
        alone = sum(w for w, ok in zip(self.weights, right, strict=True) if ok)
        return alone + sum(u for (n, m), u in self.synergy.items() if right[n] and right[m])

    def signals(self, paths: Paths) -> dict[str, np.ndarray]:
        """The coalition values of episodes, by their signal's name."""
        return {"coalition_value": self.coalition_value(paths.tokens)}

    def coalition_value(self, tokens: np.ndarray) -> np.ndarray:
        """The signal of that name: ``[L, T]`` tokens to the worth of every coalition, ``[L, 2^N]``, bit n agent n."""
        agents = len(self.weights)
        table = np.zeros((len(tokens), 2**agents))
        for row, actions in enumerate(self._actions(tokens)):
            for coalition in range(2**agents):
                present = tuple(int(a) if coalition >> n & 1 else 0 for n, a in enumerate(actions))
                table[row, coalition] = self.worth(present)
        return table

    def shapley(self, tokens: np.ndarray) -> np.ndarray:
        """The exact Shapley value of each agent, ``[L, N]``: its own weight and half of each synergy it made."""
        right = self._actions(tokens) == 1
        value = right * np.asarray(self.weights, np.float64)
        for (n, m), u in self.synergy.items():
            half = 0.5 * u * (right[:, n] & right[:, m])
            value[:, n] += half
            value[:, m] += half
        return value

    def _actions(self, tokens: np.ndarray) -> np.ndarray:
        actions = np.asarray(tokens)
        if actions.ndim != 2 or actions.shape[1] != len(self.weights):
            raise ValueError(f"tokens: shape {list(actions.shape)}, wanted [L, {len(self.weights)}], one an agent")
        return actions
