"""Sphinx's settings for the documentation site; `make docs` builds it."""

import pathlib
import re
import sys

from sphinx.application import Sphinx

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import creditjax  # noqa: E402

project = "creditjax"
version = release = creditjax.__version__
extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "myst_nb",
    "sphinx_copybutton",
]
html_theme = "furo"
html_title = f"creditjax {version}"
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False

# Notebooks are executed, and their outputs asserted, by the tests.
nb_execution_mode = "off"
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

# A word between single backticks is code.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
maximum_signature_line_length = 100
python_use_unqualified_type_names = True
napoleon_use_ivar = True
napoleon_use_rtype = False
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True


def literal_blocks(app: Sphinx, what: str, name: str, member: object, options: object, lines: list[str]) -> None:
    """An indented block after a blank line is code, as a reader of the source sees it."""
    del app, what, name, member, options
    indent = lambda line: len(line) - len(line.lstrip())  # noqa: E731
    for i in range(len(lines) - 1, 1, -1):
        above = next((line for line in reversed(lines[:i]) if line.strip()), "")
        opens = lines[i].strip() and not lines[i - 1].strip() and indent(lines[i]) >= indent(above) + 4
        if opens and not re.match(r"\s*(>>>|[-*:.]|\d+\.)", lines[i]) and not re.match(r"\s*[-*:.]", above):
            lines[i:i] = [" " * indent(above) + "::", ""]


def skip_fields(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Fields are told under "Attributes" of their class; a NamedTuple would list them again."""
    del app, what, name, skip, options
    return True if (getattr(member, "__doc__", None) or "").startswith("Alias for field") else None


def setup(app: Sphinx) -> None:
    """Registers what happens to docstrings."""
    app.connect("autodoc-process-docstring", literal_blocks, priority=600)
    app.connect("autodoc-skip-member", skip_fields)
