"""Inserts, reads and evicts chunks on PostgreSQL."""

import struct
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.numbered_chunk import (
    NumberedChunk,
    fields_json,
    flag_columns,
    payloads_json,
    reward_column,
)
from sqlbuffer.storage.chunks.relations import pg_chunk_of
from sqlbuffer.storage.chunks.slices import Parts, Reach
from sqlbuffer.storage.database.transactions import driver_of, fetch, savepoint
from sqlbuffer.storage.dialects import (
    HEADER,
    TRAILER,
    Fields,
    bigint_array_fields,
    bigint_field,
    bool_array_fields,
    bytes_field,
    double_array_fields,
    double_field,
    fields_of,
    id_array,
    integer_field,
    jsonb_field,
    number_array,
    rows_of,
    text_field,
    time_field,
    uuid_fields,
)

_EVICT = (
    "SELECT sqlbuffer_evict_chunks_v1(%s::integer, -1, w.low_seq, 10000) FROM v_windows w "
    "WHERE w.buffer_id = %s"
)

_HELD_IDS = "SELECT id, seq FROM sqlbuffer_held_ids_v1(%s::integer, %s::text[])"
_INSERT_IDS = (
    "INSERT INTO step_ids (buffer_id, seq, id) "
    "SELECT %s::integer, g.seq, g.id FROM unnest(%s::bigint[], %s::text[]) AS g(seq, id)"
)


def insert_chunks(
    connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]
) -> None:
    """Write chunks under their numbers."""
    packed = [one.chunk for one in numbered]
    flags = flag_columns(packed)

    def fields(name: str, encode: Callable[[Any], bytes]) -> dict[str, Fields]:
        return {name: fields_of(list(map(attrgetter(name), packed)), encode)}

    of_both = {
        "first_seq": fields_of([one.first_seq for one in numbered], bigint_field),
        **fields("n_steps", integer_field),
        **fields("task_id", text_field),
        **fields("agent_id", text_field),
        **fields("step", bigint_field),
        "steps": bigint_array_fields([chunk.steps for chunk in packed]),
        "episode_id": fields_of([one.episode_id for one in numbered], bigint_field),
        **fields("t", integer_field),
    }
    columns = {
        **of_both,
        "id": uuid_fields([chunk.id for chunk in packed]),
        **fields("task_name", text_field),
        **fields("pre_agent", text_field),
        "session_id": fields_of([one.session_id for one in numbered], integer_field),
        **fields("model_version", bigint_field),
        **fields("first_time", double_field),
        **fields("last_time", double_field),
        "times": double_array_fields([chunk.times for chunk in packed]),
        "reward_t": double_array_fields([chunk.reward for chunk in packed]),
        "adv_t": double_array_fields([chunk.adv_t for chunk in packed]),
        "v_t": double_array_fields([chunk.v_t for chunk in packed]),
        "terminated": bool_array_fields(flags.terminated),
        "truncated": bool_array_fields(flags.truncated),
        "initial_priority": double_array_fields([one.initial_priority for one in numbered]),
        "fields": fields_of([fields_json(chunk.fields) for chunk in packed], jsonb_field),
    }
    if numbered and numbered[0].inserted_at is not None:
        columns["inserted_at"] = fields_of([one.inserted_at for one in numbered], time_field)
    data = {
        **of_both,
        "rewards": fields_of(reward_column(packed), bytes_field),
        "ends": fields_of(flags.ends, bytes_field),
        **fields("records", bytes_field),
        **fields("block_steps", integer_field),
        **fields("layout", integer_field),
        "offsets": bigint_array_fields([chunk.offsets for chunk in packed]),
        "payloads": fields_of([payloads_json(chunk.payloads) for chunk in packed], jsonb_field),
        **fields("payload_arrays", bytes_field),
    }
    _copy(connection, "chunk_data", buffer_id, data, len(packed))
    _copy(connection, "chunks", buffer_id, columns, len(packed))


def _copy(
    connection: Connection, table: str, buffer_id: int, columns: Mapping[str, Fields], n: int
) -> None:
    head = struct.pack(">hii", len(columns) + 1, 4, buffer_id)
    statement = f"COPY {table} (buffer_id, {', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
    rows = rows_of(n, head, columns.values())
    with driver_of(connection).cursor() as cursor, cursor.copy(statement) as copy:
        copy.write(b"".join([HEADER, rows, TRAILER]))


