"""Delete rows, episodes or a whole buffer."""

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, literal, select, text, true
from sqlalchemy.engine import URL
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.errors import StorageFullError
from sqlbuffer.query.tree import Group, Leaf, Node
from sqlbuffer.storage.buffers.catalog import change_config, check_known, not_found
from sqlbuffer.storage.buffers.eviction_counts import count_evictions
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.buffers.window import BufferWindow
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.copies.tables import forget_copy
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.dialects import by_database, make_room, writing
from sqlbuffer.storage.episodes import EpisodeKey, episodes, of_keys, with_tasks
from sqlbuffer.storage.labels.reading import resolve_labels, with_labels
from sqlbuffer.storage.messages import erase_unused
from sqlbuffer.storage.migrations.migrate import with_schema
from sqlbuffer.storage.priorities.keeping import add_sums, weightless_sums
from sqlbuffer.storage.rollout_stats import Rollout, forget, forget_episode, remove_steps
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.rows.removal import (
    ROWS_AT_ONCE,
    RemovedEpisode,
    remove_episodes,
    remove_rows,
    remove_where,
)
from sqlbuffer.storage.schema.expressions import in_seconds
from sqlbuffer.storage.schema.metadata import whole_metadata
from sqlbuffer.storage.schema.number_keys import NUMBER_BITS
from sqlbuffer.storage.work import forget as forget_work

_SQLITE_DROP_CHUNKS = (
    f"DELETE FROM chunks WHERE key > :id << {NUMBER_BITS} AND key < (:id + 1) << {NUMBER_BITS}"
)
_POSTGRESQL_DROP_CHUNKS = text(
    "SELECT sqlbuffer_drop_chunks_v1(:id, ARRAY(SELECT first_seq FROM chunks WHERE buffer_id = :id "
    "ORDER BY first_seq LIMIT 10000)) WHERE EXISTS (SELECT 1 FROM chunks WHERE buffer_id = :id)"
)


