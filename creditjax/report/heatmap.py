"""Credit coloured over the tokens that earned it, as HTML for notebooks and as a standalone SVG picture.

The scale diverges from zero credit (the background) to blue for positive and orange for negative credit, two hues that
every common form of colour blindness keeps apart. Colour is linear in the credit and saturates at plus and minus
`scale`. Tokens that the policy did not choose are grey. Text is escaped, and characters that would not show (control
characters, direction overrides) are spelt out.
"""

from collections.abc import Sequence
import functools
import html
import importlib.resources
import math
from typing import Any, NamedTuple
import unicodedata

import numpy as np

POSITIVE = (0, 114, 178)
NEGATIVE = (213, 94, 0)
# Text stays readable on the fully saturated colour, on a light and on a dark ground.
_MAX_ALPHA = 0.72


class Html(str):
    """HTML text that a notebook displays as such."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        return str(self)


class Row(NamedTuple):
    """One rollout: ``[T]`` tokens, credit and action mask, and a caption."""

    tokens: list[str]
    credit: np.ndarray
    action_mask: np.ndarray
    label: str = ""


def heatmap_html(
    tokens: Sequence[Any],
    credit: Any,
    action_mask: Any,
    *,
    labels: Sequence[str] | None = None,
    scale: float | None = None,
) -> Html:
    """A heat map of credit over tokens, for notebooks and pages. Hovering over a token shows its number.

    Args:
      tokens: the text of each position, ``[T]`` for one rollout or ``[N, T]`` for several (anything else than strings,
        token ids say, is shown by its `str`).
      credit: f32 ``[T]`` or ``[N, T]``; NaN is shown as "no credit assigned".
      action_mask: bool of the same shape; the other positions are greyed and their credit is not read.
      labels: a caption for each rollout.
      scale: the credit at which the colour saturates; by default the largest magnitude over all rollouts drawn.

    Returns:
      A string of HTML without any reference to the outside; as the last value of a notebook cell it is displayed.

    Raises:
      ValueError: shapes that do not agree, naming the argument, the shape found and the shape wanted.
    """
    rows = _rows(tokens, credit, action_mask, labels)
    scale = credit_scale(rows) if scale is None else _checked(scale)
    body = "".join(f'<div class="cj-row">{_label(row)}{row_html(row, scale)}</div>' for row in rows)
    return Html(f'<div class="creditjax"><style>{stylesheet("heatmap.css")}</style>{body}{legend_html(scale)}</div>')


def row_html(row: Row, scale: float) -> str:
    """The tokens of one rollout as coloured spans; the stylesheet `heatmap.css` gives them their looks."""
    spans = "".join(_span(*position, scale) for position in zip(row.tokens, row.credit, row.action_mask, strict=True))
    return f'<div class="cj-tokens">{spans}</div>'


def legend_html(scale: float) -> str:
    """The colour bar with its end points, and what grey and dotted mean."""
    return (
        f'<div class="cj-legend"><span>{number(-scale)}</span><span class="cj-bar"></span><span>{number(scale)}</span>'
        '<span class="cj-key"><span class="cj-t cj-m">grey</span> not chosen by the policy</span>'
        '<span class="cj-key"><span class="cj-t cj-x">dotted</span> no credit assigned</span></div>'
    )


def heatmap_svg(
    tokens: Sequence[Any],
    credit: Any,
    action_mask: Any,
    *,
    labels: Sequence[str] | None = None,
    scale: float | None = None,
    title: str = "",
    width: int = 800,
) -> str:
    """The heat map of `heatmap_html` as a standalone SVG picture that follows the reader's light or dark setting.

    Args:
      tokens: the text of each position, ``[T]`` or ``[N, T]``.
      credit: f32 ``[T]`` or ``[N, T]``.
      action_mask: bool of the same shape.
      labels: a caption for each rollout.
      scale: the credit at which the colour saturates; by default the largest magnitude over all rollouts drawn.
      title: a line above the rollouts.
      width: of the picture, in pixels.

    Returns:
      The text of an SVG file.

    Raises:
      ValueError: shapes that do not agree, naming the argument, the shape found and the shape wanted.
    """
    rows = _rows(tokens, credit, action_mask, labels)
    scale = credit_scale(rows) if scale is None else _checked(scale)
    advance, leading, margin = 8.4, 26, 20
    columns = max(1, int((width - 2 * margin) // advance))
    parts, y = [], margin + 14
    if title:
        parts.append(f'<text class="title" x="{margin}" y="{y}">{_xml(title)}</text>')
        y += leading
    for row in rows:
        if row.label:
            parts.append(f'<text class="label" x="{margin}" y="{y}">{_xml(row.label)}</text>')
            y += leading - 2
        column = 0
        for token, value, acted in zip(row.tokens, row.credit, row.action_mask, strict=True):
            for piece in _pieces(_glyphs(token, acted), columns):
                cells = max(1, _cells(piece))
                if column and column + cells > columns:
                    column, y = 0, y + leading
                parts.append(_svg_token(piece, value, acted, scale, margin + column * advance, y, cells * advance))
                column += cells
            if "\n" in token:
                column, y = 0, y + leading
        y += leading + (8 if row is not rows[-1] else 0)
    parts.append(_svg_legend(scale, margin, y + 4))
    height = y + 22
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="{_xml(title or "credit over tokens")}"><style>{stylesheet("heatmap_svg.css")}</style>'
        f'<rect class="ground" x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="8"/>{"".join(parts)}</svg>\n'
    )


def credit_scale(rows: Sequence[Row]) -> float:
    """The largest magnitude of finite credit on acted positions, 1 where there is none."""
    largest = 0.0
    for row in rows:
        read = np.abs(row.credit[row.action_mask & np.isfinite(row.credit)])
        largest = max(largest, float(read.max(initial=0.0)))
    return largest or 1.0


def number(value: float) -> str:
    """A signed number with three significant digits, as the pictures print it."""
    if not math.isfinite(value):
        return "no credit assigned"
    return "0" if value == 0 else f"{value:+.3g}".replace("-", "\N{MINUS SIGN}")


def visible(token: str) -> str:
    """The token with everything that would not show, or would reorder its neighbours, spelt out."""
    return "".join(_NAMES.get(char) or (_escape(char) if _hidden(char) else char) for char in token)


@functools.cache
def stylesheet(name: str) -> str:
    """One of the CSS or JavaScript files beside this module."""
    return importlib.resources.files("creditjax.report").joinpath(name).read_text(encoding="utf-8").strip()


_NAMES = {"\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\t": "\N{RIGHTWARDS ARROW TO BAR}"}


def _hidden(char: str) -> bool:
    # C*: control, format (the direction overrides are here), surrogate, private, unassigned. Then the two separators.
    return unicodedata.category(char)[0] == "C" or unicodedata.category(char) in ("Zl", "Zp")


def _escape(char: str) -> str:
    return char.encode("unicode_escape", errors="backslashreplace").decode("ascii")


def _xml(text: str) -> str:
    return html.escape(visible(text))


def _label(row: Row) -> str:
    return f'<div class="cj-label">{_xml(row.label)}</div>' if row.label else ""


def _span(token: str, value: float, acted: bool, scale: float) -> str:
    text = html.escape(_glyphs(token, acted))
    end = "\n" if "\n" in token else ""
    if not acted:
        return f'<span class="cj-t cj-m" data-c="not chosen by the policy">{text}</span>{end}'
    if not math.isfinite(value):
        return f'<span class="cj-t cj-x" data-c="no credit assigned">{text}</span>{end}'
    kind = "cj-p" if value > 0 else "cj-n" if value < 0 else ""
    strength = f' style="--c:{_strength(value, scale):.3f}"' if value else ""
    return f'<span class="cj-t {kind}" data-c="{number(value)}"{strength}>{text}</span>{end}'


def _glyphs(token: str, acted: bool) -> str:
    return visible(token) or ("\N{EMPTY SET}" if acted else "")


def _strength(value: float, scale: float) -> float:
    return min(1.0, abs(value) / scale)


def _svg_token(text: str, value: float, acted: bool, scale: float, x: float, y: float, width: float) -> str:
    kind = "masked" if not acted else "unassigned" if not math.isfinite(value) else "token"
    tip = "not chosen by the policy" if not acted else number(value)
    ground = ""
    if kind == "token" and value:
        red, green, blue = POSITIVE if value > 0 else NEGATIVE
        fill = f'fill="rgb({red},{green},{blue})" fill-opacity="{_MAX_ALPHA * _strength(value, scale):.3f}"'
        ground = f'<rect x="{x + 0.4:.1f}" y="{y - 15:.1f}" width="{width - 0.8:.1f}" height="21" rx="3" {fill}/>'
    # Fonts differ in width: textLength makes the glyphs fill the cell that was reckoned for them.
    fit = f'textLength="{width:.1f}" lengthAdjust="spacingAndGlyphs" ' if text.strip() and len(text) > 1 else ""
    glyphs = f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" {fit}xml:space="preserve">{html.escape(text)}</text>'
    return f"<g><title>{html.escape(tip)}</title>{ground}{glyphs}</g>"


def _svg_legend(scale: float, x: float, y: float) -> str:
    stops = "".join(
        f'<stop offset="{offset}" stop-color="rgb{colour}" stop-opacity="{alpha}"/>'
        for offset, colour, alpha in (
            (0, NEGATIVE, _MAX_ALPHA),
            (0.5, NEGATIVE, 0),
            (0.5, POSITIVE, 0),
            (1, POSITIVE, _MAX_ALPHA),
        )
    )
    low, high = number(-scale), number(scale)
    bar = x + 8.5 * len(low) + 8
    return (
        f'<defs><linearGradient id="scale">{stops}</linearGradient></defs>'
        f'<text class="label" x="{x}" y="{y}">{low}</text>'
        f'<rect x="{bar:.1f}" y="{y - 10:.1f}" width="140" height="11" rx="3" fill="url(#scale)" class="bar"/>'
        f'<text class="label" x="{bar + 147:.1f}" y="{y}">{high}</text>'
        f'<text class="label" x="{bar + 168 + 8.5 * len(high):.1f}" y="{y}">grey: not chosen by the policy</text>'
    )


def _cells(text: str) -> int:
    """Columns of a monospaced font that the text fills."""
    return sum(0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF") for char in text)


def _pieces(text: str, columns: int) -> list[str]:
    return [text[start : start + columns] for start in range(0, len(text), columns)]


def _checked(scale: float) -> float:
    if not (math.isfinite(scale) and scale > 0):
        raise ValueError(f"scale: {scale}, wanted a positive number")
    return float(scale)


def _rows(tokens: Any, credit: Any, action_mask: Any, labels: Sequence[str] | None) -> list[Row]:
    credit = np.asarray(credit, dtype=np.float64)
    mask = np.asarray(action_mask)
    if credit.ndim not in (1, 2):
        raise ValueError(f"credit: shape {credit.shape}, wanted [T] for one rollout or [N, T] for several")
    if mask.shape != credit.shape:
        raise ValueError(f"action_mask: shape {mask.shape}, wanted {credit.shape} like credit")
    if mask.dtype != np.bool_:
        raise ValueError(f"action_mask: dtype {mask.dtype}, wanted bool")
    texts = [list(tokens)] if credit.ndim == 1 else [list(row) for row in tokens]
    credit, mask = np.atleast_2d(credit), np.atleast_2d(mask)
    found = [len(row) for row in texts]
    if found != [credit.shape[1]] * len(credit):
        raise ValueError(f"tokens: {len(found)} rows of lengths {found}, wanted {len(credit)} of {credit.shape[1]}")
    labels = [""] * len(credit) if labels is None else list(labels)
    if len(labels) != len(credit):
        raise ValueError(f"labels: {len(labels)}, wanted one for each of {len(credit)} rollouts")
    shown = ([str(token) for token in row] for row in texts)
    return [Row(*row) for row in zip(shown, credit, mask, labels, strict=True)]
