"""Methods that read the model's own computation: against their float64 references, and what their cards promise."""

import jax
from jax import numpy as jnp
import numpy as np
from oracles import credit, evidence
from oracles.batches import random_batch, to_trajectory
import pytest

import creditjax as cj
from creditjax import algebra
from creditjax.kernels import ranks

SEEDS = 22

# (recipe, its overrides, which are the reference's arguments too)
VARIANTS = [
    ("delta", {"refinements": 0}),
    ("delta", {"refinements": 2, "lam_min": 0.2, "lam_max": 1.5}),
    ("gcpo_guidance", {"top_frac": 0.2, "top_mass": 0.5}),
    ("gcpo_guidance", {"normalise": "none"}),
    ("gcpo_guidance", {"normalise": "softmax", "tau": 2.0}),
    ("cort_replay", {"kappa": 3.0, "tau": 0.5, "w_min": 0.3, "w_max": 1.4}),
    ("cort_replay", {"mode": "magnitude"}),
    ("flowtracer", {"rho": 0.25, "kappa": 0.8}),
    ("flowtracer", {"mode": "soft"}),
    ("preplan_anchor", {"mode": "local", "q": 0.3}),
    ("preplan_anchor", {"mode": "global"}),
    ("preplan_anchor", {"q": 0.7, "g_amp": 2.0, "alpha": 0.8, "k": 5}),
    ("grad2reward", {"weights": (2.0, -0.5), "mode": "pos"}),
    ("grad2reward", {"credit": "return"}),
    ("explainable_shaping", {"weights": (0.1, 0.2, 0.0, 0.7), "gamma": 0.9}),
    ("explainable_shaping", {"inner": "gae", "lam": 0.7}),
]


@jax.jit
def _value(estimator, batch):
    return cj.estimate(estimator, batch).value


def value(name: str, d: dict, **overrides) -> np.ndarray:
    recipe = cj.recipe(name, **overrides)
    names = (*recipe.estimator.needs, *recipe.estimator.uses)
    return np.asarray(_value(recipe.estimator, to_trajectory(d, names)), np.float64)


def make(seed: int) -> dict:
    d = random_batch(np.random.default_rng([seed, 11]), outcome=("binary", "unit", "real")[seed % 3], with_reward=False)
    if seed % 2:  # ties, tokens without flow or support, prompts that change nothing
        flow, near = d["attention_flow"], np.random.default_rng(seed).random(d["action_mask"].shape) < 0.5
        d["attention_flow"] = np.where(d["action_mask"], np.maximum(np.round(flow), 0), flow).astype(np.float32)
        d["future_influence"] = np.where(d["action_mask"], np.round(d["future_influence"]), np.nan).astype(np.float32)
        d["logprob_negative"] = np.where(near, d["logprob"], d["logprob_negative"]).astype(np.float32)
        d["judge_grad_dot_emb"][:, 1] = np.where(d["action_mask"][:, 1, :, None], 0.0, np.nan)
    return d


def close(got, wanted, **tolerances):
    np.testing.assert_allclose(got, wanted, **{"rtol": 2e-4, "atol": 2e-5, **tolerances})


def same_at(d: dict, name: str, other: np.ndarray | float) -> dict:
    """The batch whose signal `name` is `other` wherever it is read."""
    mask = d["action_mask"].reshape(d["action_mask"].shape + (1,) * (d[name].ndim - 3))
    return {**d, name: np.where(mask, np.float32(other), d[name])}


@pytest.mark.parametrize("name", evidence.ORACLES)
def test_recipe_matches_reference(name):
    for seed in range(SEEDS):
        d = make(seed)
        close(value(name, d), evidence.ORACLES[name](d), err_msg=f"{name}, seed {seed}")


@pytest.mark.parametrize(("name", "overrides"), VARIANTS)
def test_variant_matches_reference(name, overrides):
    moved = 0
    for seed in range(8):
        d = make(seed)
        wanted = evidence.ORACLES[name](d, **overrides)
        close(value(name, d, **overrides), wanted, err_msg=f"{name}, seed {seed}")
        moved += np.any(np.abs(wanted - evidence.ORACLES[name](d)) > 1e-6)
    assert moved > 2, "the variant shows in too few batches"


@pytest.mark.parametrize(
    ("name", "overrides", "neutral"),
    [
        ("delta", {"lam_min": 0.7, "lam_max": 0.7}, {}),
        ("gcpo_guidance", {}, {"logprob_negative": "logprob"}),
        ("cort_replay", {}, {"logprob_rubric": "logprob_plain"}),
        ("flowtracer", {"kappa": 0.0}, {}),
        ("preplan_anchor", {"g_amp": 1.0}, {}),
    ],
)
def test_without_evidence_it_is_grpo(name, overrides, neutral):
    for seed in range(4):
        d = make(seed)
        for changed, source in neutral.items():
            d = same_at(d, changed, d[source])
        close(value(name, d, **overrides), credit.grpo(d))


