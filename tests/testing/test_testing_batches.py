"""Random batches are as irregular as they say, valid where they are read, and the same for the same seed."""

import hypothesis
import jax
import numpy as np
import pytest

import creditjax as cj
from creditjax import testing
from creditjax.testing import strategies
from creditjax.trajectory import FIELDS, SIGNALS, signal_spec

EVERYTHING = (*FIELDS, *SIGNALS)


def test_carries_every_field_and_signal_that_is_declared():
    batch = testing.random_batch(0, needs=EVERYTHING)
    assert {name for name in EVERYTHING if batch.get(name) is None} == set()
    for name, x in batch.signals.items():
        assert str(x.dtype) == signal_spec(name).dtype and x.ndim == len(signal_spec(name).axes)


@pytest.mark.parametrize("seed", range(10))
def test_tidy_batches_have_no_fault_and_hostile_ones_differ_only_where_nothing_is_read(seed):
    tidy = testing.random_batch(seed, (3, 4, 9), needs=EVERYTHING, hostile=False, degenerate=False)
    assert cj.validate(tidy) == []
    hostile = testing.random_batch(seed, (3, 4, 9), needs=EVERYTHING, degenerate=False)
    mask = hostile.action_mask
    for name in ("logprob", "value", "entropy", "logprob_ref"):
        assert np.isfinite(hostile.get(name)[mask]).all()
    assert (hostile.logprob[mask] <= 0).all() and (hostile.signals["entropy"][mask] >= 0).all()


def test_everything_irregular_happens():
    batches = [testing.random_batch(seed, needs=(*FIELDS, "token_mask", "value")) for seed in range(60)]
    acted = np.stack([batch.action_mask for batch in batches])
    there = np.stack([batch.signals["token_mask"] for batch in batches])
    score = np.stack([batch.outcome for batch in batches])
    assert not (acted & ~there).any()
    alive = acted.any(-1)
    assert len(np.unique(acted.sum(-1))) > 6, "ragged"
    gaps = there & ~acted
    assert (gaps[..., 1:] & np.logical_or.accumulate(acted, -1)[..., :-1]).any(), "observed after acting"
    assert (~alive & ~there.any(-1)).any() and (~alive & there.any(-1)).any(), "missing rows and silent ones"
    assert np.isnan(score).any() and (np.ptp(score, axis=-1) == 0).any(), "unscored rows and constant groups"
    assert any(np.isnan(x.signals["value"]).any() and np.isinf(x.signals["value"]).any() for x in batches)
    owned = np.stack([(x.segment[..., None] == np.arange(4)).any(-2) for x in batches])
    assert (~owned[..., :3] & owned[..., 1:]).any(), "empty segments"
    assert any((x.trajectory != np.arange(3)).any() for x in batches)
    assert any(x.terminated.any() and x.truncated.any() for x in batches)
    starts = [(x.tokens[:, 1:, :4] == x.tokens[:, :-1, :4]).all(-1) for x in batches]
    assert np.mean(starts) > 0.1, "siblings that begin alike"


def test_the_same_seed_gives_the_same_batch():
    a, b, c = (testing.random_batch(seed, needs=EVERYTHING) for seed in (3, 3, 4))
    jax.tree.map(np.testing.assert_array_equal, a, b)
    assert any(
        (np.asarray(x) != np.asarray(y)).any() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(c), strict=True)
    )


@pytest.mark.parametrize("outcome", ["binary", "unit", "real"])
def test_outcomes(outcome):
    score = testing.random_batch(1, (9, 9, 2), outcome=outcome, degenerate=False).outcome
    assert {
        "binary": set(np.unique(score)) == {0, 1},
        "unit": 0 <= score.min() < score.max() <= 1,
        "real": score.min() < 0,
    }[outcome]


def test_bad_requests_are_refused():
    with pytest.raises(ValueError, match="wanted at least 1 each"):
        testing.random_batch(0, (0, 1, 1))
    with pytest.raises(ValueError, match="wanted one of any"):
        testing.random_batch(0, outcome="graded")
    with pytest.raises(KeyError, match="values"):
        testing.random_batch(0, needs=("values",))


def test_take():
    batch = testing.random_batch(0, needs=EVERYTHING)
    part = testing.take(batch, "rollouts", np.array([2, 0]))
    np.testing.assert_array_equal(part.outcome, batch.outcome[:, [2, 0]])
    np.testing.assert_array_equal(part.signals["greedy_outcome"], batch.signals["greedy_outcome"])
    part = testing.take(part, "positions", np.arange(4))
    assert part.length == 4 and part.signals["observation"].shape == (3, 2, 4, 2)


@hypothesis.given(strategies.trajectories(needs=("reward", "segment", "value", "potential")))
def test_strategy_gives_batches_that_an_estimator_takes(batch):
    assert isinstance(batch, cj.Trajectory) and batch.tokens.shape in strategies.SHAPES
    assert {"value", "potential"} <= set(batch.signals) and batch.reward is not None
    assert not (batch.segment >= batch.num_segments).any()


def test_strategy_shrinks_to_the_smallest_shape():
    found = hypothesis.find(strategies.trajectories(), lambda batch: batch.action_mask.any())
    assert found.tokens.shape == (1, 1, 1)
