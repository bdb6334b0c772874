"""Two chains of bsuite whose delay and noise have exact values.

`UmbrellaChain`: the first action takes an umbrella or leaves it, the last step pays +1 if that suits the weather, known
from the start, and -1 if not; every step between pays a coin flip that no action can change.
`DiscountingChain`: the first action picks a delay, and after that many steps its reward arrives; one delay pays a tenth
more. Source: Osband et al. 2020 (arXiv:1908.03568).
"""

import dataclasses
from typing import NamedTuple

from creditjax.exact.game import Act, Chance


class Weather(NamedTuple):
    """Before a token: the step (0: nobody knows the weather yet), whether it rains, whether there is an umbrella."""

    step: int
    rain: int = -1
    umbrella: int = -1
    coin: bool = False


@dataclasses.dataclass(frozen=True)
class UmbrellaChain:
    """Binary actions; the weather is the first token, a coin follows each action but the last.

    Attributes:
      steps: actions, at least 2.
      coin: what each flip pays or takes.
    """

    steps: int
    coin: float = 1.0

    num_tokens = 2

    def __post_init__(self) -> None:
        if self.steps < 2:
            raise ValueError(f"steps: {self.steps}, wanted at least 2")

    @property
    def length(self) -> int:
        """The weather, then action and coin in turns, without a last coin."""
        return 2 * self.steps

    def start(self) -> Weather:
        """Before the forecast."""
        return Weather(0)

    def move(self, state: Weather) -> Act | Chance | None:
        """The forecast, then the policy and the coin in turns."""
        if state.rain < 0:
            return Chance({0: 0.5, 1: 0.5})
        if state.step == self.steps:
            return None
        if state.coin:
            return Chance({0: 0.5, 1: 0.5}, segment=state.step)
        return Act((state.step, state.rain, state.umbrella), segment=state.step)

    def step(self, state: Weather, token: int) -> tuple[Weather, float]:
        """Moves on; a coin belongs to the action before it."""
        if state.rain < 0:
            return state._replace(rain=token), 0.0
        if state.coin:
            return state._replace(step=state.step + 1, coin=False), self.coin * (2 * token - 1)
        umbrella = token if state.step == 0 else state.umbrella
        if state.step + 1 < self.steps:
            return state._replace(umbrella=umbrella, coin=True), 0.0
        return state._replace(step=self.steps, umbrella=umbrella), 1.0 if umbrella == state.rain else -1.0


class Delay(NamedTuple):
    """Steps taken and the delay that was picked, -1 before that."""

    step: int
    picked: int = -1


@dataclasses.dataclass(frozen=True)
class DiscountingChain:
    """The first action picks a delay; later ones do nothing.

    Attributes:
      delays: in steps after the first, increasing.
      best: index of the delay that pays 1 + `bonus`.
      bonus: a tenth in the source.
    """

    delays: tuple[int, ...] = (0, 2, 4, 9)
    best: int = 3
    bonus: float = 0.1

    def __post_init__(self) -> None:
        rising = list(self.delays) == sorted(set(self.delays)) and min(self.delays, default=-1) >= 0
        if not rising or not 0 <= self.best < len(self.delays):
            raise ValueError(
                f"delays: {self.delays}, best: {self.best}, wanted increasing delays from 0 on and the index of one"
            )

    @property
    def num_tokens(self) -> int:
        """One token a delay."""
        return len(self.delays)

    @property
    def length(self) -> int:
        """Until the longest delay is over."""
        return self.delays[-1] + 1

    def start(self) -> Delay:
        """Nothing picked."""
        return Delay(0)

    def move(self, state: Delay) -> Act | Chance | None:
        """The policy, to the end."""
        if state.step == self.length:
            return None
        # What is chosen later changes nothing: one token is enough to wait.
        return Act(tuple(state), legal=() if state.step == 0 else (0,), segment=state.step)

    def step(self, state: Delay, token: int) -> tuple[Delay, float]:
        """Waits; pays when the delay is over."""
        picked = token if state.picked < 0 else state.picked
        due = self.delays[picked] == state.step
        return Delay(state.step + 1, picked), float(due) * (1 + self.bonus * (picked == self.best))
