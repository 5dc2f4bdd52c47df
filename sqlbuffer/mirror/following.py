"""Follow a buffer into memory, from a separate thread and from draws."""

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display import shown_size
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import (
    BufferConfigError,
    MirrorBehindError,
    MirrorFullError,
    SchemaMissingError,
    SchemaOutdatedError,
    SchemaTooNewError,
    StorageError,
    StorageReadOnlyError,
    StorageUnreachableError,
)
from sqlbuffer.mirror.accounts import Integers, OwnPriorities, Reals, live_slots
from sqlbuffer.mirror.memory.priorities import PRIORITY_BYTES, StepPriorities
from sqlbuffer.mirror.memory.records import FIRST_BYTES, Tails, kept_layout, slot_bytes
from sqlbuffer.mirror.memory.step_memory import LIMIT_BYTES, StepChanges, StepMemory
from sqlbuffer.mirror.memory.tables import BLOCK, Allocate, zeroed
from sqlbuffer.mirror.settings import MirrorLag, MirrorSettings, lag_of
from sqlbuffer.mirror.sharing import Publisher
from sqlbuffer.processes import own_pid
from sqlbuffer.storage.buffers.writes import commits_of
from sqlbuffer.storage.database.errors import without_repeats
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.eligibility import oldest_version
from sqlbuffer.storage.following.feed import Feed, News
from sqlbuffer.storage.following.state import BufferState, ChunkRow, EpisodeState
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

    Attributes:
        layout: Layout of the chunks, and the fields that are kept.
    """

    def __init__(
        self, store: BufferStore, settings: MirrorSettings, allocate: Allocate | None = None
    ) -> None:
        self._allocate = allocate
        self._config, self._selects = store.info.config, settings.selects
        self.layout = settings.layout
        # Processes that share a mirror do not share priorities.
        has_priorities = self._config.priorities.enabled and allocate is None
        self._alpha = store.priorities.alpha if has_priorities else None
        self._slot_bytes = slot_bytes(self.layout) + LIMIT_BYTES
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
        n_slots = max(2 * n_steps, FEWEST_SLOTS)
        is_ring = retention.evict_by == "row" and not self._selects
        if is_ring and retention.max_capacity is not None:
            full = int(retention.max_capacity * (1 + SLACK)) + FEWEST_SLOTS
            n_slots = full if self._allocate is None else min(n_slots, full)
        memory = self.memory_of(
            min(n_slots, self._most_slots), FIRST_BYTES, self._allocate or zeroed
        )
        if self._alpha is not None:
            memory.priorities = StepPriorities(memory.n_slots, self._alpha)
        return memory

    def memory_of(self, n_slots: int, heap_bytes: int, allocate: Allocate) -> StepMemory:
        """Return a memory of a number of slots and of heap bytes, in given arrays."""
        return StepMemory(
            self.layout, n_slots, allocate, heap_bytes=heap_bytes, selects=self._selects
        )

    def _check(self, n_steps: int) -> None:
        if n_steps > self._most_slots:
            raise MirrorFullError(
                f"{n_steps} steps take {shown_size(n_steps * self._slot_bytes)} of memory, "
                f"{self._slot_bytes} bytes each, and max_bytes is {shown_size(self._max_bytes)}, "
                f"enough for {self._most_slots}; raise max_bytes, keep fewer steps "
                f"(condition=..., or lower max_capacity with resize())"
                f"{_fewer_fields(self.layout)}"
            )

    def _check_tails(self, n_steps: int, tails: Tails) -> None:
        n_bytes = n_steps * self._slot_bytes + tails.n_live + tails.n_wanted
        if n_bytes > self._max_bytes:
            raise MirrorFullError(
                f"more than {n_steps} steps with values of varying length take "
                f"{shown_size(n_bytes)} of memory, and max_bytes is {shown_size(self._max_bytes)}; "
                f"raise max_bytes, or keep fewer steps (condition=..., or lower max_capacity with "
                f"resize()){_fewer_fields(self.layout)}"
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
        episodes = {id_ for id_ in news.changed_episodes if memory.has_episode(id_)}
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
        state, sampling, selection = news.state, self._config.sampling, news.selection
        memory.low, memory.high, memory.clock = state.low, state.high, state.clock
        limits = (
            oldest_version(state.clock, sampling.max_staleness),
            state.session if sampling.current_session_only else None,
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
        memory.commit(state.low, changes)
        if memory.priorities is not None:
            memory.priorities.is_limited = bool(state.has_quarantine) or limits != (None, None)
            _read_priorities(memory, *news.priorities)
            if news.is_start:  # the first draw would wait for the sums of all steps
                memory.priorities.weights(memory.is_drawable, memory.changed)


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
    priorities = memory.priorities
    if priorities is None or not len(seqs):
        return
    slots, is_live = live_slots(memory, seqs)
    is_taken = is_live & ~priorities.is_own[slots]
    priorities.set(slots[is_taken], values[is_taken], memory.is_drawable)


def _fewer_fields(layout: Layout) -> str:
    """Return the end of a message: the size without the largest field."""
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
    if config.sampling.max_staleness is not None and config.sampling.staleness_of == "newest":
        raise BufferConfigError(
            f"buffer {name!r} judges the steps of an episode by its newest one "
            f"(staleness_of='newest'), and a mirror each by its own; draw from the buffer itself"
        )
    if config.leases.enabled:
        raise BufferConfigError(
            f"buffer {name!r} hands out its steps by leases, which a mirror does not; use "
            f"lease() of the buffer itself"
        )


Made = TypeVar("Made")

OTHER_SCHEMA = (SchemaMissingError, SchemaOutdatedError, SchemaTooNewError)

# A registration is forgotten after a minute.
RENEWED_S = 20.0


class Refreshing:
    """Keeps the steps of a buffer in memory.

    Args:
        store: The buffer.
        settings: Settings of the mirror.
        publisher: Publisher that other processes read the memory from; None: only this process
            reads it.

    Attributes:
        lock: Lock that a thread holds while it reads or changes the memory.
        memory: The steps.
        state: State of the buffer that they show.
    """

    def __init__(
        self, store: BufferStore, settings: MirrorSettings, publisher: Publisher | None = None
    ) -> None:
        self._store, self._selects = store, settings.selects
        self._refresh_s, self._max_lag_s = settings.refresh_s, settings.max_lag_s
        reads_priorities = publisher is None and store.info.config.priorities.enabled
        self._publisher = publisher
        self._feed = Feed(store.reading, store, settings.node, reads_priorities=reads_priorities)
        allocate = None if publisher is None else publisher.allocate
        self._settings = settings
        self._n_added = settings.layout.number
        self._learned: MirrorSettings | None = None  # of the memory that is read next
        self._filling = Filling(store, settings, allocate)
        self._pid = os.getpid()
        self._commits = commits_of(store.url, store.info.id)
        self.lock, self._looking = threading.RLock(), threading.Lock()
        self._closed = threading.Event()
        self._renewed_at, self._looked_at = float("-inf"), float("-inf")
        self._began_at = 0.0
        # This process's commits before the last look that succeeded, and before the last one.
        self._n_commits = self._n_tried = 0
        # A look begins to change the memory.
        self._has_begun = False
        # The memory shows no state of the buffer: such a change was interrupted.
        self._is_torn = False
        self._error: Exception | None = None
        self._own = OwnPriorities(store, self._feed.origin, self.lock)
        self._thread: threading.Thread | None = None
        self.memory = self._filling.memory_of(0, 0, zeroed)  # until the first look
        self.state: BufferState

    def start(self) -> None:
        """Read the buffer, and begin to look for changes."""
        has_found = self._publisher is not None and self._find(self._publisher)
        try:
            self.refresh()
        except BaseException as error:
            # The memory of an earlier follower shows a state of the buffer, although an old one.
            if not (has_found and isinstance(error, StorageError)):
                self._feed.leave()
                raise
        if is_memory(self._store.url):
            return  # no other process can write, and its one connection is the writers'
        pause = self._closed.wait if self._publisher is None else self._publisher.wait
        self._thread = threading.Thread(
            target=_follow,
            args=(ref(self), self._closed, pause, self._refresh_s),
            name="sqlbuffer-mirror",
            daemon=True,
        )
        self._thread.start()

    def _find(self, publisher: Publisher) -> bool:
        """Continue from the state of an earlier follower; return False if there is none."""
        published = publisher.existing_memory(self._filling.memory_of)
        if published is None:
            return False
        self.memory, cursor = published
        self._feed.resume(cursor)
        assert self._feed.state is not None
        self.state = self._feed.state
        return True

    def close(self) -> None:
        """Write the priorities that were set, and stop looking.

        Raises:
            StorageError: They could not be written.
        """
        if self._closed.is_set():
            return
        self._closed.set()
        if self._publisher is None:
            try:
                if self._pid == os.getpid():
                    self._own.write(lambda: self.memory, self._looking)
            finally:
                with self._looking:
                    self._feed.leave()
            return
        # The registration stays, for the process that continues; it is removed after a minute.
        self._publisher.wake()
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
        with self._looking:
            self._publisher.close()

    def refresh(self) -> None:
        """Write the priorities that were set, and read what is new in the buffer now.

        Raises:
            MirrorFullError: It does not fit.
            StorageError: The database cannot be read.
        """
        self._store.reading.with_retries(self.refresh_once)

    def refresh_once(self, write_s: float = math.inf) -> None:
        """Do as `refresh` does, but fail when the connection is lost.

        Args:
            write_s: Seconds to write; the rest is written later.
        """
        try:
            with without_repeats():
                failure = self._write(write_s)
                with self._looking:
                    self._look()
                if failure is not None:
                    raise failure
        except BaseException as error:
            if self._has_begun:
                self._feed.start_again()
            if isinstance(error, Exception):
                self._error = error
            if self._publisher is not None:
                self._publisher.failed(self._began_at, error)
            raise
        self._error = None
        if self._publisher is not None:
            self._publisher.looked(self._looked_at)

    def _write(self, write_s: float) -> StorageError | None:
        """Write the priorities that were set; return an error that must not stop the look."""
        if self._looked_at == float("-inf"):
            return None
        try:
            self._own.write(lambda: self.memory, self._looking, write_s)
        except StorageUnreachableError:
            raise
        except StorageError as error:
            return error
        return None

    def _look(self) -> None:
        self._began_at = began_at = time.monotonic()
        self._has_begun = False
        n_own = self._n_tried = self._commits.n
        if began_at - self._renewed_at > RENEWED_S:
            self._feed.register()
            self._renewed_at = began_at
        self._store.reading.own_writes.catch_up()
        with self._feed.look() as news:
            has_new_fields = news is not None and news.state.n_added > self._n_added
            is_read = news is not None and not has_new_fields
            look = self._filling.read(self.memory, news) if is_read and news is not None else None
        if has_new_fields:
            self._learn_fields()
            self._look()
            return
        # All of it was read: nothing below waits for the database.
        if look is not None:
            self._take(look)
        self._looked_at, self._n_commits = began_at, n_own

    def _learn_fields(self) -> None:
        """Take fields that were added to the buffer. Where they are to be kept, all steps are read
        again; draws go on with the old ones until then.
        """
        self._n_added = self._store.learn_fields().number
        if self._settings.keeps_all and self._publisher is None:
            self._learned = self._settings.with_fields_of(self._store)
            self._filling = Filling(self._store, self._learned)
            self._feed.start_again()
        else:
            self._settings.layout.newer = self._store.layout

    def _take(self, look: Look) -> None:
        """Make the state of a look the one that draws see."""
        self._has_begun = True
        news, publisher = look.news, self._publisher
        with ExitStack() as stack:
            if look.memory is self.memory:
                if publisher is not None:
                    publisher.stage()
                self._filling.stage(look, lambda: self._hold(stack))
                self._hold(stack)
                self._filling.commit(look)
            else:
                self._filling.commit(look)
                self._hold(stack)
                self._keep_own(news.state)
                self.memory = look.memory
                if self._learned is not None:
                    self._settings.take_fields(self._learned)
                    self._learned = None
            self._own.restore(look.memory)
            self.state = news.state
            self._feed.accept(news)
            if publisher is not None:
                publisher.publish(look.memory, self._feed.cursor())
            self._is_torn = False
        self._has_begun = False

    def _keep_own(self, state: BufferState) -> None:
        """Keep priorities set since the last write, unless the buffer is another one."""
        if self._looked_at != float("-inf") and self.state.created_at == state.created_at:
            self._own.keep(self.memory)

    def _hold(self, stack: ExitStack) -> None:
        """Block draws until the look ends, because the memory changes."""
        stack.enter_context(self.lock)
        self._is_torn = True
        if self._publisher is not None:
            self._publisher.hold()

    def read(self, compute: Callable[[StepMemory], Made]) -> Made:
        """Return a function's result for the steps, which do not change until it returns."""
        with self.lock:
            return compute(self.memory)

    def prepare(self) -> None:
        """Take what this process has written, before a draw.

        Raises:
            BufferConfigError: The mirror was closed, or is another process's.
            MirrorBehindError: It is further behind than it may be.
            MirrorFullError: The buffer has outgrown it.
        """
        self._check_open()
        # A look that failed is repeated by the thread, unless a later commit shows that the
        # database is back.
        error = self._error
        n_seen = self._n_commits if error is None or not self.is_cut_off else self._n_tried
        if n_seen != self._commits.n:
            self._refresh_if_reachable()
            error = self._error
        if error is not None and not may_pass(error):
            raise error  # it is not over once the database answers again
        if self._max_lag_s is not None and self.lag_s > self._max_lag_s:
            self._refresh_if_reachable()
            check_lag(self._store.info.name, self.lag_s, self._max_lag_s, self._error)

    def _check_open(self) -> None:
        """Raise if the mirror cannot be used; read the buffer again after a failed look."""
        check_open(self._closed, self._pid)
        # Without the lock, it is also True while the thread makes a change.
        if self._is_torn and self.read(lambda _: self._is_torn):
            self.refresh_once(0.0)

    def update_priorities(self, seqs: Integers, values: Reals) -> int:
        """Set the priorities of steps, each given once; return how many are in memory.

        Raises:
            BufferConfigError: The mirror was closed, or is another process's.
            StorageReadOnlyError: The role may not set them.
        """
        self._check_open()
        self.check_prioritized()
        is_live = self.read(lambda memory: self._own.set(memory, seqs, values))
        if not is_live.all() and (seqs[~is_live] > self.state.low).any():
            # They may be new. Some that were found may be gone then.
            self._refresh_if_reachable()
            is_live = self.read(lambda memory: self._own.set(memory, seqs, values))
        if is_memory(self._store.url):
            self.refresh()  # no thread does
        return int(is_live.sum())

    def check_prioritized(self, normalize: str = "batch") -> None:
        """Raise if priorities are not known.

        Args:
            normalize: Rows over which the largest weight is taken.

        Raises:
            BufferConfigError: That is the whole buffer, and the mirror has a part of it.
            StorageReadOnlyError: The role may not have changes of priorities logged.
        """
        check_open(self._closed, self._pid)
        if normalize == "buffer" and self._selects:
            raise BufferConfigError(
                f"normalize='buffer' needs the least priority of buffer {self._store.info.name!r}, "
                f"and a mirror with condition= has a part of it; take normalize='batch'"
            )
        if not self._feed.is_registered:
            raise StorageReadOnlyError(
                f"the mirror of buffer {self._store.info.name!r} does not see how others change "
                f"priorities, because its role may not have them logged; connect with the role of "
                f"a learner, or draw from the buffer itself"
            )

    def _refresh_if_reachable(self) -> None:
        with suppress(StorageError):  # draws continue; `lag` shows the error
            self.refresh_once(0.0)  # priorities can wait

    @property
    def is_cut_off(self) -> bool:
        """True if the database was unreachable at the last look."""
        return isinstance(self._error, StorageUnreachableError)

    @property
    def n_live(self) -> int:
        """Number of steps of the mirror."""
        return self.memory.n_live

    @property
    def lag_s(self) -> float:
        """Seconds since the last look that succeeded began."""
        return time.monotonic() - self._looked_at

    def lag(self) -> MirrorLag:
        """Return how far behind the memory is."""
        known = self._feed.state or self.state
        return lag_of(self._store.reading, self.lag_s, self.state.high, known, self._error)


