"""Sweeps through submitit, on commands that stand for Slurm's and really run what is submitted."""

import importlib.util
import io
import json
import pathlib
import stat
import sys
import time

import pytest
from sweep_cases import TRAINER, results, sweep, trials

from creditjax.sweeps.backend import Job

pytest.importorskip("submitit")
from creditjax.sweeps import slurm

FAKE = pathlib.Path(__file__).with_name("fake_slurm.py")
LIMIT = 60.0


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """The directory of the cluster's jobs; its commands come first on the path."""
    commands, jobs = tmp_path / "bin", tmp_path / "jobs"
    commands.mkdir()
    jobs.mkdir()
    for name in ("sbatch", "srun", "sacct", "scancel"):
        # Called by its own name, the file does what is asked of that name.
        path = commands / name
        path.write_text(f'#!/bin/sh\nexec {sys.executable} -I {FAKE} {name} "$@"\n')
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("SLURM_FAKE", str(jobs))
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    # Of this library, in the jobs.
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(slurm.__file__).parents[2]))
    fresh = slurm.slurm.SlurmInfoWatcher(delay_s=1)
    monkeypatch.setattr(slurm._SlurmJob, "watcher", fresh)
    # Seconds that submitit gives a file system to show what a job left behind.
    monkeypatch.setattr(slurm._SlurmJob, "_results_timeout_s", 1)
    return jobs


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """What local processes come to."""
    root = tmp_path_factory.mktemp("unbroken")
    sweep(root, trials(3), parallel=3)
    return results(root)


def wait_for(what):
    end = time.monotonic() + LIMIT
    while not (found := what()):
        assert time.monotonic() < end, what
        time.sleep(0.05)
    return found


def kill(job):
    spec = importlib.util.spec_from_file_location("fake_slurm", FAKE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.kill(job)


def test_a_sweep_gives_what_processes_here_give(cluster, tmp_path, unbroken):
    root = tmp_path / "sweep"
    states = sweep(root, trials(3), backend=slurm.Slurm(3, {"partition": "open", "time": 7}))
    assert set(states.values()) == {"finished"} and results(root) == unbroken
    scripts = [path.read_text() for path in cluster.glob("*/script")]
    assert len(scripts) == 3 and all("#SBATCH --partition=open\n" in script for script in scripts)
    assert any("#SBATCH --job-name=fake-s2\n" in script and "#SBATCH --time=7\n" in script for script in scripts)


def test_a_job_whose_node_dies_is_submitted_again_and_resumes(cluster, tmp_path, unbroken):
    root, stream = tmp_path / "sweep", io.StringIO()

    class Dying(slurm.Slurm):
        died = False

        def poll(self):
            workdir = root / "trials/fake-s1"
            if not self.died and (workdir / "state.json").exists():
                (cluster / "1/state").write_text("NODE_FAIL")
                kill(cluster / "1")
                self.died = True
            return super().poll()

    states = sweep(root, trials(3), "--delay=0.3", backend=Dying(1), stream=stream)
    assert set(states.values()) == {"finished"} and results(root) == unbroken
    assert "stopped        1 fake-s1" in stream.getvalue() and len(list(cluster.iterdir())) == 4
    assert "at step 0" not in (root / "trials/fake-s1/log.txt").read_text().splitlines()[-1]


def test_failures_are_counted(cluster, tmp_path):
    states = sweep(tmp_path / "sweep", trials(1), "--failures=3", backend=slurm.Slurm(), retries=1)
    assert states == {"fake-s1": "failed"}
    rows = [json.loads(line) for line in (tmp_path / "sweep/trials/fake-s1/attempts.jsonl").open()]
    assert [row["code"] for row in rows if row["event"] == "failed"] == [3, 3]


def job(root, *more):
    directory = root / "trial"
    directory.mkdir(exist_ok=True)
    return Job("trial", (sys.executable, "-I", str(TRAINER), str(directory), *more), directory)


def test_jobs_in_the_queue_and_running_ones_are_taken_over(cluster, tmp_path):
    (cluster / "hold").touch()
    one = job(tmp_path, "--delay=0.1")
    first, second = slurm.Slurm(), slurm.Slurm()
    assert not first.adopt(one)
    first.submit(one)
    assert second.adopt(one) and second.poll() == {}
    (cluster / "hold").unlink()
    wait_for(lambda: (one.directory / "state.json").exists())
    third = slurm.Slurm()
    assert third.adopt(one)
    assert wait_for(third.poll) == {"trial": 0} and wait_for(second.poll) == {"trial": 0}
    assert not slurm.Slurm().adopt(one)


def test_a_job_that_nobody_knows_does_nothing_when_its_turn_comes(cluster, tmp_path):
    (cluster / "hold").touch()
    one, backend = job(tmp_path), slurm.Slurm()
    backend.submit(one)
    # The sweep was killed before it wrote the number down, and its successor submits again.
    slurm._write(one.directory, {"token": slurm._last_submission(one.directory)["token"]})
    after = slurm.Slurm()
    assert not after.adopt(one)
    after.submit(one)
    (cluster / "hold").unlink()
    assert wait_for(after.poll) == {"trial": 0} and wait_for(backend.poll) == {"trial": None}
    assert (one.directory / "log.txt").read_text().count("at step") == 1


def test_a_told_job_saves_and_a_waiting_one_is_taken_back(cluster, tmp_path):
    one, backend = job(tmp_path, "--delay=0.3"), slurm.Slurm()
    backend.submit(one)
    wait_for(lambda: (one.directory / "metrics.jsonl").exists())
    assert backend.cancel("trial")
    assert wait_for(backend.poll) == {"trial": None}
    assert (one.directory / "state.json").exists() and not (one.directory / "result.json").exists()
    (cluster / "hold").touch()
    backend.submit(one)
    assert backend.cancel("trial") and wait_for(backend.poll) == {"trial": None}


def test_every_task_runs_the_command_and_one_holds_the_lock(cluster, tmp_path):
    directory = tmp_path / "trial"
    directory.mkdir()
    say = "import os; print('rank', os.environ['SLURM_PROCID'], 'of', os.environ['SLURM_NTASKS'])"
    backend = slurm.Slurm(1, {"ntasks_per_node": 2})
    backend.submit(Job("trial", (sys.executable, "-c", say), directory))
    assert wait_for(backend.poll) == {"trial": 0}
    assert (directory / "log.txt").read_text() == "rank 0 of 2\n"
    assert (directory / "process_1/log.txt").read_text() == "rank 1 of 2\n"


def test_what_cannot_be_is_said(cluster, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="options: 'partitoin', did you mean partition"):
        slurm.Slurm(1, {"partitoin": "a"})
    with pytest.raises(OSError, match="invalid partition specified: closed"):
        slurm.Slurm(1, {"partition": "closed"}).submit(job(tmp_path))
    with pytest.raises(ValueError, match="parallel: 0, wanted at least 1"):
        slurm.Slurm(0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RuntimeError, match="no srun on this machine"):
        slurm.Slurm()
