"""Inserts, reads and evicts chunks, and deletes steps of them, on SQLite."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection

from sqlbuffer.encoding.chunks import ChunkColumns
from sqlbuffer.storage.chunks.numbered_chunks import (
    NumberedChunks,
    fields_json,
    flag_columns,
    json_column,
    payloads_json,
    reward_column,
)
from sqlbuffer.storage.chunks.slices import ANY_SIZE, Parts, Reach
from sqlbuffer.storage.database.transactions import driver_of, fetch
from sqlbuffer.storage.dialects import FIRST_OF_RUN, N_OF_RUN, insert_columns, number_list, run_list
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS

Columns = dict[str, Sequence[Any]]

# Columns of both tables that are attributes of a chunk, and those of one of them.
_OF_BOTH = ("n_steps", "task_id", "agent_id", "step", "t")
_OF_CHUNKS = ("id", "task_name", "pre_agent", "model_version", "first_time", "last_time")
_OF_DATA = ("records", "block_steps", "layout", "payload_arrays")
_LISTS = ("steps", "times", "reward", "adv_t", "v_t", "offsets")
_JSON_OF: dict[str, Callable[[Any], str | None]] = {
    "fields": fields_json,
    "payloads": payloads_json,
}
_SIZED = ("records", "payloads", "payload_arrays")
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
_LOW = "SELECT low_seq FROM v_windows WHERE buffer_id = ?"
_EVICT = f"""
DELETE FROM chunks WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) + :bound
  AND first_seq + n_steps - 1 <= :bound
"""
# A chunk with a step that a lease holds stays.
_EVICT_NOT_LEASED = f"""{_EVICT}
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


class _TableColumns(NamedTuple):
    """The columns of chunks that do not depend on their numbers.

    Attributes:
        of_both: Those that both tables have.
        of_chunks: Those of `chunks`.
        of_data: Those of `chunk_data`.
        n_bytes: Approximate size of their values.
    """

    of_both: Columns
    of_chunks: Columns
    of_data: Columns
    n_bytes: int


def table_columns(packed: ChunkColumns) -> _TableColumns:
    """Return what is inserted of chunks except their numbers."""

    def plain(names: Iterable[str]) -> Columns:
        return {name: packed.column(name) for name in names if packed.has(name)}

    lists = {name: json_column(values) for name, values in plain(_LISTS).items()}
    texts = {name: list(map(_JSON_OF[name], values)) for name, values in plain(_JSON_OF).items()}
    flags = flag_columns(packed)
    of_chunks: Columns = {
        **plain(_OF_CHUNKS),
        **_some(lists, "times", "adv_t", "v_t"),
        **({"reward_t": lists["reward"]} if "reward" in lists else {}),
        "terminated": json_column(flags.terminated),
        "truncated": json_column(flags.truncated),
        **_some(texts, "fields"),
    }
    of_data: Columns = {
        "rewards": reward_column(packed),
        "ends": flags.ends,
        **plain(_OF_DATA),
        **_some(lists, "offsets"),
        **_some(texts, "payloads"),
    }
    sized = [of_data[name] for name in _SIZED if name in of_data]
    n_bytes = sum([len(value) for values in sized for value in values if value is not None])
    return _TableColumns({**plain(_OF_BOTH), **_some(lists, "steps")}, of_chunks, of_data, n_bytes)


def insert_chunks(connection: Connection, buffer_id: int, numbered: NumberedChunks) -> None:
    """Write chunks under their numbers."""
    packed, firsts = numbered.chunks, numbered.first_seqs
    if not packed:
        return
    stored, key = packed.once(table_columns), buffer_id << NUMBER_BITS
    of_both: Columns = {
        "key": [key | first for first in firsts],
        "buffer_id": [buffer_id] * len(packed),
        "first_seq": firsts,
        "episode_id": numbered.episode_ids,
        **stored.of_both,
    }
    of_chunks: Columns = {**of_both, **stored.of_chunks, "session_id": numbered.session_ids}
    if numbered.has_priorities:
        of_chunks["initial_priority"] = json_column(numbered.initial_priorities())
    if numbered.inserted_at is not None:
        of_chunks["inserted_at"] = numbered.inserted_at
    insert_columns(connection, "chunks", of_chunks, stored.n_bytes)
    insert_columns(connection, "chunk_data", {**of_both, **stored.of_data}, stored.n_bytes)


