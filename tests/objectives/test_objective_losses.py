"""Every objective against its float64 reference in value and gradient, and against the promises all objectives make."""

import functools

import chex
import jax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import loss_references as ref
from loss_references import loss_and_gradient
import numpy as np
import pytest

from creditjax import objectives as obj
from creditjax.objectives import Aggregation

L = Aggregation("seq_mean_token_sum_norm", 16)

# name: objective, reference of its policy term, aggregation, extras that the batch carries
POLICY = {
    "ppo": (obj.clipped_surrogate(dual_clip=3.0), ref.ppo(dual=3.0), ("token_mean",), ()),
    "grpo": (obj.clipped_surrogate(aggregation="seq_mean_token_mean"), ref.ppo(), ("seq_mean_token_mean",), ()),
    "dr_grpo": (obj.clipped_surrogate(aggregation=L), ref.ppo(), L, ()),
    "dapo": (obj.clipped_surrogate(eps_high=0.28, dual_clip=1.3), ref.ppo(0.2, 0.28, 1.3), ("token_mean",), ()),
    "gspo": (
        obj.clipped_surrogate(ratio="sequence", eps_low=0.03, eps_high=0.04, aggregation="seq_mean_token_mean"),
        ref.shared(False, False, 0.03, 0.04),
        ("seq_mean_token_mean",),
        (),
    ),
    "sequence_product": (
        obj.clipped_surrogate(ratio="sequence_product", aggregation="seq_mean_token_mean"),
        ref.shared(False, True),
        ("seq_mean_token_mean",),
        (),
    ),
    "segment": (obj.clipped_surrogate(ratio="segment"), ref.shared(True, False), ("token_mean",), ()),
    "segment_product": (obj.clipped_surrogate(ratio="segment_product"), ref.shared(True, True), ("token_mean",), ()),
    "clip_scale": (obj.clipped_surrogate(), ref.ppo(scaled=True), ("token_mean",), ("clip_scale",)),
    "loss_weight": (
        obj.clipped_surrogate(),
        lambda lp, frozen, w: w.loss_weight * ref.ppo()(lp, frozen, w),
        ("token_mean",),
        ("loss_weight",),
    ),
    "reinforce": (
        obj.policy_gradient(aggregation="seq_mean_token_sum"),
        ref.gradient_only,
        ("seq_mean_token_sum",),
        (),
    ),
    "gpg": (obj.policy_gradient(), ref.gradient_only, ("token_mean",), ()),
    "cispo": (obj.cispo(), ref.cispo(), ("token_mean",), ()),
    "sapo": (obj.sapo(), ref.sapo(), ("seq_mean_token_mean",), ()),
    "geometric_mean": (obj.geometric_mean(), ref.geometric_mean(), ("seq_mean_token_mean",), ()),
    "supervised": (obj.supervised(), lambda lp, frozen, w: -lp, ("token_mean",), ()),
}
KL = {
    f"kl_{kind}": (obj.kl(beta=1.0, kind=kind, aggregation="seq_mean_token_mean"), ref.kl(kind))
    for kind in ("k1", "abs", "k2", "k3", "k1+", "k3+")
}
KL = {name: (*row, ("seq_mean_token_mean",), ()) for name, row in KL.items()}
EVERY = {
    **{name: (row[0], row[3]) for name, row in {**POLICY, **KL}.items()},
    "clip_cov": (obj.clip_cov(fraction=0.1, lowest=0.0), ()),
    "clip_cov_uniform": (obj.clip_cov(fraction=0.1, lowest=0.0, uniform=3), ()),
    "kl_cov": (obj.kl_cov(fraction=0.2), ()),
    "everything": (
        obj.with_value(obj.with_entropy(obj.with_kl(obj.clipped_surrogate(), 0.1)), clip=0.2),
        ("clip_scale", "loss_weight"),
    ),
}


counts_of = jax.jit(obj.counts)


def prepared(name, seed=0, poison=np.nan, spread=0.4):
    objective, extras = EVERY[name]
    w = ref.world(seed, spread)
    new, credit, batch = w.inputs(poison, **{extra: getattr(w, extra) for extra in extras})
    return objective, new, ref.prepare(objective, new, credit, batch), batch


