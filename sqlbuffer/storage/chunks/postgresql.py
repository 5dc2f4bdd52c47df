"""Inserts, reads and evicts chunks on PostgreSQL."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.encoding.chunks import ChunkColumns
from sqlbuffer.encoding.episode_records import PlacedEpisode
from sqlbuffer.storage.buffers.writes import WriteId
from sqlbuffer.storage.chunks.numbered_chunks import (
    NumberedChunks,
    fields_json,
    flag_columns,
    numbered_chunks,
    payloads_json,
    reward_column,
)
from sqlbuffer.storage.chunks.relations import pg_chunk_of
from sqlbuffer.storage.chunks.slices import Parts, Reach
from sqlbuffer.storage.database.pipelines import Statement, run_statement
from sqlbuffer.storage.database.transactions import driver_of, fetch, savepoint
from sqlbuffer.storage.dialects import (
    Fields,
    Oid,
    bigint_array_fields,
    bigint_field,
    bool_array_fields,
    bool_field,
    bytes_field,
    composite_array,
    double_array_fields,
    double_field,
    fields_of,
    id_array,
    integer_field,
    jsonb_field,
    number_array,
    text_field,
    time_field,
    uuid_field,
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


# Chunks that one call sends: the server holds all of them in memory.
MOST_BYTES = 2**24
_TYPE, _EPISODE_TYPE = "packed_chunk_v1", "packed_episode_v1"
_TYPE_OIDS = "sqlbuffer_packed_oids"  # in the notes of a connection
_FIND_TYPES = f"SELECT '{_TYPE}'::regtype::oid, '{_EPISODE_TYPE}'::regtype::oid"
_INSERT = f"SELECT sqlbuffer_insert_chunks_v1($1::integer, 0, NULL, $2::{_TYPE}[])"
_STORE = (
    "SELECT first_seq FROM sqlbuffer_store_chunks_v1($1::integer, $2::bigint, "
    f"$3::double precision, $4::uuid, $5::double precision, $6::boolean, $7::{_TYPE}[], "
    f"$8::{_EPISODE_TYPE}[])"
)


def sizes_of(chunks: ChunkColumns) -> list[int]:
    """Return the approximate size of what is sent of each chunk."""
    sizes = list(map(len, chunks.column("records")))
    for name, size_of in (("payload_arrays", len), ("payloads", _n_characters)):
        if chunks.has(name):
            column = chunks.column(name)
            sizes = [size + size_of(value or ()) for size, value in zip(sizes, column, strict=True)]
    return sizes


def _n_characters(texts: Sequence[str | None]) -> int:
    return sum(map(len, filter(None, texts)))


def insert_chunks(connection: Connection, buffer_id: int, numbered: NumberedChunks) -> None:
    """Write chunks under their numbers."""
    start = n_bytes = 0
    for place, size in enumerate(sizes_of(numbered.chunks)):
        n_bytes += size
        if place > start and n_bytes > MOST_BYTES:
            _insert(connection, buffer_id, numbered.part(slice(start, place)))
            start, n_bytes = place, size
    _insert(connection, buffer_id, numbered.part(slice(start, None)) if start else numbered)


def _insert(connection: Connection, buffer_id: int, numbered: NumberedChunks) -> None:
    values = (b"%d" % buffer_id, _packed(connection, numbered))
    run_statement(connection, Statement(_INSERT, values, (False, True)))


def store_chunks(
    connection: Connection,
    buffer_id: int,
    packed: ChunkColumns,
    episodes: Sequence[PlacedEpisode],
    largest: float | None,
    note: WriteId | None,
) -> Statement:
    """Return the statement that numbers and inserts chunks.

    It returns the first number; None: an episode is not as it was expected, and nothing is stored.

    Args:
        connection: The connection that will run it.
        buffer_id: The buffer.
        packed: The chunks, of steps without sessions.
        episodes: Their episodes, in the order of their keys.
        largest: The largest given priority of the steps.
        note: The id of the write.
    """
    # Both are places, which the server adds to the numbers that it takes.
    numbered = numbered_chunks(packed, 0, None, episodes, range(1, len(episodes) + 1))
    values = (
        b"%d" % buffer_id,
        b"%d" % numbered.n_steps,
        None if largest is None else repr(largest).encode(),
        None if note is None else note.write_id.encode(),
        None if note is None else b"%f" % note.keep_s,
        b"t" if note is not None and note.is_repeated else b"f",
        _packed(connection, numbered),
        _packed_episodes(connection, episodes) if episodes else None,
    )
    return Statement(_STORE, values, (False,) * 6 + (True, True))


def _type_oids(connection: Connection) -> tuple[int, int]:
    """Return the numbers of the types of chunks and of episodes."""
    notes = connection.info
    if _TYPE_OIDS not in notes:
        (row,) = run_statement(connection, Statement(_FIND_TYPES))
        notes[_TYPE_OIDS] = tuple(int(oid or 0) for oid in row)
    oids: tuple[int, int] = notes[_TYPE_OIDS]
    return oids


_EPISODE_FIELDS: tuple[tuple[Oid, Callable[[Any], bytes]], ...] = (
    (Oid.TEXT, text_field),
    (Oid.TEXT, text_field),
    (Oid.TEXT, text_field),
    (Oid.TEXT, text_field),
    (Oid.TEXT, text_field),
    (Oid.BIGINT, bigint_field),
    (Oid.JSONB, jsonb_field),
    (Oid.INTEGER, integer_field),
    (Oid.UUID, uuid_field),
    (Oid.BOOLEAN, bool_field),
    (Oid.BIGINT, bigint_field),
    (Oid.BIGINT, bigint_field),
    (Oid.TEXT, text_field),
    (Oid.DOUBLE, double_field),
    (Oid.BYTES, bytes_field),
)  # in the order of the type


def _packed_episodes(connection: Connection, episodes: Sequence[PlacedEpisode]) -> bytes:
    """Return episodes as an array of the server."""
    columns = [
        (oid, fields_of(values, encode))
        for values, (oid, encode) in zip(zip(*episodes, strict=True), _EPISODE_FIELDS, strict=True)
    ]
    return composite_array(_type_oids(connection)[1], len(episodes), columns)


def _packed(connection: Connection, numbered: NumberedChunks) -> bytes:
    """Return chunks as an array of the server; their numbers are places."""
    packed = numbered.chunks
    flags, times = flag_columns(packed), numbered.inserted_at or [None] * len(packed)

    def fields(name: str, encode: Callable[[Any], bytes]) -> Fields:
        return fields_of(packed.column(name), encode)

    # In the order of the type.
    columns: list[tuple[int, Fields]] = [
        (Oid.BIGINT, fields_of(numbered.first_seqs, bigint_field)),
        (Oid.INTEGER, fields("n_steps", integer_field)),
        (Oid.UUID, uuid_fields(packed.column("id"))),
        (Oid.TEXT, fields("task_id", text_field)),
        (Oid.TEXT, fields("task_name", text_field)),
        (Oid.TEXT, fields("agent_id", text_field)),
        (Oid.TEXT, fields("pre_agent", text_field)),
        (Oid.BIGINT, fields_of(numbered.episode_ids, bigint_field)),
        (Oid.INTEGER, fields("t", integer_field)),
        (Oid.BIGINT, fields("step", bigint_field)),
        (Oid.BIGINTS, bigint_array_fields(packed.column("steps"))),
        (Oid.INTEGER, fields_of(numbered.session_ids, integer_field)),
        (Oid.BIGINT, fields("model_version", bigint_field)),
        (Oid.DOUBLE, fields("first_time", double_field)),
        (Oid.DOUBLE, fields("last_time", double_field)),
        (Oid.DOUBLES, double_array_fields(packed.column("times"))),
        (Oid.DOUBLES, double_array_fields(packed.column("reward"))),
        (Oid.DOUBLES, double_array_fields(packed.column("adv_t"))),
        (Oid.DOUBLES, double_array_fields(packed.column("v_t"))),
        (Oid.BOOLEANS, bool_array_fields(flags.terminated)),
        (Oid.BOOLEANS, bool_array_fields(flags.truncated)),
        (Oid.DOUBLES, double_array_fields(numbered.initial_priorities())),
        (Oid.JSONB, fields_of(list(map(fields_json, packed.column("fields"))), jsonb_field)),
        (Oid.TIME, fields_of(times, time_field)),
        (Oid.INTEGER, fields("block_steps", integer_field)),
        (Oid.INTEGER, fields("layout", integer_field)),
        (Oid.BIGINTS, bigint_array_fields(packed.column("offsets"))),
        (Oid.BYTES, fields_of(reward_column(packed), bytes_field)),
        (Oid.BYTES, fields_of(flags.ends, bytes_field)),
        (Oid.BYTES, fields("records", bytes_field)),
        (Oid.JSONB, fields_of(list(map(payloads_json, packed.column("payloads"))), jsonb_field)),
        (Oid.BYTES, fields("payload_arrays", bytes_field)),
    ]
    return composite_array(_type_oids(connection)[0], len(packed), columns)


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
