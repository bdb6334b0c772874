"""Faults that users of other libraries met in group estimators and credit, as numbers through the public door.

Every case goes in as flat rows with group ids and comes back as flat rows, so packing takes part. The number in the
name of a test is the fault's.
"""

import jax
from jax import numpy as jnp
import numpy as np
from oracles.batches import random_batch, to_trajectory
from oracles.credit import ORACLES, votes
import pytest

import creditjax
from creditjax import numerics
from creditjax.kernels import group

NAN = np.nan


@jax.jit
def _value(estimator, batch):
    return creditjax.estimate(estimator, batch).value


def credit_of(name, outcome, ids=None, *, mask=None, segments=0, signals=None, overrides=None, **fields):
    """Token credit ``[N, T]`` of flat rows that act at one position, or where `mask` says."""
    outcome = np.asarray(outcome, np.float32)
    mask = np.ones((len(outcome), 1), bool) if mask is None else np.asarray(mask, bool)
    rows = creditjax.Trajectory(
        tokens=np.zeros(mask.shape, np.int32),
        action_mask=mask,
        outcome=outcome,
        signals={"accuracy": outcome, **(signals or {})},
        num_segments=segments,
        **{field: np.asarray(value) for field, value in fields.items()},
    )
    batch, index = creditjax.pack(rows, np.zeros(len(outcome), int) if ids is None else np.asarray(ids))
    value = _value(creditjax.recipe(name, **(overrides or {})).estimator, batch)
    return np.asarray(creditjax.unpack(value, index))


def row_credit(*args, **kwargs):
    return credit_of(*args, **kwargs)[:, 0]


KIND = {"rloo": "rloo", "grpo": "grpo", "dr_grpo": "centred"}
CENTRED = [
    ("dr_grpo", {}),
    ("reinforce_baseline", {"baseline": "group"}),
]


# C06, C07: where rewards are, and what lies between them


def test_c06_masked_tokens_are_transparent_to_returns():
    reward = [[0.0, 0, 0, 2]]
    c = credit_of("reinforce", [0.0], mask=[[1, 0, 0, 1]], reward=reward, overrides={"gamma": 0.5})
    np.testing.assert_allclose(c, [[1, 0, 0, 2]])


@pytest.mark.parametrize("name", ["reinforce_plus_plus", "reinforce"])
def test_c06_inserting_masked_tokens_changes_nothing(name):
    rng = np.random.default_rng(0)
    mask, reward, logprob = np.ones((3, 4), bool), rng.normal(size=(3, 4)), -rng.exponential(size=(3, 4))
    places = [1, 1, 3, 4]  # insert before these, once twice and once at the end

    def run(mask, reward, logprob):
        signals = {"logprob_ref": np.where(mask, logprob - 0.5 * mask, NAN)}
        fields = {"reward": reward, "logprob": logprob}
        return credit_of(name, [1.0, 0, 1], mask=mask, signals=signals, overrides={"gamma": 0.5}, **fields)

    narrow = run(mask, reward, logprob)
    wide_mask = np.insert(mask, places, False, axis=1)
    wide = run(wide_mask, np.insert(reward, places, 0.0, axis=1), np.insert(logprob, places, NAN, axis=1))
    np.testing.assert_allclose(wide[wide_mask].reshape(3, 4), narrow, rtol=1e-5)
    assert (wide[~wide_mask] == 0).all()


@pytest.mark.parametrize(("mask", "wanted"), [([1, 1, 1, 0, 0], [0.81, 0.9, 1, 0, 0]), ([1, 1, 1], [0.81, 0.9, 1])])
def test_c07_the_outcome_is_paid_at_the_last_action(mask, wanted):
    c = credit_of("reinforce", [1.0], mask=[mask], overrides={"gamma": 0.9})
    np.testing.assert_allclose(c[0], wanted, rtol=1e-6)


# C10, C12, C13: groups of one, ragged groups, interleaved prompts

