"""Games with everything that a game may have, against plain recursion over histories; requests that make no sense."""

import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import exact, recipe
from creditjax.benchmark import learning
from creditjax.exact import Act, Chance
from creditjax.exact.signals import Oracle
from creditjax.tasks import bifurcation


class Table:
    """Random moves, rewards and transitions: chance, dead ends, shared observations, several agents, single actions."""

    def __init__(self, rng):
        self.num_tokens, self.length, size = (int(rng.integers(*span)) for span in ((1, 4), (1, 5), (2, 5)))
        tokens = range(self.num_tokens)
        self.legal = [tuple(np.flatnonzero(rng.random(self.num_tokens) < 0.6).tolist()) for _ in range(3)]
        self.moves, self.steps = {}, {}
        for place in np.ndindex(self.length, size):
            law = rng.dirichlet(np.ones(self.num_tokens)) * (rng.random(self.num_tokens) < 0.7)
            seen = int(rng.integers(3))
            act = Act(seen, self.legal[seen], segment=place[0], agent=int(rng.integers(3)))
            chance = Chance(dict(enumerate((law / max(law.sum(), 1e-9)).tolist())), segment=place[0])
            self.moves[place] = rng.choice(3, p=(0.15 * (place[0] > 0), 0.35, 0.65 - 0.15 * (place[0] > 0)))
            self.moves[place] = (None, chance if law.sum() else act, act)[self.moves[place]]
            for token in tokens:
                self.steps[(*place, token)] = (place[0] + 1, int(rng.integers(size))), float(rng.normal())

    def start(self):
        return 0, 0

    def move(self, state):
        return self.moves.get(state)

    def step(self, state, token):
        return self.steps[(*state, token)]


def expected_return(game, policy, gamma=1.0):
    """By recursion over histories: what is paid after n actions is discounted n - 1 times."""

    def after(state, actions):
        move = game.move(state)
        if move is None:
            return 0.0
        acts = isinstance(move, Act)
        law = policy[move.observation] if acts else [move.law.get(a, 0.0) for a in range(game.num_tokens)]
        total = 0.0
        for token in np.flatnonzero(law):
            nxt, reward = game.step(state, int(token))
            paid = gamma ** max(actions + acts - 1, 0) * reward
            total += law[token] * (paid + after(nxt, actions + acts))
        return total

    return after(game.start(), 0)


def laid_out(game):
    try:
        return exact.lay_out(game)
    except ValueError as error:
        assert "chance alone" in str(error)
        return None


@pytest.mark.parametrize("seed", range(12))
def test_any_game_has_the_return_and_gradient_of_its_histories(seed):
    rng = np.random.default_rng(seed)
    game = Table(rng)
    process = laid_out(game)
    if process is None:
        return
    logits = rng.normal(size=process.choices.shape)

    def policy(logits):
        odds = np.where(process.choices, np.exp(logits), 0.0)
        return odds / odds.sum(axis=1, keepdims=True)

    def by_history(logits):
        return expected_return(game, dict(zip(process.observations, policy(logits), strict=True)))

    solution = exact.solve(process, policy(logits))
    np.testing.assert_allclose(solution.start, by_history(logits), atol=1e-12)
    slope = np.zeros_like(logits)
    for at in np.ndindex(logits.shape):
        step = np.zeros_like(logits)
        step[at] = 1e-5
        slope[at] = (by_history(logits + step) - by_history(logits - step)) / 2e-5
    np.testing.assert_allclose(exact.true_gradient(process, solution), slope, atol=1e-8)
    np.testing.assert_allclose(exact.policy_gradient(process, logits), slope, atol=1e-8)


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_discounted_before_the_first_action(seed):
    rng = np.random.default_rng(seed)
    game = Table(rng)
    process = laid_out(game)
    if process is None:
        return
    table = exact.tabulate(process, lambda _: rng.dirichlet(np.ones(game.num_tokens)))
    by_seen = dict(zip(process.observations, table, strict=True))
    for gamma in (0.0, 0.7):
        start = exact.solve(process, table, gamma).start
        np.testing.assert_allclose(start, expected_return(game, by_seen, gamma), atol=1e-12)


def test_a_state_that_acts_first_or_later_has_no_one_discounted_value():
    class Detour:
        """Chance decides whether the policy acts before the last token, and the last state does not know."""

        num_tokens, length = 2, 3

        def start(self):
            return 0, 0

        def move(self, state):
            chance = state[0] == 0 or state == (1, 0)
            return None if state[0] == 3 else Chance({0: 0.5, 1: 0.5}) if chance else Act(state[0])

        def step(self, state, token):
            return (state[0] + 1, token if state[0] == 0 else 0), float(state[0] == 2 and token)

    game = Detour()
    process = exact.lay_out(game)
    policy = exact.tabulate(process, lambda _: np.ones(2))
    assert exact.solve(process, policy).start == 0.5
    with pytest.raises(ValueError, match=r"gamma: 0.8 where state \(2, 0\) may act first or later"):
        exact.solve(process, policy, 0.8)
    tree = exact.lay_out(exact.remember(game))
    np.testing.assert_allclose(exact.solve(tree, policy, 0.8).start, 0.5 * (1 + 0.8) / 2)


def test_float64_is_not_given_what_float32_left_behind():
    process = exact.lay_out(bifurcation.single(3, 1))
    logits = jnp.zeros(process.choices.shape)
    once = learning.Schedule(updates=1, every=1)
    run = jax.jit(jax.vmap(lambda key: learning.train(process, lambda made: made.credit, logits, 0.05, key, once)))
    run(jax.random.split(jax.random.key(0), 2))
    gradient = exact.policy_gradient(process, logits)
    assert gradient.dtype == np.float64
    solution = exact.solve(process, np.full(logits.shape, 0.5))
    np.testing.assert_allclose(gradient, exact.true_gradient(process, solution), atol=1e-15)