@pytest.mark.parametrize(
    ("name", "overrides"),
    [("gcpo_guidance", {}), ("gcpo_guidance", {"normalise": "softmax"}), ("cort_replay", {}), ("grad2reward", {})],
)
def test_a_rollout_keeps_its_sum_and_its_sign(name, overrides):
    for seed in range(6):
        d = make(seed)
        if name == "grad2reward":  # its reward is the judge's; a row votes by its outcome
            reward = d["judge_verdict"].mean(-1, dtype=np.float64)
            base = credit.grpo({**d, "outcome": np.where(np.isnan(d["outcome"]), np.nan, reward)})
        else:
            base = credit.grpo(d)
        c = value(name, d, **overrides)
        close(c.sum(-1), base.sum(-1))
        assert (c * base >= -1e-7).all()


def test_delta_has_mean_weight_one_and_sees_no_rotation_or_shift():
    rng = np.random.default_rng(0)
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    both_sides = 0
    for seed in range(6):
        d = make(seed)
        d["outcome"] = rng.normal(size=d["outcome"].shape).astype(np.float32)
        c, base, mask = value("delta", d), credit.grpo(d), d["action_mask"][..., None]
        hidden = np.where(mask, d["hidden"], 0.0)
        close(value("delta", same_at(d, "hidden", hidden @ rotation)), c)
        sided = np.abs(base) > 0
        if sided.any():
            # Weights before rescaling lie in [0.8, 1.2], so no two of them differ by more than half.
            w = c[sided] / base[sided]
            assert (w > 0).all() and w.max() / w.min() <= 1.5 + 1e-4
            scored = np.zeros_like(sided)
            for p, g in credit.acting_rows(d):
                scored[p, g] = d["action_mask"][p, g]
            if (sided == scored).all():  # else tokens without credit have their share of the mean
                close(w.mean(), 1.0)
                both_sides += 1
                surprise = -np.expm1(np.where(d["action_mask"], d["logprob"], -1.0).astype(np.float64))
                close(value("delta", same_at(d, "hidden", hidden + 0.7 / surprise[..., None])), c, rtol=2e-3, atol=1e-3)
    assert both_sides > 2


def test_delta_of_equal_features_is_a_multiple_of_grpo():
    for seed in range(4):
        d = make(seed)
        d = same_at(same_at(d, "hidden", 0.5), "logprob", -0.7)
        base, c = credit.grpo(d), value("delta", d)
        ratio = c[base != 0] / base[base != 0]
        close(ratio, ratio[0] if len(ratio) else 1.0)
        assert not len(ratio) or ratio[0] > 1 - 1e-5


def test_delta_prefers_what_tells_right_from_wrong():
    """Two tokens a rollout: one that both kinds share, one that only its own kind has."""
    hidden = np.array([[[1.0, 0], [0, 1]], [[1.0, 0], [0, -1]]])[None]
    d = {
        "tokens": np.zeros((1, 2, 2), int),
        "action_mask": np.ones((1, 2, 2), bool),
        "outcome": np.array([[1.0, 0.0]]),
        "logprob": np.full((1, 2, 2), -1.0),
        "hidden": hidden,
        "num_segments": 1,
    }
    c = np.abs(value("delta", d))[0]
    assert (c[:, 1] > c[:, 0] * 1.1).all()


def test_gcpo_ranks_alone_count_and_the_top_carries_its_mass():
    n = 1000
    x = np.random.default_rng(1).normal(size=n).astype(np.float32)
    d = {
        "tokens": np.zeros((1, 2, n), int),
        "action_mask": np.ones((1, 2, n), bool),
        "outcome": np.array([[1.0, 0.0]]),
        "logprob": np.zeros((1, 2, n)) - 2,
        "logprob_negative": np.stack([x, x])[None] - 2,
        "num_segments": 1,
    }
    c = value("gcpo_guidance", d)[0, 0]
    order = np.argsort(-(np.expm1(x) - x))
    assert c[order[:400]].sum() / c.sum() == pytest.approx(0.8, abs=2e-3)
    # Twice a positive log-ratio is another divergence in the same order.
    x = 0.3 * np.abs(x)
    once, twice = (value("gcpo_guidance", {**d, "logprob_negative": np.stack([y, y])[None] - 2}) for y in (x, 2 * x))
    close(once, twice)


def test_gcpo_tokens_that_the_prompt_does_not_touch_rank_lowest():
    for seed in range(1, 8, 2):
        d = make(seed)
        base, c = credit.grpo(d), np.abs(value("gcpo_guidance", d))
        for p, g in credit.acting_rows(d):
            ts = credit.acted(d, p, g)
            still = d["logprob_negative"][p, g, ts] == d["logprob"][p, g, ts]
            if base[p, g].any() and still.any() and not still.all():
                assert c[p, g, ts][still].max() < c[p, g, ts][~still].min()


