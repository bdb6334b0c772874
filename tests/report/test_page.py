"""The HTML report: complete from a good run, harmless from a broken or hostile one."""

import base64
import hashlib
from html.parser import HTMLParser
import json
import re

import numpy as np
import pytest

from creditjax.report import page, read_metrics, read_rollouts, write_report
from creditjax.report.curves import MAX_POINTS, brief, panel, sections

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    "<svg/onload=alert(2)>",
    "\" onmouseover='x'",
    "&lt;b&gt;",
    "\u202e",
    "\ud800",
]


class Dom(HTMLParser):
    """Elements with their attributes, and the text of the page outside scripts and styles."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.path = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in ("meta", "br", "input"):
            self.path.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.path.pop() == tag

    def handle_data(self, data):
        if not {"script", "style"} & set(self.path):
            self.words.append(data)

    @property
    def text(self):
        return "".join(self.words)


@pytest.fixture
def run(tmp_path):
    config = {
        "config": {"seed": 3, "recipe": {"name": "grpo", "eps": 1e-6}, "task": {"name": "lookup"}, "clip": None},
        "versions": {"jax": "0.10.2"},
    }
    rows = [{"step": s, "reward": s / 10, "eval/success": [0.2, 0.75, 0.5][s // 4]} for s in (0, 4, 8)]
    rows += [{"step": 9, "kl": float("nan"), "custom": 1, "note": "text", "list": [1]}, {"step": 10, "kl": None}]
    lines = [json.dumps(row) for row in rows] + ['{"step": 11, "rew']
    rollout = {"prompt": "2+2=", "tokens": ["2", "+", "2", "=", "4", ""], "action": [0, 0, 0, 0, 1, 0], "outcome": 1.0}
    rollouts = [
        {**rollout, "credit": [0, 0, 0, 0, 0.5, 0], "group": 7},
        {
            **rollout,
            "prompt": HOSTILE[0],
            "tokens": HOSTILE,
            "action": [True] * 6,
            "credit": [1, -1, 0, 2, None, -3],
            "outcome": None,
        },
    ]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    (tmp_path / "rollouts.json").write_text(json.dumps(rollouts))
    return tmp_path


def test_complete_page(run):
    path = write_report(run)
    assert path == run / "report.html"
    dom = Dom(path.read_text())
    assert dom.path == []  # every element is closed
    assert "grpo on lookup" in dom.text
    for part in ("first20.0%step 0", "last50.0%step 8", "best75.0%step 4", "Group 7", "outcome 1", "unscored"):
        assert part in dom.text
    for part in ("recipe.eps1e-06", "seed3", "versions.jax0.10.2", "metrics.jsonl: 1 unreadable line(s) left out"):
        assert part in dom.text
    panels = [element for element in dom.elements if element[0] == "svg"]
    assert [attrs["aria-label"] for _, attrs in panels] == [
        f"{key} over steps" for key in ("eval/success", "reward", "custom")
    ]
    points = json.loads(panels[0][1]["data-points"])
    assert [(step, value) for step, value, _, _ in points] == [(0, 0.2), (4, 0.75), (8, 0.5)]
    heights = [y for _, _, _, y in points]
    assert heights[1] < heights[2] < heights[0]  # SVG's y points down
    assert not (run / ".report.html.partial").exists()


def test_what_the_warm_start_gave_is_in_the_headline(run):
    assert "after the warm start" not in Dom(write_report(run).read_text()).text
    config = json.loads((run / "config.json").read_text())
    config["config"]["warm_start"] = {"steps": 4}
    (run / "config.json").write_text(json.dumps(config))
    assert "after the warm start75.0%step 4" in Dom(write_report(run).read_text()).text


def test_offline_and_pinned_script(run):
    text = write_report(run).read_text()
    dom = Dom(text)
    assert {tag for tag, _ in dom.elements} & {"img", "link", "iframe", "object", "embed", "base", "form", "a"} == set()
    assert not re.search(r"(?:src|href)\s*=\s*[\"']|url\(|@import|https?:", re.sub(r"&lt;.*?&gt;", "", text))
    (script,) = re.findall(r"<script>(.*?)</script>", text, flags=re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = next(a["content"] for tag, a in dom.elements if tag == "meta" and "http-equiv" in a)
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def test_hostile_text_stays_text(run):
    (run / "config.json").write_text(json.dumps({"<img src=x>": HOSTILE[0], "recipe": {"name": HOSTILE[1]}}))
    metrics = [json.dumps({"step": 0, "<img src=x onerror=alert(3)>": 1.0, 'a" onload="x': 2.0, "eval/<b>": 3})]
    (run / "metrics.jsonl").write_text("\n".join(metrics))
    rollouts = json.loads((run / "rollouts.json").read_text())
    rollouts[1]["group"] = HOSTILE[0]
    (run / "rollouts.json").write_text(json.dumps(rollouts))
    dom = Dom(write_report(run).read_text())
    assert [tag for tag, _ in dom.elements].count("script") == 1
    assert "img" not in [tag for tag, _ in dom.elements]
    assert not [name for _, attrs in dom.elements for name in attrs if name.startswith("on")]
    for token in HOSTILE[:4]:
        assert token in dom.text
    assert "\\u202e" in dom.text and "\u202e" not in dom.text


def test_empty_and_absent(tmp_path):
    dom = Dom(write_report(tmp_path).read_text())
    for part in (
        "No held-out evaluation",
        "No metrics were logged",
        "No rollouts were saved",
        "No readable config.json",
    ):
        assert part in dom.text
    with pytest.raises(FileNotFoundError, match="absent"):
        write_report(tmp_path / "absent")


@pytest.mark.parametrize("content", ["", "[", "null", "[[]]", "3", '{"a": {}}', "\x00\xff", "[" * 100_000])
def test_unreadable_files(tmp_path, content):
    for name in ("config.json", "metrics.jsonl", "rollouts.json"):
        (tmp_path / name).write_bytes(content.encode("latin-1"))
    assert Dom(write_report(tmp_path).read_text()).path == []


def test_rollouts_that_cannot_be_drawn(tmp_path):
    good = {"tokens": ["a"], "action": [True], "credit": [1.0]}
    bad = [3, {}, {**good, "credit": [1, 2]}, {**good, "credit": ["x"]}, {**good, "tokens": "a"}]
    (tmp_path / "rollouts.json").write_text(json.dumps([good, *bad]))
    rollouts, faults = read_rollouts(tmp_path / "rollouts.json")
    assert len(rollouts) == 1 and np.isnan(rollouts[0]["outcome"])
    assert [fault.split(":")[0] for fault in faults] == [f"rollouts.json[{index}]" for index in range(1, 6)]
    assert "1 tokens, 1 action flags, 2 credits" in faults[2]


def test_metrics_of_a_resumed_run(tmp_path):
    lines = ['{"step": 1, "a": 1}', '{"step": 2, "a": 2}', '{"step": 2, "a": 5}', '{"step": 1.0, "b": Infinity}', "{}"]
    lines += [
        '{"step": NaN}',
        '{"step": 1e300}',
        '{"step": "4", "a": 1}',
        "",
        '{"step": 3, "a": null, "c": 1' + "0" * 400 + "}",
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    metrics = read_metrics(tmp_path / "metrics.jsonl")
    steps, values = metrics.series["a"]
    np.testing.assert_array_equal(steps, [1, 2, 3])
    np.testing.assert_array_equal(values, [1, 5, np.nan])
    assert metrics.unreadable == 4 and "c" not in metrics.series


def test_sections_take_every_metric_once():
    keys = {
        "Success and reward": ["eval/success", "reward"],
        "Credit and groups": ["credit/mean", "credit_std", "groups/zero_variance", "zero_variance_groups"],
        "Policy update": ["clip_fraction", "entropy", "gradient_norm", "kl", "loss", "value_loss"],
        "Length and speed": ["response_length", "seconds_per_step", "tokens_per_second"],
        "Warm start": ["warm_start/entropy", "warm_start/loss"],
        "Other measurements": ["made/up"],
    }
    assert sections(sum(reversed(keys.values()), [])) == list(keys.items())


def test_long_curve_keeps_means_and_range():
    steps = np.arange(3 * MAX_POINTS)
    values = np.where(steps % 3 == 0, 9.0, 0.0)
    values[:3] = np.nan  # a whole bucket is missing: a gap, not a zero
    text = panel("x", (steps, values))
    points = json.loads(next(a["data-points"] for tag, a in Dom(text).elements if tag == "svg"))
    assert len(points) == MAX_POINTS - 1
    assert {value for _, value, _, _ in points} == {3.0}
    assert points[0][0] == 5 and points[-1][0] == steps[-1]
    assert 'class="band"' in text and "3 of 450 missing" in text


@pytest.mark.parametrize(
    "values", [[5.0], [5.0, 5.0], [0.0, 0.0], [np.nan, 1.0, np.inf], [1e308, -1e308, 2], [1e-300, 2e-300]]
)
def test_degenerate_curves(values):
    text = panel("x", (np.arange(len(values)), np.array(values)))
    assert "nan" not in text.lower() and "inf" not in text
    assert 'class="curve"' in text


def test_gap_breaks_the_line():
    text = panel("x", (np.arange(5), np.array([1.0, 2.0, np.nan, 3.0, 4.0])))
    assert text.count("<polyline") == 2


def test_brief():
    shown = [brief(value) for value in (0.123456, 9999.0, 12345.0, 2.5e6, 3e9, -1.5, float("nan"))]
    assert shown == ["0.1235", "9999", "12.35k", "2.5M", "3G", "\u22121.5", "\u2013"]


def test_flatten_gives_flag_paths():
    assert page.flatten({"a": {"b": 1, "c": {}}, "d": [1, 2]}) == {"a.b": 1, "a.c": {}, "d": [1, 2]}
