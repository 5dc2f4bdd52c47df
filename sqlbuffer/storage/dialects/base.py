"""Which operations a database has."""

from sqlalchemy import Engine

from sqlbuffer.storage.dialects.postgresql import PostgreSQL
from sqlbuffer.storage.dialects.sqlite import SQLite

Dialect = SQLite | PostgreSQL
_DIALECTS: dict[str, type[SQLite] | type[PostgreSQL]] = {"sqlite": SQLite, "postgresql": PostgreSQL}


def dialect_for(engine: Engine) -> Dialect:
    """Return the operations of the engine's database."""
    return _DIALECTS[engine.dialect.name]()
