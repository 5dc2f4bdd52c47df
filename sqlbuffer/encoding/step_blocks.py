"""Blocks of steps that several environments take together, and the chunks that are cut from them.

A block has no loop over its steps: its arrays are put in order, environment by environment, and cut
where an episode or a chunk ends.
"""

from collections.abc import Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.encoding.chunks import ChunkColumns, StepPayload
from sqlbuffer.encoding.column_chunks import (
    checked_sizes,
    chunk_ranges,
    pack_ranges,
    step_payloads,
)
from sqlbuffer.encoding.columns import GivenColumns, check_columns
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.packing import Layout

# The number of an episode where an environment took no step.
NO_EPISODE = -1


class NumberedEpisodes(dict[int, EpisodeStart]):
    """Beginnings of episodes by number; never changed."""

    @cached_property
    def names(self) -> list[tuple[str, str]]:
        """The id and the task of each episode."""
        return [(of.key, of.task_id) for of in self.values()]


@dataclass(frozen=True, eq=False)
class StepBlock:
    """Steps that environments took together, checked; one item of a `WriteQueue`.

    Attributes:
        writer: The writer; its blocks number episodes alike.
        columns: The k steps; those of an environment in their order. Their keys are those of
            `beginnings`.
        envs: The environment of each step; int64 of shape (k,).
        numbers: Number of the episode of each step, `NO_EPISODE` for one that another block has;
            int64 of shape (k,).
        places: Place of each step in its episode; int64 of shape (k,).
        times: When each step was made, in seconds since 1970; shape (k,).
        beginnings: The episodes; also others.
        layout: Number of the layout of the fields.
        step_bytes: Bytes of the record of a step.
    """

    writer: object
    columns: GivenColumns
    envs: NDArray[np.int64]
    numbers: NDArray[np.int64]
    places: NDArray[np.int64]
    times: NDArray[np.float64]
    beginnings: NumberedEpisodes
    layout: int
    step_bytes: int

    @cached_property
    def n_steps(self) -> int:
        """Number of steps."""
        return int(np.count_nonzero(self.is_step))

    @property
    def is_step(self) -> NDArray[np.bool_]:
        """False for steps that another block has, shape (k,)."""
        is_step: NDArray[np.bool_] = self.numbers != NO_EPISODE
        return is_step

    @property
    def n_bytes(self) -> int:
        """Bytes of their typed fields, those of varying length not counted."""
        return self.n_steps * self.step_bytes

    @property
    def episodes(self) -> Collection[tuple[str, str]]:
        """The episodes that the steps may be of; one object for blocks with the same beginnings."""
        return self.beginnings.names

    def without(self, episodes: AbstractSet[tuple[str | None, str]]) -> "StepBlock | None":
        """Return the steps of other episodes; None if there are none."""
        lost = [
            number for number, of in self.beginnings.items() if (of.key, of.task_id) in episodes
        ]
        return self.of_steps(~np.isin(self.numbers, lost)) if lost else self

    def split(self, n_steps: int) -> "tuple[StepBlock, StepBlock]":
        """Return the first steps, and the others; there are more."""
        is_first = np.cumsum(self.is_step) <= n_steps
        return (
            replace(self, numbers=np.where(is_first, self.numbers, NO_EPISODE)),
            replace(self, numbers=np.where(is_first, NO_EPISODE, self.numbers)),
        )

    def of_steps(self, chosen: NDArray[np.bool_]) -> "StepBlock | None":
        """Return some of the steps, given by flags of shape (k,); None if there are none."""
        numbers = np.where(chosen, self.numbers, NO_EPISODE)
        if not (numbers != NO_EPISODE).any():
            return None
        return self if chosen.all() else replace(self, numbers=numbers)

    def truncated(self, places: NDArray[np.int64]) -> "StepBlock":
        """Return the block with the steps at some places marked as truncated."""
        truncated = self.columns.truncated
        truncated = np.zeros(len(self.numbers), bool) if truncated is None else truncated.copy()
        truncated[places] = True
        return replace(self, columns=replace(self.columns, truncated=truncated))


