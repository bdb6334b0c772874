"""What the policy itself says: attention, answers, hidden states, loops, attributions, phrases; each by a reference."""

import functools

import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax.models import Sampling, TransformerConfig, TransformerPolicy
from creditjax.signals import PRODUCERS, Models, produce
from creditjax.signals.answer import answer_signals, boundary_ends
from creditjax.signals.attention import absorbing_flow, future_influence, middle_layers, windowed_distance
from creditjax.signals.attribution import lime, shares
from creditjax.signals.budgets import budgets_of, cut_ends
from creditjax.signals.hidden import gradient_features
from creditjax.signals.planning import mine_strategic_grams, ngram_mask, pad_grams
from creditjax.tasks.stepwise import StepwiseTask
from creditjax.trajectory import SIGNALS, Trajectory

TASK = StepwiseTask(addends=2, base=3, gold_noise=0.3, gold_fillers=0.3)
CONFIG = TransformerConfig(TASK.vocab_size, width=8, depth=2, heads=2, mlp_width=16, value_head=True, loops=2)
POLICY = TransformerPolicy(CONFIG)
OWN = (
    "attention_distance", "future_influence", "attention_flow", "answer_logprob", "hidden", "prefix_score",
    "prompt_score", "loop_logprob", "exit_pdf", "budget", "summary_reward", "judge_grad_dot_emb", "judge_verdict",
    "attributions", "planning_mask",
)  # fmt: skip
BOTH = ("potential", "correctness", "confidence")  # by the task's oracle, or else by the policy


@pytest.fixture(scope="module")
def params():
    rng = np.random.default_rng(0)
    shapes = jax.eval_shape(POLICY.init, jax.random.key(0))
    return jax.tree.map(lambda x: np.float32(rng.normal(size=x.shape) * 0.7), shapes)


@pytest.fixture(scope="module")
def batch():
    golds = [TASK.gold("train", start, 3).tokens[:, 0, TASK.prompt_length :] for start in (0, 3)]
    steps = np.stack(golds, axis=1).reshape(3, 2, -1, 2)
    return jax.device_get(jax.jit(TASK.play)(TASK.prompts("train", 0, 3), steps))


@functools.partial(jax.jit, static_argnums=2)
def probe(params, batch, names):
    return produce(Models(POLICY, params, task=TASK), batch, names)


@pytest.fixture(scope="module")
def made(params, batch):
    kept = {name: x for name, x in batch.signals.items() if name not in BOTH}
    return jax.device_get(probe(params, batch.replace(signals=kept), (*OWN, *BOTH)))


def test_every_signal_has_the_axes_of_its_row(made, batch):
    sizes = {
        "P": 3,
        "G": 2,
        "T": batch.length,
        "K": 4,
        "K+1": 5,
        "C": None,
        "V": None,
        "H": 8,
        "L": 2,
        "X": 3,
        "B": 4,
        "S": 1,
    }
    for name in (*OWN, *BOTH):
        spec, value = SIGNALS[name], np.asarray(made.signals[name])
        assert len(spec.axes) == value.ndim and str(value.dtype) == spec.dtype, name
        assert all(sizes[a] in (None, n) for a, n in zip(spec.axes, value.shape, strict=True)), name
        assert np.isfinite(value).all(), name
        if spec.axes[:3] == ("P", "G", "T") and name != "prefix_score":
            assert (value[~batch.action_mask] == 0).all(), name
        assert value.any() or name == "future_influence", name  # looks ten tokens ahead: too far here
    assert set(OWN) <= PRODUCERS.keys()


def random_map(rng, length=14):
    """A causal attention map of the real tokens, and its masks."""
    mask = rng.random(length) < 0.85
    weight = np.tril(rng.exponential(size=(length, length)) * (rng.random((length, length)) < 0.7) + np.eye(length))
    weight *= mask[None, :]
    weight += np.eye(length) * ~mask[:, None]
    weight /= np.maximum(weight.sum(1, keepdims=True), 1e-30)
    prompt = mask & (np.arange(length) < 5)
    acted = mask & (np.arange(length) >= 5)
    answer = acted & (np.arange(length) >= length - 3)
    return weight.astype(np.float32), mask, acted, prompt, answer


