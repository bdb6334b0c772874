"""Where labels of steps come from: roll-outs and a judge that agree, completed gradings, truth tables."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.process import labels, logic
from creditjax.process.metrics import predict_first_error

consensus = jax.jit(labels.consensus, static_argnames="soft")
complete = jax.jit(labels.complete_labels, static_argnames="missing_as_outcome")


def cases(seed, rows=8, steps=5):
    rng = np.random.default_rng(seed)
    mask = np.arange(steps) < rng.integers(0, steps + 1, rows)[:, None]
    value = np.where(mask, rng.choice([0.0, 0.25, 0.5, 1.0], mask.shape), np.nan)
    judged = np.array([rng.choice(np.append(np.flatnonzero(m), -1)) for m in mask])
    return value, mask, judged


@pytest.mark.parametrize("soft", [False, True])
def test_consensus_against_a_loop(soft):
    for seed in range(20):
        value, mask, judged = cases(seed)
        found = consensus(value, judged, mask, 0.25, soft=soft)
        for b, row in enumerate(value):
            first = next((k for k in range(len(row)) if mask[b, k] and row[k] <= 0.25), -1)
            assert found.first_error[b] == first and found.keep[b] == (first == judged[b])
            for k in range(len(row)):
                valid = mask[b, k] and first == judged[b] and (first < 0 or k <= first)
                assert found.labels.valid[b, k] == valid
                assert found.labels.label[b, k] == ((row[k] if soft else k != first) if valid else 0)
        hard = consensus(value, judged, mask, 0.25).labels
        assert np.all(np.sum(hard.valid & (hard.label == 0), -1) <= 1)


def test_a_judge_that_equals_the_rollouts_keeps_everything():
    value, mask, judged = cases(0)
    first = consensus(value, judged, mask).first_error
    assert np.all(consensus(value, first, mask).keep)
    later = np.asarray(consensus(value, judged, mask, 0.5).first_error)
    assert np.all((first < 0) | ((later >= 0) & (later <= first)))  # a higher threshold moves it earlier


def test_independent_annotators_agree_on_one_in_k():
    rng = np.random.default_rng(0)
    first, judged = rng.integers(0, 4, (2, 4000))
    value = np.arange(4) < first[:, None]
    kept = consensus(value.astype(float), judged, np.ones((4000, 4), bool)).keep
    assert abs(np.mean(kept) - 1 / 4) < 3 * np.sqrt(3 / 16 / 4000)


def test_rollouts_give_values():
    success = jnp.array([[1.0, 0.0, jnp.nan], [jnp.nan] * 3])
    value = labels.monte_carlo_value(success, jnp.array([[True, True, False], [False] * 3]))
    assert value[0] == 0.5 and jnp.isnan(value[1])


def test_gradings_are_completed():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        _, mask, _ = cases(seed)
        judged = rng.choice([0.0, 1.0, np.nan], mask.shape)
        outcome = rng.integers(0, 2, len(mask)).astype(float)
        for as_outcome in (False, True):
            found = complete(judged, outcome, mask, missing_as_outcome=as_outcome)
            for b in range(len(mask)):
                last = max(np.flatnonzero(mask[b]), default=-1)
                for k in range(mask.shape[1]):
                    said = judged[b, k] if not np.isnan(judged[b, k]) else outcome[b] if as_outcome else 0.0
                    wanted = 0.0 if not mask[b, k] else outcome[b] if k == last else said
                    assert found.label[b, k] == wanted and found.valid[b, k] == mask[b, k]
    assert complete(jnp.ones((1, 3)), jnp.ones(1), jnp.ones((1, 3), bool)).label.tolist() == [[1, 1, 1]]
    # No monotonicity: a step after a wrong one may be right.
    assert complete(jnp.array([0.0, 1.0, 0.0]), jnp.array(1.0), jnp.ones(3, bool)).label.tolist() == [0, 1, 1]


def test_pairs_take_the_first_of_equals_and_need_a_gap():
    label = jnp.array([[[1, 0], [1, 1], [1, 1], [0, 0]], [[1, 0], [0, 1], [1, 0], [0, 1]]], jnp.float32)
    valid = jnp.ones(label.shape, bool)
    pairs = labels.label_pairs(labels.StepLabels(label, valid))
    assert (pairs.chosen.tolist(), pairs.rejected.tolist(), pairs.valid.tolist()) == ([1, 0], [3, 0], [True, False])
    dropped = valid.at[0, 3].set(False)
    assert labels.label_pairs(labels.StepLabels(label, dropped)).rejected[0] == 0
    assert not labels.label_pairs(labels.StepLabels(label, valid & False)).valid.any()


def test_matching_labels_what_has_a_counterpart():
    similarity = jnp.array([[0.9, 0.8], [0.7, 0.1], [0.3, 0.4]])
    there = jnp.array([True, True, True]), jnp.array([True, True])
    # One to one: step 0 goes to reference 1 so that step 1 can have reference 0.
    assert labels.matched_labels(similarity, *there).tolist() == [1, 1, 0]
    assert labels.matched_labels(similarity, *there, 0.75).tolist() == [1, 0, 0]


def test_entailment_is_what_a_truth_table_says():
    columns = logic.assignments(3).T
    a, b, c = columns
    table = [dict(zip("abc", row, strict=True)) for row in np.asarray(columns.T)]
    assert len({tuple(row.values()) for row in table}) == 8
    premises = jnp.stack([a | b, ~b | c])
    for conclusion, formula in ((a | c, lambda r: r["a"] or r["c"]), (c, lambda r: r["c"]), (a, lambda r: r["a"])):
        models = [row for row in table if (row["a"] or row["b"]) and (not row["b"] or row["c"])]
        assert bool(logic.entails(premises, conclusion)) == all(formula(row) for row in models)
    assert logic.entails(premises, premises[1])  # a premise repeated
    assert logic.entails(jnp.stack([a, ~a]), b)  # ex falso
    assert not logic.entails(premises, a, jnp.array([False, False]))
    assert logic.entails(premises, a | ~a, jnp.array([False, False]))
    with pytest.raises(ValueError, match="variables: 17, wanted 1 to 16"):
        logic.assignments(17)


def test_a_derivation_builds_on_what_was_derived():
    a, b, c = logic.assignments(3).T
    premises = jnp.stack([a, ~a | b])
    steps = jnp.stack([b, c, c & b, a & b])
    assert logic.judge_steps(premises, steps).tolist() == [True, False, False, True]
    assert logic.judge_steps(premises, steps, trust=True).tolist() == [True, False, True, True]


def test_cuts_end_in_a_wrong_step_half_of_the_time():
    label = jnp.array([[1.0, 1, 1, 0], [1, 0, 0, 1], [1, 1, 1, 1]])
    valid = jnp.ones((3, 4), bool).at[1, 3].set(False)
    cut = logic.balanced_cuts(jax.random.key(0), label, valid, 4000)
    np.testing.assert_array_equal(label[cut.row, cut.step] > 0.5, cut.right)
    assert abs(np.mean(cut.right) - 0.5) < 3 * 0.5 / np.sqrt(4000)
    assert valid[cut.row, cut.step].all()
    wrong = np.asarray(~cut.right)
    assert set(np.unique(cut.row[wrong])) == {0, 1}  # a solution without a wrong step serves the other class alone
    assert abs(np.mean(np.asarray(cut.row)[wrong] == 0) - 0.5) < 0.05  # a solution, then one of its steps
    only = logic.only_step(cut, 4)
    assert np.all(np.sum(only, -1) == 1)
    right_only = logic.balanced_cuts(jax.random.key(0), jnp.ones((2, 3)), jnp.ones((2, 3), bool), 20)
    assert right_only.right.all()
    wrong_only = logic.balanced_cuts(jax.random.key(0), jnp.zeros((2, 3)), jnp.ones((2, 3), bool), 20)
    assert not wrong_only.right.any()


def test_first_errors_of_hard_labels_are_those_of_scores():
    for pattern in itertools.product([0.0, 1.0], repeat=3):
        assert predict_first_error(jnp.array(pattern), jnp.ones(3, bool)) == next(
            (k for k, y in enumerate(pattern) if y == 0), -1
        )
