"""What runs trials: the jobs that a sweep hands over, and what it asks of whoever takes them."""

import pathlib
from typing import NamedTuple, Protocol


class Job(NamedTuple):
    """A trial to be run.

    Attributes:
      id: of the trial.
      command: the program and its arguments.
      directory: the trial's, which exists; output goes to its `log.txt`.
    """

    id: str
    command: tuple[str, ...]
    directory: pathlib.Path


class Backend(Protocol):
    """A place where jobs run. A job in a directory is alone there, whoever started it."""

    @property
    def capacity(self) -> int:
        """Jobs that run at a time."""

    def adopt(self, job: Job) -> bool:
        """Takes over a job that an earlier sweep, which was killed, left running; False if there is none."""

    def submit(self, job: Job) -> None:
        """Starts a job. Called when fewer than `capacity` run."""

    def poll(self) -> dict[str, int | None]:
        """The jobs that ended since the last call: their exit codes by id, None where nobody knows it."""

    def cancel(self, id: str, force: bool = False) -> bool:
        """Tells a running job to save and end, or with `force` ends it at once; False if it cannot be told."""
