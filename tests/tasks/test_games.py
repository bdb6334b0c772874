"""Tasks with exact answers: what each promises about itself, seen on its enumeration."""

import itertools

import numpy as np
import pytest

from creditjax import exact, recipe
from creditjax.exact.signals import Oracle
from creditjax.tasks.chains import DiscountingChain, UmbrellaChain
from creditjax.tasks.hypergrid import Hypergrid
from creditjax.tasks.pipeline import Pipeline
from creditjax.tasks.sums import Sums


def solved(game, weights=None):
    process = exact.lay_out(game)
    policy = exact.tabulate(process, weights or (lambda _: np.ones(process.num_tokens)))
    return process, exact.solve(process, policy), exact.enumerate_paths(process)


# ------------------------------------------------------------------------------------------------------------- sums


def test_the_oracle_of_sums_checks_every_step():
    game = Sums((1, 2, 2), base=3)
    _, solution, paths = solved(game)
    assert len(paths.tokens) == 27
    right, prefix, first = (
        game.step_is_right(paths.tokens),
        game.prefix_is_right(paths.tokens),
        game.first_error(paths.tokens),
    )
    where = {tuple(row): i for i, row in enumerate(paths.tokens)}
    i = where[1, 0, 2]
    assert right[i].all() and prefix[i].all() and first[i] == 3 and paths.outcome[i] == 1
    i = where[2, 1, 0]  # a wrong start, then right steps: every prefix is wrong, the answer too
    assert right[i].tolist() == [False, True, True] and not prefix[i].any() and first[i] == 0 and paths.outcome[i] == 0
    i = where[1, 1, 2]  # a wrong step, undone by another
    assert right[i].tolist() == [True, False, False] and first[i] == 1 and paths.outcome[i] == 1
    np.testing.assert_allclose(solution.start, 1 / 3)


def test_the_answers_probability_rises_with_skill():
    weights = lambda o: np.where(np.arange(3) == (o[1] + (1, 2, 2)[o[0]]) % 3, 0.8, 0.1)  # noqa: E731
    process, solution, paths = solved(Sums((1, 2, 2), base=3), weights)
    # From a digit that is off by d, the last two steps have to be off by -d: a walk of steps 0, 1, 2 with law p.
    p = np.array([0.8, 0.1, 0.1])
    walk = np.array(
        [sum(p[a] * p[b] * p[c] for a, b, c in itertools.product(range(3), repeat=3) if (a + b + c) % 3 == 0)]
    )
    np.testing.assert_allclose(solution.start, walk[0])
    progress = Oracle(process, solution).boundary_value(paths)
    best = next(i for i, row in enumerate(paths.tokens) if tuple(row) == (1, 0, 2))
    assert (np.diff(progress[best]) > 0).all()


# ----------------------------------------------------------------------------------------------------------- chains


def test_only_the_first_action_of_the_umbrella_chain_earns_anything():
    process, solution, paths = solved(UmbrellaChain(4, coin=0.5))
    credit = exact.exact_credit(paths, solution)
    first, coins = paths.acts & (paths.segment == 0), ~paths.acts & paths.live
    coins[:, 0] = False
    np.testing.assert_allclose(np.abs(credit[first]), 1.0)
    assert not np.abs(credit[paths.acts & ~first]).max() > 1e-12
    np.testing.assert_allclose(np.abs(credit[coins]), 0.5)
    np.testing.assert_allclose(paths.reward.sum(1) - solution.start, credit.sum(1), atol=1e-12)


def test_discounting_chooses_the_chain():
    game = DiscountingChain(delays=(0, 2, 4, 9), best=3)
    process, solution, paths = solved(game)
    assert len(paths.tokens) == 4
    for gamma, best in ((1.0, 3), (0.9, 0)):
        q = exact.solve(process, solution.policy, gamma=gamma).q[0][0]
        np.testing.assert_allclose(q, [gamma**d * (1 + 0.1 * (i == 3)) for i, d in enumerate(game.delays)])
        assert np.argmax(q) == best


# --------------------------------------------------------------------------------------------------------- pipeline


@pytest.mark.parametrize("agents", [2, 3, 4])
def test_shapley_values_of_a_pipeline_are_its_weights_and_half_its_synergies(agents):
    rng = np.random.default_rng(agents)
    pairs = {pair: float(rng.normal()) for pair in itertools.combinations(range(agents), 2)}
    game = Pipeline(tuple(rng.normal(size=agents)), pairs, num_tokens=2)
    process, solution, paths = solved(game)
    worth = game.coalition_value(paths.tokens)
    np.testing.assert_allclose(worth[:, -1], paths.outcome, atol=1e-12)
    assert not worth[:, 0].any()
    batch = exact.batch(paths, np.arange(len(paths.tokens))[None], {"coalition_value": worth, "agent": paths.agent})
    from creditjax import estimate

    found = np.asarray(estimate(recipe("shapley_exact").estimator, batch).value[0])
    card = game.shapley(paths.tokens)
    # The recipe may centre the outcome in its group: differences between agents of a rollout are the game's.
    np.testing.assert_allclose(card.sum(1), paths.outcome, atol=1e-12)
    spread = found - found.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(spread, card - card.mean(axis=1, keepdims=True), atol=1e-5)


# -------------------------------------------------------------------------------------------------------- hypergrid


def test_a_hypergrid_knows_its_law():
    game = Hypergrid(side=4, dims=2)
    process, solution, paths = solved(game)
    law = game.law()
    assert len(law) == 16 and abs(sum(law.values()) - 1) < 1e-12
    # As many states before a stop as cells, whatever the number of ways there.
    cells = {state.place for layer in process.states for state in layer}
    assert len(cells) == 16 and len(paths.tokens) > 16
    ends = [sum(paths.tokens[i][paths.acts[i]] == axis) for axis in range(2) for i in range(len(paths.tokens))]
    assert max(ends) == 3
    corner = game.reward((0, 0))
    assert corner > game.reward((1, 1)) == game.floor


def test_what_cannot_be_is_refused():
    for make, said in (
        (lambda: Sums(()), "addends"),
        (lambda: UmbrellaChain(1), "steps: 1"),
        (lambda: DiscountingChain((3, 1)), "increasing delays"),
        (lambda: Pipeline((1.0,), {(0, 1): 1.0}), r"pair \(0, 1\)"),
        (lambda: Hypergrid(floor=0.0), "floor: 0.0"),
    ):
        with pytest.raises(ValueError, match=said):
            make()
