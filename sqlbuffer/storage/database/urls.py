"""What database URLs name, and how messages may show them."""

import re
from pathlib import Path
from urllib.parse import parse_qs

from sqlalchemy import Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from sqlbuffer.errors import URLError

# What a caller may give: a URL, an engine, or None for the default.
Database = str | URL | Engine | None

# Also the options of later drivers and of other databases. `sslkey` is the path of a file.
_SECRET = re.compile(r"pass|pwd|secret|token|(?<!ssl)key$", re.IGNORECASE)
_DSN = re.compile(r"\s*[a-z_]+\s*=")
URL_FORMS = "sqlite:///replay.db or postgresql://user@host/database"


def parsed_url(url: str | URL) -> URL:
    """Return the parts of a URL.

    Raises:
        URLError: Not a URL, or one whose password may have been taken for another part. The message
            quotes nothing of it: any part may be the password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, TypeError, ValueError):
        parsed = None
    # Not in the handler: its error quotes the URL, and would stay in the chain.
    if parsed is None:
        if isinstance(url, str) and _DSN.match(url):
            raise URLError(
                "sqlbuffer takes URLs, not connection strings of libpq (`host=... dbname=...`); "
                "write postgresql://user@host/database"
            )
        raise URLError(f"what was given is not a database URL; write {URL_FORMS}")
    if isinstance(url, str) and parsed.get_backend_name() != "sqlite":
        _check_separators(url, parsed)
    return parsed


def _check_separators(text: str, parsed: URL) -> None:
    """Raise if a character of the password may have ended it too early."""
    separators = 0 if parsed.username is None else 1
    if text.count("@") > separators:
        raise URLError(
            "the database URL has an @ in its password or behind its host; write it as %40"
        )
    if any(map(_SECRET.search, (parsed.host or "", parsed.database or ""))) and "=" in text:
        raise URLError(
            "the database URL has options where its host or database belongs; write them behind a "
            "question mark: postgresql://user@host/database?sslmode=require"
        )


def shown_url(url: URL) -> str:
    """Return a URL without its passwords and its driver: as other programs take it too."""
    secrets = [name for name in url.query if _SECRET.search(name)]
    shown = url.set(drivername=url.get_backend_name()).difference_update_query(secrets)
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
