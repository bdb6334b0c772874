"""The stepwise task: rules and oracles against a plain reading of the transcript, demonstrations, prompt variants."""

import functools

import jax
import numpy as np
import pytest

from creditjax import samplers, tasks
from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.tasks import stepwise
from creditjax.tasks.stepwise import ANSWER, ASK, BAD, CHECK, GOOD, PAD, PLUS, SAME, StepwiseTask
from creditjax.trajectory import SIGNALS

D = len(stepwise._SPECIAL)
TASK = StepwiseTask(addends=3, base=5, max_turns=6, eval_size=16)


@functools.partial(jax.jit, static_argnums=0)
def play(task, prompts, steps):
    return task.play(prompts, steps)


def random_steps(rng, task, prompts, group):
    """Steps that are mostly right, so that prefixes get long: i32 ``[P, G, K, 2]``."""
    turns = task.turns.max_turns
    out = np.zeros((len(prompts.data), group, turns, 2), np.int32)
    for p, addends in enumerate(np.asarray(prompts.data)):
        for g in range(group):
            total = used = 0
            for k in range(turns):
                kind = ANSWER if used == task.addends else PLUS
                kind = rng.choice([kind, SAME, ANSWER, ASK], p=[0.75, 0.15, 0.05, 0.05])
                total = (total + (addends[used] if kind == PLUS and used < task.addends else 0)) % task.base
                used += int(kind == PLUS and used < task.addends)
                total = rng.integers(task.base) if rng.random() < 0.15 else total
                out[p, g, k] = kind, D + total if rng.random() < 0.95 else PLUS
    return out


def read(task, addends, steps):
    """What the module's first paragraph says, step by step in Python."""
    turns, total, used, right_so_far, ended = task.turns.max_turns, 0, 0, True, False
    labels, potential, keys, correct = [], [], [], 0.0
    for k in range(turns + 1):
        room = turns - k >= task.addends - used + 1
        potential.append(correct if ended else (1.0 if right_so_far and room else 1 / task.base))
        if k == turns:
            break
        if ended:
            labels.append(None)
            keys.append(None)
            continue
        keys.append((*addends, used, total))
        kind, digit = steps[k][0], steps[k][1] - D
        if kind not in (PLUS, SAME, ANSWER) or not 0 <= digit < task.base:
            labels.append((False, False))
            right = False
        else:
            due = (total + addends[used]) % task.base if kind == PLUS and used < task.addends else total
            may = used < task.addends if kind == PLUS else kind == SAME or used == task.addends
            right = bool(may and digit == due)
            labels.append((right, kind == SAME))
            used += int(kind == PLUS and used < task.addends)
            total = digit
            if kind == ANSWER:
                ended, correct = True, float(digit == sum(addends) % task.base)
        right_so_far &= right
        ended |= k + 1 == turns
    return labels, potential, keys, correct


@pytest.fixture(scope="module")
def played():
    prompts = TASK.prompts("train", 0, 16)
    steps = random_steps(np.random.default_rng(0), TASK, prompts, 8)
    return prompts, steps, jax.device_get(play(TASK, prompts, steps))


def test_oracles_read_the_transcript(played):
    prompts, steps, batch = played
    seen, keys, errors = set(), {}, 0
    for p, g in np.ndindex(16, 8):
        labels, potential, states, correct = read(TASK, prompts.data[p].tolist(), steps[p, g].tolist())
        taken = [label is not None for label in labels]
        paid = [float(label is not None and label[0] and not label[1]) for label in labels]
        np.testing.assert_array_equal(batch.signals["process_reward"][p, g], paid)
        np.testing.assert_allclose(batch.signals["potential"][p, g], potential, rtol=1e-6)
        assert batch.outcome[p, g] == batch.signals["accuracy"][p, g] == correct
        assert batch.action_mask[p, g].sum() == 2 * sum(taken)
        assert batch.reward[p, g].sum() == correct
        for k, state in enumerate(states):
            key = int(batch.signals["state_key"][p, g, k])
            assert (key == -1) == (state is None)
            if state is not None:
                assert keys.setdefault(key, state) == state  # equal keys mean equal states
        seen.add((correct, all(label is None or label[0] for label in labels)))
        errors += sum(label is not None and not label[0] for label in labels)
    assert len(set(keys.values())) == len(keys)
    # Right and wrong answers, and both a right answer after an error and a clean record without an answer in time.
    assert {(1.0, True), (0.0, False), (1.0, False)} <= seen and errors > 50


