"""Writes docs/properties.md: which property which registered recipe has, `make properties`.

Every assertion of `creditjax.testing` that needs no argument is asked of every recipe, and what a recipe promises or
claims with the arguments that it states. A property that does not hold comes with a counterexample in one line.
`--only=grpo,rloo` asks some recipes and prints, and writes nothing.
"""

import argparse
import collections
from collections.abc import Iterator
import os
import pathlib
import re
import time

# Eight devices to shard over. The time goes into compiling.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0")

import jax

import creditjax
from creditjax import testing
from docs.markers import splice

PAGE = pathlib.Path(__file__).parent / "properties.md"
# After so many recipes compiled programs are forgotten, or the process grows to many GB.
FORGET_EVERY = 24

Verdicts = dict[str, dict[str, str]]


def main() -> None:
    """Flags to one page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="recipes, separated by commas")
    only = parser.parse_args().only
    names = only.split(",") if only else creditjax.list_recipes()
    verdicts, stated = {}, {}
    for count, name in enumerate(names, 1):
        began, recipe = time.monotonic(), creditjax.recipe(name)
        stated[name] = testing.stated(recipe)
        given = {law: options for law, options in stated[name].kept.items() if options}
        verdicts[name] = testing.check_all(recipe.estimator) | testing.check_all(recipe.estimator, given)
        held = sum(verdict == "holds" for verdict in verdicts[name].values())
        print(f"{name}: {held} of {len(verdicts[name])} hold, {time.monotonic() - began:.1f} s", flush=True)
        if count % FORGET_EVERY == 0:
            jax.clear_caches()
    if only:
        print(page(verdicts, stated))
        return
    splice(PAGE, "properties", page(verdicts, stated))


def page(verdicts: Verdicts, stated: dict[str, testing.Stated]) -> str:
    """The table, the exemptions and the counterexamples in Markdown."""
    asked = dict.fromkeys(law for row in verdicts.values() for law in row)
    # What all promise and have needs no column.
    common = [
        law for law in asked if all(row.get(law) == "holds" and law in testing.PROMISES for row in verdicts.values())
    ]
    columns = [law for law in asked if law not in common]
    lines = [f"Every recipe promises and has: {', '.join(map(_words, common))}.", ""]
    lines += [f"| recipe | {' | '.join(map(_words, columns))} |", "|---" * (len(columns) + 1) + "|"]
    for name, row in verdicts.items():
        cells = [_cell(row.get(law, ""), law in stated[name].kept) for law in columns]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    lines += ["", "## Exemptions", "", *_exemptions(stated), "", "## Counterexamples", ""]
    for law in columns:
        lines += _counterexamples(law, verdicts)
    return "\n".join(lines).rstrip()


def _cell(verdict: str, claimed: bool) -> str:
    kind = verdict.partition(":")[0]
    if kind == "holds":
        return "yes" if claimed else "(yes)"
    # A claim that fails is a fault, and tests/recipes/test_claims.py says so too.
    return {"does not hold": "**broken**" if claimed else "no", "not checked": "?", "": ""}[kind]


def _exemptions(stated: dict[str, testing.Stated]) -> Iterator[str]:
    by_reason: dict[tuple[str, str], list[str]] = collections.defaultdict(list)
    for name, what in stated.items():
        for law, reason in what.exempt.items():
            by_reason[law, reason].append(name)
    for (law, reason), names in by_reason.items():
        yield f"- *{_words(law)}*, because {reason}: {_list(names)}"


def _counterexamples(law: str, verdicts: Verdicts) -> Iterator[str]:
    by_reason: dict[str, list[str]] = collections.defaultdict(list)
    for name, row in verdicts.items():
        if why := row.get(law, "").partition(": ")[2]:
            by_reason[_one_line(why)].append(name)
    if by_reason:
        yield from (f"**{_words(law).capitalize()}**", "")
        yield from (f"- {_list(names)}: {why}" for why, names in by_reason.items())
        yield ""


def _list(names: list[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _words(law: str) -> str:
    return law.replace("_", " ")


def _one_line(why: str) -> str:
    return re.sub(r"\s+", " ", why.partition(", wanted one of")[0]).replace("|", "\\|")


if __name__ == "__main__":
    main()
