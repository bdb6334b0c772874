"""Objectives as values: hyperparameters are data, combinations are objectives, mistakes are named."""

import chex
import jax
from jax import numpy as jnp
import loss_references as ref
import numpy as np
import pytest

from creditjax import objectives as obj
from creditjax.models.base import PolicyOutput
from creditjax.objectives import Aggregation


def test_c39_another_float_is_not_another_program():
    inputs = ref.world(0).inputs()

    @jax.jit
    @chex.assert_max_traces(n=1)
    def loss(objective, *inputs):
        return obj.total(objective(*inputs))

    def made(eps, beta):
        return obj.with_value(obj.with_kl(obj.clipped_surrogate(eps_low=eps, dual_clip=2 + eps), beta), clip=eps)

    values = [float(loss(made(eps, beta), *inputs)) for eps, beta in ((0.1, 0.5), (0.2, 1), (np.float32(0.3), 0))]
    assert len(set(values)) == 3


def test_vmap_over_a_hyperparameter():
    inputs = ref.world(0).inputs()

    def loss(eps):
        return ref.loss_and_gradient(obj.clipped_surrogate(eps_high=eps), *inputs)[0]

    swept = jax.vmap(loss)(jnp.array([0.05, 0.2, 0.5]))
    single = [loss(eps) for eps in (0.05, 0.2, 0.5)]
    np.testing.assert_allclose(swept, single, rtol=1e-6)
    assert len(set(np.asarray(swept).tolist())) == 3


