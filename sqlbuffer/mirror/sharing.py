"""A mirror in memory that the processes of one machine share.

A file that processes map as memory has its arrays, a journal and counters. The follower stores
there, and other processes read.
"""

import errno
import hashlib
import json
import mmap
import os
import platform
import select
import struct
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from sqlbuffer import errors
from sqlbuffer.batches.step_table import NONE
from sqlbuffer.display import shown_size
from sqlbuffer.errors import BufferConfigError, MirrorFullError
from sqlbuffer.mirror.memory.records import HEAP, Shapes
from sqlbuffer.mirror.memory.step_memory import StepMemory, block_numbers, restore
from sqlbuffer.mirror.memory.tables import BLOCK, EpisodeEntry, slot_shapes
from sqlbuffer.mirror.settings import MirrorSettings
from sqlbuffer.storage.database.sqlite import close_own, open_own
from sqlbuffer.storage.database.urls import is_memory, shown_url
from sqlbuffer.storage.store import BufferStore

_HEAD = struct.Struct("<qqqqqqdd")
_ALIGN = 8


class Entry(NamedTuple):
    """An entry of a journal.

    Attributes:
        kind: Kind of the entry.
        number: Number of the described thing.
        id: A number, such as a key in the database.
        value: Another one.
        name: A text, or None.
        data: Bytes, or None.
        numbers: Two numbers.
    """

    kind: int
    number: int
    id: int
    value: int
    name: str | None
    data: bytes | None
    numbers: tuple[float, float] = (0.0, 0.0)


def packed(entry: Entry) -> bytes:
    """Return the bytes of an entry.

    Example:
        >>> entry = Entry(1, 7, 0, -1, "walk", None)
        >>> list(unpacked(memoryview(packed(entry)))) == [entry]
        True
    """
    name = None if entry.name is None else entry.name.encode("utf-8", "surrogatepass")
    parts = [name, entry.data]
    sizes = [-1 if part is None else len(part) for part in parts]
    head = _HEAD.pack(entry.kind, entry.number, entry.id, entry.value, *sizes, *entry.numbers)
    raw = head + b"".join([part for part in parts if part is not None])
    return raw + bytes(-len(raw) % _ALIGN)


