"""The one way to change what a stored row holds; `compat` alone goes it."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.dialects.base import Dialect
from sqlbuffer.storage.rows.pieces import Columns


def replace_payload(
    connection: Connection,
    dialect: Dialect,
    buffer_id: int,
    seqs: Sequence[int],
    columns: Columns,
    names: Sequence[str],
) -> int:
    """Change what rows hold, and note in `payload_changes` that they were changed.

    A row is read, changed and written whole: the caller keeps others from doing that meanwhile.

    Args:
        connection: The transaction.
        dialect: Its database's operations.
        buffer_id: The buffer.
        seqs: The rows, each once; those that the buffer does not have are left out.
        columns: What they hold from now on; their other columns stay.
        names: The fields that another value was given to, for the note.

    Returns:
        How many rows were changed.
    """
    if not seqs:
        return 0
    return dialect.replace(connection, buffer_id, seqs, columns, ", ".join(names))
