"""`memmap_replay_buffer.replay_buffer` on a SQL database: `ReplayBuffer` and its datasets."""

import logging
import threading
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.buffer import ReplayBuffer as CoreBuffer
from sqlbuffer.buffer import Snapshot, Transaction
from sqlbuffer.compat.database_files import is_url
from sqlbuffer.compat.memmap.arguments import (
    Arguments,
    assign,
    checked_index,
    checked_size,
    is_integer,
    listed_names,
    spread,
)
from sqlbuffer.compat.memmap.arrays import ArrayProxies, ArrayProxy, proxy_maker
from sqlbuffer.compat.memmap.episode_collector import EpisodeCollector
from sqlbuffer.compat.memmap.episode_writer import NEVER_S, EpisodeWriter, OpenEpisode
from sqlbuffer.compat.memmap.errors import (
    ALTERNATIVES,
    METHODS,
    MemmapError,
    MemmapTypeError,
)
from sqlbuffer.compat.memmap.fields import (
    INITTED,
    INTERNAL,
    LENS,
    Config,
    DeclaredField,
    as_array,
    cast,
    check_known,
    core_fields,
    exact,
    squeezed,
)
from sqlbuffer.compat.memmap.opening import (
    check_options,
    config_of,
    open_existing,
    open_or_make,
    register,
    roles_in_errors,
)
from sqlbuffer.compat.memmap.rows import MetaCoder, RowCoder, SlotPacker
from sqlbuffer.compat.memmap.slots import (
    MAX_BYTES,
    BookChange,
    Cells,
    EpisodeCache,
    Ints,
    Moment,
    Ring,
    SlotBook,
)
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import SQLBufferError
from sqlbuffer.steps import as_tensor, check_device

T = TypeVar("T")
logger = logging.getLogger("sqlbuffer")

# They need torch and writing does not, so their module is imported when it is used.
DATASETS_MODULE = "sqlbuffer.compat.memmap.datasets"
DATASETS = (
    "ReplayDataset",
    "ReplayDatasetNStep",
    "ReplayDatasetTimeWindow",
    "ReplayDatasetTimestep",
    "ReplayDatasetTrajectory",
)
NAME = "memmap"
# Steps are stored at most this long after they were given; or when they are needed.
FLUSH_S = 1.0
NO_SLOTS = np.empty(0, np.int64)


