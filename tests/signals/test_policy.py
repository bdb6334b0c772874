"""Policy probes and the implicit process-reward model."""

import functools
import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.signals import PROBED, implicit_prm_loss, implicit_prm_probe, policy_probe
from creditjax.trajectory import SIGNALS, Trajectory

VOCAB, LENGTH = 3, 4
CONFIG = TransformerConfig(VOCAB, width=8, depth=1, heads=2, mlp_width=16, value_head=True)
POLICY = TransformerPolicy(CONFIG)


def parameters(seed):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(POLICY.init, jax.random.key(0))
    return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape) * 0.5 + (x.shape[-1] == x.size)), shapes)


def every_completion():
    """All 27 three-token completions of the one-token prompt 0, as one group."""
    tokens = np.array([[0, *rest] for rest in itertools.product(range(VOCAB), repeat=LENGTH - 1)])[None]
    acted = np.broadcast_to(np.arange(LENGTH) > 0, tokens.shape)
    return Trajectory(
        tokens=tokens,
        action_mask=acted,
        outcome=np.arange(27.0)[None] % 2,
        terminated=np.broadcast_to(np.arange(LENGTH) == LENGTH - 1, tokens.shape),
        signals={"token_mask": np.ones_like(acted)},
    )


@functools.partial(jax.jit, static_argnums=(2, 4))
def probe(params, batch, names, ref_params, sampling=Sampling()):
    return policy_probe(POLICY, params, batch, names, ref_params, sampling)


def test_every_signal_is_made_once_and_right():
    batch = every_completion()
    out = probe(parameters(0), batch, (*PROBED, "potential"), parameters(1))
    assert out.signals.keys() == {*PROBED, "token_mask"}
    evaluate = jax.jit(POLICY.evaluate)
    new = evaluate(parameters(0), batch)
    np.testing.assert_allclose(out.signals["logprob_current"], new.logprob, atol=1e-5)
    np.testing.assert_allclose(out.signals["entropy"], new.entropy, atol=1e-5)
    np.testing.assert_allclose(out.signals["value"], new.value, atol=1e-5)
    np.testing.assert_allclose(out.signals["next_value"][..., 1:-1], new.value[..., 2:], atol=1e-5)
    old = evaluate(parameters(1), batch)
    np.testing.assert_allclose(out.signals["logprob_ref"], old.logprob, atol=1e-5)
    assert all(SIGNALS[name].axes == ("P", "G", "T") for name in PROBED)
    # Over all completions: probabilities add up to 1, and the entropy of the first token is that of its marginal.
    probability = np.exp(out.signals["logprob_current"].sum(-1))[0]
    np.testing.assert_allclose(probability.sum(), 1, atol=1e-5)
    marginal = probability.reshape(VOCAB, -1).sum(1)
    np.testing.assert_allclose(out.signals["entropy"][0, 0, 1], -(marginal * np.log(marginal)).sum(), atol=1e-5)
    np.testing.assert_allclose(out.signals["sum_pi_squared"][0, 0, 1], (marginal**2).sum(), atol=1e-5)
    np.testing.assert_allclose(out.signals["self_certainty"][0, 0, 1], np.mean(np.log(1 / VOCAB / marginal)), atol=1e-5)
    logit = np.asarray(out.signals["chosen_logit"])[0, :, 1].reshape(VOCAB, -1)[:, 0]
    np.testing.assert_allclose(np.exp(logit) / np.exp(logit).sum(), marginal, atol=1e-5)


def test_gradients_are_stopped():
    def total(params):
        out = policy_probe(POLICY, params, every_completion(), PROBED, params)
        return sum(jnp.sum(out.signals[name]) for name in PROBED)

    assert all((g == 0).all() for g in jax.tree.leaves(jax.jit(jax.grad(total))(parameters(0))))


def test_probe_errors():
    batch = every_completion()
    with pytest.raises(ValueError, match="signal logprob_ref: found no ref_params"):
        policy_probe(POLICY, parameters(0), batch, ["logprob_ref"])
    headless = TransformerPolicy(TransformerConfig(**{**CONFIG.__dict__, "value_head": False}))
    with pytest.raises(ValueError, match="signal value: TransformerPolicy has no value head"):
        policy_probe(headless, parameters(0), batch, ["value"])


def test_implicit_reward_is_the_soft_value():
    """q_t = beta log E_{y ~ ref}[exp(R(y) / beta) | y_<=t], by enumeration (card implicit_prm)."""
    beta, batch = 0.05, every_completion()
    out = jax.jit(implicit_prm_probe, static_argnums=0)(POLICY, parameters(0), batch)
    out = probe(parameters(1), out, ("logprob_ref",), parameters(1))
    ratio = (out.signals["logprob_prm"] - out.signals["logprob_ref"])[0]
    partial = beta * np.cumsum(ratio, -1)
    reference = np.exp(np.asarray(out.signals["logprob_ref"][0]))
    total = np.exp(ratio.sum(-1))  # exp(R / beta)
    for t in range(LENGTH):
        prefix = [tuple(row[: t + 1]) for row in np.asarray(batch.tokens[0])]
        for row in range(27):
            same = [i for i in range(27) if prefix[i] == prefix[row]]
            chance = np.array([reference[i, t + 1 :].prod() for i in same])
            wanted = beta * np.log((chance * total[same]).sum())
            np.testing.assert_allclose(partial[row, t], wanted, atol=1e-5)


def test_implicit_prm_loss():
    batch = Trajectory(
        tokens=np.zeros((1, 4, 3), np.int32),
        action_mask=np.array([[[1, 1, 0], [1, 1, 1], [1, 0, 0], [0, 0, 0]]], bool),
        outcome=np.array([[1.0, 0.0, np.nan, 1.0]]),
    )
    prm = jnp.array([[[-1.0, -2.0, jnp.nan], [-1.0, -1.0, -1.0], [-5.0, 0, 0], [jnp.nan] * 3]])
    ref = jnp.array([[[-2.0, -2.0, 9.0], [-2.0, -0.5, -1.5], [-1.0, 0, 0], [0, 0, 0]]])
    total, count = implicit_prm_loss(prm, ref, batch, beta=0.5)
    assert count == 2  # the unscored row and the row that never acted take no part
    np.testing.assert_allclose(total, np.log1p(np.exp(-0.5)) + np.log1p(np.exp(0.5)), rtol=1e-6)
    gradient = jax.grad(lambda x, y: implicit_prm_loss(x, y, batch, 0.5)[0], argnums=(0, 1))(prm, ref)
    pull = 0.5 / (1 + np.exp(0.5))
    np.testing.assert_allclose(gradient[0][0, 0], [-pull, -pull, 0], rtol=1e-6)
    np.testing.assert_allclose(gradient[0][0, 1], [0.5 - pull] * 3, rtol=1e-6)
    assert (gradient[0][0, 2:] == 0).all() and (gradient[1] == 0).all()
    same, count = implicit_prm_loss(ref, ref, batch)
    np.testing.assert_allclose(same / count, np.log(2), rtol=1e-6)
