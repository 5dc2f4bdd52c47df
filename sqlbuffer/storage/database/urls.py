"""Database URLs and paths of SQLite files, and their form in messages."""

import os
import re
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from sqlalchemy import Engine
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from sqlbuffer.errors import URLError

# Forms of a database that callers may give: a URL, the path of a SQLite file, an engine, or None
# for the default.
Database = str | os.PathLike[str] | URL | Engine | None

# Also the options of later drivers and of other databases. `sslkey` is the path of a file.
_SECRET = re.compile(r"pass|pwd|secret|token|(?<!ssl)key$", re.IGNORECASE)
_DSN = re.compile(r"\s*[a-z_]+\s*=")
_SURROGATE = re.compile("[\ud800-\udfff]")  # a byte that is not text
URL_FORMS = "./replay.db, sqlite:///replay.db or postgresql://user@host/database"
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|sqlite:")
_SUFFIXES = (".db", ".db3", ".sqlite", ".sqlite3")
_FOLDERS = ("/", "./", "../", "~")
# Parts that the address of a server without its scheme has, but a relative path does not: a user, a
# port, options, or a scheme without its colon.
_OF_SERVERS = re.compile(r"@|^[^/]*:|^\s*[a-z_]+\s*=|^(sqlite|postgres)\w*/")
MAX_URL = 2**16
_MODES = ("ro", "rw", "rwc")
_OPTIONS = frozenset({"mode", "immutable", "uri"})


def key_of(url: URL) -> Hashable:
    """Return a key for a dict; the hash of a URL renders it, which takes ten times as long."""
    return (*url[:-1], frozenset(url.query.items()))


def parsed_url(url: Any) -> URL:
    """Return the parts of a URL.

    Raises:
        URLError: Not a URL, or one whose password may have been taken for another part. The message
            quotes nothing of it: any part may be the password.
    """
    is_short = not isinstance(url, str) or len(url) <= MAX_URL
    try:
        parsed = make_url(url) if isinstance(url, (str, URL)) and is_short else None
    except (ArgumentError, TypeError, ValueError):
        parsed = None
    # Outside the handler: its error quotes the URL, and would stay in the chain.
    if parsed is None:
        if isinstance(url, str) and is_short and _DSN.match(url):
            raise URLError(
                "sqlbuffer takes URLs, not connection strings of libpq (`host=... dbname=...`); "
                "write postgresql://user@host/database"
            )
        raise URLError(
            f"the value is not a database; write the path of a file or a URL: {URL_FORMS}"
        )
    if isinstance(url, str) and parsed.get_backend_name() != "sqlite":
        _check_separators(url, parsed)
    return parsed


def check_characters(url: URL) -> None:
    """Raise an error if a part of the URL is not text, such as bytes from the environment.

    Raises:
        URLError: A part is not text; the message quotes nothing of it.
    """
    options = (text for pair in url.normalized_query.items() for text in (pair[0], *pair[1]))
    parts = (url.username, url.password, url.host, url.database, *options)
    if any(_SURROGATE.search(part) for part in map(str, parts)):
        raise URLError(
            "the database URL or path has bytes that are not UTF-8; rename the file, or write the "
            "characters of a password in UTF-8 as %XX"
        )


def _check_separators(text: str, parsed: URL) -> None:
    """Raise an error if a character of the password may have ended it too early."""
    separators = 0 if parsed.username is None else 1
    if text.count("@") > separators:
        raise URLError(
            "the database URL has an @ in its password or behind its host; write it as %40"
        )
    if parsed.password == "" and parsed.host and not (parsed.database or parsed.port):
        raise URLError(
            "the database URL has an empty password and ends behind its host; leave out the colon, "
            "or write the password before the @: postgresql://user@host/database"
        )
    if any(map(_SECRET.search, (parsed.host or "", parsed.database or ""))) and "=" in text:
        raise URLError(
            "the database URL has options where its host or database belongs; write them behind a "
            "question mark: postgresql://user@host/database?sslmode=require"
        )


def is_database(word: str) -> bool:
    """Return True if a single word names a database.

    It is `scheme://...`, an existing file, or a path that looks like one of a database. A relative
    path without a suffix, such as `runs/7`, may mean another thing.
    """
    if _SCHEME.match(word):
        return True
    if "\0" in word or len(word) > 4096:
        return False
    if word.startswith("//") and "@" in word:  # a URL that lost its scheme, with a password
        return False
    if word in (".", "..") or word.startswith(_FOLDERS):
        return True
    if word.endswith((*_SUFFIXES, "/")) and not _OF_SERVERS.search(word):
        return True
    try:
        return Path(word).is_file()
    except OSError:  # such as a name that is too long
        return False


