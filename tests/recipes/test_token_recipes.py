"""Methods that reshape credit over tokens: against their float64 references, and what their cards promise."""

import functools

import jax
from jax import numpy as jnp
import numpy as np
from oracles import credit, token
from oracles.batches import random_batch, to_trajectory
import pytest

import creditjax as cj
from creditjax import algebra, exact
from creditjax.algebra import chain
from creditjax.exact.signals import Oracle
from creditjax.tasks import bifurcation

SEEDS = 22

# (recipe, its overrides, which are the reference's arguments too)
VARIANTS = [
    ("frpo", {"beta": 0.3}),
    ("frpo", {"beta": 0.3, "divergence": "forward_kl"}),
    ("frpo", {"beta": 0.3, "divergence": "chi_square", "per_token": True}),
    ("aem", {"lam": 1.0, "scope": "batch"}),
    ("aem", {"z_max": 0.5, "proxy": "surprisal"}),
    ("tas", {"lam": 0.5, "mean_preserving": True}),
    ("taco_tail", {"alpha": 0.7, "lam": 0.5}),
    ("miner", {"wrong_scale": 0.5, "gamma": 2.0, "budget": 0.3}),
    ("miner", {"wrong_scale": 1.0, "budget": 0.0, "scope": "batch"}),
    ("miner", {"wrong_scale": 1.0, "clip_high": 0.1, "clip_low": 0.05, "budget": 0.3}),
]


@jax.jit
def _value(estimator, batch):
    return cj.estimate(estimator, batch).value


def value(name: str, d: dict, **overrides) -> np.ndarray:
    return np.asarray(_value(cj.recipe(name, **overrides).estimator, to_trajectory(d)), np.float64)


def make(seed: int, outcome: str | None = None) -> dict:
    d = random_batch(np.random.default_rng([seed, 7]), outcome=outcome or ("binary", "unit", "real")[seed % 3])
    if seed % 4 == 0:  # a group of which all are right, one all wrong
        d["outcome"] = np.where(np.isnan(d["outcome"]), np.nan, [[1], [0], [np.nan]]) + np.where(
            np.arange(3)[:, None] == 2, np.nan_to_num(d["outcome"]), 0
        )
        d["outcome"] = np.where(np.arange(3)[:, None] == 2, d["accuracy"], d["outcome"]).astype(np.float32)
    return d


def close(got, wanted, **tolerances):
    np.testing.assert_allclose(got, wanted, **{"rtol": 2e-4, "atol": 2e-5, **tolerances})


@pytest.mark.parametrize("name", token.ORACLES)
def test_recipe_matches_reference(name):
    for seed in range(SEEDS):
        d = make(seed)
        close(value(name, d), token.ORACLES[name](d), err_msg=f"{name}, seed {seed}")


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_variant_matches_reference(name, overrides):
    moved = 0
    for seed in range(SEEDS):
        d = make(seed)
        wanted = token.ORACLES[name](d, **overrides)
        close(value(name, d, **overrides), wanted, err_msg=f"{name}, seed {seed}")
        moved += np.any(np.abs(wanted - token.ORACLES[name](d)) > 1e-6)
    assert moved > SEEDS / 3, "the variant shows in too few batches"


def test_a_choice_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="divergence_to_go: kind = 'kl'"):
        cj.recipe("frpo", divergence="kl")
    with pytest.raises(ValueError, match="scope: 'rollout'"):
        cj.recipe("aem", scope="rollout")
    with pytest.raises(ValueError, match="scope: 'rollout'"):
        cj.recipe("miner", scope="rollout")
    with pytest.raises(ValueError, match=r"lam = 1\.5, wanted a number in \[0, 1\]"):
        cj.recipe("taco_tail", lam=1.5)
    with pytest.raises(ValueError, match="alpha = 0, wanted > 0"):
        cj.recipe("taco_tail", alpha=0.0)
    with pytest.raises(ValueError, match="favor_marked: signal 'entropy'"):
        algebra.favor_marked("entropy")


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("frpo", {"beta": 0.0}),
        ("aem", {"lam": 0.0}),
        ("tas", {"lam": 0.0}),
        ("taco_tail", {"lam": 0.0}),
        ("hicra", {"alpha": 0.0}),
    ],
)
def test_switched_off_it_is_grpo(name, overrides):
    for seed in range(4):
        d = make(seed)
        wanted = credit.grpo(d)
        if name == "aem":  # tokens of no turn are assigned none
            wanted = np.where(d["segment"] >= 0, wanted, 0.0)
        close(value(name, d, **overrides), wanted)


