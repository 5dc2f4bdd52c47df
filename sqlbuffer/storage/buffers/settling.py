"""Settled rows of a buffer, and the cleaning that follows a write."""

from sqlalchemy import Engine

from sqlbuffer.storage.buffers import postgresql, sqlite
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.watermarks.watermark import Watermark

settled_seq = by_database(sqlite=sqlite.settled_seq, postgresql=postgresql.settled_seq)
_clean = by_database(sqlite=sqlite.clean_after_write, postgresql=postgresql.clean_after_write)


def clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Clean after a write, unless it is part of a transaction that goes on.

    Args:
        engine: The engine.
        n_rows: Number of rows that were written.
        n_bytes: Their size in bytes.
        inserted_into: Watermark of the buffer, if the rows are new.
    """
    if not is_joined():
        _clean(engine, n_rows, n_bytes, inserted_into)
