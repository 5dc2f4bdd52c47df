"""A shared mirror: its place, what its follower stores for other processes, and their copies."""

import hashlib
import json
import os
import platform
import select
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer import errors
from sqlbuffer.batches.step_table import NONE
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.mirror.memory.records import HEAP, Shapes
from sqlbuffer.mirror.memory.step_memory import StepMemory, block_numbers, restore
from sqlbuffer.mirror.memory.tables import BLOCK, EpisodeEntry, slot_shapes
from sqlbuffer.mirror.settings import MirrorSettings
from sqlbuffer.mirror.sharing.segment import (
    NO_CLOCK,
    Counter,
    Entry,
    Segment,
    clock_of,
    is_segment,
    packed,
    unpacked,
)
from sqlbuffer.storage.database.sqlite import close_own, open_own
from sqlbuffer.storage.database.urls import is_memory, shown_url
from sqlbuffer.storage.store import BufferStore

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

SHARED_MEMORY = Path("/dev/shm")
# Plain stores of numpy arrive in order at other processors.
ORDERED_MACHINES = ("x86_64", "AMD64")


class SharedPlace:
    """The files of a shared mirror: the segment, two locks and a pipe.

    Args:
        path: The segment.
        is_kept: Whether the segment stays when no process has it open.

    Attributes:
        path: The segment.
        next_path: The one that will replace it.
    """

    def __init__(self, path: Path, *, is_kept: bool) -> None:
        self.path, self.next_path = path, path.with_name(f"{path.name}.next")
        self.is_kept = is_kept
        self._users = _used(_beside(path, "users"))
        # No process removes the lock while the mirror has a user.
        self._lock = _open(_beside(path, "lock"))
        self._pipe: int | None = None
        self._pid, self._is_closed = os.getpid(), False

    def try_to_follow(self) -> bool:
        """Become the process that follows the buffer, unless another one does."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        pipe = _beside(self.path, "wake")
        with suppress(FileExistsError):
            os.mkfifo(pipe, 0o600)
        # For both directions: it does not end with the last writer.
        self._pipe = open_own(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self.next_path.unlink(missing_ok=True)
        return True

    def stop_following(self) -> None:
        """Let another process follow the buffer."""
        self.next_path.unlink(missing_ok=True)
        if self._pipe is not None:
            close_own(self._pipe)
            self._pipe = None
        fcntl.flock(self._lock, fcntl.LOCK_UN)

    def wait(self, timeout_s: float) -> None:
        """Wait until another process calls `wake`, at most for a time in seconds."""
        # The pipe is closed with the mirror.
        with suppress(OSError, ValueError):
            if self._pipe is not None and select.select([self._pipe], [], [], timeout_s)[0]:
                os.read(self._pipe, 4096)

    def wake(self) -> None:
        """Make the process that follows look now."""
        with suppress(OSError):  # it has ended, or its pipe is full
            pipe = os.open(_beside(self.path, "wake"), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(pipe, b"\0")
            finally:
                os.close(pipe)

    def close(self) -> None:
        """Leave; the last one removes the files, but for a segment that is kept."""
        if self._is_closed or self._pid != os.getpid():
            return
        self._is_closed = True
        with suppress(BlockingIOError):
            fcntl.flock(self._users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(self.path, is_kept=self.is_kept)
        for descriptor in (self._lock, self._users, self._pipe):
            if descriptor is not None:
                close_own(descriptor)


def place_of(store: BufferStore, path: str | os.PathLike[str] | None, about: Any) -> SharedPlace:
    """Return the place of a buffer's shared mirror.

    Args:
        store: The buffer.
        path: The file that the user gave; None: shared memory.
        about: Other data that distinguishes it, as JSON.

    Raises:
        BufferConfigError: This machine or database cannot share one.
    """
    if is_memory(store.url):
        raise BufferConfigError(
            "a buffer in memory has one process; use shared=True with a database in a file"
        )
    if fcntl is None or platform.machine() not in ORDERED_MACHINES or not _has_fallocate():
        raise BufferConfigError(
            f"shared=True needs Linux on x86-64, and this is {platform.system()} on "
            f"{platform.machine()}; open a mirror in each process without it"
        )
    if path is not None:
        own = Path(path).absolute()
        _check_own(own)
        return SharedPlace(own, is_kept=True)
    if not SHARED_MEMORY.is_dir():
        raise BufferConfigError(f"this machine has no {SHARED_MEMORY}; give path= for the file")
    sweep()
    key = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:20]
    return SharedPlace(SHARED_MEMORY / f"{_prefix()}{key}", is_kept=False)


def _check_own(path: Path) -> None:
    """Raise BufferConfigError unless a mirror can be kept in a file."""
    if not path.parent.is_dir():
        raise BufferConfigError(f"path= of the mirror: there is no folder {path.parent}; create it")
    if path.is_symlink() or not path.exists():
        return
    # It would be overwritten.
    if not path.is_file() or not is_segment(path):
        raise BufferConfigError(
            f"path= of the mirror: {path} holds something else; name a new file, or remove it"
        )


def sweep() -> None:
    """Remove segments in shared memory that processes left behind."""
    for path in SHARED_MEMORY.glob(f"{_prefix()}*.users"):
        with suppress(OSError):
            users = _open(path)
            try:
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
                _remove(path.with_suffix(""), is_kept=False)
            finally:
                close_own(users)


def _prefix() -> str:
    return f"sqlbuffer-{os.geteuid()}-"


def _remove(path: Path, *, is_kept: bool) -> None:
    """Remove the files of a mirror that has no user: the caller holds the lock of the users."""
    names = [f"{path.name}.{name}" for name in ("next", "lock", "wake", "users")]
    for name in names if is_kept else [path.name, *names]:
        path.with_name(name).unlink(missing_ok=True)


def _used(path: Path) -> int:
    """Return the file that users of a mirror lock, locked, once it is not being removed."""
    while True:
        descriptor = _open(path)
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with suppress(FileNotFoundError):
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return descriptor
        close_own(descriptor)


def _beside(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}")


def _open(path: Path) -> int:
    return open_own(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _has_fallocate() -> bool:
    return hasattr(os, "posix_fallocate")


def identity_of(store: BufferStore, more: Mapping[str, Any]) -> dict[str, Any]:
    """Return what distinguishes a mirror of a buffer from those of others, as JSON."""
    info = store.info
    return {
        "url": shown_url(store.url),
        "buffer": info.name,
        "buffer_id": info.id,
        "fields": {name: repr(spec) for name, spec in info.config.fields.specs.items()},
        **more,
    }


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