def test_the_judge_errs_at_its_rate_and_always_alike(played):
    prompts, steps, exact = played
    many = TASK.prompts("train", 0, 256)
    steps = random_steps(np.random.default_rng(1), TASK, many, 8)
    noisy = StepwiseTask(**{**TASK.__dict__, "noise": 0.2, "hackable": True, "signals": ("process_reward",)})
    clean = StepwiseTask(**{**noisy.__dict__, "noise": 0.0})
    run = jax.jit(lambda t, p, s: t.play(p, s).signals["process_reward"], static_argnums=0)
    labels, truth = np.asarray(run(noisy, many, steps)), np.asarray(run(clean, many, steps))
    batch = play(TASK, many, steps)
    taken = np.asarray(batch.signals["state_key"]) >= 0
    assert (labels[~taken] == 0).all()
    assert abs((labels != truth)[taken].mean() - 0.2) < 0.02
    for k in range(4):  # at every depth
        assert abs((labels != truth)[..., k][taken[..., k]].mean() - 0.2) < 0.05
    # The same content gets the same label, wherever it stands in the batch; another seed errs elsewhere.
    np.testing.assert_array_equal(
        run(noisy, jax.tree.map(lambda x: x[::-1], many), steps[::-1, ::-1]), labels[::-1, ::-1]
    )
    other = StepwiseTask(**{**noisy.__dict__, "seed": 1})
    assert (np.asarray(run(other, many, steps)) != labels)[taken].mean() > 0.2


def test_the_critic_states_the_provers_value_and_errs_at_its_rate(played):
    prompts, steps, batch = played
    value, taken = batch.signals["prover_value"][..., :-1], batch.signals["state_key"] >= 0
    said = batch.signals["critic_value"]
    assert said.shape == (*taken.shape, 2)
    np.testing.assert_array_equal(said, np.where(taken, value, np.nan)[..., None].repeat(2, -1))

    many = TASK.prompts("train", 0, 256)
    steps = random_steps(np.random.default_rng(2), TASK, many, 8)
    noisy = StepwiseTask(**{**TASK.__dict__, "noise": 0.2, "signals": ("critic_value", "prover_value", "judge_error")})
    run = jax.jit(lambda p, s: noisy.play(p, s))
    heard = run(many, steps)
    value, said = heard.signals["prover_value"][..., :-1, None], np.asarray(heard.signals["critic_value"])
    wrong, known = np.abs(said - value) > 1e-6, np.isfinite(said).all(-1)
    np.testing.assert_allclose(
        said[wrong & known[..., None]], (1 - value + 0 * said)[wrong & known[..., None]], atol=1e-6
    )
    # The value of a prompt is one draw a prompt, so begin where contents differ; 1 - V is V at one half.
    for k in (1, 2, 3):
        told = known[..., k] & (np.abs(value[..., k, 0] - 0.5) > 1e-3)
        rate = wrong[..., k, :][told]
        np.testing.assert_allclose(rate.mean(0), 0.2, atol=0.06)
        np.testing.assert_allclose(rate.all(-1).mean(), 0.04, atol=0.03)  # independent
    # What is stated as a step begins knows nothing of the step: rollouts that agree so far are told the same.
    first = said[..., 0, :]
    np.testing.assert_array_equal(first, first[:, :1].repeat(8, 1))
    assert 0.1 < wrong[:, 0, 0].mean() < 0.3
    again = np.asarray(run(jax.tree.map(lambda x: x[::-1], many), steps[::-1, ::-1]).signals["critic_value"])
    np.testing.assert_array_equal(again, said[::-1, ::-1])


