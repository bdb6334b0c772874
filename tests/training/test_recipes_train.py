"""Every registered recipe does one update of the training loop on a small task that gives it its signals."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest
from training_cases import catch_config

from creditjax.recipes.registry import _REGISTRY
from creditjax.signals import PRODUCERS, Models, produce
from creditjax.signals.producers import fault
from creditjax.training import config as config_lib
from creditjax.training import loop
from creditjax.training import mesh as mesh_lib

TASKS = {
    "stepwise": {"addends": 2, "base": 3, "eval_size": 4},
    "lookup": {"num_entities": 4, "num_relations": 2, "hops": 1, "num_skills": 2, "gold_noise": 0.5, "eval_size": 4},
    "judging": {"addends": 2, "base": 3, "gold_noise": 0.5, "eval_size": 4},
}


@functools.cache
def mesh():
    return mesh_lib.make_mesh({"data": 1}, jax.devices()[:1])


_SHAPES: dict = {}


def programs_of(name: str, task: str) -> loop.Programs:
    """The programs of a run, as `train` builds and checks them; nothing is compiled."""
    config = catch_config(
        task={"name": task, **TASKS[task]},
        policy={"name": "transformer", "width": 8, "depth": 1, "heads": 2, "mlp_width": 16, "value_head": True},
        recipe={"name": name}, optimizer__name="sgd", steps=2, batch__prompts=2, batch__group_size=4,
    )  # fmt: skip
    config.mesh = dict(data=1, fsdp=1, tensor=1)
    programs = loop.Programs(config, config_lib.check_config(config), mesh())
    # Recipes that ask a task for the same have rollouts of the same shapes, unless their groups are of states.
    kind = (task, programs.task.signals, programs.recipe.sampler.commit)
    if kind not in _SHAPES:
        _SHAPES[kind] = programs._traced()
    programs._traced = lambda: _SHAPES[kind]
    programs.check_signals()
    return programs


def fed_by(name: str) -> tuple[loop.Programs | None, str]:
    """The first task that gives the recipe all that it needs, or what the last one said."""
    said = ""
    for task in TASKS:
        try:
            return programs_of(name, task), task
        except config_lib.ConfigError as error:
            said = str(error)
    return None, said


@functools.cache
def rollouts(task: str):
    """Rollouts with every signal that the task and the models can give, made once for all recipes."""
    programs = programs_of("grpo", task)
    whole = dataclasses.replace(programs.task, signals=None)
    params = jax.jit(programs.policy.init)(jax.random.key(0))
    # Three different models: without a difference there is no credit.
    reference, judge = (jax.tree.map(lambda x, rate=rate: x * rate, params) for rate in (0.5, 2.0))
    gold = whole.gold("train", 0, 8)  # of other prompts, so mostly wrong here
    steps = np.reshape(gold.tokens[..., whole.prompt_length :], (2, 4, whole.turns.max_turns, -1))

    def roll(params, reference, judge, prompts, key):
        # An untrained policy does nothing that means anything: demonstrations, some of them wrong.
        expert = (whole.expert, jax.random.split(key, (2, 4))) if task == "lookup" else (steps,)
        batch = whole.play(prompts, *expert)
        batch = batch.replace(logprob=programs.policy.evaluate(params, batch).logprob)
        models = Models(programs.policy, params, reference, judge, programs.sampling, whole)
        makes = lambda name: fault(name, batch.signals, whole, programs.policy) is None  # noqa: E731
        return produce(models, batch, [name for name in PRODUCERS if name not in batch.signals and makes(name)])

    batch = jax.device_get(jax.jit(roll)(params, reference, judge, whole.prompts("train", 0, 2), jax.random.key(1)))
    # A group of each kind: successes and failures, so that no credit is 0 for want of a difference.
    outcome = np.float32([[1, 0, 1, 0], [0, 0, 1, 0]])
    return batch.replace(outcome=outcome).with_signals(accuracy=outcome, greedy_outcome=np.zeros(2, np.float32))


def own_kind(programs: loop.Programs) -> bool:
    """Whether the recipe learns from rollouts that fit it alone: actions of one state, or such as its buffer holds."""
    return bool(programs.recipe.sampler.commit or programs.replay)


def own_rollouts(programs: loop.Programs, state):
    """Rollouts of the run itself, half of them right in the first group; an untrained policy is right nowhere."""
    batch = programs.roll(state, 0, "train", jax.random.key(1))
    right = np.zeros(batch.batch_shape, np.float32)
    right[0, :2] = 1
    if programs.recipe.sampler.commit:
        return batch.with_signals(candidate_reward=right)
    return batch.replace(outcome=right)


@functools.cache
def first_state(task: str, kept: tuple[bool, ...]):
    """A state with or without reference, reward model and buffer; its programs are those of whoever asks first."""
    return _PROGRAMS[task, kept].init()


_PROGRAMS: dict = {}


@pytest.mark.parametrize("name", sorted(_REGISTRY))
def test_a_recipe_does_one_update(name):
    programs, task = fed_by(name)
    assert programs is not None, task
    kept = tuple(map(bool, programs._kept))
    _PROGRAMS.setdefault((task, kept), programs)
    state = jax.tree.map(jnp.copy, first_state(task, kept))
    before = jax.tree.map(np.asarray, state.params)
    batch = own_rollouts(programs, state) if own_kind(programs) else rollouts(task)
    state, metrics = programs.step(state, batch, 2)
    assert float(metrics["skipped_updates"][0]) == 0
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves((state.params, metrics)))
    assert int(state.step) == 1
    moved = jax.tree.map(lambda x, y: float(np.abs(np.asarray(x) - y).max()), state.params, before)
    assert max(jax.tree.leaves(moved)) > 0
