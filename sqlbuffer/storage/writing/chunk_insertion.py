"""Insert chunks: their numbers, what is there already, and races of writers."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, insert, select, update

from sqlbuffer.encoding.packed_chunk import PackedChunk
from sqlbuffer.steps.store_result import StoreResult
from sqlbuffer.storage.buffers.applied_writes import WriteOnce
from sqlbuffer.storage.buffers.locks import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.chunks import postgresql as chunks_postgresql
from sqlbuffer.storage.chunks import sqlite as chunks_sqlite
from sqlbuffer.storage.chunks.numbered_chunk import NumberedChunk
from sqlbuffer.storage.chunks.tables import step_ids
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes import keys, lifecycle
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.writing import postgresql, sqlite
from sqlbuffer.storage.writing.chunk_batch import ChunkBatch

reserve_steps = by_database(sqlite=sqlite.reserve_steps, postgresql=postgresql.reserve_steps)
insert_numbered = by_database(
    sqlite=chunks_sqlite.insert_chunks, postgresql=chunks_postgresql.insert_chunks
)
after_chunks = by_database(sqlite=sqlite.after_chunks, postgresql=postgresql.after_chunks)

_ADVANCE = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"), episodes.c.next_t == bindparam("of_t"))
    .values(next_t=bindparam("end_t"))
)


def insert_chunks(
    connection: Connection,
    buffer: OpenBuffer,
    batch: ChunkBatch,
    once: WriteOnce[StoreResult] | None = None,
) -> StoreResult:
    """Insert the chunks that the buffer does not hold, all or none, in a transaction.

    Args:
        connection: The transaction.
        buffer: The buffer.
        batch: The batch.
        once: Has the transaction take effect once, if the id of the write is to be stored here.

    Raises:
        EpisodeExistsError: `whole` is open, or was aborted.
    """
    buffer_id, chunks = buffer.info.id, list(batch.chunks)
    if not chunks:
        _end_episodes(connection, buffer, batch, {})
        return StoreResult(0, 0, 0)
    if batch.whole is not None:
        held = lifecycle.free_episode(connection, buffer_id, *batch.whole)
        if held is not None and held[0] != "complete":
            raise lifecycle.exists(*batch.whole, held[0])
        if held is not None:
            raise NotImplementedError
    episode_ids = keys.episode_ids(connection, buffer_id, chunks, batch.metas)
    session_ids = keys.session_ids(connection, buffer_id, chunks)
    for chunk, episode_id in zip(chunks, episode_ids, strict=True):
        if episode_id is not None:
            values = {"of_id": episode_id, "of_t": chunk.t, "end_t": (chunk.t or 0) + chunk.n_steps}
            if not connection.execute(_ADVANCE, values).rowcount:
                raise NotImplementedError
    n_steps = batch.n_steps
    note = None if once is None else once.note
    first_seq, priority = reserve_steps(connection, buffer_id, n_steps, _largest(chunks), note)
    firsts = first_seq + np.cumsum([0, *(chunk.n_steps for chunk in chunks)])
    numbered = [
        NumberedChunk(chunk, int(first), episode_id, session_id, priority)
        for chunk, first, episode_id, session_id in zip(
            chunks, firsts[:-1], episode_ids, session_ids, strict=True
        )
    ]
    insert_numbered(connection, buffer_id, numbered)
    _insert_ids(connection, buffer_id, numbered)
    after_chunks(connection, buffer_id, first_seq, n_steps)
    by_step = {
        f"{chunk.episode_key}/{(chunk.t or 0) + place}": int(first) + place
        for chunk, first in zip(chunks, firsts[:-1], strict=True)
        if chunk.episode_key is not None
        for place in (0, chunk.n_steps - 1)
    }
    _end_episodes(connection, buffer, batch, by_step)
    seqs = np.arange(first_seq, first_seq + n_steps)
    return StoreResult(n_steps, 0, 0, (), _in_given_order(seqs, batch.order))


def _in_given_order(seqs: NDArray[np.int64], order: NDArray[np.int64] | None) -> NDArray[np.int64]:
    if order is None:
        return seqs
    found = np.empty(len(order), np.int64)
    found[order] = seqs
    return found


def _largest(chunks: Sequence[PackedChunk]) -> float | None:
    """Return the largest priority that steps are given."""
    given = [chunk.initial_priority for chunk in chunks if chunk.initial_priority is not None]
    return max(
        (float(value) for values in given for value in values if value is not None), default=None
    )


def _insert_ids(connection: Connection, buffer_id: int, numbered: Sequence[NumberedChunk]) -> None:
    rows = [
        {"buffer_id": buffer_id, "seq": own.first_seq + place, "id": id_}
        for own in numbered
        for place, id_ in enumerate(own.chunk.ids or ())
    ]
    if rows:
        has_none = buffers.c.id == buffer_id, ~buffers.c.has_step_ids
        if connection.execute(select(1).where(*has_none)).first():
            connection.execute(update(buffers).where(*has_none).values(has_step_ids=True))
        connection.execute(insert(step_ids), rows)


def _end_episodes(
    connection: Connection, buffer: OpenBuffer, batch: ChunkBatch, seqs: dict[str, int]
) -> None:
    if not batch.endings:
        return
    if buffer.info.config.retention.evict_by == "episode":
        # First, as whoever evicts or annotates: an episode that ends may be one too many.
        lock_as_writer(connection, buffer.info.id)
    lifecycle.end(connection, buffer.info.id, batch.endings, seqs)
