"""Fault cases that users of other libraries met, and the identities on the method cards."""

import jax
from jax import numpy as jnp
import loss_references as ref
from loss_references import Credit
import numpy as np
import pytest

from creditjax import Trajectory
from creditjax import objectives as obj
from creditjax.kernels import losses, ratios
from creditjax.models.base import PolicyOutput
from creditjax.objectives import Aggregation


def one_row(log_ratio, advantage, mask=None):
    """A batch of one rollout ``[1, 1, T]`` with given log-ratios: behaviour log-probabilities are -1."""
    log_ratio = jnp.asarray(log_ratio, jnp.float32)[None, None]
    mask = jnp.ones(log_ratio.shape, bool) if mask is None else jnp.asarray(mask, bool)[None, None]
    batch = Trajectory(jnp.zeros(mask.shape, jnp.int32), mask, jnp.zeros((1, 1)), logprob=-jnp.ones(mask.shape))
    value = jnp.broadcast_to(jnp.asarray(advantage, jnp.float32), mask.shape)
    new = PolicyOutput(log_ratio - 1.0, jnp.zeros(mask.shape))
    return new, Credit(value, mask), batch


def loss_of(objective, new, credit, batch):
    return ref.loss_and_gradient(objective, new, credit, batch)[:2]


def test_c22_objective_as_a_function_of_credit_is_flat():
    new, credit, batch = one_row([0.1, -0.2], [1.0, 2.0])

    @jax.grad
    def slope(value):
        return loss_of(obj.clipped_surrogate(), new, credit.replace(value=value), batch)[0]

    assert not np.any(slope(credit.value))


def test_c25_log_ratio_overflow():
    value, gradient = loss_of(obj.clipped_surrogate(), *one_row([800.0], [1.0]))
    np.testing.assert_allclose(value, -1.2, rtol=1e-6)
    assert gradient == 0
    masked, gradient = loss_of(obj.clipped_surrogate(), *one_row([0.0, 800.0], [1.0, 1.0], [1, 0]))
    assert masked == -1.0 and gradient[0, 0, 1] == 0 and gradient[0, 0, 0] == -1.0
    for log_ratio in (800.0, jnp.inf):
        value, gradient = loss_of(obj.clipped_surrogate(), *one_row([log_ratio], [0.0]))
        assert value == 0 and gradient == 0


@pytest.mark.parametrize(
    ("how", "right"),
    [
        ("token_mean", 0.5),
        ("seq_mean_token_mean", 0.0),
        ("seq_mean_token_sum", 1.0),
        (Aggregation("seq_mean_token_sum_norm", 4), 0.25),
        ("seq_mean_token_sum_norm", 2.0 / (2 * 3)),  # L = T
    ],
)
def test_c26_four_answers_from_one_batch(how, right):
    mask = jnp.array([[1, 0, 0], [1, 1, 1], [0, 0, 0]], bool)
    batch = Trajectory(jnp.zeros((3, 3), jnp.int32), mask, jnp.zeros(3), logprob=jnp.zeros((3, 3)))
    credit = Credit(jnp.array([[1.0], [-1.0], [7.0]]) * jnp.ones((3, 3)), mask)
    new = PolicyOutput(jnp.zeros((3, 3)), jnp.zeros((3, 3)))
    value, _ = loss_of(obj.clipped_surrogate(aggregation=how), new, credit, batch)
    np.testing.assert_allclose(value, right, rtol=1e-6)


def test_c27_token_mean_does_not_depend_on_micro_batches():
    loss, mask = jnp.array([[1.0, 1, 1, 1], [5, 0, 0, 0]]), jnp.array([[1, 1, 1, 1], [1, 0, 0, 0]], bool)
    parts = [obj.aggregate(loss[i : i + 1], mask[i : i + 1]) for i in range(2)]
    whole = obj.aggregate(loss, mask)
    np.testing.assert_allclose(whole[0] / whole[1], 1.8, rtol=1e-6)
    np.testing.assert_allclose(sum(s for s, _ in parts) / sum(n for _, n in parts), 1.8, rtol=1e-6)