GROUPINGS = {
    "c10 one sample in a group": (
        [5, 1, 3],
        [0, 1, 1],
        {"centred": [0, -1, 1], "rloo": [0, -2, 2], "grpo": [0, -0.70711, 0.70711]},
    ),
    "c12 ragged groups": (
        [1, 0, 2, 5, 5, 7],
        [0, 0, 0, 1, 1, 2],
        {"centred": [0, -1, 1, 0, 0, 0], "rloo": [0, -1.5, 1.5, 0, 0, 0], "grpo": [0, -1, 1, 0, 0, 0]},
    ),
    "c13 interleaved prompts": (
        [1, 10, 3, 12],
        [0, 1, 0, 1],
        {"centred": [-1, -1, 1, 1], "rloo": [-2, -2, 2, 2], "grpo": [-0.70711, -0.70711, 0.70711, 0.70711]},
    ),
}


@pytest.mark.parametrize("case", GROUPINGS)
@pytest.mark.parametrize(
    ("kind", "name", "overrides"), [*(("centred", *c) for c in CENTRED), ("rloo", "rloo", {}), ("grpo", "grpo", {})]
)
def test_groups_follow_their_ids(case, kind, name, overrides):
    outcome, ids, wanted = GROUPINGS[case]
    np.testing.assert_allclose(row_credit(name, outcome, ids, overrides=overrides), wanted[kind], atol=2e-5)
    order = np.random.default_rng(0).permutation(len(ids))
    permuted = row_credit(name, np.array(outcome)[order], np.array(ids)[order] * -7, overrides=overrides)
    np.testing.assert_allclose(permuted, np.array(wanted[kind])[order], atol=2e-5)


RELATIVE = [
    "rloo",
    "grpo",
    "dr_grpo",
    "dapo",
    "gspo",
    "cispo",
    "sapo",
    "gmpo",
    "clip_cov",
    "kl_cov",
    "gpg",
    "opo",
    "max_rl",
]


@pytest.mark.parametrize("name", RELATIVE)
def test_c10_a_group_of_one_is_silent(name):
    assert (row_credit(name, [1, 1, 1], [0, 1, 2]) == 0).all()


@pytest.mark.parametrize("name", ["rloo", "grpo", "dr_grpo"])
def test_c10_eagerly_too(name):
    tokens, outcome = np.zeros((2, 2, 1), int), np.array([[5, NAN], [1, 3]])
    batch = creditjax.Trajectory(tokens=tokens, action_mask=tokens == 0, outcome=outcome)
    c = np.asarray(creditjax.estimate(creditjax.recipe(name).estimator, batch).value)
    np.testing.assert_allclose(
        c[..., 0], [[0, 0], GROUPINGS["c10 one sample in a group"][2][KIND[name]][1:]], atol=2e-5
    )


def test_c10_plain_kernels():
    x, weight = jnp.array([5.0, 1, 3]), jnp.array([0.0, 1, 1])
    np.testing.assert_allclose(group.center(x, weight), [0, -1, 1])
    np.testing.assert_allclose(group.leave_one_out(x, weight), [0, -2, 2])
    np.testing.assert_allclose(group.normalize(x, weight, eps=0.0), [0, -0.70711, 0.70711], atol=1e-5)
    for kernel in (group.center, group.leave_one_out, group.normalize, group.mean_normalize, group.top_margin):
        assert (np.asarray(kernel(x, jnp.array([1.0, 0, 0]))) == 0).all()


# C11: groups are dropped whole, and only if all rewards agree


@pytest.mark.parametrize(
    ("outcome", "kept"), [([1, 0, 0, 0], True), ([1, 1, 1, 0], True), ([1, 1, 1, 1], False), ([0.5] * 4, False)]
)
def test_c11_dapo_drops_whole_groups(outcome, kept):
    c = row_credit("dapo", outcome)
    assert ((c != 0) == kept).all()


# C14, C36: rows cut from one rollout


@pytest.mark.parametrize(("name", "overrides"), CENTRED)
def test_c14_rows_of_one_rollout_vote_once(name, overrides):
    c = row_credit(name, [1, 1, 1, 0], trajectory=[0, 0, 0, 1], overrides=overrides)
    np.testing.assert_allclose(c, [0.5, 0.5, 0.5, -0.5])


@pytest.mark.parametrize("order", [[0, 1, 2], [0, 2, 1]])
def test_c36_every_row_keeps_its_own_mask(order):
    masks = np.array([[1, 1, 0], [0, 0, 1], [1, 0, 0]])
    wanted = np.array([[0.5, 0.5, 0], [0, 0, 0.5], [-0.5, 0, 0]])
    c = credit_of("dr_grpo", np.array([1, 1, 0])[order], mask=masks[order], trajectory=np.array([4, 4, 9])[order])
    np.testing.assert_allclose(c, wanted[order])


