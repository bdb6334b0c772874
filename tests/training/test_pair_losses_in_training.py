"""Losses over pairs and groups, and those that ask the policy for more, in the ordinary update."""

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


def test_progress_is_the_share_of_the_run():
    config = catch_config(recipe={"name": "conspo"}, steps=8)
    assert config_lib.check_config(config).plan.steps == 8
