"""`memmap_replay_buffer.replay_buffer` on a SQL database: `ReplayBuffer` and its datasets."""

import threading
from collections import namedtuple
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from sqlbuffer.compat.database_files import is_url
from sqlbuffer.compat.memmap.alternatives import ALTERNATIVES, METHODS
from sqlbuffer.compat.memmap.arrays.field_arrays import FieldArrays
from sqlbuffer.compat.memmap.config.buffer_config import Config
from sqlbuffer.compat.memmap.config.database_fields import core_fields
from sqlbuffer.compat.memmap.datasets import loading
from sqlbuffer.compat.memmap.datasets.readable import register_opener
from sqlbuffer.compat.memmap.episode_collector import EpisodeCollector
from sqlbuffer.compat.memmap.errors import MemmapError
from sqlbuffer.compat.memmap.rows.row_codec import MetaCoder, RowCoder, StepPacker
from sqlbuffer.compat.memmap.slots.cells import Cells
from sqlbuffer.compat.memmap.slots.episode_cache import MAX_BYTES, EpisodeCache
from sqlbuffer.compat.memmap.slots.episode_writer import EpisodeWriter
from sqlbuffer.compat.memmap.slots.opening import (
    check_options,
    open_existing,
    open_or_make,
    roles_in_errors,
)
from sqlbuffer.compat.memmap.slots.slot_reader import checked_index
from sqlbuffer.compat.memmap.slots.store_calls import StoreCalls
from sqlbuffer.compat.memmap.slots.update_calls import UpdateCalls
from sqlbuffer.storage.extensions.slots.episode_slots import Slots
from sqlbuffer.storage.extensions.slots.slot_writers import register
from sqlbuffer.storage.store import BufferStore

__all__ = ["ReplayBuffer", *loading.DATASETS]

NAME = "memmap"
# Steps are stored at most this long after they were given; or when they are needed.
FLUSH_S, NEVER_S = 1.0, 1e6


