"""A sweep from what its directory holds to the last trial: start, watch, try again, stop."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
import contextlib
import signal
import threading
import time
from typing import Protocol

from creditjax.sweeps.backend import Backend, Job
from creditjax.sweeps.store import Store
from creditjax.sweeps.trials import Trial

# From a trial to the program, and its arguments, that runs it.
Command = Callable[[Trial], Sequence[str]]

FINISHED, FAILED, RUNNING, WAITING = "finished", "failed", "running", "waiting"

# Exit codes of a process that was told to end: 128 + SIGTERM of one that saved first, and the signals themselves.
_TOLD = (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL, -signal.SIGINT)


class View(Protocol):
    """Who is told what happens."""

    def say(self, text: str) -> None:
        """Something happened that is worth a line."""

    def show(self, states: dict[str, str], force: bool = False) -> None:
        """The state of every trial, by id; called often."""


class Stop:
    """How often the sweep was told to stop: once, running trials save and end; twice, they are ended."""

    def __init__(self):
        self.times = 0

    @contextlib.contextmanager
    def on_signals(self) -> Iterator["Stop"]:
        """SIGINT, SIGTERM and SIGHUP tell it; in the main thread only."""
        names = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is not threading.main_thread():
            yield self
            return
        before = [signal.signal(name, self._tell) for name in names]
        try:
            yield self
        finally:
            for name, handler in zip(names, before, strict=True):
                signal.signal(name, handler)

    def _tell(self, *unused) -> None:
        self.times += 1


def state(store: Store, trial: Trial, retries: int) -> str:
    """What a trial's directory says of it while nobody runs it: FINISHED, FAILED or WAITING."""
    if store.result(trial) is not None:
        return FINISHED
    return FAILED if store.failures(trial) > retries else WAITING


def run(
    trials: Sequence[Trial],
    store: Store,
    backend: Backend,
    command: Command,
    view: View,
    retries: int = 1,
    stop: Stop | None = None,
    interval: float = 0.2,
) -> dict[str, str]:
    """Runs whatever is not finished.

    A trial that ends with a code other than 0 is started again, up to `retries` times over all calls; it resumes from
    its own checkpoint.

    Args:
      trials: those to run.
      store: the sweep's directory, which nobody else may use meanwhile.
      backend: where they run.
      command: what runs one.
      view: who is told.
      retries: attempts after the first failed one.
      stop: whom to ask whether to stop.
      interval: seconds between two looks.

    Returns:
      The state of every trial, by id.
    """
    return _Sweep(trials, store, backend, command, view, retries, stop or Stop()).run(interval)


class _Sweep:
    """One call of :func:`run`."""

    def __init__(self, trials, store: Store, backend: Backend, command: Command, view: View, retries: int, stop: Stop):
        self.trials = {trial.id: trial for trial in trials}
        self.store, self.backend, self.command, self.view = store, backend, command, view
        self.retries, self.stop = retries, stop
        self.states = {trial.id: state(store, trial, retries) for trial in trials}
        self.waiting = deque(trial for trial in trials if self.states[trial.id] == WAITING)
        self.told = 0

    def run(self, interval: float) -> dict[str, str]:
        """Until nothing runs and nothing is left, or it was told to stop and nothing runs."""
        self._adopt()
        while True:
            for id, code in self.backend.poll().items():
                self._ended(self.trials[id], code)
            self._pass_on_stop()
            while not self.told and self.waiting and self._running() < self.backend.capacity:
                self._start(self.waiting.popleft())
            self.view.show(self.states)
            if not self._running() and (self.told or not self.waiting):
                self.view.show(self.states, force=True)
                return self.states
            time.sleep(interval)

    def _running(self) -> int:
        return sum(state == RUNNING for state in self.states.values())

    def _job(self, trial: Trial) -> Job:
        directory = self.store.directory(trial)
        directory.mkdir(parents=True, exist_ok=True)
        return Job(trial.id, tuple(self.command(trial)), directory)

    def _adopt(self) -> None:
        for trial in [trial for trial in self.waiting if self._adopted(trial)]:
            self.waiting.remove(trial)

    def _adopted(self, trial: Trial) -> bool:
        if not self.backend.adopt(self._job(trial)):
            return False
        self.states[trial.id] = RUNNING
        self.view.say(f"still running  {_name(trial)}: its process is left from before, waited for")
        return True

    def _start(self, trial: Trial) -> None:
        # Somebody may have started it by hand meanwhile.
        if self._adopted(trial):
            return
        job = self._job(trial)
        self.store.started(trial, job.command)
        self.backend.submit(job)
        self.states[trial.id] = RUNNING
        self.view.say(f"started        {_name(trial)}")

    def _ended(self, trial: Trial, code: int | None) -> None:
        if self.store.result(trial) is not None:
            self.states[trial.id] = FINISHED
            self.store.ended(trial, FINISHED, code)
            self.view.say(f"finished       {_name(trial)}")
        elif code is None or (self.told and code in _TOLD):
            self.states[trial.id] = WAITING
            self.store.ended(trial, "stopped", code)
            # It goes on with what it has before others begin.
            self.waiting.appendleft(trial)
            self.view.say(f"stopped        {_name(trial)}")
        else:
            self.store.ended(trial, FAILED, code)
            why = f"exit code {code}: {self.store.last_line(trial)}" if code else "it ended without a result"
            if self.store.failures(trial) <= self.retries:
                self.states[trial.id] = WAITING
                self.waiting.append(trial)
                self.view.say(f"to be retried  {_name(trial)}: {why}")
            else:
                self.states[trial.id] = FAILED
                self.view.say(f"failed         {_name(trial)}: {why}")

    def _pass_on_stop(self) -> None:
        if self.told >= min(self.stop.times, 2):
            return
        self.told = min(self.stop.times, 2)
        force = self.told == 2
        running = [self.trials[id] for id, state in self.states.items() if state == RUNNING]
        if running:
            how = "ending" if force else "stopping; once more to end them without saving:"
            self.view.say(f"{how} {len(running)} running trials")
        for trial in running:
            if not self.backend.cancel(trial.id, force):
                self.view.say(f"not reached    {_name(trial)}: waited for")


def _name(trial: Trial) -> str:
    return f"{trial.number} {trial.id}  {trial.shown}"
