"""Read the revision of a database's schema, migrate it, and create it in a new one."""

import io
import logging
import os
import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Engine, inspect, select, text
from sqlalchemy.engine import URL

from sqlbuffer.errors import (
    UPGRADE,
    BufferNotFoundError,
    NamesTakenError,
    SchemaMissingError,
    SchemaOutdatedError,
    SchemaTooNewError,
)
from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.database.engine import (
    SQLITE_FILE_PRAGMAS,
    close_idle,
    engine_for,
    resolve_url,
)
from sqlbuffer.storage.database.errors import retried, translated
from sqlbuffer.storage.database.transactions import BEGIN, Begin, reading
from sqlbuffer.storage.database.urls import Database, is_memory, shown_url
from sqlbuffer.storage.database.writer_lock import lock_path, writer_lock
from sqlbuffer.storage.migrations import required_features
from sqlbuffer.storage.migrations.required_features import check_postgresql
from sqlbuffer.storage.schema.metadata import schema_info

if TYPE_CHECKING:
    from alembic.config import Config

# Oldest first; a test compares them with the scripts.
REVISIONS = ("0001",)
FIRST = REVISIONS[0]
HEAD = REVISIONS[-1]
VERSION_TABLE = "sqlbuffer_alembic_version"
_MIGRATION_LOCK = 7_239_471_001  # any number that is the same in every process
LOCK_TIMEOUT_S = 120.0
_CREATED = re.compile(r"^CREATE (?:TABLE|VIEW) \"?(\w+)", re.MULTILINE)
logger = logging.getLogger("sqlbuffer")
_alembic_lock = ForkLock()  # Alembic keeps its context in module globals


