"""Open the buffer that steps are imported into."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from sqlbuffer.buffer import ReplayBuffer
from sqlbuffer.errors import (
    BufferNotFoundError,
    FieldError,
    FileImportError,
    SchemaMissingError,
    SQLBufferError,
)
from sqlbuffer.interchange.output import ImportCounts
from sqlbuffer.storage.database.urls import Database


def found_buffer(url: Database, name: str) -> ReplayBuffer | None:
    """Return a buffer that exists; None where it is to be made."""
    try:
        return ReplayBuffer(url, name, create=False)
    except (BufferNotFoundError, SchemaMissingError):
        return None


@contextmanager
def import_target(
    buffer: ReplayBuffer | None,
    url: Database,
    name: str,
    settings: Mapping[str, Any],
    counts: ImportCounts,
    *,
    may_keep: bool = False,
) -> Iterator[ReplayBuffer]:
    """Give the buffer of an import; a missing one is made, and dropped again if the import fails.

    An interrupted import, and one whose database fails after some steps, can continue: its buffer
    stays.

    Args:
        buffer: The buffer; None if it is missing.
        url: The database.
        name: Name of the buffer.
        settings: Settings of a new buffer.
        counts: What the import has stored.
        may_keep: Keep a new buffer with steps: they came from a pipe, which gives them only once.
    """
    with buffer or ReplayBuffer(url, name, **settings) as target:
        try:
            yield target
        except SQLBufferError as error:
            is_wrong_file = isinstance(error, (FieldError, FileImportError))
            # The error to show is that of the import, whatever becomes of the buffer.
            with suppress(SQLBufferError):
                n_steps = counts.n_stored if is_wrong_file and not may_keep else 0
                if buffer is None and len(target) <= n_steps:
                    ReplayBuffer.drop(url, name)
                elif is_wrong_file and counts.is_restored and not counts.n_duplicates:
                    target.clear()
            raise
