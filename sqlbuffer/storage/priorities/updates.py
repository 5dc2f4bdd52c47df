"""Updates of priorities, and of the blocks that sum them."""

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.priorities import postgresql, sqlite

update_priorities = by_database(
    sqlite=sqlite.update_priorities, postgresql=postgresql.update_priorities
)
summarize = by_database(sqlite=sqlite.summarize, postgresql=postgresql.summarize)
