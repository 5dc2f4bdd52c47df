"""Change the contents of stored steps."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.extensions.slots import postgresql, sqlite
from sqlbuffer.storage.rows.pieces import Columns
from sqlbuffer.storage.store import BufferStore

_replace = by_database(sqlite=sqlite.replace, postgresql=postgresql.replace)


def replace_payload(
    connection: Connection,
    store: BufferStore,
    seqs: Sequence[int],
    columns: Columns,
    names: Sequence[str],
) -> None:
    """Change the contents of steps, and record that in `payload_changes` and in the change log.

    A step is read, changed and written whole. The caller reads it in the same transaction, and
    keeps other transactions from changing it.

    Args:
        connection: The transaction.
        store: The buffer.
        seqs: The steps, each once; the buffer has all of them.
        columns: Their new values; their other columns stay.
        names: The changed fields, for the record.
    """
    if seqs:
        info = store.info
        _replace(connection, info.id, seqs, columns, ", ".join(names))
        log_change(connection, info.id, "replaced", seqs, store.origin)
