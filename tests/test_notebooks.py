"""The notebooks of the documentation run, in time, and show what a reader of the repository sees."""

import functools
import pathlib
import re
import resource
import sys

from nbclient.exceptions import CellExecutionError
import nbformat
import numpy as np
import pytest

import creditjax
from docs import make_notebooks

NOTEBOOKS = sorted(make_notebooks.NOTEBOOKS.glob("*.ipynb"))
NUMBER = re.compile(r"[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?")

notebooks = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@functools.cache
def committed(path):
    return nbformat.read(path, as_version=4)


def outputs(notebook):
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def words_and_numbers(texts):
    """What has to agree to the letter, and what to rounding. Which of several equal games is the worst is rounding."""
    text = "\n".join(texts)
    text = re.sub(r"^  most wrong .*\n", "", text, flags=re.MULTILINE)
    text = re.sub(r"(gradient in game) '[^']*'", r"\1", text)
    return " ".join(NUMBER.sub("#", text).split()), np.array([float(x) for x in NUMBER.findall(text)])


def assert_same_text(new, old):
    (new_words, new_numbers), (old_words, old_numbers) = words_and_numbers(new), words_and_numbers(old)
    assert new_words == old_words, "run `make notebooks`"
    np.testing.assert_allclose(new_numbers, old_numbers, rtol=0.02, atol=0.011, err_msg="run `make notebooks`")


def test_there_are_notebooks():
    assert {path.stem for path in NOTEBOOKS} >= {
        *("compose", "read_a_log", "test_your_own_estimator", "exact_credit_on_a_tree", "credit_for_an_agent"),
        "a_new_recipe",
    }


@notebooks
def test_notebook_runs_in_time_and_shows_what_is_committed(path):
    began = resource.getrusage(resource.RUSAGE_CHILDREN)
    made = make_notebooks.execute(path, timeout=300)
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Seconds of work: what else runs on the machine does not count.
    assert ended.ru_utime + ended.ru_stime - began.ru_utime - began.ru_stime < make_notebooks.LIMIT
    assert_same_text(make_notebooks.texts(made), make_notebooks.texts(committed(path)))
    kinds = [sorted(output.get("data", {})) for output in outputs(made)]
    assert kinds == [sorted(output.get("data", {})) for output in outputs(committed(path))]


@notebooks
def test_committed_notebook_is_complete_and_clean(path):
    notebook = committed(path)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1)), "executed once, in order"
    assert [output.output_type for output in outputs(notebook) if output.output_type == "error"] == []
    assert [output.text for output in outputs(notebook) if output.get("name") == "stderr"] == []
    assert any("image/png" in output.get("data", {}) for output in outputs(notebook))
    assert path.stat().st_size < 600_000
    assert make_notebooks.clean(nbformat.read(path, as_version=4)) == notebook


@notebooks
def test_committed_notebook_names_no_path_of_a_machine(path):
    text = path.read_text(encoding="utf-8")
    own = {str(make_notebooks.ROOT), str(pathlib.Path.home())} - {"/"}
    assert [name for name in (*own, "site-packages", "/tmp/", "/home/", "/Users/", "ipykernel_") if name in text] == []


@notebooks
def test_links_of_notebooks_lead_somewhere(path):
    prose = "\n".join(cell.source for cell in committed(path).cells if cell.cell_type == "markdown")
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", prose) if "://" not in target]
    assert targets and [target for target in targets if not (path.parent / target).exists()] == []


def test_stale_text_is_found():
    old = ["biased by 0.25 of the exact gradient in game 'a'\n  most wrong in game 'a': 1\n", "scale 0.7500"]
    assert_same_text([old[0].replace("'a'", "'b'"), "scale 0.7512"], old)
    with pytest.raises(AssertionError, match="make notebooks"):
        assert_same_text([old[0], "scale 0.9000"], old)
    with pytest.raises(AssertionError, match="make notebooks"):
        assert_same_text([old[0].replace("biased", "off"), old[1]], old)


def notebook_of(directory: pathlib.Path, source: str) -> pathlib.Path:
    path = directory / "made.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)]), path)
    return path


def test_a_kernel_is_this_interpreter_in_an_empty_directory(tmp_path):
    source = "import os, sys, creditjax\nprint(sys.executable, creditjax.__file__, len(os.environ['PYTHONPATH']) > 0)"
    (text,) = make_notebooks.texts(make_notebooks.execute(notebook_of(tmp_path, source)))
    assert text.split() == [sys.executable, creditjax.__file__, "True"]


def test_a_failing_cell_is_an_error(tmp_path):
    with pytest.raises(CellExecutionError, match="wanted: 3"):
        make_notebooks.execute(notebook_of(tmp_path, "raise ValueError('wanted: 3')"))
