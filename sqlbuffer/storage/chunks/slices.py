"""Slices of chunks: runs of consecutive steps, with their bytes."""

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.blocks import expanded_rows
from sqlbuffer.encoding.chunks import execute_times
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.steps import StepIds
from sqlbuffer.storage.schema.expressions import listed

Integers = NDArray[np.int64]

ALL_STEPS, ANY_SIZE = 2**30, 2**40
_NO_REWARD, _NO_END = struct.pack(">d", float("nan")), b"\0"


class Reach(NamedTuple):
    """Which steps to read around a key.

    Attributes:
        first: Offset of the first step from the key; negative for steps before it.
        last: Offset of the last step from the key; `ALL_STEPS` for all to the episode's end.
        stride: Only steps whose place in the episode is a multiple of this are keys; 1 for all.
        final_within: The final observation of an episode is read if it ends at most this many steps
            after the key; negative to read none.
        most_bytes: Typed fields are not read of chunks whose steps have more bytes on average.
        has_values: Read advantages and values.
        is_alone: No other steps are read, and no episodes.
    """

    first: int = 0
    last: int = 0
    stride: int = 1
    final_within: int = -ALL_STEPS
    most_bytes: int = ANY_SIZE
    has_values: bool = False
    is_alone: bool = False


class Parts(NamedTuple):
    """What is read of whole steps in addition to their columns.

    Attributes:
        fields: The typed fields.
        payloads: The JSON.
        arrays: The arrays to which the JSON refers.
    """

    fields: bool
    payloads: bool
    arrays: bool


class Slice(NamedTuple):
    """Consecutive steps of a chunk.

    Attributes:
        seq: Number of the first step.
        episode_id: Number of their episode in the database; None for none.
        t: Place of the first one in the episode.
        place: Place of the first one in the chunk.
        n: Number of steps.
        rewards: Their bytes of `chunk_data.rewards`.
        ends: Their bytes of `chunk_data.ends`.
        block_steps: Steps in a block.
        offsets: Offsets of all blocks of the chunk: a list, its JSON, or None.
        records: The blocks that hold these steps; None if the steps are too large to be read now.
        layout: Number of the layout of their bytes.
    """

    seq: int
    episode_id: int | None
    t: int | None
    place: int
    n: int
    rewards: Any
    ends: Any
    block_steps: int
    offsets: Any
    records: Any
    layout: int


class SliceColumns(NamedTuple):
    """The attributes of many slices; see `Slice`. `seq`, `t`, `place` and `n` are int64 arrays."""

    seq: Integers
    episode_id: Sequence[int | None]
    t: Integers  # -1 for none
    place: Integers
    n: Integers
    rewards: Sequence[Any]
    ends: Sequence[Any]
    block_steps: Sequence[int]
    offsets: Sequence[Any]
    records: Sequence[Any]
    layout: Sequence[int]

    def rows(self) -> list[Slice]:
        """Return each slice."""
        columns = (c.tolist() if isinstance(c, np.ndarray) else c for c in self)
        return list(map(Slice._make, zip(*columns, strict=True)))

    def runs(self) -> list[tuple[int, int, int]]:
        """Return for each slice its first number, its number of steps and its place."""
        return list(zip(self.seq.tolist(), self.n.tolist(), self.place.tolist(), strict=True))


class Keys(NamedTuple):
    """Steps that an item may be made of, with their slices and episodes, column by column.

    Attributes:
        seq: Their numbers, int64.
        task_id: Their tasks.
        agent_id: Their agents.
        step: Their step numbers.
        t: Their places in the episode, int64.
        first_t: Place of the first step of the chunk, int64.
        last_t: Place of the last step of the chunk, int64.
        slices: The slice of each key: the steps near to it in its chunk.
        episode_key, length, status, return_, reward, final: The episode; all None for none. The
            final observation is None if it is not within reach, too.
    """

    seq: Integers
    task_id: Sequence[str]
    agent_id: Sequence[str]
    step: Sequence[int]
    t: Integers
    first_t: Integers
    last_t: Integers
    slices: SliceColumns
    episode_key: Sequence[str | None]
    length: Sequence[int | None]
    status: Sequence[str | None]
    return_: Sequence[float | None]
    reward: Sequence[float | None]
    final: Sequence[Any]


