"""Recipes that judge steps: against their float64 references, and against what their cards promise."""

import functools

import jax
import numpy as np
from oracles import steps as reference
from oracles.batches import random_batch, to_trajectory
from oracles.credit import acted, raw_gae, segments, vote_weights, voters, voting_rows, whiten
import pytest

import creditjax
from creditjax.models.base import PolicyOutput
from creditjax.objectives import total

SEEDS, VARIANT_SEEDS = 22, 8
BINARY = ("vppo_prefix", "tp_grpo_thought")  # their outcomes are right or wrong


def judged_batch(seed: int, outcome: str | None = None, **options) -> dict:
    """A random batch whose labels are labels: 0 and 1, some critiques unreadable."""
    rng = np.random.default_rng([seed, 7])
    kind = outcome or ("binary", "unit", "real")[seed % 3]
    d = random_batch(rng, outcome=kind, **options)
    unread = ~np.isfinite(d["step_score"])
    for name in ("step_label", "thought_label", "subproblem_reward"):
        d[name] = np.where(unread, d[name], rng.random(d[name].shape) < 0.6).astype(np.float32)
    d["step_score"] = np.where(unread, d["step_score"], rng.random(unread.shape)).astype(np.float32)
    flags = (rng.random(d["judge_error"].shape) < 0.5).astype(np.float32)
    flags = np.where(rng.random(flags.shape) < 0.2, np.nan, flags)
    d["judge_error"] = np.where(unread[..., None], d["judge_error"], flags).astype(np.float32)
    # Few scores, so that the candidates of a state may be alike.
    d["candidate_reward"] = rng.integers(0, 2, size=d["candidate_reward"].shape).astype(np.float32)
    return d


@jax.jit
def _value(estimator, batch, step):
    return creditjax.estimate(estimator, batch, step=step).value


def value(name: str, d: dict, step: int = 0, **overrides) -> np.ndarray:
    recipe = creditjax.recipe(name, **overrides)
    names = (*recipe.estimator.needs, *recipe.estimator.uses)
    return np.asarray(_value(recipe.estimator, to_trajectory(d, names), step))


def close(a, b, atol=2e-5):
    np.testing.assert_allclose(a, b, rtol=2e-4, atol=atol)


def kind(name: str) -> str | None:
    return "binary" if name in BINARY else None


@pytest.mark.parametrize("name", reference.ORACLES)
def test_recipe_matches_reference(name):
    seen = []
    for seed in range(SEEDS):
        d = judged_batch(seed, kind(name))
        wanted = reference.ORACLES[name](d)
        got = value(name, d)
        assert got.dtype == np.float32
        close(got, wanted)
        seen.append(wanted.any())
    assert sum(seen) > SEEDS / 2


@pytest.mark.parametrize(("name", "overrides", "wanted"), reference.VARIANTS)
def test_variant_matches_reference(name, overrides, wanted):
    for seed in range(VARIANT_SEEDS):
        d = judged_batch(seed, kind(name))
        close(value(name, d, **overrides), wanted(d))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "exp", "constant"])
def test_decaying_weight_matches_reference_at_every_step(schedule):
    d = judged_batch(1)
    for mode in ("trajectory", "turn"):
        for step in (0, 50, 190, 200, 500):
            wanted = reference.decaying_process_reward(d, mode, schedule, step)
            close(value("decaying_process_reward", d, step, mode=mode, schedule=schedule), wanted)


# ------------------------------------------------------------------------------------------------- properties of cards


def plain(rewards, outcome, lengths=None, **signals) -> dict:
    """One prompt, rollouts of one token a step."""
    rewards = np.asarray(rewards, float)
    g, k = rewards.shape
    mask = np.ones((1, g, k), bool)
    if lengths is not None:
        mask = (np.arange(k) < np.asarray(lengths)[:, None])[None]
    return {
        "tokens": np.zeros((1, g, k), int),
        "action_mask": mask,
        "outcome": np.asarray(outcome, float)[None],
        "segment": np.broadcast_to(np.arange(k), (1, g, k)).copy(),
        "num_segments": k,
        "process_reward": rewards[None],
        **{name: np.asarray(x)[None] for name, x in signals.items()},
    }


def test_sum_form_pays_for_filler_steps():
    d = plain(np.full((2, 4), 0.5), [0.0, 0.0], lengths=[4, 1])
    c = value("sum_form_prm", d, outcome_weight=0.0, whiten=False)[0]
    # Four steps of 0.5 return 2.0 at the first token, one step 0.5; the baseline is one number a rollout.
    close(c[0] - c[0, 0], [0, -0.5, -1.0, -1.5])
    close(c[:, 0], [2.0 - 0.5, 0.5 - (2.0 + 1.5 + 1.0 + 0.5) / 4])


