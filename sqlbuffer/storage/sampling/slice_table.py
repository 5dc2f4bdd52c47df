"""The steps that a draw by SQL has read, as a table that batches are made of."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from sqlbuffer.batches.step_table import (
    BARRED,
    ENDS,
    LAST,
    LINK,
    LIVE,
    NONE,
    STATUS_NAMES,
    TERMINATED,
    TOLD,
    TRUNCATED,
    Arrays,
    Flags,
    Integers,
    as_float32,
    as_records,
    bytes_of,
    flags_of_ends,
)
from sqlbuffer.encoding.blocks import expanded_rows
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.fields import ON_REQUEST
from sqlbuffer.storage.chunks.slices import (
    Keys,
    Reach,
    SliceColumns,
    ends_of,
    records_of,
    unpacked_rewards,
)
from sqlbuffer.storage.marks import LateValues, Marks, late_values
from sqlbuffer.storage.rows.layouts import StepLayout
from sqlbuffer.storage.rows.statements import IsKey


@dataclass(frozen=True, eq=False)
class SliceReading:
    """What is read of each candidate, in place of a `RowSelection`.

    Attributes:
        reach: The steps around it.
        is_key: Further condition for a step to be a key.
        finds_single: Find out if there are steps without an episode.
        has_numbers: The batch has declared fields that can be given late.
    """

    reach: Reach
    is_key: IsKey | None = None
    finds_single: bool = False
    has_numbers: bool = True


# The number of an episode in the database, and two places in it.
Range = tuple[int, int, int]
# The model version and the session of the steps of a slice.
Version = tuple[int | None, int | None]


def read_keys(
    connection: Connection,
    buffer_id: int,
    seqs: Sequence[int],
    reach: Reach,
    has_versions: bool,
    steps: StepLayout,
) -> tuple[list[tuple[Any, ...]], list[Version]]:
    """Return the steps that are there and can be keys, as `keys_of` takes them.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: Numbers of steps.
        reach: Which steps to read around each.
        has_versions: Return the model versions and sessions of their slices too.
        steps: How the steps are stored.
    """
    if not seqs:
        return [], []
    rows = steps.read_keys(connection, buffer_id, seqs, reach, has_versions)
    if not has_versions:
        return rows, []
    return [row[:-2] for row in rows], [(row[-2], row[-1]) for row in rows]


def read_ranges(
    connection: Connection,
    buffer_id: int,
    ranges: Sequence[tuple[int, int, int]],
    reach: Reach,
    has_versions: bool,
    steps: StepLayout,
) -> tuple[list[tuple[Any, ...]], list[Version]]:
    """Return slices with the steps of ranges of episodes, (episode, first t, last t).

    Each slice is a tuple in the form of `Slice`.

    The other arguments are those of `read_keys`.
    """
    rows = steps.read_ranges(connection, buffer_id, ranges, reach, has_versions)
    if not has_versions:
        return rows, []
    return [row[:-2] for row in rows], [(row[-2], row[-1]) for row in rows]


_STATUS = {name: number for number, name in enumerate(STATUS_NAMES.tolist())}


class SliceEpisodes:
    """The episodes of keys; see `Episodes`.

    Args:
        keys: The keys; several may be of one episode.
    """

    def __init__(self, keys: Keys) -> None:
        columns = keys.slices.episode_id, *keys[-6:]
        if keys.status is keys.final:  # steps that were read alone
            self._set({}, [()] * len(columns))
            return
        # A final observation is read only with keys near to the end.
        of: dict[Any, tuple[Any, ...]] = {}
        if any(keys.status):
            of = {row[0]: row for row in zip(*columns, strict=True) if row[3] is not None}
        if any(final is not None for final in keys.final):
            of |= {row[0]: row for row in zip(*columns, strict=True) if row[-1] is not None}
        self._set(of, list(zip(*of.values(), strict=True)) or [()] * len(columns))

    def _set(self, of: Iterable[Any], columns: Sequence[Sequence[Any]]) -> None:
        self.numbers = {id_: number for number, id_ in enumerate(of)}
        _, names, lengths, statuses, returns, rewards, finals = columns
        is_open = np.array([status == "open" for status in statuses], bool)
        self.status = np.array([_STATUS[status] for status in statuses], np.int8)
        length = np.array([NONE if n is None else n for n in lengths], np.int64)
        self.length = np.where(is_open, NONE, length)
        self.keys, self.finals = _objects(names), _objects(finals)
        # While an episode is open, the database stores the change by annotations alone.
        self.returns = np.where(is_open, np.nan, np.array(returns, np.float64))
        self.rewards = np.array(rewards, np.float64)
        self.n_aborted = int((self.status == _STATUS["aborted"]).sum())


def _objects(values: Sequence[Any]) -> NDArray[Any]:
    array = np.empty(len(values), object)
    array[:] = values
    return array


class SliceTable:
    """Steps of slices, as they are stored, run after run; see `StepTable`.

    The slices of keys come first. The same step may be in several slices.

    Args:
        layout: The typed fields.
        keys: The keys, with their slices; each once.
        slices: Their slices, and behind them further ones of their episodes.
        low: Lower end of the window.
        marks: What became of the steps.
        read_steps: Reads steps by number, each as a key of its own, if slices lack bytes.
        read_places: Reads steps between places of episodes, (episode, first t, last t), as a table
            of the same keys.

    Attributes:
        layout, has_barred, episodes: See `StepTable`.
        seq: Number of each step.
        late: Declared fields that were given late: slots in ascending order, and values.
    """

    def __init__(
        self,
        layout: Layout,
        keys: Keys,
        slices: SliceColumns,
        low: int,
        marks: Marks,
        read_steps: Callable[[Sequence[int]], Keys] | None = None,
        read_places: Callable[[Sequence[Range]], "SliceTable"] | None = None,
    ) -> None:
        self.layout, self._read_steps = layout.fixed, read_steps
        self._read_places = read_places
        self._keys, self._slices = keys, slices
        self.episodes = SliceEpisodes(keys)
        is_alone = not self.episodes.numbers and int(slices.n.sum()) == len(slices.n)
        links = self._links_of_single_steps(slices) if is_alone else self._links_of_runs(slices)
        links["reward"] = unpacked_rewards(slices.rewards, slices.n.tolist())
        links["flags"] = self._flags(slices, links, low, marks)
        self._replaced = _at_replaced(self.seq, links, marks)
        self._values: dict[str, NDArray[np.float64]] = {}
        self.late: dict[str, tuple[Integers, NDArray[Any]]] = {}
        for labels in (marks.values, marks.labels):
            self._put_late(links, late_values(labels, layout.specs, self._slots_of_all))
        self.has_barred = self._bar(links, marks)
        self._links = links
        # numpy copies a structured record part by part; as plain bytes it is copied whole.
        self._link_bytes = as_records(links, bytes_of(LINK))

    def _links_of_single_steps(self, slices: SliceColumns) -> NDArray[Any]:
        """Return the links of steps without an episode, whose slices have one step each."""
        self.seq = slices.seq
        self._starts = np.arange(len(self.seq))
        links = np.zeros(len(self.seq), LINK)
        for name in ("episode", "t", "next", "prev"):
            links[name] = NONE
        return links

    def _links_of_runs(self, slices: SliceColumns) -> NDArray[Any]:
        """Return the links of steps, of which some have episodes."""
        counts, first_t = slices.n, slices.t
        self._starts = np.cumsum(counts) - counts
        numbers = self.episodes.numbers
        numbers_of_runs = [numbers.get(id_, NONE) for id_ in slices.episode_id]
        places = np.arange(counts.sum())
        self.seq = np.repeat(slices.seq - self._starts, counts) + places
        links = np.zeros(len(places), LINK)
        links["episode"] = np.repeat(np.array(numbers_of_runs, np.int32), counts)
        links["t"] = np.repeat(first_t - self._starts, counts) + places
        if NONE in numbers_of_runs:
            links["t"][links["episode"] == NONE] = NONE
        links["next"], links["prev"] = places + 1, places - 1
        next_of, prev_of = _neighbours(
            np.array(numbers_of_runs, np.int64), first_t, counts, self._starts
        )
        links["next"][self._starts + counts - 1], links["prev"][self._starts] = next_of, prev_of
        return links

    def _flags(
        self, slices: SliceColumns, links: NDArray[Any], low: int, marks: Marks
    ) -> NDArray[np.uint8]:
        flags: NDArray[np.uint8]
        if None in slices.ends:
            told = np.array([TOLD if ends is not None else 0 for ends in slices.ends], np.uint8)
            flags = ends_of(slices) | np.repeat(told, slices.n)
        else:
            flags = ends_of(slices) | np.uint8(TOLD)
        is_live = self.seq > low
        if marks.deleted:
            is_live &= ~np.isin(self.seq, np.array(marks.deleted, np.int64))
        flags[is_live] |= np.uint8(LIVE)
        if len(self.episodes.length):
            lengths = self.episodes.length.take(links["episode"], mode="clip")
            flags[(links["episode"] != NONE) & (links["t"] + 1 == lengths)] |= np.uint8(LAST)
        return flags

    def _slots_of_all(self, numbers: Integers) -> tuple[Integers, Integers]:
        """Return which steps are there, and their slots; see `late_values`."""
        order, at = _places_in(numbers, self.seq)
        slots = np.flatnonzero(at != NONE)
        return order[at[slots]], slots

    def _put_late(self, links: NDArray[Any], late: LateValues) -> None:
        """Put late rewards into links, and note the other late values."""
        for name, (slots, reals) in late.reals.items():
            if name == "reward":
                links["reward"][slots] = reals
            else:
                if name not in self._values:
                    self._values[name] = np.full(len(links), np.nan)
                self._values[name][slots] = reals
        self.late |= late.fields

    def _bar(self, links: NDArray[Any], marks: Marks) -> bool:
        """Mark the steps that may not be sampled; return True if there are any."""
        if not (marks.quarantined or marks.excluded):
            return False
        is_barred = np.isin(self.seq, np.array(marks.quarantined, np.int64))
        if marks.excluded:
            runs = np.array(sorted(marks.excluded), np.int64)
            # Of the runs that begin up to a step, the end of the one that reaches furthest.
            ends = np.maximum.accumulate(runs.sum(axis=1))
            run_of = np.searchsorted(runs[:, 0], self.seq, side="right") - 1
            is_barred |= (run_of >= 0) & (self.seq < ends[run_of])
        links["flags"][is_barred] |= np.uint8(BARRED)
        return bool(is_barred.any())

    @property
    def n_slots(self) -> int:
        """Number of steps."""
        return len(self.seq)

    def slots_of(self, numbers: Integers) -> Integers:
        """Return the slots of keys by their numbers."""
        seqs = self._keys.seq
        if len(seqs) == len(self.seq) == len(numbers) and np.array_equal(seqs, numbers):
            return self._starts
        firsts = self._slices.seq[: len(seqs)]
        slots = self._starts[: len(seqs)] + seqs - firsts
        order = np.argsort(seqs)
        of_numbers: Integers = slots[order[np.searchsorted(seqs[order], numbers)]]
        return of_numbers

    def gathered_links(self, slots: Integers) -> NDArray[Any]:
        """Return the links of slots; see `StepTable.gathered_links`."""
        return as_records(self._link_bytes.take(slots), LINK)

    def run_lengths(self, slots: Integers, most: int, back: bool) -> Integers:
        """Return the lengths of runs of steps; see `StepTable.run_lengths`."""
        lens: Integers
        if back:
            stops = self._stops_back
            lens = slots - stops[np.searchsorted(stops, slots, side="right") - 1] + 1
        else:
            stops = self._stops
            lens = stops[np.searchsorted(stops, slots)] - slots + 1
        return np.where((self._links["flags"][slots] & LIVE) != 0, lens, 0)

    @cached_property
    def _stops(self) -> Integers:
        """Slots after which no live step of the same episode follows."""
        is_live = (self._links["flags"] & LIVE) != 0
        goes_on = self._links["next"][:-1] == np.arange(1, self.n_slots)
        return np.flatnonzero(np.append(~(goes_on & is_live[1:]), True))

    @cached_property
    def _stops_back(self) -> Integers:
        """Slots before which there is no live step of the same episode."""
        is_live = (self._links["flags"] & LIVE) != 0
        goes_on = self._links["prev"][1:] == np.arange(self.n_slots - 1)
        return np.flatnonzero(np.insert(~(goes_on & is_live[:-1]), 0, True))

    def gathered(self, slots: Integers) -> Integers:
        """Return the slots themselves, which are those of keys."""
        return slots

    def fields_of(
        self, steps: Integers, names: Sequence[str], built_in: Sequence[str] = ()
    ) -> Arrays:
        """Return fields of steps; see `StepTable.fields_of`."""
        rows = self.at(steps)
        return rows.fields(names) | rows.built_in(built_in)

    def fields_at(self, slots: Integers, names: Sequence[str]) -> Arrays:
        """Return fields of steps; see `StepTable.fields_at`."""
        return self.at(slots).fields(names)

    def episodes_of(self, steps: Integers) -> Integers:
        """Return the number of the episode of steps; see `StepTable.episodes_of`."""
        episodes: Integers = self._links["episode"][steps]
        return episodes

    def info_of(self, steps: Integers, with_place: bool) -> Callable[[], Arrays]:
        """Return a function that makes the info of a batch; see `StepTable.info_of`."""
        runs = np.searchsorted(self._starts, steps, side="right") - 1
        info: Arrays = {
            "seq": self.seq[steps],
            "task_id": _objects(self._keys.task_id)[runs],
            "agent_id": _objects(self._keys.agent_id)[runs],
            "step": np.array(self._keys.step, np.int64)[runs],
        }
        if with_place:
            links = self._links[steps]
            info["episode"] = _objects(self._keys.episode_key)[runs]
            info["t"] = links["t"].astype(np.int64)
        return lambda: info

    def at(self, index: Integers) -> "StepsInSlices":
        """Return the steps in some slots; see `StepTable.at`."""
        return StepsInSlices(self, index)

    def seqs_of(self, slots: Integers) -> Integers:
        """Return the numbers of steps; see `StepTable.seqs_of`."""
        seqs: Integers = self.seq[slots]
        return seqs

    def steps_at(self, slots: Integers, ts: Integers) -> tuple["SliceTable", Integers]:
        """Read steps at places of the episodes of other steps; see `StepTable.steps_at`."""
        numbers = self._links["episode"][slots]
        table = self._with_places(numbers, ts, ts)
        width = int(max(ts.max(initial=0), table._links["t"].max(initial=0))) + 2
        codes = table._links["episode"].astype(np.int64) * width + table._links["t"]
        is_live = (table._links["flags"] & LIVE) != 0
        live = np.flatnonzero(is_live)
        order, places = _places_in(codes[live], numbers * width + ts)
        if not len(live):
            return table, places
        return table, np.where(places == NONE, NONE, live[order[places]])

    def episode_steps(self, slots: Integers) -> tuple["SliceTable", list[Integers]]:
        """Read all steps of the episodes of some steps; see `StepTable.episode_steps`."""
        numbers = self._links["episode"][slots]
        table = self._with_places(
            numbers, np.zeros(len(numbers), np.int64), self.episodes.length[numbers] - 1
        )
        links = table._links
        steps = np.flatnonzero((links["flags"] & LIVE) != 0)
        codes = np.stack([links["episode"][steps], links["t"][steps]])
        _, first = np.unique(codes, axis=1, return_index=True)
        steps = steps[first]
        return table, [steps[links["episode"][steps] == number] for number in numbers]

    def _with_places(self, numbers: Integers, firsts: Integers, lasts: Integers) -> "SliceTable":
        """Return a table with the steps between places of episodes, given by their numbers here."""
        assert self._read_places is not None
        ids = list(self.episodes.numbers)
        columns = numbers.tolist(), firsts.tolist(), lasts.tolist()
        ranges = {(ids[number], first, last) for number, first, last in zip(*columns, strict=True)}
        return self._read_places(sorted(ranges))

    def records_at(self, index: Integers) -> tuple[NDArray[Any] | list[Any], Integers]:
        """Return the typed fields of steps, records or the bytes of each; and for each slot of an
        index where those of its step are, -1 for a missing step.
        """
        if self._read_steps is None or None not in self._slices.records:
            return self._records, index
        seqs = np.unique(self.seq[index[index != NONE]])
        keys = self._read_steps(seqs.tolist())
        records = records_of(self.layout, keys.slices)
        order, places = _places_in(keys.seq, self.seq[index])
        if len(order):
            places = np.where((index == NONE) | (places == NONE), NONE, order[places])
        by_seq = {seq: place for place, seq in enumerate(keys.seq.tolist())}
        seqs_of = [(int(self.seq[slot]), block) for slot, block in self._replaced]
        replaced = [(by_seq.get(seq), seq, block) for seq, block in seqs_of]
        return self._with_replaced(records, replaced), places

    @cached_property
    def _records(self) -> NDArray[Any] | list[Any]:
        replaced = [(slot, int(self.seq[slot]), block) for slot, block in self._replaced]
        return self._with_replaced(records_of(self.layout, self._slices), replaced)

    def _with_replaced(
        self, records: NDArray[Any] | list[Any], replaced: Sequence[tuple[int | None, int, bytes]]
    ) -> NDArray[Any] | list[Any]:
        """Put the fields of replaced steps, (place, seq, block), into records."""
        for place, seq, block in replaced:
            if place is None:
                continue
            (row,) = expanded_rows(self.layout, [block], [0], [seq])
            if isinstance(records, np.ndarray):
                records = records if records.flags.writeable else records.copy()
                records[place] = np.frombuffer(row, self.layout.record)[0]
            else:
                records[place] = row
        return records

    def built_in(self, name: str) -> NDArray[Any]:
        """Return a value that every step has, of each step."""
        if name == "reward":
            return as_float32(self._links["reward"])
        if name in ON_REQUEST:
            values = self._values.get(name)
            return (
                np.full(self.n_slots, np.nan, np.float32) if values is None else as_float32(values)
            )
        flag = TERMINATED if name == "terminated" else TRUNCATED
        of_steps: Flags = (self._links["flags"] & flag) != 0
        return of_steps


class StepsInSlices:
    """Steps of slices, at places of which some have no step; see `StepsAt`."""

    def __init__(self, table: SliceTable, index: Integers) -> None:
        self._table, self._index = table, index

    def fields(self, names: Sequence[str]) -> Arrays:
        """Return declared fields; see `StepsAt.fields`."""
        if not names:
            return {}
        arrays = self._stored(names)
        for name in self._table.late.keys() & arrays.keys():
            slots, values = self._table.late[name]
            places = np.searchsorted(slots, self._index).clip(max=len(slots) - 1)
            is_late = slots[places] == self._index
            arrays[name][is_late] = values[places][is_late]
        return arrays

    def _stored(self, names: Sequence[str]) -> Arrays:
        table = self._table
        records, index = table.records_at(self._index)
        if isinstance(records, np.ndarray):
            place = self._place if index is self._index else _Place(index)
            return {name: place.taken(records[name]) for name in names}
        distinct, firsts, inverse = np.unique(index, return_index=True, return_inverse=True)
        there = distinct[distinct >= 0].tolist()
        slots = self._index.reshape(-1)[firsts]
        seqs = table.seq[slots[distinct >= 0]].tolist()
        columns = table.layout.unpack_expanded([records[i] for i in there], names, seqs=seqs)
        n_missing = len(distinct) - len(there)
        places = inverse.reshape(self._index.shape)
        return {
            name: np.concatenate([np.zeros((n_missing, *v.shape[1:]), v.dtype), v])[places]
            for name, v in columns.items()
        }

    def built_in(self, names: Sequence[str]) -> Arrays:
        """Return values that every step has; see `StepsAt.built_in`."""
        return {name: self._place.taken(self._table.built_in(name)) for name in names}

    @cached_property
    def _place(self) -> "_Place":
        return _Place(self._index)

    def is_any_barred(self) -> Flags:
        """Return in which rows of the index a step may not be sampled; see `StepsAt`."""
        slots = np.maximum(self._index, 0).reshape(-1)
        flags = self._table.gathered_links(slots)["flags"].reshape(self._index.shape)
        is_barred = ((flags & BARRED) != 0) & (self._index != NONE)
        any_barred: Flags = np.asarray(is_barred.any(axis=tuple(range(1, self._index.ndim))))
        return any_barred


class _Place:
    """Places of values, of which some are missing.

    Args:
        index: The places; -1 for a missing value.
    """

    def __init__(self, index: Integers) -> None:
        is_missing = index < 0
        self._index, self._is_missing = index, is_missing if is_missing.any() else None
        if self._is_missing is not None:
            self._index = np.maximum(index, 0)

    def taken(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the values, zeros for missing ones."""
        if not len(values):
            return np.zeros((*self._index.shape, *values.shape[1:]), values.dtype)
        taken = values.take(self._index, axis=0)
        if self._is_missing is not None:
            taken[self._is_missing] = np.zeros((), values.dtype)
        return taken


