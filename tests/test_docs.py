"""What is written about the library holds: docstrings are there, the README's examples run, its table is current."""

import doctest
import importlib
import pathlib
import re
import subprocess
import sys
import textwrap
from typing import NamedTuple

from jax import numpy as jnp
import numpy as np
import pytest

import creditjax
from creditjax import algebra, objectives, recipes
from docs import api, make_tables, method_pages
from docs.markers import spliced

README = make_tables.README.read_text(encoding="utf-8")
ROOT = make_tables.README.parent
EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in (ROOT / "creditjax").rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8") and path.name != "__init__.py"
)


def test_the_site_builds():
    """Every public symbol has a docstring, and Sphinx reads all pages and resolves all references without a warning."""
    done = subprocess.run([sys.executable, "-m", "docs.make_site", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_missing_docstrings_are_found():
    class Bare:
        def method(self):
            return 0

        @property
        def size(self):
            return 0

    class Heir(Bare):
        """Told."""

        def method(self):
            return 1

    told = {"function": lambda: 0, "Bare": Bare, "Heir": Heir, "Tuple": NamedTuple("Tuple", [("x", int)])}
    found = [name for symbol, member in told.items() for name in api.undocumented(symbol, member)]
    assert found == ["function", "Bare", "Bare.method", "Bare.size", "Heir.method", "Tuple"]
    assert list(api.undocumented("told", api.undocumented)) == []


def test_every_recipe_and_every_room_has_a_page():
    made = method_pages.pages()
    assert set(made) == {"index", "which", *creditjax.list_recipes()}
    for name in creditjax.list_recipes():
        assert f"creditjax.recipe({name!r}" in made[name] and f"--config.recipe.name={name}" in made[name]
        assert f"[{name}]({name}.md)" in made["index"]
    rooms = {path.stem for path in (ROOT / "creditjax").iterdir() if not path.name.startswith("_")} - {"py", "version"}
    assert {page.name.removeprefix("creditjax.") for page in api.pages()[1:]} >= rooms - {
        "segments",
        "signal_table",
        "validation",
    }  # told with the front door


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_examples_of_docstrings_run(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted and not result.failed


def test_readme_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)
    test = doctest.DocTestParser().get_doctest("\n\n".join([*blocks, ""]), {}, "README.md", "README.md", 0)
    assert len(test.examples) >= 8
    report: list[str] = []
    result = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE).run(test, out=report.append)
    assert result.failed == 0, "".join(report)


def test_the_examples_of_the_ground_truth_page_run():
    result = doctest.testfile(str(ROOT / "docs/ground_truth.md"), module_relative=False)
    assert result.attempted >= 10 and result.failed == 0


def test_the_examples_of_the_page_on_sweeps_run():
    result = doctest.testfile(str(ROOT / "docs/sweeps.md"), module_relative=False)
    assert result.attempted >= 5 and result.failed == 0


def test_readme_table_is_current():
    assert spliced(README, "methods", make_tables.method_table()) == README, "run `make tables`"
    for name in creditjax.list_recipes():
        assert README.count(f"| `{name}` |") == 1


def test_every_recipe_says_where_it_is_from():
    papers = {row.split(" | ")[0]: row.split(" | ")[2] for row in make_tables.method_table().splitlines()[2:]}
    assert [name for name, paper in papers.items() if not paper.strip()] == []
    assert (
        make_tables.paper_link("arXiv:2504.15275 (x)", "") == "[arXiv:2504.15275](https://arxiv.org/abs/2504.15275) (x)"
    )


BEGIN, END = "<!-- t:begin -->", "<!-- t:end -->"


def test_the_length_of_recipes_is_current():
    page = make_tables.ARCHITECTURE.read_text(encoding="utf-8")
    assert spliced(page, "lengths", make_tables.recipe_lengths()) == page, "run `make tables`"


@pytest.mark.parametrize("text", ["", BEGIN, END + BEGIN, BEGIN * 2, BEGIN + END + END, BEGIN + BEGIN + END])
def test_markers_have_to_be_there(text):
    with pytest.raises(ValueError, match=f"wanted one {BEGIN} and one {END}"):
        spliced(text, "t", "new")


@pytest.mark.parametrize("page", ["README.md", "CHANGELOG.md", "docs/architecture.md", "docs/ground_truth.md"])
def test_links_to_files_lead_somewhere(page):
    path = ROOT / page
    targets = re.findall(r"\]\(([^)#]+)\)", path.read_text(encoding="utf-8"))
    broken = [target for target in targets if "://" not in target and not (path.parent / target).exists()]
    assert broken == []


def test_readme_names_files_that_exist():
    named = re.findall(r"`((?:creditjax|configs|docs|experiments)/[\w./]*)`", README)
    assert named and [name for name in named if not (ROOT / pathlib.Path(name)).exists()] == []


def test_the_examples_of_the_architecture_page_run():
    blocks = re.findall(
        r"^(?:(?:    |      ).*\n|\n)+", (ROOT / "docs/architecture.md").read_text("utf-8"), re.MULTILINE
    )
    code = [textwrap.dedent(block) for block in blocks if "@transform(" in block or "@register(" in block]
    assert len(code) == 2
    names: dict = {**vars(algebra), **vars(objectives), **vars(recipes), "jnp": jnp, "Trajectory": creditjax.Trajectory}
    names["register"] = lambda name, **options: lambda function: function
    for block in code:
        exec(block, names)
    batch = creditjax.Trajectory(
        tokens=np.zeros((1, 3, 2), int), action_mask=np.ones((1, 3, 2), bool), outcome=[[3, 1, 2]]
    )
    credit = creditjax.estimate(names["estimator"], batch).value
    np.testing.assert_allclose(credit[0, :, 0], [1, 0, 0.25])
    assert names["rank_pg"]().sampler.group_size == 8
