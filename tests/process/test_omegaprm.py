"""Bisection against every place an error can be at, and a search on a process whose values are known."""

import functools
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.process import omegaprm


@functools.partial(jax.jit, static_argnums=1)
def bisect(alive, most):
    return jax.vmap(lambda row, n: omegaprm.binary_search_first_error(lambda k: row[k], n))(alive, jnp.arange(1, most))


def test_bisection_finds_every_first_error_in_few_questions():
    most = 20
    lengths = np.arange(1, most)
    for where in range(1, most):
        alive = np.arange(most + 1)[None, :] < np.minimum(where, lengths)[:, None]
        first, asked = bisect(jnp.array(alive), most)
        np.testing.assert_array_equal(first, np.minimum(where, lengths))
        assert np.all(np.asarray(asked) <= [math.ceil(math.log2(n)) for n in lengths])


def test_without_monotony_it_finds_a_dead_prefix_behind_one_that_is_alive():
    rng = np.random.default_rng(0)
    for _ in range(20):
        alive = rng.random((19, 21)) < 0.5
        alive[:, 0] = True
        alive[np.arange(19), np.arange(1, 20)] = False  # the whole solution is wrong
        first, _ = bisect(jnp.array(alive), 20)
        assert not np.any(alive[np.arange(19), first]) and np.all(alive[np.arange(19), first - 1])


CONFIG = omegaprm.SearchConfig(max_steps=6, searches=12, completions=32, scale=6.0)
ERROR = 0.15


def rollout(key, steps, length, k, prompt):
    """Step 0 is right, 1 is a slip; one slip spoils the answer. So the value of a clean prefix of n steps is
    ``0.85^(6 - n)``, and that of any other 0."""
    order = jnp.arange(CONFIG.max_steps)
    drawn = jax.random.bernoulli(key, ERROR, (k, CONFIG.max_steps)).astype(jnp.int32)
    whole = jnp.where(order < length, steps, drawn)
    full = jnp.full(k, CONFIG.max_steps, jnp.int32)
    return omegaprm.Completions(whole, full, ~jnp.any(whole == 1, axis=-1), full.astype(jnp.float32))


@pytest.fixture(scope="module")
def tree():
    return jax.jit(lambda key: omegaprm.search(key, rollout, CONFIG))(jax.random.key(0))


def test_the_search_values_prefixes_as_they_are(tree):
    nodes = np.flatnonzero(tree.is_node)
    # The root and what one bisection of six steps asks for, at least; hopeful nodes are chosen again and again.
    assert len(nodes) >= 4 and tree.length[0] == 0 and tree.rollouts == 32 * len(nodes)
    steps, length = np.asarray(tree.steps), np.asarray(tree.length)
    assert len({tuple(steps[i]) for i in nodes}) == len(nodes), "no prefix twice"
    for i in nodes:
        prefix = steps[i, : length[i]]
        assert np.all(steps[i, length[i] :] == -1)
        true = 0.0 if np.any(prefix == 1) else (1 - ERROR) ** (6 - length[i])
        assert abs(tree.value[i] - true) <= 4 * np.sqrt(true * (1 - true) / 32) + 1e-6


def test_first_errors_are_the_first_slips(tree):
    """Every search bisects a completion with a slip, whose first one is a node or its last step."""
    found = np.asarray(tree.first_error)
    assert np.all((found >= 0) & (found < 6))
    steps, length = np.asarray(tree.steps), np.asarray(tree.length)
    slips = [i for i in np.flatnonzero(tree.is_edge) if np.any(steps[i, : length[i]] == 1)]
    assert slips and all(tree.value[i] == 0 for i in slips)
    # A dead node is a clean prefix with a slip behind it, and the searches found errors where such slips are.
    assert {int(np.argmax(steps[i] == 1)) for i in slips} <= set(range(6))
    assert np.sum(tree.visits) == CONFIG.searches


def test_a_pool_that_is_empty_ends_the_search():
    never = lambda key, steps, length, k, prompt: rollout(key, steps, length, k, prompt)._replace(  # noqa: E731
        success=jnp.ones(k, bool)
    )
    small = omegaprm.SearchConfig(max_steps=6, searches=2, completions=4)
    tree = omegaprm.search(jax.random.key(0), never, small)
    assert tree.is_node.sum() == 1 and tree.value[0] == 1.0 and np.all(tree.first_error == -1)
    assert not np.any(tree.visits) and not np.any(tree.is_edge)


def test_selection_prefers_hopeful_nodes_and_short_completions():
    value, size = jnp.linspace(0, 1, 5)[:, None], jnp.linspace(0, 20, 5)
    q = omegaprm.selection_value(value, size, CONFIG)
    assert np.all((q > 0) & (q <= 1)) and np.all(np.diff(q, axis=0) > 0) and np.all(np.diff(q, axis=1) < 0)
    assert omegaprm.exploration(jnp.array(3.0), jnp.array(16.0), CONFIG) == 0.125 * 4 / 4
    with pytest.raises(ValueError, match="alpha: 0.0, wanted more than 0"):
        omegaprm.SearchConfig(4, alpha=0.0)
    with pytest.raises(ValueError, match="searches: 0, wanted at least 1"):
        omegaprm.SearchConfig(4, searches=0)


def test_edges_become_records_and_siblings_pairs(tree):
    records = omegaprm.to_records(tree, "p", "abc".__getitem__, "t")
    assert len(records) == int(tree.is_edge.sum())
    by_prefix = {}
    for record in records:
        assert record.step_labels[:-1] == (None,) * (len(record.steps) - 1)
        by_prefix.setdefault(record.steps[:-1], []).append(record.step_labels[-1])
    wanted = sum(a > b for values in by_prefix.values() for a in values for b in values)
    pairs = omegaprm.sibling_pairs(tree)
    assert int(pairs.sum()) == wanted > 0
    score = jnp.where(jnp.any(pairs, 0) | jnp.any(pairs, 1), tree.value, jnp.nan)
    term = omegaprm.pair_loss(score, pairs)
    by_hand = sum(np.log1p(np.exp(b - a)) for v in by_prefix.values() for a in v for b in v if a > b)
    np.testing.assert_allclose(term.sum, by_hand, rtol=1e-5)
    assert np.all(np.isfinite(jax.grad(lambda s: omegaprm.pair_loss(s, pairs).sum)(score)))
