"""Find rows by id."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.extensions import postgresql, sqlite

seqs_of_ids = by_database(sqlite=sqlite.seqs_of_ids, postgresql=postgresql.seqs_of_ids)
