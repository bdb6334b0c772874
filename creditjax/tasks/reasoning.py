"""Verifiable reasoning: any data set of the reasoning-gym package, graded by its own verifier on the host."""

from collections.abc import Callable, Mapping
import dataclasses
import functools
import re
from typing import Any

from creditjax.naming import nearest
from creditjax.tasks.graded import GradedTask, Item
from creditjax.tasks.tokenizer import CharTokenizer, Tokenizer

# Entries come from data sets of this many, each with its own seed. A data set of reasoning-gym draws entry i from
# seed + i, so consecutive blocks of seeds give distinct entries; some also choose among a fixed list by their size.
_CHUNK = 1000
# Keys from here on belong to the held-out split: no training prompt can have one.
_EVAL = 2**30
_MAX_REDRAWS = 1000
# Redraws of a training prompt jump by a prime, so that they do not follow their neighbours'.
_REDRAW_STRIDE = 15_485_863

_FORMULAS: dict[str, tuple[str, str]] = {
    "basic_arithmetic": (r"Calculate (.*)\.", r"\1 ="),
    "chain_sum": (r".*problem: (.*=)", r"\1"),
    "count_bits": (r".*of the number (\d+)\?", r"\1 ="),
    "decimal_chain_sum": (r".*problem: (.*=)", r"\1"),
    "gcd": (r".*numbers: ([\d, ]+)\..*", r"gcd \1 ="),
    "lcm": (r".*numbers: ([\d, ]+)", r"lcm \1 ="),
    "products": (r".*multiplication: ([\d* ]+)\..*", r"\1 ="),
    "simple_equations": (r".*: (.*)", r"\1"),
    "spell_backward": (r".*: (\w+)", r"\1 ="),
}