def test_cort_weights_stay_within_their_bounds():
    for seed in range(6):
        d = make(seed)
        base, c = credit.grpo(d), value("cort_replay", d, kappa=5.0)
        w = c[base != 0] / base[base != 0]
        assert (w >= 0.25 - 1e-5).all() and (w <= 4 + 1e-4).all()


def test_flowtracer_raises_the_top_share_that_flow_reaches():
    for seed in range(6):
        d = make(seed)
        base, c = credit.grpo(d), value("flowtracer", d)
        for p, g in credit.acting_rows(d):
            ts = credit.acted(d, p, g)
            if base[p, g].any():
                w = c[p, g, ts] / base[p, g, ts]
                flows = int((d["attention_flow"][p, g, ts] > 0).sum())
                assert np.sum(w > 1.25) == min(int(np.ceil(0.4 * len(ts) - 1e-6)), flows)
        soft = value("flowtracer", d, mode="soft", kappa=1.0)
        assert (soft * base >= -1e-6).all()


def test_preplan_anchor_leaves_blame_alone_and_moves_bonus_to_introducers():
    moved = 0
    for seed in range(12):
        d = make(seed)
        base, c = credit.grpo(d), value("preplan_anchor", d)
        close(c[base <= 0], base[base <= 0])
        assert (c[base > 0] >= base[base > 0] * (1 - 1e-6)).all()
        far = value("preplan_anchor", d, mode="global")
        close(value("preplan_anchor", d, alpha=0.0), far)
        # Total bonuses are equal when introducers are distinct, smaller when two anchors share one.
        assert (c.sum(-1) <= far.sum(-1) + 1e-4).all()
        moved += bool((np.abs(c - far) > 1e-3).any() and np.allclose(c.sum(-1), far.sum(-1), atol=1e-4))
    assert moved > 2


def test_preplan_anchor_by_hand():
    d = {
        "tokens": np.zeros((1, 2, 6), int),
        "action_mask": np.tile([True, True, False, True, True, True], (1, 2, 1)),
        "outcome": np.array([[1.0, 0.0]]),
        "attention_distance": np.tile([5.0, 1.0, np.nan, 1.0, 1.0, 8.0], (1, 2, 1)),
        "future_influence": np.tile([0.0, 0.9, np.nan, 0.1, 0.2, 0.8], (1, 2, 1)),
        "num_segments": 1,
    }
    # Deltas 4, 0, 0, 7, 0 with median 0. Anchors are the second action and the last. The second is dominated: WAAD 1 is
    # the median, and the first action moved by 4. The last is not, since its WAAD is above the median.
    a = 1 / np.sqrt(2)
    close(value("preplan_anchor", d)[0, 0], a * np.array([1.25, 1.25, 0, 1, 1, 1.5]))


def test_grad2reward_is_grpo_of_the_verdicts_without_a_preference():
    for seed in range(4):
        d = make(seed)
        reward = d["judge_verdict"].mean(-1, dtype=np.float64)
        wanted = credit.grpo({**d, "outcome": np.where(np.isnan(d["outcome"]), np.nan, reward)})
        for support in (0.0, 0.3):
            close(value("grad2reward", same_at(d, "judge_grad_dot_emb", support)), wanted)
        scaled = same_at(d, "judge_grad_dot_emb", 7 * np.where(d["action_mask"][..., None], d["judge_grad_dot_emb"], 0))
        close(value("grad2reward", scaled), value("grad2reward", d))


def test_shaped_rewards_sum_to_the_outcome_on_the_whole_simplex():
    rng = np.random.default_rng(2)
    for seed in range(6):
        d = make(seed)
        raw = np.where(d["action_mask"][..., None], rng.normal(size=d["attributions"].shape), 0.0)
        total = raw.sum(2, keepdims=True)
        d = same_at(d, "attributions", raw / np.where(np.abs(total) > 1e-6, total, 1.0))
        weights = tuple(rng.dirichlet(np.ones(4)))
        r = evidence.shaped_rewards(d, weights)
        mixed = [(algebra.attributed_outcome(s, 3), weights[s]) for s in range(3)]
        sparse = algebra.chain(algebra.outcome(), algebra.at_last_action())
        reward = algebra.blend(*mixed, (sparse, weights[3]))
        close(np.asarray(_value(reward, to_trajectory(d, ("attributions",)))), r, atol=1e-3)
        for p, g in credit.acting_rows(d):
            close(r[p, g].sum(), float(d["outcome"][p, g]), atol=1e-4)
        # All weight on the sparse source is the original reward.
        close(value("explainable_shaping", d, weights=(0.0, 0.0, 0.0, 1.0)), value("reinforce_plus_plus", d))


