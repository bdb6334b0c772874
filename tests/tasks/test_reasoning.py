import jax
from jax import numpy as jnp
import numpy as np
import pytest

from creditjax import trajectory
from creditjax.tasks import base
from creditjax.tasks.reasoning import ReasoningTask

DIGITS = {"max_terms": 2, "max_digits": 1}  # 200 questions in all
L, A = 8, 6


def make(**options):
    small = {
        "parameters": DIGITS,
        "template": "formula",
        "alphabet": "0123456789+-= x",
        "max_prompt": L,
        "max_answer": A,
    }
    return ReasoningTask(**{"eval_size": 20, **small, **options})


def respond(task, prompts, responses):
    """A batch [P, G, T] whose responses are the given texts, ended by the stop token where they hold a '.'."""
    rows = np.zeros((len(responses), len(responses[0]), task.turns.action_length), np.int32)
    acted = np.zeros(rows.shape, bool)
    for p, group in enumerate(responses):
        for g, text in enumerate(group):
            ids = task.tokenizer.encode(text.rstrip("."))
            ids = ids + [task.tokenizer.end] * text.endswith(".")
            rows[p, g, : len(ids)] = ids
            acted[p, g, : len(ids)] = True
    tokens = np.broadcast_to(np.asarray(prompts.tokens)[:, None], (*rows.shape[:2], task.prompt_length))
    return trajectory.Trajectory(
        tokens=np.concatenate([tokens, rows], -1),
        action_mask=np.concatenate([np.zeros(tokens.shape, bool), acted], -1),
        outcome=np.full(rows.shape[:2], np.nan),
        reward=np.zeros((*rows.shape[:2], task.prompt_length + rows.shape[-1])),
    )


def questions(task, split, count):
    prompts = task.prompts(split, 0, count)
    return [task.tokenizer.decode(row) for row in np.asarray(prompts.tokens).tolist()]


def test_prompts_are_left_padded_formulas():
    task = make()
    assert isinstance(task, base.TextTask)
    assert task.turns == base.TurnFormat(max_turns=1, action_length=A, stop_token=1, pad_token=0)
    prompts = task.prompts("train", 0, 4)
    assert prompts.tokens.shape == prompts.mask.shape == (4, L)
    np.testing.assert_array_equal(prompts.mask, prompts.tokens != 0)
    assert prompts.mask[:, -1].all()
    for text in questions(task, "train", 4):
        a, operator, b, equals = text.split(" ")
        assert operator in "+-" and equals == "=" and 0 <= int(a) <= 9 and 0 <= int(b) <= 9


@pytest.mark.parametrize(
    "dataset", ["chain_sum", "basic_arithmetic", "gcd", "products", "simple_equations", "spell_backward", "count_bits"]
)
def test_gold_answers_score_one(dataset):
    task = ReasoningTask(dataset, template="formula", max_prompt=120, max_answer=60, eval_size=8)
    for split in ("train", "eval"):
        gold = task.verify(task.gold(split, 0, 8), task.prompts(split, 0, 8))
        np.testing.assert_array_equal(gold.outcome, np.ones((8, 1)))
    assert max(map(len, questions(task, "eval", 8))) < 60
    assert task.unscored == 0


def test_gold_layout():
    task = make()
    gold, prompts = task.gold("train", 3, 2), task.prompts("train", 3, 2)
    assert gold.tokens.shape == (2, 1, L + A)
    np.testing.assert_array_equal(gold.tokens[:, 0, :L], prompts.tokens)
    for tokens, mask, stop in zip(
        gold.tokens[:, 0, L:], gold.action_mask[:, 0, L:], gold.terminated[:, 0, L:], strict=True
    ):
        end = int(np.flatnonzero(tokens == task.tokenizer.end)[0])
        assert mask.tolist() == [i <= end for i in range(A)]
        assert stop.tolist() == [i == end for i in range(A)]
        assert not tokens[end + 1 :].any()
    assert not gold.action_mask[..., :L].any()
    np.testing.assert_array_equal(gold.segment, np.where(gold.action_mask, 0, -1))
    np.testing.assert_array_equal(gold.signals["token_mask"][:, 0, :L], prompts.mask)