class ReplayBuffer(StoreCalls, UpdateCalls, FieldArrays):
    """Episodes in numbered slots, in a SQLite file in a folder or in any database of sqlbuffer.

    The calls and errors are those of memmap-replay-buffer 0.2.3. The episodes are in an ordinary
    buffer of sqlbuffer: `sqlbuffer.ReplayBuffer(url, name="memmap")` and the views show it too.

    Several processes may write at the same time: each takes its own slots. Other processes see an
    episode when it has ended. They never see the open episode of a process that dies.

    Args:
        folder: A folder, for a file `replay.sqlite` inside it, or a database URL.
        max_episodes: Number of slots.
        max_timesteps: Number of steps of a slot.
        fields: Fields of a step, `{name: declaration}` with the declarations `T`, `(T, shape)` or
            `(T, shape, default)`; T is `int`, `float`, `bool` or `uint8`.
        meta_fields: Fields of an episode, declared in the same way.
        circular: Whether the oldest episode leaves when all slots are used.
        overwrite: Whether to delete an existing buffer; by default True for a folder, False for a
            URL.
        read_only: Whether to open an existing buffer for reading only; needs `overwrite=False`.
        flush_every_store_step: With 0, steps are stored when the episode ends, before a read, and
            by `flush`. With any other number, they are also stored within a second after `store`.
            The steps of an ended episode are always stored.
        name: Name of the buffer in the database.
        observation_fields: Names of the fields of an observation, for
            `sqlbuffer.ReplayBuffer.sample_transitions`; `obs` by default.
        cache_bytes: Size in bytes of the cache of whole episodes in the memory of this process. A
            cached episode is read from the database again only after its steps were changed.
        **extra_config: JSON values that are stored with the buffer, and compared when it is opened
            again.

    Raises:
        MemmapError: A declaration or option is malformed; the stored configuration is different
            (`different config`); or another process writes to the buffer that would be overwritten.
        FieldError: The stored observation fields are different.
        StorageReadOnlyError: The role, or the file, may only be read.

    Example:
        >>> import tempfile
        >>> buffer = ReplayBuffer(
        ...     tempfile.mkdtemp(), max_episodes=10, max_timesteps=5,
        ...     fields=dict(state=("float", 2), reward="float"), meta_fields=dict(task_id="int"),
        ... )
        >>> with buffer.one_episode(task_id=3):
        ...     for t in range(4):
        ...         _ = buffer.store(state=[t, 0.0], reward=1.0)
        >>> buffer.num_episodes, len(buffer), int(buffer.episode_lens[0])
        (1, 1, 4)
        >>> buffer.data["state"][0, 2]
        array([2., 0.], dtype=float32)
    """

    def __init__(
        self,
        folder: str | Path,
        max_episodes: int,
        max_timesteps: int,
        fields: Mapping[str, Any],
        meta_fields: Mapping[str, Any] | None = None,
        circular: bool = False,
        overwrite: bool | None = None,
        read_only: bool = False,
        flush_every_store_step: int = 1,
        name: str = NAME,
        observation_fields: Sequence[str] | None = None,
        cache_bytes: int = MAX_BYTES,
        **extra_config: Any,
    ) -> None:
        check_options(overwrite, read_only, flush_every_store_step, name, cache_bytes)
        config = Config.parse(
            max_episodes, max_timesteps, fields, meta_fields, circular, extra_config
        )
        core = core_fields(config.fields, observation_fields)
        if read_only:
            if overwrite or (overwrite is None and not is_url(folder)):
                raise MemmapError("cannot overwrite a buffer in read-only mode: overwrite=False")
            store, stored = open_existing(folder, name)
            if lines := config.differences(stored):
                raise MemmapError(
                    f"buffer at `{folder}` was created with a different config:\n  "
                    + "\n  ".join(lines)
                )
        else:
            with roles_in_errors(folder):
                store = open_or_make(folder, name, config, core, overwrite)
        core.check_same(store.info.config.fields)
        self._set_up(folder, store, config, read_only, flush_every_store_step, cache_bytes)

    @classmethod
    def from_folder(
        cls,
        folder: str | Path,
        read_only: bool = False,
        name: str = NAME,
        cache_bytes: int = MAX_BYTES,
    ) -> "ReplayBuffer":
        """Open an existing buffer with the configuration that it was made with.

        Args:
            folder: The folder or the URL.
            read_only: Whether to open it for reading only.
            name: Name of the buffer in the database.
            cache_bytes: See the class.

        Raises:
            MemmapError: There is no such buffer.
        """
        check_options(False, read_only, 1, name, cache_bytes)
        store, config = open_existing(folder, name)
        buffer = cls.__new__(cls)
        buffer._set_up(folder, store, config, read_only, 1, cache_bytes)
        return buffer

    def _set_up(
        self,
        folder: Any,
        store: BufferStore,
        config: Config,
        read_only: bool,
        flush_every: int,
        cache_bytes: int,
    ) -> None:
        self.folder = folder if is_url(folder) else Path(folder)
        self.read_only, self.flush_every_store_step = read_only, flush_every
        self._store, self._config = store, config
        self.max_episodes, self.max_timesteps = config.max_episodes, config.max_timesteps
        self.circular = config.circular
        self.tracks, self.meta_tracks = dict(config.fields), dict(config.meta)
        make: Any = namedtuple  # whose names the type checker wants to see
        self.memory_namedtuple = make("Memory", list(self.tracks))
        self.store_step = self._t = 0
        self._held = threading.local()
        self._seen_open = {}
        self._rows = RowCoder(self.tracks, store.layout)
        self._metas = MetaCoder(self.meta_tracks)
        self._packer = StepPacker(self._rows)
        self._writer = None
        self._slots = Slots(store)
        if not read_only:
            flush_s = FLUSH_S if flush_every else NEVER_S
            self._writer = EpisodeWriter(store, config, self._rows, self._metas, flush_s)
            with roles_in_errors(folder):
                register(store, self._writer.holder)
        kept = EpisodeCache(cache_bytes)
        self._cells_ = Cells(store, self._slots, self._rows, self.max_timesteps, kept)

    @property
    def should_flush(self) -> bool:
        """Whether steps are stored without a call of `flush`."""
        return self.flush_every_store_step > 0

    @property
    def num_episodes(self) -> int:
        """Number of ended episodes of all writers; at most `max_episodes`."""
        self._flush()
        return self._slots.ring().num_episodes

    @num_episodes.setter
    def num_episodes(self, value: int) -> None:
        self._check_writable("num_episodes")
        n = checked_index(value, self.max_episodes + 1, "num_episodes")
        self._slots.set_ring(num_episodes=n)

    @property
    def episode_index(self) -> int:
        """The slot that is being written, or the next one to be."""
        if self._writer is not None and self._writer.is_own and self._writer.open:
            return self._writer.open[0].slot
        return self._slots.ring().next_turn % self.max_episodes

    @episode_index.setter
    def episode_index(self, value: int) -> None:
        writer = self._check_writable("episode_index")
        slot = checked_index(value, self.max_episodes, "episode_index")
        if writer.open:
            raise MemmapError("an episode is open; end it before episode_index is set")
        lap = self._slots.ring().next_turn // self.max_episodes
        self._slots.set_ring(next_turn=lap * self.max_episodes + slot)

    @property
    def timestep_index(self) -> int:
        """Number of steps of the open episode.

        Set it to a later step to leave out steps, which have the defaults of their fields; or to 0
        to drop the open episode.
        """
        return self._t

    @timestep_index.setter
    def timestep_index(self, value: int) -> None:
        writer = self._check_writable("timestep_index")
        t = checked_index(value, self.max_timesteps + 1, "timestep_index")
        if t == 0:
            writer.drop()
        elif any(open_.last_t >= t for open_ in writer.open):
            raise MemmapError(
                f"timestep_index is {self._t} and cannot go back to {t}, since later steps are "
                f"stored. Set it to 0 to drop the open episode, or change steps with `data[...]`."
            )
        else:
            first = writer.open[0] if writer.open else writer.claim(1)[0]
            first.length = t
        self._t = t

    @property
    def is_new_episode(self) -> bool:
        """Whether no step of the next episode is stored."""
        return self._t == 0

    def __len__(self) -> int:
        """Return how many slots have steps, the open episode included."""
        return int(np.count_nonzero(self._lengths()))

    def __getattr__(self, name: str) -> Any:
        if name in METHODS:
            raise AttributeError(METHODS.message(name))
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    dataset = loading.dataset
    dataloader = loading.dataloader
    get_all_data = loading.get_all_data

    def create_collector(
        self,
        num_groups: int,
        fieldnames: tuple[str, ...] | None = None,
        meta_fieldnames: tuple[str, ...] | None = None,
        **collector_kwargs: Any,
    ) -> EpisodeCollector:
        """Return a collector of episodes of several environments; see `EpisodeCollector`."""
        return EpisodeCollector(self, num_groups, fieldnames, meta_fieldnames, **collector_kwargs)

    create_rollout_collector = create_collector

    def flush(self) -> None:
        """Store the steps that are not stored yet; do nothing where the buffer is read-only."""
        self._flush()

    def clear(self) -> None:
        """Delete all episodes.

        Raises:
            MemmapError: The buffer is read-only.
        """
        writer = self._check_writable("clear")
        self._t = 0
        writer.drop()
        self._store.retention.clear()

    def reset_(self) -> None:
        """Delete all episodes.

        Raises:
            MemmapError: The buffer is read-only.
        """
        self.clear()

    def close(self) -> None:
        """Store the steps that are not stored yet, end an open episode, and close the connections.

        Deleting the buffer does the same.
        """
        if self._writer is not None:
            self._t = 0
            self._writer.close()
        self._store.close()

    def __del__(self) -> None:
        writer = getattr(self, "_writer", None)
        if writer is not None and writer.is_own and not writer.is_idle:
            with suppress(Exception):
                writer.close()

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process reads what this one has stored."""
        self._flush()
        return {
            "folder": self.folder,
            "store": self._store,
            "config": self._config,
            "flush_every": self.flush_every_store_step,
            "cache_bytes": self._cells_.kept.max_bytes,
            "open": self._open_lengths(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(
            state["folder"],
            state["store"],
            state["config"],
            True,
            state["flush_every"],
            state["cache_bytes"],
        )
        self._seen_open = state["open"]

    def __repr__(self) -> str:
        shown = self._store.shown_url if isinstance(self.folder, str) else str(self.folder)
        mode = ", read-only" if self.read_only else ""
        return (
            f"ReplayBuffer({shown!r}, {self.max_episodes} episodes of "
            f"{self.max_timesteps} steps{mode})"
        )


def _open_read_only(folder: str | Path) -> ReplayBuffer:
    return ReplayBuffer.from_folder(folder, read_only=True)


register_opener(_open_read_only)


def __getattr__(name: str) -> Any:
    """Return the class of a dataset; raise for the base class, which this package does not have."""
    if name in loading.DATASETS:
        return loading.dataset_class(name)
    if name == "ReplayBufferBase":
        raise ALTERNATIVES.error(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
