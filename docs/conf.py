"""Sphinx: `sphinx-build -W docs docs/_build`, with the extra `docs` installed."""

import re
from typing import Any

project = "sqlbuffer"
extensions = ["myst_parser"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = project
# So that links to headings are the same here and where the files are read as they are.
myst_heading_anchors = 3


def _add_contents(_app: Any, docname: str, source: list[str]) -> None:
    """Make the list of pages in the index the contents of the sidebar."""
    if docname == "index":
        pages = re.findall(r"^- \[.*?\]\((.+?)\.md\)", source[0], re.MULTILINE)
        contents = "\n".join(["```{toctree}", ":hidden:", "", *pages, "```"])
        source[0] = f"{source[0]}\n{contents}\n"


def setup(app: Any) -> None:
    """Have the contents added when the index is read."""
    app.connect("source-read", _add_contents)
