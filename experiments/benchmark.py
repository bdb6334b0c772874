"""Measures the library against yardsticks and against installed peers.

    python -m experiments.benchmark speed                           every kernel and every registered recipe
    python -m experiments.benchmark speed --only=gae,grpo           some of them
    python -m experiments.benchmark speed --shape=4,4,512           a smaller batch: prompts, rollouts, positions
    python -m experiments.benchmark speed --out=speed.jsonl         one JSON object a row

speed: times at [P * G, T] float32, the median over interleaved runs, as a ratio to a yardstick on the same arrays: a
jitted sum of exactly the arrays that an estimator reads, or jnp.cumsum(axis=-1) for recursions over positions. Where
verl, rlax or tunix is importable, the same work there. Every call allocates its outputs; nothing is donated.
"""

import json
import sys

from absl import app, flags

_SHAPE = flags.DEFINE_list("shape", ["128", "8", "4096"], "Prompts, rollouts of each, positions.")
_ONLY = flags.DEFINE_list("only", [], "Names of rows to make; all if empty.")
_OUT = flags.DEFINE_string("out", None, "File for one JSON object a row.")
_ROUNDS = flags.DEFINE_integer("rounds", 15, "Repetitions; the median counts.", lower_bound=1)

_COMMANDS = ("speed",)


def _speed() -> None:
    from creditjax.benchmark import speed

    try:
        shape = tuple(int(size) for size in _SHAPE.value)
        if len(shape) != 3 or min(shape) < 1:
            raise ValueError
    except ValueError:
        sys.exit(f"--shape: {','.join(_SHAPE.value)}, wanted three positive integers P,G,T")
    print(f"{'name':32} {'ms':>9} {'yardstick':>14} {'ms':>9} {'ratio':>7}  peer")
    lines = []
    try:
        for row in speed.speed(shape, tuple(_ONLY.value), _ROUNDS.value):
            peer = f"{row.peer} {row.peer_ms:.2f} ms ({row.peer_ms / row.ms:.1f}x)" if row.peer else ""
            columns = f"{row.name:32} {row.ms:9.3f} {row.yardstick:>14} {row.yardstick_ms:9.3f} {row.ratio:7.2f}"
            print(f"{columns}  {peer}".rstrip(), flush=True)
            lines.append(json.dumps(row.as_json()) + "\n")
            if _OUT.value:
                with open(_OUT.value, "w") as file:
                    file.writelines(lines)
    except ValueError as error:
        sys.exit(str(error))


def main(argv: list[str]) -> None:
    """Dispatches the command."""
    if len(argv) != 2 or argv[1] not in _COMMANDS:
        raise app.UsageError(f"found {' '.join(argv[1:]) or 'no command'}, wanted one of: {', '.join(_COMMANDS)}")
    _speed()


if __name__ == "__main__":
    app.run(main)
