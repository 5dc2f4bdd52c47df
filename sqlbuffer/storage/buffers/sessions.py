"""Training sessions: which one a buffer is in, and the model version of each."""

from sqlalchemy import Connection, select, text, update

from sqlbuffer.storage.buffers.tables import buffers, sessions

INSERT_SESSION = text(
    "INSERT INTO sessions (buffer_id, key) VALUES (:buffer_id, :key) ON CONFLICT DO NOTHING"
)


def start(connection: Connection, buffer_id: int, key: str) -> None:
    """Make a session, or resume it, as the buffer's current one with its version for the clock.

    Args:
        connection: The transaction; it holds the row of the buffer.
        buffer_id: The buffer.
        key: The session.
    """
    connection.execute(INSERT_SESSION, {"buffer_id": buffer_id, "key": key})
    own = (sessions.c.buffer_id == buffer_id) & (sessions.c.key == key)
    found = connection.execute(select(sessions.c.id, sessions.c.current_version).where(own)).one()
    values = {"session_id": found.id, "clock": found.current_version}
    connection.execute(update(buffers).where(buffers.c.id == buffer_id).values(values))


def set_version(
    connection: Connection, buffer_id: int, version: int, key: str | None
) -> bool | None:
    """Note the model version of a session, and move the buffer's clock if it is the current one or
    there is none.

    Args:
        connection: The transaction; it holds the row of the buffer.
        buffer_id: The buffer.
        version: The version.
        key: The session; None: the current one, if there is one.

    Returns:
        Whether the clock was moved; None: there is no session of that key.
    """
    at = select(buffers.c.session_id).where(buffers.c.id == buffer_id)
    current: int | None = connection.execute(at).scalar_one()
    number = current
    if key is not None:
        own = (sessions.c.buffer_id == buffer_id) & (sessions.c.key == key)
        number = connection.execute(select(sessions.c.id).where(own)).scalar_one_or_none()
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


def current(connection: Connection, buffer_id: int) -> str | None:
    """Return the key of the buffer's current session."""
    at = (buffers.c.id == buffer_id) & (sessions.c.id == buffers.c.session_id)
    key: str | None = connection.execute(select(sessions.c.key).where(at)).scalar_one_or_none()
    return key
