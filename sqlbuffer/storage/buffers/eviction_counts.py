"""How many steps left a buffer, by hour and reason: a row for each process, so that none is hot."""

from sqlalchemy import BigInteger, Column, Connection, Table, text

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.schema.metadata import KEY, UUID, buffer_key, metadata

_RIGHTS = "INSERT, UPDATE (n_steps), DELETE"

eviction_counts = Table(
    "eviction_counts",
    metadata,
    buffer_key(),
    Column(
        "hour",
        BigInteger,
        primary_key=True,
        autoincrement=False,
        comment="the hour, in hours since 1970",
    ),
    Column("reason", KEY, primary_key=True, comment="why the steps left"),
    Column(
        "writer",
        UUID,
        primary_key=True,
        comment="random id of the opener that counted; zeros: of all, in older hours",
    ),
    Column("n_steps", BigInteger, nullable=False, comment="number of steps"),
    info={"writer_may": _RIGHTS, "learner_may": _RIGHTS},
)

# Counts of hours that have ended are added up, and those of a year ago are deleted.
FOLDED = "00000000-0000-0000-0000-000000000000"
KEPT_HOURS = 24 * 366
_HOUR = {
    "sqlite": "CAST(strftime('%s', 'now') AS INTEGER) / 3600",
    "postgresql": "CAST(floor(extract(epoch FROM clock_timestamp()) / 3600) AS bigint)",
}
_ADD = {
    "sqlite": (
        "INSERT INTO eviction_counts (buffer_id, hour, reason, writer, n_steps) "
        f"VALUES (?, {_HOUR['sqlite']}, ?, ?, ?) ON CONFLICT (buffer_id, hour, reason, writer) "
        "DO UPDATE SET n_steps = eviction_counts.n_steps + excluded.n_steps"
    ),
    "postgresql": "SELECT sqlbuffer_count_evictions_v1(%s::integer, %s, %s::uuid, %s::bigint)",
}
_ENDED = f"buffer_id = :id AND writer <> '{FOLDED}' AND hour < {{}} - 1"
_SUMMED = (
    "INSERT INTO eviction_counts (buffer_id, hour, reason, writer, n_steps) "
    f"SELECT buffer_id, hour, reason, CAST('{FOLDED}' AS {{}}), sum(n_steps) FROM {{}} "
    "GROUP BY buffer_id, hour, reason ON CONFLICT (buffer_id, hour, reason, writer) "
    "DO UPDATE SET n_steps = eviction_counts.n_steps + excluded.n_steps"
)
_TRIM = "DELETE FROM eviction_counts WHERE buffer_id = :id AND hour < {} - " + str(KEPT_HOURS)


def count_evictions(
    connection: Connection, buffer_id: int, writer: str, reason: str, n_steps: int
) -> None:
    """Count steps that left a buffer.

    Args:
        connection: The transaction in which they left.
        buffer_id: The buffer.
        writer: The opener that counts; see `OpenBuffer.origin`.
        reason: Why they left: a word of `v_evictions`.
        n_steps: How many; 0 counts nothing.
    """
    if n_steps > 0:
        values = buffer_id, reason, writer, int(n_steps)
        driver_of(connection).execute(_ADD[connection.dialect.name], values)


def _sqlite_fold(connection: Connection, buffer_id: int) -> None:
    hour = _HOUR["sqlite"]
    ended = _ENDED.format(hour)
    source = f"eviction_counts WHERE {ended}"
    connection.execute(text(_SUMMED.format("text", source)), {"id": buffer_id})
    connection.execute(text(f"DELETE FROM eviction_counts WHERE {ended}"), {"id": buffer_id})
    connection.execute(text(_TRIM.format(hour)), {"id": buffer_id})


def _postgresql_fold(connection: Connection, buffer_id: int) -> None:
    # In one statement: a count that another process adds in between would be lost.
    hour = _HOUR["postgresql"]
    gone = f"WITH gone AS (DELETE FROM eviction_counts WHERE {_ENDED.format(hour)} RETURNING *) "
    connection.execute(text(gone + _SUMMED.format("uuid", "gone")), {"id": buffer_id})
    connection.execute(text(_TRIM.format(hour)), {"id": buffer_id})


# Adds the counts of all processes in ended hours up, so that they do not grow without end.
fold_counts = by_database(sqlite=_sqlite_fold, postgresql=_postgresql_fold)
