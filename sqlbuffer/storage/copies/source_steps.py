"""Read the source of a copy, a limited number of steps at a time."""

import time
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from typing import TypeVar

import numpy as np
from sqlalchemy import Connection, and_, func, select, text

from sqlbuffer.errors import CopyError, StorageBusyError
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.settling import settled_seq
from sqlbuffer.storage.buffers.tables import buffers, sessions
from sqlbuffer.storage.chunks.tables import chunks
from sqlbuffer.storage.copies import postgresql, sqlite
from sqlbuffer.storage.copies.copied_parts import (
    CopiedRange,
    SourceIdentity,
    SourceState,
    StepBatch,
)
from sqlbuffer.storage.copies.copied_tables import (
    TableRows,
    episode_table,
    overlay_tables,
    step_tables,
)
from sqlbuffer.storage.copies.value_forms import time_text
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import reading, snapshot
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.documents import stored_documents
from sqlbuffer.storage.holds.hold import HOLD_S, Hold
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.rows.layouts import CHUNKS, ROWS, StepLayout, layout_of
from sqlbuffer.storage.rows.statements import in_window
from sqlbuffer.storage.watermarks.last_number import is_standby, last_number

# A batch has at most this many rows or chunks, and ends behind the one that reaches this size.
MOST_ROWS, MOST_CHUNKS = 2_000, 512
BATCH_BYTES = 8 * 2**20
EPISODES_AT_ONCE = 2_000
# Seconds that a copy waits at its start for the writers under way.
SETTLING_S = 30.0
STANDBY_PAUSE_S = 0.1
# Columns of the buffer as a whole, in addition to its configuration.
BUFFER_COLUMNS = (
    "clock", "max_priority", "n_expired", "n_used_up", "n_other_session", "n_partial",
)  # fmt: skip
_FLAGS = sorted({table.flag for own in (ROWS, CHUNKS) for table in step_tables(own) if table.flag})

T = TypeVar("T")
_COUNT = text(
    "SELECT count(*) FROM step_numbers WHERE buffer_id = :id AND seq > :low AND seq <= :high"
)

sizes = by_database(sqlite=sqlite.sizes, postgresql=postgresql.sizes)
read_rows = by_database(sqlite=sqlite.read_rows, postgresql=postgresql.read_rows)
few_pages = by_database(sqlite=sqlite.few_pages, postgresql=postgresql.few_pages)
read_episodes = by_database(sqlite=sqlite.read_episodes, postgresql=postgresql.read_episodes)


