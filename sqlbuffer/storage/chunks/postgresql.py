"""Inserts and evicts chunks on PostgreSQL."""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.nearby_chunk_steps import first_chunk
from sqlbuffer.storage.chunks.numbered_chunk import (
    NumberedChunk,
    end_bytes,
    fields_json,
    payloads_json,
    reward_bytes,
    stored_flags,
)
from sqlbuffer.storage.chunks.sliced_steps import Slice, pg_slice
from sqlbuffer.storage.database.transactions import driver_of, savepoint
from sqlbuffer.storage.dialects.arrays import id_array, number_array
from sqlbuffer.storage.dialects.binary_copy import (
    HEADER,
    NULL,
    TRAILER,
    bigint_array_field,
    bigint_field,
    bool_array_field,
    bytes_field,
    double_array_field,
    double_field,
    integer_field,
    jsonb_field,
    text_field,
    uuid_field,
)

_EVICT = (
    "SELECT sqlbuffer_evict_chunks_v1(%s::integer, -1, w.low_seq, 10000) FROM v_windows w "
    "WHERE w.buffer_id = %s"
)
Get = Callable[[NumberedChunk], Any]
_CHUNKS: list[tuple[str, Callable[[Any], bytes], Get]] = [
    ("first_seq", bigint_field, lambda own: own.first_seq),
    ("n_steps", integer_field, lambda own: own.chunk.n_steps),
    ("id", uuid_field, lambda own: own.chunk.id),
    ("task_id", text_field, lambda own: own.chunk.task_id),
    ("task_name", text_field, lambda own: own.chunk.task_name),
    ("agent_id", text_field, lambda own: own.chunk.agent_id),
    ("pre_agent", text_field, lambda own: own.chunk.pre_agent),
    ("episode_id", bigint_field, lambda own: own.episode_id),
    ("t", integer_field, lambda own: own.chunk.t),
    ("step", bigint_field, lambda own: own.chunk.step),
    ("steps", bigint_array_field, lambda own: own.chunk.steps),
    ("session_id", integer_field, lambda own: own.session_id),
    ("model_version", bigint_field, lambda own: own.chunk.model_version),
    ("first_time", double_field, lambda own: own.chunk.first_time),
    ("last_time", double_field, lambda own: own.chunk.last_time),
    ("times", double_array_field, lambda own: own.chunk.times),
    ("reward_t", double_array_field, lambda own: own.chunk.reward),
    ("adv_t", double_array_field, lambda own: own.chunk.adv_t),
    ("v_t", double_array_field, lambda own: own.chunk.v_t),
    ("terminated", bool_array_field, lambda own: stored_flags(own.chunk.terminated)),
    ("truncated", bool_array_field, lambda own: stored_flags(own.chunk.truncated)),
    ("initial_priority", double_array_field, lambda own: own.initial_priority),
    ("fields", jsonb_field, lambda own: fields_json(own.chunk.fields)),
]
_DATA: list[tuple[str, Callable[[Any], bytes], Get]] = [
    ("first_seq", bigint_field, lambda own: own.first_seq),
    ("n_steps", integer_field, lambda own: own.chunk.n_steps),
    ("task_id", text_field, lambda own: own.chunk.task_id),
    ("agent_id", text_field, lambda own: own.chunk.agent_id),
    ("step", bigint_field, lambda own: own.chunk.step),
    ("steps", bigint_array_field, lambda own: own.chunk.steps),
    ("episode_id", bigint_field, lambda own: own.episode_id),
    ("t", integer_field, lambda own: own.chunk.t),
    ("rewards", bytes_field, lambda own: reward_bytes(own.chunk)),
    ("ends", bytes_field, lambda own: end_bytes(own.chunk)),
    ("records", bytes_field, lambda own: own.chunk.records),
    ("block_steps", integer_field, lambda own: own.chunk.block_steps),
    ("offsets", bigint_array_field, lambda own: own.chunk.offsets),
    ("payloads", jsonb_field, lambda own: payloads_json(own.chunk.payloads)),
    ("payload_arrays", bytes_field, lambda own: own.chunk.payload_arrays),
]

