"""What every registered recipe promises beside the properties of `creditjax.testing`, which test_claims.py asserts.

A new recipe is a new row without a line here.
"""

import functools
import pickle

import jax
from jax import numpy as jnp
import numpy as np
from oracles.batches import random_batch, to_trajectory
import pytest

import creditjax as cj
from creditjax.models.base import PolicyOutput
from creditjax.objectives import counts, total
from creditjax.objectives.base import statistic_like
from creditjax.trajectory import FIELDS

SHAPE = (3, 3, 10)
RECIPES = cj.list_recipes()


@functools.cache
def build(name: str) -> cj.Recipe:
    return cj.recipe(name)


def make(name: str, seed: int, **options) -> cj.Trajectory:
    p, g, t = SHAPE
    d = random_batch(np.random.default_rng(seed), p, g, t, 4, **options)
    return to_trajectory(d, build(name).needs + build(name).estimator.uses)


@functools.cache
def compiled():
    return jax.jit(lambda estimator, batch: cj.estimate(estimator, batch))


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_credit_is_0_where_none_is_assigned_and_degenerate_groups_are_defined(name):
    for seed in range(5):
        batch = make(name, seed)
        result = jax.tree.map(np.asarray, compiled()(build(name).estimator, batch))
        assert not result.value[~result.valid].any()
        assert not (result.valid & ~batch.action_mask).any()
        assert result.level is cj.Level.TOKEN
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.extras))
    p, g, _ = SHAPE
    votes = np.zeros((p, g), bool)
    votes[0, 0] = True  # a group of one, then a group in which nobody votes, then one with equal outcomes
    votes[2] = True
    degenerate = make(name, 7).replace(votes=votes, outcome=np.full((p, g), 0.1))
    value = np.asarray(compiled()(build(name).estimator, degenerate).value)
    assert np.isfinite(value).all()
    assert not value[1].any(), "nobody votes, so nobody is assigned credit"


@pytest.mark.parametrize("name", RECIPES)
def test_an_opened_gradient_is_finite_whatever_lies_under_the_masks(name):
    batch = make(name, 6)
    floats = {s: x for s, x in batch.signals.items() if x.dtype == np.float32}
    if batch.logprob is not None:
        floats["logprob"] = batch.logprob

    @jax.jit
    @jax.grad
    def opened(floats):
        logprob = {"logprob": floats["logprob"]} if "logprob" in floats else {}
        rest = {s: x for s, x in floats.items() if s != "logprob"}
        changed = batch.with_signals(**rest).replace(**logprob)
        return jnp.sum(cj.estimate(build(name).estimator, changed, stop_gradient=False).value)

    assert all(np.isfinite(x).all() for x in jax.tree.leaves(opened(floats)))


@pytest.mark.parametrize("name", RECIPES)
def test_new_hyperparameters_are_the_same_program(name):
    recipe = build(name)
    floats = {k: v for k, v in recipe.hyperparameters.items() if isinstance(v, float) and v > 0}
    changed = cj.recipe(name, **{k: v * 0.9 for k, v in floats.items()})
    # What a jitted function is traced anew for: another structure, or leaves of other shapes or types.
    kinds = [jax.eval_shape(lambda parts=_parts(r): parts) for r in (recipe, changed)]
    assert kinds[0] == kinds[1]
    assert jax.tree.structure(_parts(changed)) == jax.tree.structure(_parts(recipe))


@pytest.mark.parametrize("name", RECIPES)
def test_temporary_memory_is_a_few_arrays(name):
    # Eight arrays [G, T] at linear cost, 2G + 4 where rollouts are compared in pairs.
    g, t = 8, 2048
    d = random_batch(np.random.default_rng(0), 1, g, t, 8)
    batch = to_trajectory(d, build(name).needs + build(name).estimator.uses)
    compiled = jax.jit(cj.estimate).lower(build(name).estimator, batch).compile()
    most = 8 if build(name).cost in ("linear", "T log T") else 2 * g + 4
    assert compiled.memory_analysis().temp_size_in_bytes <= (most + 0.5) * 4 * g * t  # and what is of size G or K


@pytest.mark.parametrize("name", RECIPES)
def test_a_missing_need_is_named_with_its_producer(name):
    batch = make(name, 9)
    for need in build(name).estimator.needs:
        lacking = (
            batch.replace(**{need: None})
            if need in FIELDS
            else batch.replace(signals={s: x for s, x in batch.signals.items() if s != need})
        )
        with pytest.raises(ValueError, match=need):
            cj.estimate(build(name).estimator, lacking)


