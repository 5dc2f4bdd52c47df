"""Rows of whole episodes that were read before, as the operating system keeps pages of a file."""

from collections import OrderedDict
from typing import NamedTuple

from sqlbuffer.storage.fork_lock import ForkLock

MAX_BYTES = 2**27


class RunKey(NamedTuple):
    """What says that rows are still the same: rows are never changed without a new `changes`.

    Attributes:
        episode: The number of the episode; none is given twice.
        last: Its last step that was read, from the first one on.
        changes: How often stored steps of the buffer had been changed.
    """

    episode: int
    last: int
    changes: int


class KeptRuns:
    """The rows of episodes, joined; those that were read longest ago are forgotten first.

    Attributes:
        max_bytes: How many bytes are kept; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._n_bytes = max_bytes, 0
        self._runs: OrderedDict[tuple[int, int], tuple[int, bytes]] = OrderedDict()
        self._mutex = ForkLock()

    def get(self, key: RunKey) -> bytes | None:
        """Return the rows of an episode, if they are kept."""
        with self._mutex:
            changes, rows = self._runs.get((key.episode, key.last), (-1, b""))
            if changes != key.changes:
                return None
            self._runs.move_to_end((key.episode, key.last))
            return rows

    def put(self, key: RunKey, rows: bytes) -> None:
        """Keep the rows of an episode."""
        if len(rows) > self.max_bytes:
            return
        with self._mutex:
            _, before = self._runs.pop((key.episode, key.last), (0, b""))
            self._runs[key.episode, key.last] = (key.changes, rows)
            self._n_bytes += len(rows) - len(before)
            while self._n_bytes > self.max_bytes:
                _, (_, forgotten) = self._runs.popitem(last=False)
                self._n_bytes -= len(forgotten)
