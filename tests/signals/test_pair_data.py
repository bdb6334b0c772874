"""What stands behind pairs on the host: common subsequences, edits, aligned spans; and divergences under one pass."""

import itertools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

import creditjax as cj
from creditjax.models.base import Sampling
from creditjax.models.control import GRUPolicy
from creditjax.models.transformer import TransformerConfig, TransformerPolicy
from creditjax.signals import token_kl
from creditjax.signals.edits import (
    OPERATIONS,
    Edit,
    edit_masks,
    edit_size,
    edited_batch,
    inject_error,
    with_edited_steps,
)
from creditjax.signals.overlap import add_rouge_l, common_subsequence, rouge_l
from creditjax.signals.spans import align_spans, span_logprob
from creditjax.tasks.stepwise import StepwiseTask


def longest(a, b):
    """Length of the longest common subsequence, by trying all of `a`'s."""
    for n in range(len(a), 0, -1):
        for pick in itertools.combinations(range(len(a)), n):
            rest = iter(b)
            if all(a[i] in rest for i in pick):
                return n
    return 0


def test_common_subsequences_are_common_and_longest():
    rng = np.random.default_rng(0)
    for _ in range(60):
        a, b = (rng.integers(0, 3, rng.integers(0, 8)).tolist() for _ in range(2))
        in_a, in_b = common_subsequence(a, b)
        kept = [x for x, k in zip(a, in_a, strict=True) if k]
        assert kept == [x for x, k in zip(b, in_b, strict=True) if k] and len(kept) == longest(a, b)
        assert edit_size(a, b) == len(a) + len(b) - 2 * len(kept)
        assert (not any(mask.any() for mask in edit_masks(a, b))) == (a == b)


def test_a_deletion_leaves_one_side_without_a_mask():
    chosen, rejected = edit_masks([5, 6, 7], [5, 7])
    assert chosen.tolist() == [False, True, False] and not rejected.any()


def test_rouge_of_rollouts():
    tokens = np.int32([[[9, 1, 2, 3], [9, 3, 3, 3]], [[1, 1, 1, 1], [2, 2, 2, 2]]])
    mask = np.ones((2, 2, 4), bool)
    mask[0, :, 0] = False  # the prompt
    batch = add_rouge_l(cj.Trajectory(tokens, mask, np.zeros((2, 2))), [[1, 2, 3], None])
    np.testing.assert_allclose(batch.signals["rouge_l"], [[1.0, 1 / 3], [np.nan, np.nan]], rtol=1e-6)
    assert rouge_l([], []) == 0 and rouge_l([1], [2]) == 0
    with pytest.raises(ValueError, match="P=2 prompts"):
        add_rouge_l(batch, [[1]])


def test_edited_steps_become_groups_of_two():
    edits = [
        Edit([1, 2], [3, 4, 5], [3, 9, 5]),
        Edit([1], [3, 4], [3, 4]),  # nothing edited
        Edit([1], [3, 4, 5, 6, 7], [8, 9, 8, 9, 8]),  # too much
        Edit([7, 7, 7], [5, 6], [6]),
    ]
    batch = edited_batch(edits, length=8, max_edit=4)
    assert batch.batch_shape == (2, 2) and batch.outcome.tolist() == [[1, 0], [1, 0]]
    assert batch.tokens[0, 1, :5].tolist() == [1, 2, 3, 9, 5]
    np.testing.assert_array_equal(batch.action_mask, batch.signals["step_mask"])
    assert np.flatnonzero(batch.signals["step_mask"][0, 0]).tolist() == [2, 3, 4]
    assert np.flatnonzero(batch.signals["edit_mask"][0, 1]).tolist() == [3]
    assert np.flatnonzero(batch.signals["edit_mask"][1, 0]).tolist() == [3]
    assert not batch.signals["edit_mask"][1, 1].any()
    assert batch.signals["token_mask"].sum(-1).tolist() == [[5, 5], [5, 4]]
    cj.validate(batch)
    with pytest.raises(ValueError, match="wanted at most length = 4"):
        edited_batch(edits, length=4)


