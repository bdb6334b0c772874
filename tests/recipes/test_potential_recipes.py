"""Methods that credit progress, against their float64 references and against what their cards promise."""

import jax
from jax import numpy as jnp
import numpy as np
from oracles import potential
from oracles.batches import random_batch, to_trajectory
from oracles.credit import acted, acting_rows, dr_grpo, grpo, raw_gae, rloo, segments, voters
import pytest

import creditjax as cj
from creditjax import algebra, exact, testing
from creditjax.exact.signals import Oracle

SEEDS = 22

# (recipe, what both it and its reference are given)
CASES = [
    *((name, {}) for name in potential.ORACLES),
    ("red", {"critic": False, "share": 0.5, "strength": 0.7}),
    ("rredcot", {"mode": "pure", "lam": 0.5}),
    ("ma_rlhf", {"weights": "decay", "gamma": 0.9, "lam": 0.7}),
    ("ma_rlhf", {"weights": "unit", "reward_reduce": "weighted"}),
    ("grpo_vps", {"mean_preserving": True, "lam": 0.5}),
    ("mig_watermark", {"mode": "trajectory", "process_weight": 0.5, "format_weight": 0.3}),
    ("dash", {"stay_right": 0.3, "stay_wrong": 0.6}),
    ("pav", {"alpha": 3.0, "tries": 1, "baseline": "group_mean"}),
    ("edit", {"variant": "step", "lam": 0.7, "delta": 0.2}),
    ("edit", {"reduce": "max", "belief": "ordinal"}),
    ("edit", {"variant": "sft", "context_weight": 0.2}),
    ("spae", {"whiten": False, "alpha": 0.3, "xi": 0.9, "threshold": 0.1}),
    ("ppr_renorm", {"mode": "turn_norm"}),
    ("ppr_renorm", {"mode": "return", "final_center": True}),
    ("brpo", {"prior": "linear", "lam": 0.9}),
    ("brpo", {"prior": "base", "variance_reduction": "v2only"}),
    ("brpo", {"variance_reduction": "v1only"}),
    ("genac", {"gamma": 0.9, "lam": 0.7, "whiten": False}),
]
_WRITTEN = {"whiten": "whitened"}  # how the references call it


@jax.jit
def _value(estimator, batch):
    return cj.estimate(estimator, batch).value


def batch(seed: int, **options) -> dict:
    return random_batch(np.random.default_rng([seed, 7]), outcome=("binary", "unit", "real")[seed % 3], **options)


def run(estimator, d: dict) -> np.ndarray:
    return np.asarray(_value(estimator, to_trajectory(d, {*algebra.needs(estimator), *estimator.uses})))


def credit(name: str, d: dict, **options) -> np.ndarray:
    return run(cj.recipe(name, **options).estimator, d)


def close(a, b, **options):
    np.testing.assert_allclose(a, b, **{"rtol": 2e-4, "atol": 2e-5, **options})


@pytest.mark.parametrize(("name", "options"), CASES)
def test_recipe_matches_reference(name, options):
    moved = 0.0
    for seed in range(SEEDS):
        d = batch(seed)
        got = credit(name, d, **options)
        close(got, potential.ORACLES[name](d, **{_WRITTEN.get(k, k): v for k, v in options.items()}), err_msg=name)
        moved += np.abs(got).sum()
    assert moved > 1


def dense(seed: int, prompts: int = 2, group: int = 4, length: int = 12, steps: int = 4) -> dict:
    """Rows without gaps in which every step is acted in, with potentials in [0, 1] and outcomes 0 or 1."""
    rng = np.random.default_rng([seed, 8])
    shape = (prompts, group)
    ids = np.sort(np.concatenate([np.arange(steps), rng.integers(0, steps, size=length - steps)]))
    d = batch(seed, prompts=prompts, group=group, length=length, segments=steps)
    d |= {
        "action_mask": np.ones((*shape, length), bool),
        "outcome": rng.integers(0, 2, size=shape).astype(float),
        "segment": np.broadcast_to(ids, (*shape, length)).copy(),
        "num_segments": steps,
    }
    for flags in ("reward", "terminated", "truncated", "votes", "trajectory"):
        d.pop(flags, None)
    for name, x in d.items():
        if np.asarray(x).dtype == np.float32 and name != "outcome" and not name.startswith("logprob"):
            d[name] = rng.random(x.shape).astype(np.float32)
    return d


