"""`NaiveReplayBuffer` draws uniformly, `ElasticReplayBuffer` among the newest items, and
`SequenceReplayBuffer` items that follow one another."""

import contextlib
import logging
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.compat.database_files import file_url, is_memory_url, is_url
from sqlbuffer.compat.ding.base_buffer import IBuffer, register_buffer
from sqlbuffer.compat.ding.config import (
    AttributeDict,
    checked_count,
    checked_flag,
    checked_seed,
    filled,
)
from sqlbuffer.compat.ding.errors import ReplayConfigError, ReplayError
from sqlbuffer.compat.ding.items import EncodedItem, decoded_item
from sqlbuffer.compat.ding.rings import Choice, Counters, PrivateRing, Ring
from sqlbuffer.compat.ding.shared_ring import SharedRing, opened_buffer
from sqlbuffer.compat.ding.states import in_places, read_file, ring_state, write_file
from sqlbuffer.compat.ding.utils import (
    PeriodicThruputMonitor,
    UsedDataRemover,
    is_first_rank,
    period_of,
)
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.processes import ForkLock

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
        return self._ring.counters().push_count

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
        buffer = opened_buffer(url, name, type(self).config["type"], self._size)
        return SharedRing(buffer, self._size, self._source, keeps_lengths=self._keeps_lengths)

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
        items, counters = self._ring.contents()
        return {
            "data": in_places(items, counters.tail, self._size),
            "tail": counters.tail,
            "valid_count": len(items),
            "push_count": counters.push_count,
        }

    def load_state_dict(self, _state_dict: Mapping[str, Any]) -> None:
        """Replace the contents of the shared buffer by the result of `state_dict`.

        From a larger buffer, the newest items are kept.

        Args:
            _state_dict: The state. If it has `data` alone, its items except None are pushed.

        Raises:
            ReplayError: The state has no `data`, or its parts do not fit together.
        """
        state = ring_state(_state_dict, self._size)
        if state.push_count is None or state.tail is None:
            self.push(state.items, -1)
            return
        self._ring.replace(state.items, Counters(state.push_count, state.tail))

    def save_data(self, file_name: Any) -> None:
        """Write the contents to a file; an existing file is replaced.

        Args:
            file_name: Any name; folders are made. The file is an archive of numpy arrays, without
                pickle.
        """
        write_file(file_name, *self._to_file())

    def _to_file(self) -> tuple[Sequence[EncodedItem], dict[str, Any]]:
        """Return the encoded items, and the head of their file."""
        items, counters = self._ring.contents(encoded=True)
        head = {"tail": counters.tail, "push_count": counters.push_count, "size": self._size}
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

    def _hold_file(self, items: Sequence[EncodedItem], head: Mapping[str, Any]) -> None:
        kept = items[-self._size :]
        tail = head["tail"] if head["size"] == self._size else len(kept) % self._size
        decoded = [decoded_item(text, arrays) for text, arrays in kept]
        self._ring.replace(decoded, Counters(head["push_count"], tail))

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


def url_of(url: Any) -> str | None:
    """Return the URL that a config means; None: the memory of this process.

    Raises:
        ReplayConfigError: It is neither a URL nor a path.
        URLError: A URL of another database.
    """
    if url is None:
        return None
    if not isinstance(url, (str, Path)) or not str(url):
        raise ReplayConfigError(f"url is a database URL or the path of a SQLite file, got {url!r}")
    if not is_url(url):
        return file_url(url)
    return None if is_memory_url(url) else url


