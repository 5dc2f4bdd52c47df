"""Evict rows beyond the limits of a buffer, delete rows, expire them, or put them in quarantine.

Rows expire that can never be sampled again: too old, used up, or of another session. The steps of
an episode that is stored step by step need each other, so they leave when none of them may be
sampled. If whole tasks or episodes are evicted, these leave in the same way. Rows in quarantine
stay, and leased rows.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Engine,
    Index,
    Integer,
    Table,
    Text,
    bindparam,
    case,
    delete,
    func,
    insert,
    literal,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.errors import SQLBufferError, StorageFullError, StorageReadOnlyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.query.tree import EVERYTHING, Group, Leaf, Node
from sqlbuffer.stats import Removed
from sqlbuffer.storage.buffers.catalog import (
    BufferInfo,
    change_config,
    check_known,
    check_resizable,
    not_found,
)
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.buffers.window import BufferWindow, SampledWindow, clean_after_write
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.chunks.postgresql import evict_chunks as postgresql_evict_chunks
from sqlbuffer.storage.chunks.sqlite import evict_chunks as sqlite_evict_chunks
from sqlbuffer.storage.copies.target import forget_copy
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import driver_of, is_joined, snapshot
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.dialects import by_database, hurried, make_room, writing
from sqlbuffer.storage.eligibility import Eligibility, is_in_quarantine, is_used_up, quarantine
from sqlbuffer.storage.episodes import EpisodeKey, change_stored, episodes, of_keys, one_of
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.labels import resolve_labels, with_labels
from sqlbuffer.storage.leases.leases import not_leased, retire
from sqlbuffer.storage.migrations.migrate import with_schema
from sqlbuffer.storage.priorities.keeping import add_sums, weightless_sums
from sqlbuffer.storage.rollout_stats import Rollout, forget, forget_episode, remove_steps
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import layout_of, steps_of
from sqlbuffer.storage.rows.removal import (
    ROWS_AT_ONCE,
    remove_episodes,
    remove_rows,
    remove_where,
    sqlite_remove_rows,
)
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.schema.expressions import IntegerList, SeqList, is_one_of, unindexed
from sqlbuffer.storage.schema.metadata import KEY, buffer_key, metadata
from sqlbuffer.storage.schema.number_keys import MOST_NUMBERS, NUMBER_BITS

# Kept by triggers, for buffers that evict by task.
tasks = Table(
    "tasks",
    metadata,
    buffer_key(),
    Column("task_id", KEY, primary_key=True, comment="the task"),
    Column("n_rows", BigInteger, nullable=False, comment="rows held"),
    Column("last_seq", BigInteger, nullable=False, comment="seq of the last write"),
)
Index(None, tasks.c.buffer_id, tasks.c.last_seq)


_EVICT = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ min(:held, (SELECT max(seq) FROM experiences WHERE buffer_id = :id) - :n)"
)
# Rows that a lease held when they left the window. This runs with each batch and not with each row:
# the condition is checked from the first row on.
_EVICT_NOT_LEASED = (
    f"DELETE FROM experiences WHERE key > :id << {NUMBER_BITS} AND key <= (:id << {NUMBER_BITS}) "
    "+ min(:held, (SELECT low_seq FROM v_windows WHERE buffer_id = :id)) "
    "AND NOT EXISTS (SELECT 1 FROM queue_items q WHERE q.buffer_id = :id "
    "AND q.seq = experiences.seq AND q.leased_until > strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))"
)
_SQLITE_DROP_CHUNKS = (
    f"DELETE FROM chunks WHERE key > :id << {NUMBER_BITS} AND key < (:id + 1) << {NUMBER_BITS}"
)
_END_HOLDS = (
    "DELETE FROM holds WHERE buffer_id = :id",
    "UPDATE buffers SET has_holds = 0 WHERE id = :id",
)
_OVERFLOW = (
    "SELECT evict_unit, live_rows - max_capacity, live_episodes - max_episodes, has_queue, "
    "max_capacity, has_chunks, has_holds FROM buffers WHERE id = :id"
)
_OLDEST_TASKS = text("SELECT task_id FROM tasks WHERE buffer_id = :id ORDER BY last_seq LIMIT 2")
_OLDEST_EPISODE = text(
    "SELECT id FROM episode_states WHERE buffer_id = :id AND n_rows > 0 "
    "AND status <> 'open' ORDER BY id LIMIT 1"
)
_OLDEST_ROWS = text("SELECT seq FROM experiences WHERE buffer_id = :id ORDER BY seq LIMIT :n")
# Chunk by chunk, by the key: otherwise the numbers of all steps would be sorted first.
_OLDEST_STEPS = text(f"""
SELECT c.first_seq + n.place AS seq FROM (
    SELECT first_seq, n_steps FROM chunks
    WHERE key > :id << {NUMBER_BITS} AND key < (:id + 1) << {NUMBER_BITS} ORDER BY key LIMIT :n
) c CROSS JOIN chunk_places n ON n.place < c.n_steps
WHERE NOT EXISTS (
    SELECT 1 FROM deleted_steps x WHERE x.buffer_id = :id AND x.seq = c.first_seq + n.place)
