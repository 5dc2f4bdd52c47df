"""A file that processes map as memory: arrays, a journal, and counters."""

import errno
import json
import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display import shown_size
from sqlbuffer.errors import MirrorFullError
from sqlbuffer.mirror.memory.records import Shapes

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
    own = head + b"".join([part for part in parts if part is not None])
    return own + bytes(-len(own) % _ALIGN)


def unpacked(stored: memoryview) -> Iterator[Entry]:
    """Yield the entries that bytes are made of."""
    at = 0
    while at < len(stored):
        kind, number, id_, value, n_name, n_data, *numbers = _HEAD.unpack_from(stored, at)
        start = at + _HEAD.size
        middle = start + max(n_name, 0)
        end = middle + max(n_data, 0)
        name = bytes(stored[start:middle]).decode("utf-8", "surrogatepass")
        data = bytes(stored[middle:end])
        yield Entry(
            kind, number, id_, value, None if n_name < 0 else name, None if n_data < 0 else data,
            (numbers[0], numbers[1]),
        )  # fmt: skip
        at = -(-end // _ALIGN) * _ALIGN


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
        own = text.encode()[:_ERROR_BYTES]
        self._map[_ERROR_AT : _ERROR_AT + len(own)] = own
        self.set(Counter.ERROR_END, len(own))

    @property
    def cursor(self) -> Any:
        """State that the follower needs to continue; None if there is none."""
        end = self.get(Counter.CURSOR_END)
        return json.loads(bytes(self._cursor[:end])) if end else None

    @cursor.setter
    def cursor(self, value: Any) -> None:
        own = json.dumps(value).encode()
        if len(own) > CURSOR_BYTES:
            own = b""  # the next follower reads everything
        self._cursor[: len(own)] = own
        self.set(Counter.CURSOR_END, len(own))

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
