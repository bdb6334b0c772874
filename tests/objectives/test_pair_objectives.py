"""Losses over pairs, groups, bins and loops: values and gradients against float64 references, and what all promise.

The references are in `oracles.contrast`. Their gradients are central differences: of every token on a few batches, and
along random directions on all.
"""

import functools

import chex
import jax
from jax import numpy as jnp
from jax.sharding import AxisType, NamedSharding, PartitionSpec
import numpy as np
from oracles import contrast
from oracles.batches import random_batch, to_trajectory
from oracles.credit import dr_grpo
import pytest

from creditjax import Trajectory
from creditjax import objectives as obj
from creditjax.algebra.credit import Credit, Level
from creditjax.kernels.pairs import span_weights
from creditjax.kernels.ratios import shared_log_ratio
from creditjax.kernels.segments import rank_bins
from creditjax.models.base import PolicyOutput
from creditjax.objectives.base import statistic_like

SEEDS, IN_FULL, DIRECTIONS = 20, 2, 3


# name: (objective, its reference as a function of (lp, frozen, d, credit))
CASES = {
    "espo": (
        obj.entropy_grouped_surrogate(bins=3, eps_low=0.1, eps_high=0.15),
        lambda lp, frozen, d, credit: contrast.espo(lp, frozen, d, credit, 3, 0.1, 0.15),
    ),
    "conspo": (
        obj.contrastive(temperature=0.3, warmup=0.5),
        lambda lp, frozen, d, _: contrast.conspo_loss(lp, frozen, d, tau=0.3, warmup=0.5),
    ),
    "vimpo": (
        obj.implied_value(beta=0.5),
        lambda lp, frozen, d, _: contrast.implied_value(lp, frozen, d, beta=0.5),
    ),
    "dpo": (obj.preference(beta=0.5), lambda lp, frozen, d, _: contrast.dpo(lp, frozen, d, beta=0.5)),
    "wdpo": (
        obj.preference(beta=0.5, score="steps"),
        lambda lp, frozen, d, _: contrast.dpo(lp, frozen, d, beta=0.5, graded=True),
    ),
    "without_ref": (
        obj.preference(beta=0.2, use_ref=False),
        lambda lp, frozen, d, _: contrast.dpo(lp, frozen, d, beta=0.2, use_ref=False),
    ),
    "t_reg": (
        obj.token_regularized_preference(beta=0.5, alpha=2.0),
        lambda lp, frozen, d, _: contrast.t_reg(lp, frozen, d, beta=0.5, alpha=2.0),
    ),
    "t_reg_plain": (
        obj.token_regularized_preference(beta=0.5, pair_weight=False),
        lambda lp, frozen, d, _: contrast.t_reg(lp, frozen, d, beta=0.5, pair_weight=False),
    ),
    "ctpd": (
        obj.span_preference(beta=0.3, scale=0.8),
        lambda lp, frozen, d, _: contrast.ctpd(lp, frozen, d, beta=0.3, scale=0.8),
    ),
    "rise": (
        obj.edit_preference(beta=0.5, rest_weight=0.3, nll=0.2),
        lambda lp, frozen, d, _: contrast.rise(lp, frozen, d, beta=0.5, rest_weight=0.3, nll=0.2),
    ),
}


@functools.cache
def drawn(seed: int, fragments: bool = False):
    """A batch, a policy that has moved, and a credit; `d` in NumPy and the arguments of an objective."""
    rng = np.random.default_rng([seed, 7])
    d = random_batch(rng, outcome=("binary", "unit", "real")[seed % 3], fragments=fragments)
    d["step_mask"] &= (rng.random(len(d["outcome"])) < 0.5)[:, None, None]  # some groups are of whole solutions
    mask = d["action_mask"]
    clean = np.where(mask, d["logprob"], 0.0).astype(float)
    moved = np.where(mask, clean + 0.3 * rng.normal(size=mask.shape), np.nan)
    value = np.where(mask, rng.normal(size=mask.shape), 0.0).astype(np.float32)
    credit = Credit(jnp.asarray(value), jnp.asarray(mask), {}, Level.TOKEN)
    lp = jnp.asarray(moved, jnp.float32)
    statistics = {name: jnp.asarray(d[name]) for name in ("token_kl", "loop_logprob", "exit_pdf")}
    return d, value.astype(float), (PolicyOutput(lp, -lp, lp, lp, statistics), credit, to_trajectory(d))


