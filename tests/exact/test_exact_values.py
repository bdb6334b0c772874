"""Values, credit and gradients: dynamic programming, enumeration and theory agree."""

import time

import jax
import numpy as np
import pytest

from creditjax import exact
from creditjax.tasks import bifurcation


def random_game(rng):
    turns = int(rng.integers(2, 6))
    flip = float(rng.choice([0.0, 0.2]))
    sees = str(rng.choice(["state", "turn", "parity", "nothing"]))
    kind = rng.integers(3)
    if kind == 0:
        weights = tuple(int(w) for w in rng.integers(-2, 3, turns))
        return bifurcation.threshold(weights, int(rng.integers(-2, 3)), flip=flip, sees=sees)
    if kind == 1:
        chosen = tuple(int(k) for k in np.flatnonzero(rng.random(turns) < 0.6))
        return bifurcation.conjunction(turns, chosen, flip=flip, sees=sees)
    return bifurcation.recoverable(turns, 0, turns - 1, flip=flip, sees=sees)


def random_policy(rng, process):
    return exact.tabulate(process, lambda _: rng.dirichlet(np.ones(process.num_tokens)))


@pytest.mark.parametrize("seed", range(20))
def test_dynamic_programming_equals_enumeration(seed):
    rng = np.random.default_rng(seed)
    process = exact.lay_out(random_game(rng))
    policy = random_policy(rng, process)
    solution = exact.solve(process, policy)
    paths = exact.enumerate_paths(process)
    chance = exact.probability(process, paths, policy)
    np.testing.assert_allclose(chance.sum(), 1, rtol=1e-12)
    np.testing.assert_allclose(solution.start, chance @ paths.outcome, atol=1e-12)
    # V of any state is the mean return of the episodes that pass through it.
    for t in range(process.length):
        for state in range(len(process.states[t])):
            through = (paths.states[:, t] == state) & (chance > 0)
            np.testing.assert_allclose(solution.reach[t][state], chance[through].sum(), atol=1e-12)
            mean = (chance * paths.reward[:, t:].sum(axis=1))[through].sum() / max(chance[through].sum(), 1e-300)
            if through.any():
                np.testing.assert_allclose(solution.v[t][state], mean, atol=1e-10)


@pytest.mark.parametrize("seed", range(20))
def test_the_axioms_of_token_credit(seed):
    rng = np.random.default_rng(seed)
    process = exact.lay_out(random_game(rng))
    solution = exact.solve(process, random_policy(rng, process))
    paths = exact.enumerate_paths(process)
    chance = exact.probability(process, paths, solution.policy)
    credit = exact.exact_credit(paths, solution)
    # Completeness, over all positions, the environment's included.
    np.testing.assert_allclose(credit.sum(axis=1), paths.outcome - solution.start, atol=1e-12)
    # Neutrality: it averages to 0 in every state.
    for t in range(process.length):
        for state in range(len(process.states[t])):
            np.testing.assert_allclose((chance * credit[:, t])[paths.states[:, t] == state].sum(), 0, atol=1e-12)
    # Hence orthogonality, and the squares add up to the variance of the outcome.
    second = (chance[:, None] * credit).T @ credit
    np.testing.assert_allclose(second - np.diag(np.diag(second)), 0, atol=1e-12)
    variance = chance @ paths.outcome**2 - solution.start**2
    np.testing.assert_allclose(np.trace(second), variance, atol=1e-12)
    assert np.trace(second) <= 0.25 + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_the_gradient_of_the_value_is_that_of_exact_credit(seed):
    rng = np.random.default_rng(seed)
    process = exact.lay_out(random_game(rng))
    logits = np.asarray(rng.normal(size=process.choices.shape))
    with jax.enable_x64(True):
        policy = np.asarray(exact.softmax(process, jax.numpy.asarray(logits)))
    solution = exact.solve(process, policy)
    gradient = exact.policy_gradient(process, logits)
    np.testing.assert_allclose(exact.true_gradient(process, solution), gradient, atol=1e-12)
    # And of the likelihood ratio, episode by episode.
    paths = exact.enumerate_paths(process)
    chance = exact.probability(process, paths, policy)
    total = np.zeros_like(logits)
    for p, o, a, acts, r in zip(chance, paths.observation, paths.tokens, paths.acts, paths.outcome, strict=True):
        for t in np.flatnonzero(acts):
            total[o[t]] += p * r * (np.eye(logits.shape[1])[a[t]] - policy[o[t]])
    np.testing.assert_allclose(gradient, total, atol=1e-12)


def uniform(process):
    return exact.tabulate(process, lambda _: np.full(process.num_tokens, 1 / process.num_tokens))


def test_one_decisive_turn_has_all_the_credit():
    process = exact.lay_out(bifurcation.single(5, 2))
    paths = exact.enumerate_paths(process)
    credit = exact.exact_credit(paths, exact.solve(process, uniform(process)))
    np.testing.assert_allclose(credit[:, 2], paths.tokens[:, 2] - 0.5, atol=1e-15)
    assert not np.delete(credit, 2, axis=1).any()


