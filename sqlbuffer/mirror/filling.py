"""Update the memory of a mirror from the database: one look after the other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.batches.step_table import NONE
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import BufferConfigError, MirrorFullError
from sqlbuffer.mirror.memory.block_map import BLOCK
from sqlbuffer.mirror.memory.slot_arrays import Allocate, zeroed
from sqlbuffer.mirror.memory.step_changes import StepChanges
from sqlbuffer.mirror.memory.step_limits import LIMIT_BYTES
from sqlbuffer.mirror.memory.step_memory import StepMemory
from sqlbuffer.mirror.memory.step_priorities import PRIORITY_BYTES, StepPriorities
from sqlbuffer.mirror.memory.step_record import kept_layout, slot_bytes
from sqlbuffer.mirror.memory.tails import FIRST_BYTES, Tails
from sqlbuffer.mirror.mirror_settings import MirrorSettings
from sqlbuffer.mirror.own_priorities import live_slots
from sqlbuffer.sizes import shown_size
from sqlbuffer.storage.eligibility.eligible_rows import oldest_version
from sqlbuffer.storage.following.buffer_state import ChunkRow, EpisodeState
from sqlbuffer.storage.following.feed import News
from sqlbuffer.storage.store import BufferStore

# Room for new steps before the evicted ones are gone, as a share of the capacity.
SLACK = 1 / 8
FEWEST_SLOTS = 65_536


@dataclass(frozen=True)
class Look:
    """All that one look at the database has read.

    Attributes:
        news: The changes of steps, and the state of the buffer.
        memory: Memory that takes the changes: a new one, if the look has read everything.
        pages: The chunks that are not in the memory yet.
        episodes: Episodes that are new or changed.
        sessions: (number, id) of sessions that were not known.
    """

    news: News
    memory: StepMemory
    pages: Sequence[Sequence[ChunkRow]]
    episodes: Sequence[EpisodeState]
    sessions: Sequence[tuple[int, str]]


class Filling:
    """Puts new steps and changes of a buffer into memory.

    Args:
        store: The buffer.
        settings: Settings of the mirror.
        allocate: Makes arrays whose space is reserved; None: those of this process, which take
            memory when they are written to.
    """

    def __init__(
        self, store: BufferStore, settings: MirrorSettings, allocate: Allocate | None = None
    ) -> None:
        self._allocate = allocate
        self._config, self._selects = store.info.config, settings.selects
        self._layout = settings.layout
        # Processes that share a mirror do not share priorities.
        has_priorities = self._config.priorities.enabled and allocate is None
        self._alpha = store.priorities.alpha if has_priorities else None
        self._slot_bytes = slot_bytes(self._layout) + LIMIT_BYTES
        if self._alpha is not None:
            self._slot_bytes += PRIORITY_BYTES
        self._max_bytes = settings.max_bytes
        self._most_slots = self._max_bytes // self._slot_bytes

    def new_memory(self, n_steps: int) -> StepMemory:
        """Return an empty memory for a buffer of n_steps steps.

        Raises:
            MirrorFullError: They do not fit.
        """
        self._check(n_steps)
        retention = self._config.retention
        wanted = max(2 * n_steps, FEWEST_SLOTS)
        is_ring = retention.evict_by == "row" and not self._selects
        if is_ring and retention.max_capacity is not None:
            full = int(retention.max_capacity * (1 + SLACK)) + FEWEST_SLOTS
            wanted = full if self._allocate is None else min(wanted, full)
        memory = self.memory_of(
            min(wanted, self._most_slots), FIRST_BYTES, self._allocate or zeroed
        )
        if self._alpha is not None:
            memory.priorities = StepPriorities(memory.n_slots, self._alpha)
        return memory

    def memory_of(self, n_slots: int, heap_bytes: int, allocate: Allocate) -> StepMemory:
        """Return a memory of a number of slots and of heap bytes, in given arrays."""
        return StepMemory(
            self._layout, n_slots, allocate, heap_bytes=heap_bytes, selects=self._selects
        )

    def _check(self, n_steps: int) -> None:
        if n_steps > self._most_slots:
            raise MirrorFullError(
                f"{n_steps} steps take {shown_size(n_steps * self._slot_bytes)} of memory, "
                f"{self._slot_bytes} bytes each, and max_bytes is {shown_size(self._max_bytes)}, "
                f"enough for {self._most_slots}; raise max_bytes, keep fewer steps "
                f"(condition=..., or lower max_capacity with resize())"
                f"{_fewer_fields(self._layout)}"
            )

    def _check_tails(self, n_steps: int, tails: Tails) -> None:
        n_bytes = n_steps * self._slot_bytes + tails.n_live + tails.n_wanted
        if n_bytes > self._max_bytes:
            raise MirrorFullError(
                f"more than {n_steps} steps with values of varying length take "
                f"{shown_size(n_bytes)} of memory, and max_bytes is {shown_size(self._max_bytes)}; "
                f"raise max_bytes, or keep fewer steps (condition=..., or lower max_capacity with "
                f"resize()){_fewer_fields(self._layout)}"
            )

    def read(self, memory: StepMemory, news: News) -> "Look":
        """Read a look to its end; the memory is not changed.

        A look from the start fills a new memory, page by page: the old one stays until all is read.

        Args:
            memory: The steps.
            news: What is new.

        Raises:
            FieldError: A step cannot be read.
            MirrorFullError: The steps of a whole buffer do not fit.
        """
        if news.is_start:
            memory = self.new_memory(news.count_steps())
        # A reward that was given late changes the return of its episode.
        episodes = _episodes_of(memory, news.labelled)
        sessions: set[int] = set()
        pages: list[list[ChunkRow]] = []
        for page in news.chunks(memory):
            episodes.update(chunk.episode_id for chunk in page if chunk.episode_id is not None)
            sessions.update(chunk.session_id for chunk in page if chunk.session_id is not None)
            if news.is_start:
                self._stage(memory, page, news.state.low)
            else:
                pages.append(page)
        known = memory.limits.session_keys
        return Look(
            news,
            memory,
            pages,
            news.episodes(sorted(episodes)),
            news.session_keys(sorted(sessions.difference(known))),
        )

    def stage(self, look: "Look", hold: Callable[[], object]) -> None:
        """Put the chunks that are new into free slots; they are not visible before `commit`.

        Args:
            look: What was read.
            hold: Keeps draws out until the commit. Called where there are too few free slots before
                what has left makes room.

        Raises:
            FieldError: A step cannot be read.
            MirrorFullError: They do not fit.
        """
        for page in look.pages:
            self._stage(look.memory, page, look.news.state.low, hold)

    def _stage(
        self,
        memory: StepMemory,
        page: Sequence[ChunkRow],
        low: int,
        hold: Callable[[], object] | None = None,
    ) -> None:
        if not memory.stage(page):
            if hold is not None:
                hold()
            memory.make_room(low)
            while not memory.stage(page):
                if memory.tails is not None and memory.tails.n_wanted:
                    self._check_tails(memory.n_live, memory.tails)
                    memory.grow(memory.n_slots)
                    continue
                if memory.n_slots >= self._most_slots - BLOCK:
                    self._check(self._most_slots + 1)
                memory.grow(min(2 * memory.n_slots, self._most_slots))
                if memory.priorities is not None:
                    memory.priorities.grow(memory.n_slots)
        _stage_priorities(memory, page)

    def commit(self, look: "Look") -> None:
        """Make the state of a look the one that is drawn from."""
        news, memory = look.news, look.memory
        now, sampling, selection = news.state, self._config.sampling, news.selection
        memory.low, memory.high, memory.clock = now.low, now.high, now.clock
        limits = (
            oldest_version(now.clock, sampling.max_staleness),
            now.session if sampling.current_session_only else None,
        )
        changes = StepChanges(
            marks=news.marks,
            released=news.released,
            matching=() if selection is None else selection.matching,
            unmatched=() if selection is None else selection.unmatched,
            episodes=look.episodes,
            sessions=look.sessions,
            limits=limits,
        )
        memory.commit(now.low, changes)
        if memory.priorities is not None:
            memory.priorities.is_limited = bool(now.has_quarantine) or limits != (None, None)
            _read_priorities(memory, *news.priorities)


def _stage_priorities(memory: StepMemory, chunks: Sequence[ChunkRow]) -> None:
    if memory.priorities is None or not chunks:
        return
    seqs = [np.arange(chunk.first_seq, chunk.first_seq + chunk.n_steps) for chunk in chunks]
    values = [
        np.ones(chunk.n_steps) if chunk.priorities is None else chunk.priorities for chunk in chunks
    ]
    slots = memory.blocks.slots_of(np.concatenate(seqs))
    memory.priorities.stage(slots, np.concatenate(values))


def _read_priorities(
    memory: StepMemory, seqs: NDArray[np.int64], values: NDArray[np.float64]
) -> None:
    """Take priorities from the database; those that were set here and are not written yet stay."""
    own = memory.priorities
    if own is None or not len(seqs):
        return
    slots, is_live = live_slots(memory, seqs)
    is_taken = is_live & ~own.is_own[slots]
    own.set(slots[is_taken], values[is_taken], memory.is_drawable)


def _episodes_of(memory: StepMemory, seqs: Sequence[int]) -> set[int]:
    """Return the keys in the database of the episodes that steps in memory belong to."""
    slots = memory.blocks.slots_of(np.asarray(seqs, np.int64))
    return memory.episodes.ids(memory.links["episode"][slots[slots != NONE]])


def _fewer_fields(layout: Layout) -> str:
    """Return what would be left without the largest field, as the end of a message."""
    sizes = {name: layout.record[name].itemsize for name in layout.specs}
    if len(sizes) < 2:
        return ""
    largest = max(sizes, key=lambda name: sizes[name])
    names = [name for name in layout.specs if name != largest]
    n_bytes = slot_bytes(kept_layout(layout, names)) + LIMIT_BYTES
    return f", or fewer fields: a step without {largest!r} takes {n_bytes} bytes (fields=[...])"


def check_mirrored(store: BufferStore) -> None:
    """Raise BufferConfigError where a buffer cannot be mirrored."""
    config, name = store.info.config, store.info.name
    if not store.info.has_chunks:
        raise BufferConfigError(
            f"buffer {name!r} has no typed fields, and a mirror holds nothing else; draw with "
            f"sample(), or make a buffer with fields=..."
        )
    if config.sampling.max_use is not None:
        raise BufferConfigError(
            f"buffer {name!r} counts the uses of its steps (max_use), which a mirror does not; "
            f"draw from the buffer itself"
        )
    if config.leases.enabled:
        raise BufferConfigError(
            f"buffer {name!r} hands out its steps by leases, which a mirror does not; use "
            f"lease() of the buffer itself"
        )