def flow_reference(attention, mask, prompt, answer):
    """The card in loops; also the transitions and reachabilities, for its properties."""
    n = len(mask)
    a = np.array(attention, np.float64)
    a = np.where((np.arange(n)[None] < np.arange(n)[:, None]) & mask[:, None] & mask[None], a, 0)
    total = a.sum(1, keepdims=True)
    a = np.divide(a, total, out=np.zeros_like(a), where=total > 0)
    h = np.zeros(n)
    for s in reversed(range(n)):
        h[s] = 1 if answer[s] else sum(a[t, s] * h[t] for t in range(s + 1, n))
    move = np.zeros((n, n))
    for s in range(n):
        if not answer[s] and h[s] > 0:
            move[s] = a[:, s] * h / h[s]
    source = np.where(prompt, h, 0)
    source = source / source.sum() if source.sum() > 0 else source
    f = np.zeros(n)
    for t in range(n):
        f[t] = source[t] + sum(f[s] * move[s, t] for s in range(t))
    return f, move, h


def test_attention_statistics_against_loops():
    statistics = jax.jit(
        lambda w, m, y, p, a: (windowed_distance(w, m, 3), future_influence(w, m, y, 2, 4), absorbing_flow(w, m, p, a))
    )
    for seed in range(20):
        attention, mask, acted, prompt, answer = random_map(np.random.default_rng(seed))
        distance, influence, flow = statistics(attention, mask, acted, prompt, answer)
        if seed == 0:  # not compiled, on NumPy's arrays
            np.testing.assert_allclose(absorbing_flow(attention, mask, prompt, answer), flow, atol=1e-6)
        rank = np.cumsum(mask)
        for t in np.flatnonzero(mask):
            seen = [s for s in range(t + 1) if mask[s]]
            wanted = sum(attention[t, s] * min(rank[t] - rank[s], 3) for s in seen)
            np.testing.assert_allclose(distance[t], wanted, atol=1e-5)
            assert -1e-6 <= distance[t] <= 3 + 1e-5
            last = max(np.flatnonzero(acted))
            readers = [u for u in range(t, last + 1) if mask[u] and 2 <= rank[u] - rank[t] <= 4]
            np.testing.assert_allclose(
                influence[t], np.mean([attention[u, t] for u in readers]) if readers else 0, atol=1e-5
            )
        wanted, move, reach = flow_reference(attention, mask, prompt, answer & mask)
        np.testing.assert_allclose(flow, wanted, atol=1e-5)
        assert (flow >= -1e-6).all() and (flow <= 1 + 1e-5).all()
        assert (reach <= answer.sum() + 1e-9).all() and (np.asarray(flow)[reach == 0] == 0).all()
        inner = (reach > 0) & ~answer
        np.testing.assert_allclose(move[inner].sum(1), 1, atol=1e-9)  # conservation
        if reach[prompt].sum() > 0:
            np.testing.assert_allclose(np.asarray(flow)[answer].sum(), 1, atol=1e-5)  # absorption
    nowhere = absorbing_flow(jnp.eye(4), jnp.ones(4, bool), jnp.arange(4) < 2, jnp.arange(4) == 3)
    assert (np.asarray(nowhere) == 0).all()


def test_layers_of_the_middle_third():
    assert middle_layers(2).tolist() == [0, 1] and middle_layers(1).tolist() == [0]
    assert middle_layers(36).tolist() == [12, 15, 18, 20, 23] and middle_layers(36, 2).tolist() == [12, 23]


