"""Whole runs: what they write, and that no interruption changes a number."""

import io
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import chex
from environment import with_devices
import jax
import numpy as np
import pytest
from training_cases import catch_config, last_state, rows

from creditjax import training
from creditjax.training import loop

ROOT = pathlib.Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    """A run of six steps that nothing disturbed."""
    workdir = tmp_path_factory.mktemp("unbroken")
    stream = io.StringIO()
    result = training.train(catch_config(), workdir, stream)
    return workdir, result, stream.getvalue()


def test_a_run_writes_what_it_promises(unbroken):
    workdir, result, said = unbroken
    assert result.finished and result.step == 6
    config = json.loads((workdir / "config.json").read_text())
    assert config["config"]["recipe"] == {"name": "grpo"}
    assert config["config"]["optimizer"]["name"] == "adamw"
    assert {"jax", "creditjax", "python"} <= set(config["versions"])
    assert config["devices"]["count"] == 8
    assert [row["step"] for row in rows(workdir)] == [0, 1, 2, 3, 4, 5, 6]
    wanted = {
        "reward", "credit_mean", "credit_std", "credit_zero_fraction", "zero_variance_groups", "entropy",
        "kl_behaviour", "clip_fraction", "response_length", "loss", "gradient_norm", "dropped_groups",
    }  # fmt: skip
    assert wanted <= set(rows(workdir)[1])
    assert [row["step"] for row in rows(workdir) if "eval/success" in row] == [0, 4, 6]
    assert "tokens_per_second" in result.metrics
    rollouts = json.loads((workdir / "rollouts.json").read_text())
    assert len(rollouts) == 8
    assert all(len(r["tokens"]) == len(r["credit"]) == len(r["action"]) == 9 for r in rollouts)
    assert any(any(c != 0 for c in r["credit"]) for r in rollouts)
    assert "<html" in (workdir / "report.html").read_text()
    assert "step 6/6" in said and "report.html" in said


def test_the_same_command_again_says_that_the_run_is_finished(unbroken):
    workdir, result, _ = unbroken
    before = (workdir / "metrics.jsonl").read_bytes()
    stream = io.StringIO()
    again = training.train(catch_config(), workdir, stream)
    assert again.finished and again.step == 6
    assert "this run is finished, 6 steps" in stream.getvalue()
    assert (workdir / "metrics.jsonl").read_bytes() == before


def test_a_directory_of_another_config_is_refused_and_a_longer_run_goes_on(unbroken, tmp_path):
    workdir, _, _ = unbroken
    with pytest.raises(training.ConfigError, match=r"another config; .*seed: 0 -> 1"):
        training.train(catch_config(seed=1), workdir)


class Killed(Exception):
    """Stands for a kill inside the process."""


@pytest.mark.parametrize("when", [2, 3, 5], ids=lambda n: f"after_step_{n}")
def test_resuming_gives_the_numbers_of_an_unbroken_run(unbroken, tmp_path, monkeypatch, when):
    # Checkpoints lie after steps 2, 4, 6: step 2 resumes on the boundary, 3 and 5 replay a step.
    from creditjax.training import loop

    advance = loop._Run._next

    def next_or_die(self, state):
        if self.step == when:
            self.checkpoints.wait()
            raise Killed
        return advance(self, state)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "_next", next_or_die)
        with pytest.raises(Killed):
            training.train(catch_config(), tmp_path, io.StringIO())
    (tmp_path / "metrics.jsonl").open("a").write('{"step": 99, "half')
    stream = io.StringIO()
    training.train(catch_config(), tmp_path, stream)
    assert f"resuming after step {when // 2 * 2}" in stream.getvalue()
    assert rows(tmp_path) == rows(unbroken[0])
    assert_same_state(tmp_path, unbroken[0])


def assert_same_state(left, right):
    """The last checkpoints of two runs hold the same bits."""
    left, right = last_state(left), last_state(right)
    assert len(jax.tree.leaves(left)) > 10
    chex.assert_trees_all_equal(left, right)


def test_a_fault_stops_with_a_checkpoint_or_is_dropped_and_counted(tmp_path, monkeypatch):
    from creditjax.training import loop

    collect = loop.Programs.collect

    def poisoned(self, state, start, key):
        batch, used = collect(self, state, start, key)
        if start == 3 * 16:  # the fourth step
            reward = np.array(batch.reward)
            reward[5, 1, 0] = np.nan
            batch = batch.replace(reward=reward)
        return batch, used

    monkeypatch.setattr(loop.Programs, "collect", poisoned)
    with pytest.raises(training.FaultyBatch, match=r"step 4: faults in the groups \[5\]: .*reward"):
        training.train(catch_config(), tmp_path / "stop", io.StringIO())
    assert (tmp_path / "stop" / "checkpoints" / "last" / "3").is_dir()
    training.train(catch_config(on_fault="drop"), tmp_path / "stop", io.StringIO())
    dropped = {row["step"]: row["dropped_groups"] for row in rows(tmp_path / "stop") if row["step"]}
    assert dropped == {1: 0, 2: 0, 3: 0, 4: 1, 5: 0, 6: 0}


SCRIPT = """
import sys
sys.path.insert(0, {here!r})
from training_cases import catch_config
from creditjax import training
result = training.train(catch_config(steps={steps}, checkpoint__every=1), {workdir!r})
sys.exit(0 if result.finished else 143)
"""


def start(workdir, steps):
    script = SCRIPT.format(here=str(pathlib.Path(__file__).parent), workdir=str(workdir), steps=steps)
    return subprocess.Popen(
        [sys.executable, "-c", script], cwd=ROOT, env=with_devices(1), stderr=subprocess.PIPE, text=True
    )


def wait_for_rows(process, workdir, count):
    deadline = time.monotonic() + 300
    path = workdir / "metrics.jsonl"
    while not path.exists() or path.read_text().count("\n") < count:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_kill_dash_nine_and_sigterm_change_nothing(tmp_path):
    steps, straight, broken = 24, tmp_path / "straight", tmp_path / "broken"
    assert start(straight, steps).wait(300) == 0
    for sign, code, count in ((signal.SIGKILL, -9, 4), (signal.SIGTERM, 143, 10)):
        process = start(broken, steps)
        wait_for_rows(process, broken, count)
        process.send_signal(sign)
        assert process.wait(300) == code, process.stderr.read()
    last = json.loads((broken / "metrics.jsonl").read_text().splitlines()[-1])["step"]
    assert 9 <= last < steps
    assert str(last) in os.listdir(broken / "checkpoints" / "last")  # SIGTERM saved where it stopped
    assert start(broken, steps).wait(300) == 0
    assert rows(broken) == rows(straight)
    assert_same_state(broken, straight)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("RESOURCE_EXHAUSTED: out of memory", jax.errors.JaxRuntimeError),
        ("UNKNOWN: Gloo all-reduce failed: connection closed by peer", training.LostProcess),
    ],
)
def test_only_a_failed_exchange_says_that_another_process_is_gone(tmp_path, monkeypatch, said, kind):
    def fail(self, state):
        monkeypatch.setattr(self.checkpoints, "close", lambda: None)  # would wait for a process that never was
        monkeypatch.setattr(jax, "process_count", lambda: 2)
        raise jax.errors.JaxRuntimeError(said)

    monkeypatch.setattr(loop._Run, "_train", fail)
    with pytest.raises(kind, match=said.split(":")[0]):
        training.train(catch_config(), tmp_path)
