"""Steps and rows given as columns, as chunks."""

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import accumulate, chain, pairwise, repeat
from operator import sub
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.display import shown
from sqlbuffer.encoding.blocks import RecordBlocks, pack_blocks
from sqlbuffer.encoding.chunks import (
    DTYPES,
    END_BYTES,
    ChunkColumns,
    PackedChunk,
    PayloadParts,
    StepPayload,
    Values,
    check_step_size,
    collected_payload,
    comparable_values,
    encode_payload,
    join_payloads,
    stored_times,
    stored_values,
)
from sqlbuffer.encoding.columns import (
    FLAGS,
    GivenColumns,
    check_columns,
    check_step_names,
    flag_of,
)
from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS, Layout, RowPacker
from sqlbuffer.encoding.priority_values import check_kept, checked_priority
from sqlbuffer.encoding.records import (
    MAX_JSON_BYTES,
    Record,
    encode_real,
    encode_rows,
)
from sqlbuffer.errors import FieldError
from sqlbuffer.fields import MAX_ROW_BYTES, Casting, FieldSpec, value_or_default
from sqlbuffer.steps import PAYLOADS, DataRow, uuid7s

Keys = tuple[Any, ...]  # the values of `GivenColumns.keys` for one step


class PackedColumns(NamedTuple):
    """Columns of steps as chunks.

    Attributes:
        chunks: The chunks, in the order in which they are numbered.
        order: For each step in that order its place in the columns, int64 of shape (n,).
    """

    chunks: ChunkColumns
    order: NDArray[np.int64]