def test_attention_is_that_of_the_chosen_heads(params, batch, made):
    """One head of four far layers counts for each side; the map of the layers is folded here without a choice."""
    tokens, mask = np.asarray(batch.tokens[0]), np.asarray(batch.signals["token_mask"][0])
    collect = lambda carry, layer, weight: carry.at[layer].set(weight)  # noqa: E731
    n = batch.length
    maps = np.asarray(POLICY.fold_attention(params, tokens, mask, collect, jnp.zeros((4, 2, 2, n, n))))
    chosen = middle_layers(4)
    for g in range(2):
        acted, rank = np.asarray(batch.action_mask[0, g]), np.cumsum(mask[g])
        reach = {
            (layer, head): np.mean([(maps[layer, g, head, t] * (rank[t] - rank)).sum() for t in np.flatnonzero(acted)])
            for layer in chosen
            for head in range(2)
        }
        count = max(1, round(0.3 * len(reach)))
        order = sorted(reach, key=reach.get)
        near = np.mean([maps[layer, g, head] for layer, head in order[:count]], axis=0)
        far = np.mean([maps[layer, g, head] for layer, head in order[-count:]], axis=0)
        wanted = np.where(acted, windowed_distance(near, mask[g]), 0)
        np.testing.assert_allclose(made.signals["attention_distance"][0, g], wanted, atol=1e-4)
        answer = np.asarray(batch.signals["answer_mask"][0, g])
        prompt = mask[g] & (np.arange(n) < TASK.prompt_length)
        wanted = np.where(acted, flow_reference(far, mask[g], prompt, answer)[0], 0)
        np.testing.assert_allclose(made.signals["attention_flow"][0, g], wanted, atol=1e-4)


def test_answers_at_every_boundary_are_separate_passes(params, batch, made):
    ends = np.asarray(boundary_ends(batch))
    for p, g in np.ndindex(3, 2):
        acted, segment = np.asarray(batch.action_mask[p, g]), np.asarray(batch.segment[p, g])
        for k in range(5):
            before = [t for t in range(batch.length) if segment[t] >= 0 and segment[t] < k]
            assert ends[p, g, k] == (max(before) + 1 if before else TASK.prompt_length)
        for k in (0, 2, 4):
            kept = np.flatnonzero(
                np.asarray(batch.signals["token_mask"][p, g]) & (np.arange(len(acted)) < ends[p, g, k])
            )
            row = np.concatenate([np.asarray(batch.tokens[p, g])[kept], batch.signals["answer_tokens"][p, 0]])
            final = np.arange(len(row)) == len(row) - 1
            plain = Trajectory(row.astype(np.int32), final, 0.0, signals={"token_mask": np.ones_like(final)})
            wanted = float(POLICY.evaluate(params, plain).logprob[-1])
            np.testing.assert_allclose(made.signals["answer_logprob"][p, g, k, 0], wanted, atol=1e-4)
    np.testing.assert_allclose(made.signals["potential"], np.exp(made.signals["answer_logprob"][..., 0]), rtol=1e-5)
    np.testing.assert_allclose(made.signals["correctness"], made.signals["potential"][..., 1:], rtol=1e-6)
    assert (made.signals["confidence"] > 1 / TASK.vocab_size - 1e-6).all() and (made.signals["confidence"] <= 1).all()
    # An answer that is padding alone is no answer.
    padded = {name: np.pad(batch.signals[name], ((0, 0), (1, 0), (0, 0)), constant_values=-1 if "tok" in name else 0)
              for name in ("answer_tokens", "answer_scored")}  # fmt: skip
    found = jax.jit(functools.partial(answer_signals, POLICY))(params, batch.with_signals(**padded))
    assert np.isnan(found["answer_logprob"][..., 0]).all()
    for name in BOTH:
        np.testing.assert_allclose(found[name], made.signals[name], rtol=1e-5)
    # The task's own potential is not overwritten.
    kept = probe(params, batch, ("potential",))
    np.testing.assert_array_equal(kept.signals["potential"], batch.signals["potential"])


