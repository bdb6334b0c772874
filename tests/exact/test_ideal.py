"""What ideal judges, provers and teachers say agrees with the values that it is made of."""

import chex
import numpy as np
import pytest

from creditjax import exact
from creditjax.exact.ideal import IDEAL
from creditjax.exact.signals import DETERMINED, Oracle
from creditjax.recipes import list_recipes, recipe
from creditjax.tasks import bifurcation, chains
from creditjax.tasks.sums import Sums
from creditjax.testing import default_cases
from creditjax.trajectory import SIGNALS
from creditjax.validation import check

GAMES = {
    "threshold": bifurcation.threshold((2, -1, 1), 1),
    "umbrella": chains.UmbrellaChain(4),  # outcomes are not in [0, 1], and the environment draws
    "sums": Sums((1, 0, 1), base=2),
}


def solved(name, seed=3):
    process = exact.lay_out(GAMES[name])
    rng = np.random.default_rng(seed)
    solution = exact.solve(process, exact.tabulate(process, lambda _: rng.dirichlet(np.ones(process.num_tokens))))
    return process, solution, exact.enumerate_paths(process)


def conditional_mean(process, solution, paths, known):
    """E[outcome | what is equal in `known`], by adding up episodes."""
    chances = exact.probability(process, paths, solution.policy)
    _, kind = np.unique(known, axis=0, return_inverse=True)
    kind = kind.reshape(-1)
    return (np.bincount(kind, chances * paths.outcome) / np.maximum(np.bincount(kind, chances), 1e-300))[kind]


@pytest.mark.parametrize("name", GAMES)
def test_every_signal_has_the_axes_and_the_range_of_its_table(name):
    process, solution, paths = solved(name)
    for noise in (0.0, 0.5):
        signals = Oracle(process, solution, noise=noise).signals(paths, DETERMINED)
        batch = exact.batch(paths, np.arange(6).reshape(2, 3), signals, solution.policy)
        # The model that gives exact process rewards is not normalised.
        check(batch.replace(signals={key: x for key, x in batch.signals.items() if key != "logprob_prm"}))
        for key, x in batch.signals.items():
            axes = SIGNALS[key].axes
            chex.assert_rank(x, len(axes))
            if "[0, 1]" in SIGNALS[key].meaning and key not in ("answer_score", "critic_value"):  # those are outcomes
                assert x.min() >= 0 and x.max() <= 1, key


def test_the_games_of_the_assertions_yield_what_recipes_read():
    for name in list_recipes():
        wanted = recipe(name).signals
        (case, *_) = default_cases(wanted)
        missing = tuple(key for key in wanted if key not in case.signals)
        assert set(missing) <= set(DETERMINED), name


@pytest.mark.parametrize("name", GAMES)
def test_beliefs_are_conditional_means_of_the_outcome(name):
    process, solution, paths = solved(name)
    made = Oracle(process, solution).signals(paths, tuple(IDEAL))
    low, high = paths.outcome.min(), paths.outcome.max()
    # The start, and the state before each position: the tokens up to there.
    for t in range(paths.tokens.shape[1]):
        mean = conditional_mean(
            process, solution, paths, np.where(np.arange(paths.tokens.shape[1]) <= t, paths.tokens, -1)
        )
        np.testing.assert_allclose(made["prefix_score"][:, t], np.where(paths.live[:, t], mean, 0), atol=1e-9)
    np.testing.assert_allclose(made["prompt_score"], solution.start)
    chance = made["prover_value"]
    np.testing.assert_allclose(chance[:, 0] * (high - low) + low, solution.start, atol=1e-9)
    np.testing.assert_allclose(chance[:, -1] * (high - low) + low, paths.outcome, atol=1e-9)
    np.testing.assert_allclose(made["belief"].sum(-1), 1.0)
    np.testing.assert_allclose(made["belief"][..., 1], chance)
    np.testing.assert_allclose(made["correctness"], chance[:, 1:])
    np.testing.assert_allclose(made["critic_value"][..., 0], chance[:, :-1] * (high - low) + low, atol=1e-9)
    # A step is wrong exactly if it lowers the chance.
    np.testing.assert_array_equal(made["step_label"], np.diff(chance, axis=1) >= -1e-9)
    np.testing.assert_array_equal(made["judge_error"][..., 0], 1 - made["step_label"])
    for right, led, success in zip(made["step_label"], made["thought_label"], made["mark"], strict=True):
        first = int(np.argmin([*right, 0]))
        np.testing.assert_array_equal(led, right if success else np.arange(len(right)) >= first)
    np.testing.assert_array_equal(made["mark"], paths.outcome >= (low + high) / 2)
    assert set(np.unique(made["step_label"])) == {0.0, 1.0}