def pack_columns(
    layout: Layout,
    columns: Mapping[str, Any],
    *,
    casting: Casting = "same_kind",
    episode: str | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> PackedColumns:
    """Return n steps as chunks.

    Steps of one episode, or else of one task, agent, model version and session, come one after the
    other, the groups in the order of their first steps. Steps of an episode keep their order, and a
    chunk ends where one of these keys changes.

    Args:
        layout: The declared fields.
        columns: For each declared field n values; `reward`, `terminated`, `truncated`, `id`
            likewise; `state`, `actions`, `messages`, `extra` n values as `add` takes them;
            `task_id`, `agent_id`, `step`, `model_version`, `session_id`, `episode_id` and
            `priority` n values or one.
        casting: See `FieldSpec.cast_rows`.
        episode: The episode that the n steps are, from its first to its last.
        max_row_bytes: Bytes that the fields and the payload of a step may have.

    Raises:
        FieldError: An unknown or missing field, another shape or number of rows, a value that the
            field cannot hold, a step that is too large; names the field or the row.
    """
    layout = layout.fixed
    checked = check_columns(layout, columns, casting)
    return pack_given(layout, checked, episode=episode, max_row_bytes=max_row_bytes)


def pack_given(
    layout: Layout,
    columns: GivenColumns,
    *,
    episode: str | None = None,
    max_row_bytes: int = MAX_ROW_BYTES,
) -> PackedColumns:
    """Return n steps that were checked as chunks; see `pack_columns`."""
    layout = layout.fixed
    if not columns.n_steps:
        return PackedColumns(ChunkColumns.of([]), np.empty(0, np.int64))
    records, tails = layout.records(columns.fields, columns.n_steps), layout.tails(columns.fields)
    sizes = None if tails is None else [layout.size_bytes + len(tail) for tail in tails]
    payloads = columns.encoded
    if columns.reward_tags or any(column is not None for column in columns.payloads):
        payloads = step_payloads(columns)
    if sizes or payloads or layout.size_bytes > max_row_bytes:
        sizes = checked_sizes(
            sizes or [layout.size_bytes] * columns.n_steps, payloads, max_row_bytes
        )
    keys, order, starts = _groups(columns, episode is not None)
    if order is not None:
        # Indexing takes 15 times as long.
        records, tails = records.take(order), _taken(tails, order)
        payloads, sizes = _taken(payloads, order), _taken(sizes, order)
    ranges = list(pairwise(starts))
    longest = 1 if len(ranges) == columns.n_steps else max(map(sub, starts[1:], starts))
    if longest > 1 and (sizes is not None or longest > _most_steps(layout)):
        cuts = [chunk_ranges(layout, sizes, *group) for group in ranges]
        ranges = list(chain.from_iterable(cuts))
        if len(ranges) > len(cuts):
            lengths = list(map(len, cuts))
            keys = {
                name: list(chain.from_iterable(map(repeat, values, lengths)))
                for name, values in keys.items()
            }
    blocks = pack_blocks(layout, records.view(np.uint8).data, tails, ranges)
    chunks = _cut_chunks(layout, columns, order, payloads, episode, None, ranges, keys, blocks)
    return PackedColumns(chunks, np.arange(columns.n_steps) if order is None else order)


def pack_ranges(
    layout: Layout,
    columns: GivenColumns,
    ranges: Sequence[tuple[int, int]],
    made_at: NDArray[np.float64] | None = None,
) -> ChunkColumns:
    """Return steps whose chunks are known as these chunks, without another look at the values.

    Args:
        layout: The typed fields.
        columns: The steps; of each of its `keys`, a list with the value of each chunk.
        ranges: The first step of each chunk, and the one after its last.
        made_at: When each step was made, for steps of episodes whose numbers are their places
            there; seconds since 1970, shape (n,).
    """
    records, tails = layout.records(columns.fields, columns.n_steps), layout.tails(columns.fields)
    blocks = pack_blocks(layout, records.view(np.uint8).data, tails, ranges)
    payloads, keys = columns.encoded, columns.keys
    return _cut_chunks(layout, columns, None, payloads, None, made_at, ranges, keys, blocks)


def step_payloads(given_columns: GivenColumns) -> list[StepPayload | None]:
    """Return the payload of each step; None where it has none."""
    payloads = []
    columns = (
        repeat(None, given_columns.n_steps) if column is None else column
        for column in given_columns.payloads
    )
    for i, values in enumerate(zip(*columns, strict=True)):
        try:
            payloads.append(encode_payload(values, given_columns.reward_tags.get(i, {})))
        except FieldError as error:
            raise FieldError(f"row {i}: {error}") from None
    return payloads


def checked_sizes(
    sizes: Sequence[int], payloads: Sequence[StepPayload | None] | None, limit: int
) -> list[int]:
    """Return the bytes of each step with its payload; raise if one is too large."""
    step_sizes = []
    for i, (size, payload) in enumerate(zip(sizes, payloads or repeat(None), strict=False)):
        n_bytes = size if payload is None else size + payload.n_bytes
        if n_bytes > min(limit, MAX_JSON_BYTES):
            check_step_size(payload, size, limit, f"row {i}: ")
        step_sizes.append(n_bytes)
    return step_sizes


def _groups(
    columns: GivenColumns, keeps_order: bool
) -> tuple[dict[str, Sequence[Any]], NDArray[np.int64] | None, Sequence[int]]:
    """Return the groups: for each key its value of each group, the order that puts groups together,
    or None for the given order, and where each group begins in it, with the end.

    Steps of an episode keep their order, or are put in that of their numbers and agents if it has
    several agents. One of its groups ends where another key changes.
    """
    n, names = columns.n_steps, list(columns.keys)
    keys = tuple(columns.keys.values())
    lists = [key for key in keys if isinstance(key, list)]
    if not lists:
        return {name: [key] for name, key in columns.keys.items()}, None, [0, n]
    # One key is hashed in a fifth of the time of a tuple of all.
    own_keys = lists[0] if len(lists) == 1 else list(zip(*lists, strict=True))
    numbers = {key: i for i, key in enumerate(dict.fromkeys(own_keys))}
    columns_of_keys = iter([list(numbers)] if len(lists) == 1 else zip(*numbers, strict=True))
    distinct = {
        name: next(columns_of_keys) if isinstance(key, list) else [key] * len(numbers)
        for name, key in columns.keys.items()
    }
    if len(numbers) == n and "episode_key" not in names:
        return distinct, None, range(n + 1)
    # Numpy sorts integers of 16 bits in a fifth of the time.
    dtype = np.uint16 if len(numbers) <= 2**16 else np.int64
    key_of = np.fromiter(map(numbers.__getitem__, own_keys), dtype, n)
    order = None
    if not keeps_order:
        if "episode_key" in names:
            distinct_keys: list[Keys] = list(zip(*distinct.values(), strict=True))
            streams: dict[Keys, int] = {}
            stream_of = [
                streams.setdefault(_stream(names, key), len(streams)) for key in distinct_keys
            ]
            stream = np.array(stream_of, dtype)[key_of]
            has_agents = _have_agents(names, distinct_keys, stream_of)
            if has_agents.any() and not columns.makes_steps:
                within = has_agents[stream]
                agents = _ranks(columns.agent_id)
                order = np.lexsort((agents * within, columns.steps * within, stream))
        else:
            stream = key_of
        if order is None and (stream[1:] < stream[:-1]).any():
            order = np.argsort(stream, kind="stable")
        if order is not None:
            key_of = key_of[order]
    starts = [0, *(np.flatnonzero(key_of[1:] != key_of[:-1]) + 1).tolist()]
    groups = key_of[starts].tolist()
    of_groups: dict[str, Sequence[Any]] = {
        name: [values[i] for i in groups] for name, values in distinct.items()
    }
    return of_groups, order, [*starts, n]


def _stream(names: list[str], key: Keys) -> Keys:
    """Return the keys of an episode, or all keys of steps outside episodes."""
    values = dict(zip(names, key, strict=True))
    episode = values.get("episode_key")
    return key if episode is None else (episode, values["task_id"])


def _have_agents(names: list[str], keys: list[Keys], stream_of: list[int]) -> NDArray[np.bool_]:
    """Return which streams are episodes with several agents.

    Args:
        names: Names of the keys of a group.
        keys: The keys of each group.
        stream_of: The stream of each group.
    """
    has_agents = np.zeros(max(stream_of) + 1, bool)
    if "episode_key" not in names:
        return has_agents
    episode, agent = names.index("episode_key"), names.index("agent_id")
    first_agent: dict[int, str] = {}
    for stream, key in zip(stream_of, keys, strict=True):
        if key[episode] is not None:
            has_agents[stream] |= first_agent.setdefault(stream, key[agent]) != key[agent]
    return has_agents


def _ranks(agents: str | list[str]) -> NDArray[np.int64]:
    """Return the place of each agent in the order of all of them, int64 of shape (n,)."""
    names = [agents] if isinstance(agents, str) else agents
    ranks = {name: rank for rank, name in enumerate(sorted(set(names)))}
    return np.array([ranks[name] for name in names], np.int64)


def _taken(values: Any, order: NDArray[np.int64] | None) -> Any:
    """Return values in an order; both may be None."""
    if values is None or order is None:
        return values
    if isinstance(values, list):
        return list(map(values.__getitem__, order.tolist()))
    return values[order]


def _most_steps(layout: Layout) -> int:
    """Return how many steps of one size a chunk has at most."""
    return min(MAX_CHUNK_STEPS, layout.chunk_bytes // (layout.size_bytes + END_BYTES)) or 1


def chunk_ranges(
    layout: Layout, sizes: list[int] | None, first: int, after: int
) -> list[tuple[int, int]]:
    """Return the first step of each chunk of a group, and the one after its last.

    Args:
        layout: The typed fields.
        sizes: Raw bytes of each step, where they differ.
        first: The first step of the group.
        after: The step after the last one.
    """
    if sizes is None:
        n = _most_steps(layout)
        return [(start, min(start + n, after)) for start in range(first, after, n)]
    ends = list(accumulate((size + END_BYTES for size in sizes[first:after]), initial=0))
    cuts, start = [], 0
    while start < after - first:
        fitting = bisect_right(ends, ends[start] + layout.chunk_bytes) - 1
        stop = max(start + 1, min(start + MAX_CHUNK_STEPS, fitting))
        cuts.append((first + start, first + stop))
        start = stop
    return cuts


def _cut_chunks(
    layout: Layout,
    columns: GivenColumns,
    order: NDArray[np.int64] | None,
    payloads: list[StepPayload | None] | None,
    episode: str | None,
    made_at: NDArray[np.float64] | None,
    ranges: Sequence[tuple[int, int]],
    keys: Mapping[str, Sequence[Any]],
    blocks: RecordBlocks,
) -> ChunkColumns:
    """Return steps as chunks.

    Args:
        layout: The typed fields.
        columns: The steps.
        order: The order of their numbers; None: that of the columns.
        payloads: Their payloads, in the order of their numbers.
        episode: The episode that the steps are, from its first to its last.
        made_at: See `pack_ranges`.
        ranges: The first step of each chunk, and the one after its last, in the order of numbers.
        keys: For each of `columns.keys` its value of each chunk.
        blocks: The records of each chunk.
    """
    starts, stops = zip(*ranges, strict=True)
    firsts = np.array(starts)
    steps: NDArray[np.int64] = _taken(columns.steps, order)
    packed_at = time.time()
    common = {
        "layout": layout.number,
        "episode_key": episode,
        "makes_steps": False,
        "first_time": packed_at,
        "last_time": packed_at,
    }
    # For each attribute that differs, its value of each chunk.
    varying: dict[str, Sequence[Any]] = {
        "id": uuid7s(len(ranges)),
        "n_steps": list(map(sub, stops, starts)),
        **keys,
        **blocks._asdict(),
        "step": steps[firsts].tolist(),
    }
    if episode is not None:
        varying["t"] = starts
    elif columns.makes_steps:
        episodes = varying.get("episode_key", [None] * len(ranges))
        varying["makes_steps"] = [key is not None for key in episodes]
    if made_at is not None:
        varying["t"] = varying["step"]
        varying["first_time"] = made_at[firsts].tolist()
        varying["last_time"] = made_at[np.array(stops) - 1].tolist()
    if order is not None or not columns.makes_steps:  # else they follow each other
        varying |= _step_lists(steps, ranges)
    slices = [slice(start, stop) for start, stop in ranges]
    varying |= _cut_values(layout, columns, order, slices)
    if payloads is not None:
        joined = [join_payloads(layout, payloads[places]) for places in slices]
        varying["payloads"], varying["payload_arrays"] = zip(*joined, strict=True)
    return ChunkColumns(len(ranges), common, varying)


def _step_lists(
    steps: NDArray[np.int64], ranges: Sequence[tuple[int, int]]
) -> dict[str, list[NDArray[np.int64] | None]]:
    """Return `steps` of each chunk, if those of any are not consecutive."""
    follows = (steps[1:] - 1 == steps[:-1]) & (steps[1:] > steps[:-1])
    if follows.all():
        return {}
    n_breaks = [0, *np.cumsum(~follows).tolist()]
    return {
        "steps": [
            None if n_breaks[start] == n_breaks[stop - 1] else steps[start:stop]
            for start, stop in ranges
        ]
    }


def _cut_values(
    layout: Layout,
    columns: GivenColumns,
    order: NDArray[np.int64] | None,
    slices: Sequence[slice],
) -> dict[str, Sequence[Any]]:
    """Return the values of the steps of each chunk by attribute; see `_cut_chunks`."""

    def cut(values: Any) -> list[Any]:
        return list(map(_taken(values, order).__getitem__, slices))

    priority = None if columns.priority is None else np.array(columns.priority, np.float64)
    per_step = {
        "reward": columns.reward,
        "terminated": columns.terminated,
        "truncated": columns.truncated,
        "initial_priority": priority,
        "ids": columns.ids,
    }
    parts: dict[str, Sequence[Any]] = {
        name: cut(values) for name, values in per_step.items() if values is not None
    }
    if columns.reward is not None and (columns.reward_tags or columns.encoded is not None):
        parts["reward"] = list(map(_held_rewards, parts["reward"]))
    for name, values in columns.more_values.items():
        if name == "times":
            times = zip(*map(stored_times, cut(values)), strict=True)
            parts |= zip(("first_time", "last_time", "times"), times, strict=True)
        else:
            parts[name] = [stored_values(part, DTYPES[name]) for part in cut(values)]
    comparable = [name for name, spec in layout.specs.items() if spec.column]
    if comparable:
        of_fields = [comparable_values(_taken(columns.fields[name], order)) for name in comparable]
        parts["fields"] = [
            {name: values[places] for name, values in zip(comparable, of_fields, strict=True)}
            for places in slices
        ]
    return parts


def _held_rewards(rewards: NDArray[np.float64]) -> Values | None:
    """Return rewards as a chunk holds them; NaN is None."""
    if not np.isnan(rewards).any():
        return rewards
    values = [None if reward != reward else reward for reward in rewards.tolist()]
    return stored_values(values, np.float64)


def columns_of_rows(
    layout: Layout,
    rows: Sequence[DataRow],
    model_version: int | None = None,
    priority: Any = None,
    *,
    makes_steps: bool = False,
) -> GivenColumns:
    """Return the columns of rows.

    Args:
        layout: The typed fields of the buffer.
        rows: The rows, at least one.
        model_version: Version for rows that name none.
        priority: One number for all, or one for each; None: that of the buffer.
        makes_steps: Whether the numbers of the steps were made, and not given.

    Raises:
        FieldError: A value cannot be stored, or a field is missing or unknown; the message names
            the row.
    """
    records = encode_rows(rows, model_version, priority)
    check_declared(rows, layout)
    values: dict[str, list[Any]] = dict(
        zip(Record._fields, map(list, zip(*records, strict=True)), strict=True)
    )
    payloads = zip(*(values[name] for name in (*PayloadParts._fields[:-1], "arrays")), strict=True)
    rewards = np.array(values["reward_t"], np.float64)  # None is NaN
    names = ("adv_t", "v_t", "terminated", "truncated")
    return GivenColumns(
        n_steps=len(rows),
        fields={name: _cast(spec, rows) for name, spec in layout.specs.items()},
        reward=None if np.isnan(rewards).all() else rewards,
        reward_tags={},
        terminated=None,
        truncated=None,
        ids=values["id"],
        task_id=_one_or_each(values["task_id"]),
        agent_id=_one_or_each(values["agent_id"]),
        model_version=_one_or_each(values["model_version"]),
        session_id=_one_or_each(values["session_key"]),
        steps=np.array(values["step"], np.int64),
        priority=None if priority is None else values["initial_priority"],
        payloads=(),
        more_keys={
            name: _one_or_each(values[name])
            for name in ("task_name", "pre_agent", "episode_key", "group_key", "parent_key")
        },
        more_values={
            "times": values["execute_time"],
            **{name: values[name] for name in names if set(values[name]) != {None}},
        },
        encoded=[
            collected_payload(PayloadParts(state, actions, messages, extra, arrays or b""))
            for state, actions, messages, extra, arrays in payloads
        ],
        makes_steps=makes_steps,
    )


def check_declared(rows: Sequence[DataRow], layout: Layout) -> None:
    """Raise FieldError if a row has a typed field that the buffer does not declare."""
    for i, row in enumerate(rows):
        for name in row.fields:
            if name not in layout.specs:
                raise FieldError(
                    f"row {i}: unknown field {shown(name)}; the buffer has "
                    f"{', '.join(layout.specs) or 'no typed fields'}"
                )


def _cast(spec: FieldSpec, rows: Sequence[DataRow]) -> Any:
    """Return the values of a field: an array of shape (n, *shape), or a list of n arrays."""
    values = []
    for i, row in enumerate(rows):
        value = row.fields.get(spec.name)
        if value is None:
            value = value_or_default(spec, None, f"row {i}: field")
        values.append(value)
    if spec.is_variable:
        return [spec.cast(value, casting="same_kind") for value in values]
    return spec.cast_rows(values, casting="same_kind", copy=False)


def _one_or_each(values: list[Any]) -> Any:
    """Return the one value that all have in common, or the list of values."""
    return values[0] if len(set(values)) == 1 else values


class StepStream(NamedTuple):
    """Values that steps outside episodes share; attributes as in `EpisodeStart`."""

    task_id: str
    agent_id: str
    model_version: int | None = None
    session: str | None = None
    key: None = None


class PackedStep(NamedTuple):
    """A step, checked and encoded; one item of a `WriteQueue`.

    Attributes:
        of: Beginning of its episode, or values shared with other steps outside episodes.
        t: Its place within the episode; else its step number.
        time: When it was made, in seconds since 1970.
        row: The bytes of its typed fields, as `RowPacker` returns them.
        reward_t: Its reward as the column holds it.
        adv_t: Its advantage in the same form.
        v_t: Its value in the same form.
        terminated: The flag, if it was given.
        truncated: Flags in the same form.
        priority: Its initial priority, if it was given.
        payload: Its payload, if it has one.
        n_bytes: Bytes of both.
        layout: Number of the layout of `row`.
    """

    of: EpisodeStart | StepStream
    t: int
    time: float
    row: bytes
    reward_t: float | None
    adv_t: float | None
    v_t: float | None
    terminated: bool | None
    truncated: bool | None
    priority: float | None
    payload: StepPayload | None
    n_bytes: int
    layout: int = 0

    @property
    def episode_key(self) -> str | None:
        """The user's id of its episode, if it is of one."""
        return self.of.key

    @property
    def task_id(self) -> str:
        """Its task."""
        return self.of.task_id

    @property
    def n_steps(self) -> int:
        """1; a block of steps has more."""
        return 1

    @property
    def episodes(self) -> tuple[tuple[str | None, str]]:
        """Its episode, or None, and its task."""
        return ((self.of.key, self.of.task_id),)

    def without(self, episodes: AbstractSet[tuple[str | None, str]]) -> "PackedStep | None":
        """Return the step; None if it is of one of these episodes."""
        return None if (self.of.key, self.of.task_id) in episodes else self


class StepPacker:
    """Encodes the steps of one episode, or of none.

    Args:
        layout: The typed fields of the buffer.
        beginning: The episode, or the values that the steps share.
        casting: See `FieldSpec.cast_rows`.
        has_priorities: Whether the buffer keeps priorities.
        max_row_bytes: Bytes that the fields and the payload of a step may have.

    Example:
        >>> from sqlbuffer.fields import parse_specs
        >>> layout = Layout(parse_specs({"x": ("float32", (2,))}))
        >>> packer = StepPacker(layout, EpisodeStart("e", "task", "agent"), "same_kind", False)
        >>> step = packer.encode(0, {"x": np.ones(2, np.float32), "reward": 0.5})
        >>> step.reward_t, len(step.row)
        (0.5, 8)
        >>> (chunk,) = pack_steps(layout, [step]).chunks
        >>> chunk.n_steps, len(chunk.records)
        (1, 8)
    """

    def __init__(
        self,
        layout: Layout,
        beginning: EpisodeStart | StepStream,
        casting: Casting,
        has_priorities: bool,
        max_row_bytes: int = MAX_ROW_BYTES,
    ) -> None:
        self._layout, self._casting, self._beginning = layout, casting, beginning
        self._has_priorities, self._max_row_bytes = has_priorities, max_row_bytes
        self._most_bytes = min(max_row_bytes, MAX_JSON_BYTES)  # without a second look
        self._begin(layout.fixed)

    def _begin(self, layout: Layout) -> None:
        """Encode the fields of a layout from now on."""
        self._fields = layout.specs.keys()
        self._plain = {*layout.specs, "reward", *FLAGS}
        self._packer, self._number = RowPacker(layout, self._casting), layout.number

    def encode(self, t: int, step: Mapping[str, Any]) -> PackedStep:
        """Return step t of the episode; it holds copies.

        Raises:
            FieldError: An unknown or missing field, a value that cannot be stored, or a step that
                is too large.
        """
        if self._number != self._layout.number:  # fields were added
            self._begin(self._layout.fixed)
        is_plain = self._plain.issuperset(step)
        if not is_plain:
            check_step_names(step, self._fields)
        tags: dict[str, Any] = {}
        reward = step.get("reward")
        if isinstance(reward, np.ndarray) and not reward.ndim:
            reward = reward[()]
        reward = encode_real(reward, "reward_t", "reward", tags)
        row, payload, priority = self._packer.pack(step), None, None
        n_bytes = len(row)
        adv_t = v_t = None
        if not is_plain:
            adv_t = encode_real(step.get("adv_t"), "adv_t", "adv_t", tags)
            v_t = encode_real(step.get("v_t"), "v_t", "v_t", tags)
        if tags or not is_plain:
            payload = encode_payload([step.get(name) for name in PAYLOADS], tags)
            priority = self._priority(step)
            n_bytes += 0 if payload is None else payload.n_bytes
        if n_bytes > self._most_bytes:
            check_step_size(payload, len(row), self._max_row_bytes, f"step {t}: ")
        terminated, truncated = step.get("terminated"), step.get("truncated")
        if terminated is not None and type(terminated) is not bool:
            terminated = flag_of(terminated, "terminated")
        if truncated is not None and type(truncated) is not bool:
            truncated = flag_of(truncated, "truncated")
        return PackedStep(
            self._beginning, t, time.time(), row, reward, adv_t, v_t, terminated, truncated,
            priority, payload, n_bytes, self._number,
        )  # fmt: skip

    def _priority(self, step: Mapping[str, Any]) -> float | None:
        priority = step.get("priority")
        if priority is None:
            return None
        check_kept(self._has_priorities)
        return checked_priority(priority)


def pack_steps(layout: Layout, steps: Sequence[PackedStep]) -> PackedColumns:
    """Return steps as chunks: those of an episode, or of a stream, one after the other, in the
    order in which the episodes come first.

    Args:
        layout: The typed fields of the buffer.
        steps: The steps; those of an episode in their order, without one missing.
    """
    layout = layout.fixed
    steps = [step if step.layout == layout.number else _completed(layout, step) for step in steps]
    places: dict[int, list[int]] = {}
    for i, step in enumerate(steps):
        places.setdefault(id(step.of), []).append(i)
    order = [i for group in places.values() for i in group]
    ordered = steps if len(places) == 1 else [steps[i] for i in order]
    size, sizes = layout.size_bytes, [step.n_bytes for step in ordered]
    ranges: list[tuple[int, int]] = []
    start = 0
    for group in places.values():
        ranges += chunk_ranges(layout, sizes, start, start + len(group))
        start += len(group)
    rows: Sequence[bytes] = [step.row for step in ordered]
    tails = None
    if layout.has_tails:
        tails = [row[size:] for row in rows]
        rows = [row[:size] for row in rows]
    records = b"".join(rows)
    blocks = pack_blocks(layout, records, tails, ranges)
    ids = uuid7s(len(ranges))
    chunks = [
        _chunk(
            layout, ids[i], ordered[start:stop], records[start * size : stop * size],
            blocks.records[i], blocks.block_steps[i], blocks.offsets[i],
        )
        for i, (start, stop) in enumerate(ranges)
    ]  # fmt: skip
    return PackedColumns(ChunkColumns.of(chunks), np.array(order, np.int64))


def _completed(layout: Layout, step: PackedStep) -> PackedStep:
    """Return a step that was encoded before fields were added."""
    (row,) = layout.converted([step.row], layout.of(step.layout))
    n_bytes = step.n_bytes + len(row) - len(step.row)
    return step._replace(row=row, n_bytes=n_bytes, layout=layout.number)


def _chunk(
    layout: Layout,
    id_: str,
    steps: Sequence[PackedStep],
    records: bytes,
    stored: bytes,
    block_steps: int,
    offsets: Any,
) -> PackedChunk:
    columns = dict(zip(PackedStep._fields, zip(*steps, strict=True), strict=True))
    of, first = steps[0].of, steps[0].t
    numbers = np.array(columns["t"], np.int64)
    fields = None
    comparable = [name for name, spec in layout.specs.items() if spec.column]
    if comparable:
        values = np.frombuffer(records, layout.record)
        fields = {name: comparable_values(values[name]) for name in comparable}
    texts, arrays = join_payloads(layout, columns["payload"])
    return PackedChunk(
        id_,
        len(steps),
        of.task_id,
        None,
        of.agent_id,
        None,
        of.key,
        of.session,
        of.model_version,
        None if of.key is None else first,
        first,
        None if (numbers == np.arange(first, first + len(steps))).all() else numbers,
        steps[0].time,
        steps[-1].time,
        stored_values(columns["reward_t"], np.float64),
        stored_values(columns["adv_t"], np.float64),
        stored_values(columns["v_t"], np.float64),
        stored_values(columns["terminated"], np.bool_),
        stored_values(columns["truncated"], np.bool_),
        stored_values(columns["priority"], np.float64),
        fields,
        stored,
        block_steps,
        offsets,
        texts,
        arrays,
        None,
        layout=layout.number,
    )
