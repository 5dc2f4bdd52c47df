"""Deletes rows, many of them in statements of a limited size."""

from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.rows import postgresql, sqlite, statements
from sqlbuffer.storage.rows.tables import experiences

ROWS_AT_ONCE = 10_000

remove_rows = by_database(sqlite=sqlite.remove_rows, postgresql=postgresql.remove_rows)


def remove_where(
    connection: Connection,
    buffer_id: int,
    *conditions: Any,
    seq: Any = experiences.c.seq,
) -> int:
    """Delete the rows of a buffer that match, with what the narrow tables hold of them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        conditions: Which rows; none is all.
        seq: What to go by; see `statements.seq_for`.

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
        removed += remove_rows(connection, buffer_id, seqs)
    return removed
