"""Estimators held against exact credit: the benchmark's numbers agree with enumeration, and its file can be resumed."""

import json
import math

from absl.testing import flagsaver
import numpy as np
import pytest

from creditjax import exact, recipe
from creditjax.benchmark import credit, page, results
from creditjax.benchmark.results import Results, Row
from experiments import benchmark

FLAGS = dict(tasks=["single"], horizons=["4"], groups=["2"], learning=False)


@pytest.fixture(autouse=True, scope="module")
def parsed_flags():
    benchmark.flags.FLAGS(["benchmark"])


@pytest.fixture(scope="module")
def single():
    return credit.setting("single", 4, 2)


def of(given, name):
    made = recipe(name)
    return credit.steps(given, credit.credit_of(given, made.estimator, credit.signals_of(given, made.signals)))


def test_exact_credit_is_the_best_that_there_is(single):
    found = credit.measure(single, single.true[single.index])
    for name in ("sign_accuracy", "spearman", "kendall", "hit_at_1", "hit_at_3", "credit_mass", "cosine"):
        assert found[name] == pytest.approx((1.0, 0.0)), name
    for name in ("zero_share", "bias", "variance", "relative_bias"):
        assert found[name][0] == pytest.approx(0.0, abs=1e-6), name
    assert found["efficiency"][0] > 2


@pytest.mark.parametrize("name", ["grpo", "gigpo"])
def test_gradients_are_judged_as_by_enumeration(single, name):
    process, solution = single.process, single.solution
    made = recipe(name)
    signals = credit.signals_of(single, made.signals)
    moments = exact.enumerate_moments(made.estimator, process, solution, 2, signals=signals)
    base = exact.enumerate_moments(exact.reinforce(), process, solution, 2)
    judged = exact.judge(moments, base, process, solution)
    found = credit.measure(single, of(single, name))
    for metric in ("cosine", "relative_bias", "efficiency"):
        assert found[metric][0] == pytest.approx(getattr(judged, metric), rel=1e-4), metric
    chance = exact.probability(process, single.paths, solution.policy)[:, None]
    mean, spread, true = moments.credit, moments.credit_variance, single.true
    factor = np.sum(chance * mean * true) / np.sum(chance * (mean**2 + spread))
    size = np.sum(chance * true**2)
    assert found["bias"][0] == pytest.approx(math.sqrt(np.sum(chance * (factor * mean - true) ** 2) / size), rel=1e-5)
    assert found["variance"][0] == pytest.approx(factor**2 * np.sum(chance * spread) / size, rel=1e-4)


def test_drawn_groups_agree_within_their_errors(single, monkeypatch):
    monkeypatch.setattr(credit, "_ENUMERATED", 0)
    drawn = credit.setting("single", 4, 2)
    assert single.exact and not drawn.exact
    whole, sampled = (credit.measure(given, of(given, "gigpo")) for given in (single, drawn))
    for metric, (value, error) in sampled.items():
        assert abs(value - whole[metric][0]) <= 4.5 * error + 1e-3, (metric, value, error, whole[metric])
    assert 0 < sampled["bias"][1] < 0.05


def test_shuffling_moves_credit_within_its_rollout(single):
    made = of(single, "gigpo")
    mixed = credit.shuffled(single, made, np.random.default_rng(0))
    np.testing.assert_array_equal(np.sort(mixed, axis=-1), np.sort(made, axis=-1))
    assert (mixed != made).any()
    assert abs(credit.measure(single, mixed)["spearman"][0]) < credit.measure(single, made)["spearman"][0] / 2


def test_steps_that_are_not_there_get_nothing():
    # Walks end early, so that late steps exist in some episodes only.
    given = credit.setting("hypergrid", 8, 2)
    assert not given.valid.all()
    mixed = credit.shuffled(
        given, np.where(given.valid[given.index], 1.0 + given.index[..., None], 0.0), given.rng("x")
    )
    np.testing.assert_array_equal(mixed != 0, given.valid[given.index])
    random = credit._control(given, "control:random")
    true = given.true[given.index]
    np.testing.assert_allclose(np.linalg.norm(random, axis=-1), np.linalg.norm(true, axis=-1), atol=1e-12)


def test_decisive_steps_are_those_whose_action_matters():
    given = credit.setting("conjunction", 4, 2)
    first, second = 1, 3
    right = given.paths.tokens[:, first] == 1
    np.testing.assert_array_equal(given.decisive[:, first], True)
    np.testing.assert_array_equal(given.decisive[:, second], right)
    assert not given.decisive[:, [0, 2]].any()


def test_every_task_lays_out_and_what_cannot_run_says_why():
    for task in credit.TASKS:
        assert credit.setting(task, 8, 2) is None if task == "pipeline" else True
        given = credit.setting(task, 8 if task == "hypergrid" else 4, 2)
        assert given.valid.any() and given.index.shape[1] == 2, task
        assert np.linalg.norm(given.gradient) > 1e-3, f"{task}: nothing to learn"
    # Too many episodes to enumerate, without knowing so from the number of actions.
    assert not credit.setting("hypergrid", 16, 2).exact
    team = credit.setting("pipeline", 4, 2)
    made = credit.run(team, "shapley_exact")
    assert any(row.recipe == "shapley_exact" and row.metric == "efficiency" for row in made)
    calls = credit.setting("lookup", 4, 2)
    for name in ("matchtir", "skillgate", "gdpo"):
        assert any(row.recipe == name and row.metric == "cosine" for row in credit.run(calls, name))
    for name in ("matchtir", "skillgate", "shapley_exact"):
        (row,) = credit.run(credit.setting("single", 4, 2), name)
        assert row.metric == "skipped" and row.more["reason"]


