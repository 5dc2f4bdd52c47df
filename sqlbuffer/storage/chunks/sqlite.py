"""Inserts chunks, and deletes steps of them, on SQLite."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.numbered_chunk import (
    NumberedChunk,
    fields_json,
    flag_columns,
    json_column,
    payloads_json,
    reward_column,
)
from sqlbuffer.storage.chunks.slices import (
    Key,
    Marks,
    Reach,
    Slice,
    Wanted,
    first_chunk,
    slices_of,
    values_of,
)
from sqlbuffer.storage.database.transactions import driver_of, fetch
from sqlbuffer.storage.dialects.column_inserts import insert_columns
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS

# Columns whose value all steps of a chunk share.
_PLAIN = (
    "id", "task_name", "pre_agent", "model_version", "first_time", "last_time",
)  # fmt: skip
# The existing steps among some numbers, by chunk. The numbers belong to the buffer.
_FOUND = f"""
SELECT c.first_seq, c.n_steps - count(*) - (
    SELECT count(*) FROM deleted_steps x
    WHERE x.buffer_id = :id AND x.seq >= c.first_seq AND x.seq < c.first_seq + c.n_steps
), count(*), json_group_array(w.seq)
FROM (SELECT DISTINCT value AS seq FROM json_each(:seqs)) w
CROSS JOIN chunks c ON c.key = (
    SELECT max(k.key) FROM chunks k
    WHERE k.key > :id << {NUMBER_BITS} AND k.key <= (:id << {NUMBER_BITS} | w.seq))
WHERE w.seq < c.first_seq + c.n_steps AND NOT EXISTS (
    SELECT 1 FROM deleted_steps x WHERE x.buffer_id = :id AND x.seq = w.seq)
