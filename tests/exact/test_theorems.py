"""Statements of the literature, held against enumeration. Each test names its card and says what it shows."""

import dataclasses
import functools
import math

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import algebra, chain, estimate, exact, kernels, recipe
from creditjax.exact.signals import Oracle
from creditjax.tasks import bifurcation
from creditjax.tasks.sums import Sums


def uniform(process):
    return exact.tabulate(process, lambda _: np.ones(process.num_tokens))


def random_policy(process, seed):
    rng = np.random.default_rng(seed)
    return exact.tabulate(process, lambda _: rng.dirichlet(np.ones(process.num_tokens)))


def solved(game, seed=0):
    process = exact.lay_out(game)
    return process, exact.solve(process, random_policy(process, seed))


def test_token_credit_and_leave_one_out_have_one_expected_gradient():
    """Card token_credit: exact token credit and leave-one-out ascend the same gradient, the first with less noise."""
    process, solution = solved(Sums((1, 2, 1)))
    loo = exact.enumerate_moments(recipe("rloo").estimator, process, solution, 2)
    signals = Oracle(process, solution).signals(exact.enumerate_paths(process), ("value", "next_value"))
    one_step = recipe("gae", lam=0.0, whiten=False).estimator
    td = exact.enumerate_moments(one_step, process, solution, 2, signals=signals)
    np.testing.assert_allclose(loo.gradient, td.gradient, atol=1e-6)
    assert td.variance < loo.variance


@pytest.mark.parametrize("p", [0.2, 0.5, 0.85])
def test_group_normalisation_ascends_the_arcsine(p):
    """Card frpo: in large groups GRPO's expected gradient on binary rewards is that of ``2 arcsin sqrt(p)``."""
    process = exact.lay_out(bifurcation.single(1, 0))
    solution = exact.solve(process, exact.tabulate(process, lambda _: np.array([1 - p, p])))
    induced = 1 / math.sqrt(p * (1 - p))  # d/dp 2 arcsin sqrt(p)
    error = []
    for size in (8, 32, 128):
        found = exact.enumerate_moments(recipe("grpo", eps=0.0).estimator, process, solution, size)
        error.append(abs(found.gradient[0, 1] / exact.true_gradient(process, solution)[0, 1] / induced - 1))
    assert error[0] > 2 * error[1] > 4 * error[2]
    assert error[2] < 0.02


def test_future_kl_is_the_gradient_of_the_sequence_kl():
    """Card frpo: ``-beta Σ_{u>=t} k_u`` as credit ascends ``-beta KL(pi || ref)``; the local term alone does not."""
    process = exact.lay_out(bifurcation.threshold((1, -1, 2), 1))
    rng = np.random.default_rng(2)
    logits, reference = rng.normal(size=(2, *process.choices.shape))
    paths = exact.enumerate_paths(process)

    def chances(x):
        table = jnp.log(exact.softmax(process, x))
        return jnp.sum(table[paths.observation, paths.tokens], axis=1)

    with jax.enable_x64(True):

        def divergence(x):
            return jnp.sum(jnp.exp(chances(x)) * (chances(x) - chances(jnp.asarray(reference))))

        wanted = np.asarray(jax.grad(divergence)(jnp.asarray(logits)))
        policy, other = (np.asarray(exact.softmax(process, jnp.asarray(x))) for x in (logits, reference))
    solution = exact.solve(process, policy)
    own = Oracle(process, solution).logprob(paths)
    signals = {"logprob_current": own, "logprob_ref": Oracle(process, exact.solve(process, other)).logprob(paths)}
    ratio = algebra.log_ratio("logprob_current", "logprob_ref")
    moments = functools.partial(
        exact.enumerate_moments, process=process, solution=solution, group_size=1, signals=signals
    )
    whole = moments(chain(ratio, algebra.future_sum(), algebra.scale(-0.1)))
    local = moments(chain(ratio, algebra.scale(-0.1)))
    np.testing.assert_allclose(whole.gradient, -0.1 * wanted, atol=1e-7)
    assert np.linalg.norm(local.gradient + 0.1 * wanted) > 0.01


@dataclasses.dataclass(frozen=True)
class Coins:
    """Every step pays its own action."""

    steps: int
    num_tokens = 2

    @property
    def length(self):
        return self.steps

    def start(self):
        return 0

    def move(self, state):
        return None if state == self.steps else exact.Act(state, segment=state)

    def step(self, state, token):
        return state + 1, float(token)