def unpacked(stored: memoryview) -> Iterator[Entry]:
    """Yield the entries that bytes are made of."""
    offset = 0
    while offset < len(stored):
        kind, number, id_, value, n_name, n_data, *numbers = _HEAD.unpack_from(stored, offset)
        start = offset + _HEAD.size
        middle = start + max(n_name, 0)
        end = middle + max(n_data, 0)
        name = bytes(stored[start:middle]).decode("utf-8", "surrogatepass")
        data = bytes(stored[middle:end])
        yield Entry(
            kind, number, id_, value, None if n_name < 0 else name, None if n_data < 0 else data,
            (numbers[0], numbers[1]),
        )  # fmt: skip
        offset = -(-end // _ALIGN) * _ALIGN


FORMAT = b"sqlbuf01"
_PAGE = 4096
# Parts of the first page: the format, the counters, and the text of an error.
_COUNTERS_AT, _ERROR_AT, _ERROR_BYTES = 64, 1024, 3072
CURSOR_BYTES = 512 * 1024
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Counter(IntEnum):
    """The state of a segment that the follower publishes, as numbers of 64 bits.

    The generation is odd while the follower changes what is drawn.
    """

    GENERATION = 0
    IS_STAGING = 1
    IS_SUPERSEDED = 2
    IS_FINAL_ERROR = 3
    LOOKED_NS = 4
    FAILED_NS = 15
    LOW = 16
    CLOCK = 17
    N_USED = 5
    N_LIVE = 6
    HAS_BARRED = 7
    HIGH = 8
    JOURNAL_END = 9
    N_CHANGED = 10
    CURSOR_END = 11
    ERROR_END = 12
    ABOUT_END = 13
    IS_CLEAN = 14


# A buffer whose clock was never set.
NO_CLOCK = np.iinfo(np.int64).min


class Segment:
    """A mapped file.

    Args:
        path: The file.
        arrays: Shape and dtype of each array; both sides give the same.
        is_writable: Whether this process is the follower.

    Attributes:
        about: Data that the follower wrote when it made the file.
        counters: See `Counter`, int64.
        arrays: The arrays.
        journal: Bytes that are only appended to.
        cursor: State that the follower needs to continue.
    """

    def __init__(self, path: Path, arrays: Shapes, *, is_writable: bool) -> None:
        self.path = path
        flags = os.O_RDWR if is_writable else os.O_RDONLY
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if status.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "another user owns the file", str(path))
            access = mmap.ACCESS_WRITE if is_writable else mmap.ACCESS_READ
            self._map = mmap.mmap(descriptor, status.st_size, access=access)
        finally:
            os.close(descriptor)
        self.inode, self.n_bytes = status.st_ino, status.st_size
        self.counters: NDArray[np.int64] = np.frombuffer(
            self._map, np.int64, len(Counter), _COUNTERS_AT
        )
        about_end = int(self.counters[Counter.ABOUT_END])
        if self._map[: len(FORMAT)] != FORMAT or not _PAGE < about_end <= status.st_size:
            raise ValueError(f"{path} is not a mirror of this version")
        self.about: dict[str, Any] = json.loads(self._map[_PAGE:about_end])
        places, end = _places(_page_after(about_end), arrays)
        journal_bytes = self.about["journal_bytes"]
        if end + CURSOR_BYTES + journal_bytes > status.st_size:
            raise ValueError(f"{path} is the mirror of a buffer with other fields")
        self.arrays = {
            name: np.ndarray(shape, dtype, self._map, places[name])
            for name, (shape, dtype) in arrays.items()
        }
        view = memoryview(self._map)
        self._cursor = view[end : end + CURSOR_BYTES]
        self.journal = view[end + CURSOR_BYTES : end + CURSOR_BYTES + journal_bytes]

    @classmethod
    def create(
        cls, path: Path, arrays: Shapes, journal_bytes: int, about: Mapping[str, Any]
    ) -> "Segment":
        """Make the file, with all of its space reserved.

        Args:
            path: The file; one that is there is replaced.
            arrays: Shape and dtype of each array.
            journal_bytes: Room for the journal.
            about: Data that describes the mirror.

        Raises:
            MirrorFullError: There is too little space.
        """
        text = json.dumps({**about, "journal_bytes": journal_bytes, "boot_id": boot_id()}).encode()
        about_end = _PAGE + len(text)
        _, end = _places(_page_after(about_end), arrays)
        n_bytes = end + CURSOR_BYTES + journal_bytes
        path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(path, flags, 0o600)
        try:
            # Without it a process that touches a page for which there is no room is killed.
            os.posix_fallocate(descriptor, 0, n_bytes)
            counters = np.zeros(len(Counter), np.int64)
            counters[Counter.ABOUT_END], counters[Counter.GENERATION] = about_end, 1
            os.pwrite(descriptor, FORMAT, 0)
            os.pwrite(descriptor, counters.tobytes(), _COUNTERS_AT)
            os.pwrite(descriptor, text, _PAGE)
        except OSError as error:
            path.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            raise MirrorFullError(
                f"the mirror needs {shown_size(n_bytes)} in {path.parent}, which has too little "
                f"room; give path= in a larger file system, or make it larger (in a container "
                f"with --shm-size)"
            ) from None
        finally:
            os.close(descriptor)
        return cls(path, arrays, is_writable=True)

    def get(self, counter: Counter) -> int:
        """Return a counter."""
        return int(self.counters[counter])

    def set(self, counter: Counter, value: int) -> None:
        """Store a counter."""
        self.counters[counter] = value

    @property
    def is_replaced(self) -> bool:
        """Whether another segment has replaced it."""
        if self.counters[Counter.IS_SUPERSEDED]:
            return True
        try:
            return os.stat(self.path).st_ino != self.inode
        except FileNotFoundError:
            return True

    @property
    def error(self) -> str:
        """Why the follower's last look failed, as `name: text`; empty if it did not."""
        end = _ERROR_AT + self.get(Counter.ERROR_END)
        return self._map[_ERROR_AT:end].decode(errors="replace")

    @error.setter
    def error(self, text: str) -> None:
        raw = text.encode()[:_ERROR_BYTES]
        self._map[_ERROR_AT : _ERROR_AT + len(raw)] = raw
        self.set(Counter.ERROR_END, len(raw))

    @property
    def cursor(self) -> Any:
        """State that the follower needs to continue; None if there is none."""
        end = self.get(Counter.CURSOR_END)
        return json.loads(bytes(self._cursor[:end])) if end else None

    @cursor.setter
    def cursor(self, value: Any) -> None:
        raw = json.dumps(value).encode()
        if len(raw) > CURSOR_BYTES:
            raw = b""  # the next follower reads everything
        self._cursor[: len(raw)] = raw
        self.set(Counter.CURSOR_END, len(raw))

    @property
    def is_from_this_boot(self) -> bool:
        """Whether its contents are complete, also after a crash of its follower."""
        return bool(self.about["boot_id"] == boot_id())

    def sync(self) -> None:
        """Write it to its disk."""
        self._map.flush()


