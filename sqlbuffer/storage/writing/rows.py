"""Store rows: all of a batch or none, also over lost connections and races of writers."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import numpy as np
from sqlalchemy import Connection, select

from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart
from sqlbuffer.encoding.records import Record, same_content
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.buffers.window import SELECT_WINDOW, clean_after_write
from sqlbuffer.storage.buffers.writes import WriteOnce
from sqlbuffer.storage.database.errors import too_large
from sqlbuffer.storage.database.psycopg_later import psycopg
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.episodes import (
    Beginnings,
    EpisodeKey,
    begin,
    begin_whole,
    end,
    episode_ids,
    exists,
    free_episode,
    session_ids,
)
from sqlbuffer.storage.flow import Pacer
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import Row
from sqlbuffer.storage.rows.payload_parts import Payloads, without_parts
from sqlbuffer.storage.schema.expressions import one_of_keys, unindexed
from sqlbuffer.storage.writing.inserts import insert_records, reserve_seqs
from sqlbuffer.storage.writing.row_places import place_rows

# A time that the library made is not content: it never makes a conflict.
MADE_TIME = frozenset(("execute_time",))


@dataclass(frozen=True)
class WriteBatch:
    """A batch in the form in which it is stored: checked, encoded and compressed.

    Attributes:
        records: The rows; see `payload_parts.prepared`.
        ignore: Fields that make no conflict if they differ from the stored row.
        endings: Ends of episodes in the batch.
        beginnings: Of episodes that a writer owns, and that may begin with it.
        whole: Id of the user's for an episode that is stored whole or not at all.
        unnumbered: Episodes with a row in the batch that gave no step.
    """

    records: Sequence[Record]
    ignore: frozenset[str] = frozenset()
    endings: Sequence[EpisodeEnd] = ()
    beginnings: Beginnings = field(default_factory=dict)
    whole: EpisodeKey | None = None
    unnumbered: frozenset[EpisodeKey] = frozenset()

    @property
    def n_steps(self) -> int:
        """Number of rows."""
        return len(self.records)


_ID, _T = (1 + Record._fields.index(name) for name in ("id", "t"))


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
    of_ids, buffer_id = _by_id(batch.records), buffer.info.id
    if buffer.info.config.retention.evict_by == "episode":
        # Before rows of episodes, as in evictions and annotations.
        lock_as_writer(connection, buffer_id)
    if batch.whole is not None:
        held_length = begin_whole(
            connection, buffer_id, batch.whole, batch.records[0], batch.beginnings
        )
        if held_length is not None:
            return _compared_whole(connection, buffer, payloads, batch, held_length)
    rows_of = partial(_rows_of_ids, connection, buffer_id, payloads)
    numbers: dict[str, int] = {}
    given_priorities = [record.initial_priority for record in of_ids.values()]
    priorities = given_priorities if given_priorities.count(None) < len(given_priorities) else None
    reserved = reserve_seqs(
        connection, buffer_id, list(of_ids), priorities, None if once is None else once.note
    )
    held = reserved.held
    # Read before the insert, which may evict them.
    stored = rows_of(held)
    while True:
        new_records = [record for record in of_ids.values() if record.id not in held]
        seqs = reserved.seqs[: len(new_records)]
        numbers = {record.id: seq for record, seq in zip(new_records, seqs, strict=True)}
        if not new_records:
            break
        try:
            made: set[int] = set()
            episode_keys = episode_ids(connection, buffer_id, new_records, batch.beginnings, made)
            places = place_rows(
                connection, buffer_id, new_records, episode_keys, made, batch.unnumbered
            )
            insert_records(
                connection,
                buffer_id,
                seqs,
                replace(places, records=without_parts(places.records)),
                episode_keys,
                session_ids(connection, buffer_id, [record.session_key for record in new_records]),
                reserved.priority,
                guarded=guarded,
                shares_messages=buffer.shares_messages,
            )
            payloads.insert(connection, zip(seqs, new_records, strict=True))
            break
        except psycopg.errors.ProgramLimitExceeded as error:
            raise too_large(error, [record.id for record in new_records]) from error
        except psycopg.errors.UniqueViolation:
            # Another writer has committed some of the ids since. The numbers stay reserved for this
            # one.
            late_rows = rows_of({record.id for record in new_records}) if guarded else {}
            if not late_rows:
                raise
            numbers = {}
            stored |= late_rows
            held |= late_rows.keys()
    if batch.endings:
        end(connection, buffer_id, batch.endings, batch.beginnings)
    return _compared(buffer, batch, of_ids, numbers, stored)


def _by_id(records: Sequence[Record]) -> dict[str, Record]:
    """Return the first record of each id."""
    of_ids: dict[str, Record] = {}
    for record in records:
        of_ids.setdefault(record.id, record)
    return of_ids


def _compared_whole(
    connection: Connection,
    buffer: OpenBuffer,
    payloads: Payloads,
    batch: WriteBatch,
    held_length: int,
) -> StoreResult:
    """Return the results for a whole episode whose id the buffer holds.

    Steps are compared with those at their place. Steps that have left are duplicates if the held
    episode is as long.
    """
    records, same_length = batch.records, held_length == len(batch.records)
    held = _rows_of_episode(connection, buffer.info.id, payloads, batch)
    conflicts = []
    for record in records:
        row = held.get(record.t)
        is_same = same_length if row is None else _is_same(buffer, batch, record, row[1:])
        if not is_same:
            conflicts.append(f"{record.episode_key}/{record.t}")
    seqs = np.array([held[r.t][0] if r.t in held else -1 for r in records], np.int64)
    n_same = len(records) - len(conflicts)
    return StoreResult(0, n_same, len(conflicts), tuple(conflicts), seqs)


def _compared(
    buffer: OpenBuffer,
    batch: WriteBatch,
    of_ids: Mapping[str, Record],
    numbers: Mapping[str, int],
    stored: Mapping[str, Row],
) -> StoreResult:
    """Return the results of rows; those that were not inserted are compared with `stored`."""
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
        if _is_same(buffer, batch, record, of_ids[record.id] if held is None else held[1:]):
            n_duplicates += 1
        else:
            conflicts.append(record.id)
    return StoreResult(len(numbers), n_duplicates, len(conflicts), tuple(conflicts), seqs)


def _is_same(buffer: OpenBuffer, batch: WriteBatch, record: Record, held: Sequence[Any]) -> bool:
    return same_content(record, held, ignore=batch.ignore, layout=buffer.layout)


def _seqs(stored: Mapping[str, Row]) -> dict[str, int]:
    return {id_: row[0] for id_, row in stored.items()}


def _rows_of_ids(
    connection: Connection, buffer_id: int, payloads: Payloads, ids: set[str]
) -> dict[str, Row]:
    if not ids:
        return {}
    where = (experiences.c.buffer_id == buffer_id) & one_of_keys(experiences.c.id, ids)
    rows = fetch(connection, select(*statements.ROW_COLUMNS).where(where))
    stored = payloads.held(connection, rows)
    return {row[_ID]: row for row in stored}


def _rows_of_episode(
    connection: Connection, buffer_id: int, payloads: Payloads, batch: WriteBatch
) -> dict[int | None, Row]:
    """Return the held rows of the episode of a batch, by their place in it."""
    (episode_id, *_) = episode_ids(connection, buffer_id, batch.records[:1], batch.beginnings)
    low = connection.execute(SELECT_WINDOW, {"of_buffer": buffer_id}).one().low_seq
    where = (
        (experiences.c.buffer_id == buffer_id)
        & (experiences.c.episode_id == episode_id)
        & (unindexed(experiences.c.seq) > low)
    )
    rows = fetch(connection, select(*statements.ROW_COLUMNS).where(where))
    stored = payloads.held(connection, rows)
    return {row[_T]: row for row in stored}


T = TypeVar("T")
# Inserts a batch in the transaction of a caller.
Insert = Callable[..., StoreResult]


class RowWriter:
    """Stores the rows of a buffer.

    Args:
        buffer: The buffer.
        payloads: Writes and reads the parts of rows.
        pacer: The buffer's rate limiter.
        wrote: Called after each write.
    """

    def __init__(
        self, buffer: OpenBuffer, payloads: Payloads, pacer: Pacer, wrote: Callable[[], None]
    ) -> None:
        self.buffer, self._payloads, self._pacer = buffer, payloads, pacer
        self._wrote = wrote

    def store(
        self,
        batch: WriteBatch,
        once: WriteOnce[StoreResult] | None = None,
        *,
        admitted: bool = False,
    ) -> StoreResult:
        """Store the rows whose ids the buffer does not hold, all or none.

        Args:
            batch: The rows; may be empty.
            once: Of earlier calls with this batch, which may have stored it.
            admitted: The rate limiter has already allowed them.

        Raises:
            EpisodeExistsError: The batch is an episode that is open, or was aborted.
            FlowControlError: The rate limiter did not allow the rows in time.
        """
        buffer = self.buffer
        if not admitted:
            self._pacer.before_insert(len({record.id for record in batch.records}))
        once, durability = once or buffer.once(), buffer.options.durability
        # The reservation of the numbers stores the id of the write as well, in a third of the time.
        notes = batch.whole is None
        insert = partial(
            insert_batch, buffer=buffer, payloads=self._payloads, batch=batch, once=once
        )
        result: StoreResult = buffer.with_retries(
            partial(once.run, buffer.engine, durability, insert, notes=notes)
        )
        self._clean(result.inserted, batch)
        return result

    def store_within(self, batch: WriteBatch, work: Callable[[Connection, Insert], T]) -> T:
        """Return the result of `work`, which inserts rows in one transaction with other changes.

        Args:
            batch: The rows that are known before.
            work: Function called with the transaction and a function that inserts a batch there. It
                is called again if the transaction was not committed.

        Raises:
            FlowControlError: The rate limiter did not allow the rows in time.
        """
        self._pacer.before_insert(len({record.id for record in batch.records}))

        def inserting(connection: Connection) -> T:
            return work(connection, partial(insert_batch, connection, self.buffer, self._payloads))

        result = self.buffer.write(inserting)
        self._clean(len(batch.records), batch)
        return result

    def begin_episode(self, beginning: EpisodeStart) -> None:
        """Make the row of an episode.

        Raises:
            EpisodeExistsError: There is one that is open or has steps.
        """
        key, task = beginning.key, beginning.task_id

        def work(connection: Connection) -> None:
            known = free_episode(connection, self.buffer.info.id, key, task)
            # If there was none before, another process may have begun it since.
            if known is not None or not begin(connection, self.buffer.info.id, beginning):
                raise exists(connection, self.buffer.info.id, key, task)

        self.buffer.write(work)

    def _clean(self, n_inserted: int, batch: WriteBatch) -> None:
        n_bytes = sum(record.payload_bytes or 0 for record in batch.records)
        clean_after_write(self.buffer.engine, n_inserted, n_bytes, self.buffer.watermark)
        self._wrote()
