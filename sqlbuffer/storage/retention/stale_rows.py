"""Find rows that are too old by the clock, without reading all of them each time."""

import heapq

from sqlalchemy import BigInteger, Connection, Integer, bindparam, select

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.transactions import fetch

_own = experiences.c
_NEW = select(_own.model_version, _own.seq).where(
    _own.buffer_id == bindparam("buffer", type_=Integer()),
    _own.seq > bindparam("low", type_=BigInteger()),
    _own.seq <= bindparam("high", type_=BigInteger()),
    _own.model_version.is_not(None),
)
# Rows that have left are dropped when this many more are remembered than the window has numbers.
SPARE = 1_024


class StaleRows:
    """Remembers the rows by their versions: each row is read once, when it is new.

    It is for databases with one writer at a time, where no row appears among numbers that were
    read.
    """

    def __init__(self) -> None:
        self._read_to = 0
        self._oldest_first: list[tuple[int, int]] = []

    def follow(self, connection: Connection, buffer_id: int, low: int, high: int) -> None:
        """Read the new rows.

        Args:
            connection: Connection to read from.
            buffer_id: The buffer.
            low: Lower end of its window.
            high: Its newest row.
        """
        start = max(low, self._read_to)
        if start >= high:
            return
        new = fetch(connection, _NEW, {"buffer": buffer_id, "low": start, "high": high})
        known = self._oldest_first
        if len(known) + len(new) > 2 * (high - low) + SPARE:
            known = self._oldest_first = [row for row in known if row[1] > low]
            heapq.heapify(known)
        for version, seq in new:
            heapq.heappush(known, (version, seq))
        self._read_to = high

    def taken(self, oldest: int, low: int) -> list[int]:
        """Return the rows of the window that are older than a version, in order.

        They are no longer remembered, nor are rows that have left.
        """
        known, stale = self._oldest_first, []
        while known and known[0][0] < oldest:
            _, seq = heapq.heappop(known)
            if seq > low:
                stale.append(seq)
        return sorted(stale)