class CopySource:
    """Reads a buffer that is copied.

    Args:
        store: The buffer.
        node: Condition that copied steps must match.

    Attributes:
        store: The buffer where its steps are held.
        buffer: The buffer where its steps are read: the same one, or that on the standby.
        hold: Hold on the steps; None if there is none, as when the source cannot be written.
    """

    def __init__(self, store: OpenBuffer, node: Node) -> None:
        self.store, self.buffer, self._node = store, store.reading, node
        self.hold: Hold | None = None
        self._id, self._steps = store.info.id, layout_of(store.info)
        self._step_bytes = store.layout.size_bytes  # not compressed

    @property
    def dialect(self) -> str:
        """The kind of its database."""
        return self.buffer.engine.dialect.name

    def identity(self) -> SourceIdentity:
        """Return the identity of this buffer."""

        def look() -> SourceIdentity:
            own = select(buffers.c.created_at).where(buffers.c.id == self._id)
            with translated(self.store.url), reading(self.store.engine) as connection:
                created = connection.execute(own).scalar_one_or_none()
            if created is None:
                raise self.store.dropped()
            shown = time_text(created) if isinstance(created, datetime) else str(created)
            condition = None if self._node == EVERYTHING else repr(self._node)
            info = self.store.info
            return SourceIdentity(self.store.shown_url, info.name, info.id, shown, condition)

        return self.store.with_retries(look)

    def settled(self) -> int | None:
        """Return a number up to which all steps are there; None if that is the newest one.

        Raises:
            StorageBusyError: A transaction that writes does not end, or the standby is behind.
        """

        def look() -> int | None:
            buffer = self.store
            with translated(buffer.url):
                with reading(buffer.engine) as connection:
                    last, stands_by = connection.execute(
                        select(last_number(self._id), is_standby())
                    ).one()
                settled = settled_seq(buffer.engine, buffer.watermark, SETTLING_S)
                deadline = time.monotonic() + SETTLING_S
                # A standby knows more at a second read, a little later.
                while stands_by and settled == 0 < last and time.monotonic() < deadline:
                    time.sleep(STANDBY_PAUSE_S)
                    settled = settled_seq(buffer.engine, buffer.watermark)
            if stands_by and settled == 0 < last:
                raise StorageBusyError(
                    f"{buffer.shown_url}: a standby cannot tell which steps of buffer "
                    f"{buffer.info.name!r} are complete until later ones are committed; copy "
                    f"again, or copy from the primary"
                )
            if settled is not None and settled < last and not stands_by:
                raise StorageBusyError(
                    f"{buffer.shown_url}: a transaction that writes to buffer "
                    f"{buffer.info.name!r} did not end within {SETTLING_S:.0f} s; end it "
                    f"(`sqlbuffer doctor` names old ones), and copy again"
                )
            return settled

        found = self.store.with_retries(look)
        self.buffer.own_writes.catch_up_with_all()
        return found

    def state(self, connection: Connection, settled: int | None) -> SourceState:
        """Return the copied data, in a snapshot that was opened after `settled` was found."""
        window = self.buffer.window_in(connection)
        high = window.high if settled is None else min(settled, window.high)
        low, cursor = min(window.low, high), min(window.low, high)
        # Chunks are copied whole: the first one may begin below the window. A snapshot may be in
        # the middle of the numbers of one write.
        low_chunk, high_chunk = self.chunk_at(connection, low), self.chunk_at(connection, high)
        if low_chunk is not None and low_chunk[1] > low:
            cursor = low_chunk[0] - 1
        if high_chunk is not None:
            high = max(high, high_chunk[1])
        own = buffers.c
        found = connection.execute(
            select(*(own[name] for name in BUFFER_COLUMNS), sessions.c.key.label("session"))
            .outerjoin_from(buffers, sessions, own.session_id == sessions.c.id)
            .where(own.id == self._id)
        ).one()
        versions = connection.execute(
            select(sessions.c.key, sessions.c.current_version)
            .where(sessions.c.buffer_id == self._id)
            .order_by(sessions.c.id)
        )
        columns = {name: found._mapping[name] for name in BUFFER_COLUMNS}
        return SourceState(
            CopiedRange(low, high, cursor), columns, found.session,
            {row.key: row.current_version for row in versions},
            self.count(connection, low, high),
        )  # fmt: skip

    def count(self, connection: Connection, low: int, high: int) -> int | None:
        """Return the number of steps between two numbers, if missing ones would not show."""
        if self.buffer.info.config.retention.evict_by == "row":
            return None
        own = {"id": self._id, "low": low, "high": high}
        return int(connection.execute(_COUNT, own).scalar_one())

    def check_left(self, copied: CopiedRange, n_left: int | None) -> None:
        """Check that the source has all the steps that are still to be read.

        Args:
            copied: Range of those steps.
            n_left: Number of those steps, if whole tasks or episodes are evicted.

        Raises:
            CopyError: Some steps have left.
        """
        low = max(copied.cursor, copied.low)

        def check(connection: Connection) -> None:
            self._check_window(connection, low, copied.high)
            n_held = self.count(connection, low, copied.high)
            if n_left is not None and n_held != n_left:
                raise self.missing(low + 1, copied.high, f"{n_left - (n_held or 0):,} of the ")

        self.read(check)

    def newest(self, connection: Connection, up_to: int) -> tuple[int, str] | None:
        """Return the number of the newest chunk or row up to a number; see `newest_mark`."""
        return newest_mark(connection, self._id, up_to, self._steps)

    def check_same(self, number: int, mark: str) -> None:
        """Raise an error if the source has a different step under the number of a copied one.

        Raises:
            CopyError: The steps differ.
        """
        found = self.read(partial(self.newest, up_to=number))
        if found is not None and found[0] == number and found[1] != mark:
            raise CopyError(
                f"buffer {self.buffer.info.name!r} in {self.buffer.shown_url} has another step at "
                f"seq {number:,} than the unfinished copy: it was restored, or is another one; "
                f"drop the copy, and copy again"
            )

    def chunk_at(self, connection: Connection, seq: int) -> tuple[int, int] | None:
        """Return the first and last number of the last chunk that begins at or below a number."""
        own = chunks.c
        found = connection.execute(
            select(own.first_seq, own.first_seq + own.n_steps - 1)
            .where(own.buffer_id == self._id, own.first_seq <= seq, own.first_seq > seq - 256)
            .order_by(own.first_seq.desc())
            .limit(1)
        ).one_or_none()
        return None if found is None else (found[0], found[1])

    def episodes(
        self, connection: Connection, copied: CopiedRange, after: int = -1
    ) -> Iterator[TableRows]:
        """Yield the episodes as they were when the last step of the range was stored.

        An episode with steps above the range was open then. One with only such steps is left out,
        and so are those up to a key (`after`).
        """
        begun_later = self._later_episodes(connection, copied.high)
        while True:
            page = read_episodes(connection, episode_table(), self._id, after, EPISODES_AT_ONCE)
            if not len(page):
                return
            after = page.numbers[-1]
            is_kept = [begun_later.get(number) != 0 for number in page.numbers]
            kept = page if all(is_kept) else page.where(is_kept)
            for i, number in enumerate(kept.numbers):
                if number in begun_later:
                    _reopen(kept, i, begun_later[number] if self._steps is CHUNKS else None)
            if len(kept):
                yield kept

    def _later_episodes(self, connection: Connection, high: int) -> dict[int, int]:
        """Return the first step above a number of each episode that has any."""
        own, number = self._steps.table.c, self._steps.number
        later = and_(own.buffer_id == self._id, own[number] > high, own.episode_id.is_not(None))
        first = func.min(own.t).label("first")
        found = connection.execute(
            select(own.episode_id, first).where(later).group_by(own.episode_id)
        )
        return {row.episode_id: row.first for row in found}

    def episode_names(self) -> Iterator[list[tuple[int, str, str]]]:
        """Return the key, the id and the task of each episode, in the order of their keys."""
        after = -1
        while True:
            page = self.read(
                partial(
                    read_episodes, table=episode_table(), buffer_id=self._id, after=after,
                    limit=EPISODES_AT_ONCE,
                )
            )  # fmt: skip
            if not len(page):
                return
            own = page.values
            yield list(zip(own["id"], own["key"], own["task_id"], strict=True))
            after = page.numbers[-1]

    def documents(self) -> list[tuple[str, int, str]]:
        """Return the documents of the buffer; see `stored_documents`."""
        return self.read(lambda connection: stored_documents(connection, self._id))

    def session_keys(self) -> dict[int, str]:
        """Return the sessions by their keys in this database."""
        return self.read(self.session_keys_in)

    def session_keys_in(self, connection: Connection) -> dict[int, str]:
        """Return the result of `session_keys`, in a transaction."""
        own = sessions.c
        found = connection.execute(select(own.id, own.key).where(own.buffer_id == self._id))
        return {row.id: row.key for row in found}

    def batch(self, copied: CopiedRange) -> StepBatch:
        """Return the next steps behind the cursor.

        Raises:
            CopyError: Some of the steps have left.
        """
        return self.read(partial(self.batch_in, copied=copied))

    def read(self, read: Callable[[Connection], T]) -> T:
        """Run a function in one snapshot and return its result."""
        self.buffer.own_writes.catch_up()

        def look() -> T:
            buffer = self.buffer
            with translated(buffer.url), snapshot(buffer.engine, in_order=True) as connection:
                connection.begin()
                with few_pages(connection):
                    return read(connection)

        return self.buffer.with_retries(look)

    def batch_in(self, connection: Connection, copied: CopiedRange) -> StepBatch:
        """Return the result of `batch`, in a transaction."""
        begin, low = copied.cursor, max(copied.cursor, copied.low)
        self._check_there(connection, low, copied.high)
        most = MOST_CHUNKS if self._steps is CHUNKS else MOST_ROWS
        found = sizes(connection, self._id, begin, copied.high, most, self._steps)
        n_bytes = np.cumsum([max(size, n * self._step_bytes) for _, n, size in found])
        n_taken = min(int(np.searchsorted(n_bytes, BATCH_BYTES)) + 1, len(found))
        is_last = n_taken == len(found) < most
        last = None if is_last else found[n_taken - 1]
        end = copied.high if last is None else last[0] + last[1] - 1
        batch = StepBatch(begin, end)
        flags = self._flags(connection)
        for table in (*step_tables(self._steps), *overlay_tables()):
            if table.flag is None:
                batch.tables.append(read_rows(connection, table, self._id, begin, end))
            elif flags[table.flag]:
                batch.tables.append(read_rows(connection, table, self._id, low, end))
        batch.n_steps = batch.n_read = self._n_steps(batch, low)
        if self._node != EVERYTHING:
            matching = resolve_labels(self._node, bool(flags["has_labels"]))
            steps = self._steps.of(self._id)
            where = and_(in_window(self._id, low, matching, steps), steps.c.seq <= end)
            seqs = connection.scalars(select(steps.c.seq).where(where))
            batch.keep(set(seqs))
        return batch

    def _n_steps(self, batch: StepBatch, low: int) -> int:
        """Return the number of steps of a batch above a number."""
        by_name = {rows.table.name: rows for rows in batch.tables}
        if "experiences" in by_name:
            return len(by_name["experiences"])
        own = by_name["chunks"]
        spans = zip(own.numbers, own.values["n_steps"], strict=True)
        n_whole = sum(first + n - 1 - max(low, first - 1) for first, n in spans)
        deleted = by_name.get("deleted_steps")
        n_deleted = 0 if deleted is None else len(deleted)
        return int(n_whole) - n_deleted

    def _flags(self, connection: Connection) -> dict[str, bool]:
        names = sorted({table.flag for table in overlay_tables() if table.flag} | {*_FLAGS})
        own = select(*(buffers.c[name] for name in names)).where(buffers.c.id == self._id)
        found = connection.execute(own).one()
        return {name: bool(found._mapping[name]) for name in names}

    def _check_there(self, connection: Connection, low: int, high: int) -> None:
        """Raise an error unless the steps above a number are held, or in the window."""
        if self.hold is None or not self.hold.is_live(connection):
            self._check_window(connection, low, high)

    def _check_window(self, connection: Connection, low: int, high: int) -> None:
        window = self.buffer.window_in(connection)
        if window.evict_by == "row" and window.low > low and low < high:
            raise self.missing(low + 1, min(window.low, high))

    def missing(self, first: int, last: int, some: str = "") -> CopyError:
        """Return the error for steps that have left."""
        why = (
            "the source cannot be written, so the copy could not hold them"
            if self.hold is None
            else f"a copy that does not continue within {HOLD_S:.0f} s no longer holds them"
        )
        return CopyError(
            f"{some}steps {first:,} to {last:,} of buffer {self.buffer.info.name!r} left "
            f"{self.buffer.shown_url} before they were copied ({why}); drop the unfinished copy, "
            f"and copy again"
        )


def newest_mark(
    connection: Connection, buffer_id: int, up_to: int, steps: StepLayout
) -> tuple[int, str] | None:
    """Return the number of the newest chunk or row up to a number, and a mark unique to it."""
    own, name = steps.table.c, steps.number
    statement = (
        select(own[name], own[steps.mark])
        .where(own.buffer_id == buffer_id, own[name] <= up_to)
        .order_by(own[name].desc())
        .limit(1)
    )
    found = connection.execute(statement).one_or_none()
    if found is None:
        return None
    number, mark = found
    return number, time_text(mark) if isinstance(mark, datetime) else str(mark)


def _reopen(episodes: TableRows, i: int, next_t: int | None) -> None:
    """Change an episode back to its state while it was open."""
    for name in ("length", "return", "reward", "first_seq", "last_seq", "final_arrays", "ended_at"):
        episodes.values[name][i] = None
    episodes.values["status"][i] = "open"
    if next_t is not None:
        episodes.values["next_t"][i] = next_t