def current(connection: Connection) -> str | None:
    """Return the revision of the database; None without a schema."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar_one_or_none()


def check(connection: Connection, url: URL, revision: str | None) -> None:
    """Raise an error unless this package can use the schema.

    It can use its own revision, or a later one that only added to it.

    Args:
        connection: A connection to the database.
        url: Its URL, for messages.
        revision: Its revision, see `current`.

    Raises:
        SchemaMissingError: No schema; the message has the command that creates one.
        SchemaOutdatedError: An older schema; the message has the command that upgrades it.
        SchemaTooNewError: A schema of a later release that changed objects that this package uses.
    """
    if revision == HEAD:
        return
    shown = shown_url(url)
    if revision is None:
        raise SchemaMissingError(
            f"{shown} has no sqlbuffer schema; run `sqlbuffer db init '{shown}'`, or open it with "
            f"create=True"
        )
    if revision in REVISIONS:
        raise SchemaOutdatedError(
            f"the schema of {shown} is at revision {revision}, this package needs {HEAD}; run "
            f"`sqlbuffer db upgrade '{shown}'`"
        )
    if _min_client(connection) in REVISIONS:
        return
    raise SchemaTooNewError(
        f"the schema of {shown} is at revision {revision}, later than this package knows ({HEAD}); "
        f"run {UPGRADE}"
    )


def is_older(revision: str) -> bool:
    """Return True if a revision comes before that of this package."""
    return revision in REVISIONS[:-1]


def _min_client(connection: Connection) -> str | None:
    """Return the oldest revision whose package may use the schema."""
    if not inspect(connection).has_table(schema_info.name):
        return None
    return connection.execute(select(schema_info.c.min_client)).scalar_one_or_none()


def is_empty(connection: Connection) -> bool:
    """Return True if the database has no table at all."""
    return not inspect(connection).get_table_names()


def upgrade(url: Database, revision: str = "head") -> None:
    """Upgrade a database to a revision, without changing existing data.

    Several processes may call this at the same time.

    Args:
        url: The database.
        revision: `head` or a revision.

    Raises:
        SchemaTooNewError: A schema of a later release.
        UnsupportedDatabaseError: PostgreSQL has no schema yet, and lacks a feature that it needs.
    """
    resolved = resolve_url(url)
    engine = url if isinstance(url, Engine) else engine_for(resolved)
    # The upgrade locks one table after the other, so it and running writers may wait for each
    # other.
    retried(lambda: _upgrade(engine, resolved, revision), 0.0, lambda: None)


def _upgrade(engine: Engine, resolved: URL, revision: str) -> None:
    with (
        translated(resolved),
        writer_lock(lock_path(resolved), LOCK_TIMEOUT_S),
        engine.connect() as connection,
    ):
        if connection.dialect.name == "sqlite":
            _refuse_taken_names(connection, resolved)
            connection.rollback()
            _set_file_pragmas(connection)
        elif current(connection) is None:
            check_postgresql(engine, resolved)
        connection.rollback()
        connection = connection.execution_options(**{BEGIN: Begin(writes=True, patient=True)})
        with connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(
                    text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK}
                )
            revision_before = current(connection)
            if revision_before not in (None, *REVISIONS):
                check(connection, resolved, revision_before)
                return
            if revision_before is None:
                _refuse_taken_names(connection, resolved)
            # Another process was faster. Alembic takes a quarter of a second, for which all would
            # wait.
            if revision_before == HEAD and revision in ("head", HEAD):
                return
            if revision_before is None:
                _create_first(connection)
                if revision == FIRST or (revision, HEAD) == ("head", FIRST):
                    return
            _run_alembic(connection, "upgrade", revision)


def _create_first(connection: Connection) -> None:
    """Create the schema of the first revision, as Alembic does, whose import takes longer."""
    path = script_location() / "versions" / "0001_first_schema.py"
    spec = spec_from_file_location("sqlbuffer_first_schema", path)
    assert spec is not None
    assert spec.loader is not None
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    for statement in (
        f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) NOT NULL, "
        f"CONSTRAINT {VERSION_TABLE}_pkc PRIMARY KEY (version_num))",
        *script.statements(connection.dialect.name),
        f"INSERT INTO {VERSION_TABLE} (version_num) VALUES ('{FIRST}')",
    ):
        connection.exec_driver_sql(statement, execution_options={"no_parameters": True})
    logger.debug("created the schema of revision %s", FIRST)


def _refuse_taken_names(connection: Connection, url: URL) -> None:
    """Raise an error if a database without the schema has tables or views with its names."""
    inspector = inspect(connection)
    present = {*inspector.get_table_names(), *inspector.get_view_names()}
    if not present or VERSION_TABLE in present:
        return
    taken = sorted(present.intersection(_CREATED.findall(sql(connection.dialect.name))))
    if taken:
        raise NamesTakenError(
            f"{shown_url(url)} has tables of another program with names that sqlbuffer needs: "
            f"{', '.join(taken)}; nothing was changed; use another database, or on PostgreSQL "
            f"another schema (the search_path of the role)"
        )


def downgrade(url: Database, revision: str) -> None:
    """Downgrade a database to a revision, or to `base`, without a schema."""
    resolved = resolve_url(url)
    with (
        translated(resolved),
        writer_lock(lock_path(resolved), LOCK_TIMEOUT_S),
        engine_for(resolved).begin() as connection,
    ):
        _run_alembic(connection, "downgrade", revision)


def keep_file_pragmas(connection: Connection) -> None:
    """Set the pragmas of a SQLite file again that a copy by `VACUUM INTO` has lost.

    A file that cannot be written now is not changed.
    """
    if connection.dialect.name != "sqlite" or is_memory(connection.engine.url):
        return
    connection.rollback()
    if connection.connection.cursor().execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        with suppress(sqlite3.DatabaseError):
            _set_file_pragmas(connection)


def _set_file_pragmas(connection: Connection) -> None:
    if connection.dialect.name != "sqlite":
        return
    cursor = connection.connection.cursor()
    for pragma in SQLITE_FILE_PRAGMAS:
        cursor.execute(pragma)
    cursor.close()


def sql(dialect: str, start: str | None = None) -> str:
    """Return the SQL that upgrades a database to the revision of this package; empty at head.

    Args:
        dialect: `sqlite` or `postgresql`.
        start: The revision of the database; None without a schema.
    """
    if start == HEAD:
        return ""
    printed = io.StringIO()
    config = _config(output_buffer=printed)
    config.attributes["dialect"] = dialect
    _command("upgrade", config, f"{start or 'base'}:head", sql=True)
    pragmas = [f"{pragma};\n\n" for pragma in SQLITE_FILE_PRAGMAS if dialect == "sqlite"]
    return "".join([*pragmas, printed.getvalue()])


def _run_alembic(connection: Connection, command: str, revision: str) -> None:
    with _at_debug_level("alembic.runtime.migration", "alembic.runtime.plugins"):
        config = _config()
        config.attributes["connection"] = connection
        _command(command, config, revision)


@contextmanager
def _at_debug_level(*names: str) -> Iterator[None]:
    """Log messages of a normal run at level DEBUG: opening a buffer is not an event."""
    loggers = [logging.getLogger(name) for name in names]

    def demote(record: logging.LogRecord) -> bool:
        if record.levelno == logging.INFO:
            record.levelno, record.levelname = logging.DEBUG, "DEBUG"
        return logging.getLogger(record.name).isEnabledFor(record.levelno)

    for logger in loggers:
        logger.addFilter(demote)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(demote)


def _config(**settings: Any) -> "Config":
    from alembic.config import Config

    config = Config(**settings)
    config.set_main_option("script_location", os.fspath(script_location()).replace("%", "%%"))
    return config


def _command(name: str, config: "Config", revision: str, **options: Any) -> None:
    from alembic import command

    with _alembic_lock:
        getattr(command, name)(config, revision, **options)


def script_location() -> Path:
    """Return the folder of the migration scripts.

    It is inside the installed package, or at the top of a checkout.
    """
    package = Path(__file__).resolve().parents[2]
    installed = package / "migrations"
    return installed if installed.is_dir() else package.parent / "alembic"


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
        revision = current(connection)
        if revision is not None:
            check(connection, url, revision)
            keep_file_pragmas(connection)
            return
        new_file = engine.dialect.name == "sqlite" and create is None and is_empty(connection)
        if not (create or new_file):
            check(connection, url, revision)
    upgrade(engine)


def with_schema(
    url: Database,
    resolved: URL,
    retry_s: float,
    work: Callable[[Engine], T],
) -> T:
    """Return the result of `work`, called with an engine of a database with the schema.

    It is repeated as in `retried`.
    """
    users_engine = url if isinstance(url, Engine) else None

    def attempt() -> T:
        engine = users_engine if users_engine is not None else engine_for(resolved)
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
