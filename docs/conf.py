"""Sphinx builds the site from the pages that tools/stage_docs.py gathers: see ``make docs``.

The built site needs no network: scripts, styles, fonts and the search index are files of it, and
formulas become MathML.
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.ext.napoleon import Config, NumpyDocstring

import voxpipe

project = "voxpipe"
author = "the authors of voxpipe"
version = release = voxpipe.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc"]
source_suffix = {".md": "myst-nb", ".ipynb": "myst-nb", ".rst": "restructuredtext"}
root_doc = "index"
default_role = "code"
nitpicky = False  # annotations name classes of libraries whose reference is not at hand

# Headings have GitHub's anchors, so that links work there too; a wrong one is a warning.
myst_heading_anchors = 4
myst_enable_extensions = ["dollarmath"]
# Programs of the pages are tested by tests/test_doctests.py and tests/docs_site, and the notebooks
# of tutorials have outputs already.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_inherit_docstrings = True
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"
html_math_renderer = "mathml"

html_theme = "pydata_sphinx_theme"
html_title = "voxpipe"
html_show_sourcelink = False
html_static_path = ["_static"]
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
html_css_files = ["site.css"]
html_sidebars = {"index": [], "accuracy": []}
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navigation_depth": 3,
    "show_toc_level": 1,
    "secondary_sidebar_items": ["page-toc"],
    "navbar_align": "left",
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


_CELL = re.compile(r"<td>.*?</td>", re.DOTALL)
# Code of a table without a space, such as the path of a test, that is wider than most columns.
_LONG_WORD = re.compile(r'(?<=<span class="pre">)[^<]{24,}(?=</span>)')


_OUTPUT = re.compile(r'<div class="cell_output.*?<pre(?=>(.*?)</pre>)', re.DOTALL)
_WIDEST = 170  # columns of the widest printed table; longer lines are sentences, which wrap


def _fit_page(app: Any, name: str, template: str, context: Any, tree: Any) -> None:
    """Let a browser break long words of tables, and fit printed tables to its window."""

    def breakable(match: re.Match[str]) -> str:
        ends = r"::|/|\(|\[|,|=|\.(?!\d)|_(?=\w{4})|[a-z](?=[A-Z][a-z])"
        return re.sub(rf"({ends})(?=.)", r"\1<wbr>", match[0])

    def fitted(match: re.Match[str]) -> str:
        lines = html.unescape(re.sub(r"<[^>]+>", "", match[1])).splitlines()
        columns = max((len(line) for line in lines if len(line) <= _WIDEST), default=0)
        return f'{match[0]} style="--columns: {columns}"' if columns else match[0]

    if "body" in context:
        body = _OUTPUT.sub(fitted, context["body"])
        context["body"] = _CELL.sub(lambda cell: _LONG_WORD.sub(breakable, cell[0]), body)


def _inline(translator: Any, node: nodes.math) -> None:
    translator.body.append(convert(node.astext()))
    raise nodes.SkipNode


def _block(translator: Any, node: nodes.math_block) -> None:
    translator.body.append(convert(node.astext(), display="block"))
    raise nodes.SkipNode


def _numpy_style(
    app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]
) -> None:
    # The extension napoleon would read "Type: text" out of sentences that describe an attribute.
    if what not in ("attribute", "property", "data") or any("----" in line for line in lines):
        style = Config(napoleon_use_rtype=False, napoleon_use_ivar=True)
        lines[:] = NumpyDocstring(lines, style, app, what, name, thing, options).lines()


def setup(app: Any) -> dict[str, bool]:
    """Register the renderer of formulas and the style of docstrings."""
    app.connect("autodoc-process-docstring", _numpy_style)
    app.connect("html-page-context", _fit_page)
    app.add_html_math_renderer("mathml", (_inline, None), (_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}
