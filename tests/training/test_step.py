"""The update on one batch: what may not change the answer, and what it must not do twice."""

import chex
import jax
from jax import numpy as jnp
import numpy as np
import pytest
from training_cases import catch_config

from creditjax.algebra import Credit, Level
from creditjax.objectives import clipped_surrogate
from creditjax.training import config as config_lib
from creditjax.training import loop
from creditjax.training import mesh as mesh_lib
from creditjax.training import state as state_lib
from creditjax.training import step as step_lib
from creditjax.trajectory import Trajectory


def build(mesh_shape=None, **changes):
    """A run's programs, its first state and its first batch."""
    config = catch_config(**changes)
    config.mesh = dict(data=1, fsdp=1, tensor=1) | (mesh_shape or {})
    devices = jax.devices()[: int(np.prod(list(config.mesh.values())))]
    mesh = mesh_lib.make_mesh(config.mesh, devices)
    parts = config_lib.check_config(config, mesh_lib.batch_shards(mesh))
    programs = loop.Programs(config, parts, mesh)
    state = programs.init()
    return programs, state, programs.roll(state, 0, "train", jax.random.key(7))


def flat(tree):
    return np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])


def one_update(mesh_shape=None, **changes):
    programs, state, batch = build(mesh_shape, **changes)
    before = flat(state.params)
    state, metrics = programs.step(state, batch, 16)
    return flat(state.params) - before, {name: float(s) / max(float(c), 1e-9) for name, (s, c) in metrics.items()}


@pytest.fixture(scope="module")
def built():
    """Programs on one device that are compiled once for all tests."""
    return build()


@pytest.fixture
def run(built):
    """The same with a state that may be donated."""
    programs, state, batch = built
    return programs, jax.tree.map(jnp.copy, state), batch


@pytest.fixture(scope="module")
def whole():
    return one_update(batch__minibatches=2)


def test_an_update_moves_the_parameters(whole):
    moved, metrics = whole
    assert np.abs(moved).max() > 1e-4
    assert metrics["skipped_updates"] == 0
    assert metrics["credit_std"] > 0.5


def test_micro_batches_do_not_change_the_update(whole):
    moved, metrics = one_update(batch__minibatches=2, batch__micro_batches=4)
    np.testing.assert_allclose(moved, whole[0], atol=2e-6)
    for name, value in whole[1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("shape", [{"fsdp": 8}, {"data": 2, "fsdp": 2, "tensor": 2}], ids=str)
def test_meshes_do_not_change_the_update(whole, shape):
    moved, metrics = one_update(shape, batch__minibatches=2)
    np.testing.assert_allclose(moved, whole[0], atol=2e-6)
    for name, value in whole[1].items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name)


def test_token_mean_is_exact_over_micro_batches_of_unequal_length():
    # Case C27: token losses [1, 1, 1, 1] and [5] have the token mean 1.8, whatever they are cut into.
    rows, length = 2, 4
    mask = np.array([[[True] * 4], [[True, False, False, False]]])
    batch = Trajectory(
        tokens=np.zeros((rows, 1, length), np.int32), action_mask=mask, outcome=np.zeros((rows, 1)),
        logprob=np.zeros((rows, 1, length)),
    )  # fmt: skip
    credit = Credit(jnp.where(mask, jnp.array([-1.0, -5.0])[:, None, None], 0.0), jnp.array(mask), {}, Level.TOKEN)
    gradients = []
    for parts in (1, 2):
        learner = step_lib.Learner(
            Scale(), optimizer_of_rate(1.0), step_lib.Sampling(), step_lib.Plan(micro_batches=parts),
            mesh_lib.make_mesh({"data": 1}, jax.devices()[:1]),
        )  # fmt: skip
        state = state_lib.create(Scale(), learner.optimizer, state_lib.run_key(0))
        after, metrics = learner.learn(state, batch, credit, clipped_surrogate(aggregation="token_mean"))
        gradients.append(float(state.params["scale"] - after.params["scale"]))
        np.testing.assert_allclose(metrics["loss"][0], 1.8, rtol=1e-6)
    np.testing.assert_allclose(gradients, 1.8, rtol=1e-6)


