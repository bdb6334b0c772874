"""Single-turn text tasks whose answers are graded by a Python function on the host.

A subclass says which items there are and how an answer is graded; tokens, layout and signals are made here.
"""

import abc
import functools
import logging
import math
from typing import Any, NamedTuple

import jax
from jax import numpy as jnp
import numpy as np

from creditjax.tasks import base
from creditjax.tasks.tokenizer import CharTokenizer, Tokenizer, pad_left
from creditjax.trajectory import Trajectory, last_action

_log = logging.getLogger(__name__)
_CACHED_ITEMS = 8192
_CACHED_GRADES = 65536


class Item(NamedTuple):
    """One question and its gold response, None where answers can only be checked."""

    question: str
    answer: str | None


class GradedTask(abc.ABC):
    """A `TextTask` of one turn that is graded in `verify`.

    Subclasses implement `_key`, `_make_item` and `_grade_text`. An item is identified by an int32 key, which is what
    `Prompts.data` holds. Items and grades are cached, so equal responses of a group are graded once.

    `verify` sets, with correct = the grade (1 for a perfect answer and 0 for any other if `binary`), ended = 1 if the
    policy stopped by itself, and w = `format_weight`:

    * outcome = (1 - w) * correct + w * ended, in [0, 1];
    * `reward_components` ``[P, G, 2]`` = [(1 - w) * correct, w * ended], which add up to the outcome;
    * `answer_score` = the grade, `accuracy` = 1 where the grade is 1.

    A grader that raises, or returns what is no number, leaves the rollout unscored: its outcome is NaN, and `unscored`
    counts it.

    With `step_length` each run of so many positions of the response is a segment, a step as process rewards and
    segment-level credit mean it; otherwise the response is one.

    Attributes:
      tokenizer: text to ids and back.
      unscored: how many responses could not be graded so far.
    """

    environment = None

    def __init__(
        self,
        *,
        tokenizer: Tokenizer | None,
        max_prompt: int,
        max_answer: int,
        eval_size: int,
        binary: bool,
        format_weight: float,
        step_length: int | None = None,
    ):
        sizes = {"max_prompt": max_prompt, "max_answer": max_answer, "eval_size": eval_size, "step_length": step_length}
        for name, value in sizes.items():
            if value is not None and value < 1:
                raise ValueError(f"{name}: {value}, wanted at least 1")
        if not 0 <= format_weight <= 1:
            raise ValueError(f"format_weight: {format_weight}, wanted a number in [0, 1]")
        self.tokenizer = CharTokenizer() if tokenizer is None else tokenizer
        self.vocab_size = self.tokenizer.vocab_size
        self.prompt_length = max_prompt
        self.turns = base.TurnFormat(
            max_turns=1, action_length=max_answer, stop_token=self.tokenizer.end, pad_token=self.tokenizer.pad
        )
        self.eval_size = eval_size
        self.binary = binary
        self.format_weight = format_weight
        self.step_length = max_answer if step_length is None else step_length
        self.unscored = 0
        self._item = functools.lru_cache(_CACHED_ITEMS)(self._make_item)
        self._grade = functools.lru_cache(_CACHED_GRADES)(self._safe_grade)

    @abc.abstractmethod
    def _key(self, split: str, index: int) -> int:
        """The key of prompt `index` of a split."""

    @abc.abstractmethod
    def _make_item(self, key: int) -> Item:
        """The item of a key."""

    @abc.abstractmethod
    def _grade_text(self, key: int, response: str) -> float:
        """The grade of a response, in [0, 1]."""

    def prompts(self, split: str, start: int, count: int) -> base.Prompts:
        """Prompts `start` to `start + count`; `data` is the items' keys, i32 ``[P]``.

        Raises:
          ValueError: an unknown split; held-out prompts past `eval_size`; a question longer than `prompt_length`,
            naming both.
        """
        keys = self._keys(split, start, count)
        tokens, mask = pad_left([self._prompt(key) for key in keys], self.prompt_length, self.tokenizer.pad)
        return base.Prompts(jnp.asarray(tokens), jnp.asarray(mask), jnp.asarray(keys, jnp.int32))

    def items(self, split: str, start: int, count: int) -> list[Item]:
        """The questions and gold answers of prompts `start` to `start + count`, as text.

        Raises:
          ValueError: an unknown split, or held-out prompts past `eval_size`.
        """
        return [self._item(key) for key in self._keys(split, start, count)]

    def annotate(self, batch: Trajectory, prompts: base.Prompts, states: Any) -> Trajectory:
        """Cuts the response into steps; all grading is done on the host."""
        del prompts, states
        return self._in_steps(batch)

    def verify(self, batch: Trajectory, prompts: base.Prompts) -> Trajectory:
        """Grades the responses of a batch ``[P, G, T]`` on the host; see the class for what it sets."""
        keys = np.asarray(jax.device_get(prompts.data)).tolist()
        tokens, mask = jax.device_get((batch.tokens, batch.action_mask))
        # In float64: a verifier that adds up shares may give 0.9999999999999999 to an answer that is not right.
        scores, ended = np.zeros((2, *batch.batch_shape))
        for p, key in enumerate(keys):
            for g in range(tokens.shape[1]):
                response = tokens[p, g][mask[p, g]].tolist()
                ended[p, g] = self.tokenizer.end in response
                scores[p, g] = self._grade(key, self.tokenizer.decode(response))
        self.unscored += int(np.isnan(scores).sum())
        accuracy = np.where(np.isnan(scores), np.nan, scores == 1).astype(np.float32)
        correct = accuracy if self.binary else scores
        components = np.stack([(1 - self.format_weight) * correct, self.format_weight * ended], -1).astype(np.float32)
        outcome = components.sum(-1)
        changes = {"outcome": jnp.asarray(outcome)}
        if batch.reward is not None:  # the stream has to contain what the outcome pays
            paid = jnp.asarray(np.where(np.isnan(outcome), 0, outcome))
            changes["reward"] = jnp.where(last_action(batch), paid[..., None], batch.reward)
        batch = batch.with_signals(
            reward_components=jnp.asarray(components),
            accuracy=jnp.asarray(accuracy),
            answer_score=jnp.asarray(scores, jnp.float32),
        )
        return batch.replace(**changes)

    def gold(self, split: str, start: int, count: int) -> Trajectory:
        """The gold answers, each ended by the stop token, ``[P, 1, T]`` with T = prompt_length + action_length.

        Raises:
          ValueError: an item that has no gold answer, or one that is too long or not spelled in the alphabet.
        """
        keys = self._keys(split, start, count)
        prompt, prompt_mask = pad_left([self._prompt(key) for key in keys], self.prompt_length, self.tokenizer.pad)
        answer = np.full((count, self.turns.action_length), self.tokenizer.pad, np.int32)
        acted = np.zeros(answer.shape, bool)
        for i, key in enumerate(keys):
            ids = [*self._gold(key), self.tokenizer.end]
            answer[i, : len(ids)] = ids
            acted[i, : len(ids)] = True
        nowhere = np.zeros_like(prompt_mask)
        action_mask = np.concatenate([nowhere, acted], -1)[:, None]
        stop = np.concatenate([nowhere, answer == self.tokenizer.end], -1)[:, None] & action_mask
        gold = Trajectory(
            tokens=jnp.asarray(np.concatenate([prompt, answer], -1)[:, None]),
            action_mask=jnp.asarray(action_mask),
            outcome=jnp.ones((count, 1), jnp.float32),
            terminated=jnp.asarray(stop),
            truncated=jnp.zeros(stop.shape, bool),
            segment=jnp.asarray(np.where(action_mask, 0, -1)),
            num_segments=1,
            signals={"token_mask": jnp.asarray(np.concatenate([prompt_mask, acted], -1)[:, None])},
        )
        return self._in_steps(gold)

    def decode(self, tokens: Any) -> list[str]:
        """One printable string a token."""
        return self.tokenizer.pieces(np.asarray(tokens).reshape(-1).tolist())

    def _in_steps(self, batch: Trajectory) -> Trajectory:
        step = (jnp.arange(batch.length) - self.prompt_length) // self.step_length
        count = -(-self.turns.action_length // self.step_length)
        return batch.replace(segment=jnp.where(batch.segment >= 0, step, -1), num_segments=count)

    def _keys(self, split: str, start: int, count: int) -> list[int]:
        if split not in ("train", "eval"):
            raise ValueError(f"split: {split!r}, wanted 'train' or 'eval'")
        if split == "eval" and start + count > self.eval_size:
            raise ValueError(f"eval prompts {start} to {start + count} were asked for, there are {self.eval_size}")
        return [self._key(split, index) for index in range(start, start + count)]

    def _prompt(self, key: int) -> list[int]:
        question = self._item(key).question
        ids = self.tokenizer.encode(question)
        if len(ids) > self.prompt_length:
            raise ValueError(
                f"a question has {len(ids)} tokens, longer than max_prompt={self.prompt_length}: {question[:80]!r}..."
            )
        return ids

    def _gold(self, key: int) -> list[int]:
        question, answer = self._item(key)
        if answer is None:
            raise ValueError(f"there is no gold answer to {question[:80]!r}: answers can only be checked")
        ids = self.tokenizer.encode(answer)
        if len(ids) >= self.turns.action_length:
            length = self.turns.action_length
            raise ValueError(
                f"a gold answer and its end have {len(ids) + 1} tokens, longer than max_answer={length}: {answer!r}"
            )
        if self.tokenizer.decode(ids) != answer:
            raise ValueError(f"the tokenizer's alphabet cannot spell the gold answer {answer!r}")
        return ids

    def _safe_grade(self, key: int, response: str) -> float:
        try:
            score = float(self._grade_text(key, response))
        except Exception as error:  # noqa: BLE001 - graders parse what a policy wrote, so anything can happen in them
            _log.warning("grader failed on %r: %s: %s", response[:80], type(error).__name__, error)
            return math.nan
        return min(max(score, 0.0), 1.0) if math.isfinite(score) else math.nan
