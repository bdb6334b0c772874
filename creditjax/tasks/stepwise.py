"""Reasoning in steps that a symbolic oracle checks, as a task to train on: a running total, addend by addend.

The prompt lists addends; each turn of the policy is one step of two tokens, and each step is a segment:

    prompt          + 3 + 4 + 1 ?
    step            + 3             the total so far, modulo `base`
    step            + 2             3 + 4 = 2 (mod 5)
    step            = 2             a filler: it repeats the total and adds nothing
    step            + 3
    step            A 3             the answer, outcome 1

A step is *right given its own prefix* if it follows from the digit written last, whatever that was: ``+`` consumes the
next addend and writes the new total, ``=`` repeats the total, ``A`` answers with it when every addend is consumed. All
else is wrong: a false digit, a premature answer, a ``+`` with nothing left to add, tokens that are no step. The
*prefix* is right as long as every step was. The answer ends the episode, and so does the last turn. An answer can be
right by luck, after two errors that cancel: the outcome then is 1 although a step was wrong.

The addends are drawn uniformly, or they are those of reasoning-gym's `chain_sum` (`questions`). There a term that is
taken away is a negative addend, and a digit is any total: with a base of ``18 addends + 1`` or more no two totals are
the same number, and the outcome of an answer is the grade that the package gives it.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
import numbers
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.naming import nearest
from creditjax.tasks import chain_sum
from creditjax.tasks.base import SPLITS, Prompts, TurnFormat, TurnResult, prompt_indices
from creditjax.trajectory import Trajectory

Array = jax.Array

PAD, ASK, PLUS, SAME, ANSWER, CHECK, GOOD, BAD, YES = range(9)
_SPECIAL = ("·", "?", "+", "=", "A", "check", "good", "bad", "yes")
_DIGIT = len(_SPECIAL)
_STEP = 2  # tokens of a step
QUESTIONS = ("uniform", "chain_sum")  # where addends come from
_CRITIQUES = 3  # judges behind `judge_error`, independent of each other and of the one behind the other labels
_DRAWS = 2  # of the critic behind `critic_value`

# What stands behind the question under each kind of prompt; the demonstrations of `gold` know these words.
_INSTRUCTIONS = {"rubric": CHECK, "plain": PAD, "negative": PAD, "better": GOOD, "worse": BAD}


class StepwiseState(NamedTuple):
    """An episode: its addends and the record of its steps.

    Attributes:
      addends: i32 ``[n]``.
      turn: i32 ``[]``, steps taken.
      terminated: bool ``[]``.
      kind: i32 ``[K]``, PLUS, SAME or ANSWER, PAD for a step that is none of them, -1 for one that was not taken.
      digit: i32 ``[K]``, the digit that the step writes, -1 for none.
    """

    addends: Array
    turn: Array
    terminated: Array
    kind: Array
    digit: Array


class Analysis(NamedTuple):
    """What the oracle knows of an episode; ``[K]`` unless said otherwise.

    Attributes:
      taken: the step was taken.
      consumed: i32 ``[K + 1]``, addends consumed before each step and at the end.
      total: i32 ``[K + 1]``, the digit written last before each step and at the end, 0 at the start.
      right: the step is right given its own prefix.
      filler: it is a right step that repeats the total.
      prefix_right: bool ``[K + 1]``, every step before is right.
      correct: bool ``[]``, the answer was given and is the true total.
    """

    taken: Array
    consumed: Array
    total: Array
    right: Array
    filler: Array
    prefix_right: Array
    correct: Array


@dataclasses.dataclass(frozen=True)
class StepwiseEnvironment:
    """Rules of one episode (`TurnEnvironment`); the arguments are those of :class:`StepwiseTask`."""

    addends: int
    base: int
    max_turns: int
    format_reward: float

    def reset(self, data: Array) -> StepwiseState:
        """A fresh episode over the addends i32 ``[n]`` of one prompt."""
        nothing = jnp.full(self.max_turns, -1, jnp.int32)
        return StepwiseState(data, jnp.int32(0), jnp.bool_(False), nothing, nothing)

    def step(self, state: StepwiseState, action: Array, mask: Array) -> tuple[StepwiseState, TurnResult]:
        """Records one step. Without a real token, or after the end, nothing changes and nothing is paid."""
        active = jnp.any(mask) & ~state.terminated
        head, digit = action[0], action[1] - _DIGIT
        named = (head == PLUS) | (head == SAME) | (head == ANSWER)
        formed = jnp.all(mask) & named & (digit >= 0) & (digit < self.base)
        at = jnp.where(active, state.turn, self.max_turns)  # out of range: dropped
        state = state._replace(
            turn=state.turn + active,
            terminated=state.terminated
            | (active & formed & (head == ANSWER))
            | (active & (state.turn + 1 >= self.max_turns)),
            kind=state.kind.at[at].set(jnp.where(formed, head, PAD), mode="drop"),
            digit=state.digit.at[at].set(jnp.where(formed, digit, -1), mode="drop"),
        )
        reward = jnp.where(active & state.terminated, jnp.sum(self.components(state)), 0.0)
        silence = jnp.zeros((0,), jnp.int32)
        return state, TurnResult(silence, silence > 0, reward.astype(jnp.float32), state.terminated)

    def components(self, state: StepwiseState) -> Array:
        """The rewards that add up to the outcome, f32 ``[2]``: right answer, form."""
        formed = jnp.all(state.kind != PAD) & jnp.any(state.kind == ANSWER)
        return jnp.stack([self.analyse(state).correct, self.format_reward * formed]).astype(jnp.float32)

    def analyse(self, state: StepwiseState) -> Analysis:
        """Runs through the record once."""

        def step(carry, record):
            consumed, total = carry
            kind, digit = record
            left = consumed < self.addends
            addend = state.addends[jnp.minimum(consumed, self.addends - 1)]
            follows = jnp.where(kind == PLUS, (total + addend) % self.base, total)
            allowed = jnp.where(kind == PLUS, left, (kind == SAME) | ((kind == ANSWER) & ~left))
            right = allowed & (digit == follows)
            consumed = consumed + ((kind == PLUS) & left)
            total = jnp.where(digit >= 0, digit, total)
            return (consumed, total), (right, consumed, total)

        start = (jnp.int32(0), jnp.int32(0))
        _, (right, consumed, total) = jax.lax.scan(step, start, (state.kind, state.digit))
        taken = state.kind >= 0
        answered = jnp.any(state.kind == ANSWER)
        ahead = lambda x, first: jnp.concatenate([jnp.full((1,), first, x.dtype), x])  # noqa: E731
        return Analysis(
            taken=taken,
            consumed=ahead(consumed, 0),
            total=ahead(total, 0),
            right=right,
            filler=right & (state.kind == SAME),
            prefix_right=ahead(jnp.cumprod(right | ~taken).astype(bool), True),
            correct=answered & (total[-1] == jnp.sum(state.addends) % self.base),
        )


class _Episode(NamedTuple):
    """What a signal may be made of: one episode, and its positions ``[T]``."""

    task: "StepwiseTask"
    state: StepwiseState
    found: Analysis
    acted: Array
    segment: Array

    def errs(self, judge: int) -> Array:
        """Where a judge errs, bool ``[K + 1]``: before each step and at the end, at the rate `noise`.

        It is a function of the prompt, the steps so far, the seed and the judge alone.
        """
        task, state = self.task, self.state
        steps = (state.kind + 1) * (task.base + 1) + state.digit + 1
        return _uniform(task.seed * 31 + judge, state.addends, steps) < task.noise

    def judged(self, judge: int = 0) -> Array:
        """Labels of a judge, bool ``[K]``: the step is right given its own prefix, flipped where the judge errs."""
        return (self.found.right ^ self.errs(judge)[1:]) & self.found.taken

    @property
    def answers(self) -> Array:
        """The position belongs to the final answer, bool ``[T]``."""
        return self.acted & (self.state.kind[self.segment] == ANSWER)


def _uniform(seed: int, head: Array, tail: Array) -> Array:
    """A number in [0, 1) for every prefix of `tail`, from a hash (FNV-1a, finished as in MurmurHash3): f32 ``[K + 1]``,
    the first of `head` alone.
    """

    def mix(h, x):
        h = (h ^ x.astype(jnp.uint32)) * jnp.uint32(16777619)
        return h, h

    start, _ = jax.lax.scan(mix, jnp.uint32(2166136261) ^ jnp.uint32(seed), head)
    _, h = jax.lax.scan(mix, start, tail)
    h = jnp.concatenate([start[None], h])
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        h = (h ^ (h >> shift)) * jnp.uint32(factor)
    return ((h ^ (h >> 16)) >> 8).astype(jnp.float32) / 2**24


def _process_reward(e: _Episode) -> Array:
    # Whoever is fooled by fillers pays for a true repetition what it pays for an addition.
    paid = e.judged() if e.task.hackable else e.judged() & ~(e.state.kind == SAME)
    return paid.astype(jnp.float32)


def _potential(e: _Episode) -> Array:
    """Chance of a right answer for one who goes on correctly from a right prefix, and guesses after an error."""
    found, task, k = e.found, e.task, jnp.arange(e.task.turns.max_turns + 1)
    room = task.turns.max_turns - k > task.addends - found.consumed
    alive = jnp.where(found.prefix_right & room, 1.0, 1.0 / task.base)
    return jnp.where(k < e.state.turn, alive, jnp.where(e.state.terminated, found.correct, alive))


def _thought_label(e: _Episode) -> Array:
    """In a wrong solution, the steps from the first error on: before it nothing led to the wrong answer."""
    led = (~e.found.prefix_right[1:] ^ e.errs(0)[1:]) & e.found.taken
    return jnp.where(e.found.correct, e.judged(), led).astype(jnp.float32)


def _step_score(e: _Episode) -> Array:
    # What a judge with a known error rate makes of its own label.
    return jnp.where(e.found.taken, jnp.where(e.judged(), 1 - e.task.noise, e.task.noise), 0.0)


def _judge_error(e: _Episode) -> Array:
    errors = jnp.stack([~e.judged(judge) & e.found.taken for judge in range(1, 1 + _CRITIQUES)], axis=-1)
    return errors.astype(jnp.float32)


def _step_format(e: _Episode) -> Array:
    formed = e.state.kind > PAD
    return jnp.where(e.found.taken, jnp.where(formed, 1.0, -2.0), 0.0)


def _subproblem_reward(e: _Episode) -> Array:
    sums = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(e.state.addends)]) % e.task.base
    verified = (e.state.digit >= 0) & (e.state.digit == sums[e.found.consumed[1:]])
    return verified.astype(jnp.float32).at[-1].set(e.found.correct)


def _belief(e: _Episode) -> Array:
    """Distribution of the prover's answer from each boundary on, f32 ``[K + 1, base]``.

    With probability `prover_error` an addition of the prover writes one of the false digits, so that after r additions
    its offset from where a true reckoner would arrive is 0 with probability ``1 / b + (1 - 1 / b) q^r`` and any other
    with ``(1 - q^r) / b``, where ``q = 1 - prover_error b / (b - 1)``.
    """
    task, found, k = e.task, e.found, jnp.arange(e.task.turns.max_turns + 1)
    sums = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(e.state.addends)])
    arrives = (found.total + sums[-1] - sums[found.consumed]) % task.base
    left = task.addends - found.consumed
    q = 1 - task.prover_error * task.base / (task.base - 1)
    kept = jnp.where(task.turns.max_turns - k > left, q ** left.astype(jnp.float32), 0.0)
    # After the end the answer stands; without one, or without turns enough, any digit is as likely.
    over = (k >= e.state.turn) & e.state.terminated
    answered = jnp.any(e.state.kind == ANSWER)
    kept = jnp.where(over, answered.astype(jnp.float32), kept)
    at = jnp.where(over, found.total, arrives)[:, None] == jnp.arange(task.base)
    return (1 - kept[:, None]) / task.base + kept[:, None] * at


def _prover_value(e: _Episode) -> Array:
    return jnp.take(_belief(e), jnp.sum(e.state.addends) % e.task.base, axis=1)


def _critic_value(e: _Episode) -> Array:
    # Each draw takes success for failure at the rate `noise`; after the end nobody is asked.
    value = _prover_value(e)[:-1]
    draws = [jnp.where(e.errs(1 + _CRITIQUES + d)[:-1], 1 - value, value) for d in range(_DRAWS)]
    return jnp.where(e.found.taken[:, None], jnp.stack(draws, axis=-1), jnp.nan)


def _confidence(e: _Episode) -> Array:
    return jnp.exp(-jnp.sum(jax.scipy.special.entr(_belief(e)[1:]), axis=1))


def _state_key(e: _Episode) -> Array:
    numbers = [*e.state.addends, e.found.consumed[:-1], e.found.total[:-1]]
    key = jnp.zeros_like(e.found.total[:-1])
    for x in numbers:
        key = key * (max(e.task.base, e.task.addends + 1)) + x
    # Where the product overflows, states of one prompt still differ; the sign is kept for steps that were not taken.
    return jnp.where(e.found.taken, key & 0x7FFFFFFF, -1)


_ORACLES: dict[str, Callable[[_Episode], Array]] = {
    "process_reward": _process_reward,
    "potential": _potential,
    "state_key": _state_key,
    "step_label": lambda e: e.judged().astype(jnp.float32),
    "thought_label": _thought_label,
    "step_score": _step_score,
    "judge_error": _judge_error,
    "step_format": _step_format,
    "subproblem_reward": _subproblem_reward,
    "is_curriculum": lambda e: jnp.bool_(True),
    "answer_mask": lambda e: e.answers,
    "thinking_mask": lambda e: e.acted & ~e.answers,
    "format_ok": lambda e: jnp.all(e.state.kind != PAD) & jnp.any(e.state.kind == ANSWER),
    "commitment_correct": lambda e: e.found.total[1:] == jnp.sum(e.state.addends) % e.task.base,
    "belief": _belief,
    "mark": lambda e: jnp.where(jnp.any(e.state.kind == ANSWER), e.found.total[-1], -1),
    "prover_value": _prover_value,
    "critic_value": _critic_value,
    "correctness": lambda e: _prover_value(e)[1:],
    "confidence": _confidence,
    "accuracy": lambda e: e.found.correct.astype(jnp.float32),
    "answer_score": lambda e: e.found.correct.astype(jnp.float32),
    "reward_components": lambda e: e.task.environment.components(e.state),
}


@dataclasses.dataclass(frozen=True)
class StepwiseTask:
    """Running totals with an exact oracle of every step (`TextTask`). See the module for a transcript.

    The outcome is 1 if the answer is the true total and 0 otherwise, plus `format_reward` if every step was well formed
    and the last one answered.

    `potential` at a boundary is the exact value of one rule of going on: if every step so far is right and there are
    turns enough left for the remaining additions and the answer, go on correctly (1); otherwise answer with a digit
    drawn uniformly (``1 / base``). After the last step it is 1 or 0: form earns nothing in it.

    `noise` is the error rate of the judge behind `process_reward` and the labels of steps: each label is flipped or not
    by a hash of the prompt, the steps up to it and the seed, so the same content always gets the same label. The critic
    behind `critic_value`, asked twice as each step begins, states the prover's exact value V, and 1 - V where it errs;
    its two draws err independently of each other and of the judges. What comes from neither (outcome, potential, state)
    is exact.

    Attributes:
      addends: n, additions to make.
      base: digits are 0 to base - 1, of which the upper half stands for negative numbers where questions have them.
      max_turns: K, at least ``addends + 1``; None for ``addends + 2``, which leaves room for one filler.
      noise: rate at which the judge's labels, and what the critic states, are turned round, in [0, 0.5].
      hackable: whether fillers earn process reward as additions do. There are then up to
        ``max_turns - 1`` steps to be paid for, however few are needed.
      format_reward: received for a well-formed episode.
      prover_error: probability that an addition of the prover, whose values and beliefs are exact, is false, in [0, 1].
      gold_noise: probability that a demonstrated step writes a false digit.
      gold_fillers: probability that a demonstration repeats the total where it has a turn to spare.
      instructed: share of demonstrations whose prompt carries an instruction: behind "check" and "good" they make no
        error, behind "bad" three steps in four are false. It gives the prompt variants a meaning.
      budgets: numbers of thinking tokens, increasing, at which thinking is cut (`creditjax.signals.budgets`); None
        spreads four over the positions.
      eval_size: number of held-out prompts.
      seed: fixes prompts, demonstrations and the judge's errors.
      questions: "uniform", every addend of the base alike; or "chain_sum", the data set of reasoning-gym with terms of
        one digit, for which `base` has to be ``18 addends + 1`` at least and `seed` below 2**30.
      signals: names of the signals that `annotate` adds; None for all of `offered_signals`.

    Raises:
      ValueError, TypeError: an option out of range or of the wrong type, naming it, what was found and what was wanted.
    """

    addends: int = 4
    base: int = 5
    max_turns: int | None = None
    noise: float = 0.0
    hackable: bool = False
    format_reward: float = 0.0
    prover_error: float = 0.1
    gold_noise: float = 0.0
    gold_fillers: float = 0.0
    instructed: float = 0.0
    budgets: Sequence[int] | None = None
    eval_size: int = 256
    seed: int = 0
    questions: str = "uniform"
    signals: Sequence[str] | None = None

    prompt_kinds = tuple(_INSTRUCTIONS)

    def __post_init__(self):
        if self.signals is not None:
            object.__setattr__(self, "signals", tuple(self.signals))  # hashable, whatever sequence came
        if self.budgets is not None:
            object.__setattr__(self, "budgets", tuple(self.budgets))
            check_option("len(budgets)", len(self.budgets), int, 1)
            least = 1
            for budget in self.budgets:
                check_option("budgets", budget, int, least)
                least = budget + 1
        check_option("addends", self.addends, int, 1)
        check_option("base", self.base, int, 2)
        check_option("max_turns", self.environment.max_turns, int, self.addends + 1)
        for name in ("prover_error", "gold_noise", "gold_fillers", "instructed"):
            check_option(name, getattr(self, name), float, 0.0, 1.0)
        check_option("noise", self.noise, float, 0.0, 0.5)
        check_option("format_reward", self.format_reward, float, -np.inf)
        if not isinstance(self.hackable, bool):
            raise TypeError(f"hackable: {self.hackable!r}, wanted a bool")
        check_option("eval_size", self.eval_size, int, 1)
        check_option("seed", self.seed, int, 0, 2**32 - 1)
        if self.questions not in QUESTIONS:
            raise ValueError(f"questions: {self.questions!r}; {nearest(str(self.questions), QUESTIONS)}")
        if self.questions == "chain_sum":
            check_option("base", self.base, int, chain_sum.least_base(self.addends))
            chain_sum.addends(self.addends, self.eval_size, self.seed, "eval", 0, 1)  # refuses what it cannot draw
        for name in self.signal_names:
            if name not in self.offered_signals():
                raise ValueError(f"signals: the stepwise task has no {name!r}; {nearest(name, self.offered_signals())}")

    @staticmethod
    def offered_signals() -> tuple[str, ...]:
        """Names of all the signals that the task can add."""
        return (*_ORACLES, *_OF_PROMPTS)

    @property
    def signal_names(self) -> tuple[str, ...]:
        """Names of the signals that `annotate` adds."""
        return self.offered_signals() if self.signals is None else tuple(self.signals)

    @property
    def environment(self) -> StepwiseEnvironment:
        """The rules of an episode."""
        turns = self.addends + 2 if self.max_turns is None else self.max_turns
        return StepwiseEnvironment(self.addends, self.base, turns, self.format_reward)

    @property
    def vocab_size(self) -> int:
        """Nine words and the digits."""
        return _DIGIT + self.base

    @property
    def prompt_length(self) -> int:
        """L: two tokens an addend, as in a step, the question mark and room for one instruction."""
        return 2 * self.addends + 2

    @property
    def turns(self) -> TurnFormat:
        """K turns of two tokens, nothing observed, without a stop token."""
        return TurnFormat(self.environment.max_turns, _STEP, 0, stop_token=-1, pad_token=PAD)

    @property
    def strategic_grams(self) -> np.ndarray:
        """The tokens that decide how to go on rather than compute, i32 ``[2, 1]``: to repeat, and to answer."""
        return np.array([[SAME], [ANSWER]], np.int32)

    @property
    def digits(self) -> np.ndarray:
        """The tokens of the digits, i32 ``[base]``: what an error can be written in."""
        return np.arange(_DIGIT, _DIGIT + self.base, dtype=np.int32)

    @property
    def verdicts(self) -> np.ndarray:
        """What a judge is asked behind a solution (checked? good?), and the word that approves, i32 ``[C, 2]``."""
        return np.array([[CHECK, YES], [GOOD, YES]], np.int32)

    def prompts(self, split: str, start: int, count: int) -> Prompts:
        """Questions `start` to `start + count`; `data` holds the addends i32 ``[P, n]``, each in [0, base).

        There are only ``base ** addends`` uniform questions, so held-out ones may occur in training; no held-out one
        of `chain_sum` does.

        Raises:
          ValueError: an unknown split, a negative range, or one beyond `eval_size` of "eval".
        """
        indices = prompt_indices(split, start, count, self.eval_size)
        if self.questions == "chain_sum":
            addends = chain_sum.addends(self.addends, self.eval_size, self.seed, split, start, count) % self.base
        else:
            addends = jax.device_get(_uniform_addends(self, SPLITS.index(split), indices))
        # As long as a step: without fillers each addend lies equally far before the step that consumes it.
        pairs = np.stack([np.full_like(addends, PLUS), _DIGIT + addends], axis=-1).reshape(count, -1)
        tokens = np.pad(pairs, ((0, 0), (0, 2)), constant_values=ASK)
        tokens[:, -1] = PAD
        return Prompts(tokens, tokens != PAD, addends)

    def prompt_variant(self, kind: str, prompts: Prompts) -> Prompts:
        """The same questions with an instruction behind them, or (kind "negative") without their addends.

        Raises:
          ValueError: a kind that is not one of `prompt_kinds`.
        """
        if kind not in _INSTRUCTIONS:
            raise ValueError(f"prompt kind {kind!r}: {nearest(kind, _INSTRUCTIONS)}")
        token, mask = _INSTRUCTIONS[kind], prompts.mask
        if kind == "negative":
            mask = mask & (np.arange(self.prompt_length) >= 2 * self.addends)
        tokens = jnp.asarray(prompts.tokens).at[:, -1].set(token)
        return Prompts(tokens, jnp.asarray(mask).at[:, -1].set(token != PAD), prompts.data)

    def annotate(self, batch: Trajectory, prompts: Prompts, states: StepwiseState) -> Trajectory:
        """Adds the outcome and the signals named in `signals`, from the final states ``[P, G]``."""

        def episode(state, acted, segment):
            view = _Episode(self, state, self.environment.analyse(state), acted, segment)
            made = {name: _ORACLES[name](view) for name in self.signal_names if name in _ORACLES}
            return jnp.sum(self.environment.components(state)), made

        for _ in batch.batch_shape:
            episode = jax.vmap(episode)
        outcome, signals = episode(states, batch.action_mask, batch.segment)
        addends = jnp.asarray(prompts.data)
        signals |= {name: _OF_PROMPTS[name](self, addends) for name in self.signal_names if name in _OF_PROMPTS}
        return batch.replace(outcome=outcome, signals={**batch.signals, **signals})

    def verify(self, batch: Trajectory, prompts: Prompts) -> Trajectory:
        """The identity: the verifier is pure JAX and has run in `annotate`."""
        del prompts
        return batch

    def gold(self, split: str, start: int, count: int) -> Trajectory:
        """Demonstrations ``[P, 1, T]``, a pure function of the arguments: right but for `gold_noise`, and annotated.

        A false digit is carried on, so a noisy demonstration is wrong at the end and right given its own prefix
        elsewhere: what is to be imitated stays the addition.
        """
        return jax.device_get(_gold(self, SPLITS.index(split), self.prompts(split, start, count), np.uint32(start)))

    def play(self, prompts: Prompts, steps: Array) -> Trajectory:
        """Writes down given steps i32 ``[P, G, K, 2]`` (kind, digit token) as a sampled rollout, without `logprob`."""
        return play_steps(self, prompts, steps)

    def decode(self, tokens: Any) -> list[str]:
        """A printable string a token: digits, "+", "=", "A", "?", the words of instructions, "·" for padding."""
        signed = self.questions == "chain_sum"
        digits = (d - self.base if signed and 2 * d > self.base else d for d in range(self.base))
        names = [*_SPECIAL, *map(str, digits)]
        return [names[t] if 0 <= t < len(names) else f"<{t}>" for t in np.asarray(tokens).reshape(-1).tolist()]


def play_steps(task: Any, prompts: Prompts, steps: Array) -> Trajectory:
    """Writes down given turns i32 ``[P, G, K, action_length]`` as a rollout of a task in which nothing is observed.

    The rollout has the layout and the annotations of a sampled one, without `logprob`. Pure, not jitted.
    """
    shape, size = steps.shape[:2], task.turns.action_length

    def episode(data, actions):
        def turn(state, action):
            mask = jnp.broadcast_to(~state.terminated, (size,))
            after, result = task.environment.step(state, action, mask)
            return after, (
                jnp.where(mask, action, task.turns.pad_token),
                mask,
                result.reward,
                result.terminated & mask[0],
            )

        return jax.lax.scan(turn, task.environment.reset(data), actions)

    group = jax.vmap(episode, in_axes=(None, 0))
    states, (tokens, mask, reward, ended) = jax.vmap(group)(jnp.asarray(prompts.data), steps)

    def lay_out(prompt, turns):
        prompt = jnp.broadcast_to(jnp.asarray(prompt)[:, None], (*shape, task.prompt_length))
        return jnp.concatenate([prompt.astype(turns.dtype), turns.reshape(*shape, -1)], axis=-1)

    last = np.arange(size) == size - 1
    nothing = jnp.zeros_like(prompts.tokens)
    batch = Trajectory(
        tokens=lay_out(prompts.tokens, tokens),
        action_mask=lay_out(nothing, mask),
        outcome=jnp.full(shape, jnp.nan),
        reward=lay_out(nothing, reward[..., None] * last),
        terminated=lay_out(nothing, ended[..., None] & last),
        truncated=lay_out(nothing, jnp.zeros_like(mask)),
        segment=lay_out(nothing - 1, jnp.where(mask, jnp.arange(task.turns.max_turns)[:, None], -1)),
        signals={"token_mask": lay_out(prompts.mask, mask)},
        num_segments=task.turns.max_turns,
    )
    return task.annotate(batch, prompts, states)


def _answer_tokens(task: StepwiseTask, addends: Array) -> Array:
    total = _DIGIT + jnp.sum(addends, axis=-1) % task.base
    return jnp.stack([jnp.full_like(total, ANSWER), total], axis=-1)[:, None]


# What the prompt alone decides: the right answer's two tokens, of which the second counts.
_OF_PROMPTS: dict[str, Callable[[StepwiseTask, Array], Array]] = {
    "answer_tokens": _answer_tokens,
    "gold_mark": lambda task, addends: jnp.sum(addends, axis=-1) % task.base,
    "prompt_length": lambda task, addends: jnp.full(len(addends), 2 * task.addends + 1),
    "answer_scored": lambda task, addends: jnp.broadcast_to(jnp.array([False, True]), (len(addends), 1, _STEP)),
}


def index_keys(task: StepwiseTask, stream: Array, indices: Array) -> Array:
    """A PRNG key of each prompt, by its index and what it is for; keys ``[P]``."""
    # The generator is named, so that no global setting can change the data.
    key = jax.random.fold_in(jax.random.key(task.seed, impl="threefry2x32"), stream)
    return jax.vmap(jax.random.fold_in, (None, 0))(key, indices)


@functools.partial(jax.jit, static_argnums=0)
def _uniform_addends(task: StepwiseTask, split: Array, indices: Array) -> Array:
    draw = lambda key: jax.random.randint(key, (task.addends,), 0, task.base)  # noqa: E731
    return jax.vmap(draw)(index_keys(task, split, indices))


@functools.partial(jax.jit, static_argnums=0)
def _gold(task: StepwiseTask, split: Array, prompts: Prompts, start: Array) -> Trajectory:
    count, turns = prompts.tokens.shape[0], task.turns.max_turns
    keys = index_keys(task, split + len(SPLITS), start + jnp.arange(count, dtype=jnp.uint32))
    words = jnp.array([CHECK, GOOD, BAD])

    def demonstrate(key, addends):
        uniforms = jax.random.uniform(key, (2 + 3 * turns,))
        word = words[jnp.floor(uniforms[0] * len(words)).astype(jnp.int32)]
        told = uniforms[1] < task.instructed
        errs = jnp.where(told, jnp.where(word == BAD, 0.75, 0.0), task.gold_noise)

        def step(carry, inputs):
            consumed, total, spare = carry
            slip, shift, fill = inputs
            fills = (fill < task.gold_fillers) & (spare > 0)
            done = consumed >= task.addends
            kind = jnp.where(fills, SAME, jnp.where(done, ANSWER, PLUS))
            addend = jnp.where(kind == PLUS, addends[jnp.minimum(consumed, task.addends - 1)], 0)
            wrong = (slip < errs) & (kind == PLUS)
            offset = jnp.where(wrong, 1 + jnp.floor(shift * (task.base - 1)).astype(jnp.int32), 0)
            total = (total + addend + offset) % task.base
            return (consumed + (kind == PLUS), total, spare - fills), jnp.stack([kind, _DIGIT + total])

        begin = (jnp.int32(0), jnp.int32(0), jnp.int32(turns - task.addends - 1))
        _, steps = jax.lax.scan(step, begin, uniforms[2:].reshape(turns, 3))
        return steps, jnp.where(told, word, PAD)

    steps, word = jax.vmap(demonstrate)(keys, jnp.asarray(prompts.data))
    tokens, mask = jnp.asarray(prompts.tokens), jnp.asarray(prompts.mask)
    shown = Prompts(tokens.at[:, -1].set(word), mask.at[:, -1].set(word != PAD), prompts.data)
    return task.play(shown, steps[:, None])


def check_option(name: str, value: Any, kind: type, low: float, high: float = np.inf) -> None:
    """Raises a `TypeError` or `ValueError` that names the option unless `value` is of the kind and in the range."""
    wanted = numbers.Integral if kind is int else numbers.Real
    if isinstance(value, bool) or not isinstance(value, wanted):
        raise TypeError(f"{name}: {value!r}, wanted {'an integer' if kind is int else 'a number'}")
    if not low <= float(value) <= high:  # refuses NaN too
        raise ValueError(
            f"{name}: {value}, wanted {f'at least {low}' if high == np.inf else f'between {low} and {high}'}"
        )
