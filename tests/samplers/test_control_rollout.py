import chex
import jax
import numpy as np
import pytest

from creditjax.models.base import Sampling
from creditjax.models.control import GRUPolicy, MLPPolicy
from creditjax.samplers import control
from creditjax.tasks.control import GymnaxTask

P, G = 3, 4


def cartpole(**options):
    return GymnaxTask("CartPole-v1", parameters={"max_steps_in_episode": 5}, **options)


def run(task, policy=None, sampling=Sampling(), count=P, key=7):
    policy = policy or MLPPolicy(task.num_actions, task.observation_size, (8,))
    params = jax.jit(lambda key: jax.tree.map(lambda x: 3 * x, policy.init(key)))(jax.random.key(0))
    rollout = jax.jit(control.build(task, policy, sampling, G))
    return policy, params, rollout(params, task.prompts("train", 0, count), jax.random.key(key))


@pytest.fixture(scope="module")
def rows():
    """CartPole with a limit of 5, several episodes in rows of 12."""
    return run(cartpole(length=12, auto_reset=True))[2]


def test_truncated_step_keeps_its_own_next_observation(rows):  # cases C01, C30
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
    task = GymnaxTask("CartPole-v1", length=4, auto_reset=True, parameters={"max_steps_in_episode": 1})
    batch = run(task)[2]
    assert batch.truncated.all() and not batch.terminated.any()
    assert (np.abs(batch.signals["observation"]) <= 0.05).all()
    starts = np.asarray(batch.signals["observation"]).reshape(P, G * 4, -1)
    assert all(len(np.unique(x, axis=0)) == 1 + G * 3 for x in starts)  # one shared start, then each its own


def test_row_after_the_end_is_padding():
    task = GymnaxTask("Catch-bsuite", length=6, arguments={"rows": 5, "columns": 3})
    batch = run(task)[2]
    wanted = np.broadcast_to(np.arange(6) < 4, (P, G, 6))
    np.testing.assert_array_equal(batch.action_mask, wanted)
    np.testing.assert_array_equal(batch.signals["token_mask"], wanted)
    np.testing.assert_array_equal(batch.terminated, np.broadcast_to(np.arange(6) == 3, (P, G, 6)))
    assert not batch.truncated.any()
    for x in (batch.tokens, batch.reward, batch.logprob, *(batch.signals[f"{n}observation"] for n in ("", "next_"))):
        assert not np.asarray(x)[:, :, 4:].any()
    np.testing.assert_array_equal(np.abs(batch.outcome), np.ones((P, G)))


def test_row_that_is_too_short_is_cut_off():
    batch = run(GymnaxTask("Catch-bsuite", length=3, arguments={"rows": 5, "columns": 3}))[2]
    np.testing.assert_array_equal(batch.truncated, np.broadcast_to([False, False, True], (P, G, 3)))
    assert not batch.terminated.any() and batch.action_mask.all()


def test_outcome_is_the_undiscounted_return():
    task = GymnaxTask(
        "DiscountingChain-bsuite", parameters={"reward_timestep": [1, 2, 3, 4, 6], "max_steps_in_episode": 5}
    )
    batch = run(task, count=8)[2]
    first = np.asarray(batch.tokens[..., 0])
    assert set(first.ravel()) == set(range(5))
    # The last action's reward would come at step 6, which is never reached.
    np.testing.assert_allclose(batch.outcome, np.array([1.1, 1.0, 1.0, 1.0, 0.0])[first], rtol=1e-6)
    np.testing.assert_array_equal(batch.outcome, batch.reward.sum(-1))


def test_group_shares_its_start_and_nothing_else(rows):
    starts = np.asarray(rows.signals["observation"][:, :, 0])
    np.testing.assert_array_equal(starts, np.broadcast_to(starts[:, :1], starts.shape))
    assert len(np.unique(starts[:, 0], axis=0)) == P
    assert len(np.unique(np.asarray(rows.tokens).reshape(P * G, -1), axis=0)) > P * G // 2


@pytest.mark.parametrize(
    "sampling", [Sampling(), Sampling(0.7, top_k=2, top_p=0.9), Sampling(0.0)], ids=["full", "cut", "greedy"]
)
@pytest.mark.parametrize("kind, hidden", [(MLPPolicy, (8,)), (GRUPolicy, 8)], ids=["mlp", "gru"])
def test_log_probs_are_those_of_evaluate(kind, hidden, sampling):  # case C24
    task = GymnaxTask("Catch-bsuite", length=7, auto_reset=True, arguments={"rows": 4, "columns": 3})
    policy, params, batch = run(task, kind(task.num_actions, task.observation_size, hidden), sampling)
    assert batch.terminated.any() and batch.truncated.any()
    out = jax.jit(lambda *args: policy.evaluate(*args, sampling))(params, batch)
    np.testing.assert_allclose(out.logprob, batch.logprob, atol=1e-4)
    if sampling.temperature > 0:
        assert np.asarray(batch.logprob).std() > 0.01
    else:
        assert not batch.logprob.any()


def test_rows_do_not_depend_on_their_neighbours(rows):
    # Same key and positions, two prompts less.
    fewer = run(cartpole(length=12, auto_reset=True), count=1)[2]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[:1], b, rtol=1e-5, atol=1e-6), rows, fewer)
    other = run(cartpole(length=12, auto_reset=True), key=8)[2]
    assert (other.tokens != rows.tokens).any()


def test_sharded_rollout_is_the_same():
    task = cartpole(length=12)
    policy = MLPPolicy(task.num_actions, task.observation_size, (8,))
    params = jax.jit(policy.init)(jax.random.key(0))
    rollout = jax.jit(control.build(task, policy, group_size=2))
    prompts = task.prompts("train", 0, 8)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    sharded = jax.device_put(prompts, jax.NamedSharding(mesh, jax.P("data")))
    a, b = (rollout(params, x, jax.random.key(1)) for x in (prompts, sharded))
    np.testing.assert_array_equal(a.tokens, b.tokens)
    np.testing.assert_allclose(a.signals["next_observation"], b.signals["next_observation"], atol=1e-6)


def test_one_compilation():
    task = cartpole(length=4)
    policy = MLPPolicy(task.num_actions, task.observation_size, (8,))
    rollout = jax.jit(chex.assert_max_traces(control.build(task, policy, group_size=2), n=1))
    init = jax.jit(policy.init)
    for i in range(3):
        params = init(jax.random.key(i))
        rollout(params, task.prompts("train", 2 * i, 2), jax.random.key(i))


def test_misfits_are_named():
    task = cartpole()
    with pytest.raises(ValueError, match="num_actions: the policy has 3, the task 2"):
        control.build(task, MLPPolicy(3, 4))
    with pytest.raises(ValueError, match="group_size: 0"):
        control.build(task, MLPPolicy(2, 4), group_size=0)