@jax.jit
def loss_and_gradient(objective, new, credit, batch, counts=None):
    def loss(logprob):
        terms = objective(new._replace(logprob=logprob), credit, batch)
        return obj.total(terms, counts), terms

    (value, terms), gradient = jax.value_and_grad(loss, has_aux=True)(new.logprob)
    return value, gradient, terms


def compare(name, seed, fragments=False):
    objective, reference = CASES[name]
    d, credit, arguments = drawn(seed, fragments)
    value, gradient, _ = loss_and_gradient(objective, *arguments)
    lp = np.where(d["action_mask"], np.asarray(arguments[0].logprob, float), 0.0)

    def loss(x):
        return reference(x, lp, d, credit)

    np.testing.assert_allclose(value, loss(lp), rtol=2e-4, atol=2e-6)
    gradient = np.asarray(gradient, float)
    assert not gradient[~d["action_mask"]].any()
    if seed < IN_FULL:
        wanted = contrast.numeric_gradient(loss, lp, contrast.tokens_of(d))
        np.testing.assert_allclose(gradient, wanted, rtol=2e-4, atol=5e-6)
    for direction in np.random.default_rng(seed).normal(size=(DIRECTIONS, *lp.shape)):
        direction = np.where(d["action_mask"], direction, 0.0)
        slope = (loss(lp + 1e-5 * direction) - loss(lp - 1e-5 * direction)) / 2e-5
        np.testing.assert_allclose(np.sum(gradient * direction), slope, rtol=5e-4, atol=2e-5)
    return np.any(gradient != 0)


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient_equal_the_reference(name):
    assert sum(compare(name, seed) for seed in range(SEEDS)) > SEEDS // 2


@pytest.mark.parametrize("name", ["conspo", "vimpo", "wdpo", "rise"])
def test_rows_cut_from_one_rollout_share_a_vote(name):
    for seed in range(8):
        compare(name, seed, fragments=True)


WEIGHTINGS = {
    "uniform": ({}, lambda d: np.full(3, 1 / 3)),
    "progressive": ({"power": 2.0}, lambda d: np.array([1.0, 4.0, 9.0]) / 14.0),
    "exit": ({}, lambda d: d["exit_pdf"].astype(float)),
    "learned": (
        {"theta": np.float32([0.1, -1.0, 0.7]), "temperature": 0.5},
        lambda d: np.exp([0.2, -2.0, 1.4]) / np.exp([0.2, -2.0, 1.4]).sum(),
    ),
}


@jax.jit
def loop_gradient(objective, new, credit, batch):
    def loss(objective, loops):
        statistics = {**new.statistics, "loop_logprob": loops}
        return obj.total(objective(new._replace(statistics=statistics), credit, batch))

    return jax.value_and_grad(loss, argnums=(0, 1))(objective, new.statistics["loop_logprob"])


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_looped_policy_gradient_equals_the_reference(weighting):
    settings, omega_of = WEIGHTINGS[weighting]
    objective = obj.looped_policy_gradient(weighting=weighting, **settings)
    for seed in range(SEEDS):
        d, credit, (new, given, batch) = drawn(seed)
        value, (leaves, gradient) = loop_gradient(objective, new, given, batch)
        mask = d["action_mask"]
        loops = np.where(mask[..., None], d["loop_logprob"], 0.0).astype(float)
        omega = omega_of(d)
        np.testing.assert_allclose(value, contrast.looped(loops, d, credit, omega), rtol=2e-4, atol=2e-6)
        # Each loop has omega_l times a REINFORCE gradient of its own.
        omega = np.where(mask[..., None], omega, 0.0)
        own = -credit[..., None] * omega / max(mask.sum(), 1)
        np.testing.assert_allclose(gradient, own, rtol=2e-4, atol=1e-6)
        if weighting == "learned":
            theta = settings["theta"].astype(float)

            def at(x):
                weight = np.exp(x / 0.5) / np.exp(x / 0.5).sum()
                return contrast.looped(loops, d, credit, weight)  # noqa: B023

            wanted = contrast.numeric_gradient(at, theta, [(0,), (1,), (2,)])
            np.testing.assert_allclose(leaves.leaves["theta"], wanted, rtol=2e-3, atol=1e-5)