def _sqlite_drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer. A trigger deletes the bytes and narrow rows of each."""
    connection.exec_driver_sql(_SQLITE_DROP_CHUNKS, {"id": buffer_id})


def _postgresql_drop_chunks(connection: Connection, buffer_id: int) -> None:
    """Delete all chunks of a buffer, a limited number at a time.

    The triggers of a plain DELETE would count all buffers again.
    """
    while connection.execute(_POSTGRESQL_DROP_CHUNKS, {"id": buffer_id}).rowcount:
        pass


drop_chunks = by_database(sqlite=_sqlite_drop_chunks, postgresql=_postgresql_drop_chunks)


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
        for table in whole_metadata().sorted_tables:
            # A plain DELETE of steps locks all buffers.
            if "buffer_id" in table.c and table not in (experiences, chunks):
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


def _is_older(steps: Any, seconds: float | None) -> ColumnElement[bool]:
    """Return the condition for rows that were written before so many seconds; None: any."""
    if seconds is None:
        return true()
    bound: ColumnElement[bool] = steps.c.inserted_at < in_seconds(literal(-seconds))
    return bound


class Deletion:
    """Deletes rows and episodes of a buffer.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer

    def delete(self, rows: statements.Rows, older_than_s: float | None = None) -> int:
        """Delete the rows that match, or those of some numbers; return how many.

        Args:
            rows: The rows.
            older_than_s: Only rows that were written before so many seconds, by the database's
                clock; None: all.
        """
        check_known(self.buffer.info)
        if not isinstance(rows, (Leaf, Group)):
            numbers = rows
            return self._delete(
                lambda connection: self._delete_numbers(
                    connection, self._older(connection, numbers, older_than_s)
                )
            )
        node = rows

        def work(connection: Connection) -> int:
            window = self.buffer.note_deletion(connection)
            # No row newer than the stored window is read: its lower end follows from the newest
            # row.
            steps = steps_of(self.buffer.info)
            # Few rows are read once, and counted here.
            few = self._steps_of(connection, window, node, older_than_s)
            if few is not None:
                removed = _sums(few)
                n_removed = remove_rows(
                    connection, self.buffer.info.id, [row[0] for row in few], self.buffer.origin
                )
            else:
                matching = self._matching(window, node, older_than_s)
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
                self._count(connection, n_removed)
            return n_removed

        return self._delete(work)

    def _count(self, connection: Connection, n_removed: int) -> None:
        count_evictions(connection, self.buffer.info.id, self.buffer.origin, "deleted", n_removed)

    def _older(
        self, connection: Connection, numbers: Sequence[int], older_than_s: float | None
    ) -> Sequence[int]:
        """Return those of some numbers whose rows were written before so many seconds."""
        if older_than_s is None:
            return numbers
        low = self.buffer.window_in(connection).low
        steps, are_these = statements.matching_steps(self.buffer.info, low, numbers)
        older = select(steps.c.seq).where(are_these, _is_older(steps, older_than_s))
        return connection.execute(older).scalars().all()

    def count(self, rows: statements.Rows, older_than_s: float | None = None) -> tuple[int, int]:
        """Return how many rows `delete` would delete, and how many episodes they are of."""
        check_known(self.buffer.info)

        def work(connection: Connection) -> tuple[int, int]:
            window = self.buffer.window_in(connection)
            if isinstance(rows, (Leaf, Group)):
                steps = steps_of(self.buffer.info)
                matching = self._matching(window, rows, older_than_s)
            else:
                inside = [seq for seq in rows if window.low < seq <= window.high]
                steps, matching = statements.matching_steps(self.buffer.info, window.low, inside)
                matching = matching & _is_older(steps, older_than_s)
            step = steps.c
            counted = select(step.seq, step.episode_id).where(matching)
            counted = with_labels(counted, steps) if window.has_labels else counted
            numbers = counted.subquery().c
            totals = select(func.count(), func.count(numbers.episode_id.distinct()))
            n_rows, n_episodes = connection.execute(totals.select_from(numbers.seq.table)).one()
            return int(n_rows), int(n_episodes)

        return self.buffer.read(work)

    def _matching(self, window: BufferWindow, node: Node, older_than_s: float | None) -> Any:
        """Return the condition for rows of a window that match."""
        steps = steps_of(self.buffer.info)
        matching = statements.in_window(
            self.buffer.info.id, window.low, resolve_labels(node, window.has_labels), steps
        )
        is_known = statements.seq_for(node, steps) <= window.high
        return matching & is_known & _is_older(steps, older_than_s)

    def _steps_of(
        self,
        connection: Connection,
        window: BufferWindow,
        node: Node,
        older_than_s: float | None,
    ) -> list[Any] | None:
        """Return number, task, episode and reward of the rows that match, in order; None if there
        are many, or may be.
        """
        named, info = statements.named(node), self.buffer.info
        if older_than_s is not None:
            named = None
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
        rows = rows.where(self._matching(window, node, older_than_s))
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
        steps, are_these = statements.matching_steps(info, window.low, inside)
        removed = self._rollouts(connection, are_these, window, steps)
        sums = weightless_sums(connection, info, inside, origin)
        n_removed = remove_rows(connection, info.id, inside, origin)
        add_sums(connection, sums, n_removed, len(inside))
        if n_removed:
            remove_steps(connection, info.id, removed)
            self._count(connection, n_removed)
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

    def delete_episodes(self, named: Sequence[tuple[str, str | None]]) -> int:
        """Delete episodes with their steps; return how many there were.

        Rows of those that had ended stay in the list of episodes.

        Args:
            named: The id and the task of each; see `with_tasks`.
        """
        info = self.buffer.info
        check_known(info)

        def work(connection: Connection) -> int:
            keys = with_tasks(connection, info.id, named)
            if info.has_chunks:
                origin = self.buffer.origin
                removed = remove_episodes(connection, info.id, keys, origin) if keys else []
            else:
                removed = self._remove_rows_of(connection, keys)
                self._count(connection, sum(episode.n_steps for episode in removed))
            if open_ := [episode.id for episode in removed if episode.status == "open"]:
                connection.execute(delete(episodes).where(episodes.c.id.in_(open_)))
            return len(removed)

        return self._delete(work)

    def _remove_rows_of(
        self, connection: Connection, keys: Sequence[EpisodeKey]
    ) -> list[RemovedEpisode]:
        """Delete the rows of episodes; see `remove_episodes`."""
        info, steps = self.buffer.info, steps_of(self.buffer.info)
        rows = connection.execute(of_keys(info.id, keys)).all() if keys else []
        removed = []
        for id_, task, status in rows:
            self.buffer.note_deletion(connection)
            of_episode, origin = steps.c.episode_id == id_, self.buffer.origin
            n = remove_where(connection, info.id, of_episode, steps=steps, origin=origin)
            forget_episode(connection, info.id, (task, id_))
            removed.append(RemovedEpisode(id_, task, status, n))
        return removed

    def clear(self) -> int:
        """Delete all rows, also those behind the window, the list of episodes, and the work.

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
            self._count(connection, n_removed)
            forget(connection, id_, episodes)
            forget_work(connection, id_)
            if forget_copy(connection, id_):
                change_config(connection, id_, {}, is_copying=False)
            return n_removed

        return self._delete(work)

    def _erasing(self, work: Callable[[Connection], int]) -> Callable[[Connection], int]:
        def work_and_erase(connection: Connection) -> int:
            n_removed = work(connection)
            if n_removed:
                erase_unused(connection, self.buffer.info.id)
            return n_removed

        return work_and_erase

    def _delete(self, work: Callable[[Connection], int]) -> int:
        """Return the result of a transaction that deletes, if possible on a full disk too.

        It also erases the messages that only those steps used.
        """
        if self.buffer.shares_messages:
            work = self._erasing(work)
        if is_joined():
            return self.buffer.write(work)
        with translated(self.buffer.url):
            advice = make_room(self.buffer.engine)
        try:
            return self.buffer.write(work)
        except StorageFullError as error:
            cause = str(error).partition("; ")[0]
            raise StorageFullError(f"{cause}; {advice}") from error
