"""The entry point of sweeps: its flags, what it prints, and a sweep of the real trainer that is killed and resumed."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import chex
from environment import with_devices
import pytest
from training.training_cases import last_state

from creditjax import training
from creditjax.sweeps import local, runner
from creditjax.sweeps import trials as trials_lib
from creditjax.sweeps.store import Store
from experiments import command_line
from experiments import sweep as entry

ROOT = pathlib.Path(__file__).parents[2]
FILE = "configs/chain.py:runlocal"
SHARED = [f"--config={FILE}", "--config.checkpoint.every=1"]


def command(*arguments):
    return [sys.executable, "-m", "experiments.sweep", *arguments]


def run(*arguments):
    return subprocess.run(
        command(*arguments), cwd=ROOT, env=with_devices(1), capture_output=True, text=True, timeout=500
    )


@pytest.fixture(scope="module")
def trials():
    """The trials of the chain's sweep, resolved as the command does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        hypers = entry.describe(FILE)
        return trials_lib.resolve(hypers, lambda own: command_line.parse_config([*SHARED, *own]))


def test_help_explains_itself():
    said = run("--help").stdout
    for word in ("--only", "--dry_run", "--parallel", "--retries", "--sweep_dir", "--backend", "Ctrl-C", "get_hyper"):
        assert word in said


def test_a_sweep_of_the_trainer_that_is_killed_ends_as_runs_that_were_not(tmp_path, trials, monkeypatch):
    root, chosen = tmp_path / "sweep", [trials[0], trials[6]]
    arguments = [*SHARED, f"--sweep_dir={root}", "--only=1,7", "--retries=0"]
    workdir = root / "trials" / chosen[0].id
    process = subprocess.Popen(command(*arguments), cwd=ROOT, env=with_devices(1), stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 300
    # The trial has a checkpoint and is not at its end.
    while not (workdir / "checkpoints/last/1").exists():
        assert time.monotonic() < end and process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    process.wait()
    if (pid := local._holder(workdir)) is not None:
        os.killpg(pid, signal.SIGKILL)
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    assert "2 of 2 finished" in done.stdout and "recipe.lam=0.8 seed=1" in done.stdout
    rows = [json.loads(line) for line in (root / "results.jsonl").read_text().splitlines()]
    assert [(row["id"], row["overrides"]) for row in rows] == [(t.id, t.overrides) for t in chosen]
    assert "resuming after step" in (workdir / "log.txt").read_text()
    assert {path.name for path in (root / "trials").iterdir()} == {trial.id for trial in chosen}

    # In a process with as many devices: with another number the compiled programs round otherwise.
    whole = [str(tmp_path / trial.id) for trial in chosen]
    flags = [[*SHARED, *trial.flags] for trial in chosen]
    done = subprocess.run(
        [sys.executable, "-c", UNBROKEN, json.dumps(list(zip(flags, whole, strict=True)))],
        cwd=ROOT, env=with_devices(1), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for trial, row, own, directory in zip(chosen, rows, flags, whole, strict=True):
        result = json.loads(pathlib.Path(directory, "result.json").read_text())
        assert result == {"step": row["step"], "metrics": row["metrics"]}
        monkeypatch.chdir(ROOT)
        config = command_line.parse_config(own)
        chex.assert_trees_all_equal(last_state(root / "trials" / trial.id, config), last_state(directory, config))


UNBROKEN = """
import json, sys
from creditjax import training
from experiments.command_line import parse_config
for flags, workdir in json.loads(sys.argv[1]):
    training.train(parse_config(flags), workdir)
"""


def test_what_cannot_be_swept_is_said_before_anything_runs(tmp_path):
    root = tmp_path / "sweep"
    (tmp_path / "bad.py").write_text(
        "from configs.chain import get_config\n"
        "from creditjax import sweeps\n"
        "def get_hyper():\n"
        "    return sweeps.product({'recipe.lam': [0.5], 'recipe.nam': ['x', 'y']})\n"
    )
    done = run(f"--config={tmp_path / 'bad.py'}:runlocal", f"--sweep_dir={root}")
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "trial 1 (recipe.lam=0.5 recipe.nam=x): recipe: " in done.stderr and "trial 2 (" in done.stderr
    assert not root.exists()


def test_a_dry_run_prints_whole_configs_and_commands_that_repeat_them(tmp_path, trials, monkeypatch):
    monkeypatch.chdir(ROOT)
    lines = entry.listing(trials, trials[5:7], Store(tmp_path), SHARED, 1)
    heads = [line for line in lines if line and line[0] != " "]
    assert heads == ["In all trials:", f"6/20  {trials[5].id}  waiting", f"7/20  {trials[6].id}  waiting"]
    shown = dict(line.strip().split(" = ", 1) for line in lines[: lines.index(heads[1])] if " = " in line)
    own = dict(line.strip().split(" = ", 1) for line in lines[lines.index(heads[2]) :] if " = " in line)
    assert own == {"recipe.lam": "0.8", "seed": "1"}
    assert shown | own == {path: repr(value) for path, value in trials_lib.flatten(trials[6].config).items()}
    flags = lines[-1].split("experiments.train ")[1].split()
    assert flags[-1] == f"--workdir={tmp_path}/trials/{trials[6].id}"
    config = training.config.to_json(command_line.parse_config(flags[:-1]))
    assert trials_lib.identify(config) == trials[6].id
    assert list(tmp_path.iterdir()) == []


def test_trials_are_chosen_by_number_or_id(trials):
    assert entry.choose(trials, []) == trials
    assert entry.choose(trials, [trials[4].id, "2", "2"]) == [trials[1], trials[4]]
    with pytest.raises(ValueError, match="no trial '21'; they are 1 to 20"):
        entry.choose(trials, ["21"])
    with pytest.raises(ValueError, match=f"did you mean {trials[0].id}"):
        entry.choose(trials, [trials[0].id + "0"])


def test_flags_of_the_config_are_passed_on_and_others_are_not():
    own = ["--config=a.py:x=1", "--only=1", "-config.b=2", "--noconfig.c=", "--configuration=3", "config=4"]
    assert entry.shared_flags(own) == ["--config=a.py:x=1", "-config.b=2", "--noconfig.c="]
    with pytest.raises(ValueError, match="--config.seed: no value, wanted --config.seed=VALUE"):
        entry.shared_flags(["--config=a.py", "--config.seed", "3"])


def test_a_config_without_a_sweep_is_an_error(tmp_path):
    (tmp_path / "none.py").write_text("def get_config(arg=None):\n    return None\n")
    with pytest.raises(ValueError, match="none.py: no get_hyper"):
        entry.describe(f"{tmp_path / 'none.py'}:runlocal")


def test_the_state_of_a_trial_is_read_from_its_directory(tmp_path, trials):
    store, trial = Store(tmp_path), trials[0]
    assert trial.steps == 4 and trial.metric == "eval/reward"
    assert runner.state(store, trial, 1) == "waiting"
    store.directory(trial).mkdir(parents=True)
    (store.directory(trial) / "result.json").write_text(json.dumps({"step": 4, "metrics": {}}))
    assert runner.state(store, trial, 1) == "finished"