def test_sampling_one_step_instead_of_all_divides_the_variance():
    """Card slate: with T independent steps of equal variance, siblings of one step have 1/T of the variance."""
    variance = {}
    for steps in (1, 4):
        process = exact.lay_out(Coins(steps))
        solution = exact.solve(process, uniform(process))
        centred = chain(algebra.outcome(), algebra.group_center())
        found = exact.enumerate_moments(centred, process, solution, 3)
        chance = exact.probability(process, exact.enumerate_paths(process), solution.policy)
        variance[steps] = chance @ (found.credit_variance + found.credit**2)[:, 0]
    np.testing.assert_allclose(variance[4], 4 * variance[1], rtol=1e-6)


def test_strata_take_the_difference_between_them_out():
    """Card stratified_grpo: what global centring adds is the spread of the strata's means, and nothing else."""
    rng = np.random.default_rng(0)
    reward, stratum = rng.normal(size=(1, 8)), np.array([[[0], [0], [1], [1], [1], [2], [2], [2]]])
    reward += 2.0 * stratum[..., 0]
    import creditjax as cj

    batch = cj.Trajectory(
        tokens=np.zeros((1, 8, 1), int),
        action_mask=np.ones((1, 8, 1), bool),
        outcome=reward,
        segment=np.zeros((1, 8, 1), int),
        num_segments=1,
        signals={"state_key": stratum},
    )
    within = estimate(chain(algebra.segment_rewards(), algebra.state_normalize()), batch).value[0, :, 0]
    overall = estimate(chain(algebra.outcome(), algebra.group_center()), batch).value[0, :, 0]
    means = np.array([reward[0, stratum[0, :, 0] == k].mean() for k in range(3)])
    counts = np.bincount(stratum[0, :, 0])
    spread = np.sum(counts * (means - reward.mean()) ** 2) / 8
    np.testing.assert_allclose(np.var(overall) - np.var(within), spread, rtol=1e-5)
    shifted = batch.replace(outcome=reward + np.array([3.0, -1.0, 7.0])[stratum[..., 0]])
    again = estimate(chain(algebra.segment_rewards(), algebra.state_normalize()), shifted).value[0, :, 0]
    np.testing.assert_allclose(again, within, atol=1e-5)


def test_potential_shaping_leaves_every_preference_alone():
    """Card tips: adding ``Phi(s') - Phi(s)`` moves every Q of a state by the same number."""
    process, solution = solved(bifurcation.threshold((2, -1, 1, 1), 1, flip=0.2, sees="state"))
    rng = np.random.default_rng(1)
    potential = [rng.normal(size=len(states)) for states in process.states]
    potential[-1][:] = 0.0
    shaped = dataclasses.replace(
        process,
        layers=tuple(
            layer._replace(reward=np.where(layer.legal, layer.reward + after[layer.next] - before[:, None], 0.0))
            for layer, before, after in zip(process.layers, potential[:-1], potential[1:], strict=True)
        ),
    )
    found = exact.solve(shaped, solution.policy)
    for before, q, own, layer in zip(potential, found.q, solution.q, process.layers, strict=False):
        np.testing.assert_allclose(np.where(layer.legal, own - before[:, None], 0.0), q, atol=1e-12)
    np.testing.assert_allclose(exact.true_gradient(shaped, found), exact.true_gradient(process, solution), atol=1e-12)


def test_shaping_is_a_constant_of_the_prompt_for_whole_rollouts():
    """Card tips: shaped and bare returns differ by one number for all rollouts, which group centring removes."""
    process, solution = solved(bifurcation.threshold((2, -1, 1), 1))
    paths = exact.enumerate_paths(process)
    signals = Oracle(process, solution, noise=0.3).signals(paths, ("answer_logprob",))
    batch = exact.batch(paths, np.arange(len(paths.tokens))[None], signals)
    bare = chain(algebra.outcome(), algebra.at_last_action())
    shaped = chain(algebra.outcome(), algebra.at_last_action(), algebra.add_potential_shaping(scale=0.02))
    total = [np.asarray(estimate(chain(x, algebra.sum_tokens()), batch).value[0, :, 0]) for x in (bare, shaped)]
    difference = total[1] - total[0]
    np.testing.assert_allclose(difference, difference[0], atol=1e-5)
    assert abs(difference[0]) > 1e-3
    centred = [estimate(chain(x, algebra.sum_tokens(), algebra.group_center()), batch).value for x in (bare, shaped)]
    np.testing.assert_allclose(*centred, atol=1e-5)


