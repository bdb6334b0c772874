"""FIPO's weight by the future log-ratio, and losses by where a rollout comes from: against float64 references."""

import dataclasses

import jax
from jax import numpy as jnp
import loss_references as ref
import numpy as np
import pytest

from creditjax import objectives as obj


def weights(lp, w, half_life=32.0, eps=0.2, high_only=True, safe=4.0, dual=10.0):
    out = np.ones(lp.shape)
    a = ref.advantage(w)
    for p, g in np.ndindex(ref.P, ref.G):
        future = 0.0
        for t in reversed(np.flatnonzero(w.mask[p, g])):
            d = np.clip(lp[p, g, t] - w.old[p, g, t], -20, 20)
            future = (d if d <= np.log(dual) else 0.0) + 2 ** (-1 / half_life) * future
            f = np.clip(np.exp(min(future, 50)), 1.0 if high_only else 1 - eps, 1 + eps)
            out[p, g, t] = np.clip(f, 0.8, 1.0) if a[p, g, t] < 0 and np.exp(d) > safe else f
    return out


def fipo(lp, frozen, w, eps_low=0.2, eps_high=0.28, dual=10.0, **options):
    weighted = ref.advantage(w) * weights(frozen, w, dual=dual, **options)
    return ref.clipped(np.exp(lp - w.old), weighted, eps_low, eps_high, dual)


@pytest.mark.parametrize(
    "options",
    [{}, {"eps": 0.5, "high_only": False, "half_life": 2.0}, {"half_life": 0.01}, {"half_life": 1e6, "eps": 0.1}],
)
def test_value_and_gradient_equal_the_reference(options):
    silent = 0
    for seed in range(8):
        w = ref.world(seed, spread=(0.1, 0.4, 1.2)[seed % 3])

        def loss(lp, w=w):
            return ref.aggregated(fipo(lp, w.new, w, dual=3.0, safe=1.5, **options), w.mask, "token_mean")

        objective = obj.future_kl(dual_clip=3.0, safe_ratio=1.5, **options)
        value, gradient, terms = ref.loss_and_gradient(objective, *w.inputs())
        np.testing.assert_allclose(value, loss(w.new), rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(gradient, ref.numeric_gradient(loss, w.new, w.mask), rtol=2e-4, atol=2e-6)
        mean = weights(w.new, w, dual=3.0, safe=1.5, **options)[w.mask].mean()
        np.testing.assert_allclose(obj.means(terms)["future_kl_weight"], mean, rtol=1e-5)
        silent += mean == 1.0
    assert silent < 4


def test_the_first_inner_step_is_dapo():
    w = ref.world(0)
    w.new = w.old.copy()
    fipo, dapo = obj.future_kl(), obj.clipped_surrogate(eps_high=0.28, dual_clip=10.0)
    ours, theirs = (ref.loss_and_gradient(objective, *w.inputs()) for objective in (fipo, dapo))
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


def test_runaway_rollouts_leave_numerator_and_count():
    w = ref.world(1, spread=1.5)
    new, credit, batch = w.inputs()
    objective = obj.future_kl(dual_clip=2.0, drop_runaway=True)
    kept = w.mask.copy()
    over = w.mask & (ref.advantage(w) < 0) & (w.new - w.old > np.log(2.0))
    kept[over.sum(axis=-1) > 1] = False
    assert kept.any() and (kept != w.mask).any() and (over.sum(axis=-1) == 1).any()
    prepared = ref.prepare(objective, new, credit, batch)
    np.testing.assert_array_equal(prepared.extras["loss_mask"], kept)
    value, _, terms = ref.loss_and_gradient(objective, new, prepared, batch)
    assert terms["policy"].count == kept.sum() == obj.counts(objective, prepared, batch)["policy"]
    loss = fipo(w.new, w.new, w, dual=2.0)
    np.testing.assert_allclose(value, ref.aggregated(loss, kept, "token_mean"), rtol=1e-5)
    assert "loss_mask" not in ref.prepare(obj.future_kl(), new, credit, batch).extras


def test_nothing_under_the_mask_is_read_and_extremes_are_finite():
    clean = ref.loss_and_gradient(obj.future_kl(), *ref.world(2).inputs(0.0))
    poisoned = ref.loss_and_gradient(obj.future_kl(), *ref.world(2).inputs(np.nan))
    for a, b in zip(jax.tree.leaves(clean), jax.tree.leaves(poisoned), strict=True):
        np.testing.assert_array_equal(a, b)
    far = ref.loss_and_gradient(obj.future_kl(), *ref.world(2, spread=300.0).inputs())
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(far))