def test_equal_loops_and_all_weight_on_the_last_are_the_plain_policy_gradient():
    _, _, (new, credit, batch) = drawn(0)
    plain = obj.total(obj.policy_gradient()(new, credit, batch))
    equal = new._replace(statistics={"loop_logprob": jnp.repeat(new.logprob[..., None], 4, axis=-1)})
    for objective in (obj.looped_policy_gradient(), obj.looped_policy_gradient(weighting="progressive", power=3.0)):
        np.testing.assert_allclose(obj.total(objective(equal, credit, batch)), plain, rtol=1e-5)
    loops = jnp.stack([new.logprob - 1.0, new.logprob - 2.0, new.logprob], axis=-1)
    last = obj.looped_policy_gradient(weighting="learned", theta=np.float32([-200.0, -200.0, 0.0]))
    value = obj.total(last(new._replace(statistics={"loop_logprob": loops}), credit, batch))
    np.testing.assert_allclose(value, plain, rtol=1e-5)
    with pytest.raises(ValueError, match=r"theta = None, wanted \[L=3\]"):
        obj.looped_policy_gradient(weighting="learned")(new._replace(statistics={"loop_logprob": loops}), credit, batch)


# ------------------------------------------------------------------------------------------------ what all losses keep

EVERY = {
    **{name: case[0] for name, case in CASES.items()},
    "looped": obj.looped_policy_gradient(weighting="exit"),
    "scaled": obj.scaled(obj.with_kl(obj.clipped_surrogate(), beta=0.1), 0.3),
}
counts_of = jax.jit(obj.counts)
PROMPTS = 3


def prompt_of(x, p):
    return x[p : p + 1] if x.ndim and x.shape[0] == PROMPTS else x


@pytest.mark.parametrize("name", EVERY)
def test_parts_add_up_to_the_whole(name):
    """Micro-batches of whole prompts give the loss, the terms and the gradient of the batch."""
    for seed in (1, 3):
        _, _, (new, credit, batch) = drawn(seed)
        whole, gradient, terms = loss_and_gradient(EVERY[name], new, credit, batch)
        counts = counts_of(EVERY[name], credit, batch)
        chex.assert_trees_all_equal(counts, {key: term.count for key, term in terms.items()})
        parts = [jax.tree.map(functools.partial(prompt_of, p=p), (new, credit, batch)) for p in range(PROMPTS)]
        results = [loss_and_gradient(EVERY[name], *part, counts) for part in parts]
        np.testing.assert_allclose(sum(r[0] for r in results), whole, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(np.concatenate([r[1] for r in results]), gradient, rtol=1e-5, atol=1e-6)
        summed = functools.reduce(obj.add, [terms for *_, terms in results])
        chex.assert_trees_all_close(obj.means(summed), obj.means(terms), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", EVERY)
def test_nothing_under_the_mask_is_read(name):
    _, _, (new, credit, batch) = drawn(2)
    mask, objective = batch.action_mask, EVERY[name]

    def poisoned(x, poison):
        full = jnp.expand_dims(mask, tuple(range(mask.ndim, x.ndim)))
        return jnp.where(full, x, poison)

    results = []
    for poison in (0.0, np.nan, np.inf, -800.0):
        fill = lambda x, poison=poison: poisoned(x, poison)  # noqa: E731
        changed = new._replace(
            logprob=fill(new.logprob), entropy=fill(new.entropy), statistics=jax.tree.map(fill, new.statistics)
        )
        results.append(loss_and_gradient(objective, changed, credit, batch))
    for result in results[1:]:
        chex.assert_trees_all_equal(result, results[0])
    assert np.isfinite(results[0][0])


@pytest.mark.parametrize("name", EVERY)
def test_extreme_policies_stay_finite(name):
    _, _, (new, credit, batch) = drawn(4)
    far = new._replace(logprob=-jnp.abs(new.logprob) * 300.0)
    value, gradient, terms = loss_and_gradient(EVERY[name], far, credit, batch)
    chex.assert_tree_all_finite((value, gradient, obj.means(terms)))


@pytest.mark.parametrize("name", EVERY)
def test_only_the_policy_carries_gradients(name):
    _, _, (new, credit, batch) = drawn(1)
    floats = {key: x for key, x in batch.signals.items() if x.dtype == jnp.float32}

    def loss(value, logprob, outcome, signals):
        moved = batch.replace(logprob=logprob, outcome=outcome).with_signals(**signals)
        return obj.total(EVERY[name](new, credit.replace(value=value), moved))

    gradients = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))(credit.value, batch.logprob, batch.outcome, floats)
    assert all(not np.any(leaf) for leaf in jax.tree.leaves(gradients))