def per_step(d: dict, c: np.ndarray) -> np.ndarray:
    """Credit of each step ``[P, G, K]``, which its tokens share."""
    first = [int(np.argmax(d["segment"][0, 0] == k)) for k in range(d["num_segments"])]
    close(c, c[..., first][..., d["segment"][0, 0]])
    return c[..., first]


# --------------------------------------------------------------------------------------------- exact credit and critics


@pytest.mark.parametrize("case", testing.default_cases(), ids=lambda case: case.name)
def test_token_credit_with_the_exact_value_is_the_exact_credit(case):
    paths = exact.enumerate_paths(case.process)
    signals = Oracle(case.process, case.solution).signals(paths, ("value", "next_value"))
    made = exact.batch(paths, np.arange(len(paths.tokens))[None], signals)
    found = np.asarray(cj.estimate(cj.recipe("token_credit").estimator, made).value)[0]
    wanted = np.where(paths.acts, exact.exact_credit(paths, case.solution), 0.0)
    close(found, wanted, atol=1e-5)
    # Martingale differences: the credits of two positions are uncorrelated, and their squares add up to the variance.
    chance = exact.probability(case.process, paths, case.solution.policy)
    second = np.einsum("l,lt,lu->tu", chance, found, found)
    close(second - np.diag(np.diag(second)), np.zeros_like(second), atol=1e-6)
    mean = chance @ paths.outcome
    close(np.trace(second), chance @ (paths.outcome - mean) ** 2, atol=1e-6)
    close(found.sum(1), paths.outcome - mean, atol=1e-5)


def test_a_wrong_critic_is_wrong_by_the_difference_of_its_errors():
    d = dense(0)
    error = np.random.default_rng(1).normal(size=d["value"].shape).astype(np.float32)
    after = np.pad(error[..., 1:], ((0, 0), (0, 0), (0, 1)))
    d.pop("next_value")
    wrong = credit("token_credit", {**d, "value": d["value"] + error})
    close(wrong - credit("token_credit", d), after - error, atol=1e-5)


def test_macro_actions_of_one_token_are_gae_and_one_of_all_is_a_bandit():
    d = dense(0, length=6, steps=6)
    d.pop("next_value")
    found = credit("ma_rlhf", d, gamma=0.9, lam=0.7)
    wanted = [[[a[t] for t in range(6)] for g in range(4) if (a := raw_gae(d, p, g, 0.9, 0.7))] for p in range(2)]
    close(found, wanted)
    one = {**d, "segment": np.zeros_like(d["segment"])}
    found = credit("ma_rlhf", one, gamma=0.3, lam=0.2)
    close(found, np.broadcast_to((d["outcome"] - d["value"].mean(-1))[..., None], found.shape))


def test_macro_actions_teach_the_critic_their_return():
    d = dense(1)
    made = cj.estimate(cj.recipe("ma_rlhf").estimator, to_trajectory(d, {"value"}))
    value = np.stack([d["value"][..., d["segment"][0, 0] == k].mean(-1) for k in range(4)], -1)
    close(made.extras["value_target"], (per_step(d, np.asarray(made.value)) + value)[..., d["segment"][0, 0]])
    loose = {**d, "segment": np.where(np.arange(12) < 3, -1, d["segment"])}
    made = cj.estimate(cj.recipe("ma_rlhf").estimator, to_trajectory(loose, {"value"}))
    close(made.extras["value_target"][..., :3], d["value"][..., :3])


def test_segment_gae_wants_a_critic_of_segments():
    with pytest.raises(TypeError, match="critic outcome gives Level.TRAJECTORY"):
        algebra.segment_gae(algebra.outcome())


def test_a_generative_critic_with_full_trace_is_a_baseline_and_without_it_a_difference():
    d = dense(2)
    v = d["critic_value"].astype(float).mean(-1)
    full = per_step(d, credit("genac", d, whiten=False))
    close(full, d["outcome"][..., None] - v)
    short = per_step(d, credit("genac", d, whiten=False, lam=0.0))
    close(short[..., :-1], v[..., 1:] - v[..., :-1])
    close(short.sum(-1), d["outcome"] - v[..., 0])


def test_a_critic_that_states_nothing_is_worth_the_group_mean():
    d = dense(3)
    d["critic_value"] = np.full_like(d["critic_value"], np.nan)
    close(credit("genac", d, whiten=False), np.repeat(dr_grpo(d)[..., :1], 12, -1))


# ----------------------------------------------------------------------------------------------- redistributed outcomes


