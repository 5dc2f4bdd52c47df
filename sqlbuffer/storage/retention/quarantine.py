"""Put rows into quarantine, where no draw finds them, and take them out."""

from sqlalchemy import Connection, Text, delete, insert, literal, select, update

from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.eligibility import is_in_quarantine, quarantine
from sqlbuffer.storage.rows import statements


class Quarantine:
    """Excludes rows of a buffer from sampling.

    Args:
        buffer: The buffer.
    """

    def __init__(self, buffer: OpenBuffer) -> None:
        self.buffer = buffer

    def add(self, rows: statements.Rows, reason: str | None) -> int:
        """Take rows out of sampling; return how many were not in quarantine."""

        def work(connection: Connection) -> int:
            self.buffer.lock(connection)
            low, origin = self.buffer.window_in(connection).low, self.buffer.origin
            return _put_in_quarantine(connection, self.buffer.info, low, rows, reason, origin)

        return self.buffer.write(work)

    def release(self, rows: statements.Rows) -> int:
        """Put rows back into sampling; return how many were in quarantine."""

        def work(connection: Connection) -> int:
            self.buffer.lock(connection)
            low, origin = self.buffer.window_in(connection).low, self.buffer.origin
            return _release_from_quarantine(connection, self.buffer.info, low, rows, origin)

        return self.buffer.write(work)


def _put_in_quarantine(
    connection: Connection,
    info: BufferInfo,
    low: int,
    rows: statements.Rows,
    reason: str | None,
    origin: str,
) -> int:
    """Put rows into quarantine; return how many were not in it."""
    buffer_id = info.id
    _forget_evicted(connection, buffer_id, low)
    steps, matches = statements.matching_steps(info, low, rows)
    is_new = ~is_in_quarantine(steps.c.buffer_id, steps.c.seq)
    entries = select(steps.c.buffer_id, steps.c.seq, literal(reason, Text()).label("reason"))
    insertion = insert(quarantine).from_select(
        ["buffer_id", "seq", "reason"], entries.where(matches, is_new)
    )
    new_seqs = connection.execute(insertion.returning(quarantine.c.seq)).scalars().all()
    if new_seqs:
        _set_has_quarantine(connection, buffer_id, True)
        log_change(connection, buffer_id, "quarantined", new_seqs, origin)
    return len(new_seqs)


def _release_from_quarantine(
    connection: Connection, info: BufferInfo, low: int, rows: statements.Rows, origin: str
) -> int:
    """Take rows out of quarantine; return how many were in it."""
    buffer_id = info.id
    _forget_evicted(connection, buffer_id, low)
    steps, matches = statements.matching_steps(info, low, rows)
    in_quarantine = quarantine.c.buffer_id == buffer_id
    leaving = in_quarantine & quarantine.c.seq.in_(select(steps.c.seq).where(matches))
    statement = delete(quarantine).where(leaving).returning(quarantine.c.seq)
    released = connection.execute(statement).scalars().all()
    log_change(connection, buffer_id, "quarantined", released, origin)
    if not connection.execute(
        select(select(quarantine.c.seq).where(in_quarantine).exists())
    ).scalar_one():
        _set_has_quarantine(connection, buffer_id, False)  # the quarantine is empty now
    return len(released)


def _forget_evicted(connection: Connection, buffer_id: int, low: int) -> None:
    """Delete entries of rows that were evicted while they were put into quarantine."""
    gone = (quarantine.c.buffer_id == buffer_id) & (quarantine.c.seq <= low)
    connection.execute(delete(quarantine).where(gone))


def _set_has_quarantine(connection: Connection, buffer_id: int, value: bool) -> None:
    statement = update(buffers).where(buffers.c.id == buffer_id, buffers.c.has_quarantine != value)
    connection.execute(statement.values(has_quarantine=value))