def statistics_of(recipe, like):
    return {name: statistic_like(name, like) for name in recipe.objective.statistics}


@pytest.mark.parametrize("name", RECIPES)
def test_the_objective_is_finite_and_counts_without_the_policy(name):
    recipe, batch = build(name), make(name, 10)
    assigned = compiled()(recipe.estimator, batch)

    def loss(shift):
        like = -0.5 * jnp.ones(batch.tokens.shape) + shift
        new = PolicyOutput(logprob=like, entropy=-like, value=like, statistics=statistics_of(recipe, like))
        prepared = recipe.objective.prepare(new, assigned, batch)
        terms, whole = recipe.objective(new, prepared, batch), counts(recipe.objective, prepared, batch)
        return total(terms, whole), ({key: term.count for key, term in terms.items()}, whole)

    (value, (found, whole)), gradient = jax.jit(jax.value_and_grad(loss, has_aux=True))(jnp.float32(0.01))
    assert np.isfinite(value) and np.isfinite(gradient)
    # The counts that a step takes beforehand are those of the terms themselves.
    for key, count in whole.items():
        close(found[key], count)


@pytest.mark.parametrize("name", RECIPES)
def test_every_number_may_be_traced(name):
    recipe = build(name)
    numbers = {k: v for k, v in recipe.hyperparameters.items() if isinstance(v, float)}
    made = jax.eval_shape(lambda values: jax.tree.leaves(_parts(cj.recipe(name, **values))), numbers)
    assert all(leaf.dtype == jnp.float32 for leaf in made)


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_survives_pickling(name):
    recipe, again = build(name), pickle.loads(pickle.dumps(build(name)))
    assert (again.card, again.sampler, again.hyperparameters) == (recipe.card, recipe.sampler, recipe.hyperparameters)
    # An equal structure is one program for both.
    assert jax.tree.structure(_parts(again)) == jax.tree.structure(_parts(recipe))
    assert jax.tree.leaves(_parts(again)) == jax.tree.leaves(_parts(recipe))


def _parts(recipe):
    return recipe.estimator, recipe.objective


@pytest.mark.parametrize(
    ("name", "given", "said"),
    [
        ("lampo", {"tau": 0.0}, "tau = 0.0, wanted a number > 0"),
        ("gcpo_guidance", {"tau": -1.0}, "tau = -1.0, wanted a number > 0"),
        ("gpg", {"f_norm": 0}, "f_norm = 0, wanted a number > 0"),
        ("grpo", {"eps": -0.1}, "eps = -0.1, wanted >= 0"),
        ("optimal_token_baseline", {"eps": -1}, "eps = -1, wanted >= 0"),
        ("vtrace", {"rho_pg_bar": -1.0}, "rho_pg_bar = -1.0, wanted a number > 0"),
        ("flowtracer", {"rho": 2.0}, r"rho = 2.0, wanted a number in \[0, 1\]"),
        ("hicra", {"alpha": -2.0}, "alpha = -2.0, wanted a number >= 0"),
        ("dapo", {"max_length": 4, "buffer": -2}, "buffer = -2, wanted a number >= 0"),
        ("dapo", {"factor": float("nan")}, "factor = nan"),
        ("espo_entropy", {"bins": 0}, "bins = 0, wanted a number > 0"),
        ("cort_replay", {"w_min": 2.0, "w_max": 0.5}, "w_min = 2.0, wanted at most w_max = 0.5"),
        ("decaying_process_reward", {"decay_steps": 0.0}, "decay_steps = 0.0, wanted a number > 0"),
        ("prime", {"beta": float("nan")}, "beta = nan"),
        ("prime", {"granularity": "whole", "baseline": "papr"}, "baseline: 'papr', did you mean paper"),
        ("vpr", {"commit": "nonsense"}, "commit = 'nonsense'; it is one of max, sample"),
        ("grad2reward", {"weights": ("a",)}, "weights = .'a',., wanted numbers"),
        ("explainable_shaping", {"weights": (1.0,)}, "wanted one for each explainer"),
    ],
)
def test_constants_that_can_mean_nothing_are_refused(name, given, said):
    with pytest.raises(ValueError, match=said):
        cj.recipe(name, **given)
