"""What a small model can use of a step: how it relates to the text before it, and which words it has. Pure Python.

A model trained from scratch on some hundred solutions cannot learn to compare strings. Here the comparisons are made
for it: which of a step's numbers and words are new, what it repeats, how long it is beside the steps before it. Nothing
behind a step is read, so a step is described alike whatever follows it.
"""

from collections.abc import Sequence, Set
import math
import re
from typing import NamedTuple
import zlib

RELATIONS = (
    "index",  # log(1 + k)
    "length",  # log(1 + characters)
    "words",  # log(1 + words)
    "numbers",  # log(1 + distinct numbers)
    "equalities",  # log(1 + equality signs)
    "symbols",  # share of tokens that are no words
    "longer",  # log of the length over the mean length of earlier steps
    "new_numbers",  # log(1 + numbers that neither problem nor earlier steps have)
    "new_number_share",  # their share of the step's numbers
    "new_words",  # log(1 + tokens that neither problem nor earlier steps have)
    "new_word_share",  # their share of the step's tokens
    "of_problem",  # share of tokens that the problem has
    "of_previous",  # share of tokens that the step before has, the problem for the first
    "repeated",  # share of triples of tokens that earlier steps have
    "most_repeated",  # the same for the one earlier step with the most
)
"""Names of the numbers in :attr:`StepText.relations`, in order; each of the order of 1. Shares of nothing are 0."""


class StepText(NamedTuple):
    """A step's text as features.

    Attributes:
      relations: one number for each of `RELATIONS`.
      words: a hash of 32 bits for each distinct word, command or symbol, for the first token, and for the first two.
        Numbers are left out: which number it is says nothing.
    """

    relations: tuple[float, ...]
    words: tuple[int, ...]


_TOKEN = re.compile(r"\\[a-zA-Z]+|\d+(?:\.\d+)?|[^\W\d_]+(?:'[^\W\d_]+)?|[^\s\w{}$]")


def tokenize(text: str) -> list[str]:
    r"""Words in lower case, numbers, commands and symbols; braces and dollar signs are left out.

    >>> tokenize(r"So $p=\frac{1}{2}$")
    ['so', 'p', '=', '\\frac', '1', '2']
    """
    return [token if token.startswith("\\") else token.lower() for token in _TOKEN.findall(text)]


def step_texts(problem: str, steps: Sequence[str]) -> list[StepText]:
    """Features of every step of a solution, each from the problem, the steps before it and itself."""
    asked = frozenset(tokenize(problem))
    seen, previous = set(asked), asked
    triples_before: list[Set[tuple[str, ...]]] = []
    length_before = 0
    found = []
    for index, step in enumerate(steps):
        tokens = tokenize(step)
        vocabulary = frozenset(tokens)
        numbers = frozenset(filter(_is_number, vocabulary))
        triples = frozenset(zip(tokens, tokens[1:], tokens[2:], strict=False))
        letters = sum(token[0].isalpha() for token in tokens)
        new, new_numbers = vocabulary - seen, numbers - seen
        relations = (
            math.log1p(index),
            math.log1p(len(step)),
            math.log1p(letters),
            math.log1p(len(numbers)),
            math.log1p(tokens.count("=")),
            _ratio(len(tokens) - letters, len(tokens)),
            math.log((len(step) + 10.0) / (length_before / index + 10.0)) if index else 0.0,
            math.log1p(len(new_numbers)),
            _ratio(len(new_numbers), len(numbers)),
            math.log1p(len(new)),
            _ratio(len(new), len(vocabulary)),
            _share(vocabulary, asked),
            _share(vocabulary, previous),
            _share(triples, frozenset().union(*triples_before)),
            max((_share(triples, earlier) for earlier in triples_before), default=0.0),
        )
        found.append(StepText(relations, _hashes(tokens)))
        seen |= vocabulary
        previous = vocabulary
        triples_before.append(triples)
        length_before += len(step)
    return found


def _is_number(token: str) -> bool:
    return token[0].isdigit()


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _share(of: Set, among: Set) -> float:
    return _ratio(len(of & among), len(of))


def _hashes(tokens: Sequence[str]) -> tuple[int, ...]:
    bag = {token for token in tokens if not _is_number(token)}
    bag |= {"^" + " ".join(tokens[:n]) for n in (1, 2) if len(tokens) >= n}
    # Not hash(), which differs from one process to the next.
    return tuple(sorted(zlib.crc32(gram.encode()) for gram in bag))
