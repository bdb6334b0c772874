"""The look-up agent on one question of a small world, enumerated: every transcript, with the signals of its oracles.

    game = LookupGame(LookupTask(num_entities=2, num_relations=2, hops=2, max_turns=3, reach=2))
    process = exact.lay_out(game)
    signals = game.signals(exact.enumerate_paths(process))

The rules are those of `creditjax.tasks.lookup`, asked one turn at a time; only well-formed turns are legal. The policy
knows the question and what it was answered, so a transcript is a state, and the tree of transcripts is small only
where the world is: ``(E R + E)^K`` of them at most. An observation is a token that the environment draws with
probability 1.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.exact.game import Act, Chance
from creditjax.exact.paths import Paths
from creditjax.tasks.lookup import ANSWER, READ, LookupState, LookupTask
from creditjax.trajectory import SIGNALS, Trajectory

_TURN = 3  # two tokens of the policy and one of the environment


class Transcript(NamedTuple):
    """The turns so far, the first token of an unfinished one (-1: none), and whether an answer is due."""

    turns: tuple[tuple[int, int], ...] = ()
    head: int = -1
    answered: bool = True


@dataclasses.dataclass(frozen=True)
class LookupGame:
    """One question as a game; a turn is a segment.

    Attributes:
      task: the rules and the law of worlds; its `signals` are what :meth:`signals` gives.
      index: which training question.
    """

    task: LookupTask
    index: int = 0

    @property
    def num_tokens(self) -> int:
        """The task's vocabulary."""
        return self.task.vocab_size

    @property
    def length(self) -> int:
        """Positions after the prompt."""
        return _TURN * self.task.turns.max_turns

    def start(self) -> Transcript:
        """The question alone."""
        return Transcript()

    def move(self, state: Transcript) -> Act | Chance | None:
        """The policy's two tokens, then the environment's."""
        turn = len(state.turns) - (not state.answered)
        if not state.answered:
            return Chance({self._told(state.turns): 1.0}, segment=turn)
        if state.turns and bool(self._after(state.turns)[0].terminated):
            return None
        heads, tails = self._grammar
        legal = heads if state.head < 0 else tails[state.head]
        # It has seen its own actions and the answers, which follow from them.
        return Act(state, legal=legal, segment=turn, agent=turn % self.task.num_agents)

    def step(self, state: Transcript, token: int) -> tuple[Transcript, float]:
        """A token more; the reward of a turn comes with its second token."""
        if not state.answered:
            return state._replace(answered=True), 0.0
        if state.head < 0:
            return state._replace(head=token), 0.0
        turns = (*state.turns, (state.head, token))
        _, result = self._after(turns)
        return Transcript(turns, answered=not bool(result.mask[0])), float(result.reward)

    def signals(self, paths: Paths) -> dict[str, np.ndarray]:
        """The task's signals of every episode, ``[L, …]``, by the same oracles that annotate its rollouts."""
        columns = np.arange(0, self.length, _TURN)
        # Samples repeat transcripts.
        _, which, each = np.unique(paths.tokens, axis=0, return_index=True, return_inverse=True)
        paths = Paths(*(column[which] for column in paths))
        states = []
        for tokens, acts in zip(paths.tokens, paths.acts, strict=True):
            turns = tuple((int(tokens[c]), int(tokens[c + 1])) for c in columns if acts[c])
            states.append(self._after(turns)[0])
        prompt = self.task.prompt_length

        def laid_out(x: np.ndarray, fill: Any) -> np.ndarray:
            return np.pad(x, ((0, 0), (prompt, 0)), constant_values=fill)

        batch = Trajectory(
            tokens=laid_out(paths.tokens, 0),
            action_mask=laid_out(paths.acts, False),
            outcome=np.zeros(len(states), np.float32),
            segment=laid_out(paths.segment, -1),
            num_segments=self.task.turns.max_turns,
        )
        stacked = jax.tree.map(lambda *x: jnp.stack(x), *states)
        annotated = _annotate(self.task, batch, stacked)
        whole = {name: np.asarray(x) for name, x in annotated.signals.items()}
        own = {name: x[:, prompt:] if SIGNALS[name].axes[2:3] == ("T",) else x for name, x in whole.items()}
        return {name: x[each] for name, x in own.items()}

    @functools.cached_property
    def _grammar(self) -> tuple[tuple[int, ...], dict[int, tuple[int, ...]]]:
        """The tokens that open a turn, and those that may follow each."""
        words, task = self.task.vocabulary, self.task
        entities = tuple(range(words.entity, words.entity + task.num_entities))
        relations = tuple(range(words.relation, words.relation + task.num_relations))
        skills = tuple(range(words.skill, words.skill + task.num_skills))
        tails = {**dict.fromkeys(entities, relations), ANSWER: entities, **({READ: skills} if skills else {})}
        return tuple(sorted(tails)), tails

    def _told(self, turns: tuple[tuple[int, int], ...]) -> int:
        return int(self._after(turns)[1].tokens[0])

    def _after(self, turns: tuple[tuple[int, int], ...]) -> tuple[LookupState, Any]:
        """The environment after these turns, and its last answer."""
        return _play(self.task, self.index, turns)


@functools.lru_cache(maxsize=1 << 16)
def _play(task: LookupTask, index: int, turns: tuple[tuple[int, int], ...]) -> tuple[LookupState, Any]:
    if not turns:
        data = task.prompts("train", index, 1).data[0]
        return jax.device_get(task.environment.reset(jnp.asarray(data))), None
    state, _ = _play(task, index, turns[:-1])
    return jax.device_get(_step(task, state, np.asarray(turns[-1], np.int32)))


@functools.partial(jax.jit, static_argnums=0)
def _step(task: LookupTask, state: LookupState, action: jax.Array) -> tuple[LookupState, Any]:
    return task.environment.step(state, action, jnp.ones(2, bool))


@functools.partial(jax.jit, static_argnums=0)
def _annotate(task: LookupTask, batch: Trajectory, states: LookupState) -> Trajectory:
    return task.annotate(batch, None, states)  # type: ignore[arg-type]  # the states hold the worlds
