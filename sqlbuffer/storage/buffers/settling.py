"""Settled rows of a buffer, and the cleaning that follows a write."""

from sqlbuffer.storage.buffers import postgresql, sqlite
from sqlbuffer.storage.dialects.by_database import by_database

settled_seq = by_database(sqlite=sqlite.settled_seq, postgresql=postgresql.settled_seq)
clean_after_write = by_database(
    sqlite=sqlite.clean_after_write, postgresql=postgresql.clean_after_write
)
