"""One device, eight, several processes, one of them killed: the same losses, the same parameters."""

import os
import pathlib
import re
import socket
import subprocess
import sys
import time

import chex
from environment import with_devices
import numpy as np
import pytest
from training_cases import last_state, rows

HERE = pathlib.Path(__file__).parent
PATIENCE = 60  # seconds in which a process notices that another one is gone: the flag's default


def start(workdir, steps, mesh, devices, address="", processes=1, process=0):
    """One process of a run."""
    command = [sys.executable, "-m", "experiments.train", f"--config={HERE / 'catch.py'}", f"--workdir={workdir}"]
    command += [f"--config.steps={steps}", *(f"--config.mesh.{axis}={n}" for axis, n in mesh.items())]
    if processes > 1:
        command += [f"--coordinator={address}", f"--num_processes={processes}", f"--process_id={process}"]
    env = with_devices(devices) | {"PYTHONPATH": str(HERE)}
    return subprocess.Popen(command, cwd=HERE.parents[1], env=env, stderr=subprocess.PIPE, text=True)


def start_all(workdir, steps, mesh, processes, devices):
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{s.getsockname()[1]}"
    return [start(workdir, steps, mesh, devices, address, processes, process) for process in range(processes)]


def finish(started):
    said = [process.communicate(timeout=400)[1] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)


def steps_of(workdir):
    path = workdir / "metrics.jsonl"
    return len(path.read_text().splitlines()) - 1 if path.exists() else -1


@pytest.mark.timeout(900)
def test_a_run_goes_on_over_other_processes_after_one_was_killed(tmp_path):
    """Two processes of four devices lose one; the run goes on as one process of eight, four of two, and one device."""
    mesh = {"data": 1, "fsdp": 4, "tensor": 2}
    both = start_all(tmp_path / "run", 1000, mesh, 2, 4)
    try:
        while steps_of(tmp_path / "run") < 3:
            assert all(process.poll() is None for process in both), both[0].communicate()[1]
            time.sleep(0.05)
        both[1].kill()
        killed = time.monotonic()
        said = both[0].communicate(timeout=PATIENCE + 30)[1]
        assert time.monotonic() - killed < PATIENCE
    finally:
        for process in both:
            process.kill()
    assert both[0].returncode in (75, -6)  # ours, or JAX's own, whichever is the first to notice
    assert re.search("LostProcess: step .* start all of them again|JAX distributed service detected fatal errors", said)
    there = steps_of(tmp_path / "run")
    finish(start_all(tmp_path / "run", there + 1, mesh, 1, 8))
    finish(start_all(tmp_path / "run", there + 2, {"data": 2, "fsdp": 4}, 4, 2))
    finish(start_all(tmp_path / "run", there + 3, {}, 1, 1))
    finish(start_all(tmp_path / "whole", there + 3, {}, 1, 1))
    found, wanted = rows(tmp_path / "run"), rows(tmp_path / "whole")
    assert [row["step"] for row in found] == [row["step"] for row in wanted] == list(range(there + 4))
    for left, right in zip(found, wanted, strict=True):
        # An evaluation at the end of each part is one that the unbroken run does not have.
        for name in left.keys() & right.keys():
            np.testing.assert_allclose(left[name], right[name], rtol=2e-4, atol=2e-5, err_msg=name)
        assert right.keys() <= left.keys()
    chex.assert_trees_all_close(last_state(tmp_path / "run").params, last_state(tmp_path / "whole").params, atol=2e-5)
    assert os.path.exists(tmp_path / "run" / "report.html")
