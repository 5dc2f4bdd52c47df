"""Insert batches on PostgreSQL."""

import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.buffers.writes import WriteId
from sqlbuffer.storage.chunks.numbered_chunk import NumberedChunk
from sqlbuffer.storage.database.transactions import driver_of, savepoint
from sqlbuffer.storage.dialects.arrays import (
    HEADER,
    TRAILER,
    bigint_field,
    bool_field,
    bytes_field,
    double_field,
    fields_of,
    id_array,
    integer_field,
    jsonb_field,
    real_array,
    rows_of,
    text_field,
)
from sqlbuffer.storage.writing.reservation import ReservedSeqs

# Column -> its binary COPY form, for the columns of a record that need no other table.
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("id", "task_id", "task_name", "agent_id", "pre_agent"), text_field),
    **dict.fromkeys(("step", "model_version"), bigint_field),
    "t": integer_field,
    **dict.fromkeys(("execute_time", "reward_t", "adv_t", "v_t"), double_field),
    **dict.fromkeys(("state", "actions", "messages", "extra", "fields"), jsonb_field),
    **dict.fromkeys(("terminated", "truncated"), bool_field),
    "arrays": bytes_field,
    "payload_bytes": bigint_field,
}
_FIELDS = [(Record._fields.index(name), encode) for name, encode in _ENCODE.items()]
_PRIORITY = Record._fields.index("initial_priority")
_COPY_COLUMNS = ", ".join(
    ["buffer_id", "seq", "episode_id", "session_id", *_ENCODE, "initial_priority"]
)
_COPY = f"COPY experiences ({_COPY_COLUMNS}) FROM STDIN (FORMAT BINARY)"
_ROW_HEAD = struct.Struct(">hii")
_RESERVE_STEPS = (
    "SELECT first_seq, priority FROM sqlbuffer_reserve_steps_v1(%s::integer, %s::bigint, "
    "%s::double precision, %s::uuid, %s::double precision)"
)
_RESERVE = (
    "SELECT held, first_seq, priority FROM sqlbuffer_reserve_seqs_v1(%s::integer, %s::text[], "
    "%s::double precision[], %s::uuid, %s::double precision)"
)


def reserve_steps(
    connection: Connection,
    buffer_id: int,
    n: int,
    largest: float | None = None,
    note: WriteId | None = None,
) -> tuple[int, float | None]:
    """Reserve n consecutive numbers, at least one; return the first, and a default priority.

    Steps without a given priority get the default. The largest given priority and the id of the
    write are stored. Writers of the buffer wait for each other only inside this statement.
    """
    write_id, keep_s = (None, None) if note is None else (note.write_id, note.keep_s)
    ((first_seq, priority),) = driver_of(connection).execute(
        _RESERVE_STEPS, (buffer_id, n, largest, write_id, keep_s)
    )
    return int(first_seq), priority


def after_chunks(connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]) -> None:
    """Do nothing: a trigger evicts, and adds the steps to their rollouts."""


def reserve_seqs(
    connection: Connection,
    buffer_id: int,
    ids: Sequence[str],
    priorities: Sequence[float | None] | None = None,
    note: WriteId | None = None,
) -> ReservedSeqs:
    """Return the ids that the buffer holds, and consecutive numbers for the others.

    The largest given priority is stored, and the id of the write if there is one to store.
    """
    reals = None if priorities is None else real_array(priorities)
    write_id, keep_s = (None, None) if note is None else (note.write_id, note.keep_s)
    ((held, first_seq, priority),) = driver_of(connection).execute(
        _RESERVE, (buffer_id, id_array(ids), reals, write_id, keep_s)
    )
    start = first_seq or 0
    return ReservedSeqs(set(held), range(start, start + len(ids) - len(held)), priority)


def insert_records(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    records: Sequence[Record],
    episode_ids: Sequence[int | None],
    session_ids: Sequence[int | None],
    priority: float | None = None,
    *,
    guarded: bool = True,
) -> None:
    """Write records under their numbers; `priority` is for records without a given one.

    Raises:
        UniqueViolation: Another writer has committed one of the ids. If the insert was guarded, the
            transaction continues.
    """
    rows = copied_rows(buffer_id, seqs, records, episode_ids, session_ids, priority)
    with (
        savepoint(connection) if guarded else nullcontext(),
        driver_of(connection).cursor() as cursor,
        cursor.copy(_COPY) as copy,
    ):
        copy.write(b"".join([HEADER, rows, TRAILER]))


def copied_rows(
    buffer_id: int,
    seqs: Sequence[int],
    records: Sequence[Record],
    episode_ids: Sequence[int | None],
    session_ids: Sequence[int | None],
    priority: float | None = None,
) -> bytes:
    """Return the body of a COPY."""
    values = list(zip(*records, strict=True))
    given = values[_PRIORITY]
    columns = [
        fields_of(seqs, bigint_field),
        fields_of(episode_ids, bigint_field),
        fields_of(session_ids, integer_field),
        *(fields_of(values[i], encode) for i, encode in _FIELDS),
        fields_of([priority if own is None else own for own in given], double_field),
    ]
    return rows_of(len(records), _ROW_HEAD.pack(len(columns) + 1, 4, buffer_id), columns)
