"""Remove rows that can never be sampled again: too old, used up, or of another session.

The steps of an episode that is stored step by step need each other, so they leave when none of
them may be sampled. If whole tasks or episodes are evicted, these leave in the same way. Rows in
quarantine stay, and leased rows.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Connection, bindparam, case, select, update
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.errors import SQLBufferError, StorageReadOnlyError
from sqlbuffer.processes import ForkLock
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.stats import Removed
from sqlbuffer.storage.buffers.eviction_counts import count_evictions
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.buffers.window import SampledWindow, clean_after_write
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.dialects import hurried
from sqlbuffer.storage.eligibility import Eligibility, is_in_quarantine, is_used_up
from sqlbuffer.storage.episodes import episode_states
from sqlbuffer.storage.holds import held_low
from sqlbuffer.storage.leases.retirement import retire
from sqlbuffer.storage.leases.tables import not_leased
from sqlbuffer.storage.retention.eviction import tasks
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.rows.removal import remove_rows
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.schema.expressions import IntegerList, is_one_of, one_of_keys, unindexed

# Interval at which a process removes rows on its own, and the maximum duration: a hundredth of its
# time.
EXPIRE_EVERY_S = 10.0
AT_ONCE_S = 0.1
# Numbers that one statement reads, and rows that one transaction removes.
LEAST_SPAN, MOST_SPAN = 4_096, 65_536
MOST_ROWS = 1_000

EXPIRED, USED_UP, OTHER_SESSION = range(3)
REASONS = ("expired", "used_up", "other_session")
NONE = Removed(0, 0, 0)
_COUNTS = (buffers.c.n_expired, buffers.c.n_used_up, buffers.c.n_other_session)
# Number up to which rows were removed, and the removed rows.
Leaving = tuple[int, Removed]
Writing = Callable[[Callable[[Connection], Leaving]], Leaving]


class _Row(NamedTuple):
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
        is_named = (tasks.c.buffer_id == number) & one_of_keys(tasks.c.task_id, ids)
        return set(connection.execute(select(tasks.c.task_id).where(is_named, has_none)).scalars())

    def _ineligible_episodes(
        self, connection: Connection, low: int, limits: Eligibility, ids: set[int]
    ) -> set[int | None]:
        """Return the episodes that have ended and have no row that may be sampled."""
        if not ids:
            return set()
        number, states = self._buffer.info.id, episode_states.c
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
        for reason, n in zip(REASONS, counts, strict=True):
            count_evictions(connection, buffer.info.id, buffer.origin, reason, n)
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
