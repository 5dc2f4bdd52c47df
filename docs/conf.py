"""Sphinx: `sphinx-build -W docs docs/_build`, with the extra `docs` installed."""

import re
import sys
from pathlib import Path
from typing import Any

from sphinx.addnodes import pending_xref
from sphinx.ext.napoleon import GoogleDocstring
from sphinx.util.nodes import make_refnode

import sqlbuffer
from sqlbuffer import errors

project = "sqlbuffer"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
# So that links to headings are the same here and where the files are read as they are.
myst_heading_anchors = 3

autodoc_default_options = {"members": True, "member-order": "bysource"}
# The API pages need no optional library.
autodoc_mock_imports = [
    "gymnasium", "ray", "stable_baselines3", "starlette", "tensordict", "torch", "torchrl",
]  # fmt: skip
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
napoleon_use_ivar = True

# Libraries of other extras. The site is the same whether they are installed or not.
_NOT_IMPORTED = {
    "datasets", "easydict", "gymnasium", "httpx", "hypothesis", "minari", "omegaconf", "pandas",
    "prometheus_client", "pyarrow", "ray", "scipy", "stable_baselines3", "starlette",
    "tensorboardX", "tensordict", "torch", "torchrl", "uvicorn", "zstandard",
}  # fmt: skip
_COLON = "\ue000"  # stands for a colon while napoleon reads a property


def _add_contents(_app: Any, docname: str, source: list[str]) -> None:
    """Make the lists of pages in the index the contents of the sidebar, with its headings."""
    if docname != "index":
        return
    contents = [source[0]]
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]:
        caption = section.splitlines()[0]
        pages = re.findall(r"^- \[.*?\]\((.+?)\.md\)", section, re.MULTILINE)
        if not pages:
            continue
        contents.append(
            "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])
        )
    source[0] = "\n\n".join([*contents, ""])


def searched_words(index: str) -> dict[str, list[str]]:
    """Return the words of the table of `index.md` by the page that the search shows first."""
    words: dict[str, list[str]] = {}
    for cell, page in re.findall(r"^\| ([^|]+?) \| \[.*?\]\((.+?)\.md\)", index, re.MULTILINE):
        words.setdefault(page, []).extend(cell.split(", "))
    return words


def _add_searched_words(app: Any, docname: str, source: list[str]) -> None:
    """Give a page main entries of the index, which the search lists before all other results."""
    index = (Path(app.srcdir) / "index.md").read_text(encoding="utf-8")
    for word in searched_words(index).get(docname, []):
        heading, _, rest = source[0].partition("\n")
        source[0] = f"{heading}\n\n```{{index}} ! {word}\n```\n{rest}"


def _as_restructured_text(paragraph: str) -> str:
    """Return a paragraph of a docstring, which is written as Markdown."""
    if paragraph.lstrip().startswith(">>>"):
        return paragraph
    parts = re.split(r"(`[^`]+`)", paragraph)
    parts[1::2] = [f"`{part}`" for part in parts[1::2]]
    # The names of `*args` and `**kwargs` are napoleon's to escape.
    parts[::2] = [re.sub(r"(?<!\*)(?!\*+\w+:)(\*+|\|)", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _before_napoleon(
    app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]
) -> None:
    paragraphs = re.split(r"(\n\s*\n|:\n(?= *>>>))", "\n".join(lines))
    paragraphs[::2] = map(_as_restructured_text, paragraphs[::2])
    lines[:] = "".join(paragraphs).split("\n")
    if what == "property":
        # Napoleon would take the text before a colon for the type.
        read = GoogleDocstring(lines, app.config, app, "method", name, obj, options).lines()
        lines[:] = [line.replace(":", _COLON) for line in read]


def _after_napoleon(_app: Any, _what: str, _name: str, _obj: Any, _opts: Any, lines: Any) -> None:
    lines[:] = [line.replace(_COLON, ":") for line in lines]


def _link_error(app: Any, _env: Any, node: Any, content: Any) -> Any:
    """Link the name of an error to its entry."""
    name = node["reftarget"]
    if node["reftype"] != "exc" or not hasattr(errors, name):
        return None
    return make_refnode(app.builder, node["refdoc"], "reference/errors", name.lower(), content)


def _qualify_names(_app: Any, doctree: Any) -> None:
    """Let a name without a module be that of `sqlbuffer`, not of one of its compat modules."""
    for node in doctree.findall(pending_xref):
        if node["reftarget"] in sqlbuffer.__all__:
            node["reftarget"] = f"sqlbuffer.{node['reftarget']}"


class _OtherExtras:
    """Refuses to import the libraries of other extras."""

    def find_spec(self, name: str, _path: Any = None, _target: Any = None) -> None:
        if name.partition(".")[0] in _NOT_IMPORTED:
            raise ModuleNotFoundError(name)


sys.meta_path.insert(0, _OtherExtras())  # type: ignore[arg-type]


def setup(app: Any) -> None:
    """Add the contents to the index, read the docstrings as Markdown, and link their names."""
    app.connect("source-read", _add_contents)
    app.connect("source-read", _add_searched_words)
    app.connect("doctree-read", _qualify_names)
    app.connect("missing-reference", _link_error)
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
