"""Extend a hold from a thread, while its reader is busy."""

import contextlib
import threading

from sqlbuffer.errors import StorageError
from sqlbuffer.storage.holds.hold import HOLD_S, Hold

EXTEND_EVERY_S = HOLD_S / 6


class HoldKeeper:
    """Extends a hold until it is closed.

    Args:
        hold: The hold.
        low_seq: No step above this number may leave.
    """

    def __init__(self, hold: Hold, low_seq: int) -> None:
        self._hold, self.low_seq = hold, low_seq
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sqlbuffer-hold", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._is_closed.wait(EXTEND_EVERY_S):
            # A database that does not answer is tried again; the reader gets the error as well.
            with contextlib.suppress(StorageError):
                self._hold.extend(self.low_seq)

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._thread.join()
