"""Trials as lanes of one program are the runs that they would be alone."""

import functools
import io
import json

import chex
import jax
import numpy as np
import pytest
from training.training_cases import catch_config, last_state, rows

from creditjax import training
from creditjax.sweeps import product, runner, table, vmapped
from creditjax.sweeps import trials as trials_lib
from creditjax.sweeps.store import Store
from creditjax.training import mesh as mesh_lib

ADDITION = {
    "task": {"name": "stepwise", "addends": 2, "base": 3, "eval_size": 4},
    "policy": {"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_width": 16},
    "batch__prompts": 4, "warm_start__steps": 2, "warm_start__prompts": 4, "steps": 3, "eval__every": 2,
}  # fmt: skip
SEEDS_AND_RATES = product({"seed": [0, 2**31 + 3], "optimizer.learning_rate": [1e-3, 1e-2]})


def parser(**changes):
    """From flags to a config of the smallest run, with some fields changed for all trials."""

    def parse(flags):
        config = catch_config(**changes)
        for flag in flags:
            path, _, value = flag.removeprefix("--config.").partition("=")
            *parents, name = path.split(".")
            holder = functools.reduce(lambda holder, name: holder[name], parents, config)
            holder[name] = json.loads(value) if value[0].isdigit() else value
        return config

    return parse


def sweep(root, hypers, parse, *, stop=None, devices=None):
    trials, store = trials_lib.resolve(hypers, parse), Store(root)
    view = table.Table(trials, store, io.StringIO())
    with store.alone():
        states = vmapped.run(trials, store, parse, view, 0, stop, devices)
    return trials, store, states


@pytest.fixture
def one_device(monkeypatch):
    """Single runs use one device, as a lane does."""
    make = mesh_lib.make_mesh
    monkeypatch.setattr(mesh_lib, "make_mesh", lambda shape, devices=None: make(shape, devices or jax.devices()[:1]))


def assert_as_alone(trial, store, parse, root):
    """Rows, result, report and last state of a lane are those of its config trained by itself."""
    config = parse(trial.flags)
    training.train(config, root / trial.id, io.StringIO())
    lane, alone = store.directory(trial), root / trial.id
    found, wanted = rows(lane), rows(alone)
    assert [row.keys() for row in found] == [row.keys() for row in wanted]
    for left, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(list(left.values()), list(right.values()), rtol=1e-4, atol=1e-6)
    assert store.result(trial)["step"] == trial.steps
    assert len(json.loads((lane / "rollouts.json").read_text())) == len(
        json.loads((alone / "rollouts.json").read_text())
    )
    assert (lane / "report.html").stat().st_size > 1000
    chex.assert_trees_all_close(last_state(lane, config), last_state(alone, config), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("hypers", "changes"),
    [
        (SEEDS_AND_RATES, {}),
        (
            product({"seed": [0, 1], "recipe.lam": [0.5, 0.9]}),
            {"recipe": {"name": "ppo"}, "batch__minibatches": 2, "batch__epochs": 2, "optimizer__schedule": "cosine"},
        ),
        (product({"seed": [0, 1]}), {**ADDITION, "recipe": {"name": "remax"}}),
    ],
    ids=["rates", "numbers_of_the_recipe", "warm_start_and_greedy_rollouts"],
)
def test_lanes_are_single_runs(tmp_path, one_device, hypers, changes):
    parse = parser(**changes)
    trials, store, states = sweep(tmp_path / "sweep", hypers, parse, devices=jax.devices()[:3])
    assert len(vmapped.cohorts(trials, parse)) == 1
    assert set(states.values()) == {"finished"}
    for trial in trials[1:3]:
        assert_as_alone(trial, store, parse, tmp_path / "alone")


def test_trials_of_one_structure_share_a_program():
    hypers = product({"seed": [0, 1], "recipe.name": ["rloo", "grpo"]})
    parse = parser()
    found = vmapped.cohorts(trials_lib.resolve(hypers, parse), parse)
    assert [[trial.number for trial in cohort.trials] for cohort in found] == [[1, 3], [2, 4]]
    # A number that changes what is drawn is no leaf of the estimator.
    hypers = product({"sampling.temperature": [0.5, 1.0], "recipe.eps_clip": [0.1, 0.2]})
    found = vmapped.cohorts(trials_lib.resolve(hypers, parse), parse)
    assert [[trial.number for trial in cohort.trials] for cohort in found] == [[1, 2], [3, 4]]


class StopAfter(runner.Stop):
    """Tells to stop when it has been asked so often."""

    def __init__(self, asked):
        self.left = asked

    @property
    def times(self):
        self.left -= 1
        return int(self.left < 0)


def test_a_stopped_cohort_resumes_and_a_longer_one_goes_on(tmp_path):
    parse, seeds = parser(), product({"seed": [0, 1]})
    trials, store, states = sweep(tmp_path / "a", seeds, parse, stop=StopAfter(2))
    assert set(states.values()) == {"waiting"} and not any(map(store.result, trials))
    # What was written after the last checkpoint is written anew.
    with (store.directory(trials[0]) / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "reward": 1000}\n{"st')
    sweep(tmp_path / "a", seeds, parse)
    longer = parser(steps=8)
    _, _, states = sweep(tmp_path / "a", seeds, longer)
    assert set(states.values()) == {"finished"}
    trials, whole, _ = sweep(tmp_path / "b", seeds, longer)
    for trial in trials:
        # The end of the shorter one was evaluated.
        found = [row for row in rows(store.directory(trial)) if row["step"] != 6]
        assert found == [row for row in rows(whole.directory(trial)) if row["step"] != 6]
        assert store.result(trial) == whole.result(trial)
    log = (store.directory(trials[0]) / "log.txt").read_text()
    assert log.splitlines() == ["lane of 2, from step 0", "lane of 2, from step 4", "lane of 2, from step 6"]


def test_a_lane_that_fails_does_not_disturb_the_others(tmp_path):
    hypers = [{"optimizer.learning_rate": rate} for rate in (1e-3, 1e39, 1e-2)]
    trials, store, states = sweep(tmp_path / "a", hypers, parser(optimizer__name="sgd", optimizer__clip=0.0))
    assert [states[trial.id] for trial in trials] == ["finished", "failed", "finished"]
    assert store.last_line(trials[1]).endswith("the gradient is not finite") and store.failures(trials[1]) == 1
    assert not (store.directory(trials[1]) / "result.json").exists()
    others = [hypers[0], hypers[2]]
    trials, whole, _ = sweep(tmp_path / "b", others, parser(optimizer__name="sgd", optimizer__clip=0.0))
    for trial in trials:
        assert whole.result(trial) == store.result(trial)


def test_what_cannot_be_a_lane_is_said_before_anything_runs(tmp_path, monkeypatch):
    with pytest.raises(training.ConfigError, match="trial 1 .*recipe 'dapo' draws prompts until all groups teach"):
        sweep(tmp_path, [{"seed": 1}], parser(recipe={"name": "dapo"}))
    task = type(training.config.check_config(catch_config()).task)
    monkeypatch.setattr(task, "verify", lambda self, batch, prompts: batch.replace(), raising=False)
    with pytest.raises(training.ConfigError, match="task 'control' is scored on the host"):
        sweep(tmp_path, [{"seed": 1}], parser())
    assert not list(tmp_path.glob("trials/*"))