def test_a_response_in_steps():
    task = make(step_length=3)
    gold, prompts = task.gold("train", 3, 2), task.prompts("train", 3, 2)
    step = np.maximum(np.arange(L + A) - L, 0) // 3
    np.testing.assert_array_equal(gold.segment, np.where(gold.action_mask, step, -1))
    assert gold.num_segments == -(-A // 3)
    alike = task.annotate(gold.replace(segment=jnp.where(gold.action_mask, 0, -1), num_segments=1), prompts, None)
    np.testing.assert_array_equal(alike.segment, gold.segment)
    assert alike.num_segments == gold.num_segments
    with pytest.raises(ValueError, match="step_length: 0, wanted at least 1"):
        make(step_length=0)


def test_verifier_on_garbage():
    task = make()
    prompts = task.prompts("train", 0, 1)
    gold = task._item(int(prompts.data[0])).answer
    wrong = str(int(gold) + 1)
    texts = [f"{gold}.", gold, f" {gold}.", f"{wrong}.", "", ".", "xxxxxx", "-=+-=.", f"{gold}x."]
    batch = task.verify(respond(task, prompts, [texts]), prompts)
    right = [True, True, True, False, False, False, False, False, False]
    np.testing.assert_array_equal(batch.signals["accuracy"][0], np.array(right, np.float32))
    assert ((batch.outcome >= 0) & (batch.outcome <= 1)).all()
    assert 0 < batch.outcome[0, -1] < 1  # the package pays for a text that contains the answer
    strict = make(binary=True)
    np.testing.assert_array_equal(strict.verify(batch, prompts).outcome[0], np.array(right, np.float32))


def test_an_answer_that_is_nearly_right_is_not_right():
    # The package adds up sixths: 0.9999999999999999 for a right word of six letters with one more behind it.
    words = {"min_word_len": 6, "max_word_len": 6}
    task = ReasoningTask("spell_backward", words, template="formula", max_prompt=8, max_answer=8, binary=True)
    prompts = task.prompts("train", 0, 2)
    gold = task.gold("train", 0, 2)
    texts = [task.tokenizer.decode(gold.tokens[p, 0][gold.action_mask[p, 0]].tolist()) for p in range(2)]
    batch = task.verify(respond(task, prompts, [[f"{text}.", f"{text}s."] for text in texts]), prompts)
    np.testing.assert_array_equal(batch.outcome, [[1, 0], [1, 0]])


def test_what_comes_after_the_end_or_outside_the_mask_is_not_read():
    task = make()
    prompts = task.prompts("train", 0, 1)
    gold = task._item(int(prompts.data[0])).answer
    batch = respond(task, prompts, [[f"{gold}."]])
    junk = jnp.where(batch.action_mask | (jnp.arange(L + A) < L), batch.tokens, 5)
    assert task.verify(batch.replace(tokens=junk), prompts).outcome == 1
    assert (
        task.verify(
            batch.replace(tokens=junk, action_mask=jnp.arange(L + A) >= L * jnp.ones((1, 1, 1), int)), prompts
        ).outcome
        == 1
    )


def test_outcome_components_and_reward_agree():
    task = make(format_weight=0.25, binary=True)
    prompts = task.prompts("train", 0, 1)
    gold = task._item(int(prompts.data[0])).answer
    batch = task.verify(respond(task, prompts, [[f"{gold}.", gold, "x.", "x"]]), prompts)
    np.testing.assert_allclose(batch.outcome, [[1.0, 0.75, 0.25, 0.0]])
    np.testing.assert_allclose(batch.signals["reward_components"], [[[0.75, 0.25], [0.75, 0], [0, 0.25], [0, 0]]])
    np.testing.assert_array_equal(batch.reward.sum(-1), batch.outcome)
    # Paid at the last acted position; grading again changes nothing.
    np.testing.assert_array_equal(batch.reward[0, 2], np.where(np.arange(L + A) == L + 1, 0.25, 0))
    again = task.verify(batch, prompts)
    jax.tree.map(np.testing.assert_array_equal, again, batch)


def test_grader_that_fails_leaves_unscored(monkeypatch):  # case C16
    task = make()
    prompts = task.prompts("train", 0, 2)
    gold = [task._item(int(key)).answer for key in prompts.data]

    def grade(key, text):
        if text == "x":
            raise RecursionError("too deep")
        return float("nan") if text == "-" else float(text == gold[0])

    monkeypatch.setattr(task, "_grade_text", grade)
    batch = task.verify(respond(task, prompts, [[gold[0], "x"], ["-", "x"]]), prompts)
    np.testing.assert_array_equal(batch.outcome, [[1, np.nan], [np.nan, np.nan]])
    np.testing.assert_array_equal(np.isnan(batch.signals["accuracy"]), np.isnan(batch.outcome))
    assert task.unscored == 3
    assert np.isfinite(batch.reward).all()


def test_splits_share_no_question_however_small_the_space():
    task = make(eval_size=100)  # half of all questions
    held_out, train = questions(task, "eval", 100), questions(task, "train", 400)
    assert len(set(held_out)) == 100
    assert not set(held_out) & set(train)
    assert len(set(train)) > 80


def test_determinism_and_order():
    a, b = make(), make()
    b.prompts("train", 50, 3)  # what was asked before must not matter
    whole, part = a.prompts("train", 0, 8), b.prompts("train", 5, 3)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[5:], y), whole, part)
    other = make(seed=1_000_000)
    assert (np.asarray(other.prompts("train", 0, 8).tokens) != np.asarray(whole.tokens)).any()
    # Far indices, past the first block of entries, are as good as near ones.
    far = a.verify(a.gold("train", 123_456_789, 3), a.prompts("train", 123_456_789, 3))
    np.testing.assert_array_equal(far.outcome, np.ones((3, 1)))


