"""Find the chunks that may have a step with one of some ids or numbers.

The view shows ids and numbers that no index knows. An id is the user's own (`step_ids`), or
`<chunk>/<place>`.
"""

from typing import Any

from sqlalchemy import Boolean
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.storage.chunks.tables import MOST_STEPS
from sqlbuffer.storage.schema.compiled_clauses import processed


class may_have_id(FunctionElement[bool]):
    """True if a chunk may have a step of an id: `may_have_id(first_seq, buffer_id, id)`."""

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


class may_have_ids(may_have_id):
    """True if a chunk may have a step of several ids: `may_have_ids(first_seq, buffer_id, ids)`."""

    inherit_cache = True


class may_have_seqs(FunctionElement[bool]):
    """True if a chunk may have a step of some numbers.

    The arguments are `may_have_seqs(first_seq, buffer_id, seqs)`.
    """

    inherit_cache = True
    type = Boolean()
    _is_implicitly_boolean = True


def pg_chunk_of(chunk: str, buffer_id: str, seq: str) -> str:
    """Return the end of a query that finds the chunk of a step, from WHERE on.

    It names a range of one buffer, in order: only the primary key gives that. For an equal buffer,
    PostgreSQL expects one row, takes any index that begins with the buffer, and may read all of its
    chunks: of 300 chunks, each step of a batch.

    Args:
        chunk: Name of the chunks in the query.
        buffer_id: The buffer.
        seq: Number of the step.
    """
    return f"""WHERE {chunk}.buffer_id >= {buffer_id} AND {chunk}.buffer_id <= {buffer_id}
        AND {chunk}.first_seq <= {seq} AND {chunk}.first_seq > {seq} - {MOST_STEPS}
        ORDER BY {chunk}.buffer_id DESC, {chunk}.first_seq DESC LIMIT 1"""


@compiles(may_have_seqs, "postgresql")
def _pg_may_have_seqs(element: may_have_seqs, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, seqs = processed(element, compiler, kw)
    return f"""{first_seq} = ANY (ARRAY(
        SELECT k.first_seq FROM unnest(CAST({seqs} AS bigint[])) AS w(seq) CROSS JOIN LATERAL (
            SELECT x.first_seq FROM chunks x {pg_chunk_of("x", buffer_id, "greatest(w.seq, 0)")}
        ) AS k))"""


@compiles(may_have_seqs, "sqlite")
def _sqlite_may_have_seqs(element: may_have_seqs, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, seqs = processed(element, compiler, kw)
    return f"""{first_seq} IN (
        SELECT (SELECT max(k.first_seq) FROM chunks k
            WHERE k.buffer_id = {buffer_id} AND k.first_seq <= w.value)
        FROM json_each({seqs}) w)"""


@compiles(may_have_id, "postgresql")
def _pg_may_have_id(element: may_have_id, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, ids = processed(element, compiler, kw)
    listed = ids if isinstance(element, may_have_ids) else f"ARRAY[{ids}]"
    return f"""{first_seq} = ANY (ARRAY(
        WITH g AS MATERIALIZED (
            SELECT id, regexp_replace(id, '/[0-9]+$', '') AS head
            FROM unnest(CAST({listed} AS text[])) AS u(id))
        SELECT f.first_seq FROM g CROSS JOIN LATERAL (
            SELECT i.seq FROM step_ids i WHERE i.buffer_id = {buffer_id} AND i.id = g.id LIMIT 1
        ) AS i CROSS JOIN LATERAL (
            SELECT k.first_seq FROM chunks k {pg_chunk_of("k", buffer_id, "i.seq")}) AS f
        UNION ALL
        SELECT k.first_seq FROM g CROSS JOIN LATERAL (
            SELECT x.first_seq FROM chunks x WHERE x.buffer_id = {buffer_id} AND x.id = CASE
                WHEN g.head ~ '^[0-9a-f]{{8}}(-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}$'
                THEN g.head::uuid END LIMIT 1) AS k))"""


@compiles(may_have_id, "sqlite")
def _sqlite_may_have_id(element: may_have_id, compiler: Any, **kw: Any) -> str:
    first_seq, buffer_id, ids = processed(element, compiler, kw)
    listed = ids if isinstance(element, may_have_ids) else f"json_array({ids})"
    head = "rtrim(g.value, '0123456789')"
    head = f"substr({head}, 1, length({head}) - 1)"
    # CROSS JOIN keeps SQLite from changing the order of the loops.
    return f"""{first_seq} IN (
        SELECT (SELECT max(k.first_seq) FROM chunks k
            WHERE k.buffer_id = {buffer_id} AND k.first_seq <= i.seq)
        FROM json_each({listed}) g
        CROSS JOIN step_ids i ON i.buffer_id = {buffer_id} AND i.id = g.value
        UNION ALL
        SELECT k.first_seq FROM json_each({listed}) g
        CROSS JOIN chunks k ON k.buffer_id = {buffer_id} AND k.id = {head})"""
