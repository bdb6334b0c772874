"""The inspector of rollout files: numbers over all rollouts, a page of some, needs that are told, nothing executed."""

import json
import subprocess
import sys

import inspect_files
import numpy as np
import pytest
from test_page import Dom

from creditjax.interop import Rollout, Signal, convert_command, files
from creditjax.report import credit_stats, inspect_command, inspect_page
from creditjax.report.credit_stats import Histogram, Pairwise, centred_ranks
from creditjax.report.inspect import inspect
from creditjax.report.shell import data_block


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The file inspected with two recipes and one that cannot run: summary, page and lines."""
    folder = tmp_path_factory.mktemp("inspect")
    path = inspect_files.write(folder / "rollouts.jsonl")
    summary = inspect(path, ("grpo", "tempo", "gae"), out=folder / "report.html", json=folder / "credit.jsonl")
    lines = [json.loads(line) for line in (folder / "credit.jsonl").read_text().splitlines()]
    return summary, (folder / "report.html").read_text(), {line["id"]: line for line in lines}


def payload(page):
    """What the page's script reads."""
    start = page.index('id="rollouts">') + len('id="rollouts">')
    return json.loads(page[start : page.index("</script>", start)])


def test_statistics_are_of_all_rollouts(made):
    summary, _, _ = made
    assert (summary.rollouts, summary.groups, summary.scored, summary.positive) == (11, 6, 9, 5)
    assert summary.dead == {"equal": 2, "unscored": 1, "single": 1}
    assert (summary.lowest, summary.highest, summary.at_lowest, summary.at_highest) == (0, 1, 1, 1)
    assert summary.moved == {}
    assert summary.outcome == pytest.approx(5 / 9)
    assert [recipe.name for recipe in summary.recipes] == ["grpo", "tempo"]
    assert summary.missing == {"gae": ("value",)} and "rloo" in summary.usable and "gae" not in summary.usable
    stats = summary.stats["grpo"]
    assert stats.acted == summary.acted == 22
    assert stats.against == 0 and stats.judged == 11  # the two live groups


def inspected(folder, outcomes, recipes=("grpo",), **fields):
    """Summary and text of the page of groups with these outcomes."""
    members = [
        inspect_files.member(
            f"{p}", g, ["a"] * (1 + g), outcome, **{name: value[p][g] for name, value in fields.items()}
        )
        for p, group in enumerate(outcomes)
        for g, outcome in enumerate(group)
    ]
    files.write(folder / "some.jsonl", members)
    summary = inspect(folder / "some.jsonl", recipes, out=folder / "some.html")
    return summary, Dom((folder / "some.html").read_text()).text


def test_easy_and_hard_are_the_extremes_of_the_file(tmp_path):
    # A reward for the form alone is above 0 and yet no prompt that is too easy.
    summary, said = inspected(tmp_path, [(0.5, 0.5), (0.2, 0.2), (0.2, 1.5), (1.5, 1.5), (-1, -1), (-1, 0.5), (-1, -1)])
    assert summary.dead == {"equal": 5} and (summary.at_lowest, summary.at_highest) == (2, 1)
    assert (summary.lowest, summary.highest) == (-1, 1.5)
    for row in ("largest of the file114.3%", "smallest of the file228.6%", "largest nor the smallest228.6%"):
        assert row in said


def test_where_all_outcomes_are_one_none_is_easy_or_hard(tmp_path):
    _, said = inspected(tmp_path, [(1.0, 1.0), (1.0, 1.0)])
    assert "too easy" not in said and "too hard" not in said and "Dead: all outcomes are equal" in said


def test_credit_in_dead_groups_is_told_as_it_is(tmp_path):
    parts = [[1.0, 0.0], [1.0, 1.0]]
    signals = [[{"reward_components": Signal(("M",), np.float32([part, 0.0]))} for part in group] for group in parts]
    summary, said = inspected(tmp_path, parts, ("grpo", "gdpo", "reinforce"), signals=signals)
    assert summary.dead == {"equal": 1} and summary.moved["grpo"] == 0 and summary.moved["reinforce"] == 1
    assert "Of 1 dead groups, exactly 0 in all: grpo." in said and "Not 0 in 1 of 1: reinforce." in said
    assert summary.moved["gdpo"] == 1 and "Not 0 in 1 of 1: gdpo, which normalises over a batch." in said