def test_thinking_is_cut_at_budgets(params, batch, made):
    """Each row by hand: the tokens before the cut, then every accepted answer behind its cue."""
    budgets = np.asarray(made.signals["budget"])
    assert budgets.tolist() == [[2, 4, 6, 8]] * 3  # four turns of two tokens
    assert budgets_of(StepwiseTask(budgets=(1, 5))).tolist() == [1, 5]
    # A second answer, of another length, and a third that is padding alone.
    answer, scored = np.full((3, 3, 3), -1, np.int32), np.zeros((3, 3, 3), bool)
    answer[:, 0, :2], scored[:, 0, 1] = batch.signals["answer_tokens"][:, 0], True
    answer[:, 1], scored[:, 1, 1:] = [11, 9, 10], True
    more = batch.with_signals(answer_tokens=answer, answer_scored=scored)
    several = np.asarray(probe(params, more, ("summary_reward",)).signals["summary_reward"])
    alone = np.asarray(made.signals["summary_reward"])
    rows, cuts, stopped = [], [], 0
    for p, g, b in np.ndindex(3, 2, 4):
        acted, thought = np.asarray(batch.action_mask[p, g]), np.asarray(batch.signals["thinking_mask"][p, g])
        places = np.flatnonzero(acted & thought)
        end = places[budgets[p, b]] if budgets[p, b] < len(places) else places[-1] + 1
        stopped += budgets[p, b] > len(places)
        kept = np.flatnonzero(np.asarray(batch.signals["token_mask"][p, g]) & (np.arange(len(acted)) < end))
        assert not np.asarray(batch.signals["answer_mask"][p, g])[kept].any()
        for c, length in ((0, 2), (1, 3)):
            row = [*np.asarray(batch.tokens[p, g])[kept], *answer[p, c, :length]]
            rows.append(np.pad(row, (0, batch.length + 3 - len(row)), constant_values=-1))
            cuts.append(len(kept) + 1)  # the cue is given
    rows, real = np.maximum(rows, 0).astype(np.int32), np.int32(rows) >= 0
    final = real & (np.arange(rows.shape[1]) >= np.array(cuts)[:, None])
    plain = Trajectory(rows, final, np.zeros(len(rows)), signals={"token_mask": real})
    chances = np.exp(jax.jit(POLICY.evaluate)(params, plain).logprob.sum(-1)).reshape(3, 2, 4, 2)
    np.testing.assert_allclose(alone[..., 0], chances[..., 0], atol=1e-5)
    np.testing.assert_allclose(several[..., 0], chances.sum(-1), atol=1e-5)
    assert stopped and (alone >= 0).all() and (alone <= 1).all()
    # What was written behind the cut, and what lies under the masks, does not matter.
    ends = np.asarray(cut_ends(batch, np.int32([2])))
    other = np.where(np.arange(batch.length) < ends, batch.tokens, 0)
    cut = probe(params, batch.replace(tokens=other), ("summary_reward",)).signals["summary_reward"]
    np.testing.assert_allclose(cut[:, :, 0], alone[:, :, 0], atol=1e-5)
    assert np.abs(np.asarray(cut) - alone)[:, :, 3].max() > 1e-4
    # Who never thinks is cut where the answer begins, and who never acts at the end.
    silent = batch.with_signals(thinking_mask=np.zeros_like(batch.action_mask))
    np.testing.assert_array_equal(cut_ends(silent, np.int32([1, 3])), np.full((3, 2, 2), TASK.prompt_length))
    nothing = silent.replace(action_mask=np.zeros_like(batch.action_mask))
    np.testing.assert_array_equal(cut_ends(nothing, np.int32([1])), batch.length)