@register_buffer("naive")
class NaiveReplayBuffer(RingBuffer):
    """A ring of items that are drawn uniformly.

    Config: `replay_buffer_size` (10,000), `deepcopy` (sampled items are always copies),
    `enable_track_used_data`, `periodic_thruput_seconds` (60); and `url`, `name`, `seed`, which are
    not DI-engine's.

    Example:
        >>> import numpy as np
        >>> buffer = NaiveReplayBuffer({"replay_buffer_size": 3, "seed": 1})
        >>> buffer.push([{"obs": np.ones(2, np.float32) * i} for i in range(5)], 0)
        >>> buffer.count(), buffer.push_count
        (3, 5)
        >>> [item["obs"].tolist() for item in buffer.sample(1, 0, sample_range=slice(-1, None))]
        [[4.0, 4.0]]
        >>> buffer.close()
    """

    config: ClassVar[Mapping[str, Any]] = NAIVE_CONFIG

    def sample(
        self,
        size: int,
        cur_learner_iter: int,
        sample_range: slice | None = None,
        replace: bool = False,
    ) -> list[Any] | None:
        """Draw items uniformly, in random order.

        Args:
            size: Number of items.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: Range of items by age, 0 is the oldest: `slice(-10, None)` is the newest
                ten.
            replace: Whether an item may be drawn several times.

        Returns:
            A list of `size` items, each a copy; None if there are too few.

        Raises:
            ReplayError: The size is negative, or the range has too few items.
        """
        size = checked_size(size)
        if size == 0:
            return []
        if sample_range is None:
            items = self._uniform(size, replace)
        else:
            items = self._ring.draw(self._of_range(size, checked_range(sample_range), replace))
        return self._sampled(items, size)

    def _uniform(self, size: int, replace: bool) -> list[Any]:
        with self._mutex:
            seed = int(self._rng.integers(2**62))
        return self._ring.uniform(size, replace=replace, seed=seed)

    def _sampled(self, items: list[Any], size: int) -> list[Any] | None:
        """Count items that were drawn; return None if there are fewer than wanted."""
        if len(items) < size:
            self._warn_of_few(size)
            return None
        self._noted(sampled=size)
        return items

    def _of_range(self, size: int, which: slice, replace: bool) -> Choice:
        """Return what chooses among the items of a range; none if there are too few in all."""

        def choose(n: int, _: int) -> Sequence[int]:
            if not n or (n < size and not replace):
                return ()
            wanted = range(n)[which]
            if not wanted or (len(wanted) < size and not replace):
                raise ReplayError(
                    f"sample_range={which} has {len(wanted)} of {n} items, and {size} are to be "
                    f"drawn"
                )
            return self._drawn(wanted, size, replace)

        return choose

    def _drawn(self, ages: range, size: int, replace: bool) -> list[int]:
        """Return ages drawn uniformly."""
        with self._mutex:
            places = self._rng.choice(len(ages), size, replace=replace).tolist()
        return [ages[place] for place in places]


