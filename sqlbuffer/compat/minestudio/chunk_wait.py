"""Waits until there are enough chunks, and logs the missing ones."""

import logging
import time

from sqlbuffer.compat.minestudio.errors import FetchTimeoutError
from sqlbuffer.storage.extensions.fragments.fragment_reading import FragmentReader
from sqlbuffer.storage.extensions.fragments.leaving import oldest_allowed
from sqlbuffer.storage.extensions.fragments.pool import Pool

logger = logging.getLogger("sqlbuffer")

# From one look to the next: a read by key.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.01, 0.25
# When it is logged that a fetch waits; then after twice as long each time, up to the last.
FIRST_LOG_S, LAST_LOG_S = 10.0, 300.0


class Wait:
    """The wait of one fetch.

    Args:
        reader: The buffer.
        k: Number of chunks.
        timeout_s: Seconds to wait; None: without end.
    """

    def __init__(self, reader: FragmentReader, k: int, timeout_s: float | None) -> None:
        self._reader, self._k, self._timeout_s = reader, k, timeout_s
        self._began = time.monotonic()
        self._pause_s = FIRST_PAUSE_S
        self._log_s = FIRST_LOG_S
        self._first: Pool | None = None

    def for_more(self, pool: Pool) -> None:
        """Wait until there may be enough chunks.

        Args:
            pool: The state when there were too few.

        Raises:
            FetchTimeoutError: The time is up.
        """
        self._first = self._first or pool
        while pool.n_groups < self._k:
            waited_s = time.monotonic() - self._began
            left_s = float("inf") if self._timeout_s is None else self._timeout_s - waited_s
            if left_s <= 0:
                raise FetchTimeoutError(self.missing(pool, waited_s))
            if waited_s >= self._log_s:
                logger.warning("%s", self.missing(pool, waited_s))
                self._log_s += min(self._log_s, LAST_LOG_S)
            time.sleep(min(self._pause_s, left_s))
            self._pause_s = min(2 * self._pause_s, LONGEST_PAUSE_S)
            pool = self._reader.pool()

    def missing(self, pool: Pool, waited_s: float) -> str:
        """Return a message about the missing chunks."""
        first = self._first or pool
        now, then = pool.counts, first.counts
        left = ", ".join(
            f"{n} {what}"
            for what, n in (
                ("used up", now.used_up - then.used_up),
                ("evicted", now.evicted - then.evicted),
                ("expired", now.stale - then.stale),
                ("of another session", now.other_session - then.other_session),
            )
            if n
        )
        n, came = pool.rules.fragments_per_chunk, now.fragments - then.fragments
        return (
            f"fetch_fragments: have {pool.n_groups} of {self._k} chunks after {waited_s:.1f} s; "
            f"since then {came} fragments came in, {now.dropped - then.dropped} were dropped, and "
            f"these chunks left: {left or 'none'}. A chunk is {n} consecutive fragments of a "
            f"worker, of session {pool.session!r} and version {oldest_allowed(pool)} or later: see "
            f"that workers run and send such, wait longer (timeout), or ask for fewer"
        )