def test_c28_masked_numerator():
    mask = jnp.array([[1, 0], [1, 0]], bool)

    def mean(loss):
        total, count = obj.aggregate(loss, mask)
        return total / count

    value, gradient = jax.value_and_grad(mean)(jnp.array([[2.0, 7.0], [4.0, -9.0]]))
    assert value == 3.0
    np.testing.assert_array_equal(gradient, [[0.5, 0], [0.5, 0]])


def test_c37_product_or_geometric_mean():
    ones = jnp.ones(1000, bool)
    product = ratios.shared_log_ratio(jnp.full(1000, -0.003), ones, mean=False)
    geometric = ratios.shared_log_ratio(jnp.full(1000, -0.003), ones)
    np.testing.assert_allclose(jnp.exp(product), 0.049787, rtol=1e-4)
    np.testing.assert_allclose(jnp.exp(geometric), 0.997004, rtol=1e-6)
    batch = one_row(np.full(20, np.log(1.1)), 1.0)
    for ratio, before, after in (("sequence_product", 6.7275, 2.0), ("sequence", 1.1, 1.1)):
        objective = obj.clipped_surrogate(ratio=ratio, eps_high=1.0)
        means = obj.means(ref.loss_and_gradient(objective, *batch)[2])
        np.testing.assert_allclose(means["ratio"], before, rtol=1e-4)  # the diagnostic is the weight before clipping
        np.testing.assert_allclose(means["policy"], -after, rtol=1e-5)


def test_ppo_passes_no_gradient_where_a_clip_binds():
    ratio = jnp.array([1.3, 0.7, 3.5, 1.3, 0.7, 1.1])
    advantage = jnp.array([1.0, -1.0, -1.0, -1.0, 1.0, 2.0])
    slope = jax.grad(lambda r: jnp.sum(losses.ppo_loss(r, advantage, 0.2, 0.2, 3.0)))(ratio)
    np.testing.assert_array_equal(slope, [0, 0, 0, 1, -1, -2])
    np.testing.assert_array_equal(losses.ppo_clipped(ratio, advantage, 0.2, 0.2, 3.0), [1, 1, 1, 0, 0, 0])
    np.testing.assert_allclose(losses.ppo_loss(ratio, advantage, 0.2, 0.2, 3.0)[2], 3.0)


@pytest.mark.parametrize(
    "objective",
    [
        obj.clipped_surrogate(dual_clip=3.0),
        obj.cispo(),
        obj.clipped_surrogate(ratio="segment"),
        obj.sapo(aggregation="token_mean"),
    ],
    ids=["ppo", "cispo", "segment", "sapo"],
)
def test_on_policy_every_surrogate_is_the_policy_gradient(objective):
    w = ref.world(0)
    w.old = w.new
    _, gradient = loss_of(objective, *w.inputs())
    _, plain = loss_of(obj.policy_gradient(), *w.inputs())
    np.testing.assert_allclose(gradient, plain, rtol=1e-5, atol=1e-7)


def test_cispo_never_loses_a_gradient():
    w = ref.world(0, spread=2.0)
    w.valid[:] = True
    _, gradient = loss_of(obj.cispo(eps_low=1.0, eps_high=0.28), *w.inputs())
    weight = np.clip(np.exp(w.new - w.old), 0.0, 1.28)
    np.testing.assert_allclose(gradient, np.where(w.mask, -weight * w.credit / w.mask.sum(), 0), rtol=1e-4, atol=1e-8)
    assert np.all(np.asarray(gradient)[w.mask] != 0)