ORDER BY seq LIMIT :n
""")


def sqlite_evict(connection: Connection, buffer_id: int) -> None:
    """Evict rows that exceed the limits of a buffer. Triggers do so for rows of plain SQL."""
    driver = driver_of(connection)
    while True:
        unit, rows_over, episodes_over, has_queue, capacity, has_chunks, has_holds = driver.execute(
            _OVERFLOW, {"id": buffer_id}
        ).fetchone()
        held = _held(connection, buffer_id) if has_holds else None
        if unit == "row":
            bound = MOST_NUMBERS if held is None else held
            if capacity is not None and has_chunks:
                sqlite_evict_chunks(connection, buffer_id, bound)
            elif capacity is not None:
                deletion = _EVICT_NOT_LEASED if has_queue else _EVICT
                driver.execute(deletion, {"id": buffer_id, "n": capacity, "held": bound})
            return
        if held is not None:
            return
        victim: str | int | None
        if unit == "task":
            victim = _oldest_task(connection, buffer_id) if (rows_over or 0) > 0 else None
        else:
            victim = _oldest_episode(connection, buffer_id) if (episodes_over or 0) > 0 else None
        if victim is not None:
            table, column = "chunks" if has_chunks else "experiences", f"{unit}_id"
            connection.exec_driver_sql(
                f"DELETE FROM {table} WHERE buffer_id = ? AND {column} = ?", (buffer_id, victim)
            )
        elif (rows_over or 0) > 0:
            oldest = _OLDEST_STEPS if has_chunks else _OLDEST_ROWS
            seqs = connection.execute(oldest, {"id": buffer_id, "n": rows_over}).scalars()
            sqlite_remove_rows(connection, buffer_id, list(seqs), evicted=True)
        else:
            return


def _held(connection: Connection, buffer_id: int) -> int | None:
    """Return the number above which no step may be evicted; delete holds that have ended."""
    held = held_low(connection, buffer_id)
    if held is None:
        for statement in _END_HOLDS:
            connection.exec_driver_sql(statement, {"id": buffer_id})
    return held


def _oldest_task(connection: Connection, buffer_id: int) -> str | None:
    """Return the task whose last write is oldest; None if there is only one task."""
    task_ids = connection.execute(_OLDEST_TASKS, {"id": buffer_id}).scalars().all()
    return task_ids[0] if len(task_ids) == 2 else None


def _oldest_episode(connection: Connection, buffer_id: int) -> int | None:
    """Return the ended episode that began first; None if all episodes are open."""
    return connection.execute(_OLDEST_EPISODE, {"id": buffer_id}).scalar()


def _sqlite_drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer. A trigger deletes the bytes and narrow rows of each."""
    connection.exec_driver_sql(_SQLITE_DROP_CHUNKS, {"id": buffer_id})


_UNIT = text("SELECT evict_unit, has_chunks FROM buffers WHERE id = :id")
_POSTGRESQL_DROP_CHUNKS = text(
    "SELECT sqlbuffer_drop_chunks_v1(:id, ARRAY(SELECT first_seq FROM chunks WHERE buffer_id = :id "
    "ORDER BY first_seq LIMIT 10000)) WHERE EXISTS (SELECT 1 FROM chunks WHERE buffer_id = :id)"
)


def _postgresql_evict(connection: Connection, buffer_id: int) -> None:
    """Evict rows that exceed the limits of a buffer: whole tasks or episodes, or chunks.

    The caller holds the lock on the row of the buffer. Triggers evict single rows.
    """
    unit, has_chunks = connection.execute(_UNIT, {"id": buffer_id}).one()
    if unit != "row":
        connection.execute(text(f"SELECT sqlbuffer_evict_{unit}s_v1(:id)"), {"id": buffer_id})
    elif has_chunks:
        postgresql_evict_chunks(connection, buffer_id)