@pytest.mark.parametrize("name", [*POLICY, *KL])
def test_value_and_gradient_equal_the_reference(name):
    objective, reference, how, extras = {**POLICY, **KL}[name]
    for seed in range(3):
        w = ref.world(seed)

        def loss(lp, w=w):
            return ref.aggregated(reference(lp, w.new, w), w.mask, *how)

        value, gradient, _ = loss_and_gradient(objective, *w.inputs(**{extra: getattr(w, extra) for extra in extras}))
        np.testing.assert_allclose(value, loss(w.new), rtol=2e-5, atol=2e-6)
        np.testing.assert_allclose(gradient, ref.numeric_gradient(loss, w.new, w.mask), rtol=2e-4, atol=2e-6)
        assert np.any(gradient != 0)


@pytest.mark.parametrize("name", EVERY)
def test_parts_add_up_to_the_whole(name):
    """Case C27: micro-batches give the loss, the terms and the gradient of the whole batch."""
    objective, new, credit, batch = prepared(name)
    whole, whole_gradient, whole_terms = loss_and_gradient(objective, new, credit, batch)
    counts = counts_of(objective, credit, batch)
    chex.assert_trees_all_equal(counts, {name: term.count for name, term in whole_terms.items()})
    parts = [jax.tree.map(lambda x, p=p: x[p : p + 1], (new, credit, batch)) for p in range(ref.P)]
    results = [loss_and_gradient(objective, *part, counts) for part in parts]
    np.testing.assert_allclose(sum(r[0] for r in results), whole, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(np.concatenate([r[1] for r in results]), whole_gradient, rtol=1e-6, atol=1e-7)
    summed = functools.reduce(obj.add, [terms for *_, terms in results])
    chex.assert_trees_all_close(obj.means(summed), obj.means(whole_terms), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_under_the_mask_is_read(name):
    """Cases C05, C20, C28: NaN and inf there change no bit of the loss, and have gradient exactly 0."""
    clean = loss_and_gradient(*prepared(name, poison=0.0))
    for poison in (np.nan, np.inf, -800.0):
        objective, new, credit, batch = prepared(name, poison=poison)
        poisoned = loss_and_gradient(objective, new, credit, batch)
        chex.assert_trees_all_equal(poisoned, clean)
        assert not np.any(np.asarray(poisoned[1])[~np.asarray(batch.action_mask)])
    assert np.isfinite(clean[0])


@pytest.mark.parametrize("name", EVERY)
def test_extreme_policies_stay_finite(name):
    """Case C25 at large: log-ratios of some hundreds in either direction."""
    objective, new, credit, batch = prepared(name, spread=300.0)
    value, gradient, terms = loss_and_gradient(objective, new, credit, batch)
    chex.assert_tree_all_finite((value, gradient, terms))


@pytest.mark.parametrize("name", EVERY)
def test_only_the_policy_carries_gradients(name):
    """Case C22: none through credit, behaviour, reference or what the estimator passes on."""
    objective, new, credit, batch = prepared(name)

    def loss(value, extras, logprob, signals):
        floats = {**credit.extras, **extras}
        moved = credit.replace(value=value, extras=floats)
        return obj.total(objective(new, moved, batch.replace(logprob=logprob, signals=signals)))

    extras = {k: v for k, v in credit.extras.items() if v.dtype == jnp.float32}
    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(credit.value, extras, batch.logprob, batch.signals)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("name", ["dapo", "gspo", "sapo", "kl_cov", "everything"])
def test_loss_mask_drops_prompts_from_loss_and_counts(name):
    """A dropped prompt is as good as absent; it does not merely weigh 0."""
    objective, extras = EVERY[name]
    w = ref.world(1)
    new, credit, batch = w.inputs(**{extra: getattr(w, extra) for extra in extras})
    keep = np.array([True, False, True])
    dropped = credit.with_extras(loss_mask=batch.action_mask & keep[:, None, None])
    dropped = ref.prepare(objective, new, dropped, batch)
    kept_new, kept_credit, kept_batch = jax.tree.map(lambda x: x[keep], (new, credit, batch))
    kept_credit = ref.prepare(objective, kept_new, kept_credit, kept_batch)
    full = loss_and_gradient(objective, new, dropped, batch)
    kept = loss_and_gradient(objective, kept_new, kept_credit, kept_batch)
    np.testing.assert_allclose(full[0], kept[0], rtol=1e-6)
    np.testing.assert_allclose(np.asarray(full[1])[keep], kept[1], rtol=1e-6, atol=1e-8)
    assert not np.any(np.asarray(full[1])[~keep])
    chex.assert_trees_all_close({n: t.count for n, t in full[2].items()}, {n: t.count for n, t in kept[2].items()})


@pytest.mark.parametrize("name", ["segment", "kl_cov"])
def test_shards_do_not_change_the_loss(name):
    objective, extras = EVERY[name]
    ws = [ref.world(seed) for seed in range(4)]
    inputs = [w.inputs(**{extra: getattr(w, extra) for extra in extras}) for w in ws]
    new, credit, batch = jax.tree.map(lambda *x: jnp.concatenate(x)[:8], *inputs)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    sharding = NamedSharding(mesh, PartitionSpec("data"))

    @jax.jit
    def step(objective, new, credit, batch):
        return loss_and_gradient(objective, new, ref.prepare(objective, new, credit, batch), batch)

    single = step(objective, new, credit, batch)
    sharded = step(objective, *jax.device_put((new, credit, batch), sharding))
    chex.assert_trees_all_close(sharded, single, rtol=1e-5, atol=1e-6)


def test_a_batch_without_actions_has_loss_and_gradient_zero():
    for name in ("ppo", "gspo", "geometric_mean", "kl_cov", "everything"):
        objective, extras = EVERY[name]
        w = ref.world(0)
        w.mask[:] = False
        new, credit, batch = w.inputs(**{extra: getattr(w, extra) for extra in extras})
        value, gradient, _ = loss_and_gradient(objective, new, ref.prepare(objective, new, credit, batch), batch)
        assert value == 0 and not np.any(gradient)


def test_unassigned_credit_has_no_loss_but_counts():
    w = ref.world(0)
    new, credit, batch = w.inputs()
    value, gradient, terms = loss_and_gradient(obj.clipped_surrogate(), new, credit, batch)
    assert terms["policy"].count == w.mask.sum() > (w.mask & w.valid).sum()
    assert not np.any(np.asarray(gradient)[w.mask & ~w.valid])
    poisoned = credit.replace(value=jnp.where(credit.valid, credit.value, jnp.nan))
    chex.assert_trees_all_equal(loss_and_gradient(obj.clipped_surrogate(), new, poisoned, batch)[0], value)


def test_diagnostics_are_what_they_say():
    w = ref.world(2)
    _, _, terms = loss_and_gradient(obj.clipped_surrogate(dual_clip=1.3), *w.inputs())
    shown = {name: float(mean) for name, mean in obj.means(terms).items()}
    r, a = np.exp(w.new - w.old)[w.mask], ref.advantage(w)[w.mask]
    bound = ((a > 0) & (r > 1.2)) | ((a < 0) & ((r < 0.8) | (r > 1.3)))
    assert 0 < bound.mean() < 1
    np.testing.assert_allclose(shown["clip_fraction"], bound.mean(), rtol=1e-6)
    np.testing.assert_allclose(shown["ratio"], r.mean(), rtol=1e-5)
    np.testing.assert_allclose(shown["kl_behaviour"], (r - np.log(r) - 1).mean(), rtol=1e-4)
    assert all(term.weight == 0 for name, term in terms.items() if name != "policy")


def test_diagnostics_do_not_enter_the_loss_even_when_infinite():
    terms = {
        "policy": obj.Term(jnp.float32(3.0), jnp.float32(2.0)),
        "far": obj.diagnostic(jnp.array(jnp.inf), jnp.array(True)),
    }
    assert obj.total(terms) == 1.5