def _some(columns: Mapping[str, Sequence[Any]], *names: str) -> Columns:
    return {name: columns[name] for name in names if name in columns}


def held_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return the ids that steps have already, with their numbers.

    The call notes that the buffer has such ids. The id of a step that has left the window, or was
    deleted, is free again.
    """
    parameters = {"id": buffer_id, "ids": json.dumps(list(ids))}
    connection.exec_driver_sql(
        "UPDATE buffers SET has_step_ids = 1 WHERE id = :id AND NOT has_step_ids", parameters
    )
    connection.exec_driver_sql(_FREE_IDS, parameters)
    return [(id_, seq) for id_, seq in connection.exec_driver_sql(_HELD_IDS, parameters)]


def insert_ids(connection: Connection, buffer_id: int, ids: Mapping[int, str]) -> None:
    """Write the ids that users gave to steps, by their numbers."""
    rows = [(buffer_id, seq, id_) for seq, id_ in ids.items()]
    connection.exec_driver_sql("INSERT INTO step_ids (buffer_id, seq, id) VALUES (?, ?, ?)", rows)


def remove_steps(connection: Connection, buffer_id: int, seqs: Sequence[int]) -> int:
    """Delete steps; return how many existed.

    Chunks are not rewritten. A chunk without steps left is deleted as a whole; the deleted steps of
    others are noted in `deleted_steps`. Triggers count the steps and clean the narrow tables.
    """
    parameters = {"id": buffer_id, "seqs": json.dumps(list(seqs))}
    rows = connection.exec_driver_sql(_FOUND, parameters).all()
    for first_seq, n_left, _, listed in rows:
        if n_left:
            connection.exec_driver_sql(_NOTE, (buffer_id, listed))
        else:
            connection.exec_driver_sql(_DROP, (buffer_id, first_seq))
    return sum(n_steps for _, _, n_steps, _ in rows)


_SIZE = "(length(c.records) / c.n_steps)"


def _slice_of(place: str, n: str) -> str:
    """Return SQL for the columns of a `Slice` of the chunk c: n steps from a place on.

    The place and n are written out wherever they are used: a subquery for them costs more.
    """
    return f"""c.first_seq + {place}, c.episode_id, c.t + {place}, {place}, {n},
    {_bytes_of(place, n, *_ends_of(place, n))}"""


def _ends_of(place: str, n: str) -> list[str]:
    """Return SQL for where the blocks of n steps from a place on begin and end."""
    return [
        f"json_extract(c.offsets, '$[' || ({at} / c.block_steps + {more}) || ']')"
        for at, more in ((place, 0), (f"({place} + {n} - 1)", 1))
    ]


def _bytes_of(place: str, n: str, start: str, end: str) -> str:
    return f"""substr(c.rewards, {place} * 8 + 1, {n} * 8), substr(c.ends, {place} + 1, {n}),
    {_blocks_of(place, n, start, end)}"""


def _blocks_of(place: str, n: str, start: str, end: str) -> str:
    return f"""c.block_steps, c.offsets,
    CASE WHEN length(c.records) > :most * c.n_steps THEN NULL
    WHEN c.offsets IS NULL THEN substr(c.records, {place} * {_SIZE} + 1, {n} * {_SIZE})
    ELSE substr(c.records, {start} + 1, {end} - {start}) END, c.layout"""


_VERSION = ", ".join(
    f"(SELECT v.{name} FROM chunks v WHERE v.key = c.key)"
    for name in ("model_version", "session_id")
)
_OWN = "(w.seq - c.first_seq)"
# Of the slice of a key, by whether it begins with the key. What is behind the last step of the
# chunk is cut off by `substr`; a subquery for place and n costs more than to repeat them.
_PLACES = {
    True: _OWN,
    False: f"CASE WHEN c.episode_id IS NULL THEN {_OWN} ELSE max(0, {_OWN} + :first) END",
}
_COUNTS = {
    begins_with_key: f"CASE WHEN c.episode_id IS NULL THEN 1 ELSE min(c.n_steps, {n}) END"
    for begins_with_key, n in (
        (True, ":last + 1"),
        (False, f"{_OWN} + :last + 1 - max(0, {_OWN} + :first)"),
    )
}
_LAST_PLACE = f"min(c.n_steps - 1, {_OWN} + CASE WHEN c.episode_id IS NULL THEN 0 ELSE :last END)"
_STEP = f"""CASE WHEN c.steps IS NULL THEN c.step + {_OWN}
    ELSE json_extract(c.steps, '$[' || {_OWN} || ']') END"""
_OF_CHUNK = f"""FROM (SELECT value AS seq FROM json_each(:seqs)) w
CROSS JOIN chunk_data c ON c.key = (
    SELECT k.key FROM chunk_data k
    WHERE k.key > :id << {NUMBER_BITS} AND k.key <= (:id << {NUMBER_BITS} | w.seq)
    ORDER BY k.key DESC LIMIT 1)"""
_IS_HELD = """w.seq < c.first_seq + c.n_steps AND NOT (
    (SELECT has_deleted FROM buffers WHERE id = :id) AND EXISTS (
        SELECT 1 FROM deleted_steps x WHERE x.buffer_id = :id AND x.seq = w.seq))"""


def _key_bytes(begins_with_key: bool) -> str:
    place, n = f"({_PLACES[begins_with_key]})", f"({_COUNTS[begins_with_key]})"
    start = f"json_extract(c.offsets, '$[' || ({place} / c.block_steps) || ']')"
    end = f"json_extract(c.offsets, '$[' || ({_LAST_PLACE} / c.block_steps + 1) || ']')"
    return _bytes_of(place, n, start, end)


# By whether the slice of a key begins with the key, and limits need the model version and the
# session, the last two columns.
_KEYS = {
    (begins_with_key, needed): f"""
