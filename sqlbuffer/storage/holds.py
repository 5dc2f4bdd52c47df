"""Holds: steps that have left the window of a buffer are not deleted before they are copied."""

import contextlib
import threading
from typing import Any
from uuid import uuid4

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Table,
    delete,
    func,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.errors import StorageError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.schema.expressions import in_seconds
from sqlbuffer.storage.schema.metadata import TIME, UUID, buffer_key, metadata

holds = Table(
    "holds",
    metadata,
    buffer_key(),
    Column("hold_id", UUID, primary_key=True, comment="random id of the hold"),
    Column("low_seq", BigInteger, nullable=False, comment="no step above this seq is evicted"),
    Column(
        "live_until", TIME, nullable=False, comment="end of the hold, unless it is extended in time"
    ),
    info={"learner_may": "INSERT, UPDATE (low_seq, live_until), DELETE"},
)


# Seconds in which a copy that was killed can continue.
HOLD_S = 120.0
# A hold that ends sooner counts as ended: a writer that evicts may not see yet that it is extended.
MARGIN_S = 20.0


def held_low(connection: Connection, buffer_id: int) -> int | None:
    """Return the number above which no step may be deleted now; None if any step may be deleted."""
    hold = holds.c
    live = (hold.buffer_id == buffer_id) & (hold.live_until > in_seconds(literal(0.0)))
    low: int | None = connection.execute(select(func.min(hold.low_seq)).where(live)).scalar_one()
    return low


class Hold:
    """A hold on the steps of a buffer. The window that users see does not change.

    Args:
        buffer: The buffer.
        hold_id: Id of a hold that was taken before; if omitted, of a new one.
    """

    def __init__(self, buffer: OpenBuffer, hold_id: str | None = None) -> None:
        self._buffer = buffer
        self.id = str(uuid4()) if hold_id is None else hold_id

    def take(self) -> None:
        """Hold all steps in the window.

        Writers under way may not see the hold yet: wait for them.

        Raises:
            StorageReadOnlyError: The role lacks the right, which learners have.
        """

        def work(connection: Connection) -> None:
            # First: a process that ends holds locks the buffer as well.
            self._buffer.lock(connection)
            low = self._buffer.window_in(connection).low
            values = {"buffer_id": self._buffer.info.id, "hold_id": self.id, "low_seq": low}
            connection.execute(insert(holds).values({**values, "live_until": self._later(HOLD_S)}))
            flag = update(buffers).where(buffers.c.id == self._buffer.info.id)
            connection.execute(flag.values(has_holds=True))

        self._buffer.write(work)

    def extend(self, low_seq: int) -> bool:
        """Extend the hold, and release steps up to a number; return False if it had ended."""
        later = (
            update(holds)
            .where(self._is_live)
            .values(live_until=self._later(HOLD_S), low_seq=low_seq)
        )
        return self._buffer.write(lambda connection: connection.execute(later).rowcount == 1)

    def is_live(self, connection: Connection) -> bool:
        """Return True if no held step was deleted in the state of a transaction."""
        statement = select(holds.c.hold_id).where(self._is_live)
        return connection.execute(statement).one_or_none() is not None

    def release(self) -> None:
        """End the hold. Steps below the window are deleted at the next eviction."""
        hold = holds.c
        gone = (hold.buffer_id == self._buffer.info.id) & (hold.hold_id == self.id)
        self._buffer.write(lambda connection: connection.execute(delete(holds).where(gone)))

    @property
    def _is_live(self) -> ColumnElement[bool]:
        hold = holds.c
        return (
            (hold.buffer_id == self._buffer.info.id)
            & (hold.hold_id == self.id)
            & (hold.live_until > self._later(MARGIN_S))
        )

    def _later(self, seconds: float) -> ColumnElement[Any]:
        return in_seconds(literal(seconds))


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
