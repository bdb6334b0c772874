"""Candidates of every visited state, judged by the oracle of a puzzle."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import creditjax as cj
from creditjax import samplers
from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.samplers.state_groups import Candidate, Verdict, state_groups
from creditjax.tasks import puzzles, stepwise

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


ADDENDS, BASE, TURNS = 2, 3, 4
TASK = stepwise.StepwiseTask(addends=ADDENDS, base=BASE, max_turns=TURNS, signals=("process_reward",))
POLICY = TransformerPolicy(TransformerConfig(TASK.vocab_size, width=16, depth=1, heads=2, mlp_width=24))
FIRST_DIGIT = TASK.vocab_size - BASE


def step_reward(addends, steps):
    """Whether the last of the steps (kind, digit) is right and no filler, and whether it ends the episode well."""
    consumed = total = 0
    for kind, digit in steps:
        follows = {"+": consumed < ADDENDS, "A": consumed == ADDENDS}.get(kind, False)
        gain = addends[consumed] if kind == "+" and consumed < ADDENDS else 0
        right = follows and digit == (total + gain) % BASE
        consumed += kind == "+" and consumed < ADDENDS
        total = total if digit is None else digit
    return float(right), float(steps[-1][0] == "A" and digit == sum(addends) % BASE)


@pytest.mark.parametrize("commit", ["max", "sample"])
def test_a_language_model_acts_in_the_states_that_its_chosen_actions_lead_to(commit):
    prompts, group = TASK.prompts("train", 0, 64), 4
    params = POLICY.init(jax.random.key(0))
    rollout = jax.jit(samplers.build(TASK, POLICY, Sampling(), group, commit=commit))
    made = jax.tree.map(np.asarray, rollout(params, prompts, jax.random.key(1)))
    start, width = TASK.prompt_length, 2
    assert made.tokens.shape == (64 * TURNS, group, start + TURNS * width)
    kinds = {stepwise.PLUS: "+", stepwise.SAME: "=", stepwise.ANSWER: "A"}

    def step(tokens):
        kind, digit = kinds.get(int(tokens[0])), int(tokens[1]) - FIRST_DIGIT
        return (kind, digit) if kind and digit >= 0 else (None, None)

    passed_over = 0
    for p in range(64):
        history, done = np.zeros((0, width), int), False
        for turn in range(TURNS):
            row = p * TURNS + turn
            acted = np.zeros(made.tokens.shape[-1], bool)
            acted[start + turn * width : start + (turn + 1) * width] = not done
            np.testing.assert_array_equal(made.action_mask[row], np.tile(acted, (group, 1)))
            if done:
                assert np.isnan(made.outcome[row]).all()
                continue
            turns = made.tokens[row][:, start:].reshape(group, TURNS, width)
            np.testing.assert_array_equal(made.tokens[row][:, :start], np.tile(prompts.tokens[p], (group, 1)))
            np.testing.assert_array_equal(turns[:, :turn], np.tile(history, (group, 1, 1)))
            assert not turns[:, turn + 1 :].any()
            assert made.signals["token_mask"][row].sum() == group * (prompts.mask[p].sum() + (turn + 1) * width)
            steps = [[step(x) for x in (*history, own)] for own in turns[:, turn]]
            wanted = np.array([step_reward(prompts.data[p].tolist(), s) for s in steps])
            np.testing.assert_array_equal(made.signals["candidate_reward"][row], wanted[:, 0])
            np.testing.assert_array_equal(made.outcome[row], wanted[:, 1])
            if turn + 1 < TURNS:
                # The next state says which candidate was gone on with; none that ended is followed by a state.
                live = made.action_mask[row + 1].any()
                after = made.tokens[row + 1][0, start:].reshape(TURNS, width)[turn]
                allowed = wanted[:, 0] == wanted[:, 0].max() if commit == "max" else np.ones(group, bool)
                ends = np.array([s[-1][0] == "A" for s in steps])
                assert (allowed & (((turns[:, turn] == after).all(-1) & ~ends) if live else ends)).any()
                passed_over += (wanted[:, 0] < wanted[:, 0].max()).any()
                history, done = np.concatenate([history, after[None]]), not live
    assert passed_over > 5
    # The cache is that of the state: the loop's log-probabilities are those of a plain pass over each row.
    evaluated = jax.jit(POLICY.evaluate)(params, made).logprob
    np.testing.assert_allclose(made.logprob, np.where(made.action_mask, evaluated, 0.0), atol=1e-5)


def test_a_task_whose_oracle_does_not_score_actions_is_refused():
    def build(task, **options):
        return samplers.build(task, POLICY, Sampling(), 2, **{"commit": "max", **options})

    with pytest.raises(ValueError, match="StepwiseTask does not make the signal 'process_reward'"):
        build(stepwise.StepwiseTask(signals=()))
    with pytest.raises(ValueError, match="commit: 'best', wanted 'max' or 'sample'"):
        build(TASK, commit="best")
    with pytest.raises(ValueError, match="greedy_baseline"):
        build(TASK, greedy_baseline=True)
