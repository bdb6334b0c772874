"""The step-reward model: its loss, what it may read, both directions, stages of training, and its signals."""

import dataclasses
import functools

import jax
from jax import numpy as jnp
import numpy as np
import optax
import pytest

import creditjax
from creditjax import algebra
from creditjax.models.transformer import TransformerConfig
from creditjax.process import metrics, prm
from creditjax.process.records import Record
from creditjax.tasks.tokenizer import CharTokenizer
from creditjax.trajectory import Trajectory

TOKENIZER = CharTokenizer("ab \n")
CONFIG = TransformerConfig(TOKENIZER.vocab_size, width=16, depth=1, heads=2)
RECORDS = [
    Record("0", "ab", ("aa", "b", "ab"), step_labels=(1, 0, 1)),
    Record("1", "b", ("b", "aa"), step_labels=(0.25, None)),
    Record("2", "a", ("a",) * 6, step_labels=(1,) * 6),
]
MODELS = {kind: prm.StepRewardModel(CONFIG, kind) for kind in ("forward", "both", "gated")}


@functools.cache
def batch():
    return prm.encode(RECORDS, TOKENIZER, length=16, steps=4, both=True)


@functools.cache
def trained(kind):
    """Parameters away from the zeros of head and gate."""
    params = init(MODELS[kind])
    leaves, tree = jax.tree.flatten(params)
    keys = jax.random.split(jax.random.key(1), len(leaves))
    return tree.unflatten([x + 0.3 * jax.random.normal(k, x.shape) for x, k in zip(leaves, keys, strict=True)])


loss = jax.jit(prm.loss, static_argnums=0)
init = jax.jit(lambda model: model.init(jax.random.key(0)), static_argnums=0)
process_reward = jax.jit(prm.process_reward, static_argnums=0, static_argnames="signed")
prover_value = jax.jit(prm.prover_value, static_argnums=0)
score = jax.jit(lambda model, params, batch: model.score(params, batch), static_argnums=0)


def test_records_become_arrays_with_a_step_at_every_newline():
    data = batch()
    text = [TOKENIZER.decode(row) for row in data.forward.tokens]
    assert text[0] == "ab\naa\nb\nab\n" and text[2] == "a\n" + "a\n" * 4
    assert data.forward.step_end.tolist() == [[5, 7, 10, -1], [3, 6, -1, -1], [3, 5, 7, 9]]
    assert TOKENIZER.decode(data.backward.tokens[0]) == "ab\nab\nb\naa\n"
    assert data.backward.step_end[0].tolist() == [10, 7, 5, -1]
    # Nothing counts after an error; an unlabelled step never does.
    assert data.valid.tolist() == [[True, True, False, False], [True, False, False, False], [True] * 4]
    assert data.label.tolist() == [[1, 0, 0, 0], [0.25, 0, 0, 0], [1, 1, 1, 1]]
    assert prm.encode(RECORDS, TOKENIZER, 16, 4, mask_after_error=False).valid[0].tolist() == [True, True, True, False]
    short = prm.encode(RECORDS, TOKENIZER, length=7, steps=4, both=True)
    assert short.forward.step_end[0].tolist() == [5, -1, -1, -1]
    assert short.step_mask[0].tolist() == [False] * 4, "what fits in one direction alone is not scored"


def test_a_head_of_zeros_costs_log_2_a_step():
    for kind, model in MODELS.items():
        term = loss(model, init(model), batch())
        np.testing.assert_allclose(term.sum / term.count, np.log(2.0), rtol=1e-6, err_msg=kind)
        assert term.count == 7


def test_loss_against_float64_and_steps_that_do_not_count():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        z, y, valid = rng.normal(size=(3, 5, 2)) * 3, rng.random((3, 5)), rng.random((3, 5)) < 0.6
        z[~valid], y = np.nan, np.where(valid, y, np.nan)

        def total(z, y=y, valid=valid):
            log_p = jax.nn.log_softmax(z)
            return prm.step_bce(log_p[..., 1], log_p[..., 0], jnp.asarray(y), jnp.asarray(valid))

        wanted = 0.0
        for row in zip(z[valid], y[valid], strict=True):
            (wrong, right), label = row
            p = 1.0 / (1.0 + np.exp(wrong - right))
            wanted -= label * np.log(p) + (1 - label) * np.log(1 - p)
        np.testing.assert_allclose(total(jnp.asarray(z)).sum, wanted, rtol=2e-4)
        assert total(jnp.asarray(z)).count == valid.sum()
        clean = jnp.asarray(np.where(valid[..., None], z, 0.0))
        gradient = jax.grad(lambda z: total(z).sum)(clean)
        assert np.all(gradient[~valid] == 0) and np.all(np.isfinite(gradient))


