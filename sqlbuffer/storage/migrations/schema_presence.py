"""Check that databases have the schema, and create it in a new one."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Engine
from sqlalchemy.engine import URL

from sqlbuffer.errors import BufferNotFoundError
from sqlbuffer.storage.database.engine import (
    close_idle,
    engine_for,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.database.urls import Database, is_memory
from sqlbuffer.storage.migrations import migrate, required_features

T = TypeVar("T")


def ensure_schema(engine: Engine, url: URL, create: bool | None) -> None:
    """Check that the schema is the package's; create it in a new SQLite database.

    In other databases it is created only on request.

    Args:
        engine: The engine.
        url: Its resolved URL.
        create: True creates a missing schema, False never does, None does in a SQLite database
            without any table.

    Raises:
        SchemaMissingError, SchemaOutdatedError, SchemaTooNewError: See `migrate.check`.
        UnsupportedDatabaseError: The database lacks a feature: one that each opening needs, or one
            that the schema needs and that would be created.
    """
    if url.get_backend_name() == "sqlite" and not is_memory(url) and create is False:
        _want_file(url)
    with translated(url), reading(engine) as connection:
        if engine.dialect.name == "sqlite":
            required_features.check_sqlite(connection, url)
        else:
            required_features.check_first_opening(connection, url)
        revision = migrate.current(connection)
        if revision is not None:
            migrate.check(connection, url, revision)
            migrate.keep_file_pragmas(connection)
            return
        new_file = (
            engine.dialect.name == "sqlite" and create is None and migrate.is_empty(connection)
        )
        if not (create or new_file):
            migrate.check(connection, url, revision)
    migrate.upgrade(engine)


def with_schema(
    url: Database,
    resolved: URL,
    retry_s: float,
    work: Callable[[Engine], T],
) -> T:
    """Return the result of `work`, called with an engine of a database with the schema.

    It is repeated as in `retried`.
    """
    own = url if isinstance(url, Engine) else None

    def attempt() -> T:
        engine = own if own is not None else engine_for(resolved)
        ensure_schema(engine, resolved, create=False)
        return work(engine)

    return retried(attempt, retry_s, lambda: close_idle(resolved))


def _want_file(url: URL) -> None:
    name = url.database or ""
    if not name.startswith("file:") and not os.path.exists(name):
        raise BufferNotFoundError(
            f"there is no file {Path(name)}; check the path, or create it by opening it with "
            f"create=True"
        )