class Scale:
    """A policy whose log-probability is one parameter everywhere."""

    def init(self, key):
        return {"scale": jnp.zeros(())}

    def evaluate(self, params, batch, sampling=None, statistics=()):
        from creditjax.models.base import PolicyOutput

        ones = jnp.where(batch.action_mask, params["scale"], 0.0)
        return PolicyOutput(ones, jnp.zeros_like(ones))


def optimizer_of_rate(rate):
    import optax

    return optax.sgd(rate)


def test_another_float_is_the_same_program():
    # Programs of its own: what other tests called counts too, in whatever order they run.
    programs, state, batch = build()
    other = config_lib.check_config(catch_config(recipe={"name": "grpo", "eps": 0.1, "eps_clip": 0.3})).recipe
    for recipe in (programs.recipe, other, programs.recipe):
        arguments = mesh_lib.replicate(programs.mesh, (recipe.estimator, recipe.objective))
        state, _ = programs.update(state, batch, *arguments, np.int32(16))
        batch = programs.roll(state, int(state.cursor), "train", jax.random.key(8))
    assert programs.update._cache_size() == 1
    assert programs.rollout._cache_size() == 1


def test_fsdp_holds_an_eighth_of_parameters_gradients_and_optimiser_state():
    programs, state, batch = build({"fsdp": 8}, policy={"name": "mlp", "hidden": (64, 64)}, batch__micro_batches=2)
    gradients = []
    update = step_lib.make_update(
        programs.learner, programs.abstract, programs.names, lambda path, leaf, place: gradients.append((leaf, place))
    )
    compiled = update.lower(state, batch, programs.estimator, programs.objective, np.int32(16)).compile()
    placed = compiled.output_shardings[0]
    for part in ("params", "opt_state"):
        held = mesh_lib.held_fraction(getattr(state, part), getattr(placed, part))
        assert held < 1.05 / 8, part
    assert len(gradients) == len(jax.tree.leaves(state.params))
    assert mesh_lib.held_fraction([leaf for leaf, _ in gradients], [place for _, place in gradients]) < 1.05 / 8
    # Nothing in the arguments is held whole either: the state's own bytes, not eight times them, enter a device.
    whole = sum(x.nbytes for x in jax.tree.leaves((state.params, state.opt_state)))
    rows = sum(x.nbytes for x in jax.tree.leaves(batch)) / 8
    assert compiled.memory_analysis().argument_size_in_bytes < 1.3 * whole / 8 + rows + 4096


def test_state_is_donated(run):
    programs, state, batch = run
    programs.step(state, batch, 16)
    assert all(x.is_deleted() for x in jax.tree.leaves(state.params))


