"""The base class of all buffers: a ring of items, where the oldest leave when it is full."""

import contextlib
import logging
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.compat.ding.buffers.opening import opened_ring, url_of
from sqlbuffer.compat.ding.config import (
    AttributeDict,
    checked_count,
    checked_flag,
    checked_seed,
    filled,
)
from sqlbuffer.compat.ding.contents.data_file import read_file, write_file
from sqlbuffer.compat.ding.contents.item_codec import Encoded, decoded_item
from sqlbuffer.compat.ding.contents.state_dict import in_places, ring_state
from sqlbuffer.compat.ding.errors import ReplayConfigError, ReplayError
from sqlbuffer.compat.ding.interface import IBuffer
from sqlbuffer.compat.ding.monitors.throughput_monitor import (
    PeriodicThruputMonitor,
    is_first_rank,
    period_of,
)
from sqlbuffer.compat.ding.rings.private_ring import PrivateRing
from sqlbuffer.compat.ding.rings.ring import Ring
from sqlbuffer.compat.ding.rings.shared_ring import SharedRing
from sqlbuffer.compat.ding.used_data_remover import UsedDataRemover
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.processes import ForkLock
from sqlbuffer.storage.extensions.ring_buffer import RingCounts

logger = logging.getLogger("sqlbuffer")

# Keys of every buffer here, in addition to DI-engine's keys.
OWN_CONFIG: Mapping[str, Any] = {"url": None, "name": None, "seed": None}
NAIVE_CONFIG: Mapping[str, Any] = {
    "type": "naive",
    "replay_buffer_size": 10_000,
    "deepcopy": False,
    "enable_track_used_data": False,
    "periodic_thruput_seconds": 60,
}


