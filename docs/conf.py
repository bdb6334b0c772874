"""Sphinx's settings for the documentation; `make docs` builds it."""

import inspect
import pathlib
import sys
from typing import Any

from sphinx.application import Sphinx
from sphinx.util import logging

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import creditjax  # noqa: E402
from docs import api  # noqa: E402

_log = logging.getLogger(__name__)

project = "creditjax"
version = release = creditjax.__version__
copyright = "the creditjax authors"
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx.ext.mathjax",
    "myst_nb",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"creditjax {version}"
html_static_path: list[str] = []
html_copy_source = False
html_show_copyright = False

# Notebooks are executed, and their outputs asserted, by the tests.
nb_execution_mode = "off"
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3

# A word between single backticks is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_ivar = True
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def require_docstring(app: Sphinx, what: str, name: str, member: Any, options: Any, lines: list[str]) -> None:
    """A warning, which ends the build, for a public symbol that nobody has documented."""
    del app, options
    if what == "attribute":
        return
    made_up = inspect.isclass(member) and api.made_up(member)
    if made_up or not any(map(str.strip, lines)):
        _log.warning("%s %s has no docstring", what, name)


def setup(app: Sphinx) -> None:
    """Registers the check."""
    app.connect("autodoc-process-docstring", require_docstring)
