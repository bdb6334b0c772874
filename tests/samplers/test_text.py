"""Rollouts of token tasks: layout, log-probabilities, independence of rows."""

import collections
import dataclasses
import functools
from typing import Any

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import samplers
from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.samplers import text
from creditjax.tasks.base import Prompts, TextTask, TurnFormat, TurnResult
from creditjax.trajectory import last_action

VOCAB, STOP, PAD = 7, 1, 0
PROMPTS, GROUP, PROMPT_LENGTH = 3, 4, 5
POLICY = TransformerPolicy(
    TransformerConfig(VOCAB, width=16, depth=2, heads=4, kv_heads=2, mlp_width=24, value_head=True)
)


class Echo:
    """Answers with the sum of the action's tokens, in one or two tokens, pays it, and ends when 5 divides it."""

    def reset(self, data):
        return {"total": data, "turns": jnp.int32(0)}

    def step(self, state, action, mask):
        total = jnp.sum(jnp.where(mask, action, 0))
        state = {"total": state["total"] + total, "turns": state["turns"] + 1}
        answer = jnp.stack([total % VOCAB, jnp.int32(2)])
        return state, TurnResult(answer, jnp.array([True, False]) | (total % 2 == 0), total * 1.0, total % 5 == 0)


@dataclasses.dataclass(frozen=True)
class Toy:
    turns: TurnFormat
    environment: Any = None
    vocab_size: int = VOCAB
    prompt_length: int = PROMPT_LENGTH
    eval_size: int = 3

    def prompts(self, split, start, count):
        rng = np.random.default_rng(start)
        tokens = rng.integers(2, VOCAB, (count, self.prompt_length)).astype(np.int32)
        mask = np.arange(self.prompt_length) >= np.arange(count)[:, None] % 3  # left padding of 0, 1, 2
        return Prompts(np.where(mask, tokens, PAD), mask, 100 * np.arange(count, dtype=np.int32))

    def annotate(self, batch, prompts, states):
        score = jnp.sum(jnp.where(batch.action_mask, batch.tokens, 0), -1)
        return batch.replace(outcome=score if states is None else states["total"])

    def verify(self, batch, prompts):
        return batch

    def gold(self, split, start, count):
        raise AssertionError("a sampler has no business with gold answers")

    def decode(self, tokens):
        return [str(t) for t in tokens]


SINGLE = Toy(TurnFormat(1, 6, 0, STOP, PAD))
MULTI = Toy(TurnFormat(3, 3, 2, STOP, PAD), Echo())


@functools.cache
def parameters(seed=0):
    rng = np.random.default_rng(seed)
    shapes = jax.eval_shape(POLICY.init, jax.random.key(0))
    return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape) * 0.3 + (x.shape[-1] == x.size)), shapes)


TRACES = collections.Counter()
FAST = {"xla_backend_optimization_level": 0}  # the tests compile far longer than they run


def roller(task, sampling=Sampling(), group_size=GROUP, greedy_baseline=False):
    return cached_roller(task, sampling, group_size, greedy_baseline)


@functools.cache
def cached_roller(task, sampling, group_size, greedy_baseline):
    roll = samplers.build(task, POLICY, sampling, group_size, greedy_baseline=greedy_baseline)

    def counted(params, prompts, key):
        TRACES[task, sampling, group_size] += 1
        return roll(params, prompts, key)

    return jax.jit(counted, compiler_options=FAST)


@functools.cache
def rollout(task, sampling=Sampling()):
    return roller(task, sampling)(parameters(), task.prompts("train", 0, PROMPTS), jax.random.key(0))


@functools.partial(jax.jit, static_argnums=2, compiler_options=FAST)
def evaluate(params, batch, sampling):
    return POLICY.evaluate(params, batch, sampling)


CASES = {
    "single": (SINGLE, Sampling()),
    "multi": (MULTI, Sampling()),
    "temperature": (SINGLE, Sampling(0.7)),
    "top_k": (SINGLE, Sampling(top_k=3)),
    "top_p": (SINGLE, Sampling(top_p=0.7)),
    "temperature, top_k and top_p": (MULTI, Sampling(0.7, top_k=5, top_p=0.8)),
    "greedy": (SINGLE, Sampling(0.0)),
}


