"""Finds rows by id and by slot."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.extensions import postgresql, sqlite

seqs_of_ids = by_database(sqlite=sqlite.seqs_of_ids, postgresql=postgresql.seqs_of_ids)
slot_rows = by_database(sqlite=sqlite.slot_rows, postgresql=postgresql.slot_rows)
slot_runs = by_database(sqlite=sqlite.slot_runs, postgresql=postgresql.slot_runs)
