"""Converts other trainers' rollouts to the schema of creditjax.interop (docs/rollout_files.md).

    creditjax-convert 12.jsonl rollouts.jsonl                  the format is recognised from the content
    creditjax-convert rollout_data/ rollouts.parquet           all files of a directory, in their order
    creditjax-convert log.jsonl out.parquet --on_error=skip    bad records are counted, with their reasons
    creditjax-convert log.jsonl out.jsonl --read_as=messages --group_field=problem --outcome_field=passed

The exit status is 1 if a record was bad (with --on_error=raise), nothing could be read, or the file to write is one
that is read; then nothing is written.
"""

from collections.abc import Iterator
import sys
import time

from creditjax.interop import Rollout, command_line, files


def main(argv: list[str]) -> None:
    """Reads argv[1], writes argv[2]."""
    if len(argv) != 3:
        found = " ".join(argv[1:]) or "no arguments"
        sys.exit(f"found {found}, wanted a file to read and a file to write\n--help explains the flags.")
    command_line.check_target(argv[1], argv[2])
    started = time.monotonic()
    with command_line.reader(argv[1]) as reader:
        try:
            files.write(argv[2], _counted(reader, started))
        except (OSError, ImportError, ValueError) as error:
            sys.exit(str(error))
    print(command_line.summary(reader))
    print(f"{argv[2]}, {reader.rollouts / max(time.monotonic() - started, 1e-9):,.0f} rollouts a second")


def _counted(reader: files.Reader, started: float) -> Iterator[Rollout]:
    """The rollouts, with a line on the terminal about every second."""
    said, shown = started, sys.stderr.isatty()
    try:
        for rollout in reader:
            if shown and reader.rollouts % 1024 == 0 and (now := time.monotonic()) > said + 1:
                said = now
                rate = reader.rollouts / (now - started)
                print(f"\r{reader.rollouts:,} rollouts, {rate:,.0f}/s", end="", file=sys.stderr)
            yield rollout
    finally:
        if said != started:
            print(file=sys.stderr)
    if not reader.rollouts:
        raise ValueError(f"no rollouts, {command_line.summary(reader)}")


def run() -> None:
    """Runs the command with the arguments of the process."""
    command_line.run(main, __doc__)


if __name__ == "__main__":
    run()