@pytest.mark.parametrize("count", [1, 3])
def test_gdpo_takes_as_many_rewards_as_the_file_has(tmp_path, count):
    parts = [[1.0, 0.0, 0.5]]
    signals = [
        [{"reward_components": Signal(("M",), np.full(count, part, np.float32))} for part in group] for group in parts
    ]
    summary, _ = inspected(tmp_path, parts, (), signals=signals)
    assert "gdpo" in [made.name for made in summary.recipes] and not summary.missing


def test_lines_hold_the_credit_of_grpo(made):
    _, _, lines = made
    line = lines["live/1"]
    # (0 - 1/2) over the standard deviation with ddof=1 of the group.
    expected = -0.5 / (np.std([0.0, 1.0], ddof=1) + 1e-6)
    np.testing.assert_allclose(line["credit"]["grpo"], [expected] * 4, rtol=1e-5)
    assert line["standing"] == -0.5 and line["dead"] is None and line["pieces"] == ["no", " it", " is", " not"]
    assert lines["easy/0"]["dead"] == "equal" and lines["easy/0"]["credit"]["grpo"] == [0.0, 0.0]
    turns = lines[f"{inspect_files.HOSTILE}/1"]
    assert turns["credit"]["grpo"][1] is None and turns["segments"]["grpo"][1] is None
    assert turns["segments"]["grpo"][0] == pytest.approx(expected, rel=1e-5)
    assert lines["blank/0"]["credit"]["grpo"] == [None] and lines["blank/0"]["outcome"] is None


def test_page_is_whole_offline_and_says_what_is_missing(made):
    _, page, _ = made
    dom = Dom(page)
    assert dom.path == []
    for part in (
        "Recipes that cannot run on this file",
        "V of the state",
        "all outcomes equal, the largest of the file",
        "unscored",
    ):
        assert part in dom.text
    policy = next(a["content"] for tag, a in dom.elements if tag == "meta" and "http-equiv" in a)
    assert policy.startswith("default-src 'none'") and "unsafe-eval" not in policy
    assert {tag for tag, _ in dom.elements} & {"img", "link", "iframe", "object", "embed", "base", "form"} == set()
    assert not [name for _, attrs in dom.elements for name in attrs if name.startswith("on")]


def test_hostile_text_is_data(made):
    _, page, _ = made
    assert page.count("<script") == page.count("</script>") == 2 and "<img" not in page
    assert "\u202e" not in page and "\x00" not in page
    found = next(r for r in payload(page)["rollouts"] if "script" in r["id"] and r["outcome"] == 1)
    assert found["pieces"][0] == "</script><img src=x onerror=document.title='owned'>\\u202edab\\x00<!--"
    assert found["pieces"][1] == " zebra\u21b5\nline"


def test_data_block_gives_the_data_back():
    data = {"a": ["</script>", "<!--", "&amp;", "\u2028", "\ud800"], "b": [1.5, None]}
    text = data_block("x", data)
    body = text.removeprefix('<script type="application/json" id="x">').removesuffix("</script>")
    assert json.loads(body) == data and "<" not in body and body.isascii()
    with pytest.raises(ValueError):
        data_block("x", [float("nan")])