def test_sum_form_without_discount_is_pure_in_mode_sum():
    for seed in range(3):
        d = judged_batch(seed)
        close(value("sum_form_prm", d), value("pure", d, mode="sum"))


def test_channels_of_the_sum_form_agree_on_equal_lengths():
    d = plain(np.random.default_rng(0).normal(size=(4, 5)), [1.0, 0.0, 0.0, 1.0])
    close(value("sum_form_prm", d, whiten=False), value("sum_form_prm", d, channels="joint", whiten=False))


@pytest.mark.parametrize("schedule", ["linear", "cosine", "exp"])
@pytest.mark.parametrize("mode", ["trajectory", "turn"])
def test_after_the_decay_process_rewards_are_gone(schedule, mode):
    d = judged_batch(2)
    close(value("decaying_process_reward", d, 200, schedule=schedule, mode=mode), value("grpo", d, ddof=0))


def test_repeating_average_turns_earns_nothing():
    few = plain([[0.2, 0.6, 0, 0], [0.5, 0.5, 0, 0]], [1.0, 0.0], lengths=[2, 2])
    more = plain([[0.2, 0.6, 0.4, 0.4], [0.5, 0.5, 0, 0]], [1.0, 0.0], lengths=[4, 2])
    close(value("decaying_process_reward", few)[0, :, 0], value("decaying_process_reward", more)[0, :, 0])


def test_equal_process_means_leave_grpo():
    d = plain([[0.2, 0.6], [0.4, 0.4], [0.6, 0.2]], [1.0, 0.0, 0.0])
    close(value("decaying_process_reward", d), value("grpo", d, ddof=0))


def test_capo_without_flags_and_with_equal_lengths_is_grpo():
    d = plain(np.zeros((3, 4)), [1.0, 0.0, 1.0], judge_error=np.zeros((3, 4, 2)))
    close(value("capo", d), value("grpo", d, ddof=0))


def test_capo_penalty_is_one_gap_for_the_whole_group():
    for seed in range(5):
        d = judged_batch(seed, "binary")
        c = value("capo", d, vote="intersection")
        for p in range(3):
            rows = voters(d, p)
            reward, gaps = {}, []
            for g in rows:
                flagged, clear = [], []
                for k, own in segments(d, p, g).items():
                    wrong = reference.wrong_share(d, p, g, k, "intersection")
                    reward |= {(g, t): 2 * d["outcome"][p, g] - wrong for t in own}
                    (flagged if wrong else clear).extend(c[p, g, t] for t in own)
                reward |= {(g, t): 2 * d["outcome"][p, g] for t in acted(d, p, g) if (g, t) not in reward}
                if flagged and clear:
                    gaps.append(clear[0] - flagged[0])
            if gaps:
                close(gaps, np.full(len(gaps), 1 / (np.std(list(reward.values())) + 1e-6)))
            assert abs(sum(c[p, g].sum() for g in rows)) < 1e-3


def test_a_tie_of_critiques_is_no_majority_and_intersection_flags_less():
    for seed in range(3):
        d = judged_batch(seed)
        for p, g in voting_rows(d):
            for k in segments(d, p, g):
                both = [reference.wrong_share(d, p, g, k, vote) for vote in ("intersection", "majority")]
                assert both[0] <= both[1]
    tied = plain(np.zeros((1, 2)), [1.0], judge_error=[[[1.0, 0.0], [1.0, np.nan]]])
    # Only the second step is flagged, by the one critique that could be read.
    close(value("capo", tied), [[[1.0, -1.0]]], atol=1e-5)


def test_vpr_sums_to_zero_by_state_and_drops_states_that_teach_nothing():
    d = judged_batch(3)
    c = value("vpr", d, mode="group_whiten")
    recipe = creditjax.recipe("vpr")
    credit = creditjax.estimate(recipe.estimator, to_trajectory(d, recipe.needs))
    for p in range(3):
        rows = [g for g in voters(d, p) if acted(d, p, g)]
        r = [d["candidate_reward"][p, g] + d["outcome"][p, g] for g in voters(d, p)]
        silent = len(set(r)) < 2
        assert np.asarray(credit.extras["loss_mask"])[p].any() == (not silent and bool(rows))
        if rows == voters(d, p):
            assert abs(sum(c[p, g, acted(d, p, g)[0]] for g in rows)) < 1e-4
    moved = {**d, "candidate_reward": d["candidate_reward"] + np.array([[5.0], [0.0], [-2.0]], np.float32)}
    close(value("vpr", moved), value("vpr", d), atol=1e-4)


