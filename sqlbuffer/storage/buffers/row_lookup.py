"""Rows of a buffer by their numbers."""

from typing import Any

from sqlalchemy import Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement


class has_key(FunctionElement[bool]):
    """Whether a row of `experiences` is one of a buffer's numbers: `has_key(buffer_id, seqs)`.

    PostgreSQL without statistics takes a buffer for a few rows and would rather read all of them;
    so each number is looked up alone, by the primary key, and the rows are fetched by their place.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


@compiles(has_key, "postgresql")
def _pg_has_key(element: has_key, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = (compiler.process(clause, **kw) for clause in element.clauses)
    its_place = (
        f"SELECT ctid FROM experiences WHERE buffer_id = {buffer_id} AND seq = k.seq LIMIT 1"
    )
    numbers = f"CAST({seqs} AS bigint[])"
    places = f"SELECT e.ctid FROM unnest({numbers}) AS k(seq) CROSS JOIN LATERAL ({its_place}) AS e"
    return f"experiences.ctid = ANY (ARRAY({places}))"


@compiles(has_key, "sqlite")
def _sqlite_has_key(element: has_key, compiler: Any, **kw: Any) -> str:
    buffer_id, seqs = (compiler.process(clause, **kw) for clause in element.clauses)
    return (
        f"experiences.buffer_id = {buffer_id} "
        f"AND experiences.seq IN (SELECT value FROM json_each({seqs}))"
    )