def test_tree_differences_telescope_and_vanish_off_branches():
    """Card tempo: they add up to the rollout's own normalised reward, and are 0 where no other rollout turns off."""
    process = exact.lay_out(Sums((1, 2, 1, 2)))
    paths = exact.enumerate_paths(process)
    rng = np.random.default_rng(4)
    index = np.stack([rng.choice(len(paths.tokens), size=5, replace=False) for _ in range(50)])
    batch = exact.batch(paths, index)
    normalised = np.asarray(estimate(recipe("grpo").estimator, batch).value)
    tree = chain(algebra.outcome(), algebra.group_normalize(), algebra.branch_td())
    difference = np.asarray(estimate(tree, batch).value)
    np.testing.assert_allclose(difference.sum(-1), normalised[..., 0], atol=1e-5)
    same = np.cumprod(batch.tokens[:, :, None] == batch.tokens[:, None], axis=-1)
    with_me = same.sum(axis=2)  # rollouts that share the prefix up to and with t
    before = np.concatenate([np.full((50, 5, 1), 5), with_me[..., :-1]], axis=-1)
    assert not difference[before == with_me].any() and difference[before != with_me].any()


def test_the_sum_of_process_rewards_is_hacked_and_their_minimum_is_not():
    """Card pure: many good-looking steps before a bad one win under the sum, and lose under the minimum."""
    honest, padded = np.array([0.6, 0.7, 0, 0, 0, 0]), np.array([0.5, 0.5, 0.5, 0.5, 0.5, 0.05])
    masks = np.arange(6) < 2, np.ones(6, bool)
    total = [float(kernels.future_sum(jnp.asarray(x), m)[0]) for x, m in zip((honest, padded), masks, strict=True)]
    worst = [float(kernels.min_return(jnp.asarray(x), m)[0]) for x, m in zip((honest, padded), masks, strict=True)]
    assert total[1] > total[0] and worst[1] < worst[0]


def test_monte_carlo_values_converge_at_the_root():
    """Card vineppo: the standard deviation of a value of n continuations is sqrt(V (1 - V) / n)."""
    process, solution = solved(bifurcation.threshold((1, 1, -1, 2), 1, flip=0.1))
    drawn = exact.sample_paths(process, solution.policy, jax.random.key(0), 2**17).outcome
    for n in (16, 64, 256):
        estimates = drawn.reshape(-1, n).mean(axis=1)
        deviation = math.sqrt(solution.start * (1 - solution.start) / n)
        tolerance = 4 / math.sqrt(2 * len(estimates))  # of an estimated standard deviation, relative
        assert abs(np.sqrt(np.mean((estimates - solution.start) ** 2)) / deviation - 1) < tolerance


@dataclasses.dataclass(frozen=True)
class Stopping:
    """At each turn the policy stops for a sure reward or goes on; the last turn pays for token 1."""

    sure: tuple[float, ...]
    free: bool
    num_tokens = 2

    @property
    def length(self):
        return len(self.sure)

    def start(self):
        return 0

    def move(self, state):
        return None if state < 0 or state == self.length else exact.Act(state, segment=state)

    def step(self, state, token):
        if state + 1 == self.length:
            return self.length, float(token)
        return (-1, self.sure[state]) if self.free and token == 0 else (state + 1, self.sure[state] * (1 - token))


def test_baselines_by_turn_are_biased_when_the_policy_chooses_when_to_stop():
    """Card bifurcation_task, turn-index baselines: with fixed lengths they only shrink the gradient, with stopping they
    turn it, for fewer rollouts reach the later turns.
    """
    left = {}
    for free in (False, True):
        process = exact.lay_out(Stopping((0.4, 0.5, 0.0), free))
        solution = exact.solve(process, exact.tabulate(process, lambda k: np.array([0.6, 0.4])))
        by_turn = chain(algebra.segment_rewards(), algebra.discounted_return(), algebra.turn_normalize(divide=False))
        moments = exact.enumerate_moments(by_turn, process, solution, 4)
        base = exact.enumerate_moments(exact.reinforce(), process, solution, 4)
        judged = exact.judge(moments, base, process, solution)
        left[free] = judged.bias_up_to_scale
    assert left[False] < 1e-5
    assert left[True] > 0.02
