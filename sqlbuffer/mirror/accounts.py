"""The writes of a mirror to its database: counted and logged draws, and priorities."""

import math
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from threading import Lock, RLock
from weakref import WeakSet, ref

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import LIVE, NONE
from sqlbuffer.encoding.priority_values import last_of_each
from sqlbuffer.errors import SQLBufferError, StorageReadOnlyError
from sqlbuffer.mirror.memory.records import SEQ
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.processes import at_process_end, own_pid
from sqlbuffer.samplers import RandomSampler, Sampler
from sqlbuffer.steps import Batch
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.draws import PROBABILITIES, log_entry_of
from sqlbuffer.storage.flow import PUBLISH_S, SampleCredits
from sqlbuffer.storage.sample_log import LogEntry, PendingLog
from sqlbuffer.storage.store import BufferStore

# With that many steps in batches that are not logged yet, batches are logged as they come.
MOST_UNLOGGED_STEPS = 1_000_000
SHORTEST_PAUSE_S = 0.05
_UNIFORM = RandomSampler()

_open: "WeakSet[DrawAccounts]" = WeakSet()


class DrawAccounts:
    """Makes draws wait for the rate limiter, and keeps them for the counts and the sample log.

    A thread stores the kept draws every `settle_s` seconds.

    Args:
        store: The buffer.
        settle_s: Seconds between two writes.
    """

    def __init__(self, store: BufferStore, settle_s: float) -> None:
        self._settle_s = max(settle_s, SHORTEST_PAUSE_S)
        self._is_memory = is_memory(store.url)
        self._credits = SampleCredits(store.pacer)
        self._log = PendingLog(store.uses.log, MOST_UNLOGGED_STEPS)
        self._pacer = store.pacer
        self._mutex, self._closed = threading.Lock(), threading.Event()
        self._pid = own_pid()
        self._thread: threading.Thread | None = None
        self._settled_at = self._published_at = time.monotonic()
        self._has_drawn = False
        self._error: StorageReadOnlyError | None = None

    @property
    def _is_closed(self) -> bool:
        """Whether the mirror was closed, or is another process's."""
        return self._closed.is_set() or self._pid != own_pid()

    def begin(self, n: int) -> int:
        """Wait until n things may be drawn.

        Returns:
            How many of them are counted: give this to `end`, also after a draw that failed.

        Raises:
            FlowControlError: The rate limiter did not let them out in time.
            StorageError: Neither the limiter nor the sample log can be reached.
        """
        if self._is_closed:
            return 0  # the draw says so
        if self._thread is None or self._error is not None:
            self._begin()
        return n if self._credits.take(n) else 0

    def log(self, batch: Batch, clock: int | None, sampler: Sampler | None) -> None:
        """Log a batch that was drawn, if the buffer logs batches.

        Args:
            batch: The batch.
            clock: The buffer's clock then.
            sampler: Drew it; None: uniformly.

        Raises:
            StorageError: The sample log cannot be reached.
        """
        if self._log.is_on:
            self._keep(batch, clock, log_entry_of(sampler or _UNIFORM))

    def end(self, n_counted: int, n_drawn: int) -> None:
        """Count a draw.

        Args:
            n_counted: Number that `begin` returned.
            n_drawn: Number of drawn items; 0 after a draw that failed.
        """
        if n_drawn < n_counted:
            self._credits.put_back(n_counted - n_drawn)
        if n_drawn:
            self._has_drawn = True
            self._pacer.note(n_drawn, 1)

    def log_pass(self, batch: Batch, clock: int | None) -> None:
        """Log a batch of a pass, if the buffer logs batches."""
        if self._log.is_on:
            self._begin()
            self._keep(batch, clock, LogEntry("pass"))

    def _keep(self, batch: Batch, clock: int | None, entry: LogEntry) -> None:
        seqs, probabilities = batch.info["seq"].tolist(), batch.get(PROBABILITIES)
        self._log.add(seqs, clock, entry, None if probabilities is None else probabilities.tolist())

    def _begin(self) -> None:
        """Start the thread that stores the kept draws."""
        if self._error is not None:
            self.settle()  # raises again, unless the role may write now
        if self._is_memory:
            # Its one connection is that of the callers.
            if time.monotonic() - self._settled_at >= self._settle_s:
                self.settle()
            return
        if self._thread is None:
            with self._mutex:
                if self._thread is None and not self._closed.is_set():
                    self._thread = threading.Thread(
                        target=_settle,
                        args=(ref(self), self._closed, self._settle_s, self._log, self._credits),
                        name="sqlbuffer-mirror-settle",
                        daemon=True,
                    )
                    self._thread.start()
                    _open.add(self)
                    at_process_end(_close_all, priority=1)  # before connections are closed

    def settle(self) -> None:
        """Store the kept draws, and give back credits that no draw uses.

        Raises:
            StorageError: The sample log cannot be written; it is kept.
        """
        self._settled_at = time.monotonic()
        try:
            self._log.settle()
        except StorageReadOnlyError as error:
            self._error = error
            raise
        self._error = None
        self._credits.settle()
        if self._has_drawn and self._settled_at - self._published_at >= PUBLISH_S:
            self._has_drawn, self._published_at = False, self._settled_at
            self._pacer.publish_counts()

    def close(self) -> None:
        """Store the kept draws for the last time.

        Raises:
            StorageError: The sample log cannot be written.
        """
        if self._is_closed:
            return
        self._closed.set()
        try:
            self._log.settle()
        finally:
            self._credits.settle(is_end=True)


