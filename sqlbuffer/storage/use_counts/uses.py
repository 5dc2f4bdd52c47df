"""Count how often rows were sampled, and delete the counts of rows that have left."""

from sqlalchemy import Connection, func, select

from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.eligibility.tables import uses
from sqlbuffer.storage.schema.overlays import delete_range
from sqlbuffer.storage.use_counts import postgresql, sqlite

claim_uses = by_database(sqlite=sqlite.claim_uses, postgresql=postgresql.claim_uses)
return_uses = by_database(sqlite=sqlite.return_uses, postgresql=postgresql.return_uses)
add_uses = by_database(sqlite=sqlite.add_uses, postgresql=postgresql.add_uses)
uses_of = by_database(sqlite=sqlite.uses_of, postgresql=postgresql.uses_of)

# Counts below the window are deleted when it has moved by this many numbers.
CLEANED_AT_ONCE = 8_192


def is_cleaning_due(cleaned_to: int, low: int) -> bool:
    """Return True if there may be many counts between two numbers."""
    return low >= cleaned_to + CLEANED_AT_ONCE


def clean_uses(connection: Connection, buffer_id: int, cleaned_to: int, low: int) -> int:
    """Delete the use counts of rows that have left the window; return the number up to which.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        cleaned_to: Number up to which none was left at the last call.
        low: Number up to which rows have left.
    """
    own = uses.c
    # Starts below the cleaned numbers: a slow learner may have counted there since.
    above = cleaned_to - CLEANED_AT_ONCE
    gone = (own.buffer_id == buffer_id) & (own.seq > above) & (own.seq <= low)
    some = select(own.seq).where(gone).order_by(own.seq).limit(4 * CLEANED_AT_ONCE).subquery()
    n, last = connection.execute(select(func.count(), func.max(some.c.seq))).one()
    if n:
        delete_range(connection, uses, buffer_id, above, last)
    return int(last) if n == 4 * CLEANED_AT_ONCE else low
