"""The same tokens under other prompts, and the table of producers."""

import dataclasses

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.signals import PRODUCERS, PROMPTED, Models, produce
from creditjax.signals.producers import fault, inputs, reads_reference
from creditjax.tasks.base import Prompts
from creditjax.trajectory import SIGNALS, Trajectory

POLICY = TransformerPolicy(TransformerConfig(7, width=8, depth=1, heads=2, mlp_width=16))
LENGTH, ACTIONS = 3, 4
SAMPLING = Sampling(temperature=0.7)


@dataclasses.dataclass(frozen=True)
class Instructed:
    """Puts the token 6 behind the prompt for a rubric and drops the prompt for a negative one."""

    prompt_length = LENGTH
    prompt_kinds = ("rubric", "plain", "negative", "better")

    def prompt_variant(self, kind, prompts):
        if kind == "plain":
            return prompts
        if kind == "negative":
            return Prompts(prompts.tokens[:, :1], prompts.mask[:, :1] & False)
        tokens, mask = prompts.tokens, prompts.mask
        return Prompts(
            jnp.pad(tokens, ((0, 0), (0, 1)), constant_values=6), jnp.pad(mask, ((0, 0), (0, 1)), constant_values=True)
        )


def make_batch(seed=0):
    rng = np.random.default_rng(seed)
    shape = (2, 3, LENGTH + ACTIONS)
    tokens = rng.integers(0, 6, shape)
    tokens[:, :, :LENGTH] = tokens[:, :1, :LENGTH]
    acted = np.arange(shape[-1]) >= LENGTH
    acted = np.broadcast_to(acted, shape) & (
        np.arange(shape[-1]) < LENGTH + rng.integers(1, ACTIONS + 1, (*shape[:2], 1))
    )
    real = acted | ((np.arange(shape[-1]) < LENGTH) & (np.arange(shape[-1]) > 0))
    return Trajectory(tokens, acted, np.zeros(shape[:2]), logprob=np.zeros(shape), signals={"token_mask": real})


@pytest.fixture(scope="module")
def params():
    return POLICY.init(jax.random.key(0)), POLICY.init(jax.random.key(1))


@pytest.fixture(scope="module")
def made(params):
    models = lambda p, r: Models(POLICY, p, r, sampling=SAMPLING, task=Instructed())  # noqa: E731
    names = ("logprob_rubric", "logprob_plain", "logprob_negative", "logprob_better", "state_key")
    run = jax.jit(lambda p, r, batch: produce(models(p, r), batch, names))
    return run(*params, make_batch())


def rescored(params, opening, batch, p, g):
    """Log-probabilities of one rollout's actions behind another opening, by an unpadded pass."""
    acted = np.asarray(batch.action_mask[p, g])
    tokens = np.concatenate([opening, np.asarray(batch.tokens[p, g])[acted]]).astype(np.int32)
    action = np.arange(len(tokens)) >= len(opening)
    row = Trajectory(tokens, action, 0.0, signals={"token_mask": np.ones_like(action)})
    out = np.zeros(acted.shape)
    out[acted] = np.asarray(POLICY.evaluate(params, row, SAMPLING).logprob)[action]
    return out


def test_tokens_are_scored_behind_the_other_prompt(params, made):
    batch = make_batch()
    for p, g in ((0, 0), (1, 2)):
        prompt = np.asarray(batch.tokens[p, g, 1:LENGTH])  # position 0 is padding
        for name, model, opening in (
            ("logprob_rubric", params[0], [*prompt, 6]),
            ("logprob_plain", params[0], prompt),
            ("logprob_negative", params[0], []),
            ("logprob_better", params[1], [*prompt, 6]),
        ):
            wanted = rescored(model, np.array(opening), batch, p, g)
            np.testing.assert_allclose(made.signals[name][p, g], wanted, atol=1e-5, err_msg=name)
    assert "state_key" not in made.signals  # left to whoever makes it
    assert all(SIGNALS[name].axes == ("P", "G", "T") for name in PROMPTED)


def test_spans_of_the_teacher_are_sums_over_segments(params):
    """The reference as it is and as it is instructed; three segments, a gap, and NaN where nothing was acted."""
    batch = make_batch(1)
    acted = np.asarray(batch.action_mask)
    segment = np.where(acted & (np.arange(batch.length) != LENGTH + 1), np.arange(batch.length) % 3, -1)
    batch = batch.replace(segment=segment, num_segments=3, logprob=np.where(acted, 0.0, np.nan))
    kinds = {"teacher_span_logprob": "logprob_ref", "teacher_span_better": "logprob_better"}
    run = jax.jit(lambda p, r, x: produce(Models(POLICY, p, r, sampling=SAMPLING, task=Instructed()), x, kinds))
    made = run(*params, batch)
    for p, g in ((0, 1), (1, 2)):
        prompt = np.asarray(batch.tokens[p, g, 1:LENGTH])
        for name, opening in zip(kinds, (prompt, [*prompt, 6]), strict=True):
            scored = rescored(params[1], np.array(opening), batch, p, g)
            wanted = [scored[segment[p, g] == k].sum() for k in range(3)]
            np.testing.assert_allclose(made.signals[name][p, g], wanted, atol=1e-5, err_msg=name)
    said = fault("teacher_span_worse", (), Instructed(), POLICY)
    assert said is not None and "offers no prompt of kind 'worse'" in said and reads_reference(["teacher_span_logprob"])


def test_what_is_there_is_not_made_again_and_gradients_stop(params):
    batch = make_batch().with_signals(logprob_plain=np.full((2, 3, LENGTH + ACTIONS), -9.0))

    def total(p):
        out = produce(
            Models(POLICY, p, sampling=SAMPLING, task=Instructed()), batch, ("logprob_plain", "logprob_rubric")
        )
        return jnp.sum(out.signals["logprob_rubric"]), out.signals["logprob_plain"]

    gradient, kept = jax.grad(total, has_aux=True)(params[0])
    assert all((g == 0).all() for g in jax.tree.leaves(gradient))
    np.testing.assert_array_equal(kept, -9.0)


def test_what_a_run_has_to_keep_and_carry():
    assert reads_reference(["value", "logprob_worse"]) and reads_reference(["logprob_ref"])
    assert not reads_reference(["value", "logprob_rubric", "unheard_of"])
    assert set(inputs(PRODUCERS)) <= set(SIGNALS)
    assert set(PRODUCERS) <= set(SIGNALS)


def test_errors_name_signal_task_and_kind(params):
    models = Models(POLICY, params[0], task=Instructed())
    with pytest.raises(ValueError, match="signal logprob_worse: task Instructed offers no prompt of kind 'worse'"):
        produce(models._replace(reference=params[0]), make_batch(), ["logprob_worse"])
    with pytest.raises(ValueError, match="signal logprob_better: found no reference"):
        produce(models, make_batch(), ["logprob_better"])
    with pytest.raises(ValueError, match="signal logprob_prm: found no reward_model"):
        produce(models, make_batch(), ["logprob_prm"])
    said = fault("logprob_plain", (), object(), POLICY)
    assert said is not None and "has no prompt_kinds and no prompt_variant" in said
    assert fault("logprob_plain", (), Instructed(), POLICY) is None
