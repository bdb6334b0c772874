"""A critic for the updated actor, and imitation behind gates: float64 references of losses and gradients."""

import itertools
import math

import jax
from jax import numpy as jnp
import numpy as np
from oracles.batches import random_batch, to_trajectory
from oracles.credit import acted, acting_rows, flag, next_value, returns_to_go, reward_stream
import pytest

import creditjax as cj
from creditjax.models.base import PolicyOutput
from creditjax.objectives import (
    aligned_value,
    clipped_surrogate,
    counts,
    gated_supervised,
    in_turn,
    phases,
    policy_gradient,
    total,
)
from creditjax.trajectory import Trajectory


def batch(seed: int, **options) -> tuple[dict, Trajectory]:
    d = random_batch(np.random.default_rng([seed, 11]), outcome="binary", **options)
    return d, to_trajectory(d, {"value", "next_value", "format_ok"})


def policy(d: dict, seed: int) -> PolicyOutput:
    rng = np.random.default_rng([seed, 12])
    mask = d["action_mask"]
    logprob = np.where(mask, np.where(mask, d["logprob"], 0.0) + 0.5 * rng.normal(size=mask.shape), np.nan)
    value = np.where(mask, rng.normal(size=mask.shape), np.nan)
    return PolicyOutput(*(jnp.asarray(x, jnp.float32) for x in (logprob, -logprob, value)))


def reference(d: dict, new: PolicyOutput, correction: str, gamma: float, lam: float, rho_bar: float, weight_bar: float):
    """Loss and its gradient in V, from the definitions."""
    current, value = (np.asarray(x, np.float64) for x in (new.logprob, new.value))
    rows, target, weight = acting_rows(d), {}, {}
    for p, g in rows:
        stream, error, log_ratio = reward_stream(d, p, g), 0.0, 0.0
        returned = returns_to_go(d, p, g, stream, gamma)
        for t in reversed(acted(d, p, g)):
            step = current[p, g, t] - float(d["logprob"][p, g, t])
            ended = flag(d, "terminated", p, g, t) or flag(d, "truncated", p, g, t)
            if correction == "monte_carlo":
                log_ratio += step
                weight[p, g, t] = min(max(math.exp(log_ratio), 1 / weight_bar), weight_bar)
                target[p, g, t] = returned[t]
                continue
            discount = 0.0 if flag(d, "terminated", p, g, t) else gamma
            old = float(d["value"][p, g, t])
            delta = min(rho_bar, math.exp(step)) * (stream[t] + discount * next_value(d, p, g, t) - old)
            error = delta + gamma * lam * min(1.0, math.exp(step)) * (0.0 if ended else error)
            target[p, g, t], weight[p, g, t] = old + error, 1.0
    mean = np.mean(list(weight.values()))
    loss, gradient = 0.0, np.zeros(value.shape)
    for e in target:
        loss += weight[e] / mean * 0.5 * (value[e] - target[e]) ** 2 / len(target)
        gradient[e] = weight[e] / mean * (value[e] - target[e]) / len(target)
    return loss, gradient


@pytest.mark.parametrize(
    ("correction", "numbers"),
    [("vtrace", (0.9, 0.8, 1.3, 2.0)), ("vtrace", (1.0, 1.0, 1.0, 2.0)), ("monte_carlo", (1.0, 1.0, 1.0, 1.5))],
)
def test_aligned_value_matches_its_reference(correction, numbers):
    gamma, lam, rho_bar, weight_bar = numbers
    loss = aligned_value(
        correction=correction, gamma=gamma, lam=lam, rho_bar=rho_bar, weight_bar=weight_bar, coefficient=1.0
    )

    @jax.jit
    def value_and_gradient(new, made, credit):
        prepared = loss.prepare(new, credit, made)
        of_value = lambda value: total(loss(new._replace(value=value), prepared, made))  # noqa: E731
        of_logprob = lambda logprob: total(loss(new._replace(logprob=logprob), prepared, made))  # noqa: E731
        return *jax.value_and_grad(of_value)(new.value), jax.grad(of_logprob)(new.logprob)

    for seed in range(20):
        # Returns that go on after a cut-off episode are V-trace's business; the Monte Carlo form ends there.
        d, _ = batch(seed, episodes=correction == "vtrace")
        names = {"value", "next_value"} if correction == "vtrace" else {"value"}
        made, new = to_trajectory(d, names), policy(d, seed)
        credit = cj.estimate(cj.recipe("pact_critic").estimator, to_trajectory(d, {"value", "next_value"}))
        got, gradient, through_actor = value_and_gradient(new, made, credit)
        wanted, slope = reference(d, new, correction, gamma, lam, rho_bar, weight_bar)
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=1e-6)
        assert not np.asarray(through_actor).any(), "no gradient reaches the actor through the ratio"


