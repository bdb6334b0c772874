"""Recipes that need more than rollouts: values, a reference, a greedy rollout, a moving average, a reward model."""

import io
import json

import pytest
from training_cases import catch_config

from creditjax import training


def lookup_config(recipe):
    config = catch_config(
        task={"name": "lookup", "num_entities": 4, "num_relations": 2, "eval_size": 8},
        policy={"name": "transformer", "width": 16, "depth": 1, "heads": 2},
        recipe=recipe, steps=2, batch__prompts=8, batch__group_size=2, eval__every=2,
    )  # fmt: skip
    config.warm_start.steps = 1
    config.warm_start.prompts = 8
    config.mesh.data, config.mesh.fsdp = 2, 4
    return config


def test_a_reward_model_and_a_reference_are_kept_and_resume(tmp_path):
    config = lookup_config({"name": "prime"})
    result = training.train(config, tmp_path, io.StringIO())
    assert result.finished
    assert result.metrics["skipped_updates"] == 0
    assert {"reward_model_loss", "kl_reference"} <= set(result.metrics)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    # The reference is the policy as the warm start left it, so the first update starts at no distance.
    assert abs(rows[2]["kl_reference"]) < 1e-6
    # Everything that was learned beside the policy resumes too.
    config.steps = 3
    again = training.train(config, tmp_path, io.StringIO())
    assert again.finished and again.step == 4


def test_a_reference_without_a_warm_start(tmp_path):
    result = training.train(catch_config(recipe={"name": "grpo", "beta": 0.05}, steps=2), tmp_path, io.StringIO())
    assert result.finished and "kl_reference" in result.metrics and result.metrics["skipped_updates"] == 0


def test_a_greedy_rollout_of_every_prompt(tmp_path):
    result = training.train(lookup_config({"name": "remax"}), tmp_path, io.StringIO())
    assert result.finished and "credit_std" in result.metrics and result.metrics["skipped_updates"] == 0


def test_the_moving_average_is_a_signal(tmp_path):
    result = training.train(catch_config(recipe={"name": "reinforce_baseline"}, steps=2), tmp_path, io.StringIO())
    assert result.finished


def test_a_signal_that_nobody_makes_fails_before_anything_is_trained(tmp_path):
    config = catch_config(recipe={"name": "gigpo"})
    with pytest.raises(training.ConfigError, match=r"recipe 'gigpo' needs the signal 'state_key' \[P, G, K\], made by"):
        training.train(config, tmp_path, io.StringIO())
    assert not (tmp_path / "metrics.jsonl").exists()
