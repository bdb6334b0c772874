"""Converts other trainers' rollouts to the schema of creditjax.interop (docs/rollout_files.md).

    python -m experiments.convert 12.jsonl rollouts.jsonl                  the format is recognised from the content
    python -m experiments.convert rollout_data/ rollouts.parquet           all files of a directory, in their order
    python -m experiments.convert log.jsonl out.parquet --on_error=skip    bad records are counted, with their reasons
    python -m experiments.convert log.jsonl out.jsonl --read_as=messages --group_field=problem --outcome_field=passed

The exit status is 1 if a record was bad (with --on_error=raise) or nothing could be read; then nothing is written.
"""

from collections.abc import Iterator
import sys
import time

from absl import app

from creditjax.interop import Rollout, files
from experiments import rollout_flags


def main(argv: list[str]) -> None:
    """Reads argv[1], writes argv[2]."""
    if len(argv) != 3:
        raise app.UsageError(f"found {' '.join(argv[1:]) or 'no arguments'}, wanted a file to read and a file to write")
    started = time.monotonic()
    with rollout_flags.reader(argv[1]) as reader:
        try:
            files.write(argv[2], _counted(reader, started))
        except (OSError, ImportError, ValueError) as error:
            sys.exit(str(error))
    print(rollout_flags.summary(reader))
    print(f"{argv[2]}, {reader.rollouts / max(time.monotonic() - started, 1e-9):,.0f} rollouts a second")


def _counted(reader: files.Reader, started: float) -> Iterator[Rollout]:
    """The rollouts, with a line on the terminal about every second."""
    said = started
    for rollout in reader:
        if reader.rollouts % 1024 == 0 and (now := time.monotonic()) > said + 1:
            said = now
            print(
                f"\r{reader.rollouts:,} rollouts, {reader.rollouts / (now - started):,.0f}/s", end="", file=sys.stderr
            )
        yield rollout
    if said != started:
        print(file=sys.stderr)
    if not reader.rollouts:
        raise ValueError(f"no rollouts, {rollout_flags.summary(reader)}")


if __name__ == "__main__":
    app.run(main)
