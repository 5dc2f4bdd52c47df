"""Find rows by id on SQLite."""

import json
from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of


def seqs_of_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> dict[str, int]:
    """Return the numbers of the rows with one of the ids."""
    statement = (
        "SELECT j.value, e.seq FROM json_each(?) j "
        "CROSS JOIN experiences e ON e.buffer_id = ? AND e.id = j.value"
    )
    values = (json.dumps(list(ids)), buffer_id)
    return dict(driver_of(connection).execute(statement, values).fetchall())
