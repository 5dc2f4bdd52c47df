"""Streams of the steps of a buffer, column by column, under a hold."""

import logging
import os
import weakref
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sqlbuffer.arguments import Condition
from sqlbuffer.buffer import ReplayBuffer, checked_buffer
from sqlbuffer.checks import checked_integer, checked_names
from sqlbuffer.copying import OnProgress
from sqlbuffer.display import shown
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import ArgumentError, CopyError, FieldError, SQLBufferError
from sqlbuffer.fields import near_name
from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.steps import PAYLOADS, ColumnBatch
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.copies.parts import CopiedRange, SourceIdentity, SourceState, TableRows
from sqlbuffer.storage.copies.source import (
    ColumnReader,
    CopySource,
    episode_pages,
    range_pieces,
    typed_columns,
)
from sqlbuffer.storage.copies.target import take_hold
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.holds import Hold, HoldKeeper

logger = logging.getLogger("sqlbuffer")

# The built-in columns, in the order in which files have them.
KEY_COLUMNS = (
    "seq", "first_seq", "id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id",
    "group_id", "parent_id", "t", "step", "execute_time", "inserted_at", "model_version",
    "session_id",
)  # fmt: skip
VALUE_COLUMNS = ("reward", "advantage", "value", "terminated", "truncated")
OVERLAY_COLUMNS = ("priority", "uses", "quarantined_at", "quarantine_reason")
PAYLOAD_COLUMNS = (*PAYLOADS, "arrays")
BUILT_IN_COLUMNS = (*KEY_COLUMNS, *VALUE_COLUMNS, *OVERLAY_COLUMNS, *PAYLOAD_COLUMNS)


@dataclass(frozen=True)
class StreamPiece:
    """A part of a stream that another process may read while the stream is open.

    It can be pickled: it contains the address of the database, not the steps.

    Attributes:
        buffer: The buffer.
        node: Condition that steps must match.
        fields: Typed fields to read.
        range: Range of `seq`.
        hold_id: Id of the stream's hold; None if there is none.
        n_expected: Number of steps, if whole tasks or episodes are evicted.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
        >>> buffer.extend({"obs": [0, 1, 2]}).inserted
        3
        >>> with BufferStream(buffer) as stream:
        ...     sum(len(batch) for piece in stream.pieces(2) for batch in piece)
        3
    """

    buffer: OpenBuffer
    node: Node
    fields: tuple[str, ...]
    range: CopiedRange
    hold_id: str | None
    n_expected: int | None

    def __iter__(self) -> Iterator[ColumnBatch]:
        """Yield the steps, some thousands at a time.

        Raises:
            CopyError: The stream was closed, and steps have left.
        """
        source = self._source()
        reader, remaining = ColumnReader(source, self.fields), self.range
        while remaining.cursor < remaining.high:
            batch, end = reader.batch(remaining)
            remaining = replace(remaining, cursor=end)
            if len(batch):
                yield batch
        reader.check_read(self.range, self.n_expected)

    def episodes(self) -> Iterator[TableRows]:
        """Yield pages of the episodes as they were when the last step of the piece was stored.

        :meta private:
        """
        return episode_pages(self._source(), self.range)

    def _source(self) -> CopySource:
        source = CopySource(self.buffer, self.node)
        if self.hold_id is not None:
            source.hold = Hold(self.buffer, self.hold_id)
        source.buffer.own_writes.wait_for(self.range.high)
        return source