def checked_range(sample_range: Any) -> slice:
    """Return a slice.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(sample_range, slice):
        raise TypeError(f"sample_range is a slice, such as slice(-10, None), got {sample_range!r}")
    return sample_range


@register_buffer("elastic")
class ElasticReplayBuffer(NaiveReplayBuffer):
    """A naive buffer that draws among its newest items; a function gives their number.

    Config: that of `NaiveReplayBuffer`, and `set_buffer_size`, a function from the collector's
    step to a number of items; None: all of them.

    Example:
        >>> config = {"replay_buffer_size": 100, "set_buffer_size": lambda envstep: 2 + envstep}
        >>> buffer = ElasticReplayBuffer(config)
        >>> buffer.push(list(range(8)), cur_collector_envstep=0)
        >>> sorted(buffer.sample(2, cur_learner_iter=0))
        [6, 7]
        >>> buffer.update(1)
        >>> sorted(buffer.sample(3, cur_learner_iter=0))
        [5, 6, 7]
    """

    config: ClassVar[Mapping[str, Any]] = {
        **NaiveReplayBuffer.config,
        "type": "elastic",
        "set_buffer_size": None,
    }

    def _check_config(self) -> None:
        super()._check_config()
        function = self._cfg.set_buffer_size
        if function is not None and not callable(function):
            raise ReplayConfigError(
                f"set_buffer_size is a function from the collector's step to a number of items, "
                f"got {function!r}"
            )
        self._size_at: Callable[[int], Any] | None = function
        self.update(0)

    def update(self, envstep: Any) -> None:
        """Draw from now on among as many of the newest items as there should be at a step.

        Raises:
            ReplayConfigError: `set_buffer_size` returns no number from 1 on.
        """
        size = self._size if self._size_at is None else self._size_at(envstep)
        is_number = isinstance(size, (int, float, np.number)) and not isinstance(size, bool)
        if not is_number or not size >= 1:
            raise ReplayConfigError(
                f"set_buffer_size({envstep!r}) is to return a number of items, got {size!r}"
            )
        self._current_size = int(min(size, self._size))

    def sample(
        self, size: int, cur_learner_iter: int, sample_range: Any = None, replace: bool = False
    ) -> list[Any] | None:
        """Draw items uniformly among the newest, in random order.

        Args:
            size: Number of items.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: None: the range is `set_buffer_size`'s.
            replace: An item may be drawn several times.

        Returns:
            A list of `size` items, each a copy; None where there are too few.

        Raises:
            ReplayConfigError: A range.
            ReplayError: A negative size.
        """
        if sample_range is not None:
            raise ReplayConfigError(
                "an elastic buffer draws among its newest items, as set_buffer_size says: leave "
                "sample_range out"
            )
        size = checked_size(size)
        if size == 0:
            return []

        def choose(n: int, _: int) -> list[int]:
            newest = range(n)[-self._current_size :]
            if not newest or (len(newest) < size and not replace):
                return []
            return self._drawn(newest, size, replace)

        return self._sampled(self._ring.draw(choose), size)


@register_buffer("sequence")
class SequenceReplayBuffer(NaiveReplayBuffer):
    """A ring of the steps of episodes of equal length, which are pushed in order.

    Config: as that of `NaiveReplayBuffer`, and `episode_length` (500), which is not DI-engine's:
    500 stands in its code.

    Example:
        >>> buffer = SequenceReplayBuffer({"episode_length": 4, "seed": 1})
        >>> buffer.push(list(range(8)), cur_collector_envstep=0)
        >>> windows = buffer.sample(2, 3, cur_learner_iter=0)
        >>> all(window in ([0, 1, 2], [1, 2, 3], [4, 5, 6], [5, 6, 7]) for window in windows)
        True
    """

    config: ClassVar[Mapping[str, Any]] = {
        **NaiveReplayBuffer.config,
        "type": "sequence",
        "episode_length": 500,
    }

    def _check_config(self) -> None:
        super()._check_config()
        self._length = checked_count(self._cfg.episode_length, "episode_length")

    def sample(  # type: ignore[override]  # as DI-engine has it
        self,
        batch: int,
        sequence: int,
        cur_learner_iter: int,
        sample_range: Any = None,
        replace: bool = False,
    ) -> list[list[Any]] | None:
        """Draw windows uniformly over all that lie within an episode.

        Args:
            batch: Number of windows.
            sequence: Number of items of each.
            cur_learner_iter: The learner's iteration; not used.
            sample_range: None.
            replace: A window may be drawn several times. Windows may overlap in any case.

        Returns:
            `batch` lists of `sequence` items each, in the order in which they were pushed, each a
            copy; None where there are fewer than `batch * sequence` items, or too few windows.

        Raises:
            NotImplementedError: A range.
            ReplayError: A negative number, or windows longer than an episode.
        """
        if sample_range is not None:
            raise NotImplementedError("a sequence buffer has no sample_range: leave it out")
        batch, sequence = checked_size(batch), checked_size(sequence)
        if not 1 <= sequence <= self._length:
            raise ReplayError(
                f"a window has from 1 to {self._length} items, as an episode has (config key "
                f"episode_length), got sequence={sequence}"
            )
        if batch == 0:
            return []

        def choose(n: int, push_count: int) -> list[int]:
            starts = window_starts(n, push_count, sequence, self._length)
            if not len(starts) or (not replace and (batch > len(starts) or batch * sequence > n)):
                return []
            with self._mutex:
                drawn = self._rng.choice(starts, batch, replace=replace).tolist()
            return [start + i for start in drawn for i in range(sequence)]

        items = self._sampled(self._ring.draw(choose), batch * sequence)
        if items is None:
            return None
        return [items[start : start + sequence] for start in range(0, len(items), sequence)]


def window_starts(n: int, push_count: int, sequence: int, length: int) -> NDArray[np.int64]:
    """Return where the windows begin that lie within an episode, as ages from the oldest item.

    Args:
        n: Number of items: the last of those that were pushed.
        push_count: Number of pushed items.
        sequence: Number of items.
        length: Number of items of an episode; the first began with the first pushed item.
    """
    ages = np.arange(max(0, n - sequence + 1))
    places = (push_count - n + ages) % length
    starts: NDArray[np.int64] = ages[places <= length - sequence]
    return starts
