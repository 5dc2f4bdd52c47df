"""Deletes rows, many of them in statements of a limited size."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, update

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import postgresql, sqlite, statements

ROWS_AT_ONCE = 10_000

remove_rows = by_database(sqlite=sqlite.remove_rows, postgresql=postgresql.remove_rows)


def remove_where(
    connection: Connection,
    buffer_id: int,
    *conditions: Any,
    seq: Any = experiences.c.seq,
    origin: str | None = None,
) -> int:
    """Delete the rows of a buffer that match, with what the narrow tables hold of them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        conditions: Which rows; none is all.
        seq: What to go by; see `statements.seq_for`.
        origin: The opener that deletes them; see `OpenBuffer.origin`.

    Returns:
        How many rows there were.
    """
    removed = 0
    chunk = (
        statements.seqs(experiences.c.buffer_id == buffer_id)
        .where(*conditions)
        .order_by(seq)
        .limit(ROWS_AT_ONCE)
    )
    while seqs := list(connection.execute(chunk).scalars()):
        removed += remove_rows(connection, buffer_id, seqs, origin)
    return removed


def remove_counted(
    connection: Connection, buffer: OpenBuffer, seqs: Sequence[int], cause: str
) -> int:
    """Delete rows by key, and count them in the buffer's column for the cause.

    Returns:
        How many rows there were.
    """
    if not seqs:
        return 0
    buffer.note_deletion(connection)
    n_removed = remove_rows(connection, buffer.info.id, seqs, buffer.origin)
    counted = {cause: buffers.c[cause] + n_removed}
    connection.execute(update(buffers).where(buffers.c.id == buffer.info.id).values(counted))
    return n_removed
