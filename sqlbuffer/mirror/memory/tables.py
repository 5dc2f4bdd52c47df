"""Tables of a mirror: its episodes, names, blocks of slots, and arrays by slot."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import ABORTED, LINK, NONE, OPEN, STATUS_NAMES
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields import ON_REQUEST
from sqlbuffer.mirror.memory.records import (
    Shapes,
    record_of,
    tail_shapes,
)
from sqlbuffer.storage.following.state import EpisodeState

Allocate = Callable[[Shapes], Mapping[str, NDArray[Any]]]

# Before the names of large fields.
LARGE = "large."


def slot_shapes(layout: Layout, n_slots: int, heap_bytes: int) -> Shapes:
    """Return shape and dtype of each array, by name; those of large fields begin with `LARGE`.

    Args:
        layout: How the bytes of chunks are laid out.
        n_slots: Number of steps that fit.
        heap_bytes: Room for values of varying length.
    """
    record = record_of(layout)
    large = {
        LARGE + name: ((n_slots, *spec.shape), np.dtype(spec.dtype))
        for name, spec in layout.specs.items()
        if name not in (record.names or ())
    }
    return {
        "records": ((n_slots, record.itemsize // 8), np.dtype(np.uint64)),
        "links": ((n_slots, LINK.itemsize // 8), np.dtype(np.uint64)),
        "is_drawable": ((n_slots,), np.dtype(bool)),
        "version": ((n_slots,), np.dtype(np.int64)),
        "has_version": ((n_slots,), np.dtype(bool)),
        "session": ((n_slots,), np.dtype(np.int32)),
        "is_quarantined": ((n_slots,), np.dtype(bool)),
        "is_outside": ((n_slots,), np.dtype(bool)),
        **dict.fromkeys(ON_REQUEST, ((n_slots,), np.dtype(np.float32))),
        **large,
        **(tail_shapes(n_slots, heap_bytes) if has_tails(layout) else {}),
    }


def large_of(arrays: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Return the arrays of large fields, by the name of the field."""
    return {
        name.removeprefix(LARGE): array for name, array in arrays.items() if name.startswith(LARGE)
    }


def has_tails(layout: Layout) -> bool:
    """Return whether values of varying length are kept; without their fields they are not."""
    return any(spec.is_variable for spec in layout.specs.values())


def zeroed(shapes: Shapes) -> dict[str, NDArray[Any]]:
    """Return the arrays, filled with zeros, in the memory of this process."""
    return {name: np.zeros(shape, dtype) for name, (shape, dtype) in shapes.items()}


Integers = NDArray[np.int64]


class ChangedSlots:
    """Remembers changes of slots, up to a number of them.

    Args:
        most: When more slots than these have changed, those before are forgotten.

    Attributes:
        n: Number of changes.

    Example:
        >>> changed = ChangedSlots(3)
        >>> changed.add(np.array([5, 7])), changed.add(np.array([5]))
        (None, None)
        >>> changed.since(0).tolist(), changed.since(2).tolist()
        ([5, 7], [])
        >>> changed.add(np.array([9])), changed.since(0)
        (None, None)
    """

    def __init__(self, most: int) -> None:
        self._most, self._size, self.n = most, 0, 0
        self._parts: list[Integers] = []

    def add(self, slots: Integers) -> None:
        """Note that slots have changed."""
        self.n += 1
        self._size += len(slots)
        self._parts.append(slots)
        if self._size > self._most:
            self._parts, self._size = [], 0

    def forget(self) -> None:
        """Note that any slot may have changed."""
        self.n += 1
        self._parts, self._size = [], 0

    def since(self, n: int) -> Integers | None:
        """Return the slots that have changed after the first n changes; None: it is forgotten."""
        n_parts = self.n - n
        if n_parts > len(self._parts):
            return None
        parts = self._parts[len(self._parts) - n_parts :]
        return np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64)


