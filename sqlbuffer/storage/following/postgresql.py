"""Read changes of a buffer on PostgreSQL: rows that a snapshot shows and an earlier one did not.

Numbers are given before the commit, so a chunk may appear below those that were read. Each chunk
and each entry of the change log has the id of its transaction. It is new if that transaction ran
when the earlier snapshot was taken, or began later. PgQ finds its batches in the same way.

A snapshot of a standby does not list running transactions. There a chunk is new if its transaction
is not older than the oldest one that ran, and it was not read before: the position names those.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.storage.changes import STANDBY, transactions_since
from sqlbuffer.storage.chunks.relations import pg_chunk_of
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import number_array
from sqlbuffer.storage.following.state import (
    AnchorQueries,
    BufferState,
    ChunkRow,
    ChunkSpan,
    EpisodeState,
)
from sqlbuffer.storage.migrations.migrate import VERSION_TABLE
from sqlbuffer.storage.priorities.draws import unpacked

_COLUMNS = (
    "c.first_seq, c.n_steps, c.id::text, c.task_id, c.agent_id, c.step, d.steps, c.episode_id, "
    "c.t, c.session_id, c.model_version, d.rewards, d.ends, "
    "CASE WHEN c.terminated IS NULL THEN '' WHEN array_position(c.terminated, NULL) IS NOT NULL "
    "THEN array_to_json(c.terminated)::text END, "
    "CASE WHEN c.truncated IS NULL THEN '' WHEN array_position(c.truncated, NULL) IS NOT NULL "
    "THEN array_to_json(c.truncated)::text END, "
    "d.block_steps, d.offsets, d.records, d.layout, c.adv_t, c.v_t, "
    "array_send(array_replace(c.initial_priority, NULL, 1.0))"
)
_ALL_CHUNKS = f"""
SELECT {_COLUMNS} FROM (
    SELECT * FROM chunks WHERE buffer_id = %s AND first_seq > %s ORDER BY first_seq LIMIT %s
) c JOIN chunk_data d ON d.buffer_id = c.buffer_id AND d.first_seq = c.first_seq
ORDER BY c.first_seq
"""
_SPAN = "first_seq, n_steps, episode_id, id::text"
_NEW_SPANS = f"""
SELECT {_SPAN} FROM chunks WHERE buffer_id = %s AND xid = ANY (%s::text[]::xid8[])
UNION ALL SELECT {_SPAN} FROM chunks WHERE buffer_id = %s AND xid >= %s::text::xid8
    AND first_seq <> ALL (%s::bigint[])
"""
_EPISODE_SPANS = f"""
SELECT {_SPAN} FROM unnest(%s::bigint[]) AS w(episode) CROSS JOIN LATERAL (
    SELECT * FROM chunks WHERE buffer_id = %s AND episode_id = w.episode OFFSET 0
) c
"""
_STEP_SPANS = f"""
SELECT DISTINCT {_SPAN} FROM unnest(%s::bigint[]) AS w(seq) CROSS JOIN LATERAL (
    SELECT * FROM chunks {pg_chunk_of("chunks", "%s", "w.seq")}
) c
"""
# A lookup for each chunk: without statistics the server would rather read the whole table.
_CHUNKS = f"""
SELECT {_COLUMNS} FROM unnest(%s::bigint[]) AS w(seq)
CROSS JOIN LATERAL (
    SELECT * FROM chunks WHERE buffer_id = %s AND first_seq = w.seq OFFSET 0
) c CROSS JOIN LATERAL (
    SELECT * FROM chunk_data WHERE buffer_id = c.buffer_id AND first_seq = w.seq OFFSET 0
) d ORDER BY c.first_seq
"""
_PRIORITIES = """
SELECT p.seq, p.priority FROM unnest(%s::bigint[]) AS w(seq) CROSS JOIN LATERAL (
    SELECT seq, priority FROM priorities WHERE buffer_id = %s AND seq = w.seq OFFSET 0
) p
"""
_EPISODES = """
SELECT e.id, e.key, e.status, e.length, e.final_arrays, e."return", e.reward, e.group_id,
    e.parent_id, e.meta::text
