"""The episodes of a mirror, under its own numbers, which are reused."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import ABORTED, NONE, OPEN, STATUS_NAMES
from sqlbuffer.storage.following.buffer_state import EpisodeState

Integers = NDArray[np.int64]

_STATUS = {name: number for number, name in enumerate(STATUS_NAMES.tolist())}


class EpisodeEntry(NamedTuple):
    """The data of an episode in a mirror; see `EpisodeTable`."""

    status: int
    length: int
    key: str | None
    final: bytes | None
    return_: float
    reward: float


class EpisodeTable:
    """The episodes that have steps in memory.

    Attributes:
        status: `OPEN`, `COMPLETE` or `ABORTED` of each number, int8.
        length: Number of steps, -1 while it is open, int64.
        last_slot: Where its newest step is, -1 if it is not in memory, int64.
        last_t: The place of that step in the episode, int64.
        n_steps: Number of its steps in memory, int64.
        keys: The user's id of each.
        finals: Bytes of the final observation of each, None if it has none.
        returns: The sum of rewards of each, NaN while it is open, float64.
        rewards: Own reward of each, NaN if it has none, float64.
        n_aborted: Number of aborted episodes.
        touched: Collects the numbers of those that are new or changed; None: it does not.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._ids: dict[int, int] = {}
        self.status: NDArray[np.int8] = np.zeros(0, np.int8)
        self.length = self.last_slot = self.last_t = self.n_steps = np.zeros(0, np.int64)
        self.keys: NDArray[Any] = np.zeros(0, object)
        self.finals: NDArray[Any] = np.zeros(0, object)
        self.returns = self.rewards = np.zeros(0, np.float64)
        self.n_aborted = 0
        self.touched: set[int] | None = None

    def number(self, id_: int | None) -> int:
        """Return the number of an episode by its key in the database; -1 for None."""
        if id_ is None:
            return NONE
        known = self._numbers.get(id_)
        if known is None:
            known = self._numbers[id_] = self._next()
            self._ids[known] = id_
            if self.touched is not None:
                self.touched.add(known)
        return known

    def find(self, id_: int) -> int:
        """Return the number of an episode, -1 if no step of it is in memory."""
        return self._numbers.get(id_, NONE)

    def ids(self, numbers: Integers) -> set[int]:
        """Return the keys in the database of episodes by their numbers."""
        return {self._ids[number] for number in np.unique(numbers).tolist() if number != NONE}

    def _next(self) -> int:
        if not self._free:
            n = len(self.status)
            more = max(n, 256)
            self._free = list(range(n + more - 1, n - 1, -1))
            self._lengthen(more)
        number = self._free.pop()
        self.status[number], self.length[number] = OPEN, NONE
        self.last_slot[number] = self.last_t[number] = NONE
        self.n_steps[number] = 0
        self.keys[number] = self.finals[number] = None
        self.returns[number] = self.rewards[number] = np.nan
        return number

    def _lengthen(self, more: int) -> None:
        self.status = _longer(self.status, more, OPEN)
        self.length = _longer(self.length, more, NONE)
        self.last_slot = _longer(self.last_slot, more, NONE)
        self.last_t = _longer(self.last_t, more, NONE)
        self.n_steps = _longer(self.n_steps, more, 0)
        self.keys = _longer(self.keys, more, None)
        self.finals = _longer(self.finals, more, None)
        self.returns = _longer(self.returns, more, np.nan)
        self.rewards = _longer(self.rewards, more, np.nan)

    def update(self, states: Sequence[EpisodeState]) -> list[int]:
        """Take what episodes are now, and return the numbers of those that are known."""
        found = []
        for state in states:
            number = self.find(state.id)
            if number == NONE:
                continue
            now = _STATUS[state.status]
            length = NONE if now == OPEN or state.length is None else state.length
            # For an open episode, the database stores the change by annotations, not the return.
            return_ = None if now == OPEN else state.return_
            entry = EpisodeEntry(
                now, length, state.key, state.final_arrays, as_nan(return_), as_nan(state.reward)
            )
            if self.touched is not None and not self._has(number, entry):
                self.touched.add(number)
            self._put(number, entry)
            found.append(number)
        return found

    def _has(self, number: int, entry: "EpisodeEntry") -> bool:
        own = self.entry(number)
        texts = own[:4] == entry[:4]
        return texts and np.array_equal(own[4:], entry[4:], equal_nan=True)

    def _put(self, number: int, entry: "EpisodeEntry") -> None:
        self.n_aborted += int(entry.status == ABORTED) - int(self.status[number] == ABORTED)
        self.status[number], self.length[number] = entry.status, entry.length
        self.keys[number], self.finals[number] = entry.key, entry.final
        self.returns[number], self.rewards[number] = entry.return_, entry.reward

    def entry(self, number: int) -> "EpisodeEntry":
        """Return the data of an episode."""
        return EpisodeEntry(
            int(self.status[number]), int(self.length[number]), self.keys[number],
            self.finals[number], float(self.returns[number]), float(self.rewards[number]),
        )  # fmt: skip

    def put(self, number: int, id_: int, entry: "EpisodeEntry") -> None:
        """Take an episode with the number that another table gave it."""
        if number >= len(self.status):
            self._lengthen(number + 1 - len(self.status))
        self._ids[number] = id_
        self._put(number, entry)

    def id_of(self, number: int) -> int | None:
        """Return the key of an episode in the database; None if the number is free."""
        return self._ids.get(number)

    def numbers(self) -> list[int]:
        """Return the numbers of all episodes."""
        return list(self._ids)

    def restore(self, episodes: Integers, ts: Integers, slots: Integers) -> None:
        """Find the steps of the episodes again, which `put` was told.

        Args:
            episodes: The number of the episode of each step, shape (n,).
            ts: Its place in it.
            slots: Where it is in memory.
        """
        n = len(self.status)
        self.n_steps = np.bincount(episodes, minlength=n).astype(np.int64)
        self.last_t, self.last_slot = np.full(n, NONE, np.int64), np.full(n, NONE, np.int64)
        np.maximum.at(self.last_t, episodes, ts)
        is_last = ts == self.last_t[episodes]
        self.last_slot[episodes[is_last]] = slots[is_last]
        known = np.flatnonzero(self.n_steps).tolist()
        self._ids = {number: self._ids[number] for number in known}
        self._numbers = {id_: number for number, id_ in self._ids.items()}
        self._free = np.flatnonzero(self.n_steps == 0)[::-1].tolist()
        self.n_aborted = int((self.status[known] == ABORTED).sum())

    def forget(self, numbers: Integers) -> None:
        """Give the numbers of episodes free that have no step in memory any more."""
        gone = numbers[self.n_steps[numbers] == 0]
        self.n_aborted -= int((self.status[gone] == ABORTED).sum())
        for number in gone.tolist():
            del self._numbers[self._ids.pop(number)]
            self._free.append(number)


def as_nan(value: float | None) -> float:
    """Return a number, NaN for None."""
    return np.nan if value is None else value


def _longer(array: NDArray[Any], more: int, value: Any) -> NDArray[Any]:
    """Return a copy of an array with more entries of one value: readers keep the old one."""
    return np.concatenate([array, np.full(more, value, array.dtype)])