def test_explainer_weights_are_leaves():
    estimators = [
        cj.recipe("explainable_shaping", weights=w).estimator for w in ((0.1, 0.2, 0.3, 0.4), (0.25, 0.25, 0.25, 0.25))
    ]
    assert jax.tree.structure(estimators[0]) == jax.tree.structure(estimators[1])


@pytest.mark.parametrize(
    ("name", "overrides", "words"),
    [
        ("delta", {"lam_min": 1.3}, "low = 1.3, high = 1.2"),
        ("delta", {"refinements": -1}, "refinements = -1"),
        ("gcpo_guidance", {"normalise": "rank"}, "normalise: 'rank'"),
        ("gcpo_guidance", {"top_mass": 0.2}, "0 < share <= mass < 1"),
        ("cort_replay", {"mode": "sign"}, "mode: 'sign'"),
        ("flowtracer", {"mode": "hard"}, "mode: 'hard'"),
        ("preplan_anchor", {"mode": "both"}, "mode: 'both'"),
        ("preplan_anchor", {"alpha": 1.5}, "alpha = 1.5"),
        ("preplan_anchor", {"k": 0}, "window = 0"),
        ("grad2reward", {"mode": "neg"}, "mode: 'neg'"),
        ("explainable_shaping", {"weights": (0.5, 0.6)}, "sum to 1"),
        ("explainable_shaping", {"inner": "ppo"}, "inner: 'ppo'"),
    ],
)
def test_a_choice_that_does_not_exist_is_refused(name, overrides, words):
    with pytest.raises(ValueError, match=words):
        cj.recipe(name, **overrides)


def test_numbers_of_criteria_and_explainers_have_to_fit():
    batch = to_trajectory(make(0))
    with pytest.raises(ValueError, match="3 weights, wanted one for each of the 2 criteria"):
        cj.estimate(cj.recipe("grad2reward", weights=(1.0, 1.0, 1.0)).estimator, batch)
    with pytest.raises(ValueError, match="attributions: 3 explainers, wanted number 0 of 1"):
        cj.estimate(cj.recipe("explainable_shaping", weights=(0.5, 0.5)).estimator, batch)


def test_order_statistics():
    top, average, median, window = (
        jax.jit(f, static_argnums=2 if f is ranks.previous_window_argmax else ())
        for f in (ranks.top_share, ranks.average_rank, ranks.masked_median, ranks.previous_window_argmax)
    )
    rng = np.random.default_rng(3)
    for _ in range(10):
        x, mask = rng.integers(-2, 3, size=11).astype(np.float32), rng.random(11) < 0.6
        given = jnp.asarray(np.where(mask, x, np.nan)), jnp.asarray(mask)
        chosen = {t: float(x[t]) for t in np.flatnonzero(mask)}
        for share in (0.0, 0.2, 0.4, 0.5, 1.0):
            assert set(np.flatnonzero(top(*given, share))) == evidence.top(chosen, share)
        wanted = [np.mean([1 + sorted(chosen.values()).index(v), *_last(chosen, v)]) for v in chosen.values()]
        np.testing.assert_allclose(average(*given)[mask], wanted)
        assert median(*given) == (np.median(x[mask]) if mask.any() else 0)
        at, best = (np.asarray(v) for v in window(*given, 3))
        for j, t in enumerate(chosen):
            before = list(chosen)[max(0, j - 3) : j]
            pick = max(before, key=lambda u: (chosen[u], -u)) if before else -1
            assert at[t] == pick and best[t] == (chosen[pick] if before else -np.inf)


def _last(chosen: dict, value: float) -> list[int]:
    ordered = sorted(chosen.values())
    return [len(ordered) - ordered[::-1].index(value)]


def test_gradients_of_weights_are_finite_where_evidence_is_silent():
    for name in ("cort_replay", "flowtracer", "grad2reward"):
        recipe = cj.recipe(name, **({"mode": "soft"} if name == "flowtracer" else {}))
        reads = recipe.estimator.needs
        batch = to_trajectory(make(0), reads)
        silent = {
            s: np.broadcast_to(
                np.where(batch.action_mask.reshape(3, 4, 12, *(1,) * (x.ndim - 3)), 0.0, np.nan), x.shape
            )
            for s, x in batch.signals.items()
            if x.ndim >= 3 and x.shape[2] == 12
        }

        @jax.jit
        @jax.grad
        def slope(signals, batch=batch, estimator=recipe.estimator):
            return jnp.sum(cj.estimate(estimator, batch.with_signals(**signals), stop_gradient=False).value)

        found = slope({s: jnp.asarray(x, jnp.float32) for s, x in silent.items()})
        assert all(np.isfinite(x).all() for x in found.values())
