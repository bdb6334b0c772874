"""One question of a task in turns, enumerated: every well-formed transcript, with the signals of the task's oracles.

The rules are those of the task's environment, asked one turn at a time. A turn, which is a segment, is two tokens of
the policy and what the environment answers, drawn with probability 1. The policy knows the question and the transcript,
which is the state, so the tree is small only where the task is.
"""

import abc
from collections.abc import Mapping
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.exact.game import Act, Chance
from creditjax.exact.paths import Paths
from creditjax.tasks.base import Prompts
from creditjax.trajectory import SIGNALS, Trajectory

_ACTION = 2  # tokens of the policy in a turn


class Transcript(NamedTuple):
    """The turns so far, the first token of an unfinished one (-1: none), and whether an answer is due."""

    turns: tuple[tuple[int, int], ...] = ()
    head: int = -1
    answered: bool = True


@dataclasses.dataclass(frozen=True)
class TurnGame(abc.ABC):
    """One question as a game. What is left to a task is its `grammar`.

    Attributes:
      task: the rules and the law of questions; its `signals` are what :meth:`signals` gives.
      index: which training question.
    """

    task: Any
    index: int = 0

    @property
    def num_tokens(self) -> int:
        """The task's vocabulary."""
        return self.task.vocab_size

    @property
    def length(self) -> int:
        """Positions after the prompt."""
        return self._turn * self.task.turns.max_turns

    @property
    def _turn(self) -> int:
        return _ACTION + self.task.turns.observation_length

    @property
    @abc.abstractmethod
    def grammar(self) -> Mapping[int, tuple[int, ...]]:
        """The tokens that open a turn, and those that may follow each."""

    def agent(self, turn: int) -> int:
        """Who acts."""
        del turn
        return 0

    def start(self) -> Transcript:
        """The question alone."""
        return Transcript()

    def move(self, state: Transcript) -> Act | Chance | None:
        """The policy's two tokens, then the environment's."""
        turn = len(state.turns) - (not state.answered)
        if not state.answered:
            return Chance({int(self._after(state.turns)[1].tokens[0]): 1.0}, segment=turn)
        if state.turns and bool(self._after(state.turns)[0].terminated):
            return None
        legal = tuple(sorted(self.grammar)) if state.head < 0 else self.grammar[state.head]
        # It has seen its own actions and the answers, which follow from them.
        return Act(state, legal=legal, segment=turn, agent=self.agent(turn))

    def step(self, state: Transcript, token: int) -> tuple[Transcript, float]:
        """A token more; the reward of a turn comes with its second token."""
        if not state.answered:
            return state._replace(answered=True), 0.0
        if state.head < 0:
            return state._replace(head=token), 0.0
        turns = (*state.turns, (state.head, token))
        _, result = self._after(turns)
        return Transcript(turns, answered=not np.any(result.mask)), float(result.reward)

    def signals(self, paths: Paths) -> dict[str, np.ndarray]:
        """The task's signals by the same oracles that annotate its rollouts, one entry an episode, ``[L, …]``.

        What belongs to the prompt alone has no such axis.
        """
        columns = np.arange(0, self.length, self._turn)
        # Samples repeat transcripts.
        _, which, each = np.unique(paths.tokens, axis=0, return_index=True, return_inverse=True)
        paths = Paths(*(column[which] for column in paths))
        states = []
        for tokens, acts in zip(paths.tokens, paths.acts, strict=True):
            turns = tuple((int(tokens[c]), int(tokens[c + 1])) for c in columns if acts[c])
            states.append(self._after(turns)[0])
        prompt = self.task.prompt_length

        def laid_out(x: np.ndarray, fill: Any) -> np.ndarray:
            return np.pad(x, ((0, 0), (prompt, 0)), constant_values=fill)[None]

        batch = Trajectory(
            tokens=laid_out(paths.tokens, 0),
            action_mask=laid_out(paths.acts, False),
            outcome=np.zeros((1, len(states)), np.float32),
            segment=laid_out(paths.segment, -1),
            num_segments=self.task.turns.max_turns,
        )
        stacked = jax.tree.map(lambda *x: jnp.stack(x)[None], *states)
        annotated = _annotate(self.task, batch, self.task.prompts("train", self.index, 1), stacked)
        made = {}
        for name, x in annotated.signals.items():
            axes, own = SIGNALS[name].axes, np.asarray(x)[0]
            if axes[:2] == ("P", "G"):
                own = (own[:, prompt:] if axes[2:3] == ("T",) else own)[each.reshape(-1)]
            made[name] = own
        return made

    def _after(self, turns: tuple[tuple[int, int], ...]) -> tuple[Any, Any]:
        """The environment after these turns, and its last answer."""
        return _play(self.task, self.index, turns)


@functools.lru_cache(maxsize=1 << 16)
def _play(task: Any, index: int, turns: tuple[tuple[int, int], ...]) -> tuple[Any, Any]:
    if not turns:
        data = task.prompts("train", index, 1).data[0]
        return jax.device_get(task.environment.reset(jnp.asarray(data))), None
    state, _ = _play(task, index, turns[:-1])
    return jax.device_get(_step(task, state, np.asarray(turns[-1], np.int32)))


@functools.partial(jax.jit, static_argnums=0)
def _step(task: Any, state: Any, action: jax.Array) -> tuple[Any, Any]:
    return task.environment.step(state, action, jnp.ones(_ACTION, bool))


@functools.partial(jax.jit, static_argnums=0)
def _annotate(task: Any, batch: Trajectory, prompts: Prompts, states: Any) -> Trajectory:
    return task.annotate(batch, prompts, states)
