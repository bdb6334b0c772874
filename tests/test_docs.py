"""What is written about the library holds: docstrings are there, the README's examples run, its table is current."""

import doctest
import importlib
import inspect
import pathlib
import re
import textwrap
import types
from typing import NamedTuple

from jax import numpy as jnp
import numpy as np
import pytest

import creditjax
from creditjax import algebra, objectives, recipes
from docs import make_tables
from docs.markers import spliced

README = make_tables.README.read_text(encoding="utf-8")
ROOT = make_tables.README.parent
PUBLIC = ["creditjax", *(f"creditjax.{room}" for room in ("algebra", "objectives", "recipes", "report"))]


def undocumented(module):
    """Public functions and classes without a docstring of their own; NamedTuples and dataclasses make a bare one up."""
    for name in module.__all__:
        member = getattr(module, name)
        if not (inspect.isclass(member) or inspect.isroutine(member)):
            continue
        own = vars(member).get("__doc__") if inspect.isclass(member) else member.__doc__
        if not own or own.startswith(f"{getattr(member, '__name__', name)}("):
            yield f"{module.__name__}.{name}"


@pytest.mark.parametrize("name", PUBLIC)
def test_public_symbols_have_docstrings(name):
    module = importlib.import_module(name)
    assert module.__doc__ and module.__all__
    assert list(undocumented(module)) == []


def test_missing_docstrings_are_found():
    module = types.ModuleType("m")
    module.__all__ = ["function", "Class", "Tuple", "told", "constant"]
    module.function, module.Class, module.Tuple = lambda: 0, type("Class", (), {}), NamedTuple("Tuple", [("x", int)])
    module.told, module.constant = undocumented, 3
    assert list(undocumented(module)) == ["m.function", "m.Class", "m.Tuple"]


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


def test_readme_table_is_current():
    assert spliced(README, "methods", make_tables.method_table()) == README, "run `make tables`"
    for name in creditjax.list_recipes():
        assert README.count(f"| `{name}` |") == 1


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