def test_sample_is_whole_groups_spread_over_the_file(tmp_path):
    every = [inspect_files.member(f"{p:03}", g, ["a", " b"], float(g)) for p in range(100) for g in range(2)]
    files.write(tmp_path / "many.jsonl", every)
    summary = inspect(tmp_path / "many.jsonl", ("grpo",), out=tmp_path / "report.html", limit=20)
    page = (tmp_path / "report.html").read_text()
    groups = [int(r["group"]) for r in payload(page)["rollouts"]]
    assert "20 of 200 rollouts are on this page, whole groups spread" in page
    assert summary.rollouts == 200 and summary.shown == len(groups) == 20
    chosen = sorted(set(groups))
    assert all(groups.count(group) == 2 for group in chosen)
    assert max(np.diff([0, *chosen, 99])) < 25  # an even spread leaves gaps of about 10
    pages = inspect(tmp_path / "many.jsonl", ("grpo",), out=tmp_path / "all.html", limit=64, pages=True).pages
    assert [page.name for page in pages] == ["all.html", "all-2.html", "all-3.html", "all-4.html"]
    ids = [r["id"] for page in pages for r in payload(page.read_text())["rollouts"]]
    assert sorted(ids) == sorted(r.id for r in every)
    assert "./all-3.html" in pages[1].read_text() and "./all-5.html" not in pages[3].read_text()


def test_a_large_group_is_shown_in_part(tmp_path):
    files.write(tmp_path / "one.jsonl", [inspect_files.member("g", i, ["a"], float(i % 2)) for i in range(50)])
    inspect(tmp_path / "one.jsonl", ("grpo",), out=tmp_path / "report.html", limit=8)
    page = (tmp_path / "report.html").read_text()
    rollouts = payload(page)["rollouts"]
    assert len(rollouts) == 2 and rollouts[0]["members"] == 50
    assert "2 of 50 rollouts are on this page, groups spread" in page


def test_a_page_holds_no_more_positions_than_a_browser_opens(tmp_path, monkeypatch):
    monkeypatch.setattr("creditjax.report.inspect._PAGE_POSITIONS", 100)
    # Lengths alternate, so that groups come in another order than they have in the file.
    lengths = [40, 10, 45, 10, 200, 10]
    every = [inspect_files.member(f"{p}", g, ["a"] * n, float(g % 2)) for p, n in enumerate(lengths) for g in range(4)]
    files.write(tmp_path / "long.jsonl", every)
    inspect(tmp_path / "long.jsonl", ("grpo",), out=tmp_path / "some.html")
    shown = payload((tmp_path / "some.html").read_text())["rollouts"]
    assert 0 < sum(len(r["pieces"]) for r in shown) <= 100
    pages = inspect(tmp_path / "long.jsonl", ("grpo",), out=tmp_path / "all.html", limit=6, pages=True).pages
    held = [payload(page.read_text())["rollouts"] for page in pages]
    for page in held:
        # A rollout of 200 has a page of its own.
        assert len(page) <= 6 and (sum(len(r["pieces"]) for r in page) <= 100 or len(page) == 1)
        assert [r["id"] for r in page] == sorted(r["id"] for r in page)
    assert sorted(r["id"] for page in held for r in page) == [r.id for r in every]


@pytest.mark.parametrize(
    ("recipes", "limit", "error", "said"),
    [
        (("gea",), 5, KeyError, "gae"),
        (("gae",), 5, ValueError, "gae: needs value"),
        (("gae",), 5, ValueError, "It has what these need: .*grpo"),
        (("grpo",), 0, ValueError, "limit: 0"),
    ],
)
def test_errors(tmp_path, recipes, limit, error, said):
    path = inspect_files.write(tmp_path / "rollouts.jsonl")
    with pytest.raises(error, match=said):
        inspect(path, recipes, out=tmp_path / "report.html", json=tmp_path / "lines.jsonl", limit=limit)
    assert [p.name for p in tmp_path.iterdir()] == ["rollouts.jsonl"]  # no half of a file


def test_a_bad_record_is_an_error_or_counted(tmp_path):
    path = inspect_files.write(tmp_path / "rollouts.jsonl")
    path.write_text(path.read_text() + "{\n")
    with pytest.raises(ValueError, match="line 12"):
        inspect(path, ("grpo",))
    summary = inspect(files.read(path, on_error="skip"), ("grpo",), out=tmp_path / "report.html")
    assert summary.skipped == 1 and summary.rollouts == 11
    assert "1 records skipped" in (tmp_path / "report.html").read_text()
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match="no rollouts"):
        inspect(tmp_path / "empty.jsonl")


