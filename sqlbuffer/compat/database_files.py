"""Where a database is: at a URL, or in a SQLite file that a path or a folder names."""

from pathlib import Path
from typing import Any, TypeGuard

# The file of a folder.
FILE = "replay.sqlite"


def is_url(place: Any) -> TypeGuard[str]:
    """Return True for a database URL, False for a path.

    Example:
        >>> is_url("postgresql://host/db"), is_url("runs/replay.sqlite")
        (True, False)
    """
    return isinstance(place, str) and "://" in place


def is_memory_url(url: str) -> bool:
    """Return True for the URL of a SQLite database that exists in this process only.

    Example:
        >>> is_memory_url("sqlite://"), is_memory_url("sqlite:///replay.sqlite")
        (True, False)
    """
    scheme, _, rest = url.partition("://")
    is_sqlite = scheme.partition("+")[0] == "sqlite"
    return is_sqlite and rest.partition("?")[0] in ("", "/", "/:memory:")


def full_path(path: str | Path) -> Path:
    """Return a path in full, so that it is the same for every process that receives it."""
    return Path(path).expanduser().absolute()


def file_url(path: str | Path) -> str:
    """Return the URL of a SQLite file.

    Example:
        >>> file_url("/data/replay.sqlite")
        'sqlite:////data/replay.sqlite'
    """
    return f"sqlite:///{full_path(path)}"
