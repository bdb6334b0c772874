"""Help for misspelt names."""

from collections.abc import Iterable
import difflib


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
