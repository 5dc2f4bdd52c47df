"""Count rows, and read them in insert order, by task or by condition; also from a standby."""

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from sqlalchemy import Connection, Select, TextClause, func, select, text

from sqlbuffer.codec.plain_values import INT64_MAX, is_storable_text
from sqlbuffer.encoding.records import Record
from sqlbuffer.errors import BufferConfigError, StorageBusyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.open_buffer import (
    OpenBuffer,
    OwnWrites,
    WaitingSteps,
    retry_on_disconnect,
)
from sqlbuffer.storage.buffers.window import BufferWindow, LiveCount, settled_seq
from sqlbuffer.storage.buffers.writes import commits_of
from sqlbuffer.storage.chunks.relations import n_steps
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer, fetch, is_joined, reading, snapshot
from sqlbuffer.storage.eligibility import NO_LIMITS, Eligibility
from sqlbuffer.storage.episodes import EpisodeFacts, EpisodeKey, facts_of
from sqlbuffer.storage.labels.reading import resolve_labels, with_labels
from sqlbuffer.storage.migrations.required_features import check_first_opening
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import TASK_ID, Row, steps_of, task_order
from sqlbuffer.storage.rows.payload_parts import Payloads, n_bytes_of
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.schema.expressions import explain
from sqlbuffer.storage.schema.payload_sizes import chunk_size, message_size, row_size

TASKS_AT_ONCE = 500
FIRST_PAGE_ROWS = 200
MAX_PAGE_ROWS = 5_000
PAGE_BYTES = 8 * 2**20
# Seconds that a stream waits at its start for writers under way, before it lists their existing
# rows instead.
SETTLING_S = 0.05
ID = 1 + Record._fields.index("id")
# PostgreSQL takes two thirds of the time of the whole window.
_LOW_AND_LABELS = "SELECT low_seq, has_labels FROM v_windows WHERE buffer_id = {:d}"

_COUNT_NAMED = {name: statements.count_named(name) for name in ("id", "seq")}


def _size_bytes(dialect: str) -> TextClause:
    sizes = {
        "experiences": row_size(dialect),
        "chunk_data": chunk_size(dialect),
        "messages": message_size(dialect),
    }
    sums = [
        f"coalesce((SELECT sum({size}) FROM {table} WHERE buffer_id = :id), 0)"
        for table, size in sizes.items()
    ]
    return text("SELECT " + " + ".join(sums))


_SIZE_BYTES = {dialect: _size_bytes(dialect) for dialect in ("sqlite", "postgresql")}


class SeqRuns:
    """Numbers, as the first and last of each run: few runs for millions of rows.

    Args:
        runs: The runs, in order.
    """

    def __init__(self, runs: Sequence[Any] = ()) -> None:
        self._firsts = [first for first, _ in runs]
        self._lasts = [last for _, last in runs]

    def __contains__(self, seq: int) -> bool:
        place = bisect_right(self._firsts, seq) - 1
        return place >= 0 and seq <= self._lasts[place]


