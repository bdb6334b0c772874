"""Splicing an intervention into a rollout, and the loss on what comes out."""

import jax
from jax import numpy as jnp
import numpy as np
from oracles.batches import random_batch, to_trajectory
import pytest

from creditjax.algebra.credit import Credit
from creditjax.models.base import PolicyOutput
from creditjax.objectives import counts, supervised, total, weighted_cloning
from creditjax.samplers import intervene

L = 3


def reference(d, p, g, step, z, keep_prefix=True, keep_suffix=False):
    """Tokens, training mask and segments of one spliced row, as lists; None without an error or an intervention."""
    length = d["action_mask"].shape[-1]
    own = [t for t in range(length) if d["action_mask"][p, g, t] and d["segment"][p, g, t] == step and step >= 0]
    if not own or not z:
        return None
    before, after = range(own[0]), range(own[-1] + 1, length) if keep_suffix else []
    tokens = [d["tokens"][p, g, t] for t in before] + list(z) + [d["tokens"][p, g, t] for t in after]
    mask = [bool(d["action_mask"][p, g, t]) and keep_prefix for t in before] + [True] * len(z) + [False] * len(after)
    return tokens, mask


@pytest.mark.parametrize("keep_prefix", [True, False])
@pytest.mark.parametrize("keep_suffix", [True, False])
def test_splice_agrees_with_lists(keep_prefix, keep_suffix):
    options = {"keep_prefix": keep_prefix, "keep_suffix": keep_suffix}
    splice = jax.jit(lambda *args: intervene.splice(*args, **options))
    found = 0
    for seed in range(10):
        d, rng = random_batch(np.random.default_rng(seed)), np.random.default_rng(seed)
        d["token_mask"] = np.flip(np.logical_or.accumulate(np.flip(d["action_mask"], -1), -1), -1)
        shape = d["outcome"].shape
        step = rng.integers(-1, 4, size=shape).astype(np.int32)
        size = rng.integers(0, L + 1, size=shape)
        z = rng.integers(5, 9, size=(*shape, L)).astype(np.int32)
        made = splice(to_trajectory(d, ("token_mask",)), step, z, np.arange(L) < size[..., None])
        assert made.tokens.shape == (*shape, 12 + L)
        for p, g in np.ndindex(shape):
            wanted = reference(d, p, g, step[p, g], z[p, g, : size[p, g]].tolist(), **options)
            mask = np.asarray(made.action_mask)[p, g]
            if wanted is None:
                assert not mask.any()
                continue
            tokens, trained = wanted
            there = np.asarray(made.signals["token_mask"])[p, g]
            got = np.asarray(made.tokens)[p, g]
            own = int(np.argmax(d["action_mask"][p, g] & (d["segment"][p, g] == step[p, g])))
            assert there[: own + size[p, g]].all()  # the prompt, the prefix and the intervention
            assert mask[: len(trained)].tolist() == trained and not mask[len(trained) :].any()
            assert (got[: len(tokens)] == tokens)[there[: len(tokens)]].all() and not there[len(tokens) :].any()
            assert (np.asarray(made.segment)[p, g][got >= 5] == step[p, g]).all()
            found += 1
    assert found > 15


def row(step, z, **options):
    """One prompt token, then four steps of one token."""
    from creditjax.trajectory import Trajectory

    batch = Trajectory(
        tokens=np.array([9, 1, 2, 3, 4]),
        action_mask=np.array([False, True, True, True, True]),
        outcome=0.0,
        segment=np.array([-1, 0, 1, 2, 3]),
        num_segments=4,
        signals={"token_mask": np.ones(5, bool)},
    )
    z = np.asarray(z, np.int32)
    return intervene.splice(batch, np.int32(step), z, np.ones(z.shape, bool), **options)


