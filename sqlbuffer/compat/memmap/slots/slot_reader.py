"""The state that the parts of `ReplayBuffer` share, and reading by slots."""

import threading
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.config.buffer_config import Config
from sqlbuffer.compat.memmap.config.declared_fields import INITTED, INTERNAL, LENS, DeclaredField
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.compat.memmap.rows.row_codec import MetaCoder, RowCoder, StepPacker
from sqlbuffer.compat.memmap.slots.cells import Cells, Snapshot
from sqlbuffer.compat.memmap.slots.episode_writer import EpisodeWriter
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer, snapshot
from sqlbuffer.storage.extensions.slots.episode_slots import Slots, State
from sqlbuffer.storage.store import BufferStore

Ints = NDArray[np.int64]
T = TypeVar("T")
# Slots that are named in the text of a question.
MAX_NAMED_SLOTS = 1_000


class SlotReader:
    """Reads a buffer by slots; the base class of the parts of `ReplayBuffer`.

    Attributes:
        folder: The path or URL that was given.
        read_only: Writing is refused.
        max_episodes: Number of slots.
        max_timesteps: Number of steps of a slot.
        circular: Slots are used again.
        tracks: The fields of a step by name.
        meta_tracks: The fields of an episode by name.
        store_step: Number of calls of `store`.
        flush_every_store_step: As it was given.
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
    _config: Config
    _store: BufferStore
    _rows: RowCoder
    _metas: MetaCoder
    _packer: StepPacker
    _writer: EpisodeWriter | None
    _slots: Slots
    _cells_: Cells
    _t: int
    # The snapshot that a thread reads in.
    _held: threading.local
    # Lengths of the writer's open episodes when this copy of it was made.
    _seen_open: dict[int, int]

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
        return {open_.slot: open_.length for open_ in self._writer.open if open_.is_begun}

    def _lengths(self) -> Ints:
        """Return the length of each slot, the open episode included, of shape (max_episodes,)."""
        self._flush()
        lengths = np.zeros(self.max_episodes, np.int64)
        found = self._at_one_moment(lambda snapshot: self._slots.lengths(snapshot.connection))
        if found:
            slots, n = zip(*found, strict=True)
            lengths[list(slots)] = n
        for slot, length in self._open_lengths().items():
            lengths[slot] = length
        return lengths

    def _cells(self, names: Any, slots: Ints, ts: Ints) -> dict[str, NDArray[Any]]:
        """Return the values of fields in cells; defaults where nothing was written.

        Args:
            names: The fields.
            slots: Array of slots, of any shape S.
            ts: Array of steps, of the same shape.

        Returns:
            `{name: array of shape (*S, *shape)}`, of the dtype of each field.
        """
        self._flush()
        return self._cells_.read(names, slots, ts, self._at_one_moment)

    def _meta(self, names: Any, slots: Ints) -> dict[str, NDArray[Any]]:
        """Return the values of meta fields of slots.

        Args:
            names: The fields, `episode_lens` and `_initted` among them if wanted.
            slots: Array of slots, of shape (n,).

        Returns:
            `{name: array of shape (n, *shape)}`, of the dtype of each field.
        """
        self._flush()
        names = list(names)
        rows, lens, initted = self._slot_rows(np.unique(slots).tolist())
        found: dict[str, NDArray[Any]] = {}
        for name in names:
            if name == LENS:
                found[name] = lens[slots]
            elif name == INITTED:
                found[name] = initted[slots]
            else:
                found[name] = np.array(rows[self._metas.keys[name]][slots])
        return found

    def _slot_rows(
        self, wanted: list[int]
    ) -> tuple[NDArray[Any], NDArray[np.int32], NDArray[np.bool_]]:
        """Return the meta values, length and use of some slots; values of other slots are
        undefined.
        """
        rows = np.full(self.max_episodes, self._metas.blank)
        lens = np.zeros(self.max_episodes, np.int32)
        initted = np.zeros(self.max_episodes, bool)
        shown = self._at_one_moment(lambda moment: self._slots.shown(moment.connection, wanted))
        packed = [each for each in shown if each.meta]
        if packed:
            raw = b"".join(bytes(each.meta or b"") for each in packed)
            rows[[each.slot for each in packed]] = np.frombuffer(raw, self._metas.dtype)
        for each in shown:
            initted[each.slot] = bool(each.meta is not None or each.length)
            lens[each.slot] = each.length or 0
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
        lengths, shown = np.zeros(self.max_episodes, np.int64), np.full(self.max_episodes, -1)

        def look(moment: Snapshot) -> None:
            wanted = None
            if slots is not None:
                wanted = [slot for slot in slots.tolist() if slot not in moment.states]
            if wanted is None or wanted:
                moment.see(wanted or (), self._slots.states(moment.connection, wanted))
            for state in moment.states.values():
                if state is not None:
                    slot, length = state.slot, state.length
                    lengths[slot] = moment.open_lengths.get(slot, 0) if length is None else length
                    shown[slot] = -1 if state.episode is None else state.episode

        self._at_one_moment(look, slots)
        return (lengths, shown) if slots is None else (lengths[slots], shown[slots])

    def _at_one_moment(self, read: Callable[[Snapshot], T], slots: Ints | None = None) -> T:
        """Return the result of `read`; all reads of this thread in it see one state of the
        database. It is called again after a lost connection.

        Args:
            read: Function to call.
            slots: Slots that are looked at along with its beginning, unless they are many, of shape
                (n,).
        """
        held = getattr(self._held, "snapshot", None)
        if held is not None:
            return read(held)

        def look() -> T:
            # In this order: another thread may store more.
            open_lengths = dict(self._open_lengths())
            self._flush()
            wanted = [] if slots is None else slots.tolist()
            is_named = 0 < len(wanted) <= MAX_NAMED_SLOTS
            query = self._slots.states_query(wanted) if is_named else None
            with (
                translated(self._store.url),
                snapshot(self._store.engine, query) as connection,
                # Cells are read without SQLAlchemy, so no transaction begins automatically.
                nullcontext() if query else connection.begin(),
            ):
                begun = Snapshot(connection, open_lengths, {})
                if query:
                    begun.see(wanted, (State(*row) for row in answer(connection)))
                self._held.snapshot = begun
                try:
                    return read(begun)
                finally:
                    self._held.snapshot = None

        return self._store.with_retries(look)

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
        own = {open_.slot: open_ for open_ in writer.open}
        plain = {name: array for name, array in values.items() if name not in INTERNAL}
        for i, slot in enumerate(slots.tolist()):
            if (open_ := own.get(slot)) is None:
                continue
            for name, array in plain.items():
                open_.meta[self._metas.keys[name]] = array[i]
            open_.is_dirty = True
        others = [i for i, slot in enumerate(slots.tolist()) if slot not in own]
        if others:
            changed = {name: array[others] for name, array in values.items() if name != INITTED}
            self._store.write(lambda c: self._change_metas(c, slots[others].tolist(), changed))

    def _change_metas(
        self, connection: Any, slots: list[int], values: Mapping[str, NDArray[Any]]
    ) -> None:
        self._slots.lock(connection)
        values = dict(values)
        lengths = values.pop(LENS, None)
        if lengths is not None:
            clipped = np.clip(lengths, 0, self.max_timesteps).tolist()
            self._slots.set_lengths(connection, dict(zip(slots, clipped, strict=True)))
        if not values:
            return
        held = {each.slot: each.meta for each in self._slots.shown(connection, slots)}
        rows = {slot: self._metas.unpack(held.get(slot)) for slot in slots}
        for name, array in values.items():
            for i, slot in enumerate(slots):
                rows[slot][self._metas.keys[name]] = array[i]
        json = {slot: self._metas.to_json(row) for slot, row in rows.items()}
        self._slots.set_metas(
            connection,
            {slot: row.tobytes() for slot, row in rows.items()},
            {slot: text for slot, text in json.items() if text is not None},
        )

    def _track(self, name: Any) -> DeclaredField:
        if name not in self.tracks:
            raise MemmapError(f"invalid field name {name} - must be one of {self._shown_fields()}")
        return self.tracks[name]

    def _meta_track(self, name: Any) -> DeclaredField:
        if name not in self.meta_tracks:
            raise MemmapError(
                f"invalid field name {name} - must be one of {', '.join(self.meta_tracks)}"
            )
        return self.meta_tracks[name]

    def _shown_fields(self) -> str:
        return ", ".join(self.tracks) or "none"


def checked_index(value: Any, n: int, name: str) -> int:
    """Return a number from 0 to n - 1.

    Raises:
        MemmapTypeError: It is not a number.
        MemmapError: It is out of range.
    """
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise MemmapTypeError(f"{name} is a number, got {value!r}")
    index = int(value.__index__())
    if not 0 <= index < n:
        raise MemmapError(f"{name} {index} out of range - must be in [0, {n})")
    return index
