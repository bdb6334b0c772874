"""The shell of every offline page: escaping, the content security policy, data for the page's script, one atomic write.

A page refers to nothing outside itself and runs no script but its own, whose hash the policy pins. Whatever a file of
rollouts holds arrives as text: escaped in HTML, as data (never as code) where a script reads it.
"""

import base64
import hashlib
import html
import json
import os
import pathlib
from typing import Any

from creditjax.interop import output
from creditjax.report.heatmap import stylesheet, visible


def escaped(value: Any) -> str:
    """Anything as HTML text; what would not show, or would reorder its neighbours, is spelt out."""
    return html.escape(visible(str(value)))


def document(
    *, title: str, brand: str, subtitle: str, body: str, styles: tuple[str, ...], script: str = "", extra: str = ""
) -> str:
    """A whole page.

    Args:
      title: of window and page, plain text.
      brand: the line above the title, plain text.
      subtitle: the line below it, HTML.
      body: what stands in `main`, HTML.
      styles: CSS files beside this module, in their order.
      script: a JavaScript file beside this module, run behind the body.
      extra: more CSS.
    """
    code = stylesheet(script) if script else ""
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    if code:
        digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
    looks = "\n".join([*map(stylesheet, styles), *([extra.strip()] if extra else [])])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<style>{looks}</style></head>\n<body><header>"
        f'<p class="brand">{escaped(brand)}</p><h1>{escaped(title)}</h1>'
        f'<p class="sub">{subtitle}</p></header>\n<main>{body}</main>\n'
        f"{f'<script>{code}</script>' if code else ''}</body></html>\n"
    )


# These could end the element or open a comment in it. What is not ASCII is spelt out by JSON itself.
_MARKUP = {ord(c): f"\\u{ord(c):04x}" for c in "<>&"}


def data_block(name: str, data: Any) -> str:
    """Data for the page's script, as an element that is never executed; `JSON.parse` of its text gives them back.

    Raises:
      ValueError: a number that is not finite.
    """
    text = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":")).translate(_MARKUP)
    return f'<script type="application/json" id="{escaped(name)}">{text}</script>'


def write_whole(path: str | os.PathLike, text: str) -> pathlib.Path:
    """Writes a file in one move, its folder too, so that a reader never sees half of it; see `interop.output`."""
    with output.whole(path) as file:
        file.write(text)
    return pathlib.Path(path)