class Any:
    """Two binary tokens, but for what a test changes."""

    num_tokens, length = 2, 2

    def __init__(self, move=lambda state: Act(state), reward=0.0, **sizes):
        self.__dict__.update(rule=move, reward=reward, **sizes)

    def start(self):
        return ()

    def move(self, state):
        return None if len(state) == self.length else self.rule(state)

    def step(self, state, token):
        return (*state, token), self.reward


@pytest.mark.parametrize(
    ("game", "error", "message"),
    [
        (Any(lambda _: Chance({0: 0.5, 1: math.nan})), ValueError, "law .* wanted probabilities that sum to 1"),
        (Any(lambda _: Chance({0: 0.5, 1: 0.5})), ValueError, "chance alone"),
        (Any(lambda _: Act((), segment=-1)), ValueError, "segment -1 at position 0, wanted at least 0"),
        (Any(lambda _: 3), TypeError, "move 3 at position 0, wanted Act, Chance or None"),
        (Any(reward=math.nan), ValueError, "reward nan of token 0 at position 0"),
        (Any(length=0), ValueError, "length 0, wanted at least 1"),
        (Any(num_tokens=0), ValueError, "num_tokens 0"),
    ],
)
def test_games_that_have_no_values_are_refused(game, error, message):
    with pytest.raises(error, match=message):
        exact.lay_out(game)


def test_the_order_of_legal_tokens_does_not_matter():
    for legal in ([0, 1], np.array([1, 0])):
        game = Any(lambda state, legal=legal: Act("same", legal=legal if state else (0, 1)))
        assert exact.lay_out(game).choices.all()


@pytest.fixture(scope="module")
def solved():
    process = exact.lay_out(Any(lambda state: Act(state, legal=(0,) if state == (1,) else ()), reward=1.0))
    return process, exact.tabulate(process, lambda _: np.ones(2))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p[:-1], r"policy: shape \[2, 2\], wanted \[O, V\] = \[3, 2\]"),
        (lambda p: p * np.nan, r"policy: .* at observation \(\)"),
        (lambda p: 2 * p, "wanted probabilities that sum to 1"),
        (lambda p: np.array([[2.0, -1.0], *p[1:]]), "policy: "),
        (lambda p: np.full_like(p, 0.5), r"at observation \(1,\), wanted .* over the legal tokens \[0\]"),
    ],
)
def test_tables_that_are_no_policy_are_refused(solved, change, message):
    process, policy = solved
    paths, wrong = exact.enumerate_paths(process), change(policy)
    for use in (
        lambda: exact.solve(process, wrong),
        lambda: exact.probability(process, paths, wrong),
        lambda: exact.sample_paths(process, wrong, jax.random.key(0), 3),
    ):
        with pytest.raises(ValueError, match=message):
            use()


def test_requests_that_make_no_sense_say_what_was_wanted(solved):
    process, policy = solved
    solution, estimator, key = exact.solve(process, policy), recipe("grpo").estimator, jax.random.key(0)
    for gamma in (math.nan, -0.1, 1.1):
        with pytest.raises(ValueError, match=r"gamma: .*, wanted a discount in \[0, 1\]"):
            exact.solve(process, policy, gamma)
    for shape in ((3, 1), (2, 2)):
        with pytest.raises(ValueError, match="logits: shape"):
            exact.policy_gradient(process, np.zeros(shape))
    with pytest.raises(ValueError, match="policy: gave probabilities"):
        exact.tabulate(process, lambda seen: np.ones(2 + len(seen)))
    for wrong in (recipe("grpo"), lambda batch: batch.outcome):
        with pytest.raises(TypeError, match=r"estimator: .*, wanted a Transform \((its .estimator|creditjax.testing)"):
            exact.enumerate_moments(wrong, process, solution, 2)
        with pytest.raises(TypeError, match="estimator: .*, wanted a Transform"):
            exact.sample_moments(wrong, process, solution, 2, key=key, num_groups=4)
    for wrong in ({"group_size": 0}, {"group_size": -1}, {"group_size": 2, "chunk": 0}):
        with pytest.raises(ValueError, match=r"(group_size|chunk): .*, wanted at least 1"):
            exact.enumerate_moments(estimator, process, solution, **wrong)
        with pytest.raises(ValueError, match=r"(group_size|chunk): .*, wanted at least 1"):
            exact.sample_moments(estimator, process, solution, key=key, num_groups=4, **wrong)
    with pytest.raises(ValueError, match="wanted all episodes, each once"):
        some = exact.sample_paths(process, policy, key, 5)
        exact.enumerate_moments(estimator, process, solution, 2, paths=some)
    for wrong in ({"noise": math.nan}, {"noise": -1.0}, {"prm_scale": math.nan}, {"prm_scale": 0.0}):
        with pytest.raises(ValueError, match="noise: .*, prm_scale: "):
            Oracle(process, solution, **wrong)


def test_a_segment_that_is_left_out_tells_nothing_of_the_outcome():
    game = Any(lambda state: Act(state, segment=2 * len(state)), reward=0.0)
    game.step = lambda state, token: ((*state, token), float(token))
    process = exact.lay_out(game)
    solution = exact.solve(process, exact.tabulate(process, lambda _: np.ones(2)))
    paths = exact.enumerate_paths(process)
    oracle = Oracle(process, solution)
    first, second = paths.tokens.T
    np.testing.assert_allclose(oracle.boundary_value(paths)[:, 1], first + 0.5)
    np.testing.assert_allclose(
        oracle.process_reward(paths), np.stack([first - 0.5, np.zeros(4), second - 0.5], axis=1), atol=1e-15
    )
