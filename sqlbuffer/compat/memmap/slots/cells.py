"""Cells, the values of steps by slot and time: reads and changes them."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.compat.memmap.rows.row_codec import RowCoder
from sqlbuffer.compat.memmap.slots.episode_cache import CacheKey, Columns, EpisodeCache
from sqlbuffer.errors import FieldError
from sqlbuffer.storage.extensions.slots.episode_slots import Slots, State
from sqlbuffer.storage.extensions.slots.payload_changes import replace_payload
from sqlbuffer.storage.extensions.slots.slot_lookups import changed_steps, slot_steps
from sqlbuffer.storage.extensions.slots.stored_span import Run
from sqlbuffer.storage.store import BufferStore

_Values = Mapping[str, NDArray[Any]]

Ints = NDArray[np.int64]

# Steps of a run, on average, from which on it may be a whole episode.
LONG_RUN = 8


@dataclass
class Snapshot:
    """One moment of the database, which a thread reads.

    Attributes:
        connection: The connection that reads it.
        open_lengths: The lengths of the episodes that this process has open, all steps of which are
            stored.
        states: The states of slots that were looked at; None where one was never used.
    """

    connection: Any
    open_lengths: dict[int, int]
    states: dict[int, State | None]

    def see(self, slots: Iterable[int], found: Iterable[State]) -> None:
        """Store the states of slots that were looked at, and of any other slots that were found."""
        self.states.update(dict.fromkeys(slots))
        self.states.update((state.slot, state) for state in found)


class StoredCells(NamedTuple):
    """Cells that have a step.

    Attributes:
        keys: slot * max_timesteps + step of each, of shape (n,).
        rows: Their values, structured, of shape (n,); can be written to.
        seqs: The numbers of their steps, of shape (n,).
    """

    keys: Ints
    rows: NDArray[Any]
    seqs: Ints


class Cells:
    """The cells of a buffer. A cell that was never written has the default of its field.

    Attributes:
        kept: The cache of whole episodes.

    Args:
        store: The buffer.
        slots: Its slots.
        rows: How a row is laid out.
        max_timesteps: Steps of a slot.
        kept: The cache of whole episodes.
    """

    def __init__(
        self,
        store: BufferStore,
        slots: Slots,
        rows: RowCoder,
        max_timesteps: int,
        kept: EpisodeCache,
    ) -> None:
        self._store, self._slots, self._rows = store, slots, rows
        self._t, self.kept = max_timesteps, kept
        self._tail = np.dtype([("t", "<i4"), ("row", rows.layout.record)])

    def read(
        self,
        names: Iterable[str],
        slots: Ints,
        ts: Ints,
        at_one_moment: Callable[[Callable[[Snapshot], _Values]], _Values],
    ) -> dict[str, NDArray[Any]]:
        """Return the values of fields in cells.

        Args:
            names: The fields.
            slots: The slot of each cell, of any shape S.
            ts: Step of each, in the same form.
            at_one_moment: Calls a function with what to read in.

        Returns:
            `{name: array of shape (*S, *shape)}`.
        """
        names, given = list(names), (slots * self._t + ts).ravel()
        if not names:
            return {}

        def values_in(moment: Snapshot) -> _Values:
            values = self._whole(moment, names, given)
            return self._single(moment.connection, names, given) if values is None else values

        found = at_one_moment(values_in)
        return {
            name: values.reshape((*slots.shape, *values.shape[1:]))
            for name, values in found.items()
        }

    def _single(self, connection: Any, names: list[str], given: Ints) -> dict[str, NDArray[Any]]:
        """Return the values in single cells, in any order and with repetitions."""
        keys, back = _distinct(given)
        tracks = self._rows.tracks
        found = {
            name: np.full((len(keys), *tracks[name].shape), tracks[name].fill) for name in names
        }
        if len(keys):
            self._fill(connection, keys, found)
        return found if back is None else {name: each[back] for name, each in found.items()}

    def _fill(self, connection: Any, keys: Ints, found: Mapping[str, NDArray[Any]]) -> None:
        own = self._rows.names
        stored = self._stored(connection, _runs(keys, self._t))
        places = np.searchsorted(keys, stored.keys)
        for name, values in found.items():
            values[places] = stored.rows[own[name]]
        if len(places) < len(keys):
            left = np.ones(len(keys), bool)
            left[places] = False
            missing = np.flatnonzero(left)
            at, rows = self._in_tails(connection, keys[missing])
            for name, values in found.items():
                values[missing[at]] = rows[own[name]]

    def _whole(
        self, moment: Snapshot, names: list[str], given: Ints
    ) -> dict[str, NDArray[Any]] | None:
        """Return the values in cells that are few long runs, or None where they are not, or where a
        step has no row.
        """
        if not len(given):
            return None
        runs = _runs(given, self._t)
        if len(given) < LONG_RUN * len(runs):
            return None
        keys = [_key(run, moment.states) for run in runs]
        columns = [None if key is None else self.kept.get(key) for key in keys]
        left = [i for i, kept in enumerate(columns) if kept is None]
        if left:
            stored = self._stored(moment.connection, [runs[i] for i in left])
            sizes = [last - first + 1 for _, first, last in (runs[i] for i in left)]
            if len(stored.keys) != sum(sizes):
                return None
            ends = np.cumsum(sizes)
            for i, rows in zip(left, np.split(stored.rows, ends[:-1]), strict=True):
                key = keys[i]
                columns[i] = now = self._unpacked(rows, self._rows.names if key else names)
                if key is not None:
                    self.kept.put(key, now)
        return {name: np.concatenate([each[name] for each in columns if each]) for name in names}

    def _unpacked(self, rows: NDArray[Any], names: Iterable[str]) -> Columns:
        """Return fields of rows, each as a separate array."""
        return {name: rows[self._rows.names[name]].copy() for name in names}

    def _stored(self, connection: Any, runs: list[Run]) -> StoredCells:
        """Return the cells of runs that have a step, in their order."""
        store, size = self._store.info, self._rows.size
        found = slot_steps(connection, store.id, runs, size)
        if not found:
            return StoredCells(np.empty(0, np.int64), self._rows.blanks(0), np.empty(0, np.int64))
        of_run, ts, first_seqs, counts, records, may_have_changed = zip(*found, strict=True)
        for seq, n, raw in zip(first_seqs, counts, records, strict=True):
            _check_size(raw, n * size, seq)
        firsts = np.array([runs[run][0] * self._t + t for run, t in zip(of_run, ts, strict=True)])
        rows = np.frombuffer(bytearray(b"").join(records), self._rows.layout.record)
        n_steps = np.array(counts)
        # The place of each step in its span.
        places = np.arange(len(rows)) - np.repeat(np.cumsum(n_steps) - n_steps, n_steps)
        keys = np.repeat(firsts, n_steps) + places
        seqs = np.repeat(np.array(first_seqs, np.int64), n_steps) + places
        if any(may_have_changed):
            spans = zip(first_seqs, (np.array(first_seqs) + n_steps).tolist(), strict=True)
            return self._changed(connection, list(spans), StoredCells(keys, rows, seqs))
        return StoredCells(keys, rows, seqs)

    def _changed(
        self, connection: Any, spans: list[tuple[int, int]], stored: StoredCells
    ) -> StoredCells:
        """Return cells with what their steps were replaced with, without those that are deleted."""
        changed = changed_steps(connection, self._store.info.id, spans)
        if not changed:
            return stored
        order = np.argsort(stored.seqs)
        numbers = np.array([seq for seq, _ in changed], np.int64)
        at = order[np.searchsorted(stored.seqs, numbers, sorter=order)]
        is_kept = np.ones(len(stored.keys), bool)
        for place, (seq, record) in zip(at.tolist(), changed, strict=True):
            if record is None:
                is_kept[place] = False
            else:
                _check_size(record, self._rows.size, seq)
                stored.rows[place] = np.frombuffer(record, self._rows.layout.record)[0]
        return StoredCells(*(values[is_kept] for values in stored))

    def _in_tails(self, connection: Any, keys: Ints) -> tuple[Ints, NDArray[Any]]:
        """Return which of sorted keys are in tails, and their rows."""
        tails = self._slots.tails(connection, np.unique(keys // self._t).tolist())
        at: list[Ints] = [np.empty(0, np.int64)]
        rows = [self._rows.blanks(0)]
        for slot, raw in tails.items():
            tail = np.frombuffer(raw, self._tail)
            theirs = slot * self._t + tail["t"].astype(np.int64)
            places = np.searchsorted(keys, theirs)
            is_wanted = (places < len(keys)) & (keys[np.minimum(places, len(keys) - 1)] == theirs)
            at.append(places[is_wanted])
            rows.append(tail["row"][is_wanted])
        return np.concatenate(at), np.concatenate(rows)

    def write(self, slots: Ints, ts: Ints, values: Mapping[str, NDArray[Any]]) -> None:
        """Change cells, those that have a row and others, in one transaction.

        Args:
            slots: The slot of each cell, of shape (n,); of cells named twice the last one counts.
            ts: Step of each, in the same form.
            values: For each field that is written an array of shape (n, *shape) of its dtype.
        """
        if not len(slots):
            return
        self._store.write(lambda connection: self._change(connection, slots, ts, values))

    def _change(
        self, connection: Any, slots: Ints, ts: Ints, values: Mapping[str, NDArray[Any]]
    ) -> None:
        keys, back = _distinct(slots * self._t + ts)
        last = np.arange(len(keys)) if back is None else _last_of(back, len(keys))
        values = {name: array[last] for name, array in values.items()}
        self._slots.lock(connection)
        self._slots.note_change(connection)
        stored = self._stored(connection, _runs(keys, self._t))
        places, rows = np.searchsorted(keys, stored.keys), stored.rows
        if len(places):
            for name, array in values.items():
                rows[self._rows.names[name]] = array[places]
            replace_payload(
                connection,
                self._store,
                stored.seqs.tolist(),
                self._rows.columns(rows),
                [self._rows.names[name] for name in values],
            )
        left = np.ones(len(keys), bool)
        left[places] = False
        if left.any():
            self._change_tails(
                connection, keys[left], {name: array[left] for name, array in values.items()}
            )

    def _change_tails(
        self, connection: Any, keys: Ints, values: Mapping[str, NDArray[Any]]
    ) -> None:
        of = keys // self._t
        wanted = np.unique(of).tolist()
        held = self._slots.tails(connection, wanted)
        changed = {}
        for slot in wanted:
            own = np.flatnonzero(of == slot)
            new = {name: array[own] for name, array in values.items()}
            changed[slot] = self._tail_with(held.get(slot, b""), keys[own] % self._t, new)
        self._slots.set_tails(connection, changed)

    def _tail_with(self, raw: bytes, ts: Ints, values: Mapping[str, NDArray[Any]]) -> bytes:
        """Return a slot's tail with cells of it changed."""
        held = np.frombuffer(raw, self._tail)
        all_ts = np.union1d(held["t"], ts)
        tail = np.zeros(len(all_ts), self._tail)
        tail["t"], tail["row"] = all_ts, self._rows.blank
        tail[np.searchsorted(all_ts, held["t"])] = held
        at = np.searchsorted(all_ts, ts)
        rows = tail["row"][at]
        for name, array in values.items():
            rows[self._rows.names[name]] = array
        tail["row"][at] = rows
        return tail.tobytes()


