"""Trials as processes of this machine, each alone in its directory and on its share of the cores and accelerators.

A process holds a lock on its trial's directory for as long as it lives, because it inherits the lock from the sweep
that started it. So a sweep that comes after one that was killed finds out which of its trials still run.
"""

from collections.abc import Mapping, Sequence
import contextlib
import fcntl
import os
import pathlib
import signal
import subprocess
from typing import NamedTuple

from creditjax.sweeps.backend import Job

# The process writes its id before it becomes the trainer, so that there is no moment at which it runs and is not known.
_LAUNCH = 'echo $$ >"$0" && exec "$@"'


class Share(NamedTuple):
    """What a process at one place may use.

    Attributes:
      cores: numbers of the CPU cores; empty for any.
      environment: variables that say the same of accelerators.
    """

    cores: tuple[int, ...]
    environment: Mapping[str, str]


def shares(parallel: int, cores: Sequence[int], gpus: Sequence[str]) -> list[Share]:
    """Splits a machine into equal places.

    All get the same number of cores, as results may depend on it. A place has one accelerator or several; where there
    are more places than accelerators, those on one share its memory.

    Args:
      parallel: number of places.
      cores: numbers of the CPU cores; empty where processes cannot be bound to them.
      gpus: names of the accelerators, as CUDA_VISIBLE_DEVICES has them.

    >>> shares(2, range(5), ["0"])[1]
    Share(cores=(2, 3), environment={'CUDA_VISIBLE_DEVICES': '0', 'XLA_PYTHON_CLIENT_MEM_FRACTION': '0.45'})
    """
    made = []
    for place in range(parallel):
        own = len(cores) // parallel
        mine = tuple(cores[place * own : (place + 1) * own] or cores[place % len(cores) :][:1] if cores else ())
        environment = {}
        if per := len(gpus) // parallel:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[place * per : (place + 1) * per])
        elif gpus:
            environment["CUDA_VISIBLE_DEVICES"] = gpus[place % len(gpus)]
            environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{0.9 / -(-parallel // len(gpus)):.3g}"
        made.append(Share(mine, environment))
    return made


def accelerators(environment: Mapping[str, str]) -> list[str]:
    """The NVIDIA accelerators that a process with these variables sees."""
    if environment.get("JAX_PLATFORMS") == "cpu":
        return []
    if (named := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name for name in named.split(",") if name]
    return [str(i) for i, _ in enumerate(pathlib.Path("/proc/driver/nvidia/gpus").glob("*"))]


class Local:
    """A :class:`~creditjax.sweeps.backend.Backend` of processes on this machine."""

    def __init__(self, parallel: int = 1, environment: Mapping[str, str] | None = None):
        """Splits this machine.

        Args:
          parallel: processes at a time.
          environment: of the processes, by default this one's.

        Raises:
          ValueError: `parallel` below 1.
        """
        if parallel < 1:
            raise ValueError(f"parallel: {parallel}, wanted at least 1")
        self._environment = dict(os.environ if environment is None else environment)
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
        self._shares = shares(parallel, cores, accelerators(self._environment))
        self._running: dict[str, _Process] = {}

    @property
    def capacity(self) -> int:
        """Processes at a time."""
        return len(self._shares)

    def adopt(self, job: Job) -> bool:
        """Takes over a process that an earlier sweep left running."""
        if (lock := _lock(job.directory)) is not None:
            os.close(lock)
            return False
        self._running[job.id] = _Process(job, None, None)
        return True

    def submit(self, job: Job) -> None:
        """Starts a process.

        Raises:
          RuntimeError: another one runs in the job's directory.
        """
        lock = _lock(job.directory)
        if lock is None:
            raise RuntimeError(f"{job.directory}: another process runs here")
        taken = {process.place for process in self._running.values()}
        # One that was taken over sits where an earlier sweep put it; the new one goes where nobody is known to be.
        place = next(place for place in range(self.capacity) if place not in taken)
        share = self._shares[place]
        known = job.directory / "pid"
        known.unlink(missing_ok=True)
        try:
            with (job.directory / "log.txt").open("ab") as log, _bound_to(share.cores):
                popen = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, str(known), *job.command],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # Ctrl-C is the sweep's to pass on.
                    start_new_session=True,
                    pass_fds=(lock,),
                    env={**self._environment, **share.environment},
                )
        finally:
            os.close(lock)
        self._running[job.id] = _Process(job, popen, place)

    def poll(self) -> dict[str, int | None]:
        """The processes that ended, with their exit codes: negative for a signal, None for one that was taken over."""
        ended: dict[str, int | None] = {}
        for id, process in self._running.items():
            if process.popen is not None:
                if (code := process.popen.poll()) is not None:
                    # What it may have started shall not hold its directory.
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.killpg(process.popen.pid, signal.SIGKILL)
                    ended[id] = code
            elif (lock := _lock(process.job.directory)) is not None:
                os.close(lock)
                ended[id] = None
        for id in ended:
            del self._running[id]
        return ended

    def cancel(self, id: str, force: bool = False) -> bool:
        """SIGTERM to the process, or SIGKILL to it and all that it started."""
        process = self._running[id]
        pid = process.popen.pid if process.popen is not None else _holder(process.job.directory)
        if pid is None:
            return False
        with contextlib.suppress(ProcessLookupError):
            if force:
                os.killpg(pid, signal.SIGKILL)
            else:
                os.kill(pid, signal.SIGTERM)
        return True


class _Process(NamedTuple):
    """A running job; without `popen` and place if an earlier sweep started it."""

    job: Job
    popen: subprocess.Popen | None
    place: int | None


def _lock(directory: pathlib.Path) -> int | None:
    """The open and locked file of a directory, None if another process has it."""
    file = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        return None
    except BaseException:
        os.close(file)
        raise
    return file


def _holder(directory: pathlib.Path) -> int | None:
    """The process that has a directory's lock, None where that cannot be told."""
    try:
        pid = int((directory / "pid").read_text())
        lock = os.stat(directory / "lock")
        opened = list(pathlib.Path(f"/proc/{pid}/fd").iterdir())
    except (OSError, ValueError):
        return None
    for file in opened:
        # A process id may have gone to another process meanwhile.
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(file), lock):
                return pid
    return None


@contextlib.contextmanager
def _bound_to(cores: Sequence[int]):
    """Processes that are started meanwhile run on these cores alone; this one is there for that moment."""
    if not cores:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
