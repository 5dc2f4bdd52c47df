"""Read changes of a buffer on SQLite. Only one writer runs at a time, so numbers show new rows."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.storage.database.sqlite import FileConnection
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.following.state import (
    AnchorQueries,
    BufferState,
    ChunkRow,
    ChunkSpan,
    EpisodeState,
)
from sqlbuffer.storage.migrations.migrate import VERSION_TABLE
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

_COLUMNS = (
    "c.first_seq, c.n_steps, c.id, c.task_id, c.agent_id, c.step, d.steps, c.episode_id, c.t, "
    "c.session_id, c.model_version, d.rewards, d.ends, "
    "CASE WHEN c.terminated IS NULL THEN '' WHEN instr(c.terminated, 'null') THEN c.terminated END,"
    "CASE WHEN c.truncated IS NULL THEN '' WHEN instr(c.truncated, 'null') THEN c.truncated END, "
    "d.block_steps, d.offsets, d.records, d.layout, c.adv_t, c.v_t, c.initial_priority"
)
_CHUNKS = f"""
SELECT {_COLUMNS} FROM chunks c CROSS JOIN chunk_data d ON d.key = c.key
WHERE c.key > (?1 << {NUMBER_BITS} | ?2) AND c.key < (?1 + 1) << {NUMBER_BITS}
ORDER BY c.key LIMIT ?3
"""
_CHUNKS_AT = f"""
SELECT {_COLUMNS} FROM json_each(?) w CROSS JOIN chunks c ON c.key = w.value
CROSS JOIN chunk_data d ON d.key = c.key ORDER BY c.key
"""
_SPANS = "SELECT first_seq, n_steps, episode_id, id FROM chunks"
_IN_LIST = "IN (SELECT value FROM json_each(?))"


def state_query(buffer_id: int) -> str:
    """Return the query of the state; its columns are those of `BufferState`."""
    return (
        "SELECT w.low_seq, w.high_seq, w.clock, w.session_id, w.has_labels, w.has_quarantine, "
        "b.has_deleted, b.has_changes, b.created_at, "
        "CAST(coalesce((SELECT seq FROM sqlite_sequence WHERE name = 'change_log'), 0) AS text), "
        f"(SELECT version_num FROM {VERSION_TABLE}), b.n_added "
        f"FROM v_windows w JOIN buffers b ON b.id = w.buffer_id WHERE w.buffer_id = {buffer_id:d}"
    )


def count_steps(connection: Connection, buffer_id: int, low: int) -> int:
    """Return the number of steps in chunks that end above a number."""
    query = (
        "SELECT coalesce(sum(n_steps), 0) FROM chunks WHERE buffer_id = ? AND first_seq > ? "
        "AND first_seq + n_steps - 1 > ?"
    )
    ((n,),) = driver_of(connection).execute(query, (buffer_id, low - MAX_CHUNK_STEPS, low))
    return int(n)


def all_chunks(
    connection: Connection, buffer_id: int, low: int, n: int
) -> Iterator[list[ChunkRow]]:
    """Yield the chunks with a step above a number, n at a time, in the order of their numbers."""
    # A chunk that begins at or below the number may end above it.
    after = max(low - MAX_CHUNK_STEPS, 0)
    while chunks := _chunks_after(connection, buffer_id, after, n):
        after = chunks[-1].first_seq
        yield [chunk for chunk in chunks if chunk.first_seq + chunk.n_steps - 1 > low]


def new_chunks(
    connection: Connection, buffer_id: int, before: BufferState, now: BufferState, n: int
) -> Iterator[list[ChunkRow]]:
    """Yield the chunks of a state that are not in an earlier one, n at a time."""
    after = before.high
    while chunks := _chunks_after(connection, buffer_id, after, n):
        after = chunks[-1].first_seq
        yield [chunk for chunk in chunks if chunk.first_seq + chunk.n_steps - 1 > now.low]


def chunks_at(
    connection: Connection, buffer_id: int, firsts: Sequence[int], n: int
) -> Iterator[list[ChunkRow]]:
    """Yield the chunks that begin with the numbers, n at a time, in their order."""
    for i in range(0, len(firsts), n):
        keys = json.dumps([buffer_id << NUMBER_BITS | first for first in firsts[i : i + n]])
        yield list(map(_chunk, driver_of(connection).execute(_CHUNKS_AT, (keys,))))


def all_spans(connection: Connection, buffer_id: int, low: int) -> list[ChunkSpan]:
    """Return the steps of the chunks that begin above a number, or up to a chunk below."""
    query = f"{_SPANS} WHERE buffer_id = ? AND first_seq > ? ORDER BY first_seq"
    rows = driver_of(connection).execute(query, (buffer_id, low - MAX_CHUNK_STEPS))
    return list(map(ChunkSpan._make, rows))


def new_spans(
    connection: Connection, buffer_id: int, before: BufferState, now: BufferState
) -> list[ChunkSpan]:
    """Return the steps of the chunks of a state that are not in an earlier one."""
    return all_spans(
        connection, buffer_id, max(before.high, now.low - MAX_CHUNK_STEPS) + MAX_CHUNK_STEPS
    )


def episode_spans(
    connection: Connection, buffer_id: int, episodes: Sequence[int]
) -> list[ChunkSpan]:
    """Return the steps of the chunks of episodes."""
    query = f"{_SPANS} WHERE buffer_id = ? AND episode_id {_IN_LIST}"
    rows = driver_of(connection).execute(query, (buffer_id, json.dumps(list(episodes))))
    return list(map(ChunkSpan._make, rows))


def step_spans(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> list[ChunkSpan]:
    """Return the steps of the chunks that may have some steps."""
    query = (
        f"{_SPANS} WHERE key IN (SELECT (SELECT max(k.key) FROM chunks k WHERE k.key > ?1 << "
        f"{NUMBER_BITS} AND k.key <= (?1 << {NUMBER_BITS} | w.value)) FROM json_each(?2) w)"
    )
    rows = driver_of(connection).execute(query, (buffer_id, json.dumps(list(seqs))))
    return list(map(ChunkSpan._make, rows))


def _chunks_after(connection: Connection, buffer_id: int, after: int, n: int) -> list[ChunkRow]:
    rows = driver_of(connection).execute(_CHUNKS, (buffer_id, after, n)).fetchall()
    return list(map(_chunk, rows))


def _chunk(row: tuple[Any, ...]) -> ChunkRow:
    chunk = ChunkRow._make(row)
    if chunk.priorities is not None:
        priorities = json.loads(row[-1])
        chunk = chunk._replace(priorities=np.array([1.0 if p is None else p for p in priorities]))
    if chunk.steps is None and chunk.offsets is None:
        return chunk
    steps, offsets = (column and json.loads(column) for column in (chunk.steps, chunk.offsets))
    return chunk._replace(steps=steps, offsets=offsets)


def priorities_of(
    connection: Connection, buffer_id: int, seqs: Sequence[int]
) -> list[tuple[int, float]]:
    """Return (seq, priority) of the given steps whose priorities were set."""
    query = f"SELECT seq, priority FROM priorities WHERE buffer_id = ? AND seq {_IN_LIST}"
    return list(driver_of(connection).execute(query, (buffer_id, json.dumps(list(seqs)))))


def episodes(connection: Connection, ids: Sequence[int]) -> list[EpisodeState]:
    """Return episodes by their keys."""
    columns = 'id, key, status, length, final_arrays, "return", reward, group_id, parent_id, meta'
    query = f"SELECT {columns} FROM episodes WHERE id {_IN_LIST}"
    rows = driver_of(connection).execute(query, (json.dumps(list(ids)),))
    return [EpisodeState._make(row) for row in rows]


def session_keys(connection: Connection, numbers: Sequence[int]) -> list[tuple[int, str]]:
    """Return (number, id) of sessions."""
    query = f"SELECT id, key FROM sessions WHERE id {_IN_LIST}"
    return list(driver_of(connection).execute(query, (json.dumps(list(numbers)),)))


def count_beyond(connection: Connection, buffer_id: int, before: BufferState) -> int:
    """Return the number of steps of the buffer that are not in an earlier state."""
    query = "SELECT coalesce(sum(n_steps), 0) FROM chunks WHERE buffer_id = ? AND first_seq > ?"
    ((n,),) = driver_of(connection).execute(query, (buffer_id, before.high))
    return int(n)


def chunk_ids(
    connection: Connection, buffer_id: int, firsts: Sequence[int]
) -> list[tuple[int, str]]:
    """Return (first_seq, id) of chunks that begin with one of the numbers."""
    query = f"SELECT first_seq, id FROM chunks WHERE key {_IN_LIST}"
    keys = json.dumps([buffer_id << NUMBER_BITS | first for first in firsts])
    return list(driver_of(connection).execute(query, (keys,)))


def newest_entry(connection: Connection, buffer_id: int) -> tuple[int, str] | None:
    """Return (id, time) of the newest entry of a buffer's change log."""
    query = (
        "SELECT id, CAST(inserted_at AS text) FROM change_log WHERE buffer_id = ? "
        "ORDER BY id DESC LIMIT 1"
    )
    entry: tuple[int, str] | None = driver_of(connection).execute(query, (buffer_id,)).fetchone()
    return entry


def entry_time(connection: Connection, entry: int) -> str | None:
    """Return the time of an entry of the change log."""
    query = "SELECT CAST(inserted_at AS text) FROM change_log WHERE id = ?"
    row = driver_of(connection).execute(query, (entry,)).fetchone()
    return None if row is None else str(row[0])


class _AnySession:
    """Stands for a connection of a user's engine, which cannot be referenced weakly."""


_ANY_SESSION = _AnySession()


def session(connection: Connection) -> Any:
    """Return the driver's connection: if another file replaces this one, it is a new connection."""
    driver = driver_of(connection)
    return driver if isinstance(driver, FileConnection) else _ANY_SESSION


ANCHOR = AnchorQueries(chunk_ids, newest_entry, entry_time, session)


def noted(connection: Connection, buffer_id: int, state: BufferState) -> BufferState:
    """Return the state: its position says all that the next look needs."""
    return state


def is_final(state: BufferState) -> bool:
    """Return True: a later state with the same position is the same."""
    return True
