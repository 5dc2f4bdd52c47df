"""Count the items of a ring."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    select,
)

from sqlbuffer.storage.buffers.live_count import BLOCK, LiveCount
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.buffers.window import SampledWindow
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.store import BufferStore


class ItemCount:
    """Counts the items of a ring, and remembers the count in this process.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self._store = store
        self._live = LiveCount()
        self._counted: tuple[Any, int] = (None, 0)  # the last window, and its number of rows
        self._surely: tuple[tuple[int, int], int, int] = ((-1, -1), 0, 0)

    def of(self, connection: Connection, window: SampledWindow) -> int:
        """Return the number of items. The caller holds the lock of the ring."""
        state = (window.deletions, server_epoch(self._store.engine))
        buffer_id = self._store.info.id
        # A process that pushes holds the lock, so no lower number can still appear.
        span = (state, window.low, window.high)
        if self._counted[0] != span:
            n_rows = self._live.count(
                connection, buffer_id, window.low, window.high, window.high, state
            )
            self._counted = (span, n_rows)
        return self._counted[1]

    def at_least(self, connection: Connection, window: SampledWindow, least: float) -> int:
        """Return the number of items, or a count that shows that there are at least `least`.

        If nothing was deleted since the last count, each new number removes at most one item.
        """
        state = (window.deletions, server_epoch(self._store.engine))
        known, n_held, high = self._surely
        if known == state and n_held - (window.high - high) >= least:
            return n_held - (window.high - high)
        n_held = self.of(connection, window)
        self._surely = (state, n_held, window.high)
        return n_held

    def seq_at(self, connection: Connection, window: SampledWindow, n_held: int, place: int) -> int:
        """Return the number of the item at a place by age.

        If some numbers are missing, items are counted by blocks, and one block is read.
        """
        if n_held == window.span:
            return window.low + 1 + place
        known = self._live.known()
        block = (window.low + 1) // BLOCK
        own = experiences.c
        while True:
            n = known.get(block, 0)
            if place < n:
                start = max(block * BLOCK, window.low + 1)
                where = (own.seq >= start) & (own.seq < (block + 1) * BLOCK)
                rows = select(experiences.c.seq).where(
                    (own.buffer_id == self._store.info.id) & where
                )
                found = rows.order_by(own.seq).offset(place).limit(1)
                return int(connection.execute(found).scalar_one())
            place -= n
            block += 1

    def removed(self, before: int, after: int, seqs: Sequence[int]) -> None:
        """Note that items were removed between two counts of deletions."""
        epoch = server_epoch(self._store.engine)
        self._live.removed((before, epoch), (after, epoch), seqs)
