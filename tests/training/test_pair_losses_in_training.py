"""Losses over pairs and groups, and those that ask the policy for more, in the ordinary update."""

import chex
import jax
import numpy as np
import pytest
from training_cases import catch_config

from creditjax.training import config as config_lib
from creditjax.training import loop
from creditjax.training import mesh as mesh_lib


def one_update(mesh_shape=None, **changes):
    """How the parameters move in one update, and its metrics."""
    config = catch_config(**changes)
    config.mesh = {"data": 1, "fsdp": 1, "tensor": 1} | (mesh_shape or {})
    mesh = mesh_lib.make_mesh(config.mesh, jax.devices()[: int(np.prod(list(config.mesh.values())))])
    programs = loop.Programs(config, config_lib.check_config(config, mesh_lib.batch_shards(mesh)), mesh)
    programs.check_signals()
    state = programs.init()
    batch = programs.roll(state, 0, "train", jax.random.key(7))
    flat = lambda tree: np.concatenate([np.asarray(x, np.float64).ravel() for x in jax.tree.leaves(tree)])  # noqa: E731
    before = flat(state.params)
    state, metrics = programs.step(state, batch, 16)
    return flat(state.params) - before, {name: float(s) / max(float(c), 1e-9) for name, (s, c) in metrics.items()}


# Two minibatches: in the second the policy has left the reference, so divergences and ratios are not trivial.
@pytest.mark.parametrize(
    ("recipe", "term"),
    [
        ({"name": "vimpo", "beta": 0.5}, "implied_value"),
        ({"name": "conspo"}, "contrast"),
        ({"name": "rise_dpo", "edits": False}, "nll"),
    ],
    ids=["vimpo", "conspo", "rise_dpo"],
)
def test_micro_batches_and_shards_do_not_change_the_update(recipe, term):
    whole, shown = one_update(recipe=recipe, batch__minibatches=2)
    assert np.any(whole != 0) and np.isfinite(shown["loss"]) and shown[term] != 0 and shown["skipped_updates"] == 0
    parts, again = one_update({"data": 2}, recipe=recipe, batch__minibatches=2, batch__micro_batches=4)
    np.testing.assert_allclose(parts, whole, rtol=1e-3, atol=2e-6)
    np.testing.assert_allclose(again[term], shown[term], rtol=1e-4)


def test_edited_steps_are_pairs_of_their_own():
    """A batch of sampled groups and of edited steps: at the reference each kind of pair costs log 2."""
    config = catch_config(
        task={"name": "stepwise", "addends": 2, "base": 3, "gold_noise": 0.4, "eval_size": 4, "signals": ()},
        policy={"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_width": 16},
        recipe={"name": "rise_dpo"}, batch__prompts=16, batch__group_size=4,
    )  # fmt: skip

    def build(devices):
        config.mesh = {"data": devices, "fsdp": 1, "tensor": 1}
        mesh = mesh_lib.make_mesh(config.mesh, jax.devices()[:devices])
        return loop.Programs(config, config_lib.check_config(config, devices), mesh)

    programs = build(1)
    state, task = programs.init(), programs.task

    @jax.jit
    def sample(params, prompts, steps):
        batch = task.play(prompts, steps)
        return batch.replace(logprob=programs.policy.evaluate(params, batch).logprob)

    steps = np.reshape(task.gold("train", 0, 64).tokens[..., task.prompt_length :], (16, 4, -1, 2))
    batch = sample(state.params, task.prompts("train", 0, 16), steps)
    before = jax.tree.map(np.asarray, state.params)
    shown = {}
    for _ in range(2):
        state, metrics = programs.step(state, batch, 16)
        shown = {name: [*shown.get(name, ()), float(s) / float(c)] for name, (s, c) in metrics.items() if float(c)}
    assert shown["skipped_updates"] == [0, 0]
    for name in ("preference", "step_preference"):
        np.testing.assert_allclose(shown[name][0], np.log(2), rtol=1e-5)
        assert shown[name][1] < shown[name][0]
    right = (np.asarray(batch.outcome) == 1).any(1)
    assert 0 < right.sum() < 16 and float(metrics["step_preference"][1]) == right.sum()
    # What is measured is measured of the rollouts alone.
    assert float(metrics["reward"][1]) == batch.outcome.size
    shown = programs.sample_rollouts(state, 2)
    assert len(shown) == 8 and all(len(row["tokens"]) == len(row["credit"]) for row in shown)
    moved = jax.tree.map(lambda x, y: float(np.abs(np.asarray(x) - y).max()), state.params, before)
    config.batch.micro_batches = 4
    programs = build(2)
    again = programs.init()
    for _ in range(2):
        again, _ = programs.step(again, mesh_lib.from_local(programs.mesh, 16, jax.device_get(batch)), 16)
    chex.assert_trees_all_close(jax.device_get(again.params), jax.device_get(state.params), rtol=1e-3, atol=2e-6)
    assert max(jax.tree.leaves(moved)) > 0


def test_progress_is_the_share_of_the_run():
    config = catch_config(recipe={"name": "conspo"}, steps=8)
    assert config_lib.check_config(config).plan.steps == 8
