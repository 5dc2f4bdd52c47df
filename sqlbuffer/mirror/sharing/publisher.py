"""The follower's side of a shared mirror: the data that it stores for other processes."""

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer import errors
from sqlbuffer.mirror.memory.restoring import restore
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.tails import HEAP, Shapes
from sqlbuffer.mirror.sharing.journal import Entry, packed
from sqlbuffer.mirror.sharing.replica import (
    AGENT_NAME,
    CHANGED,
    EPISODE_STATE,
    SESSION_KEY,
    TASK_NAME,
    replay,
    shared_shapes,
    take_counters,
)
from sqlbuffer.mirror.sharing.segment import NO_CLOCK, Counter, Segment
from sqlbuffer.mirror.sharing.shared_place import SharedPlace

FEWEST_JOURNAL_BYTES = 2**20
# Room for later entries, as a multiple of the entries now.
JOURNAL_SLACK = 4


class Publisher:
    """Keeps the memory of a mirror in a segment that other processes read.

    Args:
        place: Where the segment is.
        about: Data that distinguishes this mirror from others.
    """

    def __init__(self, place: SharedPlace, about: Mapping[str, Any]) -> None:
        self._place, self._about = place, dict(about)
        # The one that others read, and the one that will replace it.
        self._segment: Segment | None = None
        self._next: Segment | None = None
        self._shapes: Shapes = {}
        self._is_finding = False
        self._told_sessions: set[int] = set()
        self._journal_bytes, self._n_changes = FEWEST_JOURNAL_BYTES, 0

    def allocate(self, shapes: Shapes) -> Mapping[str, NDArray[Any]]:
        """Make arrays in a new segment, which others read from the next `publish` on.

        Raises:
            MirrorFullError: There is too little space.
        """
        self._shapes = shapes
        if self._is_finding:
            self._segment = Segment(self._place.path, shared_shapes(shapes), is_writable=True)
            return {name: self._segment.arrays[name] for name in shapes}
        n_slots = shapes["is_drawable"][0][0]
        heap_bytes = shapes[HEAP][0][0] if HEAP in shapes else 0
        about = {**self._about, "n_slots": n_slots, "heap_bytes": heap_bytes}
        self._next = Segment.create(
            self._place.next_path, shared_shapes(shapes), self._journal_bytes, about
        )
        return {name: self._next.arrays[name] for name in shapes}

    def found(self, make: Callable[[int, int, Any], StepMemory]) -> tuple[StepMemory, Any] | None:
        """Return the memory that an earlier follower left, and its cursor; None: there is none that
        can be used.

        Args:
            make: Makes a memory of a number of slots and of heap bytes, in arrays.
        """
        try:
            about = Segment(self._place.path, {}, is_writable=False).about
            if any(about.get(name) != value for name, value in self._about.items()):
                return None
            self._is_finding = True
            memory = make(about["n_slots"], about["heap_bytes"], self.allocate)
        except (OSError, ValueError, KeyError):
            return None
        finally:
            self._is_finding = False
        segment = self._segment
        assert segment is not None
        is_whole = segment.is_from_this_boot or segment.get(Counter.IS_CLEAN)
        is_torn = segment.get(Counter.GENERATION) & 1 or segment.get(Counter.IS_STAGING)
        if not is_whole or is_torn or segment.cursor is None:
            return None
        segment.set(Counter.IS_CLEAN, 0)
        self._journal_bytes = len(segment.journal)
        replay(memory, segment.journal[: segment.get(Counter.JOURNAL_END)])
        restore(memory, segment.get(Counter.N_USED))
        take_counters(memory, segment)
        self._listen(memory)
        self._told_sessions = set(memory.limits.session_keys)
        return memory, segment.cursor

    def stage(self) -> None:
        """Note that free slots are written to, which a crash would leave half written."""
        if self._segment is not None:
            self._segment.set(Counter.IS_STAGING, 1)

    def hold(self) -> None:
        """Keep the draws of others out, because the memory changes."""
        segment = self._segment
        if segment is not None and not segment.get(Counter.GENERATION) & 1:
            segment.set(Counter.GENERATION, segment.get(Counter.GENERATION) + 1)

    def publish(self, memory: StepMemory, cursor: Any) -> None:
        """Let other processes draw from the memory as it is now.

        Args:
            memory: The steps.
            cursor: State that another follower needs to continue, as JSON.
        """
        self._listen(memory)
        if self._next is None:
            assert self._segment is not None
            if not self._tell(self._segment, _entries(memory, self._told_sessions)):
                self._renew(memory)
        if self._next is not None:
            while not self._tell(self._next, _entries(memory)):
                self._renew(memory)
        segment = self._next or self._segment
        assert segment is not None
        if self._next is None:
            self._tell_changes(segment, memory)
        self._n_changes = memory.changed.n
        segment.set(Counter.N_USED, memory.blocks.n_used)
        segment.set(Counter.N_LIVE, memory.n_live)
        segment.set(Counter.HAS_BARRED, int(memory.has_barred))
        segment.set(Counter.LOW, memory.low)
        segment.set(Counter.HIGH, memory.high)
        segment.set(Counter.CLOCK, NO_CLOCK if memory.clock is None else memory.clock)
        segment.cursor = cursor
        segment.set(Counter.IS_STAGING, 0)
        for table in (memory.tasks, memory.agents, memory.episodes):
            table.touched = set()
        self._told_sessions = set(memory.limits.session_keys)
        if self._next is not None:
            self._replace()
        segment.set(Counter.GENERATION, (segment.get(Counter.GENERATION) | 1) + 1)

    def _listen(self, memory: StepMemory) -> None:
        for table in (memory.tasks, memory.agents, memory.episodes):
            if table.touched is None:
                table.touched = set()

    def _renew(self, memory: StepMemory) -> None:
        """Move the memory to a segment with more room for the journal."""
        n_bytes = sum(len(entry) for entry in _entries(memory))
        self._journal_bytes = max(FEWEST_JOURNAL_BYTES, JOURNAL_SLACK * n_bytes)
        memory.move(self.allocate(self._shapes))

    @staticmethod
    def _tell(segment: Segment, entries: Iterable[bytes]) -> bool:
        """Append to the journal; False: there is no room for it."""
        told, end = b"".join(entries), segment.get(Counter.JOURNAL_END)
        if end + len(told) > len(segment.journal):
            return False
        segment.journal[end : end + len(told)] = told
        segment.set(Counter.JOURNAL_END, end + len(told))
        return True

    def _tell_changes(self, segment: Segment, memory: StepMemory) -> None:
        slots = memory.changed.since(self._n_changes)
        ring, n = segment.arrays[CHANGED], segment.get(Counter.N_CHANGED)
        n_new = len(ring) + 1 if slots is None else len(slots)
        if slots is not None and n_new <= len(ring):
            ring[(n + np.arange(n_new)) % len(ring)] = slots
        segment.set(Counter.N_CHANGED, n + n_new)

    def _replace(self) -> None:
        """Put the new segment in the place of the old one."""
        assert self._next is not None
        old = self._segment
        if old is None:
            old = _left(self._place)
        os.replace(self._next.path, self._place.path)
        self._next.path = self._place.path
        if old is not None:
            old.set(Counter.IS_SUPERSEDED, 1)
        self._segment, self._next = self._next, None

    def looked(self, began_at: float) -> None:
        """Tell others that a look was a success.

        Args:
            began_at: When it began, in seconds of the monotonic clock.
        """
        if self._segment is not None:
            self._segment.set(Counter.LOOKED_NS, int(began_at * 1e9))
            self._segment.error = ""

    def failed(self, began_at: float, error: BaseException) -> None:
        """Tell others that a look failed."""
        self._next = None
        if self._segment is not None and isinstance(error, Exception):
            names = [each.__name__ for each in type(error).__mro__]
            name = next((name for name in names if hasattr(errors, name)), "StorageError")
            self._segment.error = f"{name}: {error}"
            self._segment.set(Counter.FAILED_NS, int(began_at * 1e9))

    def wait(self, timeout_s: float) -> None:
        """Wait until another process wants a look, at most for a time in seconds."""
        self._place.wait(timeout_s)

    def wake(self) -> None:
        """End a wait."""
        self._place.wake()

    def close(self) -> None:
        """Leave the segment so that another follower can continue."""
        segment = self._segment
        if segment is None:
            return
        if self._place.is_kept and not segment.get(Counter.GENERATION) & 1:
            segment.sync()
            segment.set(Counter.IS_CLEAN, 1)
            segment.sync()