def test_an_actor_that_did_not_move_gives_the_ordinary_regression_on_lambda_returns():
    d, made = batch(3, episodes=True)
    new = policy(d, 3)._replace(logprob=jnp.asarray(d["logprob"]))
    estimator = cj.algebra.chain(cj.algebra.rewards(), cj.algebra.gae(gamma=0.9, lam=0.7))
    credit = cj.estimate(estimator, made)
    prepared = aligned_value(gamma=0.9, lam=0.7).prepare(new, credit, made)
    scored = np.isfinite(d["outcome"])[..., None] & d["action_mask"]
    for_vote = np.asarray(credit.valid) & scored
    np.testing.assert_allclose(
        np.asarray(prepared.extras["value_target"])[for_vote],
        np.asarray(credit.extras["value_target"])[for_vote],
        rtol=1e-4,
        atol=1e-5,
    )


def test_the_monte_carlo_weights_have_their_minimum_at_the_value_of_the_updated_policy():
    # Every episode of three binary actions, weighed by how often the old policy meets it.
    rng = np.random.default_rng(0)
    old, updated, outcome = rng.uniform(0.2, 0.8, 7), rng.uniform(0.2, 0.8, 7), rng.normal(size=8)
    episodes = np.array(list(itertools.product((0, 1), repeat=3)))
    node = np.stack([np.zeros(8, int), 1 + episodes[:, 0], 3 + 2 * episodes[:, 0] + episodes[:, 1]], axis=1)

    def chances(law):
        return np.where(episodes == 1, law[node], 1 - law[node])

    value = np.zeros((8, 3))
    for i, t in np.ndindex(8, 3):
        same = (episodes[:, :t] == episodes[i, :t]).all(1)
        value[i, t] = (chances(updated)[same, t:].prod(1) * outcome[same]).sum()
    made = Trajectory(
        tokens=episodes[None],
        action_mask=np.ones((1, 8, 3), bool),
        outcome=outcome[None],
        logprob=np.log(chances(old))[None],
    )
    loss = aligned_value(correction="monte_carlo", weight_bar=1e6)
    new = PolicyOutput(*(jnp.asarray(x, jnp.float32)[None] for x in (np.log(chances(updated)), value, value)))
    credit = cj.estimate(cj.recipe("reinforce").estimator, made)
    extras = loss.prepare(new, credit, made).extras
    pull = (
        chances(old).prod(1)[:, None]
        * np.asarray(extras["value_weight"][0])
        * (value - np.asarray(extras["value_target"][0]))
    )
    for t in range(3):
        for state in np.unique(node[:, t]):
            assert abs(pull[node[:, t] == state, t].sum()) < 1e-5


def test_the_value_needs_a_head_and_a_preparation():
    d, made = batch(0)
    credit = cj.estimate(cj.recipe("pact_critic").estimator, made)
    new = policy(d, 0)
    with pytest.raises(ValueError, match="no value head"):
        aligned_value()(new._replace(value=None), credit, made)
    with pytest.raises(ValueError, match="value_weight.*call objective.prepare"):
        aligned_value()(new, credit, made)
    with pytest.raises(ValueError, match="aligned_value needs `value`"):
        aligned_value().prepare(new, credit, made.replace(signals={}))


def test_objectives_in_turn_are_phases_and_their_sum():
    d, made = batch(1)
    actor, critic = clipped_surrogate(), aligned_value()
    both = in_turn(actor, critic)
    assert phases(both) == (actor, critic) and phases(actor) == (actor,)
    credit = cj.estimate(cj.recipe("pact_critic").estimator, made)
    new = policy(d, 1)
    prepared = both.prepare(new, credit, made)
    parts = total(actor(new, credit, made)) + total(critic(new, critic.prepare(new, credit, made), made))
    np.testing.assert_allclose(total(both(new, prepared, made)), parts, rtol=1e-5)
    assert set(both.needs) == {"logprob", "value"} and both.aggregation == actor.aggregation


