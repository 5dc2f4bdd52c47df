"""Reading along with the writers of a buffer."""

from sqlbuffer.query.condition_tree import EVERYTHING
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.store import BufferStore


class Follower:
    """Sees every row of a buffer once, in the order of `seq`, as it is committed.

    PostgreSQL hands numbers out before the commit, so a row may appear below others that are there
    already. The follower therefore keeps below the watermark, up to which no row can appear any
    more. Rows that are evicted before it comes to them it does not see.

    Args:
        store: The buffer.
        after: The `seq` of the last row that was seen; 0 begins with the oldest.
    """

    def __init__(self, store: BufferStore, after: int = 0) -> None:
        self._store, self._seen = store, after

    @property
    def seen(self) -> int:
        """Everything up to this `seq` was seen: where another follower may begin."""
        return self._seen

    def read(self, limit: int) -> list[Row]:
        """Return up to `limit` of the next rows; none where there is nothing new that is settled.

        On PostgreSQL a row is settled when every transaction that drew a number of this buffer
        before it has ended.
        """
        end = self._store.settled()
        rows, is_last = self._store.after(EVERYTHING, self._seen, end, limit)
        self._seen = max(self._seen, end) if is_last else rows[-1][0]
        return rows
