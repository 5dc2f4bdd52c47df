"""Finds the rows that slots show."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.extensions.slots import postgresql, sqlite

slot_rows = by_database(sqlite=sqlite.slot_rows, postgresql=postgresql.slot_rows)
slot_runs = by_database(sqlite=sqlite.slot_runs, postgresql=postgresql.slot_runs)
