"""The page of all buffers, at a cost that does not grow with their size."""

import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, bindparam, func, select, text

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.rate_limits import Waiting
from sqlbuffer.stats import Stats
from sqlbuffer.storage.browsing.rollouts import in_order, rows_in_order
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.buffers.window import windows
from sqlbuffer.storage.changes import followers
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.database.urls import sqlite_path
from sqlbuffer.storage.database.wal import wal_path
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.flow import flow
from sqlbuffer.storage.inspect import buffer_stats, listings
from sqlbuffer.storage.rollout_stats import (
    group_changes,
    group_stats,
    rollout_reward,
    rollout_stats,
)
from sqlbuffer.storage.schema.expressions import IntegerList, age_s, is_one_of, one_of_keys
from sqlbuffer.storage.schema.metadata import whole_metadata

WINDOW_S = 60.0
# Writers and readers of the last minute count as active.
LATELY_S = 60.0
MOST_BUFFERS = 200
NEWEST_STEPS = 1_000
# Number of steps, or chunks, that are read at each end of a buffer for their versions.
VERSIONS_OF = 100

# Not the size of the database: others may have tables in it.
_SIZE = text(
    "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
    "WHERE c.relname = ANY (:names) AND c.relkind = 'r' AND c.relnamespace = "
    "(SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)"
)


def _sqlite_size_bytes(connection: Connection) -> int:
    """Return the size of the file and its log on disk."""
    path = sqlite_path(connection.engine.url)
    return _size_of(path) + _size_of(wal_path(path))


def _size_of(path: Path) -> int:
    with suppress(OSError):  # the last connection removes the log
        return path.stat().st_size
    return 0


def _postgresql_size_bytes(connection: Connection) -> int:
    """Return the size of the tables and their indexes on disk."""
    names = {"names": list(whole_metadata().tables)}
    return int(connection.execute(_SIZE, names).scalar_one())


_size_bytes = by_database(sqlite=_sqlite_size_bytes, postgresql=_postgresql_size_bytes)


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
    buffer = buffers.c
    names = connection.execute(select(buffer.name, buffer.id).order_by(buffer.name).limit(most))
    ids = {str(name): int(number) for name, number in names}
    n_buffers = connection.execute(select(func.count()).select_from(buffers)).scalar_one()
    held = listings.held_rows(connection, list(ids.values()))
    statistics = buffer_stats.look(connection, held, WINDOW_S, in_depth=False)
    readers, versions = _readers(connection), version_bounds(connection, list(ids.values()))
    listed = []
    for stats in statistics:
        number = ids[stats.buffer]
        writers = _writers(connection, number) if _is_written(stats) else ()
        known = versions.get(number, (None, None))
        listed.append(BufferOverview(stats, writers, tuple(readers[number]), known))
    return DatabaseOverview(tuple(listed), int(n_buffers), _size_bytes(connection))


def buffer_names(connection: Connection, *, most: int) -> list[str]:
    """Return the names of the first buffers."""
    buffer = buffers.c
    return [
        str(name)
        for name in connection.execute(
            select(buffer.name).order_by(buffer.name).limit(most)
        ).scalars()
    ]


def _is_written(stats: Stats) -> bool:
    return stats.newest_age_s is not None and stats.newest_age_s <= LATELY_S


def _readers(connection: Connection) -> dict[int, list[str]]:
    """Return the active readers of each buffer; a sampler counts every few seconds."""
    readers: dict[int, list[str]] = defaultdict(list)
    samplers = select(flow.c.buffer_id, flow.c.holder).where(
        flow.c.holder != "", flow.c.n_sampled > 0, age_s(flow.c.heartbeat_at) < LATELY_S
    )
    for number, holder in connection.execute(samplers):
        # Host and process, without the part that differs between two objects of a process.
        name = holder.rpartition(" ")[0]
        if name not in readers[number]:
            readers[number].append(name)
    mirrors = (
        select(followers.c.buffer_id, func.count())
        .where(age_s(followers.c.live_until) < 0)
        .group_by(followers.c.buffer_id)
    )
    for number, n in connection.execute(mirrors):
        readers[number] += [f"mirror {place}" for place in range(1, n + 1)]
    return readers


