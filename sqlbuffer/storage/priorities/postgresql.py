"""Update priorities on PostgreSQL."""

from collections.abc import Sequence

from sqlalchemy import Connection

from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects.arrays import number_array, real_array
from sqlbuffer.storage.priorities.blocks import SUMMARIZE_TIMEOUT_S, Blocks

_UPDATE = (
    "SELECT sqlbuffer_update_priorities_v1(%s::integer, %s::bigint[], %s::double precision[], "
    "%s::uuid)"
)
_SUMMARIZE = "SELECT sqlbuffer_summarize_v1(%s::integer, %s::bigint[], %s::bigint, %s::bigint)"


def update_priorities(
    connection: Connection,
    of: Blocks,
    seqs: Sequence[int],
    priorities: Sequence[float],
    origin: str | None = None,
) -> int:
    """Set the priorities of the rows that the buffer holds, and log them; return how many."""
    values = (of.buffer_id, number_array(seqs), real_array(priorities), origin)
    ((n_updated,),) = driver_of(connection).execute(_UPDATE, values)
    return int(n_updated)


def summarize(connection: Connection, of: Blocks, blocks: Sequence[int], settled: int) -> int:
    """Add up the blocks in the window that can get no more rows; return how many were added up.

    Rows of priorities that have left the window are deleted.
    """
    driver = driver_of(connection)
    driver.execute(f"SET LOCAL lock_timeout = '{SUMMARIZE_TIMEOUT_S}s'")
    values = (of.buffer_id, list(blocks), settled, of.n_cleaned)
    ((n_summarized,),) = driver.execute(_SUMMARIZE, values)
    return int(n_summarized)