@pytest.mark.parametrize("name", CASES)
def test_logprob_equals_teacher_forced(name):
    task, sampling = CASES[name]
    batch = rollout(task, sampling)
    # Left padding in the prompts, holes after early stops and short answers: all of it has to be there to be tested.
    token_mask = np.asarray(batch.signals["token_mask"])
    assert not token_mask[..., :PROMPT_LENGTH].all() and not token_mask[..., PROMPT_LENGTH:].all()
    out = evaluate(parameters(), batch, sampling)
    np.testing.assert_allclose(out.logprob, batch.logprob, atol=1e-4)
    assert (np.asarray(batch.logprob)[~np.asarray(batch.action_mask)] == 0).all()
    if sampling.temperature == 0:
        assert (np.asarray(batch.logprob) == 0).all()
    else:
        assert (np.asarray(batch.logprob) < 0).any()
    if sampling.top_k or sampling.top_p < 1:  # the full softmax would be off (case C24)
        full = evaluate(parameters(), batch, Sampling(sampling.temperature))
        assert np.max(np.asarray(batch.logprob - full.logprob)) > 0.05


def test_cached_decode_equals_a_full_forward_pass():
    params, batch = parameters(), jax.tree.map(lambda x: x[:, 0], rollout(MULTI))
    mask, tokens = batch.signals["token_mask"], batch.tokens
    length = tokens.shape[1]

    @jax.jit
    def cached(params, tokens, mask):
        state = POLICY.start(params, len(tokens), length)
        state = POLICY.extend(params, state, tokens[:, :4], mask[:, :4], 0)

        def step(state, t):
            chunk = [jax.lax.dynamic_slice_in_dim(x, t, 2, axis=1) for x in (tokens, mask)]
            state = POLICY.extend(params, state, *chunk, t)
            return state, state.logits

        _, logits = jax.lax.scan(step, state, jnp.arange(4, length, 2))
        return jnp.moveaxis(logits, 0, 1)

    full, _ = jax.jit(lambda p, *x: POLICY.module.apply({"params": p}, *x))(params, tokens, mask)
    found = cached(params, tokens, mask)
    for row in range(len(tokens)):
        for chunk, t in enumerate(range(5, length, 2)):
            last = np.flatnonzero(mask[row, : t + 1])[-1]
            np.testing.assert_allclose(found[row, chunk], full[row, last], atol=1e-4)


def simulate(task, batch, p, g, prompts):
    """The layout again, turn by turn, from the emitted tokens alone."""
    turns = task.turns
    tokens = np.asarray(batch.tokens[p, g])
    length = batch.length
    out = {
        "token_mask": np.zeros(length, bool),
        "action_mask": np.zeros(length, bool),
        "terminated": np.zeros(length, bool),
        "truncated": np.zeros(length, bool),
        "segment": np.full(length, -1),
        "reward": np.zeros(length),
        "tokens": np.full(length, PAD),
    }
    out["token_mask"][:PROMPT_LENGTH], out["tokens"][:PROMPT_LENGTH] = prompts.mask[p], prompts.tokens[p]
    state, over, last = None, False, None
    if task.environment:
        state = task.environment.reset(prompts.data[p])
    for turn in range(turns.max_turns):
        start = PROMPT_LENGTH + turn * (turns.action_length + turns.observation_length)
        if over:
            break
        action = tokens[start : start + turns.action_length]
        stops = np.flatnonzero(action == STOP)
        count = stops[0] + 1 if len(stops) else turns.action_length
        last = start + count - 1
        for name in ("token_mask", "action_mask"):
            out[name][start : last + 1] = True
        out["segment"][start : last + 1] = turn
        out["tokens"][start : last + 1] = action[:count]
        if not task.environment:
            over = len(stops) > 0
            continue
        state, result = task.environment.step(state, action, np.arange(turns.action_length) < count)
        out["reward"][last] = result.reward
        where = start + turns.action_length + np.flatnonzero(result.mask)
        out["token_mask"][where], out["segment"][where] = True, turn
        out["tokens"][where] = result.tokens[result.mask]
        over = bool(result.terminated)
    out["terminated" if over else "truncated"][last] = True
    return out, state


