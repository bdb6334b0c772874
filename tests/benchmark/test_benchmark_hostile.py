"""Files that were torn, shared or are something else; numbers that are none; results made with another budget."""

import json
import math
import threading

from absl.testing import flagsaver
import numpy as np
import pytest

from creditjax import exact
from creditjax.benchmark import learning, page, scores
from creditjax.benchmark.results import LAST, Results, Row
from creditjax.tasks import chains
from experiments import benchmark

LINE = {"recipe": "a", "task": "t", "group": 4, "horizon": 8, "metric": "m", "value": 1.0, "stderr": 0.0}


def row(metric, value=0.5, recipe="a", stderr=0.1, horizon=8, **more):
    return Row(recipe, "t", 4, horizon, metric, value, stderr, more)


@pytest.mark.parametrize(
    "torn",
    [
        {"value": "x"},
        {"value": [1]},
        {"recipe": 1},
        {"group": [4]},
        {"horizon": None},
        {"metric": 2},
    ],
)
def test_lines_that_are_no_rows_are_made_again(tmp_path, torn):
    path = tmp_path / "x.jsonl"
    Results(path).add(("a", "t", 4, 8), [row("m")])
    good = path.read_bytes()
    path.write_bytes(json.dumps(LINE | torn).encode() + b"\n\xff\xfe\0\n" + good + b'{"recipe": "b", "ta')
    assert [r.metric for r in Results(path).rows] == ["m", LAST]
    assert path.read_bytes() == good


@pytest.mark.parametrize("text", ["", "\n", "\0" * 64, '{"re', '{"recipe": "a", "task": "t", "gr'])
def test_a_run_that_was_killed_at_once_leaves_nothing(tmp_path, text):
    path = tmp_path / "x.jsonl"
    path.write_text(text)
    assert Results(path).rows == [] and path.read_text() == ""


@pytest.mark.parametrize("text", ["# My notes\n", '{"name": "grpo", "ms": 1.0}\n', "\ufffd"])
def test_a_file_of_something_else_is_left_alone(tmp_path, text):
    path = tmp_path / "notes.md"
    path.write_text(text)
    with pytest.raises(ValueError, match="begins with .*, wanted a file of the benchmark's rows"):
        Results(path)
    benchmark.flags.FLAGS(["benchmark"])
    with flagsaver.flagsaver(out=str(path)), pytest.raises(SystemExit, match="wanted a file of the benchmark"):
        benchmark.main(["benchmark", "credit"])
    assert path.read_text() == text


def test_folders_are_made_and_are_no_files(tmp_path):
    path = tmp_path / "not" / "there" / "x.jsonl"
    Results(path).add(("a", "t", 4, 8), [row("m")])
    assert len(Results(path).rows) == 2
    with pytest.raises(ValueError, match="is a folder, wanted a file"):
        Results(tmp_path)


