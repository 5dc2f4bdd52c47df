"""The pages that the pages of a database link to."""

import re
from collections.abc import Callable
from html import unescape

# Downloads, and texts and images at addresses of their own: how their paths end.
NO_PAGES = (".csv", ".png", "/text", "/value")
_LINK = re.compile(r'<a\b[^>]*\shref="(/[^"#]*)')


def one_of_each_kind(text_of: Callable[[str], str]) -> list[str]:
    """Return an address of each kind of page, found by following links.

    Args:
        text_of: Returns the HTML at an address.
    """
    found: dict[str, str] = {}
    waiting = ["/"]
    while waiting:
        path = waiting.pop(0)
        if kind_of(path) in found or kind_of(path).endswith(NO_PAGES):
            continue
        found[kind_of(path)] = path
        waiting += [unescape(link) for link in _LINK.findall(text_of(path))]
    return list(found.values())


def kind_of(path: str) -> str:
    """Return what pages of one kind have in common: the path without names and numbers."""
    way = re.sub(r"\d+", "0", path.partition("?")[0])
    return re.sub(r"^/buffers/[^/]*", "/buffers/*", way)
