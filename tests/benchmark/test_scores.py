"""The scores of the benchmark: what the oracle gets, what uniform credit gets, and what they ignore."""

from math import comb

import numpy as np
import pytest
from scipy import stats

from creditjax.benchmark import scores


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    true = np.round(rng.normal(size=(60, 7)), 1) * (rng.random((60, 7)) < 0.6)
    valid = rng.random((60, 7)) < 0.8
    return rng.normal(size=(60, 7)), true, valid


def everything(credit, true, valid):
    decisive = true != 0
    return (
        *scores.sign_accuracy(credit, true, valid),
        *scores.rank_correlation(credit, true, valid),
        scores.hit_at_m(credit, decisive, valid, 1),
        scores.hit_at_m(credit, decisive, valid, 3),
        scores.credit_mass(credit, decisive, valid),
    )


def test_the_oracle_gets_everything_right(case):
    _, true, valid = case
    decided = (valid & (true != 0)).any(1)
    varies = np.array([len(set(t[v])) > 1 for t, v in zip(true, valid, strict=True)])
    accuracy, zeros, spearman, kendall, one, three, mass = everything(true, true, valid)
    for score in (accuracy, one, three, mass):
        np.testing.assert_allclose(score, np.where(decided, 1.0, np.nan))
    np.testing.assert_allclose(zeros[decided], 0.0)
    np.testing.assert_allclose(spearman[varies], 1.0)
    np.testing.assert_allclose(kendall[varies], 1.0)


@pytest.mark.parametrize("m", [1, 3, 6])
def test_uniform_credit_gets_chance(m):
    for bifurcations in range(1, 6):
        decisive = np.arange(6)[None] < bifurcations
        credit, valid = np.full((1, 6), -0.3), np.ones((1, 6), bool)
        chance = 1 - comb(6 - bifurcations, m) / comb(6, m)
        np.testing.assert_allclose(scores.hit_at_m(credit, decisive, valid, m), chance)
        np.testing.assert_allclose(scores.credit_mass(credit, decisive, valid), bifurcations / 6)
        assert scores.rank_correlation(credit, decisive, valid) == (0.0, 0.0)


def test_no_score_depends_on_the_scale_or_on_steps_that_are_not_there(case):
    credit, true, valid = case
    credit = np.where(np.arange(7) == 2, 0.0, credit)
    plain = everything(credit, true, valid)
    hidden = everything(np.where(valid, 40 * credit, 1e6), np.where(valid, true, -9.0), valid)
    for one, other in zip(plain, hidden, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)


def test_correlations_are_those_of_scipy(case):
    credit, true, valid = case
    found = scores.rank_correlation(np.round(credit, 0), true, valid)
    for e in range(len(credit)):
        c, t = np.round(credit[e][valid[e]], 0), true[e][valid[e]]
        if len(c) < 2:
            assert np.isnan(found.spearman[e]) and np.isnan(found.kendall[e])
        elif len(set(c)) == 1 or len(set(t)) == 1:
            assert found.spearman[e] == found.kendall[e] == 0
        else:
            np.testing.assert_allclose(found.spearman[e], stats.spearmanr(c, t).statistic, atol=1e-6)
            np.testing.assert_allclose(found.kendall[e], stats.kendalltau(c, t).statistic, atol=1e-6)


def test_rounding_is_no_rank():
    valid, true = np.ones((1, 4), bool), np.array([[0.0, 1.0, 0.0, 0.0]])
    noisy = 0.7 + 1e-7 * np.arange(4)[None]
    assert scores.rank_correlation(noisy, true, valid) == (0.0, 0.0)
    np.testing.assert_allclose(scores.hit_at_m(noisy, true, valid, 1), 0.25)


def test_ties_are_worth_what_a_random_order_gives(case):
    _, true, valid = case
    rng = np.random.default_rng(1)
    credit = rng.integers(-1, 2, size=true.shape).astype(float)
    for m in (1, 2, 4):
        expected = scores.hit_at_m(credit, true != 0, valid, m)
        drawn = np.zeros(len(true))
        for _ in range(4000):
            key = np.where(valid, np.abs(credit), -1) + 1e-3 * rng.random(credit.shape)
            best = np.argsort(-key, axis=1)[:, :m]
            drawn += np.take_along_axis((true != 0) & valid, best, axis=1).any(1) / 4000
        known = np.isfinite(expected)
        np.testing.assert_allclose(drawn[known], expected[known], atol=0.04)
        np.testing.assert_array_equal(known, ((true != 0) & valid).any(1))


def test_zeros_are_counted_and_not_held_wrong():
    credit, true = np.array([[0.0, 0.0, 2.0, -1.0, 5.0]]), np.array([[1.0, -1.0, 1.0, 1.0, 1e-4]])
    found = scores.sign_accuracy(credit, true, np.ones((1, 5), bool))
    assert found == (0.5, 0.5)
    silent = scores.sign_accuracy(0 * credit, true, np.ones((1, 5), bool))
    assert np.isnan(silent.accuracy[0]) and silent.zeros[0] == 1
    np.testing.assert_allclose(scores.credit_mass(0 * credit, true > 0, np.ones((1, 5), bool)), 4 / 5)


def test_episodes_are_weighed_and_empty_ones_left_out():
    found = np.array([1.0, np.nan, 0.0, 9.0])
    assert scores.average(found, np.array([3.0, 5.0, 1.0, 0.0])) == 0.75
    assert np.isnan(scores.average(np.array([np.nan])))


def test_shapes_are_checked():
    with pytest.raises(ValueError, match=r"true: shape \[2, 3\], wanted \[2, 4\] like credit"):
        scores.rank_correlation(np.zeros((2, 4)), np.zeros((2, 3)), np.ones((2, 4), bool))
    with pytest.raises(ValueError, match=r"credit: shape \[4\], wanted \[E, K\]"):
        scores.credit_mass(np.zeros(4), np.zeros(4), np.ones(4))
    with pytest.raises(ValueError, match="m: 0, wanted at least 1"):
        scores.hit_at_m(np.zeros((1, 2)), np.ones((1, 2)), np.ones((1, 2)), 0)
