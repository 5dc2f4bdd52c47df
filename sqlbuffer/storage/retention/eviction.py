"""Evict rows that exceed the limits of a buffer."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.retention import postgresql, sqlite

evict = by_database(sqlite=sqlite.evict, postgresql=postgresql.evict)
drop_chunks = by_database(sqlite=sqlite.drop_chunks, postgresql=postgresql.drop_chunks)