def _at_replaced(seq: Integers, links: NDArray[Any], marks: Marks) -> list[tuple[int, bytes]]:
    """Put replaced rewards and flags into links; return slots with the blocks of their fields."""
    blocks = []
    for number, block, reward, terminated, truncated in marks.replaced:
        for slot in np.flatnonzero(seq == number).tolist():
            links["reward"][slot] = np.nan if reward is None else reward
            kept = int(links["flags"][slot]) & ~ENDS
            links["flags"][slot] = kept | flags_of_ends(terminated, truncated)
            blocks.append((slot, block))
    return blocks


def _places_in(numbers: Integers, wanted: Integers) -> tuple[Integers, Integers]:
    """Return an order that sorts numbers, and the place of each wanted one in it; -1 for none."""
    if not len(numbers):
        return numbers, np.full(wanted.shape, NONE)
    order = np.argsort(numbers)
    ordered = numbers[order]
    places = np.searchsorted(ordered, wanted).clip(max=len(ordered) - 1)
    return order, np.where(ordered[places] == wanted, places, NONE)


def _neighbours(
    of: Integers, first_t: Integers, counts: Integers, starts: Integers
) -> tuple[Integers, Integers]:
    """Return for each run of steps the slot after its last step, and the one before its first.

    Args:
        of: Number of the episode of each run; -1 for none.
        first_t: Place of its first step in the episode.
        counts: Number of steps.
        starts: Slot of the first step.
    """
    if not (of != NONE).any():
        return np.full(len(of), NONE), np.full(len(of), NONE)
    last_t = first_t + counts - 1
    width = int(last_t.max()) + 2
    order = np.lexsort((first_t, of))
    firsts = (of * width + first_t)[order]
    # Of the runs of an episode that begin before a step, the one that reaches furthest.
    ends = np.maximum.accumulate((of * width + last_t)[order])
    furthest = np.maximum.accumulate(
        np.where((of * width + last_t)[order] == ends, np.arange(len(order)), 0)
    )

    def slot_of(t: Integers) -> Integers:
        codes = of * width + t
        run_before = np.searchsorted(firsts, codes, side="right") - 1
        is_there = (of != NONE) & (t >= 0) & (run_before >= 0)
        run_before = np.maximum(run_before, 0)
        run = order[furthest[run_before]]
        is_there &= (of[run] == of) & (first_t[run] <= t) & (t <= last_t[run])
        return np.where(is_there, starts[run] + t - first_t[run], NONE)

    return slot_of(last_t + 1), slot_of(first_t - 1)