class RingBuffer(IBuffer):
    """A ring of items, in the memory of this process or in a shared database.

    Args:
        cfg: Config; missing keys are taken from the defaults.
        tb_logger: A TensorBoard `SummaryWriter`, or None.
        exp_name: Name of the experiment.
        instance_name: Name of the buffer.

    Raises:
        ReplayConfigError: A misspelt key, a value out of range, or the buffer at the URL was made
            otherwise.
    """

    config: ClassVar[Mapping[str, Any]] = {}
    # A shared ring stores the length of each item next to it.
    _keeps_lengths: ClassVar[bool] = False

    def __init__(
        self,
        cfg: Any = None,
        tb_logger: Any = None,
        exp_name: str | None = "default_experiment",
        instance_name: str | None = "buffer",
    ) -> None:
        self._ring_: Ring | None = None
        self._mutex = ForkLock()
        defaults = {**self.config, **OWN_CONFIG}
        self._cfg = filled({} if cfg is None else cfg, defaults)
        self._tb_logger = tb_logger
        self._exp_name = _name(exp_name, "exp_name")
        self._instance_name = _name(instance_name, "instance_name")
        self._buffer_name = _name(self._cfg.name, "name") or self._instance_name or "buffer"
        self._size = checked_count(self._cfg.replay_buffer_size, "replay_buffer_size")
        self._tracks = checked_flag(self._cfg.enable_track_used_data, "enable_track_used_data")
        checked_flag(self._cfg.deepcopy, "deepcopy")  # sampled items are always copies
        self._url = url_of(self._cfg.url)
        self._rng = np.random.default_rng(checked_seed(self._cfg.seed))
        self._remover = self._made_remover() if self._tracks else None
        self._throughput: PeriodicThruputMonitor | None = None
        self._check_config()
        self._open()
        self._throughput = self._made_throughput()

    def _check_config(self) -> None:
        """Check the config before anything is opened, or made at a URL."""
        period_of({"seconds": self._periodic_seconds()})

    def _made_throughput(self) -> PeriodicThruputMonitor:
        cfg = {"seconds": self._periodic_seconds()}
        tb_logger = self._tb_logger if is_first_rank() else None
        # The monitor's thread must not keep a buffer alive that the program no longer uses.
        buffer = weakref.ref(self)

        def gauge() -> int | None:
            alive = buffer()
            return None if alive is None else alive._gauged()

        return PeriodicThruputMonitor(self._instance_name, cfg, logger, tb_logger, gauge)

    def _gauged(self) -> int | None:
        """Return how many items there are; None where it is closed, or cannot be read."""
        ring = self._ring_  # `count` would open it again
        if ring is None:
            return None
        with contextlib.suppress(SQLBufferError):
            return ring.count()
        return None

    def _periodic_seconds(self) -> Any:
        """Return how often figures of the throughput are written."""
        return self._cfg.get("periodic_thruput_seconds", 60)

    @property
    def is_shared(self) -> bool:
        """Whether it is in a database that others may open; `close` then keeps its contents."""
        return self._url is not None

    @property
    def replay_buffer_size(self) -> int:
        """Largest number of items."""
        return self._size

    @property
    def push_count(self) -> int:
        """Number of items pushed since it was made or cleared, by all processes."""
        return self._ring.counts().push_count

    @property
    def _ring(self) -> Ring:
        ring = self._ring_
        return self._open() if ring is None else ring

    def _open(self) -> Ring:
        with self._mutex:
            if self._ring_ is None:
                self._ring_ = self._opened(self._url, self._buffer_name)
            return self._ring_

    def _opened(self, url: str | None, name: str) -> Ring:
        """Return the ring at a URL, or a private one; for subclasses with their own limits."""
        if url is None:
            return PrivateRing(self._size)
        kind = type(self).config["type"]
        ring = opened_ring(url, name, kind, self._size)
        return SharedRing(ring, self._source, keeps_lengths=self._keeps_lengths)

    def _made_remover(self) -> Any:
        return UsedDataRemover()

    def _noted(self, *, pushed: int = 0, sampled: int = 0, removed: int = 0) -> None:
        """Count items for the figures of the throughput."""
        if self._throughput is not None:
            self._throughput.count(pushed, sampled, removed)

    def start(self) -> None:
        """Start to remove the files of used items, where they are tracked."""
        if self._remover is not None:
            self._remover.start()

    def close(self) -> None:
        """Close the buffer. A private one is cleared; the contents of one at a URL stay.

        Closing it again does nothing. A later call opens it again; a private one is then empty. The
        `tb_logger` is flushed, and stays open because it belongs to the caller.
        """
        with self._mutex:
            ring, self._ring_ = self._ring_, None
        if self._throughput is not None:
            self._throughput.close()  # its thread may be counting the items
        if ring is not None:
            if self._tracks and not self.is_shared:
                self._used(ring.clear(track=True).items)
            ring.close()
        self._stop()
        # Any object with add_scalar() is accepted.
        flush = getattr(self._tb_logger, "flush", None)
        if flush is not None:
            flush()

    def _stop(self) -> None:
        """End the buffer's threads; a second call does nothing."""
        if self._remover is not None:
            self._remover.close()
        if self._throughput is not None:
            self._throughput.close()

    def __del__(self) -> None:
        # It may not have been made whole, or the interpreter be ending.
        with contextlib.suppress(Exception):
            if self.is_shared:
                # Connections are the process's; the collector may run while it holds their lock.
                self._stop()
            else:
                self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        if not self.is_shared:
            raise TypeError(
                "a private buffer belongs to its process and cannot be pickled or copied; give its "
                "config a url, and every process opens it"
            )
        names = (self._exp_name, self._instance_name)
        return type(self), (AttributeDict(self._cfg), None, *names)

    def push(self, data: list[Any] | Any, cur_collector_envstep: int) -> None:
        """Put in an item, or each of a list: all or none. The oldest leave where there are too
        many; of a list that is longer than the buffer its last items stay.

        Args:
            data: An item, or a list of them.
            cur_collector_envstep: The collector's step; kept as the column `step`.

        Raises:
            ItemError: An item cannot be stored; the message names the place in it.
        """
        items = data if isinstance(data, list) else [data]
        if not items:
            return
        kept = items[-self._size :]
        left = self._ring.push(kept, len(items), cur_collector_envstep, track=self._tracks)
        skipped = items[: len(items) - len(kept)]
        self._noted(pushed=len(items), removed=left.n + len(skipped))
        # Items that never entered the buffer count as used too.
        self._used([*left.items, *skipped])

    @property
    def _source(self) -> tuple[str, str]:
        return self._instance_name, self._exp_name

    def _used(self, items: Iterable[Any]) -> None:
        """Hand items that left to what removes their files."""
        if self._remover is not None:
            for item in items:
                self._remover.add_used_data(item)

    def update(self, info: Any) -> Any:
        """Do nothing: items have nothing that a learner changes."""
        logger.warning(
            "%s: update() does nothing in a %s", self._instance_name, type(self).__name__
        )

    def clear(self) -> None:
        """Remove all items and restart the count of pushes, for every process that shares the
        buffer.
        """
        left = self._ring.clear(track=self._tracks)
        self._noted(removed=left.n)
        self._used(left.items)

    def count(self) -> int:
        """Return how many items there are."""
        return self._ring.count()

    def _warn_of_few(self, size: int) -> None:
        logger.warning(
            "%s: there are fewer items than the %d that sample() should return",
            self._instance_name,
            size,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return all that it holds, as copies: `data`, the items in their places and None in the
        empty ones, `tail`, `valid_count` and `push_count`.
        """
        items, counts = self._ring.contents()
        return {
            "data": in_places(items, counts.tail, self._size),
            "tail": counts.tail,
            "valid_count": len(items),
            "push_count": counts.push_count,
        }

    def load_state_dict(self, _state_dict: Mapping[str, Any]) -> None:
        """Replace the contents of the shared buffer by the result of `state_dict`.

        From a larger buffer, the newest items are kept.

        Args:
            _state_dict: The state. If it has `data` alone, its items except None are pushed.

        Raises:
            ReplayError: The state has no `data`, or its parts do not fit together.
        """
        found = ring_state(_state_dict, self._size)
        if found.push_count is None or found.tail is None:
            self.push(found.items, -1)
            return
        self._ring.replace(found.items, RingCounts(found.push_count, found.tail))

    def save_data(self, file_name: Any) -> None:
        """Write the contents to a file; an existing file is replaced.

        Args:
            file_name: Any name; folders are made. The file is an archive of numpy arrays, without
                pickle.
        """
        write_file(file_name, *self._to_file())

    def _to_file(self) -> tuple[Sequence[Encoded], dict[str, Any]]:
        """Return the encoded items, and the head of their file."""
        items, counts = self._ring.contents(encoded=True)
        head = {"tail": counts.tail, "push_count": counts.push_count, "size": self._size}
        return items, head

    def load_data(self, file_name: Any) -> None:
        """Replace the contents by a file of `save_data`, for every process that shares the buffer.

        From a larger buffer, the newest items are kept. If the file is of another kind of buffer,
        an advanced buffer pushes its items.

        Raises:
            FileNotFoundError: There is no such file.
            ReplayError: The file is of another kind, or damaged.
        """
        self._hold_file(*read_file(file_name))

    def _hold_file(self, items: Sequence[Encoded], head: Mapping[str, Any]) -> None:
        """Hold the items of a file."""
        kept = items[-self._size :]
        tail = head["tail"] if head["size"] == self._size else len(kept) % self._size
        decoded = [decoded_item(text, arrays) for text, arrays in kept]
        self._ring.replace(decoded, RingCounts(head["push_count"], tail))

    def __repr__(self) -> str:
        where = repr(self._ring.shown_url) if self.is_shared else "private"
        return f"{type(self).__name__}({where}, {self._instance_name!r}, size={self._size})"


def _name(value: Any, key: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or not is_storable_text(value):
        raise ReplayConfigError(f"{key} is a text without U+0000, got {value!r}")
    return value


def checked_size(size: Any) -> int:
    """Return a number of items, checked.

    Raises:
        ReplayError: The number is negative.
        TypeError: The value is not an integer.
    """
    if isinstance(size, (bool, np.bool_)) or not isinstance(size, (int, np.integer)):
        raise TypeError(f"size is a number of items, got {size!r}")
    if size < 0:
        raise ReplayError(f"size is a number of items from 0 on, got {size}")
    return int(size)
