"""Sweeps on a Ray cluster of several nodes in this machine, one of which is killed."""

import contextlib
import io
import os
import pathlib
import sys
import time

import psutil
import pytest
from sweep_cases import TRAINER, results, sweep, trials

import creditjax
from creditjax.sweeps.backend import Job

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")
from creditjax.sweeps.ray import Ray

LIMIT = 90.0


@pytest.fixture(scope="module")
def cluster():
    """A head without room, and two nodes for a trial each; whatever a test kills it puts back."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(pathlib.Path(creditjax.__file__).parents[1]))
        # A node is known to be gone after seconds.
        head = {"num_cpus": 0, "include_dashboard": False, "_system_config": {"health_check_period_ms": 500}}
        made = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        made.nodes = [made.add_node(num_cpus=1, resources={"room": 1}) for _ in range(2)]
        yield made
        ray.shutdown()
        made.shutdown()


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What local processes come to."""
    root = tmp_path_factory.mktemp("unbroken")
    sweep(root, trials(12), parallel=3)
    return results(root)


def wait_for(what):
    end = time.monotonic() + LIMIT
    while not (found := what()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def job(root, *more):
    directory = root / "trial"
    directory.mkdir(exist_ok=True)
    return Job("trial", (sys.executable, "-I", str(TRAINER), str(directory), *more), directory)


def test_a_sweep_goes_on_when_a_node_dies(cluster, tmp_path, unbroken):
    stream = io.StringIO()

    class Watched(Ray):
        def poll(self):
            # As soon as a trial has saved something, the node of one goes, with all its processes.
            if len(cluster.nodes) == 2 and list(tmp_path.glob("trials/*/state.json")):
                kill(cluster, cluster.nodes.pop())
            return super().poll()

    backend = Watched(2, {"CPU": 1}, cluster.address)
    try:
        states = sweep(tmp_path, trials(12), "--delay=0.05", backend=backend, stream=stream)
    finally:
        cluster.nodes += [cluster.add_node(num_cpus=1, resources={"room": 1}) for _ in range(2 - len(cluster.nodes))]
    assert set(states.values()) == {"finished"} and "stopped" in stream.getvalue()
    assert results(tmp_path) == unbroken and len(results(tmp_path).splitlines()) == 12
    assert not list(tmp_path.glob("trials/*/wrong"))
    assert not ray.util.list_named_actors(all_namespaces=True)


def kill(cluster, node):
    raylet = psutil.Process(node.all_processes["raylet"][0].process.pid)
    for process in [raylet, *raylet.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    cluster.remove_node(node, allow_graceful=False)


def test_trials_of_a_killed_sweep_are_taken_over(cluster, tmp_path):
    one = job(tmp_path, "--delay=0.2")
    first, second = Ray(1, {"room": 1}, cluster.address), Ray(1, {"room": 1}, cluster.address)
    assert not first.adopt(one)
    first.submit(one)
    wait_for(lambda: (one.directory / "metrics.jsonl").exists())
    assert second.adopt(one)
    assert wait_for(second.poll) == {"trial": 0}
    assert (one.directory / "log.txt").read_text().count("at step") == 1
    assert wait_for(first.poll)["trial"] in (0, None)


def test_a_told_trial_saves_and_one_without_room_is_taken_back(cluster, tmp_path):
    backend = Ray(3, {"room": 1}, cluster.address)
    jobs = []
    for name in "abc":
        (tmp_path / name).mkdir()
        jobs.append(job(tmp_path / name, "--delay=2")._replace(id=name))
        backend.submit(jobs[-1])
    wait_for(lambda: len(list(tmp_path.glob("*/trial/metrics.jsonl"))) == 2)
    assert all(backend.cancel(name) for name in "abc")
    ended = {}
    wait_for(lambda: ended.update(backend.poll()) or len(ended) == 3)
    assert sorted(ended.values(), key=str) == [143, 143, None]
    assert len(list(tmp_path.glob("*/trial/state.json"))) == 2


def test_a_deaf_trial_is_ended_and_a_failure_has_its_code(cluster, tmp_path):
    backend, one = Ray(1, {"room": 1}, cluster.address), job(tmp_path, "--deaf", "--delay=30")
    backend.submit(one)
    wait_for(lambda: (one.directory / "alone").exists())
    assert backend.cancel("trial", force=True)
    assert wait_for(backend.poll) == {"trial": -9}
    backend.submit(one._replace(command=(sys.executable, "-c", "import os; print(os.getcwd()); raise SystemExit(5)")))
    assert wait_for(backend.poll) == {"trial": 5}
    # Trials start where the sweep was started.
    assert (one.directory / "log.txt").read_text().splitlines()[-1] == os.getcwd()


def test_what_cannot_be_is_said(cluster):
    with pytest.raises(ValueError, match="resources: TPU=4, but no node of the cluster has more than 0"):
        Ray(1, {"TPU": 4}, cluster.address)
    with pytest.raises(ValueError, match="resources: CPU=0, wanted a number above 0"):
        Ray(1, {"CPU": 0}, cluster.address)
    with pytest.raises(ValueError, match="parallel: 0, wanted at least 1"):
        Ray(0)