def test_a_combination_is_the_weighted_sum_of_its_terms():
    w = ref.world(0)
    new, credit, batch = w.inputs()
    objective = obj.with_value(
        obj.with_entropy(obj.with_kl(obj.clipped_surrogate(), beta=0.1), coefficient=0.02), coefficient=0.7, clip=0.3
    )
    moved = np.clip(w.value, w.old_value - 0.3, w.old_value + 0.3)
    value = 0.5 * np.maximum((w.value - w.target) ** 2, (moved - w.target) ** 2)
    assert np.any((value > 0.5 * (w.value - w.target) ** 2)[w.mask])  # the clip matters here

    def mean(x):
        return ref.aggregated(x, w.mask, "token_mean")

    right = (
        mean(ref.ppo()(w.new, w.new, w))
        + 0.1 * mean(ref.kl("k3")(w.new, w.new, w))
        - 0.02 * mean(w.entropy)
        + 0.7 * mean(value)
    )
    got, _, terms = ref.loss_and_gradient(objective, new, credit, batch)
    np.testing.assert_allclose(got, right, rtol=1e-5)
    np.testing.assert_allclose(terms["entropy"].sum, w.entropy[w.mask].sum(), rtol=1e-5)

    slopes = jax.jit(jax.grad(lambda new: obj.total(objective(new, credit, batch))))(new)
    numeric = ref.numeric_gradient(
        lambda v: (
            0.7
            * mean(
                0.5
                * np.maximum((v - w.target) ** 2, (np.clip(v, w.old_value - 0.3, w.old_value + 0.3) - w.target) ** 2)
            )
        ),
        w.value,
        w.mask,
    )
    np.testing.assert_allclose(slopes.value, numeric, rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose(slopes.entropy, np.where(w.mask, -0.02 / w.mask.sum(), 0), rtol=1e-6)
    assert not np.any(slopes.next_value)


def test_an_unclipped_value_loss_needs_no_old_value():
    w = ref.world(0)
    new, credit, batch = w.inputs()
    batch = batch.replace(signals={})
    got, *_ = ref.loss_and_gradient(obj.value(coefficient=1.0), new, credit, batch)
    np.testing.assert_allclose(got, 0.5 * np.mean((w.value - w.target)[w.mask] ** 2), rtol=1e-5)
    with pytest.raises(ValueError, match=r"needs `value`.*policy_probe"):
        obj.value(clip=0.2)(new, credit, batch)


def test_additions_are_aggregated_like_the_policy_loss():
    grpo = obj.clipped_surrogate(aggregation="seq_mean_token_mean")
    w = ref.world(0)
    _, credit, batch = w.inputs()
    counts = obj.counts(obj.with_value(obj.with_kl(grpo)), credit, batch)
    assert counts["policy"] == counts["kl"] == counts["value"] == w.mask.any(-1).sum()
    assert obj.counts(obj.with_kl(grpo, aggregation="token_mean"), credit, batch)["kl"] == w.mask.sum()


def test_two_parts_with_one_name_are_refused():
    with pytest.raises(ValueError, match="two parts have a term named 'policy'"):
        obj.combine(obj.policy_gradient(), obj.supervised())(*ref.world(0).inputs())


def test_an_objective_of_ones_own():
    @obj.objective()
    def squared(new, credit, batch, *, scale: float = 2.0, aggregation: Aggregation = "token_mean"):
        """Doc."""
        return {"squared": obj.Term(*obj.aggregate(scale * new.logprob**2, batch.action_mask, aggregation))}

    w = ref.world(0)
    new, credit, batch = w.inputs()
    np.testing.assert_allclose(
        obj.total(squared(scale=3)(new, credit, batch)), 3 * np.mean(w.new[w.mask] ** 2), rtol=1e-5
    )
    assert squared.__doc__ == "Doc." and jax.tree.leaves(squared()) == [np.float32(2.0)]


def test_supervised_needs_no_credit():
    w = ref.world(0)
    new, _, batch = w.inputs()
    value, *_ = ref.loss_and_gradient(obj.supervised(), new, None, batch)
    np.testing.assert_allclose(value, -np.mean(w.new[w.mask]), rtol=1e-5)
    assert obj.counts(obj.supervised(), None, batch)["policy"] == w.mask.sum()


def test_leading_axes_are_free():
    """[P, G, T], and the rows [T] one by one."""
    objective = obj.with_kl(obj.clipped_surrogate(ratio="segment", aggregation="seq_mean_token_mean"))
    inputs = ref.world(0).inputs()
    summed = None
    for p, g in np.ndindex(ref.P, ref.G):
        row = ref.loss_and_gradient(objective, *jax.tree.map(lambda x, p=p, g=g: x[p, g], inputs))[2]
        summed = row if summed is None else obj.add(summed, row)
    chex.assert_trees_all_close(summed, ref.loss_and_gradient(objective, *inputs)[2], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: obj.clipped_surrogate(eps_lo=0.2), TypeError, "no hyperparameter 'eps_lo'; did you mean eps_low"),
        (lambda: obj.clipped_surrogate(ratio="sequnce"), ValueError, "did you mean sequence"),
        (lambda: obj.clipped_surrogate(aggregation="token-mean"), ValueError, "did you mean token_mean"),
        (lambda: obj.clipped_surrogate(dual_clip=1.0), ValueError, "dual_clip = 1.0, wanted > 1.0"),
        (lambda: obj.clipped_surrogate(eps_low=-0.1), ValueError, "eps_low = -0.1, wanted >= 0"),
        (lambda: obj.clipped_surrogate(eps_low=float("nan")), ValueError, "eps_low = nan"),
        (lambda: obj.cispo(eps_low="0.2"), TypeError, "eps_low = '0.2', wanted a number"),
        (lambda: obj.cispo(eps_low=None), TypeError, "eps_low = None, wanted a number"),
        (lambda: obj.sapo(tau_positive=True), TypeError, "tau_positive = True, wanted a number"),
        (lambda: obj.kl(kind="k4"), ValueError, "kind = 'k4'; did you mean k3, k2, k1"),
        (lambda: obj.policy_gradient(aggregation=Aggregation("token_mean", 8)), ValueError, "length 8"),
    ],
)
def test_bad_hyperparameters_fail_before_anything_is_traced(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_missing_inputs_are_named():
    new, credit, batch = ref.world(0).inputs()
    bare = batch.replace(logprob=None, segment=None, signals={})
    for objective, message in (
        (obj.clipped_surrogate(), r"clipped_surrogate needs `logprob` \[..., T\]"),
        (obj.kl(), r"kl needs `logprob_ref`.*policy_probe"),
    ):
        with pytest.raises(ValueError, match=message):
            objective(new, credit, bare)
    with pytest.raises(ValueError, match="needs `segment`"):
        obj.clipped_surrogate(ratio="segment")(new, credit, batch.replace(segment=None))
    with pytest.raises(ValueError, match="no value head"):
        obj.value()(PolicyOutput(new.logprob, new.entropy), credit, batch)
    with pytest.raises(ValueError, match="needs `value_target`"):
        obj.value()(new, credit.replace(extras={}), batch)