def test_parts_of_a_batch_add_up():
    model, params = MODELS["both"], trained("both")
    whole = loss(model, params, batch())
    parts = [loss(model, params, prm.rows_of(batch(), slice(i, i + 1))) for i in range(3)]
    np.testing.assert_allclose(sum(part.sum for part in parts), whole.sum, rtol=1e-5)
    assert sum(part.count for part in parts) == whole.count


def test_a_forward_model_does_not_read_ahead_and_others_do():
    later = prm.encode([dataclasses.replace(RECORDS[0], steps=("aa", "b", "ba"))], TOKENIZER, 16, 4, both=True)
    before = prm.rows_of(batch(), slice(0, 1))
    for kind, reads in (("forward", False), ("both", True), ("gated", True)):
        a, b = (score(MODELS[kind], trained(kind), x) for x in (before, later))
        assert (np.max(np.abs(a - b)[0, :2]) > 1e-4) == reads
    padded = prm.encode(RECORDS, TOKENIZER, length=24, steps=6)
    same = score(MODELS["forward"], trained("forward"), padded)[:, :4]
    np.testing.assert_allclose(same, score(MODELS["forward"], trained("forward"), batch()), atol=1e-5)


def test_two_directions_are_mixed():
    params, data = trained("both"), batch()
    ahead, behind, mixed = (
        np.asarray(score(dataclasses.replace(MODELS["both"], mix=mix), params, data)) for mix in (0.0, 1.0, 0.3)
    )
    np.testing.assert_allclose(mixed, 0.7 * ahead + 0.3 * behind, atol=1e-6)
    assert np.all(np.minimum(ahead, behind) <= mixed + 1e-6) and np.all(mixed <= np.maximum(ahead, behind) + 1e-6)
    np.testing.assert_allclose(ahead, score(MODELS["forward"], params, data), atol=1e-6)
    # A reversed solution swaps the streams: its score at mix is the score at 1 - mix, reversed.
    turned = prm.encode([dataclasses.replace(RECORDS[0], steps=RECORDS[0].steps[::-1])], TOKENIZER, 16, 4, both=True)
    model = dataclasses.replace(MODELS["both"], mix=0.7)
    np.testing.assert_allclose(
        prm.masked_reverse(score(model, params, turned), turned.step_mask)[0], mixed[0], atol=1e-6
    )
    # A gate of zeros is the plain mean.
    gated = {**params, "gate": jax.tree.map(jnp.zeros_like, trained("gated")["gate"])}
    halves = score(dataclasses.replace(MODELS["both"], mix=0.5), params, data)
    np.testing.assert_allclose(score(MODELS["gated"], gated, data), halves, atol=1e-6)


def test_reversal_is_an_involution_and_keeps_padding():
    mask = np.arange(5) < np.array([[0], [3], [5]])
    x = jnp.arange(15).reshape(3, 5)
    once = prm.masked_reverse(x, mask)
    np.testing.assert_array_equal(once[1], [7, 6, 5, 8, 9])
    np.testing.assert_array_equal(prm.masked_reverse(once, mask), x)


def test_a_frozen_backbone_stays_and_then_learns():
    model, params = MODELS["forward"], init(MODELS["forward"])
    batches = prm.minibatches(batch(), 2, seed=0)
    moved, _ = prm.train(model, params, batches, (prm.Stage(optax.sgd(0.1), 2, ("backbone",)),))
    same = jax.tree.map(lambda a, b: bool(jnp.all(a == b)), params, moved)
    assert all(jax.tree.leaves(same["backbone"])) and not any(jax.tree.leaves(same["head"]))
    assert [stage.freeze for stage in prm.two_stages(3, 1)] == [("backbone",), ()]
    moved, history = prm.train(model, moved, batches, prm.two_stages(1, 1, full_rate=0.1))
    assert len(history) == 2 and not jnp.all(moved["backbone"]["norm"]["scale"] == params["backbone"]["norm"]["scale"])
    with pytest.raises(ValueError, match=r"stages\[0\].freeze: 'body', wanted some of \['backbone', 'head'\]"):
        prm.train(model, params, batches, (prm.Stage(optax.sgd(0.1), 1, ("body",)),))
    with pytest.raises(ValueError, match="batches: ended after 1 of 2 in stage 0"):
        prm.train(model, params, iter([batch()]), (prm.Stage(optax.sgd(0.1), 2),))


