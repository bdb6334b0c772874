"""Builds the documentation site: `make docs`, or `python -m docs.make_site`.

The pages of docs/, the notebooks, and what is made from the code, the API reference and a page for each method, are
laid out as sources, which Sphinx builds. A public symbol that nobody has documented ends the build, as does every
warning of Sphinx.

    python -m docs.make_site              writes build/site, two minutes
    python -m docs.make_site --check      only reads and resolves everything; half a minute
"""

import argparse
import importlib
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

from docs import api, method_pages

DOCS = pathlib.Path(__file__).parent
ROOT = DOCS.parent
# Order and titles of the pages that are written by hand, or by the scripts beside them.
GUIDES = (
    *("architecture", "ground_truth", "properties", "benchmark", "learning_curves", "speed"),
    *("where_recipes_train", "process_rewards", "process_reward_models", "process_curves"),
    *("inspect", "rollout_files", "peers", "sweeps"),
)
NOTEBOOKS = tuple(sorted(path.stem for path in (DOCS / "notebooks").glob("*.ipynb")))


def lay_out(to: pathlib.Path) -> None:
    """Writes the sources of the site into an empty folder.

    Raises:
      SystemExit: a public symbol without a docstring; all of them are named.
    """
    bare = [name for page in api.pages() for section in page.sections for name in _undocumented(section)]
    if bare:
        raise SystemExit(f"public symbols without a docstring: {', '.join(bare)}")
    pages = {"changelog.md": _linked((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), ROOT)}
    for name in ("index", "glossary", *GUIDES):
        pages[f"{name}.md"] = _linked((DOCS / f"{name}.md").read_text(encoding="utf-8"), DOCS)
    pages |= {f"api/{page.name}.rst": _reference(page) for page in api.pages()}
    pages["api/index.md"] = _contents("API reference", [page.name for page in api.pages()])
    pages |= {f"methods/{name}.md": text for name, text in method_pages.pages().items()}
    pages["notebooks/index.md"] = _contents("Notebooks", NOTEBOOKS)
    for name, text in pages.items():
        path = to / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    for name in NOTEBOOKS:
        shutil.copy(DOCS / "notebooks" / f"{name}.ipynb", to / "notebooks")
    shutil.copytree(DOCS / "img", to / "img")


def _undocumented(section: api.Section) -> list[str]:
    module = importlib.import_module(section.module)
    names = [name for symbol in section.symbols for name in api.undocumented(symbol, getattr(module, symbol))]
    return [f"{section.module}.{name}" for name in names] + ([] if section.doc else [section.module])


def _reference(page: api.Page) -> str:
    """A page of the API reference, in reStructuredText."""
    lines = [page.name, "=" * len(page.name), ""]
    for section in page.sections:
        if section.module != page.name:
            lines += [section.module, "-" * len(section.module), ""]
        module = importlib.import_module(section.module)
        lines += [f".. automodule:: {section.module}", "   :no-members:"]
        if _shadowed(section.module):
            lines.append("   :no-index:")
        lines.append("")
        recipes = [name for name in section.symbols if getattr(module, name) in method_pages.functions()]
        if recipes:
            lines += ["Recipes: " + ", ".join(f":func:`{section.module}.{name}`" for name in recipes) + ".", ""]
        for name in section.symbols:
            if name not in recipes:
                kind = "class" if inspect.isclass(getattr(module, name)) else "function"
                lines += [f".. auto{kind}:: {section.module}.{name}", *(["   :members:"] * (kind == "class")), ""]
    return "\n".join(lines)


def _shadowed(module: str) -> bool:
    """Whether the package shows a function under the module's name; the name then means that."""
    parent, _, leaf = module.rpartition(".")
    return bool(parent) and not inspect.ismodule(getattr(importlib.import_module(parent), leaf))


def _contents(title: str, names: list[str] | tuple[str, ...]) -> str:
    return "\n".join([f"# {title}", "", "```{toctree}", ":maxdepth: 1", "", *names, "```", ""])


def _linked(text: str, folder: pathlib.Path) -> str:
    """The text, in which links to files that are not on the site are code."""

    def replaced(match: re.Match) -> str:
        shown, target = match.groups()
        path = folder / target.partition("#")[0]
        on_site = "://" in target or target.startswith("#") or path.parent == DOCS / "img"
        on_site |= path.suffix in (".md", ".ipynb") and path.is_relative_to(DOCS)
        return match.group() if on_site else f"`{shown.strip('`')}`"

    return re.sub(r"\[([^\]]*)\]\(([^)\s]+)\)", replaced, text)


def main() -> None:
    """Flags to one call."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", type=pathlib.Path, default=ROOT / "build" / "site", help="folder of the built pages")
    parser.add_argument("--check", action="store_true", help="find what is wrong, write no pages")
    flags = parser.parse_args()
    sources = flags.to.with_name(f"{flags.to.name}-source")
    for folder in (sources, flags.to):
        shutil.rmtree(folder, ignore_errors=True)
    lay_out(sources)
    built = ["--conf-dir", DOCS, "--doctree-dir", sources / ".doctrees", sources, flags.to]
    strict = ["--fail-on-warning", "--keep-going", "--quiet", "--builder", "dummy" if flags.check else "html"]
    if code := subprocess.run([sys.executable, "-m", "sphinx", *strict, *built], cwd=ROOT, check=False).returncode:
        sys.exit(code)
    if not flags.check:
        print(f"The site: {flags.to / 'index.html'}")


if __name__ == "__main__":
    main()