FROM unnest(%s::bigint[]) AS w(id) CROSS JOIN LATERAL (
    SELECT * FROM episodes WHERE id = w.id OFFSET 0
) e
"""
_CHUNK_IDS = """
SELECT c.first_seq, c.id::text FROM unnest(%s::bigint[]) AS w(seq) CROSS JOIN LATERAL (
    SELECT first_seq, id FROM chunks WHERE buffer_id = %s AND first_seq = w.seq OFFSET 0
) c
"""


def state_query(buffer_id: int) -> str:
    """Return the query of the state; its columns are those of `BufferState`."""
    return (
        "SELECT w.low_seq, w.high_seq, w.clock, w.session_id, w.has_labels, w.has_quarantine, "
        "b.has_deleted, b.has_changes, b.created_at::text, pg_current_snapshot()::text "
        f"|| CASE WHEN pg_is_in_recovery() THEN '{STANDBY}' ELSE '' END, "
        f"(SELECT version_num FROM {VERSION_TABLE}), b.n_added "
        f"FROM v_windows w JOIN buffers b ON b.id = w.buffer_id WHERE w.buffer_id = {buffer_id:d}"
    )


def count_steps(connection: Connection, buffer_id: int, low: int) -> int:
    """Return the number of steps in chunks that end above a number."""
    query = (
        "SELECT coalesce(sum(n_steps), 0) FROM chunks WHERE buffer_id = %s AND first_seq > %s "
        "AND first_seq + n_steps - 1 > %s"
    )
    ((n,),) = driver_of(connection).execute(query, (buffer_id, low - MAX_CHUNK_STEPS, low))
    return int(n)


def all_chunks(
    connection: Connection, buffer_id: int, low: int, n: int
) -> Iterator[list[ChunkRow]]:
    """Yield the chunks with a step above a number; see `sqlite.all_chunks`."""
    after, driver = max(low - MAX_CHUNK_STEPS, 0), driver_of(connection)
    while rows := driver.execute(_ALL_CHUNKS, (buffer_id, after, n)).fetchall():
        chunks = list(map(_chunk, rows))
        after = chunks[-1].first_seq
        yield [chunk for chunk in chunks if chunk.first_seq + chunk.n_steps - 1 > low]


def new_chunks(
    connection: Connection, buffer_id: int, before: BufferState, now: BufferState, n: int
) -> Iterator[list[ChunkRow]]:
    """Yield the chunks of a state that are not in an earlier one, n at a time."""
    spans = new_spans(connection, buffer_id, before, now)
    for chunks in chunks_at(connection, buffer_id, [span.first_seq for span in spans], n):
        yield [chunk for chunk in chunks if chunk.first_seq + chunk.n_steps - 1 > now.low]


def chunks_at(
    connection: Connection, buffer_id: int, firsts: Sequence[int], n: int
) -> Iterator[list[ChunkRow]]:
    """Yield the chunks that begin with the numbers, n at a time, in their order."""
    driver = driver_of(connection)
    for i in range(0, len(firsts), n):
        rows = driver.execute(_CHUNKS, (number_array(firsts[i : i + n]), buffer_id)).fetchall()
        yield list(map(_chunk, rows))


def all_spans(connection: Connection, buffer_id: int, low: int) -> list[ChunkSpan]:
    """Return the steps of the chunks that begin above a number, or up to a chunk below."""
    query = f"SELECT {_SPAN} FROM chunks WHERE buffer_id = %s AND first_seq > %s ORDER BY first_seq"
    rows = driver_of(connection).execute(query, (buffer_id, low - MAX_CHUNK_STEPS))
    return list(map(ChunkSpan._make, rows))


def new_spans(
    connection: Connection, buffer_id: int, before: BufferState, now: BufferState
) -> list[ChunkSpan]:
    """Return the steps of the chunks of a state that are not in an earlier one."""
    rows = driver_of(connection).execute(_NEW_SPANS, _spans_since(buffer_id, before)).fetchall()
    return sorted(ChunkSpan._make(row) for row in rows if row[0] > now.low - MAX_CHUNK_STEPS)


def episode_spans(
    connection: Connection, buffer_id: int, episodes: Sequence[int]
) -> list[ChunkSpan]:
    """Return the steps of the chunks of episodes."""
    rows = driver_of(connection).execute(_EPISODE_SPANS, (number_array(episodes), buffer_id))
    return list(map(ChunkSpan._make, rows))


def step_spans(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> list[ChunkSpan]:
    """Return the steps of the chunks that may have some steps."""
    rows = driver_of(connection).execute(_STEP_SPANS, (number_array(seqs), buffer_id, buffer_id))
    return list(map(ChunkSpan._make, rows))


def _chunk(row: tuple[Any, ...]) -> ChunkRow:
    chunk = ChunkRow._make(row)
    if chunk.priorities is None:
        return chunk
    return chunk._replace(priorities=unpacked(row[-1], np.float64))


def _spans_since(buffer_id: int, before: BufferState) -> tuple[Any, ...]:
    _, is_standby, known = before.position.partition(STANDBY)
    return (*transactions_since(buffer_id, before.position), f"{{{known}}}" if is_standby else "{}")


def noted(connection: Connection, buffer_id: int, state: BufferState) -> BufferState:
    """Return a state that was read, with what the next look needs to find the changes since."""
    if not state.position.endswith(STANDBY):
        return state
    oldest, _, _ = state.position.partition(":")
    query = "SELECT first_seq FROM chunks WHERE buffer_id = %s AND xid >= %s::text::xid8"
    known = driver_of(connection).execute(query, (buffer_id, oldest))
    listed = ",".join(str(first) for (first,) in known)
    return state._replace(position=state.position + listed)


def is_final(state: BufferState) -> bool:
    """Return True if a later state with the same position is the same."""
    oldest, end, running = state.position.split(":")
    return not running.startswith(STANDBY) or oldest == end


def priorities_of(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> list[tuple[int, float]]:
    """Return (seq, priority) of the given steps whose priorities were set."""
    return list(driver_of(connection).execute(_PRIORITIES, (number_array(seqs), buffer_id)))


def episodes(connection: Connection, ids: Sequence[int]) -> list[EpisodeState]:
    """Return episodes by their keys."""
    rows = driver_of(connection).execute(_EPISODES, (number_array(ids),))
    return [EpisodeState._make(row) for row in rows]


def session_keys(connection: Connection, numbers: Sequence[int]) -> list[tuple[int, str]]:
    """Return (number, id) of sessions."""
    query = "SELECT id, key FROM sessions WHERE id = ANY (%s::bigint[])"
    return list(driver_of(connection).execute(query, (number_array(numbers),)))


def count_beyond(connection: Connection, buffer_id: int, before: BufferState) -> int:
    """Return the number of steps of the buffer that are not in an earlier state."""
    query = f"SELECT coalesce(sum(n_steps), 0) FROM ({_NEW_SPANS}) c"
    ((n,),) = driver_of(connection).execute(query, _spans_since(buffer_id, before))
    return int(n)


def chunk_ids(
    connection: Connection, buffer_id: int, firsts: Sequence[int]
) -> list[tuple[int, str]]:
    """Return (first_seq, id) of chunks that begin with one of the numbers."""
    return list(driver_of(connection).execute(_CHUNK_IDS, (number_array(firsts), buffer_id)))


def newest_entry(connection: Connection, buffer_id: int) -> tuple[int, str] | None:
    """Return (id, time) of the newest entry of a buffer's change log."""
    query = (
        "SELECT id, inserted_at::text FROM change_log WHERE buffer_id = %s "
        "ORDER BY xid DESC, id DESC LIMIT 1"
    )
    entry: tuple[int, str] | None = driver_of(connection).execute(query, (buffer_id,)).fetchone()
    return entry


def entry_time(connection: Connection, entry: int) -> str | None:
    """Return the time of an entry of the change log."""
    query = "SELECT inserted_at::text FROM change_log WHERE id = %s"
    row = driver_of(connection).execute(query, (entry,)).fetchone()
    return None if row is None else str(row[0])


# The driver's connection: a crash or a shutdown of the server closes it.
ANCHOR = AnchorQueries(chunk_ids, newest_entry, entry_time, driver_of)