SELECT w.seq, c.task_id, c.agent_id, {_STEP}, c.t, c.first_seq, c.n_steps, c.episode_id,
    {_key_bytes(begins_with_key)},
    e.key, e.length, e.status, e."return", e.reward,
    CASE WHEN c.t + {_OWN} + :final_within >= e.length THEN e.final_arrays END
    {f", {_VERSION}" if needed else ""}
{_OF_CHUNK}
LEFT JOIN episodes e ON e.id = c.episode_id
WHERE {_IS_HELD} AND (:stride = 1 OR (c.t + {_OWN}) % :stride = 0)
"""
    for begins_with_key in (False, True)
    for needed in (False, True)
}
_BLOCK, _NEXT_BLOCK = (
    f"json_extract(c.offsets, '$[' || ({_OWN} / c.block_steps + {more}) || ']')" for more in (0, 1)
)
_STEPS_TEXT = f"""
SELECT w.seq, c.task_id, c.agent_id, {_STEP}, c.first_seq,
    {_bytes_of(_OWN, "1", _BLOCK, _NEXT_BLOCK)} {{versions}}
{_OF_CHUNK}
WHERE {_IS_HELD}
"""
# The t of the chunk that holds the first step of a range; of the last one before it, if none does.
# A chunk may have one step only: a search over all t that its chunk may have would read hundreds.
_FIRST = """coalesce((SELECT b.t FROM chunks b WHERE b.buffer_id = :id
    AND b.episode_id = w.episode_id AND b.t <= w.first_t ORDER BY b.t DESC LIMIT 1), w.first_t)"""
_RANGES_TEXT = f"""
SELECT {_slice_of("a.place", "a.n")} {{versions}}
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
CROSS JOIN chunk_data c ON c.key = a.key
WHERE a.n > 0
"""
_RUNS = f"""
SELECT a.first_seq + a.place, a.place, a.n, a.n_steps, a.id, a.task_id, a.task_name, a.agent_id,
    a.pre_agent, a.step, a.steps, a.t, a.first_time, a.last_time, a.times,
    (SELECT e.key FROM episodes e WHERE e.id = a.episode_id),
    (SELECT e.group_id FROM episodes e WHERE e.id = a.episode_id),
    (SELECT e.parent_id FROM episodes e WHERE e.id = a.episode_id),
    (SELECT s.key FROM sessions s WHERE s.id = a.session_id),
    a.model_version, substr(c.rewards, a.place * 8 + 1, a.n * 8), a.adv_t, a.v_t, a.terminated,
    a.truncated, a.initial_priority,
    CASE WHEN (SELECT has_step_ids FROM buffers WHERE id = :id) THEN (
        SELECT json_group_object(i.seq, i.id) FROM step_ids i WHERE i.buffer_id = :id
        AND i.seq >= a.first_seq + a.place AND i.seq < a.first_seq + a.place + a.n) END,
    CASE WHEN NOT :payloads OR c.payloads IS NULL THEN NULL
    WHEN a.n > 1 THEN c.payloads
    ELSE '[' || coalesce(json_extract(c.payloads, '$[' || a.place || ']'), 'null') || ']' END,
    CASE WHEN NOT :arrays OR c.payload_arrays IS NULL THEN NULL WHEN a.n > 1 THEN c.payload_arrays
    ELSE substr(c.payload_arrays, json_extract(c.payloads, '$[' || a.place || '].arrays[0]') + 1,
        json_extract(c.payloads, '$[' || a.place || '].arrays[1]')) END,
    {_blocks_of("a.place", "a.n", *_ends_of("a.place", "a.n"))}