_HELD_IDS = "SELECT id, seq FROM sqlbuffer_held_ids_v1(%s::integer, %s::text[])"
_INSERT_IDS = (
    "INSERT INTO step_ids (buffer_id, seq, id) "
    "SELECT %s::integer, g.seq, g.id FROM unnest(%s::bigint[], %s::text[]) AS g(seq, id)"
)


def insert_chunks(
    connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]
) -> None:
    """Write chunks under their numbers."""
    for table, columns in (("chunk_data", _DATA), ("chunks", _CHUNKS)):
        names = ", ".join(name for name, _, _ in columns)
        head = struct.pack(">hii", len(columns) + 1, 4, buffer_id)
        with (
            driver_of(connection).cursor() as cursor,
            cursor.copy(f"COPY {table} (buffer_id, {names}) FROM STDIN (FORMAT BINARY)") as copy,
        ):
            copy.write(b"".join([HEADER, *_rows(head, columns, numbered), TRAILER]))


def held_ids(connection: Connection, buffer_id: int, ids: Sequence[str]) -> list[tuple[str, int]]:
    """Return which of the ids steps have, with their numbers; note that the buffer has such ids.

    The id of a step that has left the window, or was deleted, is free again.
    """
    return list(driver_of(connection).execute(_HELD_IDS, (buffer_id, id_array(ids))))


def insert_ids(connection: Connection, buffer_id: int, ids: Mapping[int, str]) -> None:
    """Write the ids that users gave to steps, by their numbers.

    Raises:
        UniqueViolation: Another writer has committed one of the ids. The transaction goes on.
    """
    values = (buffer_id, number_array(ids), id_array(list(ids.values())))
    with savepoint(connection):
        driver_of(connection).execute(_INSERT_IDS, values)


def _rows(head: bytes, columns: Any, numbered: Sequence[NumberedChunk]) -> Iterator[bytes]:
    for own in numbered:
        yield head
        for _, encode, get in columns:
            value = get(own)
            yield NULL if value is None else encode(value)


_FIRST = first_chunk("%(id)s::integer", "w.episode_id", "w.first_t")
_SLICES = f"""
SELECT d.first_seq + d.place, d.episode_id, d.t + d.place, d.place, d.n,
    {pg_slice("%(id)s::integer")}
FROM unnest(%(episodes)s::bigint[], %(firsts)s::integer[], %(lasts)s::integer[])
    AS w(episode_id, first_t, last_t)
CROSS JOIN LATERAL (
    SELECT k.first_seq FROM chunks k
    WHERE k.buffer_id = %(id)s::integer AND k.episode_id = w.episode_id
      AND k.t >= {_FIRST} AND k.t <= w.last_t OFFSET 0
) c
CROSS JOIN LATERAL (
    SELECT q.*, greatest(0, w.first_t - q.t) AS place,
        least(q.n_steps - 1, w.last_t - q.t) - greatest(0, w.first_t - q.t) + 1 AS n
    FROM chunk_data q
    WHERE q.buffer_id = %(id)s::integer AND q.first_seq = c.first_seq LIMIT 1
) d
WHERE d.n > 0
"""


def read_slices(
    connection: Connection, buffer_id: int, ranges: Sequence[tuple[int, int, int]]
) -> list[Slice]:
    """Return slices of chunks; see `sqlite.read_slices`."""
    episodes, firsts, lasts = map(number_array, zip(*ranges, strict=True))
    parameters = {"id": buffer_id, "episodes": episodes, "firsts": firsts, "lasts": lasts}
    return list(map(Slice._make, driver_of(connection).execute(_SLICES, parameters)))


def evict_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete the chunks of which all steps have left the window, a limited number at a time."""
    driver = driver_of(connection)
    while any(n_gone for (n_gone,) in driver.execute(_EVICT, (buffer_id, buffer_id))):
        pass