def test_by_hand():
    made = row(2, [7, 8])
    assert made.tokens.tolist() == [9, 1, 2, 7, 8, 0, 0]
    assert made.action_mask.tolist() == [False, True, True, True, True, False, False]
    assert made.segment.tolist() == [-1, 0, 1, 2, 2, -1, -1]
    made = row(2, [7, 8], keep_suffix=True)
    assert made.tokens.tolist() == [9, 1, 2, 7, 8, 4, 0] and made.segment.tolist() == [-1, 0, 1, 2, 2, 3, -1]
    assert made.action_mask.tolist() == [False, True, True, True, True, False, False]


def test_an_error_in_the_first_step_trains_the_intervention_alone():
    made = row(0, [7])
    assert made.tokens.tolist() == [9, 7, 0, 0, 0, 0]
    assert made.action_mask.tolist() == [False, True, False, False, False, False]


def test_the_original_step_as_intervention_is_a_truncated_rollout():
    made = row(2, [3])
    assert made.tokens[:4].tolist() == [9, 1, 2, 3] and made.action_mask[:4].tolist() == [False, True, True, True]


def test_shapes_that_do_not_fit_are_refused():
    batch = to_trajectory(random_batch(np.random.default_rng(0)), ())
    with pytest.raises(ValueError, match="first_error"):
        intervene.splice(batch, np.zeros(3, np.int32), np.zeros((3, 4, 2), np.int32), np.ones((3, 4, 2), bool))
    with pytest.raises(ValueError, match="segment"):
        intervene.splice(batch.replace(segment=None, num_segments=0), None, None, None)


def test_keep_is_whether_any_continuation_is_right():
    success = np.array([[0, 0, 1], [0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 1, 1]])
    step, mask = np.array([2, 2, -1, 0, 0]), np.ones((5, 2), bool)
    mask[3] = False
    gives = np.array([False] * 4 + [True])
    kept = intervene.keep(step, mask, gives, success)
    assert kept.tolist() == [True, False, False, False, False]
    before = np.zeros((5, 2))
    assert float(intervene.uplift(success, before, kept)) == pytest.approx(1 / 3)


def test_cloning_loss_and_gradient():
    rng = np.random.default_rng(0)
    d = random_batch(rng)
    batch = to_trajectory(d, ())
    weight = np.where(rng.random(d["action_mask"].shape) < 0.5, rng.random(d["action_mask"].shape), -1.0)
    credit = Credit(jnp.asarray(weight, jnp.float32), jnp.asarray(rng.random(weight.shape) < 0.8))
    logprob = np.where(d["action_mask"], -rng.exponential(size=weight.shape), np.nan)
    w = np.where(d["action_mask"] & np.asarray(credit.valid) & (weight > 0), weight, 0.0)

    @jax.jit
    @jax.value_and_grad
    def loss(x):
        return total(weighted_cloning()(PolicyOutput(x, x), credit, batch))

    value, gradient = loss(jnp.asarray(logprob, jnp.float32))
    assert value == pytest.approx(-np.where(w > 0, w * logprob, 0.0).sum() / w.sum(), rel=1e-5)
    np.testing.assert_allclose(gradient, -w / w.sum(), rtol=1e-5)
    # A part of the batch with the counts of the whole adds up to it.
    whole = counts(weighted_cloning(), credit, batch)
    parts = [jax.tree.map(lambda x, i=i: x[i : i + 1], (credit, batch)) for i in range(3)]
    summed = sum(
        total(weighted_cloning()(PolicyOutput(logprob[i : i + 1], None), c, b), whole) for i, (c, b) in enumerate(parts)
    )
    assert summed == pytest.approx(float(value), rel=1e-5)


def test_cloning_without_credit_is_supervised_training():
    d = random_batch(np.random.default_rng(3))
    batch = to_trajectory(d, ())
    new = PolicyOutput(d["logprob"], d["logprob"])
    assert float(total(weighted_cloning()(new, None, batch))) == pytest.approx(
        float(total(supervised()(new, None, batch))), rel=1e-6
    )
    nothing = batch.replace(action_mask=np.zeros_like(d["action_mask"]))
    assert float(total(weighted_cloning()(new, None, nothing))) == 0.0