_NO_NUMBERS: Integers = np.zeros(0, np.int64)
NO_SLICES = SliceColumns._make(
    _NO_NUMBERS if name in ("seq", "t", "place", "n") else () for name in SliceColumns._fields
)


def with_slices(slices: SliceColumns, more: Sequence[tuple[Any, ...]]) -> SliceColumns:
    """Return slices with more of them behind, which have the form of `Slice`."""
    if not more:
        return slices
    return SliceColumns._make(
        np.concatenate([column, np.array(further, np.int64)])
        if isinstance(column, np.ndarray)
        else (*column, *further)
        for column, further in zip(slices, zip(*more, strict=True), strict=True)
    )


# A row of a key that is read with the steps around it has these columns, and those of its episode,
# from `Keys.episode_key` on; t is the place in the episode of the first step of its chunk.
KEY_COLUMNS = (
    "seq", "task_id", "agent_id", "step", "t", "first_seq", "n_steps", "episode_id",
    "rewards", "ends", "block_steps", "offsets", "records", "layout",
)  # fmt: skip
# That of a step that is read alone.
STEP_COLUMNS = (
    "seq", "task_id", "agent_id", "step", "first_seq",
    "rewards", "ends", "block_steps", "offsets", "records", "layout",
)  # fmt: skip
_N_OF_EPISODE = 6


def keys_of(rows: Sequence[Sequence[Any]], reach: Reach) -> Keys:
    """Return the keys that were read as rows."""
    n_columns = len(STEP_COLUMNS) if reach.is_alone else len(KEY_COLUMNS) + _N_OF_EPISODE
    columns = list(zip(*rows, strict=True)) or [()] * n_columns
    seq = np.array(columns[0], np.int64)
    if reach.is_alone:
        _, *names, first_seq, rewards, ends, block_steps, offsets, records, layout = columns
        place, none = seq - np.array(first_seq, np.int64), (None,) * len(rows)
        zero, one, no_t = np.zeros(len(rows), np.int64), np.ones(len(rows), np.int64), -1
        slices = SliceColumns(
            seq, none, zero + no_t, place, one, rewards, ends, block_steps, offsets, records, layout
        )
        return Keys._make((seq, *names, zero, zero, zero, slices, *[none] * _N_OF_EPISODE))
    _, *names, ts, first_seq, n_steps, episode_id = columns[:8]
    firsts, counts = np.array(first_seq, np.int64), np.array(n_steps, np.int64)
    place_in_chunk = seq - firsts  # place in the chunk
    place, ends_at = (
        np.maximum(place_in_chunk + reach.first, 0),
        np.minimum(place_in_chunk + reach.last + 1, counts),
    )
    chunk_t = np.array([-1 if t is None else t for t in ts], np.int64)
    slice_t, first_t = chunk_t + place, chunk_t
    if None in episode_id:
        is_single = np.array([episode is None for episode in episode_id], bool)
        place, ends_at = (
            np.where(is_single, place_in_chunk, place),
            np.where(is_single, place_in_chunk + 1, ends_at),
        )
        slice_t, first_t = np.where(is_single, -1, slice_t), np.maximum(chunk_t, 0)
    of_slices = firsts + place, episode_id, slice_t, place, ends_at - place, *columns[8:14]
    places = first_t + place_in_chunk, first_t, first_t + counts - 1
    return Keys._make((seq, *names, *places, SliceColumns(*of_slices), *columns[14:]))


def missing_ranges(keys: Keys, reach: Reach) -> list[tuple[int, int, int]]:
    """Return the ranges of episodes, (episode, first t, last t), in reach but in other chunks."""
    t, first_t, last_t = keys.t, keys.first_t, keys.last_t
    episodes: Sequence[Any] = keys.slices.episode_id
    firsts, lasts = np.maximum(t + reach.first, 0), t + reach.last
    ranges = set()
    for i in np.flatnonzero(first_t > firsts).tolist():
        if episodes[i] is not None:
            ranges.add((episodes[i], int(firsts[i]), int(first_t[i]) - 1))
    for i in np.flatnonzero(last_t < lasts).tolist():
        if episodes[i] is not None:
            end, length = int(last_t[i]), keys.length[i]
            last = int(lasts[i]) if length is None else min(int(lasts[i]), length - 1)
            if end < last:
                ranges.add((episodes[i], end + 1, last))
    return sorted(ranges)


