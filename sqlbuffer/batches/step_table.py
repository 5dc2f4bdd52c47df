"""Steps in slots, of which batches are made, and how they follow each other in episodes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.packing import Layout

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Arrays = dict[str, NDArray[Any]]

# No step, or no episode.
NONE = -1
# Flags of a step. LIVE: the buffer has it. BARRED: it may not be sampled now. TOLD: it shows
# whether the episode ended there. LAST: the episode has ended with it.
TERMINATED, TRUNCATED, LAST, LIVE, BARRED, TOLD = 1, 2, 4, 8, 16, 32
# `terminated`, or `truncated`, is None.
NO_TERMINATED, NO_TRUNCATED = 64, 128
ENDS = TERMINATED | TRUNCATED | TOLD | NO_TERMINATED | NO_TRUNCATED
# `next` and `prev` are the slots of the neighbours in the episode, `t` is the place in it.
LINK: np.dtype[Any] = np.dtype(
    [
        ("reward", np.float64),
        ("next", np.int32),
        ("prev", np.int32),
        ("episode", np.int32),
        ("t", np.int32),
        ("flags", np.uint8),
    ],
    align=True,
)
OPEN, COMPLETE, ABORTED = range(3)
STATUS_NAMES: NDArray[Any] = np.array(["open", "complete", "aborted"], object)


def flags_of_ends(terminated: bool | None, truncated: bool | None) -> int:
    """Return the flags of a step that show `terminated` and `truncated`, of `ENDS`."""
    flags_by_end = zip(
        (terminated, truncated), (TERMINATED, TRUNCATED), (NO_TERMINATED, NO_TRUNCATED), strict=True
    )
    flags = 0 if terminated is None and truncated is None else TOLD
    for value, flag, none in flags_by_end:
        flags |= none if value is None else flag * bool(value)
    return flags


class Episodes(Protocol):
    """The episodes of the steps, by a number that a table gives them.

    Attributes:
        status: `OPEN`, `COMPLETE` or `ABORTED` of each number, int8.
        length: Number of steps, -1 while it is open, int64.
        keys: The user's id of each, object.
        finals: Bytes of the final observation of each, None if it has none, object.
        returns: The sum of rewards of each, NaN while it is open, float64.
        rewards: Own reward of each, NaN if it has none, float64.
        n_aborted: Number of aborted episodes.
    """

    status: NDArray[np.int8]
    length: Integers
    keys: NDArray[Any]
    finals: NDArray[Any]
    returns: NDArray[np.float64]
    rewards: NDArray[np.float64]
    n_aborted: int


class StepsAt(Protocol):
    """Steps at places of which some have no step; values of a missing step are zero."""

    def fields(self, names: Sequence[str]) -> Arrays:
        """Return declared fields, of shape (*index.shape, *shape).

        Those of varying length are padded with zeros to the longest, and come with their lengths,
        `<name>_lens`.
        """

    def built_in(self, names: Sequence[str]) -> Arrays:
        """Return values that every step has, such as `reward`, of shape index.shape."""

    def is_any_barred(self) -> Flags:
        """Return in which rows of the index a step may not be sampled, shape (len(index),)."""


class StepTable(Protocol):
    """Steps in slots: a mirror's memory, or the steps that a draw by SQL has read.

    The same step may be in several slots. Neighbours are mostly in neighbouring slots.

    Attributes:
        layout: The typed fields.
        n_slots: Number of slots.
        has_barred: Some steps may not be sampled.
        episodes: The episodes.
    """

    layout: Layout
    has_barred: bool

    @property
    def n_slots(self) -> int: ...

    @property
    def episodes(self) -> Episodes: ...

    def gathered_links(self, slots: Integers) -> NDArray[Any]:
        """Return the `LINK` of each slot, shape (n,)."""

    def run_lengths(self, slots: Integers, most: int, back: bool) -> Integers:
        """Return how many steps that the buffer has follow each other in neighbouring slots.

        Args:
            slots: The slot of the first step of each run, shape (n,).
            most: Runs of more steps may be cut to this number or more.
            back: Each run goes back, to the steps before.
        """

    def gathered(self, slots: Integers) -> Any:
        """Return the steps of slots in a form that the next three methods take."""

    def fields_of(self, steps: Any, names: Sequence[str], built_in: Sequence[str] = ()) -> Arrays:
        """Return fields of gathered steps, as `StepsAt` does."""

    def fields_at(self, slots: Integers, names: Sequence[str]) -> Arrays:
        """Return fields of the steps in some slots, shape (n,), as `StepsAt` does."""

    def episodes_of(self, steps: Any) -> Integers:
        """Return the number of the episode of gathered steps, `NONE` for none; shape (n,)."""

    def info_of(self, steps: Any, with_place: bool) -> Callable[[], Arrays]:
        """Return a function that makes the info of a batch, also after the table has changed.

        Args:
            steps: Gathered steps.
            with_place: The info has `episode` and `t` too.
        """

    def at(self, index: Integers) -> StepsAt:
        """Return the steps in some slots, of any shape; `NONE` for a missing step."""

    def seqs_of(self, slots: Integers) -> Integers:
        """Return the numbers of the steps in some slots, shape (n,)."""

    def steps_at(self, slots: Integers, ts: Integers) -> tuple["StepTable", Integers]:
        """Return steps at places of the episodes of other steps.

        Args:
            slots: The other steps, shape (n,).
            ts: The places, shape (n,).

        Returns:
            A table with the steps, and their slots in it; `NONE` where the buffer has none.
        """

    def episode_steps(self, slots: Integers) -> tuple["StepTable", list[Integers]]:
        """Return all steps of the episodes of some steps.

        Returns:
            A table with the steps, and for each of the slots those of its episode in order.
        """


def bytes_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of plain bytes of the same size."""
    return np.dtype(f"V{dtype.itemsize}")


