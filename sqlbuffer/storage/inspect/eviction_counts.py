"""Count the steps that left a buffer, without the numbers of transactions that are still open."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import psycopg
from sqlalchemy import Connection, Engine, func, select

from sqlbuffer.storage.buffers.settling import settled_seq
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.step_count import n_steps
from sqlbuffer.storage.watermarks.watermark import Watermark


@dataclass
class EvictionCount:
    """What this process knows of the steps that left a buffer.

    Attributes:
        watermark: Number up to which no step can appear any more.
        settled: That number when it was read last, None if each number given is settled.
        most: Largest count so far. Each count is at most the true one, which never falls.
    """

    watermark: Watermark
    settled: int | None = None
    most: int = 0

    def update(self, connection: Connection, about: Any, given: int, rows: int, left: int) -> int:
        """Return how many steps left in other ways than those in `left`.

        Args:
            connection: A snapshot, opened after `settled` was read.
            about: Number and window of the buffer.
            given: Latest number that the buffer has given.
            rows: Number of stored steps.
            left: Number of steps that were deleted and are counted elsewhere.
        """
        end = given if self.settled is None else min(self.settled, given)
        above = 0
        if end < about.high_seq:
            start = max(end, about.low_seq) + 1
            above = _stored(connection, about.buffer_id, start, int(about.high_seq) + 1)
        self.most = max(self.most, end - (rows - above) - left)
        return self.most


_counts: WeakKeyDictionary[Engine, dict[int, EvictionCount]] = WeakKeyDictionary()


def eviction_counts(engine: Engine, ids: Collection[int]) -> dict[int, EvictionCount]:
    """Read which numbers of buffers are settled; call this before the snapshot is opened."""
    known = _counts.setdefault(engine, {})
    for number in ids:
        count = known.setdefault(number, EvictionCount(Watermark(number)))
        try:
            count.settled = settled_seq(engine, count.watermark)
        except psycopg.errors.UndefinedTable:  # the buffer was dropped
            del known[number]
    return {number: known[number] for number in ids if number in known}


def evicted_rows(
    connection: Connection,
    about: Any,
    given: int,
    rows: int,
    counts: Mapping[int, EvictionCount],
) -> int:
    """Return how many steps of a buffer left, apart from those of `left_otherwise`.

    Args:
        connection: A snapshot.
        about: Number, window and counters of the buffer.
        given: Latest number that the buffer has given.
        rows: Number of stored steps.
        counts: See `eviction_counts`. A buffer without gets a lower bound: those below the window.
    """
    left = sum(left_otherwise(about))
    if about.buffer_id not in counts:
        return max(0, int(about.low_seq) - left)
    return counts[about.buffer_id].update(connection, about, given, rows, left)


def left_otherwise(about: Any) -> tuple[int, int, int, int]:
    """Return how many steps were deleted for each cause that a buffer counts."""
    return (about.n_expired, about.n_used_up, about.n_other_session, about.n_partial)


def _stored(connection: Connection, buffer_id: int, start: int, end: int) -> int:
    """Return the number of steps with start <= seq < end."""
    own = experiences.c
    inside = (own.buffer_id == buffer_id, own.seq >= start, own.seq < end)
    rows = select(func.count()).select_from(experiences).where(*inside).scalar_subquery()
    found = connection.execute(select(rows + n_steps(buffer_id, start, end)))
    return int(found.scalar_one())