def test_bad_bounds_are_refused():
    with pytest.raises(ValueError, match="half_life"):
        obj.future_kl(half_life=0.0)
    with pytest.raises(ValueError, match="dual_clip"):
        obj.future_kl(dual_clip=1.0)


# --------------------------------------------------------------------------------------------- fresh and replayed rows

OFF = np.array([[False, True], [False, True], [True, True]])
FRESH, REPLAYED = obj.clipped_surrogate(aggregation="seq_mean_token_mean"), obj.clipped_surrogate(ratio="sequence")


def mixed(seed):
    w = ref.world(seed)
    new, credit, batch = w.inputs()
    return w, new, credit, batch.with_signals(is_offpolicy=OFF)


@pytest.mark.parametrize("alpha", [1.0, 0.3])
def test_each_origin_has_its_own_denominator(alpha):
    for seed in range(3):
        w, new, credit, batch = mixed(seed)
        fresh, replayed = w.mask & ~OFF[..., None], w.mask & OFF[..., None]
        # A row that is not in a loss has no ratio in it.
        masked = dataclasses.replace(w, mask=replayed)

        def loss(lp, w=w, masked=masked, fresh=fresh, replayed=replayed):
            first = ref.aggregated(ref.ppo()(lp, w.new, w), fresh, "seq_mean_token_mean")
            second = ref.aggregated(ref.shared(False, False)(lp, w.new, masked), replayed, "token_mean")
            return first + alpha * second

        value, gradient, terms = ref.loss_and_gradient(obj.by_origin(FRESH, REPLAYED, alpha), new, credit, batch)
        np.testing.assert_allclose(value, loss(w.new), rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(gradient, ref.numeric_gradient(loss, w.new, w.mask), rtol=2e-4, atol=2e-6)
        assert terms["replay_policy"].count == replayed.sum()


def test_without_weight_or_without_replay_it_is_the_fresh_loss():
    _, new, credit, batch = mixed(0)
    alone = credit.with_extras(loss_mask=batch.action_mask & ~OFF[..., None])
    wanted = ref.loss_and_gradient(FRESH, new, alone, batch)
    got = ref.loss_and_gradient(obj.by_origin(FRESH, REPLAYED, 0.0), new, credit, batch)
    np.testing.assert_allclose(got[0], wanted[0], rtol=1e-6)
    np.testing.assert_array_equal(got[1], wanted[1])
    fresh = batch.with_signals(is_offpolicy=jnp.zeros_like(OFF))
    np.testing.assert_allclose(
        ref.loss_and_gradient(obj.by_origin(FRESH, REPLAYED), new, credit, fresh)[0],
        ref.loss_and_gradient(FRESH, new, credit, batch)[0],
        rtol=1e-6,
    )


def test_parts_of_a_mixed_batch_add_up():
    _, new, credit, batch = mixed(1)
    objective = obj.by_origin(FRESH, REPLAYED, 0.5)
    whole = ref.loss_and_gradient(objective, new, credit, batch)
    counts = obj.counts(objective, credit, batch)
    parts = [jax.tree.map(lambda x, p=p: x[p : p + 1], (new, credit, batch)) for p in range(ref.P)]
    results = [ref.loss_and_gradient(objective, *part, counts) for part in parts]
    np.testing.assert_allclose(sum(r[0] for r in results), whole[0], rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([r[1] for r in results]), whole[1], rtol=1e-6, atol=1e-7)


def test_the_origin_is_asked_for():
    new, credit, batch = ref.world(0).inputs()
    with pytest.raises(ValueError, match=r"is_offpolicy.*creditjax\.samplers\.replay"):
        obj.by_origin(FRESH, REPLAYED)(new, credit, batch)
    assert "is_offpolicy" in obj.by_origin(FRESH, REPLAYED).needs
