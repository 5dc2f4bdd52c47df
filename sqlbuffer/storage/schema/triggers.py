"""Triggers, functions and views: one SQL file each, with its version in its name, never edited once
released.
"""

import re
from importlib import resources

from sqlalchemy import Connection, text

_TRIGGER_TABLES = {
    "trg_buffers_": "buffers",
    "trg_new_": "new_experiences",
    "trg_experiences_": "experiences",
    "trg_episodes_": "episodes",
}
# A colon that `text` would take for the beginning of a parameter.
_WORD_AFTER_COLON = re.compile(r"(?<![:\w\\]):(?=\w)")
# sqlbuffer_number_v1 is for every reader; the others write with their owner's rights.
_PUBLIC_FUNCTIONS = ("sqlbuffer_number_v1",)


def body(dialect: str, name: str) -> str:
    """Return the SQL text of an object."""
    return (
        resources.files("sqlbuffer.storage.schema") / "sql" / dialect / f"{name}.sql"
    ).read_text(encoding="utf-8")


def create_objects(connection: Connection, names: tuple[str, ...]) -> None:
    """Create objects in order; on PostgreSQL their functions are bound to the current schema."""
    dialect = connection.dialect.name
    if dialect == "postgresql":
        connection.execute(
            text(
                "SELECT set_config('search_path', quote_ident(current_schema()) || ', pg_temp', "
                "true)"
            )
        )
    for name in names:
        # `text`, since it is all that Alembic's connection takes when it prints the SQL instead.
        connection.execute(text(_WORD_AFTER_COLON.sub(r"\:", body(dialect, name))))
        if (
            dialect == "postgresql"
            and name.startswith("sqlbuffer_")
            and name not in _PUBLIC_FUNCTIONS
        ):
            connection.execute(text(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC"))


def drop_objects(connection: Connection, names: tuple[str, ...]) -> None:
    """Drop objects, last first."""
    dialect = connection.dialect.name
    for name in reversed(names):
        connection.exec_driver_sql(_drop_statement(dialect, name))


def _drop_statement(dialect: str, name: str) -> str:
    if name.startswith("trg_"):
        table = next(table for prefix, table in _TRIGGER_TABLES.items() if name.startswith(prefix))
        return f"DROP TRIGGER {name}" + (f" ON {table}" if dialect == "postgresql" else "")
    if name.startswith("sqlbuffer_"):
        return f"DROP FUNCTION {name}"
    return f"DROP VIEW {name.removesuffix('_v1')}"
