"""Store chunks: all of a batch or none, also over lost connections."""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from sqlalchemy import Connection

from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.settling import clean_after_write
from sqlbuffer.storage.flow.pacing import Pacer
from sqlbuffer.storage.writing.chunk_batch import ChunkBatch
from sqlbuffer.storage.writing.chunk_insertion import insert_chunks

T = TypeVar("T")
# Inserts a batch in the transaction of a caller.
InsertChunks = Callable[[ChunkBatch], StoreResult]


class ChunkWriter:
    """Stores the chunks of a buffer.

    Args:
        buffer: The buffer.
        pacer: The buffer's rate limiter.
    """

    def __init__(self, buffer: OpenBuffer, pacer: Pacer) -> None:
        self.buffer, self._pacer = buffer, pacer

    def store(self, batch: ChunkBatch, *, admitted: bool = False) -> StoreResult:
        """Store the chunks that the buffer does not hold, all or none.

        Args:
            batch: The chunks; may be empty.
            admitted: The rate limiter has already allowed them.

        Raises:
            EpisodeExistsError: The batch is an episode that is open, or was aborted.
            FlowControlError: The rate limiter did not allow the steps in time.
        """
        buffer = self.buffer
        if not admitted:
            self._pacer.before_insert(batch.n_steps)
        once, durability = buffer.once(), buffer.options.durability
        insert = partial(insert_chunks, buffer=buffer, batch=batch, once=once)
        result: StoreResult = buffer.with_retries(
            partial(once.run, buffer.engine, durability, insert, notes=bool(batch.chunks))
        )
        clean_after_write(buffer.engine, result.inserted, batch.n_bytes, buffer.watermark)
        return result

    def store_within(
        self, n_steps: int, n_bytes: int, work: Callable[[Connection, InsertChunks], T]
    ) -> T:
        """Return the result of `work`, which inserts chunks in one transaction with other changes.

        Args:
            n_steps: Number of steps in the chunks.
            n_bytes: Size of the chunks in bytes.
            work: Function called with the transaction and a function that inserts a batch there. It
                is called again if the transaction was not committed.

        Raises:
            FlowControlError: The rate limiter did not allow the steps in time.
        """
        buffer = self.buffer
        self._pacer.before_insert(n_steps)

        def inserting(connection: Connection) -> T:
            return work(connection, partial(insert_chunks, connection, buffer))

        result = buffer.write(inserting)
        clean_after_write(buffer.engine, n_steps, n_bytes, buffer.watermark)
        return result
