"""Reserve the numbers of a write, and insert its rows, on both databases."""

import json
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

from sqlalchemy import Connection

from sqlbuffer.encoding.chunks import PackedChunk
from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import StorageError
from sqlbuffer.steps import PAYLOADS
from sqlbuffer.storage.buffers.window import count_full_blocks
from sqlbuffer.storage.buffers.writes import WriteId
from sqlbuffer.storage.chunks.numbered_chunks import NumberedChunks
from sqlbuffer.storage.database.errors import NO_BUFFER
from sqlbuffer.storage.database.transactions import driver_of, savepoint
from sqlbuffer.storage.dialects import (
    HEADER,
    TRAILER,
    bigint_field,
    bool_field,
    by_database,
    bytes_field,
    double_field,
    fields_of,
    id_array,
    insert_columns,
    integer_arrays,
    integer_field,
    jsonb_field,
    real_array,
    rows_of,
    text_field,
)
from sqlbuffer.storage.episodes import LastStep, sqlite_settle_episodes
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.messages import share
from sqlbuffer.storage.retention.eviction import sqlite_evict
from sqlbuffer.storage.rollout_stats import AddedSteps, sqlite_add_chunks, sqlite_add_steps
from sqlbuffer.storage.rows.removal import remove_rows
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS
from sqlbuffer.storage.writing.row_places import RowPlaces


class ReservedSeqs(NamedTuple):
    """Numbers for a batch.

    Attributes:
        held: The ids that the buffer holds.
        seqs: Consecutive numbers for the others.
        priority: Initial priority of rows without a given one; None if the buffer has no
            priorities.
    """

    held: set[str]
    seqs: range
    priority: float | None = None


_SIZED_COLUMNS = (*PAYLOADS, "fields", "arrays")
# With a null among its arguments max() is null.
_SQLITE_RESERVE = (
    "UPDATE buffers SET next_seq = next_seq + :n, "
    "max_priority = coalesce(max(max_priority, :given), max_priority, :given) WHERE id = :id "
    "RETURNING next_seq, CASE WHEN has_priorities THEN coalesce(max_priority, 1.0) END"
)


def _sqlite_reserve_steps(
    connection: Connection,
    buffer_id: int,
    n: int,
    largest: float | None = None,
    note: WriteId | None = None,
) -> tuple[int, float | None]:
    """Reserve n consecutive numbers, at least one; return the first, and a default priority.

    Steps without a given priority get the default. The largest given priority is stored.
    """
    parameters = {"n": n, "given": largest, "id": buffer_id}
    row = driver_of(connection).execute(_SQLITE_RESERVE, parameters).fetchone()
    if row is None:
        raise _no_buffer(buffer_id)
    end, priority = row
    _check_numbers(end)
    return end - n, priority


def _sqlite_after_chunks(connection: Connection, buffer_id: int, numbered: NumberedChunks) -> None:
    """Evict rows after a write of chunks, count full blocks, and add steps to their rollouts."""
    sqlite_evict(connection, buffer_id)
    first_seq = numbered.first_seqs[0]
    count_full_blocks(connection, buffer_id, range(first_seq, first_seq + numbered.n_steps))
    sqlite_add_chunks(connection, buffer_id, numbered)
    last_places = {episode_id: i for i, episode_id in enumerate(numbered.episode_ids)}
    sqlite_settle_episodes(
        connection,
        [
            _last_step(numbered.chunks[i], episode_id)
            for episode_id, i in last_places.items()
            if episode_id is not None
        ],
    )


def _last_step(chunk: PackedChunk, episode_id: int) -> LastStep:
    last = chunk.n_steps - 1
    flags = (chunk.terminated, chunk.truncated)
    ends = any(flag is not None and bool(flag[last]) for flag in flags)
    return episode_id, (chunk.t or 0) + last, ends