def test_defaults_follow_the_file(tmp_path):
    def signal(k):
        return {"segment": [0, 1], "roles": ("assistant",) * 2, "segment_reward": np.float32([k, 0])}

    files.write(tmp_path / "steps.jsonl", [Rollout(f"{g}", "q", ("a", "b"), float(g), **signal(g)) for g in range(2)])
    summary = inspect(tmp_path / "steps.jsonl")
    assert [recipe.name for recipe in summary.recipes] == ["grpo", "tempo", "tas", "pure"]


@pytest.mark.parametrize(
    ("outcomes", "reason"),
    [
        ([1.0], "single"),
        ([np.nan, np.nan], "unscored"),
        ([1.0, np.nan], "one scored"),
        ([0.3, 0.3 + 1e-9], "equal"),
        ([0.0, 0.0, np.nan], "equal"),
        ([0.0, 1.0], ""),
        ([-1.0, -1.1], ""),
    ],
)
def test_why_a_group_is_dead(outcomes, reason):
    counts = credit_stats.votes(outcomes, [True] * len(outcomes))
    assert credit_stats.dead_reason(outcomes, counts) == reason
    place = credit_stats.standing(outcomes, counts)
    assert np.isfinite(place).any() == (reason == "")
    if not reason:
        assert np.nansum(place) == pytest.approx(0)


def test_a_rollout_that_never_acted_does_not_vote():
    counts = credit_stats.votes([1.0, 0.0], [True, False])
    assert credit_stats.dead_reason([1.0, 0.0], counts) == "one scored"


def test_credit_against_the_outcome():
    credit = np.float32([1, -2, 0, np.nan])
    assert credit_stats.against_outcome(credit, -0.5).tolist() == [True, False, False, False]
    assert credit_stats.against_outcome(credit, 0.5).tolist() == [False, True, False, False]
    assert not credit_stats.against_outcome(credit, np.nan).any()


def test_histogram_keeps_counts_and_sides_as_its_range_grows():
    rng = np.random.default_rng(0)
    values = np.concatenate([rng.normal(size=500) * 10.0**power for power in (-3, 0, 3)])
    values[:7] = 0
    found = Histogram()
    for part in np.split(values, 30):
        found.add(part)
    half = len(found.counts) // 2
    assert found.zeros == 7 and found.counts.sum() == len(values) - 7
    assert found.counts[:half].sum() == (values < 0).sum() and found.width >= np.abs(values).max() > found.width / 2
    whole = Histogram()
    whole.add(values)
    np.testing.assert_array_equal(found.counts, whole.counts)
    assert "<svg" in inspect_page.histogram(found, "x") and "exactly 0" in inspect_page.histogram(Histogram(), "x")


def test_agreement_of_recipes():
    pairs = Pairwise(("a", "b", "c"))
    a = np.array([1.0, 2.0, 2.0, -1.0])
    pairs.add({"a": a, "b": -a, "c": np.array([1.0, np.nan, 3.0, -5.0])})
    pairs.add({"a": a, "b": -(a**3)})  # c could not run here
    pairs.add({"a": np.zeros(2), "b": np.zeros(2), "c": np.ones(2)})  # constant: nothing to rank
    np.testing.assert_allclose(pairs.ranks()[0], [1, -1, 1])
    np.testing.assert_allclose(pairs.signs(), [[1, 0, 1], [0, 1, 0], [1, 0, 1]])
    assert pairs.groups[0].tolist() == [2, 2, 1]
    assert np.isnan(Pairwise(("a", "b")).ranks()).all()


def test_ranks_of_equal_values_are_their_mean():
    np.testing.assert_array_equal(centred_ranks(np.array([5.0, 1.0, 5.0, 7.0])), [0, -1.5, 0, 1.5])