class RowQueries:
    """Reads the stored rows of a buffer.

    Args:
        buffer: The buffer.
        source: Opens its rows.
        own_writes: Steps of this process that wait to be stored.
    """

    def __init__(self, buffer: OpenBuffer, source: CandidateSource, own_writes: OwnWrites) -> None:
        self.buffer, self._source, self.own_writes = buffer, source, own_writes
        self._steps = steps_of(buffer.info)
        self._live_count = self._new_count()

    def _new_count(self) -> LiveCount:
        return LiveCount(n_steps if self.buffer.info.has_chunks else None)

    def count(self, node: Node) -> int:
        """Return how many rows match; without a condition no row is scanned."""
        self.own_writes.store()
        return self.count_stored(node)

    @retry_on_disconnect
    def count_stored(self, node: Node) -> int:
        """Return how many rows match, without the waiting steps of this process."""
        buffer, counts_all = self.buffer, node == EVERYTHING
        with translated(buffer.url):
            settled = settled_seq(buffer.engine, buffer.watermark) if counts_all else None
            with snapshot(buffer.engine) as connection:
                named = None if buffer.info.has_chunks else statements.named(node)
                if named is not None:
                    return self._count_named(connection, *named)
                window = buffer.window_in(connection)
                if counts_all:
                    return self._count_all(connection, window, settled)
                matching = resolve_labels(node, window.has_labels)
                where = statements.in_window(self.buffer.info.id, window.low, matching, self._steps)
                counted = select(func.count()).select_from(self._steps).where(where)
                return int(connection.execute(counted).scalar_one())

    def _count_named(self, connection: Connection, column: str, values: Sequence[Any]) -> int:
        naming = {"of_buffer": self.buffer.info.id, "named": values}
        n_rows: int | None = connection.execute(_COUNT_NAMED[column], naming).scalar_one_or_none()
        if n_rows is None:
            raise self.buffer.dropped()
        return n_rows

    def store_waiting(self) -> None:
        """Store the waiting steps of this process."""
        self.own_writes.store()

    def count_all_in(self, connection: Connection, settled: int | None) -> int:
        """Return how many rows a snapshot has; no row up to `settled` can appear any more."""
        return self._count_all(connection, self.buffer.window_in(connection), settled)

    def _count_all(self, connection: Connection, window: BufferWindow, settled: int | None) -> int:
        if window.evict_by != "row":
            return window.live_rows
        end = window.high if settled is None else min(settled, window.high)
        state = (window.deletions, server_epoch(self.buffer.engine))
        # What is counted in a transaction may be undone, and its numbers given again.
        live_count = self._new_count() if is_joined() else self._live_count
        return live_count.count(
            connection, self.buffer.info.id, window.low, window.high, end, state
        )

    def pages(self, node: Node, payloads: Payloads | None = None) -> Iterator[Sequence[Row]]:
        """Stream all rows that match and exist now, in insert order.

        No transaction is open between pages.
        """
        self.own_writes.store()
        return self._pages(node, *self._now(), payloads)

    @retry_on_disconnect
    def _now(self) -> tuple[int, int, SeqRuns]:
        """Return the rows that exist now: all up to a first number, none above a second.

        Between the two numbers, where rows may still be committed, they are given as runs of
        numbers.
        """
        with translated(self.buffer.url):
            settled = settled_seq(self.buffer.engine, self.buffer.watermark, SETTLING_S)
            with snapshot(self.buffer.engine) as connection:
                high = self.buffer.window_in(connection).high
                if settled is None or settled >= high:
                    return high, high, SeqRuns()
                low = max(settled, self.buffer.window_in(connection).low)
                steps = self._steps
                recent = statements.in_window(self.buffer.info.id, low, EVERYTHING, steps)
                runs = connection.execute(statements.runs(recent, steps)).all()
                return settled, high, SeqRuns(runs)

    def _pages(
        self,
        node: Node,
        settled: int,
        end: int,
        recent: SeqRuns,
        payloads: Payloads | None,
    ) -> Iterator[Sequence[Row]]:
        cursor, limit = -1, FIRST_PAGE_ROWS
        while True:
            page, is_last = self.after(node, cursor, end, limit, payloads)
            if shown := [row for row in page if row[0] <= settled or row[0] in recent]:
                yield shown
            if is_last:
                return
            cursor, limit = page[-1][0], _next_limit(page)

    @retry_on_disconnect
    def after(
        self, node: Node, cursor: int, end: int, limit: int, payloads: Payloads | None = None
    ) -> tuple[list[Row], bool]:
        """Return the first matching rows with cursor < seq <= end, in insert order, up to `limit`.

        Fewer are returned if the rows are large. Also return True if there are no more.
        """
        payloads = payloads or self._source.whole_rows
        steps = self._steps
        seq, in_order = statements.seq_for(node, steps), statements.in_order(node, steps)
        with (
            translated(self.buffer.url),
            snapshot(self.buffer.engine, in_order=True) as connection,
        ):
            window = self.buffer.window_in(connection)
            matching = resolve_labels(node, window.has_labels)
            low = max(cursor, window.low)
            where = statements.in_window(self.buffer.info.id, low, matching, steps)
            page_rows, n_matching = list[Row](), 0
            for high in self._ends(node, low, end, limit):
                page = select(steps.c.seq).where(where, seq <= high).order_by(*in_order)
                page_rows, n_matching = payloads.matching(
                    connection, page.limit(limit), steps, has_labels=window.has_labels,
                    most_bytes=PAGE_BYTES,
                )  # fmt: skip
                if n_matching == limit:
                    break
            rows = payloads.complete(connection, page_rows, PAGE_BYTES)
            return rows, len(rows) == n_matching < limit

    def _ends(self, node: Node, low: int, end: int, limit: int) -> Iterator[int]:
        """Yield the upper ends of searches for the first rows behind a number, `end` last.

        PostgreSQL without statistics expects only a few chunks in a buffer, and would sort the
        steps of all of them.
        """
        width = 2 * limit + 64
        while self.buffer.info.has_chunks and not statements.names_few_rows(node):
            if low + width >= end:
                break
            yield low + width
            width *= 8
        yield end

    def page(
        self, node: Node, offset: int, limit: int, payloads: Payloads | None = None
    ) -> list[Row]:
        """Return up to `limit` rows that match, in insert order, after the first `offset`."""
        self.own_writes.store()
        return self._page(node, offset, limit, payloads)

    @retry_on_disconnect
    def _page(self, node: Node, offset: int, limit: int, payloads: Payloads | None) -> list[Row]:
        with self._source.candidates(
            node, (payloads or self._source.whole_rows).reading
        ) as candidates:
            return candidates.rows(candidates.page(offset, limit))

    def tasks(
        self, task_ids: Sequence[str], payloads: Payloads | None = None
    ) -> dict[str, list[Row]]:
        """Return every live row of the tasks, each task's in the order of `task_order`."""
        self.own_writes.store()
        return self._tasks(task_ids, payloads)

    @retry_on_disconnect
    def _tasks(self, task_ids: Sequence[str], payloads: Payloads | None) -> dict[str, list[Row]]:
        with translated(self.buffer.url), snapshot(self.buffer.engine) as connection:
            return self.tasks_in(connection, task_ids, payloads)

    @retry_on_disconnect
    def facts_of(self, keys: Iterable[EpisodeKey]) -> dict[EpisodeKey, EpisodeFacts]:
        """Return what is known of episodes next to their steps, without those that left."""
        with translated(self.buffer.url), reading(self.buffer.engine) as connection:
            return facts_of(connection, self.buffer.info.id, keys)

    def tasks_in(
        self,
        connection: Connection,
        task_ids: Sequence[str],
        payloads: Payloads | None = None,
        limits: Eligibility = NO_LIMITS,
    ) -> dict[str, list[Row]]:
        """Return the rows of tasks, without tasks that have a row which the limits exclude."""
        payloads = payloads or self._source.whole_rows
        rows_by_task: dict[str, list[Row]] = {task_id: [] for task_id in task_ids}
        storable_ids = [task_id for task_id in rows_by_task if is_storable_text(task_id)]
        window = self.buffer.window_in(connection)
        for start in range(0, len(storable_ids), TASKS_AT_ONCE):
            chosen = storable_ids[start : start + TASKS_AT_ONCE]
            steps = self._steps
            where = statements.of_tasks(self.buffer.info.id, window.low, chosen, steps)
            rows, _ = payloads.matching(
                connection,
                select(steps.c.seq).where(where),
                steps,
                has_labels=window.has_labels,
                excludes=limits.is_ineligible(steps) if limits else None,
            )
            for row in payloads.complete(connection, rows):
                rows_by_task[row[TASK_ID]].append(row)
        for of_task in rows_by_task.values():
            of_task.sort(key=task_order)
        return rows_by_task

    def by_ids(
        self, ids: Sequence[str], node: Node, payloads: Payloads | None = None
    ) -> dict[str, Row]:
        """Return the live rows of some ids.

        Args:
            ids: The ids.
            node: The condition that a row has one of them.
            payloads: Parts of the rows to read.
        """
        self.own_writes.store()
        return self._by_ids(ids, node, payloads or self._source.whole_rows)

    @retry_on_disconnect
    def _by_ids(self, ids: Sequence[str], node: Node, payloads: Payloads) -> dict[str, Row]:
        buffer, steps = self.buffer, self._steps
        query = _LOW_AND_LABELS.format(buffer.info.id)
        with translated(buffer.url), snapshot(buffer.engine, query) as connection:
            windows = answer(connection)
            if not windows:
                raise buffer.dropped()
            low, has_labels = windows[0]
            if buffer.info.has_chunks or has_labels:
                where = statements.in_window(buffer.info.id, low, node, steps)
                stored, _ = payloads.matching(
                    connection, select(steps.c.seq).where(where), steps,
                    has_labels=bool(has_labels),
                )  # fmt: skip
            else:
                naming = {
                    "of_buffer": buffer.info.id, "named": ids, "low": low, "high": INT64_MAX,
                }  # fmt: skip
                stored = fetch(connection, payloads.by_id, naming)
            rows = {row[ID]: row for row in payloads.complete(connection, stored)}
            return {id_: rows[id_] for id_ in ids if id_ in rows}

    def size_bytes(self) -> int:
        """Return the bytes of all stored payloads."""
        self.own_writes.store()
        statement = _SIZE_BYTES[self.buffer.engine.dialect.name]
        values = {"id": self.buffer.info.id}
        return int(self.buffer.read(lambda c: c.execute(statement, values).scalar_one()))

    def statement(self, node: Node) -> Select[Any]:
        """Return the select of all rows that match."""
        window = self.buffer.window()
        matching = resolve_labels(node, window.has_labels)
        steps = self._steps
        where = statements.in_window(self.buffer.info.id, window.low, matching, steps)
        rows = select(*statements.row_columns(steps)).where(where)
        rows = with_labels(rows, steps) if window.has_labels else rows
        return rows.order_by(*statements.in_order(node, steps))

    def select_seqs(self, node: Node) -> Callable[[BufferWindow], Select[Any]]:
        """Return a function that selects the numbers of matching rows, in ascending order."""

        def select_in(window: BufferWindow) -> Select[Any]:
            resolved = resolve_labels(node, window.has_labels)
            steps = self._steps
            where = statements.in_window(self.buffer.info.id, window.low, resolved, steps)
            statement = select(steps.c.seq).where(where)
            return statement.order_by(*statements.in_order(resolved, steps))

        return select_in

    def sql(self, node: Node) -> str:
        """Return that select as text, its values written out."""
        return self.buffer.text_of(self.statement(node))

    def explain(self, node: Node) -> str:
        """Return the database's plan of that select."""
        statement = explain(self.statement(node))
        plan = self.buffer.read(lambda connection: connection.execute(statement).all())
        return "\n".join(str(row[-1]) for row in plan)