def test_one_digit_of_a_right_rollout_is_replaced():
    task = StepwiseTask(addends=2, base=3, gold_noise=0.3, signals=("accuracy",))
    steps = np.reshape(task.gold("train", 0, 96).tokens[..., task.prompt_length :], (32, 3, -1, 2))
    batch = task.play(task.prompts("train", 0, 32), jnp.asarray(steps))
    outcome = np.array(batch.outcome)
    outcome[0] = [np.nan, 1, 1]  # unscored, so the second is the first right one
    outcome[1] = 0
    batch = batch.replace(outcome=outcome, reward=None)
    run = jax.jit(lambda x, key: with_edited_steps(x, key, task.digits))
    both = jax.device_get(run(batch, jax.random.key(0)))
    assert both.batch_shape == (64, 3) and both.logprob is None
    for name in ("tokens", "action_mask", "outcome", "segment"):
        np.testing.assert_array_equal(getattr(both, name)[::2], getattr(batch, name), err_msg=name)
    assert not both.signals["step_mask"][::2].any() and not both.signals["edit_mask"][::2].any()
    places, tried = set(), 0
    for p in range(32):
        assert not both.action_mask[2 * p + 1, 2].any() and not both.votes[2 * p + 1, 2]
        if not (outcome[p] == 1).any():
            assert not both.votes[2 * p + 1].any() and not both.action_mask[2 * p + 1].any()
            continue
        tried += 1
        source = int(np.argmax(outcome[p] == 1))
        assert both.votes[2 * p + 1, :2].all() and both.outcome[2 * p + 1, :2].tolist() == [1, 0]
        rows = both.tokens[2 * p + 1, :2]
        step, real = (both.signals[name][2 * p + 1, 0] for name in ("step_mask", "token_mask"))
        np.testing.assert_array_equal(both.action_mask[2 * p + 1, :2], np.stack([step, step]))
        end = int(np.flatnonzero(step)[-1]) + 1
        np.testing.assert_array_equal(real, batch.signals["token_mask"][p, source] & (np.arange(len(real)) < end))
        np.testing.assert_array_equal(rows[0][real], np.asarray(batch.tokens[p, source])[real])
        k = np.unique(both.segment[2 * p + 1, 0][step])
        assert len(k) == 1 and (step == (np.asarray(batch.segment[p, source]) == k[0])).all()
        # As the host says it of the two versions of the step.
        for row, mask in enumerate(edit_masks(rows[0][step].tolist(), rows[1][step].tolist())):
            np.testing.assert_array_equal(both.signals["edit_mask"][2 * p + 1, row][step], mask)
        assert edit_size(rows[0][real].tolist(), rows[1][real].tolist()) == 2
        assert np.isin(rows[1][both.signals["edit_mask"][2 * p + 1, 1]], task.digits).all()
        places.add(int(k[0]))
    assert tried > 10 and len(places) == 3
    cj.validate(both.replace(outcome=np.nan_to_num(both.outcome)))
    with pytest.raises(ValueError, match="wanted at least 2"):
        with_edited_steps(batch, jax.random.key(0), task.digits[:1])
    with pytest.raises(ValueError, match="G at least 2"):
        with_edited_steps(task.gold("train", 0, 2), jax.random.key(0), task.digits)


def test_injected_errors():
    rng = np.random.default_rng(0)
    for text, operation in itertools.product(("12 - 5 = 7", "x = 3 * 4 + 5", "(2 / 8) - 1"), OPERATIONS):
        made = {inject_error(text, operation, rng) for _ in range(30)} - {None}
        assert text not in made and (made or operation == "swap")
        for other in made:
            if operation == "delete":
                assert len(other) < len(text)
            if operation == "swap":
                assert sorted(other) == sorted(text)
    assert all(inject_error("no terms", operation, rng) is None for operation in OPERATIONS)
    with pytest.raises(ValueError, match="replace"):
        inject_error("1 + 1", "replce", rng)


