"""Sweeps of the trainer's stand-in: as a function, and as a process that tests can kill."""

import multiprocessing
import os
import pathlib
import signal
import sys

from creditjax.sweeps import runner, table
from creditjax.sweeps.local import Local
from creditjax.sweeps.store import Store
from creditjax.sweeps.trials import Trial

TRAINER = pathlib.Path(__file__).with_name("fake_trainer.py")


def trials(count, steps=6):
    config = {"warm_start": {"steps": 0}, "steps": steps, "checkpoint": {"best_metric": "reward"}}
    return [Trial(f"fake-s{n}", n, {"seed": n}, config, (f"--start={n}",)) for n in range(1, count + 1)]


def command(store, *more):
    return lambda trial: [
        sys.executable, "-I", str(TRAINER), str(store.directory(trial)), f"--steps={trial.steps}", *trial.flags, *more
    ]  # fmt: skip


def sweep(root, chosen, *more, parallel=1, retries=1, stop=None, stream=sys.stderr, backend=None):
    """The states at the end; results.jsonl is written."""
    store = Store(root)
    view = table.Table(chosen, store, stream)
    with store.alone():
        backend = backend or Local(parallel)
        states = runner.run(chosen, store, backend, command(store, *more), view, retries, stop, interval=0.02)
        store.write_results(chosen)
    return states


def results(root):
    return (root / "results.jsonl").read_bytes()


def start(root, count, parallel, *more, die_at=0):
    """A sweep in a process of its own; it dies at a line if there is one. `said` reads what it printed."""
    process = _SERVER.Process(target=_main, args=(root, count, parallel, more, die_at))
    process.start()
    return process


def said(root):
    return (root / "said.txt").read_text()


# Importing the library takes seconds: a server does it once and forks.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["creditjax.sweeps.local", "creditjax.sweeps.table"])

# What is written down and started; the rest of a sweep only looks.
_DEEDS = ("submit", "_start", "started", "_record", "_ended", "ended", "_job", "cancel", "replace_text", "_bound_to")


def _main(root, count, parallel, more, die_at):
    left = die_at

    def watch(frame, event, argument):
        nonlocal left
        if frame.f_code.co_name not in _DEEDS or "creditjax" not in frame.f_code.co_filename:
            return None
        left -= event == "line"
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return watch

    with runner.Stop().on_signals() as told, (root / "said.txt").open("w", buffering=1) as stream:
        if die_at:
            sys.settrace(watch)
        found = sweep(root, trials(count), *more, parallel=parallel, stop=told, stream=stream)
        sys.settrace(None)
        print(table.counts(found), file=stream)