def _next_limit(page: Sequence[Row]) -> int:
    size = sum(map(n_bytes_of, page)) or 1
    return max(1, min(MAX_PAGE_ROWS, PAGE_BYTES * len(page) // size))


# Seconds between two looks at the lag, and between two looks during a wait.
LOOK_EVERY_S, PAUSE_S = 0.2, 0.002
# Seconds that a read waits for what this process has written, without `max_lag_s`.
LONGEST_WAIT_S = 30.0

# All that was received is replayed, and more can come. The age is that of the last replayed
# transaction: it says nothing while the primary is idle.
_LAG = text("""
SELECT pg_is_in_recovery(),
    EXISTS (SELECT FROM pg_stat_wal_receiver)
        AND pg_last_wal_receive_lsn() <= pg_last_wal_replay_lsn(),
    extract(epoch FROM clock_timestamp() - pg_last_xact_replay_timestamp())::double precision
""")
# A commit that waits for the disk: earlier ones that did not are then on their way as well.
_FLUSH = (text("SET LOCAL synchronous_commit TO local"), text("SELECT pg_current_xact_id()"))
_WRITTEN = text("SELECT pg_current_wal_flush_lsn()::text")
_HAS_REPLAYED = text(
    "SELECT NOT pg_is_in_recovery() OR pg_last_wal_replay_lsn() >= CAST(:lsn AS pg_lsn)"
)
_CLUSTER = text("SELECT current_database(), (SELECT system_identifier FROM pg_control_system())")
_SERVER = text("SELECT pg_postmaster_start_time()::text, pg_is_in_recovery()")


class StandbyReads(OwnWrites):
    """Brings a standby up to date before a read, as far as the read needs it.

    A read sees all that this process has written before. It is refused if the standby is too far
    behind, or is none any more.

    Args:
        primary: The buffer on the primary.
        standby: The same buffer on the standby.
        own_writes: Steps of this process that wait to be stored on the primary.
        max_lag_s: Largest lag in seconds; None: any.
    """

    def __init__(
        self,
        primary: OpenBuffer,
        standby: OpenBuffer,
        own_writes: OwnWrites,
        max_lag_s: float | None,
    ) -> None:
        super().__init__()
        self._primary, self._standby, self._own = primary, standby, own_writes
        self._max_lag_s = max_lag_s
        self._commits = commits_of(primary.url, primary.info.id)
        self._mutex = ForkLock()
        # The buffer may be new.
        self._n_seen = -1
        self._caught_up_at = self._looked_at = float("-inf")

    def add(self, queue: WaitingSteps) -> None:
        """Add a queue whose waiting steps are stored before reads."""
        self._own.add(queue)

    def store(self) -> None:
        """Store all waiting steps, and wait until the standby has them."""
        self._own.store()
        self.catch_up()

    def store_before_draw(self, n: int, count: Callable[[], int]) -> None:
        """Store the waiting steps if there are many; see `OwnWrites.store_before_draw`."""
        self._own.store_before_draw(n, count)
        self.catch_up()

    def catch_up(self) -> None:
        """Wait until the standby has all that this process has committed.

        Raises:
            StorageBusyError: It is too far behind, or has become a server of its own.
        """
        with self._mutex:
            n = self._commits.n
            if n != self._n_seen:
                self._wait_for(self._written())
                self._n_seen = n
            self._check_lag()

    def catch_up_with_all(self) -> None:
        """Wait until the standby has all that any process has committed up to now.

        Raises:
            StorageBusyError: It is too far behind, or has become a server of its own.
        """
        with self._mutex:
            self._n_seen = -1
        self.catch_up()

    def wait_for(self, seq: int) -> None:
        """Wait until the standby has a step that another process has read."""
        deadline = time.monotonic() + self._longest_wait_s
        while self._standby.window().high < seq:
            self._pause(deadline, f"it does not have step {seq:,} yet")

    def check(self) -> None:
        """Raise unless the server is a standby of the primary.

        Raises:
            BufferConfigError: It is not.
            UnsupportedDatabaseError: A pooler before it lacks what each opening needs.
        """
        url = self._standby.url
        self._standby.read(lambda connection: check_first_opening(connection, url))
        shown = self._standby.shown_url
        _, is_standby = self._ask(self._standby, _SERVER)
        if not is_standby:
            raise BufferConfigError(
                f"read_url={shown!r} is not a standby: it accepts writes of its own; give the URL "
                f"of a standby of {self._primary.shown_url}, or leave out read_url"
            )
        ours, theirs = self._ask(self._primary, _CLUSTER), self._ask(self._standby, _CLUSTER)
        if tuple(ours) != tuple(theirs):
            what = "another cluster" if ours[1] != theirs[1] else f"the database {theirs[0]!r}"
            raise BufferConfigError(
                f"read_url={shown!r} shows {what}, and not what {self._primary.shown_url} has; "
                f"give a standby of that server, with the same database"
            )

    @property
    def _longest_wait_s(self) -> float:
        return LONGEST_WAIT_S if self._max_lag_s is None else self._max_lag_s

    def _wait_for(self, lsn: str) -> None:
        deadline = time.monotonic() + self._longest_wait_s
        while not self._ask(self._standby, _HAS_REPLAYED, lsn=lsn)[0]:
            self._pause(deadline, "it does not have what this process has written")
        self._looked_at = float("-inf")

    def _written(self) -> str:
        """Return where the log of the primary ends, with all that was committed."""
        primary = self._primary

        def flush(connection: Connection) -> str:
            for statement in _FLUSH:
                connection.execute(statement)
            connection.commit()
            return str(connection.execute(_WRITTEN).scalar_one())

        return primary.read(flush)

    def _pause(self, deadline: float, why: str) -> None:
        if time.monotonic() > deadline:
            raise self._behind(f"{why}, after {self._longest_wait_s:g} s")
        time.sleep(PAUSE_S)

    def _check_lag(self) -> None:
        now = time.monotonic()
        if now - self._looked_at < LOOK_EVERY_S:
            return
        is_standby, is_current, age_s = self._ask(self._standby, _LAG)
        if not is_standby:
            self._check_promoted()
        elif is_current:
            self._caught_up_at = now
        elif self._max_lag_s is not None:
            lag_s = min(float("inf") if age_s is None else age_s, now - self._caught_up_at)
            if lag_s > self._max_lag_s:
                raise self._behind(f"it is {lag_s:.1f} s behind, and max_lag_s={self._max_lag_s:g}")
        self._looked_at = now

    def _check_promoted(self) -> None:
        """Raise unless the standby has become the server that this process writes to."""
        ours, theirs = self._ask(self._primary, _SERVER), self._ask(self._standby, _SERVER)
        if tuple(ours) != tuple(theirs):
            raise StorageBusyError(
                f"{self._standby.shown_url} was promoted, and is no standby of "
                f"{self._primary.shown_url} any more; open the buffer with the URL of the new "
                f"primary, and another read_url or none"
            )

    def _behind(self, why: str) -> StorageBusyError:
        return StorageBusyError(
            f"the standby {self._standby.shown_url} is behind its primary: {why}; try again, allow "
            f"a larger max_lag_s, or leave out read_url"
        )

    def _ask(self, buffer: OpenBuffer, statement: Any, **values: Any) -> Any:
        return buffer.read(lambda connection: connection.execute(statement, values).one())
