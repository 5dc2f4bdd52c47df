"""Inserts chunks, and deletes steps of them, on SQLite."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.numbered_chunk import (
    NumberedChunk,
    end_bytes,
    fields_json,
    payloads_json,
    reward_bytes,
    stored_flags,
    values_json,
)
from sqlbuffer.storage.chunks.tables import MOST_STEPS
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS

_COLUMNS = (
    "key", "buffer_id", "first_seq", "n_steps", "id", "task_id", "task_name", "agent_id",
    "pre_agent", "episode_id", "t", "step", "steps", "session_id", "model_version", "first_time",
    "last_time", "reward_t", "adv_t", "v_t", "terminated", "truncated", "initial_priority",
    "fields",
)  # fmt: skip
_DATA = (
    "key", "buffer_id", "first_seq", "n_steps", "task_id", "agent_id", "step", "steps", "rewards",
    "ends", "records", "block_steps", "offsets", "payloads", "payload_arrays",
)  # fmt: skip
_INSERT = f"INSERT INTO chunks ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"
_INSERT_DATA = f"INSERT INTO chunk_data ({', '.join(_DATA)}) VALUES ({', '.join('?' * len(_DATA))})"
# The steps among numbers that are there, by chunk. The numbers are the buffer's own.
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
    rows, data = [], []
    for own in numbered:
        chunk, key = own.chunk, buffer_id << 40 | own.first_seq
        rows.append(
            (
                key, buffer_id, own.first_seq, chunk.n_steps, chunk.id, chunk.task_id,
                chunk.task_name, chunk.agent_id, chunk.pre_agent, own.episode_id, chunk.t,
                chunk.step, values_json(chunk.steps), own.session_id, chunk.model_version,
                chunk.first_time, chunk.last_time, values_json(chunk.reward),
                values_json(chunk.adv_t), values_json(chunk.v_t),
                values_json(stored_flags(chunk.terminated)),
                values_json(stored_flags(chunk.truncated)), values_json(own.initial_priority),
                fields_json(chunk.fields),
            )
        )  # fmt: skip
        data.append(
            (
                key, buffer_id, own.first_seq, chunk.n_steps, chunk.task_id, chunk.agent_id,
                chunk.step, values_json(chunk.steps), reward_bytes(chunk), end_bytes(chunk),
                chunk.records, chunk.block_steps,
                values_json(chunk.offsets), payloads_json(chunk.payloads), chunk.payload_arrays,
            )
        )  # fmt: skip
    connection.exec_driver_sql(_INSERT, rows)
    connection.exec_driver_sql(_INSERT_DATA, data)


def held_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return which of the ids steps have, with their numbers; note that the buffer has such ids.

    The id of a step that has left the window, or was deleted, is free again.
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
    """Delete steps; return how many there were.

    Chunks are not rewritten: one that has no step left goes as a whole, and the steps of others
    are noted in `deleted_steps`. Triggers count, and clean the narrow tables.
    """
    given = {"id": buffer_id, "seqs": json.dumps(list(seqs))}
    found = connection.exec_driver_sql(_FOUND, given).all()
    for first_seq, n_left, _, listed in found:
        if n_left:
            connection.exec_driver_sql(_NOTE, (buffer_id, listed))
        else:
            connection.exec_driver_sql(_DROP, (buffer_id, first_seq))
    return sum(n_steps for _, _, n_steps, _ in found)


_SLICES = f"""
SELECT c.first_seq + a.p, c.episode_id, c.t + a.p, a.p, a.n,
    substr(d.rewards, a.p * 8 + 1, a.n * 8), substr(d.ends, a.p + 1, a.n), d.block_steps, d.offsets,
    CASE WHEN d.offsets IS NULL THEN substr(
        d.records, a.p * (length(d.records) / d.n_steps) + 1, a.n * (length(d.records) / d.n_steps)
    ) ELSE d.records END,
    (SELECT json_group_array(x.seq) FROM deleted_steps x
     WHERE x.buffer_id = c.buffer_id AND x.seq >= c.first_seq AND x.seq < c.first_seq + c.n_steps)
FROM (
    SELECT k.key, max(0, w.t + :first - k.t) AS p,
        min(k.n_steps - 1, w.t + :last - k.t) - max(0, w.t + :first - k.t) + 1 AS n
    FROM (SELECT json_extract(value, '$[0]') AS episode_id, json_extract(value, '$[1]') AS t
          FROM json_each(:anchors)) w
    CROSS JOIN chunks k ON k.buffer_id = :id AND k.episode_id = w.episode_id
        AND k.t > w.t + :first - {MOST_STEPS} AND k.t <= w.t + :last
) a
CROSS JOIN chunks c ON c.key = a.key
CROSS JOIN chunk_data d ON d.key = a.key
WHERE a.n > 0
"""


def read_slices(
    connection: Connection,
    buffer_id: int,
    anchors: Sequence[tuple[int, int]],
    first: int,
    last: int,
) -> list[Any]:
    """Return slices of chunks with the steps from t + first to t + last of episodes.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        anchors: The number of the episode and t, of each.
        first: From how many steps after t; negative are before.
        last: To how many.

    Returns:
        Rows (seq, episode, t, place, n, rewards, ends, block_steps, offsets, records, deleted): of
        n steps from a place in a chunk on. `records` is theirs where there are no offsets, and
        else those of the whole chunk.
    """
    parameters = {"id": buffer_id, "anchors": json.dumps(anchors), "first": first, "last": last}
    return list(driver_of(connection).execute(_SLICES, parameters).fetchall())
