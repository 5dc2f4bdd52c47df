"""Find the number below which no row may be sampled: used up, stale, or of another session."""

import time
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from sqlbuffer.processes import ForkLock
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.eligibility.eligible_rows import NO_LIMITS, Eligibility
from sqlbuffer.storage.rows import statements

if TYPE_CHECKING:
    from sqlbuffer.storage.sampling.candidates import Candidates

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
        own = (steps.c.buffer_id == buffer_id) & (seq > known) & (seq <= end) & limits.hold(steps)
        in_order = statements.in_order(EVERYTHING, steps)
        first = select(seq).where(own).order_by(*in_order).limit(1)
        found = connection.execute(first).scalar_one_or_none()
        eligible_low = end if found is None else found - 1
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
