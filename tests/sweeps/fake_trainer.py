"""Stands for the trainer: the same files and exit codes in a fraction of a second, without JAX.

    fake_trainer.py WORKDIR --steps=6 --delay=0.02 --start=7 [--failures=2] [--deaf]

It notes whatever must not happen, two processes in one directory or a finished run that is started again, in `wrong`.
"""

import argparse
import fcntl
import json
import os
import pathlib
import signal
import sys
import time


def replace(path, text):
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").replace(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("workdir", type=pathlib.Path)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--delay", type=float, default=0.0)
    parser.add_argument("--start", type=int, default=1)
    parser.add_argument("--failures", type=int, default=0)
    parser.add_argument("--deaf", action="store_true")
    given = parser.parse_args()
    told = []
    signal.signal(signal.SIGTERM, lambda *unused: None if given.deaf else told.append(1))
    alone = os.open(given.workdir / "alone", os.O_RDWR | os.O_CREAT)
    try:
        fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        (given.workdir / "wrong").write_text("two at once")
        sys.exit("another process trains here")
    if (given.workdir / "result.json").exists():
        (given.workdir / "wrong").write_text("run again")
    saved = given.workdir / "state.json"
    step, value = json.loads(saved.read_text()) if saved.exists() else (0, given.start)
    print(f"at step {step} on {sorted(os.sched_getaffinity(0))}", flush=True)
    metrics = given.workdir / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    replace(metrics, "".join(json.dumps(row) + "\n" for row in rows if row["step"] <= step))
    with metrics.open("a") as file:
        while step < given.steps:
            time.sleep(given.delay)
            step, value = step + 1, value * 1103515245 % 2147483647
            # In one piece, so that a kill cuts no line, as the trainer does.
            os.write(file.fileno(), (json.dumps({"step": step, "reward": value / 2147483647}) + "\n").encode())
            failed = given.workdir / "failed"
            times = int(failed.read_text()) if failed.exists() else 0
            if step == 3 and times < given.failures:
                failed.write_text(str(times + 1))
                print("Traceback\nRuntimeError: out of luck\n", flush=True)
                sys.exit(3)
            if step % 2 == 0 or told:
                replace(saved, json.dumps([step, value]))
            if told and step < given.steps:
                sys.exit(128 + signal.SIGTERM)
    replace(given.workdir / "result.json", json.dumps({"step": step, "metrics": {"reward": value / 2147483647}}))


if __name__ == "__main__":
    main()
