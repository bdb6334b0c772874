"""The entry point: its flags, its help, and a form of every config that runs at once."""

import importlib
import io
import json
import pathlib
import subprocess
import sys

from absl.testing import flagsaver
from environment import with_devices
import jax
import pytest

from creditjax import training
from creditjax.training import mesh as mesh_lib
from experiments import train as entry

ROOT = pathlib.Path(__file__).parents[2]
CONFIGS = [path.stem for path in (ROOT / "configs").glob("[a-z]*.py")]


def train(*arguments, timeout=300):
    return subprocess.run(
        [sys.executable, "-m", "experiments.train", *arguments],
        cwd=ROOT,
        env=with_devices(1),
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def refused(monkeypatch, *arguments):
    """What the command ends with; in this process, since another would mostly import JAX. Flags are as before."""
    monkeypatch.setattr(sys, "argv", ["train", *arguments])
    monkeypatch.chdir(ROOT)
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as error:
        entry.run()
    assert isinstance(error.value.code, str)  # which the interpreter prints, and exits with 1
    return error.value.code


def test_help_explains_itself():
    said = train("--help").stdout
    for word in ("--config.recipe.name=", "--config.recipe.eps=", ":runlocal", "--workdir", "resumes", "quickstart.py"):
        assert word in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config.recipe.name=grop"], "did you mean grpo"),
        (["--config.recipe.bta=0.1"], "no hyperparameter 'bta'; did you mean beta"),
        (["--config.optimizer.learning_rat=1"], "learning_rate"),
        (["--config.steps=many"], "--config.steps=many: invalid literal for int()"),
        (["--config.step=3"], "config.step is unknown; did you mean steps"),
        (["--config.batch.prompt=3"], "config.batch.prompt is unknown; did you mean prompts"),
        (["--config.steps.x=3"], "config.steps.x is unknown"),
    ],
    ids=lambda x: x[0].split("config.")[-1] if isinstance(x, list) else "",
)
def test_a_wrong_flag_is_one_clear_error_before_anything_runs(tmp_path, monkeypatch, arguments, message):
    workdir = tmp_path / "run"
    assert message in refused(monkeypatch, "--config=configs/forkme.py:runlocal", f"--workdir={workdir}", *arguments)
    assert not (workdir / "metrics.jsonl").exists()


def test_a_wrong_argument_string_names_the_right_one(tmp_path):
    done = train("--config=configs/forkme.py:runlocl", f"--workdir={tmp_path}")
    assert done.returncode == 1
    assert "did you mean runlocal" in done.stderr
    assert "Traceback" not in done.stderr
    assert "step 0" not in done.stderr


def test_a_missing_config_file_is_named(tmp_path, monkeypatch):
    said = refused(monkeypatch, "--config=configs/nope.py", f"--workdir={tmp_path}")
    assert said == "--config: No such file or directory: 'configs/nope.py', wanted a Python file with a get_config"


def test_an_error_of_the_config_file_itself_keeps_its_traceback(tmp_path):
    (tmp_path / "broken.py").write_text("def get_config(arg=None):\n    return {}['nothing']\n")
    done = train(f"--config={tmp_path / 'broken.py'}", f"--workdir={tmp_path}")
    assert done.returncode != 0
    assert "return {}['nothing']" in done.stderr


@pytest.fixture
def one_device(monkeypatch):
    """Runs in this process on one device: programs for several take longer to compile."""
    make_mesh = mesh_lib.make_mesh
    monkeypatch.setattr(mesh_lib, "make_mesh", lambda shape: make_mesh(shape, jax.devices()[:1]))


def test_overrides_reach_the_recipe_and_the_same_command_resumes(tmp_path, monkeypatch, capfd, one_device):
    command = (
        "--config=configs/forkme.py:runlocal,steps=2", f"--workdir={tmp_path}", "--config.recipe.name=grpo",
        "--config.recipe.eps_clip=0.3", "--config.task.eval_size=16", "--config.log.tensorboard=True",
    )  # fmt: skip
    done = train(*command)
    assert done.returncode == 0, done.stderr
    assert "step 6/6" in done.stderr and "report.html" in done.stderr
    assert json.loads((tmp_path / "config.json").read_text())["config"]["recipe"] == {"name": "grpo", "eps_clip": 0.3}
    for name in ("metrics.jsonl", "rollouts.json", "report.html", "checkpoints/last", "tensorboard"):
        assert (tmp_path / name).exists(), name
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert rows[1]["warm_start/loss"] > rows[4]["warm_start/loss"] > 0
    monkeypatch.setattr(sys, "argv", ["train", *command])
    monkeypatch.chdir(ROOT)
    with flagsaver.flagsaver(), pytest.raises(SystemExit) as end:
        entry.run()
    assert not end.value.code
    assert "this run is finished, 6 steps" in capfd.readouterr().err


@pytest.mark.parametrize("config", sorted(set(CONFIGS) - {"forkme"}))  # which the test above runs
def test_every_config_has_a_form_that_runs_at_once(tmp_path, one_device, config):
    # In this process, which compiles nothing twice.
    module = importlib.import_module(f"configs.{config}")
    questions = ",questions=chain_sum" if config in ("stepwise", "judging") else ""  # theirs by default run elsewhere
    result = training.train(module.get_config(f"runlocal{questions}"), tmp_path, io.StringIO())
    assert result.finished
    assert (tmp_path / "report.html").exists()
    assert result.metrics["tokens"] > 0
    assert {"eval/success", "clip_fraction", "credit_std"} <= set(result.metrics)
    assert module.__doc__ and module.get_hyper()


@pytest.mark.parametrize("config", sorted(set(CONFIGS) - {"gsm8k"}))  # whose problems have to be downloaded
def test_every_config_and_every_point_of_its_sweep_is_valid(config):
    module = importlib.import_module(f"configs.{config}")
    for overrides in module.get_hyper():
        made = module.get_config()
        for path, value in overrides.items():
            made.update_from_flattened_dict({path: value})
        training.check_config(made)