class BufferStream:
    """The steps that a buffer holds now, as batches of columns.

    The steps are held during the `with` block: steps that leave the window of the buffer are not
    deleted before the block ends. Writers can continue; steps that they store later are not
    included.

    Args:
        buffer: The buffer. Its pending steps are stored first.
        condition: Condition that steps must match.
        fields: Typed fields to read; all by default.

    Raises:
        ArgumentError: `buffer` is not a buffer, or `fields` not a list of names.
        ConditionError: The condition is malformed.
        CopyError: The buffer is one of `sqlbuffer.compat`.
        FieldError: A field is unknown.

    Attributes:
        low, high: The stream has steps with `low < seq <= high`.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> buffer.extend({"x": [1.0, 2.0]}, task_id="t").inserted
        2
        >>> with BufferStream(buffer) as stream:
        ...     [batch.fields["x"].tolist() for batch in stream], len(stream.pieces(2))
        ([[1.0, 2.0]], 1)
    """

    def __init__(
        self,
        buffer: "ReplayBuffer",
        condition: Any = None,
        *,
        fields: Sequence[str] | None = None,
    ) -> None:
        store, node = checked_buffer(buffer)._store, buffer._conditions.node(condition)
        if store.info.layout is not None:
            raise CopyError(
                f"buffer {store.info.name!r} in {store.shown_url} has the layout "
                f"{store.info.layout!r} of sqlbuffer.compat, and is not exported; read it with the "
                f"class that made it, or copy the whole database"
            )
        self._buffer, self.node = buffer, node
        declared = tuple(store.info.config.fields.specs)
        self.fields = declared if fields is None else chosen_columns(declared, fields, "fields")[1]
        self._source = CopySource(store, node)
        self._keeper: HoldKeeper | None = None
        self._state: SourceState | None = None
        self._has_pieces = False

    def identity(self) -> SourceIdentity:
        """Return the identity of the buffer and of the condition.

        :meta private:
        """
        return self._source.identity()

    def __enter__(self) -> "BufferStream":
        """Hold the steps.

        Raises:
            CopyError: The buffer is an unfinished copy or import.
            StorageBusyError: A transaction that writes to the buffer does not end.
        """
        self._buffer.flush()
        source = self._source
        take_hold(source)
        try:
            settled = source.settled()
            self._state = source.read(lambda connection: source.state(connection, settled))
        except BaseException:
            self._release()
            raise
        if source.hold is not None and not is_memory(source.buffer.url):
            self._keeper = HoldKeeper(source.hold, self.low)
        return self

    def __exit__(self, *_: object) -> None:
        if self._keeper is not None:
            self._keeper.close()
        self._release()

    def _release(self) -> None:
        if self._source.hold is not None:
            self._source.hold.release()
            self._source.hold = None

    @property
    def state(self) -> SourceState:
        """State of the whole buffer when the stream was opened."""
        if self._state is None:
            raise CopyError("a stream is read inside `with`: with BufferStream(buffer) as stream")
        return self._state

    @property
    def low(self) -> int:
        """Steps above this number are in the stream."""
        return self.state.range.low

    @property
    def high(self) -> int:
        """No step above this number is."""
        return self.state.range.high

    @property
    def is_filtered(self) -> bool:
        """Whether there is a condition."""
        return self.node != EVERYTHING

    def __iter__(self) -> Iterator[ColumnBatch]:
        """Yield the steps in the order of their numbers, some thousands at a time.

        Raises:
            CopyError: Steps have left, because the stream could not hold them.
            FieldError: A step is damaged.
        """
        for batch, _ in self.batches():
            if len(batch):
                yield batch

    def batches(self) -> Iterator[tuple[ColumnBatch, int]]:
        """Yield batches, each with the number up to which steps were read.

        :meta private:
        """
        reader, remaining = ColumnReader(self._source, self.fields), self.state.range
        while remaining.cursor < remaining.high:
            batch, end = reader.batch(remaining)
            remaining = replace(remaining, cursor=end)
            if self._keeper is not None and not self._has_pieces:
                self._keeper.low_seq = max(end, self.low)
            yield batch, end
        reader.check_read(self.state.range, self.state.n_expected)

    def pieces(self, n: int) -> list[StreamPiece]:
        """Return parts that other processes may read while the stream is open.

        Args:
            n: Largest number.

        Raises:
            ArgumentError: `n` is not an integer from 1 on.
            CopyError: The stream was not opened by `with`.
        """
        n = checked_integer(n, "n", 1)
        self._has_pieces, hold = True, self._source.hold
        return [
            StreamPiece(
                self._source.store, self.node, self.fields, piece_range,
                None if hold is None else hold.id, n_expected,
            )
            for piece_range, n_expected in range_pieces(self._source, self.state.range, n)
        ]  # fmt: skip

    @property
    def observation_layout(self) -> Layout:
        """Layout of the final observation of an episode."""
        return self._source.buffer.observation_layout

    def episodes(self) -> Iterator[TableRows]:
        """Yield pages of the episodes as they were when the last step of the stream was stored.

        :meta private:
        """
        return episode_pages(self._source, self.state.range)


