"""The look-up agent enumerated: the rules are those of the task, and the oracles' probabilities are right."""

import jax
import numpy as np
import pytest

from creditjax import estimate, exact, list_recipes, recipe
from creditjax.exact.signals import Oracle
from creditjax.tasks.lookup import LookupTask
from creditjax.tasks.lookup_game import LookupGame


@pytest.fixture(scope="module")
def enumerated():
    game = LookupGame(LookupTask(num_entities=2, num_relations=2, hops=2, max_turns=3, reach=2, num_skills=1), index=3)
    process = exact.lay_out(game)
    policy = exact.tabulate(process, lambda _: np.ones(process.num_tokens))
    return game, process, exact.solve(process, policy), exact.enumerate_paths(process)


def test_transcripts_are_what_the_tasks_own_rollouts_hold(enumerated):
    game, _, _, paths = enumerated
    task, prompt = game.task, game.task.prompt_length
    rows = {tuple(row): i for i, row in enumerate(paths.tokens)}
    assert len(rows) == len(paths.tokens)
    played = jax.jit(lambda keys: task.play(task.prompts("train", game.index, 1), task.expert, keys))(
        jax.random.split(jax.random.key(0), 16)[None]
    )
    signals = game.signals(paths)
    for g in range(16):
        i = rows[tuple(np.asarray(played.tokens)[0, g, prompt:])]
        np.testing.assert_array_equal(np.asarray(played.action_mask)[0, g, prompt:], paths.acts[i])
        np.testing.assert_allclose(np.asarray(played.outcome)[0, g], paths.outcome[i])
        for name, found in signals.items():
            own = np.asarray(played.signals[name])[0, g]
            own = own[prompt:] if own.shape[:1] == (prompt + game.length,) else own
            np.testing.assert_allclose(found[i], own, atol=1e-6, err_msg=name)


def test_credit_adds_up_and_only_answers_pay(enumerated):
    game, process, solution, paths = enumerated
    credit = exact.exact_credit(paths, solution)
    np.testing.assert_allclose(credit.sum(1), paths.outcome - solution.start, atol=1e-12)
    assert 0 < solution.start < 0.5
    assert not np.abs(credit[paths.live & ~paths.acts]).max() > 1e-12  # answers of the environment are certain


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_finds_its_signals_here(enumerated, name):
    game, process, solution, paths = enumerated
    made = recipe(name, **({"weights": (1.0, 1.0, 1.0)} if name == "gdpo" else {}))  # answer, format and cost
    wanted = made.signals
    own = game.signals(paths)
    signals = {key: x for key, x in own.items() if key in wanted}
    signals |= Oracle(process, solution).signals(paths, tuple(key for key in wanted if key not in own))
    index = np.random.default_rng(0).integers(len(paths.tokens), size=(2, 6))
    value = np.asarray(estimate(made.estimator, exact.batch(paths, index, signals, solution.policy)).value)
    assert np.isfinite(value).all() and not value[~paths.acts[index]].any()
