"""What the papers claim about process rewards that can be hacked, on games whose every episode is known."""

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import creditjax as cj
from creditjax import exact
from creditjax.algebra import (
    at_segment_end,
    blend,
    chain,
    estimate,
    future_sum,
    min_return,
    outcome,
    signal,
    soft_min,
)
from creditjax.benchmark import hacking
from creditjax.tasks.fillers import Fillers

GAME = Fillers((1, 2), steps=8)
SMALL = Fillers((1,), steps=2)


def made(game, *scores):
    return jax.tree.map(jnp.asarray, hacking.episodes(game, hacking.Judge(*scores)))


@pytest.fixture(scope="module")
def filled():
    return made(GAME, 1.0, -1.0, 0.4)


def ascended(game, form, weight):
    credit = estimate(blend((outcome(), weight), (form, 1.0)), jax.tree.map(lambda x: x[None], game.batch)).value[0]
    return hacking.ascend(game, credit, jnp.zeros(game.choices.shape), 1.0, 1000)


SUM = chain(signal("process_reward"), at_segment_end(), future_sum())
SOFT = chain(signal("process_reward"), soft_min(0.1), at_segment_end(), future_sum())
STRICT = chain(signal("process_reward"), min_return())


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_the_sum_goes_to_fillers_and_the_minimum_does_not(filled, weight):
    summed, soft, strict = (ascended(filled, form, weight) for form in (SUM, SOFT, STRICT))
    assert summed.outcome[-1] < summed.outcome.max() - 0.25 and summed.outcome[-1] < soft.outcome[-1] - 0.3
    assert summed.steps[-1] > 5.5 and strict.steps[-1] < 2.1  # two are enough
    assert soft.outcome[-1] > 0.9 and strict.outcome[-1] > 0.98
    assert strict.fillers[-1] < 0.02


def test_only_the_strict_minimum_resists_fillers_above_one_over_the_number_of_steps():
    game = made(GAME, 1.0, -1.0, 0.6)  # of two equal steps each has weight one half
    assert ascended(game, SOFT, 0.0).outcome[-1] < 0.1
    assert ascended(game, STRICT, 0.0).outcome[-1] > 0.98


def test_the_return_alone_has_the_expected_gradient_of_pure():
    # A baseline that does not see the rollout has no expected gradient: all groups of two, drawn with replacement.
    game = made(SMALL, 1.0, -1.0, 0.4)
    logits = jnp.asarray(np.random.default_rng(0).normal(size=game.choices.shape), jnp.float32)
    count = len(game.batch.outcome)
    pairs = np.array([(i, j) for i in range(count) for j in range(count)])
    for mode, form in (("sum", SUM), ("soft_min", SOFT), ("strict_min", STRICT)):
        batch = jax.tree.map(lambda x: x[pairs], game.batch)
        credit = np.asarray(estimate(cj.recipe("pure", mode=mode, whiten=False).estimator, batch).value)
        chance = np.exp(np.asarray(hacking.log_probability(game, logits)))
        mean = np.zeros(game.batch.tokens.shape)
        for (i, j), value in zip(pairs, credit, strict=True):
            mean[i] += chance[j] * value[0]
        whole = blend((outcome(), 1.0), (form, 1.0))
        alone = estimate(whole, jax.tree.map(lambda x: x[None], game.batch)).value[0]
        np.testing.assert_allclose(
            hacking.expected_gradient(game, logits, jnp.asarray(mean, jnp.float32)),
            hacking.expected_gradient(game, logits, alone),
            atol=1e-6,
        )


def test_looks_agree_with_exact_values(filled):
    logits = jnp.asarray(np.random.default_rng(1).normal(size=filled.choices.shape), jnp.float32)
    process = exact.lay_out(GAME)
    seen = hacking.look(filled, logits)
    wanted = exact.start_value(process, exact.softmax(process, logits))
    assert float(seen.outcome) == pytest.approx(float(wanted), rel=1e-4)
    assert float(jnp.exp(hacking.log_probability(filled, logits)).sum()) == pytest.approx(1.0, rel=1e-4)
    gradient = hacking.expected_gradient(filled, logits, jnp.broadcast_to(filled.batch.outcome[:, None], (277, 8)))
    np.testing.assert_allclose(gradient, exact.policy_gradient(process, logits), atol=1e-5)


def test_a_fixed_weight_declines_late_and_a_decaying_one_does_not():
    game = made(Fillers((5, 6), steps=5, base=8), 0.5, 0.0, 1.0)
    logits = jnp.zeros(game.choices.shape).at[:, -1].set(-1.0)
    keys = jax.random.split(jax.random.key(0), 16)

    def curve(estimator):
        return np.asarray(hacking.train(game, estimator, logits, 1.0, keys, shape=(1, 8)).outcome).mean(axis=0)

    bare = curve(cj.recipe("grpo", ddof=0).estimator)
    fixed = curve(cj.recipe("decaying_process_reward", mode="turn", schedule="constant").estimator)
    falling = curve(cj.recipe("decaying_process_reward", mode="turn", decay_steps=60.0).estimator)
    assert falling[2] > bare[2] + 0.1 and fixed[2] > bare[2] + 0.1  # the early gain
    assert fixed[-1] < fixed.max() - 0.15 and fixed[-1] < bare[-1] - 0.2  # the late decline
    assert falling[-1] > fixed[-1] + 0.15


def test_scores_of_steps():
    tokens = np.array([[1, 3, 0, 0], [3, 3, 1, 0], [2, 0, 0, 0]])
    live = np.array([[1, 1, 1, 0], [1, 1, 1, 1], [1, 1, 0, 0]], bool)
    scores = Fillers((1, 2), steps=4).step_scores(tokens, live, 1.0, -1.0, 0.4)
    np.testing.assert_allclose(scores, [[1, 0.4, 1, 0], [0.4, 0.4, 1, 1], [-1, -1, 0, 0]])
    with pytest.raises(ValueError, match="steps: 1"):
        Fillers((1, 2), steps=1)


def test_hacking_is_a_rising_process_reward_and_a_falling_outcome():
    up, down = np.linspace(0, 1, 12), np.linspace(1, 0, 12)
    seen = hacking.Look(np.stack([down, up, down]), np.stack([up, up, down]), up, up)
    assert hacking.is_hacked(seen, 6).tolist() == [True, False, False]
    with pytest.raises(ValueError, match="window"):
        hacking.is_hacked(seen, 1)