def test_disagreement_is_of_credit_in_units_of_its_size():
    credits = np.array([[1.0, -1.0], [10.0, -10.0], [0.0, 0.0]])
    assert credit_stats.disagreement(credits, np.array([1.0, 10.0, 0.0])) == 0
    assert credit_stats.disagreement(credits[:2], np.array([1.0, 1.0])) == pytest.approx(4.5)


def test_command(tmp_path):
    path = inspect_files.write(tmp_path / "rollouts.jsonl")
    run = [sys.executable, "-m", "experiments.inspect", str(path), "--recipe=grpo,gae", f"--out={tmp_path / 'p.html'}"]
    done = subprocess.run(run, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "11 rollouts" in done.stdout and "gae did not run, the file lacks: value" in done.stdout
    assert (tmp_path / "p.html").exists()


@pytest.mark.parametrize("arguments", [[], ["a.jsonl", "b.jsonl"]])
def test_the_commands_say_in_a_line_what_they_want(arguments):
    for command, wanted in ((inspect_command, "one file or directory"), (convert_command, "a file to read and a file")):
        argv = ["creditjax", *arguments, *(["c.jsonl"] if command is convert_command else [])]
        with pytest.raises(SystemExit, match=f"^found {' '.join(argv[1:]) or 'no arguments'}, wanted {wanted}"):
            command.main(argv)


def test_convert_does_not_write_what_it_reads(tmp_path):
    path = inspect_files.write(tmp_path / "rollouts.jsonl")
    before = path.read_bytes()
    (tmp_path / "link.jsonl").symlink_to(path)
    for source, target in ((path, path), (path, tmp_path / "link.jsonl"), (tmp_path, path)):
        with pytest.raises(SystemExit, match="is read from, wanted another file to write"):
            convert_command.main(["creditjax-convert", str(source), str(target)])
    assert path.read_bytes() == before and sorted(p.name for p in tmp_path.iterdir()) == ["link.jsonl", path.name]


@pytest.mark.parametrize("flag", ["--out", "--json"])
def test_inspect_does_not_write_what_it_reads(tmp_path, flag):
    path = inspect_files.write(tmp_path / "rollouts.jsonl")
    before = path.read_bytes()
    command = [sys.executable, "-m", "experiments.inspect", str(path), "--recipe=grpo", f"{flag}={path}"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.endswith("is read from, wanted another file to write\n")
    assert path.read_bytes() == before


def test_a_rollout_that_never_acted_is_in_no_baseline(tmp_path):
    """As `standing` and `dead` have it."""
    members = [
        inspect_files.member("0", g, ["a"] * n, outcome)
        for g, (n, outcome) in enumerate([(1, 1.0), (1, 0.0), (0, 0.0)])
    ]
    files.write(tmp_path / "some.jsonl", members)
    inspect(tmp_path / "some.jsonl", ["rloo"], json=tmp_path / "some.json")
    lines = [json.loads(line) for line in (tmp_path / "some.json").read_text().splitlines()]
    assert [line["credit"]["rloo"] for line in lines] == [[1.0], [-1.0], []]


def test_rollouts_without_positions_and_messages_of_others(tmp_path):
    said = [("", 0), ("Paris.", 1), ("", 1)]
    records = [
        {"messages": [{"role": "user", "content": "?"}, {"role": "assistant", "content": text}], "score": score}
        for text, score in said
    ]
    (tmp_path / "log.jsonl").write_text("\n".join(map(json.dumps, records)))
    summary = inspect(tmp_path / "log.jsonl", out=tmp_path / "report.html", json=tmp_path / "lines.jsonl")
    assert summary.rollouts == 3 and summary.groups == 1
    rollouts = payload((tmp_path / "report.html").read_text())["rollouts"]
    assert [r["pieces"] for r in rollouts] == [[], ["Paris", "."], []]
    # Who wrote nothing was never an action of the policy, so one scored rollout is left.
    assert {r["dead"] for r in rollouts} == {credit_stats.DEAD["one scored"]}
