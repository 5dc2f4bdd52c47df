"""Rows that a process may sample without asking the database each time."""

import threading
from contextlib import suppress

from sqlbuffer.errors import FlowControlError
from sqlbuffer.storage.flow.pacing import Pacer

# Maximum number of batches that are reserved ahead. Number of draws after a refusal that reserve
# one batch only.
MOST_AHEAD, LONGEST_PATIENCE = 16, 64
# A thread that waits longer for another one, which queries the database, sends a query as well.
LONGEST_ASKING_S = 1.0


class SampleCredits:
    """Reserves rows under the rate limiter of a buffer, some batches at a time.

    Reserved rows count as sampled. They are given back when no draw has used any of them between
    two calls of `settle`. After a crash they stay counted.

    Args:
        pacer: Waits for the limiter.
    """

    def __init__(self, pacer: Pacer) -> None:
        self._pacer = pacer
        self._mutex, self._asking = threading.Lock(), threading.Lock()
        self._left = 0
        self._is_used = False
        self._n_ahead = self._patience = self._n_until = 0

    def take(self, n: int) -> bool:
        """Take n rows, after a wait if one is needed.

        Returns:
            True if they are counted; False if the buffer has no limit.

        Raises:
            FlowControlError: They may not be sampled in time.
        """
        if not self._pacer.is_limited:
            return False
        with self._mutex:
            self._is_used = True
            own = min(n, self._left)
            self._left -= own
        if own == n:
            return True
        try:
            n_more = self._reserve(n - own, n)
        except BaseException:
            self.put_back(own)
            raise
        self.put_back(own if n_more is None else n_more - (n - own))
        return n_more is not None

    def put_back(self, n: int) -> None:
        """Return n rows that were taken or reserved, and not drawn."""
        with self._mutex:
            self._left += n

    def _reserve(self, missing: int, n: int) -> int | None:
        """Reserve the rows that are missing for a batch of n, and perhaps more.

        Return how many, or None if the buffer has no limit.
        """
        # One thread at a time: threads that try at the same time may all pass.
        if self._asking.acquire(timeout=LONGEST_ASKING_S):
            try:
                for ahead in self._tries(n):
                    with suppress(FlowControlError):
                        is_counted = self._pacer.reserve(missing + ahead, 0.0)
                        self._has_passed(ahead)
                        return missing + ahead if is_counted else None
                    self._is_refused(ahead)
            finally:
                self._asking.release()
        return missing if self._pacer.reserve(missing) else None

    def _tries(self, n: int) -> list[int]:
        """Return how many rows to reserve in addition to the missing ones, try by try."""
        self._n_until = max(0, self._n_until - 1)
        ahead = 0 if self._n_until else self._n_ahead * n
        return [ahead, 0] if ahead else [0]

    def _has_passed(self, ahead: int) -> None:
        self._n_ahead = min(max(1, 2 * self._n_ahead), MOST_AHEAD)
        if ahead:
            self._patience = 0

    def _is_refused(self, ahead: int) -> None:
        self._n_ahead = 0
        if ahead:  # the other side is behind: one batch at a time, for a while
            self._patience = min(2 * self._patience + 1, LONGEST_PATIENCE)
            self._n_until = self._patience

    def settle(self, *, is_end: bool = False) -> None:
        """Give back the reserved rows if no draw has used any since the last call.

        Args:
            is_end: Give back all remaining rows.
        """
        with self._mutex:
            given = self._left if is_end or not self._is_used else 0
            self._left, self._is_used = self._left - given, False
            if given:
                self._n_ahead = 0
        if given:
            self._pacer.correct(-given)