class GrowingBlock:
    """A block to whose end its writer adds rows while it waits: a row is a step of each
    environment.

    The writer appends the values of a row, which the block does not have yet. The `WriteQueue` then
    counts it.

    Args:
        writer: See `StepBlock`.
        layout: The typed fields, as they are now.
        names: The fields that steps have, all of fixed shape; others have their default.
        n_envs: Number of environments.
        beginnings: The open episodes by number.

    Attributes:
        dtypes: The dtypes of the named fields.
        values: For each of them a list with the bytes of each row.
        rewards: A number for each step.
        terminated: A flag for each step.
        truncated: A flag for each step.
        times: When each row was made, in seconds since 1970.
        runs: Rows with the same episodes: the first row; and of each environment, in arrays of
            shape (n_envs,), the number of its episode and the place of row 0 in it, which may be
            negative.
        beginnings: The episodes by number; also others. Replaced, never changed.
        n_rows: Number of rows that the block has.
    """

    def __init__(
        self,
        writer: object,
        layout: Layout,
        names: Sequence[str],
        n_envs: int,
        beginnings: NumberedEpisodes,
    ) -> None:
        self._writer, self._layout, self._names = writer, layout, names
        self.row_steps, self.row_bytes = n_envs, n_envs * layout.size_bytes
        self.dtypes = [layout.specs[name].dtype for name in names]
        self.values: list[list[bytes]] = [[] for _ in names]
        self.rewards: list[float] = []
        self.terminated: list[bool] = []
        self.truncated: list[bool] = []
        self.times: list[float] = []
        self.runs: list[tuple[int, NDArray[np.int64], NDArray[np.int64]]] = []
        self.beginnings = beginnings
        self.n_rows = 0

    @property
    def n_steps(self) -> int:
        """Number of steps."""
        return self.n_rows * self.row_steps

    @property
    def n_bytes(self) -> int:
        """Bytes of their typed fields."""
        return self.n_rows * self.row_bytes

    @property
    def episodes(self) -> Collection[tuple[str, str]]:
        """The episodes that the steps may be of."""
        return self.beginnings.names

    def without(
        self, episodes: AbstractSet[tuple[str | None, str]]
    ) -> "GrowingBlock | StepBlock | None":
        """Return the steps of other episodes; None if there are none."""
        return self if episodes.isdisjoint(self.episodes) else self.steps().without(episodes)

    def split(self, n_steps: int) -> tuple[StepBlock, StepBlock]:
        """Return the first steps, and the others; there are more."""
        return self.steps().split(n_steps)

    def next_block(self) -> "GrowingBlock":
        """Return another block with the values of the row that this block does not have yet."""
        _, numbers, firsts = self.runs[-1]
        beginnings = NumberedEpisodes((k, self.beginnings[k]) for k in numbers.tolist())
        block = GrowingBlock(self._writer, self._layout, self._names, self.row_steps, beginnings)
        for of_block, of_this in zip(block._lists, self._lists, strict=True):
            of_block += of_this[len(of_this) * self.n_rows // (self.n_rows + 1) :]
        block.runs.append((0, numbers, firsts + self.n_rows))
        return block

    @property
    def _lists(self) -> list[list[Any]]:
        return [*self.values, self.rewards, self.terminated, self.truncated, self.times]

    def steps(self) -> StepBlock:
        """Return the rows that the block has now, as its steps."""
        n, n_steps, layout = self.n_rows, self.n_steps, self._layout
        columns: dict[str, NDArray[Any]] = {}
        for name, rows in zip(self._names, self.values, strict=True):
            spec = layout.specs[name]
            array = np.frombuffer(b"".join(rows[:n]), spec.dtype)
            columns[name] = array.reshape(n_steps, *spec.shape)
        columns["reward"] = np.array(self.rewards[:n_steps], np.float64)
        columns["terminated"] = np.array(self.terminated[:n_steps], bool)
        columns["truncated"] = np.array(self.truncated[:n_steps], bool)
        given = check_columns(layout, columns, "same_kind")
        first_rows, numbers, firsts = zip(*(run for run in self.runs if run[0] < n), strict=True)
        lengths = np.diff([*first_rows, n])
        places = np.repeat(firsts, lengths, axis=0) + np.arange(n)[:, None]
        return StepBlock(
            self._writer,
            checked_steps(layout, given, _NO_LIMIT, copy=False),
            np.tile(np.arange(self.row_steps), n),
            np.repeat(numbers, lengths, axis=0).reshape(-1),
            places.reshape(-1),
            np.repeat(self.times[:n], self.row_steps),
            self.beginnings,
            layout.number,
            layout.size_bytes,
        )


def pack_step_blocks(layout: Layout, blocks: Iterable[StepBlock]) -> list[ChunkColumns]:
    """Return the steps of blocks as chunks, those of each writer for themselves.

    Args:
        layout: The typed fields of the buffer.
        blocks: The blocks; those of a writer in the order of their steps.
    """
    layout = layout.fixed
    of_writers: dict[int, list[StepBlock]] = {}
    for block in blocks:
        of_writers.setdefault(id(block.writer), []).append(block)
    return [_packed(layout, group) for group in of_writers.values()]


# Columns that may be missing, and the values of a chunk that they are.
_OPTIONAL = {
    "reward": "reward",
    "terminated": "terminated",
    "truncated": "truncated",
    "priority": "initial_priority",
}


def _packed(layout: Layout, blocks: Sequence[StepBlock]) -> ChunkColumns:
    """Return the chunks of the blocks of one writer."""
    numbers = np.concatenate([block.numbers for block in blocks])
    # Environment by environment, and each in the order of its steps.
    order = np.argsort(np.concatenate([block.envs for block in blocks]), kind="stable")
    order = order[numbers[order] != NO_EPISODE]
    numbers = numbers[order]
    steps = np.concatenate([block.places for block in blocks])[order]
    columns = _joined(layout, [block.columns for block in blocks], order, steps)
    times = np.concatenate([block.times for block in blocks])[order]
    sizes = step_sizes(layout, columns, _NO_LIMIT)
    bounds = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(order)]
    ranges: list[tuple[int, int]] = []
    beginnings: list[EpisodeStart] = []
    distinct = {id(block.beginnings): block.beginnings for block in blocks}
    every = {number: of for beginnings in distinct.values() for number, of in beginnings.items()}
    for first, after in pairwise(bounds):
        cuts = chunk_ranges(layout, sizes, first, after)
        ranges += cuts
        beginnings += [every[int(numbers[first])]] * len(cuts)
    keyed = replace(
        columns,
        task_id=[of.task_id for of in beginnings],
        agent_id=[of.agent_id for of in beginnings],
        model_version=[of.model_version for of in beginnings],  # type: ignore[misc]
        session_id=[of.session for of in beginnings],  # type: ignore[misc]
        more_keys={"episode_key": [of.key for of in beginnings]},
    )
    return pack_ranges(layout, keyed, ranges, times)


