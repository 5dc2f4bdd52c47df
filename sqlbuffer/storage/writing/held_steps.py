"""The steps of a batch of chunks that a buffer already holds."""

import re
from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from sqlalchemy import Connection, or_, select

from sqlbuffer.storage.buffers.buffer_window import select_window
from sqlbuffer.storage.chunks import postgresql as chunks_postgresql
from sqlbuffer.storage.chunks import sqlite as chunks_sqlite
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks, deleted_steps
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes.keys import one_of
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.writing.stored_chunks import StoredChunk, stored_chunks

held_ids = by_database(sqlite=chunks_sqlite.held_ids, postgresql=chunks_postgresql.held_ids)

# The id of a step without a given one: that of its episode or chunk, and its place there.
_MADE_ID = re.compile(r"(.+)/(0|[1-9]\d{0,17})", re.DOTALL)
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MOST_RANGES = 50  # in one statement


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
        held = self._held(made.values())
        return found | {id_: seq for id_, seq in made.items() if seq in held}

    def given_numbers(self, ids: Collection[str]) -> dict[str, int]:
        """Return the number of each id that a user gave to a step."""
        return dict(held_ids(self._connection, self._buffer_id, list(ids))) if ids else {}

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

    def _made_ids(self, ids: Sequence[str]) -> dict[str, int]:
        """Return the number of each id that the library made from an episode or a chunk."""
        parts = {id_: match.groups() for id_ in ids if (match := _MADE_ID.fullmatch(id_))}
        if not parts:
            return {}
        keys = {key for key, _ in parts.values()}
        spans: dict[str, list[tuple[int, int, int]]] = {}
        for key, t, n_steps, first_seq in self._spans(keys):
            spans.setdefault(key, []).append((t, n_steps, first_seq))
        return {
            id_: first_seq + int(place) - t
            for id_, (key, place) in parts.items()
            for t, n_steps, first_seq in spans.get(key, ())
            if 0 <= int(place) - t < n_steps
        }

    def _spans(self, keys: Collection[str]) -> Iterable[Any]:
        """Yield (key, first place, steps, first number) of chunks that have one of the keys."""
        of_buffer = chunks.c.buffer_id == self._buffer_id
        of_episodes = (
            select(episodes.c.key, chunks.c.t, chunks.c.n_steps, chunks.c.first_seq)
            .join_from(episodes, chunks, chunks.c.episode_id == episodes.c.id)
            .where(of_buffer, episodes.c.buffer_id == self._buffer_id, one_of(episodes.c.key, keys))
        )
        yield from self._connection.execute(of_episodes)
        if uuids := [key for key in keys if _UUID.fullmatch(key)]:
            own = select(chunks.c.id, chunks.c.n_steps, chunks.c.first_seq)
            found = self._connection.execute(own.where(of_buffer, chunks.c.id.in_(uuids)))
            yield from ((id_, 0, n_steps, first_seq) for id_, n_steps, first_seq in found)