def test_spans_partition_the_text():
    rng = np.random.default_rng(0)
    for _ in range(30):
        size = int(rng.integers(3, 20))
        cut = lambda: sorted({*rng.integers(1, size, rng.integers(1, 8)).tolist(), size})  # noqa: B023, E731
        ends, others = cut(), cut()
        mine, theirs, count = align_spans(ends, others)
        assert count == len(set(ends) & set(others))
        for spans, given in ((mine, ends), (theirs, others)):
            assert set(spans.tolist()) == set(range(count)) and np.all(np.diff(spans) >= 0)
            last = [max(e for e, s in zip(given, spans, strict=True) if s == k) for k in range(count)]
            assert last == sorted(set(ends) & set(others))
    logprob = jnp.float32([[-1.0, -2.0, -4.0, np.nan], [-0.5, -0.25, -8.0, -16.0]])
    span, mask = jnp.int32([[0, 0, 1, 1], [0, 1, 1, -1]]), jnp.isfinite(logprob)
    np.testing.assert_allclose(span_logprob(logprob, span, mask, 2), [[-3.0, -4.0], [-0.5, -8.25]])
    same, again, count = align_spans([1, 4, 6], [1, 4, 6])
    assert same.tolist() == again.tolist() == [0, 1, 2] and count == 3
    assert align_spans([2, 5, 9], [2, 5, 7])[0].tolist() == [0, 1, -1]
    with pytest.raises(ValueError, match="never fall"):
        align_spans([3, 2], [3])


def sequence_batch(rng, shape=(2, 3, 6), vocab=5):
    mask = rng.random(shape) < 0.6
    signals = {"token_mask": np.ones(shape, bool), "observation": rng.normal(size=(*shape, 2)).astype(np.float32)}
    return cj.Trajectory(rng.integers(0, vocab, shape).astype(np.int32), mask, np.zeros(shape[:2]), signals=signals)


@pytest.mark.parametrize(
    "policy",
    [
        TransformerPolicy(TransformerConfig(vocab_size=5, width=8, depth=1, heads=2, logit_chunk=4)),
        GRUPolicy(num_actions=5, observation_size=2, hidden=4),
    ],
    ids=["text", "control"],
)
def test_the_divergence_is_exact_and_centres_the_log_ratio(policy):
    batch = sequence_batch(np.random.default_rng(0))
    params, other = (jax.tree.map(lambda x: 3 * x, policy.init(jax.random.key(i))) for i in (0, 1))
    sampling = Sampling(temperature=0.7)
    evaluate = jax.jit(lambda p, b: policy.evaluate(p, b, sampling).logprob)
    kl = jax.jit(lambda p, q, b: token_kl(policy, p, q, b, sampling))(params, other, batch)
    assert np.any(kl > 0) and np.all(kl >= 0) and not np.any(np.asarray(kl)[~batch.action_mask])
    # The token at t does not change its own distribution: read the log-probability of each, at every position in turn.
    wanted = np.zeros(batch.tokens.shape)
    for t in range(batch.length):
        for token in range(5):
            asked = batch.replace(tokens=batch.tokens.copy())
            asked.tokens[..., t] = token
            log_pi, log_ref = (np.asarray(evaluate(x, asked))[..., t] for x in (params, other))
            wanted[..., t] += np.exp(log_pi) * (log_pi - log_ref)
    np.testing.assert_allclose(kl, np.where(batch.action_mask, wanted, 0.0), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(token_kl(policy, params, params, batch, sampling), 0.0, atol=1e-6)  # rounding alone


def test_a_divergence_needs_a_reference_and_a_policy_that_has_one():
    batch = sequence_batch(np.random.default_rng(0))
    policy = GRUPolicy(num_actions=5, observation_size=2, hidden=4)
    with pytest.raises(ValueError, match="no ref_params"):
        token_kl(policy, {}, None, batch)
    with pytest.raises(ValueError, match="object has no `divergence"):
        token_kl(object(), {}, {}, batch)