def test_hidden_states_predict_the_tokens(params, batch, made):
    hidden, acted = made.signals["hidden"], np.asarray(batch.action_mask)
    logits = np.asarray(hidden) @ np.asarray(params["unembed"]["kernel"])
    logprob = np.take_along_axis(np.asarray(jax.nn.log_softmax(logits)), np.asarray(batch.tokens)[..., None], -1)[
        ..., 0
    ]
    out = jax.jit(POLICY.evaluate)(params, batch)
    np.testing.assert_allclose(logprob[acted], np.asarray(out.logprob)[acted], atol=1e-4)
    features = np.asarray(gradient_features(hidden, jnp.where(acted, out.logprob, jnp.nan), acted))
    np.testing.assert_allclose(features, (1 - np.exp(np.asarray(out.logprob)))[..., None] * hidden, atol=1e-4)
    # Values of prefixes: before the next acted token, and after the last token.
    score = np.asarray(made.signals["prefix_score"])
    np.testing.assert_allclose(
        score[..., :-1][acted[..., 1:]], np.asarray(out.value)[..., 1:][acted[..., 1:]], atol=1e-4
    )
    np.testing.assert_allclose(made.signals["prompt_score"], np.asarray(out.value)[:, 0, TASK.prompt_length], atol=1e-4)


def test_loops(params, batch, made):
    acted = np.asarray(batch.action_mask)
    looped = np.asarray(made.signals["loop_logprob"])
    out = jax.jit(POLICY.evaluate)(params, batch)
    np.testing.assert_allclose(looped[..., -1], out.logprob, atol=1e-5)
    once = TransformerPolicy(TransformerConfig(**{**CONFIG.__dict__, "loops": 1}))
    first = jax.jit(once.evaluate)({k: v for k, v in params.items() if k != "exit"}, batch)
    np.testing.assert_allclose(looped[..., 0], first.logprob, atol=1e-5)
    exits = np.asarray(made.signals["exit_pdf"])[acted]
    np.testing.assert_allclose(exits.sum(-1), 1, atol=1e-5)
    assert (exits > 0).all() and exits[:, 0].std() > 1e-3
    # What was sampled with a cache is what is evaluated without one.
    state = POLICY.start(params, 2, 4)
    tokens = jnp.asarray(batch.tokens[0, :, :4])
    for t in range(3):
        state = POLICY.extend(params, state, tokens[:, t : t + 1], jnp.ones((2, 1), bool), t)
    row = Trajectory(
        tokens,
        jnp.broadcast_to(jnp.arange(4) == 3, (2, 4)),
        jnp.zeros(2),
        signals={"token_mask": jnp.ones((2, 4), bool)},
    )
    wanted = POLICY.evaluate(params, row).logprob[:, 3]
    found = jnp.take_along_axis(jax.nn.log_softmax(state.logits), tokens[:, 3:], 1)[:, 0]
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_judge_gradients_are_derivatives(params, batch, made):
    """Scaling one token's embedding by 1 + e changes the judge's log-probability at the rate that is reported."""
    tokens, mask = np.asarray(batch.tokens[0]), np.asarray(batch.signals["token_mask"][0])
    c, g = 1, 0
    t = int(np.flatnonzero(np.asarray(batch.action_mask[0, g]))[2])
    asked = np.concatenate([tokens, np.tile(TASK.verdicts[c], (2, 1))], axis=1)
    real = np.pad(mask, ((0, 0), (0, 2)), constant_values=True)
    scored = np.broadcast_to(np.arange(asked.shape[1]) == asked.shape[1] - 1, asked.shape)
    embedded = POLICY.embeddings(params, asked, real)

    def score(step):
        return float(POLICY.score_embedded(params, embedded.at[g, t].multiply(1 + step), asked, real, scored)[g])

    wanted = (score(1e-2) - score(-1e-2)) / 2e-2
    np.testing.assert_allclose(made.signals["judge_grad_dot_emb"][0, g, t, c], wanted, rtol=2e-2, atol=1e-3)
    np.testing.assert_allclose(made.signals["judge_verdict"][0, g, c], np.exp(score(0.0)), rtol=1e-4)


