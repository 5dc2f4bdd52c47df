"""A follower of a buffer: its registration, and the check that it missed no entry of the log."""

from typing import Any
from uuid import uuid4

from sqlalchemy import Connection, delete, exists, insert, literal, select, update
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.changes import postgresql, sqlite
from sqlbuffer.storage.changes.tables import followers
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.schema.server_clock import in_seconds

# Position of a transaction in the change log: the text of its snapshot, or the last entry on
# SQLite.
log_position = by_database(sqlite=sqlite.log_position, postgresql=postgresql.log_position)
# Returns True if an entry was trimmed that is not part of a position.
is_trimmed = by_database(sqlite=sqlite.is_trimmed, postgresql=postgresql.is_trimmed)


class Follower:
    """Registers a follower of a buffer, so that all changes of the buffer are logged.

    The follower reads the buffer after `register`: from then on no change is missing in the log. A
    follower that does not renew its registration in time is removed.

    Args:
        buffer: The buffer.
        live_s: Duration of a registration in seconds.

    Attributes:
        id: Unique id of the follower.
    """

    def __init__(self, buffer: OpenBuffer, live_s: float = 60.0) -> None:
        self._buffer, self._live_s = buffer, live_s
        self.id = str(uuid4())

    def register(self) -> None:
        """Register the follower; it may be registered already."""

        def work(connection: Connection) -> None:
            # Writers that log only for followers hold this lock too, and have ended by then.
            self._buffer.lock(connection)
            connection.execute(delete(followers).where(self._is_own))
            connection.execute(
                insert(followers).values(
                    buffer_id=self._buffer.info.id,
                    follower_id=self.id,
                    live_until=self._live_until,
                )
            )
            self._flag(connection, True)

        self._buffer.write(work)

    def renew(self) -> bool:
        """Renew the registration; return False if it had ended.

        In that case changes may be missing in the log: register again, and read the buffer again.
        """
        later = update(followers).where(self._is_own).values(live_until=self._live_until)
        return self._buffer.write(lambda connection: connection.execute(later).rowcount == 1)

    def leave(self) -> None:
        """End the registration."""

        def work(connection: Connection) -> None:
            self._buffer.lock(connection)
            connection.execute(delete(followers).where(self._is_own))
            others = exists(select(1).where(followers.c.buffer_id == self._buffer.info.id))
            if not connection.execute(select(others)).scalar_one():
                self._flag(connection, False)

        self._buffer.write(work)

    @property
    def _is_own(self) -> ColumnElement[bool]:
        own = followers.c
        return (own.buffer_id == self._buffer.info.id) & (own.follower_id == self.id)

    @property
    def _live_until(self) -> ColumnElement[Any]:
        return in_seconds(literal(self._live_s))

    def _flag(self, connection: Connection, value: bool) -> None:
        own = update(buffers).where(buffers.c.id == self._buffer.info.id)
        connection.execute(own.where(buffers.c.has_followers != value).values(has_followers=value))