@pytest.mark.parametrize("task", [SINGLE, MULTI], ids=["single", "multi"])
def test_layout(task):
    batch, prompts = rollout(task), task.prompts("train", 0, PROMPTS)
    assert batch.batch_shape == (PROMPTS, GROUP) and batch.num_segments == task.turns.max_turns
    ends = set()
    for p in range(PROMPTS):
        for g in range(GROUP):
            wanted, state = simulate(task, batch, p, g, prompts)
            if task.environment is None:
                assert batch.reward is None
                del wanted["reward"]
            else:
                assert batch.outcome[p, g] == state["total"]
            for name, value in wanted.items():
                np.testing.assert_array_equal(batch.get(name)[p, g], value, err_msg=f"{name} {p} {g}")
            ends.add(bool(wanted["terminated"].any()))
    assert ends == {True, False}  # both kinds occurred
    np.testing.assert_array_equal(batch.terminated | batch.truncated, last_action(batch))


def test_pad_may_be_the_stop_token():  # case C29
    task = Toy(TurnFormat(1, 6, 0, STOP, pad_token=STOP))
    batch, other = rollout(task), rollout(SINGLE)
    np.testing.assert_array_equal(batch.action_mask, other.action_mask)
    for row, mask, cut in zip(
        np.asarray(batch.tokens)[..., PROMPT_LENGTH:].reshape(-1, 6),
        np.asarray(batch.action_mask)[..., PROMPT_LENGTH:].reshape(-1, 6),
        np.asarray(batch.truncated).any(-1).reshape(-1),
        strict=True,
    ):
        count = mask.sum()
        assert mask[:count].all() and STOP not in row[: count - 1]
        assert cut == (row[count - 1] != STOP) and (row[count:] == STOP).all()


def test_rows_do_not_depend_on_the_batch():
    prompts = MULTI.prompts("train", 0, PROMPTS + 2)
    large = roller(MULTI, group_size=GROUP + 1)(parameters(), prompts, jax.random.key(0))
    small = roller(MULTI)(parameters(), jax.tree.map(lambda x: x[:PROMPTS], prompts), jax.random.key(0))
    large = jax.tree.map(lambda x: x[:PROMPTS, :GROUP], large)
    np.testing.assert_array_equal(small.tokens, large.tokens)
    np.testing.assert_allclose(small.logprob, large.logprob, atol=1e-5)
    np.testing.assert_array_equal(small.outcome, large.outcome)
    rows = np.asarray(small.tokens).reshape(-1, small.length)
    assert len({row.tobytes() for row in rows}) > PROMPTS  # the rows of a group differ


def test_prompt_padding_may_lie_anywhere():
    prompts = MULTI.prompts("train", 0, PROMPTS)
    tokens, mask = np.full_like(prompts.tokens, PAD), np.zeros_like(prompts.mask)
    for p in range(PROMPTS):
        real = prompts.tokens[p][prompts.mask[p]]
        where = [0, *range(PROMPT_LENGTH - len(real) + 1, PROMPT_LENGTH)] if p == 1 else range(len(real))
        tokens[p, list(where)], mask[p, list(where)] = real, True
    moved = roller(MULTI)(parameters(), Prompts(tokens, mask, prompts.data), jax.random.key(0))
    left = rollout(MULTI)
    np.testing.assert_array_equal(moved.tokens[..., PROMPT_LENGTH:], left.tokens[..., PROMPT_LENGTH:])
    np.testing.assert_allclose(moved.logprob, left.logprob, atol=1e-5)