def _postgresql_drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer, a limited number at a time.

    The triggers of a plain DELETE would count all buffers again.
    """
    while connection.execute(_POSTGRESQL_DROP_CHUNKS, {"id": buffer_id}).rowcount:
        pass


evict = by_database(sqlite=sqlite_evict, postgresql=_postgresql_evict)


drop_chunks = by_database(sqlite=_sqlite_drop_chunks, postgresql=_postgresql_drop_chunks)


# A checked condition, or numbers of rows.
Rows = Node | Sequence[int]


def drop_buffer(url: Database, name: str, retry_s: float = 0.0) -> None:
    """Delete a buffer and all that belongs to it.

    Raises:
        BufferNotFoundError: No such buffer.
    """
    resolved = resolve_url(url)
    dropped: list[int] = []
    with_schema(url, resolved, retry_s, lambda engine: _drop(engine, resolved, name, dropped))


def _drop(engine: Engine, url: URL, name: str, dropped: list[int]) -> None:
    """Delete a buffer; `dropped` has the ids that earlier attempts may have deleted."""
    with translated(url), writing(engine) as connection:
        buffer_id = connection.scalar(select(buffers.c.id).where(buffers.c.name == name))
        if dropped and (buffer_id is None or buffer_id not in dropped):
            return
        if buffer_id is None:
            raise not_found(name, url)
        connection.execute(delete(buffers).where(buffers.c.id == buffer_id))
        remove_where(connection, buffer_id)
        drop_chunks(connection, buffer_id)
        for table in metadata.tables.values():
            if "buffer_id" in table.c and table is not experiences:
                connection.execute(delete(table).where(table.c.buffer_id == buffer_id))
        dropped.append(buffer_id)


_SUMMED = (
    experiences.c.seq, experiences.c.task_id, experiences.c.episode_id, experiences.c.reward_t,
)  # fmt: skip
_NAMED_ROWS = {name: statements.of_named(name, *_SUMMED) for name in ("id", "seq")}


def _sums(rows: Sequence[Any]) -> dict[Rollout, tuple[int, float | None]]:
    """Return for each rollout how many of the rows it has, and the sum of their rewards."""
    sums: dict[Rollout, tuple[int, float | None]] = {}
    for _, task, episode, reward in rows:
        n, total = sums.get((task or "", episode or 0), (0, None))
        if reward is not None:
            total = reward if total is None else total + reward
        sums[task or "", episode or 0] = n + 1, total
    return sums


class Retention:
    """Deletes rows of a buffer, and excludes rows from sampling.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer

    def delete(self, rows: Rows) -> int:
        """Delete the rows that match, or those of some numbers; return how many."""
        check_known(self.buffer.info)
        if not isinstance(rows, (Leaf, Group)):
            return self._delete(lambda connection: self._delete_numbers(connection, rows))
        node = rows

        def work(connection: Connection) -> int:
            window = self.buffer.note_deletion(connection)
            # No row newer than the stored window is read: its lower end follows from the newest
            # row.
            steps = steps_of(self.buffer.info)
            # Few rows are read once, and counted here.
            few = self._steps_of(connection, window, node)
            if few is not None:
                removed = _sums(few)
                n_removed = remove_rows(
                    connection, self.buffer.info.id, [row[0] for row in few], self.buffer.origin
                )
            else:
                matching = self._matching(window, node)
                removed = self._rollouts(connection, matching, window)
                n_removed = remove_where(
                    connection,
                    self.buffer.info.id,
                    matching,
                    steps=steps,
                    node=node,
                    origin=self.buffer.origin,
                )
            if n_removed:
                remove_steps(connection, self.buffer.info.id, removed)
            return n_removed

        return self._delete(work)

    def _matching(self, window: BufferWindow, node: Node) -> Any:
        """Return the condition for rows of a window that match."""
        steps = steps_of(self.buffer.info)
        matching = statements.in_window(
            self.buffer.info.id, window.low, resolve_labels(node, window.has_labels), steps
        )
        return matching & (statements.seq_for(node, steps) <= window.high)

    def _steps_of(
        self, connection: Connection, window: BufferWindow, node: Node
    ) -> list[Any] | None:
        """Return number, task, episode and reward of the rows that match, in order; None if there
        are many, or may be.
        """
        named, info = statements.named(node), self.buffer.info
        if named is not None and not info.has_chunks and not window.has_labels:
            column, values = named
            if len(values) < ROWS_AT_ONCE:
                parameters = {
                    "of_buffer": info.id, "named": values, "low": window.low, "high": window.high,
                }  # fmt: skip
                return sorted(connection.execute(_NAMED_ROWS[column], parameters).all())
        if not statements.names_few_rows(node):
            return None
        steps = steps_of(info)
        step = steps.c
        rows = select(step.seq, step.task_id, step.episode_id, step.reward_t)
        rows = rows.where(self._matching(window, node))
        rows = with_labels(rows, steps) if window.has_labels else rows
        in_order = rows.order_by(*statements.in_order(node, steps)).limit(ROWS_AT_ONCE)
        steps_in_order = list(connection.execute(in_order).all())
        return steps_in_order if len(steps_in_order) < ROWS_AT_ONCE else None

    def _delete_numbers(self, connection: Connection, numbers: Sequence[int]) -> int:
        """Delete rows by their numbers; return how many there were."""
        info, origin = self.buffer.info, self.buffer.origin
        check_known(info)
        window = self.buffer.note_deletion(connection)
        inside = [seq for seq in numbers if window.low < seq <= window.high]
        steps, are_these = _matching_steps(info, window.low, inside)
        removed = self._rollouts(connection, are_these, window, steps)
        sums = weightless_sums(connection, info, inside, origin)
        n_removed = remove_rows(connection, info.id, inside, origin)
        add_sums(connection, sums, n_removed, len(inside))
        if n_removed:
            remove_steps(connection, info.id, removed)
        return n_removed

    def _rollouts(
        self,
        connection: Connection,
        matching: ColumnElement[bool],
        window: BufferWindow,
        steps: Any = None,
    ) -> dict[Rollout, tuple[int, float | None]]:
        """Return for each rollout how many rows match, and the sum of their rewards."""
        steps = steps_of(self.buffer.info) if steps is None else steps
        step = steps.c
        rows = select(step.task_id, step.episode_id, step.reward_t).where(matching)
        rows = with_labels(rows, steps) if window.has_labels else rows
        task_id, episode_id, reward = rows.subquery().c
        # Grouped by the column itself, SQLite would read all steps in the order of the index of
        # tasks.
        rollout = func.coalesce(task_id, ""), func.coalesce(episode_id, 0)
        sums = select(*rollout, func.count(), func.sum(reward)).group_by(*rollout)
        return {(task, episode): (n, total) for task, episode, n, total in connection.execute(sums)}

    def delete_episodes(self, keys: Sequence[EpisodeKey]) -> int:
        """Delete episodes with their steps; return how many there were.

        Rows of those that had ended stay in the list of episodes.
        """
        info = self.buffer.info
        check_known(info)

        def work(connection: Connection) -> int:
            if info.has_chunks:
                removed = remove_episodes(connection, info.id, keys) if keys else []
            else:
                removed = self._remove_rows_of(connection, keys)
            if open_ := [id_ for id_, _, status in removed if status == "open"]:
                connection.execute(delete(episodes).where(episodes.c.id.in_(open_)))
            return len(removed)

        return self._delete(work)

    def _remove_rows_of(
        self, connection: Connection, keys: Sequence[EpisodeKey]
    ) -> list[tuple[int, str, str]]:
        """Delete the rows of episodes; see `remove_episodes`."""
        info, steps = self.buffer.info, steps_of(self.buffer.info)
        rows = connection.execute(of_keys(info.id, keys)).all() if keys else []
        removed = [(id_, task, status) for id_, task, status in rows]
        for id_, task, _ in removed:
            self.buffer.note_deletion(connection)
            of_episode = steps.c.episode_id == id_
            remove_where(connection, info.id, of_episode, steps=steps, origin=self.buffer.origin)
            forget_episode(connection, info.id, (task, id_))
        return removed

    def end_episodes(self, keys: Sequence[EpisodeKey], metas: Sequence[str | None]) -> int:
        """End open episodes whose steps are stored; return how many there were."""
        return self._change_episodes(keys, metas, is_end=True)

    def annotate_episodes(self, keys: Sequence[EpisodeKey], metas: Sequence[str | None]) -> int:
        """Replace the user's JSON of episodes; return how many there were."""
        return self._change_episodes(keys, metas, is_end=False)

    def _change_episodes(
        self, keys: Sequence[EpisodeKey], metas: Sequence[str | None], *, is_end: bool
    ) -> int:
        id_ = self.buffer.info.id
        # In one order: two writers may change several of the same episodes.
        rows = [
            {"of_buffer": id_, "of_key": key, "of_task": task, "of_meta": meta}
            for (key, task), meta in sorted(zip(keys, metas, strict=True), key=lambda pair: pair[0])
        ]
        if not rows:
            return 0
        return self.buffer.write(lambda c: change_stored(c, rows, is_end=is_end))

    def clear(self) -> int:
        """Delete all rows, also those behind the window, and the list of episodes.

        Return how many rows were live. An unfinished copy accepts other rows afterwards.
        """
        check_known(self.buffer.info)

        def work(connection: Connection) -> int:
            window = self.buffer.note_deletion(connection)
            id_, origin = self.buffer.info.id, self.buffer.origin
            steps = steps_of(self.buffer.info)
            if window.low:
                remove_where(connection, id_, steps.c.seq <= window.low, steps=steps)
            inside = steps.c.seq <= window.high
            n_removed = remove_where(connection, id_, inside, steps=steps, origin=origin)
            forget(connection, id_, episodes)
            if forget_copy(connection, id_):
                change_config(connection, id_, {}, is_copying=False)
            return n_removed

        return self._delete(work)

    def _delete(self, work: Callable[[Connection], int]) -> int:
        """Return the result of a transaction that deletes, if possible on a full disk too."""
        if is_joined():
            return self.buffer.write(work)
        with translated(self.buffer.url):
            advice = make_room(self.buffer.engine)
        try:
            return self.buffer.write(work)
        except StorageFullError as error:
            cause = str(error).partition("; ")[0]
            raise StorageFullError(f"{cause}; {advice}") from error

    def quarantine(self, rows: Rows, reason: str | None) -> int:
        """Take rows out of sampling; return how many were not in quarantine."""

        def work(connection: Connection) -> int:
            self.buffer.lock(connection)
            low, origin = self.buffer.window_in(connection).low, self.buffer.origin
            return _put_in_quarantine(connection, self.buffer.info, low, rows, reason, origin)

        return self.buffer.write(work)

    def release(self, rows: Rows) -> int:
        """Put rows back into sampling; return how many were in quarantine."""

        def work(connection: Connection) -> int:
            self.buffer.lock(connection)
            low, origin = self.buffer.window_in(connection).low, self.buffer.origin
            return _release_from_quarantine(connection, self.buffer.info, low, rows, origin)

        return self.buffer.write(work)

    def resize(self, limits: Mapping[str, int | None]) -> None:
        """Set limits of the buffer, and immediately evict rows that exceed them."""
        check_resizable(self.buffer.info)

        def work(connection: Connection) -> None:
            self.buffer.lock(connection)
            window = self.buffer.note_deletion(connection)
            change_config(connection, self.buffer.info.id, limits)
            if window.evict_by != "row" or self.buffer.info.has_chunks:
                evict(connection, self.buffer.info.id)
            else:
                low = self.buffer.window_in(connection).low
                held = held_low(connection, self.buffer.info.id)
                low = low if held is None else min(low, held)
                leaving = experiences.c.seq <= low
                if self.buffer.info.config.leases.enabled:
                    leaving = leaving & not_leased(self.buffer.info.id, experiences)
                remove_where(connection, self.buffer.info.id, leaving)
            self.buffer.window_in(connection)  # so that this process knows the new limits

        self.buffer.write(work)


