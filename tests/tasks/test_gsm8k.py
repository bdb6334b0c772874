import decimal
import json
import socket
import subprocess
import sys

import numpy as np
import pytest

from creditjax.tasks import base, gsm8k

ROWS = {
    "train": [
        ("Ann has 3 apples and buys 4. How many?", "3+4=<<3+4=7>>7\n#### 7"),
        ("A car costs $1,000 more than $234.50. Price?", "1000+234.5 = 1234.5\n#### 1,234.50"),
        ("It is 5 below zero \u2013 the temperature?", "It is -5.\n#### -5"),
        ("What? " * 40, "Too long a question.\n#### 1"),
    ],
    "test": [("Two and two?", "2+2=4\n#### 4"), ("Ten less one?", "10-1=9\n#### 9")],
}


def write(folder, rows=ROWS):
    folder.mkdir(exist_ok=True)
    for split, items in rows.items():
        lines = [json.dumps({"question": q, "answer": a}) for q, a in items]
        (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """A prepared data set; a socket opened on the way is an error."""
    root = tmp_path_factory.mktemp("gsm8k")

    def refuse(*_, **__):
        raise AssertionError("a socket was opened")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "socket", refuse)
        where = gsm8k.prepare(write(root / "source"), root / "out")
        assert where.is_dir() and list(where.glob("*.array_record*"))
        task = gsm8k.GSM8KTask(str(root / "out"), max_prompt=60, max_answer=60)
    return root / "out", task


def test_rows_come_back_in_their_order(prepared):
    data_dir, task = prepared
    assert isinstance(task, base.TextTask)
    source = gsm8k.data_source(data_dir, "train")
    assert [(row["question"].decode(), row["answer"].decode()) for row in source] == ROWS["train"]
    assert source[2]["answer"].decode() == ROWS["train"][2][1]
    assert task.skipped == {"train": 1, "test": 0}
    assert task.eval_size == 2
    assert "tensorflow" not in sys.modules


def test_gold_is_the_reference_solution_and_scores_one(prepared):
    task = prepared[1]
    gold, prompts = task.gold("eval", 0, 2), task.prompts("eval", 0, 2)
    text = [task.tokenizer.decode(gold.tokens[p, 0][gold.action_mask[p, 0]].tolist()) for p in range(2)]
    assert text == [answer for _, answer in ROWS["test"]]
    assert [task.tokenizer.decode(row.tolist()) for row in prompts.tokens] == [question for question, _ in ROWS["test"]]
    np.testing.assert_array_equal(task.verify(gold, prompts).outcome, [[1], [1]])
    # Each solution is wrong for the other question.
    swapped = base.Prompts(prompts.tokens, prompts.mask, prompts.data[::-1])
    np.testing.assert_array_equal(task.verify(gold, swapped).outcome, [[0], [0]])


def test_train_is_endless_and_shuffled_by_epoch(prepared):
    data_dir, task = prepared
    keys = np.asarray(task.prompts("train", 0, 60).data).reshape(20, 3)
    np.testing.assert_array_equal(np.sort(keys), np.broadcast_to([0, 1, 2], (20, 3)))  # the fourth row does not fit
    assert len(np.unique(keys, axis=0)) > 2
    again = gsm8k.GSM8KTask(str(data_dir), max_prompt=60, max_answer=60).prompts("train", 57, 3)
    np.testing.assert_array_equal(again.data, keys[-1])
    assert not set(keys.ravel()) & set(np.asarray(task.prompts("eval", 0, 2).data).tolist())


@pytest.mark.parametrize(
    "text, wanted",
    [
        ("so #### 72", "72"),
        ("#### 1,234.50 dollars", "1234.5"),
        ("####-5.", "-5"),
        ("#### $12", "12"),
        ("#### -$12", "-12"),
        ("#### \u22123", "-3"),
        ("#### +0.50", "0.5"),
        ("#### .5", "0.5"),
        ("#### 1 #### 2", "2"),
        ("#### x 3", None),
        ("#### ", None),
        ("the answer is 72", None),
        ("", None),
        ("#### ,", None),
    ],
)
def test_final_number(text, wanted):
    assert gsm8k.final_number(text) == (None if wanted is None else decimal.Decimal(wanted))


def test_final_number_without_mark():
    assert gsm8k.final_number("7 and then 1,000.", marked=False) == 1000
    assert gsm8k.final_number("7 #### 3", marked=False) == 3
    assert gsm8k.final_number("none", marked=False) is None


def test_unprepared_directory_says_what_to_run(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(FileNotFoundError, match="Run: python -m creditjax.tasks.gsm8k --source=DIR --out="):
            gsm8k.GSM8KTask(str(path))


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", "train.jsonl:2: wanted an object with question and answer"),
        ('{"question": "q"}', "train.jsonl:2: .*'answer'"),
        ("[]", "train.jsonl:2: wanted an object"),
        ('{"question": 1, "answer": "#### 2"}', "train.jsonl:2: question and answer must be strings"),
        ('{"question": "q", "answer": "2"}', "train.jsonl:2: the answer does not end in '#### N'"),
    ],
)
def test_bad_source_is_named(tmp_path, line, message):
    source = write(tmp_path / "source", {"train": ROWS["train"][:1], "test": ROWS["test"]})
    with (source / "train.jsonl").open("a") as file:
        file.write(line + "\n")
    with pytest.raises(ValueError, match=message):
        gsm8k.prepare(source, tmp_path / "out")
    (source / "test.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="has no test.jsonl"):
        gsm8k.prepare(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_misfits_are_named(prepared):
    data_dir = str(prepared[0])
    with pytest.raises(ValueError, match="no row of train fits max_prompt=3"):
        gsm8k.GSM8KTask(data_dir, max_prompt=3)
    with pytest.raises(ValueError, match="eval_size: 9, but only 2 test rows fit"):
        gsm8k.GSM8KTask(data_dir, eval_size=9)


def test_command_line(tmp_path):
    source = write(tmp_path / "source")
    command = [sys.executable, "-m", "creditjax.tasks.gsm8k", f"--source={source}", f"--out={tmp_path / 'out'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("1.0.0")
    assert len(gsm8k.data_source(tmp_path / "out", "test")) == 2