def may_pass(error: Exception) -> bool:
    """Return True if draws continue after a failed look: the database may come back soon."""
    return isinstance(error, StorageError) and not isinstance(error, OTHER_SCHEMA)


def check_lag(name: str, lag_s: float, max_lag_s: float, error: Exception | None) -> None:
    """Raise MirrorBehindError if the mirror of a buffer is further behind than it may be."""
    if lag_s > max_lag_s:
        why = "" if error is None else f": {error}"
        raise MirrorBehindError(
            f"the mirror of buffer {name!r} is {lag_s:.1f} s behind, and max_lag_s is "
            f"{max_lag_s}{why}"
        )


def check_open(closed: threading.Event, pid: int) -> None:
    """Raise BufferConfigError if a mirror was closed, or was opened by another process."""
    if closed.is_set():
        raise BufferConfigError("the mirror is closed; open another one with buffer.mirror()")
    if pid != own_pid():
        raise BufferConfigError(
            "the mirror was opened before this process was forked; open one in each process"
        )


def _follow(
    refreshing: "ref[Refreshing]",
    closed: threading.Event,
    pause: Callable[[float], object],
    refresh_s: float,
) -> None:
    """Look repeatedly, until the mirror is closed or garbage-collected."""
    while not closed.is_set():
        pause(refresh_s)
        follower = refreshing()
        if follower is None or follower._pid != os.getpid() or closed.is_set():
            return
        with suppress(Exception):  # kept, for `lag` and for draws
            follower.refresh_once(refresh_s)
        del follower
