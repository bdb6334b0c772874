"""The replay buffer against a plain Python model of it."""

import jax
import numpy as np
import pytest

from creditjax import Trajectory
from creditjax.samplers import replay

P, G, T, Q, N, W = 3, 2, 4, 5, 8, 3
add, draw, sample = (
    jax.jit(replay.add),
    jax.jit(replay.draw, static_argnums=3),
    jax.jit(replay.sample_prompts, static_argnums=2),
)


def batch(rng, outcome=None, silent=()):
    mask = np.ones((P, G, T), bool)
    for row in silent:
        mask[row] = False
    return Trajectory(
        tokens=rng.integers(0, 100, (P, G, T)),
        action_mask=mask,
        outcome=rng.random((P, G)).round(3) if outcome is None else outcome,
        logprob=-rng.random((P, G, T)),
        signals={"entropy": rng.random((P, G, T)), "greedy_outcome": rng.random(P)},
    )


class Model:
    """The same buffer with lists."""

    def __init__(self):
        self.rows = [None] * N
        self.added, self.outcomes = 0, {q: [] for q in range(Q)}

    def add(self, b, prompts):
        for p, g in np.ndindex(P, G):
            if np.asarray(b.action_mask)[p, g].any() and np.isfinite(b.outcome[p, g]):
                self.rows[self.added % N] = (int(prompts[p]), np.asarray(b.tokens)[p, g], float(b.outcome[p, g]))
                self.added += 1
                self.outcomes[int(prompts[p])].append(float(b.outcome[p, g]))


def filled(seed, steps=5):
    rng = np.random.default_rng(seed)
    buffer, model = replay.empty(batch(rng), Q, capacity=N, window=W), Model()
    for _ in range(steps):
        b = batch(rng, silent=[(1, 0)] if rng.random() < 0.5 else [])
        b = b.replace(outcome=np.where(rng.random((P, G)) < 0.1, np.nan, b.outcome))
        prompts = rng.permutation(Q)[:P]
        buffer = add(buffer, b, prompts)
        model.add(b, prompts)
    return buffer, model, rng


def test_the_oldest_rows_are_overwritten_and_the_latest_outcomes_averaged():
    for seed in range(6):
        buffer, model, _ = filled(seed, steps=seed)
        for i, row in enumerate(model.rows):
            assert int(buffer.prompt[i]) == (-1 if row is None else row[0])
            if row is not None:
                np.testing.assert_array_equal(buffer.rows.tokens[i], row[1])
                assert float(buffer.rows.outcome[i]) == pytest.approx(row[2])
        wanted = [np.mean(model.outcomes[q][-W:]) if model.outcomes[q] else 0.0 for q in range(Q)]
        np.testing.assert_allclose(replay.prompt_mean(buffer), wanted, rtol=1e-6)
        np.testing.assert_allclose(replay.prompt_mean(buffer, np.array([3, 1])), [wanted[3], wanted[1]], rtol=1e-6)
    assert set(buffer.rows.signals) == {"entropy"}


def test_tiers_are_shares_of_the_prompts_seen():
    rng = np.random.default_rng(0)
    many = 20
    buffer = replay.empty(batch(rng), many + 2, capacity=60, window=W)
    means = rng.permutation(many) / many
    for start in range(0, many, 2):
        own = np.array([means[start], means[start + 1]])
        b = jax.tree.map(lambda x: x[:2], batch(rng)).replace(outcome=np.repeat(own[:, None], G, axis=1))
        buffer = add(buffer, b, np.array([start, start + 1]))
    tier = np.asarray(replay.tiers(buffer))
    rank = np.argsort(np.argsort(means))
    np.testing.assert_array_equal(tier[:many], np.where(rank < 8, 0, np.where(rank < 15, 1, 2)))
    np.testing.assert_array_equal(tier[many:], replay.UNSEEN)

    for seed in range(5):
        drawn = np.asarray(sample(buffer, jax.random.key(seed), 10))
        assert len(set(drawn)) == 10 and drawn.max() < many
        assert np.bincount(tier[drawn], minlength=3).tolist() in ([4, 3, 3], [4, 4, 2])
    everything = np.asarray(sample(buffer, jax.random.key(0), many + 2))
    assert sorted(everything) == list(range(many + 2)) and set(everything[-2:]) == {many, many + 1}
    assert not np.array_equal(sample(buffer, jax.random.key(1), 10), sample(buffer, jax.random.key(2), 10))


def test_draws_are_of_the_prompt_without_replacement_high_and_low_in_turn():
    for seed in range(6):
        buffer, model, _ = filled(seed)
        prompts = np.arange(Q)
        rows, found = draw(buffer, jax.random.key(seed), prompts, 4)
        for q in prompts:
            held = [row for row in model.rows if row is not None and row[0] == q]
            assert int(found[q].sum()) == min(4, len(held))
            mean = np.mean([row[2] for row in held]) if held else 0.0
            n = int(found[q].sum())
            drawn = np.asarray(rows.outcome[q])[:n]
            tokens = {tuple(x) for x in np.asarray(rows.tokens[q])[:n].tolist()}
            assert len(tokens) == n and tokens <= {tuple(row[1].tolist()) for row in held}
            high = sum(row[2] > mean + 1e-6 for row in held)
            assert (drawn > mean + 1e-6).sum() == min(high, max((n + 1) // 2, n - (len(held) - high)))
        assert not np.asarray(rows.action_mask)[~np.asarray(found)].any()


def test_a_joined_batch_says_which_rows_are_replayed():
    buffer, _, rng = filled(3)
    fresh, prompts = batch(rng), np.array([4, 0, 2])
    rows, found = draw(buffer, jax.random.key(0), prompts, 3)
    joined = replay.join(fresh, rows, found, replay.prompt_mean(buffer, prompts))
    assert joined.batch_shape == (P, G + 3)
    np.testing.assert_array_equal(joined.signals["is_offpolicy"][0], [False, False, True, True, True])
    np.testing.assert_array_equal(joined.votes, np.concatenate([np.ones((P, G), bool), found], axis=1))
    np.testing.assert_array_equal(joined.tokens[:, G:], rows.tokens)
    np.testing.assert_array_equal(joined.signals["greedy_outcome"], fresh.signals["greedy_outcome"])
    assert joined.signals["prompt_mean"].shape == (P,)


def test_unfit_batches_are_refused():
    rng = np.random.default_rng(0)
    b = batch(rng)
    with pytest.raises(ValueError, match="window"):
        replay.empty(b, Q, capacity=0)
    with pytest.raises(ValueError, match=r"wanted \[P, G, T\]"):
        replay.empty(jax.tree.map(lambda x: x[0], b.replace(signals={})), Q)
    with pytest.raises(ValueError, match="wanted whole rollouts"):
        replay.empty(b.replace(trajectory=np.zeros((P, G), int)), Q)
    with pytest.raises(ValueError, match="wanted at most 4, and 3 a prompt"):
        replay.add(replay.empty(b, Q, capacity=4, window=W), b, np.arange(P))
    with pytest.raises(ValueError, match="count: 9, wanted 1 to 8"):
        replay.draw(replay.empty(b, Q, capacity=N), jax.random.key(0), np.arange(P), 9)
    with pytest.raises(ValueError, match="count: 6, wanted 1 to 5"):
        replay.sample_prompts(replay.empty(b, Q, capacity=N), jax.random.key(0), 6)
