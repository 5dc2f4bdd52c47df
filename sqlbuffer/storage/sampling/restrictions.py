"""Requirements of a buffer that rows must meet before they may be sampled."""

from dataclasses import replace

from sqlalchemy import Connection, func, select

from sqlbuffer.errors import InsufficientDataError
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.buffer_info import BufferInfo, why_empty
from sqlbuffer.storage.buffers.buffer_window import SampledWindow
from sqlbuffer.storage.eligibility.eligible_rows import Eligibility, oldest_version
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import layout_of, steps_of
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.sampling.candidates import FEW_HOLES, Candidates
from sqlbuffer.storage.sampling.eligible_low import EligibleLow
from sqlbuffer.storage.sampling.slice_reading import SliceReading


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

    def are_any(self, now: SampledWindow) -> bool:
        """Return True if there is any restriction."""
        self.has_quarantine = bool(now.has_quarantine)
        return self._are_any or self.has_quarantine

    def candidates(
        self,
        connection: Connection,
        now: SampledWindow,
        epoch: int,
        node: Node,
        columns: RowSelection | SliceReading,
    ) -> Candidates:
        """Return the candidates of a sampler.

        Raises:
            InsufficientDataError: The buffer has too few rows.
        """
        self._check_size(connection, now, epoch)
        limits = self.limits(now)
        eligible_low = self.eligible_low.of(limits, epoch)
        found = Candidates(
            connection, self._info.id, now.low, now.high, node, columns, limits, eligible_low,
            layout_of(self._info),
        )  # fmt: skip
        found.clock = now.clock
        return found

    def look(
        self, connection: Connection, now: SampledWindow, settled: int | None, epoch: int
    ) -> None:
        """Find the first row that may be sampled.

        Args:
            connection: Connection to read from.
            now: The window.
            settled: Number up to which no row can appear any more; None for the newest.
            epoch: Epoch of the server when this was known.
        """
        end = now.high if settled is None else min(settled, now.high)
        limits, steps = self.limits(now), steps_of(self._info)
        self.eligible_low.look(connection, self._info.id, steps, now.low, end, limits, epoch)

    def limits(self, now: SampledWindow) -> Eligibility:
        """Return the current limits."""
        return Eligibility(
            self._info.config.sampling.max_use,
            oldest_version(now.clock, self._info.config.sampling.max_staleness),
            now.session if self._info.config.sampling.current_session_only else None,
            bool(now.has_quarantine),
        )

    def for_leases(self, connection: Connection, now: SampledWindow, epoch: int) -> Eligibility:
        """Return the limits that exclude rows from leases: the queue itself counts uses.

        Raises:
            InsufficientDataError: The buffer has too few rows.
        """
        self._check_size(connection, now, epoch)
        return self.limits_of_leases(now)

    def limits_of_leases(self, now: SampledWindow) -> Eligibility:
        """Return the limits of `for_leases`, without a check of the number of rows."""
        return replace(self.limits(now), max_use=None)

    def _check_size(self, connection: Connection, now: SampledWindow, epoch: int) -> None:
        """Raise an error if there are too few rows; rows are counted again after deletions only."""
        needed, state = self._info.config.sampling.min_size, (now.deletions, epoch)
        if not needed or (now.span >= needed and self._large_enough == state):
            return
        n_rows = now.live_rows
        if self._info.config.retention.evict_by == "row":
            n_rows = self._count(connection, now, needed)
        if n_rows < needed:
            why = "" if n_rows else why_empty(connection, self._info.id)
            raise InsufficientDataError(below_min_size(self._info.name, n_rows, needed, why))
        if self._info.config.retention.evict_by == "row":
            self._large_enough = state

    def _count(self, connection: Connection, now: SampledWindow, needed: int) -> int:
        """Return the number of rows, or at least `needed`."""
        # The newest rows are mostly enough; without statistics PostgreSQL would sort all for a
        # limit.
        n_rows = 0
        for low in (max(now.low, now.high - 2 * needed - FEW_HOLES), now.low):
            steps = steps_of(self._info)
            where = statements.in_window(self._info.id, low, EVERYTHING, steps)
            counted = select(func.count()).select_from(steps).where(where)
            n_rows = connection.execute(counted).scalar_one()
            if n_rows >= needed:
                break
        return n_rows
