"""What every registered recipe promises, checked for all of them: a new recipe is a new row without a line here."""

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
from creditjax.trajectory import FIELDS, signal_spec

# Two shapes in all: the batch, and the same batch padded along every axis.
SHAPE, PADDED = (3, 3, 10), (4, 5, 13)
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


def credit(name: str, batch: cj.Trajectory) -> np.ndarray:
    return np.asarray(compiled()(build(name).estimator, batch).value)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("name", RECIPES)
def test_zero_outside_the_mask_and_finite_whatever_padding_holds(name):
    for seed in range(5):
        batch = make(name, seed)
        result = jax.tree.map(np.asarray, compiled()(build(name).estimator, batch))
        assert np.isfinite(result.value).all()
        assert not result.value[~result.valid].any()
        assert not (result.valid & ~batch.action_mask).any()
        assert result.value.dtype == np.float32 and result.level is cj.Level.TOKEN
        assert all(np.isfinite(x).all() for x in jax.tree.leaves(result.extras))


@pytest.mark.parametrize("name", RECIPES)
def test_padding_of_every_axis_changes_nothing(name):
    batch = make(name, 1)
    p, g, t = SHAPE
    padded = cj.pad_positions(cj.pad_rollouts(batch, *PADDED[:2]), PADDED[2])
    close(credit(name, padded)[:p, :g, :t], credit(name, batch))


def permuted(batch: cj.Trajectory, axis: str, order: np.ndarray) -> cj.Trajectory:
    """The batch with its prompts or its rollouts in another order."""

    def move(x, axes):
        return jnp.take(jnp.asarray(x), order, axis=axes.index(axis)) if axis in axes else x

    fields = {f: move(x, ("P", "G")) for f in FIELDS if (x := getattr(batch, f)) is not None}
    signals = {s: move(x, signal_spec(s).axes) for s, x in batch.signals.items()}
    return batch.replace(**fields, signals=signals)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("axis", ["P", "G"])
def test_permuting_prompts_or_rollouts_permutes_the_credit(name, axis):
    batch = make(name, 2)
    order = np.array([2, 0, 1])
    close(credit(name, permuted(batch, axis, order)), np.take(credit(name, batch), order, axis="PG".index(axis)))


@pytest.mark.parametrize("name", RECIPES)
def test_a_prompt_depends_on_others_only_if_the_recipe_says_so(name):
    batch, other = make(name, 3), make(name, 4)

    def first_of(a, b):
        return jnp.concatenate([jnp.asarray(a)[:1], jnp.asarray(b)[1:]]) if jnp.ndim(a) else a

    mixed = jax.tree.map(first_of, batch, other)
    if build(name).batch_statistics:
        return
    close(credit(name, mixed)[0], credit(name, batch)[0])


@pytest.mark.parametrize("name", RECIPES)
def test_jit_eager_and_vmap_agree(name):
    batch, estimator = make(name, 5), build(name).estimator
    want = credit(name, batch)
    eager = cj.credit_trace(estimator, batch)[-1][1]
    close(cj.algebra.lift(eager, batch).value, want)
    twice = jax.tree.map(lambda x: jnp.stack([jnp.asarray(x)] * 2), batch)
    mapped = jax.vmap(lambda b: compiled()(estimator, b).value)(twice)
    close(mapped[1], want)


@pytest.mark.parametrize("name", RECIPES)
def test_with_64_bit_types_enabled_credit_is_the_same(name):
    batch = make(name, 3)
    with jax.enable_x64(True):
        wide = cj.estimate(build(name).estimator, batch)
    assert wide.value.dtype == jnp.float32
    close(np.asarray(wide.value), credit(name, batch))


