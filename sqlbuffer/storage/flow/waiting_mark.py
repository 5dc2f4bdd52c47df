"""The row of a call that waits for a rate limiter."""

import time
import uuid
from collections.abc import Callable

HEARTBEAT_S = 1.0


class WaitingMark:
    """Marks a call as waiting.

    Args:
        process: The name of this process's rows.
        write: Function that writes or renews the row of a name.
        remove: Function that removes it.
    """

    def __init__(
        self, process: str, write: Callable[[str], None], remove: Callable[[str], None]
    ) -> None:
        self._process, self._write, self._remove = process, write, remove
        self._name = ""
        self._beaten_at = 0.0

    @property
    def is_set(self) -> bool:
        """True if the call has waited."""
        return bool(self._name)

    def beat(self) -> None:
        """Write the mark, and renew it about every second."""
        now = time.monotonic()
        if self._name and now - self._beaten_at < HEARTBEAT_S:
            return
        self._beaten_at = now
        self._name = self._name or f"{self._process} {uuid.uuid4().hex[:12]}"
        self._write(self._name)

    def clear(self) -> None:
        """Remove the mark."""
        if self._name:
            self._remove(self._name)
