"""Pairs of a step and the same step with one error in it, as RISE (arXiv:2410.06638) trains on. Runs on the host.

The paper asks the policy itself for the error. :func:`inject_error` makes the same three kinds in arithmetic text
without a model: REPLACE a number or an operator, SWAP two operands, DELETE a term.
"""

from collections.abc import Sequence
import re
from typing import NamedTuple

import numpy as np

from creditjax.naming import nearest
from creditjax.signals.overlap import common_subsequence
from creditjax.trajectory import Trajectory

OPERATIONS = ("replace", "swap", "delete")
_NUMBER = re.compile(r"\d+")
_OPERATOR = re.compile(r"(?<=[\w)])\s*([-+*/])\s*(?=[\w(])")
_TERM = re.compile(r"(\d+)(\s*[-+*/]\s*)(\d+)")


class Edit(NamedTuple):
    """A step of a right solution and its edited version, as tokens.

    Attributes:
      prefix: prompt and solution up to the step.
      chosen: the step.
      rejected: the step with an error.
    """

    prefix: Sequence[int]
    chosen: Sequence[int]
    rejected: Sequence[int]


def edit_masks(chosen: Sequence[int], rejected: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """Which tokens of two versions of a step are outside their longest common subsequence, bool ``[n]`` and ``[m]``.

    Both are all False if and only if the versions are equal; one of them is after a mere insertion or deletion.
    """
    common_chosen, common_rejected = common_subsequence(chosen, rejected)
    return ~common_chosen, ~common_rejected


def edit_size(chosen: Sequence[int], rejected: Sequence[int]) -> int:
    """How many tokens have to be deleted and inserted to get from one version to the other."""
    return int(sum(mask.sum() for mask in edit_masks(chosen, rejected)))


def edited_batch(edits: Sequence[Edit], length: int, max_edit: int = 8) -> Trajectory:
    """Groups of two, ``[P, 2, T]``: the step with outcome 1 and its edited version with outcome 0, after one prefix.

    The policy acts in the step alone. The signals are `token_mask`, `step_mask` and `edit_mask`. An edit that changes
    nothing or more than `max_edit` tokens is left out, so P may be less than their number, and 0.

    Args:
      edits: the pairs.
      length: T.
      max_edit: the largest :func:`edit_size` of a pair that is kept.

    Raises:
      ValueError: a pair that is longer than `length`.
    """
    kept = [edit for edit in edits if 0 < edit_size(edit.chosen, edit.rejected) <= max_edit]
    shape = (len(kept), 2, length)
    tokens = np.zeros(shape, np.int32)
    real, step, changed = (np.zeros(shape, bool) for _ in range(3))
    for p, edit in enumerate(kept):
        start = len(edit.prefix)
        for g, (side, mask) in enumerate(
            zip((edit.chosen, edit.rejected), edit_masks(edit.chosen, edit.rejected), strict=True)
        ):
            end = start + len(side)
            if end > length:
                raise ValueError(f"edits: a pair of {end} tokens, wanted at most length = {length}")
            tokens[p, g, :end] = [*edit.prefix, *side]
            real[p, g, :end] = step[p, g, start:end] = True
            changed[p, g, start:end] = mask
    return Trajectory(
        tokens=tokens,
        action_mask=step,
        outcome=np.tile(np.float32([1, 0]), (len(kept), 1)),
        votes=np.ones((len(kept), 2), bool),
        signals={"token_mask": real, "step_mask": step, "edit_mask": changed},
    )


def inject_error(text: str, operation: str, rng: np.random.Generator) -> str | None:
    """The text with one error of a kind in it, None if it has no place for one.

    "replace" writes another number or operator, "swap" exchanges the two operands of an operation that is not
    commutative, "delete" leaves one term out.

    >>> inject_error("7 - 2 = 5", "swap", np.random.default_rng(0))
    '2 - 7 = 5'

    Raises:
      ValueError: no such operation.
    """
    if operation not in OPERATIONS:
        raise ValueError(f"operation: {operation!r}; {nearest(operation, OPERATIONS)}")
    if operation == "replace":
        numbers = [(m.start(), m.end(), "number") for m in _NUMBER.finditer(text)]
        places = numbers + [(m.start(1), m.end(1), "operator") for m in _OPERATOR.finditer(text)]
        if not places:
            return None
        start, end, kind = places[int(rng.integers(len(places)))]
        old = text[start:end]
        if kind == "operator":
            new = str(rng.choice([x for x in "+-*/" if x != old]))
        else:
            new = str(rng.choice([x for x in range(max(int(old) - 9, 0), int(old) + 10) if x != int(old)]))
        return text[:start] + new + text[end:]
    terms = [m for m in _TERM.finditer(text) if operation == "delete" or (m[1] != m[3] and m[2].strip() in ("-", "/"))]
    if not terms:
        return None
    m = terms[int(rng.integers(len(terms)))]
    new = m[3] + m[2] + m[1] if operation == "swap" else m[1] if rng.random() < 0.5 else m[3]
    return text[: m.start()] + new + text[m.end() :]
