"""Sphinx: `make docs`. Warnings are errors, nothing is fetched, docs/reference is made anew from the code."""

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import _generate  # noqa: E402
from pygments.lexers.special import TextLexer  # noqa: E402

import gigabatch  # noqa: E402

_generate.write_pages(HERE / "reference")

project = "Gigabatch"
author = "the authors of Gigabatch"
version = release = gigabatch.__version__
root_doc = "index"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["deploy", "_build"]
default_role = "code"

myst_enable_extensions = ["deflist", "attrs_inline", "colon_fence"]
myst_heading_anchors = 4

napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"

suppress_warnings = ["ref.python"]  # every model has a class Settings

html_theme = "furo"
html_title = f"Gigabatch {release}"
html_copy_source = False
html_show_sphinx = False


def escape_bars(app, what, name, obj, options, lines):  # |w| is a norm in our docstrings, a substitution to docutils
    lines[:] = [line if line.lstrip().startswith(">>>") else line.replace("|", r"\|") for line in lines]


def hide_tests(app, docname, source):  # the tests that prove a row are for who reads the sources
    if docname == "errors":
        source[0] = re.sub(r"(?m)^(\|.*) \| (?:test|---|`tests/[^|`]+`) \|$", r"\1 |", source[0])
        source[0] = re.sub(r"(?m)^\|---\|---\|---\|$", "|---|---|", source[0])


def setup(app):
    app.connect("source-read", hide_tests)
    app.add_lexer("mermaid", TextLexer)
    app.connect("autodoc-process-docstring", escape_bars, priority=100)  # before napoleon