def held_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return the ids that steps have already, with their numbers.

    The call notes that the buffer has such ids. The id of a step that has left the window, or was
    deleted, is free again.
    """
    return list(driver_of(connection).execute(_HELD_IDS, (buffer_id, id_array(ids))))


def insert_ids(connection: Connection, buffer_id: int, ids: Mapping[int, str]) -> None:
    """Write the ids that users gave to steps, by their numbers.

    Raises:
        UniqueViolation: Another writer has committed one of the ids. The transaction continues.
    """
    values = (buffer_id, number_array(ids), id_array(list(ids.values())))
    with savepoint(connection):
        driver_of(connection).execute(_INSERT_IDS, values)


_VERSION = ", ".join(
    f"(SELECT k.{name} FROM chunks k WHERE k.buffer_id = %(id)s::integer "
    "AND k.first_seq = {first})"
    for name in ("model_version", "session_id")
)
_KEYS_TEXT = """
SELECT s.*, e.key, e.length, e.status, e."return", e.reward,
    CASE WHEN s.t + (s.seq - s.first_seq) + %(final_within)s >= e.length THEN e.final_arrays END
    {versions}
FROM sqlbuffer_slices_v1(%(id)s::integer, %(seqs)s::bigint[], %(first)s::integer, %(last)s::integer,
    %(stride)s::integer, %(most)s) s
LEFT JOIN episodes e ON e.id = s.episode_id
"""
_STEPS_TEXT = """
SELECT s.seq, s.task_id, s.agent_id, s.step, s.first_seq, s.rewards, s.ends, s.block_steps,
    s.offsets, s.records, s.layout {versions}
FROM sqlbuffer_slices_v1(%(id)s::integer, %(seqs)s::bigint[], 0, 0, 1, %(most)s) s
"""
_RANGES_TEXT = """
SELECT s.* {versions}
FROM sqlbuffer_ranges_v1(%(id)s::integer, %(episodes)s::bigint[], %(firsts)s::integer[],
    %(lasts)s::integer[], %(most)s) s
"""
_SIZE = "(octet_length(d.records) / a.n_steps)"
_OF_ALL = ", ".join(
    f"a.{name}[a.place + 1 : a.place + a.n]"
    for name in ("adv_t", "v_t", "terminated", "truncated", "initial_priority")
)
_RUNS = f"""
SELECT a.first_seq + a.place, a.place, a.n, a.n_steps, a.id::text, a.task_id, a.task_name,
    a.agent_id, a.pre_agent, a.step, a.steps[a.place + 1 : a.place + a.n], a.t, a.first_time,
    a.last_time, a.times[a.place + 1 : a.place + a.n],
    (SELECT e.key FROM episodes e WHERE e.id = a.episode_id),
    (SELECT e.group_id FROM episodes e WHERE e.id = a.episode_id),
    (SELECT e.parent_id FROM episodes e WHERE e.id = a.episode_id),
    (SELECT s.key FROM sessions s WHERE s.id = a.session_id),
    a.model_version, substr(d.rewards, a.place * 8 + 1, a.n * 8), {_OF_ALL},
    CASE WHEN (SELECT has_step_ids FROM buffers WHERE id = %(id)s::integer) THEN (
        SELECT json_object_agg(i.seq, i.id)::text FROM (
            SELECT x.seq, x.id FROM step_ids x
            WHERE x.buffer_id >= %(id)s::integer AND x.buffer_id <= %(id)s::integer
            AND x.seq >= a.first_seq + a.place AND x.seq < a.first_seq + a.place + a.n
            ORDER BY x.buffer_id, x.seq) i) END,
    CASE WHEN %(payloads)s AND d.payloads IS NOT NULL THEN
        CASE WHEN a.n = 1 THEN jsonb_build_array(d.payloads -> a.place) ELSE d.payloads END::text
    END,
    CASE WHEN NOT %(arrays)s OR d.payload_arrays IS NULL THEN NULL
    WHEN a.n > 1 THEN d.payload_arrays
    ELSE substr(d.payload_arrays, (d.payloads -> a.place -> 'arrays' ->> 0)::integer + 1,
        (d.payloads -> a.place -> 'arrays' ->> 1)::integer) END,
    d.block_steps, d.offsets,
    CASE WHEN NOT %(bytes)s THEN NULL
    WHEN d.offsets IS NULL THEN substr(d.records, a.place * {_SIZE} + 1, a.n * {_SIZE})
    ELSE substr(d.records, d.offsets[a.place / d.block_steps + 1]::integer + 1,
        (d.offsets[(a.place + a.n - 1) / d.block_steps + 2]
         - d.offsets[a.place / d.block_steps + 1])::integer) END, d.layout
