"""The pages that the pages of a database link to, and other views of them."""

import re
from collections.abc import Callable
from html import unescape

# Downloads, and texts and images at addresses of their own: how their paths end.
NO_PAGES = (".csv", ".png", "/text", "/value")
# Orders with and without an index, filters, and the views of an episode, of a buffer.
_VIEWS = (
    "/buffer?buffer={0}&last=1h",
    *("/figures?buffer={0}&" + query for query in (
        "x=step&by=agent", "x=episode&by=session", "x=version&by=version", "with=rows&with=arrays",
    )),
    *("/episodes?buffer={0}&" + query for query in (
        "sort=best", "sort=longest", "sort=spread", "sort=agent", "sort=ended%20descending",
        "sort=task", "q=status%3Dopen", "q=agent%3Ddefault", "q=reward%3E%3D0", "q=step%3D1", "q=a",
    )),
    "/groups?buffer={0}&sort=task", "/search?buffer={0}&q=a",
    "{1}", "{1}?view=curves", "{1}?view=draws",
)  # fmt: skip
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


def other_views(text_of: Callable[[str], str], buffer: str) -> list[str]:
    """Return addresses of other views of a buffer with episodes; the arguments are as above."""
    links = _LINK.findall(text_of(f"/episodes?buffer={buffer}"))
    episode = next(unescape(link) for link in links if "/episodes/" in link)
    return [path.format(buffer, episode) for path in _VIEWS]


def kind_of(path: str) -> str:
    """Return what pages of one kind have in common: the path without names and numbers."""
    way = re.sub(r"\d+", "0", path.partition("?")[0])
    return re.sub(r"^/buffers/[^/]*", "/buffers/*", way)