def test_one_trace_and_the_same_numbers_again():
    roll = roller(MULTI)
    prompts = MULTI.prompts("train", 0, PROMPTS)
    first = roll(parameters(), prompts, jax.random.key(0))
    second = roll(parameters(), prompts, jax.random.key(0))
    jax.tree.map(np.testing.assert_array_equal, first, second)
    third = roll(parameters(1), MULTI.prompts("train", 7, PROMPTS), jax.random.key(1))
    assert not np.array_equal(third.tokens, first.tokens)
    assert TRACES[MULTI, Sampling(), GROUP] == 1


def test_greedy_baseline():
    roll = roller(SINGLE, greedy_baseline=True)
    prompts = SINGLE.prompts("train", 0, PROMPTS)
    batch = roll(parameters(), prompts, jax.random.key(0))
    roll = roller(SINGLE, Sampling(0.0), 1)
    greedy, other = (roll(parameters(), prompts, jax.random.key(seed)) for seed in (5, 6))
    np.testing.assert_array_equal(greedy.tokens, other.tokens)
    np.testing.assert_array_equal(batch.signals["greedy_outcome"], greedy.outcome[:, 0])
    np.testing.assert_array_equal(batch.tokens, rollout(SINGLE).tokens)
    attached = text.attach_greedy_outcome(rollout(SINGLE), greedy)
    np.testing.assert_array_equal(attached.signals["greedy_outcome"], greedy.outcome[:, 0])
    with pytest.raises(ValueError, match=r"greedy_batch: leading axes \[3, 4\], wanted \[3, 1\]"):
        text.attach_greedy_outcome(batch, batch)


def test_sampled_frequencies_are_the_policy():
    """First tokens of 4096 rows of one prompt against the teacher-forced distribution."""
    task = Toy(TurnFormat(1, 1, 0, -1, PAD))
    prompts = jax.tree.map(lambda x: x[:1], task.prompts("train", 0, 1))
    batch = roller(task, Sampling(), 4096)(parameters(), prompts, jax.random.key(3))
    tokens = np.asarray(batch.tokens[0, :, -1])
    assert np.asarray(batch.terminated)[..., -1].all()  # no stop token: an answer of full length is complete
    probability = np.zeros(VOCAB)
    probability[tokens] = np.exp(batch.logprob[0, :, -1])
    assert abs(probability.sum() - 1) < 1e-4
    error = np.sqrt(probability * (1 - probability) / 4096)
    assert (np.abs(np.bincount(tokens, minlength=VOCAB) / 4096 - probability) < 4 * error).all()


@pytest.mark.parametrize(
    "task, sampling, group_size, message",
    [
        (SINGLE, Sampling(), 0, "group_size: 0, wanted at least 1"),
        (SINGLE, Sampling(top_p=2.0), 1, "sampling.top_p"),
        (Toy(TurnFormat(2, 3, 1, STOP)), Sampling(), 1, "max_turns: 2, wanted 1 to 1 in a task without environment"),
        (Toy(TurnFormat(1, 0)), Sampling(), 1, "action_length: 0, wanted at least 1"),
        (Toy(TurnFormat(1, 3, 0, VOCAB)), Sampling(), 1, "stop_token: 7, wanted -1 to 6"),
        (Toy(TurnFormat(1, 3, 0, STOP, -1)), Sampling(), 1, "pad_token: -1, wanted 0 to 6"),
    ],
)
def test_errors_name_the_field(task, sampling, group_size, message):
    with pytest.raises(ValueError, match=message):
        samplers.build(task, POLICY, sampling, group_size)


def test_errors_at_the_call():
    roll = samplers.build(SINGLE, POLICY)
    prompts = SINGLE.prompts("train", 0, 2)
    with pytest.raises(ValueError, match=r"tokens \[2, 4\].*prompt_length=5"):
        roll(parameters(), prompts._replace(tokens=prompts.tokens[:, 1:], mask=prompts.mask[:, 1:]), jax.random.key(0))
    with pytest.raises(TypeError, match="object follows neither"):
        samplers.build(object(), POLICY)
    assert isinstance(SINGLE, TextTask)
