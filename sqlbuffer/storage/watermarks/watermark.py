"""Settled rows of a buffer on PostgreSQL, as one opener knows them."""

from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.watermarks.standby import StandbyWatermark

_PREPARED = "-1/"  # prefix of the names of prepared transactions


class Watermark:
    """The number up to which the rows of a buffer are settled: no row below can appear any more.

    Args:
        buffer_id: The buffer.

    Attributes:
        mutex: Held by a thread that reads the server and stores the result.
        settled: No row up to this number can appear any more.
        pending: Next value of `settled`, after all `writers` have ended.
        writers: The transactions that may still write rows up to `pending`, by the server's names.
        on_standby: The watermark of a standby, if the server is one.
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
        """Start again in another epoch of the server.

        After a crash it may give the same numbers and names of transactions again.
        """
        if epoch != self._epoch:
            self._epoch = epoch
            self._forget()

    def note(self, last_value: int, running: frozenset[str]) -> None:
        """Store a read of the sequence, and the writers that a later read found."""
        if any(not name.startswith(_PREPARED) for name in self.writers - running):
            # It may have been prepared: then it continues under another name.
            prepared = {name for name in running if name.startswith(_PREPARED)}
            self.writers = self.writers | prepared
        self.writers = self.writers & running
        if not self.writers:
            self.settled = max(self.settled, self.pending)
            self.pending, self.writers = last_value, running
        if not running:
            self.settled = last_value
