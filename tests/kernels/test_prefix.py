"""Prefix values and matching against their definitions, written out."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.kernels import matching, prefix

G, T = 6, 12
branch_td = jax.jit(prefix.branch_td)
match_reward = jax.jit(matching.match_reward, static_argnames="method")


def group(seed):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(0, 2, (G, T)).astype(np.int32)
    tokens[1, :7], tokens[2], tokens[3, :3] = tokens[0, :7], tokens[0], tokens[0, :3]
    length = rng.integers(1, T + 1, G).astype(np.int32)
    length[2] = length[0]
    weight = np.array([1, 1, 1, 0, 1, 1], np.float32)
    return tokens, length, np.where(weight > 0, rng.normal(size=G), np.nan).astype(np.float32), weight


def reference_values(tokens, length, x, weight):
    value = np.zeros((G, T + 1))
    for i, t in itertools.product(range(G), range(T + 1)):
        same = min(t, length[i])
        voters = [
            j for j in range(G) if weight[j] and length[j] >= same and list(tokens[j, :same]) == list(tokens[i, :same])
        ]
        value[i, t] = np.mean([x[j] for j in voters]) if voters else 0.0
    return value


@pytest.mark.parametrize("seed", range(5))
def test_prefix_values_are_means_over_shared_prefixes(seed):
    tokens, length, x, weight = group(seed)
    wanted = reference_values(tokens, length, x, weight)
    np.testing.assert_allclose(prefix.prefix_values(tokens, length, x, weight), wanted, atol=1e-6)
    credit = branch_td(tokens, length, x, weight)
    np.testing.assert_allclose(credit, np.diff(wanted, axis=1), atol=1e-6)
    # It telescopes to the mean of the rollouts identical to the row, and moves only where somebody leaves.
    np.testing.assert_allclose(np.sum(credit, axis=1), wanted[:, -1] - wanted[:, 0], atol=1e-6)
    order = np.random.default_rng(seed).permutation(G)
    permuted = branch_td(*(a[order] for a in (tokens, length, x, weight)))
    np.testing.assert_allclose(permuted, np.asarray(credit)[order], atol=1e-6)


def test_common_prefix_is_the_definition():
    tokens, length, _, _ = group(0)
    shared = prefix.common_prefix(tokens, length)
    for i, j in itertools.product(range(G), range(G)):
        same = 0
        while same < min(length[i], length[j]) and tokens[i, same] == tokens[j, same]:
            same += 1
        assert shared[i, j] == (length[i] if i == j else same)


def test_pairwise_prefixes_of_a_million_positions_need_few_temporaries():
    group_size, length = 8, 1_000_000
    args = [
        jax.ShapeDtypeStruct((group_size, length), jnp.int32),
        jax.ShapeDtypeStruct((group_size,), jnp.int32),
        *[jax.ShapeDtypeStruct((group_size,), jnp.float32)] * 2,
    ]
    compiled = jax.jit(prefix.branch_td).lower(*args).compile()
    assert compiled.memory_analysis().temp_size_in_bytes <= (2 * group_size + 4) * 4 * group_size * length


@pytest.mark.parametrize("shape", [(3, 4), (4, 3), (4, 4)])
def test_exact_matching_maximises_the_total(shape):
    rng = np.random.default_rng(sum(shape))
    for _ in range(5):
        similarity = rng.random(shape).astype(np.float32)
        calls, references = rng.random(shape[0]) < 0.8, rng.random(shape[1]) < 0.8
        best = 0.0
        rows, columns = np.flatnonzero(calls), np.flatnonzero(references)
        k = min(len(rows), len(columns))
        for r in itertools.permutations(rows, k):
            for c in itertools.combinations(columns, k):
                best = max(best, float(sum(similarity[i, j] for i, j in zip(r, c, strict=True))))
        hidden = np.where(calls[:, None] & references, similarity, np.nan)
        reward = match_reward(hidden, calls, references)
        np.testing.assert_allclose(np.sum(reward), best, rtol=1e-5)
        greedy = match_reward(hidden, calls, references, method="greedy")
        assert np.sum(greedy) <= best + 1e-5


def test_greedy_takes_the_best_pair_first_and_a_duplicate_earns_the_penalty():
    similarity = jnp.array([[0.9, 0.8], [0.8, 0.1], [0.9, 0.0]])
    everything = (jnp.ones(3, bool), jnp.ones(2, bool))
    np.testing.assert_allclose(match_reward(similarity, *everything, -0.5, method="greedy"), [0.9, 0.1, -0.5])
    np.testing.assert_allclose(match_reward(similarity, *everything, -0.5), [0.8, -0.5, 0.9])


def test_matched_permutation_earns_one_and_no_call_earns_nothing():
    permutation = jnp.eye(4)[jnp.array([2, 0, 3, 1])]
    all_four = jnp.ones(4, bool)
    for method in ("exact", "greedy"):
        np.testing.assert_allclose(match_reward(permutation, all_four, all_four, -0.5, method=method), np.ones(4))
    assert not np.any(match_reward(permutation, ~all_four, all_four, -0.5))
    np.testing.assert_allclose(match_reward(permutation, all_four, ~all_four, -0.5), np.full(4, -0.5))


def test_sinkhorn_plan_has_the_marginals():
    rng = np.random.default_rng(0)
    similarity = rng.random((3, 5)).astype(np.float32)
    calls, references = np.array([True, True, False]), np.array([True, True, True, True, False])
    # With similarity 1 everywhere a call's reward is its mass; a peaked kernel approaches the best assignment.
    mass = match_reward(np.ones((3, 5), np.float32), calls, references, method="sinkhorn")
    np.testing.assert_allclose(mass, [0.5, 0.5, 0], rtol=1e-5)
    hidden = np.where(calls[:, None] & references, similarity, np.nan)
    reward = match_reward(hidden, calls, references, method="sinkhorn")
    assert reward[2] == 0 and np.all(np.isfinite(reward))
    assert np.sum(reward) <= np.max(similarity[:2, :4])


def test_unknown_matcher():
    with pytest.raises(ValueError, match="method: 'hungarian', wanted one of"):
        matching.match_reward(jnp.ones((2, 2)), jnp.ones(2, bool), jnp.ones(2, bool), method="hungarian")