_NO_LIMIT = 2**62  # the writer has checked the sizes


def checked_steps(
    layout: Layout, columns: GivenColumns, max_row_bytes: int, *, copy: bool
) -> GivenColumns:
    """Return columns whose payloads are encoded; with `copy`, their fields share no memory with the
    input.

    Raises:
        FieldError: A payload cannot be stored, or a step is too large.
    """
    if copy:
        for name, values in columns.fields.items():
            if isinstance(values, np.ndarray):
                columns.fields[name] = values.copy()
    if columns.reward_tags or any(column is not None for column in columns.payloads):
        columns = replace(columns, encoded=step_payloads(columns))
    step_sizes(layout, columns, max_row_bytes)
    return columns


def step_sizes(layout: Layout, columns: GivenColumns, max_row_bytes: int) -> list[int] | None:
    """Return the bytes of each step with its payload; None where all have the same.

    Raises:
        FieldError: A step is too large.
    """
    if not columns.encoded and not layout.has_tails and layout.size_bytes <= max_row_bytes:
        return None
    tails = layout.tails(columns.fields) or [b""] * columns.n_steps
    raw = [layout.size_bytes + len(tail) for tail in tails]
    return checked_sizes(raw, columns.encoded, max_row_bytes)


def _joined(
    layout: Layout,
    parts: Sequence[GivenColumns],
    order: NDArray[np.int64],
    steps: NDArray[np.int64],
) -> GivenColumns:
    """Return the steps of several columns, in an order."""
    places = order.tolist() if layout.has_tails else []
    fields: dict[str, Any] = {}
    for name, spec in layout.specs.items():
        values = [_field_of(part, spec) for part in parts]
        if spec.is_variable:
            flat = [value for part in values for value in part]
            fields[name] = [flat[place] for place in places]
        else:
            fields[name] = np.concatenate(values)[order]
    first = parts[0]
    optional: dict[str, Any] = dict.fromkeys(_OPTIONAL)
    more_values = {
        name: _values_of_some([part.more_values.get(name) for part in parts], parts, order)
        for name in dict.fromkeys(name for part in parts for name in part.more_values)
    }
    for name, attribute in _OPTIONAL.items():
        columns = [getattr(part, name) for part in parts]
        n_missing = sum(column is None for column in columns)
        if not n_missing:
            optional[name] = np.concatenate([*columns])[order]
        elif n_missing < len(columns):
            more_values[attribute] = _values_of_some(columns, parts, order)
    return replace(
        first,
        n_steps=len(order),
        fields=fields,
        steps=steps,
        makes_steps=False,
        reward_tags={},
        payloads=(None,) * len(first.payloads),
        encoded=_joined_payloads(parts, order),
        more_values=more_values,
        **optional,
    )


def _field_of(part: GivenColumns, spec: Any) -> Any:
    """Return the values of a field; of one that was added since, its default."""
    values = part.fields.get(spec.name)
    if values is not None:
        return values
    if spec.is_variable:
        return [spec.default_value] * part.n_steps
    return np.broadcast_to(spec.default_value, (part.n_steps, *spec.shape))


def _joined_payloads(
    parts: Sequence[GivenColumns], order: NDArray[np.int64]
) -> list[StepPayload | None] | None:
    if all(part.encoded is None for part in parts):
        return None
    payloads: list[StepPayload | None] = []
    for part in parts:
        payloads += [None] * part.n_steps if part.encoded is None else part.encoded
    return _taken(payloads, order)


def _values_of_some(
    columns: Sequence[Any], parts: Sequence[GivenColumns], order: NDArray[np.int64]
) -> list[Any]:
    """Return the values of a column that some blocks lack; None for their steps."""
    values: list[Any] = []
    for column, part in zip(columns, parts, strict=True):
        values += [None] * part.n_steps if column is None else np.asarray(column, object).tolist()
    return [None if value != value else value for value in _taken(values, order)]


def _taken(values: Sequence[Any], order: NDArray[np.int64]) -> list[Any]:
    return [values[place] for place in order.tolist()]
