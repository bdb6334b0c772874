"""The inspector's page in a browser: it opens without an error, filters, obeys keys, and shows hostile text as text."""

import html
import re
import shutil
import subprocess

import inspect_files
import pytest

from creditjax.interop import Message, Rollout, files
from creditjax.report.inspect import inspect

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on the PATH")

# Presses keys once the page is there. The page's own policy forbids scripts, so a copy that allows this one is driven.
_PRESS = """<script>addEventListener("load", () => {
  const detail = document.getElementById("detail");
  for (const key of KEYS) detail.dispatchEvent(new KeyboardEvent("keydown", {key, bubbles: true}));
  const list = document.getElementById("list");
  document.body.dataset.scrolled = `${list.scrollTop} of ${list.scrollHeight - list.clientHeight}`;
});</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    inspect(inspect_files.write(folder / "rollouts.jsonl"), ("grpo", "tempo"), out=folder / "report.html")
    return folder / "report.html"


def look(page, fragment="", keys=(), tmp_path=None, flags=()):
    """The page as it stands in the browser, and what was said on its console."""
    if keys:
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
        page = tmp_path / "driven.html"
        page.write_text(text.replace("</body>", f"{_PRESS.replace('KEYS', str(list(keys)))}</body>"))
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
    ]
    command += [*flags, "--v=0", "--virtual-time-budget=3000", "--dump-dom", f"{page.as_uri()}#{fragment}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def listed(dom):
    """Names of the groups in the list, in its order."""
    return [html.unescape(name) for name in re.findall(r'<span class="name">(.*?)</span>', dom)]


def chosen(dom):
    """Id of the rollout that is shown."""
    return html.unescape(re.search(r'<h3 class="id">(.*?)</h3>', dom)[1])


def test_opens_and_shows_hostile_text_as_text(page):
    dom, console = look(page, "text=zebra")
    assert console == []
    assert "1 of 11 shown" in dom
    assert "<title>rollouts.jsonl</title>" in dom  # the handler in the text would have changed it
    assert "<img" not in dom and dom.count("<script") == 2
    assert "&lt;/script&gt;&lt;img src=x" in dom and "\\u202edab\\x00" in dom and "\u202e" not in dom
    assert 'class="cj-t cj-p"' in dom and 'data-c="+0.707"' in dom


def test_filters_are_in_the_address(page):
    dom, console = look(page, "outcome=dead&sort=shortest&min=2")
    assert console == [] and "4 of 11 shown" in dom
    assert sorted(listed(dom)) == ["easy", "easy", "hard", "hard"]
    assert "Dead group: all outcomes are equal" in dom


def test_keys_walk_over_rollouts_and_tokens(page, tmp_path):
    start, _ = look(page)
    order = listed(start)
    dom, console = look(page, keys=["j", "ArrowDown", "k", "ArrowRight", "ArrowRight"], tmp_path=tmp_path)
    assert console == []
    assert chosen(start) == "live/0" and order[0] == "live"
    assert chosen(dom) == "live/1"
    assert len(re.findall(r'class="cj-t[^"]* cj-on"', dom)) == 2  # the second token, in both recipes
    assert "position 2" in dom and "grpo \u22120.707" in dom


def test_a_narrow_page_lists_the_chosen_rollout(page, tmp_path):
    dom, _ = look(page, keys=["Shift"], tmp_path=tmp_path, flags=["--window-size=600,900"])
    scrolled, room = map(float, re.search(r'data-scrolled="([\d.]+) of ([\d.]+)"', dom).groups())
    assert chosen(dom) == listed(dom)[0] + "/0" and room > 100 and scrolled == 0


def test_the_prompt_stands_beside_its_group(tmp_path):
    template = "You are a careful assistant who answers in one word."
    made = [
        Rollout(f"{p}/{g}", f"{p}", ("a",), float(g), prompt=(Message("user", f"{template} What is {p} plus\n2?"),))
        for p in range(2)
        for g in range(2)
    ]
    files.write(tmp_path / "asked.jsonl", made)
    inspect(tmp_path / "asked.jsonl", ("grpo",), out=tmp_path / "asked.html")
    dom, _ = look(tmp_path / "asked.html")
    asked = [html.unescape(said) for said in re.findall(r'<span class="ask">(.*?)</span>', dom)]
    # In the list, and beside the group of the rollout that is shown.
    assert asked == [f"\u2026{p} plus 2?" for p in (0, 0, 1, 1, 0)]


def test_policy_forbids_other_scripts(page, tmp_path):
    text = page.read_text().replace("</body>", "<script>document.title='owned'</script></body>")
    (tmp_path / "injected.html").write_text(text)
    dom, console = look(tmp_path / "injected.html")
    assert "<title>rollouts.jsonl</title>" in dom and any("Content Security Policy" in line for line in console)
