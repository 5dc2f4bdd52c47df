"""A buffer as it is stored."""

from dataclasses import dataclass

from sqlalchemy import Connection, Text, cast, select

from sqlbuffer.config.buffer_config import BufferConfig
from sqlbuffer.storage.buffers.stored_config import parsed_config
from sqlbuffer.storage.buffers.tables import buffers


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