def test_an_error_that_can_be_undone():
    process = exact.lay_out(bifurcation.recoverable(4, 1, 2))
    solution, paths = exact.solve(process, uniform(process)), exact.enumerate_paths(process)
    credit = exact.exact_credit(paths, solution)
    right = paths.tokens[:, 1] == 1
    assert solution.start == 0.75
    np.testing.assert_allclose(np.abs(credit[:, 1]), 0.25)
    np.testing.assert_allclose(credit[right, 3], 0)
    np.testing.assert_allclose(np.abs(credit[~right, 3]), 0.5)


def test_conjunction_multiplies_what_is_left():
    process = exact.lay_out(bifurcation.conjunction(6, (0, 3, 4)))
    policy = exact.tabulate(process, lambda o: np.array([0.3, 0.7]))
    np.testing.assert_allclose(exact.solve(process, policy).start, 0.7**3)


def test_a_tree_of_prefixes_says_the_same_and_is_larger():
    game = bifurcation.threshold((2, -1, 1, 0, 1), 1, flip=0.1)
    graph, tree = exact.lay_out(game), exact.lay_out(exact.remember(game))
    policy = random_policy(np.random.default_rng(0), graph)
    table = dict(zip(graph.observations, policy, strict=True))
    small, large = exact.solve(graph, policy), exact.solve(tree, exact.tabulate(tree, table.__getitem__))
    np.testing.assert_allclose(small.start, large.start, atol=1e-14)
    assert tree.num_states > 8 * graph.num_states
    assert len(tree.states[-1]) == len(exact.enumerate_paths(graph).tokens)
    paths = exact.enumerate_paths(graph), exact.enumerate_paths(tree)
    credits = exact.exact_credit(paths[0], small), exact.exact_credit(paths[1], large)
    np.testing.assert_array_equal(paths[0].tokens, paths[1].tokens)
    np.testing.assert_allclose(*credits, atol=1e-14)


def test_sixty_four_turns_are_exact():
    process = exact.lay_out(bifurcation.threshold((1,) * 64, 0))
    solution = exact.solve(process, uniform(process))
    from math import comb

    np.testing.assert_allclose(solution.start, sum(comb(64, k) for k in range(32, 65)) / 2**64, rtol=1e-12)
    assert process.num_states < 64 * 66


def test_discount_applies_from_one_action_to_the_next():
    game = bifurcation.single(3, 0, flip=0.25)
    process = exact.lay_out(game)
    solution = exact.solve(process, uniform(process), gamma=0.9)
    # Paid on the token of the environment after the third action: two discounts.
    np.testing.assert_allclose(solution.start, 0.5 * 0.9**2)


def test_samples_have_the_law_of_the_process():
    rng = np.random.default_rng(3)
    process = exact.lay_out(bifurcation.threshold((1, 2, -1), 1, flip=0.2, sees="parity"))
    solution = exact.solve(process, random_policy(rng, process))
    paths, count = exact.enumerate_paths(process), 40_000
    chance = exact.probability(process, paths, solution.policy)
    seen = exact.sample_paths(process, solution.policy, jax.random.key(0), count)
    index = {tuple(row): i for i, row in enumerate(paths.tokens)}
    found = np.bincount([index[tuple(row)] for row in seen.tokens], minlength=len(chance)) / count
    assert np.all(np.abs(found - chance) < 5 * np.sqrt(chance * (1 - chance) / count) + 1e-9)
    np.testing.assert_allclose(exact.exact_credit(seen, solution).sum(1), seen.outcome - solution.start, atol=1e-12)


def test_all_values_of_two_to_the_sixteen_leaves_take_well_under_a_second():
    process = exact.lay_out(exact.remember(bifurcation.threshold((1, -2) * 8, 1)))
    assert len(process.states[-1]) == 2**16
    policy = uniform(process)
    exact.solve(process, policy)
    start = time.perf_counter()
    exact.solve(process, policy)
    assert time.perf_counter() - start < 1


class Broken(bifurcation.Bifurcation):
    def __init__(self, move=None, length=None):
        super().__init__((1, 1), 1)
        object.__setattr__(self, "_how", (move, length))

    @property
    def length(self):
        return self._how[1] or 2

    def move(self, state):
        return self._how[0] or super().move(state)


@pytest.mark.parametrize(
    ("game", "message"),
    [
        (Broken(length=1), "goes on after 1 tokens"),
        (Broken(move=exact.Chance({0: 0.5, 1: 0.6})), "probabilities that sum to 1"),
        (Broken(move=exact.Act("here", legal=(0, 2))), "wanted 0 to 1"),
    ],
)
def test_a_game_that_cannot_be_is_refused(game, message):
    with pytest.raises(ValueError, match=message):
        exact.lay_out(game)


def test_bounds_and_policies_are_checked():
    process = exact.lay_out(bifurcation.single(4, 1))
    with pytest.raises(ValueError, match="wanted at most 3; sample"):
        exact.enumerate_paths(process, max_paths=3)
    with pytest.raises(ValueError, match="states after position 1, wanted at most 2"):
        exact.lay_out(exact.remember(bifurcation.single(4, 1)), max_states=2)
    with pytest.raises(ValueError, match=r"policy: .* at observation \(0, 0\), wanted probabilities"):
        exact.tabulate(process, lambda _: np.array([-1.0, 2.0]))
    with pytest.raises(ValueError, match=r"gave probabilities \[3\], wanted \[2\]"):
        exact.tabulate(process, lambda _: np.ones(3))
    with pytest.raises(ValueError, match="turn 4 of 4"):
        bifurcation.single(4, 4)
