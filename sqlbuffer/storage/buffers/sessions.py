"""Training sessions: the current one of a buffer, and the model version of each."""

from sqlalchemy import Connection, select, text, update

from sqlbuffer.errors import SessionNotFoundError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers, sessions

INSERT_SESSION = text(
    "INSERT INTO sessions (buffer_id, key) VALUES (:buffer_id, :key) ON CONFLICT DO NOTHING"
)


class Sessions:
    """The training sessions of a buffer, and its clock.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer

    def clock(self) -> int | None:
        """Return the learner's iteration or model version; None before it was set."""
        buffer = self.buffer
        statement = select(buffers.c.clock).where(buffers.c.id == buffer.info.id)
        row = buffer.read(lambda connection: connection.execute(statement).one_or_none())
        if row is None:
            raise buffer.dropped()
        clock: int | None = row.clock
        return clock

    def current(self) -> str | None:
        """Return the key of the buffer's current session; None if no session was started."""
        return self.buffer.read(lambda connection: _current(connection, self.buffer.info.id))

    def start(self, key: str) -> None:
        """Make the session of that key the current one; create it if it is missing."""

        def work(connection: Connection) -> None:
            self.buffer.lock(connection)
            start_session(connection, self.buffer.info.id, key)

        self.buffer.write(work)

    def set_version(self, version: int, session: str | None) -> bool:
        """Store the model version of a session, by default of the current one.

        The clock follows the current session. Return True if the clock moved.

        Raises:
            SessionNotFoundError: No session of that key.
        """

        def work(connection: Connection) -> bool | None:
            self.buffer.lock(connection)
            return set_session_version(connection, self.buffer.info.id, version, session)

        is_current = self.buffer.write(work)
        if is_current is None:
            raise SessionNotFoundError(
                f"buffer {self.buffer.info.name!r} has no session {session!r}; start it with "
                f"start_session({session!r}), or leave session_id out"
            )
        return is_current


def start_session(connection: Connection, buffer_id: int, key: str) -> None:
    """Make a session the buffer's current one, with its version as the clock; create it if missing.

    Args:
        connection: Transaction that holds the row of the buffer.
        buffer_id: The buffer.
        key: The session.
    """
    connection.execute(INSERT_SESSION, {"buffer_id": buffer_id, "key": key})
    is_session = (sessions.c.buffer_id == buffer_id) & (sessions.c.key == key)
    session = connection.execute(
        select(sessions.c.id, sessions.c.current_version).where(is_session)
    ).one()
    values = {"session_id": session.id, "clock": session.current_version}
    connection.execute(update(buffers).where(buffers.c.id == buffer_id).values(values))


def set_session_version(
    connection: Connection, buffer_id: int, version: int, key: str | None
) -> bool | None:
    """Store the model version of a session.

    The buffer's clock moves if that session is the current one, or if there is none.

    Args:
        connection: Transaction that holds the row of the buffer.
        buffer_id: The buffer.
        version: The version.
        key: The session; None for the current one, if there is one.

    Returns:
        True if the clock moved; None if there is no session of that key.
    """
    at = select(buffers.c.session_id).where(buffers.c.id == buffer_id)
    current: int | None = connection.execute(at).scalar_one()
    number = current
    if key is not None:
        is_session = (sessions.c.buffer_id == buffer_id) & (sessions.c.key == key)
        number = connection.execute(select(sessions.c.id).where(is_session)).scalar_one_or_none()
        if number is None:
            return None
    if number is not None:
        noted = update(sessions).where(sessions.c.id == number)
        connection.execute(noted.values(current_version=version))
    is_current = current is None or number == current
    if is_current:
        moved = update(buffers).where(buffers.c.id == buffer_id)
        connection.execute(moved.values(clock=version))
    return is_current


def _current(connection: Connection, buffer_id: int) -> str | None:
    """Return the key of the buffer's current session."""
    is_current = (buffers.c.id == buffer_id) & (sessions.c.id == buffers.c.session_id)
    key: str | None = connection.execute(
        select(sessions.c.key).where(is_current)
    ).scalar_one_or_none()
    return key
