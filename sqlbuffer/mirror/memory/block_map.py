"""Where steps are kept: blocks of 64 numbers, each in a block of slots that is free."""

from collections import deque

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE

Integers = NDArray[np.int64]

BLOCK = 64
_BITS = 6


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
        self._in_order: Integers | None = None

    @property
    def n_free(self) -> int:
        """Number of free blocks."""
        return len(self._free) + self.n_blocks - self.n_used // BLOCK

    def add(self, seqs: Integers) -> Integers | None:
        """Give slots to numbers; return those of new blocks. None: there are too few, and none was
        given.
        """
        wanted = np.unique(seqs >> _BITS)
        wanted = wanted[self._of(wanted) == NONE]
        if len(wanted) > self.n_free:
            return None
        if len(wanted):
            self._reach(int(wanted[0]), int(wanted[-1]))
        self._slots[wanted - self._base] = [self._next_free() for _ in wanted]
        self._in_order = None
        return self.slots_in(wanted).reshape(-1)

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
        found: Integers = np.where(block == NONE, NONE, block * BLOCK + (seqs & (BLOCK - 1)))
        return found

    def _of(self, numbers: Integers) -> Integers:
        at = numbers - self._base
        is_known = (at >= 0) & (at < len(self._slots))
        found: Integers = np.where(is_known, self._slots[np.where(is_known, at, 0)], NONE)
        return found

    @property
    def in_order(self) -> Integers:
        """The blocks of slots that are in use, in the order of their numbers."""
        if self._in_order is None:
            self._in_order = self._slots[self._slots != NONE]
        return self._in_order

    def numbers(self) -> Integers:
        """Return the blocks of numbers that have slots, in order."""
        found: Integers = np.flatnonzero(self._slots != NONE) + self._base
        return found

    def slots_in(self, numbers: Integers) -> Integers:
        """Return the slots of blocks of numbers that have some, of shape (n, 64)."""
        found: Integers = self._of(numbers)[:, None] * BLOCK + np.arange(BLOCK)
        return found

    def free(self, numbers: Integers) -> None:
        """Take the slots of blocks of numbers back."""
        at = numbers - self._base
        self._free.extend(self._slots[at].tolist())
        self._slots[at] = NONE
        self._in_order = None

    def restore(self, numbers: Integers) -> None:
        """Take the blocks that another map gave out.

        Args:
            numbers: Block of numbers of each block of slots in use, in order; -1 if it is free.
                Shape (n_used / 64,).
        """
        self.n_used = len(numbers) * BLOCK
        given = np.flatnonzero(numbers != NONE)
        self._free = deque(np.flatnonzero(numbers == NONE).tolist())
        self._in_order = None
        self._slots = np.full(1024, NONE, np.int64)
        if len(given):
            self._reach(int(numbers[given].min()), int(numbers[given].max()))
            self._slots[numbers[given] - self._base] = given