def chosen_columns(
    fields: Sequence[str], columns: Sequence[str] | None, argument: str = "columns"
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the built-in columns and the typed fields that are chosen.

    Args:
        fields: The typed fields that the buffer has.
        columns: Names of both kinds; None: all.
        argument: The argument that they are.

    Raises:
        ArgumentError: They are not a list of names.
        FieldError: There is none of that name.
    """
    if columns is None:
        return BUILT_IN_COLUMNS, tuple(fields)
    columns = checked_names(columns, argument, "['obs', 'reward']", error=ArgumentError)
    known = (*fields, *BUILT_IN_COLUMNS)
    for name in columns:
        if name not in known:
            nearest = near_name(name, known)
            hint = f" (did you mean {nearest}?)" if nearest else ""
            raise FieldError(
                f"{argument}: there is no column {shown(name)}{hint}; choose from "
                f"{', '.join(known)}"
            )
    built_in = tuple(name for name in BUILT_IN_COLUMNS if name in columns and name not in fields)
    return built_in, tuple(name for name in fields if name in columns)


# Built-in columns of an example, by default.
EXAMPLE_COLUMNS = (
    "seq", "task_id", "agent_id", "episode_id", "t", "step", "model_version", "reward",
    "terminated", "truncated", "state", "actions", "messages", "extra",
)  # fmt: skip


def example_columns(
    fields: Collection[str], columns: Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the built-in columns and the typed fields of an example.

    Args:
        fields: The typed fields that the buffer has.
        columns: Names of both kinds; None: all fields, the keys, the reward, the flags and the JSON
            values.

    Raises:
        FieldError: There is none of that name.

    Example:
        >>> example_columns(["obs"], ["reward", "obs"])
        (('reward',), ('obs',))
    """
    built_in, chosen = chosen_columns(tuple(fields), columns)
    if columns is None:
        built_in = tuple(name for name in EXAMPLE_COLUMNS if name not in chosen)
    return built_in, chosen


class HeldStream:
    """The steps that a buffer holds when this is made, under one hold.

    The hold ends when this object is deleted, or the program ends. If its process is killed, the
    hold ends two minutes later. Copies of this in other processes, pickled or forked, do not end
    it.

    Args:
        buffer: The buffer.
        condition: Condition that steps must match.
        fields: Typed fields to read.
        at_end: Function that is called when the hold has ended.

    Raises:
        CopyError: See `BufferStream`.

    Example:
        >>> buffer = ReplayBuffer("sqlite://", fields={"x": "float32"})
        >>> buffer.extend({"x": [1.0, 2.0]}, task_id="t").inserted
        2
        >>> held = HeldStream(buffer, None, ["x"])
        >>> [batch.fields["x"].tolist() for piece in held.pieces(2) for batch in piece]
        [[1.0, 2.0]]
    """

    def __init__(
        self,
        buffer: ReplayBuffer,
        condition: Condition,
        fields: Sequence[str],
        at_end: Callable[[], object] = lambda: None,
    ) -> None:
        stream = BufferStream(buffer, condition, fields=fields)
        stream.__enter__()
        self._stream = stream
        weakref.finalize(self, _end, stream, at_end, os.getpid())

    def __getstate__(self) -> dict[str, Any]:
        return {}  # a copy has no hold of its own, and its pieces are pickled with it

    @property
    def n_numbers(self) -> int:
        """Number of steps, if none was deleted and all match."""
        return self._stream.high - self._stream.low

    def pieces(self, n: int) -> list[StreamPiece]:
        """Return at most n parts, which readers may read at the same time while this lives."""
        return self._stream.pieces(n)


def _end(stream: BufferStream, at_end: Callable[[], object], owner: int) -> None:
    if os.getpid() != owner:  # a fork
        return
    try:
        stream.__exit__()
        at_end()
    except SQLBufferError as error:
        # The hold of a database that does not answer ends without this.
        logger.warning("the steps of a deleted data set are held for two minutes more: %s", error)


Arrays = dict[str, NDArray[Any]]
# The episode, and its task: ids are unique in a task.
Key = tuple[str, str]
FLAGS = ("terminated", "truncated")


@dataclass(frozen=True)
class WholeEpisode:
    """An episode that has ended and has all its steps.

    Attributes:
        episode_id: Its id.
        task_id: Its task.
        arrays: The typed fields of its n steps, arrays of shape (n, *shape), and `reward`, float64,
            `terminated` and `truncated`, bool, of shape (n,). A reward that is missing is NaN.
        final: The observation after the last step: arrays of the shapes of the fields; None where
            none was given.
    """

    episode_id: str
    task_id: str
    arrays: Arrays
    final: Arrays | None


@dataclass(frozen=True)
class _End:
    last_seq: int
    length: int
    final: Arrays | None


class WholeEpisodes:
    """Reads the whole episodes of a stream, each when its last step was read.

    It keeps the steps of episodes that have begun and not ended. With a condition an episode is
    whole if all its steps match.

    Args:
        stream: An open stream of a buffer with typed fields of fixed shapes.
        on_progress: Called after each batch with the number of steps read so far, the last `seq`
            that was read, and the range of those to read.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", fields={"obs": "float32"})
        >>> buffer.store_episode({"obs": [1.0, 2.0]}, final={"obs": 3.0}).inserted
        2
        >>> with BufferStream(buffer) as stream:
        ...     [(each.arrays["obs"].tolist(), each.final) for each in WholeEpisodes(stream)]
        [([1.0, 2.0], {'obs': array(3., dtype=float32)})]
    """

    def __init__(self, stream: BufferStream, on_progress: OnProgress | None = None) -> None:
        self._stream, self._on_progress = stream, on_progress
        self._ends = self._known_ends()
        self._end_of: dict[Key, _End | None] = {}
        self._open: dict[Key, list[Arrays]] = {}

    def __iter__(self) -> Iterator[WholeEpisode]:
        """Yield the episodes in the order in which they ended.

        Raises:
            CopyError: Steps have left, because the stream could not hold them.
        """
        n_steps = 0
        with closing(self._ends):  # it keeps a connection
            for batch, end in self._stream.batches():
                n_steps += len(batch)
                yield from self._whole(batch)
                if self._on_progress is not None:
                    span = range(self._stream.low, self._stream.high)
                    self._on_progress(n_steps, end, span)

    def _whole(self, batch: ColumnBatch) -> Iterator[WholeEpisode]:
        """Take a batch; yield the episodes that end in it."""
        keys = list(zip(batch.shared["episode_id"], batch.shared["task_id"], strict=True))
        columns = {**batch.fields, **_rewards_and_flags(batch)}
        bounds = np.flatnonzero(np.diff(batch.run_of)) + 1
        starts, stops = [0, *bounds.tolist()], [*bounds.tolist(), len(batch)]
        for start, stop in zip(starts, stops, strict=True) if len(batch) else ():
            episode_id, task_id = key = keys[int(batch.run_of[start])]
            end = None if episode_id is None else self._end(key)
            if end is None:
                continue
            parts = self._open.setdefault(key, [])
            # A copy: a view would keep the whole batch.
            parts.append({name: values[start:stop].copy() for name, values in columns.items()})
            if int(batch.seq[stop - 1]) < end.last_seq:
                continue
            del self._open[key], self._end_of[key]
            arrays = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
            if len(arrays["reward"]) == end.length:
                yield WholeEpisode(episode_id, task_id, arrays, end.final)

    def _end(self, key: Key) -> _End | None:
        """Return how an episode ends; None: it does not end in the stream, or was aborted."""
        while key not in self._end_of:
            page = next(self._ends, None)
            if page is None:
                return None
            self._end_of.update(page)
        return self._end_of[key]

    def _known_ends(self) -> Generator[dict[Key, _End | None], None, None]:
        """Yield how episodes end, in the order in which they began."""
        layout = self._stream.observation_layout
        for page in self._stream.episodes():
            values = page.values
            finals: Sequence[Arrays | None] = [None] * len(page)
            if layout.specs:
                finals = _finals(layout, values["final_arrays"])
            ends = [
                _End(last, length, final) if status == "complete" and last is not None else None
                for status, last, length, final in zip(
                    values["status"], values["last_seq"], values["length"], finals, strict=True
                )
            ]
            yield dict(zip(zip(values["key"], values["task_id"], strict=True), ends, strict=True))


def _finals(layout: Any, packed: Sequence[bytes | None]) -> list[Arrays | None]:
    raws = layout.expand(packed)
    size = layout.size_bytes
    heads = b"".join([bytes(size) if raw is None else bytes(raw[:size]) for raw in raws])
    records = np.frombuffer(heads, layout.record)
    tails = [b"" if raw is None else bytes(raw[size:]) for raw in raws]
    arrays = typed_columns(layout, records, tails, list(layout.specs))
    return [
        None if raw is None else {name: np.array(values[i]) for name, values in arrays.items()}
        for i, raw in enumerate(raws)
    ]


def _rewards_and_flags(batch: ColumnBatch) -> Arrays:
    """Return the rewards and flags of a batch; a flag that is missing is False."""
    n = len(batch)
    arrays: Arrays = {"reward": np.asarray(batch.own.get("reward", np.full(n, np.nan)), np.float64)}
    for name in FLAGS:
        values = np.asarray(batch.own.get(name, np.zeros(n, bool)), bool)
        arrays[name] = values & ~batch.is_null.get(name, np.zeros(n, bool))
    return arrays
