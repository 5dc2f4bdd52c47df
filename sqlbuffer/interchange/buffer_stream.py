"""A stream of the steps of a buffer, column by column, under a hold."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from sqlbuffer.buffer import checked_buffer
from sqlbuffer.checks import checked_integer, checked_names
from sqlbuffer.display.short_values import shown
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import ArgumentError, CopyError, FieldError
from sqlbuffer.fields.near_names import near_name
from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.steps.column_batch import ColumnBatch
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.copies.column_reader import ColumnReader, episode_pages
from sqlbuffer.storage.copies.copied_parts import CopiedRange, SourceState
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.copy_start import take_hold
from sqlbuffer.storage.copies.range_pieces import range_pieces
from sqlbuffer.storage.copies.source_steps import CopySource
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.holds.hold import Hold
from sqlbuffer.storage.holds.hold_keeper import HoldKeeper

if TYPE_CHECKING:
    from sqlbuffer.buffer import ReplayBuffer

# The built-in columns, in the order in which files have them.
KEY_COLUMNS = (
    "seq", "first_seq", "id", "task_id", "task_name", "agent_id", "pre_agent", "episode_id", "t",
    "step", "execute_time", "inserted_at", "model_version", "session_id",
)  # fmt: skip
VALUE_COLUMNS = ("reward", "advantage", "value", "terminated", "truncated")
OVERLAY_COLUMNS = ("priority", "uses", "quarantined_at", "quarantine_reason")
PAYLOAD_COLUMNS = ("state", "actions", "messages", "extra", "arrays")
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
        reader, left = ColumnReader(source, self.fields), self.range
        while left.cursor < left.high:
            batch, end = reader.batch(left)
            left = replace(left, cursor=end)
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
        reader, left = ColumnReader(self._source, self.fields), self.state.range
        while left.cursor < left.high:
            batch, end = reader.batch(left)
            left = replace(left, cursor=end)
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
                self._source.store, self.node, self.fields, each,
                None if hold is None else hold.id, n_expected,
            )
            for each, n_expected in range_pieces(self._source, self.state.range, n)
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
    own = tuple(name for name in BUILT_IN_COLUMNS if name in columns and name not in fields)
    return own, tuple(name for name in fields if name in columns)
