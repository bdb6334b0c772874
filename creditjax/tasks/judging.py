"""The policy as a judge: it reads a solution, writes a label for each step, and then one for the answer.

    prompt      + 3 + 4 ? + 3 + 1 A 1 check         a solution of `creditjax.tasks.stepwise`, with an error in it
    judgement   good bad good bad                   two additions, the step that answers, the answer

Only the label of the answer is paid: outcome 1 if it is true. It is the *final* answer that is right or wrong, and a
step is right if it follows from its own prefix, so two errors that cancel leave a right answer. The judge may think in
other tokens, for which there are `thoughts` turns of one token each beside those of the labels; whoever has not written
all labels by then said nothing (`creditjax.signals.verdicts`). Each turn is a segment.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest
from creditjax.tasks import stepwise
from creditjax.tasks.base import SPLITS, Prompts, TurnFormat, TurnResult
from creditjax.tasks.stepwise import BAD, CHECK, GOOD, PAD, StepwiseTask
from creditjax.trajectory import Trajectory

Array = jax.Array


class JudgingState(NamedTuple):
    """An episode: what is true of the solution, and what was written.

    Attributes:
      truth: bool ``[N + 1]``, which of the N steps are right, and whether the answer is.
      turn: i32 ``[]``, tokens written.
      terminated: bool ``[]``.
      token: i32 ``[K]``, -1 where none was written.
    """

    truth: Array
    turn: Array
    terminated: Array
    token: Array

    @property
    def is_label(self) -> Array:
        """The token is one of the two labels, bool ``[K]``."""
        return (self.token == GOOD) | (self.token == BAD)

    @property
    def complete(self) -> Array:
        """All labels were written, bool ``[]``."""
        return jnp.sum(self.is_label) == len(self.truth)

    @property
    def agrees(self) -> Array:
        """The token is a label and is true, bool ``[K]``."""
        which = jnp.minimum(jnp.cumsum(self.is_label) - 1, len(self.truth) - 1)
        return self.is_label & ((self.token == GOOD) == self.truth[which])

    @property
    def correct(self) -> Array:
        """All labels were written and the answer's is true, bool ``[]``."""
        return self.complete & self.agrees[jnp.maximum(self.turn - 1, 0)]


@dataclasses.dataclass(frozen=True)
class JudgingEnvironment:
    """Rules of one episode (`TurnEnvironment`): it ends with the last label, or with the last turn."""

    max_turns: int

    def reset(self, data: Array) -> JudgingState:
        """A fresh episode over the truth bool ``[N + 1]`` of one solution."""
        nothing = jnp.full(self.max_turns, -1, jnp.int32)
        return JudgingState(data, jnp.int32(0), jnp.bool_(False), nothing)

    def step(self, state: JudgingState, action: Array, mask: Array) -> tuple[JudgingState, TurnResult]:
        """Records one token. Without a real token, or after the end, nothing changes and nothing is paid."""
        active = jnp.any(mask) & ~state.terminated
        at = jnp.where(active, state.turn, self.max_turns)  # out of range: dropped
        state = state._replace(turn=state.turn + active, token=state.token.at[at].set(action[0], mode="drop"))
        ended = state.complete | (state.turn >= self.max_turns)
        state = state._replace(terminated=state.terminated | (active & ended))
        silence = jnp.zeros((0,), jnp.int32)
        reward = (active & state.terminated & state.correct).astype(jnp.float32)
        return state, TurnResult(silence, silence > 0, reward, state.terminated)


_correct: Callable[[JudgingState], Array] = lambda state: state.correct.astype(jnp.float32)  # noqa: E731
_ORACLES: dict[str, Callable[[JudgingState], Array]] = {
    "process_reward": lambda state: state.agrees.astype(jnp.float32),
    "format_ok": lambda state: state.complete,
    "accuracy": _correct,
    "answer_score": _correct,
    "reward_components": lambda state: _correct(state)[None],
}


