"""A character-level tokenizer, and what tasks ask of any tokenizer."""

from collections.abc import Iterable, Sequence
import string
from typing import Protocol

import numpy as np

# Printable ASCII and the newline.
ASCII = "\n " + string.digits + string.ascii_letters + string.punctuation


class Tokenizer(Protocol):
    """Text to token ids and back.

    Attributes:
      vocab_size: number of ids.
      pad: id that fills unused positions.
      end: id that ends a response.
    """

    vocab_size: int
    pad: int
    end: int

    def encode(self, text: str) -> list[int]:
        """The ids of `text`, without padding and without the end."""
        ...

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` up to the first end; padding has none."""
        ...

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable string an id, for reports."""
        ...


class CharTokenizer:
    """One token a character: pad is 0, end 1, unknown 2, then the alphabet in its order.

    >>> tokenizer = CharTokenizer("0123456789+= ")
    >>> tokenizer.encode("7+5=?")
    [10, 13, 8, 14, 2]
    >>> tokenizer.decode([10, 13, 8, 1, 4])
    '7+5'
    """

    pad = 0
    end = 1
    unknown = 2

    def __init__(self, alphabet: str = ASCII):
        """Makes the vocabulary.

        Raises:
          ValueError: an empty alphabet, or one that repeats a character.
        """
        repeated = sorted({c for c in alphabet if alphabet.count(c) > 1})
        if not alphabet or repeated:
            raise ValueError(f"alphabet: {repeated} repeated" if repeated else "alphabet: no characters")
        self.alphabet = alphabet
        self.vocab_size = 3 + len(alphabet)
        self._id = {c: i for i, c in enumerate(alphabet, start=3)}

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; characters outside the alphabet become `unknown`."""
        return [self._id.get(c, self.unknown) for c in text]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids` up to the first end, without padding; ids that stand for no character read U+FFFD."""
        text = []
        for i in ids:
            if i == self.end:
                break
            if i != self.pad:
                text.append(self.alphabet[i - 3] if 3 <= i < self.vocab_size else "\ufffd")
        return "".join(text)

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """One printable string an id: ``<pad>``, ``<end>``, U+FFFD for unknown, and a sign for the newline."""
        named = {self.pad: "<pad>", self.end: "<end>"}
        return [named.get(i) or self.decode([i]).replace("\n", "\u21b5") for i in map(int, ids)]


def pad_left(rows: Sequence[Sequence[int]], length: int, pad: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows of ids side by side, right-aligned: i32 ``[P, length]`` and the bool mask of real tokens.

    Raises:
      ValueError: a row longer than `length`, named with both lengths.
    """
    tokens = np.full((len(rows), length), pad, np.int32)
    mask = np.zeros((len(rows), length), bool)
    for i, row in enumerate(rows):
        if len(row) > length:
            raise ValueError(f"row {i} has {len(row)} tokens, longer than {length}")
        if row:
            tokens[i, -len(row) :] = row
            mask[i, -len(row) :] = True
    return tokens, mask
