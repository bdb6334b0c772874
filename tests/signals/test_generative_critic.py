"""The loss of a generative critic: a float64 reference in loops, its gradient, and a critic that learns."""

import jax
from jax import numpy as jnp
import numpy as np
from oracles.batches import random_batch, to_trajectory
import pytest

from creditjax.signals import generative_critic_loss
from creditjax.trajectory import Trajectory


def reference(d, value, logprob):
    """Summed loss, number of draws, and the gradient at each log-probability."""
    loss, count, slope = 0.0, 0, np.zeros(value.shape)
    for p, g, k in np.ndindex(*value.shape[:3]):
        acts = d["action_mask"][p, g] & (d["segment"][p, g] == k)
        outcome = float(d["outcome"][p, g])
        if not acts.any() or not np.isfinite(outcome) or not d["votes"][p, g]:
            continue
        stated = [float(v) for v in value[p, g, k]]
        earned = [-1.0 if np.isnan(v) else -((min(max(v, 0.0), 1.0) - outcome) ** 2) for v in stated]
        for m, e in enumerate(earned):
            slope[p, g, k, m] = -(e - sum(earned) / len(earned))
            loss += slope[p, g, k, m] * float(logprob[p, g, k, m])
            count += 1
    return loss, count, slope


def test_loss_and_gradient_match_loops():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        d = random_batch(rng, outcome="binary")
        batch = to_trajectory(d, ())
        d["votes"] = np.asarray(batch.action_mask.any(-1) if batch.votes is None else batch.votes)
        shape = (*batch.batch_shape, batch.num_segments, 3)
        value = np.where(rng.random(shape) < 0.2, np.nan, rng.normal(0.5, 0.6, shape)).astype(np.float32)
        logprob = -rng.exponential(3.0, shape).astype(np.float32)
        wanted, count, slope = reference(d, value, logprob)
        (loss, draws), gradient = jax.jit(
            jax.value_and_grad(lambda x: generative_critic_loss(value, x, batch), has_aux=True)  # noqa: B023
        )(logprob)
        np.testing.assert_allclose(loss, wanted, rtol=1e-4, atol=1e-4)
        assert float(draws) == count
        np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-5)
        hidden = np.where(slope == 0, np.nan, logprob) if count else np.full(shape, np.nan)
        found = jax.grad(lambda x: generative_critic_loss(value, x, batch)[0])(hidden)  # noqa: B023
        assert np.isfinite(found).all()


def test_a_critic_with_bins_learns_the_chance_of_success():
    """Draws from 11 bins; 70 of 100 rollouts succeed, so the bin of 0.7 has the least squared error."""
    batch = Trajectory(
        tokens=np.zeros((1, 100, 1), np.int32),
        action_mask=np.ones((1, 100, 1), bool),
        segment=np.zeros((1, 100, 1), np.int32),
        num_segments=1,
        outcome=np.arange(100)[None] < 70.0,
    )
    bins = jnp.linspace(0, 1, 11)

    @jax.jit
    def step(logits, key):
        drawn = jax.random.categorical(key, logits, shape=(1, 100, 1, 8))

        def loss(logits):
            total, count = generative_critic_loss(bins[drawn], jax.nn.log_softmax(logits)[drawn], batch)
            return total / count

        return logits - 5.0 * jax.grad(loss)(logits)

    logits = jnp.zeros(11)
    for key in jax.random.split(jax.random.key(0), 300):
        logits = step(logits, key)
    said = jax.nn.softmax(logits) @ bins
    assert abs(float(said) - 0.7) < 0.05


def test_what_does_not_fit_is_named():
    d = random_batch(np.random.default_rng(0), outcome="binary")
    batch = to_trajectory(d, ())
    shape = (*batch.batch_shape, batch.num_segments, 2)
    with pytest.raises(ValueError, match="critic_logprob: shape"):
        generative_critic_loss(jnp.zeros(shape), jnp.zeros(shape[:-1]), batch)
    with pytest.raises(ValueError, match="segment: absent"):
        generative_critic_loss(jnp.zeros(shape), jnp.zeros(shape), batch.replace(segment=None, num_segments=0))