@dataclasses.dataclass(frozen=True)
class JudgingTask:
    """Judgements of solutions whose errors are known (`TextTask`). See the module for a transcript.

    The outcome is 1 if all labels were written and the answer's is true. The signals are `solution_label`, the answer's
    true label; `process_reward`, 1 for each turn in which a true label was written; and the outcome as `accuracy`,
    `answer_score` and `reward_components`. What the judge said is the signal `verdict` of `creditjax.signals`.

    A share ``1 / base + (1 - 1 / base) q^addends`` of the answers is right, ``q = 1 - errors base / (base - 1)``: by
    default 54 in 100.

    Attributes:
      addends: additions in each solution.
      base: digits are 0 to base - 1.
      errors: probability that an addition of the solution is false, in [0, 1].
      thoughts: turns beside those of the labels.
      gold_noise: probability that a demonstrated label is false, in [0, 1].
      eval_size: number of held-out solutions.
      seed: fixes solutions and demonstrations.
      questions: what is solved, "uniform" or "chain_sum" (:class:`~creditjax.tasks.stepwise.StepwiseTask`).
      signals: names of the signals that `annotate` adds; None for all of `offered_signals`.

    Raises:
      ValueError, TypeError: an option out of range or of the wrong type, naming it, what was found and what was wanted.
    """

    addends: int = 3
    base: int = 5
    errors: float = 0.2
    thoughts: int = 0
    gold_noise: float = 0.0
    eval_size: int = 256
    seed: int = 0
    questions: str = "uniform"
    signals: Sequence[str] | None = None

    label_tokens = (GOOD, BAD)

    def __post_init__(self):
        if self.signals is not None:
            object.__setattr__(self, "signals", tuple(self.signals))  # hashable, whatever sequence came
        stepwise.check_option("errors", self.errors, float, 0.0, 1.0)
        stepwise.check_option("gold_noise", self.gold_noise, float, 0.0, 1.0)
        stepwise.check_option("thoughts", self.thoughts, int, 0)
        _ = self.solver  # checks its own
        for name in self.signal_names:
            if name not in self.offered_signals():
                raise ValueError(f"signals: the judging task has no {name!r}; {nearest(name, self.offered_signals())}")

    @staticmethod
    def offered_signals() -> tuple[str, ...]:
        """Names of all the signals that the task can add."""
        return (*_ORACLES, "solution_label")

    @property
    def signal_names(self) -> tuple[str, ...]:
        """Names of the signals that `annotate` adds."""
        return self.offered_signals() if self.signals is None else tuple(self.signals)

    @property
    def solver(self) -> StepwiseTask:
        """The task whose demonstrations are judged."""
        return StepwiseTask(
            addends=self.addends,
            base=self.base,
            max_turns=self.num_steps,
            gold_noise=self.errors,
            eval_size=self.eval_size,
            seed=self.seed,
            questions=self.questions,
            signals=("step_label", "accuracy"),
        )

    @property
    def num_steps(self) -> int:
        """N, the steps of every solution: its additions and the answer."""
        return self.addends + 1

    @property
    def environment(self) -> JudgingEnvironment:
        """The rules of an episode."""
        return JudgingEnvironment(self.num_steps + 1 + self.thoughts)

    @property
    def vocab_size(self) -> int:
        """The words and digits of the solver."""
        return self.solver.vocab_size

    @property
    def prompt_length(self) -> int:
        """L: the question, the steps and the word that asks for a judgement."""
        return 2 * self.addends + 1 + 2 * self.num_steps + 1

    @property
    def turns(self) -> TurnFormat:
        """K turns of one token, nothing observed, without a stop token."""
        return TurnFormat(self.environment.max_turns, 1, 0, stop_token=-1, pad_token=PAD)

    def prompts(self, split: str, start: int, count: int) -> Prompts:
        """Solutions `start` to `start + count`; `data` says what is true of them, bool ``[P, N + 1]``.

        Raises:
          ValueError: an unknown split, a negative range, or one beyond `eval_size` of "eval".
        """
        gold = self.solver.gold(split, start, count)
        # Between question and solution is room for an instruction, which is not given.
        told = np.delete(gold.tokens[:, 0], self.solver.prompt_length - 1, axis=1)
        tokens = np.pad(told, ((0, 0), (0, 1)), constant_values=CHECK)
        truth = np.concatenate([gold.signals["step_label"][:, 0], gold.signals["accuracy"]], axis=1) > 0
        return Prompts(tokens, np.ones_like(tokens, bool), truth)

    def annotate(self, batch: Trajectory, prompts: Prompts, states: JudgingState) -> Trajectory:
        """Adds the outcome and the signals named in `signals`, from the final states ``[P, G]``."""

        def episode(state):
            return _correct(state), {name: _ORACLES[name](state) for name in self.signal_names if name in _ORACLES}

        for _ in batch.batch_shape:
            episode = jax.vmap(episode)
        outcome, signals = episode(states)
        if "solution_label" in self.signal_names:
            signals["solution_label"] = jnp.asarray(prompts.data)[:, -1].astype(jnp.int32)
        return batch.replace(outcome=outcome, signals={**batch.signals, **signals})

    def verify(self, batch: Trajectory, prompts: Prompts) -> Trajectory:
        """The identity: the verifier is pure JAX and has run in `annotate`."""
        del prompts
        return batch

    def gold(self, split: str, start: int, count: int) -> Trajectory:
        """True judgements ``[P, 1, T]`` but for `gold_noise`, a pure function of the arguments, annotated."""
        return jax.device_get(_gold(self, SPLITS.index(split), self.prompts(split, start, count), np.uint32(start)))

    def play(self, prompts: Prompts, tokens: Array) -> Trajectory:
        """Writes down given tokens i32 ``[P, G, K, 1]`` as a sampled rollout, without `logprob`."""
        return stepwise.play_steps(self, prompts, tokens)

    def decode(self, tokens: Any) -> list[str]:
        """A printable string a token, as in the solver."""
        return self.solver.decode(tokens)


@functools.partial(jax.jit, static_argnums=0)
def _gold(task: JudgingTask, split: Array, prompts: Prompts, start: Array) -> Trajectory:
    truth = jnp.asarray(prompts.data)
    # A stream of its own beside those of the solver's questions and solutions.
    keys = stepwise.index_keys(task.solver, split + 2 * len(SPLITS), start + jnp.arange(len(truth), dtype=jnp.uint32))
    flipped = jax.vmap(lambda key: jax.random.bernoulli(key, task.gold_noise, truth.shape[1:]))(keys)
    labels = jnp.where(truth ^ flipped, GOOD, BAD)
    tokens = jnp.pad(labels, ((0, 0), (0, task.thoughts)), constant_values=PAD)
    return task.play(prompts, tokens[:, None, :, None])
