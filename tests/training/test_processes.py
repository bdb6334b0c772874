"""One device, eight, and two processes of four devices each: the same losses, the same parameters."""

import pathlib
import socket
import subprocess
import sys

import chex
from environment import with_devices
import numpy as np
import pytest
from training_cases import last_state, rows

HERE = pathlib.Path(__file__).parent

# One process of a run: devices, mesh, and where it joins the others.
SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from creditjax.training import mesh
mesh.initialize_distributed({address!r}, {processes}, {process})
from training_cases import catch_config
from creditjax import training
config = catch_config(steps=3, batch__minibatches=2, mesh=dict(data=1, fsdp=1, tensor=1) | {mesh})
print(training.train(config, {workdir!r}).finished)
"""


def start(workdir, mesh, devices, address="", processes=1, process=0):
    script = SCRIPT.format(
        here=str(HERE), address=address, processes=processes, process=process, mesh=mesh, workdir=str(workdir)
    )
    return subprocess.Popen(
        [sys.executable, "-c", script],
        cwd=HERE.parents[1],
        env=with_devices(devices),
        stderr=subprocess.PIPE,
        text=True,
    )


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def finish(*started):
    said = [process.communicate(timeout=400)[1] for process in started]
    assert [process.returncode for process in started] == [0] * len(started), "\n".join(said)


@pytest.fixture(scope="module")
def single(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("single")
    finish(start(workdir, {}, 1))
    return workdir


@pytest.mark.parametrize("mesh", [{"data": 1, "fsdp": 4, "tensor": 2}], ids=str)
def test_two_processes_give_the_losses_and_parameters_of_one_device(single, tmp_path, mesh):
    address = f"127.0.0.1:{free_port()}"
    finish(*(start(tmp_path, mesh, 4, address, 2, process) for process in (0, 1)))
    found, wanted = rows(tmp_path), rows(single)
    assert [row["step"] for row in found] == [row["step"] for row in wanted]
    for left, right in zip(found, wanted, strict=True):
        assert left.keys() == right.keys()
        for name in right:
            np.testing.assert_allclose(left[name], right[name], rtol=2e-4, atol=2e-5, err_msg=name)
    chex.assert_trees_all_close(last_state(tmp_path).params, last_state(single).params, atol=2e-5)
    assert (tmp_path / "report.html").exists()
