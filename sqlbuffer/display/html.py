"""HTML that notebooks show; every text in it is escaped."""

from collections.abc import Iterable
from html import escape


def html_table(
    heads: Iterable[str], rows: Iterable[Iterable[object]], title: str | None = None
) -> str:
    """Return a table, with a line above it if there is a title.

    Args:
        heads: Names of the columns.
        rows: The cells of each row, which are shown as text.
        title: The line.
    """
    above = "" if title is None else f"<p>{escape(title)}</p>"
    body = "".join(_row("td", cells) for cells in rows)
    return f"{above}<table>{_row('th', heads)}{body}</table>"


def html_code(text: str) -> str:
    """Return a line of code."""
    return f"<code>{escape(text)}</code>"


def _row(tag: str, cells: Iterable[object]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(str(cell))}</{tag}>' for cell in cells)}</tr>"
