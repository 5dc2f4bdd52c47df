"""Put the steps of an episode next to each other, and end row groups where episodes end."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.interchange.parquet.arrow_tables import concatenated
from sqlbuffer.steps.column_batch import ColumnBatch

# The steps of each episode are put together within blocks of this many bytes in memory.
GROUP_BYTES = 8 * 2**20


class RowGroups:
    """Makes row groups of batches that are given in the order of `seq`.

    A row group has steps of one range of numbers. In it, the steps of each episode follow each
    other, in the order of the first of each. It ends where no episode continues, unless one is
    larger than a row group, or episodes overlap all the time.
    """

    def __init__(self) -> None:
        self._tables: list[Any] = []
        self._codes: list[NDArray[np.int64]] = []
        self._n_bytes = 0
        self._known: dict[tuple[str, str], int] = {}
        self._next = 0

    def add(self, batch: ColumnBatch, table: Any) -> Any | None:
        """Add a batch; return a row group, or None where it is not large enough yet."""
        self._tables.append(table)
        self._codes.append(self._codes_of(batch))
        self._n_bytes += table.nbytes
        return self._cut(is_last=False) if self._n_bytes >= GROUP_BYTES else None

    def rest(self) -> Any | None:
        """Return the last row group; None if nothing is left."""
        return self._cut(is_last=True) if self._tables else None

    def _codes_of(self, batch: ColumnBatch) -> NDArray[np.int64]:
        """Return a number for each step that is the same for steps of an episode, and ascends with
        the first steps of episodes.
        """
        shared = batch.shared
        of_run = np.empty(len(shared["task_id"]), np.int64)
        for run, key in enumerate(zip(shared["episode_id"], shared["task_id"], strict=True)):
            code = None if key[0] is None else self._known.get(key)
            if code is None:
                code, self._next = self._next, self._next + 1
                if key[0] is not None:
                    self._known[key] = code
            of_run[run] = code
        return of_run[batch.run_of]

    def _cut(self, *, is_last: bool) -> Any:
        table, codes = concatenated(self._tables), np.concatenate(self._codes)
        n = len(codes)
        stop = n if is_last else _end_of_episodes(codes)
        own = codes[:stop]
        group = table.slice(0, stop)
        if (np.diff(own) < 0).any():
            group = group.take(np.argsort(own, kind="stable"))
        self._tables, self._codes, self._n_bytes = [], [], 0
        if stop < n:
            # A slice would keep all of the table in memory.
            left = table.take(np.arange(stop, n))
            self._tables, self._codes = [left], [codes[stop:]]
            self._n_bytes = left.nbytes
        kept = set(codes[stop:].tolist())
        self._known = {key: code for key, code in self._known.items() if code in kept}
        return group


def _end_of_episodes(codes: NDArray[np.int64]) -> int:
    """Return a number of steps to take that cuts no episode, or all if that is less than half of
    them.

    The episode of the last step may continue, so it waits.
    """
    n = len(codes)
    distinct, index = np.unique(codes, return_inverse=True)
    last = np.empty(len(distinct), np.int64)
    last[index] = np.arange(n)
    ends = np.flatnonzero(np.maximum.accumulate(last[index]) == np.arange(n))
    before = ends[ends < n - 1]
    return int(before[-1]) + 1 if len(before) and before[-1] + 1 >= n // 2 else n
