"""Older rollouts in the training loop, against lists and float64 NumPy."""

import functools

import chex
import jax
import numpy as np
from oracles import token
import pytest
from training_cases import catch_config

import creditjax
from creditjax import training
from creditjax.samplers import replay
from creditjax.training import checkpoint, loop
from creditjax.training import config as config_lib
from creditjax.training import mesh as mesh_lib
from creditjax.training import step as step_lib

P, G, OLD, Q, N, W = 16, 4, 3, 24, 160, 6


def replayed_config(**changes):
    fields = {
        "recipe": {"name": "avatar", "replayed": OLD, "alpha": 0.5},
        "replay": {"prompts": Q, "capacity": N, "window": W},
        "optimizer__learning_rate": 0.03,
    }
    return catch_config(**(fields | changes))


def programs_on(shape) -> loop.Programs:
    config = replayed_config(mesh={"data": 1, "fsdp": 1, "tensor": 1} | shape)
    mesh = mesh_lib.make_mesh(config.mesh.to_dict(), jax.devices()[: int(np.prod(list(shape.values()) or [1]))])
    programs = loop.Programs(config, config_lib.check_config(config, mesh_lib.batch_shards(mesh)), mesh)
    programs.check_signals()
    return programs


def play(programs: loop.Programs, steps: int, state=None):
    """Steps of the loop; of each: the prompts, the fresh batch, the joined one, the parameters before, the metrics."""
    state, seen = programs.init() if state is None else state, []
    recall = jax.jit(lambda state, batch: programs.replay.recall(state, batch)[1])
    for step in range(int(state.step), steps):
        batch, used = programs.collect(state, step * P, jax.random.key(step))
        assert used == 1
        numbers, joined = np.asarray(programs.numbers(state)), recall(state, batch)
        params = jax.tree.map(np.asarray, state.params)
        before = jax.tree.map(np.asarray, state.replay)
        state, metrics = programs.step(state, batch, P)
        seen.append((numbers, *jax.tree.map(np.asarray, (batch, joined)), params, before, metrics))
    return state, seen


@functools.cache
def played():
    programs = programs_on({})
    return programs, *play(programs, 7)


def test_prompts_come_in_order_once_and_then_by_tier():
    _, _, seen = played()
    orders = [numbers.tolist() for numbers, *_ in seen]
    assert orders[:2] == [list(range(16)), [*range(16, 24), *range(8)]]
    for order, (*_, buffer, _) in zip(orders[2:], seen[2:], strict=True):
        assert len(set(order)) == P and max(order) < Q
        # Shares 0.4, 0.35 and 0.25 of 16; of the 24 prompts about as many are hard, medium and easy.
        tier = np.asarray(replay.tiers(buffer))[order]
        assert np.bincount(tier, minlength=3).tolist() in ([6, 6, 4], [7, 5, 4], [6, 5, 5], [7, 6, 3])
    assert orders[2] != orders[3]


def test_older_rollouts_of_the_same_prompt_come_back_as_they_were_drawn():
    _, state, seen = played()
    ring, outcomes, added = [None] * N, {q: [] for q in range(Q)}, 0
    replayed, older_policies = 0, set()
    for step, (numbers, fresh, joined, *_) in enumerate(seen):
        assert joined.batch_shape == (P, G + OLD)
        np.testing.assert_array_equal(joined.tokens[:, :G], fresh.tokens)
        np.testing.assert_array_equal(joined.signals["is_offpolicy"], np.tile(np.arange(G + OLD) >= G, (P, 1)))
        means = [np.mean(outcomes[q][-W:]) if outcomes[q] else 0.0 for q in numbers]
        np.testing.assert_allclose(joined.signals["prompt_mean"], means, rtol=1e-5, atol=1e-6)
        for p, q in enumerate(numbers):
            held = [row for row in ring if row is not None and row[0] == q]
            found = joined.votes[p, G:]
            assert found.sum() == min(OLD, len(held))
            assert not joined.action_mask[p, G:][~found].any()
            for g in G + np.flatnonzero(found):
                (match,) = [i for i, row in enumerate(held) if np.array_equal(row[2], joined.logprob[p, g])]
                _, drawn_at, _, tokens, observation, outcome = held.pop(match)
                np.testing.assert_array_equal(joined.tokens[p, g], tokens)
                np.testing.assert_array_equal(joined.signals["observation"][p, g], observation)
                assert joined.outcome[p, g] == outcome
                replayed, older_policies = replayed + 1, older_policies | {step - drawn_at}
        for p, q in enumerate(numbers):
            for g in range(G):
                row = (fresh.logprob, fresh.tokens, fresh.signals["observation"], fresh.outcome)
                ring[added % N] = (q, step, *(np.asarray(x)[p, g] for x in row))
                outcomes[q].append(float(fresh.outcome[p, g]))
                added += 1
    assert replayed > 150 and len(older_policies) > 1
    np.testing.assert_array_equal(state.replay.prompt, [row[0] for row in ring])
    np.testing.assert_array_equal(state.replay.rows.logprob, [row[2] for row in ring])


