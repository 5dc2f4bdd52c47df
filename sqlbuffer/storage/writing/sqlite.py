"""Insert batches on SQLite."""

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import StorageError
from sqlbuffer.storage.buffers.sqlite import count_full_blocks
from sqlbuffer.storage.buffers.writes import WriteId
from sqlbuffer.storage.chunks.numbered_chunk import NumberedChunk
from sqlbuffer.storage.database.errors import NO_BUFFER
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.column_inserts import insert_columns
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.retention.sqlite import evict
from sqlbuffer.storage.rollout_stats import AddedSteps, sqlite_add_steps
from sqlbuffer.storage.rows.sqlite import remove_rows
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS
from sqlbuffer.storage.writing.reservation import ReservedSeqs

_PAYLOADS = ("state", "actions", "messages", "extra", "fields", "arrays")
# With a null among its arguments max() is null.
_RESERVE = (
    "UPDATE buffers SET next_seq = next_seq + :n, "
    "max_priority = coalesce(max(max_priority, :given), max_priority, :given) WHERE id = :id "
    "RETURNING next_seq, CASE WHEN has_priorities THEN coalesce(max_priority, 1.0) END"
)


def reserve_steps(
    connection: Connection,
    buffer_id: int,
    n: int,
    largest: float | None = None,
    note: WriteId | None = None,
) -> tuple[int, float | None]:
    """Reserve n consecutive numbers, at least one; return the first, and a default priority.

    Steps without a given priority get the default. The largest given priority is stored.
    """
    given = {"n": n, "given": largest, "id": buffer_id}
    found = driver_of(connection).execute(_RESERVE, given).fetchone()
    if found is None:
        raise _no_buffer(buffer_id)
    end, priority = found
    _check_numbers(end)
    return end - n, priority


def after_chunks(connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]) -> None:
    """Evict rows after a write of chunks, count full blocks, and add steps to their rollouts."""
    evict(connection, buffer_id)
    first, last = numbered[0], numbered[-1]
    seqs = range(first.first_seq, last.first_seq + last.chunk.n_steps)
    count_full_blocks(connection, buffer_id, seqs)
    sqlite_add_steps(connection, buffer_id, AddedSteps.of_chunks(numbered))


def reserve_seqs(
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
    found = connection.exec_driver_sql(
        "SELECT id, seq FROM experiences WHERE buffer_id = ? AND id IN (SELECT value FROM "
        "json_each(?))",
        (buffer_id, json.dumps(list(ids))),
    ).all()
    _free_ids(connection, buffer_id, [seq for _, seq in found if seq <= low])
    held = {id_ for id_, seq in found if seq > low}
    n = len(ids) - len(held)
    given = [
        priority
        for id_, priority in zip(ids, priorities or (), strict=False)
        if priority is not None and id_ not in held
    ]
    end, priority = connection.exec_driver_sql(
        _RESERVE, {"n": n, "given": max(given, default=None), "id": buffer_id}
    ).one()
    _check_numbers(end)
    return ReservedSeqs(held, range(end - n, end), priority)


def _free_ids(connection: Connection, buffer_id: int, left: Sequence[int]) -> None:
    """Make the ids of rows that have left the window free: held rows lose their ids."""
    if not left:
        return
    held = held_low(connection, buffer_id)
    bound = MOST_NUMBERS if held is None else held
    remove_rows(connection, buffer_id, [seq for seq in left if seq <= bound])
    connection.exec_driver_sql(
        f"UPDATE experiences SET id = NULL WHERE key IN "
        f"(SELECT (:id << {NUMBER_BITS}) + value FROM json_each(:seqs))",
        {"id": buffer_id, "seqs": json.dumps([seq for seq in left if seq > bound])},
    )


def _no_buffer(buffer_id: int) -> sqlite3.IntegrityError:
    return sqlite3.IntegrityError(f"{NO_BUFFER} with buffer_id {buffer_id}")


def _check_numbers(end: int) -> None:
    if end > MOST_NUMBERS:
        raise StorageError(
            f"the buffer has used all its {MOST_NUMBERS - 1:,} numbers, including those of rows "
            f"that have left; make another buffer, and copy the rows to keep"
        )


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

    There is no savepoint: inside one each row's trigger reads the journal in memory from its start.
    10,000 rows in a full buffer then take six times as long.
    """
    given = dict(zip(Record._fields, zip(*records, strict=True), strict=True))
    columns: dict[str, Sequence[Any]] = {
        "key": [buffer_id << NUMBER_BITS | seq for seq in seqs],
        "buffer_id": [buffer_id] * len(seqs),
        "seq": seqs,
        "episode_id": episode_ids,
        "session_id": session_ids,
        **{name: values for name, values in given.items() if not name.endswith("_key")},
        "initial_priority": [priority if p is None else p for p in given["initial_priority"]],
    }
    n_bytes = sum(len(value) for name in _PAYLOADS for value in given[name] if value is not None)
    insert_columns(connection, "experiences", columns, n_bytes)
    evict(connection, buffer_id)
    count_full_blocks(connection, buffer_id, seqs)
    added = AddedSteps.of_rows(given["task_id"], episode_ids, given["reward_t"], seqs)
    sqlite_add_steps(connection, buffer_id, added)
