"""The same task at another horizon, and how success depends on it: card `horizon_reduction` (arXiv:2605.02572).

Two ways to make a horizon shorter: `Macro` lets one action of the policy be several of the game's, and
:func:`subgoal_ends` cuts an episode where credit shall not cross. The measures say how fast success falls with the
distance to the goal.
"""

from collections.abc import Hashable
import dataclasses
import math
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.exact.game import Act, Chance, Game

Array = jax.Array


@dataclasses.dataclass(frozen=True)
class Macro:
    """A game in which one token is up to `size` of another game's: token ``a_1 + V a_2 + V² a_3 …``.

    What is left of a macro action when the episode ends is ignored. A game of horizon H has ``ceil(H / size)`` of them.
    The reward of one is ``Σ_j gamma^j r_j``, and the discount from one to the next is `discount`, so that a fixed
    policy over the game's own actions has the same return with and without the wrapper, whatever gamma is.

    Attributes:
      game: in which the policy alone moves, all tokens are legal, and it sees as much after each action as `Macro`
        shows it at the first of them.
      size: actions of the game in one of these.
      gamma: discount of an action of the game.
    """

    game: Game
    size: int
    gamma: float = 1.0

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.gamma <= 1:
            raise ValueError(f"size: {self.size}, gamma: {self.gamma}, wanted at least 1 and within [0, 1]")

    @property
    def num_tokens(self) -> int:
        """``V^size``."""
        return self.game.num_tokens**self.size

    @property
    def length(self) -> int:
        """``ceil(H / size)``."""
        return -(-self.game.length // self.size)

    @property
    def discount(self) -> float:
        """From one macro action to the next."""
        return self.gamma**self.size

    def start(self) -> Hashable:
        """That of the game."""
        return self.game.start()

    def move(self, state: Any) -> Act | Chance | None:
        """The game's, one segment a macro action.

        Raises:
          ValueError: a chance move, or actions that are not legal.
        """
        move = self.game.move(state)
        if move is not None and (not isinstance(move, Act) or move.legal):
            raise ValueError(f"game: {move}, wanted actions of the policy alone, all of them legal")
        return move and move._replace(segment=move.segment // self.size)

    def step(self, state: Any, token: int) -> tuple[Hashable, float]:
        """The game's steps until the macro action or the episode is over."""
        reward = 0.0
        for j in range(self.size):
            if self.game.move(state) is None:
                break
            token, action = divmod(token, self.game.num_tokens)
            state, paid = self.game.step(state, action)
            reward += self.gamma**j * paid
        return state, reward

    def policy(self, atomic: np.ndarray) -> np.ndarray:
        """Macro probabilities ``[V^size]`` of a policy ``[V]`` that draws each action by itself."""
        law = np.asarray(atomic, np.float64)
        joint = law
        for _ in range(self.size - 1):
            joint = np.multiply.outer(law, joint).ravel()
        return joint


def subgoal_ends(action_mask: Array, every: int) -> Array:
    """The acted positions after which a new subgoal begins, bool ``[..., T]``: as `terminated`, no credit crosses them.

    Args:
      action_mask: bool ``[..., T]``.
      every: actions from one subgoal to the next.

    Raises:
      ValueError: `every` below 1.
    """
    if every < 1:
        raise ValueError(f"every: {every}, wanted at least 1")
    count = jnp.cumsum(action_mask, axis=-1)
    return action_mask & (count % every == 0)


def success_curve(success: Array, distance: Array, num_distances: int) -> Array:
    """Share of successes at each goal distance 0 … D-1, f32 ``[D]``; NaN where no episode had it.

    Args:
      success: bool or in [0, 1], ``[N]``.
      distance: i32 ``[N]``.
      num_distances: D.
    """
    count = jnp.zeros(num_distances).at[distance].add(1.0)
    total = jnp.zeros(num_distances).at[distance].add(jnp.asarray(success, jnp.float32))
    return jnp.where(count > 0, total / jnp.maximum(count, 1.0), jnp.nan)


def horizon_generalization(curve: Array, trained: int, tested: int) -> Array:
    """``S(tested) / max(S(trained), 1e-6)``: how much of the success is left at another distance."""
    return curve[tested] / jnp.maximum(curve[trained], 1e-6)


def implied_step_accuracy(success: float, distance: int) -> float:
    """The p with ``p^distance = success``: what each step is worth if they fail independently.

    Raises:
      ValueError: a success outside [0, 1] or a distance below 1.
    """
    if not 0 <= success <= 1 or distance < 1:
        raise ValueError(f"success: {success}, distance: {distance}, wanted within [0, 1] and at least 1")
    return math.pow(success, 1 / distance)


def collapse_step(success: Array, window: int = 20) -> Array:
    """First update after the peak at which the moving mean of success is below half of it; -1 if it never is.

    Args:
      success: f32 ``[N]``, by update.
      window: updates in the moving mean; the first means have fewer.

    Returns:
      i32 scalar.
    """
    total = jnp.cumsum(jnp.asarray(success, jnp.float32))
    before = jnp.pad(total, (window, 0))[: len(total)]
    mean = (total - before) / jnp.minimum(jnp.arange(1, len(total) + 1), window)
    collapsed = (jnp.arange(len(mean)) > jnp.argmax(mean)) & (mean < 0.5 * jnp.max(mean))
    return jnp.where(collapsed.any(), jnp.argmax(collapsed), -1)