def test_gated_imitation_matches_its_reference():
    loss = gated_supervised(coefficient=0.3)
    value_and_gradient = jax.jit(
        jax.value_and_grad(lambda x, new, credit, made: total(loss(new._replace(logprob=x), credit, made)))
    )
    passed = 0
    for seed in range(20):
        d, made = batch(seed)
        new = policy(d, seed)
        credit = cj.estimate(cj.recipe("grpo").estimator, made)
        got, gradient = value_and_gradient(new.logprob, new, credit, made)
        rows = [
            (p, g) for p, g in np.ndindex(*d["outcome"].shape) if math.isfinite(d["outcome"][p, g]) and acted(d, p, g)
        ]
        wanted, slope = 0.0, np.zeros(d["action_mask"].shape)
        for p, g in rows:
            if d["outcome"][p, g] >= 1 and d["format_ok"][p, g]:
                positions = acted(d, p, g)
                wanted -= 0.3 * np.mean([float(new.logprob[p, g, t]) for t in positions]) / len(rows)
                slope[p, g, positions] = -0.3 / len(positions) / len(rows)
                passed += 1
        np.testing.assert_allclose(got, wanted, rtol=2e-4, atol=1e-6)
        np.testing.assert_allclose(gradient, slope, rtol=2e-4, atol=1e-7)
        np.testing.assert_allclose(counts(loss, credit, made)["imitation"], len(rows))
    assert passed > 10


def test_a_gate_that_is_missing_is_named_and_may_be_left_out():
    d, made = batch(2)
    new, bare = policy(d, 2), made.replace(signals={})
    with pytest.raises(ValueError, match="gated_supervised needs `format_ok`"):
        gated_supervised()(new, None, bare)
    assert gated_supervised(gate=None).needs == ()
    assert gated_supervised(gate=None)(new, None, bare)["imitation"].count > 0
    assert policy_gradient().needs == ()


@pytest.mark.parametrize("hidden", ["outcome", "votes"])
@pytest.mark.parametrize("name", ["ppo", "gae", "vtrace", "token_credit", "red", "ma_rlhf", "pact_critic"])
def test_no_critic_learns_from_a_rollout_that_nobody_scored(name, hidden):
    """Nobody knows its return: it leaves the value loss and the count, whatever its values are."""
    recipe = cj.recipe(name)
    mask = np.arange(4) < np.array([4, 3, 2])[:, None]
    rng = np.random.default_rng(0)
    unknown = {"outcome": [[1.0, 0.0, np.nan]]} if hidden == "outcome" else {"votes": np.array([[True, True, False]])}
    made = Trajectory(
        **{
            "tokens": np.zeros((1, 3, 4), int),
            "action_mask": mask[None],
            "outcome": [[1.0, 0.0, 1.0]],
            "logprob": np.full((1, 3, 4), -1.0),
            "segment": np.where(mask, np.arange(4) // 2, -1)[None],
            "num_segments": 2,
            **unknown,
        },
        signals={s: rng.normal(size=shape_of(s)) for s in recipe.signals},
    )
    credit = cj.estimate(recipe.estimator, made)
    new = PolicyOutput(*(jnp.asarray(rng.normal(size=(1, 3, 4)), jnp.float32) for _ in range(3)))
    loss = phases(recipe.objective)[-1]
    prepared = loss.prepare(new, credit, made)

    def of_value(value):
        return loss(new._replace(value=value), prepared, made)["value"]

    assert float(of_value(new.value).count) == 7
    slope = jax.grad(lambda value: of_value(value).sum)(new.value)
    assert not np.asarray(slope)[0, 2].any() and np.asarray(slope)[0, :2].any()


def shape_of(signal: str) -> tuple[int, ...]:
    sizes = {"P": 1, "G": 3, "T": 4}
    return tuple(sizes[axis] for axis in cj.signal_spec(signal).axes)


@pytest.mark.parametrize("correction", ["vtrace", "estimator"])
def test_what_was_cut_off_does_not_go_on_with_the_next_episode(correction):
    row = dict(tokens=np.zeros((1, 1, 2), int), action_mask=np.ones((1, 1, 2), bool), outcome=[[0.0]])
    row |= dict(logprob=np.full((1, 1, 2), -1.0), truncated=[[[True, False]]], reward=np.zeros((1, 1, 2)))
    signals = {"value": [[[1.0, 100.0]]], "logprob_current": np.full((1, 1, 2), -1.0)}
    new = PolicyOutput(*(jnp.full((1, 1, 2), -1.0),) * 3)

    def target(more):
        made = Trajectory(**row, signals={**signals, **more})
        if correction == "estimator":
            return cj.estimate(cj.algebra.chain(cj.algebra.rewards(), cj.algebra.vtrace(gamma=1.0)), made)
        return aligned_value().prepare(new, cj.estimate(cj.recipe("reinforce").estimator, made), made)

    with pytest.raises(ValueError, match="signal 'next_value': absent, but the batch has `truncated`"):
        target({})
    np.testing.assert_allclose(target({"next_value": [[[1.0, 0.0]]]}).extras["value_target"], [[[1, 0]]])