@pytest.mark.parametrize("name", EVERY)
def test_a_dropped_prompt_is_as_good_as_absent(name):
    _, _, (new, credit, batch) = drawn(3)
    keep = np.array([True, False, True])
    dropped = credit.with_extras(loss_mask=batch.action_mask & keep[:, None, None])
    take = lambda x: x[keep] if x.ndim and x.shape[0] == len(keep) else x  # noqa: E731
    full = loss_and_gradient(EVERY[name], new, dropped, batch)
    kept = loss_and_gradient(EVERY[name], *jax.tree.map(take, (new, credit, batch)))
    np.testing.assert_allclose(full[0], kept[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(np.asarray(full[1])[keep], kept[1], rtol=1e-5, atol=1e-6)
    assert not np.any(np.asarray(full[1])[~keep])
    chex.assert_trees_all_close({n: t.count for n, t in full[2].items()}, {n: t.count for n, t in kept[2].items()})


@pytest.mark.parametrize("name", EVERY)
def test_nobody_to_compare_with_is_no_loss(name):
    _, _, (new, credit, batch) = drawn(0)
    silent = batch.replace(action_mask=jnp.zeros_like(batch.action_mask), outcome=jnp.full_like(batch.outcome, np.nan))
    credit = credit.replace(valid=silent.action_mask)
    value, gradient, terms = loss_and_gradient(EVERY[name], new, credit, silent)
    assert value == 0 and not np.any(gradient) and all(term.count == 0 for term in terms.values())


def test_shards_do_not_change_the_loss():
    d = random_batch(np.random.default_rng(5), prompts=8)
    batch = to_trajectory(d)
    lp = jnp.asarray(np.where(d["action_mask"], d["logprob"], 0.0) - 0.1)
    new = PolicyOutput(lp, -lp, lp, lp, {"token_kl": jnp.abs(lp)})
    credit = Credit(lp, batch.action_mask, {}, Level.TOKEN)
    mesh = jax.make_mesh((4,), ("data",), axis_types=(AxisType.Auto,), devices=jax.devices()[:4])
    rows, whole = (NamedSharding(mesh, PartitionSpec(*axes)) for axes in (("data",), ()))
    place = lambda x: jax.device_put(x, rows if x.ndim and x.shape[0] == 8 else whole)  # noqa: E731
    objective = obj.combine(obj.implied_value(), obj.edit_preference(), obj.contrastive())
    single = loss_and_gradient(objective, new, credit, batch)
    sharded = loss_and_gradient(objective, *jax.tree.map(place, (new, credit, batch)))
    chex.assert_trees_all_close(sharded, single, rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------- card properties of the losses


def group_of_two(seed: int, length: int = 9):
    """Pairs of a data set: ``[P, 2, T]`` with outcomes 1 and 0, all tokens acted, and the arguments of an objective."""
    rng = np.random.default_rng(seed)
    shape = (5, 2, length)
    draw = lambda: jnp.asarray(-rng.exponential(size=shape), jnp.float32)  # noqa: E731
    names = ("logprob_ref", "logprob_better", "logprob_worse")
    spans = {f"teacher_span_{x}": jnp.asarray(-rng.exponential(size=(5, 2, 3)), jnp.float32) for x in ("logprob",)}
    spans |= {f"teacher_span_{x}": spans["teacher_span_logprob"] for x in ("better", "worse")}
    batch = Trajectory(
        tokens=jnp.zeros(shape, jnp.int32),
        action_mask=jnp.ones(shape, bool),
        outcome=jnp.tile(jnp.float32([1.0, 0.0]), (5, 1)),
        segment=jnp.tile(jnp.arange(length) // 3, (5, 2, 1)).astype(jnp.int32),
        num_segments=3,
        signals={**{name: draw() for name in names}, **spans},
    )
    lp = draw()
    return PolicyOutput(lp, -lp), Credit(lp, batch.action_mask, {}, Level.TOKEN), batch


def test_preference_losses_reduce_to_dpo():
    new, credit, batch = group_of_two(0)
    wanted = loss_and_gradient(obj.preference(beta=0.5), new, credit, batch)
    lead = np.sum(np.asarray(new.logprob - batch.signals["logprob_ref"]), axis=-1)
    np.testing.assert_allclose(wanted[0], np.mean(np.log1p(np.exp(-0.5 * (lead[:, 0] - lead[:, 1])))), rtol=1e-5)
    same = {
        "T-REG with alpha 0": obj.token_regularized_preference(beta=0.5, alpha=0.0),
        "RISE without edited steps and imitation": obj.edit_preference(beta=0.5, nll=0.0, edits=False),
        "W-DPO between different outcomes": obj.preference(beta=0.5, score="steps"),
    }
    judged = batch.with_signals(step_label=jnp.ones((5, 2, 3)))
    for what, objective in same.items():
        chex.assert_trees_all_close(loss_and_gradient(objective, new, credit, judged)[:2], wanted[:2], rtol=1e-5), what
    # CTPD without a lead of the one teacher over the other: DPO with the teacher as the reference.
    teacher = jnp.repeat(batch.signals["teacher_span_logprob"] / 3, 3, axis=-1)
    referred = batch.with_signals(logprob_ref=teacher)
    plain = loss_and_gradient(obj.preference(beta=0.5), new, credit, referred)
    for scale in (1.0, 2.0):
        found = loss_and_gradient(obj.span_preference(beta=0.5 / scale, scale=scale), new, credit, batch)
        chex.assert_trees_all_close(found[:2], plain[:2], rtol=1e-4, atol=1e-6)


def test_at_the_reference_every_pair_costs_log_2():
    _, credit, batch = group_of_two(1)
    at = PolicyOutput(batch.signals["logprob_ref"], batch.signals["logprob_ref"])
    for objective in (obj.preference(), obj.edit_preference(nll=0.0, edits=False), obj.token_regularized_preference()):
        np.testing.assert_allclose(loss_and_gradient(objective, at, credit, batch)[0], np.log(2), rtol=1e-6)


def test_swapping_the_outcomes_flips_the_margin():
    new, credit, batch = group_of_two(2)
    lead = 0.1 * jnp.sum(new.logprob - batch.signals["logprob_ref"], axis=-1)
    lead = np.asarray(lead[:, 0] - lead[:, 1])
    for outcome, sign in ((batch.outcome, 1), (batch.outcome[:, ::-1], -1)):
        found = loss_and_gradient(obj.preference(), new, credit, batch.replace(outcome=outcome))[0]
        np.testing.assert_allclose(found, np.mean(np.log1p(np.exp(-sign * lead))), rtol=1e-5)


def test_the_token_term_follows_q_whatever_the_label():
    new, credit, batch = group_of_two(3)

    def gradient(objective, batch=batch):
        return np.asarray(loss_and_gradient(objective, new, credit, batch)[1])

    plain = {"beta": 0.5, "pair_weight": False}
    token = gradient(obj.token_regularized_preference(alpha=1.0, **plain)) - gradient(
        obj.token_regularized_preference(alpha=0.0, **plain)
    )
    q = np.asarray(jax.nn.sigmoid(batch.signals["logprob_better"] - batch.signals["logprob_worse"])) - 0.5
    assert np.all(np.abs(q) < 0.5) and np.all(np.sign(token) == -np.sign(q))
    equal = batch.with_signals(logprob_worse=batch.signals["logprob_better"])
    np.testing.assert_allclose(
        gradient(obj.token_regularized_preference(alpha=1.0, **plain), equal),
        gradient(obj.preference(beta=0.5), equal),
        rtol=1e-5,
    )


def test_span_weights_stay_in_their_bounds():
    rng = np.random.default_rng(0)
    better, worse = (jnp.asarray(rng.normal(size=(2, 50)) * 3, jnp.float32) for _ in range(2))
    up, down = span_weights(better, worse, jnp.ones((2, 50), bool), -0.5, 1.5, 2.0)
    assert np.all((up >= 2 * np.exp(-0.5) - 1e-5) & (up <= 2 * np.exp(1.5) + 1e-5))
    assert np.all((down >= 2 * np.exp(-1.5) - 1e-5) & (down <= 2 * np.exp(0.5) + 1e-5))
    np.testing.assert_allclose(up * down, 4.0, rtol=1e-5)


def test_edited_steps_leave_prefix_and_common_tokens_alone():
    new, credit, batch = group_of_two(4)
    position = jnp.arange(batch.length)
    step = jnp.broadcast_to(position >= 4, batch.tokens.shape)
    edit = jnp.broadcast_to(position == 6, batch.tokens.shape)
    edited = batch.with_signals(step_mask=step, edit_mask=edit)
    strict = np.asarray(loss_and_gradient(obj.edit_preference(rest_weight=0.0), new, credit, edited)[1])
    assert not strict[..., [0, 1, 2, 3, 4, 5, 7, 8]].any() and strict[..., 6].all()
    whole = np.asarray(loss_and_gradient(obj.edit_preference(rest_weight=1.0), new, credit, edited)[1])
    assert not whole[..., :4].any() and whole[..., 4:].all()
    terms = loss_and_gradient(obj.edit_preference(), new, credit, edited)[2]
    assert terms["preference"].count == terms["nll"].count == 0 and terms["step_preference"].count == 5


def test_the_first_value_gradient_is_the_group_policy_gradient():
    """VIMPO at the reference: minus ``β (R − mean R) / N`` at every token."""
    d, _, (new, credit, batch) = drawn(0)
    at = new._replace(
        logprob=jnp.where(batch.action_mask, batch.signals["logprob_ref"], 0.0),
        statistics={"token_kl": jnp.zeros_like(new.logprob)},
    )
    _, gradient, terms = loss_and_gradient(obj.implied_value(beta=0.5), at, credit, batch)
    wanted = -0.5 * dr_grpo(d) / float(terms["implied_value"].count)
    np.testing.assert_allclose(gradient, wanted, rtol=1e-4, atol=1e-6)
    assert np.any(wanted != 0)


def test_entropy_groups_lie_between_gspo_and_grpo():
    for seed in range(3):
        _, _, (new, credit, batch) = drawn(seed)
        new = new._replace(logprob=jnp.where(batch.action_mask, new.logprob, 0.0))
        settings = {"eps_low": 0.1, "eps_high": 0.2}
        fixed = {**settings, "q_min": 1.0, "q_max": 1.0}
        gspo = obj.clipped_surrogate(ratio="sequence", aggregation="seq_mean_token_mean", **settings)
        grpo = obj.clipped_surrogate(aggregation="seq_mean_token_mean", **settings)
        for bins, wanted in ((1, gspo), (batch.length, grpo)):
            found = loss_and_gradient(obj.entropy_grouped_surrogate(bins=bins, **fixed), new, credit, batch)
            plain = loss_and_gradient(wanted, new, credit, batch)
            chex.assert_trees_all_close(found[:2], plain[:2], rtol=1e-5, atol=1e-6)
        # On-policy nothing is clipped and every ratio is 1.
        old = new._replace(logprob=batch.logprob)
        found, plain = (loss_and_gradient(x, old, credit, batch) for x in (obj.entropy_grouped_surrogate(), grpo))
        chex.assert_trees_all_close(found[:2], plain[:2], rtol=1e-5, atol=1e-6)


def test_entropy_groups_are_clipped_one_by_one():
    _, credit, batch = group_of_two(5)
    lp = jnp.full(batch.tokens.shape, -1.0)
    batch = batch.replace(logprob=lp).with_signals(
        entropy=jnp.broadcast_to(jnp.arange(batch.length) + 1.0, batch.tokens.shape)
    )
    credit = credit.replace(value=jnp.ones_like(lp))
    moved = PolicyOutput(lp + jnp.where(jnp.arange(batch.length) < 3, 0.5, 0.0), -lp)
    objective = obj.entropy_grouped_surrogate(bins=3, eps_low=0.1, eps_high=0.1, q_max=1.0)
    _, gradient, terms = loss_and_gradient(objective, moved, credit, batch)
    assert not np.any(gradient[..., :3]) and np.all(np.asarray(gradient)[..., 3:] < 0)
    np.testing.assert_allclose(obj.means(terms)["clip_fraction"], 1 / 3, rtol=1e-5)


def test_the_bins_of_a_rollout():
    rng = np.random.default_rng(0)
    binned = jax.jit(rank_bins, static_argnums=2)
    for bins in (1, 4, 7):
        for _ in range(20):
            mask = rng.random(16) < 0.6
            x = np.where(mask, rng.integers(0, 5, 16), np.nan).astype(np.float32)
            found, n = np.asarray(binned(x, mask, bins)), int(mask.sum())
            assert np.all(found[~mask] == -1)
            held = np.bincount(found[mask], minlength=bins) if n else np.zeros(bins)
            assert (held > 0).sum() == min(bins, n) and held.max() - held.min() <= 1
            order = sorted(np.flatnonzero(mask), key=lambda t: (x[t], t))  # noqa: B023
            assert [bins * rank // n for rank in range(n)] == [found[t] for t in order]


def test_the_mean_of_the_groups_is_the_ratio_of_the_sequence():
    _, _, (new, credit, batch) = drawn(1)
    mask = np.asarray(batch.action_mask)
    for p, g in np.ndindex(*batch.batch_shape):
        log_ratio = np.where(mask[p, g], new.logprob[p, g] - batch.logprob[p, g], 0.0)
        owner = rank_bins(batch.signals["entropy"][p, g], mask[p, g], 4)
        shared = np.asarray(shared_log_ratio(log_ratio, mask[p, g], owner, 4))
        np.testing.assert_allclose(shared.sum(), log_ratio.sum(), rtol=1e-4, atol=1e-5)


def test_missing_inputs_are_named():
    _, _, (new, credit, batch) = drawn(0)
    bare = batch.replace(signals={})
    for objective in (obj.preference(), obj.token_regularized_preference(), obj.span_preference(), obj.contrastive()):
        with pytest.raises(ValueError, match="needs `"):
            objective(new, credit, bare)
    with pytest.raises(ValueError, match="needs `token_kl`.* in new.statistics"):
        obj.implied_value()(new._replace(statistics={}), credit, batch)
    with pytest.raises(ValueError, match="needs `loop_logprob`"):
        obj.looped_policy_gradient()(new._replace(statistics={}), credit, batch)
    with pytest.raises(ValueError, match="bins = 0"):
        obj.entropy_grouped_surrogate(bins=0)(new, credit, batch)
    row = jax.tree.map(lambda x: x[0, 0] if x.ndim > 1 else x, (new, credit))
    single = to_trajectory({k: v[0, 0] if np.ndim(v) > 1 else v for k, v in drawn(0)[0].items()}, ("logprob_ref",))
    with pytest.raises(ValueError, match=r"wanted \[..., G, T\]"):
        obj.preference()(*row, single)
    assert statistic_like("loop_logprob", new.logprob).shape == (*new.logprob.shape, 1)
    assert obj.scaled(obj.clipped_surrogate(aggregation="seq_mean_token_sum"), 2.0).aggregation.mode == (
        "seq_mean_token_sum"
    )