def _put_in_quarantine(
    connection: Connection,
    info: BufferInfo,
    low: int,
    rows: Rows,
    reason: str | None,
    origin: str,
) -> int:
    """Put rows into quarantine; return how many were not in it."""
    buffer_id = info.id
    _forget_evicted(connection, buffer_id, low)
    steps, matches = _matching_steps(info, low, rows)
    is_new = ~is_in_quarantine(steps.c.buffer_id, steps.c.seq)
    entries = select(steps.c.buffer_id, steps.c.seq, literal(reason, Text()).label("reason"))
    insertion = insert(quarantine).from_select(
        ["buffer_id", "seq", "reason"], entries.where(matches, is_new)
    )
    new_seqs = connection.execute(insertion.returning(quarantine.c.seq)).scalars().all()
    if new_seqs:
        _set_has_quarantine(connection, buffer_id, True)
        log_change(connection, buffer_id, "quarantined", new_seqs, origin)
    return len(new_seqs)


def _release_from_quarantine(
    connection: Connection, info: BufferInfo, low: int, rows: Rows, origin: str
) -> int:
    """Take rows out of quarantine; return how many were in it."""
    buffer_id = info.id
    _forget_evicted(connection, buffer_id, low)
    steps, matches = _matching_steps(info, low, rows)
    in_quarantine = quarantine.c.buffer_id == buffer_id
    leaving = in_quarantine & quarantine.c.seq.in_(select(steps.c.seq).where(matches))
    statement = delete(quarantine).where(leaving).returning(quarantine.c.seq)
    released = connection.execute(statement).scalars().all()
    log_change(connection, buffer_id, "quarantined", released, origin)
    if not connection.execute(
        select(select(quarantine.c.seq).where(in_quarantine).exists())
    ).scalar_one():
        _set_has_quarantine(connection, buffer_id, False)  # the quarantine is empty now
    return len(released)


