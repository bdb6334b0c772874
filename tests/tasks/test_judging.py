"""The judging task: its transcripts and oracles against a plain reading, and a judge that learns from its verdicts."""

import jax
import numpy as np
import pytest

from creditjax import samplers, tasks, training
from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.signals import Models, produce
from creditjax.tasks.judging import JudgingTask
from creditjax.tasks.stepwise import ANSWER, ASK, BAD, CHECK, GOOD, PLUS
from creditjax.training import loop
from creditjax.training import mesh as mesh_lib
from creditjax.trajectory import SIGNALS

TASK = JudgingTask(addends=3, base=5, thoughts=2, gold_noise=0.3, eval_size=16)


def read(words):
    """A solution's truth from its transcript: every step, then the answer."""
    assert len(words) == TASK.prompt_length and words[-1] == "check" and words[6] == "?"
    addends, total, truth = [int(x) for x in words[1:6:2]], 0, []
    for k, (kind, digit) in enumerate(zip(words[7:-1:2], words[8:-1:2], strict=True)):
        due = (total + (addends[k] if k < 3 else 0)) % 5
        assert kind == ("+" if k < 3 else "A")
        truth.append(int(digit) == due)
        total = int(digit)
    return [*truth, total == sum(addends) % 5]


@pytest.fixture(scope="module")
def sampled():
    """Judgements by chance: as a policy samples them, and with most tokens made labels."""
    policy = TransformerPolicy(TransformerConfig(TASK.vocab_size, width=8, depth=1, heads=2, mlp_width=16))
    params = policy.init(jax.random.key(0))
    params = {**params, "unembed": {"kernel": np.zeros_like(params["unembed"]["kernel"])}}
    prompts = TASK.prompts("train", 0, 32)

    @jax.jit
    def roll(prompts, key):
        batch = samplers.build(TASK, policy, Sampling(), 16)(params, prompts, key)
        return produce(Models(policy, params, task=TASK), batch, ["verdict"])

    keyed = jax.device_get(roll(prompts, jax.random.key(1)))
    rng = np.random.default_rng(0)
    tokens = keyed.tokens[..., TASK.prompt_length :].reshape(32, 16, -1, 1)
    tokens = np.where(rng.random(tokens.shape) < 0.8, rng.choice([GOOD, BAD], tokens.shape), tokens)
    play = jax.jit(lambda p, s: produce(Models(policy, params, task=TASK), TASK.play(p, s), ["verdict"]))
    return prompts, keyed, jax.device_get(play(prompts, tokens)), play


def test_prompts_are_solutions_whose_truth_is_known():
    prompts = TASK.prompts("train", 0, 512)
    assert prompts.mask.all() and prompts.data.shape == (512, 5)
    for tokens, truth in zip(prompts.tokens, prompts.data, strict=True):
        assert read(TASK.decode(tokens)) == truth.tolist()
    # Errors at their rate in additions, none in the step that answers; both verdicts are common.
    np.testing.assert_allclose(1 - prompts.data[:, :3].mean(0), 0.2, atol=0.06)
    assert prompts.data[:, 3].all()
    np.testing.assert_allclose(prompts.data[:, 4].mean(), 0.2 + 0.8 * 0.75**3, atol=0.07)
    assert (prompts.data[:, 4] & ~prompts.data[:, :3].all(1)).any()  # errors that cancel
    np.testing.assert_array_equal(TASK.prompts("train", 100, 5).tokens, prompts.tokens[100:105])
    assert (TASK.prompts("eval", 0, 16).tokens != prompts.tokens[:16]).any()


def test_what_was_written_is_read(sampled):
    prompts, _, batch, _ = sampled
    seen = set()
    for p, g in np.ndindex(32, 16):
        truth = [*prompts.data[p]]
        written = batch.tokens[p, g][batch.action_mask[p, g]].tolist()
        labels = [t == GOOD for t in written if t in (GOOD, BAD)]
        assert len(labels) <= 5 and (len(labels) == 5 or len(written) == 7)
        verdict = int(labels[4]) if len(labels) == 5 else -1
        assert batch.signals["verdict"][p, g] == verdict
        assert batch.signals["solution_label"][p] == truth[4]
        assert batch.outcome[p, g] == batch.signals["accuracy"][p, g] == float(verdict == truth[4])
        assert batch.reward[p, g].sum() == batch.outcome[p, g] == batch.signals["reward_components"][p, g, 0]
        assert batch.signals["format_ok"][p, g] == (len(labels) == 5)
        paid, k = np.zeros(7), 0
        for turn, token in enumerate(written):
            if token in (GOOD, BAD):
                paid[turn] = (token == GOOD) == truth[k]
                k += 1
        np.testing.assert_array_equal(batch.signals["process_reward"][p, g], paid)
        seen.add((verdict, bool(truth[4]), len(written)))
    assert {v for v, *_ in seen} == {-1, 0, 1} and {n for *_, n in seen} == {5, 6, 7}
    for name in (*TASK.offered_signals(), "verdict"):
        assert str(np.asarray(batch.signals[name]).dtype) == SIGNALS[name].dtype


