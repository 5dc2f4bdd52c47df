"""Evicts chunks that have left the window as a whole. Those with a step that a lease holds stay."""

from sqlbuffer.storage.chunks import postgresql, sqlite
from sqlbuffer.storage.dialects.by_database import by_database

evict_chunks = by_database(sqlite=sqlite.evict_chunks, postgresql=postgresql.evict_chunks)