class ReasoningTask(GradedTask):
    """A `TextTask` over a data set of reasoning-gym.

    The training split is endless: prompt i is entry i of the data set under `seed`. The held-out split is the first
    `eval_size` *distinct* questions from another range of seeds. A training prompt whose question is held out is
    replaced by another draw, again a pure function of i, so no held-out question is ever trained on, however small the
    space of questions; two questions are the same if the policy sees the same text. Questions that merely mean the same
    ("2 + 3", "3 + 2") count as two. The held-out split is drawn at the first use of either split.

    Graders are those of the package and see whatever the policy wrote; some evaluate it as a formula. Keep `max_answer`
    small where answers are formulas. Several give part of the score to a text that *contains* the answer: `binary`
    refuses it.

    Attributes:
      redrawn: how many prompts were drawn again so far because they did not fit (see `too_long`).
    """

    def __init__(
        self,
        dataset: str = "chain_sum",
        parameters: Mapping[str, Any] | None = None,
        *,
        max_prompt: int = 128,
        max_answer: int = 16,
        template: str | Callable[[str], str] | None = None,
        tokenizer: Tokenizer | None = None,
        alphabet: str | None = None,
        eval_size: int = 256,
        binary: bool = False,
        format_weight: float = 0.0,
        step_length: int | None = None,
        too_long: str = "raise",
        seed: int = 0,
    ):
        """Makes the task; nothing is generated yet.

        Args:
          dataset: one of ``reasoning_gym.factory.DATASETS``.
          parameters: fields of the data set's configuration, all but seed and size.
          max_prompt: L, the most tokens of a question.
          max_answer: the most tokens of a response, its end included.
          template: turns the question's text into what the policy sees. None leaves it; "formula" strips the words from
            the questions of those data sets that hold a formula ("4 + 3 =" of chain_sum); or a function of the
            question.
          tokenizer: character-level by default.
          alphabet: characters of the default tokenizer, all of ASCII if None. A small one makes a small vocabulary.
          eval_size: number of held-out prompts.
          binary: only a perfect answer scores, and it scores 1.
          format_weight: share of the outcome that is paid for stopping in time.
          step_length: positions of a step, each a segment; None for one segment, the response.
          too_long: "raise" on a question or gold answer that does not fit, or "redraw" to draw another one and count it
            (which shifts the distribution to short ones).
          seed: of the data, below 2**30.

        Raises:
          ValueError: an unknown data set, parameter or option (with the nearest right ones), or a value that is out of
            range.
        """
        from reasoning_gym import factory

        if dataset not in factory.DATASETS:
            raise ValueError(f"dataset: {dataset!r} is unknown to reasoning-gym; {nearest(dataset, factory.DATASETS)}")
        self._parameters = dict(parameters or {})
        fields = {field.name for field in dataclasses.fields(factory.DATASETS[dataset][1])} - {"seed", "size"}
        if unknown := sorted(set(self._parameters) - fields):
            raise ValueError(f"parameters: {dataset} has no {unknown[0]!r}; {nearest(unknown[0], fields)}")
        if template == "formula" and dataset not in _FORMULAS:
            raise ValueError(f"template: no formula is known for {dataset!r}, only for {', '.join(sorted(_FORMULAS))}")
        if isinstance(template, str) and template != "formula":
            raise ValueError(f"template: {template!r}, wanted None, 'formula' or a function of the question")
        if too_long not in ("raise", "redraw"):
            raise ValueError(f"too_long: {too_long!r}, wanted 'raise' or 'redraw'")
        if not 0 <= seed < 2**30:
            raise ValueError(f"seed: {seed}, wanted 0 <= seed < 2**30")
        if tokenizer is not None and alphabet is not None:
            raise ValueError("alphabet: it belongs to the default tokenizer, but another tokenizer was given")
        super().__init__(
            tokenizer=CharTokenizer(alphabet) if alphabet is not None else tokenizer,
            max_prompt=max_prompt,
            max_answer=max_answer,
            eval_size=eval_size,
            binary=binary,
            format_weight=format_weight,
            step_length=step_length,
        )
        self.dataset = dataset
        self.redrawn = 0
        self._seed = seed
        self._template = template
        self._redraw_long = too_long == "redraw"
        self._train_key = functools.lru_cache(65536)(self._find_train_key)
        self._chunk = functools.lru_cache(16)(self._make_chunk)
        self._entry = functools.lru_cache(8192)(self._make_entry)
        self._chunk(0)  # so that a wrong value among the parameters fails here

    def _make_chunk(self, chunk: int):
        from reasoning_gym import factory

        try:
            seed = self._seed + chunk * _CHUNK
            return factory.create_dataset(self.dataset, **self._parameters, seed=seed, size=_CHUNK)
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(f"parameters: {self.dataset} refuses {self._parameters}: {error}") from error

    def _make_entry(self, key: int) -> tuple[Any, dict[str, Any]]:
        data = self._chunk(key // _CHUNK)
        return data, data[key % _CHUNK]

    def _make_item(self, key: int) -> Item:
        entry = self._entry(key)[1]
        answer = entry["answer"]
        return Item(self._shorten(entry["question"].strip()), None if answer is None else str(answer))

    def _shorten(self, question: str) -> str:
        if self._template is None:
            return question
        if callable(self._template):
            return self._template(question)
        pattern, formula = _FORMULAS[self.dataset]
        match = re.fullmatch(pattern, question, re.DOTALL)
        if match is None:
            raise ValueError(f"template: no formula found in the question {question!r}")
        return match.expand(formula)

    def _grade_text(self, key: int, response: str) -> float:
        data, entry = self._entry(key)
        return data.score_answer(response.strip(), entry)

    def _key(self, split: str, index: int) -> int:
        return self._held_out[0][index] if split == "eval" else self._train_key(index)

    @functools.cached_property
    def _held_out(self) -> tuple[list[int], frozenset[str]]:
        """Keys and questions of the held-out split."""
        keys: dict[str, int] = {}
        limit = self.eval_size + max(_MAX_REDRAWS, 20 * self.eval_size)
        for key in range(_EVAL, _EVAL + limit):
            if self._fits(key):
                keys.setdefault(self._item(key).question, key)
            if len(keys) == self.eval_size:
                return list(keys.values()), frozenset(keys)
        raise ValueError(
            f"eval_size: {self.eval_size} distinct questions of {self.dataset} wanted, {limit} draws gave {len(keys)}"
        )

    def _find_train_key(self, index: int) -> int:
        for draw in range(_MAX_REDRAWS):
            key = (index + draw * _REDRAW_STRIDE) % _EVAL
            if self._fits(key) and self._item(key).question not in self._held_out[1]:
                return key
        raise ValueError(
            f"eval_size: {self.eval_size} held-out questions leave too few of {self.dataset}: {_MAX_REDRAWS} draws for "
            f"training prompt {index} were all held out; lower it, or widen the parameters"
        )

    def _fits(self, key: int) -> bool:
        """Whether the item fits; True where it should raise instead."""
        if not self._redraw_long:
            return True
        question, answer = self._item(key)
        fits = len(self.tokenizer.encode(question)) <= self.prompt_length
        fits = fits and (answer is None or len(self.tokenizer.encode(answer)) < self.turns.action_length)
        self.redrawn += not fits
        return fits