# C15, C16: rows that do not vote


def test_c15_a_row_that_does_not_vote_shifts_nobody():
    np.testing.assert_allclose(row_credit("dr_grpo", [100, 1, 3], votes=[False, True, True]), [0, -1, 1])
    fields = {"outcome": [1, 1, 0, 0], "votes": [True, False, True, True]}
    np.testing.assert_allclose(row_credit("dr_grpo", **fields), [2 / 3, 0, -1 / 3, -1 / 3], rtol=1e-5)
    np.testing.assert_allclose(row_credit("grpo", **fields), [1.1547, 0, -0.57735, -0.57735], atol=1e-5)
    np.testing.assert_allclose(row_credit("rloo", **fields), [1, 0, -0.5, -0.5])


def test_c15_a_silent_response_may_vote_and_a_failure_may_not():
    mask = [[0], [1], [1]]
    np.testing.assert_allclose(row_credit("dr_grpo", [100, 1, 3], mask=mask), [0, -1, 1])
    np.testing.assert_allclose(row_credit("dr_grpo", [5, 1, 3], mask=mask, votes=[True] * 3), [0, -2, 0])


NOT_RELATIVE = ("reinforce", "reinforce_baseline", "remax", "reinforce_plus_plus", "ppo", "gae", "vtrace", "tips")


@pytest.mark.parametrize("name", sorted(set(ORACLES) - {*NOT_RELATIVE, "shapley_exact"}))
def test_c15_in_every_group_estimator(name):
    estimator = creditjax.recipe(name).estimator
    for seed in range(4):
        d = random_batch(np.random.default_rng([seed, 6]), outcome="unit")
        d["votes"] = np.array([[votes(d, p, g) for g in range(4)] for p in range(3)])
        d["votes"][1, 2] = False
        gone = {**d, "action_mask": d["action_mask"].copy(), "outcome": d["outcome"].copy()}
        gone["action_mask"][1, 2], gone["outcome"][1, 2] = False, NAN
        d["outcome"][1, 2] = 100.0
        c = np.asarray(_value(estimator, to_trajectory(d)))
        assert (c[1, 2] == 0).all()
        np.testing.assert_allclose(c, _value(estimator, to_trajectory(gone)), rtol=1e-5, atol=1e-6)


def test_c16_an_unscored_completion_is_not_a_wrong_one():
    np.testing.assert_allclose(row_credit("grpo", [1, 0, NAN, 1]), [0.57735, -1.1547, 0, 0.57735], atol=1e-5)
    for name in RELATIVE:
        assert (row_credit(name, [0.7, NAN, NAN]) == 0).all()


# C17: several rewards


def test_c17_rewards_are_normalised_before_they_are_added():
    rewards = np.array([[0, 0], [1, 0], [0, 2], [1, 4]], np.float32)
    collapsed = row_credit("grpo", rewards.sum(1))
    np.testing.assert_allclose(collapsed, [-0.92582, -0.46291, 0, 1.38873], atol=1e-5)
    c = row_credit("gdpo", rewards.sum(1), signals={"reward_components": rewards})
    np.testing.assert_allclose(c, [-1.022305, 0.051244, -0.374931, 1.345992], atol=1e-5)
    weight = jnp.ones(4)
    summed = sum(group.normalize(jnp.asarray(rewards[:, m]), weight, eps=0.0) for m in range(2))
    np.testing.assert_allclose(summed, [-1.649375, 0.082676, -0.604909, 2.171608], atol=1e-5)


# C18, C38: states, not turn indices, are compared


def test_c18_gigpo_adds_step_credit_where_states_repeat():
    c = credit_of(
        "gigpo",
        [1, 0],
        mask=np.ones((2, 2), bool),
        segment=[[0, 1], [0, 1]],
        segments=2,
        signals={"state_key": np.array([[0, 1], [0, 2]])},
        overrides={"gamma": 1.0},
    )
    np.testing.assert_allclose(c, [[1, 0.5], [-1, -0.5]])


