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
    """Make the lists of pages in the index the contents of the sidebar, with its headings."""
    if docname != "index":
        return
    contents = [source[0]]
    for section in re.split(r"^## ", source[0], flags=re.MULTILINE)[1:]:
        caption = section.splitlines()[0]
        pages = re.findall(r"^- \[.*?\]\((.+?)\.md\)", section, re.MULTILINE)
        contents.append(
            "\n".join(["```{toctree}", ":hidden:", f":caption: {caption}", "", *pages, "```"])
        )
    source[0] = "\n\n".join([*contents, ""])


def setup(app: Any) -> None:
    """Have the contents added when the index is read."""
    app.connect("source-read", _add_contents)
