"""The schema of a database, as the command line shows and changes it."""

from dataclasses import dataclass

from sqlalchemy import Engine, text
from sqlalchemy.engine import URL

from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.sqlite import existing_file, refuse_memory
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.migrations import migrate


@dataclass(frozen=True)
class SchemaStatus:
    """The state of a database's schema.

    Attributes:
        url: The database, with its password hidden.
        revision: Its revision; None without a schema.
        head: The revision that this package works with.
    """

    url: str
    revision: str | None
    head: str


def script(dialect: str) -> str:
    """Return the SQL that creates the schema in an empty database of a kind."""
    return migrate.sql(dialect)


def script_for(url: str | None) -> str:
    """Return the SQL that upgrades a database to this package's schema; empty at head.

    Raises:
        SchemaTooNewError: The schema is of a later release.
        StorageUnreachableError: No such file, or no server.
    """
    resolved, engine = _open_existing(url)
    with translated(resolved), reading(engine) as connection:
        revision = migrate.current(connection)
        if revision is not None and not migrate.is_older(revision):
            migrate.check(connection, resolved, revision)
            return ""
    return migrate.sql(engine.dialect.name, revision)


@dataclass(frozen=True)
class Server:
    """The server or library that holds a database.

    Attributes:
        version: Its name and version.
        size_bytes: Size of the database on disk.
    """

    version: str
    size_bytes: int


def status(url: str | None) -> SchemaStatus:
    """Return the state of the schema, without creating it.

    Raises:
        StorageUnreachableError: No such file, or no server.
    """
    resolved, engine = _open_existing(url)
    with translated(resolved), reading(engine) as connection:
        revision = migrate.current(connection)
    return SchemaStatus(shown_url(resolved), revision, migrate.HEAD)


def check(url: str | None) -> SchemaStatus:
    """Return the state of the schema, or raise an error unless the package can use it.

    Nothing is created.

    Raises:
        SchemaMissingError, SchemaOutdatedError, SchemaTooNewError: See `migrate.check`.
        StorageUnreachableError: No such file, or no server.
    """
    resolved, engine = _open_existing(url)
    with translated(resolved), reading(engine) as connection:
        revision = migrate.current(connection)
        migrate.check(connection, resolved, revision)
    return SchemaStatus(shown_url(resolved), revision, migrate.HEAD)


def create(url: str | None) -> bool:
    """Create the schema if it is missing; return False if it exists.

    Raises:
        SchemaOutdatedError, SchemaTooNewError: There is a schema of another release.
    """
    resolved = resolve_url(url)
    refuse_memory(resolved)
    engine = engine_for(resolved)
    with translated(resolved), reading(engine) as connection:
        revision = migrate.current(connection)
        if revision is not None:
            migrate.check(connection, resolved, revision)
            return False
    migrate.upgrade(engine)
    return True


def upgrade(url: str | None) -> bool:
    """Upgrade an older schema; return False if it is already the package's.

    Raises:
        SchemaMissingError: There is no schema to upgrade.
        SchemaTooNewError: The schema is of a later release.
        StorageUnreachableError: No such file, or no server.
    """
    resolved, engine = _open_existing(url)
    with translated(resolved), reading(engine) as connection:
        revision = migrate.current(connection)
        if revision is None or not migrate.is_older(revision):
            migrate.check(connection, resolved, revision)
            return False
    migrate.upgrade(engine)
    return True


def server(url: str | None) -> Server:
    """Return the server or library that holds the database.

    Raises:
        StorageUnreachableError: No such file, or no server.
    """
    resolved, engine = _open_existing(url)
    with translated(resolved), reading(engine) as connection:
        version = ".".join(map(str, connection.dialect.server_version_info or ()))
        if connection.dialect.name == "sqlite":
            path = existing_file(resolved)
            files = [path, path.with_name(f"{path.name}-wal")]
            return Server(
                f"SQLite {version}", sum(file.stat().st_size for file in files if file.exists())
            )
        size = connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one()
        return Server(f"PostgreSQL {version}", size)


def _open_existing(url: str | None) -> tuple[URL, Engine]:
    resolved = resolve_url(url)
    if resolved.get_backend_name() == "sqlite":
        existing_file(resolved)
    return resolved, engine_for(resolved)