def test_it_learns_to_find_the_first_wrong_step():
    """A step is right if it is a run of one letter: to be found on solutions that were not trained on."""
    rng = np.random.default_rng(0)

    def solution(i):
        steps = ["".join(rng.choice(["a", "b"], 3)) for _ in range(3)]
        return Record(str(i), "a", tuple(steps), step_labels=[float(len(set(step)) == 1) for step in steps])

    encode = functools.partial(prm.encode, tokenizer=TOKENIZER, length=16, steps=3, mask_after_error=False)
    known, unseen = (encode([solution(i) for i in range(count)]) for count in (256, 100))
    model = MODELS["forward"]
    params, history = prm.train(
        model,
        init(model),
        prm.minibatches(known, 32, seed=0),
        (prm.Stage(optax.adam(0.01), 150),),
    )
    assert history[0] > 0.69 and np.mean(history[-10:]) < 0.35
    assert metrics.step_auroc(score(model, params, unseen), jnp.asarray(unseen.label), jnp.asarray(unseen.valid)) > 0.9


def rollouts():
    """Two rollouts of three segments: in the second one the last was not acted, and padding lies between."""
    tokens = jnp.array([[[3, 6, 4, 4, 3, 0, 4, 3], [3, 6, 4, 4, 3, 0, 0, 0]]])
    segment = jnp.array([[[-1, -1, 0, 0, 1, -1, 2, 2], [-1, -1, 0, 0, 1, -1, -1, -1]]])
    real = tokens > 0
    return Trajectory(
        tokens=tokens,
        action_mask=segment >= 0,
        segment=segment,
        num_segments=3,
        outcome=jnp.zeros((1, 2)),
        signals={"token_mask": real},
    )


def test_progress_adds_up_over_a_segment_without_a_token():
    """The step behind it keeps its progress: the steps of a rollout sum to the outcome less the value of the prompt."""
    data = rollouts()
    segment = jnp.array([[[-1, -1, 0, 0, 2, -1, 2, 2], [-1, -1, 1, 1, 2, -1, -1, -1]]])
    data = data.replace(segment=segment, action_mask=segment >= 0, outcome=jnp.array([[1.0, 0.0]]))
    data = prover_value(MODELS["forward"], trained("forward"), data)
    estimator = creditjax.chain(algebra.redistribute("prover_value", 1), algebra.at_segment_end())
    progress = creditjax.estimate(estimator, data)
    wanted = data.outcome - data.signals["prover_value"][..., 0]
    np.testing.assert_allclose(progress.value.sum(-1), wanted, atol=1e-6)
    steps = prm.step_signals(MODELS["forward"], trained("forward"), data)
    assert jnp.isnan(steps["step_score"]).tolist() == [[[False, True, False], [True, False, False]]]


def test_signals_of_rollouts():
    model, params, data = MODELS["forward"], trained("forward"), rollouts()
    signed = process_reward(model, params, data).signals["process_reward"]
    plain = process_reward(model, params, data, signed=False).signals["process_reward"]
    assert signed.shape == (1, 2, 3) and jnp.isnan(signed[0, 1]).tolist() == [False, False, True]
    np.testing.assert_allclose(signed, 2 * plain - 1, rtol=1e-5)
    np.testing.assert_allclose(plain[0, 0, :2], plain[0, 1, :2], atol=1e-6)  # a later segment is not read
    value = prover_value(model, params, data).signals["prover_value"]
    assert value.shape == (1, 2, 4)
    np.testing.assert_allclose(value[0, 0, 1:], plain[0, 0], atol=1e-6)
    np.testing.assert_allclose(value[0, 1, 1:], [*plain[0, 1, :2], plain[0, 1, 1]], atol=1e-6)  # nothing new was said
    np.testing.assert_allclose(value[0, 0, 0], value[0, 1, 0], atol=1e-6)
    # Boundary 0 has read the prompt: tokens 0 and 1.
    mask = data.signals["token_mask"][0, :1, :2]
    prompt = prm.Stream(data.tokens[0, :1, :2], mask, jnp.array([[1]]))
    np.testing.assert_allclose(value[0, 0, 0], jnp.exp(model.logprob(params, prompt)[0])[0, 0], atol=1e-6)


def test_what_does_not_fit_is_named():
    with pytest.raises(ValueError, match="direction: 'backward', wanted"):
        prm.StepRewardModel(CONFIG, "backward")
    with pytest.raises(ValueError, match="mix: 2, wanted 0 to 1"):
        prm.StepRewardModel(CONFIG, "both", 2)
    with pytest.raises(ValueError, match="backward: None, wanted a stream for direction='both'"):
        prm.process_reward(MODELS["both"], trained("both"), rollouts())
    with pytest.raises(ValueError, match="size: 4, wanted 1 to 3 rows"):
        prm.minibatches(batch(), 4, 0)
    bare = dataclasses.replace(rollouts(), segment=None)
    with pytest.raises(ValueError, match="segment: absent"):
        prm.segment_stream(bare)
    with pytest.raises(ValueError, match="signal token_mask: absent"):
        prm.segment_stream(dataclasses.replace(rollouts(), signals={}))