class NameTable:
    """Names that steps in memory have.

    Attributes:
        names: The name of each number.
        touched: Collects the numbers that get a name; None: it does not.

    Example:
        >>> table = NameTable()
        >>> table.add("walk", 2), table.add("run", 1), table.add("walk", 1)
        (0, 1, 0)
        >>> table.drop(np.array([0, 0, 0])), table.add("jump", 1), table.names[:2].tolist()
        (None, 0, ['jump', 'run'])
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._free: list[int] = []
        self._n_steps = np.zeros(0, np.int64)
        self.names: NDArray[Any] = np.zeros(0, object)
        self.touched: set[int] | None = None

    def add(self, name: str, n_steps: int) -> int:
        """Return the number of a name that more steps have."""
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = self._next()
            self.names[number] = name
            if self.touched is not None:
                self.touched.add(number)
        self._n_steps[number] += n_steps
        return number

    def _next(self) -> int:
        if not self._free:
            n = len(self.names)
            more = max(n, 256)
            self._free = list(range(n + more - 1, n - 1, -1))
            self._lengthen(more)
        return self._free.pop()

    def _lengthen(self, more: int) -> None:
        self._n_steps = np.concatenate([self._n_steps, np.zeros(more, np.int64)])
        self.names = np.concatenate([self.names, np.zeros(more, object)])

    def drop(self, numbers: Integers) -> None:
        """Note that steps have left, by the numbers of their names."""
        np.subtract.at(self._n_steps, numbers, 1)
        distinct = np.unique(numbers)
        gone = distinct[self._n_steps[distinct] == 0].tolist()
        for number in gone:
            del self._numbers[self.names[number]]
            self._free.append(number)
        if gone:  # batches may still look names up that were known when they were drawn
            self.names = self.names.copy()

    def numbers(self) -> list[int]:
        """Return the numbers that are in use."""
        return list(self._numbers.values())

    def put(self, names: Mapping[int, str]) -> None:
        """Take names with the numbers that another table gave them."""
        if not names:
            return
        self._lengthen(max(0, max(names) + 1 - len(self.names)))
        self.names = self.names.copy()
        for number, name in names.items():
            self.names[number] = name

    def restore(self, numbers: Integers) -> None:
        """Count the steps again, by the numbers of their names. `put` has stored the names."""
        self._n_steps = np.bincount(numbers, minlength=len(self.names)).astype(np.int64)
        in_use = np.flatnonzero(self._n_steps)
        self._numbers = {self.names[number]: number for number in in_use.tolist()}
        self._free = np.flatnonzero(self._n_steps == 0)[::-1].tolist()


BLOCK = 64
# Episodes up to which a batch that is kept may hold all their keys.
MOST_LENT = 16_384
_BITS = 6


class BlockRuns(NamedTuple):
    """Runs of blocks of slots that follow each other in memory, in the order of their numbers.

    Attributes:
        first: The first block of each run.
        after: The one after its last.
    """

    first: Integers
    after: Integers


class BlockMap:
    """Gives slots to numbers. Numbers of one block of 64 have slots next to each other.

    Args:
        n_blocks: Blocks of slots.

    Attributes:
        n_used: Slots from 0 to this one have been given at some time.

    Example:
        >>> blocks = BlockMap(2)
        >>> len(blocks.add(np.array([70, 71]))), blocks.slots_of(np.array([71, 3])).tolist()
        (64, [7, -1])
    """

    def __init__(self, n_blocks: int) -> None:
        self.n_blocks, self.n_used = n_blocks, 0
        # The oldest first: then steps that are written in order are in order.
        self._free: deque[int] = deque()
        # The block of slots of the block of numbers `_base + i`.
        self._base, self._slots = 0, np.full(1024, NONE, np.int64)
        self._in_order: tuple[Integers, BlockRuns] | None = None

    @property
    def n_free(self) -> int:
        """Number of free blocks."""
        return len(self._free) + self.n_blocks - self.n_used // BLOCK

    def add(self, seqs: Integers) -> Integers | None:
        """Give slots to numbers; return those of new blocks. None: there are too few, and none was
        given.
        """
        numbers = np.unique(seqs >> _BITS)
        numbers = numbers[self._of(numbers) == NONE]
        if len(numbers) > self.n_free:
            return None
        if len(numbers):
            self._reach(int(numbers[0]), int(numbers[-1]))
        self._slots[numbers - self._base] = [self._next_free() for _ in numbers]
        self._in_order = None
        return self.slots_in(numbers).reshape(-1)

    def _next_free(self) -> int:
        if self._free:
            return self._free.popleft()
        self.n_used += BLOCK
        return self.n_used // BLOCK - 1

    def _reach(self, first: int, last: int) -> None:
        """Make entries from one block of numbers to another."""
        held = np.flatnonzero(self._slots != NONE)
        low, high = first, last
        if len(held):
            low = min(low, self._base + int(held[0]))
            high = max(high, self._base + int(held[-1]))
        if low >= self._base and high < self._base + len(self._slots):
            return
        slots = np.full(2 * (high - low + 1) + 1024, NONE, np.int64)
        slots[held + self._base - low] = self._slots[held]
        self._base, self._slots = low, slots

    def slots_of(self, seqs: Integers) -> Integers:
        """Return the slot of each number, -1 where it has none."""
        block = self._of(seqs >> _BITS)
        slots: Integers = (block << _BITS) + (seqs & (BLOCK - 1))
        is_missing = block == NONE
        if is_missing.any():
            slots[is_missing] = NONE
        return slots

    def _of(self, numbers: Integers) -> Integers:
        entries = numbers - self._base
        # Without a sign, entries below 0 are large too: one comparison tests both ends.
        is_known = entries.view(np.uint64) < len(self._slots)
        if is_known.all():
            return self._slots.take(entries)
        slots: Integers = np.where(is_known, self._slots[np.where(is_known, entries, 0)], NONE)
        return slots

    @property
    def in_order(self) -> Integers:
        """The blocks of slots that are in use, in the order of their numbers."""
        return self._ordered()[0]

    @property
    def runs(self) -> BlockRuns:
        """The same blocks as runs."""
        return self._ordered()[1]

    def _ordered(self) -> tuple[Integers, BlockRuns]:
        if self._in_order is None:
            blocks = self._slots[self._slots != NONE]
            starts = np.flatnonzero(blocks != np.append(NONE, blocks[:-1] + 1))
            ends = np.append(starts[1:], len(blocks))
            self._in_order = blocks, BlockRuns(blocks[starts], blocks[starts] + ends - starts)
        return self._in_order

    def numbers(self) -> Integers:
        """Return the blocks of numbers that have slots, in order."""
        numbers: Integers = np.flatnonzero(self._slots != NONE) + self._base
        return numbers

    def slots_in(self, numbers: Integers) -> Integers:
        """Return the slots of blocks of numbers that have some, of shape (n, 64)."""
        slots: Integers = self._of(numbers)[:, None] * BLOCK + np.arange(BLOCK)
        return slots

    def free(self, numbers: Integers) -> None:
        """Take the slots of blocks of numbers back."""
        entries = numbers - self._base
        self._free.extend(self._slots[entries].tolist())
        self._slots[entries] = NONE
        self._in_order = None

    def restore(self, numbers: Integers) -> None:
        """Take the blocks that another map gave out.

        Args:
            numbers: Block of numbers of each block of slots in use, in order; -1 if it is free.
                Shape (n_used / 64,).
        """
        self.n_used = len(numbers) * BLOCK
        filled = np.flatnonzero(numbers != NONE)
        self._free = deque(np.flatnonzero(numbers == NONE).tolist())
        self._in_order = None
        self._slots = np.full(1024, NONE, np.int64)
        if len(filled):
            self._reach(int(numbers[filled].min()), int(numbers[filled].max()))
            self._slots[numbers[filled] - self._base] = filled


_STATUS = {name: number for number, name in enumerate(STATUS_NAMES.tolist())}


class EpisodeEntry(NamedTuple):
    """The data of an episode in a mirror; see `EpisodeTable`."""

    status: int
    length: int
    key: str | None
    final: bytes | None
    group_id: str | None
    parent_id: str | None
    meta: str | None
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
        group_ids: The group of each, None if it has none, object.
        parent_ids: The episode that each came from, None if it is not known, object.
        metas: JSON of the user's values for each, None if it has none, object.
        n_changes: Number of changes of episodes.
        n_aborted: Number of aborted episodes.
        touched: Collects the numbers of those that are new or changed; None: it does not.
    """

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._free: list[int] = []
        self._ids: dict[int, int] = {}
        self._has_lent = False
        self.status: NDArray[np.int8] = np.zeros(0, np.int8)
        self.length = self.last_slot = self.last_t = self.n_steps = np.zeros(0, np.int64)
        self.keys: NDArray[Any] = np.zeros(0, object)
        self.finals: NDArray[Any] = np.zeros(0, object)
        self.group_ids: NDArray[Any] = np.zeros(0, object)
        self.parent_ids: NDArray[Any] = np.zeros(0, object)
        self.metas: NDArray[Any] = np.zeros(0, object)
        self.returns = self.rewards = np.zeros(0, np.float64)
        self.n_aborted = self.n_changes = 0
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
        self._set_key(number, None)
        self.finals[number] = None
        self.group_ids[number] = self.parent_ids[number] = self.metas[number] = None
        self.returns[number] = self.rewards[number] = np.nan
        return number

    def keys_of(self, numbers: NDArray[np.integer[Any]]) -> Callable[[], NDArray[Any]]:
        """Return a function that returns the keys of episodes as they are now, None for no episode.

        A small array of all keys is lent to it, and copied before it changes: few batches are asked
        for their keys. A large one would be held by each batch that is kept.
        """
        if len(self.keys) > MOST_LENT:
            keys = _keys_at(self.keys, numbers)
            return lambda: keys
        self._has_lent = True
        lent = self.keys
        return lambda: _keys_at(lent, numbers)

    def _set_key(self, number: int, key: str | None) -> None:
        if self._has_lent and self.keys[number] != key:
            self.keys, self._has_lent = self.keys.copy(), False
        self.keys[number] = key

    def _lengthen(self, more: int) -> None:
        self.status = _longer(self.status, more, OPEN)
        self.length = _longer(self.length, more, NONE)
        self.last_slot = _longer(self.last_slot, more, NONE)
        self.last_t = _longer(self.last_t, more, NONE)
        self.n_steps = _longer(self.n_steps, more, 0)
        self.keys = _longer(self.keys, more, None)
        self.finals = _longer(self.finals, more, None)
        self.group_ids = _longer(self.group_ids, more, None)
        self.parent_ids = _longer(self.parent_ids, more, None)
        self.metas = _longer(self.metas, more, None)
        self.returns = _longer(self.returns, more, np.nan)
        self.rewards = _longer(self.rewards, more, np.nan)

    def update(self, states: Sequence[EpisodeState]) -> list[int]:
        """Take what episodes are now, and return the numbers of those that are known."""
        changed = []
        for state in states:
            number = self.find(state.id)
            if number == NONE:
                continue
            status = _STATUS[state.status]
            length = NONE if status == OPEN or state.length is None else state.length
            # For an open episode, the database stores the change by annotations, not the return.
            return_ = None if status == OPEN else state.return_
            entry = EpisodeEntry(
                status, length, state.key, state.final_arrays, state.group_id,
                state.parent_id, state.meta, as_nan(return_), as_nan(state.reward),
            )  # fmt: skip
            if self.touched is not None and not self._has(number, entry):
                self.touched.add(number)
            self._put(number, entry)
            changed.append(number)
        return changed

    def _has(self, number: int, entry: "EpisodeEntry") -> bool:
        stored = self.entry(number)
        texts = stored[:7] == entry[:7]
        return texts and np.array_equal(stored[7:], entry[7:], equal_nan=True)

    def _put(self, number: int, entry: "EpisodeEntry") -> None:
        self.n_aborted += int(entry.status == ABORTED) - int(self.status[number] == ABORTED)
        self.status[number], self.length[number] = entry.status, entry.length
        self._set_key(number, entry.key)
        self.finals[number] = entry.final
        self.group_ids[number], self.metas[number] = entry.group_id, entry.meta
        self.parent_ids[number] = entry.parent_id
        self.returns[number], self.rewards[number] = entry.return_, entry.reward
        self.n_changes += 1

    def entry(self, number: int) -> "EpisodeEntry":
        """Return the data of an episode."""
        return EpisodeEntry(
            int(self.status[number]), int(self.length[number]), self.keys[number],
            self.finals[number], self.group_ids[number], self.parent_ids[number],
            self.metas[number],
            float(self.returns[number]), float(self.rewards[number]),
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


def _keys_at(keys: NDArray[Any], numbers: NDArray[np.integer[Any]]) -> NDArray[Any]:
    chosen = keys.take(numbers, mode="clip") if len(keys) else np.full(len(numbers), None)
    chosen[numbers == NONE] = None
    return chosen
