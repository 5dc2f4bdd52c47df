"""Tables, as wide as they need where nobody's terminal limits them."""

import math
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

# For a file or a pipe: no cell is cut.
UNLIMITED_WIDTH = 10_000


def shown_url(url: str | None) -> str:
    """Return a URL in full, with its password hidden, as other programs take it too."""
    from sqlbuffer.storage.engine import resolve_url
    from sqlbuffer.storage.urls import shown_url as without_password

    resolved = resolve_url(url)
    return without_password(resolved.set(drivername=resolved.get_backend_name()))


def console() -> "Console":
    """Return the console of standard output."""
    from rich.console import Console

    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=UNLIMITED_WIDTH)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], title: str | None = None
) -> "Table":
    """Return a table; numbers stand at the right."""
    from rich.table import Table
    from rich.text import Text

    cells = [list(row) for row in rows]
    made = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        numeric = all(isinstance(row[index], (int, float, Decimal, type(None))) for row in cells)
        made.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in cells:
        # Text, since a task's name may hold what rich takes for markup.
        made.add_row(*(Text(shown(value)) for value in row))
    return made


def shown(value: Any) -> str:
    """Return a value as a cell: thousands separated, reals to four digits, None as a dash."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, (float, Decimal)):
        number = float(value)
        whole = math.isfinite(number) and abs(number) >= 1000
        return f"{number:,.0f}" if whole else f"{number:.4g}"
    return str(value)