FROM (
    SELECT c.*, greatest(0, r.first - c.first_seq)::integer AS place,
        (least(c.first_seq + c.n_steps, r.beyond) - greatest(c.first_seq, r.first))::integer AS n
    FROM unnest(%(firsts)s::bigint[], %(ends)s::bigint[]) AS r(first, beyond)
    CROSS JOIN LATERAL (SELECT coalesce(
        (SELECT k.first_seq FROM chunks k {pg_chunk_of("k", "%(id)s::integer", "r.first")}), r.first
    ) AS low OFFSET 0) b
    CROSS JOIN LATERAL (
        SELECT * FROM chunks x WHERE x.buffer_id >= %(id)s::integer
        AND x.buffer_id <= %(id)s::integer AND x.first_seq >= b.low AND x.first_seq < r.beyond
        ORDER BY x.buffer_id, x.first_seq OFFSET 0
    ) c
    WHERE c.first_seq + c.n_steps > r.first OFFSET 0
) a CROSS JOIN LATERAL (
    SELECT * FROM chunk_data
    WHERE chunk_data.buffer_id = %(id)s::integer AND chunk_data.first_seq = a.first_seq OFFSET 0
) d
"""
# By whether limits need the model version and the session, the last two columns.
_KEYS, _STEPS, _RANGES = (
    {
        needed: text.format(versions=f", {_VERSION.format(first=first)}" if needed else "")
        for needed in (False, True)
    }
    for text, first in (
        (_KEYS_TEXT, "s.first_seq"),
        (_STEPS_TEXT, "s.first_seq"),
        (_RANGES_TEXT, "s.seq - s.place"),
    )
)


def read_keys(
    connection: Connection, buffer_id: int, seqs: Sequence[int], reach: Reach, has_versions: bool
) -> list[tuple[Any, ...]]:
    """Return steps with their slices; see `sqlite.read_keys`."""
    parameters = {"id": buffer_id, "seqs": number_array(seqs), "most": reach.most_bytes}
    if not reach.is_alone:
        parameters |= {
            "first": reach.first, "last": reach.last, "stride": reach.stride,
            "final_within": reach.final_within,
        }  # fmt: skip
    texts = _STEPS if reach.is_alone else _KEYS
    return fetch(connection, texts[has_versions], parameters)


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    has_versions: bool,
) -> list[tuple[Any, ...]]:
    """Return slices of ranges of episodes; see `sqlite.read_ranges`."""
    episodes, firsts, lasts = map(number_array, zip(*ranges, strict=True))
    parameters = {
        "id": buffer_id, "episodes": episodes, "firsts": firsts, "lasts": lasts,
        "most": reach.most_bytes,
    }  # fmt: skip
    return fetch(connection, _RANGES[has_versions], parameters)


def read_runs(
    connection: Connection, buffer_id: int, runs: Sequence[tuple[int, int]], parts: Parts
) -> list[tuple[Any, ...]]:
    """Return slices with all values of the steps of runs of numbers; see `sqlite.read_runs`."""
    parameters = {
        "id": buffer_id, "firsts": number_array([first for first, _ in runs]),
        "ends": number_array([first + n for first, n in runs]),
        "bytes": parts.fields, "payloads": parts.payloads, "arrays": parts.arrays,
    }  # fmt: skip
    return fetch(connection, _RUNS, parameters)


def evict_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete chunks whose steps have all left the window, a limited number at a time."""
    driver = driver_of(connection)
    while any(n_gone for (n_gone,) in driver.execute(_EVICT, (buffer_id, buffer_id))):
        pass