FROM (
    SELECT c.*, max(0, r.first - c.first_seq) AS place,
        min(c.first_seq + c.n_steps, r.beyond) - max(c.first_seq, r.first) AS n
    FROM (SELECT {FIRST_OF_RUN} AS first, {FIRST_OF_RUN} + {N_OF_RUN} AS beyond
          FROM json_each(:runs) r) r
    CROSS JOIN chunks c ON c.key < (:id << {NUMBER_BITS}) + r.beyond AND c.key >= coalesce((
        SELECT max(k.key) FROM chunks k
        WHERE k.key > :id << {NUMBER_BITS} AND k.key <= (:id << {NUMBER_BITS} | r.first)),
        :id << {NUMBER_BITS})
    WHERE c.first_seq + c.n_steps > r.first LIMIT -1 OFFSET 0
) a CROSS JOIN chunk_data c ON c.key = a.key
"""
# By whether limits need the model version and the session, the last two columns.
_STEPS, _RANGES = (
    {needed: text.format(versions=f", {_VERSION}" if needed else "") for needed in (False, True)}
    for text in (_STEPS_TEXT, _RANGES_TEXT)
)


def read_keys(
    connection: Connection, buffer_id: int, seqs: Sequence[int], reach: Reach, has_versions: bool
) -> list[tuple[Any, ...]]:
    """Return the steps that are there and can be keys, with their slices, as `keys_of` takes them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: Numbers of steps.
        reach: The steps around them to read.
        has_versions: Each row ends with the model version and the session.
    """
    parameters = {"id": buffer_id, "seqs": number_list(seqs), "most": reach.most_bytes}
    if not reach.is_alone:
        parameters |= {
            "first": reach.first, "last": reach.last, "stride": reach.stride,
            "final_within": reach.final_within,
        }  # fmt: skip
    if reach.is_alone:
        return fetch(connection, _STEPS[has_versions], parameters)
    return fetch(connection, _KEYS[reach.first == 0, has_versions], parameters)


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    has_versions: bool,
) -> list[tuple[Any, ...]]:
    """Return slices of chunks with the steps of ranges of episodes, as rows.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        ranges: For each range the number of the episode, its first and its last t.
        reach: Says whether typed fields are read.
        has_versions: Each row ends with the model version and the session.
    """
    parameters = {
        "id": buffer_id,
        "ranges": orjson.dumps(ranges).decode(),
        "most": reach.most_bytes,
    }
    return fetch(connection, _RANGES[has_versions], parameters)


def read_runs(
    connection: Connection,
    buffer_id: int,
    runs: Sequence[tuple[int, int]],
    parts: Parts,
) -> list[tuple[Any, ...]]:
    """Return slices with all values of the steps of runs of numbers, for `read_rows` of layouts.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        runs: First number of each run, and its number of steps, at most 256.
        parts: Which of their bytes and JSON to read.
    """
    parameters = {
        "id": buffer_id, "runs": run_list(runs),
        "most": ANY_SIZE if parts.fields else -1,
        "payloads": parts.payloads, "arrays": parts.arrays,
    }  # fmt: skip
    return fetch(connection, _RUNS, parameters)


def evict_chunks(
    connection: Connection,
    buffer_id: int,
    hold_low: int = MOST_NUMBERS,
    *,
    has_leases: bool = True,
) -> None:
    """Delete chunks whose steps have all left the window and are not above a number; those that a
    lease holds stay, if there are leases.
    """
    driver = driver_of(connection)
    window = driver.execute(_LOW, (buffer_id,)).fetchone()
    if window is not None:  # the buffer may have been dropped
        parameters = {"id": buffer_id, "bound": min(*window, hold_low)}
        driver.execute(_EVICT_NOT_LEASED if has_leases else _EVICT, parameters)