def test_runs_that_share_a_file_lose_nothing_and_the_last_made_counts(tmp_path):
    path = tmp_path / "x.jsonl"

    def run(name):
        for k in range(20):
            # Each reads, tidies up and adds while the others do.
            found = Results(path)
            found.add((f"{name}{k}", "t", 4, 8), [row("m", recipe=f"{name}{k}")])
            found.add(("both", "t", 4, 8), [row("m", float(k), recipe="both"), row("m", recipe="both+noise")])

    threads = [threading.Thread(target=run, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found = Results(path)
    assert all((f"{name}{k}", "t", 4, 8) in found for name in "abc" for k in range(20))
    assert [r.value for r in found.rows if r.recipe == "both"] == [19.0, 1.0]
    assert len(path.read_text().splitlines()) == len(found.rows) == 3 * 20 * 2 + 3


def test_what_is_made_again_takes_the_place_of_what_was(tmp_path):
    found, entry = Results(tmp_path / "x.jsonl"), ("a", "t", 4, 8)
    found.add(entry, [row("old"), row("m", 1.0)])
    found.add(entry, [row("m", 2.0)])
    for rows in (found.rows, Results(tmp_path / "x.jsonl").rows):
        assert [(r.metric, r.value) for r in rows] == [("m", 2.0), (LAST, 1.0)]
    assert found.get(entry, "m").value == 2.0 and found.get(entry, "old") is None


def test_a_quick_curve_is_no_part_of_a_whole_run(monkeypatch):
    made, found = [], Results()

    def curve(process, name, schedule):
        made.append((name, process.length, schedule.updates))
        ones = np.ones(3)
        return learning.Curve(np.arange(3), ones, ones, ones, ones, 0.3, ones)

    monkeypatch.setattr(learning, "curve", curve)
    one = {"only": ("rloo",)}
    list(learning.run_all(found, quick=True, **one))
    assert made == [(name, h, 48) for h in (4, 16) for name in (learning.ORACLE, "rloo")]
    made.clear()
    list(learning.run_all(found, **one))
    assert made == [(name, h, 96) for h in (4, 8, 16, 32, 64) for name in (learning.ORACLE, "rloo")]
    made.clear()
    list(learning.run_all(found, quick=True, **one))
    list(learning.run_all(found, **one))
    assert made == []


def test_learning_refuses_what_its_rollouts_would_leave_out():
    for game, message in (
        (chains.DiscountingChain((0, 1), best=1), "a reward at position 0, wanted none before the last"),
        (chains.UmbrellaChain(2), "tokens that are no actions"),
    ):
        process = exact.lay_out(game)
        policy = exact.tabulate(process, lambda _, size=game.num_tokens: np.ones(size))
        with pytest.raises(ValueError, match=message):
            learning.rollouts(process, policy, exact.values(process, policy), None, (1, 2))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_credit_that_is_no_number_gets_no_score(bad):
    credit, ones, valid = np.array([[1.0, 2.0], [bad, 1.0]]), np.ones((2, 2)), np.ones((2, 2), bool)
    for score in (
        lambda valid: scores.sign_accuracy(credit, ones, valid),
        lambda valid: scores.rank_correlation(credit, ones, valid),
        lambda valid: scores.hit_at_m(credit, ones, valid, 1),
        lambda valid: scores.credit_mass(credit, ones, valid),
    ):
        with pytest.raises(ValueError, match=r"credit: (nan|inf) at \[1, 0\], wanted finite numbers"):
            score(valid)
        score(np.array([[True, True], [False, True]]))


def test_scores_of_any_kind_of_numbers_and_of_no_steps():
    wanted = scores.rank_correlation([[1.0, 2.0, 0.0]], [[0.0, 1.0, -1.0]], np.ones((1, 3)))
    assert scores.rank_correlation(np.array([[1, 2, 0]], np.uint8), [[0, 1, -1]], np.ones((1, 3))) == wanted
    empty = np.zeros((2, 0))
    assert np.isnan(scores.hit_at_m(empty, empty, empty, 1)).all()
    with pytest.raises(ValueError, match=r"m: 1.5, wanted at least 1, whole"):
        scores.hit_at_m([[1.0]], [[1]], [[True]], 1.5)
    for weight in ([1.0], [math.nan, 1.0], [-1.0, 2.0]):
        with pytest.raises(ValueError, match="weight: .* for each of 2 episodes"):
            scores.average(np.ones(2), weight)


@pytest.mark.parametrize(
    "rows",
    [
        [row("bias"), row("variance"), row("credit@0", outcome=1.0, exact=None)],
        [row("bias"), row("variance"), row("credit@0", math.nan, outcome=1.0, exact=0.5), row("credit@1", exact=0.1)],
        [row("bias")],
        [row("bias", 1e300), row("variance", 1e300), row("bias", recipe="b"), row("variance", 0.0, "b", math.nan)],
        [row("return@0", low=0.0, high=1.0)],
        [row("return@0"), row("return@8", math.nan), row("return@16", low=None, high=1.0), row("return@x")],
        [row(f"return@{k}", recipe=name, horizon=h) for k in (0, 8) for name, h in (("a", 4), ("a", 8), ("b", 8))],
        [row("return@0"), row("return_area", math.nan), row("return@0", horizon=16), row("return_area", horizon=16)],
        [row("skipped", math.nan)],
        [Row("run", "", 0, 0, "seconds", math.nan, 0.0), Row("run", "", 0, 1, "seconds", 1.0, 0.0)],
    ],
)
def test_the_page_leaves_out_what_has_no_value(rows):
    text = page.render(rows)
    assert text.endswith("</html>\n")
    assert "nan" not in text.lower().replace("sans", "") and "inf," not in text and "None" not in text
