"""Agreement of the credit of steps with the exact one, and the script that follows it over training."""

import json

import numpy as np
import pytest

from creditjax.benchmark.agreement import agreement, shuffled
from docs import make_process_curves as curves

RNG = np.random.default_rng(0)
TRUE = RNG.normal(size=(40, 5))
VALID = np.arange(5) < RNG.integers(2, 6, size=(40, 1))
RIGHT = TRUE > 0


def test_the_exact_credit_agrees_in_every_way_and_its_opposite_in_none():
    assert agreement(3 * TRUE, TRUE, RIGHT, VALID) == pytest.approx((1, 1, 1, 1))
    assert agreement(-TRUE, TRUE, RIGHT, VALID) == pytest.approx((-1, -1, -1, 0))


def test_constant_credit_is_at_chance():
    assert agreement(np.zeros_like(TRUE), TRUE, RIGHT, VALID) == (0, 0, 0, 0.5)


def test_an_offset_of_each_rollout_is_seen_by_the_pooled_scores_alone():
    moved = agreement(TRUE + 10 * RNG.normal(size=(40, 1)), TRUE, RIGHT, VALID)
    assert moved.within == pytest.approx(1) and moved.erring == pytest.approx(1)
    assert abs(moved.pooled) < 0.5 and moved.auroc < 0.8


def test_erring_looks_at_rollouts_with_a_wrong_step_alone():
    credit = np.array([[1.0, 2.0], [2.0, 1.0]])
    true, there = np.array([[1.0, 2.0], [1.0, 2.0]]), np.ones((2, 2), bool)
    right = np.array([[False, True], [True, True]])
    assert agreement(credit, true, right, there)[:2] == (0, 1)
    assert np.isnan(agreement(credit, true, there, there).erring)


def test_what_is_no_step_is_not_read():
    hidden = np.where(VALID, TRUE, np.nan)
    assert agreement(hidden, hidden, RIGHT, VALID) == agreement(TRUE, TRUE, RIGHT, VALID)


def test_shuffled_credit_keeps_each_rollouts_values_and_agrees_by_chance():
    dealt = shuffled(TRUE, VALID, seed=1)
    np.testing.assert_array_equal(dealt[~VALID], TRUE[~VALID])
    np.testing.assert_array_equal(np.sort(np.where(VALID, dealt, 9)), np.sort(np.where(VALID, TRUE, 9)))
    assert (dealt != TRUE).any() and abs(agreement(dealt, TRUE, RIGHT, VALID).within) < 0.3


def tiny():
    changed = curves.changes("stepwise", "prime", 0) | {
        "policy.width": 8, "policy.depth": 1, "policy.heads": 2, "batch.prompts": 2, "batch.group_size": 2,
        "warm_start.steps": 1, "warm_start.prompts": 4, "steps": 2, "task.addends": 2, "task.eval_size": 4,
    }  # fmt: skip
    return curves.looked_at(changed)


def test_prime_is_looked_at_from_a_credit_of_zero_on():
    rows = list(curves.prime_looks(tiny(), [0], every=2, blocks=1))
    assert [(row["update"], row["rollouts"]) for row in rows] == [(0, "start"), (0, "now"), (2, "start"), (2, "now")]
    first, last = (rows[i]["scores"][curves.PRIME] for i in (0, 2))
    assert (first["within"], first["pooled"], first["auroc"], first["outcome"]) == (0, 0, 0.5, 0.5)
    assert last["within"] != 0
    same = [rows[i]["scores"]["log π_ref"] for i in (0, 2)]
    assert same[0] == same[1]  # the rollouts and the reference stay
    assert json.loads(json.dumps(rows))


def test_tables_say_means_over_seeds_and_pairs_of_one_seed(tmp_path, monkeypatch):
    monkeypatch.setattr(curves, "ROWS", tmp_path / "rows.jsonl")
    run = {"part": "train", "task": "stepwise", "update": [0, 25]}
    curves.add([run | {"recipe": "grpo", "seed": s, "success": [0.25, 0.5 + 0.25 * s]} for s in (0, 1)])
    curves.add([run | {"recipe": "pure", "seed": 1, "success": [0.25, 0.5]}])
    first, second = curves.train_table(curves.known()).splitlines()[2:]
    half = "0.62 (0.50 to 0.75)"
    assert first == f"| stepwise | `grpo` | 2 | 0.25 (0.25 to 0.25) | {half} | {half} | 0.50 | 0.75 |  |"
    assert second.startswith("| stepwise | `pure` | 1 |") and second.endswith("| -0.25 (-0.25 to -0.25) |")


@pytest.mark.parametrize("task, recipe", [(task, name) for task in curves.RECIPES for name in curves.RECIPES[task]])
def test_a_command_names_every_field_that_differs(task, recipe):
    said = curves.command(task, recipe, 3)
    assert "--config.seed=3" in said and f"--config.recipe.name={recipe}" in said
    assert said.count("--config.") == len(curves.changes(task, recipe, 3))
    curves.configured(task, curves.changes(task, recipe, 3))