def test_c38_a_step_baseline_depends_on_its_state_and_on_nothing_that_follows():
    estimator, changed = creditjax.recipe("gigpo").estimator, 0
    for seed in range(4):
        rng = np.random.default_rng([seed, 7])
        d = random_batch(rng, outcome="unit")
        d["state_key"] += 10 * np.arange(4, dtype=np.int32)  # no state comes back at another turn
        later = {**d, "state_key": d["state_key"].copy(), "tokens": rng.integers(0, 3, d["tokens"].shape, np.int32)}
        later["state_key"][..., 2:] = rng.integers(90, 93, later["state_key"][..., 2:].shape)
        early = d["segment"] < 2
        c, other = (np.asarray(_value(estimator, to_trajectory(x))) for x in (d, later))
        np.testing.assert_array_equal(c[early], other[early])
        changed += (c != other).any()
    assert changed >= 2, "new states later on change what is compared there"
    # Equal turn index, different states: no comparison.
    c = credit_of(
        "gigpo",
        [1, 1],
        mask=np.ones((2, 1), bool),
        reward=[[3.0], [1.0]],
        segment=[[0], [0]],
        segments=1,
        signals={"state_key": np.array([[0], [1]])},
    )
    assert (c == 0).all()


# C19, C20, C21: statistics


def test_c19_whitening_reads_acted_positions_only():
    x, mask = jnp.array([[2.0, 4], [9, 100]]), jnp.array([[1, 1], [1, 0]], bool)
    mean = numerics.masked_mean(x, mask)
    assert mean == 5
    for ddof, wanted in ((0, [[-1.019049, -0.339683], [1.358732, 0]]), (1, [[-0.83205, -0.27735], [1.1094, 0]])):
        white = numerics.select((x - mean) / numerics.masked_std(x, mask, ddof=ddof), mask)
        np.testing.assert_allclose(white, wanted, atol=1e-5)
    # The same through a recipe, from rewards whose returns are these numbers.
    c = credit_of("reinforce_plus_plus", [6.0, 9], mask=mask, reward=[[-2.0, 4], [9, NAN]], overrides={"beta": 0.0})
    np.testing.assert_allclose(c, [[-0.83205, -0.27735], [1.1094, 0]], atol=1e-5)


def test_c20_what_is_under_the_mask_reaches_neither_value_nor_gradient():
    x, mask = jnp.array([1, NAN, 3, 5]), jnp.array([1, 0, 1, 1], bool)

    def white(x):
        centred = numerics.select(x, mask) - numerics.masked_mean(x, mask)
        return numerics.select(centred / numerics.masked_std(x, mask), mask)

    np.testing.assert_allclose(white(x), [-1.224745, 0, 0, 1.224745], atol=1e-6)
    gradient = jax.grad(lambda x: white(x)[0])(x)
    assert np.isfinite(gradient).all()
    assert gradient[1] == 0


@pytest.mark.parametrize("garbage", [NAN, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["ppo", "gae", "vtrace"])
def test_c20_values_under_the_mask_do_not_bootstrap(name, garbage):
    mask = np.array([[1, 1, 0]], bool)
    under = np.where(mask, [[0.2, 0.4, 0]], garbage)
    signals = {"value": under, "next_value": np.where(mask, [[0.4, 0, 0]], garbage)}
    signals["logprob_current"] = np.where(mask, 0.0, garbage)
    overrides = {"gamma": 1.0, "lam": 1.0} | ({"whiten": False} if name == "gae" else {})
    fields = {"reward": [[0.0, 1, 0]], "logprob": np.where(mask, 0.0, garbage)}
    c = credit_of(name, [1.0], mask=mask, signals=signals, overrides=overrides, **fields)
    wanted = [[0.70711, -0.70711, 0]] if name == "ppo" else [[0.8, 0.6, 0]]
    np.testing.assert_allclose(c, wanted, atol=1e-5)


def test_c21_variances_are_two_pass():
    for c in (group.normalize(jnp.array([2.0, 2.0001]), jnp.ones(2)), row_credit("grpo", [2.0, 2.0001])):
        np.testing.assert_allclose(c, [-0.697, 0.697], atol=0.002)
    assert (np.asarray(group.normalize(jnp.full(3, 0.1), jnp.ones(3))) == 0).all()
    assert (row_credit("grpo", [0.1, 0.1, 0.1]) == 0).all()
