"""The steps of a batch of chunks that a buffer already holds."""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, or_, select

from sqlbuffer.steps import is_uuid
from sqlbuffer.storage.buffers.buffer_window import select_window
from sqlbuffer.storage.chunks import postgresql as chunks_postgresql
from sqlbuffer.storage.chunks import sqlite as chunks_sqlite
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks, deleted_steps, step_ids
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.writing.stored_chunks import StoredChunk, listed, stored_chunks

held_ids = by_database(sqlite=chunks_sqlite.held_ids, postgresql=chunks_postgresql.held_ids)

# The id of a step without a given one: that of its chunk, and its place there.
_MADE_ID = re.compile(r"(.{36})/(0|[1-9]\d{0,2})")
_MOST_RANGES = 50  # in one statement
_NEWEST = (
    select(chunks.c.first_seq, chunks.c.n_steps, chunks.c.step, chunks.c.steps)
    .where(
        chunks.c.buffer_id == bindparam("of_buffer"),
        chunks.c.episode_id == bindparam("of_episode"),
    )
    .order_by(chunks.c.t.desc())
    .limit(1)
)


class HeldStep(NamedTuple):
    """A step that a buffer holds: its number, its chunk and its place there."""

    seq: int
    stored: StoredChunk
    place: int


class HeldSteps:
    """Finds steps that a buffer holds, in a transaction.

    Steps that have left the window or were deleted are not held.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
    """

    def __init__(self, connection: Connection, buffer_id: int) -> None:
        self._connection, self._buffer_id = connection, buffer_id

    def numbers_of(self, ids: Collection[str]) -> dict[str, int]:
        """Return the number of each id of a step, given by a user or made by the library."""
        if not ids:
            return {}
        found = dict(held_ids(self._connection, self._buffer_id, list(ids)))
        made = self._made_ids([id_ for id_ in ids if id_ not in found])
        held = self._held(made.values()) - self._with_given_id(made.values())
        return found | {id_: seq for id_, seq in made.items() if seq in held}

    def at(self, seqs: Iterable[int]) -> dict[int, HeldStep]:
        """Return the steps that have these numbers, by number."""
        numbers = sorted(set(seqs))
        # Consecutive numbers are in one range.
        runs = groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
        near = [[seq for _, seq in run] for _, run in runs]
        ranges = [chunks.c.first_seq.between(own[0] - MOST_STEPS + 1, own[-1]) for own in near]
        found = {}
        for start in range(0, len(ranges), _MOST_RANGES):
            some = or_(*ranges[start : start + _MOST_RANGES])
            for stored in stored_chunks(self._connection, self._buffer_id, some):
                for place in range(stored.chunk.n_steps):
                    seq = stored.first_seq + place
                    found[seq] = HeldStep(seq, stored, place)
        return {seq: found[seq] for seq in numbers if seq in found}

    def of_episode(self, episode_id: int, first_t: int, after_t: int) -> dict[int, HeldStep]:
        """Return the steps of an episode from one place up to another, by place."""
        where = (
            chunks.c.episode_id == episode_id,
            chunks.c.t > first_t - MOST_STEPS,
            chunks.c.t < after_t,
        )
        found = {
            (stored.chunk.t or 0) + place: HeldStep(stored.first_seq + place, stored, place)
            for stored in stored_chunks(self._connection, self._buffer_id, *where)
            for place in range(stored.chunk.n_steps)
        }
        held = self._held(step.seq for step in found.values())
        return {t: step for t, step in found.items() if first_t <= t < after_t and step.seq in held}

    def newest_step(self, episode_id: int, *, is_held: bool = False) -> int | None:
        """Return the step number of the newest step of an episode; None if it has no step.

        Args:
            episode_id: The episode.
            is_held: The newest one that is inside the window, and was not deleted.
        """
        newest = self._connection.execute(
            _NEWEST, {"of_buffer": self._buffer_id, "of_episode": episode_id}
        ).one_or_none()
        if newest is None:
            return None
        last = newest.first_seq + newest.n_steps - 1
        if is_held:
            last = max(self._held(range(newest.first_seq, last + 1)), default=-1)
        place, steps = last - newest.first_seq, listed(newest.steps)
        if place < 0:
            return None
        return int(newest.step + place if steps is None else steps[place])

    def _held(self, seqs: Iterable[int]) -> set[int]:
        """Return the numbers that are inside the window, and were not deleted."""
        numbers = set(seqs)
        if not numbers:
            return numbers
        low = self._connection.execute(select_window(self._buffer_id)).one().low_seq
        gone = deleted_steps.c
        deleted = select(gone.seq).where(
            gone.buffer_id == self._buffer_id, gone.seq.between(min(numbers), max(numbers))
        )
        numbers -= set(self._connection.execute(deleted).scalars())
        return {seq for seq in numbers if seq > low}

    def _with_given_id(self, seqs: Iterable[int]) -> set[int]:
        """Return the numbers of steps to which users gave an id."""
        numbers = set(seqs)
        if not numbers:
            return numbers
        own = select(step_ids.c.seq).where(
            step_ids.c.buffer_id == self._buffer_id,
            step_ids.c.seq.between(min(numbers), max(numbers)),
        )
        return numbers.intersection(self._connection.execute(own).scalars())

    def _made_ids(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each id that the library made from a chunk."""
        parts = {
            id_: match.groups()
            for id_ in ids
            if (match := _MADE_ID.fullmatch(id_)) and is_uuid(match[1])
        }
        if not parts:
            return {}
        own = select(chunks.c.id, chunks.c.n_steps, chunks.c.first_seq).where(
            chunks.c.buffer_id == self._buffer_id,
            chunks.c.id.in_({chunk_id for chunk_id, _ in parts.values()}),
        )
        spans = {
            chunk_id: (n_steps, first_seq)
            for chunk_id, n_steps, first_seq in self._connection.execute(own)
        }
        return {
            id_: spans[chunk_id][1] + int(place)
            for id_, (chunk_id, place) in parts.items()
            if chunk_id in spans and int(place) < spans[chunk_id][0]
        }