class ReplayBuffer:
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

    folder: Path | str
    read_only: bool
    max_episodes: int
    max_timesteps: int
    circular: bool
    tracks: dict[str, DeclaredField]
    meta_tracks: dict[str, DeclaredField]
    store_step: int
    flush_every_store_step: int
    memory_namedtuple: Any
    _arguments: Arguments
    _config: Config
    _core: CoreBuffer
    _rows: RowCoder
    _metas: MetaCoder
    _packer: SlotPacker
    _writer: EpisodeWriter | None
    _book: SlotBook
    _cells_: Cells
    _t: int
    # The snapshot that a thread reads in.
    _held: threading.local
    # Lengths of the writer's open episodes when this copy of it was made.
    _seen_open: dict[int, int]

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
        fields_ = core_fields(config.fields, observation_fields)
        if read_only:
            if overwrite or (overwrite is None and not is_url(folder)):
                raise MemmapError("cannot overwrite a buffer in read-only mode: overwrite=False")
            core, stored = open_existing(folder, name)
            if lines := config.differences(stored):
                raise MemmapError(
                    f"buffer at `{folder}` was created with a different config:\n  "
                    + "\n  ".join(lines)
                )
        else:
            with roles_in_errors(folder):
                core = open_or_make(folder, name, config, fields_, overwrite)
        fields_.check_same(core._store.info.config.fields)
        self._set_up(
            folder,
            core,
            config_of(core) if not read_only else stored,
            read_only,
            flush_every_store_step,
            cache_bytes,
        )

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
        core, config = open_existing(folder, name)
        buffer = cls.__new__(cls)
        buffer._set_up(folder, core, config, read_only, 1, cache_bytes)
        return buffer

    def _set_up(
        self,
        folder: Any,
        core: CoreBuffer,
        config: Config,
        read_only: bool,
        flush_every: int,
        cache_bytes: int,
    ) -> None:
        self.folder = folder if is_url(folder) else Path(folder)
        self.read_only, self.flush_every_store_step = read_only, flush_every
        self._core, self._config = core, config
        self.max_episodes, self.max_timesteps = config.max_episodes, config.max_timesteps
        self.circular = config.circular
        self.tracks, self.meta_tracks = dict(config.fields), dict(config.meta)
        make: Any = namedtuple  # whose names the type checker wants to see
        self.memory_namedtuple = make("Memory", list(self.tracks))
        self.store_step = self._t = 0
        self._held = threading.local()
        self._seen_open = {}
        self._arguments = Arguments(
            self.tracks, self.meta_tracks, self.max_episodes, self.max_timesteps
        )
        layout = Layout(core.fields)
        self._rows = RowCoder(self.tracks, layout)
        self._metas = MetaCoder(self.meta_tracks)
        self._packer = SlotPacker(self._rows)
        self._book = SlotBook(core, self.max_episodes, self.circular, config.episodes, self._metas)
        self._writer = None
        if not read_only:
            flush_s = FLUSH_S if flush_every else NEVER_S
            self._writer = EpisodeWriter(self._book, self._rows, self._metas, flush_s)
            with roles_in_errors(folder):
                register(self._book, self._writer.holder)
        kept = EpisodeCache(cache_bytes)
        self._cells_ = Cells(self._book, self._rows, self.max_timesteps, kept)

    @property
    def should_flush(self) -> bool:
        """Whether steps are stored without a call of `flush`."""
        return self.flush_every_store_step > 0

    @property
    def num_episodes(self) -> int:
        """Number of ended episodes of all writers; at most `max_episodes`."""
        return self._ring().num_episodes

    @num_episodes.setter
    def num_episodes(self, value: int) -> None:
        self._check_writable("num_episodes")
        n = checked_index(value, self.max_episodes + 1, "num_episodes")
        self._change_ring(lambda ring: setattr(ring, "num_episodes", n))

    @property
    def episode_index(self) -> int:
        """The slot that is being written, or the next one to be."""
        if self._writer is not None and self._writer.is_own and self._writer.open:
            return self._writer.open[0].slot
        return self._ring().next_turn % self.max_episodes

    @episode_index.setter
    def episode_index(self, value: int) -> None:
        writer = self._check_writable("episode_index")
        slot = checked_index(value, self.max_episodes, "episode_index")
        if writer.open:
            raise MemmapError("an episode is open; end it before episode_index is set")

        def move(ring: Ring) -> None:
            # Slots from there on are free.
            ring.next_turn += slot - ring.next_turn % self.max_episodes
            ring.used = {}

        self._change_ring(move)

    def _ring(self) -> Ring:
        """Return the progress of the slots."""
        return self._at_one_moment(lambda moment: moment.ring, NO_SLOTS)

    def _change_ring(self, change: Callable[[Ring], None]) -> None:
        def work(tx: Transaction) -> None:
            book = BookChange(self._book, tx)
            change(book.ring)
            book.store()

        self._core.transaction(work)

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
        elif any(open_.n_steps > t for open_ in writer.open):
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

    def store(self, **data: Any) -> Any:
        """Store one step of the open episode; begin an episode if none is open.

        This process sees the step immediately. It is stored, for other processes and after a crash,
        within a second (`flush_every_store_step`).

        Args:
            **data: A value for each field, of its shape or a scalar for all of it. A missing field,
                or None, gets the default. Other names are ignored.

        Returns:
            A namedtuple `Memory` of the stored values, in the order of declaration.

        Raises:
            MemmapError: A value has another shape; or the episode has `max_timesteps` already; or
                the buffer is full and not circular. Nothing is stored.
        """
        writer = self._check_writable("store")
        self._check_room_in_time(1)
        stored, row = self._packer.pack(data)
        open_ = writer.open[0] if writer.open else writer.claim(1)[0]
        writer.add(open_, self._t, row)
        self._t += 1
        self.store_step += 1
        return self.memory_namedtuple(*stored)

    def store_batch(self, **data: Any) -> None:
        """Store the same step of B episodes in one call.

        Args:
            **data: An array of shape (B, *shape) for each field; other fields get their default.

        Raises:
            MemmapError: No field is given, a field is unknown, or batches have different sizes; or
                the episodes have `max_timesteps` already; or no slot is left in a buffer that is
                not circular. With fewer than B slots left, the first of the steps are stored, as
                upstream.
        """
        writer = self._check_writable("store_batch")
        arrays = self._arguments.batch(data, self.tracks, "store_batch", "")
        self._check_room_in_time(1)
        n = len(next(iter(arrays.values())))
        rows = self._rows.blanks(n)
        for name, array in arrays.items():
            assign(rows, self._rows.names[name], self.tracks[name], array)
        opened = self._opened(writer, n)
        raw, size = rows[self._which(n, len(opened))].tobytes(), self._rows.size
        for i, open_ in enumerate(opened):
            writer.add(open_, self._t, raw[i * size : (i + 1) * size])
        self._t += 1

    def store_meta_batch(self, **data: Any) -> None:
        """Set meta values of B open episodes, from the first on; begin those that are not open.

        Args:
            **data: For each field an array of shape (B, *shape).

        Raises:
            MemmapError: Nothing, an unknown field, or batches of different sizes.
        """
        writer = self._check_writable("store_meta_batch")
        arrays = self._arguments.batch(data, self.meta_tracks, "store_meta_batch", "meta ")
        n = len(next(iter(arrays.values())))
        opened = self._opened(writer, n)
        self._set_open_metas(opened, arrays, self._which(n, len(opened)))

    def store_episode(self, **data: Any) -> None:
        """Store a whole episode in one transaction.

        Args:
            **data: An array of shape (T, *shape) for each field, and one value for each meta field;
                `()` and `(1,)` are converted into each other. Omitted ones get their default. If T
                is 0, nothing is stored.

        Raises:
            MemmapError: No field is given; a field is unknown, or has a different T or another
                shape; T is above `max_timesteps`; or the buffer is full and not circular. Nothing
                is stored.
        """
        writer = self._check_writable("store_episode")
        arrays, metas = self._arguments.episode(data)
        n = len(next(iter(arrays.values())))
        if n == 0:
            return
        self._check_room_in_time(n, from_start=True)
        if self._t:
            logger.warning("store_episode overwrites an open episode of %d steps", self._t)
        meta = (writer.open[0].meta if writer.open else self._metas.blank).copy()
        writer.drop()
        self._t = 0
        for name, value in metas.items():
            meta[self._metas.keys[name]] = value
        rows = self._rows.blanks(n)
        for name, array in arrays.items():
            rows[self._rows.names[name]] = array
        writer.store_whole(rows, meta)

    @contextmanager
    def one_episode(self, **meta_data: Any) -> Iterator[dict[str, Any]]:
        """Store an episode: the body of the block calls `store`.

        Yields a dict; what is put there is stored as meta at the end. A block that raises stores
        nothing.

        Args:
            **meta_data: The values of meta fields that are known.

        Raises:
            MemmapError: An unknown meta field, a value of another shape, or a buffer that is full
                and not circular.
        """
        writer = self._check_writable("one_episode")
        known = self._arguments.meta_values(meta_data)
        opened = self._opened(writer, 1)
        self._set_open_metas(opened, {name: value[None] for name, value in known.items()})
        at_end: dict[str, Any] = {}
        with self._dropped_on_error(writer):
            yield at_end
            late = self._arguments.meta_values(at_end)
            if not self._t:
                writer.drop()
                return
            self._set_open_metas(
                writer.open[:1], {name: value[None] for name, value in late.items()}
            )
        self.advance_episode()

    @contextmanager
    def batched_episode(self, batch_size: int, **meta_batch: Any) -> Iterator[None]:
        """Store B episodes together: the body of the block calls `store_batch`.

        Args:
            batch_size: Number B of episodes.
            **meta_batch: An array of shape (B, *shape) for each meta field.

        Raises:
            MemmapError: Fewer than B slots are left in a buffer that is not circular, or meta
                values do not fit.
        """
        writer = self._check_writable("batched_episode")
        batch_size = checked_size(batch_size, self.max_episodes)
        arrays: dict[str, NDArray[Any]] = {}
        if meta_batch:
            arrays = self._arguments.batch(meta_batch, self.meta_tracks, "batched_episode", "meta ")
            n = len(next(iter(arrays.values())))
            if n != batch_size:
                raise MemmapError(f"expected meta values of {batch_size} episodes, got {n}")
        if batch_size > len(writer.open):
            writer.claim(batch_size - len(writer.open))
        self._set_open_metas(writer.open[:batch_size], arrays)
        with self._dropped_on_error(writer):
            yield
            if not self._t and batch_size == 1:
                writer.drop()
        self.advance_episode(batch_size)

    def advance_episode(self, batch_size: int = 1) -> None:
        """End the open episodes, store all of them and continue with the next slots.

        Args:
            batch_size: Number of episodes; all of them have the steps so far. Without a step, one
                episode is not ended, and several are ended empty.

        Raises:
            MemmapError: The buffer is full and not circular.
        """
        writer = self._check_writable("advance_episode")
        batch_size = checked_size(batch_size, self.max_episodes)
        if not self._t and batch_size == 1:
            return
        length, self._t = self._t, 0
        writer.finish([length] * batch_size)

    @contextmanager
    def _dropped_on_error(self, writer: EpisodeWriter) -> Iterator[None]:
        """Drop the open episodes where a block raises."""
        try:
            yield
        except BaseException:
            self._t = 0
            try:
                writer.drop()
            except SQLBufferError as error:  # the caller must see the first error
                logger.warning("an episode could not be undone: %s", error)
            raise

    def _opened(self, writer: EpisodeWriter, n: int) -> list[OpenEpisode]:
        """Return n open episodes; fewer if a buffer that is not circular has too few free slots."""
        n = min(n, self.max_episodes)
        missing = n - len(writer.open)
        if missing > 0:
            if not self.circular and missing > 1:
                missing = min(missing, max(writer.n_left(), 0 if writer.open else 1))
            if missing:
                writer.claim(missing)
        return writer.open[:n]

    def _which(self, n: int, n_slots: int) -> NDArray[np.int64]:
        """Return which of n values each slot gets: the first ones, where the others have no room;
        the last ones, where they wrap around.
        """
        if not self.circular:
            return np.arange(min(n, n_slots))
        return np.array([i + (n - 1 - i) // n_slots * n_slots for i in range(min(n, n_slots))])

    def _check_room_in_time(self, n: int, *, from_start: bool = False) -> None:
        if (0 if from_start else self._t) + n > self.max_timesteps:
            raise MemmapError(
                f"You exceeded the `max_timesteps` ({self.max_timesteps}) set on the replay "
                f"buffer. Please increase it on init."
            )

    def _set_open_metas(
        self,
        opened: list[OpenEpisode],
        arrays: Mapping[str, NDArray[Any]],
        last: NDArray[np.int64] | None = None,
    ) -> None:
        for name, array in arrays.items():
            if name in INTERNAL:
                continue
            track = self.meta_tracks[name]
            values = cast(track, array if last is None else array[last])
            for open_, value in zip(opened, values, strict=False):
                try:
                    open_.meta[self._metas.keys[name]] = value
                except ValueError as error:
                    raise MemmapError(f"field {name} - {error}") from None
                open_.is_dirty = True

    def store_datapoint(
        self, episode_index: int, timestep_index: int, name: str, datapoint: Any
    ) -> None:
        """Set the value of a field in one step; lengths stay.

        Args:
            episode_index: The slot.
            timestep_index: The step.
            name: The field.
            datapoint: Its value, of the field's shape.

        Raises:
            MemmapError: No such slot, step or field, or another shape.
        """
        self._check_writable("store_datapoint")
        slot = checked_index(episode_index, self.max_episodes, "episode_index")
        t = checked_index(timestep_index, self.max_timesteps, "timestep_index")
        track = self._arguments.track(name)
        value = exact(track, datapoint)
        self._write_cells(np.array([slot]), np.array([t]), {name: value[None]})

    def store_meta_datapoint(self, episode_index: int, name: str, datapoint: Any) -> None:
        """Set the value of a meta field of a slot.

        Raises:
            MemmapError: No such slot or field, or another shape.
        """
        self._check_writable("store_meta_datapoint")
        slot = checked_index(episode_index, self.max_episodes, "episode_index")
        track = self._arguments.meta_track(name)
        value = exact(track, datapoint)
        self._write_meta(np.array([slot]), {name: value[None]})

    def store_batch_datapoint(
        self, episode_indices: Any, timestep_index: int, name: str, datapoints: Any
    ) -> None:
        """Set the value of a field in the same step of several slots.

        Args:
            episode_indices: The slots, of shape (n,).
            timestep_index: The step; a negative one is counted from the last of `max_timesteps`.
            name: The field.
            datapoints: Their values, of shape (n, *shape).

        Raises:
            MemmapError: No such field, or another shape.
            MemmapIndexError: No such slot or step.
        """
        self._check_writable("store_batch_datapoint")
        track = self._arguments.track(name)
        t = self._arguments.step_number(timestep_index)
        slots = self._arguments.slot_numbers(episode_indices)
        values = spread(track, datapoints, (len(slots),))
        self._write_cells(slots, np.full(len(slots), t), {name: values})

    def store_batch_meta_datapoint(self, episode_indices: Any, name: str, datapoints: Any) -> None:
        """Set the value of a meta field of several slots.

        Args:
            episode_indices: The slots, of shape (n,).
            name: The field.
            datapoints: Their values, of shape (n, *shape).

        Raises:
            MemmapError: No such field, or another shape.
            MemmapIndexError: There is no such slot.
        """
        self._check_writable("store_batch_meta_datapoint")
        track = self._arguments.meta_track(name)
        slots = self._arguments.slot_numbers(episode_indices)
        self._write_meta(slots, {name: spread(track, datapoints, (len(slots),))})

    def update(self, indices: Any = None, **data: Any) -> None:
        """Change stored episodes; their lengths stay.

        Args:
            indices: A slot, a list, an array or a slice of slots, negative ones counted from the
                end; all episodes with steps by default.
            **data: For fields an array of shape (E, T, *shape), or (T, *shape) for one slot: the
                first T steps, which may be more than the episode has; a scalar for the first step.
                For meta fields an array of shape (E, *shape). `()` and `(1,)` are converted into
                each other, and arrays are broadcast.

        Raises:
            MemmapError: Nothing, an unknown field, another shape, or more than `max_timesteps`;
                nothing is changed.
            MemmapIndexError: There is no such slot.
        """
        self._check_writable("update")
        if not data:
            raise MemmapError("No data provided to `update`")
        for name in data:
            if name not in self.tracks and name not in self.meta_tracks:
                raise MemmapError(f"invalid field name `{name}`")
        is_one = indices is not None and is_integer(indices)
        slots = self._arguments.slot_numbers(
            [indices] if is_one else self._all() if indices is None else indices
        )
        cells, metas = {}, {}
        for name, value in data.items():
            if name in self.tracks:
                cells[name] = self._arguments.steps_of(self.tracks[name], value, len(slots), is_one)
            else:
                track = self.meta_tracks[name]
                array = as_array(name, value)
                array = squeezed(track, array, 0 if is_one else 1)
                metas[name] = spread(track, array, (len(slots),))
        for n_steps in sorted({array.shape[1] for array in cells.values()}):
            same = {name: array for name, array in cells.items() if array.shape[1] == n_steps}
            self._write_steps(slots, n_steps, same)
        if metas and len(slots):
            self._write_meta(slots, metas)

    def _write_steps(self, slots: Ints, n_steps: int, values: dict[str, NDArray[Any]]) -> None:
        at = np.broadcast_to(slots[:, None], (len(slots), n_steps)).ravel()
        ts = np.broadcast_to(np.arange(n_steps), (len(slots), n_steps)).ravel()
        flat = {name: array.reshape(-1, *self.tracks[name].shape) for name, array in values.items()}
        self._write_cells(at, ts, flat)

    def _all(self) -> Ints:
        return np.flatnonzero(self._lengths() > 0)

    def dataset(
        self,
        n_steps: int | None = None,
        fields: tuple[str, ...] | None = None,
        current_fields: tuple[str, ...] | None = None,
        next_fields: tuple[str, ...] | None = None,
        sequence_fields: tuple[str, ...] | None = None,
        timestep_level: bool = False,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        slice_by_episode_len: bool = True,
        return_episode_lens: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Return a torch dataset of the steps stored now, with those of the open episode.

        Args:
            n_steps: Transitions that reach so far ahead: a `ReplayDatasetNStep`.
            fields: Names of the fields that items have; all by default.
            current_fields: For n_steps only, as are the next two.
            next_fields: All by default.
            sequence_fields: None by default.
            timestep_level: Single steps: a `ReplayDatasetTimestep`. Otherwise whole episodes: a
                `ReplayDatasetTrajectory`.
            filter_meta: `{name: value}` of episodes.
            filter_fields: `{name: value}` of steps; not for whole episodes.
            fieldname_map: `{name: other name}` of what items have.
            slice_by_episode_len: For whole episodes: False has max_timesteps steps of each.
            return_episode_lens: For whole episodes: have `_lens`.
            **kwargs: `include_metadata`, `return_indices`, `min_episode_len`.

        Raises:
            KeyError: A filter has an unknown name; at the first item: `fields` has one.
            MissingExtraError: torch is not installed.
            TypeError: Names that are not in a tuple.
            ValueError: Nothing is stored, or parameters that exclude each other.
        """
        datasets = import_module(DATASETS_MODULE)
        if n_steps is not None and timestep_level:
            raise MemmapError("cannot specify both n_steps and timestep_level")
        self._flush()
        if not self._state()[0].any():
            raise MemmapError("replay buffer is empty")
        common = {"fieldname_map": fieldname_map, "filter_meta": filter_meta, **kwargs}
        if n_steps is not None:
            return datasets.ReplayDatasetNStep(
                self,
                n_steps,
                current_fields,
                next_fields,
                sequence_fields,
                filter_fields=filter_fields,
                **common,
            )
        if timestep_level:
            return datasets.ReplayDatasetTimestep(
                self, fields, filter_fields=filter_fields, **common
            )
        return datasets.ReplayDatasetTrajectory(
            self,
            fields,
            filter_fields=filter_fields,
            slice_by_episode_len=slice_by_episode_len,
            return_episode_lens=return_episode_lens,
            **common,
        )

    def dataloader(
        self,
        batch_size: int,
        n_steps: int | None = None,
        dataset: Any = None,
        fields: tuple[str, ...] | None = None,
        current_fields: tuple[str, ...] | None = None,
        next_fields: tuple[str, ...] | None = None,
        sequence_fields: tuple[str, ...] | None = None,
        filter_meta: Mapping[str, Any] | None = None,
        filter_fields: Mapping[str, Any] | None = None,
        fieldname_map: Mapping[str, str] | None = None,
        return_indices: bool = False,
        return_mask: bool = False,
        timestep_level: bool = False,
        to_named_tuple: tuple[str, ...] | None = None,
        shuffle: bool = False,
        device: Any = None,
        dataset_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Return a torch `DataLoader` of the data that is stored now.

        Batches are dicts of tensors: fields and values of episodes by name. Whole episodes are
        padded with zeros to the longest of their batch, with their lengths as `_lens`. See the
        datasets for the contents of items.

        Args:
            batch_size: Items in a batch.
            n_steps: See `dataset`, also for the arguments that are not explained here.
            dataset: Read this dataset; the arguments that choose items and fields have no effect.
            fields: Not together with to_named_tuple.
            current_fields: For n_steps only, as are the next two.
            next_fields: All by default.
            sequence_fields: None by default.
            filter_meta: `{name: value}` of episodes.
            filter_fields: `{name: value}` of steps.
            fieldname_map: `{name: other name}`.
            return_indices: Include `_index` (whole episodes) or `_indices` (slot and time).
            return_mask: For whole episodes: include `_mask`, bool of shape (B, longest), True for
                real steps.
            timestep_level: Single steps.
            to_named_tuple: Names of the parts of a named tuple `Batch`, in order. Attributes have
                no leading underscores: `_mask` becomes `batch.mask`.
            shuffle: In random order. Otherwise by slot, then by time.
            device: Move tensors there, in worker processes if there are any.
            dataset_kwargs: More for `dataset`, such as `include_metadata`.
            **kwargs: For torch's `DataLoader`: `drop_last`, `num_workers`, `generator`, ..

        Raises:
            KeyError: A filter has an unknown name; at the first batch: `fields` has one.
            MissingExtraError: torch is not installed.
            TypeError: Names are not in a tuple, or `collate_fn` is given.
            ValueError: Nothing is stored, or parameters exclude each other. At the first batch: the
                batch lacks a part of the named tuple.
        """
        if n_steps is not None and timestep_level:
            raise MemmapError("cannot specify both n_steps and timestep_level")
        if return_mask and (n_steps is not None or timestep_level):
            raise MemmapError("return_mask is only supported for trajectory-level data")
        if fields is not None and to_named_tuple is not None:
            raise MemmapError("cannot specify both fields and to_named_tuple")
        if "collate_fn" in kwargs:
            raise MemmapTypeError(
                "dataloader takes no collate_fn: build torch's DataLoader yourself"
            )
        datasets = import_module(DATASETS_MODULE)

        collate = datasets.collate_for(return_mask, device, to_named_tuple)
        if dataset is None:
            dataset = self.dataset(
                n_steps=n_steps,
                fields=fields,
                current_fields=current_fields,
                next_fields=next_fields,
                sequence_fields=sequence_fields,
                timestep_level=timestep_level,
                filter_meta=filter_meta,
                filter_fields=filter_fields,
                fieldname_map=fieldname_map,
                return_indices=return_indices,
                **(dataset_kwargs or {}),
            )
        return datasets.torch_loader(dataset, batch_size, shuffle, collate, kwargs)

    def get_all_data(
        self,
        fields: tuple[str, ...] | None = None,
        meta_fields: tuple[str, ...] | None = None,
        device: Any = None,
    ) -> dict[str, Any]:
        """Return the finished episodes as tensors, by slot.

        Args:
            fields: Names of fields of steps. If both arguments are omitted, all fields and all
                values of episodes are returned, with `episode_lens`. If one is given, the other
                kind is left out.
            meta_fields: Names of values of episodes.
            device: Put the tensors there.

        Returns:
            Fields of shape (num_episodes, longest, *shape), with their defaults behind the end of
            shorter episodes; values of episodes of shape (num_episodes, *shape). Empty without any.

        Raises:
            KeyError: A name is unknown.
            MissingExtraError: torch is not installed.
            TypeError: The names are not a tuple or list.
            ValueError: There is no such device.
        """
        import_module(DATASETS_MODULE)
        if device is not None:
            check_device(device)
        if fields is None and meta_fields is None:
            names, meta_names = list(self.tracks), [n for n in self.meta_tracks if n != "_initted"]
        else:
            names, meta_names = (
                listed_names("fields", fields),
                listed_names("meta_fields", meta_fields),
            )
        check_known("fields", names, self.tracks)
        check_known("meta_fields", meta_names, self.meta_tracks)
        slots = np.arange(self.num_episodes)
        if not len(slots):
            return {}

        def values(_: object) -> dict[str, Any]:
            arrays = {}
            if names:
                longest = int(self._state(slots)[0].max())
                grid = np.broadcast_arrays(slots[:, None], np.arange(longest)[None])
                arrays = self._cells(names, *(np.ascontiguousarray(part) for part in grid))
            if meta_names:
                arrays |= self._meta(meta_names, slots)
            return arrays

        columns = self._at_one_moment(values)
        return {name: as_tensor(array, device or "cpu") for name, array in columns.items()}

    # Not attributes: they refer to the buffer, which is to be deleted with the last use of it.
    @property
    def data(self) -> ArrayProxies:
        """The fields of all slots, each like an array of shape (max_episodes, max_timesteps,
        *shape).
        """
        return ArrayProxies(self.tracks, self._data_proxy)

    @property
    def meta_data(self) -> ArrayProxies:
        """The meta fields of all slots, each like an array of shape (max_episodes, *shape)."""
        return ArrayProxies(self.meta_tracks, self._meta_proxy)

    def _data_proxy(self, name: str) -> ArrayProxy:
        def write(values: Any, slots: Any, ts: Any) -> None:
            self._write_cells(slots, ts, {name: values})

        return ArrayProxy(
            self.tracks[name],
            (self.max_episodes, self.max_timesteps),
            lambda slots, ts: self._cells([name], slots, ts)[name],
            write,
            self._flush,
            proxy_maker(self._data_proxy, name),
        )

    def _meta_proxy(self, name: str) -> ArrayProxy:
        def read(slots: Any) -> Any:
            values = self._meta([name], slots.ravel())[name]
            return values.reshape((*slots.shape, *self.meta_tracks[name].shape))

        def write(values: Any, slots: Any) -> None:
            self._write_meta(slots, {name: values})

        track = self.meta_tracks[name]
        again = proxy_maker(self._meta_proxy, name)
        return ArrayProxy(track, (self.max_episodes,), read, write, self._flush, again)

    @property
    def fieldnames(self) -> set[str]:
        """The names of the fields."""
        return set(self.tracks)

    @property
    def meta_fieldnames(self) -> set[str]:
        """The names of the meta fields, `episode_lens` and `_initted` included."""
        return set(self.meta_tracks)

    @property
    def internal_meta_fieldnames(self) -> set[str]:
        """The meta fields that every buffer has."""
        return set(INTERNAL)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a value of each field."""
        return {name: track.shape for name, track in self.tracks.items()}

    @property
    def dtypes(self) -> dict[str, Any]:
        """The numpy type of each field."""
        return {name: track.dtype.type for name, track in self.tracks.items()}

    @property
    def defaults(self) -> dict[str, Any]:
        """The declared default of each field; None if it has none."""
        return {name: track.default for name, track in self.tracks.items()}

    @property
    def meta_shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of a value of each meta field."""
        return {name: track.shape for name, track in self.meta_tracks.items()}

    @property
    def meta_dtypes(self) -> dict[str, Any]:
        """The numpy type of each meta field."""
        return {name: track.dtype.type for name, track in self.meta_tracks.items()}

    @property
    def meta_defaults(self) -> dict[str, Any]:
        """The declared default of each meta field; None if it has none."""
        return {name: track.default for name, track in self.meta_tracks.items()}

    @property
    def episode_lens(self) -> ArrayProxy:
        """The length of each slot, like an array of shape (max_episodes,)."""
        return self.meta_data[LENS]

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

        def work(tx: Transaction) -> None:
            change = BookChange(self._book, tx)
            change.clear()
            change.store()

        self._core.transaction(work)

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
        self._core.close()

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
            "core": self._core,
            "config": self._config,
            "flush_every": self.flush_every_store_step,
            "cache_bytes": self._cells_.kept.max_bytes,
            "open": self._open_lengths(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._set_up(
            state["folder"],
            state["core"],
            state["config"],
            True,
            state["flush_every"],
            state["cache_bytes"],
        )
        self._seen_open = state["open"]

    def __repr__(self) -> str:
        shown = self._core.url if isinstance(self.folder, str) else str(self.folder)
        mode = ", read-only" if self.read_only else ""
        return (
            f"ReplayBuffer({shown!r}, {self.max_episodes} episodes of "
            f"{self.max_timesteps} steps{mode})"
        )

    def _check_writable(self, name: str) -> EpisodeWriter:
        """Return the writer of this process.

        Raises:
            MemmapError: The buffer is read-only.
        """
        if self._writer is None:
            raise MemmapError(f"cannot call `{name}` in read-only mode")
        if not self._writer.is_own:
            self._writer.check_process()
            self._t = 0
        return self._writer

    def _flush(self) -> None:
        """Store what waits in this process, so that reading finds it."""
        if self._writer is not None:
            self._writer.flush()

    def _open_lengths(self) -> dict[int, int]:
        """Return the length of each slot that this buffer is writing."""
        if self._writer is None:
            return self._seen_open
        return {open_.slot: open_.length for open_ in self._writer.open if open_.n_steps}

    def _lengths(self) -> Ints:
        """Return the length of each slot, the open episode included, of shape (max_episodes,)."""
        return self._state()[0]

    def _cells(self, names: Any, slots: Ints, ts: Ints) -> dict[str, NDArray[Any]]:
        """Return the values of fields in cells; defaults where nothing was written.

        Args:
            names: The fields.
            slots: Array of slots, of any shape S.
            ts: Array of steps, of the same shape.

        Returns:
            `{name: array of shape (*S, *shape)}`, of the dtype of each field.
        """
        return self._cells_.read(names, slots, ts, lambda read: self._at_one_moment(read, slots))

    def _starts(self, names: Any, slots: Ints, counts: Ints) -> Mapping[str, NDArray[Any]]:
        """Return the values of fields in the first steps of slots; see `Cells.read_starts`."""
        return self._cells_.read_starts(
            names, slots, counts, lambda read: self._at_one_moment(read, slots)
        )

    def _meta(self, names: Any, slots: Ints) -> dict[str, NDArray[Any]]:
        """Return the values of meta fields of slots.

        Args:
            names: The fields, `episode_lens` and `_initted` among them if wanted.
            slots: Array of slots, of shape (n,).

        Returns:
            `{name: array of shape (n, *shape)}`, of the dtype of each field.
        """
        names = list(names)
        rows, lens, initted = self._slot_rows(np.unique(slots).tolist())
        values: dict[str, NDArray[Any]] = {}
        for name in names:
            if name == LENS:
                values[name] = lens[slots]
            elif name == INITTED:
                values[name] = initted[slots]
            else:
                values[name] = np.array(rows[self._metas.keys[name]][slots])
        return values

    def _slot_rows(
        self, wanted: list[int]
    ) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.bool_]]:
        """Return the meta values, length and use of some slots; values of other slots are
        undefined.
        """
        rows = np.full(self.max_episodes, self._metas.blank)
        lens = np.zeros(self.max_episodes, np.int32)
        initted = np.zeros(self.max_episodes, bool)
        slots = np.array(wanted, np.int64)

        def look(moment: Moment) -> None:
            records = moment.of(slots)
            rows[slots] = moment.metas(slots)
            lens[slots] = np.maximum(records["length"], 0)
            initted[slots] = records["has_meta"] | (records["length"] != 0)

        self._at_one_moment(look, slots, metas=True)
        for slot, length in self._open_lengths().items():
            lens[slot] = length
        for open_ in self._writer.open if self._writer is not None else ():
            rows[open_.slot], initted[open_.slot] = open_.meta, True
        return rows, lens, initted

    def _state(self, slots: Ints | None = None) -> tuple[Ints, Ints]:
        """Return the length of each slot and the number of the episode that it shows.

        Args:
            slots: Slots to look at, of shape (n,); all of them by default.

        Returns:
            The lengths, with that of an open episode of this process, 0 for an empty slot; and
            numbers that no two episodes share, -1 for an empty slot. Both of shape (n,).
        """

        def look(moment: Moment) -> tuple[Ints, Ints]:
            records = moment.of(slots)
            lengths = np.maximum(records["length"], 0).astype(np.int64)
            for slot, length in moment.open_lengths.items():
                lengths[slot if slots is None else slots == slot] = length
            return lengths, records["number"]

        return self._at_one_moment(look, slots)

    def _at_one_moment(
        self, read: Callable[[Moment], T], slots: Ints | None = None, *, metas: bool = False
    ) -> T:
        """Return the result of `read`; all reads of this thread in it see one state of the
        database. It is called again after a lost connection.

        Args:
            read: Function to call.
            slots: Slots that are looked at along with its beginning, of any shape; all of them by
                default.
            metas: Their meta values are looked at as well; each slot is given once.
        """
        held = getattr(self._held, "moment", None)
        if held is not None:
            return read(held)
        # In this order: another thread may store more.
        open_lengths = dict(self._open_lengths())
        self._flush()

        documents = self._book.documents_of(slots, metas=metas)

        def look(view: Snapshot) -> T:
            self._held.moment = Moment(self._book, view, open_lengths, documents)
            try:
                return read(self._held.moment)
            finally:
                self._held.moment = None

        return self._core.snapshot(look, documents=documents)

    def _write_cells(
        self, slots: Ints, ts: Ints, values: Mapping[str, NDArray[Any]], call: str = "data[...]"
    ) -> None:
        """Set cells: of shape (n,), values of shape (n, *shape)."""
        self._check_writable(call).flush()
        self._cells_.write(slots, ts, values)

    def _write_meta(
        self, slots: Ints, values: Mapping[str, NDArray[Any]], call: str = "meta_data[...]"
    ) -> None:
        """Set meta values of slots: of shape (n,), values of shape (n, *shape)."""
        writer = self._check_writable(call)
        writer.flush()
        by_slot = {open_.slot: open_ for open_ in writer.open}
        plain = {name: array for name, array in values.items() if name not in INTERNAL}
        for i, slot in enumerate(slots.tolist()):
            if (open_ := by_slot.get(slot)) is None:
                continue
            for name, array in plain.items():
                open_.meta[self._metas.keys[name]] = array[i]
            open_.is_dirty = True
        others = [i for i, slot in enumerate(slots.tolist()) if slot not in by_slot]
        if others:
            changed = {name: array[others] for name, array in values.items() if name != INITTED}
            at = slots[others].tolist()
            self._core.transaction(lambda tx: self._change_metas(tx, at, changed))

    def _change_metas(
        self, tx: Transaction, slots: list[int], values: Mapping[str, NDArray[Any]]
    ) -> None:
        change = BookChange(self._book, tx, slots)
        values = dict(values)
        lengths = values.pop(LENS, None)
        if lengths is not None:
            clipped = np.clip(lengths, 0, self.max_timesteps).tolist()
            for slot, length in zip(slots, clipped, strict=True):
                change.show(slot, length)
        if values:
            rows = change.metas(slots)
            for name, array in values.items():
                for i, slot in enumerate(slots):
                    rows[slot][self._metas.keys[name]] = array[i]
            for slot, row in rows.items():
                change.set_meta(slot, row.tobytes())
            shown = {
                self._book.key(number): self._metas.shown(rows[slot])
                for slot, number in change.numbers(slots).items()
                if number >= 0
            }
            if shown:
                tx.annotate_episodes(list(shown), None, metas=list(shown.values()))
        change.store()


def __getattr__(name: str) -> Any:
    """Return the class of a dataset; raise for the base class, which this package does not have."""
    if name in DATASETS:
        return dataset_class(name)
    if name == "ReplayBufferBase":
        raise ALTERNATIVES.error(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def dataset_class(name: str) -> Any:
    """Return the class of a dataset.

    Raises:
        MissingExtraError: torch is not installed.
    """
    return getattr(import_module(DATASETS_MODULE), name)
