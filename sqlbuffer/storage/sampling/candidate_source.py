"""Open the rows of a buffer to reads and to samplers, and check what they require of it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Select, func, select

from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.processes import ForkLock
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.catalog import BufferInfo, why_empty
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import SampledWindow, select_sampled_window
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer, snapshot
from sqlbuffer.storage.eligibility import NO_LIMITS, Eligibility, oldest_version
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import layout_of, steps_of
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.statements import RowSelection
from sqlbuffer.storage.sampling.candidates import FEW_HOLES, Candidates, RowPriorities
from sqlbuffer.storage.sampling.slice_table import SliceReading

# Uses may be given back by another process, or by plain SQL.
FORGOTTEN_AFTER_S = 60.0
# If a draw had to try more numbers than this for each row, the lower end is searched again.
MOST_NUMBERS_A_ROW = 3
FEW_NUMBERS = 64
# While the search has no effect, it runs after twice as many such draws each time.
LONGEST_PAUSE = 1_024
WORTH_IT = 1 / 16


class EligibleLow:
    """Remembers a number up to which no settled row may be sampled.

    Rows are used up or become stale at random places, but old rows sooner. So most eligible rows
    are at the upper end of the window, and numbers drawn from there on are hits more often. The
    number is valid while the clock does not go back and the session is the same. Quarantine ends,
    and does not count.
    """

    def __init__(self) -> None:
        self._mutex = ForkLock()
        self._seq, self._limits, self._begun_at, self._epoch = 0, NO_LIMITS, 0.0, 0
        self._pause, self._n_poor = 1, 0

    def of(self, limits: Eligibility, epoch: int) -> int:
        """Return the number; 0 if none is known.

        Args:
            limits: Limits that exclude rows.
            epoch: Epoch of the server: after a crash it may give the same numbers to other rows.
        """
        limits = limits.lasting
        with self._mutex:
            if not limits or not self._holds(limits, epoch):
                return 0
            return self._seq

    def _holds(self, limits: Eligibility, epoch: int) -> bool:
        if epoch != self._epoch:
            return False
        ours, theirs = self._limits.oldest_version, limits.oldest_version
        later = ours is None or (theirs is not None and theirs >= ours)
        same = self._limits.session in (None, limits.session)
        return later and same and time.monotonic() - self._begun_at < FORGOTTEN_AFTER_S

    def forget(self, older_than_s: float = 0.0) -> bool:
        """Drop the number if it is older than a time in seconds; return True if one was known."""
        with self._mutex:
            known = self._seq > 0 and time.monotonic() - self._begun_at >= older_than_s
            if known:
                self._seq = 0
            return known

    def is_due(self, candidates: "Candidates") -> bool:
        """Return True if a draw found too few rows, so that it is time to search."""
        if not candidates.limits.lasting:
            return False
        most = MOST_NUMBERS_A_ROW * candidates.n_hits + FEW_NUMBERS
        if not candidates.has_read_keys and candidates.n_probed <= most:
            return False
        with self._mutex:
            self._n_poor += 1
            return self._n_poor >= self._pause

    def look(
        self,
        connection: Connection,
        buffer_id: int,
        steps: Any,
        low: int,
        end: int,
        limits: Eligibility,
        epoch: int,
    ) -> None:
        """Find the first row that may be sampled.

        Args:
            connection: Connection to read from.
            buffer_id: The buffer.
            steps: The table of its steps.
            low: Lower end of the window.
            end: Number up to which no row can appear any more.
            limits: Limits that exclude rows.
            epoch: Epoch of the server when `end` was found.
        """
        limits = limits.lasting
        if not limits:
            return
        known = max(low, self.of(limits, epoch))
        seq: Any = steps.c.seq
        is_eligible = (
            (steps.c.buffer_id == buffer_id) & (seq > known) & (seq <= end) & limits.hold(steps)
        )
        in_order = statements.in_order(EVERYTHING, steps)
        first = select(seq).where(is_eligible).order_by(*in_order).limit(1)
        first_seq = connection.execute(first).scalar_one_or_none()
        eligible_low = end if first_seq is None else first_seq - 1
        with self._mutex:
            is_new = not self._holds(limits, epoch)
            gain = max(eligible_low - known, 0)
            self._n_poor = 0
            if gain >= WORTH_IT * max(end - known, 1):
                self._pause = 1
            else:
                self._pause = min(2 * self._pause, LONGEST_PAUSE)
            if gain or is_new:
                self._seq = max(eligible_low, known)
                self._limits, self._epoch = limits, epoch
                self._begun_at = time.monotonic() if is_new else self._begun_at


def below_min_size(name: str, n_rows: int, needed: int, why_none: str) -> str:
    """Return the message of a draw from a buffer that has fewer rows than `min_size`.

    Args:
        name: The buffer.
        n_rows: Number of its rows.
        needed: Its `min_size`.
        why_none: Why it has no rows, as text behind its name; "" if it has some.
    """
    holds = why_none or f"holds {n_rows} rows"
    return (
        f"buffer {name!r} {holds}, and is sampled from {needed} on (min_size); wait for more data"
    )


class Restrictions:
    """The restrictions of one buffer, and this process's knowledge of the remaining rows.

    Attributes:
        eligible_low: No row up to this number may be sampled any more.
        has_quarantine: Rows were in quarantine at the last draw.
    """

    def __init__(self, info: BufferInfo) -> None:
        self._info = info
        self.eligible_low = EligibleLow()
        self.has_quarantine = False
        self._large_enough: tuple[int, int] | None = None
        self._are_any = (
            info.config.sampling.max_use is not None
            or info.config.sampling.max_staleness is not None
            or info.config.sampling.current_session_only
            or info.config.sampling.min_size > 0
            or info.config.sampling.track_samples
        )

    def are_any(self, window: SampledWindow) -> bool:
        """Return True if there is any restriction."""
        self.has_quarantine = bool(window.has_quarantine)
        return self._are_any or self.has_quarantine

    def candidates(
        self,
        connection: Connection,
        window: SampledWindow,
        epoch: int,
        node: Node,
        columns: RowSelection | SliceReading,
    ) -> Candidates:
        """Return the candidates of a sampler.

        Raises:
            InsufficientDataError: The buffer has too few rows.
        """
        self._check_size(connection, window, epoch)
        limits = self.limits(window)
        eligible_low = self.eligible_low.of(limits, epoch)
        candidates = Candidates(
            connection, self._info.id, window.low, window.high, node, columns, limits, eligible_low,
            layout_of(self._info),
        )  # fmt: skip
        candidates.clock = window.clock
        return candidates

    def look(
        self, connection: Connection, window: SampledWindow, settled: int | None, epoch: int
    ) -> None:
        """Find the first row that may be sampled.

        Args:
            connection: Connection to read from.
            window: The window.
            settled: Number up to which no row can appear any more; None for the newest.
            epoch: Epoch of the server when this was known.
        """
        end = window.high if settled is None else min(settled, window.high)
        limits, steps = self.limits(window), steps_of(self._info)
        self.eligible_low.look(connection, self._info.id, steps, window.low, end, limits, epoch)

    def limits(self, window: SampledWindow) -> Eligibility:
        """Return the current limits."""
        return Eligibility(
            self._info.config.sampling.max_use,
            oldest_version(window.clock, self._info.config.sampling.max_staleness),
            window.session if self._info.config.sampling.current_session_only else None,
            bool(window.has_quarantine),
            self._info.config.sampling.staleness_of == "newest",
        )

    def for_leases(self, connection: Connection, window: SampledWindow, epoch: int) -> Eligibility:
        """Return the limits that exclude rows from leases: the queue itself counts uses.

        Raises:
            InsufficientDataError: The buffer has too few rows.
        """
        self._check_size(connection, window, epoch)
        return self.limits_of_leases(window)

    def limits_of_leases(self, window: SampledWindow) -> Eligibility:
        """Return the limits of `for_leases`, without a check of the number of rows."""
        return self.limits(window)._replace(max_use=None)

    def _check_size(self, connection: Connection, window: SampledWindow, epoch: int) -> None:
        """Raise an error if there are too few rows; rows are counted again after deletions only."""
        needed, state = self._info.config.sampling.min_size, (window.deletions, epoch)
        if not needed or (window.span >= needed and self._large_enough == state):
            return
        n_rows = window.live_rows
        if self._info.config.retention.evict_by == "row":
            n_rows = self._count(connection, window, needed)
        if n_rows < needed:
            why = "" if n_rows else why_empty(connection, self._info.id)
            raise InsufficientDataError(below_min_size(self._info.name, n_rows, needed, why))
        if self._info.config.retention.evict_by == "row":
            self._large_enough = state

    def _count(self, connection: Connection, window: SampledWindow, needed: int) -> int:
        """Return the number of rows, or at least `needed`."""
        # The newest rows are mostly enough; without statistics PostgreSQL would sort all for a
        # limit.
        n_rows = 0
        for low in (max(window.low, window.high - 2 * needed - FEW_HOLES), window.low):
            steps = steps_of(self._info)
            where = statements.in_window(self._info.id, low, EVERYTHING, steps)
            counted = select(func.count()).select_from(steps).where(where)
            n_rows = connection.execute(counted).scalar_one()
            if n_rows >= needed:
                break
        return n_rows


class CandidateSource:
    """Opens the rows of a buffer to reads and to samplers.

    Args:
        buffer: The buffer.
        priorities_of: Function that returns the priorities of candidates; None if there are none.

    Attributes:
        restrictions: Requirements that rows must meet before they may be sampled.
        whole_rows: Reads whole rows.
    """

    def __init__(
        self,
        buffer: OpenBuffer,
        priorities_of: Callable[[Candidates], RowPriorities] | None = None,
    ) -> None:
        self.buffer = buffer
        self.restrictions = Restrictions(buffer.info)
        self.whole_rows = self.payloads()
        self._priorities_of = priorities_of

    @contextmanager
    def candidates(
        self,
        node: Node,
        columns: RowSelection | SliceReading | None = None,
        *,
        sampled: bool = False,
    ) -> Iterator[Candidates]:
        """Open the matching rows, while the connection is open.

        Args:
            node: Condition that rows must match.
            columns: Columns to read; whole rows by default.
            sampled: Only rows that may be sampled.
        """
        columns = self.whole_rows.reading if columns is None else columns
        buffer, query = self.buffer, self.window_query
        if isinstance(columns, SliceReading) and columns.finds_single:
            query = self._window_with_single
        # One state throughout: rows that are evicted during the draw stay in the result.
        with (
            translated(buffer.url),
            snapshot(buffer.engine, query) as connection,
        ):
            window = self.window_answered(answer(connection))
            node = resolve_labels(node, bool(window.has_labels))
            if not (sampled and self.restrictions.are_any(window)):
                candidates = Candidates(
                    connection, buffer.info.id, window.low, window.high, node, columns,
                    steps=layout_of(buffer.info),
                )  # fmt: skip
            else:
                candidates = self.restrictions.candidates(
                    connection, window, server_epoch(buffer.engine), node, columns
                )
            candidates.has_labels = bool(window.has_labels)
            candidates.newest_single, candidates.has_deleted = (
                window.newest_single,
                bool(window.has_deleted),
            )
            candidates.may_replace = buffer.info.layout is not None
            if self._priorities_of is not None:
                candidates.priorities = self._priorities_of(candidates)
            yield candidates

    def payloads(
        self, selected: SelectedFields | None = None, only: frozenset[str] | None = None
    ) -> Payloads:
        """Return the reader of rows, whole or in part."""
        info = self.buffer.info
        # Only layouts of compat replace steps.
        may_replace = info.layout is not None
        return Payloads(
            info.id, self.buffer.layout, selected, only, steps=layout_of(info),
            may_replace=may_replace,
        )  # fmt: skip

    @cached_property
    def window_query(self) -> str:
        """The select of the window, as text that can be sent together with another statement."""
        return self.buffer.text_of(self._select_window())

    @cached_property
    def _window_with_single(self) -> str:
        return self.buffer.text_of(self._select_window(finds_single=True))

    def window_answered(self, rows: Sequence[Any]) -> SampledWindow:
        """Return the window that a select of it found.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        if not rows:
            raise self.buffer.dropped()
        window = SampledWindow(*rows[0])
        if window.n_added > self.buffer.layout.number:
            self.buffer.learn_fields()
        return window

    def sampled_window(self, connection: Connection) -> SampledWindow:
        """Return the window of the rows that may be sampled now, in a transaction."""
        return self.window_answered(connection.execute(self._select_window()).all())

    def _select_window(self, *, finds_single: bool = False) -> Select[Any]:
        info = self.buffer.info
        evict_by = info.config.retention.evict_by
        return select_sampled_window(info.id, evict_by, steps_of(info), finds_single=finds_single)
