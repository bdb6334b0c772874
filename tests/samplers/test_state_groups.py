"""Candidates of every visited state, judged by the oracle of a puzzle."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import creditjax as cj
from creditjax.samplers.state_groups import Candidate, Verdict, state_groups
from creditjax.tasks import puzzles

SEARCH = puzzles.sokoban("....\n..#.\n.G..")
START = int(np.argmax(np.where(SEARCH.distance == puzzles.UNSOLVABLE, -1, SEARCH.distance)))


def act(state, key):
    token = jax.random.randint(key, (1,), 0, 4)
    return Candidate(token, jnp.ones(1, bool), jnp.full(1, -np.log(4.0)))


def judge(state, candidate):
    reward, after = puzzles.search_reward(SEARCH, state, candidate.tokens[0])
    left = jnp.asarray(SEARCH.distance)[after]
    return Verdict(reward, left == 0, (left == 0) | (left == puzzles.UNSOLVABLE), after)


def play(commit, candidates=4, episodes=6, turns=12, seed=0):
    states = jnp.full(episodes, START)
    run = jax.jit(lambda key: state_groups(act, judge, states, key, turns=turns, candidates=candidates, commit=commit))
    return jax.tree.map(np.asarray, run(jax.random.key(seed)))


@pytest.mark.parametrize("commit", ["max", "sample"])
def test_rows_follow_the_rules_of_the_puzzle(commit):
    made = play(commit)
    assert made.tokens.shape == (6 * 12, 4, 1)
    tokens, reward = made.tokens.reshape(6, 12, 4), made.signals["candidate_reward"].reshape(6, 12, 4)
    live = np.isfinite(made.outcome).reshape(6, 12, 4).all(-1)
    for tokens_, reward_, live_ in zip(tokens, reward, live, strict=True):
        assert live_[0]
        # Some choice of candidates explains each turn: the states that are still possible are followed.
        possible = {START}
        for turn in range(12):
            if not live_[turn]:
                break
            after = set()
            for state in possible:
                want = [float(puzzles.search_reward(SEARCH, state, a)[0]) for a in tokens_[turn].tolist()]
                if want == reward_[turn].tolist():
                    best = max(want) if commit == "max" else -2
                    after |= {int(SEARCH.next[state, a]) for a, r in zip(tokens_[turn], want, strict=True) if r >= best}
            assert after
            possible = after
    dead = ~live.reshape(-1)
    assert not made.action_mask[dead].any() and made.action_mask[~dead].all()


def test_going_on_with_the_best_of_many_solves_the_puzzle_by_a_shortest_way():
    made = play("max", candidates=32)
    won = (made.outcome == 1).reshape(6, 12, 32).any(-1)
    assert (won.argmax(1) == SEARCH.distance[START] - 1).all() and won.any(1).all()


def test_its_batches_are_what_vpr_reads():
    made = play("max")
    recipe = cj.recipe("vpr")
    credit = cj.estimate(recipe.estimator, made)
    value = np.asarray(credit.value)[..., 0]
    reward = np.where(made.action_mask[..., 0], made.signals["candidate_reward"] + np.nan_to_num(made.outcome), 0.0)
    silent = np.ptp(reward, axis=1) == 0
    assert not value[silent].any() and silent.any() and not silent.all()
    np.testing.assert_allclose(value.sum(1), 0, atol=1e-4)
    assert value.std() * np.sqrt(value.size / (~silent).sum() / 4) == pytest.approx(1.0, rel=1e-3)


def test_options_are_checked():
    with pytest.raises(ValueError, match="commit"):
        state_groups(act, judge, jnp.zeros(1, int), jax.random.key(0), turns=1, commit="best")
