"""The table of copies: where each copied buffer comes from, and how far its copy is."""

from sqlalchemy import BigInteger, Column, Connection, Integer, Table, Text, delete, select

from sqlbuffer.storage.schema.expressions import utc_now
from sqlbuffer.storage.schema.metadata import KEY, TIME, UUID, buffer_key, metadata

copies = Table(
    "copies",
    metadata,
    buffer_key(),
    Column("source_database", Text, nullable=False, comment="URL of the source, no password"),
    Column("source_buffer", KEY, nullable=False, comment="name of the buffer that is copied"),
    Column(
        "source_id", Integer, nullable=False, comment="buffer_id of the source, in its database"
    ),
    Column("source_created_at", Text, nullable=False, comment="when the source was created, UTC"),
    Column("condition", Text, comment="condition of the copied steps; null: all"),
    Column("low_seq", BigInteger, nullable=False, comment="steps above this seq are copied"),
    Column("high_seq", BigInteger, nullable=False, comment="no step above this seq is copied"),
    Column("copied_seq", BigInteger, nullable=False, comment="steps up to this seq are copied"),
    Column("n_steps", BigInteger, nullable=False, comment="steps copied so far"),
    Column(
        "n_read",
        BigInteger,
        nullable=False,
        comment="steps read so far, also those that do not match",
    ),
    Column(
        "n_expected", BigInteger, comment="steps to read, if whole tasks or episodes are evicted"
    ),
    Column("hold_id", UUID, comment="its hold on the source; null if it has none"),
    Column(
        "started_at", TIME, nullable=False, server_default=utc_now(), comment="time when it began"
    ),
    Column("finished_at", TIME, comment="time when it was complete; null while it is not"),
    info={"learner_may": "DELETE"},
)


def forget_copy(connection: Connection, buffer_id: int) -> bool:
    """Remove the mark of a copy from a buffer; return True if the copy was unfinished."""
    of_buffer = copies.c.buffer_id == buffer_id
    row = connection.execute(select(copies.c.finished_at).where(of_buffer)).one_or_none()
    if row is None:
        return False
    connection.execute(delete(copies).where(of_buffer))
    return row.finished_at is None
