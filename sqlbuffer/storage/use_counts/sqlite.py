"""Count uses of rows on SQLite."""

import json
from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.database.wal import checkpoint_rarely


def claim_uses(
    connection: Connection, buffer_id: int, seqs: Sequence[int], max_use: int
) -> set[int]:
    """Count a use of each of different rows that has fewer than `max_use`; return these rows."""
    statement = (
        "INSERT INTO uses (buffer_id, seq, n_uses) "
        "SELECT ?, value, 1 FROM json_each(?) WHERE true "
        "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = n_uses + 1 "
        "WHERE uses.n_uses < ? RETURNING seq"
    )
    checkpoint_rarely(connection)
    values = (buffer_id, json.dumps(list(seqs)), max_use)
    return {seq for (seq,) in driver_of(connection).execute(statement, values).fetchall()}


def return_uses(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    """Undo a use of each of different rows."""
    connection.exec_driver_sql(
        "UPDATE uses SET n_uses = n_uses - 1 WHERE buffer_id = ? AND n_uses > 0 "
        "AND seq IN (SELECT value FROM json_each(?))",
        (buffer_id, json.dumps(list(seqs))),
    )


def add_uses(connection: Connection, buffer_id: int, counts: Mapping[int, int]) -> dict[int, int]:
    """Add uses to rows, {seq: uses}; return the current uses of each row."""
    statement = (
        "INSERT INTO uses (buffer_id, seq, n_uses) "
        "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]') FROM json_each(?) "
        "WHERE true ON CONFLICT (buffer_id, seq) DO UPDATE "
        "SET n_uses = n_uses + excluded.n_uses RETURNING seq, n_uses"
    )
    values = (buffer_id, json.dumps(sorted(counts.items())))
    return dict(driver_of(connection).execute(statement, values).fetchall())


def uses_of(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> dict[int, int]:
    """Return the uses of the given rows that have any."""
    statement = (
        "SELECT u.seq, u.n_uses FROM json_each(?) j "
        "CROSS JOIN uses u ON u.buffer_id = ? AND u.seq = j.value"
    )
    values = (json.dumps(list(seqs)), buffer_id)
    return dict(driver_of(connection).execute(statement, values).fetchall())
