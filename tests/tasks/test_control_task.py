import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.tasks import base
from creditjax.tasks.control import GymnaxTask


def play(task, actions, key=0):
    """Steps through one row outside any sampler: observations [T + 1, F], rewards and flags [T]."""
    observation, state = task.reset(jax.random.PRNGKey(key))

    def step(state, inputs):
        action, step_key = inputs
        observation, state, *rest = task.step(step_key, state, action)
        return state, (observation, *rest)

    keys = jax.random.split(jax.random.PRNGKey(key + 1), len(actions))
    _, (after, *rest) = jax.lax.scan(step, state, (jnp.array(actions), keys))
    return np.concatenate([observation[None], after]), *map(np.asarray, rest)


def test_it_is_a_control_task():
    task = GymnaxTask("Catch-bsuite", length=12, arguments={"rows": 5, "columns": 3})
    assert isinstance(task, base.ControlTask)
    assert (task.num_actions, task.observation_size, task.length) == (3, 15, 12)
    assert task.decode(jnp.array([0, 2])) == ["0", "2"]


@pytest.mark.parametrize("chosen, wanted", [(0, 1.1), (1, 1.0), (4, 1.0)])
def test_discounting_chain_pays_what_the_first_action_chose(chosen, wanted):
    pays_at = [1, 2, 3, 5, 6]
    task = GymnaxTask("DiscountingChain-bsuite", parameters={"reward_timestep": pays_at, "max_steps_in_episode": 6})
    _, reward, terminated, truncated = play(task, [chosen, 3, 0, 1, 2, 3])
    by_hand = np.zeros(6)
    by_hand[pays_at[chosen] - 1] = wanted
    np.testing.assert_allclose(reward, by_hand, rtol=1e-6)
    assert not terminated.any()
    assert truncated.tolist() == [False] * 5 + [True]


def test_time_limit_that_belongs_to_the_problem_terminates():
    task = GymnaxTask("DiscountingChain-bsuite", parameters={"max_steps_in_episode": 4}, time_limit="terminates")
    _, _, terminated, truncated = play(task, [0] * 4)
    assert terminated.tolist() == [False] * 3 + [True]
    assert not truncated.any()


def test_natural_end_is_no_truncation():
    task = GymnaxTask("Catch-bsuite", length=4, arguments={"rows": 5, "columns": 3})
    observation, reward, terminated, truncated = play(task, [1] * 4)
    assert terminated.tolist() == [False, False, False, True]
    assert not truncated.any()
    caught = observation[-1].reshape(5, 3)[-1].sum() == 1  # ball and paddle lie on the same cell
    assert reward.tolist() == [0, 0, 0, 1 if caught else -1]


def test_end_and_limit_at_once_is_termination():
    # DeepSea's default limit is its depth, where it ends anyway.
    task = GymnaxTask("DeepSea-bsuite", arguments={"size": 3})
    _, _, terminated, truncated = play(task, [0, 1, 0])
    assert terminated.tolist() == [False, False, True]
    assert not truncated.any()


def test_limit_returns_the_final_observation():  # case C30
    task = GymnaxTask("CartPole-v1", parameters={"max_steps_in_episode": 3})
    observation, _, terminated, truncated = play(task, [1, 1, 1])
    unlimited, *_ = play(GymnaxTask("CartPole-v1", length=3), [1, 1, 1])
    assert truncated.tolist() == [False, False, True]
    assert not terminated.any()
    np.testing.assert_array_equal(observation, unlimited)
    # Pushed right three times the cart moves fast; every reset starts with a speed of at most 0.05.
    assert observation[-1][1] > 0.4


@pytest.mark.parametrize(
    "name",
    ["CartPole-v1", "Catch-bsuite", "DeepSea-bsuite", "DiscountingChain-bsuite", "MemoryChain-bsuite"]
    + ["UmbrellaChain-bsuite", "FrozenLake-misc"],
)
def test_reset_and_step_states_have_one_structure(name):  # case C30
    task = GymnaxTask(name)
    key = jax.ShapeDtypeStruct((2,), jnp.uint32)
    observation, state = jax.eval_shape(task.reset, key)
    after = jax.eval_shape(task.step, key, state, jax.ShapeDtypeStruct((), jnp.int32))
    assert after[0] == observation == jax.ShapeDtypeStruct((task.observation_size,), jnp.float32)
    assert after[1] == state
    assert [x.dtype for x in after[2:]] == [jnp.float32, jnp.bool_, jnp.bool_]


def test_start_states_are_a_pure_function_of_their_index():
    task = GymnaxTask("CartPole-v1", eval_size=6)
    whole = task.prompts("train", 0, 6).data
    np.testing.assert_array_equal(whole[4:], task.prompts("train", 4, 2).data)
    held_out = task.prompts("eval", 0, 6).data
    assert len({tuple(key) for key in np.concatenate([whole, held_out]).tolist()}) == 12
    assert task.prompts("train", 0, 6).tokens.shape == (6, 0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"environment": "DeepSee-bsuite"}, "did you mean DeepSea-bsuite"),
        ({"environment": "DeepSea-bsuite", "arguments": {"depth": 3}}, "depth"),
        ({"environment": "DeepSea-bsuite", "parameters": {"determinstic": True}}, "did you mean deterministic"),
        ({"environment": "Pendulum-v1"}, "Box actions, wanted discrete"),
        ({"environment": "CartPole-v1", "time_limit": "ends"}, "wanted 'truncates' or 'terminates'"),
        ({"environment": "CartPole-v1", "length": 0}, "length: 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        GymnaxTask(**arguments)


def test_bad_prompts_are_named():
    task = GymnaxTask("CartPole-v1", eval_size=4)
    with pytest.raises(ValueError, match="split: 'test'"):
        task.prompts("test", 0, 1)
    with pytest.raises(ValueError, match="there are 4"):
        task.prompts("eval", 2, 3)