def test_fillers_pay_only_whoever_can_be_fooled(played):
    prompts, _, _ = played
    addends = np.asarray(prompts.data)[:1]
    totals = np.cumsum(addends[0]) % 5
    filler = [[SAME, D + totals[0]]] * 3
    steps = np.array([[[[PLUS, D + totals[0]], *filler, [PLUS, D + totals[1]], [PLUS, D + totals[2]]]]], np.int32)
    first = jax.tree.map(lambda x: x[:1], prompts)
    hackable = StepwiseTask(**{**TASK.__dict__, "hackable": True})
    honest, fooled = play(TASK, first, steps), play(hackable, first, steps)
    np.testing.assert_array_equal(honest.signals["process_reward"][0, 0], [1, 0, 0, 0, 1, 1])
    np.testing.assert_array_equal(fooled.signals["process_reward"][0, 0], 1)
    assert honest.outcome[0, 0] == fooled.outcome[0, 0] == 0  # no turn was left for the answer
    # After the third filler the turns do not suffice: who would go on correctly can only guess.
    np.testing.assert_allclose(honest.signals["potential"][0, 0], [1, 1, 1, 1, 0.2, 0.2, 0], rtol=1e-6)


def test_the_prover_is_exact(played):
    """Its belief is the distribution of its answers, by simulation from every boundary."""
    prompts, steps, batch = played
    rng, runs = np.random.default_rng(3), 4000
    for p, g in ((0, 0), (3, 1), (7, 5)):
        addends = prompts.data[p]
        labels, _, states, _ = read(TASK, addends.tolist(), steps[p, g].tolist())
        for k, state in enumerate(states):
            if state is None or TASK.turns.max_turns - k < TASK.addends - state[-2] + 1:
                continue
            total = np.full(runs, state[-1])
            for addend in addends[state[-2] :]:
                slip = np.where(rng.random(runs) < TASK.prover_error, rng.integers(1, 5, runs), 0)
                total = (total + addend + slip) % 5
            wanted = np.bincount(total, minlength=5) / runs
            np.testing.assert_allclose(batch.signals["belief"][p, g, k], wanted, atol=0.03)
    belief, gold = batch.signals["belief"], np.asarray(prompts.data).sum(-1) % 5
    np.testing.assert_allclose(belief.sum(-1), 1, rtol=1e-5)
    np.testing.assert_array_equal(batch.signals["prover_value"], np.moveaxis(belief, -1, 1)[np.arange(16), gold])
    assert (batch.signals["gold_mark"] == gold).all()
    right = batch.signals["mark"] == gold[:, None]
    np.testing.assert_array_equal(right, batch.outcome == 1)
    np.testing.assert_array_equal(batch.signals["commitment_correct"][..., -1] & (batch.signals["mark"] >= 0), right)
    assert (batch.signals["confidence"] >= 0.2 - 1e-6).all() and (batch.signals["confidence"] <= 1).all()


def test_labels_of_steps(played):
    prompts, steps, batch = played
    taken = batch.signals["state_key"] >= 0
    for p, g in np.ndindex(16, 8):
        labels, _, states, correct = read(TASK, prompts.data[p].tolist(), steps[p, g].tolist())
        right = [float(label is not None and label[0]) for label in labels]
        np.testing.assert_array_equal(batch.signals["step_label"][p, g], right)
        led = taken[p, g] * (1 - np.cumprod(right))
        np.testing.assert_array_equal(batch.signals["thought_label"][p, g], right if correct else led)
        np.testing.assert_array_equal(batch.signals["step_score"][p, g], right)  # a judge without errors is sure
        np.testing.assert_array_equal(
            batch.signals["judge_error"][p, g], np.repeat((taken[p, g] - right)[:, None], 3, 1)
        )
        assert batch.signals["subproblem_reward"][p, g, -1] == correct
    assert set(np.unique(batch.signals["step_format"][taken])) == {-2.0, 1.0}
    thought, answer = batch.signals["thinking_mask"], batch.signals["answer_mask"]
    np.testing.assert_array_equal(thought | answer, batch.action_mask)
    assert not (thought & answer).any() and answer.sum() == 2 * (batch.signals["mark"] >= 0).sum()
    np.testing.assert_array_equal(batch.signals["answer_tokens"][:, 0, 1] - D, batch.signals["gold_mark"])


