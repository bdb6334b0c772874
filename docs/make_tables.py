"""Writes what is made from the registry: `make tables`, or `python -m docs.make_tables`.

The method table of README.md, and how long recipes are in docs/architecture.md. Both stand between two marker lines,
and a test asserts that they are current.
"""

import ast
import collections
from collections.abc import Callable
import inspect
import pathlib
import re
import statistics
import textwrap

import creditjax
from creditjax import algebra, objectives
from creditjax.recipes.baselines import grpo_credit
from creditjax.recipes.registry import _REGISTRY
from docs.markers import splice

README = pathlib.Path(__file__).parent.parent / "README.md"
ARCHITECTURE = README.parent / "docs" / "architecture.md"
SHOWN = 24
HEADER = ("`recipe`", "method", "paper", "credit to", "how", "reads", "cost", "tier")


def method_table() -> str:
    """A Markdown table with one row for each registered name."""
    rows = [HEADER, ("---",) * len(HEADER)]
    for name in creditjax.list_recipes():
        recipe = creditjax.recipe(name)
        card, needs = recipe.card, ", ".join(f"`{need}`" for need in recipe.needs)
        paper = paper_link(card.paper, card.title) or card.title
        rows.append(
            (f"`{name}`", card.name, paper, card.granularity, card.methodology, needs, recipe.cost, recipe.tier)
        )
    return "\n".join(f"| {' | '.join(cell(text) for text in row)} |" for row in rows)


def recipe_lengths() -> str:
    """How many lines recipes have, and which primitives most of them are made of."""
    lines, users = {}, collections.Counter()
    for name in creditjax.list_recipes():
        function = _tree(_REGISTRY[name].make)
        body = function.body[1:] if ast.get_docstring(function) else function.body
        lines[name] = body[-1].end_lineno - body[0].lineno + 1
        called = _called(function)
        if grpo_credit.__name__ in called:
            called |= _called(_tree(grpo_credit))
        users.update(called & {*algebra.__all__, *objectives.__all__})
    longest = ", ".join(f"`{name}` ({lines[name]})" for name in sorted(lines, key=lines.get)[-3:][::-1])
    most = ", ".join(f"`{name}` {count}" for name, count in users.most_common(SHOWN))
    low, median, high = (f"{x:g}" for x in statistics.quantiles(lines.values(), n=4, method="inclusive"))
    alone = sum(count == 1 for count in users.values())
    text = (
        f"{len(lines)} recipes have {median} lines in the median, signature and docstring aside (quartiles {low} and "
        f"{high}); the longest are {longest}. They are made of {len(users)} primitives, {alone} of them with one user. "
        f"Those that most recipes use, with their numbers: {most}."
    )
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _tree(function: Callable) -> ast.FunctionDef:
    return ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]


def _called(tree: ast.AST) -> set[str]:
    """Names of the functions that are called by their bare name."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {function.id for function in calls if isinstance(function, ast.Name)}


def paper_link(paper: str, title: str) -> str:
    """Every arXiv number as a link; the first, which is the method's own, shows the title if there is one."""
    shown = f' "{quoted}"' if (quoted := title.replace('"', "'")) else ""
    first, *others = re.split(r"(?<!^)(?=arXiv:)", paper)
    pattern, link = r"arXiv:(\d{4}\.\d{4,5})", r"[\g<0>](https://arxiv.org/abs/\1"
    return re.sub(pattern, f"{link}{shown})", first) + re.sub(pattern, f"{link})", "".join(others))


def cell(text: str) -> str:
    """The text of a cell, in one line."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    splice(README, "methods", method_table())
    splice(ARCHITECTURE, "lengths", recipe_lengths())
