"""Open the buffer that steps are imported into."""

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import BufferNotFoundError, SchemaMissingError
from sqlbuffer.storage.database.urls import Database


def found_buffer(url: Database, name: str) -> ReplayBuffer | None:
    """Return a buffer that exists; None where it is to be made."""
    try:
        return ReplayBuffer(url, name, create=False)
    except (BufferNotFoundError, SchemaMissingError):
        return None
