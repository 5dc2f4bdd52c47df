"""Inserts chunks on PostgreSQL."""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.storage.chunks.numbered_chunk import (
    NumberedChunk,
    end_bytes,
    fields_json,
    payloads_json,
    reward_bytes,
    stored_flags,
)
from sqlbuffer.storage.database.transactions import driver_of
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
    ("rewards", bytes_field, lambda own: reward_bytes(own.chunk)),
    ("ends", bytes_field, lambda own: end_bytes(own.chunk)),
    ("records", bytes_field, lambda own: own.chunk.records),
    ("block_steps", integer_field, lambda own: own.chunk.block_steps),
    ("offsets", bigint_array_field, lambda own: own.chunk.offsets),
    ("payloads", jsonb_field, lambda own: payloads_json(own.chunk.payloads)),
    ("payload_arrays", bytes_field, lambda own: own.chunk.payload_arrays),
]


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


def _rows(head: bytes, columns: Any, numbered: Sequence[NumberedChunk]) -> Iterator[bytes]:
    for own in numbered:
        yield head
        for _, encode, get in columns:
            value = get(own)
            yield NULL if value is None else encode(value)
