"""A model that scores steps and learns while the policy does, in place of a task's oracle."""

import chex
import jax
from jax import numpy as jnp
import numpy as np
import optax
import pytest
from training_cases import catch_config

from creditjax.models.transformer import TransformerConfig, TransformerPolicy
from creditjax.process import prm
from creditjax.training import config as config_lib
from creditjax.training import loop
from creditjax.training import mesh as mesh_lib
from creditjax.training.reward import StepRewardLearner
from creditjax.training.state import REWARD_MODEL
from creditjax.trajectory import Trajectory

MODEL = prm.StepRewardModel(TransformerConfig(vocab_size=7, width=8, depth=1, heads=2, mlp_width=16))
POLICY = TransformerPolicy(MODEL.config)


def stepwise_config(**changes):
    config = catch_config(
        task={"name": "stepwise", "addends": 2, "base": 3, "gold_noise": 0.4, "eval_size": 4},
        policy={"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_width": 16},
        recipe={"name": "pure"}, steps=2, batch__prompts=16, batch__group_size=4, checkpoint__every=1,
    )  # fmt: skip
    config.reward_model.kind = "steps"
    for path, value in changes.items():
        config.update_from_flattened_dict({path.replace("__", "."): value})
    return config


def programs_of(config, devices=1):
    config.mesh = {"data": devices, "fsdp": 1, "tensor": 1}
    mesh = mesh_lib.make_mesh(config.mesh, jax.devices()[:devices])
    return loop.Programs(config, config_lib.check_config(config, devices), mesh)


def rollouts(outcome, **signals):
    """Two groups of two rollouts of six tokens, in three steps of which one rollout has the first alone."""
    rng = np.random.default_rng(0)
    acted = np.ones((2, 2, 6), bool)
    acted[..., 0] = False
    acted[1, 1, 2:] = False
    segment = np.where(acted, np.array([0, 0, 0, 1, 1, 2]), -1)
    tokens = rng.integers(0, 7, acted.shape).astype(np.int32)
    token_mask = acted | (np.arange(6) == 0)
    return Trajectory(
        tokens=jnp.asarray(tokens), action_mask=jnp.asarray(acted), outcome=jnp.float32(outcome),
        segment=jnp.asarray(segment), num_segments=3, signals={"token_mask": jnp.asarray(token_mask), **signals},
    )  # fmt: skip


def test_the_loss_is_the_cross_entropy_of_labelled_steps():
    learner = StepRewardLearner(optax.sgd(1.0), MODEL)
    params = jax.jit(lambda key: learner.fresh(POLICY.init(key)))(jax.random.key(0))["params"]
    batch = rollouts([[1.0, 0.0], [np.nan, 0.25]])
    # A fresh head is sure of nothing. Of the twelve steps three are not scored and two were not taken.
    assert float(learner.count(batch)) == 7
    loss = jax.jit(lambda params, batch: learner.loss(POLICY, params, batch))
    np.testing.assert_allclose(loss(params, batch), 7 * np.log(2), rtol=1e-6)
    params = {**params, "head": jax.tree.map(lambda x: x + 0.3 * jnp.arange(x.size).reshape(x.shape), params["head"])}
    score = np.float64(jax.jit(lambda *given: prm.step_signals(MODEL, *given)["step_score"])(params, batch))
    labels = np.broadcast_to(np.asarray(batch.outcome)[..., None], score.shape)
    terms = -labels * np.log(score) - (1 - labels) * np.log1p(-score)
    np.testing.assert_allclose(loss(params, batch), np.nansum(terms), rtol=1e-5)


def test_labels_may_be_a_signal_with_gaps():
    label = jnp.float32([[[1, 0, np.nan], [1, 1, 1]], [[0, 0, 0], [1, np.nan, 1]]])
    learner = StepRewardLearner(optax.sgd(1.0), MODEL, "step_label")
    assert float(learner.count(rollouts([[1.0, 0.0], [1.0, 0.0]], step_label=label))) == 9


def test_it_starts_from_the_policy_and_learns_which_steps_are_right():
    config = stepwise_config(reward_model__labels="step_label", reward_model__learning_rate=3e-2)
    programs = programs_of(config)
    state = programs.init()
    start = state.extra[REWARD_MODEL]["params"]
    for name, leaf in start["backbone"].items():
        chex.assert_trees_all_equal(leaf, state.params[name])
    task = programs.task
    assert "process_reward" not in task.signal_names and "step_label" in task.signal_names

    @jax.jit
    def sample(params, prompts, steps):
        batch = task.play(prompts, steps)
        return batch.replace(logprob=programs.policy.evaluate(params, batch).logprob)

    def play(start):
        steps = np.reshape(task.gold("train", start, 64).tokens[..., task.prompt_length :], (16, 4, -1, 2))
        return sample(state.params, task.prompts("train", start // 4, 16), steps)

    losses = []
    for step in range(60):
        state, metrics = programs.step(state, play(64 * step), 16)
        losses.append(float(metrics["reward_model_loss"][0]))
    np.testing.assert_allclose(losses[0], np.log(2), rtol=1e-5)
    assert np.mean(losses[-5:]) < 0.8 * np.log(2)
    batch = play(64 * 60)
    score = prm.step_signals(programs.learner.reward.model, state.extra[REWARD_MODEL]["params"], batch)["step_score"]
    taken, right = np.isfinite(score), np.asarray(batch.signals["step_label"]) > 0.5
    assert np.mean(score[taken & right]) > np.mean(score[taken & ~right]) + 0.1


def test_micro_batches_and_devices_do_not_change_what_it_learns():
    def after(config, devices):
        programs = programs_of(config, devices)
        state = programs.init()
        batch = programs.roll(state, 0, "train", jax.random.key(7))
        right = np.arange(64).reshape(16, 4) % 3 == 0
        batch = jax.device_get(batch).replace(outcome=right.astype(np.float32))
        for _ in range(2):
            state, metrics = programs.step(state, mesh_lib.from_local(programs.mesh, 16, batch), 16)
        return jax.device_get((state.params, state.extra[REWARD_MODEL]["params"])), metrics

    whole, shown = after(stepwise_config(reward_model__learning_rate=1e-2), 1)
    parts, again = after(stepwise_config(reward_model__learning_rate=1e-2, batch__micro_batches=4), 2)
    chex.assert_trees_all_close(parts, whole, rtol=1e-3, atol=3e-5)
    np.testing.assert_allclose(again["reward_model_loss"][0], shown["reward_model_loss"][0], rtol=1e-4)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"reward_model__kind": "step"}, "reward_model.kind: 'step' is unknown"),
        ({"reward_model__labels": "step_labels"}, "reward_model.labels: 'step_labels' is unknown; .*step_label"),
    ],
)
def test_what_is_unknown_is_named(changes, said):
    with pytest.raises(config_lib.ConfigError, match=said):
        config_lib.check_config(stepwise_config(**changes))


def test_it_is_kept_where_it_is_read_and_offered_where_it_is_missing():
    assert programs_of(stepwise_config(recipe__name="grpo")).learner.reward is None
    config = catch_config(
        task={"name": "reasoning_gym", "dataset": "chain_sum", "eval_size": 4, "step_length": 4},
        policy={"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_width": 16},
        recipe={"name": "pure"}, batch__prompts=2, batch__group_size=2,
    )  # fmt: skip
    with pytest.raises(config_lib.ConfigError, match=r"'process_reward' .* config.reward_model.kind='steps' learns it"):
        programs_of(config).check_signals()
    config.reward_model.kind = "steps"
    programs = programs_of(config)
    programs.check_signals()
    assert programs._traced().num_segments == 4
