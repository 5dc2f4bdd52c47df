"""A buffer as it is stored."""

from dataclasses import dataclass

from sqlalchemy import Connection, Text, cast, select

from sqlbuffer.config import BufferConfig
from sqlbuffer.storage.buffers.stored_config import parsed_config
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.watermarks.last_number import last_number


@dataclass(frozen=True)
class BufferInfo:
    """A buffer as it was stored when it was opened.

    Attributes:
        id: Its key in the tables.
        name: Its name.
        config: Its settings.
        block_size: Number of row numbers in a block of priorities.
        layout: Name of its layout; None for rows alone.
        has_chunks: Its steps are in chunks; otherwise each is a row of `experiences`.
    """

    id: int
    name: str
    config: BufferConfig
    block_size: int
    layout: str | None = None
    has_chunks: bool = False


def find_buffer(connection: Connection, name: str) -> BufferInfo | None:
    """Return a buffer by name.

    Raises:
        SchemaTooNewError: A later release has stored its configuration.
    """
    table = buffers.c
    found = connection.execute(
        select(
            table.id, cast(table.config, Text), table.block_size, table.layout, table.has_chunks
        ).where(table.name == name)
    ).one_or_none()
    if found is None:
        return None
    number, config, block_size, layout, has_chunks = found
    settings = parsed_config(config, name)
    return BufferInfo(number, name, settings, block_size, layout, bool(has_chunks))


def buffer_names(connection: Connection) -> list[str]:
    """Return the names of all buffers, in order."""
    return list(connection.scalars(select(buffers.c.name).order_by(buffers.c.name)))


def why_empty(connection: Connection, buffer_id: int) -> str:
    """Return why a buffer has no rows, as text behind its name."""
    own = buffers.c
    counted = select(
        last_number(own.id), own.n_expired, own.n_used_up, own.n_other_session, own.n_partial
    ).where(own.id == buffer_id)
    n_stored, *n_left = map(int, connection.execute(counted).one())
    if not n_stored:
        return "is empty (nothing has been stored into it)"
    n_others = max(0, n_stored - sum(n_left))
    causes = (
        "expired (max_staleness)",
        "used up (max_use)",
        "of another session (current_session_only)",
        "of groups that stayed incomplete",
        "evicted, deleted or rolled back",
    )
    left = ", ".join(
        f"{n:,} {cause}" for n, cause in zip((*n_left, n_others), causes, strict=True) if n
    )
    return f"is empty (all rows that were stored have left: {left})"