def test_red_adds_up_to_the_score_less_the_prompts():
    for seed in range(3):
        d = batch(seed)
        for p, g in acting_rows(d):
            d["outcome"][p, g] = d["prefix_score"][p, g, acted(d, p, g)[-1]]
        for share in (1.0, 0.3, 0.0):
            last = algebra.chain(algebra.outcome(), algebra.at_last_action())
            paid = algebra.blend((algebra.prefix_difference(), share), (last, 1 - share))
            total = run(paid, d).sum(-1)
            for p, g in acting_rows(d):
                close(total[p, g], d["outcome"][p, g] - share * d["prompt_score"][p])


def test_red_without_a_critic_keeps_rloos_mean():
    d = batch(4)
    found, wanted = credit("red", d, critic=False, beta=0.0), rloo(d)
    for p, g in acting_rows(d):
        close(found[p, g, acted(d, p, g)].mean(), wanted[p, g, acted(d, p, g)].mean(), atol=1e-5)


@pytest.mark.parametrize(("name", "tries"), [("potential", 1), ("prover_value", 4)])
def test_redistribution_telescopes(name, tries):
    d = dense(5)
    found = per_step(d, run(algebra.redistribute(name, tries), d))
    start = 1 - (1 - d[name][..., 0].astype(float)) ** tries
    close(found.sum(-1), d["outcome"] - start)
    d[name] = np.full_like(d[name], 0.3)
    constant = per_step(d, run(algebra.redistribute(name, tries), d))
    assert not constant[..., :-1].any(), "a potential that does not move leaves everything to the last segment"


def test_redistribution_wants_a_try():
    with pytest.raises(ValueError, match="tries = 0, wanted at least 1"):
        algebra.redistribute("prover_value", 0)


def test_rredcot_is_bounded_by_the_number_of_segments():
    for seed in range(5):
        d = batch(seed)
        found = np.abs(credit("rredcot", d, mode="pure"))
        for p in range(found.shape[0]):
            count = sum(len(segments(d, p, g)) for g in voters(d, p))
            assert (found[p] <= np.sqrt(count) + 1e-4).all()


def test_best_of_n_is_increasing_and_keeps_0_and_1():
    x = jnp.linspace(0, 1, 11)
    assert (np.diff(algebra.potentials.best_of(x, 4)) > 0).all()
    close(algebra.potentials.best_of(x, 4)[jnp.array([0, -1])], [0, 1])
    close(algebra.potentials.best_of(x, 1), x)


def test_pav_under_the_policy_itself_is_a_multiple_of_the_policy_gradient():
    # A and Q differ by a baseline of the state, so the expected gradient is (1 + alpha) times the plain one.
    case = testing.default_cases()[3]
    paths = exact.enumerate_paths(case.process)
    boundary = Oracle(case.process, case.solution).signals(paths, ("potential",))["potential"]
    made = case._replace(signals={"prover_value": boundary})
    testing.assert_unbiased_up_to_scale(cj.recipe("pav", alpha=2.0, tries=1).estimator, cases=[made])


# ------------------------------------------------------------------------------------------------------------ progress


def test_vps_without_progress_is_grpo_and_the_mean_preserving_form_keeps_its_sum():
    for seed in range(4):
        d = batch(seed)
        base = grpo(d, ddof=0)
        close(credit("grpo_vps", d, lam=0.0), base)
        close(credit("grpo_vps", d, mean_preserving=True).sum(-1), base.sum(-1), atol=1e-4)
        assert (credit("grpo_vps", d, lam=0.9) * base >= 0).all()
        d["potential"] = np.where(np.isfinite(d["potential"]), 0.25, d["potential"]).astype(np.float32)
        close(credit("grpo_vps", d), base)


def test_a_watermark_pays_for_the_best_state_reached_and_not_for_swings():
    d = dense(6)
    found = per_step(d, run(algebra.watermark_gain("potential"), d))
    assert (found >= 0).all()
    close(found.sum(-1), d["potential"].max(-1) - d["potential"][..., 0])
    d["potential"] = np.broadcast_to(np.float32([0.5, 0.2, 0.5, 0.6, 0.6]), d["potential"].shape).copy()
    swings = per_step(d, run(algebra.watermark_gain("potential"), d))
    close(swings, np.broadcast_to([0, 0, 0.1, 0], swings.shape), atol=1e-6)
    d["potential"] = np.sort(np.random.default_rng(0).random(d["potential"].shape), -1).astype(np.float32)
    close(per_step(d, run(algebra.watermark_gain("potential"), d)), np.diff(d["potential"]), atol=1e-6)


