"""Text as positions: words with ids that do not change from run to run, and the lines of an answer as its steps."""

from collections.abc import Sequence
import re
import zlib

import numpy as np

# Whitespace goes with the word behind it, at the end with the word before. Punctuation is ASCII's, so that words of
# any script stay whole with their combining marks; scripts without spaces are cut character by character.
_CJK = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_PUNCTUATION = r"!-/:-@\[-^`{-~"
_WORD = re.compile(
    r"\s*(?:<<[^<>\n]*>>"  # a calculator annotation, as in GSM8K
    r"|\d+(?:[.,]\d+)*"
    rf"|[{_CJK}]|[{_PUNCTUATION}]|[^\s{_PUNCTUATION}{_CJK}]+)(?:\s+\Z)?|\s+"
)
# Not str.splitlines, which also cuts at U+2028 and its like: they stand inside sentences.
_LINE = re.compile(r"[^\n]*\n|[^\n]+\Z")


def split_words(text: str) -> list[str]:
    """The words, numbers and marks of a text; together they are the text, character by character.

    >>> split_words("She has 1,000 <<2*500=1000>>eggs.")
    ['She', ' has', ' 1,000', ' <<2*500=1000>>', 'eggs', '.']
    """
    return _WORD.findall(text)


def split_lines(text: str) -> list[str]:
    """The lines of a text, each with its line break and the blank lines behind it (before the first, with it).

    >>> split_lines("2 + 2 = 4" + chr(10) + chr(10) + "A: 4")
    ['2 + 2 = 4\\n\\n', 'A: 4']
    """
    # Lists of parts, joined at the end: a text of many blank lines would be copied for each.
    lines: list[list[str]] = []
    blank: list[str] = []
    for line in _LINE.findall(text):
        if line.strip():
            lines.append([*blank, line])
            blank = []
        else:
            (lines[-1] if lines else blank).append(line)
    return ["".join(parts) for parts in ([*lines, blank] if blank else lines)]


def word_ids(pieces: Sequence[str]) -> np.ndarray:
    """Ids of pieces of text, i32 ``[T]``, at least 0: the upper 31 bits of their CRC-32, the same in every run.

    Two words of a vocabulary of V share an id with probability about ``V**2 / 2**32``.

    >>> word_ids(["a", " b", "a"]).tolist()
    [1952177953, 1005624084, 1952177953]
    """
    return np.fromiter((zlib.crc32(piece.encode()) >> 1 for piece in pieces), np.int32, len(pieces))
