"""Writes docs/properties.md: which property which registered recipe has, `make properties`.

Every assertion of `creditjax.testing` that needs no argument is asked of every recipe. A property that does not hold
comes with the first line of its counterexample. `--only=grpo,rloo` asks some recipes and prints, and writes nothing.
"""

import argparse
import collections
import pathlib
import re

import creditjax
from creditjax import testing

PAGE = pathlib.Path(__file__).parent / "properties.md"
BEGIN, END = "<!-- properties:begin -->", "<!-- properties:end -->"


def main() -> None:
    """Flags to one page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="recipes, separated by commas")
    only = parser.parse_args().only
    names = only.split(",") if only else creditjax.list_recipes()
    verdicts = {}
    for name in names:
        verdicts[name] = testing.check_all(creditjax.recipe(name).estimator)
        held = sum(verdict == "holds" for verdict in verdicts[name].values())
        print(f"{name}: {held} of {len(verdicts[name])} hold", flush=True)
    if only:
        print(page(verdicts))
        return
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{page(verdicts)}\n{END}{after}", encoding="utf-8")


def page(verdicts: dict[str, dict[str, str]]) -> str:
    """The table and its counterexamples in Markdown."""
    columns = list(dict.fromkeys(name for row in verdicts.values() for name in row))
    # What all have needs no column.
    common = [name for name in columns if all(row.get(name) == "holds" for row in verdicts.values())]
    columns = [name for name in columns if name not in common]
    lines = [f"Every recipe: {', '.join(_words(name) for name in common)}.", ""]
    lines += [f"| recipe | {' | '.join(_words(name) for name in columns)} |", "|---" * (len(columns) + 1) + "|"]
    notes: dict[str, dict[str, list[str]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    for recipe, row in verdicts.items():
        cells = []
        for name in columns:
            verdict = row.get(name, "")
            kind, _, why = verdict.partition(": ")
            why = why.partition(", wanted one of")[0]
            cells.append({"holds": "yes", "does not hold": "no", "not checked": "?", "": ""}[kind])
            if why:
                notes[name][_without_recipe(why)].append(recipe)
        lines.append(f"| `{recipe}` | {' | '.join(cells)} |")
    lines.append("")
    for name in columns:
        if name in notes:
            lines += [f"**{_words(name)[0].upper()}{_words(name)[1:]}**", ""]
            for why, recipes in notes[name].items():
                lines.append(f"- {', '.join(f'`{recipe}`' for recipe in recipes)}: {why}")
            lines.append("")
    return "\n".join(lines).rstrip()


def _words(name: str) -> str:
    return name.replace("_", " ")


def _without_recipe(why: str) -> str:
    # The estimator is printed in the message; the line is listed under its recipe already.
    return re.sub(r"\s+", " ", why).replace("|", "\\|")


if __name__ == "__main__":
    main()
