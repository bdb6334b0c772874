"""Writes the method table of README.md from the registry: `make tables`, or `python -m docs.make_tables`.

The table stands between two marker lines, and a test asserts that it is current.
"""

import pathlib
import re

import creditjax
from docs.markers import splice

README = pathlib.Path(__file__).parent.parent / "README.md"
HEADER = ("`recipe`", "method", "paper", "credit to", "how", "reads", "cost", "tier")


def method_table() -> str:
    """A Markdown table with one row for each registered name."""
    rows = [HEADER, ("---",) * len(HEADER)]
    for name in creditjax.list_recipes():
        recipe = creditjax.recipe(name)
        card, needs = recipe.card, ", ".join(f"`{need}`" for need in recipe.needs)
        paper = _link(card.paper, card.title)
        rows.append(
            (f"`{name}`", card.name, paper, card.granularity, card.methodology, needs, recipe.cost, recipe.tier)
        )
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in row)} |" for row in rows)


def _link(paper: str, title: str) -> str:
    """Every arXiv number as a link; the first, which is the method's own, shows the title."""
    shown = title.replace('"', "'")
    first, *others = re.split(r"(?<!^)(?=arXiv:)", paper)
    pattern, link = r"arXiv:(\d{4}\.\d{4,5})", r"[\g<0>](https://arxiv.org/abs/\1"
    return re.sub(pattern, f'{link} "{shown}")', first) + re.sub(pattern, f"{link})", "".join(others))


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    splice(README, "methods", method_table())
