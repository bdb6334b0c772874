"""Trials as jobs of a Slurm cluster, submitted by submitit. Needs the extra `[slurm]`.

All nodes see the sweep's directory and this working directory under the same paths, and have the same Python. A job
with several tasks starts the trainer once in each; with --coordinator=auto they find each other through Slurm. What
the first task does on its node is what :class:`~creditjax.sweeps.local.Local` does here, with the same lock.

A job that Slurm ends, at its time limit or to make room, lets the trainer save and is submitted again.
"""

from collections.abc import Mapping
import json
import os
import pathlib
import signal
import subprocess
import time
from typing import Any, cast
import uuid

from submitit.core.utils import FailedJobError, FailedSubmissionError, UncompletedJobError
from submitit.slurm import slurm

from creditjax.naming import nearest
from creditjax.sweeps.backend import Job
from creditjax.sweeps.local import Local
from creditjax.training.metrics import replace_text

# Seconds between two looks of a task at its process.
_INTERVAL = 0.2
# Of a trial's directory: the last submission. Below: what submitit writes.
_FILE, _FOLDER = "slurm.json", "slurm"
# Slurm sends the second one before a time limit.
_NOTICES = (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
# How a process ends that was told to, having saved or not.
_TOLD = (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGUSR2)


class _SlurmJob(slurm.SlurmJob):
    # A job that ended without a word is found by asking Slurm, at least so often (seconds).
    watcher = slurm.SlurmInfoWatcher(delay_s=60)


class _Executor(slurm.SlurmExecutor):
    job_class = _SlurmJob


class Slurm:
    """A :class:`~creditjax.sweeps.backend.Backend` of jobs."""

    def __init__(self, parallel: int = 1, parameters: Mapping[str, Any] | None = None):
        """Checks the parameters; asks nothing of the cluster.

        Args:
          parallel: jobs at a time, those that wait in the queue included.
          parameters: of each job, by the names of sbatch's options with underscores: ``time`` (minutes), ``partition``,
            ``nodes``, ``ntasks_per_node``, ``cpus_per_task``, ``gpus_per_node``, ``mem``, ``account``, ``qos``, …

        Raises:
          ValueError: `parallel` below 1, or a parameter that there is not.
          RuntimeError: there is no Slurm on this machine.
        """
        if parallel < 1:
            raise ValueError(f"parallel: {parallel}, wanted at least 1")
        known = _Executor._valid_parameters()
        for name in parameters or {}:
            if name not in known:
                raise ValueError(f"options: {name!r}, {nearest(name, known)}")
        if _Executor.affinity() < 0:
            raise RuntimeError("there is no srun on this machine, wanted a node of a Slurm cluster")
        self._parameters = dict(parameters or {})
        self._capacity = parallel
        self._running: dict[str, _SlurmJob] = {}

    @property
    def capacity(self) -> int:
        """Jobs at a time."""
        return self._capacity

    def adopt(self, job: Job) -> bool:
        """Takes over a job that an earlier sweep left in the queue or running."""
        if (known := _last_submission(job.directory)) is None or "id" not in known:
            return False
        left = _SlurmJob(job.directory / _FOLDER, known["id"], range(known["tasks"]))
        if left.done(force_check=True):
            return False
        self._running[job.id] = left
        return True

    def submit(self, job: Job) -> None:
        """Puts a job into the queue.

        Raises:
          OSError: sbatch refused it, with what it said.
        """
        executor = _Executor(job.directory / _FOLDER)
        executor.update_parameters(**{"job_name": job.id, **self._parameters})
        # A job that nobody knows, because a sweep was killed before it wrote the number down, finds another name here
        # when its turn comes, and does nothing.
        token = uuid.uuid4().hex
        _write(job.directory, {"token": token})
        try:
            submitted = cast(_SlurmJob, executor.submit(_run, job, token, os.getcwd()))
        except (FailedSubmissionError, FailedJobError) as error:
            raise OSError(f"sbatch: {error}") from error
        _write(job.directory, {"token": token, "id": submitted.job_id, "tasks": submitted.num_tasks})
        self._running[job.id] = submitted

    def poll(self) -> dict[str, int | None]:
        """The jobs that ended: the exit code of their first task that has one, None where Slurm ended them."""
        ended = {id: _code(job) for id, job in self._running.items() if job.done()}
        for id in ended:
            del self._running[id]
        return ended

    def cancel(self, id: str, force: bool = False) -> bool:
        """SIGTERM to the trainer; a job that still waits, or with `force` any, is taken out of the queue."""
        job = self._running[id]
        waits = job.get_info().get("State", "UNKNOWN") in ("PENDING", "REQUEUED", "UNKNOWN")
        how = [] if force or waits else ["--signal=TERM"]
        return subprocess.run(["scancel", *how, job.job_id], check=False).returncode == 0


def _code(job: _SlurmJob) -> int | None:
    tasks = [job] if job.num_tasks == 1 else [job.task(i) for i in range(job.num_tasks)]
    try:
        codes = [task.result() for task in tasks]
    except FailedJobError:
        return 1
    except UncompletedJobError:
        # Slurm counts a program that it ended for want of memory, or that could not be started, as failed.
        return 1 if job.state.startswith(("FAILED", "OUT_OF_MEM", "BOOT_FAIL", "COMPLETED")) else None
    wrong = [code for code in codes if code not in (0, None, *_TOLD)]
    if wrong:
        return wrong[0]
    return None if any(code in (None, *_TOLD) for code in codes) else 0


def _run(job: Job, token: str, directory: str) -> int | None:
    """One task of a job: the exit code of its process, None if it was not to run."""
    known = _last_submission(job.directory)
    if known is None or known["token"] != token:
        return None
    told: list[int] = []
    for notice in _NOTICES:
        signal.signal(notice, lambda number, frame: told.append(number))
    # The trainer is started as a module of this directory.
    os.chdir(directory)
    if rank := int(os.environ.get("SLURM_PROCID", 0)):
        # The first task holds the lock of the trial for all of them.
        job = job._replace(directory=job.directory / f"process_{rank}")
        job.directory.mkdir(exist_ok=True)
    local = Local()
    # A process of this trial that is left from another job holds the lock, and is waited for.
    if not local.adopt(job):
        local.submit(job)
    while not (ended := local.poll()):
        if told:
            local.cancel(job.id)
            told.clear()
        time.sleep(_INTERVAL)
    return ended[job.id]


def _last_submission(directory: pathlib.Path) -> dict[str, Any] | None:
    try:
        return json.loads((directory / _FILE).read_text())
    except FileNotFoundError:
        return None


def _write(directory: pathlib.Path, submission: Mapping[str, Any]) -> None:
    replace_text(directory / _FILE, json.dumps(submission) + "\n")