def test_only_checkable_answers():
    task = ReasoningTask("graph_color", {"max_num_vertices": 10}, max_prompt=1500, max_answer=200, eval_size=1)
    prompts = task.prompts("train", 0, 1)
    batch = task.verify(respond(task, prompts, [["{}.", "no."]]), prompts)
    assert batch.signals["accuracy"].tolist() == [[0, 0]]
    assert batch.outcome[0, 0] < 0.1 and batch.outcome[0, 1] == 0
    with pytest.raises(ValueError, match="no gold answer .* can only be checked"):
        task.gold("train", 0, 1)


def test_what_does_not_fit_is_named_or_redrawn():
    long = {"min_terms": 2, "max_terms": 6, "max_digits": 2}
    with pytest.raises(ValueError, match=r"a question has \d+ tokens, longer than max_prompt=8"):
        make(parameters=long).prompts("train", 0, 64)
    with pytest.raises(ValueError, match=r"have \d tokens, longer than max_answer=2"):
        make(max_answer=2).gold("train", 0, 64)
    with pytest.raises(ValueError, match="cannot spell the gold answer '-"):
        make(alphabet="0123456789+= ").gold("train", 0, 64)
    task = make(parameters=long, too_long="redraw")
    assert task.prompts("train", 0, 64).tokens.shape == (64, L)
    assert task.redrawn > 0


@pytest.mark.parametrize(
    "options, message",
    [
        ({"dataset": "chian_sum"}, "did you mean chain_sum"),
        ({"parameters": {"max_term": 2}}, "chain_sum has no 'max_term'; did you mean max_terms"),
        ({"parameters": {"seed": 2}}, "has no 'seed'"),
        ({"parameters": {"min_terms": 5, "max_terms": 2}}, "chain_sum refuses .*max_terms must be >= min_terms"),
        ({"dataset": "maze", "parameters": {}}, "no formula is known for 'maze'"),
        ({"template": "short"}, "wanted None, 'formula' or a function"),
        ({"too_long": "skip"}, "wanted 'raise' or 'redraw'"),
        ({"seed": -1}, "seed: -1"),
        ({"format_weight": 2.0}, "format_weight: 2.0"),
        ({"max_answer": 0}, "max_answer: 0"),
        ({"alphabet": "aa"}, "repeated"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)


def test_bad_requests_are_named():
    task = make(eval_size=300)  # there are 200 questions
    with pytest.raises(ValueError, match="300 distinct questions of chain_sum wanted"):
        task.prompts("eval", 0, 1)
    with pytest.raises(ValueError, match="split: 'test'"):
        make().prompts("test", 0, 1)
    with pytest.raises(ValueError, match="there are 20"):
        make().prompts("eval", 15, 6)


def test_template_of_the_user():
    task = make(template=lambda question: question[-9:].strip(" :m"))
    assert all(text.endswith("=") for text in questions(task, "train", 4))
    assert task.decode(jnp.array([3, 1])) == ["0", "<end>"]
