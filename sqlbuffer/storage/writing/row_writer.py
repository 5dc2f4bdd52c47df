"""Store rows: all of a batch or none, also over lost connections."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import clean_after_write
from sqlbuffer.storage.episodes import begin, exists, free_episode
from sqlbuffer.storage.flow import Pacer
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.writing.insertion import insert_batch
from sqlbuffer.storage.writing.write_batch import WriteBatch

T = TypeVar("T")
# Inserts a batch in the transaction of a caller.
Insert = Callable[..., StoreResult]


class RowWriter:
    """Stores the rows of a buffer.

    Args:
        buffer: The buffer.
        payloads: Writes and reads the parts of rows.
        pacer: The buffer's rate limiter.
    """

    def __init__(self, buffer: OpenBuffer, payloads: Payloads, pacer: Pacer) -> None:
        self.buffer, self._payloads, self._pacer = buffer, payloads, pacer

    def store(self, batch: WriteBatch, *, admitted: bool = False) -> StoreResult:
        """Store the rows whose ids the buffer does not hold, all or none.

        Args:
            batch: The rows; may be empty.
            admitted: The rate limiter has already allowed them.

        Raises:
            EpisodeExistsError: The batch is an episode that is open, or was aborted.
            FlowControlError: The rate limiter did not allow the rows in time.
        """
        buffer = self.buffer
        if not admitted:
            self._pacer.before_insert(len({record.id for record in batch.records}))
        once, durability = buffer.once(), buffer.options.durability
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