def test_frpo_at_the_reference_is_grpo_and_steps_by_the_log_ratio():
    for seed in range(4):
        d = make(seed)
        close(value("frpo", {**d, "logprob_ref": d["logprob"]}, beta=0.5), credit.grpo(d))
        c = value("frpo", d, beta=0.5)
        for p, g in credit.acting_rows(d):
            t = credit.acted(d, p, g)
            k = d["logprob"][p, g, t] - d["logprob_ref"][p, g, t]
            close(-np.diff(c[p, g, t]), -0.5 * k[:-1])


F = {
    "reverse_kl": lambda x: x * jnp.log(x),
    "forward_kl": lambda x: -jnp.log(x),
    "chi_square": lambda x: (x - 1) ** 2,
}


@pytest.mark.parametrize("kind", F)
def test_the_divergence_to_go_ascends_minus_the_divergence_of_the_sequence(kind):
    """The sum over tokens of ``Σ_v π_ref f(π / π_ref)`` along the sequence: gradient by autodiff against credit."""
    process = exact.lay_out(bifurcation.threshold((1, -1, 2), 1))
    rng = np.random.default_rng(3)
    logits, reference = 0.5 * rng.normal(size=(2, *process.choices.shape))
    paths = exact.enumerate_paths(process)
    policy, other = (np.asarray(exact.softmax(process, jnp.asarray(x))) for x in (logits, reference))
    allowed = jnp.asarray(policy > 0)

    with jax.enable_x64(True):

        def divergence(x):
            pi = exact.softmax(process, x)
            ref = jnp.where(allowed, jnp.asarray(other, jnp.float64), 1.0)
            ratio = jnp.where(allowed, pi / ref, 1.0)
            at_state = jnp.sum(jnp.where(allowed, ref * F[kind](ratio), 0.0), axis=-1)
            chance = jnp.exp(jnp.sum(jnp.log(pi)[paths.observation, paths.tokens], axis=1))
            return jnp.sum(chance * jnp.sum(at_state[paths.observation], axis=1))

        wanted = np.asarray(jax.grad(divergence)(jnp.asarray(logits, jnp.float64)))
    solution = exact.solve(process, policy)
    signals = {"logprob_ref": Oracle(process, exact.solve(process, other)).logprob(paths)}
    moments = exact.enumerate_moments(
        chain(algebra.divergence_to_go(kind), algebra.scale(-1.0)),
        process=process,
        solution=solution,
        group_size=1,
        signals=signals,
    )
    np.testing.assert_allclose(moments.gradient, -wanted, atol=1e-6)
    assert np.linalg.norm(wanted) > 0.1


def test_aem_moves_expected_entropy_against_the_sign_of_equal_credit():
    for seed in range(4):
        d = make(seed)
        weight = chain(
            algebra.signal("entropy"),
            algebra.average_by_segment(),
            algebra.pooled_normalize(),
            algebra.exp_weight(lam=-0.5),
            algebra.group_unit_mean(),
        )
        batch = to_trajectory(d)
        a = np.asarray(_value(weight, batch), np.float64)
        for p in range(3):
            turns = [(g, ts) for g in credit.voters(d, p) for ts in credit.segments(d, p, g).values()]
            if not turns:
                continue
            weights = np.array([a[p, g, ts[0]] for g, ts in turns])
            h = np.array([d["entropy"][p, g, ts].mean() for g, ts in turns])
            np.testing.assert_allclose(weights.mean(), 1.0, rtol=1e-5)
            assert np.sum(weights * (h - h.mean())) <= 1e-6
            assert len(turns) < 2 or np.sum(weights * (h - h.mean())) < -1e-3
        same = {**d, "entropy": np.where(d["action_mask"], np.float32(0.3), np.float32(np.nan))}
        close(value("aem", same), np.where(d["segment"] >= 0, credit.grpo(d), 0.0))