def test_demonstrations():
    task = StepwiseTask(addends=3, base=5, max_turns=5, gold_noise=0.2, gold_fillers=0.3, eval_size=16)
    gold = task.gold("train", 0, 512)
    assert abs(gold.outcome.mean() - 0.8**3) < 0.07  # two errors may cancel
    fillers = np.asarray((gold.tokens == SAME) & gold.action_mask).any(-1)
    assert 0.3 < fillers.mean() < 0.8
    np.testing.assert_array_equal(task.gold("train", 100, 5).tokens, gold.tokens[100:105])
    assert (task.gold("eval", 0, 16).tokens[:, 0] != gold.tokens[:16, 0]).any()
    perfect = StepwiseTask(addends=3, gold_fillers=0.5).gold("train", 0, 64)
    assert (perfect.outcome == 1).all()
    told = StepwiseTask(addends=3, gold_noise=0.2, instructed=1.0).gold("train", 0, 256)
    word = np.asarray(told.tokens[:, 0, 7])
    assert set(word) == {CHECK, GOOD, BAD} and told.signals["token_mask"][..., 7].all()
    assert (told.outcome[word != BAD] == 1).all() and told.outcome[word == BAD].mean() < 0.4


def test_prompt_variants():
    prompts = TASK.prompts("train", 0, 4)
    assert not prompts.mask[:, -1].any()
    better = TASK.prompt_variant("better", prompts)
    assert (better.tokens[:, -1] == GOOD).all() and np.asarray(better.mask).all()
    np.testing.assert_array_equal(better.tokens[:, :-1], prompts.tokens[:, :-1])
    negative = TASK.prompt_variant("negative", prompts)
    assert np.asarray(negative.mask).sum() == 4  # the question mark alone
    plain = TASK.prompt_variant("plain", prompts)
    np.testing.assert_array_equal(plain.mask, prompts.mask)
    with pytest.raises(ValueError, match="prompt kind 'beter': did you mean better"):
        TASK.prompt_variant("beter", prompts)


def test_sampled_rollouts_are_what_is_played():
    policy = TransformerPolicy(TransformerConfig(TASK.vocab_size, width=8, depth=1, heads=2, mlp_width=16))
    prompts = TASK.prompts("eval", 0, 4)
    rollout = jax.jit(samplers.build(TASK, policy, Sampling(), 3))
    sampled = rollout(policy.init(jax.random.key(0)), prompts, jax.random.key(1))
    steps = np.asarray(sampled.tokens)[..., TASK.prompt_length :].reshape(4, 3, -1, 2)
    again = play(TASK, prompts, steps)
    for name in ("tokens", "action_mask", "outcome", "reward", "terminated", "segment"):
        np.testing.assert_array_equal(getattr(sampled, name), getattr(again, name), err_msg=name)
    for name in TASK.offered_signals():
        np.testing.assert_array_equal(sampled.signals[name], again.signals[name], err_msg=name)
        assert name in SIGNALS


def test_form_pays_beside_the_answer(played):
    prompts, steps, batch = played
    paying = play(StepwiseTask(**{**TASK.__dict__, "format_reward": 0.25}), prompts, steps)
    formed = np.asarray(batch.signals["format_ok"])
    np.testing.assert_allclose(paying.outcome, batch.outcome + 0.25 * formed)
    np.testing.assert_allclose(paying.reward.sum(-1), paying.outcome)
    np.testing.assert_allclose(paying.signals["reward_components"].sum(-1), paying.outcome)
    np.testing.assert_array_equal(paying.signals["accuracy"], batch.outcome)
    assert formed.any() and not formed.all()


def test_options_are_checked():
    with pytest.raises(ValueError, match="max_turns: 3, wanted at least 4"):
        StepwiseTask(addends=3, max_turns=3)
    with pytest.raises(ValueError, match="noise: 0.6, wanted between 0.0 and 0.5"):
        StepwiseTask(noise=0.6)
    with pytest.raises(TypeError, match="hackable: 1, wanted a bool"):
        StepwiseTask(hackable=1)
    with pytest.raises(ValueError, match="budgets: 2, wanted at least 3"):
        StepwiseTask(budgets=(2, 2))
    with pytest.raises(ValueError, match=r"len\(budgets\): 0, wanted at least 1"):
        StepwiseTask(budgets=[])
    with pytest.raises(ValueError, match="the stepwise task has no 'proces_reward'"):
        tasks.make("stepwise", signals=("proces_reward",))
    with pytest.raises(ValueError, match=r"eval prompts 0 to 17, wanted a range within 0 to 16"):
        TASK.prompts("eval", 0, 17)
    assert tasks.make("stepwise").decode([PAD, ASK, PLUS, D, 99]) == ["·", "?", "+", "0", "<99>"]
