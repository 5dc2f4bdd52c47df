"""Read and change the rows of slots on SQLite."""

import json
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.tables import MOST_STEPS
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.extensions.slots.stored_span import Run, StoredSpan
from sqlbuffer.storage.rows.pieces import Columns

# In this order: each run is looked up by its slot, and its steps by the index of episodes.
_SPANS = (
    "SELECT f.run, f.t + f.place, f.first_seq + f.place, f.last - f.place + 1, "
    "substr(d.records, f.place * f.size + 1, (f.last - f.place + 1) * f.size), "
    "(SELECT has_changes OR has_deleted FROM buffers WHERE id = :id) FROM ("
    "SELECT r.key AS run, c.key, c.t, c.first_seq, "
    "max(json_extract(r.value, '$[1]') - c.t, 0) AS place, "
    "min(json_extract(r.value, '$[2]') - c.t, c.n_steps - 1) AS last, :size AS size "
    "FROM json_each(:runs) r "
    "CROSS JOIN slots s ON s.buffer_id = :id AND s.slot = json_extract(r.value, '$[0]') "
    "CROSS JOIN chunks c ON c.buffer_id = :id AND c.episode_id = s.episode_id "
    f"AND c.t > json_extract(r.value, '$[1]') - {MOST_STEPS} "
    "AND c.t <= json_extract(r.value, '$[2]') "
    "AND c.t + c.n_steps > json_extract(r.value, '$[1]') ORDER BY r.key, c.t"
    ") f CROSS JOIN chunk_data d ON d.key = f.key"
)
_CHANGED = (
    "SELECT r.seq, r.record FROM json_each(:spans) j CROSS JOIN replaced_steps r "
    "ON r.buffer_id = :id AND r.seq >= json_extract(j.value, '$[0]') "
    "AND r.seq < json_extract(j.value, '$[1]') "
    "UNION ALL SELECT x.seq, NULL FROM json_each(:spans) j CROSS JOIN deleted_steps x "
    "ON x.buffer_id = :id AND x.seq >= json_extract(j.value, '$[0]') "
    "AND x.seq < json_extract(j.value, '$[1]')"
)
_REPLACE = (
    "INSERT INTO replaced_steps (record, fields, reward_t, terminated, truncated, buffer_id, seq) "
    "VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, seq) DO UPDATE "
    "SET record = excluded.record, fields = excluded.fields, reward_t = excluded.reward_t, "
    "terminated = excluded.terminated, truncated = excluded.truncated"
)
_NOTE_CHANGES = (
    "INSERT INTO payload_changes (buffer_id, seq, fields, n_changes) "
    "SELECT :id, j.value, :fields, 1 FROM json_each(:seqs) j WHERE true "
    "ON CONFLICT (buffer_id, seq) DO UPDATE SET fields = excluded.fields, "
    "n_changes = n_changes + 1, changed_at = excluded.changed_at"
)


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
    given = {"id": buffer_id, "runs": json.dumps(runs), "size": size}
    found: Sequence[StoredSpan] = driver_of(connection).execute(_SPANS, given).fetchall()
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
    given = {"id": buffer_id, "spans": json.dumps(spans)}
    found: Sequence[tuple[int, Any]] = driver_of(connection).execute(_CHANGED, given).fetchall()
    return found


def replace(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    columns: Columns,
    names: str,
) -> None:
    """Change the contents of steps, and record that."""
    driver = driver_of(connection)
    driver.execute(
        "UPDATE buffers SET has_changes = 1 WHERE id = ? AND NOT has_changes", (buffer_id,)
    )
    driver.executemany(_REPLACE, zip(*columns, [buffer_id] * len(seqs), seqs, strict=True))
    given = {"id": buffer_id, "fields": names, "seqs": json.dumps(list(seqs))}
    driver.execute(_NOTE_CHANGES, given)


def remove_episode(connection: Connection, buffer_id: int, episode_id: int) -> None:
    """Delete the chunks of an episode. A trigger counts them, and cleans the narrow tables."""
    connection.exec_driver_sql(
        "DELETE FROM chunks WHERE buffer_id = ? AND episode_id = ?", (buffer_id, episode_id)
    )
