"""A cache of whole episodes in memory; the least recently used leave first."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any, NamedTuple

from numpy.typing import NDArray

from sqlbuffer.processes import ForkLock

MAX_BYTES = 2**27
Columns = Mapping[str, NDArray[Any]]


class CacheKey(NamedTuple):
    """The version of an episode's rows: a change of rows always changes `changes`.

    Attributes:
        episode: The number of the episode; numbers are never reused.
        last: Its last step that was read, from the first one on.
        changes: Number of changes of stored steps of the buffer.
    """

    episode: int
    last: int
    changes: int


class EpisodeCache:
    """The fields of episodes, up to a number of bytes.

    Attributes:
        max_bytes: Number of bytes to keep; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes, self._n_bytes = max_bytes, 0
        self._runs: OrderedDict[tuple[int, int], tuple[int, Columns]] = OrderedDict()
        self._mutex = ForkLock()

    def get(self, key: CacheKey) -> Columns | None:
        """Return the fields of an episode if they are cached. The caller must not write to them."""
        with self._mutex:
            kept = self._runs.get((key.episode, key.last))
            if kept is None or kept[0] != key.changes:
                return None
            self._runs.move_to_end((key.episode, key.last))
            return kept[1]

    def put(self, key: CacheKey, columns: Columns) -> None:
        """Keep the fields of an episode."""
        if _size(columns) > self.max_bytes:
            return
        with self._mutex:
            before = self._runs.pop((key.episode, key.last), None)
            if before is not None:
                self._n_bytes -= _size(before[1])
            self._runs[key.episode, key.last] = (key.changes, columns)
            self._n_bytes += _size(columns)
            while self._n_bytes > self.max_bytes:
                _, (_, forgotten) = self._runs.popitem(last=False)
                self._n_bytes -= _size(forgotten)


def _size(columns: Columns) -> int:
    return sum(column.nbytes for column in columns.values())
