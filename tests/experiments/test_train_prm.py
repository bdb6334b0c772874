"""The command that trains a process-reward model, on a file made here."""

import json
import random

from absl import flags
from absl.testing import flagsaver
import pytest

from experiments import train_prm


def rows(count):
    """Sums in PRMBench's format; a wrong step brings a number that nothing before it has."""
    rng = random.Random(0)
    for number in range(count):
        x, y = rng.sample(range(2, 9), 2)
        right = [f"We begin with {x}.", f"We take {x} and {y}.", f"Both {y} and {x} are kept.", f"We end with {x}."]
        wrong, place = list(right), rng.randrange(1, 4)
        wrong[place] = wrong[place].replace(str(x), str(rng.randrange(100, 999)))
        yield {
            "original_question": f"Question {number}: keep {x} and {y}.",
            "modified_question": f"Question {number}: keep {x} and {y}.",
            "original_process": right,
            "modified_process": wrong,
            "modified_steps": [place + 1],
            "error_steps": [place + 1],
            "reason": "",
            "idx": f"circular_prm_test_p{number}",
            "question": f"Question {number}: keep {x} and {y}.",
            "classification": "circular",
        }


def run(capsys, data, **given):
    options = {"folds": 2, "members": 1, "seeds": 1, "steps": 150, "every": 30, "max_steps": 4, "batch": 16}
    options["learning_rate"] = 0.02
    flags.FLAGS.mark_as_parsed()
    with flagsaver.flagsaver(data=[str(data)], **{**options, **given}):
        train_prm.main(["train_prm"])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines() if line.startswith("{")]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "steps.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows(24)), encoding="utf-8")
    return path


def test_a_model_learns_what_gives_errors_away(capsys, data, tmp_path):
    result, summary = run(capsys, data, design="word", scores=str(tmp_path / "scores.jsonl"))
    held = result["held_out"]
    assert held["solutions"] == 48 and held["wrong_steps"] == 24
    assert held["auroc"][0] > 0.9 and held["auroc"][1] <= held["auroc"][0] <= held["auroc"][2]
    assert held["pairs"][0] > 0.9 and held["f1"] > held["chance"]["f1"] + 0.2
    assert result["confirmation"]["solutions"] < 48
    assert summary["seeds"] == 1 and summary["mean_and_std"]["held_out"]["auroc"][0] == held["auroc"][0]
    scored = [json.loads(line) for line in (tmp_path / "scores.jsonl").read_text().splitlines()]
    assert len(scored) == 48 and all(len(row["score"]) == len(row["label"]) for row in scored)


def test_what_cannot_be_trained_on_is_told_by_its_flag(capsys, data, tmp_path):
    few = tmp_path / "few.jsonl"
    few.write_text("".join(json.dumps(row) + "\n" for row in rows(3)), encoding="utf-8")
    with pytest.raises(SystemExit, match="--data: 3 problems with step labels, wanted at least"):
        run(capsys, few)
    with pytest.raises(SystemExit, match="--data: .*none.jsonl"):
        run(capsys, tmp_path / "none.jsonl")
    with pytest.raises(SystemExit, match="--data: no file, wanted step-label files"):
        train_prm.main(["train_prm"])
