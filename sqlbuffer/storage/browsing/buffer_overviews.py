"""The page of all buffers, at a cost that does not grow with their size."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, func, select

from sqlbuffer.rate_limits import Waiting
from sqlbuffer.stats import Stats
from sqlbuffer.storage.browsing import postgresql, sqlite
from sqlbuffer.storage.buffers.buffer_window import windows
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.changes.tables import followers
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.flow.tables import flow
from sqlbuffer.storage.inspect import buffer_stats, listings
from sqlbuffer.storage.schema.column_types import IntegerList
from sqlbuffer.storage.schema.list_parameters import is_one_of
from sqlbuffer.storage.schema.server_clock import age_s

WINDOW_S = 60.0
# Writers and readers of the last minute count as active.
LATELY_S = 60.0
MOST_BUFFERS = 200
NEWEST_STEPS = 1_000
# Number of steps, or chunks, that are read at each end of a buffer for their versions.
VERSIONS_OF = 100

_size_bytes = by_database(sqlite=sqlite.size_bytes, postgresql=postgresql.size_bytes)
_in_order = by_database(sqlite=sqlite.in_order, postgresql=postgresql.in_order)


@dataclass(frozen=True)
class BufferOverview:
    """Overview of one buffer.

    Attributes:
        stats: Statistics of the buffer, without episodes and distributions.
        writers: Agents of the newest steps, if those were written in the last minute.
        readers: Processes that sampled or followed the buffer in the last minute.
        versions: Least and greatest model version among steps at both ends of the buffer.
    """

    stats: Stats
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    versions: tuple[int | None, int | None]

    @property
    def waiting(self) -> tuple[Waiting, ...]:
        """Calls that wait for a rate limiter now."""
        return tuple(call for call in self.stats.waiting if call.alive)


@dataclass(frozen=True)
class DatabaseOverview:
    """Overview of a database.

    Attributes:
        buffers: Its buffers by name, up to a limit.
        n_buffers: Number of all its buffers.
        size_bytes: Size on disk in bytes.
    """

    buffers: tuple[BufferOverview, ...]
    n_buffers: int
    size_bytes: int


def overviews(connection: Connection, *, most: int = MOST_BUFFERS) -> DatabaseOverview:
    """Return an overview of a database, buffer by buffer.

    Args:
        connection: A snapshot.
        most: Maximum number of buffers, by name.
    """
    own = buffers.c
    named = connection.execute(select(own.name, own.id).order_by(own.name).limit(most))
    ids = {str(name): int(number) for name, number in named}
    n_buffers = connection.execute(select(func.count()).select_from(buffers)).scalar_one()
    held = listings.held_rows(connection, list(ids.values()))
    found = buffer_stats.look(connection, held, WINDOW_S, in_depth=False)
    readers, versions = _readers(connection), _versions(connection, list(ids.values()))
    listed = []
    for stats in found:
        number = ids[stats.buffer]
        writers = _writers(connection, number) if _is_written(stats) else ()
        known = versions.get(number, (None, None))
        listed.append(BufferOverview(stats, writers, tuple(readers[number]), known))
    return DatabaseOverview(tuple(listed), int(n_buffers), _size_bytes(connection))


def buffer_names(connection: Connection, *, most: int) -> list[str]:
    """Return the names of the first buffers."""
    own = buffers.c
    return [
        str(name)
        for name in connection.execute(select(own.name).order_by(own.name).limit(most)).scalars()
    ]


def _is_written(stats: Stats) -> bool:
    return stats.newest_age_s is not None and stats.newest_age_s <= LATELY_S


def _readers(connection: Connection) -> dict[int, list[str]]:
    """Return the active readers of each buffer; a sampler counts every few seconds."""
    found: dict[int, list[str]] = defaultdict(list)
    samplers = select(flow.c.buffer_id, flow.c.holder).where(
        flow.c.holder != "", flow.c.n_sampled > 0, age_s(flow.c.heartbeat_at) < LATELY_S
    )
    for number, holder in connection.execute(samplers):
        # Host and process, without the part that differs between two objects of a process.
        name = holder.rpartition(" ")[0]
        if name not in found[number]:
            found[number].append(name)
    mirrors = (
        select(followers.c.buffer_id, func.count())
        .where(age_s(followers.c.live_until) < 0)
        .group_by(followers.c.buffer_id)
    )
    for number, n in connection.execute(mirrors):
        found[number] += [f"mirror {place}" for place in range(1, n + 1)]
    return found


def _writers(connection: Connection, number: int) -> tuple[str, ...]:
    """Return the agents among the newest steps of a buffer that were written in the last minute."""
    high = select(windows.c.high_seq).where(windows.c.buffer_id == number).scalar_subquery()
    (last,) = connection.execute(select(high)).one()
    seq, first = experiences.c.seq, chunks.c.first_seq
    agents: set[str] = set()
    for of, numbered, since in (
        (experiences, seq, last - NEWEST_STEPS),
        (chunks, first, last - NEWEST_STEPS - MOST_STEPS),
    ):
        newest = (
            select(of.c.agent_id, of.c.inserted_at)
            .where(of.c.buffer_id == number, numbered > since)
            .order_by(numbered.desc())
            .limit(NEWEST_STEPS)
            .subquery()
        )
        lately = age_s(newest.c.inserted_at) < LATELY_S
        agents.update(
            connection.execute(select(newest.c.agent_id).where(lately).distinct()).scalars()
        )
    return tuple(sorted(agents))


def _versions(
    connection: Connection, ids: Sequence[int]
) -> dict[int, tuple[int | None, int | None]]:
    """Return the lowest and the highest model version of steps at both ends of each buffer.

    In chunks it is the version of the whole chunk.
    """
    window, row, own = windows.c, experiences.c, chunks.c
    of_row = (row.buffer_id == window.buffer_id, row.seq > window.low_seq)
    of_chunk = (
        own.buffer_id == window.buffer_id,
        own.first_seq > window.low_seq - MOST_STEPS,
        own.first_seq + own.n_steps - 1 > window.low_seq,
    )
    ends = [
        _versions_of(value, where, order)
        for value, where, number in (
            (row.model_version, of_row, row.seq),
            (own.model_version, of_chunk, own.first_seq),
        )
        for order in (number, number.desc())
    ]
    listed = bindparam("ids", list(ids), IntegerList())
    columns = [value for end in ends for value in end]
    statement = select(window.buffer_id, *columns).where(is_one_of(window.buffer_id, listed))
    with _in_order(connection):
        found = connection.execute(statement).all()
    return {number: (_known(min, known[::2]), _known(max, known[1::2])) for number, *known in found}


def _versions_of(value: Any, where: Sequence[Any], order: Any) -> tuple[Any, Any]:
    """Return the least and the greatest of a value at one end of a buffer."""
    end = select(value.label("version")).where(*where).order_by(order).limit(VERSIONS_OF)
    at_end = end.correlate(windows).subquery()
    least, most = (
        select(of(at_end.c.version)).correlate(windows).scalar_subquery()
        for of in (func.min, func.max)
    )
    return least, most


def _known(least_or_most: Callable[[list[int]], int], found: Sequence[int | None]) -> int | None:
    known = [version for version in found if version is not None]
    return least_or_most(known) if known else None
