"""Count uses of rows on PostgreSQL."""

from collections.abc import Mapping, Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import number_array


def claim_uses(
    connection: Connection, buffer_id: int, seqs: Sequence[int], max_use: int
) -> set[int]:
    """Count a use of each of different rows that has fewer than `max_use`; return these rows.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The rows, in ascending order.
        max_use: The limit.
    """
    # Mostly all rows are counted, and then the server sends no list.
    statement = (
        "WITH claimed AS (INSERT INTO uses (buffer_id, seq, n_uses) "
        "SELECT %s::integer, s, 1 FROM unnest(%s::bigint[]) AS s "
        "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = uses.n_uses + 1 "
        "WHERE uses.n_uses < %s::integer RETURNING seq) "
        "SELECT CASE WHEN count(*) < %s::bigint THEN coalesce(array_agg(seq), '{}') END "
        "FROM claimed"
    )
    values = (buffer_id, number_array(seqs), max_use, len(seqs))
    ((found,),) = driver_of(connection).execute(statement, values)
    return set(seqs if found is None else found)


def return_uses(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> None:
    """Undo a use of each of different rows."""
    # Locked in ascending order, as by claims.
    statement = (
        "WITH held AS MATERIALIZED (SELECT buffer_id, seq FROM uses WHERE buffer_id = %s "
        "AND seq = ANY (%s::bigint[]) ORDER BY seq FOR UPDATE) "
        "UPDATE uses u SET n_uses = u.n_uses - 1 FROM held "
        "WHERE u.buffer_id = held.buffer_id AND u.seq = held.seq AND u.n_uses > 0"
    )
    driver_of(connection).execute(statement, (buffer_id, number_array(seqs)))


def add_uses(connection: Connection, buffer_id: int, counts: Mapping[int, int]) -> dict[int, int]:
    """Add uses to rows, {seq: uses}; return the current uses of each row."""
    statement = (
        "INSERT INTO uses (buffer_id, seq, n_uses) SELECT %s::integer, s, n "
        "FROM unnest(%s::bigint[], %s::integer[]) AS g(s, n) ORDER BY s "
        "ON CONFLICT (buffer_id, seq) DO UPDATE SET n_uses = uses.n_uses + excluded.n_uses "
        "RETURNING seq, n_uses"
    )
    values = (buffer_id, number_array(counts.keys()), number_array(counts.values()))
    return dict(driver_of(connection).execute(statement, values))


def uses_of(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> dict[int, int]:
    """Return the uses of the given rows that have any."""
    statement = (
        "SELECT u.seq, u.n_uses FROM unnest(%s::bigint[]) AS g(seq) CROSS JOIN LATERAL "
        "(SELECT * FROM uses u WHERE u.buffer_id = %s AND u.seq = g.seq OFFSET 0) u"
    )
    return dict(driver_of(connection).execute(statement, (number_array(seqs), buffer_id)))
