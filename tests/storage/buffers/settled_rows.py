"""Reads along with the writers of a buffer, as far as its rows are settled."""

from sqlbuffer.query.tree import EVERYTHING


class SettledRows:
    """Each row of a buffer once, in the order of `seq`.

    PostgreSQL hands out numbers before the commit, so a row may appear below others. Reading stops
    at the watermark: no row can appear up to there any more.
    """

    def __init__(self, store):
        self._store = store
        self.seen = 0

    def read(self, limit):
        """Return up to `limit` of the next rows; none where nothing new is settled."""
        end = self._store.settled()
        rows, is_last = self._store.rows.after(EVERYTHING, self.seen, end, limit)
        self.seen = max(self.seen, end) if is_last else rows[-1][0]
        return rows

    def read_all(self, limit=1_000):
        """Read until two looks, which is what it takes to settle, bring nothing new."""
        found, idle = [], 0
        while idle < 3:
            rows = self.read(limit)
            idle = 0 if rows else idle + 1
            found += rows
        return found
