"""Sums of one-digit numbers from reasoning-gym, as addends of running totals."""

import functools

import numpy as np

from creditjax.tasks.reasoning import ReasoningTask


def least_base(terms: int) -> int:
    """The smallest modulus under which no two totals of so many terms, nor of a part of them, are the same number."""
    return 18 * terms + 1  # -9 terms to 9 terms


def addends(terms: int, eval_size: int, seed: int, split: str, start: int, count: int) -> np.ndarray:
    """Signed addends i32 ``[P, terms]`` of prompts `start` to `start + count`: "3 - 4 + 1 =" is [3, -4, 1].

    The questions are those of the data set `chain_sum`; no held-out one is trained on.

    Raises:
      ValueError: more held-out questions than there are, or a seed that reasoning-gym does not take.
    """
    items = _questions(terms, eval_size, seed).items(split, start, count)
    return np.array([parse(item.question) for item in items], np.int32).reshape(count, terms)


def parse(question: str) -> list[int]:
    """Signed addends of a formula "3 - 4 + 1 ="."""
    first, *rest = question.removesuffix("=").split()
    return [int(first), *(int(sign + digit) for sign, digit in zip(rest[::2], rest[1::2], strict=True))]


@functools.lru_cache(8)
def _questions(terms: int, eval_size: int, seed: int) -> ReasoningTask:
    parameters = {"min_terms": terms, "max_terms": terms, "min_digits": 1, "max_digits": 1}
    return ReasoningTask("chain_sum", parameters, template="formula", eval_size=eval_size, seed=seed)
