"""Open the rows of a buffer to reads and to samplers."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Select

from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.query.tree import Node
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import SampledWindow, select_sampled_window
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer, snapshot
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.rows.layouts import layout_of, steps_of
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.sampling.candidates import Candidates, RowPriorities
from sqlbuffer.storage.sampling.restrictions import Restrictions
from sqlbuffer.storage.sampling.slice_table import SliceReading


class CandidateSource:
    """Opens the rows of a buffer to reads and to samplers.

    Args:
        buffer: The buffer.
        priorities_of: Function that returns the priorities of candidates; None if there are none.

    Attributes:
        restrictions: Requirements that rows must meet before they may be sampled.
        whole_rows: Reads whole rows.
    """

    def __init__(
        self,
        buffer: OpenBuffer,
        priorities_of: Callable[[Candidates], RowPriorities] | None = None,
    ) -> None:
        self.buffer = buffer
        self.restrictions = Restrictions(buffer.info)
        self.whole_rows = self.payloads()
        self._priorities_of = priorities_of

    @contextmanager
    def candidates(
        self,
        node: Node,
        columns: RowSelection | SliceReading | None = None,
        *,
        sampled: bool = False,
    ) -> Iterator[Candidates]:
        """Open the matching rows, while the connection is open.

        Args:
            node: Condition that rows must match.
            columns: Columns to read; whole rows by default.
            sampled: Only rows that may be sampled.
        """
        columns = self.whole_rows.reading if columns is None else columns
        buffer, query = self.buffer, self.window_query
        if isinstance(columns, SliceReading) and columns.finds_single:
            query = self._window_with_single
        # One state throughout: rows that are evicted during the draw stay in the result.
        with (
            translated(buffer.url),
            snapshot(buffer.engine, query) as connection,
        ):
            now = self.window_answered(answer(connection))
            node = resolve_labels(node, bool(now.has_labels))
            if not (sampled and self.restrictions.are_any(now)):
                found = Candidates(
                    connection, buffer.info.id, now.low, now.high, node, columns,
                    steps=layout_of(buffer.info),
                )  # fmt: skip
            else:
                found = self.restrictions.candidates(
                    connection, now, server_epoch(buffer.engine), node, columns
                )
            found.has_labels = bool(now.has_labels)
            found.newest_single, found.has_deleted = now.newest_single, bool(now.has_deleted)
            found.may_replace = buffer.info.layout is not None
            if self._priorities_of is not None:
                found.priorities = self._priorities_of(found)
            yield found

    def payloads(
        self, wanted: SelectedFields | None = None, only: frozenset[str] | None = None
    ) -> Payloads:
        """Return the reader of rows, whole or in part."""
        info = self.buffer.info
        # Only layouts of compat replace steps.
        may_replace = info.layout is not None
        return Payloads(
            info.id, self.buffer.layout, wanted, only, steps=layout_of(info),
            may_replace=may_replace,
        )  # fmt: skip

    @cached_property
    def window_query(self) -> str:
        """The select of the window, as text that can be sent together with another statement."""
        return self.buffer.text_of(self._select_window())

    @cached_property
    def _window_with_single(self) -> str:
        return self.buffer.text_of(self._select_window(finds_single=True))

    def window_answered(self, found: Sequence[Any]) -> SampledWindow:
        """Return the window that a select of it found.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        if not found:
            raise self.buffer.dropped()
        return SampledWindow(*found[0])

    def sampled_window(self, connection: Connection) -> SampledWindow:
        """Return the window of the rows that may be sampled now, in a transaction."""
        return self.window_answered(connection.execute(self._select_window()).all())

    def _select_window(self, *, finds_single: bool = False) -> Select[Any]:
        info = self.buffer.info
        evict_by = info.config.retention.evict_by
        return select_sampled_window(info.id, evict_by, steps_of(info), finds_single=finds_single)
