"""Reasoning in steps enumerated: the oracle's numbers are the exact values of the policies that it speaks of."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import exact
from creditjax.exact.signals import Oracle
from creditjax.tasks.stepwise import ANSWER, PLUS, SAME, StepwiseTask
from creditjax.tasks.stepwise_game import StepwiseGame

TASK = StepwiseTask(addends=2, base=3, max_turns=4, prover_error=0.2)


@pytest.fixture(scope="module")
def enumerated():
    game = StepwiseGame(TASK, index=3)
    process = exact.lay_out(game)
    return game, process, exact.enumerate_paths(process)


def reckon(game, state):
    """Addends consumed, the digit written last and whether all was right, by hand."""
    addends = np.asarray(game.task.prompts("train", game.index, 1).data[0])
    first = game.task.vocab_size - game.task.base
    consumed, total, right = 0, 0, True
    for kind, token in state.turns:
        digit = token - first
        follows = (total + addends[min(consumed, 1)]) % 3 if kind == PLUS else total
        allowed = {PLUS: consumed < 2, SAME: True, ANSWER: consumed == 2}[kind]
        right &= allowed and digit == follows
        consumed, total = consumed + (kind == PLUS and consumed < 2), digit
    return consumed, total, right, addends, first


def law(game, rule):
    """A policy from a rule: transcript to the head and the chances of the digits."""

    def policy(state):
        head, chances = rule(*reckon(game, state)[:4], game.task.turns.max_turns - len(state.turns))
        made = np.zeros(game.num_tokens)
        if state.head < 0:
            made[head] = 1.0
        elif state.head == head:
            made[game.task.vocab_size - 3 :] = chances
        else:  # never come to
            made[game.task.vocab_size - 3 :] = 1 / 3
        return made

    return policy


def test_transcripts_are_what_the_tasks_own_rollouts_hold(enumerated):
    game, _, paths = enumerated
    prompts, prompt = TASK.prompts("train", game.index, 1), TASK.prompt_length
    rows = {tuple(row): i for i, row in enumerate(paths.tokens)}
    assert len(rows) == len(paths.tokens) == 6**3 * 9 + 3 * (1 + 6 + 36)
    rng = np.random.default_rng(0)
    steps = np.stack([rng.choice([PLUS, SAME, ANSWER], (64, 4)), rng.integers(0, 3, (64, 4)) + TASK.vocab_size - 3], -1)
    played = jax.jit(lambda x: TASK.play(prompts, x))(jnp.asarray(steps[None], jnp.int32))
    signals = game.signals(paths)
    assert set(signals) == set(TASK.offered_signals())
    for g in range(64):
        i = rows[tuple(np.asarray(played.tokens)[0, g, prompt:])]
        np.testing.assert_array_equal(np.asarray(played.action_mask)[0, g, prompt:], paths.acts[i])
        np.testing.assert_allclose(np.asarray(played.outcome)[0, g], paths.outcome[i])
        for name in ("process_reward", "potential", "step_label", "belief", "answer_mask", "mark", "state_key"):
            own = np.asarray(played.signals[name])[0, g]
            own = own[prompt:] if name == "answer_mask" else own
            np.testing.assert_allclose(signals[name][i], own, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(signals["gold_mark"], np.sum(prompts.data[0]) % 3)


def test_the_potential_is_the_value_of_going_on_correctly_or_guessing(enumerated):
    game, process, paths = enumerated

    def rule(consumed, total, right, addends, left):
        if not (right and left > 2 - consumed):
            return ANSWER, np.full(3, 1 / 3)
        follows = (total + addends[consumed]) % 3 if consumed < 2 else total
        return (PLUS if consumed < 2 else ANSWER), np.eye(3)[follows]

    solution = exact.solve(process, exact.tabulate(process, law(game, rule)))
    np.testing.assert_allclose(
        game.signals(paths)["potential"], Oracle(process, solution).boundary_value(paths), atol=1e-6
    )


def test_the_provers_value_is_the_value_of_its_policy(enumerated):
    game, process, paths = enumerated

    def rule(consumed, total, right, addends, left):
        del right
        if left <= 2 - consumed:
            return ANSWER, np.full(3, 1 / 3)
        if consumed == 2:
            return ANSWER, np.eye(3)[total]
        follows = (total + addends[consumed]) % 3
        return PLUS, np.where(np.eye(3)[follows] > 0, 0.8, 0.1)

    solution = exact.solve(process, exact.tabulate(process, law(game, rule)))
    found, wanted = game.signals(paths)["prover_value"], Oracle(process, solution).boundary_value(paths)
    # At the end of an episode without an answer a guess is still to be made in its belief; nobody reads that entry.
    np.testing.assert_allclose(found[:, :-1], wanted[:, :-1], atol=1e-6)


def test_first_error_and_prefix_are_those_of_a_reckoning_by_hand(enumerated):
    game, process, paths = enumerated
    labels = game.signals(paths)["step_label"]
    for i in np.random.default_rng(1).choice(len(paths.tokens), 200, replace=False):
        turns = [tuple(map(int, paths.tokens[i, 2 * k : 2 * k + 2])) for k in range(4) if paths.acts[i, 2 * k]]
        whole = [reckon(game, type(game.start())(tuple(turns[: k + 1])))[2] for k in range(len(turns))]
        np.testing.assert_array_equal(np.cumprod(labels[i, : len(turns)]), whole)
    assert len(process.observations) > 100
