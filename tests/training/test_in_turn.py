"""Objectives in turn: the second one meets the policy that the first one has made."""

import jax
import numpy as np
from training_cases import catch_config

from creditjax.training import config as config_lib
from creditjax.training import loop
from creditjax.training import mesh as mesh_lib


def test_the_critic_steps_after_the_actor_and_sees_what_it_became():
    config = catch_config(recipe={"name": "pact_critic"})
    config.mesh = dict(data=1, fsdp=1, tensor=1)
    mesh = mesh_lib.make_mesh(config.mesh, jax.devices()[:1])
    programs = loop.Programs(config, config_lib.check_config(config, 1), mesh)
    state = programs.init()
    batch = programs.roll(state, 0, "train", jax.random.key(7))
    _, metrics = programs.step(state, batch, 16)
    mean = {name: float(total) / max(float(count), 1e-9) for name, (total, count) in metrics.items()}
    assert {"policy", "value"} <= mean.keys() and np.isfinite(list(mean.values())).all()
    # The actor's own update is taken where the policy is the behaviour, so a divergence is what the critic met.
    assert abs(mean["ratio"] - 1) < 1e-4
    assert mean["kl_behaviour"] > 1e-7
    assert mean["gradient_norm"] > 0 and mean["skipped_updates"] == 0
