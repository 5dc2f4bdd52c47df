"""Delete many rows in statements of a limited size."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from sqlalchemy import BigInteger, Connection, bindparam, func, select, update

from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import postgresql, sqlite, statements

ROWS_AT_ONCE = 10_000

_SEQ = bindparam("seq", type_=BigInteger())
_LAST_CHUNK = select(func.max(chunks.c.first_seq)).where(
    chunks.c.buffer_id == bindparam("of_buffer"),
    chunks.c.first_seq.between(_SEQ - MOST_STEPS + 1, _SEQ),
)

remove_rows = by_database(sqlite=sqlite.remove_rows, postgresql=postgresql.remove_rows)


def remove_where(
    connection: Connection,
    buffer_id: int,
    *conditions: Any,
    steps: Any = experiences,
    node: Node = EVERYTHING,
    origin: str | None = None,
) -> int:
    """Delete the rows of a buffer that match, with their rows in the narrow tables.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        conditions: Conditions that rows must match; none for all rows.
        steps: The table of steps that they are over.
        node: The condition among them that decides on the order; see `statements.in_order`.
        origin: The opener that deletes them; see `OpenBuffer.origin`.

    Returns:
        Number of rows that existed.
    """
    removed = 0
    matching = (
        select(steps.c.seq)
        .where(steps.c.buffer_id == buffer_id, *conditions)
        .order_by(*statements.in_order(node, steps))
        .limit(ROWS_AT_ONCE)
    )
    while seqs := list(connection.execute(matching).scalars()):
        if len(seqs) == ROWS_AT_ONCE:
            seqs = _whole_chunks(connection, buffer_id, seqs)
        removed += remove_rows(connection, buffer_id, seqs, origin)
    return removed


def _whole_chunks(connection: Connection, buffer_id: int, seqs: list[int]) -> list[int]:
    """Leave out the last chunk.

    A chunk that is deleted in two parts is noted step by step, which takes space on a disk that may
    be full.
    """
    given = {"of_buffer": buffer_id, "seq": seqs[-1]}
    first = connection.execute(_LAST_CHUNK, given).scalar()
    return seqs[: bisect_left(seqs, first)] if first is not None and first > seqs[0] else seqs


def remove_counted(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int], cause: str
) -> int:
    """Delete rows by key, and count them in the buffer's column for the cause.

    Returns:
        Number of rows that existed.
    """
    if not seqs:
        return 0
    buffer.note_deletion(connection)
    n_removed = remove_rows(connection, buffer.info.id, seqs, buffer.origin)
    counted = {cause: buffers.c[cause] + n_removed}
    connection.execute(update(buffers).where(buffers.c.id == buffer.info.id).values(counted))
    return n_removed