def test_a_noisy_binary_oracle_shrinks_the_credit_of_vpr_by_one_minus_twice_the_noise():
    truth, noise = np.array([1.0, 0.0, 1.0, 1.0]), 0.2
    expected = np.zeros(4)
    for flips in np.ndindex(2, 2, 2, 2):
        seen = np.where(flips, 1 - truth, truth)
        chance = np.prod(np.where(flips, noise, 1 - noise))
        expected += chance * (seen - seen.mean())
    close(expected, (1 - 2 * noise) * (truth - truth.mean()))


def test_vppo_without_a_saved_prefix_is_dr_grpo():
    for seed in range(3):
        d = judged_batch(seed, "binary")
        alive = {**d, "outcome": np.where(d["action_mask"].any(-1), d["outcome"], np.nan)}
        close(value("vppo_prefix", alive, alpha=0.0), value("dr_grpo", alive))


def test_vppo_by_hand():
    d = plain(np.zeros((2, 4)), [0.0, 1.0], step_score=[[0.9, 0.95, 0.3, 0.1], [0.1] * 4], prompt_length=np.array(1))
    # The first error is step 2; one token of margin leaves a prefix of one. Means: 0.5 / 4 and 1.
    mean = (0.125 + 1) / 2
    close(value("vppo_prefix", d)[0], [[0.5 - mean, -mean, -mean, -mean], [1 - mean] * 4])
    saved = value("vppo_prefix", d, relu=True)[0]
    close(saved, [[0, -mean, -mean, -mean], [1 - mean] * 4])
    # A monotone change of scores that keeps the first error changes nothing.
    other = {**d, "step_score": np.where(d["step_score"] < 0.8, d["step_score"] ** 2, 0.99)}
    close(value("vppo_prefix", other), value("vppo_prefix", d))


def test_right_rollouts_are_never_below_wrong_ones_under_vppo():
    for seed in range(4):
        d = judged_batch(seed, "binary")
        c = value("vppo_prefix", d, alpha=1.0, margin="fixed", margin_size=0.0)
        for p in range(3):
            of = {
                o: [c[p, g, t] for g in voters(d, p) for t in acted(d, p, g) if d["outcome"][p, g] == o] for o in (0, 1)
            }
            if of[0] and of[1]:
                assert min(of[1]) >= max(of[0]) - 1e-6


def test_tp_grpo_keeps_grpo_where_nothing_is_wrong():
    d = judged_batch(0, "binary")
    fine = {**d, "thought_label": np.ones_like(d["thought_label"])}
    close(value("tp_grpo_thought", fine), value("grpo", d, ddof=0))


def test_tp_grpo_blames_wrong_thoughts_of_solved_prompts_by_alpha():
    labels = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, 1.0]]
    d = plain(np.zeros((2, 4)), [1.0, 1.0], thought_label=labels)
    close(value("tp_grpo_thought", d)[0], [[0, -0.5, -0.5, 0], [0, 0, -0.5, 0]])
    d = plain(np.zeros((2, 4)), [0.0, 0.0], thought_label=labels)
    assert not value("tp_grpo_thought", d).any()


def test_scrl_with_one_span_is_grpo():
    for seed in range(3):
        d = judged_batch(seed, "binary")
        d |= {"segment": np.zeros_like(d["segment"]), "is_curriculum": np.ones_like(d["is_curriculum"])}
        d["subproblem_reward"] = np.broadcast_to(d["outcome"][..., None], d["subproblem_reward"].shape)
        close(value("scrl", d), value("grpo", d, ddof=0))


def test_scrl_pays_nothing_after_the_first_failure():
    r = [[1, 1, 0, 1], [1, 0, 0, 0], [1, 1, 1, 1]]
    kept = np.cumprod(r, axis=1)
    assert kept[0].tolist() == [1, 1, 0, 0]
    d = plain(np.zeros((3, 4)), [0.0] * 3, subproblem_reward=r, is_curriculum=np.ones(3, bool))
    c = value("scrl", d)[0]
    close(c.sum(0), np.zeros(4))
    assert not c[:, 0].any() and c[0, 3] == c[1, 3] < 0 < c[2, 3]
    free = value("scrl", d, correction=False)[0]
    assert free[0, 3] == free[2, 3] > 0


