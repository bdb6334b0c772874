"""Measures the library: its speed against yardsticks and peers, its credit against the truth.

    python -m experiments.benchmark speed                           every kernel and every registered recipe
    python -m experiments.benchmark speed --only=gae,grpo           some of them
    python -m experiments.benchmark speed --shape=4,4,512           a smaller batch: prompts, rollouts, positions
    python -m experiments.benchmark speed --out=speed.jsonl         one JSON object a row

    python -m experiments.benchmark credit --quick                  small horizons, two tasks: under three minutes
    python -m experiments.benchmark credit --out=credit.jsonl       everything; repeated, it goes on where it stopped
    python -m experiments.benchmark credit --only=grpo,rloo         some recipes, beside the controls
    python -m experiments.benchmark credit --tasks=sums --horizons=4,8 --groups=4
    python -m experiments.benchmark credit --html=credit.html       one offline page of the results

speed: times at [P * G, T] float32, the median over interleaved runs, as a ratio to a yardstick on the same arrays: a
jitted sum of exactly the arrays that an estimator reads, or jnp.cumsum(axis=-1) for recursions over positions. "of
copy" is the share of the machine's copy bandwidth at which it reads its inputs and writes its credit. Where
verl, rlax or tunix is importable, the same work there. Every call allocates its outputs; nothing is donated.

credit: every registered recipe on tasks whose exact credit is known, with uniform, random and exact credit as controls,
and learning at equal budget; see creditjax/benchmark/credit.py and learning.py for what is measured and how. A line of
--out is an object with recipe, task, group, horizon, metric, value and stderr (0: exact; null: unknown).
"""

import json
import os
import sys

from absl import app, flags

_SHAPE = flags.DEFINE_list("shape", ["128", "8", "4096"], "Prompts, rollouts of each, positions.")
_ONLY = flags.DEFINE_list("only", [], "Names of rows or recipes to make; all if empty.")
_OUT = flags.DEFINE_string("out", None, "File for one JSON object a row.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Repetitions; the median counts.", lower_bound=1)
_QUICK = flags.DEFINE_bool("quick", False, "credit: small horizons, two tasks, short learning.")
_TASKS = flags.DEFINE_list("tasks", [], "credit: tasks; all if empty.")
_HORIZONS = flags.DEFINE_list("horizons", [], "credit: actions of an episode, 4 at least.")
_GROUPS = flags.DEFINE_list("groups", [], "credit: rollouts of a group.")
_LEARNING = flags.DEFINE_bool("learning", True, "credit: learning curves too.")
_HTML = flags.DEFINE_string("html", None, "credit: file for the page.")

_COMMANDS = ("speed", "credit")


def _speed() -> None:
    from creditjax.benchmark import speed

    try:
        shape = tuple(int(size) for size in _SHAPE.value)
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError
    except ValueError:
        sys.exit(f"--shape: {','.join(_SHAPE.value)}, wanted three positive integers P,G,T")
    print(f"{'name':32} {'ms':>9} {'yardstick':>14} {'ms':>9} {'ratio':>7} {'of copy':>8}  peer")
    lines = []
    try:
        for row in speed.speed(shape, tuple(_ONLY.value), _ROUNDS.value):
            peer = f"{row.peer} {row.peer_ms:.2f} ms ({row.peer_ms / row.ms:.1f}x)" if row.peer else ""
            columns = f"{row.name:32} {row.ms:9.3f} {row.yardstick:>14} {row.yardstick_ms:9.3f} {row.ratio:7.2f}"
            print(f"{columns} {row.copy_share:8.1%}  {peer}".rstrip(), flush=True)
            lines.append(json.dumps(row.as_json()) + "\n")
            if _OUT.value:
                with open(_OUT.value, "w") as file:
                    file.writelines(lines)
    except ValueError as error:
        sys.exit(str(error))


def _credit() -> None:
    from creditjax.benchmark import credit, learning, page, results

    try:
        plan = credit.plan(
            quick=_QUICK.value,
            only=tuple(_ONLY.value),
            tasks=tuple(_TASKS.value),
            horizons=tuple(_HORIZONS.value),
            groups=tuple(_GROUPS.value),
        )
        found = results.Results(_OUT.value)
    except ValueError as error:
        sys.exit(str(error))
    with results.timed(found, [_shown(argument) for argument in sys.argv[1:]]):
        for line in credit.run_all(plan, found):
            print(line, flush=True)
        if _LEARNING.value:
            for line in learning.run_all(found, quick=_QUICK.value, only=tuple(_ONLY.value)):
                print(line, flush=True)
    if _HTML.value:
        page.write(found.rows, _HTML.value)
        print(f"page: {_HTML.value}")


def _shown(argument: str) -> str:
    """A flag without the directories of this machine."""
    name, is_set, value = argument.partition("=")
    return f"{name}={os.path.basename(value)}" if is_set and os.sep in value else argument


def main(argv: list[str]) -> None:
    """Dispatches the command."""
    if len(argv) != 2 or argv[1] not in _COMMANDS:
        raise app.UsageError(f"found {' '.join(argv[1:]) or 'no command'}, wanted one of: {', '.join(_COMMANDS)}")
    {"speed": _speed, "credit": _credit}[argv[1]]()


if __name__ == "__main__":
    app.run(main)