def url_of_path(value: object) -> URL | None:
    """Return the URL of a SQLite file that is named by its path; None for any other value.

    Raises:
        URLError: The path cannot be written in a URL.
    """
    if isinstance(value, os.PathLike):
        path = os.fspath(value)
        if not isinstance(path, str):
            raise URLError("the path of a SQLite file is text, and this one is bytes; decode it")
    elif isinstance(value, str) and not _SCHEME.match(value) and _is_path(value):
        path = value
    else:
        return None
    if "?" in path:
        raise URLError("a URL cannot hold the question mark of this path; rename the file")
    return URL.create("sqlite", database=path)


def _is_path(text: str) -> bool:
    has_folder = "/" in text and "\0" not in text and not _OF_SERVERS.search(text)
    return has_folder or is_database(text)


def with_options_of_sqlite(url: URL) -> URL:
    """Return the URL of a SQLite file in a form in which the driver reads `mode` and `immutable`.

    Raises:
        URLError: An unknown mode.
    """
    name = url.database or ""
    if name.startswith("file:"):
        return url.update_query_dict({"uri": "true"})
    if not {"mode", "immutable"} & set(url.query):
        return url
    if url.query.get("mode", "rw") not in _MODES:
        raise URLError(f"the mode of a SQLite URL is one of {', '.join(_MODES)}")
    return url.set(database=f"file:{quote(name)}").update_query_dict({"uri": "true"})


def folder_of(url: URL) -> str | None:
    """Return a message for a SQLite URL that names a folder; None if it does not."""
    folder = sqlite_path(url).absolute()
    if not folder.is_dir():
        return None
    names = sorted(os.listdir(folder)) if os.access(folder, os.R_OK) else []
    name_of_file = next((name for name in names if name.endswith(_SUFFIXES)), "replay.db")
    return f"{folder} is a folder; name a database in it, such as {folder / name_of_file}"


def shown_url(url: URL) -> str:
    """Return a URL without its passwords and its driver, in a form that other programs take too."""
    secrets = [name for name in url.query if _SECRET.search(name)]
    shown = url.set(drivername=url.get_backend_name()).difference_update_query(secrets)
    name = shown.database or ""
    if shown.drivername == "sqlite" and name.startswith("file:") and set(shown.query) <= _OPTIONS:
        shown = shown.set(database=str(sqlite_path(url))).difference_update_query(["uri"])
    return shown._replace(password=None).render_as_string()


def sqlite_path(url: URL) -> Path:
    """Return the file that a resolved SQLite URL names."""
    return path_of_database(url.database or "")


def path_of_database(name: str) -> Path:
    """Return the file that the database of a resolved SQLite URL names."""
    if not name.startswith("file:"):
        return Path(name.partition("?")[0])
    return Path(unquote(name.removeprefix("file:").partition("?")[0]))


def is_memory(url: URL) -> bool:
    """Return True if the URL names a SQLite database that exists in this process only."""
    return url.get_backend_name() == "sqlite" and (url.database in (None, "", ":memory:"))


def is_immutable(url: URL) -> bool:
    """Return True if a SQLite URL makes the driver read the file without its log.

    The URL may be resolved, or in the driver's form.
    """
    options = _options_of_sqlite(url)
    return options.get("immutable", ["0"])[-1].lower() in ("1", "on", "true", "yes")


def is_read_only(url: URL) -> bool:
    """Return True if a SQLite URL opens the file only for reading; see `is_immutable`."""
    return is_immutable(url) or _options_of_sqlite(url).get("mode", ["rw"])[-1] == "ro"


def _options_of_sqlite(url: URL) -> dict[str, Sequence[str]]:
    return {**parse_qs((url.database or "").partition("?")[2]), **url.normalized_query}


def unread_log(url: URL) -> str:
    """Return advice about rows that only the log of a SQLite file holds; empty if none are."""
    log = Path(f"{sqlite_path(url)}-wal")
    if not (log.is_file() and log.stat().st_size):
        return ""
    move = f"sqlite3.connect({str(sqlite_path(url))!r}).execute('PRAGMA wal_checkpoint(TRUNCATE)')"
    return (
        f"{log.name} holds rows that are not in the file yet; move them where the file may be "
        f'written: `python -c "import sqlite3; {move}"`'
    )
