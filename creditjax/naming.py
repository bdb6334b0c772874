"""Help for misspelt names."""

from collections.abc import Iterable, Mapping
import difflib
from typing import TypeVar

T = TypeVar("T")


def nearest(name: object, known: Iterable[object]) -> str:
    """A clause for an error message that offers the known names nearest to `name`, or all of them.

    >>> nearest("chian_sum", ["chain_sum", "gcd"])
    'did you mean chain_sum?'
    """
    names = sorted(map(str, known))
    if same := [known for known in names if known.lower() == str(name).lower()]:
        return f"did you mean {same[0]}?"
    if near := difflib.get_close_matches(str(name), names, n=3, cutoff=0.5):
        return f"did you mean {', '.join(near)}?"
    return f"it is one of {', '.join(names)}" if names else "there is none"


def choose(label: str, name: str, choices: Mapping[str, T]) -> T:
    """The choice called `name`.

    Raises:
      ValueError: there is none, with the nearest names.

    >>> choose("mode", "sum", {"sum": 1, "mean": 2})
    1
    """
    if name not in choices:
        raise ValueError(f"{label}: {name!r}, {nearest(name, choices)}")
    return choices[name]
