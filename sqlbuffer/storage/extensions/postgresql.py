"""Find rows by id on PostgreSQL."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import id_array

# One by one: without statistics the server would search all rows of the buffer for a list.
_SEQS_OF_IDS = (
    "SELECT g.id, e.seq FROM unnest(%s::text[]) AS g(id) CROSS JOIN LATERAL "
    "(SELECT x.seq FROM experiences x WHERE x.buffer_id = %s AND x.id = g.id OFFSET 0) e"
)


def seqs_of_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the rows with one of the ids."""
    return dict(driver_of(connection).execute(_SEQS_OF_IDS, (id_array(ids), buffer_id)))
