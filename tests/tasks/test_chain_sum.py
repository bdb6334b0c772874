"""Sums of reasoning-gym as running totals: the questions and the grades are those of the package."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest
from reasoning_gym import factory

from creditjax import tasks
from creditjax.tasks import chain_sum
from creditjax.tasks.judging import JudgingTask
from creditjax.tasks.stepwise import _DIGIT, ANSWER, ASK, PLUS, StepwiseTask

TASK = StepwiseTask(addends=2, base=37, max_turns=3, eval_size=8, questions="chain_sum", seed=5)


@pytest.mark.parametrize(("formula", "addends"), [("3 - 4 + 1 =", [3, -4, 1]), ("0 =", [0]), ("9 - 0 =", [9, 0])])
def test_a_formula_is_its_signed_addends(formula, addends):
    assert chain_sum.parse(formula) == addends


def test_prompts_are_the_questions_of_the_package():
    prompts = TASK.prompts("train", 0, 50)
    package = factory.create_dataset("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1, seed=5, size=50)
    held_out = {tuple(row) for row in TASK.prompts("eval", 0, 8).data.tolist()}
    assert len(held_out) == 8
    same = 0
    for row, tokens, entry in zip(prompts.data, prompts.tokens, package, strict=True):
        signed = [int(x) - 37 * (x > 18) for x in row]
        question = f"{signed[0]} {'-' if signed[1] < 0 else '+'} {abs(signed[1])} ="
        same += entry["question"].endswith(f" {question}") or entry["question"].endswith(f" {signed[0]} - 0 =")
        assert tuple(row.tolist()) not in held_out
        assert TASK.decode(tokens) == ["+", str(signed[0]), "+", str(signed[1]), "?", "·"]
        assert tokens.tolist() == [PLUS, _DIGIT + row[0], PLUS, _DIGIT + row[1], ASK, 0]
    assert same >= 45  # all but those that were drawn again because they are held out
    np.testing.assert_array_equal(TASK.prompts("train", 30, 5).data, prompts.data[30:35])


def test_the_outcome_of_every_answer_is_the_grade_of_the_package():
    """All 37 answers to 12 sums, after true additions: 1 where the package gives 1."""
    prompts = TASK.prompts("train", 0, 12)
    totals = np.cumsum(prompts.data, axis=1) % 37
    steps = np.zeros((12, 37, 3, 2), np.int32)
    steps[:, :, :2, 0], steps[:, :, :2, 1] = PLUS, _DIGIT + totals[:, None]
    steps[:, :, 2, 0], steps[:, :, 2, 1] = ANSWER, _DIGIT + np.arange(37)
    batch = jax.jit(TASK.play)(prompts, jnp.asarray(steps))
    items = chain_sum._questions(2, 8, 5).items("train", 0, 12)
    package = factory.create_dataset("chain_sum", min_terms=2, max_terms=2, min_digits=1, max_digits=1)
    words = TASK.decode(_DIGIT + np.arange(37))
    grades = [[package.score_answer(word, {"answer": item.answer}) for word in words] for item in items]
    np.testing.assert_array_equal(batch.outcome, np.equal(grades, 1.0))
    np.testing.assert_array_equal(batch.outcome.sum(1), 1)
    assert (batch.signals["state_key"] >= 0).all()


def test_states_of_one_prompt_differ_where_the_key_overflows():
    task = StepwiseTask(addends=4, base=73, questions="chain_sum", eval_size=1, signals=("state_key",))
    prompts = task.prompts("train", 0, 2)
    steps = np.zeros((2, 73, 6, 2), np.int32)
    steps[..., 0], steps[..., 1] = PLUS, _DIGIT + np.arange(73)[:, None]
    keys = np.asarray(jax.jit(task.play)(prompts, jnp.asarray(steps)).signals["state_key"])
    assert (keys >= 0).all()
    for p in range(2):
        assert len(set(keys[p, :, 1:5].ravel().tolist())) == 73 * 4  # total x addends consumed


def test_a_judge_reads_solutions_of_the_same_sums():
    task = JudgingTask(addends=2, base=37, questions="chain_sum", eval_size=8, seed=5)
    solver = StepwiseTask(addends=2, base=37, max_turns=3, questions="chain_sum", eval_size=8, seed=5)
    np.testing.assert_array_equal(task.prompts("eval", 0, 8).tokens[:, :5], solver.prompts("eval", 0, 8).tokens[:, :5])
    gold = task.gold("train", 0, 64)
    assert (gold.outcome == 1).all() and 0 < gold.signals["solution_label"].mean() < 1


def test_options_are_checked():
    with pytest.raises(ValueError, match="base: 54, wanted at least 55"):
        StepwiseTask(addends=3, base=54, questions="chain_sum")
    with pytest.raises(ValueError, match="questions: 'chain_sums'; did you mean chain_sum"):
        tasks.make("stepwise", questions="chain_sums")
    with pytest.raises(ValueError, match="questions: 3"):
        tasks.make("judging", questions=3)
    with pytest.raises(ValueError, match="eval_size"):
        StepwiseTask(addends=1, base=19, eval_size=11, questions="chain_sum")
    with pytest.raises(ValueError, match="seed"):
        StepwiseTask(addends=1, base=19, seed=2**30, questions="chain_sum")
    assert TASK.decode([_DIGIT + 18, _DIGIT + 19]) == ["18", "-18"]