def _left(place: SharedPlace) -> Segment | None:
    try:
        return Segment(place.path, {}, is_writable=True)
    except (OSError, ValueError):
        return None


def _entries(memory: StepMemory, told_sessions: Collection[int] | None = None) -> list[bytes]:
    """Return the journal's entries about names, sessions and episodes.

    Args:
        memory: Memory that contains them.
        told_sessions: Sessions that the journal contains already; None: return entries about
            everything.
    """
    is_all = told_sessions is None
    found: list[Entry] = []
    for kind, table in ((TASK_NAME, memory.tasks), (AGENT_NAME, memory.agents)):
        numbers = table.numbers() if is_all else sorted(table.touched or ())
        found += [Entry(kind, number, 0, 0, table.names[number], None) for number in numbers]
    for number, key in memory.limits.session_keys.items():
        if number not in (told_sessions or ()):
            found.append(Entry(SESSION_KEY, number, 0, 0, key, None))
    episodes = memory.episodes
    for number in episodes.numbers() if is_all else sorted(episodes.touched or ()):
        id_ = episodes.id_of(number)
        if id_ is not None:
            own = episodes.entry(number)
            kind, sums = EPISODE_STATE + own.status, (own.return_, own.reward)
            found.append(Entry(kind, number, id_, own.length, own.key, own.final, sums))
    return [packed(entry) for entry in found]
