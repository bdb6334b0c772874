"""Text between two marker lines of a page, where scripts write what they have made: ``<!-- name:begin -->``."""

import pathlib


def spliced(text: str, name: str, made: str) -> str:
    """The text with `made` between the markers of `name`.

    >>> spliced("a\\n<!-- t:begin -->\\nold\\n<!-- t:end -->\\nb", "t", "new")
    'a\\n<!-- t:begin -->\\nnew\\n<!-- t:end -->\\nb'

    Raises:
      ValueError: the markers are not there, once each and in this order.
    """
    begin, end = (f"<!-- {name}:{which} -->" for which in ("begin", "end"))
    head, _, rest = text.partition(begin)
    _, last, tail = rest.partition(end)
    if not last or begin in rest + tail or end in head + tail:
        raise ValueError(f"wanted one {begin} and one {end} after it")
    return f"{head}{begin}\n{made}\n{end}{tail}"


def splice(page: pathlib.Path, name: str, made: str) -> None:
    """Writes `made` between the markers of a page."""
    page.write_text(spliced(page.read_text(encoding="utf-8"), name, made), encoding="utf-8")
