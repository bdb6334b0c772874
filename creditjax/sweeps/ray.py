"""Trials on a Ray cluster: an actor for each, on whatever node has the resources. Needs the extra `[ray]`.

All nodes see the sweep's directory and this working directory under the same paths, and have the same Python. An actor
does on its node what :class:`~creditjax.sweeps.local.Local` does here, so the lock on a trial's directory keeps a
second process out even where Ray takes a node for dead that is not.

Actors are detached: they outlive a sweep that is killed, and the next one finds them by name.
"""

from collections.abc import Mapping
from concurrent.futures import Future
import contextlib
import logging
import os
import threading
import time
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError

from creditjax.sweeps.backend import Job
from creditjax.sweeps.local import Local

_NAMESPACE = "creditjax"
# What the sweep's own environment says of how programs run, and a node's does not.
_PASSED_ON = ("JAX_", "XLA_", "LIBTPU_", "PYTHON", "TF_")
# Seconds for which an actor whose process ended waits to be asked for the exit code; then it frees its resources.
_LINGER = 600.0
# Seconds between two looks of an actor at its process.
_INTERVAL = 0.1


class Ray:
    """A :class:`~creditjax.sweeps.backend.Backend` of actors."""

    def __init__(self, parallel: int = 1, resources: Mapping[str, float] | None = None, address: str | None = None):
        """Connects to a cluster.

        Args:
          parallel: trials at a time. Those for which no node has room yet wait their turn in Ray.
          resources: of a trial: ``CPU``, ``GPU``, ``TPU`` (chips of one host) or the cluster's own names; 1 CPU if
            nothing is said.
          address: of the cluster, as ``ray.init`` takes it. By default the one that RAY_ADDRESS names or this machine
            belongs to, else one is started on this machine.

        Raises:
          ValueError: `parallel` below 1; a resource that is not positive, or that no node has as much of.
          ConnectionError: there is no cluster at the address.
        """
        if parallel < 1:
            raise ValueError(f"parallel: {parallel}, wanted at least 1")
        self._resources = dict(resources or {"CPU": 1.0})
        for name, amount in self._resources.items():
            if not amount > 0:
                raise ValueError(f"resources: {name}={amount:g}, wanted a number above 0")
        if not ray.is_initialized():
            ray.init(address=address, namespace=_NAMESPACE, log_to_driver=False, logging_level=logging.WARNING)
        _check_room(self._resources)
        self._capacity = parallel
        self._environment = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
        self._running: dict[str, _Remote] = {}

    @property
    def capacity(self) -> int:
        """Trials at a time."""
        return self._capacity

    def adopt(self, job: Job) -> bool:
        """Takes over an actor that an earlier sweep left running."""
        try:
            actor = ray.get_actor(_name(job), namespace=_NAMESPACE)
        except ValueError:
            return False
        self._running[job.id] = _Remote(actor, job)
        return True

    def submit(self, job: Job) -> None:
        """Asks for an actor; its process starts when a node has room."""
        own = dict(self._resources)
        actor = ray.remote(_Place).options(
            name=_name(job),
            namespace=_NAMESPACE,
            lifetime="detached",
            num_cpus=own.pop("CPU", 0),
            num_gpus=own.pop("GPU", 0),
            resources=own,
            # One thread waits for the process, the others answer.
            max_concurrency=4,
            max_restarts=0,
        )
        self._running[job.id] = _Remote(actor.remote(os.getcwd(), self._environment), job)

    def poll(self) -> dict[str, int | None]:
        """The trials that ended, with their exit codes; None for one whose node or actor is gone."""
        ended = {id: remote.code() for id, remote in self._running.items() if remote.has_ended()}
        for id in ended:
            self._running.pop(id).release()
        return ended

    def cancel(self, id: str, force: bool = False) -> bool:
        """SIGTERM to the process, or SIGKILL; an actor that waits for room is taken back."""
        return self._running[id].cancel(force)


class _Remote:
    """A trial's actor, seen from the sweep."""

    def __init__(self, actor: Any, job: Job):
        self._actor, self._id = actor, job.id
        self._placed = actor.ready.remote()
        self._code = actor.run.remote(job)

    def has_ended(self) -> bool:
        """Whether the process ended, or nobody can say any more."""
        return bool(ray.wait([self._code], timeout=0)[0])

    def code(self) -> int | None:
        """The exit code of a process that ended, None if nobody knows it."""
        try:
            return ray.get(self._code)
        except RayActorError:
            return None

    def cancel(self, force: bool) -> bool:
        if not ray.wait([self._placed], timeout=0)[0]:
            ray.kill(self._actor)
            return True
        try:
            return ray.get(self._actor.cancel.remote(self._id, force), timeout=30)
        except RayError:
            # The node is gone or silent. With `force` nobody waits for it, and the lock keeps others out.
            if force:
                ray.kill(self._actor)
            return force

    def release(self) -> None:
        """Frees the actor's name and resources."""
        with contextlib.suppress(RayError):
            ray.kill(self._actor)


class _Place:
    """The actor: one trial on its node."""

    def __init__(self, directory: str, environment: Mapping[str, str]):
        # The trainer is started as a module of this directory.
        os.chdir(directory)
        # Ray has set here which accelerators the actor may use.
        self._local = Local(1, {**os.environ, **environment})
        self._lock = threading.Lock()
        self._code: Future[int | None] | None = None

    def ready(self) -> bool:
        """Answers when there is an actor."""
        return True

    def run(self, job: Job) -> int | None:
        """Starts the job unless it runs already, and waits for its end."""
        with self._lock:
            if self._code is None:
                # A process of this trial that is left on another node holds the lock, and is waited for.
                if not self._local.adopt(job):
                    self._local.submit(job)
                self._code = Future()
                threading.Thread(target=self._watch, args=(self._code,), daemon=True).start()
        return self._code.result()

    def cancel(self, id: str, force: bool) -> bool:
        """Tells the process to end; False if it cannot be told."""
        with self._lock:
            if self._code is None or self._code.done():
                return True
            return self._local.cancel(id, force)

    def _watch(self, code: Future[int | None]) -> None:
        while not code.done():
            time.sleep(_INTERVAL)
            with self._lock:
                for ended in self._local.poll().values():
                    code.set_result(ended)
        time.sleep(_LINGER)
        os._exit(0)


def _name(job: Job) -> str:
    return str(job.directory.resolve())


def _check_room(resources: Mapping[str, float]) -> None:
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    for name, amount in resources.items():
        if (most := max((node.get(name, 0.0) for node in nodes), default=0.0)) < amount:
            raise ValueError(f"resources: {name}={amount:g}, but no node of the cluster has more than {most:g}")