def test_scrl_lets_answers_that_were_not_given_vote():
    d = plain(
        np.zeros((2, 2)), [0.0] * 2, lengths=[2, 1], subproblem_reward=[[1, 1], [1, 0]], is_curriculum=np.ones(2, bool)
    )
    close(value("scrl", d)[0], [[0, 1], [0, 0]], atol=1e-5)


def test_prorag_channels():
    for seed in range(2):
        d = judged_batch(seed)
        close(value("prorag", d, prm_beta=0.0), value("grpo", d, ddof=0))
        ones = np.ones_like(d["process_reward"])
        flat = {**d, "process_reward": ones, "step_format": ones}
        close(value("prorag", flat), value("grpo", d, ddof=0))
        alike = {**d, "outcome": np.where(np.isfinite(d["outcome"]), 1.0, np.nan)}
        only = value("prorag", alike)
        outside = d["action_mask"] & (d["segment"] < 0)
        assert not only[outside].any() and only.any()


def test_prlcoder_with_an_undecided_model_is_ppo_on_the_outcome():
    d = judged_batch(1)
    d["step_score"] = np.full_like(d["step_score"], 0.5)
    del d["reward"]
    rows = [(p, g) for p, g in voting_rows(d) if acted(d, p, g)]
    wanted = np.zeros(d["action_mask"].shape)
    paid = {**d, "reward": None}
    for p, g in rows:
        for t, x in raw_gae(paid, p, g, 1.0, 0.95).items():
            wanted[p, g, t] = x
    close(value("prlcoder", d, beta=0.0), whiten(d, wanted, rows))


def test_prlcoder_pays_between_minus_one_and_two_for_any_number_of_lines():
    from creditjax.algebra import at_last_action, at_segment_end, blend, chain, outcome, share_segments, shift, signal
    from creditjax.algebra import scale as times

    lines = chain(signal("step_score"), times(2.0), shift(-1.0), share_segments(), at_segment_end())
    paid = blend((lines, 1.0), (chain(outcome(), at_last_action()), 1.0))
    for seed in range(4):
        d = judged_batch(seed, "unit")
        x = np.asarray(_value(paid, to_trajectory(d, ("step_score", "segment")), 0)).sum(-1)
        assert (x >= -1 - 1e-5).all() and (x <= 2 + 1e-5).all()


def test_oprl_telescopes_and_reduces_to_grpo_inside_turns():
    d = judged_batch(0)
    whole = {**d, "segment": np.maximum(d["segment"], 0)}
    for p, g in voting_rows(whole):
        both = [float(whole["logprob_prm"][p, g, t]) - float(whole["logprob"][p, g, t]) for t in acted(whole, p, g)]
        assert sum(reference.implicit_step_rewards(whole, p, g).values()) == pytest.approx(0.05 * sum(both))
    still = {**d, "logprob_prm": d["logprob"]}
    base = value("grpo", d, ddof=0)
    close(value("oprl", still), np.where(d["segment"] >= 0, base, 0.0))


def test_oprl_ignores_a_constant_on_all_step_rewards():
    d = plain(np.zeros((2, 3)), [1.0, 0.0], logprob=np.full((2, 3), -1.0), logprob_prm=-np.arange(6.0).reshape(2, 3))
    moved = {**d, "logprob_prm": d["logprob_prm"] + 0.7}
    close(value("oprl", d), value("oprl", moved), atol=1e-4)


# ------------------------------------------------------------------------------------------------------------ the loss


@pytest.fixture(scope="module")
def scored():
    d = judged_batch(5)
    recipe = creditjax.recipe("oprl")
    batch = to_trajectory(d, recipe.needs)
    return d, recipe, batch, creditjax.estimate(recipe.estimator, batch)


def step_loss(d: dict, new: np.ndarray, credit: np.ndarray, eps: float = 0.2) -> float:
    """Mean over the steps of the batch, in float64."""
    losses = []
    for p, g in [(p, g) for p in range(d["action_mask"].shape[0]) for g in range(d["action_mask"].shape[1])]:
        for own in segments(d, p, g).values():
            ratio = np.exp(sum(new[p, g, t] - float(d["logprob"][p, g, t]) for t in own))
            a = credit[p, g, own[-1]]
            losses.append(-min(ratio * a, min(max(ratio, 1 - eps), 1 + eps) * a))
    return sum(losses) / len(losses)


