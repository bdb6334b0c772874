"""Learning at equal budget: rollouts inside the program, exact returns, and statistics over seeds."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest
from scipy import stats

from creditjax import exact, recipe, validate
from creditjax.benchmark import learning
from creditjax.benchmark.results import Results
from creditjax.tasks import bifurcation


@pytest.fixture(scope="module")
def process():
    return exact.lay_out(bifurcation.single(3, 1))


def drawn(process, count):
    rng = np.random.default_rng(0)
    policy = exact.tabulate(process, lambda _: rng.dirichlet(np.ones(2))).astype(np.float32)
    table = exact.values(process, policy)
    sample = jax.jit(lambda key: learning.rollouts(process, policy, table, key, (count, 4)))
    return policy, sample(jax.random.key(1))


def test_rollouts_are_those_of_the_process(process):
    policy, made = drawn(process, 4000)
    assert validate(made.batch) == []
    paths = exact.enumerate_paths(process)
    chance = exact.probability(process, paths, policy)
    code = np.asarray(made.batch.tokens).reshape(-1, 3) @ (4, 2, 1)
    np.testing.assert_allclose(np.bincount(code, minlength=8) / len(code), chance, atol=0.02)
    each = np.asarray(made.batch.outcome).reshape(-1)
    np.testing.assert_array_equal(each, paths.outcome[code])
    credit = exact.exact_credit(paths, exact.solve(process, policy))
    np.testing.assert_allclose(np.asarray(made.credit).reshape(-1, 3), credit[code], atol=1e-6)
    log = exact.paths.log_probability(paths, policy)
    np.testing.assert_allclose(np.asarray(made.batch.logprob).reshape(-1, 3), log[code], atol=1e-5)


def test_games_with_other_tokens_are_refused():
    flipped = exact.lay_out(bifurcation.single(3, 1, flip=0.1))
    policy = exact.tabulate(flipped, lambda _: np.ones(2))
    with pytest.raises(ValueError, match="tokens that are no actions"):
        learning.rollouts(flipped, policy, exact.values(flipped, policy), jax.random.key(0), (1, 2))


def test_steps_ascend_the_exact_gradient(process):
    estimator = recipe("rloo").estimator
    once = learning.Schedule(updates=1, every=1)
    logits = jnp.zeros(process.choices.shape)
    assign = lambda made: learning._estimated(estimator, made)  # noqa: E731
    rate = 0.05
    run = jax.jit(jax.vmap(lambda key: learning.train(process, assign, logits, rate, key, once)))
    returns = np.asarray(run(jax.random.split(jax.random.key(0), 4000)))
    gain = returns[:, 1] - returns[:, 0]
    solution = exact.solve(exact.lay_out(bifurcation.single(3, 1)), np.full(logits.shape, 0.5))
    slope = float(np.sum(exact.true_gradient(process, solution) ** 2))
    assert abs(gain.mean() - rate * slope) < 4 * gain.std() / np.sqrt(len(gain)) + 0.02 * rate * slope


def test_the_interquartile_mean_is_the_mean_of_the_middle_half():
    x = np.random.default_rng(0).normal(size=(16, 5))
    np.testing.assert_allclose(learning.interquartile_mean(x), stats.trim_mean(x, 0.25, axis=0))
    # Ten seeds: two and a half at each end do not count.
    np.testing.assert_allclose(learning.interquartile_mean(np.arange(10.0)[:, None]), 4.5)
    y = np.sort(x[:10], axis=0)
    want = (0.5 * y[2] + y[3:7].sum(0) + 0.5 * y[7]) / 5
    np.testing.assert_allclose(learning.interquartile_mean(x[:10]), want)


def test_curves_are_rows_and_exact_credit_learns_fastest(monkeypatch):
    monkeypatch.setattr(learning, "Schedule", lambda **_: SHORT)
    monkeypatch.setattr(learning, "METHODS", (learning.ORACLE, "rloo"))
    found = Results()
    lines = list(learning.run_all(found, quick=True))
    assert list(learning.run_all(found, quick=True)) == [] and len(lines) == 8
    area = {row.recipe: row for row in found.rows if row.metric == "return_area" and row.horizon == 16}
    better, worse = area[learning.ORACLE], area["rloo"]
    assert better.value > worse.value + 1.5 * worse.stderr
    points = [row for row in found.rows if row.metric.startswith("return@") and row.horizon == 16]
    assert {row.metric for row in points} == {f"return@{k * 4 * 16 * 4}" for k in range(5)}
    assert all(row.more["low"] - 1e-9 <= row.value <= row.more["high"] + 1e-9 for row in points)


SHORT = learning.Schedule(updates=16, every=4, seeds=16, choosing=16)
