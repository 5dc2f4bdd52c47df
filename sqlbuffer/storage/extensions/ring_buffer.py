"""A buffer as a ring of items with separate counters, for `compat.ding`.

The rows are the items, in the order in which they were pushed. Every change locks the row of
`buffer_layouts` first, so that the counters and the order of the rows agree.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import orjson
from sqlalchemy import (
    BigInteger,
    Connection,
    Integer,
    Text,
    bindparam,
    cast,
    delete,
    func,
    select,
    update,
)

from sqlbuffer.encoding.records import Record
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.buffers.window import SampledWindow
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.extensions.layout_rows import make_layout, stored_config
from sqlbuffer.storage.extensions.tables import RING, buffer_layouts
from sqlbuffer.storage.rows.payload_parts import prepared
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.watermarks import last_number
from sqlbuffer.storage.writing.row_writer import Insert
from sqlbuffer.storage.writing.write_batch import WriteBatch

T = TypeVar("T")

COLUMNS = frozenset({"state", "arrays", "payload_bytes"})
ROWS_AT_ONCE = 10_000
# Positions in a row that was read with them.
STATE, ARRAYS = (1 + Record._fields.index(name) for name in ("state", "arrays"))
EXTRA = 1 + Record._fields.index("extra")
IN_PARTS = 1 + Record._fields.index("payload_bytes")

_ID = bindparam("buffer", type_=Integer())
_TABLE = buffer_layouts.c
_COUNTED = (_TABLE.next_number, _TABLE.next_place, cast(_TABLE.state, Text))
_COUNTS = select(*_COUNTED).where(_TABLE.buffer_id == _ID)
_LOCKED = _COUNTS.with_for_update()
_SET = (
    update(buffer_layouts)
    .where(_TABLE.buffer_id == _ID)
    .values(
        next_number=bindparam("n", type_=BigInteger()),
        next_place=bindparam("place", type_=BigInteger()),
    )
)
_NEXT = (
    update(buffer_layouts)
    .where(_TABLE.buffer_id == _ID)
    .values(
        next_number=_TABLE.next_number + bindparam("n", type_=BigInteger()),
        next_place=(_TABLE.next_place + bindparam("n", type_=BigInteger()))
        % bindparam("size", type_=BigInteger()),
    )
    .returning(*_COUNTED)
)
_N_BETWEEN = select(func.count()).where(
    experiences.c.buffer_id == _ID,
    experiences.c.seq > bindparam("low", type_=BigInteger()),
    experiences.c.seq <= bindparam("high", type_=BigInteger()),
)


@dataclass(frozen=True)
class RingCounts:
    """The counters of a ring.

    Attributes:
        push_count: Items pushed, including those that left.
        tail: The place of the next item.
        state: Further state of its kind.
    """

    push_count: int = 0
    tail: int = 0
    state: Any = None


@dataclass(frozen=True)
class Contents:
    """The rows of a ring, the oldest first, and its counters at that moment."""

    rows: list[Row]
    counts: RingCounts


class Left(NamedTuple):
    """Items that left.

    Attributes:
        n: Number of items.
        items: Their rows, or the decoded items, the oldest first; empty unless they are tracked.
    """

    n: int
    items: Sequence[Any] = ()


NONE_LEFT = Left(0)


class ItemRing:
    """The items of one buffer.

    Args:
        store: The buffer.
        kind: Use of the ring.
        size: Maximum number of items.
    """

    def __init__(self, store: BufferStore, kind: str, size: int) -> None:
        self.store, self.kind, self.size = store, kind, size
        self._key = {"buffer": store.info.id}
        self.payloads = store.source.payloads(only=COLUMNS)
        self._notes = store.source.payloads(only=frozenset({"extra"}))

    def counts(self) -> RingCounts:
        """Return its counters."""
        return self.store.read(self.counts_of)

    def counts_of(self, connection: Connection, *, locked: bool = False) -> RingCounts:
        """Return its counters; if locked, they stay unchanged until the transaction ends.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        found = connection.execute(_LOCKED if locked else _COUNTS, self._key).one_or_none()
        if found is None:
            raise self.store.dropped()
        push_count, tail, state = found
        # Another process may have set another size since.
        return RingCounts(
            push_count, tail % self.size, None if state is None else orjson.loads(state)
        )

    def lock(self, connection: Connection) -> None:
        """Lock the ring, after a wait for the transaction that changes it."""
        self.counts_of(connection, locked=True)

    def set_counts(self, connection: Connection, push_count: int, tail: int) -> None:
        """Set its counters."""
        connection.execute(_SET, {**self._key, "n": push_count, "place": tail})

    def count_pushed(self, connection: Connection, n: int) -> RingCounts:
        """Count pushed items, and return the counters, locked until the transaction ends.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        values = {**self._key, "n": n, "size": self.size}
        found = connection.execute(_NEXT, values).one_or_none()
        if found is None:
            raise self.store.dropped()
        push_count, tail, state = found
        return RingCounts(push_count, tail, None if state is None else orjson.loads(state))

    def push(self, records: Sequence[Record], n_pushed: int, *, track: bool = False) -> Left:
        """Append items, all or none; the oldest leave.

        Args:
            records: The items that are kept, at most the ring's size.
            n_pushed: Number of items pushed.
            track: Return the rows of the items that leave.
        """
        batch = WriteBatch(prepared(records, self.store.layout))

        def work(connection: Connection, insert: Insert) -> Left:
            self.count_pushed(connection, n_pushed)
            left = self._leaving(connection, len(records), track=track)
            insert(batch)
            return left

        return self.store.writer.store_within(batch, work)

    def _leaving(self, connection: Connection, n_new: int, *, track: bool) -> Left:
        """Return the items that leave when `n_new` items are inserted."""
        # By number: numbers lost in a rollback count against the capacity too.
        last = select(last_number(buffers.c.id)).where(buffers.c.id == self.store.info.id)
        end = int(connection.execute(last).scalar_one()) + n_new - self.size
        if end <= 0:
            return NONE_LEFT
        window = self.store.source.sampled_window(connection)
        n = self._count_between(connection, window.low, end)
        if not track or not n:
            return Left(n)
        candidates = self.candidates(connection, window)
        keys: Any = candidates.keys()
        return Left(n, self.rows(candidates, [seq for seq in keys if seq <= end]))

    def _all(self, connection: Connection, *, track: bool) -> Left:
        """Return all items."""
        window = self.store.source.sampled_window(connection)
        n = self._count_between(connection, window.low, window.high)
        if not track:
            return Left(n)
        candidates = self.candidates(connection, window)
        return Left(n, self.rows(candidates, candidates.keys()))

    def _count_between(self, connection: Connection, low: int, high: int) -> int:
        """Return the number of rows with low < seq <= high."""
        if low >= high:
            return 0
        parameters = {**self._key, "low": low, "high": high}
        return int(connection.execute(_N_BETWEEN, parameters).scalar_one())

    def candidates(self, connection: Connection, window: SampledWindow | None = None) -> Candidates:
        """Return the candidates of a transaction, in the given window or in the current one."""
        window = window or self.store.source.sampled_window(connection)
        return Candidates(
            connection,
            self.store.info.id,
            window.low,
            window.high,
            EVERYTHING,
            self.payloads.reading,
        )

    @staticmethod
    def rows(candidates: Candidates, seqs: Any) -> list[Row]:
        """Return the rows of numbers, some at a time."""
        numbers = [int(seq) for seq in seqs]
        found: list[Row] = []
        for start in range(0, len(numbers), ROWS_AT_ONCE):
            found += candidates.rows(numbers[start : start + ROWS_AT_ONCE])
        return found

    def draw(self, choose: Callable[[Candidates], Any]) -> list[Row]:
        """Return the chosen rows, in the chosen order."""
        return self.store.draws.draw(
            EVERYTHING,
            lambda candidates: self.rows(candidates, choose(candidates)),
            self.payloads.reading,
        )

    def contents(self) -> Contents:
        """Return all rows and the counters, at one moment."""

        def work() -> Contents:
            with self.store.source.candidates(EVERYTHING, self.payloads.reading) as candidates:
                rows = self.rows(candidates, candidates.keys())
                return Contents(rows, self.counts_of(candidates.connection))

        return self._surviving(work)

    def notes(self) -> list[str | None]:
        """Return the JSON of each item (`extra`), the oldest first."""

        def work() -> list[str | None]:
            with self.store.source.candidates(EVERYTHING, self._notes.reading) as candidates:
                return [row[EXTRA] for row in self.rows(candidates, candidates.keys())]

        return self._surviving(work)

    def clear(self, *, track: bool = False) -> Left:
        """Remove all items, and return them.

        Args:
            track: Return their rows too.
        """

        def work(connection: Connection) -> Left:
            self.lock(connection)
            left = self._all(connection, track=track)
            self.remove(connection)
            self.set_counts(connection, 0, 0)
            return left

        return self.store.write(work)

    def replace(self, records: Sequence[Record], counts: RingCounts) -> None:
        """Replace all items by these, in one transaction."""

        batch = WriteBatch(prepared(records, self.store.layout))

        def work(connection: Connection, insert: Insert) -> None:
            self.lock(connection)
            self.remove(connection)
            self.set_counts(connection, counts.push_count, counts.tail)
            if records:
                insert(batch)

        self.store.writer.store_within(batch, work)

    def remove(self, connection: Connection) -> None:
        """Remove all rows."""
        self.store.note_deletion(connection)
        # The window begins behind them, so that no number in it is missing.
        own = buffers.c.id == self.store.info.id
        connection.execute(update(buffers).where(own).values(low_seq=last_number(buffers.c.id)))
        remove_where(connection, self.store.info.id, origin=self.store.origin)
        listed = episodes.c.buffer_id == self.store.info.id
        connection.execute(delete(episodes).where(listed))

    def _surviving(self, work: Callable[[], T]) -> T:
        store = self.store
        return retried(work, store.options.retry_s, store.forget_connections)


def make_ring(store: BufferStore, kind: str) -> str | None:
    """Make a buffer a ring of items, unless it is one.

    Returns:
        Use of the ring; None if another part of the package made it.
    """
    config = stored_config(store, RING)
    if config is None and store.info.layout == RING:
        store.write(lambda connection: make_layout(connection, store, {"kind": kind}))
        config = stored_config(store, RING)
    return None if config is None else str(config["kind"])