def test_step_surrogate_and_its_gradient(scored):
    d, recipe, batch, credit = scored
    rng = np.random.default_rng(0)
    acts = d["action_mask"]
    new = np.where(acts, np.where(acts, d["logprob"], 0.0) + 0.1 * rng.normal(size=acts.shape), np.nan)
    values = np.asarray(credit.value, np.float64)

    @jax.jit
    @jax.value_and_grad
    def loss(logprob):
        return total(recipe.objective(PolicyOutput(logprob, logprob), credit, batch))

    got, gradient = loss(np.asarray(new, np.float32))
    assert got == pytest.approx(step_loss(d, new, values), rel=2e-4, abs=1e-5)
    for index in map(tuple, np.argwhere(acts)[::5]):
        up, down = new.copy(), new.copy()
        up[index] += 1e-5
        down[index] -= 1e-5
        slope = (step_loss(d, up, values) - step_loss(d, down, values)) / 2e-5
        assert np.asarray(gradient)[index] == pytest.approx(slope, rel=2e-3, abs=2e-5)
    assert not np.asarray(gradient)[~acts].any()
    assert not np.asarray(gradient)[acts & (d["segment"] < 0)].any()


def test_names_that_do_not_exist_are_refused():
    for name, given in [
        ("sum_form_prm", {"channels": "join"}),
        ("decaying_process_reward", {"schedule": "step"}),
        ("decaying_process_reward", {"mode": "token"}),
        ("vpr", {"mode": "whiten"}),
        ("capo", {"vote": "all"}),
        ("vppo_prefix", {"margin": "half"}),
        ("oprl", {"ratio_level": "sequence"}),
    ]:
        with pytest.raises(ValueError, match=next(iter(given))):
            creditjax.recipe(name, **given)


def test_weights_of_votes_are_not_needed_for_pooling():
    # Rows of one rollout hold different steps, so each step of each row counts once.
    d = judged_batch(4, fragments=True)
    steps = functools.partial(reference.score, d, "process_reward")
    for p in range(3):
        pool = {(g, k): v for g in vote_weights(d, p) for k, v in steps(p, g).items()}
        z = reference.spread(pool)
        got = value("prorag", {**d, "step_format": np.zeros_like(d["step_format"])}) - value(
            "prorag", {**d, "step_format": np.zeros_like(d["step_format"])}, prm_beta=0.0
        )
        for (g, k), x in z.items():
            for t in segments(d, p, g)[k]:
                assert got[p, g, t] == pytest.approx(0.5 * x, rel=1e-3, abs=1e-4)


def test_a_step_that_was_never_scored_is_no_step_of_score_0():
    d = {
        "tokens": np.zeros((1, 2, 2), np.int32),
        "action_mask": np.ones((1, 2, 2), bool),
        "outcome": np.zeros((1, 2), np.float32),
        "segment": np.array([[[0, 1], [0, 1]]], np.int32),
        "signals": {
            "process_reward": np.array([[[10.1, np.nan], [9.9, 10.0]]], np.float32),
            "step_format": np.zeros((1, 2, 2), np.float32),
        },
        "num_segments": 2,
    }
    credit = creditjax.estimate(creditjax.recipe("prorag").estimator, creditjax.Trajectory(**d)).value
    spread = 0.5 * np.sqrt(1.5)  # prm_beta times the 0.1 by which the first steps lie off the mean, over their std
    np.testing.assert_allclose(credit, [[[spread, 0], [-spread, 0]]], atol=1e-4)
    # The turns of one index: none of them may be compared with one that nobody judged.
    d["signals"] = {"process_reward": np.array([[[1.0, np.nan], [0.0, 1.0]]], np.float32)}
    by_turn = creditjax.recipe("vpr", mode="turn_index", min_group_size=1).estimator
    credit = creditjax.estimate(by_turn, creditjax.Trajectory(**d)).value
    np.testing.assert_allclose(credit, [[[1, 0], [-1, 0]]], atol=1e-4)


def test_vpr_adds_eps_to_the_deviation_and_not_under_the_root():
    batch = creditjax.Trajectory(
        tokens=np.zeros((1, 4, 1), np.int32),
        action_mask=np.ones((1, 4, 1), bool),
        outcome=np.zeros((1, 4)),
        signals={"candidate_reward": np.array([[1.0, 0, 0, 0]])},
    )
    credit = creditjax.estimate(creditjax.recipe("vpr", eps=0.5).estimator, batch).value[0, :, 0]
    wanted = (np.array([1.0, 0, 0, 0]) - 0.25) / (np.std([1.0, 0, 0, 0]) + 0.5)
    np.testing.assert_allclose(credit, wanted, rtol=1e-5)
