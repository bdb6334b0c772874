"""Lists the methods of the package: what each is called, what it needs, and where it stands.

    python -m experiments.methods                                        all
    python -m experiments.methods --family=token_level,process_reward    of some families
    python -m experiments.methods --needs=value                          that read a signal
    python -m experiments.methods --json                                 one object a line

A method is a recipe (`creditjax.recipe(name)`), another name of one, or a symbol of the package where it is no recipe:
a metric, a sampler, a model, a task. The exit status is 1 if a card has none of these.
"""

import json
import signal
import sys

from absl import app, flags

from creditjax.naming import nearest
from creditjax.recipes import canonical, cards, list_recipes, recipe

_FAMILY = flags.DEFINE_list("family", [], "Families to list; all if empty.")
_NEEDS = flags.DEFINE_string("needs", None, "A field or signal that the listed recipes read.")
_JSON = flags.DEFINE_bool("json", False, "One JSON object a line.")


def rows() -> list[dict]:
    """One plain object a card, sorted by family and id."""
    known = set(list_recipes())
    listed = []
    for card in sorted(cards().values(), key=lambda card: (card.family, card.id)):
        made = recipe(card.id) if card.id in known else None
        status = "symbol" if made is None and card.symbol else "missing" if made is None else "recipe"
        if made is not None and canonical(card.id) != card.id:
            status = f"alias of {canonical(card.id)}"
        listed.append(
            {
                "id": card.id,
                "family": card.family,
                "status": status,
                "granularity": card.granularity,
                "methodology": card.methodology,
                "needs": list(made.needs) if made else [],
                "cost": made.cost if made else "",
                "paper": card.paper,
                "symbol": card.symbol,
            }
        )
    return listed


def main(argv: list[str]) -> None:
    """Prints the rows that the flags choose."""
    if len(argv) > 1:
        raise app.UsageError(f"found {' '.join(argv[1:])}, wanted flags alone")
    listed = rows()
    families = sorted({row["family"] for row in listed})
    if unknown := [name for name in _FAMILY.value if name not in families]:
        sys.exit(f"--family: {unknown[0]!r} unknown, {nearest(unknown[0], families)}")
    if _FAMILY.value:
        listed = [row for row in listed if row["family"] in _FAMILY.value]
    if _NEEDS.value:
        listed = [row for row in listed if _NEEDS.value in row["needs"]]
    for row in listed:
        print(json.dumps(row) if _JSON.value else _line(row))
    missing = [row["id"] for row in listed if row["status"] == "missing"]
    if not _JSON.value:
        print(f"\n{len(listed)} methods" + (f", without an implementation: {', '.join(missing)}" if missing else ""))
    if missing:
        sys.exit(1)


def _line(row: dict) -> str:
    where = row["symbol"] or ", ".join(row["needs"])
    return f"{row['family']:16} {row['id']:30} {row['status']:16} {row['granularity']:12} {where}".rstrip()


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # whoever reads the list may stop in the middle, as `head` does
    app.run(main)
