"""Columns that are read of rows with some numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, select
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query.condition_tree import EVERYTHING, Node
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.eligibility.eligible_rows import (
    NO_LIMITS,
    Eligibility,
    EligibilityKind,
    hold_by_parameters,
)
from sqlbuffer.storage.labels import late_values
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout
from sqlbuffer.storage.rows.statement_cache import remembered
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.number_keys import has_number

BUFFER_ID, SEQS, LOW = "buffer_id", "seqs", "low"


@dataclass(frozen=True)
class RowSelection:
    """Columns that are read of each candidate.

    Attributes:
        columns: The columns of its row, `seq` first.
        is_key: Further condition for a row to be a key.
        complete: Function that adds the bytes in other tables to the chosen rows.
        read: Function that reads steps of chunks by their numbers, in place of `columns`:
            `read(connection, seqs, has_labels, has_deleted)`.
    """

    columns: Sequence[Any]
    is_key: ColumnElement[bool] | None = None
    complete: Callable[[Connection, Sequence[Any]], Sequence[Any]] | None = None
    read: Callable[[Connection, Sequence[int], bool, bool], list[Any]] | None = None

    def statement(
        self,
        node: Node,
        limits: Eligibility = NO_LIMITS,
        *,
        has_labels: bool = False,
        steps: StepLayout = ROWS,
    ) -> Any:
        """Return the select of the parameters `seqs` and `buffer_id`.

        The limits' own parameters must be given too.

        Args:
            node: The condition.
            limits: Limits that rows must meet.
            has_labels: Read values that were given late.
            steps: How the steps are stored.
        """
        return self._built(node, limits.kind, has_labels, steps)

    def by_number(
        self,
        connection: Connection,
        buffer_id: int,
        seqs: Sequence[int],
        *,
        has_labels: bool,
        has_deleted: bool,
    ) -> list[Any]:
        """Return the rows, or the steps of chunks, that have some numbers and are there.

        Args:
            connection: The transaction.
            buffer_id: The buffer.
            seqs: The numbers.
            has_labels: Read values that were given late.
            has_deleted: Steps of chunks may have been deleted.
        """
        if self.read is not None:
            return self.read(connection, seqs, has_labels, has_deleted)
        statement = self.statement(EVERYTHING, has_labels=has_labels)
        return fetch(connection, statement, {BUFFER_ID: buffer_id, SEQS: seqs})

    @cached_property
    def _built(self) -> Callable[[Node, EligibilityKind, bool, StepLayout], Any]:
        return remembered(self._build)

    def _build(self, node: Node, kind: EligibilityKind, has_labels: bool, steps: StepLayout) -> Any:
        buffer_id = bindparam(BUFFER_ID, type_=Integer())
        seqs = bindparam(SEQS, type_=SeqList())
        wanted = compile_condition(node) & has_number(experiences.c.seq, buffer_id, seqs)
        for held in hold_by_parameters(kind, buffer_id, seqs):
            wanted = wanted & held
        if self.is_key is not None:
            wanted = wanted & self.is_key
        columns = late_values.with_late(self.columns) if has_labels else self.columns
        rows: Any = late_values.joined() if has_labels else experiences
        return steps.selected(select(*columns).select_from(rows).where(wanted), buffer_id, seqs)