def test_split_sends_every_row_to_one_part_and_keeps_blocks_together():
    x = {"row": jnp.arange(12), "scalar": jnp.float32(3)}
    parts = step_lib.split(x, 12, 3, jax.random.key(0))
    assert parts["row"].shape == (3, 4)
    assert sorted(np.asarray(parts["row"]).ravel()) == list(range(12))
    np.testing.assert_array_equal(np.sort(np.asarray(parts["row"] // 3), axis=1), np.tile(np.arange(4), (3, 1)))
    np.testing.assert_array_equal(parts["scalar"], [3, 3, 3])
    in_order = step_lib.split(x, 12, 3)
    np.testing.assert_array_equal(step_lib.merge({"row": in_order["row"]})["row"], np.arange(12))
    other = step_lib.split(x, 12, 3, jax.random.key(1))
    assert not np.array_equal(parts["row"], other["row"])


def faulty_batch():
    shape = (3, 2, 4)
    batch = Trajectory(
        tokens=np.zeros(shape, np.int32), action_mask=np.ones(shape, bool), outcome=np.ones(shape[:2]),
        logprob=np.full(shape, -1.0), reward=np.zeros(shape),
    )  # fmt: skip
    logprob, reward, outcome = np.array(batch.logprob), np.array(batch.reward), np.array(batch.outcome)
    logprob[0, 1, 2], reward[2, 0, 0], outcome[1, 0] = np.nan, np.inf, np.nan
    return batch.replace(logprob=logprob, reward=reward, outcome=outcome)


def test_faulty_groups_are_found_and_dropped():
    batch = faulty_batch()
    faulty = step_lib.faulty_groups(batch)
    np.testing.assert_array_equal(faulty, [True, False, True])  # an unscored rollout is no fault
    dropped = step_lib.drop_groups(batch, faulty)
    np.testing.assert_array_equal(np.asarray(dropped.action_mask).any((1, 2)), [False, True, False])
    np.testing.assert_array_equal(dropped.votes, [[False] * 2, [False, True], [False] * 2])
    chex.assert_tree_all_finite((dropped.logprob, dropped.reward))


def test_a_fault_under_the_mask_is_none():
    batch = faulty_batch()
    mask = np.array(batch.action_mask)
    mask[0, 1, 2] = mask[2, 0, 0] = False
    np.testing.assert_array_equal(step_lib.faulty_groups(batch.replace(action_mask=mask)), [False] * 3)


def test_dropped_groups_are_counted_and_do_not_poison_the_update(run):
    programs, state, batch = run
    logprob = np.array(batch.logprob)
    logprob[3, 0, 0] = np.nan
    state, metrics = programs.step(state, batch.replace(logprob=logprob), 16)
    assert float(metrics["dropped_groups"][0]) == 1
    assert np.isfinite(flat(state.params)).all()
    assert float(metrics["skipped_updates"][0]) == 0


def test_a_gradient_that_is_not_finite_changes_nothing(run):
    programs, state, batch = run
    before = flat((state.params, state.opt_state))
    observation = np.array(batch.signals["observation"])
    observation[0, 0, 0] = np.inf
    state, metrics = programs.step(state, batch.with_signals(observation=observation), 16)
    assert float(metrics["skipped_updates"][0]) == 1
    np.testing.assert_array_equal(flat((state.params, state.opt_state)), before)


def test_constant_groups_are_replaced_in_their_places():
    batch = Trajectory(
        tokens=np.zeros((3, 2, 1), np.int32), action_mask=np.ones((3, 2, 1), bool), outcome=[[0.0, 1], [1, 1], [0, 0]]
    )
    idle = step_lib.idle_groups(batch)
    np.testing.assert_array_equal(idle, [False, True, True])
    fresh = batch.replace(tokens=batch.tokens + 5, outcome=np.full((3, 2), 9.0))
    mixed = step_lib.replace_groups(batch, fresh, idle)
    np.testing.assert_array_equal(mixed.outcome, [[0, 1], [9, 9], [9, 9]])
    np.testing.assert_array_equal(mixed.tokens[:, 0, 0], [0, 5, 5])


def test_groups_of_a_mean_that_is_not_kept_are_idle():
    right = np.arange(5) < np.arange(6)[:, None]  # none of five to all five
    batch = Trajectory(np.zeros((6, 5, 1), np.int32), np.ones((6, 5, 1), bool), right.astype(np.float32))
    np.testing.assert_array_equal(step_lib.idle_groups(batch, (0.2, 0.8)), [True, False, False, False, False, True])
    np.testing.assert_array_equal(step_lib.idle_groups(batch, (0.3, 0.7)), [True, True, False, False, True, True])
    # Who does not vote is in no mean.
    silent = batch.replace(votes=np.broadcast_to(np.arange(5) < 2, (6, 5)))
    np.testing.assert_array_equal(step_lib.idle_groups(silent, (0.3, 0.7)), [True, False, True, True, True, True])