def test_tas_is_symmetric_and_its_mean_is_known():
    for n in (1, 2, 5, 8):
        mask = np.zeros((1, 2, 12), bool)
        mask[0, :, np.random.default_rng(n).permutation(12)[:n]] = True
        batch = cj.Trajectory(tokens=np.zeros((1, 2, 12), int), action_mask=mask, outcome=np.array([[1.0, 0.0]]))
        ones = chain(algebra.outcome(), algebra.to_tokens(), algebra.emphasize_ends(strength=0.3))
        w = np.asarray(_value(ones, batch))[0, 0][mask[0, 0]]
        np.testing.assert_allclose(w, w[::-1], rtol=1e-6)
        assert w[0] == pytest.approx(1.3) and (n % 2 == 0 or n == 1 or w[n // 2] == 1.0)
        assert w.mean() == pytest.approx(1 + 0.3 * (n + 1) / (3 * (n - 1)) if n > 1 else 1.3, rel=1e-6)


def test_avatar_without_replay_is_tas_and_the_two_origins_do_not_mix():
    for seed in range(6):
        d = make(seed, "unit")
        off = d["is_offpolicy"]
        none = {**d, "is_offpolicy": np.zeros_like(off)}
        close(value("avatar", none), token.tas(d))
        c = value("avatar", d)
        close(value("avatar", {**d, "outcome": np.where(off, d["outcome"], d["outcome"] ** 2)})[off], c[off])
        close(value("avatar", {**d, "outcome": np.where(off, d["outcome"] ** 2, d["outcome"])})[~off], c[~off])


def test_avatar_learns_from_replay_where_the_fresh_group_is_silent():
    batch = cj.Trajectory(
        tokens=np.zeros((1, 4, 2), int),
        action_mask=np.ones((1, 4, 2), bool),
        outcome=np.array([[0.0, 0.0, 1.0, 0.0]]),
        signals={"is_offpolicy": np.array([[False, False, True, True]]), "prompt_mean": np.array([0.25])},
    )
    c = np.asarray(_value(cj.recipe("avatar", lam=0.0).estimator, batch))
    np.testing.assert_allclose(c[0, :, 0], [0, 0, 0.75 / np.sqrt(0.5), -0.25 / np.sqrt(0.5)], rtol=1e-5)


def test_taco_keeps_plausible_tokens_and_blame():
    for seed in range(6):
        d = make(seed)
        base, c = credit.grpo(d), value("taco_tail", d, alpha=0.5)
        np.testing.assert_array_equal(c[base <= 0], value("grpo", d)[base <= 0])
        positive = base > 0
        w = c[positive] / base[positive]
        assert (w >= 0.1 - 1e-5).all() and (w <= 1 + 1e-5).all()
        plausible = np.exp(d["logprob"][positive]) >= 0.5 * np.exp(-d["entropy"][positive]) * (1 + 1e-6)
        close(w[plausible], 1.0)
        assert (w[~plausible] < 1 + 1e-6).all()


def test_miner_rewards_doubt_within_its_budget():
    seen = set()
    for seed in range(0, SEEDS, 2):
        d = make(seed)
        base, c = credit.grpo(d), value("miner", d, wrong_scale=1.0, budget=0.2)
        for p in range(3):
            r = credit.outcomes(d, p)
            if not credit.all_equal(r.values()):
                np.testing.assert_allclose(c[p], base[p], rtol=1e-5, atol=1e-6)
            elif len(r) == 1:
                assert not c[p].any()
            elif r:
                right = next(iter(r.values())) > 0.5
                assert (c[p] >= 0).all() if right else (c[p] <= 0).all()
                seen.add((right, bool(c[p].any())))
        mixed = np.array([not credit.all_equal(credit.outcomes(d, p).values()) for p in range(3)])
        assert np.abs(c[~mixed]).sum() <= 0.2 * np.abs(c[mixed]).sum() * (1 + 1e-4)
        sure = {**d, "logprob": np.where(d["action_mask"], np.float32(0), d["logprob"])}
        assert not value("miner", sure, budget=0.0)[~mixed].any()
    assert {(True, True), (False, True)} <= seen


def test_hicra_favours_planning_tokens():
    for seed in range(4):
        d = make(seed)
        base, c = credit.grpo(d), value("hicra", d)
        planning = d["planning_mask"]
        close(c[planning & (base > 0)], 1.2 * base[planning & (base > 0)])
        close(c[planning & (base < 0)], 0.8 * base[planning & (base < 0)])
        close(c[~planning], base[~planning])
        close(c.sum() - base.sum(), 0.2 * np.abs(base[planning]).sum())


def test_gradients_of_focal_weights_are_finite_where_the_policy_is_sure():
    batch = to_trajectory(make(0))
    sure = batch.replace(logprob=np.where(batch.action_mask, 0.0, np.nan))

    @functools.partial(jax.grad)
    def slope(logprob):
        moved = sure.replace(logprob=logprob)
        estimator = chain(algebra.outcome(), algebra.to_tokens(), algebra.focal(gamma=0.5))
        return jnp.sum(cj.estimate(estimator, moved, stop_gradient=False).value)

    assert np.isfinite(slope(jnp.asarray(sure.logprob))).all()
