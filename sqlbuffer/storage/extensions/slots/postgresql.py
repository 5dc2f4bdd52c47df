"""Read and change the rows of slots on PostgreSQL."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.tables import MOST_STEPS
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.extensions.slots.stored_span import Run, StoredSpan
from sqlbuffer.storage.rows.pieces import Columns

# Each run is looked up alone, by the index of episodes, with any statistics of the tables.
_SPANS = (
    "SELECT f.run, f.t + f.place, f.first_seq + f.place, f.last - f.place + 1, "
    "(SELECT substr(d.records, f.place * f.size + 1, (f.last - f.place + 1) * f.size) "
    "FROM chunk_data d WHERE d.buffer_id = f.buffer_id AND d.first_seq = f.first_seq LIMIT 1), "
    "(SELECT has_changes OR has_deleted FROM buffers WHERE id = %s) FROM ("
    "SELECT r.n::integer - 1 AS run, c.*, greatest(r.first - c.t, 0) AS place, "
    "least(r.last - c.t, c.n_steps - 1) AS last, %s::integer AS size "
    "FROM unnest(%b::integer[], %b::integer[], %b::integer[]) "
    "WITH ORDINALITY AS r(slot, first, last, n) "
    "JOIN slots s ON s.buffer_id = %s AND s.slot = r.slot CROSS JOIN LATERAL ("
    "SELECT x.buffer_id, x.first_seq, x.t, x.n_steps FROM chunks x "
    "WHERE x.buffer_id = %s AND x.episode_id = s.episode_id "
    f"AND x.t > r.first - {MOST_STEPS} AND x.t <= r.last AND x.t + x.n_steps > r.first "
    "OFFSET 0) AS c ORDER BY r.n, c.t OFFSET 0) AS f"
)
_CHANGED = (
    "SELECT c.seq, c.record FROM unnest(%s::bigint[], %s::bigint[]) AS j(first, after) "
    "CROSS JOIN LATERAL (SELECT r.seq, r.record FROM replaced_steps r "
    "WHERE r.buffer_id = %s AND r.seq >= j.first AND r.seq < j.after OFFSET 0) AS c "
    "UNION ALL "
    "SELECT c.seq, NULL FROM unnest(%s::bigint[], %s::bigint[]) AS j(first, after) "
    "CROSS JOIN LATERAL (SELECT x.seq FROM deleted_steps x "
    "WHERE x.buffer_id = %s AND x.seq >= j.first AND x.seq < j.after OFFSET 0) AS c"
)
_REPLACE = (
    "SELECT sqlbuffer_replace_v1(%s::integer, %b::bigint[], %b::bytea[], %b::text[], "
    "%b::double precision[], %b::boolean[], %b::boolean[], %s)"
)

_REMOVE = "SELECT sqlbuffer_remove_episode_v1(%s::integer, %s::bigint)"


def slot_steps(
    connection: Connection, buffer_id: int, runs: Sequence[Run], size: int
) -> Sequence[StoredSpan]:
    """Return the stored spans of runs of steps, in the order of the runs and of t.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        runs: Slot, first and last t of each.
        size: Size of a step in bytes.
    """
    slots, first, last = (list(column) for column in zip(*runs, strict=True))
    values = (buffer_id, size, slots, first, last, buffer_id, buffer_id)
    found: Sequence[StoredSpan] = driver_of(connection).execute(_SPANS, values).fetchall()
    return found


def changed_steps(
    connection: Connection, buffer_id: int, spans: Sequence[tuple[int, int]]
) -> Sequence[tuple[int, Any]]:
    """Return (seq, record) of replaced steps of chunks, and (seq, None) of deleted ones.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        spans: For each span its first seq, and the one after its last.
    """
    first, after = (list(column) for column in zip(*spans, strict=True))
    values = (first, after, buffer_id) * 2
    found: Sequence[tuple[int, Any]] = driver_of(connection).execute(_CHANGED, values).fetchall()
    return found


def replace(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    columns: Columns,
    names: str,
) -> None:
    """Change the contents of steps, and record that."""
    values = (buffer_id, list(seqs), *(list(column) for column in columns), names)
    driver_of(connection).execute(_REPLACE, values)


def remove_episode(connection: Connection, buffer_id: int, episode_id: int) -> None:
    """Delete the chunks of an episode, with the rows of their steps in the narrow tables."""
    driver_of(connection).execute(_REMOVE, (buffer_id, episode_id))