GROUP BY c.key
"""
# A chunk with a step that a lease holds stays.
_EVICT = f"""
DELETE FROM chunks WHERE key > :id << {NUMBER_BITS}
  AND key <= (:id << {NUMBER_BITS})
    + min(:held, (SELECT low_seq FROM v_windows WHERE buffer_id = :id))
  AND first_seq + n_steps - 1
    <= min(:held, (SELECT low_seq FROM v_windows WHERE buffer_id = :id))
  AND NOT EXISTS (
    SELECT 1 FROM queue_items q WHERE q.buffer_id = :id
    AND q.seq >= chunks.first_seq AND q.seq < chunks.first_seq + chunks.n_steps
    AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
"""
_DROP = f"DELETE FROM chunks WHERE key = ? << {NUMBER_BITS} | ?"
_NOTE = "INSERT INTO deleted_steps (buffer_id, seq) SELECT ?, value FROM json_each(?)"

_OF_IDS = "buffer_id = :id AND id IN (SELECT value FROM json_each(:ids))"
_HELD_IDS = f"SELECT id, seq FROM step_ids WHERE {_OF_IDS}"
_FREE_IDS = f"""
DELETE FROM step_ids WHERE {_OF_IDS} AND (
    seq <= (SELECT low_seq FROM v_windows WHERE buffer_id = :id)
    OR EXISTS (SELECT 1 FROM deleted_steps d WHERE d.buffer_id = :id AND d.seq = step_ids.seq))
"""


def insert_chunks(
    connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]
) -> None:
    """Write chunks under their numbers."""
    own = [one.chunk for one in numbered]
    flags = flag_columns(own)
    firsts = [one.first_seq for one in numbered]
    of_both: dict[str, Sequence[Any]] = {
        "key": [buffer_id << NUMBER_BITS | first for first in firsts],
        "buffer_id": [buffer_id] * len(own),
        "first_seq": firsts,
        "n_steps": [chunk.n_steps for chunk in own],
        "task_id": [chunk.task_id for chunk in own],
        "agent_id": [chunk.agent_id for chunk in own],
        "step": [chunk.step for chunk in own],
        "steps": json_column([chunk.steps for chunk in own]),
        "episode_id": [one.episode_id for one in numbered],
        "t": [chunk.t for chunk in own],
    }
    columns: dict[str, Sequence[Any]] = {
        **of_both,
        **{name: [getattr(chunk, name) for chunk in own] for name in _PLAIN},
        "session_id": [one.session_id for one in numbered],
        "times": json_column([chunk.times for chunk in own]),
        "reward_t": json_column([chunk.reward for chunk in own]),
        "adv_t": json_column([chunk.adv_t for chunk in own]),
        "v_t": json_column([chunk.v_t for chunk in own]),
        "terminated": json_column(flags.terminated),
        "truncated": json_column(flags.truncated),
        "initial_priority": json_column([one.initial_priority for one in numbered]),
        "fields": [fields_json(chunk.fields) for chunk in own],
    }
    if numbered and numbered[0].inserted_at is not None:
        columns["inserted_at"] = [one.inserted_at for one in numbered]
    data: dict[str, Sequence[Any]] = {
        **of_both,
        "rewards": reward_column(own),
        "ends": flags.ends,
        "records": [chunk.records for chunk in own],
        "block_steps": [chunk.block_steps for chunk in own],
        "offsets": json_column([chunk.offsets for chunk in own]),
        "payloads": [payloads_json(chunk.payloads) for chunk in own],
        "payload_arrays": [chunk.payload_arrays for chunk in own],
    }
    n_bytes = sum(
        len(chunk.records) + len(chunk.payload_arrays or b"") + len(payloads or "")
        for chunk, payloads in zip(own, data["payloads"], strict=True)
    )
    insert_columns(connection, "chunks", columns, n_bytes)
    insert_columns(connection, "chunk_data", data, n_bytes)


def held_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return the ids that steps have already, with their numbers.

    The call notes that the buffer has such ids. The id of a step that has left the window, or was
    deleted, is free again.
    """
    given = {"id": buffer_id, "ids": json.dumps(list(ids))}
    connection.exec_driver_sql(
        "UPDATE buffers SET has_step_ids = 1 WHERE id = :id AND NOT has_step_ids", given
    )
    connection.exec_driver_sql(_FREE_IDS, given)
    return [(id_, seq) for id_, seq in connection.exec_driver_sql(_HELD_IDS, given)]


def insert_ids(connection: Connection, buffer_id: int, ids: Mapping[int, str]) -> None:
    """Write the ids that users gave to steps, by their numbers."""
    rows = [(buffer_id, seq, id_) for seq, id_ in ids.items()]
    connection.exec_driver_sql("INSERT INTO step_ids (buffer_id, seq, id) VALUES (?, ?, ?)", rows)


def remove_steps(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> int:
    """Delete steps; return how many existed.

    Chunks are not rewritten. A chunk without steps left is deleted as a whole; the deleted steps of
    others are noted in `deleted_steps`. Triggers count the steps and clean the narrow tables.
    """
    given = {"id": buffer_id, "seqs": json.dumps(list(seqs))}
    found = connection.exec_driver_sql(_FOUND, given).all()
    for first_seq, n_left, _, listed in found:
        if n_left:
            connection.exec_driver_sql(_NOTE, (buffer_id, listed))
        else:
            connection.exec_driver_sql(_DROP, (buffer_id, first_seq))
    return sum(n_steps for _, _, n_steps, _ in found)


_SIZE = "(length(s.records) / s.n_steps)"
_START, _END = (
    f"json_extract(s.offsets, '$[' || ({place} / s.block_steps + {more}) || ']')"
    for place, more in (("s.place", 0), ("(s.place + s.n - 1)", 1))
)
# The columns of a `Slice`, of a `chunk_data` with a place and a number of steps.
_SLICE = f"""s.first_seq + s.place, s.episode_id, s.t + s.place, s.place, s.n,
    substr(s.rewards, s.place * 8 + 1, s.n * 8), substr(s.ends, s.place + 1, s.n),
    s.block_steps, s.offsets,
    CASE WHEN NOT :bytes THEN NULL
    WHEN s.n = s.n_steps THEN s.records
    WHEN s.offsets IS NULL THEN substr(s.records, s.place * {_SIZE} + 1, s.n * {_SIZE})
    ELSE substr(s.records, {_START} + 1, {_END} - {_START}) END"""
_VERSION = ", ".join(
    f"(SELECT c.{name} FROM chunks c WHERE c.key = s.key)"
    for name in ("model_version", "session_id")
)
_OWN = "(w.seq - c.first_seq)"
_ITS_CHUNK = """c.key = (
    SELECT k.key FROM chunk_data k WHERE k.key > :id << 40 AND k.key <= (:id << 40 | w.seq)
    ORDER BY k.key DESC LIMIT 1)"""
_IS_HELD = """w.seq < c.first_seq + c.n_steps AND NOT (
    (SELECT has_deleted FROM buffers WHERE id = :id) AND EXISTS (
        SELECT 1 FROM deleted_steps x WHERE x.buffer_id = :id AND x.seq = w.seq))"""
# The limits keep SQLite from computing the place and n again at each use.
_KEYS_TEXT = f"""
SELECT s.first_seq + s.own_place, s.task_id, s.agent_id,
    CASE WHEN s.steps IS NULL THEN s.step + s.own_place
    ELSE json_extract(s.steps, '$[' || s.own_place || ']') END,
    coalesce(s.t, 0) + s.own_place, coalesce(s.t, 0), coalesce(s.t, 0) + s.n_steps - 1, {_SLICE},
    e.key, e.length, e.status, e."return", e.reward,
    CASE WHEN s.t + s.own_place + :final_within >= e.length THEN e.final_arrays END, {{versions}}
FROM (
    SELECT d.*, a.own_place, a.place, a.n FROM (
        SELECT c.key, {_OWN} AS own_place,
            CASE WHEN c.episode_id IS NULL THEN {_OWN} ELSE max(0, {_OWN} + :first) END AS place,
            CASE WHEN c.episode_id IS NULL THEN 1
            ELSE min(c.n_steps - 1, {_OWN} + :last) - max(0, {_OWN} + :first) + 1 END AS n
        FROM (SELECT value AS seq FROM json_each(:seqs)) w
        CROSS JOIN chunk_data c ON {_ITS_CHUNK}
        WHERE {_IS_HELD} AND (:stride = 1 OR (c.t + {_OWN}) % :stride = 0)
        LIMIT -1 OFFSET 0
    ) a CROSS JOIN chunk_data d ON d.key = a.key
    LIMIT -1 OFFSET 0
) s LEFT JOIN episodes e ON e.id = s.episode_id
"""
_FIRST = first_chunk(":id", "w.episode_id", "w.first_t")
_RANGES_TEXT = f"""
SELECT {_SLICE}, {{versions}}
FROM (
    SELECT e.*, a.place, a.n
    FROM (
        SELECT k.key, max(0, w.first_t - f.t) AS place,
            min(f.n_steps - 1, w.last_t - f.t) - max(0, w.first_t - f.t) + 1 AS n
        FROM (SELECT json_extract(value, '$[0]') AS episode_id,
                json_extract(value, '$[1]') AS first_t, json_extract(value, '$[2]') AS last_t
              FROM json_each(:ranges)) w
        CROSS JOIN chunks k ON k.buffer_id = :id AND k.episode_id = w.episode_id
            AND k.t <= w.last_t AND k.t >= {_FIRST}
        CROSS JOIN chunk_data f ON f.key = k.key
        LIMIT -1 OFFSET 0
    ) a
    CROSS JOIN chunk_data e ON e.key = a.key
    WHERE a.n > 0
) s
"""
_STEPS_TEXT = f"""
SELECT s.seq, s.task_id, s.agent_id,
    CASE WHEN s.steps IS NULL THEN s.step + s.place
    ELSE json_extract(s.steps, '$[' || s.place || ']') END,
    0, 0, 0, {_SLICE}, NULL, NULL, NULL, NULL, NULL, NULL, {{versions}}
FROM (
    SELECT c.*, w.seq, {_OWN} AS place, 1 AS n
    FROM (SELECT value AS seq FROM json_each(:seqs)) w CROSS JOIN chunk_data c ON {_ITS_CHUNK}
    WHERE {_IS_HELD}
) s
"""
# By whether limits need the model version and the session.
_KEYS, _STEPS, _RANGES = (
    {needed: text.format(versions=_VERSION if needed else "NULL, NULL") for needed in (False, True)}
    for text in (_KEYS_TEXT, _STEPS_TEXT, _RANGES_TEXT)
)
_IN_RUN = "x.seq >= json_extract(r.value, '$[0]') AND x.seq < json_extract(r.value, '$[1]')"
_DELETED = f"""
SELECT x.seq FROM json_each(:runs) r CROSS JOIN deleted_steps x ON x.buffer_id = :id AND {_IN_RUN}
"""
_QUARANTINED = f"""
SELECT x.seq FROM json_each(:runs) r CROSS JOIN quarantine x ON x.buffer_id = :id AND {_IN_RUN}
"""
_LABELS = f"""
SELECT x.seq, x.reward_t, x.adv_t, x.v_t
FROM json_each(:runs) r CROSS JOIN labels x ON x.buffer_id = :id AND {_IN_RUN}
"""
_REPLACED = f"""
SELECT x.seq, x.record, x.reward_t, x.terminated, x.truncated
FROM json_each(:runs) r CROSS JOIN replaced_steps x ON x.buffer_id = :id AND {_IN_RUN}
"""

_VALUES = f"""
SELECT c.first_seq, c.n_steps, c.adv_t, c.v_t
FROM json_each(:firsts) w CROSS JOIN chunks c ON c.key = (:id << {NUMBER_BITS} | w.value)
WHERE c.adv_t NOT NULL OR c.v_t NOT NULL
"""


def read_keys(
    connection: Connection, buffer_id: int, seqs: Sequence[int], reach: Reach, wanted: Wanted
) -> tuple[list[Key], Marks]:
    """Return the steps that are there and can be keys, with their slices, and what became of them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: Numbers of steps.
        reach: Which steps to read around each.
        wanted: Marks to read.
    """
    given = {"id": buffer_id, "seqs": json.dumps(list(seqs)), "bytes": reach.has_bytes}
    if not reach.is_alone:
        given |= {
            "first": reach.first, "last": reach.last, "stride": reach.stride,
            "final_within": reach.final_within,
        }  # fmt: skip
    texts = _STEPS if reach.is_alone else _KEYS
    rows = fetch(connection, texts[wanted.versions], given)
    keys = [Key._make(row[:-2]) for row in rows]
    return keys, _marks(connection, buffer_id, slices_of(keys, wanted), rows, wanted)


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    wanted: Wanted,
) -> tuple[list[Slice], Marks]:
    """Return slices of chunks with the steps of ranges of episodes; see `read_keys`.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        ranges: For each range the number of the episode, its first and its last t.
        reach: Says whether typed fields are read.
        wanted: Marks to read.
    """
    given = {"id": buffer_id, "ranges": json.dumps(ranges), "bytes": reach.has_bytes}
    rows = fetch(connection, _RANGES[wanted.versions], given)
    slices = [Slice._make(row[:-2]) for row in rows]
    return slices, _marks(connection, buffer_id, slices, rows, wanted)


def _marks(
    connection: Connection,
    buffer_id: int,
    slices: Sequence[Slice],
    rows: Sequence[Sequence[Any]],
    wanted: Wanted,
) -> Marks:
    """Return what became of the steps of slices, whose rows end with version and session."""
    if not any(wanted):
        return Marks()
    runs = sorted({(one.seq, one.seq + one.n) for one in slices})
    given = {"id": buffer_id, "runs": json.dumps(runs)}
    marks = Marks()
    if wanted.deleted:
        marks.deleted = [seq for (seq,) in fetch(connection, _DELETED, given)]
    if wanted.quarantine:
        marks.quarantined = [seq for (seq,) in fetch(connection, _QUARANTINED, given)]
    if wanted.labels:
        marks.labels = fetch(connection, _LABELS, given)
    if wanted.versions:
        pairs = zip(slices, rows, strict=True)
        marks.versions = [(one.seq, one.n, *row[-2:]) for one, row in pairs]
    if wanted.replaced:
        marks.replaced = fetch(connection, _REPLACED, given)
    if wanted.values:
        firsts = sorted({one.seq - one.place for one in slices})
        chunks = {"id": buffer_id, "firsts": json.dumps(firsts)}
        marks.values = values_of(fetch(connection, _VALUES, chunks))
    return marks


def evict_chunks(connection: Connection, buffer_id: int, held: int = MOST_NUMBERS) -> None:
    """Delete chunks whose steps have all left the window and are not above a number."""
    driver_of(connection).execute(_EVICT, {"id": buffer_id, "held": held})