def unpacked_rewards(rewards: Sequence[Any], counts: Sequence[int]) -> NDArray[np.float64]:
    """Return the reward of each step of runs, NaN where it has none.

    Args:
        rewards: `chunk_data.rewards` of each run; None if no step has any.
        counts: Number of steps of each run.
    """
    if None in rewards:
        pairs = zip(rewards, counts, strict=True)
        rewards = [
            _NO_REWARD * n if rewards_of_run is None else rewards_of_run
            for rewards_of_run, n in pairs
        ]
    return np.frombuffer(b"".join(rewards), ">f8").astype(np.float64)


def ends_of(slices: SliceColumns) -> NDArray[np.uint8]:
    """Return for each step of slices 1 if its episode terminated there, 2 if it was truncated."""
    if not any(slices.ends):
        return np.zeros(int(slices.n.sum()), np.uint8)
    ends = [end or _NO_END * n for end, n in zip(slices.ends, slices.n.tolist(), strict=True)]
    return np.frombuffer(b"".join(ends), np.uint8)


def records_of(layout: Layout, slices: SliceColumns) -> NDArray[Any] | list[Any]:
    """Return the typed fields of each step of slices.

    Returns:
        An array of records, if all have one size; otherwise for each step its bytes, as
        `Layout.unpack_expanded` reads them.
    """
    layout.of(max(slices.layout, default=0))  # it may become a newer one
    size, is_newest = layout.size_bytes, min(slices.layout, default=0) == layout.number
    if size and is_newest and not layout.has_tails and not any(slices.offsets):
        sizes = list(map(len, slices.records))
        if sizes == (slices.n * size).tolist():
            return np.frombuffer(b"".join(slices.records), layout.record)
    return [row for one in slices.rows() for row in _rows_of(layout, one)]


def _rows_of(layout: Layout, one: Slice) -> list[Any]:
    stored_as = layout.of(one.layout)
    if one.offsets is None:
        rows = records_in(one.n, one.records)
    else:
        places = range(one.place, one.place + one.n)
        in_block = [place % one.block_steps for place in places]
        seqs = range(one.seq, one.seq + one.n)
        blocks = blocks_of(one.place, one.n, one.block_steps, one.offsets, one.records)
        rows = expanded_rows(stored_as, blocks, in_block, seqs)
    return rows if stored_as is layout else layout.converted(rows, stored_as)


