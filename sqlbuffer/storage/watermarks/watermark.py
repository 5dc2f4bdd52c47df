"""What one opener of a buffer knows of its settled rows, on PostgreSQL."""

from sqlbuffer.storage.database.fork_lock import ForkLock
from sqlbuffer.storage.watermarks.standby import StandbyWatermark

_PREPARED = "-1/"  # how the names of prepared transactions begin


class Watermark:
    """Up to which number the rows of a buffer are settled: no row below can appear any more.

    Args:
        buffer_id: The buffer.

    Attributes:
        mutex: Held by a thread that looks at the server and notes what it found.
        settled: No row up to this number can appear any more.
        pending: The same will be true of this number when `writers` have ended.
        writers: The transactions that may still write rows up to `pending`, by the server's names.
        on_standby: What is known instead if the server is a standby.
    """

    def __init__(self, buffer_id: int) -> None:
        self.buffer_id = buffer_id
        self.mutex = ForkLock()
        self._epoch: int | None = None
        self._forget()

    def _forget(self) -> None:
        self.settled = self.pending = 0
        self.writers: frozenset[str] = frozenset()
        self.on_standby = StandbyWatermark()

    def begin(self, epoch: int) -> None:
        """Forget what is known of another epoch of the server: after a crash it may give numbers
        and names of transactions that it gave before.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._forget()

    def note(self, last_value: int, running: frozenset[str]) -> None:
        """Note a look at the sequence, and the writers that a later look found."""
        if any(not name.startswith(_PREPARED) for name in self.writers - running):
            # It may have been prepared: then it goes on under another name.
            prepared = {name for name in running if name.startswith(_PREPARED)}
            self.writers = self.writers | prepared
        self.writers = self.writers & running
        if not self.writers:
            self.settled = max(self.settled, self.pending)
            self.pending, self.writers = last_value, running
        if not running:
            self.settled = last_value