def test_summaries_are_paid_what_going_on_from_the_cut_is_worth():
    process, solution, paths = solved("threshold")
    made = Oracle(process, solution).signals(paths, ("summary_reward", "budget"))
    np.testing.assert_array_equal(made["budget"], [2, 3])
    np.testing.assert_allclose(
        made["summary_reward"][:, 0, 0], conditional_mean(process, solution, paths, paths.tokens[:, :2])
    )
    np.testing.assert_allclose(made["summary_reward"][:, 1, 0], paths.outcome)


def test_instructions_tilt_the_policy_towards_what_pays():
    process, solution, paths = solved("threshold")
    oracle = Oracle(process, solution)
    names = ("logprob_better", "logprob_worse", "logprob_plain", "teacher_span_better", "teacher_span_logprob")
    made = oracle.signals(paths, names)
    q, pi = paths.gather(solution.q), np.exp(oracle.logprob(paths))
    lead = made["logprob_better"] - made["logprob_plain"]
    for t in range(3):
        for state in np.unique(paths.states[:, t]):
            at = (paths.states[:, t] == state) & paths.acts[:, t]
            np.testing.assert_allclose(np.ptp((lead - q)[at, t]), 0, atol=1e-9)  # the rest is the normalisation
            chosen = np.unique(
                np.stack([paths.tokens[at, t], np.exp(made["logprob_better"][at, t])], 1).round(9), axis=0
            )
            np.testing.assert_allclose(chosen[:, 1].sum(), 1.0, atol=1e-6)
    assert np.sign(lead - (made["logprob_worse"] - made["logprob_plain"])).any()
    np.testing.assert_allclose(made["teacher_span_logprob"].sum(1), np.log(pi).sum(1))
    np.testing.assert_allclose(made["teacher_span_better"].sum(1), made["logprob_better"].sum(1))


def test_salience_finds_the_tokens_that_count():
    process = exact.lay_out(bifurcation.single(4, 2))
    solution = exact.solve(process, exact.tabulate(process, lambda _: np.array([0.6, 0.4])))
    paths = exact.enumerate_paths(process)
    made = Oracle(process, solution).signals(paths, ("attention_flow", "attributions", "planning_mask", "hidden"))
    decisive = np.arange(4) == 2
    np.testing.assert_allclose(made["attention_flow"], np.broadcast_to(decisive, paths.tokens.shape))
    np.testing.assert_allclose(made["attributions"].sum(1), 1.0)
    np.testing.assert_allclose(made["attributions"][..., 0], np.broadcast_to(decisive, paths.tokens.shape))
    np.testing.assert_array_equal(made["planning_mask"], np.broadcast_to(decisive, paths.tokens.shape))
    # What looks alike is represented alike.
    same = paths.observation[:, None, :] == paths.observation[None, :, :]
    near = np.abs(made["hidden"][:, None] - made["hidden"][None]).max(-1) < 1e-12
    np.testing.assert_array_equal(same, near)


def test_a_noisy_judge_misjudges_steps_and_always_the_same_ones():
    process, solution, paths = solved("threshold")
    exactly = Oracle(process, solution).signals(paths, ("step_label",))["step_label"]
    wrong = []
    for noise in (0.1, 1.0):
        made = [Oracle(process, solution, noise=noise, seed=1).signals(paths, ("step_label",)) for _ in range(2)]
        np.testing.assert_array_equal(made[0]["step_label"], made[1]["step_label"])
        wrong.append(np.mean(made[0]["step_label"] != exactly))
    assert wrong[0] <= wrong[1] and wrong[1] > 0.1


def test_the_policy_that_regularised_optimisation_makes_of_its_reference_values_every_prefix():
    """Card vimpo: where ``pi = ref exp(A / beta) / Z``, its centred log-ratio is the advantage."""
    process, solution, paths = solved("threshold")
    beta = 0.7
    advantage = np.zeros_like(solution.policy)
    for layer, credit in zip(process.layers, solution.credit, strict=True):
        advantage[np.asarray(layer.observation)[np.asarray(layer.acts)]] = credit[np.asarray(layer.acts)]
    reference = solution.policy * np.exp(-advantage / beta)
    reference /= reference.sum(axis=1, keepdims=True)
    oracle = Oracle(process, solution, reference=reference)
    implied = beta * (oracle.logprob(paths) - oracle.logprob_ref(paths) - oracle.token_kl(paths))
    np.testing.assert_allclose(implied, exact.exact_credit(paths, solution), atol=1e-9)
    assert not Oracle(process, solution).token_kl(paths).any()
    with pytest.raises(ValueError, match="policy"):
        Oracle(process, solution, reference=reference * 2)