def _sqlite_reserve_seqs(
    connection: Connection,
    buffer_id: int,
    ids: Sequence[str],
    priorities: Sequence[float | None] | None = None,
    note: WriteId | None = None,
) -> ReservedSeqs:
    """Return the ids that the buffer holds, and numbers for the others.

    The largest given priority is stored.
    """
    low = connection.exec_driver_sql(
        "SELECT low_seq FROM v_windows WHERE buffer_id = ?", (buffer_id,)
    ).scalar_one_or_none()
    if low is None:
        raise _no_buffer(buffer_id)
    rows = connection.exec_driver_sql(
        "SELECT id, seq FROM experiences WHERE buffer_id = ? AND id IN (SELECT value FROM "
        "json_each(?))",
        (buffer_id, json.dumps(list(ids))),
    ).all()
    _free_ids(connection, buffer_id, [seq for _, seq in rows if seq <= low])
    held = {id_ for id_, seq in rows if seq > low}
    n = len(ids) - len(held)
    given_priorities = [
        priority
        for id_, priority in zip(ids, priorities or (), strict=False)
        if priority is not None and id_ not in held
    ]
    end, priority = connection.exec_driver_sql(
        _SQLITE_RESERVE, {"n": n, "given": max(given_priorities, default=None), "id": buffer_id}
    ).one()
    _check_numbers(end)
    return ReservedSeqs(held, range(end - n, end), priority)


def _free_ids(connection: Connection, buffer_id: int, left_seqs: Sequence[int]) -> None:
    """Make the ids of rows that have left the window free: held rows lose their ids."""
    if not left_seqs:
        return
    hold_low = held_low(connection, buffer_id)
    bound = MOST_NUMBERS if hold_low is None else hold_low
    remove_rows(connection, buffer_id, [seq for seq in left_seqs if seq <= bound])
    connection.exec_driver_sql(
        f"UPDATE experiences SET id = NULL WHERE key IN "
        f"(SELECT (:id << {NUMBER_BITS}) + value FROM json_each(:seqs))",
        {"id": buffer_id, "seqs": json.dumps([seq for seq in left_seqs if seq > bound])},
    )


def _no_buffer(buffer_id: int) -> sqlite3.IntegrityError:
    return sqlite3.IntegrityError(f"{NO_BUFFER} with buffer_id {buffer_id}")


def _check_numbers(end: int) -> None:
    if end > MOST_NUMBERS:
        raise StorageError(
            f"the buffer has used all its {MOST_NUMBERS - 1:,} numbers, including those of rows "
            f"that have left; make another buffer, and copy the rows to keep"
        )


def _sqlite_insert_records(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    places: RowPlaces,
    episode_ids: Sequence[int | None],
    session_ids: Sequence[int | None],
    priority: float | None = None,
    *,
    guarded: bool = True,
    shares_messages: bool = False,
) -> None:
    """Write records under their numbers; `priority` is for records without a given one.

    There is no savepoint: inside one each row's trigger reads the journal in memory from its start.
    10,000 rows in a full buffer then take six times as long.
    """
    places.make_room(connection, buffer_id)
    records, message_ids = _messages_of(connection, buffer_id, seqs, places, shares_messages)
    fields = dict(zip(Record._fields, zip(*records, strict=True), strict=True))
    columns: dict[str, Sequence[Any]] = {
        "key": [buffer_id << NUMBER_BITS | seq for seq in seqs],
        "buffer_id": [buffer_id] * len(seqs),
        "seq": seqs,
        "episode_id": episode_ids,
        "session_id": session_ids,
        **{name: values for name, values in fields.items() if not name.endswith("_key")},
        "message_ids": [None if ids is None else json.dumps(ids) for ids in message_ids or ()],
        "initial_priority": [priority if p is None else p for p in fields["initial_priority"]],
    }
    n_bytes = sum(
        len(value) for name in _SIZED_COLUMNS for value in fields[name] if value is not None
    )
    insert_columns(connection, "experiences", columns, n_bytes)
    sqlite_evict(connection, buffer_id)
    count_full_blocks(connection, buffer_id, seqs)
    added = AddedSteps.of_rows(fields["task_id"], episode_ids, fields["reward_t"], seqs)
    sqlite_add_steps(connection, buffer_id, added)
    last_steps: dict[int, LastStep] = {}
    for episode_id, record in zip(episode_ids, records, strict=True):
        if episode_id is None or record.t is None:
            continue
        if episode_id not in last_steps or record.t > last_steps[episode_id][1]:
            ends = bool(record.terminated or record.truncated)
            last_steps[episode_id] = episode_id, record.t, ends
    sqlite_settle_episodes(connection, list(last_steps.values()))