def test_gspo_token_form_is_the_sequence_form_for_constant_credit():
    w = ref.world(3)
    w.valid[:] = True
    w.credit[:] = w.credit[..., :1]
    low, high = 0.05, 0.05
    value, gradient = loss_of(
        obj.clipped_surrogate(ratio="sequence", eps_low=low, eps_high=high, aggregation="seq_mean_token_mean"),
        *w.inputs(),
    )

    def sequence_form(lp):
        rows = w.mask.any(-1)
        n = np.maximum(w.mask.sum(-1), 1)
        s = np.exp(np.where(w.mask, lp - w.old, 0).sum(-1) / n)
        a = w.credit[..., 0]
        return -np.minimum(s * a, np.clip(s, 1 - low, 1 + high) * a)[rows].sum() / rows.sum()

    np.testing.assert_allclose(value, sequence_form(w.new), rtol=1e-5)
    numeric = ref.numeric_gradient(sequence_form, w.new, w.mask)
    np.testing.assert_allclose(gradient, numeric, rtol=1e-3, atol=1e-6)
    silent = [not np.any(row) for row in np.asarray(gradient).reshape(-1, ref.T)]
    assert 1 < sum(silent) < len(silent)  # whole sequences are clipped, and not all of them


def test_segments_of_one_token_have_token_ratios():
    w = ref.world(4)
    w.segment[:] = np.arange(ref.T) % ref.K
    w.mask &= np.arange(ref.T) < ref.K
    inputs = w.inputs()
    np.testing.assert_allclose(
        loss_of(obj.clipped_surrogate(ratio="segment"), *inputs)[1],
        loss_of(obj.clipped_surrogate(), *inputs)[1],
        rtol=1e-5,
        atol=1e-8,
    )


def test_positions_of_no_segment_keep_their_own_ratio():
    got = ratios.shared_log_ratio(
        jnp.array([0.1, 0.3, jnp.nan, 0.5, 0.7]),
        jnp.array([1, 1, 0, 1, 1], bool),
        jnp.array([0, 0, 0, -1, 1]),
        num_segments=2,
    )
    np.testing.assert_allclose(got, [0.2, 0.2, 0.0, 0.5, 0.7], rtol=1e-6)


def test_two_channels_in_one_pass():
    """SkillGate's two masked losses are one pass with the owner's credit and the mixed weight."""
    w = ref.world(5)
    rng = np.random.default_rng(5)
    task = w.mask & (rng.random(w.mask.shape) < 0.6)
    selector = w.mask & ~task & (rng.random(w.mask.shape) < 0.7)
    a_task, a_selector = rng.normal(size=w.mask.shape), rng.normal(size=w.mask.shape)
    n, lam = w.mask.sum(), 0.2
    w_task, w_selector = task * n / task.sum(), selector * n / selector.sum()
    r = np.exp(w.new - w.old)
    two = w_task * ref.clipped(r, a_task, 0.2, 0.2) + lam * w_selector * ref.clipped(r, a_selector, 0.2, 0.2)

    w.credit, w.valid = np.where(task, a_task, a_selector), task | selector
    inputs = w.inputs(loss_weight=w_task + lam * w_selector)
    value, _, terms = ref.loss_and_gradient(obj.clipped_surrogate(), *inputs)
    assert terms["policy"].count == n
    np.testing.assert_allclose(value, two.sum() / n, rtol=1e-5)


def test_sapo_gate_has_unit_slope_on_policy_and_is_bounded():
    slope = jax.vmap(jax.grad(losses.sapo_loss), in_axes=(0, None, None, None))
    ratio = jnp.array([0.2, 1.0, 4.0])
    for advantage, tau in ((1.0, 1.0), (-1.0, 1.05)):
        got = slope(ratio, advantage, 1.0, 1.05)
        p = 1 / (1 + np.exp(-tau * (np.asarray(ratio) - 1)))
        np.testing.assert_allclose(got, -advantage * 4 * p * (1 - p), rtol=1e-5)
    assert abs(losses.sapo_loss(jnp.float32(1e8), 1.0, 1.0, 1.05)) <= 4.0
