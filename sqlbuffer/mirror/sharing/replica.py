"""The copy of a shared mirror in a process that does not follow the buffer."""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.episode_table import EpisodeEntry
from sqlbuffer.mirror.memory.restoring import block_numbers
from sqlbuffer.mirror.memory.slot_arrays import slot_shapes
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.tails import Shapes
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.mirror.sharing.journal import unpacked
from sqlbuffer.mirror.sharing.segment import Counter, Segment, clock_of

# Kinds of entries; the status of an episode is added to the last.
TASK_NAME, AGENT_NAME, SESSION_KEY, EPISODE_STATE = 1, 2, 3, 8
CHANGED = "changed"


def shared_shapes(shapes: Shapes) -> Shapes:
    """Return the arrays of a segment: those of the steps, and a ring of the slots that changed."""
    (n_slots,), _ = shapes["is_drawable"]
    return {**shapes, CHANGED: ((n_slots,), np.dtype(np.int32))}


def replay(memory: StepMemory, told: memoryview) -> None:
    """Read a journal's entries about names and episodes."""
    names: dict[int, dict[int, str]] = defaultdict(dict)
    for entry in unpacked(told):
        if entry.kind >= EPISODE_STATE:
            status = entry.kind - EPISODE_STATE
            told_of = EpisodeEntry(status, entry.value, entry.name, entry.data, *entry.numbers)
            memory.episodes.put(entry.number, entry.id, told_of)
        else:
            names[entry.kind][entry.number] = entry.name or ""
    memory.tasks.put(names[TASK_NAME])
    memory.agents.put(names[AGENT_NAME])
    memory.limits.name_sessions(list(names[SESSION_KEY].items()))


def take_counters(memory: StepMemory, segment: Segment) -> None:
    """Read a segment's data about the steps as a whole."""
    memory.n_live = segment.get(Counter.N_LIVE)
    memory.has_barred = bool(segment.get(Counter.HAS_BARRED))
    memory.low, memory.high = segment.get(Counter.LOW), segment.get(Counter.HIGH)
    memory.clock = clock_of(segment)


class Replica:
    """The memory of another process's mirror, updated from the journal of that process.

    Args:
        segment: Where the memory is.
        settings: Settings of the mirror.

    Attributes:
        memory: The steps.
        segment: Where they are.
    """

    def __init__(self, segment: Segment, settings: MirrorSettings) -> None:
        self.segment = segment

        def arrays(shapes: Shapes) -> Mapping[str, NDArray[Any]]:
            return {name: segment.arrays[name] for name in shapes}

        about = segment.about
        self.memory = StepMemory(
            settings.layout,
            about["n_slots"],
            arrays,
            heap_bytes=about["heap_bytes"],
            selects=settings.selects,
        )
        # The block of numbers that each block of slots has.
        self._numbers = np.zeros(0, np.int64)
        self._generation, self._journal_end, self._n_changed = -1, 0, 0

    def update(self, generation: int) -> None:
        """Read the entries up to a generation."""
        if generation == self._generation:
            return
        segment, memory = self.segment, self.memory
        n_used, n_changed = segment.get(Counter.N_USED), segment.get(Counter.N_CHANGED)
        journal_end = segment.get(Counter.JOURNAL_END)
        if journal_end != self._journal_end:
            replay(memory, segment.journal[self._journal_end : journal_end])
            self._journal_end = journal_end
        take_counters(memory, segment)
        n_before = memory.changed.n
        ring, n_new = segment.arrays[CHANGED], n_changed - self._n_changed
        if n_new > len(ring):
            memory.changed.forget()
        elif n_new:
            at = (self._n_changed + np.arange(n_new)) % len(ring)
            memory.changed.add(ring[at].astype(np.int64))
        self._n_changed = n_changed
        self._map(n_used, memory.changed.since(n_before))
        self._generation = generation

    def _map(self, n_used: int, changed: NDArray[np.int64] | None) -> None:
        """Find out which slot each number has.

        Args:
            n_used: Slots from 0 to this one have been given at some time.
            changed: Slots that have changed; None: any may have.
        """
        known, n = self._numbers, n_used // BLOCK
        self._numbers = np.full(n, NONE, np.int64)
        self._numbers[: len(known)] = known[:n]
        if changed is None:
            blocks = np.arange(n)
        else:
            blocks = np.union1d(changed // BLOCK, np.arange(len(known), n))
        self._numbers[blocks] = block_numbers(self.memory, blocks)
        self.memory.blocks.restore(self._numbers)


def open_replica(path: Path, about: Mapping[str, Any], settings: MirrorSettings) -> Replica:
    """Return the replica of the segment of a mirror.

    Raises:
        OSError: There is none.
        ValueError: It is of another version, or of another mirror.
    """
    found = Segment(path, {}, is_writable=False).about
    if any(found.get(name) != value for name, value in about.items()):
        raise ValueError(f"{path} holds the mirror of another buffer")
    shapes = slot_shapes(settings.layout, found["n_slots"], found["heap_bytes"])
    return Replica(Segment(path, shared_shapes(shapes), is_writable=False), settings)
