"""Log changes of stored rows for the followers of a buffer.

An entry names the changed rows and the kind of change, but no value: a follower reads the values in
the snapshot that shows it the entry. Eviction by row has no entries: the window shows it.
"""

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import Connection, Text, bindparam, cast, insert

from sqlbuffer.storage.changes.tables import change_log
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.metadata import SEQS, UUID

Kind = Literal["deleted", "quarantined", "labelled", "replaced"]

# Maximum number of rows that an entry names.
ROWS_AN_ENTRY = 10_000
_LOG = insert(change_log).values(
    buffer_id=bindparam("of_buffer", type_=change_log.c.buffer_id.type),
    kind=bindparam("kind", type_=Text()),
    origin=bindparam("origin", type_=UUID),
    seqs=cast(bindparam("seqs", type_=SeqList()), SEQS),
)


def log_change(
    connection: Connection,
    buffer_id: int,
    kind: Kind,
    seqs: Sequence[int],
    origin: str | None = None,
) -> None:
    """Log that rows were changed, in the transaction that changes them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        kind: Kind of change. Releases from quarantine are "quarantined" as well.
        seqs: The rows; may contain rows that the buffer does not hold.
        origin: The opener that changes them; see `OpenBuffer.origin`.
    """
    entries = [
        {
            "of_buffer": buffer_id,
            "kind": kind,
            "origin": origin,
            "seqs": seqs[start : start + ROWS_AN_ENTRY],
        }
        for start in range(0, len(seqs), ROWS_AN_ENTRY)
    ]
    if entries:
        connection.execute(_LOG, entries)