def test_the_loss_takes_the_ratio_to_the_policy_that_drew_each_row():
    programs, _, seen = played()
    evaluate = jax.jit(programs.policy.evaluate)
    for _, fresh, joined, params, _, metrics in seen[2:]:
        d = {name: np.asarray(x) for name, x in {**vars(joined), **joined.signals}.items() if x is not None}
        credit, mask = token.avatar(d), np.asarray(joined.action_mask)
        move = np.where(mask, np.asarray(evaluate(params, joined).logprob, np.float64) - joined.logprob, 0.0)
        np.testing.assert_allclose(move[:, :G], 0, atol=1e-5)
        assert np.abs(move[:, G:]).max() > 0.02
        ratio = np.exp(move.sum(-1) / np.maximum(mask.sum(-1), 1))[..., None]
        loss = np.maximum(-credit * ratio, -credit * np.clip(ratio, 0.8, 1.2))
        older = mask & d["is_offpolicy"][..., None]
        wanted = np.where(older, loss, 0).sum() / older.sum()
        total, count = (float(x) for x in metrics["replay_policy"])
        np.testing.assert_allclose(total / count, wanted, rtol=1e-4, atol=1e-6)
        on = mask & ~d["is_offpolicy"][..., None]
        whole = np.where(on, -credit, 0).sum() / on.sum() + 0.5 * wanted
        np.testing.assert_allclose(float(metrics["loss"][0]), whole, rtol=1e-4, atol=1e-5)
        # What a run reports of itself is of the current policy.
        total, count = (float(x) for x in metrics["reward"])
        np.testing.assert_allclose(total / count, fresh.outcome.mean(), rtol=1e-5)


def test_one_program_for_all_steps_and_no_device_holds_the_whole_buffer():
    programs, _, _ = played()
    assert [p._cache_size() for p in (programs.update, programs.rollout, programs.numbers)] == [1, 1, 1]
    wide = programs_on({"data": 2, "fsdp": 4})
    state, seen = play(wide, 4)
    assert wide.update._cache_size() == 1
    assert mesh_lib.held_fraction(state.replay.rows) == 1 / 8
    for (numbers, *_, buffer, _), (wanted, *_, wanted_buffer, _) in zip(seen, played()[2], strict=False):
        np.testing.assert_array_equal(numbers, wanted)
        np.testing.assert_array_equal(buffer.rows.tokens, wanted_buffer.rows.tokens)
        chex.assert_trees_all_close(buffer, wanted_buffer, atol=1e-4)


def test_a_faulty_group_is_not_remembered():
    programs, *_ = played()
    state = programs.init()
    batch, _ = programs.collect(state, 0, jax.random.key(0))
    logprob = np.array(batch.logprob)
    logprob[2, 1, 0] = np.nan
    state, _ = programs.step(state, batch.replace(logprob=logprob), P)
    assert set(np.asarray(state.replay.prompt)) == {-1, *range(P)} - {2}
    chex.assert_tree_all_finite(state.replay)


def test_a_restored_run_goes_on_to_the_same_buffer(tmp_path):
    programs, straight, _ = played()
    checkpoints = checkpoint.Checkpointer(tmp_path)
    halfway, _ = play(programs, 4)
    checkpoints.save(4, halfway)
    checkpoints.wait()
    del halfway
    restored = checkpoints.restore(programs.abstract)
    checkpoints.close()
    assert int(restored.replay.added) == 4 * P * G
    again, _ = play(programs, 7, restored)
    chex.assert_trees_all_equal(again, straight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch__prompts": 32}, "config.replay.prompts: 24, wanted at least 32"),
        ({"batch__group_size": 8}, "config.replay.window: 6, wanted at least 8"),
        ({"replay__capacity": 63}, "config.replay.capacity: 63, wanted at least 64"),
    ],
    ids=str,
)
def test_a_buffer_that_is_too_small_is_a_config_error(change, message):
    with pytest.raises(training.ConfigError, match=message):
        config_lib.check_config(replayed_config(**change))


def test_without_replay_nothing_is_kept_and_avatar_is_tas():
    config = replayed_config(recipe={"name": "avatar", "replayed": 0})
    mesh = mesh_lib.make_mesh({"data": 1}, jax.devices()[:1])
    programs = loop.Programs(config, config_lib.check_config(config), mesh)
    programs.check_signals()
    assert programs.abstract.replay is None and programs.learner.replay is None
    batch = played()[2][0][1]
    made = step_lib.add_signals(programs.learner, programs.init(), batch, programs.names)
    assert not made.signals["is_offpolicy"].any()
    tas = creditjax.estimate(creditjax.recipe("tas").estimator, batch).value
    np.testing.assert_allclose(creditjax.estimate(programs.recipe.estimator, made).value, tas, atol=1e-6)
    assert np.abs(tas).max() > 1
