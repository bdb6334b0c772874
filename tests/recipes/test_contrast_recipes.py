"""Contrasts, preferences, shared ratios, implied values: their credit against float64 references, and their cards."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
from oracles import contrast
from oracles.batches import random_batch, to_trajectory
from oracles.credit import acted, grpo, rloo, votes
import pytest

import creditjax as cj
from creditjax import objectives as obj
from creditjax.algebra import (
    blend,
    chain,
    drop_constant_groups,
    future_sum,
    likelihood_weighted_gap,
    log_ratio,
    outcome,
    overlong_penalty,
    rewards,
    scale,
    signal,
)
from creditjax.algebra.credit import Credit, Level
from creditjax.kernels.kl import kl_estimate
from creditjax.kernels.pairs import ranked_pairs
from creditjax.models.base import PolicyOutput
from creditjax.signals import implicit_pair_loss, implicit_prm_loss, implicit_reward
from creditjax.signals.verdicts import add_verdict, read_judgement

SEEDS = 20

# (recipe, overrides, reference): the implied credit of a loss is the gradient of the reference of that loss
CREDIT = [
    ("espo_entropy", {}, grpo),
    ("rltt", {}, grpo),
    ("lampo", {}, contrast.lampo),
    (
        "lampo",
        {"tau": 0.3, "references": True, "eta": 0.5, "std": True},
        lambda d: contrast.lampo(d, 0.3, eta=0.5, std=True),
    ),
    ("conspo", {}, contrast.conspo),
    ("conspo", {"tau": 0.5, "warmup": 0.2}, lambda d: contrast.conspo(d, tau=0.5, warmup=0.2)),
    ("vimpo", {}, contrast.vimpo),
    ("vimpo", {"lam": 0.7}, lambda d: contrast.vimpo(d, lam=0.7)),
    ("steporlm_wdpo", {"beta": 0.3}, lambda d: contrast.implied(contrast.dpo, d, beta=0.3, graded=True)),
    ("t_reg", {"alpha": 1.0}, lambda d: contrast.implied(contrast.t_reg, d, alpha=1.0)),
    ("t_reg", {"pair_weight": False}, lambda d: contrast.implied(contrast.t_reg, d, pair_weight=False)),
    ("ctpd", {}, lambda d: contrast.implied(contrast.ctpd, d)),
    ("rise_dpo", {"rest_weight": 0.3}, lambda d: contrast.implied(contrast.rise, d, rest_weight=0.3)),
    ("tips_prm", {}, contrast.tips_prm),
    ("implicit_prm", {}, contrast.implicit_prm),
]


@jax.jit
def credit_of(estimator, batch):
    return cj.estimate(estimator, batch)


def drawn(seed: int, **options) -> dict:
    rng = np.random.default_rng([seed, 11])
    d = random_batch(rng, outcome=("binary", "unit", "real")[seed % 3], **options)
    d["step_mask"] &= (rng.random(len(d["outcome"])) < 0.5)[:, None, None]
    d["rouge_l"] = np.where(rng.random(d["rouge_l"].shape) < 0.2, np.nan, rng.random(d["rouge_l"].shape)).astype("f4")
    return d


@pytest.mark.parametrize(("name", "overrides", "reference"), CREDIT, ids=lambda x: x if isinstance(x, str) else None)
def test_credit_equals_the_reference(name, overrides, reference):
    estimator, seen = cj.recipe(name, **overrides).estimator, 0.0
    for seed in range(SEEDS):
        d = drawn(seed)
        value = np.asarray(credit_of(estimator, to_trajectory(d)).value)
        np.testing.assert_allclose(value, reference(d), rtol=2e-4, atol=2e-5)
        seen += np.abs(value).sum()
    assert seen > 0


# ------------------------------------------------------------------------------------------------------------ LamPO


def per_rollout(d, value):
    """Credit of each rollout: the sum over its tokens."""
    return np.sum(value, axis=-1, dtype=float)


def test_weighted_gaps_add_up_to_nothing_and_tend_to_leave_one_out():
    for seed in range(SEEDS):
        d = drawn(seed)
        batch = to_trajectory(d)
        own = [np.asarray(credit_of(chain(outcome(), likelihood_weighted_gap(t)), batch).value) for t in (0.5, 1e6)]
        per = own[0].max(-1) + own[0].min(-1)  # all tokens of a rollout have the same, the others 0
        np.testing.assert_allclose(per.sum(-1), 0.0, atol=1e-5)
        np.testing.assert_allclose(own[1], rloo(d), rtol=1e-4, atol=1e-5)


def test_a_pair_that_is_ranked_right_counts_less():
    def gap(lead):
        lp = jnp.full((1, 2, 4), -1.0).at[0, 0].add(lead)
        batch = cj.Trajectory(
            tokens=jnp.zeros((1, 2, 4), jnp.int32),
            action_mask=jnp.ones((1, 2, 4), bool),
            outcome=jnp.float32([[1.0, 0.0]]),
            logprob=lp,
        )
        return float(credit_of(cj.recipe("lampo").estimator, batch).value[0, 0, 0])

    values = [gap(lead) for lead in (-0.9, -0.3, 0.0, 0.3, 0.9)]
    assert values[2] == 1.0 and all(a > b for a, b in itertools.pairwise(values)) and 0 < values[-1] < values[0] < 2


# ----------------------------------------------------------------------------------- implied credit is minus a gradient

ON_POLICY = [
    ("conspo", {}),
    ("steporlm_wdpo", {}),
    ("t_reg", {}),
    ("ctpd", {}),
    ("rise_dpo", {"nll": 0.3}),
]


@pytest.mark.parametrize(("name", "overrides"), ON_POLICY)
def test_implied_credit_is_minus_the_gradient_of_the_loss(name, overrides):
    """One prompt, the policy that drew the rollouts: the credit over the number of pairs (or groups)."""
    recipe = cj.recipe(name, **overrides)

    @jax.jit
    def both(batch):
        credit = cj.estimate(recipe.estimator, batch)

        def loss(lp):
            terms = recipe.objective(PolicyOutput(lp, -lp), credit, batch)
            return obj.total(terms), [term.count for key, term in terms.items() if "accuracy" not in key]

        gradient, counts = jax.grad(loss, has_aux=True)(batch.logprob)
        return credit.value, gradient, jnp.max(jnp.stack(counts))

    seen = 0.0
    for seed in range(SEEDS):
        credit, gradient, count = both(to_trajectory(drawn(seed, prompts=1)))
        np.testing.assert_allclose(credit, -gradient * max(float(count), 1.0), rtol=1e-3, atol=1e-5)
        seen += np.abs(credit).sum()
    assert seen > 0


def test_contrast_credit_adds_up_to_nothing_and_does_not_see_a_shift():
    estimator = cj.recipe("conspo").estimator
    for seed in range(SEEDS):
        d = drawn(seed)
        value = np.asarray(credit_of(estimator, to_trajectory(d)).value)
        full = np.array([[bool(acted(d, p, g)) or not votes(d, p, g) for g in range(4)] for p in range(3)]).all(-1)
        np.testing.assert_allclose(per_rollout(d, value).sum(-1)[full], 0.0, atol=1e-4)
        shifted = {**d, "logprob": (d["logprob"] - 1.0).astype(np.float32)}
        again = np.asarray(credit_of(estimator, to_trajectory(shifted)).value)
        np.testing.assert_allclose(again[full], value[full], rtol=1e-3, atol=1e-4)


def scored(scores, solved, progress=0.0):
    lp = jnp.repeat(jnp.float32(scores)[None, :, None], 2, axis=-1)
    return cj.Trajectory(
        tokens=jnp.zeros(lp.shape, jnp.int32),
        action_mask=jnp.ones(lp.shape, bool),
        outcome=jnp.float32([solved]),
        logprob=lp,
        signals={"progress": jnp.float32(progress)},
    )


def test_the_limits_of_a_contrast():
    credit = per_rollout(None, credit_of(cj.recipe("conspo").estimator, scored([-0.1, -9.0, -8.0], [1, 0, 0])).value)
    np.testing.assert_allclose(credit, 0.0, atol=1e-5)  # well separated: nothing to learn
    close = per_rollout(None, credit_of(cj.recipe("conspo").estimator, scored([-2.0, -2.1, -1.9], [1, 0, 0])).value)[0]
    assert close[2] < close[1] < 0 < close[0]  # the likeliest wrong answer is pushed down most
    tau = 1e4  # tau -> inf: a scaled contrast of the class means
    wide = per_rollout(
        None, credit_of(cj.recipe("conspo", tau=tau).estimator, scored([-1, -5, -2, -3], [1, 1, 0, 0])).value
    )
    np.testing.assert_allclose(wide * tau, [[1 / 3, 1 / 3, -1 / 3, -1 / 3]], rtol=1e-3)
    ahead = [
        float(credit_of(cj.recipe("conspo").estimator, scored([-1.0, -1.2], [1, 0], p)).value[0, 0, 0])
        for p in (0, 0.5, 1)
    ]
    assert ahead[0] < ahead[1] < ahead[2]  # the margin grows with the run


# ------------------------------------------------------------------------------------------------------------ W-DPO


def test_graded_pairs():

    rng = np.random.default_rng(0)
    ranked = jax.jit(ranked_pairs)
    for _ in range(50):
        solved, quality = rng.integers(0, 2, 5).astype(np.float32), rng.integers(0, 4, 5).astype(np.float32) / 3
        vote = (rng.random(5) < 0.8).astype(np.float32)
        weight, there = (np.asarray(x) for x in ranked(solved, vote, quality))
        assert np.all((weight >= 0) & (weight <= 1)) and not np.any((weight > 0) & (weight.T > 0))
        assert not np.any((weight > 0) & (solved[:, None] < solved[None, :]))
        across = (solved[:, None] > solved[None, :]) & (vote[:, None] * vote[None, :] > 0)
        assert np.all(weight[across] == 1) and np.all((weight > 0) == (there > 0))
        order = rng.permutation(5)
        again = np.asarray(ranked(solved[order], vote[order], quality[order]).weight)
        np.testing.assert_array_equal(again, weight[np.ix_(order, order)])


# ------------------------------------------------------------------------------------------------------------ VIMPO

BETA = 0.7


def tabular(rng, depth=3, vocab=3):
    """A reference, a terminal reward, and the KL-regularised optimum with its soft values, over all prefixes."""
    leaves = {seq: float(rng.normal()) for seq in itertools.product(range(vocab), repeat=depth)}
    reference, value, policy = {}, dict(leaves), {}
    for length in range(depth - 1, -1, -1):
        for prefix in itertools.product(range(vocab), repeat=length):
            reference[prefix] = rng.dirichlet(np.ones(vocab))
            ahead = np.array([value[(*prefix, a)] for a in range(vocab)])
            value[prefix] = BETA * np.log(np.sum(reference[prefix] * np.exp(ahead / BETA)))
            policy[prefix] = reference[prefix] * np.exp((ahead - value[prefix]) / BETA)
    return leaves, reference, policy, value


def enumerated(leaves, reference, policy):
    """Every sequence as one rollout ``[1, G, T]`` with exact token divergences."""
    rows = list(leaves)
    at = lambda table: np.float32([[[np.log(table[s[:t]][s[t]]) for t in range(len(s))] for s in rows]])  # noqa: E731
    kl = {p: float(np.sum(policy[p] * np.log(policy[p] / reference[p]))) for p in policy}
    return cj.Trajectory(
        tokens=np.int32([rows]),
        action_mask=np.ones((1, len(rows), len(rows[0])), bool),
        outcome=np.float32([list(leaves.values())]),
        logprob=at(policy),
        signals={
            "logprob_current": at(policy),
            "logprob_ref": at(reference),
            "token_kl": np.float32([[[kl[s[:t]] for t in range(len(s))] for s in rows]]),
        },
    )


def test_the_optimum_holds_its_own_soft_values():
    leaves, reference, policy, value = tabular(np.random.default_rng(1))
    batch = enumerated(leaves, reference, policy)
    log_gain = chain(log_ratio("logprob_current", "logprob_ref"), scale(BETA))
    rho = np.asarray(credit_of(log_gain, batch).value)[0]
    # The log-ratios add up to the reward above the value of the prompt, on every trajectory.
    np.testing.assert_allclose(rho.sum(-1), np.array(list(leaves.values())) - value[()], rtol=1e-4, atol=1e-5)
    # What is to come, less the log-ratios to come, is the soft value of every prefix.
    inspected = credit_of(chain(blend((rewards(), 1.0), (log_gain, -1.0)), future_sum()), batch)
    wanted = [[value[s[:t]] for t in range(len(s))] for s in leaves]
    np.testing.assert_allclose(inspected.value[0], wanted, rtol=1e-4, atol=1e-5)
    # The centred log-ratio has mean 0 under the policy, at every prefix.
    a = rho - BETA * np.asarray(batch.signals["token_kl"])[0]
    for t in range(3):
        for prefix in itertools.product(range(3), repeat=t):
            rows = {s[t]: a[i, t] for i, s in enumerate(leaves) if s[:t] == prefix}
            assert abs(sum(policy[prefix][token] * x for token, x in rows.items())) < 1e-5


def test_no_value_loss_means_that_credit_telescopes():
    """Where the regression is met, the centred log-ratios of a rollout add up to its centred reward."""
    d = drawn(0, prompts=1)
    batch = to_trajectory(d)
    target = np.asarray(credit_of(cj.recipe("dr_grpo").estimator, batch).value)
    target = np.where(target.max(-1) > 0, target.max(-1), target.min(-1))
    n = np.maximum(np.asarray(batch.action_mask).sum(-1, keepdims=True), 1)
    kl = np.where(batch.action_mask, batch.signals["token_kl"], 0.0)
    ref = np.where(batch.action_mask, batch.signals["logprob_ref"], 0.0)
    lp = jnp.asarray(ref + kl + target[..., None] / n / BETA)
    credit = Credit(jnp.zeros_like(lp), batch.action_mask, {}, Level.TOKEN)
    new = PolicyOutput(lp, -lp, statistics={"token_kl": batch.signals["token_kl"]})
    assert float(obj.total(obj.implied_value(beta=BETA)(new, credit, batch))) < 1e-6
    centred = blend((log_ratio("logprob_current", "logprob_ref"), BETA), (signal("token_kl"), -BETA))
    a = np.asarray(credit_of(centred, batch.with_signals(logprob_current=lp)).value)
    np.testing.assert_allclose(a.sum(-1), target, rtol=1e-4, atol=1e-5)


def test_the_decay_and_the_actor_can_be_left_out():
    d = drawn(3)
    batch = to_trajectory(d)
    one_step = np.asarray(credit_of(cj.recipe("vimpo", lam=0.0).estimator, batch).value)
    np.testing.assert_allclose(one_step, contrast.vimpo(d, lam=0.0), rtol=2e-4, atol=2e-5)
    recipe = cj.recipe("vimpo", actor_weight=0.0)
    credit = credit_of(recipe.estimator, batch)
    lp = jnp.where(batch.action_mask, batch.logprob - 0.1, 0.0)
    new = PolicyOutput(lp, -lp, statistics={"token_kl": batch.signals["token_kl"]})
    alone = obj.total(obj.implied_value()(new, credit, batch))
    np.testing.assert_allclose(obj.total(recipe.objective(new, credit, batch)), alone, rtol=1e-6)


# ------------------------------------------------------------------------------------------- TIPS and the implicit PRM


def test_a_judge_is_paid_for_its_verdict_alone():

    right, wrong, word = 1, 2, 0
    #          reasoning, three step labels, the outcome's
    written = np.int32([[word, 1, 1, 2, 2], [word, 2, 1, 2, 2], [word, 1, 1, 1, 1], [word, word, 1, 1, 1]])
    batch = cj.Trajectory(
        tokens=written[None],
        action_mask=np.ones((1, 4, 5), bool),
        outcome=np.ones((1, 4)),
        logprob=-np.ones((1, 4, 5)),
    )
    judged = add_verdict(batch, jnp.int32([3]), jnp.int32([0]), right=right, wrong=wrong, num_steps=3)
    np.testing.assert_array_equal(judged.signals["verdict"], [[0, 0, 1, -1]])
    read = read_judgement(written, written >= 0, jnp.full(4, 3), right=right, wrong=wrong, num_steps=3)
    np.testing.assert_array_equal(read.first_error, [2, 0, -1, -1])
    np.testing.assert_array_equal(read.label, [[1, 1, 0], [0, 1, 0], [1, 1, 1], [np.nan] * 3])
    np.testing.assert_array_equal(read.position[:3], [[1, 2, 3]] * 3)
    credit = np.asarray(credit_of(cj.recipe("tips_prm").estimator, judged).value)[0, :, 0]
    # Rollouts 0 and 1 differ in a step label alone and earn the same; the unreadable one earns what the wrong one does.
    assert credit[0] == credit[1] > 0 > credit[2] == credit[3]
    same = judged.replace(outcome=np.ones((1, 4))).with_signals(verdict=jnp.zeros((1, 4), jnp.int32))
    assert not np.any(credit_of(cj.recipe("tips_prm").estimator, same).value)


def test_labels_are_counted_against_the_steps_of_the_solution():

    rng = np.random.default_rng(0)
    tokens, mask = rng.integers(0, 3, (60, 7)).astype(np.int32), rng.random((60, 7)) < 0.8
    steps = rng.integers(1, 4, 60).astype(np.int32)
    read = jax.jit(lambda *x: read_judgement(*x, right=1, wrong=2, num_steps=3))(tokens, mask, steps)
    parsed = 0
    for i in range(60):
        labels = [int(x == 1) for x, m in zip(tokens[i], mask[i], strict=True) if m and x]
        good = len(labels) == steps[i] + 1
        parsed += good
        assert read.verdict[i] == (labels[-1] if good else -1)
        wrong = [k for k, x in enumerate(labels[:-1]) if not x]
        assert read.first_error[i] == (wrong[0] if good and wrong else -1)
    assert 5 < parsed < 55


def test_a_right_verdict_on_a_wrong_solution_flags_a_step():
    """Where the outcome label is the AND of the step labels (K = 3, all of them)."""
    for labels in itertools.product((0, 1), repeat=3):
        verdict = int(all(labels))
        assert verdict != 0 or 0 in labels
        tokens = jnp.int32([[*(1 if x else 2 for x in labels), 1 if verdict else 2]])

        read = read_judgement(tokens, tokens > 0, jnp.int32([3]), right=1, wrong=2, num_steps=3)
        assert (int(read.verdict[0]) == 0) == (int(read.first_error[0]) >= 0)


def test_step_rewards_add_up_to_the_reward_of_the_rollout():

    d = drawn(1)
    estimator = cj.recipe("implicit_prm").estimator
    whole = np.asarray(implicit_reward(*(d[x] for x in ("logprob_prm", "logprob_ref", "action_mask"))))
    # Every acted position in a segment: K segments, or the first two merged, or one.
    for merge in (0, 1, 3):
        segment = np.maximum(np.maximum(d["segment"], 0) - merge, 0)
        value = np.asarray(credit_of(estimator, to_trajectory({**d, "segment": segment.astype(np.int32)})).value)
        for p, g in np.ndindex(*whole.shape):
            if votes(d, p, g) and acted(d, p, g):
                steps = {int(segment[p, g, t]): float(value[p, g, t]) for t in acted(d, p, g)}
                np.testing.assert_allclose(sum(steps.values()), whole[p, g], rtol=1e-4, atol=1e-6)


def test_the_partial_sums_of_an_implicit_reward_are_soft_values():
    leaves, reference, policy, _ = tabular(np.random.default_rng(2))
    batch = enumerated(leaves, reference, policy)
    batch = batch.with_signals(logprob_prm=batch.logprob)
    token = np.asarray(credit_of(chain(log_ratio("logprob_prm", "logprob_ref"), scale(BETA)), batch).value)[0]
    so_far, rows = np.cumsum(token, axis=-1), list(leaves)
    prob = np.exp(np.asarray(batch.signals["logprob_ref"])[0].sum(-1))
    for t, (i, s) in itertools.product(range(3), enumerate(rows)):
        under = [j for j, other in enumerate(rows) if other[: t + 1] == s[: t + 1]]
        mean = np.sum(prob[under] * np.exp(so_far[under, -1] / BETA)) / prob[under].sum()
        np.testing.assert_allclose(so_far[i, t], BETA * np.log(mean), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("kind", "start"), [("ce", 1), ("kto", 1), ("dpo", 1), ("nca", 2)])
def test_outcome_losses_of_the_implicit_model(kind, start):

    run = jax.jit(
        jax.value_and_grad(lambda prm, ref, batch: implicit_prm_loss(prm, ref, batch, 0.5, kind, 0.3), has_aux=True)
    )
    for seed in range(0, 3 * SEEDS, 3):  # outcomes 0 and 1
        d = drawn(seed)
        batch, mask = to_trajectory(d, ()), d["action_mask"]
        prm, ref = (np.where(mask, d[x], 0.0).astype(float) for x in ("logprob_prm", "logprob_ref"))
        (total, count), gradient = run(d["logprob_prm"], d["logprob_ref"], batch)

        def loss(x, ref=ref, d=d):
            return contrast.implicit_losses(0.5 * (x - ref).sum(-1), d, kind, 0.3)[0]

        wanted, number = contrast.implicit_losses(0.5 * (prm - ref).sum(-1), d, kind, 0.3)
        np.testing.assert_allclose([total, count], [wanted, number], rtol=1e-4, atol=1e-5)
        direction = np.where(mask, np.random.default_rng(seed).normal(size=mask.shape), 0.0)
        slope = (loss(prm + 1e-5 * direction) - loss(prm - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=5e-4, atol=1e-4)
        assert not np.any(np.asarray(gradient)[~mask])
        initial, count = implicit_prm_loss(d["logprob_ref"], d["logprob_ref"], batch, kind=kind)
        np.testing.assert_allclose(initial, start * np.log(2) * count, rtol=1e-5)
        if kind == "dpo":
            with_threshold = implicit_pair_loss(d["logprob_prm"], d["logprob_ref"], batch, 0.5, threshold=0.5)
            np.testing.assert_allclose(with_threshold, (total, count), rtol=1e-5)
    with pytest.raises(ValueError, match="kind: 'dop'"):
        implicit_prm_loss(d["logprob_ref"], d["logprob_ref"], batch, kind="dop")


# ---------------------------------------------------------------------- cards that are a piece under a name of its own


def test_aggregations_of_rows_of_one_length_differ_by_a_constant():
    rng = np.random.default_rng(0)
    mask = np.zeros((4, 8), bool)
    mask[:, 2:7] = True
    quotients = []
    for _ in range(6):
        loss = rng.normal(size=(4, 8)).astype(np.float32)
        found = [np.divide(*map(float, obj.aggregate(loss, mask, mode))) for mode in obj.MODES]
        quotients.append(np.array(found) / found[0])
    np.testing.assert_allclose(quotients, np.tile([1, 1, 5, 5 / 8], (6, 1))[:, _order()], rtol=1e-4)


def _order():
    wanted = ["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "seq_mean_token_sum_norm"]
    return [wanted.index(mode) for mode in obj.MODES]


def test_padding_columns_change_the_normalised_sum_alone():
    rng = np.random.default_rng(1)
    loss, mask = rng.normal(size=(5, 6)).astype(np.float32), rng.random((5, 6)) < 0.6
    wide, wide_mask = np.pad(loss, ((0, 0), (0, 3)), constant_values=np.nan), np.pad(mask, ((0, 0), (0, 3)))
    for how in (*obj.MODES, obj.Aggregation("seq_mean_token_sum_norm", 6)):
        narrow, padded = (np.divide(*map(float, obj.aggregate(*x, how))) for x in ((loss, mask), (wide, wide_mask)))
        np.testing.assert_allclose(padded, narrow * (6 / 9 if how == "seq_mean_token_sum_norm" else 1), rtol=1e-5)


def test_kl_estimates_in_expectation():
    """Exact over a softmax of five: values, and which divergence each gradient belongs to."""
    rng = np.random.default_rng(2)
    reference = np.log(rng.dirichlet(np.ones(5)))

    def expected(kind):
        def mean(theta, weights):
            logp = jax.nn.log_softmax(theta)
            return jnp.sum(weights * kl_estimate(logp, jnp.asarray(reference, jnp.float32), kind))

        theta = jnp.asarray(rng.normal(size=5), jnp.float32) * 0.5
        weights = jax.nn.softmax(theta)  # drawn from the policy: no gradient through the draw
        return theta, *jax.value_and_grad(mean)(theta, weights)

    def divergences(theta):
        logp = jax.nn.log_softmax(theta)
        forward = jnp.sum(jnp.exp(logp) * (logp - reference))
        return forward, jnp.sum(np.exp(reference) * (reference - logp))

    for kind, gradient_of in (("k1", None), ("k2", 0), ("k3", 1)):
        theta, value, gradient = expected(kind)
        if kind != "k2":
            np.testing.assert_allclose(value, divergences(theta)[0], rtol=1e-4)
        wanted = np.zeros(5) if gradient_of is None else jax.jacrev(lambda x: divergences(x)[gradient_of])(theta)  # noqa: B023
        np.testing.assert_allclose(gradient, wanted, atol=1e-5)
        assert kl_estimate(jnp.float32(-1.3), jnp.float32(-1.3), kind) == 0
        assert np.all(kl_estimate(-jnp.arange(9.0), jnp.full(9, -4.0), kind) >= 0) or kind == "k1"


def test_dynamic_sampling_keeps_the_groups_with_both_kinds_and_is_training_on_them_alone():
    for seed in range(0, 3 * SEEDS, 3):
        d = drawn(seed)
        batch = to_trajectory(d)
        credit = credit_of(chain(outcome(), drop_constant_groups("outcome")), batch)
        kept = np.asarray(credit.extras["loss_mask"])
        for p in range(3):
            right = [d["outcome"][p, g] for g in range(4) if votes(d, p, g)]
            keeps = len(set(right)) > 1  # some right and some wrong
            np.testing.assert_array_equal(kept[p], d["action_mask"][p] if keeps else False)
        rows = kept.any((-1, -2))
        lp = jnp.where(batch.action_mask, batch.logprob - 0.1, 0.0)
        for mode in obj.MODES:
            loss = obj.clipped_surrogate(aggregation=mode)
            whole = obj.total(loss(PolicyOutput(lp, -lp), credit, batch))
            take = lambda x: x[rows] if x.ndim and x.shape[0] == 3 else x  # noqa: B023, E731
            if rows.any() and seed < 12:
                alone = obj.total(loss(*jax.tree.map(take, (PolicyOutput(lp, -lp), credit, batch))))
                np.testing.assert_allclose(whole, alone, rtol=1e-5, atol=1e-6)


def test_the_overlong_penalty_is_a_ramp():
    length, limit, buffer, factor = 31, 20, 8, 2.0
    mask = np.arange(length)[None, :] < np.arange(length)[:, None]
    batch = cj.Trajectory(
        tokens=np.zeros((1, length, length), np.int32),
        action_mask=mask[None],
        outcome=np.zeros((1, length)),
        votes=np.ones((1, length), bool),
    )
    for floor in (False, True):
        piece = overlong_penalty(max_length=limit, buffer=buffer, factor=factor, floor=floor)
        value = np.asarray(credit_of(chain(outcome(), piece), batch).value)[0].min(-1)
        n = np.arange(length)
        assert not value[n <= limit - buffer].any() and value[limit] == -factor
        assert np.all(value <= 0) and np.all(np.diff(value) <= 0)
        ramp = -(n - (limit - buffer)) / buffer * factor
        between = (n >= limit - buffer) & (n <= limit)
        np.testing.assert_allclose(value[between], ramp[between], rtol=1e-6)
        assert np.all(value[n > limit] == -factor) if floor else np.all(value[n > limit] < -factor)
