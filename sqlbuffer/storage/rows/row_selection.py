"""Columns that are read of rows with some numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sqlalchemy import Connection, Integer, bindparam, select
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query.tree import EVERYTHING, Node
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.eligibility import (
    NO_LIMITS,
    Eligibility,
    EligibilityKind,
    hold_by_parameters,
)
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.rows.layouts import ROWS, StepLayout
from sqlbuffer.storage.rows.statements import remembered
from sqlbuffer.storage.schema.parameters import SeqList

# Returns the condition for a step of a table of steps to be a key of a form.
IsKey = Callable[[Any], ColumnElement[bool]]

BUFFER_ID, SEQS, LOW = "buffer_id", "seqs", "low"


@dataclass(frozen=True)
class RowSelection:
    """Columns that are read of each candidate.

    Attributes:
        columns: The columns of its row, `seq` first.
        with_late: Function that puts values that were given late into rows that were selected:
            `with_late(connection, rows)`. What `read` returns has them.
        complete: Function that adds the bytes in other tables to the chosen rows.
        read: Function that reads steps of chunks by their numbers, in place of `columns`:
            `read(connection, seqs, has_labels, has_deleted)`.
    """

    columns: Sequence[Any]
    with_late: Callable[[Connection, list[Any]], list[Any]]
    complete: Callable[[Connection, Sequence[Any]], Sequence[Any]] | None = None
    read: Callable[[Connection, Sequence[int], bool, bool], list[Any]] | None = None

    def statement(self, node: Node, limits: Eligibility = NO_LIMITS) -> Any:
        """Return the select of rows by the parameters `seqs` and `buffer_id`.

        The limits' own parameters must be given too.

        Args:
            node: The condition.
            limits: Limits that rows must meet.
        """
        return self._built(node, limits.kind)

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
        rows = fetch(connection, self.statement(EVERYTHING), {BUFFER_ID: buffer_id, SEQS: seqs})
        return self.with_late(connection, rows) if has_labels else rows

    @cached_property
    def _built(self) -> Callable[[Node, EligibilityKind], Any]:
        return remembered(self._build)

    def _build(self, node: Node, kind: EligibilityKind) -> Any:
        return select(*self.columns).where(*_among(node, kind, *ROWS.at(_BUFFER_ID, _SEQS)))


@remembered
def matching_numbers(
    node: Node, kind: EligibilityKind, is_key: IsKey | None, steps: StepLayout
) -> Any:
    """Return the select of `seq` of those steps among the parameter `seqs` that match.

    The parameters are those of `RowSelection.statement`.

    Args:
        node: The condition.
        kind: Which limits steps must meet.
        is_key: Makes a further condition.
        steps: How the steps are stored.
    """
    table, is_one = steps.at(_BUFFER_ID, _SEQS)
    wanted = _among(node, kind, table, is_one)
    if is_key is not None:
        wanted.append(is_key(table))
    return select(table.c.seq).where(*wanted)


_BUFFER_ID = bindparam(BUFFER_ID, type_=Integer())
_SEQS = bindparam(SEQS, type_=SeqList())


def _among(node: Node, kind: EligibilityKind, table: Any, is_one: Any) -> list[Any]:
    held = hold_by_parameters(kind, table, _BUFFER_ID, _SEQS)
    return [compile_condition(node, table), is_one, *held]