def _matching_steps(info: BufferInfo, low: int, rows: Rows) -> tuple[Any, ColumnElement[bool]]:
    """Return a table of steps, and the condition for rows of a buffer above `low`."""
    if isinstance(rows, (Leaf, Group)):
        steps = steps_of(info)
        return steps, statements.in_window(info.id, low, resolve_labels(rows, True), steps)
    seqs = bindparam(None, rows, SeqList(), unique=True)
    steps, is_one = layout_of(info).at(literal(info.id, Integer()), seqs)
    # PostgreSQL would read all rows above an indexed bound, and search for each in the list.
    return steps, is_one & (unindexed(steps.c.seq) > low)


def _forget_evicted(connection: Connection, buffer_id: int, low: int) -> None:
    """Delete entries of rows that were evicted while they were put into quarantine."""
    gone = (quarantine.c.buffer_id == buffer_id) & (quarantine.c.seq <= low)
    connection.execute(delete(quarantine).where(gone))


def _set_has_quarantine(connection: Connection, buffer_id: int, value: bool) -> None:
    statement = update(buffers).where(buffers.c.id == buffer_id, buffers.c.has_quarantine != value)
    connection.execute(statement.values(has_quarantine=value))


# Interval at which a process removes rows on its own, and the maximum duration: a hundredth of its
# time.
EXPIRE_EVERY_S = 10.0
AT_ONCE_S = 0.1
# Numbers that one statement reads, and rows that one transaction removes.
LEAST_SPAN, MOST_SPAN = 4_096, 65_536
MOST_ROWS = 1_000

