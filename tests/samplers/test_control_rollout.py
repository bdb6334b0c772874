import functools

import chex
import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.models.base import Sampling
from creditjax.models.control import GRUPolicy, MLPPolicy
from creditjax.samplers import control
from creditjax.tasks.control import GymnaxTask

P, G = 3, 4
# Every compilation of a rollout takes seconds on a CPU (the random bits do), so tests share them.
PAYS = {"reward_timestep": [1, 2, 3, 4, 6], "max_steps_in_episode": 5}


def chain(**parameters):
    return GymnaxTask("DiscountingChain-bsuite", length=7, auto_reset=True, parameters=PAYS | parameters)


def init(policy):
    """Parameters that make the actions unequally probable."""
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(policy.init, jax.random.key(0))
    return jax.tree.map(lambda x: rng.normal(size=x.shape, scale=0.4).astype(np.float32), shapes)


def run(task, policy=None, sampling=Sampling()):
    policy = policy or MLPPolicy(task.num_actions, task.observation_size, (8,))
    params = init(policy)
    rollout = functools.partial(jax.jit(control.build(task, policy, sampling, G)), params)
    return policy, params, rollout


@pytest.fixture(scope="module")
def cartpole():
    """CartPole with a limit of 5, several episodes in rows of 12."""
    task = GymnaxTask("CartPole-v1", length=12, auto_reset=True, parameters={"max_steps_in_episode": 5})
    policy, params, rollout = run(task)
    return policy, params, rollout(task.prompts("train", 0, P), jax.random.key(7))


@pytest.fixture(scope="module")
def chains():
    """One episode of 5 steps a row."""
    task = GymnaxTask("DiscountingChain-bsuite", parameters=PAYS)
    rollout = run(task)[2]
    prompts = task.prompts("train", 0, 8)
    return rollout, prompts, rollout(prompts, jax.random.key(1))


def test_truncated_step_keeps_its_own_next_observation(cartpole):  # cases C01, C30
    rows = cartpole[2]
    assert rows.tokens.shape == (P, G, 12)
    now, after = (np.asarray(rows.signals[name]) for name in ("observation", "next_observation"))
    assert np.asarray(rows.truncated).nonzero()[-1].reshape(P * G, 3).tolist() == [[4, 9, 11]] * (P * G)
    assert not rows.terminated.any()
    for t in range(11):
        if t in (4, 9):  # what follows is another episode, which begins slowly near the middle
            assert (np.abs(after[:, :, t] - now[:, :, t + 1]).max(-1) > 0.02).all()
            assert (np.abs(now[:, :, t + 1]) <= 0.05).all()
        else:
            np.testing.assert_array_equal(after[:, :, t], now[:, :, t + 1])
    assert rows.action_mask.all()
    assert (rows.outcome == 12).all()


def test_one_step_episodes_each_carry_their_flag():  # case C02
    task = chain(max_steps_in_episode=1)
    batch = run(task)[2](task.prompts("train", 0, P), jax.random.key(7))
    assert batch.truncated.all() and not batch.terminated.any()
    assert (batch.signals["observation"] == jnp.array([-1.0, 0.0])).all()
    np.testing.assert_array_equal(batch.signals["next_observation"][..., 0], batch.tokens)
    np.testing.assert_allclose(batch.reward, np.where(batch.tokens == 0, np.float32(1.1), 0))


def test_row_after_the_end_is_padding():
    task = GymnaxTask("Catch-bsuite", length=6, arguments={"rows": 5, "columns": 3})
    batch = run(task)[2](task.prompts("train", 0, P), jax.random.key(7))
    wanted = np.broadcast_to(np.arange(6) < 4, (P, G, 6))
    np.testing.assert_array_equal(batch.action_mask, wanted)
    np.testing.assert_array_equal(batch.signals["token_mask"], wanted)
    np.testing.assert_array_equal(batch.terminated, np.broadcast_to(np.arange(6) == 3, (P, G, 6)))
    assert not batch.truncated.any()
    for x in (batch.tokens, batch.reward, batch.logprob, *(batch.signals[f"{n}observation"] for n in ("", "next_"))):
        assert not np.asarray(x)[:, :, 4:].any()
    np.testing.assert_array_equal(np.abs(batch.outcome), np.ones((P, G)))


