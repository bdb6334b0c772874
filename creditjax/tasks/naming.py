"""Help for misspelt names."""

from collections.abc import Iterable
import difflib


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause for an error message that offers the known names nearest to `name`, or all of them.

    >>> nearest("chian_sum", ["chain_sum", "gcd"])
    'did you mean chain_sum?'
    """
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.4)
    return f"did you mean {', '.join(near)}?" if near else f"it is one of {', '.join(known)}"