def test_attributions_are_shares(made, batch):
    acted = np.asarray(batch.action_mask)
    np.testing.assert_allclose(made.signals["attributions"].sum(-2), 1, atol=1e-3)
    by_lime = np.asarray(made.signals["attributions"])[..., 2]
    for p, g in np.ndindex(3, 2):  # a segment's weight is spread evenly
        for k in range(4):
            own = by_lime[p, g][acted[p, g] & (np.asarray(batch.segment[p, g]) == k)]
            assert own.size == 0 or np.ptp(own) < 1e-5
    phi = jnp.array([[1.0, -3.0, jnp.nan], [0.5, -0.5, 0.0]])
    mask = jnp.array([[True, True, False], [True, True, False]])
    np.testing.assert_allclose(shares(phi, mask), [[-0.5, 1.5, 0], [0.5, 0.5, 0]], rtol=1e-6)
    linear = np.array([2.0, -1.0, 0.5])
    fitted = lime(lambda keep: keep @ jnp.asarray(linear, jnp.float32), 3, 64, ridge=1e-9)
    np.testing.assert_allclose(fitted, linear, atol=1e-3)


def test_planning_phrases():
    tokens = np.array([[1, 2, 3, 1, 2, 4, 1, 2, 3]])
    mask = np.array([[1, 1, 1, 1, 1, 1, 1, 1, 0]], bool)
    grams = pad_grams([(1, 2, 3), (2, 4)])
    np.testing.assert_array_equal(ngram_mask(tokens, mask, grams)[0], [1, 1, 1, 0, 1, 1, 0, 0, 0])
    assert not np.asarray(ngram_mask(tokens, mask, np.full((1, 2), -1, np.int32))).any()
    with pytest.raises(ValueError, match="none empty"):
        pad_grams([()])


def test_mining_keeps_strategy_and_drops_content_and_syntax():
    plan, check = ["let", "us", "first", "try"], ["now", "check", "the", "result"]
    solutions = [
        [
            *plan,
            f"take {i} apples".split()[1],
            "x = y ;",
            "a",
            "b",
            "c",
            "a",
            "b",
            "c",
            "a",
            "b",
            "c",
            *(check if i % 2 else []),
        ]
        for i in range(10)
    ]
    right = [True] * 8 + [False] * 2
    kept = mine_strategic_grams(solutions, right, sizes=(3,), min_share=0.5)
    assert ("let", "us", "first") in kept and ("check", "the", "result") in kept
    assert ("a", "b", "c") not in kept  # repeated inside each solution
    assert not any(gram[-1] == "3" for gram in kept)  # in one solution
    assert kept.index(("let", "us", "first")) < kept.index(("check", "the", "result"))
    assert mine_strategic_grams(solutions, right, sizes=(3,), min_share=0.6) == [
        g for g in kept if "check" not in g and "now" not in g and "the" not in g
    ]
    # Two wordings of one plan, each in half of the solutions, are kept together and not alone.
    halves = [["let", "us", "try"] if i % 2 else ["let", "me", "try"] for i in range(8)]
    assert mine_strategic_grams(halves, [True] * 8, (3,), min_share=0.9) == []
    together = mine_strategic_grams(halves, [True] * 8, (3,), cluster=lambda grams: [0] * len(grams), min_share=0.9)
    assert len(together) == 2
    with pytest.raises(ValueError, match="no solution is"):
        mine_strategic_grams(solutions, [False] * 10)


def test_what_is_missing_is_named(params, batch):
    bare = batch.replace(signals={"token_mask": batch.signals["token_mask"]})
    with pytest.raises(ValueError, match="signal answer_logprob: made from answer_tokens, answer_scored, which task"):
        produce(Models(POLICY, params, task=TASK), bare, ["answer_logprob"])
    with pytest.raises(
        ValueError, match="signal summary_reward: made from answer_tokens, answer_scored, thinking_mask"
    ):
        produce(Models(POLICY, params, task=TASK), bare, ["summary_reward"])
    with pytest.raises(ValueError, match="signal planning_mask: task object has no strategic_grams"):
        produce(Models(POLICY, params, task=object()), bare, ["planning_mask"])
    headless = TransformerPolicy(TransformerConfig(**{**CONFIG.__dict__, "value_head": False}))
    with pytest.raises(ValueError, match="has no value head"):
        produce(Models(headless, params, sampling=Sampling(), task=TASK), bare, ["prefix_score"])