def test_missing_potentials_give_no_credit_and_no_nan():
    d = dense(7)
    d["potential"][0, 0, 2] = np.nan  # after the second segment
    d["potential"][0, 1, 0] = np.nan
    gain = algebra.watermark_gain("potential")
    valid = np.asarray(cj.estimate(gain, to_trajectory(d, {"potential"})).valid)
    assert per_step(d, valid.astype(float))[0, 0].tolist() == [1, 0, 1, 1] and not valid[0, 1].any()
    kept = np.asarray(cj.estimate(algebra.redistribute(), to_trajectory(d, {"potential"})).valid).astype(float)
    assert per_step(d, kept)[0, :2].tolist() == [[1, 0, 0, 1], [0, 1, 1, 1]]


def test_process_credit_stays_inside_the_thinking():
    d = batch(8)
    d["thinking_mask"] = np.zeros_like(d["thinking_mask"])
    close(credit("mig_watermark", d, format_weight=0.0), grpo(d, ddof=0))


def test_dash_is_dr_grpo_where_nothing_drifts():
    for seed in range(4):
        d = batch(seed)
        d["outcome"] = np.where(np.isfinite(d["outcome"]), d["outcome"] > 0.5, np.nan)
        d["commitment_correct"] = np.repeat(d["outcome"][..., None] == 1, d["num_segments"], -1)
        wanted = dr_grpo(d)
        close(credit("dash", d, stay_right=1.0, stay_wrong=1.0), wanted)
        one = {**d, "segment": np.where(d["segment"] >= 0, 0, -1)}
        close(credit("dash", one), wanted)


def test_dash_grades_each_answer_on_the_way():
    d = dense(9, prompts=1, group=2, steps=3)
    d["outcome"] = np.array([[1.0, 0.0]])
    d["commitment_correct"] = np.array([[[False, True, True], [True, False, False]]])
    found = per_step(d, credit("dash", d))
    close(found, [[[-0.5, 0.5, 0.0], [0.5, -0.5, -0.5]]])
    wrong = {**d, "outcome": np.zeros((1, 2))}
    assert per_step(wrong, credit("dash", wrong))[0, 1, 0] == 1, "right on the way in a group that is all wrong"


def test_edit_is_grpo_while_no_belief_falls():
    d = batch(10)
    reward = 1 - np.abs(d["mark"] - d["gold_mark"][:, None]) / 2
    wanted = grpo({**d, "outcome": np.where(np.isfinite(d["outcome"]), reward, np.nan)}, ddof=0)
    steady = {**d, "belief": np.where(np.isfinite(d["belief"]), 0.3, d["belief"]).astype(np.float32)}
    close(credit("edit", steady), wanted)
    below = wanted - credit("edit", d, variant="step")
    assert (below >= -2e-5).all() and below.max() > 0.01


def test_edits_first_stage_clones_rewritten_steps_of_rollouts_that_end_up_right():
    d = batch(11)
    recipe = cj.recipe("edit", variant="sft")
    made = cj.estimate(recipe.estimator, to_trajectory(d))
    term = recipe.objective(_output(d, -2.0), made, to_trajectory(d))["policy"]
    assert term.count > 0
    close(term.sum / term.count, 2.0)
    untouched = {**d, "revision_mask": np.zeros_like(d["revision_mask"])}
    made = cj.estimate(recipe.estimator, to_trajectory(untouched))
    assert recipe.objective(_output(d, -2.0), made, to_trajectory(untouched))["policy"].sum == 0


def test_steps_are_flagged_for_harm_or_for_not_being_grounded():
    d = dense(15)
    harm = algebra.chain(algebra.belief_gain(), algebra.scale(-1.0), algebra.shift(-0.1), algebra.clip(0.0, 1.0))
    d["grounding"] = np.random.default_rng(0).normal(size=d["grounding"].shape).astype(np.float32)
    found = per_step(d, run(algebra.chain(harm, algebra.flag_steps(0.2)), d))
    wanted = (per_step(d, run(harm, d)) > 0) | (d["grounding"] < 0.2)
    close(found, wanted)
    assert 0 < wanted.mean() < 1


def test_step_potential_at_its_corners():
    d = dense(12)
    corners = {(1, 1): 1.0, (0, 1): -1.0, (0, 0): 0.0, (1, 0): 0.5}
    for k, (a, c) in enumerate(corners):
        d["correctness"][..., k], d["confidence"][..., k] = a, c
    found = per_step(d, run(algebra.step_potential(), d))
    close(found, np.broadcast_to(list(corners.values()), found.shape))
    rise = per_step(d, run(algebra.chain(algebra.step_potential(), algebra.consecutive_difference()), d))
    close(rise.sum(-1), found[..., -1] - found[..., 0])