def blocks_of(place: int, n: int, block_steps: int, offsets: Any, records: Any) -> list[Any]:
    """Return the block of each step of a slice with offsets; see `Slice`.

    Steps in the same block get the same object.
    """
    ends, size = listed(offsets), block_steps
    before = ends[place // size]
    numbers = range(place // size, (place + n - 1) // size + 1)
    blocks = {i: records[ends[i] - before : ends[i + 1] - before] for i in numbers}
    return [blocks[at // size] for at in range(place, place + n)]


def records_in(n: int, records: Any) -> list[Any]:
    """Return the record of each step of a slice without offsets; None if they have no fields."""
    view = memoryview(records)
    size = len(view) // n
    return [view[i * size : (i + 1) * size] for i in range(n)] if size else [None] * n


Reals = NDArray[np.float64]
Flags = NDArray[np.bool_]


class StepColumns:
    """Runs of consecutive steps, each within a chunk, with the columns of the chunks.

    A list of a chunk may be that of the whole chunk, or that of the run; it is JSON on SQLite.

    Args:
        of: The columns of the tables `chunks` and `chunk_data` by name, a value for each run.
        places: Place of the first step of each run in its chunk; None: all are whole chunks.
        counts: Number of steps of each run; None for whole chunks.

    Attributes:
        run_of: Run of each of the n steps, int64 of shape (n,).
        place: Place of each step in its chunk.
        starts: Where each run begins among the n steps.
    """

    def __init__(
        self,
        of: Mapping[str, Sequence[Any]],
        places: Sequence[int] | None = None,
        counts: Sequence[int] | None = None,
    ) -> None:
        self._of = of
        self._n_of = list(of["n_steps"] if counts is None else counts)
        self._places = [0] * len(self._n_of) if places is None else list(places)
        sizes = np.array(self._n_of, np.int64)
        self.run_of = np.repeat(np.arange(len(sizes)), sizes)
        self.starts = np.cumsum(sizes) - sizes
        first_places = np.array(self._places, np.int64)
        self.place: Integers = (
            np.arange(len(self.run_of)) + (first_places - self.starts)[self.run_of]
        )

    def __len__(self) -> int:
        return len(self.run_of)

    def _span(self, run: int) -> slice:
        start = int(self.starts[run])
        return slice(start, start + self._n_of[run])

    def _integers(self, name: str) -> Integers:
        return np.array(self._of[name], np.int64)[self.run_of]

    def _lists_of_runs(self, name: str) -> list[tuple[slice, Sequence[Any]]]:
        """Return for each run with a list where its steps are, and their values."""
        columns = zip(self._of[name], self._places, self._n_of, strict=True)
        lists = []
        for run, (values, place, n) in enumerate(columns):
            if values is not None:
                every = listed(values)
                part = every if len(every) in (0, n) else every[place : place + n]
                lists.append((self._span(run), part))
        return lists

    def spread(self, name: str) -> list[Any]:
        """Return a value that the steps of a chunk share, for each step."""
        values = self._of[name]
        return [value for value, n in zip(values, self._n_of, strict=True) for _ in range(n)]

    def ids(self, given_ids: dict[int, str] | None = None) -> StepIds:
        """Return the id of each step.

        Args:
            given_ids: Ids that users gave, by position among the steps.
        """
        return StepIds(list(map(str, self._of["id"])), self.run_of, self.place, given_ids or {})

    def steps(self) -> Integers:
        """Return the step number of each step."""
        steps = self._integers("step") + self.place
        for span, values in self._lists_of_runs("steps"):
            steps[span] = values
        return steps

    def ts(self) -> Integers:
        """Return the place of each step in its episode; -1 for none."""
        firsts = np.array([-1 if t is None else t for t in self._of["t"]], np.int64)[self.run_of]
        return np.where(firsts >= 0, firsts + self.place, -1)

    def times(self) -> Reals:
        """Return when each step was executed, in seconds since 1970; NaN for none."""
        first, last = (np.array(self._of[name], np.float64) for name in ("first_time", "last_time"))
        runs, sizes = self.run_of, self._integers("n_steps")
        times: Reals = execute_times(first[runs], last[runs], sizes, self.place)
        for span, values in self._lists_of_runs("times"):
            times[span] = np.array(values, np.float64)
        return times

    def reals(self, name: str) -> Reals | None:
        """Return a number of each step, NaN for none; None if no run has any."""
        lists = self._lists_of_runs(name)
        if not lists:
            return None
        reals = np.full(len(self), np.nan)
        for span, values in lists:
            reals[span] = np.array(values, np.float64)
        return reals

    def rewards(self) -> Reals:
        """Return the reward of each step, NaN for none."""
        return unpacked_rewards(self._of["rewards"], self._n_of)

    def flags(self, name: str) -> tuple[Flags, Flags]:
        """Return a flag of each step, and where it is missing."""
        flags, is_missing = np.zeros(len(self), bool), np.ones(len(self), bool)
        for span, values in self._lists_of_runs(name):
            # An empty list means False at every step.
            flags[span] = [value is True for value in values] if values else False
            is_missing[span] = [value is None for value in values] if values else False
        return flags, is_missing

    def payloads(self) -> list[Any]:
        """Return the JSON of each step as a tree, None for none; see `StepPayload`."""
        trees: list[Any] = [None] * len(self)
        for span, values in self._lists_of_runs("payloads"):
            trees[span] = values
        return trees