def _settle(
    accounts: "ref[DrawAccounts]",
    closed: threading.Event,
    pause_s: float,
    log: PendingLog,
    credits: SampleCredits,
) -> None:
    """Settle repeatedly, until the mirror is closed or collected."""
    while not closed.wait(pause_s):
        draw_accounts = accounts()
        with suppress(SQLBufferError):  # kept for the next time
            if draw_accounts is None:
                log.settle()
                credits.settle(is_end=True)
                return
            draw_accounts.settle()
        if draw_accounts is None:
            return
        del draw_accounts


def _close_all() -> None:
    """Store the kept draws, because the process ends."""
    for draw_accounts in list(_open):
        with suppress(SQLBufferError):
            draw_accounts.close()


Integers = NDArray[np.int64]
Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]

# One transaction writes at most that many: other writers, and looks, wait for it for about 10 ms.
WRITTEN_AT_ONCE = 4_096
# Slots that are searched while draws wait.
_SEARCHED_AT_ONCE = 16_384
# A draw goes on before what follows.
_YIELD_S = 0.0005


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
        # Held by the thread that writes.
        self._writing = Lock()
        # The slot that the next search begins with.
        self._next = 0

    def set(self, memory: StepMemory, seqs: Integers, values: Reals) -> Flags:
        """Set the priorities of steps; return True for those in memory.

        Args:
            memory: The steps.
            seqs: Numbers of the steps, each once, shape (b,).
            values: Their priorities, shape (b,).
        """
        priorities = memory.priorities
        slots, is_live = live_slots(memory, seqs)
        if priorities is not None:
            if not is_live.all():
                slots, values = slots[is_live], values[is_live]
            priorities.set(slots, values, memory.is_drawable)
            priorities.is_own[slots] = True
        return is_live

    def write(
        self, memory: Callable[[], StepMemory], looking: Lock, for_s: float = math.inf
    ) -> None:
        """Write the set priorities to the database, some at a time; failed writes are repeated
        later.

        Args:
            memory: Returns the steps.
            looking: Held for each transaction: a look must not read what is being written.
            for_s: Seconds to write for; the rest is written later.

        Raises:
            StorageError: The database cannot be written.
        """
        if for_s <= 0:
            return
        with self._writing:
            self._write_all(memory, looking, for_s)

    def _write_all(self, memory: Callable[[], StepMemory], looking: Lock, for_s: float) -> None:
        until = time.monotonic() + for_s
        searched_in, n_searched, n_slots = None, 0, 1
        while n_searched < n_slots and (began_at := time.monotonic()) < until:
            with looking:
                self._write_kept()
                steps = memory()
                if steps.priorities is None:
                    return
                if steps is not searched_in:
                    searched_in, n_searched = steps, 0
                n_slots = steps.n_slots
                n_searched += self._write_next(steps, n_slots - n_searched)
            if for_s < math.inf:
                # Draws and other writers get their turn.
                time.sleep(time.monotonic() - began_at)

    def _write_next(self, memory: StepMemory, n_slots: int) -> int:
        """Write priorities of the next slots; return how many slots were searched."""
        slots, seqs, values, n_searched = self._taken(memory, n_slots, WRITTEN_AT_ONCE)
        time.sleep(_YIELD_S)
        try:
            self._write(seqs, values)
        except BaseException:
            with self._lock:
                priorities = memory.priorities
                if priorities is not None:
                    priorities.is_own[slots[memory.records[SEQ][slots] == seqs]] = True
            raise
        return n_searched

    def _taken(
        self, memory: StepMemory, n_slots: int, n: int
    ) -> tuple[Integers, Integers, Reals, int]:
        """Return slots, numbers and values of set priorities, and mark them as written.

        Args:
            memory: The steps.
            n_slots: Number of slots to search.
            n: Most priorities to return.

        Returns:
            Also how many slots were searched.
        """
        parts: list[tuple[Integers, Integers, Reals]] = []
        n_taken = n_searched = 0
        while n_taken < n and n_searched < n_slots:
            with self._lock:
                priorities = memory.priorities
                if priorities is None:
                    break
                first = self._next if self._next < len(priorities.is_own) else 0
                size = min(_SEARCHED_AT_ONCE, n_slots - n_searched)
                slots = first + np.flatnonzero(priorities.is_own[first : first + size])
                size = min(size, len(priorities.is_own) - first)
                if len(slots) > n - n_taken:
                    slots = slots[: n - n_taken]
                    size = int(slots[-1]) + 1 - first
                self._next, n_searched = first + size, n_searched + size
                priorities.is_own[slots] = False
                slots = slots[(memory.links["flags"][slots] & LIVE) != 0]
                parts.append((slots, memory.records[SEQ][slots], priorities.values[slots]))
                n_taken += len(slots)
        if not parts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0), n_searched
        slots, seqs, values = (np.concatenate(part) for part in zip(*parts, strict=True))
        order = seqs.argsort()
        return slots[order], seqs[order], values[order], n_searched

    def _write_kept(self) -> None:
        seqs, values = self._kept
        for start in range(0, len(seqs), WRITTEN_AT_ONCE):
            end = start + WRITTEN_AT_ONCE
            self._write(seqs[start:end], values[start:end])
        self._kept = seqs[:0], values[:0]

    def _write(self, seqs: Integers, values: Reals) -> None:
        self._store.priorities.update_priorities(seqs, values, self._origin)

    def keep(self, memory: StepMemory) -> None:
        """Keep the unwritten priorities of a memory before the memory is dropped."""
        _, seqs, values, _ = self._taken(memory, memory.n_slots, memory.n_slots)
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
    if not is_known.all():
        slots = np.where(is_known, slots, 0)
    # A step that may be drawn is there, and mostly all may: the flags take less time than links.
    is_live = memory.is_drawable[slots] & is_known
    if not is_live.all():
        is_live = is_known & ((memory.links["flags"][slots] & LIVE) != 0)
    return slots, is_live