def test_spae_saturates_and_its_shaping_is_centred():
    d = batch(13)
    phi = algebra.step_potential()
    weight = run(algebra.chain(phi, algebra.saturation_weight(0.1, 0.5)), d)
    for p, g in acting_rows(d):
        inside = [weight[p, g, positions[0]] for positions in segments(d, p, g).values()]
        assert (np.diff(inside) <= 1e-6).all() and all(0.5 <= w <= 1 for w in inside)
        assert not inside or inside[0] == 1
    rises = run(algebra.chain(phi, algebra.consecutive_difference(), algebra.exponential_rank()), d)
    first = [rises[p, g, ts[0]] for p, g in acting_rows(d) for ts in segments(d, p, g).values()]
    close(np.mean(first), 0.0, atol=1e-5)
    assert np.abs(first).max() <= np.e - 1
    close(credit("spae", d, alpha=0.0, xi=0.0, whiten=False), dr_grpo(d))


def test_renorm_pays_agreement_and_never_a_turn_that_looks_good_in_a_failure():
    d = dense(14)
    paid = algebra.chain(algebra.signal("process_reward"), algebra.renormalize_with_outcome())
    found = per_step(d, run(paid, d))
    close(found[..., -1], d["outcome"])
    assert (found[d["outcome"] == 0] <= 0).all() and (found[d["outcome"] == 1] >= 0).all()
    agree = {**d, "process_reward": np.repeat(d["outcome"][..., None], 4, -1).astype(np.float32)}
    close(per_step(d, run(paid, agree))[..., :-1], np.repeat(2 * d["outcome"][..., None] - 1, 3, -1))
    half = {**d, "process_reward": np.full_like(d["process_reward"], 0.5)}
    centred = algebra.chain(algebra.signal("process_reward"), algebra.renormalize_with_outcome(True))
    close(per_step(d, run(centred, half)), np.repeat(d["outcome"][..., None] - 0.5, 4, -1))


# ------------------------------------------------------------------------------------------------------------- budgets


def thinking(seed: int) -> dict:
    d = dense(seed)
    rng = np.random.default_rng([seed, 9])
    d |= {
        "thinking_mask": np.arange(12) < rng.integers(10, 13, size=(2, 4, 1)),
        "budget": np.tile(np.int32([3, 6, 9]), (2, 1)),
        "summary_reward": rng.integers(0, 2, size=(2, 4, 3, 2)).astype(np.float32),
    }
    return d


def at_budgets(d: dict, c: np.ndarray) -> np.ndarray:
    assert not c[..., 9:].any(), "no credit past the last budget"
    close(c[..., [0, 3, 6]].repeat(3, -1), c[..., :9])
    return c[..., [0, 3, 6]]


def test_thinking_is_paid_for_all_later_budgets():
    d = thinking(0)
    r = d["summary_reward"].astype(float).mean(-1)
    returned = at_budgets(d, credit("brpo", d, variance_reduction="none"))
    close(returned[..., 0], r.mean(-1))
    close(returned[..., :2] - returned[..., 1:], r[..., :2] / 3)
    last = at_budgets(d, credit("brpo", d, prior="base"))[..., 0]
    close(last, r[..., 2] - r[..., 2].mean(1, keepdims=True))
    own = at_budgets(d, credit("brpo", d, variance_reduction="v1only", lam=1.0))
    close(own[..., 2], (r[..., 2] - r[..., :2].mean(-1)) / 3)


def test_equal_answers_at_all_budgets_leave_the_group_as_baseline():
    d = thinking(1)
    d["summary_reward"] = np.repeat(d["summary_reward"][..., :1, :], 3, axis=-2)
    returned = at_budgets(d, credit("brpo", d, variance_reduction="none"))
    found = at_budgets(d, credit("brpo", d))
    share = (3 - np.arange(3)) / 3
    close(found, share * (returned - returned.mean(1, keepdims=True)), atol=1e-5)


def test_thinking_that_stops_early_keeps_its_answer():
    d = thinking(2)
    d["thinking_mask"] = np.arange(12) < np.full((2, 4, 1), 5)  # the second budget
    other = d["summary_reward"].copy()
    other[..., 2, :] = 1 - other[..., 2, :]  # never written
    np.testing.assert_array_equal(credit("brpo", d), credit("brpo", {**d, "summary_reward": other}))


def _output(d: dict, logprob: float):
    from creditjax.models.base import PolicyOutput

    like = jnp.full(d["action_mask"].shape, logprob)
    return PolicyOutput(like, like, like)