def test_a_recipe_whose_credit_is_no_number_is_left_out_with_the_reason(single, monkeypatch):
    monkeypatch.setattr(credit, "credit_of", lambda given, *_: np.full((*given.index.shape, 4), np.nan))
    (row,) = credit.run(single, "rloo")
    assert row.metric == "skipped" and "are not finite" in row.more["reason"]


def test_recipes_with_signals_have_a_noisy_twin(single):
    made = credit.run(single, "vtrace")
    by = {name: {r.metric: r.value for r in made if r.recipe == name} for name in ("vtrace", "vtrace+noise")}
    assert by["vtrace+noise"]["spearman"] < by["vtrace"]["spearman"]
    assert {row.recipe for row in made} == {"vtrace", "vtrace+noise", "vtrace+shuffled"}
    assert {row.recipe for row in credit.run(single, "rloo")} == {"rloo"}


def test_a_run_goes_on_where_it_stopped(tmp_path, monkeypatch, capsys):
    path, html = tmp_path / "credit.jsonl", tmp_path / "credit.html"
    made = []
    whole = credit.run
    monkeypatch.setattr(credit, "run", lambda given, name: made.append(name) or whole(given, name))
    with flagsaver.flagsaver(out=str(path), only=["rloo", "gigpo"], html=str(html), **FLAGS):
        benchmark.main(["benchmark", "credit"])
        assert made == [*credit.CONTROLS, "gigpo", "rloo"]
        lines = path.read_text().splitlines(keepends=True)
        rows = [json.loads(line) for line in lines]
        assert all(set(results.FIELDS) <= set(row) for row in rows)
        # Killed within the last entry.
        cut = max(i for i, row in enumerate(rows) if row["recipe"] == "rloo" and row["metric"] == "kendall")
        path.write_text("".join(lines[:cut]) + lines[cut][:20])
        made.clear()
        benchmark.main(["benchmark", "credit"])
        assert made == ["rloo"]
        again = [json.loads(line) for line in path.read_text().splitlines()]
        keep = [r for r in rows if r["metric"] not in ("cost_ms", "seconds")]
        assert [r for r in again if r["metric"] not in ("cost_ms", "seconds")] == keep
        made.clear()
        benchmark.main(["benchmark", "credit"])
        assert made == []
    assert "single, 4 actions, groups of 2, all 136 groups" in capsys.readouterr().out
    assert "gigpo" in html.read_text() and str(tmp_path) not in html.read_text()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (dict(only=["grppo"]), "--only: 'grppo' unknown, did you mean .*grpo"),
        (dict(tasks=["singel"]), "--tasks: 'singel' unknown, did you mean single"),
        (dict(horizons=["2"]), "--horizons: 2, wanted numbers of at least 4"),
        (dict(groups=["four"]), "--groups: four, wanted numbers of at least 1"),
    ],
)
def test_what_cannot_be_run_is_named(flags, said):
    with flagsaver.flagsaver(**{**FLAGS, **flags}), pytest.raises(SystemExit, match=said):
        benchmark.main(["benchmark", "credit"])


def test_the_page_shows_what_there_is_and_escapes_it():
    evil = "<script>alert(1)</script>"
    rows = [Row(evil, "single", 4, 8, name, 0.5 + 0.01 * i, 0.1) for i, name in enumerate(credit.METRICS)]
    rows += [Row(evil, "single", 4, 8, f"credit@{k}", k / 3, 0.0, {"outcome": 1.0, "exact": -0.5}) for k in range(3)]
    rows += [Row("x", "single", 4, 8, "skipped", math.nan, math.nan, {"reason": evil})]
    for horizon in (4, 8):
        area = Row("grpo", "learn", 4, horizon, "return_area", 0.4, 0.1)
        rows += [
            area,
            *(Row("grpo", "learn", 4, horizon, f"return@{s}", 0.3, 0.1, dict(low=0.2, high=0.4)) for s in (0, 9)),
        ]
    text = page.render(rows)
    assert "<script" not in text and "&lt;script&gt;" in text
    assert not [word for word in ("http://", "https://", "src=", "url(") if word in text]
    for heading in ("Bias against variance", "Credit against position", "Learning at", "Numbers", "checklist"):
        assert heading in text
    assert "0.560 <small>" in text and "nan" not in text.lower().replace("sans", "")
    assert "has not finished" in page.render([])
    # One setting a task has its numbers there; how many more the file has is said.
    more = [row._replace(group=8) for row in rows if row.metric != "skipped"]
    assert page.render(rows + more).count("by Spearman") == 1 and "1 more setting, of" in page.render(rows + more)


def test_no_row_is_lost_between_memory_and_file(tmp_path):
    found = Results(tmp_path / "x.jsonl")
    rows = [Row("a", "t", 4, 8, "m", 0.1, 0.0), Row("a+noise", "t", 4, 8, "m", math.nan, math.inf, {"why": "ü"})]
    found.add(("a", "t", 4, 8), rows)
    again = Results(tmp_path / "x.jsonl")
    assert ("a", "t", 4, 8) in again and ("b", "t", 4, 8) not in again
    assert [row.recipe for row in again.rows] == ["a", "a+noise", "a"] and again.rows[1].more == {"why": "ü"}
    assert results.parse("[1]") is None and results.parse('{"recipe": 1}') is None
