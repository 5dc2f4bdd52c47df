"""Changes what stored rows hold."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.extensions.slots import postgresql, sqlite
from sqlbuffer.storage.rows.pieces import Columns

_replace = by_database(sqlite=sqlite.replace, postgresql=postgresql.replace)


def replace_payload(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    columns: Columns,
    names: Sequence[str],
) -> int:
    """Change what rows hold, and note in `payload_changes` that they were changed.

    A row is read, changed and written whole: the caller keeps others from doing that meanwhile.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The rows, each once; those that the buffer does not have are left out.
        columns: What they hold from now on; their other columns stay.
        names: The fields that another value was given to, for the note.

    Returns:
        How many rows were changed.
    """
    if not seqs:
        return 0
    return _replace(connection, buffer_id, seqs, columns, ", ".join(names))