def test_sampled_judgements_are_what_is_played(sampled):
    prompts, keyed, _, play = sampled
    again = play(prompts, keyed.tokens[..., TASK.prompt_length :].reshape(32, 16, -1, 1))
    for name in ("tokens", "action_mask", "outcome", "reward", "terminated", "segment"):
        np.testing.assert_array_equal(getattr(keyed, name), getattr(again, name), err_msg=name)
    for name in (*TASK.offered_signals(), "verdict"):
        np.testing.assert_array_equal(keyed.signals[name], again.signals[name], err_msg=name)


def test_demonstrations_err_at_their_rate():
    gold = TASK.gold("train", 0, 512)
    truth = TASK.prompts("train", 0, 512).data
    said = gold.tokens[:, 0, TASK.prompt_length :][:, :5]
    assert np.isin(said, (GOOD, BAD)).all() and (gold.action_mask.sum(-1) == 5).all()
    np.testing.assert_allclose(((said == GOOD) != truth).mean(0), 0.3, atol=0.07)
    np.testing.assert_array_equal(gold.outcome[:, 0], (said[:, 4] == GOOD) == truth[:, 4])
    np.testing.assert_array_equal(TASK.gold("train", 100, 5).tokens, gold.tokens[100:105])
    assert (JudgingTask(addends=2).gold("train", 0, 64).outcome == 1).all()


def test_options_are_checked():
    with pytest.raises(ValueError, match="errors: 1.5, wanted between 0.0 and 1.0"):
        JudgingTask(errors=1.5)
    with pytest.raises(ValueError, match="thoughts: -1, wanted at least 0"):
        JudgingTask(thoughts=-1)
    with pytest.raises(ValueError, match="base: 1, wanted at least 2"):
        JudgingTask(base=1)
    with pytest.raises(ValueError, match="the judging task has no 'verdicts'"):
        tasks.make("judging", signals=("verdicts",))
    words = tasks.make("judging").decode([PLUS, ASK, ANSWER, CHECK, GOOD, BAD])
    assert words == ["+", "?", "A", "check", "good", "bad"]


def test_verdicts_get_better_with_tips():
    """From demonstrations of which a quarter of the labels is false, to verdicts that are nearly all true."""
    config = training.default_config()
    config.task = {"name": "judging", "addends": 1, "base": 3, "errors": 0.5, "gold_noise": 0.25, "eval_size": 128}
    config.policy = {"name": "transformer", "width": 32, "depth": 2, "heads": 2}
    config.recipe = {"name": "tips_prm"}
    config.steps = 40
    config.batch.prompts, config.batch.group_size = 32, 8
    config.optimizer.learning_rate = 1e-3
    config.warm_start.steps, config.warm_start.prompts, config.warm_start.learning_rate = 100, 128, 3e-3
    config.eval.temperature = 1.0
    mesh = mesh_lib.make_mesh({"data": 1}, jax.devices()[:1])
    programs = loop.Programs(config, training.check_config(config), mesh)
    state = programs.init()
    for step in range(config.warm_start.steps):
        state, _ = programs.warm_step(state, step * config.warm_start.prompts)
    state, cursor = programs.begin(state), config.warm_start.steps * config.warm_start.prompts
    before = programs.evaluate(state, 0)["eval/success"]
    for step in range(config.steps):
        batch, used = programs.collect(state, cursor, jax.random.key(step))
        state, _ = programs.step(state, batch, used)
        cursor += used * config.batch.prompts
    after = programs.evaluate(state, 0)["eval/success"]
    assert 0.65 < before < 0.85 and after > 0.92, (before, after)
