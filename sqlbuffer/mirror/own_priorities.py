"""Priorities that were set in a mirror, until the database has them."""

import math
import time
from threading import RLock

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import LIVE, NONE
from sqlbuffer.encoding.priority_values import last_of_each
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_record import SEQ
from sqlbuffer.storage.store import BufferStore

Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]

# Writers wait for a transaction of that many for about 50 ms.
WRITTEN_AT_ONCE = 2_048


class OwnPriorities:
    """Sets priorities in memory, and writes them to the database later.

    Args:
        store: The buffer.
        origin: Signature of the written priorities, so that the mirror does not read them again.
        lock: Lock that a thread holds while it reads or changes the memory.
    """

    def __init__(self, store: BufferStore, origin: str, lock: RLock) -> None:
        self._store, self._origin, self._lock = store, origin, lock
        self._kept: tuple[Integers, Reals] = np.zeros(0, np.int64), np.zeros(0)

    def set(self, memory: StepMemory, seqs: Integers, values: Reals) -> Flags:
        """Set the priorities of steps; return True for those in memory.

        Args:
            memory: The steps.
            seqs: Numbers of the steps, each once, shape (b,).
            values: Their priorities, shape (b,).
        """
        own = memory.priorities
        slots, is_live = live_slots(memory, seqs)
        if own is not None:
            slots = slots[is_live]
            own.set(slots, values[is_live], memory.is_drawable)
            own.is_own[slots] = True
        return is_live

    def write(self, memory: StepMemory, for_s: float = math.inf) -> None:
        """Write the kept priorities to the database; failed writes are repeated later.

        Args:
            memory: The steps.
            for_s: Seconds to write for; the rest is written later.

        Raises:
            StorageError: The database cannot be written.
        """
        own, until = memory.priorities, time.monotonic() + for_s
        if own is None or for_s <= 0:
            return
        self._write_kept()
        slots, seqs, values = self._taken(memory)
        n_written = 0
        try:
            while n_written < len(seqs) and time.monotonic() < until:
                end = n_written + WRITTEN_AT_ONCE
                self._write(seqs[n_written:end], values[n_written:end])
                n_written = end
        finally:
            with self._lock:
                slots, seqs = slots[n_written:], seqs[n_written:]
                own.is_own[slots[memory.records[SEQ][slots] == seqs]] = True

    def _taken(self, memory: StepMemory) -> tuple[Integers, Integers, Reals]:
        """Return slots, numbers and values of set priorities, and mark them as written."""
        with self._lock:
            own = memory.priorities
            if own is None:
                return np.zeros(0, np.int64), *self._kept
            slots = np.flatnonzero(own.is_own)
            own.is_own[slots] = False
            seqs = memory.records[SEQ][slots]
            _, is_live = live_slots(memory, seqs)
            slots, seqs = slots[is_live], seqs[is_live]
            order = np.argsort(seqs)
            return slots[order], seqs[order], own.values[slots[order]]

    def _write_kept(self) -> None:
        seqs, values = self._kept
        for start in range(0, len(seqs), WRITTEN_AT_ONCE):
            end = start + WRITTEN_AT_ONCE
            self._write(seqs[start:end], values[start:end])
        self._kept = seqs[:0], values[:0]

    def _write(self, seqs: Integers, values: Reals) -> None:
        self._store.priorities.update_priorities(seqs.tolist(), values.tolist(), self._origin)

    def keep(self, memory: StepMemory) -> None:
        """Keep the unwritten priorities of a memory before the memory is dropped."""
        _, seqs, values = self._taken(memory)
        seqs = np.concatenate([self._kept[0], seqs])
        distinct, last = last_of_each(seqs)
        self._kept = distinct, np.concatenate([self._kept[1], values])[last]

    def restore(self, memory: StepMemory) -> None:
        """Set the kept priorities again."""
        seqs, values = self._kept
        if len(seqs):
            self.set(memory, seqs, values)
            self._kept = seqs[:0], values[:0]


def live_slots(memory: StepMemory, seqs: Integers) -> tuple[Integers, Flags]:
    """Return the slots of numbers, 0 for a missing step, and flags of the existing steps."""
    slots = memory.blocks.slots_of(seqs)
    is_known = slots != NONE
    slots = np.where(is_known, slots, 0)
    return slots, is_known & ((memory.links["flags"][slots] & LIVE) != 0)
