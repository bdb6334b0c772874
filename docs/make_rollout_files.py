"""Measures files of rollouts: `python -m docs.make_rollout_files` writes the table of docs/rollout_files.md.

Each pass runs in a process of its own, whose largest resident memory is what the system says at its end. The rollouts
are short: 12 words, two turns with a reward each, eight rollouts a group. Passes: write the file; read it; read it,
gather the groups and lay them into batches. Some minutes and 2 GB of disk for a million.

    python -m docs.make_rollout_files --sizes=10000,100000      smaller
"""

from collections.abc import Iterator
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

from absl import app, flags
import numpy as np

from creditjax.interop import Message, Rollout, batches, files
from docs.markers import splice

PAGE = pathlib.Path(__file__).parent / "rollout_files.md"
PASSES = ("write", "read", "batches")

_SIZES = flags.DEFINE_list("sizes", ["10000", "100000", "1000000"], "How many rollouts.")
_ONE = flags.DEFINE_list("one", [], "Internal: a pass, its file and its size; prints seconds and MiB.")


def short_rollouts(count: int) -> Iterator[Rollout]:
    """The rollouts that are measured, the same every time."""
    words = tuple(f" word{i}" for i in range(100))
    rng = np.random.default_rng(0)
    segment = np.repeat(np.arange(2, dtype=np.int32), 6)
    for i in range(count):
        chosen = rng.integers(0, 100, 12)
        right = float(rng.random() < 0.5)
        yield Rollout(
            id=str(i),
            group=str(i // 8),
            prompt=(Message("user", f"Question {i // 8}?"),),
            pieces=tuple(words[j] for j in chosen),
            tokens=chosen,
            segment=segment,
            roles=("assistant", "assistant"),
            outcome=right,
            segment_reward=[0.0, right],
            logprob=-rng.random(12, np.float32),
        )


def measure(what: str, path: str, count: int) -> tuple[float, float]:
    """Seconds of a pass, and the largest memory of this process in MiB."""
    started = time.perf_counter()
    if what == "write":
        done = files.write(path, short_rollouts(count))
    elif what == "read":
        done = sum(1 for _ in files.read(path))
    else:
        laid = batches.batches(batches.groups(files.read(path)))
        done = sum(len(group) for batch in laid for group in batch.groups)
    seconds = time.perf_counter() - started
    if done != count:
        raise ValueError(f"{what} {path}: {done} rollouts, wanted {count}")
    return seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def table(sizes: list[int]) -> str:
    """Markdown: a row for each container, size and pass."""
    rows = ["| container | rollouts | file, MB | pass | seconds | rollouts a second | peak memory, MiB |"]
    rows.append("| --- | ---: | ---: | --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        for container in files.CONTAINERS:
            for count in sizes:
                path = pathlib.Path(folder) / f"{count}.{container}"
                for what in PASSES:
                    command = [sys.executable, "-m", "docs.make_rollout_files", f"--one={what},{path},{count}"]
                    done = subprocess.run(command, capture_output=True, text=True, check=True)
                    seconds, peak = map(float, done.stdout.split())
                    size = path.stat().st_size / 1e6
                    rows.append(
                        f"| {container} | {count:,} | {size:,.1f} | {what} | {seconds:,.1f} | {count / seconds:,.0f} | "
                        f"{peak:,.0f} |"
                    )
                    print(rows[-1], flush=True)
                path.unlink()
    return "\n".join(rows)


def main(argv: list[str]) -> None:
    """Measures and writes the table into the page, or measures one pass."""
    if len(argv) > 1:
        raise app.UsageError(f"found {' '.join(argv[1:])}, wanted flags alone")
    if _ONE.value:
        what, path, count = _ONE.value
        print(*measure(what, path, int(count)))
        return
    splice(PAGE, "measured", table([int(size) for size in _SIZES.value]))


if __name__ == "__main__":
    app.run(main)
