"""The statistics of a sweep against brute force, and its page from a directory that is half done."""

import html.parser
import itertools
import json

import numpy as np
from pyarrow import parquet
import pytest

from creditjax.report.sweep import write_sweep_report, write_table
from creditjax.sweeps import outcome, statistics

RECIPES, RATES, SEEDS = ("grpo", "rloo"), (1e-3, 1e-1), 3


def made_sweep(root, unfinished=()):
    """Two recipes, two rates, three seeds; success rises to a level that the setting decides."""
    trials = []
    for n, (name, rate, seed) in enumerate(itertools.product(RECIPES, RATES, range(SEEDS))):
        trial = f"<t{n}>"
        overrides = {"recipe.name": name, "optimizer.learning_rate": rate, "seed": seed}
        trials.append({"id": trial, "overrides": overrides})
        workdir = root / "trials" / trial
        workdir.mkdir(parents=True)
        config = {"checkpoint": {"best_metric": "eval/success"}, "recipe": {"name": name}}
        (workdir / "config.json").write_text(json.dumps({"config": config, "devices": {"count": 2}}))
        level = 0.2 * (name == "rloo") + 0.3 * (rate > 0.01) + 0.01 * seed
        rows = [
            {"step": s, "eval/success": level * s / 4, "tokens": 100.0, "seconds_per_step": 9.0, "response_length": 5.0}
            for s in (0, 2, 4)
        ]
        (workdir / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        if n not in unfinished:
            (workdir / "result.json").write_text("{}")
    (root / "sweep.json").write_text(json.dumps({"trials": trials}))
    return root


@pytest.mark.parametrize(("x", "y"), [([1, 2, 3], [7, 8, 9]), ([0, 0, 1], [0, 1, 1, 1]), ([1, 1], [1, 1, 1])])
def test_the_permutation_test_counts_every_relabelling(x, y):
    pooled, observed = np.array([*x, *y], float), abs(np.mean(x) - np.mean(y))
    gaps = []
    for order in itertools.permutations(range(len(pooled))):
        first, second = pooled[list(order[: len(x)])], pooled[list(order[len(x) :])]
        gaps.append(abs(first.mean() - second.mean()) >= observed - 1e-12)
    assert statistics.p_value(x, y) == pytest.approx(np.mean(gaps))


def test_many_seeds_are_relabelled_at_random():
    rng = np.random.default_rng(0)
    same, other = rng.normal(size=30), rng.normal(size=30)
    assert statistics.p_value(same, other + 2) < 0.001 < 0.05 < statistics.p_value(same, other)
    assert statistics.improvement(same, other) == pytest.approx(1 - statistics.improvement(other, same))


def test_interval_covers_and_interquartile_mean_leaves_the_ends_out():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(100):
        low, high = statistics.interval(rng.normal(size=20))
        inside += low <= 0 <= high
    assert 85 <= inside <= 99
    values = rng.normal(size=(8, 3))
    np.testing.assert_allclose(statistics.interquartile_mean(values), np.sort(values, axis=0)[2:6].mean(axis=0))
    low, high = statistics.interval(values, statistics.interquartile_mean)
    assert low.shape == (3,) and (low <= high).all()
    one = statistics.interval(np.array([0.5]))
    assert one == (0.5, 0.5)
    with pytest.raises(ValueError, match="at least one seed"):
        statistics.interval(np.zeros((0, 2)))
    with pytest.raises(ValueError, match="0 and 1 values"):
        statistics.p_value([], [1.0])


def test_a_sweep_is_read_setting_by_setting(tmp_path):
    trials = outcome.read_sweep(made_sweep(tmp_path, unfinished=(11,)))
    settings = outcome.arms(trials)
    assert [arm.name for arm in settings] == [
        "grpo, learning_rate=0.001", "grpo, learning_rate=0.1", "rloo, learning_rate=0.001", "rloo, learning_rate=0.1"
    ]  # fmt: skip
    assert outcome.main_metric(trials) == "eval/success"
    np.testing.assert_allclose(settings[2].finals("eval/success"), [0.2, 0.21, 0.22])
    np.testing.assert_allclose(settings[3].finals("eval/success"), [0.5, 0.51])  # the third is not finished
    steps, values = settings[3].curve("eval/success")
    assert steps.tolist() == [0, 2, 4] and values.shape == (3, 3)
    assert trials[0].total("tokens") == 400 and np.isnan(trials[0].last("nothing"))


class Structure(html.parser.HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.links, self.text = [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.links += [value for name, value in attrs if name == "href" and tag == "a"]
        assert tag != "script"

    def handle_data(self, data):
        self.text += data


def test_the_page_ranks_compares_and_links(tmp_path):
    root = made_sweep(tmp_path / "sweep", unfinished=(11,))
    page = write_sweep_report(root)
    text = page.read_text()
    found = Structure(text)
    assert page == root / "report.html" and "http" not in "".join(found.links)
    assert found.text.index("rloo, learning_rate=0.1") < found.text.index("grpo, learning_rate=0.1")
    for said in ("2 of 3", "0.505", "0.5 to 0.51", "at step 4", "<t11>", "Learning curves", "Performance profile"):
        assert said in found.text, said
    assert "11 of 12" in found.text and "reported" in found.text
    # 12 trials of 4 steps of 9 seconds on 2 devices.
    assert f"{12 * 4 * 9 * 2 / 3600:.4g}" in found.text
    assert len(found.links) == 11 and found.links[0] == "./trials/<t0>/report.html"
    assert text.count("<svg") == 3  # curves, profile, and the one hyperparameter that is a number
    elsewhere = write_sweep_report(root, tmp_path / "pages" / "one.html", "tokens")
    assert "../sweep/trials/" in elsewhere.read_text()
    assert write_sweep_report(root).read_text() == text


def test_the_table_holds_every_number(tmp_path):
    root = made_sweep(tmp_path)
    table = parquet.read_table(write_table(root, tmp_path / "metrics.parquet")).to_pylist()
    assert len(table) == 12 * 3 * 4
    row = next(row for row in table if (row["trial"], row["step"], row["metric"]) == ("<t11>", 4, "eval/success"))
    assert row["value"] == pytest.approx(0.52) and row["recipe.name"] == "rloo" and row["seed"] == 2


def test_what_is_no_sweep_is_said(tmp_path):
    with pytest.raises(FileNotFoundError, match="no sweep.json"):
        write_sweep_report(tmp_path)
    (tmp_path / "sweep.json").write_text('{"trials": [{"id": 3}]}')
    with pytest.raises(ValueError, match="sweep.json: KeyError: 'overrides'"):
        write_sweep_report(tmp_path)
    (tmp_path / "sweep.json").write_text('{"trials": [{"id": "t", "overrides": {"seed": 1}}]}')
    with pytest.raises(ValueError, match="no trial has logged"):
        write_sweep_report(tmp_path)
    root = made_sweep(tmp_path / "made")
    with pytest.raises(ValueError, match="'reward' was not logged, wanted one of eval/success, response_length"):
        write_sweep_report(root, metric="reward")
