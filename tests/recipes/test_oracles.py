"""The registered recipes against their float64 references, and the references against what the method cards promise."""

import functools
import itertools

import jax
import numpy as np
from oracles import credit
from oracles.batches import random_batch, to_trajectory
from oracles.credit import ORACLES
import pytest

import creditjax

# ------------------------------------------------------------------------------------------ recipes against references

# Batches of one kind share one compilation a recipe.
PLAIN, WITHOUT_REWARD, FRAGMENTS = 22, 8, 8

# Recipes whose input is the reward stream, which is the outcome at the last acted position where no stream is given.
ON_REWARDS = (
    "reinforce",
    "reinforce_baseline",
    "remax",
    "reinforce_plus_plus",
    "ppo",
    "gae",
    "vtrace",
    "optimal_token_baseline",
    "gigpo",
    "tips",
)
# Recursions that have to stop where an episode ends within a row.
ON_EPISODES = ("reinforce", "reinforce_baseline", "ppo", "gae", "vtrace")
# Recipes for which it is settled what rows cut from one rollout share.
ON_FRAGMENTS = ("rloo", "grpo", "dr_grpo", "dapo", "gspo", "cispo", "sapo", "gmpo", "clip_cov", "kl_cov")

# (recipe, overrides of the recipe, arguments of the reference)
VARIANTS = [
    ("reinforce", {"gamma": 0.9}, {"gamma": 0.9}),
    ("gae", {"gamma": 0.9, "lam": 0.7, "whiten": False}, {"gamma": 0.9, "lam": 0.7, "whitened": False}),
    ("ppo", {"gamma": 0.9, "lam": 0.7}, {"gamma": 0.9, "lam": 0.7}),
    ("vtrace", {"gamma": 0.9, "lam": 0.7}, {"gamma": 0.9, "lam": 0.7}),
    ("vtrace", {"rho_bar": 1.5, "rho_pg_bar": 0.8}, {"rho_bar": 1.5, "rho_pg_bar": 0.8}),
    ("reinforce_baseline", {"baseline": "group"}, {"baseline": "group"}),
    ("reinforce_baseline", {"baseline": "batch"}, {"baseline": "batch"}),
    ("reinforce_baseline", {"baseline": "value", "gamma": 0.9}, {"baseline": "value", "gamma": 0.9}),
    ("rloo", {"beta": 0.1}, {"beta": 0.1}),
    ("grpo", {"ddof": 0, "eps": 0.1}, {"ddof": 0, "eps": 0.1}),
    ("dapo", {"max_length": 8, "buffer": 5, "factor": 0.5}, {"max_length": 8, "buffer": 5, "factor": 0.5}),
    ("gpg", {"count_by": "group", "f_norm": 2.0}, {"count_by": "group", "f_norm": 2.0}),
    ("reinforce_plus_plus", {"gamma": 0.9, "beta": 0.1}, {"gamma": 0.9, "beta": 0.1}),
    ("reinforce_plus_plus_baseline", {"shift": False}, {"shift_mean": False}),
    ("pass_at_k_grpo", {"divide": True}, {"normalize": True}),
    ("pass_at_k_grpo", {"divide": False}, {"normalize": False}),
    ("gdpo", {"weights": (1.0, 0.25)}, {"weights": (1.0, 0.25)}),
    ("pure", {"mode": "strict_min", "whiten": False}, {"mode": "strict_min", "whitened": False}),
    ("pure", {"mode": "sum", "outcome_weight": 0.5}, {"mode": "gamma_decay", "outcome_coef": 0.5}),
    (
        "pure",
        {"mode": "strict_min", "channels": "joint", "beta": 0.3, "whiten": False},
        {"mode": "strict_min", "channels": "joint", "beta": 0.3, "whitened": False},
    ),
    (
        "pure",
        {"channels": "joint", "outcome_weight": 0.5, "whiten": False},
        {"channels": "joint", "outcome_coef": 0.5, "whitened": False},
    ),
    ("pure", {"beta": 0.3}, {"beta": 0.3}),
    ("prime", {"granularity": "whole"}, {"granularity": "whole"}),
    ("prime", {"baseline": "code", "whiten": False}, {"baseline": "code", "whitened": False}),
    ("prime", {"norm": "none", "beta": 0.5, "whiten": False}, {"norm": "none", "beta": 0.5, "whitened": False}),
    ("prime", {"gamma": 0.9, "outcome_gamma": 0.8}, {"gamma": 0.9, "outcome_gamma": 0.8}),
    ("ucas", {"reduce": "mean", "lam": 0.2}, {"certainty_reduce": "mean", "penalty": 0.2}),
    ("tempo", {"td_weight": 0.5, "ddof": 1}, {"td_weight": 0.5, "ddof": 1}),
    ("gigpo", {"per": "rollouts", "gamma": 0.8}, {"gamma": 0.8}),
    ("gigpo", {"per": "rollouts", "divide": True, "weight": 0.5}, {"mode": "mean_std_norm", "weight": 0.5}),
    ("a2tgpo", {"alpha": 1.0, "gamma": 0.8}, {"alpha": 1.0, "gamma": 0.8}),
    ("tips", {"critic": True, "alpha": 0.5, "lam": 0.9}, {"critic": True, "alpha": 0.5, "lam": 0.9}),
    ("matchtir", {"lam": 0.5, "penalty": -0.5}, {"lam": 0.5, "penalty": -0.5}),
]