# Column -> its binary COPY form, for the columns of a record that need no other table.
_ENCODE: dict[str, Callable[[Any], bytes]] = {
    **dict.fromkeys(("id", "task_id", "task_name", "agent_id", "pre_agent"), text_field),
    **dict.fromkeys(("step", "model_version"), bigint_field),
    "t": integer_field,
    **dict.fromkeys(("execute_time", "reward_t", "adv_t", "v_t"), double_field),
    **dict.fromkeys((*PAYLOADS, "fields"), jsonb_field),
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
_COPY_SHARED = f"COPY experiences ({_COPY_COLUMNS}, message_ids) FROM STDIN (FORMAT BINARY)"
_ROW_HEAD = struct.Struct(">hii")
_RESERVE_STEPS = (
    "SELECT first_seq, priority FROM sqlbuffer_reserve_steps_v1(%s::integer, %s::bigint, "
    "%s::double precision, %s::uuid, %s::double precision)"
)
_POSTGRESQL_RESERVE = (
    "SELECT held, first_seq, priority FROM sqlbuffer_reserve_seqs_v1(%s::integer, %s::text[], "
    "%s::double precision[], %s::uuid, %s::double precision)"
)


def _postgresql_reserve_steps(
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


def _postgresql_after_chunks(
    connection: Connection, buffer_id: int, numbered: NumberedChunks
) -> None:
    """Do nothing: a trigger evicts, and adds the steps to their rollouts."""


def _postgresql_reserve_seqs(
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
        _POSTGRESQL_RESERVE, (buffer_id, id_array(ids), reals, write_id, keep_s)
    )
    start = first_seq or 0
    return ReservedSeqs(set(held), range(start, start + len(ids) - len(held)), priority)


def _postgresql_insert_records(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    places: RowPlaces,
    episode_ids: Sequence[int | None],
    session_ids: Sequence[int | None],
    priority: float | None = None,
    *,
    guarded: bool = True,
    shares_messages: bool = False,
) -> None:
    """Write records under their numbers; `priority` is for records without a given one."""
    with savepoint(connection) if guarded else nullcontext():
        places.make_room(connection, buffer_id)
        records, message_ids = _messages_of(connection, buffer_id, seqs, places, shares_messages)
        rows = copied_rows(
            buffer_id, seqs, records, episode_ids, session_ids, priority, message_ids
        )
        statement = _COPY if message_ids is None else _COPY_SHARED
        with driver_of(connection).cursor() as cursor, cursor.copy(statement) as copy:
            copy.write(b"".join([HEADER, rows, TRAILER]))


def _messages_of(
    connection: Connection, buffer_id: int, seqs: Sequence[int], places: RowPlaces, shares: bool
) -> tuple[Sequence[Record], list[list[int] | None] | None]:
    """Return records as they are stored, and the ids of their messages where these are shared."""
    if not shares:
        return places.records, None
    texts = [record.messages for record in places.records]
    lists = share(connection, buffer_id, zip(seqs, texts, strict=True))
    records = [
        record if one is None else record._replace(messages=one.own)
        for record, one in zip(places.records, lists, strict=True)
    ]
    return records, [None if one is None else one.ids for one in lists]


def copied_rows(
    buffer_id: int,
    seqs: Sequence[int],
    records: Sequence[Record],
    episode_ids: Sequence[int | None],
    session_ids: Sequence[int | None],
    priority: float | None = None,
    message_ids: Sequence[Sequence[int] | None] | None = None,
) -> bytes:
    """Return the body of a COPY; with `message_ids`, of `_COPY_SHARED`."""
    values = list(zip(*records, strict=True))
    priorities = values[_PRIORITY]
    columns = [
        fields_of(seqs, bigint_field),
        fields_of(episode_ids, bigint_field),
        fields_of(session_ids, integer_field),
        *(fields_of(values[i], encode) for i, encode in _FIELDS),
        fields_of(
            [
                priority if given_priority is None else given_priority
                for given_priority in priorities
            ],
            double_field,
        ),
    ]
    if message_ids is not None:
        columns.append(integer_arrays(message_ids))
    return rows_of(len(records), _ROW_HEAD.pack(len(columns) + 1, 4, buffer_id), columns)


reserve_steps = by_database(sqlite=_sqlite_reserve_steps, postgresql=_postgresql_reserve_steps)
after_chunks = by_database(sqlite=_sqlite_after_chunks, postgresql=_postgresql_after_chunks)
reserve_seqs = by_database(sqlite=_sqlite_reserve_seqs, postgresql=_postgresql_reserve_seqs)
insert_records = by_database(sqlite=_sqlite_insert_records, postgresql=_postgresql_insert_records)