def as_records(values: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return values that follow each other as records of the same size; not a copy."""
    return np.ndarray(len(values), dtype, values)  # a quarter of the time of `view`


def as_float32(values: NDArray[Any]) -> NDArray[np.float32]:
    """Return a copy of rewards as batches have them; those too large are infinite."""
    if values.dtype == np.float32:
        return values.copy()
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def info_with(info: Callable[[], Arrays], more: Mapping[str, NDArray[Any]]) -> Callable[[], Arrays]:
    """Return a function that makes an info with more arrays."""
    return lambda: info() | dict(more)


def with_zeros(values: NDArray[Any], n: int, before: int = 0) -> NDArray[Any]:
    """Return values with zeros before and after them on axis 1, n in all.

    Zeros that are not written to take no memory.
    """
    width = values.shape[1]
    if width == n:
        return values
    padded = np.zeros((len(values), n, *values.shape[2:]), values.dtype)
    padded[:, before : before + width] = values
    return padded


# An open episode may have more; only the memory that a plan takes depends on it.
LIKELY_STEPS = 1_024
# Number of steps whose links are tested together: a run of steps is seldom longer.
MOST_AHEAD = 256


def longest(table: StepTable, slots: Integers) -> int:
    """Return how many steps the episodes of some steps are likely to have at most."""
    length = table.episodes.length
    of = table.gathered_links(slots)["episode"]
    known = int(length[of].max(initial=0)) if len(length) else 0
    return max(known, LIKELY_STEPS)


def tested_run_lengths(table: StepTable, slots: Integers, most: int, back: bool) -> Integers:
    """Return `StepTable.run_lengths` by testing the links of the slots around."""
    direction, link = (-1, "prev") if back else (1, "next")
    near = slots[:, None] + direction * np.arange(min(most, MOST_AHEAD))
    links = table.gathered_links(near.clip(0, table.n_slots - 1).reshape(-1)).reshape(near.shape)
    is_reached = ((links["flags"] & LIVE) != 0) & (near >= 0)
    is_reached[:, 1:] &= links[link][:, :-1] == near[:, 1:]
    lens: Integers = np.logical_and.accumulate(is_reached, axis=1).sum(axis=1)
    return lens


def chains(
    table: StepTable, slots: Integers, most: int | None = None, *, back: bool = False
) -> Integers:
    """Return the slots of steps and of those after them in their episodes, shape (b, n); -1 from
    the first on that the buffer does not have. n is the length of the longest.

    Mostly steps that follow each other are next to each other: the links are followed by runs of
    such slots.

    Args:
        table: The steps.
        slots: Where to begin, shape (b,).
        most: Largest n, with the first one; None: there is no limit.
        back: The steps before, from the newest to the oldest.
    """
    direction, link = (-1, "prev") if back else (1, "next")
    rows, offsets, starts = np.arange(len(slots)), np.zeros(len(slots), np.int64), slots
    most = table.n_slots if most is None else most
    runs: list[tuple[Integers, Integers, Integers]] = []
    while len(rows):
        lens = np.minimum(
            table.run_lengths(starts, most - int(offsets.min()), back), most - offsets
        )
        chain = np.repeat(np.arange(len(rows)), lens)
        place = np.arange(len(chain)) - np.repeat(np.cumsum(lens) - lens, lens)
        runs.append((rows[chain], offsets[chain] + place, starts[chain] + direction * place))
        # A run that ends here may continue elsewhere.
        last = starts + direction * np.maximum(lens - 1, 0)
        starts = table.gathered_links(last)[link].astype(np.int64)
        offsets = offsets + lens
        goes_on = (lens > 0) & (starts != NONE) & (offsets < most)
        rows, offsets, starts = rows[goes_on], offsets[goes_on], starts[goes_on]
    n = max((int(places.max(initial=-1)) + 1 for _, places, _ in runs), default=0)
    chain_steps = np.full((len(slots), n), NONE, np.int64)
    for chain, places, steps in runs:
        chain_steps[chain, places] = steps
    return chain_steps
