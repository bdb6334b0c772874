"""Heat maps: the picture says what the numbers say, and nothing that it was not given."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from creditjax.report import Html, heatmap_html, heatmap_svg

TOKENS = ["q", "?", "yes", "no", "eos"]
CREDIT = np.array([9.0, np.nan, 2.0, -1.0, 0.0], dtype=np.float32)
MASK = np.array([False, False, True, True, True])
SVG = "{http://www.w3.org/2000/svg}"


def spans(text):
    """Class, number shown, colour strength and text of every token."""
    pattern = r'<span class="cj-t ?([^"]*)" data-c="([^"]*)"(?: style="--c:([0-9.]*)")?>([^<]*)</span>'
    return [(kind, tip, float(strength or 0), token) for kind, tip, strength, token in re.findall(pattern, text)]


def test_html_colours_and_numbers():
    page = heatmap_html(TOKENS, CREDIT, MASK)
    masked = "not chosen by the policy"
    assert spans(page) == [
        ("cj-m", masked, 0, "q"),
        ("cj-m", masked, 0, "?"),
        ("cj-p", "+2", 1.0, "yes"),
        ("cj-n", "\u22121", 0.5, "no"),
        ("", "0", 0, "eos"),
    ]
    assert isinstance(page, Html) and page._repr_html_() == page
    assert "http" not in page and "<script" not in page


def test_rows_share_one_scale_and_scale_saturates():
    tokens = [["a", "b"], ["c", "d"]]
    credit = [[1.0, -4.0], [2.0, np.nan]]
    page = heatmap_html(tokens, credit, np.ones((2, 2), bool), labels=["good <1>", "bad"])
    assert [strength for _, _, strength, _ in spans(page)] == [0.25, 1.0, 0.5, 0]
    assert spans(page)[3][:2] == ("cj-x", "no credit assigned")
    assert "good &lt;1&gt;" in page
    fixed = heatmap_html(tokens, credit, np.ones((2, 2), bool), scale=1.0)
    assert [strength for _, _, strength, _ in spans(fixed)] == [1.0, 1.0, 1.0, 0]


def test_token_ids_and_jax_arrays():
    jnp = pytest.importorskip("jax.numpy")
    page = heatmap_html(np.array([5, 6]), jnp.array([0.5, 0.0], jnp.bfloat16), jnp.array([True, True]))
    assert [token for *_, token in spans(page)] == ["5", "6"]


@pytest.mark.parametrize("draw", [heatmap_html, heatmap_svg])
def test_hostile_tokens_are_text(draw):
    tokens = ["</script><img src=x onerror=alert(1)>", "]]><script>", "\u202eabc\x00", '"', "\ud800"]
    text = draw(tokens, np.ones(5), np.ones(5, bool), labels=["<img src=x>"])
    assert "<img" not in text and "<script" not in text and "\u202e" not in text and "\x00" not in text
    assert "\\u202eabc\\x00" in text and "\\ud800" in text
    text.encode()


def test_svg_is_a_valid_picture_of_the_credit():
    tree = ElementTree.fromstring(heatmap_svg(TOKENS, CREDIT, MASK, title="A & B", labels=["outcome 1"]))
    cells = [
        (
            group.find(f"{SVG}title").text,
            group.find(f"{SVG}text").text,
            None if (rect := group.find(f"{SVG}rect")) is None else (rect.get("fill"), float(rect.get("fill-opacity"))),
        )
        for group in tree.iter(f"{SVG}g")
    ]
    assert cells[0] == ("not chosen by the policy", "q", None)
    assert cells[2:] == [
        ("+2", "yes", ("rgb(0,114,178)", 0.72)),
        ("\u22121", "no", ("rgb(213,94,0)", 0.36)),
        ("0", "eos", None),
    ]
    assert {"A & B", "outcome 1"} <= {text.text for text in tree.iter(f"{SVG}text")}


def test_svg_wraps_inside_its_width():
    tokens = ["word "] * 100 + ["x" * 300, "\u6f22\u5b57", "\n", "end"]
    tree = ElementTree.fromstring(heatmap_svg(tokens, np.ones(104), np.ones(104, bool), width=400))
    rects = [rect for group in tree.iter(f"{SVG}g") for rect in group.iter(f"{SVG}rect")]
    assert max(float(r.get("x")) + float(r.get("width")) for r in rects) <= 400 - 20
    assert max(float(r.get("y")) for r in rects) < float(tree.get("height"))
    assert "".join(t.text for g in tree.iter(f"{SVG}g") for t in g.iter(f"{SVG}text")).count("x") == 300


def test_svg_gives_padding_no_room_and_empty_actions_a_sign():
    padded = heatmap_svg(["a", "", *[""] * 200], np.ones(202), np.arange(202) < 2)
    tight = heatmap_svg(["a", ""], np.ones(2), np.ones(2, bool))
    assert padded == tight
    assert [g.find(f"{SVG}text").text for g in ElementTree.fromstring(tight).iter(f"{SVG}g")] == ["a", "\u2205"]


@pytest.mark.parametrize("draw", [heatmap_html, heatmap_svg])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokens": TOKENS[:4]}, r"tokens: 1 rows of lengths \[4\], wanted 1 of 5"),
        ({"credit": np.zeros((2, 2, 2))}, r"credit: shape \(2, 2, 2\), wanted \[T\] for one rollout or \[N, T\]"),
        ({"action_mask": MASK[:3]}, r"action_mask: shape \(3,\), wanted \(5,\)"),
        ({"action_mask": MASK.astype(int)}, "action_mask: dtype int64, wanted bool"),
        ({"labels": ["a", "b"]}, "labels: 2, wanted one for each of 1"),
        ({"scale": 0.0}, r"scale: 0.0, wanted a positive number"),
        ({"scale": np.nan}, r"scale: nan, wanted a positive number"),
    ],
)
def test_errors_name_the_argument(draw, change, message):
    arguments = {"tokens": TOKENS, "credit": CREDIT, "action_mask": MASK, **change}
    with pytest.raises(ValueError, match=message):
        draw(arguments.pop("tokens"), arguments.pop("credit"), arguments.pop("action_mask"), **arguments)


def test_nothing_to_colour():
    page = heatmap_html([], np.zeros(0), np.zeros(0, bool))
    assert spans(page) == []
    assert spans(heatmap_html(["a"], [0.0], [True])) == [("", "0", 0, "a")]
