"""Insert chunks: existing steps, numbers, and races of writers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from sqlalchemy import Connection, bindparam, select

from sqlbuffer.codec.plain_values import INT64_MAX
from sqlbuffer.encoding.chunks import PackedChunk, step_numbers
from sqlbuffer.errors import FieldError, OutOfOrderError
from sqlbuffer.steps import StoreResult
from sqlbuffer.storage.buffers.applied_writes import WriteOnce
from sqlbuffer.storage.buffers.locks import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.chunks import postgresql as chunks_postgresql
from sqlbuffer.storage.chunks import sqlite as chunks_sqlite
from sqlbuffer.storage.chunks.numbered_chunk import NumberedChunk
from sqlbuffer.storage.database.errors import UniqueViolation
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes import keys, lifecycle
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.writing import postgresql, sqlite
from sqlbuffer.storage.writing.chunk_batch import ChunkBatch
from sqlbuffer.storage.writing.held_steps import HeldSteps
from sqlbuffer.storage.writing.step_outcomes import StepOutcomes

reserve_steps = by_database(sqlite=sqlite.reserve_steps, postgresql=postgresql.reserve_steps)
insert_numbered = by_database(
    sqlite=chunks_sqlite.insert_chunks, postgresql=chunks_postgresql.insert_chunks
)
insert_ids = by_database(sqlite=chunks_sqlite.insert_ids, postgresql=chunks_postgresql.insert_ids)
after_chunks = by_database(sqlite=sqlite.after_chunks, postgresql=postgresql.after_chunks)

_EPISODE = select(episodes.c.next_t, episodes.c.status).where(episodes.c.id == bindparam("of_id"))


def insert_chunks(
    connection: Connection,
    buffer: OpenBuffer,
    batch: ChunkBatch,
    once: WriteOnce[StoreResult] | None = None,
) -> StoreResult:
    """Insert the steps that the buffer does not hold, all or none, in a transaction.

    Args:
        connection: The transaction.
        buffer: The buffer.
        batch: The batch.
        once: Makes the transaction take effect once, if the id of the write must be stored here.

    Raises:
        EpisodeExistsError: `whole` is open, or was aborted.
        OutOfOrderError: A step comes after a later one of its episode.
    """
    if buffer.info.config.retention.evict_by == "episode":
        # Before rows of episodes, as in evictions and annotations.
        lock_as_writer(connection, buffer.info.id)
    return _Insertion(connection, buffer, batch).run(once)


class _Insertion:
    """One insertion of a batch in one transaction."""

    def __init__(self, connection: Connection, buffer: OpenBuffer, batch: ChunkBatch) -> None:
        self._connection, self._batch, self._buffer_id = connection, batch, buffer.info.id
        self._chunks = batch.chunks
        self._outcomes = StepOutcomes(buffer.layout, batch.chunks, batch.ignore)
        self._held = HeldSteps(connection, self._buffer_id)

    def run(self, once: WriteOnce[StoreResult] | None) -> StoreResult:
        """Insert new steps; return the result of each step."""
        connection, batch, outcomes = self._connection, self._batch, self._outcomes
        if batch.whole is not None:
            held_length = lifecycle.begin_whole(
                connection, self._buffer_id, batch.whole, self._chunks[0], batch.metas
            )
            if held_length is not None:
                return self._compared_whole(held_length)
        self._settle_ids()
        if batch.chunks and not outcomes.is_new.any():  # an episode of them would have no step
            return outcomes.result(batch.order)
        self._episode_ids = keys.episode_ids(connection, self._buffer_id, self._chunks, batch.metas)
        self._settle_episodes()
        self._next_ts = self._lock_appended()
        self._store(once)
        if batch.endings:
            lifecycle.end(connection, self._buffer_id, batch.endings, self._places())
        return outcomes.result(batch.order)

    def _store(self, once: WriteOnce[StoreResult] | None) -> None:
        """Store the steps that are new."""
        reserved = None
        while pieces := self._outcomes.pieces():
            chunks = [piece for _, piece in pieces]
            n_steps = sum(chunk.n_steps for chunk in chunks)
            if reserved is None:
                reserved = reserve_steps(
                    self._connection, self._buffer_id, n_steps, _largest(chunks),
                    None if once is None else once.note,
                )  # fmt: skip
            first_seq, priority = reserved
            sessions = keys.session_ids(self._connection, self._buffer_id, chunks)
            numbered, seq = [], first_seq
            for (i, chunk), session in zip(pieces, sessions, strict=True):
                numbered.append(NumberedChunk(chunk, seq, self._episode_ids[i], session, priority))
                seq += chunk.n_steps
            if self._insert_ids(numbered):
                numbered = self._appended(numbered)
                self._outcomes.number(first_seq)
                insert_numbered(self._connection, self._buffer_id, numbered)
                after_chunks(self._connection, self._buffer_id, numbered)
                return
            # Another writer has committed some of the ids since. The numbers stay reserved for this
            # one.
            self._settle_ids()

    def _lock_appended(self) -> dict[int, int]:
        """Return the next place of each episode that new steps are appended to at its end.

        Raises:
            EpisodeExistsError: The episode has ended.
            OutOfOrderError: A new step comes after a later one of its episode.
        """
        found = {}
        own = {
            episode_id: i
            for i, episode_id in enumerate(self._episode_ids)
            if episode_id is not None
            and self._chunks[i].t is None
            and len(self._outcomes.places(i))
        }
        for episode_id, i in sorted(own.items()):
            row = self._connection.execute(
                _EPISODE.with_for_update(key_share=True), {"of_id": episode_id}
            ).one_or_none()
            if row is not None and row.status != "open":
                chunk = self._chunks[i]
                assert chunk.episode_key is not None
                raise lifecycle.exists(
                    self._connection, self._buffer_id, chunk.episode_key, chunk.task_id
                )
            found[episode_id] = 0 if row is None else row.next_t
        self._newest = {episode_id: self._held.newest_step(episode_id) for episode_id in own}
        if self._late_step() is not None:
            # Another writer may have stored the same steps since their ids were compared, and the
            # newest step may have been deleted.
            self._settle_ids()
            self._newest = {
                episode_id: self._held.newest_step(episode_id, is_held=True) for episode_id in own
            }
            late = self._late_step()
            if late is not None:
                raise late
        return found

    def _late_step(self) -> OutOfOrderError | None:
        """Return the error for the first new step that comes after a later one of its episode."""
        last = {id_: (step, ", which is stored") for id_, step in self._newest.items()}
        for i, chunk in enumerate(self._chunks):
            episode_id, places = self._episode_ids[i], self._outcomes.places(i)
            if episode_id is None or chunk.makes_steps or not len(places):
                continue
            steps = step_numbers(chunk, places)
            before, where = last.get(episode_id, (None, ""))
            if before is not None and steps[0] < before:
                return _out_of_order(chunk, steps[0], f"{before}{where}")
            if chunk.steps is not None and (late := np.flatnonzero(np.diff(steps) < 0)).size:
                return _out_of_order(chunk, steps[late[0] + 1], f"{steps[late[0]]}")
            last[episode_id] = int(steps[-1]), ""
        return None

    def _appended(self, numbered: list[NumberedChunk]) -> list[NumberedChunk]:
        """Set the places of steps that are appended to episodes, and advance the episodes."""
        next_ts, newest, found = dict(self._next_ts), dict(self._newest), []
        for own in numbered:
            episode_id, chunk = own.episode_id, own.chunk
            t = None if episode_id is None else next_ts.get(episode_id)
            if episode_id is not None and chunk.t is None and t is not None:
                next_ts[episode_id] = t + chunk.n_steps
                chunk = replace(chunk, t=t)
                if chunk.makes_steps:
                    chunk = _continued(chunk, newest[episode_id])
                newest[episode_id] = int(step_numbers(chunk, np.array([chunk.n_steps - 1]))[0])
                own = own._replace(chunk=chunk)
            found.append(own)
        spans = {id_: (self._next_ts[id_], t) for id_, t in next_ts.items()}
        if spans:
            lifecycle.advance(self._connection, spans)
        return found

    def _insert_ids(self, numbered: Sequence[NumberedChunk]) -> bool:
        """Store the ids that users gave to steps; return False if another writer has stored one."""
        ids = {
            own.first_seq + place: id_
            for own in numbered
            for place, id_ in enumerate(own.chunk.ids or ())
        }
        try:
            if ids:
                insert_ids(self._connection, self._buffer_id, ids)
        except UniqueViolation:
            return False
        return True

    def _settle_ids(self) -> None:
        """Compare the new steps whose given ids are held, or occur earlier in the batch.

        The ids that the library makes are unique: they need no look.
        """
        given = [
            (chunk.ids[place], (i, place))
            for i, chunk in enumerate(self._chunks)
            if chunk.ids is not None
            for place in self._outcomes.places(i).tolist()
        ]
        if not given:
            return
        first_of = dict(reversed(given))
        again = [(id_, step) for id_, step in given if first_of[id_] != step]
        numbers = self._held.numbers_of(first_of)
        held = self._held.at(numbers.values())
        by_chunk: dict[int, dict[int, Any]] = {}
        for id_, (i, place) in [*first_of.items(), *again]:
            if numbers.get(id_) in held:
                by_chunk.setdefault(i, {})[place] = held[numbers[id_]]
        for i, steps in by_chunk.items():
            self._outcomes.compare(i, steps)
        for id_, step in again:
            if numbers.get(id_) not in held:
                self._outcomes.repeat(first_of[id_], step)

    def _settle_episodes(self) -> None:
        """Advance the episodes of the chunks, and compare steps that they already have."""
        of_episodes: dict[int, list[int]] = {}
        for i, episode_id in enumerate(self._episode_ids):
            if episode_id is not None and self._chunks[i].t is not None:
                of_episodes.setdefault(episode_id, []).append(i)
        spans = {}
        for episode_id, own in of_episodes.items():
            firsts = [_first_t(self._chunks[i]) for i in own]
            ends = [t + self._chunks[i].n_steps for t, i in zip(firsts, own, strict=True)]
            if firsts[1:] == ends[:-1]:
                spans[episode_id] = firsts[0], ends[-1]
        advanced = lifecycle.advance(self._connection, spans) if spans else set()
        # In one order: two writers may write the same episodes.
        for episode_id, own in sorted(of_episodes.items()):
            if episode_id not in advanced:
                self._settle_episode(episode_id, own)

    def _settle_episode(self, episode_id: int, own: Sequence[int]) -> None:
        """Compare chunks with their episode, whose next step is not their first one.

        Earlier steps are duplicates or conflicts; those that have left were stored once, and are
        duplicates. Steps that follow steps which the buffer never had are conflicts: another writer
        has the same episode. But an episode without any step may have been deleted while it was
        open, and continues.
        """
        locked = _EPISODE.with_for_update(key_share=True)
        row = self._connection.execute(locked, {"of_id": episode_id}).one_or_none()
        if row is None:  # deleted since it was looked up
            again = keys.episode_ids(
                self._connection, self._buffer_id, self._chunks, self._batch.metas
            )
            self._episode_ids = again
            self._settle_episode(again[own[0]] or 0, own)
            return
        next_t = before = row.next_t
        for i in own:
            chunk = self._chunks[i]
            t = _first_t(chunk)
            if t > next_t > 0:
                self._outcomes.refuse(i, self._outcomes.places(i))
                continue
            n_held = min(max(next_t - t, 0), chunk.n_steps) if next_t else 0
            if n_held:
                self._compare(i, episode_id, n_held, same=True)
            next_t = max(next_t, t + chunk.n_steps)
        if next_t > before:
            lifecycle.advance(self._connection, {episode_id: (before, next_t)})

    def _compare(self, i: int, episode_id: int, n: int, *, same: bool) -> None:
        """Compare the first n steps of a chunk with those of its episode that are held.

        Args:
            i: The chunk.
            episode_id: Its episode.
            n: Number of steps.
            same: Steps that are no longer held are duplicates; otherwise conflicts.
        """
        chunk = self._chunks[i]
        t = _first_t(chunk)
        self._outcomes.refuse(i, range(n), same=same)
        held = self._held.of_episode(episode_id, t, t + n)
        self._outcomes.compare(i, {at - t: step for at, step in held.items()})

    def _compared_whole(self, held_length: int) -> StoreResult:
        """Return the result for a whole episode whose id the buffer holds."""
        (episode_id, *_) = keys.episode_ids(
            self._connection, self._buffer_id, self._chunks, self._batch.metas
        )
        assert episode_id is not None
        same = held_length == len(self._outcomes.is_new)
        for i, chunk in enumerate(self._chunks):
            self._compare(i, episode_id, chunk.n_steps, same=same)
        return self._outcomes.result(self._batch.order)

    def _places(self) -> dict[lifecycle.StepPlace, int]:
        """Return the numbers of the first and the last step of each chunk."""
        found: dict[lifecycle.StepPlace, int] = {}
        for i, chunk in enumerate(self._chunks):
            for place in (0, chunk.n_steps - 1):
                seq = int(self._outcomes.seqs[self._outcomes.starts[i] + place])
                if seq >= 0:
                    found[chunk.episode_key, chunk.task_id, _first_t(chunk) + place] = seq
        return found


def _continued(chunk: PackedChunk, newest: int | None) -> PackedChunk:
    """Return a chunk whose step numbers follow the newest one of its episode."""
    step = chunk.t if newest is None else newest + 1
    if step is None or step + chunk.n_steps - 1 > INT64_MAX:
        raise FieldError(
            f"episode {chunk.episode_key!r} of task {chunk.task_id!r}: no number of 64 bits "
            f"follows its last step; give step=..."
        )
    return replace(chunk, step=step, steps=None)


def _out_of_order(chunk: PackedChunk, step: int, later: str) -> OutOfOrderError:
    return OutOfOrderError(
        f"episode {chunk.episode_key!r} of task {chunk.task_id!r}: step {step} comes after step "
        f"{later}; send the steps of an episode in the order of their step numbers, or use a "
        f"buffer without typed fields, which takes any order"
    )


def _first_t(chunk: PackedChunk) -> int:
    return chunk.t or 0


def _largest(chunks: Sequence[PackedChunk]) -> float | None:
    """Return the largest given priority of the steps."""
    given = [chunk.initial_priority for chunk in chunks if chunk.initial_priority is not None]
    return max(
        (float(value) for values in given for value in values if value is not None), default=None
    )