def is_segment(path: Path) -> bool:
    """Return whether a file is a segment, or empty."""
    with path.open("rb") as file:
        return file.read(len(FORMAT)) in (b"", FORMAT)


def boot_id() -> str:
    """Return an id of this run of the machine."""
    return _BOOT_ID.read_text().strip() if _BOOT_ID.exists() else ""


def _places(start: int, arrays: Shapes) -> tuple[dict[str, int], int]:
    """Return where each array begins, and the end of all."""
    places, end = {}, start
    for name, (shape, dtype) in arrays.items():
        places[name] = end
        end = _page_after(end + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
    return places, end


def _page_after(n: int) -> int:
    return -(-n // _PAGE) * _PAGE


def clock_of(segment: Segment) -> int | None:
    """Return the buffer's clock; None if it was never set."""
    clock = segment.get(Counter.CLOCK)
    return None if clock == NO_CLOCK else clock


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
        absolute = Path(path).absolute()
        _check_own(absolute)
        return SharedPlace(absolute, is_kept=True)
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
    """Remove the files of a mirror without users; the caller holds the users' lock."""
    names = [f"{path.name}.{name}" for name in ("next", "lock", "wake", "users")]
    for name in names if is_kept else [path.name, *names]:
        path.with_name(name).unlink(missing_ok=True)


def _used(path: Path) -> int:
    """Return the file of a mirror's users, locked, as soon as no process removes it."""
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
            key, group_id, parent_id, meta = orjson.loads(entry.name or "")
            return_, reward = entry.numbers
            told_of = EpisodeEntry(
                status, entry.value, key, entry.data, group_id, parent_id, meta, return_,
                reward,
            )  # fmt: skip
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
            places = (self._n_changed + np.arange(n_new)) % len(ring)
            memory.changed.add(ring[places].astype(np.int64))
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
    stored = Segment(path, {}, is_writable=False).about
    if any(stored.get(name) != value for name, value in about.items()):
        raise ValueError(f"{path} holds the mirror of another buffer")
    shapes = slot_shapes(settings.layout, stored["n_slots"], stored["heap_bytes"])
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

    def existing_memory(
        self, make: Callable[[int, int, Any], StepMemory]
    ) -> tuple[StepMemory, Any] | None:
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
            names = [kind.__name__ for kind in type(error).__mro__]
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
    entries: list[Entry] = []
    for kind, table in ((TASK_NAME, memory.tasks), (AGENT_NAME, memory.agents)):
        numbers = table.numbers() if is_all else sorted(table.touched or ())
        entries += [Entry(kind, number, 0, 0, table.names[number], None) for number in numbers]
    for number, key in memory.limits.session_keys.items():
        if number not in (told_sessions or ()):
            entries.append(Entry(SESSION_KEY, number, 0, 0, key, None))
    episodes = memory.episodes
    for number in episodes.numbers() if is_all else sorted(episodes.touched or ()):
        id_ = episodes.id_of(number)
        if id_ is not None:
            episode = episodes.entry(number)
            kind, sums = EPISODE_STATE + episode.status, (episode.return_, episode.reward)
            names = episode.key, episode.group_id, episode.parent_id, episode.meta
            texts = orjson.dumps(names).decode()
            entries.append(Entry(kind, number, id_, episode.length, texts, episode.final, sums))
    return [packed(entry) for entry in entries]
