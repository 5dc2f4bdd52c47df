"""The latest number that a buffer has given."""

from typing import Any

from sqlalchemy import BigInteger, Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.schema.compiled_clauses import processed


class last_number(FunctionElement[int]):
    """The latest number that a buffer has given: `last_number(buffer_id)`."""

    inherit_cache = True
    type = BigInteger()


@compiles(last_number, "postgresql")
def _pg_last_number(element: last_number, compiler: Any, **kw: Any) -> str:
    (buffer_id,) = processed(element, compiler, kw)
    last = f"pg_sequence_last_value(to_regclass('sqlbuffer_seq_' || {buffer_id}))"
    # A standby sees up to 32 numbers ahead.
    newest = (
        f"(SELECT e.seq FROM experiences AS e WHERE e.buffer_id = {buffer_id} "
        "ORDER BY e.seq DESC LIMIT 1)"
    )
    on_standby = f"coalesce(greatest({last} - 32, {newest}), 0)"
    return f"CASE WHEN pg_is_in_recovery() THEN {on_standby} ELSE coalesce({last}, 0) END"


class is_standby(FunctionElement[bool]):
    """True if the server is a standby, which accepts no writes."""

    inherit_cache = True
    type = Boolean()


@compiles(is_standby, "postgresql")
def _pg_is_standby(element: is_standby, compiler: Any, **kw: Any) -> str:
    return "pg_is_in_recovery()"


@compiles(is_standby, "sqlite")
def _sqlite_is_standby(element: is_standby, compiler: Any, **kw: Any) -> str:
    return "0"


@compiles(last_number, "sqlite")
def _sqlite_last_number(element: last_number, compiler: Any, **kw: Any) -> str:
    (buffer_id,) = processed(element, compiler, kw)
    return f"(SELECT n.next_seq - 1 FROM buffers AS n WHERE n.id = {buffer_id})"