EXPIRED, USED_UP, OTHER_SESSION = range(3)
NONE = Removed(0, 0, 0)
_COUNTS = (buffers.c.n_expired, buffers.c.n_used_up, buffers.c.n_other_session)
# Number up to which rows were removed, and the removed rows.
Leaving = tuple[int, Removed]
Writing = Callable[[Callable[[Connection], Leaving]], Leaving]


@dataclass(frozen=True)
class _Row:
    seq: int
    episode_id: int | None
    t: int | None
    task_id: str
    cause: int


class Expiry:
    """Removes rows of one opened buffer.

    Attributes:
        due_at: Time of the next automatic run, in monotonic seconds.

    Args:
        source: Opens the rows of the buffer.
    """

    def __init__(self, source: CandidateSource) -> None:
        self._source, self._buffer, self._mutex = source, source.buffer, ForkLock()
        info = source.buffer.info
        # Leases remove the rows that they have used up.
        has_limits = (
            (info.config.sampling.max_use is not None and not info.config.leases.enabled)
            or info.config.sampling.max_staleness is not None
            or info.config.sampling.current_session_only
        )
        self._is_on = has_limits and not info.config.retention.keep_expired
        self._has_leases_that_use_up = (
            info.config.leases.enabled and info.config.sampling.max_use is not None
        )
        self.due_at = time.monotonic() + EXPIRE_EVERY_S
        self._at = 0
        self._state: tuple[int | None, int | None] = (None, None)

    def run(self) -> Removed:
        """Remove all such rows; return how many left."""
        buffer, total, position = self._buffer, NONE, 0
        if self._has_leases_that_use_up:
            total += Removed(0, retire(buffer, kept=True), 0)
        settled = buffer.settled()
        span = LEAST_SPAN
        while True:
            step = partial(self._remove_next, position, span, settled, buffer.write)
            progress = buffer.with_retries(step)
            if progress is None:
                return total
            position, removed = progress
            total += removed
            span = LEAST_SPAN if removed.total else min(2 * span, MOST_SPAN)

    def run_if_due(self) -> None:
        """Remove some of the rows if it is time, unless that needs a wait for other writers."""
        if not self._is_on or time.monotonic() < self.due_at:
            return
        with self._mutex:
            now = time.monotonic()
            if now < self.due_at:
                return
            self.due_at = now + EXPIRE_EVERY_S
        # The call that started this is done; errors of this step do not matter.
        with suppress(SQLBufferError):
            try:
                self._continue_search(now + AT_ONCE_S)
            except StorageReadOnlyError:
                self._is_on = False

    def _continue_search(self, deadline: float) -> None:
        """Continue from the end of the last search, up to the deadline.

        The search starts again at the lower end after the upper one, or when more rows may have
        become too old.
        """
        buffer = self._buffer

        def remove(work: Callable[[Connection], Leaving]) -> Leaving:
            with translated(buffer.url), hurried(buffer.engine) as connection:
                return work(connection)

        settled = buffer.settled()
        with translated(buffer.url), snapshot(buffer.engine) as connection:
            window = self._window(connection)
        if (window.clock, window.session) != self._state:
            self._at, self._state = 0, (window.clock, window.session)
        span = LEAST_SPAN
        while True:
            progress = self._remove_next(self._at, span, settled, remove)
            self._at, removed = (0, NONE) if progress is None else progress
            if progress is None or time.monotonic() >= deadline:
                return
            span = LEAST_SPAN if removed.total else min(2 * span, MOST_SPAN)

    def _remove_next(
        self, position: int, span: int, settled: int, write: Writing
    ) -> tuple[int, Removed] | None:
        """Remove rows among the next numbers behind one.

        Return the number up to which that is done and the removed rows, or None at the upper end.
        """
        buffer = self._buffer
        with translated(buffer.url), snapshot(buffer.engine) as connection:
            window = self._window(connection)
            if held_low(connection, buffer.info.id) is not None:
                return None
            start = max(position, window.low)
            end = min(start + span, window.high)
            if start >= window.high:
                return None
            if not self._victims(connection, window, start, end):
                return end, NONE

        def work(connection: Connection) -> Leaving:
            buffer.lock(connection)
            # Checked again in the transaction that removes them: the clock may have gone back.
            window = self._window(connection)
            if held_low(connection, buffer.info.id) is not None:
                return window.high, NONE
            victims = self._victims(connection, window, start, end)
            removed = self._remove(connection, victims[:MOST_ROWS])
            if removed.total and start <= window.low:
                self._raise_low(connection, window, settled)
            return (start if len(victims) > MOST_ROWS else end), removed

        done, removed = write(work)
        clean_after_write(buffer.engine, removed.total)
        return done, removed

    def _window(self, connection: Connection) -> SampledWindow:
        return self._source.sampled_window(connection)

    def _victims(
        self, connection: Connection, window: SampledWindow, start: int, end: int
    ) -> list[_Row]:
        """Return the rows with start < seq <= end that must leave."""
        limits = self._source.restrictions.limits(window).lasting
        if not limits:
            return []
        info, steps = self._buffer.info, steps_of(self._buffer.info)
        step, cause = steps.c, _cause(limits, steps)
        may_leave: list[Any] = []
        if window.has_quarantine:
            may_leave.append(~is_in_quarantine(step.buffer_id, step.seq))
        if info.config.leases.enabled:
            may_leave.append(not_leased(info.id, steps))
        statement = (
            select(step.seq, step.episode_id, step.t, step.task_id, cause)
            .where(step.buffer_id == info.id, step.seq > start, step.seq <= end)
            .where(cause.is_not(None), *may_leave)
            .order_by(*statements.in_order(EVERYTHING, steps))
        )
        rows = [_Row(*row) for row in connection.execute(statement)]
        return self._that_leave(connection, window.low, limits, rows)

    def _that_leave(
        self, connection: Connection, low: int, limits: Eligibility, rows: Sequence[_Row]
    ) -> list[_Row]:
        """Return the rows that leave alone, or with their whole task or episode."""
        unit = self._buffer.info.config.retention.evict_by
        if unit == "task":
            whole = self._ineligible_tasks(connection, low, limits, {row.task_id for row in rows})
            return [row for row in rows if row.task_id in whole]

        def episode_of(row: _Row) -> int | None:
            return row.episode_id if row.t is not None or unit == "episode" else None

        ids = {id_ for row in rows if (id_ := episode_of(row)) is not None}
        ineligible = self._ineligible_episodes(connection, low, limits, ids) | {None}
        return [row for row in rows if episode_of(row) in ineligible]

    def _ineligible_tasks(
        self, connection: Connection, low: int, limits: Eligibility, ids: set[str]
    ) -> set[str]:
        """Return the tasks that have no row that may be sampled."""
        number = self._buffer.info.id
        free: Any = steps_of(self._buffer.info).alias("free")
        has_none = statements.has_no_row(number, low, tasks.c.task_id, free, limits.hold(free))
        is_named = (tasks.c.buffer_id == number) & one_of(tasks.c.task_id, ids)
        return set(connection.execute(select(tasks.c.task_id).where(is_named, has_none)).scalars())

    def _ineligible_episodes(
        self, connection: Connection, low: int, limits: Eligibility, ids: set[int]
    ) -> set[int | None]:
        """Return the episodes that have ended and have no row that may be sampled."""
        if not ids:
            return set()
        number, states = self._buffer.info.id, statements.episode_states.c
        free: Any = steps_of(self._buffer.info).alias("free")
        eligible = select(1).where(
            free.c.buffer_id == number,
            free.c.episode_id == states.id,
            unindexed(free.c.seq) > low,
            limits.hold(free),
        )
        is_named = is_one_of(states.id, bindparam(None, sorted(ids), IntegerList(), unique=True))
        ended = select(states.id).where(
            states.buffer_id == number,
            is_named,
            ~eligible.offset(0).exists(),
            states.status != "open",
        )
        return set(connection.execute(ended).scalars())

    def _remove(self, connection: Connection, rows: Sequence[_Row]) -> Removed:
        """Delete rows, and count them by cause."""
        if not rows:
            return NONE
        buffer = self._buffer
        buffer.note_deletion(connection)
        counts = [0, 0, 0]
        for cause in range(len(counts)):
            # Rows that another writer evicts at this moment are not counted.
            seqs = [row.seq for row in rows if row.cause == cause]
            counts[cause] = remove_rows(connection, buffer.info.id, seqs, buffer.origin)
        added = {column.name: column + n for column, n in zip(_COUNTS, counts, strict=True) if n}
        if added:
            statement = update(buffers).where(buffers.c.id == buffer.info.id)
            connection.execute(statement.values(**added))
        return Removed(*counts)

    def _raise_low(self, connection: Connection, window: SampledWindow, settled: int) -> None:
        """Raise the window's lower end to its first row, so that draws try no lower numbers.

        It stays below numbers where a row can still appear.
        """
        buffer, steps = self._buffer, steps_of(self._buffer.info)
        step = steps.c
        if buffer.info.config.retention.evict_by != "row":
            return
        first = connection.execute(
            select(step.seq)
            .where(step.buffer_id == buffer.info.id, step.seq > window.low)
            .order_by(*statements.in_order(EVERYTHING, steps))
            .limit(1)
        ).scalar_one_or_none()
        low = min(window.high if first is None else first - 1, settled)
        later = update(buffers).where(buffers.c.id == buffer.info.id, buffers.c.low_seq < low)
        connection.execute(later.values(low_seq=low))


def _cause(limits: Eligibility, steps: Any) -> ColumnElement[Any]:
    """Return the expression for the reason why a row may not be sampled; null if it may."""
    step, causes = steps.c, []
    if limits.oldest_version is not None:
        oldest = bindparam(None, limits.oldest_version, BigInteger(), unique=True)
        causes.append((step.model_version < oldest, EXPIRED))
    if limits.max_use is not None:
        causes.append((is_used_up(steps, limits.max_use), USED_UP))
    if limits.session is not None:
        causes.append((step.session_id != limits.session, OTHER_SESSION))
    return case(*causes)
