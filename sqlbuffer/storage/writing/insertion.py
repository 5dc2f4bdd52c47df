"""Insert a batch: existing ids, and races of writers."""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from sqlalchemy import Connection

from sqlbuffer.encoding.records import Record, same_content
from sqlbuffer.steps.store_result import StoreResult
from sqlbuffer.storage.buffers.applied_writes import WriteOnce
from sqlbuffer.storage.buffers.locks import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.errors import ProgramLimitExceeded, UniqueViolation, too_large
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes import keys, lifecycle
from sqlbuffer.storage.episodes.keys import EpisodeKey
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.payload_parts import Payloads, without_parts
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.writing import postgresql, sqlite
from sqlbuffer.storage.writing.write_batch import WriteBatch

ID = 1 + Record._fields.index("id")

reserve_seqs = by_database(sqlite=sqlite.reserve_seqs, postgresql=postgresql.reserve_seqs)
insert_records = by_database(sqlite=sqlite.insert_records, postgresql=postgresql.insert_records)


def insert_batch(
    connection: Connection,
    buffer: OpenBuffer,
    payloads: Payloads,
    batch: WriteBatch,
    once: WriteOnce[StoreResult] | None = None,
    *,
    guarded: bool = True,
) -> StoreResult:
    """Insert the rows whose ids the buffer does not hold, all or none, in a transaction.

    Args:
        connection: The transaction.
        buffer: The buffer.
        payloads: Writes and reads the parts of rows.
        batch: The batch; may be empty.
        once: Makes the transaction take effect once, if the id of the write must be stored here.
        guarded: Another writer may commit one of the ids during the insert.

    Raises:
        EpisodeExistsError: `whole` is open, or was aborted.
    """
    of_ids, buffer_id, whole = _by_id(batch.records), buffer.info.id, batch.whole
    rows_of = partial(_rows_of_ids, connection, buffer_id, payloads)
    held_length = _held_length(connection, buffer_id, whole)
    if held_length is not None:
        refused = held_length != len(of_ids)
        return _compared(buffer, batch, of_ids, {}, rows_of(set(of_ids)), refused=refused)
    numbers: dict[str, int] = {}
    given = [record.initial_priority for record in of_ids.values()]
    priorities = given if given.count(None) < len(given) else None
    reserved = reserve_seqs(
        connection, buffer_id, list(of_ids), priorities, None if once is None else once.note
    )
    held = reserved.held
    # Read before the insert, which may evict them.
    stored = rows_of(held)
    refused = whole is not None and bool(held)
    while not refused:
        new = [record for record in of_ids.values() if record.id not in held]
        seqs = reserved.seqs[: len(new)]
        numbers = {record.id: seq for record, seq in zip(new, seqs, strict=True)}
        if not new:
            break
        try:
            insert_records(
                connection,
                buffer_id,
                seqs,
                without_parts(new),
                keys.episode_ids(connection, buffer_id, new, batch.metas),
                keys.session_ids(connection, buffer_id, new),
                reserved.priority,
                guarded=guarded,
            )
            payloads.insert(connection, zip(seqs, new, strict=True))
            break
        except ProgramLimitExceeded as error:
            raise too_large(error, [record.id for record in new]) from error
        except UniqueViolation:
            # Another writer has committed some of the ids since. The numbers stay reserved for this
            # one.
            found = rows_of({record.id for record in new}) if guarded else {}
            if not found:
                raise
            numbers = {}
            stored |= found
            held |= found.keys()
            if whole is not None:
                refused = len(found) != len(of_ids)
                break
    if batch.endings and (numbers or whole is None):
        _end_episodes(connection, buffer, batch, {**_seqs(stored), **numbers})
    return _compared(buffer, batch, of_ids, numbers, stored, refused=refused)


def _by_id(records: Sequence[Record]) -> dict[str, Record]:
    """Return the first record of each id."""
    of_ids: dict[str, Record] = {}
    for record in records:
        of_ids.setdefault(record.id, record)
    return of_ids


def _held_length(connection: Connection, buffer_id: int, whole: EpisodeKey | None) -> int | None:
    """Return the length of the episode if the buffer holds it.

    Raises:
        EpisodeExistsError: The episode is open, or was aborted.
    """
    held = None if whole is None else lifecycle.free_episode(connection, buffer_id, *whole)
    if whole is None or held is None:
        return None
    status, length = held
    if status != "complete":
        raise lifecycle.exists(*whole, status)
    return length


def _end_episodes(
    connection: Connection, buffer: OpenBuffer, batch: WriteBatch, seqs: Mapping[str, int]
) -> None:
    if buffer.info.config.retention.evict_by == "episode":
        # First, as in evictions and annotations: an episode that ends may exceed the limit.
        lock_as_writer(connection, buffer.info.id)
    lifecycle.end(connection, buffer.info.id, batch.endings, seqs)


def _compared(
    buffer: OpenBuffer,
    batch: WriteBatch,
    of_ids: Mapping[str, Record],
    numbers: Mapping[str, int],
    stored: Mapping[str, Row],
    *,
    refused: bool,
) -> StoreResult:
    """Return the results of the rows; rows that were not inserted are compared with the held ones.

    Args:
        buffer: The buffer.
        batch: The batch.
        of_ids: Its first row of each id.
        numbers: The number of each id that was inserted.
        stored: The held rows of the other ids, by id.
        refused: The batch is a whole episode, and another episode has its id.
    """
    known = {**_seqs(stored), **numbers}
    seqs = np.array([known.get(record.id, -1) for record in batch.records], np.int64)
    if len(numbers) == len(batch.records):
        return StoreResult(len(numbers), 0, 0, (), seqs)
    fresh, n_duplicates, conflicts = set(numbers), 0, []
    for record in batch.records:
        if record.id in fresh:
            fresh.discard(record.id)
            continue
        held = stored.get(record.id)
        other = of_ids[record.id] if held is None else held[1:]
        if not (refused and held is None) and same_content(
            record, other, ignore=batch.ignore, layout=buffer.layout
        ):
            n_duplicates += 1
        else:
            conflicts.append(record.id)
    return StoreResult(len(numbers), n_duplicates, len(conflicts), tuple(conflicts), seqs)


def _seqs(stored: Mapping[str, Row]) -> dict[str, int]:
    return {id_: row[0] for id_, row in stored.items()}


def _rows_of_ids(
    connection: Connection, buffer_id: int, payloads: Payloads, ids: set[str]
) -> dict[str, Row]:
    if not ids:
        return {}
    where = (experiences.c.buffer_id == buffer_id) & keys.one_of(experiences.c.id, ids)
    found = payloads.held(connection, fetch(connection, statements.rows(where)))
    return {row[ID]: row for row in found}