def _writers(connection: Connection, number: int) -> tuple[str, ...]:
    """Return the agents among the newest steps of a buffer that were written in the last minute."""
    high = select(windows.c.high_seq).where(windows.c.buffer_id == number).scalar_subquery()
    (last,) = connection.execute(select(high)).one()
    seq, first = experiences.c.seq, chunks.c.first_seq
    agents: set[str] = set()
    for of, numbered, since in (
        (experiences, seq, last - NEWEST_STEPS),
        (chunks, first, last - NEWEST_STEPS - MAX_CHUNK_STEPS),
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


def version_bounds(
    connection: Connection, ids: Sequence[int]
) -> dict[int, tuple[int | None, int | None]]:
    """Return the lowest and the highest model version of steps at both ends of each buffer.

    In chunks it is the version of the whole chunk.
    """
    window, row, chunk = windows.c, experiences.c, chunks.c
    of_row = (row.buffer_id == window.buffer_id, row.seq > window.low_seq)
    of_chunk = (
        chunk.buffer_id == window.buffer_id,
        chunk.first_seq > window.low_seq - MAX_CHUNK_STEPS,
        chunk.first_seq + chunk.n_steps - 1 > window.low_seq,
    )
    ends = [
        _versions_of(value, where, order)
        for value, where, number in (
            (row.model_version, of_row, row.seq),
            (chunk.model_version, of_chunk, chunk.first_seq),
        )
        for order in (number, number.desc())
    ]
    listed = bindparam("ids", list(ids), IntegerList())
    columns = [value for end in ends for value in end]
    statement = select(window.buffer_id, *columns).where(is_one_of(window.buffer_id, listed))
    with in_order(connection):
        rows = connection.execute(statement).all()
    return {number: (_known(min, known[::2]), _known(max, known[1::2])) for number, *known in rows}


def _versions_of(value: Any, where: Sequence[Any], order: Any) -> tuple[Any, Any]:
    """Return the least and the greatest of a value at one end of a buffer."""
    end = select(value.label("version")).where(*where).order_by(order).limit(VERSIONS_OF)
    at_end = end.correlate(windows).subquery()
    least, most = (
        select(of(at_end.c.version)).correlate(windows).scalar_subquery()
        for of in (func.min, func.max)
    )
    return least, most


def _known(least_or_most: Callable[[list[int]], int], versions: Sequence[int | None]) -> int | None:
    known = [version for version in versions if version is not None]
    return least_or_most(known) if known else None


# Name of an order -> its column, and True if it descends.
GROUP_SORTS = {
    "spread": ("spread", True),
    "alike": ("spread", False),
    "group": ("group_id", False),
    "group descending": ("group_id", True),
    # No index has these orders: all groups of the buffer are read.
    "mean": ("mean", True),
    "mean ascending": ("mean", False),
    "deviation": ("variance", True),
    "deviation ascending": ("variance", False),
    "episodes": ("n_rollouts", True),
    "episodes ascending": ("n_rollouts", False),
}


@dataclass(frozen=True)
class ListedGroup:
    """The episodes that belong together.

    Attributes:
        group_id: Their `group_id`, or their task.
        n_rollouts: Number of episodes, without aborted ones.
        n_rewards: Number of those with a finite reward.
        mean: Mean of these rewards; None if there is none.
        std: Their standard deviation (of the population).
        least: Smallest of them.
        greatest: Largest of them.
    """

    group_id: str
    n_rollouts: int
    n_rewards: int
    mean: float | None
    std: float | None
    least: float | None
    greatest: float | None

    @property
    def spread(self) -> float | None:
        """The greatest reward less the least; None while a rollout has no finite reward."""
        if self.least is None or self.greatest is None or self.n_rewards < self.n_rollouts:
            return None
        return self.greatest - self.least

    @property
    def is_alike(self) -> bool:
        """All of several rewards are equal, so a policy gradient learns nothing from them."""
        return self.n_rewards > 1 and self.spread == 0


@dataclass(frozen=True)
class GroupPage:
    """A page of groups.

    Attributes:
        groups: Groups of the page.
        after: Argument `after` of the next page; None for the last page.
    """

    groups: list[ListedGroup]
    after: list[Any] | None


_own = group_stats.c
_VARIANCE = _own.m2 / func.nullif(_own.n_rewards, 0)


def group_page(
    connection: Connection,
    buffer_id: int,
    sort: str = "spread",
    after: Sequence[Any] | None = None,
    limit: int = 50,
) -> GroupPage:
    """Return a page of the groups of a buffer.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        sort: Order: `spread`, largest spread first; `alike`, smallest spread first; the
            others by the column of their name. Groups with an episode without a finite reward have
            no spread and come last.
        after: `GroupPage.after` of the page before; None for the first page.
        limit: Maximum number of groups.
    """
    keys = select(group_stats).where(_own.buffer_id == buffer_id)
    name, descends = GROUP_SORTS[sort]
    value = _VARIANCE if name == "variance" else _own[name]
    columns = (value, _own.group_id)
    is_indexed = name in ("spread", "group_id")
    with in_order(connection) if is_indexed else nullcontext():
        rows = rows_in_order(connection, keys, columns, after, descends, limit + 1)
    last = rows[limit - 1] if rows[limit:] else None
    return GroupPage(
        _listed_groups(connection, buffer_id, rows[:limit]),
        None if last is None else [_place_of(last, name), last.group_id],
    )


def _place_of(row: Any, name: str) -> Any:
    """Return the value of a group that orders it."""
    if name == "variance":
        return row.m2 / row.n_rewards if row.n_rewards else None
    return row._mapping[name]


def group_of(connection: Connection, buffer_id: int, group_id: str) -> ListedGroup | None:
    """Return a group; None if it has no episodes."""
    keys = select(group_stats).where(_own.buffer_id == buffer_id, _own.group_id == group_id)
    groups = _listed_groups(connection, buffer_id, connection.execute(keys).all())
    return groups[0] if groups else None


def _listed_groups(
    connection: Connection, buffer_id: int, rows: Sequence[Any]
) -> list[ListedGroup]:
    """Return groups, with the changes that concurrent writers have not applied yet."""
    now = _recomputed_groups(connection, buffer_id, [row.group_id for row in rows])
    return [now.get(row.group_id) or _group(*row[1:-1]) for row in rows]


def _group(
    group_id: str,
    n_rollouts: int,
    n_rewards: int,
    mean: float | None,
    m2: float,
    least: float | None,
    greatest: float | None,
) -> ListedGroup:
    std = math.sqrt(m2 / n_rewards) if n_rewards else None
    return ListedGroup(group_id, n_rollouts, n_rewards, mean, std, least, greatest)


def _recomputed_groups(
    connection: Connection, buffer_id: int, group_ids: Sequence[str]
) -> dict[str, ListedGroup]:
    """Return the groups that have unapplied changes, computed from their rollouts."""
    change = group_changes.c
    pending = select(change.group_id).where(
        change.buffer_id == buffer_id, one_of_keys(change.group_id, group_ids)
    )
    changed = list(connection.execute(pending.distinct()).scalars()) if group_ids else []
    if not changed:
        return {}
    rollout = rollout_stats.c
    is_one = (
        (rollout.buffer_id == buffer_id)
        & one_of_keys(rollout.group_id, changed)
        & (rollout.episode_id != 0)
        & ~rollout.is_aborted
    )
    is_finite = func.abs(rollout_reward) < 1e100
    value = func.coalesce(rollout_reward, 0.0)
    counts = select(rollout.group_id, func.count()).where(is_one).group_by(rollout.group_id)
    n_rollouts: dict[str, int] = dict(connection.execute(counts).all())
    means = (
        select(rollout.group_id, func.avg(value).label("mean"))
        .where(is_one, is_finite)
        .group_by(rollout.group_id)
        .subquery("means")
    )
    sums = (
        select(
            rollout.group_id,
            func.count(),
            means.c.mean,
            func.sum((value - means.c.mean) * (value - means.c.mean)),
            func.min(value),
            func.max(value),
        )
        .join(means, means.c.group_id == rollout.group_id)
        .where(is_one, is_finite)
        .group_by(rollout.group_id, means.c.mean)
    )
    finite = {group: rest for group, *rest in connection.execute(sums)}
    nothing = [0, None, 0.0, None, None]
    return {group: _group(group, n, *finite.get(group, nothing)) for group, n in n_rollouts.items()}