def _distinct(keys: Ints) -> tuple[Ints, Ints | None]:
    """Return keys in order, each once, and which of them each given one is; None: as they were."""
    if len(keys) < 2 or (keys[1:] > keys[:-1]).all():
        return keys, None
    found, back = np.unique(keys, return_inverse=True)
    return found, back.reshape(-1)


def _last_of(back: Ints, n: int) -> Ints:
    """Return where each of n distinct keys was given last."""
    last = np.zeros(n, np.int64)
    np.maximum.at(last, back, np.arange(len(back)))
    return last


def _runs(keys: Ints, max_timesteps: int) -> list[Run]:
    """Return keys as runs of (slot, first step, last step), in their order."""
    slots, ts = np.divmod(keys, max_timesteps)
    breaks = np.flatnonzero((np.diff(keys) != 1) | (np.diff(slots) != 0)) + 1
    first = np.concatenate([[0], breaks])
    last = np.concatenate([breaks, [len(keys)]]) - 1
    return list(zip(slots[first].tolist(), ts[first].tolist(), ts[last].tolist(), strict=True))


def _key(run: Run, states: Mapping[int, State | None]) -> CacheKey | None:
    """Return the cache key of a run's rows; None if the run is not an episode from its start."""
    slot, first, last = run
    state = states.get(slot)
    if first or state is None or state.episode is None:
        return None
    return CacheKey(state.episode, last, state.changes)


def _check_size(raw: Any, size: int, seq: int) -> None:
    """Raise where steps from a number on have another size than their fields."""
    if raw is None or len(raw) != size:
        raise FieldError(
            f"the row with seq {seq} has damaged arrays (they have another size than its fields); "
            f"delete it, or restore it from a backup"
        )
