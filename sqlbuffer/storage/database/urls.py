"""What database URLs name, and how messages may show them."""

from pathlib import Path
from urllib.parse import parse_qs

from sqlalchemy import Engine
from sqlalchemy.engine import URL

# What a caller may give: a URL, an engine, or None for the default.
Database = str | URL | Engine | None

_SECRETS = ("password", "passfile", "sslpassword")


def shown_url(url: URL) -> str:
    """Return a URL without its passwords and its driver: as other programs take it too."""
    shown = url.set(drivername=url.get_backend_name()).difference_update_query(_SECRETS)
    return shown._replace(password=None).render_as_string()


def sqlite_path(url: URL) -> Path:
    """Return the file that a resolved SQLite URL names."""
    return Path((url.database or "").removeprefix("file:").partition("?")[0])


def is_immutable(url: URL) -> bool:
    """Return whether a SQLite URL that the driver takes has the file read without its log."""
    options = parse_qs((url.database or "").partition("?")[2])
    return options.get("immutable", ["0"])[-1].lower() in ("1", "on", "true", "yes")


def unread_log(url: URL) -> str:
    """Return what to do about rows that only the log of a SQLite file holds; empty: none."""
    log = Path(f"{sqlite_path(url)}-wal")
    if not (log.is_file() and log.stat().st_size):
        return ""
    move = f"sqlite3.connect({str(sqlite_path(url))!r}).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
    return (
        f"{log.name} holds rows that are not in the file yet; move them where the file may be "
        f'written: `python -c "import sqlite3; {move}"`'
    )
