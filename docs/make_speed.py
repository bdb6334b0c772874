"""Writes the tables of docs/speed.md from a file of rows: `python -m docs.make_speed speed.jsonl`.

The file comes from ``python -m experiments.benchmark speed --out=speed.jsonl``.
"""

import argparse
from collections.abc import Iterable, Mapping
import json
import pathlib
from typing import Any

from docs.markers import splice

PAGE = pathlib.Path(__file__).with_name("speed.md")
# What a linear estimator is to reach of the copy bandwidth, or the page says why not.
AIM = 1 / 3


def main() -> None:
    """Flags to one page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=pathlib.Path)
    rows = [json.loads(line) for line in parser.parse_args().rows.read_text(encoding="utf-8").splitlines()]
    kernels = [row for row in rows if "cost" not in row]
    recipes = [row for row in rows if "cost" in row]
    splice(PAGE, "recipes", table(sorted(recipes, key=lambda row: -row["copy_share"])))
    splice(PAGE, "kernels", table(kernels))
    above = sum(row["copy_share"] >= AIM for row in recipes)
    print(f"{above} of {len(recipes)} recipes at {AIM:.0%} of the copy bandwidth or more")


def table(rows: Iterable[Mapping[str, Any]]) -> str:
    """One row a measurement."""
    lines = ["| name | cost | ms | of copy | yardstick | ms | ratio | peers (ms) |", "|---" * 8 + "|"]
    for row in rows:
        peers = ", ".join(f"{name} {ms:.1f}" for name, ms in row.get("peers", {}).items())
        cells = [
            f"`{row['name']}`",
            row.get("cost", ""),
            f"{row['ms']:.1f}",
            f"{row['copy_share']:.0%}" if row["copy_share"] >= 0.095 else f"{row['copy_share']:.1%}",
            row["yardstick"],
            f"{row['yardstick_ms']:.1f}",
            f"{row['ratio']:.2f}",
            peers,
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