@pytest.mark.parametrize("name", RECIPES)
def test_gradients_through_credit_are_stopped(name):
    batch = make(name, 6)
    floats = {s: x for s, x in batch.signals.items() if x.dtype == np.float32}
    if batch.logprob is not None:
        floats["logprob"] = batch.logprob

    def total(floats, stop):
        logprob = {"logprob": floats["logprob"]} if "logprob" in floats else {}
        rest = {s: x for s, x in floats.items() if s != "logprob"}
        changed = batch.with_signals(**rest).replace(**logprob)
        return jnp.sum(cj.estimate(build(name).estimator, changed, stop_gradient=stop).value)

    stopped, opened = jax.jit(lambda x: (jax.grad(total)(x, True), jax.grad(total)(x, False)))(floats)
    assert all(not np.asarray(x).any() for x in jax.tree.leaves(stopped))
    # Whoever opens the gradient gets a finite one, whatever lies under the masks.
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(opened))


@pytest.mark.parametrize("name", RECIPES)
def test_degenerate_groups_are_defined(name):
    batch = make(name, 7)
    p, g, _ = SHAPE
    votes = np.zeros((p, g), bool)
    votes[0, 0] = True  # a group of one, then a group in which nobody votes, then one with equal outcomes
    votes[2] = True
    degenerate = batch.replace(votes=votes, outcome=np.full((p, g), 0.1))
    value = credit(name, degenerate)
    assert np.isfinite(value).all()
    assert not value[1].any(), "nobody votes, so nobody is assigned credit"


@pytest.mark.parametrize("name", RECIPES)
def test_new_hyperparameters_do_not_retrace(name):
    recipe = build(name)
    floats = {k: v for k, v in recipe.hyperparameters.items() if isinstance(v, float) and v > 0}
    batch = make(name, 8)
    traces = []

    @jax.jit
    def run(estimator, batch):
        traces.append(None)
        return cj.estimate(estimator, batch).value

    run(recipe.estimator, batch)
    changed = cj.recipe(name, **{k: v * 0.9 for k, v in floats.items()})
    run(changed.estimator, batch)
    assert len(traces) == 1
    assert jax.tree.structure(changed.objective) == jax.tree.structure(recipe.objective)


@pytest.mark.parametrize("name", RECIPES)
def test_cost_grows_linearly_with_positions(name):
    def flops(t):
        d = random_batch(np.random.default_rng(0), 2, 3, t, 4)
        batch = to_trajectory(d, build(name).needs + build(name).estimator.uses)
        cost = jax.jit(cj.estimate).lower(build(name).estimator, batch).cost_analysis()
        return cost["flops"]

    if build(name).cost == "quadratic in T":
        return
    assert flops(512) < 2.4 * flops(256)


@pytest.mark.parametrize("name", RECIPES)
def test_temporary_memory_is_a_few_arrays(name):
    # Eight arrays [G, T] at linear cost, 2G + 4 where rollouts are compared in pairs.
    g, t = 8, 2048
    d = random_batch(np.random.default_rng(0), 1, g, t, 8)
    batch = to_trajectory(d, build(name).needs + build(name).estimator.uses)
    compiled = jax.jit(cj.estimate).lower(build(name).estimator, batch).compile()
    most = 8 if build(name).cost == "linear" else 2 * g + 4
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


@pytest.mark.parametrize("name", RECIPES)
def test_the_objective_is_finite_and_counts_without_the_policy(name):
    recipe, batch = build(name), make(name, 10)
    assigned = compiled()(recipe.estimator, batch)

    @jax.jit
    @jax.value_and_grad
    def loss(shift):
        like = -0.5 * jnp.ones(batch.tokens.shape) + shift
        new = PolicyOutput(logprob=like, entropy=-like, value=like)
        prepared = recipe.objective.prepare(new, assigned, batch)
        terms = recipe.objective(new, prepared, batch)
        return total(terms, counts(recipe.objective, prepared, batch))

    value, gradient = loss(jnp.float32(0.01))
    assert np.isfinite(value) and np.isfinite(gradient)
    # The counts that a step takes beforehand are those of the terms themselves.
    like = jnp.full(batch.tokens.shape, -0.5)
    prepared = recipe.objective.prepare(PolicyOutput(like, like, like), assigned, batch)
    terms = recipe.objective(PolicyOutput(like, like, like), prepared, batch)
    for key, count in counts(recipe.objective, prepared, batch).items():
        close(terms[key].count, count)


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