# Where the recipe's default is not the card's: the reference code takes the divergence as already inside the reward.
CARD_ARGUMENTS = {"reinforce_plus_plus": {"beta": 0.0}}


@jax.jit
def _value(estimator, batch):
    return creditjax.estimate(estimator, batch).value


def _compare(name: str, overrides: dict, batch: dict, reference) -> None:
    got = np.asarray(_value(creditjax.recipe(name, **overrides).estimator, to_trajectory(batch)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, reference(batch), rtol=2e-4, atol=2e-5, err_msg=name)


def _outcome_kind(name: str, seed: int) -> str:
    kinds = ("binary", "unit") if name == "max_rl" else ("binary", "unit", "real")  # max_rl is for rewards in [0, 1]
    return kinds[seed % len(kinds)]


@pytest.mark.parametrize("name", ORACLES)
def test_recipe_is_registered(name):
    assert name in creditjax.list_recipes()


@pytest.mark.parametrize("name", ORACLES)
def test_recipe_matches_reference(name):
    for seed in range(PLAIN):
        rng = np.random.default_rng([seed, 1])
        episodes = name in ON_EPISODES and seed % 2 == 1
        batch = random_batch(rng, outcome=_outcome_kind(name, seed), episodes=episodes)
        _compare(name, {}, batch, functools.partial(ORACLES[name], **CARD_ARGUMENTS.get(name, {})))


@pytest.mark.parametrize("name", ON_REWARDS)
def test_recipe_matches_reference_without_reward_stream(name):
    for seed in range(WITHOUT_REWARD):
        rng = np.random.default_rng([seed, 2])
        batch = random_batch(rng, outcome=_outcome_kind(name, seed), with_reward=False)
        _compare(name, {}, batch, functools.partial(ORACLES[name], **CARD_ARGUMENTS.get(name, {})))


@pytest.mark.parametrize("name", ON_FRAGMENTS)
def test_recipe_matches_reference_when_rows_share_a_rollout(name):
    for seed in range(FRAGMENTS):
        rng = np.random.default_rng([seed, 3])
        _compare(name, {}, random_batch(rng, outcome=_outcome_kind(name, seed), fragments=True), ORACLES[name])


@pytest.mark.parametrize(("name", "overrides", "arguments"), VARIANTS)
def test_variant_matches_reference(name, overrides, arguments):
    for seed in range(WITHOUT_REWARD):
        rng = np.random.default_rng([seed, 4])
        batch = random_batch(rng, outcome=_outcome_kind(name, seed), episodes=name in ON_EPISODES)
        _compare(name, overrides, batch, functools.partial(ORACLES[name], **arguments))


# ---------------------------------------------------------------------------------- references against the method cards


def batch_of(outcome, mask=None, **fields) -> dict:
    """A batch of rows ``[P, G]`` that act at one position, or where `mask` says."""
    outcome = np.asarray(outcome, float)
    outcome = outcome[None] if outcome.ndim == 1 else outcome
    mask = np.ones((*outcome.shape, 1), bool) if mask is None else np.asarray(mask, bool).reshape(*outcome.shape, -1)
    tokens = np.zeros(mask.shape, int)
    return {"tokens": tokens, "action_mask": mask, "outcome": outcome, "num_segments": 1, **fields}


def row_of(mask=None, **fields) -> dict:
    """One row: every field is given per position."""
    length = len(next(iter(fields.values())))
    arrays = {name: np.asarray(value)[None, None] for name, value in fields.items()}
    return batch_of([[0.0]], np.ones(length, bool) if mask is None else mask, **arrays)


def batches(count: int = 15, outcome: str | None = None, **options):
    for seed in range(count):
        kind = outcome or ("binary", "unit", "real")[seed % 3]
        yield random_batch(np.random.default_rng([seed, 5]), outcome=kind, **options)


def row_values(d: dict, c: np.ndarray) -> dict[tuple[int, int], float]:
    """The credit of every voting row, checked to be constant over its tokens."""
    out = {}
    for p, g in credit.voting_rows(d):
        values = [c[p, g, t] for t in credit.acted(d, p, g)]
        np.testing.assert_allclose(values, values[0], atol=1e-12)
        out[p, g] = values[0]
    return out


def group_sums(d: dict, values: dict) -> list[float]:
    return [sum(v for (q, _), v in values.items() if q == p) for p in range(credit.sizes(d)[0])]


@pytest.mark.parametrize("name", ORACLES)
def test_credit_is_zero_outside_the_mask_and_finite(name):
    for d in batches(outcome="unit"):
        c = ORACLES[name](d)
        assert np.isfinite(c).all()
        assert (c[~d["action_mask"]] == 0).all()
        assert c.any() or name == "pass_at_k_grpo"


WHITENED = ("ppo", "gae", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "pure", "prime")
NOT_GROUP_RELATIVE = (*ON_EPISODES, "remax", "reinforce_plus_plus", "shapley_exact", "tips")


@pytest.mark.parametrize("name", sorted(set(ORACLES) - set(NOT_GROUP_RELATIVE)))
def test_a_row_that_does_not_vote_gets_nothing_and_changes_nobody(name):
    for d in batches(outcome="unit"):
        row = (1, 2)
        d["outcome"][row] = np.nan
        gone = {**d, "action_mask": d["action_mask"].copy()}
        gone["action_mask"][row] = False
        c = ORACLES[name](d)
        assert (c[row] == 0).all()
        np.testing.assert_allclose(c, ORACLES[name](gone), atol=1e-12)


@pytest.mark.parametrize("name", sorted(set(ORACLES) - set(NOT_GROUP_RELATIVE) - set(WHITENED) - {"ucas", "gigpo"}))
def test_a_group_of_one_gets_nothing(name):
    for d in batches(outcome="unit"):
        d["outcome"][1, [0, 1, 3]] = np.nan
        assert (ORACLES[name](d)[1] == 0).all()


def test_group_estimators_sum_to_zero():
    for name in ("rloo", "grpo", "dr_grpo", "max_rl", "gpg"):
        for d in batches(outcome="unit"):
            np.testing.assert_allclose(group_sums(d, row_values(d, ORACLES[name](d))), 0, atol=1e-10)


def test_rloo_is_dr_grpo_over_one_minus_one_over_g():
    for d in batches():
        factor = [len(credit.voters(d, p)) / max(len(credit.voters(d, p)) - 1, 1) for p in range(3)]
        np.testing.assert_allclose(credit.rloo(d), np.array(factor)[:, None, None] * credit.dr_grpo(d), atol=1e-12)


def test_grpo_ignores_affine_changes_of_the_reward():
    for d in batches(outcome="real"):
        moved = {**d, "outcome": 3 * d["outcome"].astype(float) - 5}
        np.testing.assert_allclose(credit.grpo(d), credit.grpo(moved), rtol=1e-5, atol=1e-9)


def test_rows_of_one_rollout_vote_once():
    whole = batch_of([1.0, 0.0])
    cut = batch_of([1.0, 1.0, 1.0, 0.0], trajectory=np.array([[7, 7, 7, 3]]))
    for rule in (credit.grpo, credit.dr_grpo, credit.rloo):
        (first, second), cut_rows = rule(whole)[0, :, 0], rule(cut)[0, :, 0]
        np.testing.assert_allclose(cut_rows, [first, first, first, second])


def test_reinforce_broadcasts_the_outcome_and_skips_gaps():
    for d in batches(with_reward=False):
        c = row_values(d, credit.reinforce(d))
        assert c == pytest.approx({row: d["outcome"][row] for row in c})
    d = row_of([1, 0, 0, 1], reward=[0.0, 0, 0, 2])
    np.testing.assert_allclose(credit.reinforce(d, gamma=0.5)[0, 0], [1, 0, 0, 2])
    d = row_of([0, 1, 0, 1, 0], reward=[9.0, 0, 1, 2, 4])
    np.testing.assert_allclose(credit.reinforce(d)[0, 0], [0, 7, 0, 6, 0])


def test_reinforce_baseline_modes():
    for d in batches(with_reward=False):
        np.testing.assert_allclose(credit.reinforce_baseline(d, baseline="group"), credit.dr_grpo(d), atol=1e-12)
        np.testing.assert_allclose(
            credit.reinforce_baseline(d, baseline="value"), credit.gae(drop(d), whitened=False), atol=1e-9
        )
        batch = row_values(d, credit.reinforce_baseline(d, baseline="batch"))
        assert sum(batch.values()) == pytest.approx(0)
        shifted = credit.reinforce_baseline({**d, "running_baseline": 0.0})
        np.testing.assert_allclose(shifted, credit.reinforce(d))


def drop(d: dict, *names: str) -> dict:
    """Without next values and flags (whose bootstraps the telescoping identities leave out), and without `names`."""
    return {k: v for k, v in d.items() if k not in ("next_value", "terminated", "truncated", *names)}


def test_remax_keeps_a_group_of_one():
    d = batch_of([[0.75]], greedy_outcome=np.array([0.5]))
    np.testing.assert_allclose(credit.remax(d), 0.25)


# Published faults in this recursion: truncation against termination, leaks, windows counted twice, shifted flags.
TRACES = [
    (0.9, 0.8, [1, 1, 1, 1], [1, 2, 3, 4], [2, 5, 4, 6], [], [1], [4.32, 3.5, 3.328, 2.4]),
    (1.0, 1.0, [0, 10], [0, 0], [0, 0], [], [0, 1], [0, 10]),
    (0.9, 1.0, [1, 1], [0.5, 0.5], [0.5, 2], [], [], [3.02, 2.3]),
    (1.0, 1.0, [1, 1, 1], [0, 0, 0], [0, 0, 5], [1], [], [2, 1, 6]),
    (1.0, 0.0, [0, 1], [0.2, 0.6], [0.6, 0], [1], [], [0.4, 0.4]),
    (0.9, 0.5, [1, 1, 1], [0, 1, 2], [1, 2, 3], [], [], [3.05425, 2.565, 1.7]),
]


@pytest.mark.parametrize(("gamma", "lam", "reward", "value", "following", "terminal", "cut", "wanted"), TRACES)
def test_gae_by_hand(gamma, lam, reward, value, following, terminal, cut, wanted):
    flags = {name: np.isin(np.arange(len(reward)), at) for name, at in (("terminated", terminal), ("truncated", cut))}
    d = row_of(reward=reward, value=value, next_value=following, **flags)
    np.testing.assert_allclose(credit.gae(d, gamma, lam, whitened=False)[0, 0], wanted, atol=1e-9)


def test_gae_with_lambda_one_is_the_bootstrapped_return_minus_value():
    for d in batches(episodes=True):
        # Consistent next values: what comes after an acted position is the state of the next one.
        for (p, g), positions in {row: credit.acted(d, *row) for row in credit.cells(d)}.items():
            for t, u in itertools.pairwise(positions):
                if not credit.ended(d, p, g, t):
                    d["next_value"][p, g, t] = d["value"][p, g, u]
        c = credit.gae(d, 0.9, 1.0, whitened=False)
        for p, g in credit.acting_rows(d):
            positions, stream = credit.acted(d, p, g), credit.reward_stream(d, p, g)
            for i, t in enumerate(positions):
                total = 0.0
                for n, u in enumerate(positions[i:]):
                    total += 0.9**n * stream[u]
                    if credit.ended(d, p, g, u) or u == positions[-1]:
                        if not d["terminated"][p, g, u]:
                            total += 0.9 ** (n + 1) * float(d["next_value"][p, g, u])
                        break
                assert c[p, g, t] + float(d["value"][p, g, t]) == pytest.approx(total, abs=1e-9)


def test_vtrace_on_policy_is_gae():
    for d in batches(episodes=True):
        d["logprob_current"] = d["logprob"]
        np.testing.assert_allclose(credit.vtrace(d, 0.9, 0.6), credit.gae(d, 0.9, 0.6, whitened=False), atol=1e-9)


def expand(d: dict, at: int) -> dict:
    """The same batch with one more position before `at` at which nobody acts."""
    axis = {name: v for name, v in d.items() if np.ndim(v) == 3 and np.shape(v) == d["action_mask"].shape}
    return {**d, **{name: np.insert(v, at, -1 if v.dtype == np.int32 else 0, axis=2) for name, v in axis.items()}}


@pytest.mark.parametrize("name", sorted(set(ORACLES) - {"tempo"}))  # a position more is a token more to compare there
def test_positions_that_nobody_acted_on_change_nothing(name):
    for d in batches(6, outcome="unit"):
        wide = expand(d, 5)
        assert not wide["action_mask"][:, :, 5].any()
        np.testing.assert_allclose(np.delete(ORACLES[name](wide), 5, axis=2), ORACLES[name](d), atol=1e-12)


def test_overlong_penalty_edges():
    assert [credit.overlong_penalty(n, 100, 20, 1.0) for n in (80, 85, 100, 101)] == pytest.approx([0, -0.25, -1, -1])
    assert [credit.overlong_penalty(n, 100, 0, 1.0) for n in (99, 100, 101)] == [0, 0, -1]


def test_dapo_is_grpo_unless_responses_are_overlong():
    for d in batches():
        np.testing.assert_array_equal(credit.dapo(d), credit.grpo(d))
    d = batch_of([1.0, 1.0], [[1, 0, 0, 0], [1, 1, 1, 1]])
    c = credit.dapo(d, max_length=4, buffer=2)[0]
    assert c[0, 0] > 0 > c[1, 0]


def test_gpg_rescales_by_the_non_zero_rewards():
    d = batch_of([[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_allclose(credit.gpg(d)[..., 0], [[2, -2], [0, 0]])
    np.testing.assert_allclose(credit.gpg(d, count_by="group")[..., 0], [[1, -1], [0, 0]])


def test_opo_tokens_of_a_group_sum_to_zero():
    for d in batches():
        np.testing.assert_allclose(credit.opo(d).sum((1, 2)), 0, atol=1e-10)
    d = batch_of([1.0, 0.0, 2.0], [[1, 1], [1, 1], [1, 1]])
    np.testing.assert_allclose(credit.opo(d), credit.dr_grpo(d))


@pytest.mark.parametrize(
    "name", ["ppo", "reinforce_plus_plus", "reinforce_plus_plus_baseline", "gdpo", "pure", "prime"]
)
def test_whitened_credit_has_mean_zero_and_variance_one_over_its_tokens(name):
    for d in batches(outcome="unit"):
        rows = credit.acting_rows(d) if name in ON_REWARDS else credit.voting_rows(d)
        c = ORACLES[name](d)
        x = np.array([c[p, g, t] for p, g in rows for t in credit.acted(d, p, g)])
        assert x.mean() == pytest.approx(0, abs=1e-9)
        assert x.var(ddof=1) == pytest.approx(1, abs=1e-4)


def test_whitening_reads_acted_positions_only():
    d = batch_of([0.0, 0.0], [[1, 1], [1, 0]])
    x = np.array([[[2.0, 4], [9, 100]]])
    np.testing.assert_allclose(
        credit.whiten(d, x, credit.voting_rows(d)), [[[-0.83205, -0.27735], [1.1094, 0]]], atol=1e-5
    )


def test_reinforce_plus_plus_pays_the_divergence():
    d = row_of(reward=[0.0, 1, 0], logprob=[0.0, 0, 0], logprob_ref=[-1.0, 0, -2])
    raw = np.array([1 - 0.1 * 3, 1 - 0.1 * 2, -0.1 * 2])
    wanted = (raw - raw.mean()) / raw.std(ddof=1)
    np.testing.assert_allclose(credit.reinforce_plus_plus(d, beta=0.1)[0, 0], wanted, rtol=1e-6)


def test_optimal_token_baseline_is_a_weighted_mean_per_position():
    d = batch_of(
        [0.0, 0.0],
        [[1, 1], [1, 0]],
        reward=np.array([[[0.0, 4], [1, 0]]]),
        logprob=np.log(np.array([[[0.5, 0.5], [0.25, 1]]])),
        sum_pi_squared=np.array([[[0.5, 0.5], [0.625, 0]]]),
    )
    base = (0.5 * 4 + 1.125 * 1) / 1.625
    np.testing.assert_allclose(credit.optimal_token_baseline(d)[0], [[4 - base, 0], [1 - base, 0]], atol=1e-6)


def test_pass_at_k_credits_the_lead_of_the_best():
    d = batch_of([1.0, 4.0, 2.0])
    np.testing.assert_allclose(credit.pass_at_k_grpo(d, normalize=False)[0, :, 0], [0, 2, 0])
    np.testing.assert_allclose(credit.pass_at_k_grpo(d)[0, :, 0], [0, 2 / np.std([1, 4, 2], ddof=1), 0], rtol=1e-5)
    assert not credit.pass_at_k_grpo(batch_of([1.0, 0.0, 1.0])).any()


def test_gdpo_normalises_every_reward_before_the_sum():
    d = batch_of([0.0] * 4, reward_components=np.array([[[0, 0], [1, 0], [0, 2], [1, 4]]]))
    raw = credit.gdpo(d, eps=0.0, whitened=False)[0, :, 0]
    np.testing.assert_allclose(raw, [-1.649375, 0.082676, -0.604909, 2.171608], atol=1e-6)
    np.testing.assert_allclose(credit.gdpo(d)[0, :, 0], [-1.022305, 0.051244, -0.374931, 1.345992], atol=1e-5)


def test_max_rl_divides_by_the_success_rate():
    np.testing.assert_allclose(credit.max_rl(batch_of([1.0, 0, 0, 0]))[0, :, 0], [3, -1, -1, -1], rtol=1e-5)
    assert not credit.max_rl(batch_of([0.0, 0, 0])).any()


def with_process_reward(d: dict, value: float) -> dict:
    return {**d, "process_reward": np.full_like(d["process_reward"], value)}


def test_pure_without_process_reward_is_rloo():
    for d in batches():
        np.testing.assert_allclose(credit.pure(with_process_reward(d, 0), whitened=False), credit.rloo(d), atol=1e-10)


def test_pure_soft_min_lies_between_minimum_and_mean():
    mask, segment = np.ones((1, 2, 3), bool), np.array([[[0, 1, 2]] * 2])
    scores = np.array([[[0.5, -0.25, 0.75], [0, 0, 0]]])
    d = batch_of([[0.0, 0.0]], mask, segment=segment, num_segments=3, process_reward=scores)
    raw = {mode: credit.pure(d, mode=mode, whitened=False)[0, 0] for mode in ("soft_min", "gamma_decay", "strict_min")}
    assert -0.25 < raw["soft_min"][0] < scores[0, 0].mean()  # the sibling's baseline is 0
    np.testing.assert_allclose(raw["gamma_decay"], [1.0, 0.5, 0.75])
    np.testing.assert_allclose(raw["strict_min"], [-0.25, -0.25, 0.75])
    cold = credit.pure(d, temperature=1e-3, whitened=False)[0, 0]
    np.testing.assert_allclose(cold, [-0.25, -0.25, 0], atol=1e-9)
    hot = credit.pure(d, temperature=1e9, whitened=False)[0, 0]
    np.testing.assert_allclose(hot[0], scores[0, 0].mean(), atol=1e-6)


def test_pure_splitting_a_step_into_equal_ones_keeps_the_first_return():
    mask = np.ones((1, 2, 4), bool)
    scores = np.full((1, 2, 4), 0.5)
    few = batch_of([[0.0, 0.0]], mask, segment=np.array([[[0, 0, 0, 0]] * 2]), num_segments=4, process_reward=scores)
    many = {**few, "segment": np.array([[[0, 1, 2, 3], [0, 0, 0, 0]]])}
    base = 0.5  # the sibling's mean return per token: one step, paid at its last token
    for d in (few, many):
        assert credit.pure(d, whitened=False)[0, 0, 0] == pytest.approx(0.5 - base)


def test_prime_keeps_prompts_of_some_difficulty():
    assert creditjax.recipe("prime").sampler.accuracy == (0.2, 0.8)
    assert creditjax.recipe("prime", kept=(0.0, 1.0)).sampler.accuracy == (0.0, 1.0)
    with pytest.raises(ValueError, match="kept: 0.8 to 0.2, wanted 0 <= low <= high <= 1"):
        creditjax.recipe("prime", kept=(0.8, 0.2))


def test_prime_with_the_reference_as_reward_model_is_rloo():
    for d in batches():
        d["logprob_prm"] = d["logprob_ref"]
        np.testing.assert_allclose(credit.prime(d, whitened=False), credit.rloo(d), atol=1e-10)


def test_prime_baselines_differ_as_the_card_says():
    for d in batches():
        paper = credit.prime(d, norm="none", whitened=False)
        code = credit.prime(d, norm="none", baseline="code", whitened=False)
        for p, g in credit.voting_rows(d):
            if (count := len(credit.voters(d, p))) < 2:
                continue
            positions = credit.acted(d, p, g)
            r = [0.05 * (float(d["logprob_prm"][p, g, t]) - float(d["logprob_ref"][p, g, t])) for t in positions]
            for i, t in enumerate(positions):
                wanted = sum(x - np.mean(r) for x in r[i:]) / (count - 1)
                assert code[p, g, t] - paper[p, g, t] == pytest.approx(wanted, abs=1e-9)


def test_ucas_reduces_to_grpo_and_penalises_silent_groups():
    for d in batches():
        d["self_certainty"] = np.zeros_like(d["self_certainty"])
        np.testing.assert_allclose(credit.ucas(d, penalty=0.0), credit.grpo(d), atol=1e-12)
    for d in batches(outcome="unit"):
        whole, plain = credit.ucas(d), credit.grpo(d)
        assert (whole[plain > 0] >= 0).all()
        voting = np.array([[[credit.votes(d, p, g)] for g in range(4)] for p in range(3)]) & d["action_mask"]
        assert (whole[voting & (plain <= 0)] <= 1e-12).all()


def test_tempo_without_temporal_difference_is_grpo():
    for d in batches():
        np.testing.assert_allclose(credit.tempo(d, td_weight=0.0), credit.grpo(d, ddof=0), atol=1e-12)


def test_tempo_differences_telescope_to_the_mean_of_identical_rollouts():
    for d in batches(outcome="unit"):
        d["action_mask"] = d["action_mask"] | (np.cumsum(d["action_mask"][..., ::-1], -1)[..., ::-1] > 0)
        z, c = credit.grpo(d, ddof=0), credit.tempo(d)
        for p, i in credit.voting_rows(d):
            whole = [j for j in credit.voters(d, p) if credit.common_prefix(d, p, i, j) == len(credit.acted(d, p, i))]
            assert (c[p, i] - z[p, i]).sum() == pytest.approx(np.mean([z[p, j, 0] for j in whole]), abs=1e-9)


def test_tempo_by_hand():
    tokens = np.array([[[1, 1, 2], [1, 1, 3], [1, 4, 2], [1, 4, 2]]])
    d = {**batch_of([[1.0, 0, 0, 0]], np.ones((1, 4, 3), bool)), "tokens": tokens}
    z = (np.array([1.0, 0, 0, 0]) - 0.25) / np.std([1, 0, 0, 0])
    left, right = z[:2].mean(), z[2:].mean()
    delta = [[0, left, z[0] - left], [0, left, z[1] - left], [0, right, 0], [0, right, 0]]
    np.testing.assert_allclose(credit.tempo(d)[0], z[:, None] + delta, atol=1e-5)


def test_gigpo_by_hand():
    d = batch_of(
        [[1.0, 0.0]],
        np.ones((1, 2, 2), bool),
        segment=np.array([[[0, 1], [0, 1]]]),
        num_segments=2,
        state_key=np.array([[[0, 1], [0, 2]]]),
    )
    np.testing.assert_allclose(credit.gigpo(d, gamma=1.0)[0], [[1, 0.5], [-1, -0.5]])


def test_gigpo_with_unique_states_is_the_episode_baseline():
    for d in batches():
        d["state_key"] = np.arange(d["state_key"].size).reshape(d["state_key"].shape)
        np.testing.assert_allclose(credit.gigpo(d), credit.dr_grpo(d))
        np.testing.assert_allclose(credit.gigpo(d, mode="mean_std_norm"), credit.grpo(d))


def test_gigpo_ignores_the_names_of_states():
    for d in batches():
        renamed = {**d, "state_key": 17 - 5 * d["state_key"]}
        np.testing.assert_allclose(credit.gigpo(d), credit.gigpo(renamed))


def test_a2tgpo_reduces_to_grpo():
    for d in batches():
        base = credit.grpo(d)
        np.testing.assert_allclose(credit.a2tgpo(d, alpha=0.0), base)
        d["potential"] = np.broadcast_to(np.arange(5.0), d["potential"].shape)
        np.testing.assert_allclose(credit.a2tgpo(d), base)


def test_a2tgpo_by_hand():
    d = batch_of(
        [[1.0, 1.0]],
        np.ones((1, 2, 3), bool),
        segment=np.array([[[0, 1, 2]] * 2]),
        num_segments=3,
        potential=np.array([[[0, 0.5, 0.5, 1], [0, 0.25, 0.75, 0]]]),
    )
    # Gains (.5, .25) at depth 0 and (0, .5) at depth 1 normalise to (1, -1) and (-1, 1); the answer turn has none.
    np.testing.assert_allclose(credit.a2tgpo(d, eps=0.0, ddof=0)[0], [[0, -0.3, 0], [0, 0.3, 0]], atol=1e-12)


def test_tips_without_critic_is_the_outcome_minus_the_potential_reached():
    phi = np.array([-3.0, -1.0, -2.0, -0.5])  # one accepted answer: the potential is its log-probability
    d = batch_of(
        [[1.0, 1.0, 1.0]],
        [[1, 1, 0, 1, 1], [1, 1, 0, 1, 1], [0, 1, 0, 0, 1]],
        segment=np.array([[[0, 0, -1, 1, -1], [0, 0, 1, 2, -1], [-1, -1, -1, -1, -1]]]),
        num_segments=3,
        answer_logprob=np.broadcast_to(phi[:, None], (1, 3, 4, 1)),
    )
    reached = [[phi[0], phi[0], 0, phi[1], phi[2]], [phi[0], phi[0], 0, phi[2], phi[3]], [0, phi[0], 0, 0, phi[0]]]
    np.testing.assert_allclose(credit.tips(d, alpha=0.1)[0], (1 - 0.1 * np.array(reached)) * d["action_mask"][0])


def test_tips_shaping_is_the_same_for_all_rollouts_of_a_prompt():
    for d in batches():
        c = credit.tips(d)
        for p, g in credit.voting_rows(d):
            prior = np.logaddexp(*d["answer_logprob"][p, g, 0].astype(float))
            assert c[p, g, credit.acted(d, p, g)[0]] == pytest.approx(d["outcome"][p, g] - 0.02 * prior, abs=1e-6)


def test_matchtir_matches_every_reference_once():
    d = batch_of(
        [[0.0]],
        [[1, 1]],
        segment=np.array([[[0, 1]]]),
        num_segments=2,
        call_turn=np.array([[[0, 0, -1]]]),
        reference_mask=np.array([[[True, True]]]),
        call_similarity=np.array([[[[0.9, 0.8], [0.8, 0.1], [np.nan, np.nan]]]]),
        answer_score=np.array([[0.25]]),
    )
    rewards = credit.match_rewards(d, 0, 0)  # greedy would take .9 and .1
    assert rewards == pytest.approx({0: 0.8, 1: 0.25})


def test_matchtir_with_one_turn_is_grpo_on_its_reward():
    for d in batches():
        d = {**d, "segment": np.zeros_like(d["segment"]), "call_turn": np.full_like(d["call_turn"], -1)}
        d["outcome"] = np.where(np.isfinite(d["outcome"]), d["answer_score"], np.nan)
        np.testing.assert_allclose(credit.matchtir(d), credit.grpo(d), atol=1e-9)


def test_skillgate_without_reads_is_grpo():
    for d in batches():
        d["read_call"], d["read_mask"] = np.full_like(d["read_call"], -1), np.zeros_like(d["read_mask"])
        np.testing.assert_allclose(credit.skillgate(d), credit.grpo(d))


def test_skillgate_channels_do_not_mix():
    for d in batches():
        c = credit.skillgate(d)
        other = credit.skillgate({**d, "outcome": 1 - d["outcome"]})
        reads = d["action_mask"] & (d["read_call"] >= 0)
        np.testing.assert_array_equal(c[reads], other[reads])
        assert (c[reads & ~d["read_identity"]] == 0).all()
        flipped = credit.skillgate({**d, "read_is_oracle": ~d["read_is_oracle"]})
        np.testing.assert_array_equal(c[~reads], flipped[~reads])


def test_shapley_values_are_mean_marginals_over_orders():
    rng = np.random.default_rng(0)
    for players in (1, 2, 3, 4):
        v = rng.normal(size=2**players)
        orders = list(itertools.permutations(range(players)))
        wanted = np.zeros(players)
        for order in orders:
            present = 0
            for n in order:
                wanted[n] += (v[present | 1 << n] - v[present]) / len(orders)
                present |= 1 << n
        np.testing.assert_allclose(credit.shapley_values(v), wanted, atol=1e-12)
        assert sum(wanted) == pytest.approx(v[-1] - v[0])