def test_outcome_is_the_undiscounted_return(chains):
    batch = chains[2]
    first = np.asarray(batch.tokens[..., 0])
    assert set(first.ravel()) == set(range(5))
    # The last action's reward would come at step 6, which is never reached.
    np.testing.assert_allclose(batch.outcome, np.array([1.1, 1.0, 1.0, 1.0, 0.0])[first], rtol=1e-6)
    paid = np.arange(5) == first[..., None]
    np.testing.assert_array_equal(np.asarray(batch.reward) > 0, paid & (first < 4)[..., None])


def test_group_shares_its_start_and_nothing_else(cartpole):
    rows = cartpole[2]
    starts = np.asarray(rows.signals["observation"][:, :, 0])
    np.testing.assert_array_equal(starts, np.broadcast_to(starts[:, :1], starts.shape))
    assert len(np.unique(starts[:, 0], axis=0)) == P
    again = np.asarray(rows.signals["observation"][:, :, 5]).reshape(P * G, -1)
    assert len(np.unique(again, axis=0)) == P * G


def test_log_probs_are_those_of_evaluate(cartpole):  # case C24
    policy, params, batch = cartpole
    np.testing.assert_allclose(jax.jit(policy.evaluate)(params, batch).logprob, batch.logprob, atol=1e-4)
    assert np.asarray(batch.logprob).std() > 0.01


@pytest.mark.parametrize(
    "kind, hidden, sampling",
    [(MLPPolicy, (8,), Sampling(0.0)), (GRUPolicy, 8, Sampling(0.7, top_k=4, top_p=0.9))],
    ids=["mlp-greedy", "gru-cut"],
)
def test_log_probs_on_the_same_support(kind, hidden, sampling):  # case C24
    task = chain()
    policy, params, rollout = run(task, kind(task.num_actions, task.observation_size, hidden), sampling)
    batch = rollout(task.prompts("train", 0, P), jax.random.key(7))
    assert batch.truncated[..., 4].all() and batch.truncated[..., 6].all()
    out = jax.jit(lambda *args: policy.evaluate(*args, sampling))(params, batch)
    np.testing.assert_allclose(out.logprob, batch.logprob, atol=1e-4)
    assert (np.asarray(batch.logprob).std() > 0.01) == (sampling.temperature > 0)


def test_rows_depend_on_their_key_and_place_alone(chains):
    rollout, prompts, batch = chains
    fewer = rollout(jax.tree.map(lambda x: x[:1], prompts), jax.random.key(1))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[:1], b, rtol=1e-5, atol=1e-6), batch, fewer)
    assert (rollout(prompts, jax.random.key(2)).tokens != batch.tokens).any()
    assert len(np.unique(np.asarray(batch.tokens).reshape(8 * G, -1), axis=0)) > 4 * G


def test_sharded_rollout_is_the_same(chains):
    rollout, prompts, batch = chains
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = rollout(jax.device_put(prompts, jax.NamedSharding(mesh, jax.P("data"))), jax.random.key(1))
    np.testing.assert_array_equal(batch.tokens, sharded.tokens)
    np.testing.assert_allclose(batch.logprob, sharded.logprob, atol=1e-6)


def test_short_rows_are_cut_off_and_compiled_once():
    task = GymnaxTask("DiscountingChain-bsuite", length=2, parameters=PAYS)
    policy = MLPPolicy(task.num_actions, task.observation_size, (8,))
    rollout = jax.jit(chex.assert_max_traces(control.build(task, policy, group_size=2), n=1))
    for i in range(3):
        params = jax.tree.map(lambda x: x * (i + 1), init(policy))  # noqa: B023
        batch = rollout(params, task.prompts("train", 2 * i, 2), jax.random.key(i))
        np.testing.assert_array_equal(batch.truncated, np.broadcast_to([False, True], (2, 2, 2)))
        assert not batch.terminated.any() and batch.action_mask.all()


def test_misfits_are_named():
    task = chain()
    with pytest.raises(ValueError, match="num_actions: the policy has 3, the task 5"):
        control.build(task, MLPPolicy(3, 2))
    with pytest.raises(ValueError, match="group_size: 0"):
        control.build(task, MLPPolicy(5, 2), group_size=0)
