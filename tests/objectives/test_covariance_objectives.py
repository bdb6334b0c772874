"""Clip-Cov and KL-Cov: which tokens are chosen, and what becomes of them."""

import jax
from jax import numpy as jnp
import loss_references as ref
import numpy as np
import pytest

from creditjax import objectives as obj
from creditjax.objectives.covariance import SELECTED, largest


def covariance(w):
    a, lp = ref.advantage(w), w.new
    return (a - a[w.mask].mean()) * (lp - lp[w.mask].mean())


def top(score, candidates, count):
    index = [i for i in np.argsort(-score.ravel(), kind="stable") if candidates.ravel()[i]][:count]
    out = np.zeros(score.size, bool)
    out[index] = True
    return out.reshape(score.shape)


def gradient(*inputs):
    return ref.loss_and_gradient(*inputs)[1]


@pytest.mark.parametrize("fraction", [1e-4, 0.1, 0.5])
def test_clip_cov_silences_the_chosen_tokens(fraction):
    w = ref.world(0)
    new, credit, batch = w.inputs()
    objective = obj.clip_cov(fraction=fraction, lowest=0.1, highest=1.5)
    prepared = ref.prepare(objective, new, credit, batch)

    r, a, cov = np.exp(w.new - w.old), ref.advantage(w), covariance(w)
    clipped = ((a > 0) & (r > 1.2)) | ((a < 0) & (r < 0.8))
    candidates = w.mask & ~clipped & (cov > 0.1) & (cov < 1.5)
    chosen = top(cov, candidates, max(int(fraction * w.mask.sum()), 1))
    np.testing.assert_array_equal(prepared.extras[SELECTED], chosen)
    assert 0 < chosen.sum() <= candidates.sum()

    loss = np.where(chosen, 0.0, ref.ppo()(w.new, w.new, w))
    value, slope, _ = ref.loss_and_gradient(objective, new, prepared, batch)
    np.testing.assert_allclose(value, ref.aggregated(loss, w.mask, "token_mean"), rtol=1e-5)
    plain = gradient(obj.clipped_surrogate(), new, credit, batch)
    np.testing.assert_allclose(slope, np.where(chosen, 0.0, plain), rtol=1e-6, atol=1e-8)


def test_clip_cov_draws_among_the_candidates():
    w = ref.world(0)
    new, credit, batch = w.inputs()

    def draw(step):
        objective = obj.clip_cov(fraction=0.1, lowest=0.1, uniform=7)
        moved = batch.replace(tokens=batch.tokens + step)
        return np.asarray(ref.prepare(objective, new, credit, moved).extras[SELECTED])

    objective = obj.clip_cov(fraction=1.0, lowest=0.1)
    every = np.asarray(ref.prepare(objective, new, credit, batch).extras[SELECTED])
    draws = [draw(step) for step in range(20)]
    count = max(int(0.1 * w.mask.sum()), 1)
    assert all(d.sum() == count and not np.any(d & ~every) for d in draws)
    np.testing.assert_array_equal(np.any(draws, axis=0), every)  # fresh in every minibatch, and nobody is out of reach
    np.testing.assert_array_equal(draw(0), draws[0])


def test_kl_cov_penalises_the_chosen_tokens():
    w = ref.world(1)
    new, credit, batch = w.inputs()
    objective = obj.kl_cov(fraction=0.2, beta=0.5)
    prepared = ref.prepare(objective, new, credit, batch)
    chosen = top(covariance(w), w.mask, max(int(0.2 * w.mask.sum()), 1))
    np.testing.assert_array_equal(prepared.extras[SELECTED], chosen)

    def loss(lp):
        token = -ref.advantage(w) * np.exp(lp - w.old) + 0.5 * chosen * np.abs(lp - w.old)
        return ref.aggregated(token, w.mask, "token_mean")

    value, slope, _ = ref.loss_and_gradient(objective, new, prepared, batch)
    np.testing.assert_allclose(value, loss(w.new), rtol=1e-5)
    np.testing.assert_allclose(slope, ref.numeric_gradient(loss, w.new, w.mask), rtol=1e-4, atol=1e-7)


def test_count_is_exact_where_the_product_is_an_integer():
    """7e-4 of 10000 is 7, though the float32 nearest to 7e-4 lies below it."""
    assert np.floor(np.float32(7e-4) * np.float32(10000)) == 6
    shape = (2, 2, 2500)
    w = ref.world(0)
    new, credit, batch = w.inputs()
    new, credit, batch = jax.tree.map(lambda x: jnp.resize(x, shape) if x.ndim == 3 else x[:2], (new, credit, batch))
    batch = jax.tree.map(lambda x: jnp.ones(shape, bool) if x.dtype == bool else x, batch)
    for fraction, count in ((7e-4, 7), (1e-3, 10), (2.9e-4, 2), (1e-9, 1)):
        selected = ref.prepare(obj.kl_cov(fraction=fraction), new, credit, batch).extras[SELECTED]
        assert selected.sum() == count


def test_ties_go_to_the_earlier_position():
    score = jnp.array([[1.0, 2.0, 2.0], [2.0, 0.0, jnp.nan]])
    candidates = jnp.array([[1, 1, 1], [1, 1, 0]], bool)
    np.testing.assert_array_equal(largest(score, candidates, 2), [[0, 1, 1], [0, 0, 0]])
    np.testing.assert_array_equal(largest(score, candidates, 9), candidates)


def test_prepare_is_asked_for():
    new, credit, batch = ref.world(0).inputs()
    for objective in (obj.clip_cov(), obj.kl_cov(), obj.with_kl(obj.kl_cov())):
        with pytest.raises(ValueError, match=r"covariance_selected.*objective\.prepare"):
            objective(new, credit, batch)
        obj.counts(objective, ref.prepare(objective, new, credit, batch), batch)


def test_no_gradient_through_prepare():
    new, credit, batch = ref.world(0).inputs()
    objective = obj.with_kl(obj.kl_cov(fraction=0.3))

    @jax.jit
    @jax.grad
    def inside(lp):
        moved = new._replace(logprob=lp)
        return obj.total(objective(moved, objective.prepare(moved, credit, batch), batch))

    outside = gradient(objective, new, ref.prepare(objective, new, credit, batch), batch)
    np.testing.assert_allclose(inside(new.logprob), outside, rtol=1e-6)
