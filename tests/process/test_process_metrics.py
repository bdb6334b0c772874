"""Metrics of step judges against plain loops in float64, and what the method cards say of them."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.process import metrics

SEEDS = range(20)


def cases(seed, rows=6, steps=5):
    """Scores on a coarse grid (so that there are ties), ragged masks, NaN under them, labels."""
    rng = np.random.default_rng(seed)
    mask = np.arange(steps) < rng.integers(0, steps + 1, rows)[:, None]
    mask &= rng.random(mask.shape) < 0.9
    score = np.where(mask, rng.integers(0, 5, mask.shape) / 4, np.nan)
    label = np.array([rng.choice(np.append(np.flatnonzero(m), -1)) for m in mask])
    return score, mask, label, rng


def reference_first_error(score, mask, threshold):
    return next((k for k in range(len(score)) if mask[k] and score[k] < threshold), -1)


def reference_f1(prediction, label):
    hits = {True: [], False: []}
    for p, y in zip(prediction, label, strict=True):
        hits[y >= 0].append(p == y)
    a, b = (np.mean(hits[kind]) if hits[kind] else 0.0 for kind in (True, False))
    return 2 * a * b / (a + b) if a + b else 0.0, a, b


def reference_aggregate(score, mask, kind):
    chosen = [s for s, m in zip(score, mask, strict=True) if m]
    rule = {"product": np.prod, "min": np.min, "mean": np.mean, "last": lambda x: x[-1]}[kind]
    return rule(chosen) if chosen else 0.0


def reference_vote(score, answer, outcome):
    totals, first = {}, {}
    for s, a, y in zip(score, answer, outcome, strict=True):
        if a >= 0:
            totals[a] = totals.get(a, 0.0) + s
            first.setdefault(a, y)
    return first[max(totals, key=totals.get)] if totals else 0.0  # max keeps the answer seen first


aggregate = jax.jit(metrics.aggregate_score, static_argnames="kind")
best_of_m = jax.jit(metrics.best_of_m, static_argnames="m")
first_error = jax.jit(metrics.predict_first_error)
f1 = jax.jit(metrics.processbench_f1)
auroc = jax.jit(metrics.step_auroc)
vote = jax.jit(metrics.weighted_vote)


@pytest.mark.parametrize("kind", ["product", "min", "mean", "last"])
def test_aggregates(kind):
    for seed in SEEDS:
        score, mask, _, _ = cases(seed)
        wanted = [reference_aggregate(s, m, kind) for s, m in zip(score, mask, strict=True)]
        np.testing.assert_allclose(aggregate(score, mask, kind=kind), wanted, rtol=2e-6)


def test_order_of_aggregates_and_steps_that_are_sure():
    for seed in SEEDS:
        score, mask, _, _ = cases(seed)
        product, low, mean, last = (aggregate(score, mask, kind=k) for k in ("product", "min", "mean", "last"))
        some = mask.any(-1)
        assert np.all(product <= low) and np.all((low <= mean + 1e-6)[some]) and np.all((low <= last)[some])
        sure = np.concatenate([score, np.ones((6, 1))], axis=1), np.concatenate([mask, some[:, None]], axis=1)
        np.testing.assert_array_equal(metrics.aggregate_score(*map(jnp.array, sure), "product"), product)
        np.testing.assert_array_equal(metrics.aggregate_score(*map(jnp.array, sure), "min"), low)
    with pytest.raises(ValueError, match="aggregate: 'max', wanted one of"):
        metrics.aggregate_score(jnp.ones(2), jnp.ones(2, bool), "max")


def test_first_errors_and_f1():
    for seed in SEEDS:
        score, mask, label, _ = cases(seed)
        predicted = first_error(score, mask, 0.5)
        wanted = [reference_first_error(s, m, 0.5) for s, m in zip(score, mask, strict=True)]
        np.testing.assert_array_equal(predicted, wanted)  # so padding never becomes a prediction
        found = f1(predicted, label)
        np.testing.assert_allclose(found[:3], reference_f1(wanted, label), rtol=1e-6)
        assert found.errors == np.sum(label >= 0) and found.corrects == np.sum(label < 0)
        a, b = found.error_accuracy, found.correct_accuracy
        assert min(a, b) <= found.f1 + 1e-6 and found.f1 <= 2 * min(a, b) + 1e-6
        high = np.asarray(first_error(score, mask, 0.8))
        assert np.all((high == predicted) | (predicted < 0) | ((high >= 0) & (high < predicted)))


def test_f1_of_extremes_and_of_an_unbalanced_class():
    label = jnp.array([0, 2, -1, -1])
    never = f1(jnp.full(4, -1), label)
    assert (float(never.f1), float(never.correct_accuracy), float(never.error_accuracy)) == (0.0, 1.0, 0.0)
    assert f1(jnp.array([0, 2, 0, 1]), label).f1 == 0.0
    assert f1(label, label).f1 == 1.0
    prediction = jnp.array([0, 1, -1, 0])
    often = metrics.processbench_f1(jnp.tile(prediction, 3)[:8], jnp.array([*label, *label]))
    thrice = jnp.concatenate([prediction, prediction[:2], prediction[:2]])
    assert often.f1 == f1(prediction, label).f1
    assert metrics.processbench_f1(thrice, jnp.concatenate([label, label[:2], label[:2]])).f1 == often.f1
    assert metrics.processbench_f1(thrice, jnp.full(8, -1), jnp.arange(8) < 4).errors == 0
    assert metrics.mean_f1([f1(label, label), never]) == 0.5
    with pytest.raises(ValueError, match="wanted one or more subsets"):
        metrics.mean_f1({})


def test_a_threshold_is_tuned_for_f1():
    score, mask, label, _ = cases(3, rows=40)
    grid = jnp.linspace(0, 1.1, 12)
    tuned = metrics.tune_threshold(jnp.array(score), jnp.array(mask), jnp.array(label), grid)
    by_hand = [
        reference_f1([reference_first_error(s, m, t) for s, m in zip(score, mask, strict=True)], label)[0]
        for t in np.asarray(grid)
    ]
    assert tuned == grid[int(np.argmax(by_hand))]


def test_critiques_vote_and_ties_go_to_the_smallest():
    most = jax.jit(metrics.majority_first_error)
    predictions = jnp.array([[2, 2, 1, 1], [3, -1, 3, -1], [4, 4, 0, 0], [1, 1, 1, 1]])
    parsed = jnp.array([[True] * 4, [True] * 4, [True, True, True, False], [False] * 4])
    assert most(predictions, parsed).tolist() == [1, -1, 4, -1]


def test_gap_between_outcome_and_process():
    outcome, label = jnp.array([1.0, 1.0, 0.0, jnp.nan]), jnp.array([2, -1, 1, 0])
    assert metrics.outcome_process_gap(outcome, label) == 0.5
    gap = metrics.best_of_n_process_gap(jnp.array([[0.1, 0.9], [0.9, 0.1]]), outcome.reshape(2, 2), label.reshape(2, 2))
    assert gap == 0.0
    assert metrics.best_of_n_process_gap(jnp.array([[0.9, 0.1]]), outcome[None, :2], label[None, :2]) == 1.0


def test_auroc_counts_pairs():
    for seed in SEEDS:
        score, mask, _, rng = cases(seed, rows=4)
        label = np.where(mask, rng.integers(0, 2, mask.shape), 0)
        right, wrong = score[mask & (label == 1)], score[mask & (label == 0)]
        pairs = [(a > b) + 0.5 * (a == b) for a in right for b in wrong]
        np.testing.assert_allclose(auroc(score, label, mask), np.mean(pairs) if pairs else 0.5, rtol=1e-5)
    many = np.random.default_rng(0).random(50_000)  # counts beyond the exact integers of float32
    assert auroc(many, many > 0.5, np.ones(50_000, bool)) == 1.0


def test_accuracy_of_steps_and_lowest_last():
    score, mask = jnp.array([[0.5, 0.2, jnp.nan], [0.9, 0.1, 0.3]]), jnp.array([[1, 1, 0], [1, 1, 1]], bool)
    assert metrics.step_accuracy(score, jnp.array([[1, 1, 0], [1, 0, 0]]), mask) == np.float32(4 / 5)
    assert metrics.share_min_last(score, mask) == 0.5
    assert metrics.share_min_last(score, mask & False) == 0.0


def test_votes_and_best_of_n():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        score, answer = rng.integers(1, 4, (3, 6)) / 4, rng.integers(-1, 3, (3, 6))
        outcome = rng.integers(0, 2, (3, 6)).astype(float)
        wanted = [reference_vote(*row) for row in zip(score, answer, outcome, strict=True)]
        np.testing.assert_array_equal(vote(score, answer, outcome), wanted)
        # Equal scores: majority vote. A one-hot score: best of n, if that answer was extracted.
        wanted = [reference_vote(np.ones(6), *row) for row in zip(answer, outcome, strict=True)]
        np.testing.assert_array_equal(vote(np.full((3, 6), 0.25), answer, outcome), wanted)
        hot = np.eye(6)[rng.integers(0, 6, 3)]
        consistent = np.array([[row.index(a) if a >= 0 else 0 for a in row] for row in answer.tolist()])
        graded = np.take_along_axis(outcome, consistent, 1)
        extracted = np.sum(hot * (answer >= 0), -1) > 0
        best = metrics.best_of_n(hot, graded)
        np.testing.assert_array_equal(vote(hot, answer, graded)[extracted], best[extracted])
        np.testing.assert_array_equal(metrics.best_of_n(outcome, outcome), metrics.pass_at_n(outcome))
        assert np.all(metrics.mean_at_n(jnp.array(outcome)) <= metrics.pass_at_n(jnp.array(outcome)))
    assert metrics.majority_vote(jnp.array([-1, -1]), jnp.ones(2)) == 0.0


def test_best_of_m_is_the_mean_over_all_subsets():
    for seed in SEEDS:
        rng = np.random.default_rng(seed)
        score, outcome = rng.permutation(6) / 6.0, rng.integers(0, 2, 6).astype(float)
        for m in range(1, 7):
            subsets = [list(s) for s in itertools.combinations(range(6), m)]
            wanted = np.mean([outcome[s][np.argmax(score[s])] for s in subsets])
            np.testing.assert_allclose(best_of_m(score, outcome, m=m), wanted, rtol=1e-5, atol=1e-7)
            np.testing.assert_allclose(best_of_m(score, np.ones(6), m=m), 1.0, rtol=1e-5)  # weights add up to 1
        np.testing.assert_allclose(best_of_m(score, outcome, m=1), metrics.mean_at_n(outcome), rtol=1e-6)
        assert best_of_m(score, outcome, m=6) == metrics.best_of_n(score, outcome)
    with pytest.raises(ValueError, match="m: 0, wanted at least 1"):
        metrics.best_of_m(jnp.ones(2), jnp.ones(2), 0)


def test_solutions_that_are_not_there_change_nothing():
    score, outcome = jnp.array([0.2, 0.9, 0.4]), jnp.array([1.0, 0.0, 1.0])
    answer = jnp.array([0, 1, 0])
    padded = [jnp.concatenate([x, jnp.full(2, fill, x.dtype)]) for x, fill in ((score, jnp.nan), (outcome, jnp.nan))]
    valid = jnp.arange(5) < 3
    for m in (1, 2, 3, 5):
        wanted = metrics.best_of_m(score, outcome, m)
        np.testing.assert_allclose(metrics.best_of_m(*padded, m, valid), wanted, rtol=1e-6)
    assert metrics.best_of_n(*padded, valid) == metrics.best_of_n(score, outcome) == 0.0
    more = jnp.concatenate([answer, jnp.array([1, 1])])
    assert metrics.majority_vote(more, padded[1], valid) == metrics.majority_vote(answer, outcome) == 1.0
    assert metrics.mean_at_n(padded[1], valid) == metrics.mean_at_n(outcome)
    assert metrics.best_of_n(padded[0], padded[1], valid & False) == 0.0
