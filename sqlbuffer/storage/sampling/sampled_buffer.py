"""An open buffer that rows are read and sampled from."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from sqlalchemy import Connection

from sqlbuffer.query.condition_tree import Node
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.storage.buffers.buffer_window import SampledWindow, select_sampled_window
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer, text_of
from sqlbuffer.storage.database.engine import server_epoch
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import answer, snapshot
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.restrictions import Restrictions


class SampledBuffer(OpenBuffer):
    """An open buffer that rows are read and sampled from.

    Attributes:
        restrictions: What it restricts sampling to.
    """

    restrictions: Restrictions

    @contextmanager
    def candidates(
        self,
        node: Node,
        columns: RowSelection | Sequence[Any] | None = None,
        *,
        sampled: bool = False,
    ) -> Iterator[Candidates]:
        """What a sampler chooses from, while the connection lives.

        Args:
            node: Which rows.
            columns: What is read of them; whole rows by default.
            sampled: Only those that may be sampled.
        """
        columns = self.whole_rows.reading if columns is None else columns
        # One state throughout: rows that are evicted meanwhile stay in what is chosen.
        with (
            translated(self.url),
            snapshot(self.engine, self._sampled_window) as connection,
        ):
            found = answer(connection)
            if not found:
                raise self._dropped()
            now = SampledWindow(*found[0])
            node = resolve_labels(node, bool(now.has_labels))
            if not (sampled and self.restrictions.are_any(now)):
                candidates = Candidates(connection, self.info.id, now.low, now.high, node, columns)
            else:
                candidates = self.restrictions.candidates(
                    connection, now, server_epoch(self.engine), node, columns
                )
            candidates.has_labels = bool(now.has_labels)
            yield candidates

    @cached_property
    def whole_rows(self) -> Payloads:
        """What reads whole rows."""
        return self.payloads()

    def payloads(
        self, wanted: SelectedFields | None = None, only: frozenset[str] | None = None
    ) -> Payloads:
        """Return what reads rows, whole or in part."""
        return Payloads(self.info.id, self.layout, wanted, only)

    @cached_property
    def _sampled_window(self) -> str:
        return text_of(select_sampled_window(self.info.id, self.info.evict_by), self.engine)

    def sampled_window(self, connection: Connection) -> SampledWindow:
        """Return which rows may be sampled, and what limits go by."""
        statement = select_sampled_window(self.info.id, self.info.evict_by)
        found = connection.execute(statement).one_or_none()
        if found is None:
            raise self._dropped()
        return SampledWindow(*found)
