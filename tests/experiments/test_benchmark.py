"""The speed benchmark in a quick form: rows, yardsticks, flags."""

import json

from absl.testing import flagsaver
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import recipes, validate
from creditjax.benchmark import speed, synthetic, timing
from experiments import benchmark

SHAPE = (2, 4, 192)


def run(*only, **flags):
    values = dict(shape=[str(n) for n in SHAPE], only=list(only), rounds=2) | flags
    with flagsaver.flagsaver(**values):
        benchmark.main(["benchmark", "speed"])


@pytest.fixture(autouse=True, scope="module")
def parsed_flags():
    benchmark.flags.FLAGS(["benchmark"])


def test_rows_carry_what_the_file_promises(tmp_path, capsys):
    run("gae", "grpo", out=str(tmp_path / "rows.jsonl"))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["name"] for row in rows] == ["kernels.gae", "gae", "grpo"]
    for row in rows:
        assert row["shape"] == [8, 192]
        assert row["ms"] > 0 and row["yardstick_ms"] > 0
        assert row["ratio"] == pytest.approx(row["ms"] / row["yardstick_ms"])
        assert row["yardstick"] == ("sum of inputs" if row["name"] == "grpo" else "cumsum")
        assert row["copy_share"] > 0
        assert row.get("cost") == ("linear" if "." not in row["name"] else None)
        assert ("peer" in row) == ("peer_ms" in row)
    printed = capsys.readouterr().out
    assert all(f"\n{row['name']} " in printed for row in rows)
    assert set(speed.names()) >= set(recipes.list_recipes())


def test_an_unknown_row_is_named():
    with pytest.raises(SystemExit, match="--only: grppo unknown, wanted some of kernels"):
        run("grppo")
    with pytest.raises(SystemExit, match="--shape: 4,x,2, wanted three positive integers P,G,T"):
        run(shape=["4", "x", "2"])
    with pytest.raises(benchmark.app.UsageError, match="wanted one of: speed"):
        benchmark.main(["benchmark", "spede"])


def test_the_yardstick_sums_exactly_what_is_read():
    read, scalar, unread = jnp.ones((3, 5)), jnp.float32(2), jnp.ones((3, 7))
    work = speed._Work(lambda arrays: arrays[0] * arrays[1], ((read, scalar, unread),), recursion=False)
    assert [x.shape for x in speed._arrays_read(work)] == [(3, 5)]


def test_recursions_are_told_from_the_program():
    for name, recursion in (("gae", True), ("reinforce", True), ("grpo", False), ("tempo", False), ("gigpo", True)):
        assert speed._recipe_work(name, SHAPE).recursion == recursion, name


def test_every_recipe_gets_a_batch_that_it_can_read():
    for name in recipes.list_recipes():
        work = speed._recipe_work(name, SHAPE)
        value = jax.eval_shape(work.fn, *work.args)
        assert value.shape == SHAPE and value.dtype == jnp.float32, name


def test_the_synthetic_batch_is_valid_and_reproducible():
    signals = ("value", "next_value", "call_turn", "agent", "answer_logprob")
    batch = synthetic.synthetic_batch(SHAPE, signals)
    assert validate(batch) == []
    again = synthetic.synthetic_batch(SHAPE, signals)
    for one, other in zip(jax.tree.leaves(batch), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(one, other)
    # A batch that never ends inside a row, or has no gaps, would time an easier problem.
    inside = np.diff(np.asarray(batch.action_mask).astype(int), axis=-1)
    assert np.any(np.sum(inside == 1, axis=-1) > 1) and np.any(batch.terminated) and np.any(batch.truncated)


def test_medians_run_interleaved_and_keep_to_the_budget():
    seen = []
    times = timing.medians({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, rounds=3)
    assert seen == ["a", "b"] * 4 and set(times) == {"a", "b"}
    seen.clear()
    timing.medians({"a": lambda: seen.append("a")}, rounds=50, budget_s=0.0)
    assert seen == ["a", "a"]
