import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import trajectory
from creditjax.models import base
from creditjax.models.control import GRUPolicy, MLPPolicy
from creditjax.models.sampling import STATISTICS

F, A, T = 3, 4, 6
POLICIES = [MLPPolicy(A, F, (8,)), GRUPolicy(A, F, 8)]


def parameters(policy):
    # At initialisation all actions are nearly equally probable.
    rng = np.random.default_rng(1)
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(size=x.shape).astype(np.float32), shapes)


@functools.partial(jax.jit, static_argnums=(0, 3, 4))
def evaluate(policy, params, batch, sampling=base.Sampling(), statistics=()):
    return policy.evaluate(params, batch, sampling, statistics)


def make_batch(ended=(), truncated=(), acted=T, lead=()):
    rng = np.random.default_rng(0)
    positions = np.arange(T)

    def flag(at):
        return np.broadcast_to(np.isin(positions, at), (*lead, T))

    observation = rng.normal(size=(*lead, T + 1, F)).astype(np.float32)
    return trajectory.Trajectory(
        tokens=rng.integers(A, size=(*lead, T)),
        action_mask=np.broadcast_to(positions < acted, (*lead, T)),
        outcome=np.zeros(lead),
        terminated=flag(ended),
        truncated=flag(truncated),
        signals={"observation": observation[..., :-1, :], "next_observation": observation[..., 1:, :]},
    )


@pytest.mark.parametrize("policy", POLICIES, ids=["mlp", "gru"])
def test_initial_policy_is_nearly_uniform(policy):
    params = jax.jit(policy.init)(jax.random.key(0))
    out = evaluate(policy, params, make_batch())
    np.testing.assert_allclose(out.entropy, np.log(A), atol=1e-3)
    assert np.asarray(out.value).std() > 0.01


@pytest.mark.parametrize("policy", POLICIES, ids=["mlp", "gru"])
def test_outputs_against_definitions(policy):
    params, batch = parameters(policy), make_batch(acted=4, truncated=[3])
    out = evaluate(policy, params, batch, base.Sampling(0.5), STATISTICS)

    step = jax.jit(policy.step)
    memory, want = policy.initial_memory(), []
    for t in range(4):
        memory, logits, value = step(params, memory, batch.signals["observation"][t], jnp.array(t == 0))
        _, _, after = step(params, memory, batch.signals["next_observation"][t], jnp.array(False))
        p, token = jax.nn.softmax(logits / 0.5), batch.tokens[t]
        certainty = jnp.sum((jnp.log(1 / A) - jax.nn.log_softmax(logits / 0.5)) / A)
        want.append([jnp.log(p[token]), -p @ jnp.log(p), value, after, certainty, logits[token], p @ p])
    want = np.concatenate([np.array(want).T, np.zeros((7, 2))], axis=1)
    found = [out.logprob, out.entropy, out.value, out.next_value, *(out.statistics[name] for name in STATISTICS)]
    for x, expected in zip(found, want, strict=True):
        np.testing.assert_allclose(x, expected, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("policy", POLICIES, ids=["mlp", "gru"])
@pytest.mark.parametrize("end", ["ended", "truncated"])
def test_episodes_in_one_row_are_apart(policy, end):  # case C02
    params, batch = parameters(policy), make_batch(**{end: [2]})
    out = evaluate(policy, params, batch)
    first = {name: np.array(x) for name, x in batch.signals.items()}
    first["observation"][:3] = 5.0
    changed = evaluate(policy, params, batch.with_signals(**first))
    np.testing.assert_array_equal(out.value[3:], changed.value[3:])
    np.testing.assert_array_equal(out.logprob[3:], changed.logprob[3:])
    assert np.abs(out.value[:3] - changed.value[:3]).max() > 1e-3


def test_gru_remembers_within_an_episode():
    policy = POLICIES[1]
    params, batch = parameters(policy), make_batch()
    earlier = np.array(batch.signals["observation"])
    earlier[0] += 1.0
    out, changed = evaluate(policy, params, batch), evaluate(policy, params, batch.with_signals(observation=earlier))
    assert np.abs(out.value[1:] - changed.value[1:]).min() > 1e-6


@pytest.mark.parametrize("policy", POLICIES, ids=["mlp", "gru"])
def test_next_value_is_that_of_the_true_next_state(policy):  # case C01
    params, batch = parameters(policy), make_batch(truncated=[2])
    final = np.array(batch.signals["next_observation"])
    final[2] += 1.0  # the final observation is not what the next episode begins with
    out = evaluate(policy, params, batch.with_signals(next_observation=final))
    inside = np.array([0, 1, 3, 4])
    np.testing.assert_allclose(out.next_value[inside], out.value[inside + 1], rtol=1e-5)
    assert abs(out.next_value[2] - out.value[3]) > 1e-3
    # The value of the final state is that of an episode which goes on from there.
    going_on = make_batch().with_signals(observation=np.concatenate([batch.signals["observation"][:3], final[2:5]]))
    np.testing.assert_allclose(out.next_value[2], evaluate(policy, params, going_on).value[3], rtol=1e-5)


@pytest.mark.parametrize("policy", POLICIES, ids=["mlp", "gru"])
def test_nan_under_the_mask_reaches_nothing(policy):
    params, batch = parameters(policy), make_batch(acted=4, truncated=[3])
    poison = {name: np.where(np.arange(T)[:, None] < 4, x, np.nan) for name, x in batch.signals.items()}

    def loss(params, signals):
        out = evaluate(policy, params, batch.replace(signals=signals))
        return sum(jnp.sum(x) for x in (out.logprob, out.entropy, out.value, out.next_value))

    grad = jax.jit(jax.value_and_grad(loss))
    clean, dirty = (grad(params, signals) for signals in (batch.signals, poison))
    jax.tree.map(np.testing.assert_array_equal, clean, dirty)
    assert np.isfinite(clean[0])


@pytest.mark.parametrize("policy", POLICIES, ids=["mlp", "gru"])
def test_any_leading_axes(policy):
    params, batch = parameters(policy), make_batch(lead=(2, 3), truncated=[2])
    whole = evaluate(policy, params, batch)
    assert whole.value.shape == (2, 3, T)
    row = jax.tree.map(lambda x: x[1, 2], batch)
    np.testing.assert_allclose(whole.next_value[1, 2], evaluate(policy, params, row).next_value, rtol=1e-5)


def test_faults_are_named():
    policy = POLICIES[0]
    params, batch = parameters(policy), make_batch()
    with pytest.raises(KeyError, match="signal 'observation'.*samplers"):
        policy.evaluate(params, batch.replace(signals={}))
    with pytest.raises(ValueError, match=r"observation: shape \[6, 2\], wanted \[..., T, F=3\]"):
        policy.evaluate(params, batch.replace(signals={"observation": np.zeros((T, 2))}))
    with pytest.raises(ValueError, match="statistics: entropi"):
        policy.evaluate(params, batch, statistics=["entropi"])
    without = batch.replace(signals={"observation": batch.signals["observation"]})
    assert policy.evaluate(params, without).next_value is None
