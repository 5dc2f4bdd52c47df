"""Steps of episodes by their place, and index arithmetic over them; knows no SQL."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class EpisodeSteps:
    """Steps, each once, in the order of (episode, t).

    A step that is given twice is kept with its arrays, where one of the two has them.

    Args:
        episode: Number of the episode of each of n rows.
        t: Step within the episode.
        reward: Rewards; NaN for a missing one.
        terminated: The episode terminated there.
        truncated: It was cut there.
        blobs: The arrays of each row as bytes, None where they were not read; or all of them as an
            array of records.
        seq: Number of each row.
        ineligible: True where it may not be sampled; None: every one may.

    Attributes:
        episode, t, reward, terminated, truncated, seq: The same of the steps that are kept.
        blobs: Likewise, a list or an array.
        has_arrays: Whether there are any.

    Example:
        >>> no, blobs = np.zeros(3, bool), [b"b", b"a", b"c"]
        >>> table = EpisodeSteps([7, 7, 9], [1, 0, 0], [0.5, 1.0, 2.0], no, no, blobs, [1, 2, 3])
        >>> table.find([7, 7, 9], [0, 2, 0]).tolist(), table.blobs
        ([0, -1, 2], [b'a', b'b', b'c'])
    """

    def __init__(
        self,
        episode: Any,
        t: Any,
        reward: Any,
        terminated: Any,
        truncated: Any,
        blobs: Sequence[bytes | None] | NDArray[Any],
        seq: Any,
        ineligible: Any = None,
    ) -> None:
        episode, t = np.asarray(episode, np.int64), np.asarray(t, np.int64)
        has_arrays = np.ones(len(blobs), bool)
        if not isinstance(blobs, np.ndarray):
            has_arrays = np.fromiter((blob is not None for blob in blobs), bool, len(blobs))
        # Steps come in runs of one episode, so each run is looked up once.
        begins = np.flatnonzero(_are_new(episode))
        run_lengths = np.diff(begins, append=len(episode))
        self._numbers, of_runs = np.unique(episode[begins], return_inverse=True)
        self._low = int(t.min()) if t.size else 0
        self._width = int(t.max()) - self._low + 1 if t.size else 1
        codes = np.repeat(of_runs * self._width - self._low, run_lengths) + t
        kept: Any = slice(None)
        if not (codes[1:] > codes[:-1]).all():
            with_arrays_first = codes if has_arrays.all() else 2 * codes + ~has_arrays
            order = np.argsort(with_arrays_first, kind="stable")
            kept = order[_are_new(codes[order])]
        self._codes = codes[kept]
        self.episode: Integers = episode[kept]
        self.t: Integers = t[kept]
        self.reward: NDArray[np.float64] = np.asarray(reward, np.float64)[kept]
        self.terminated: Flags = np.asarray(terminated, bool)[kept]
        self.truncated: Flags = np.asarray(truncated, bool)[kept]
        self.seq: Integers = np.asarray(seq, np.int64)[kept]
        self._ineligible = None if ineligible is None else np.asarray(ineligible, bool)[kept]
        self.has_arrays: Flags = has_arrays[kept]
        self.blobs: list[bytes | None] | NDArray[Any] = (
            blobs[kept]
            if isinstance(blobs, np.ndarray)
            else [blobs[i] for i in np.arange(len(blobs))[kept].tolist()]
        )

    def __len__(self) -> int:
        return len(self._codes)

    @property
    def span(self) -> int:
        """Limit of the number of steps that follow each other."""
        return self._width if len(self) else 0

    def find(self, episode: Any, t: Any) -> Integers:
        """Return the index of each step, -1 where it is missing; the arguments are broadcast."""
        episode, t = np.broadcast_arrays(
            np.asarray(episode, np.int64), np.asarray(t, np.int64) - self._low
        )
        if not len(self):
            return np.full(episode.shape, -1, np.int64)
        number = np.searchsorted(self._numbers, episode).clip(max=len(self._numbers) - 1)
        code = number * self._width + t
        index = np.searchsorted(self._codes, code).clip(max=len(self) - 1)
        is_there = (
            (self._numbers[number] == episode)
            & (t >= 0)
            & (t < self._width)
            & (self._codes[index] == code)
        )
        return np.where(is_there, index, -1)

    def run_lengths(self, index: Integers) -> Integers:
        """Return how many steps follow each other without a hole from the indexes on, themselves
        among them.
        """
        breaks = np.ones(len(self), bool)
        breaks[:-1] = (np.diff(self.episode) != 0) | (np.diff(self.t) != 1)
        last = np.flatnonzero(breaks)
        found: Integers = last[np.searchsorted(last, index)] - index + 1
        return found

    def with_arrays(self, index: Integers) -> Integers:
        """Return the indexes, with -1 also for steps whose arrays were not read."""
        return np.where((index >= 0) & self._take(self.has_arrays, index), index, -1)

    def rewards(self, index: Integers) -> NDArray[np.float64]:
        """Return the rewards at the indexes, NaN at -1."""
        return np.where(index >= 0, self._take(self.reward, index), np.nan)

    def flags(self, flags: Flags, index: Integers) -> Flags:
        """Return the flags of the steps at the indexes, False at -1."""
        found: Flags = (index >= 0) & self._take(flags, index)
        return found

    def are_eligible(self, index: Integers) -> Flags:
        """Return for each row of indexes whether all its steps are eligible; -1 is not a step."""
        if self._ineligible is None:
            return np.ones(len(index), bool)
        ineligible = self.flags(self._ineligible, index)
        found: Flags = np.asarray(~ineligible.any(axis=tuple(range(1, index.ndim))))
        return found

    def runs_are_eligible(self, first: Integers, lens: Integers) -> Flags:
        """Return for each index whether all `lens` steps from it on are eligible."""
        if self._ineligible is None:
            return np.ones(len(first), bool)
        n_before = np.concatenate([[0], np.cumsum(self._ineligible)])
        free: Flags = np.asarray(n_before[first + lens] == n_before[first])
        return free

    def _take(self, column: NDArray[Any], index: Integers) -> NDArray[Any]:
        """Return a column at the indexes; anything at -1."""
        return column[index] if len(self) else np.zeros(index.shape, column.dtype)


def _are_new(codes: Integers) -> Flags:
    """Return which of the codes are not the one before."""
    found = np.ones(len(codes), bool)
    found[1:] = codes[1:] != codes[:-1]
    return found


def with_zeros(values: NDArray[Any], n: int, before: int = 0) -> NDArray[Any]:
    """Return values with zeros before and after them on axis 1, n in all.

    Zeros that are not written to take no memory.
    """
    own = values.shape[1]
    if own == n:
        return values
    found = np.zeros((len(values), n, *values.shape[2:]), values.dtype)
    found[:, before : before + own] = values
    return found


def frame_times(t: Any, k: int) -> Integers:
    """Return the steps t - k + 1 to t, the oldest first, of shape (*t.shape, k); before an
    episode's start its first step, again and again.
    """
    times: Integers = np.maximum(np.asarray(t, np.int64)[..., None] + np.arange(1 - k, 1), 0)
    return times
