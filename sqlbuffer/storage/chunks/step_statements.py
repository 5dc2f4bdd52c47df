"""Statements over `experiences`, run over the steps of chunks.

Code that reads steps writes one statement, over `experiences`. On the connections of a buffer with
chunks the statement is rewritten before it runs: `over_chunks`.
"""

import operator
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    CTE,
    Alias,
    BinaryExpression,
    Column,
    ColumnClause,
    Executable,
    Select,
    UnaryExpression,
    and_,
    select,
    true,
)
from sqlalchemy.sql import operators
from sqlalchemy.sql.elements import BooleanClauseList, Grouping
from sqlalchemy.sql.visitors import iterate, replacement_traverse

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.step_lookup import may_have_id, may_have_ids, may_have_seqs
from sqlbuffer.storage.chunks.step_relations import chunk_steps, steps_at
from sqlbuffer.storage.chunks.tables import MOST_STEPS, chunks
from sqlbuffer.storage.schema.list_parameters import is_one_of
from sqlbuffer.storage.schema.number_keys import has_number, is_numbered
from sqlbuffer.storage.schema.planner import unindexed

# The execution option of a statement that is already over chunks.
IS_OVER_CHUNKS = "sqlbuffer_is_over_chunks"
# Functions that find the chunks for values of a column that no index knows.
_LOOKUPS = {"id": may_have_ids, "seq": may_have_seqs}


# A statement that is kept and run often is rewritten once. The rewritten statement keeps the
# original alive, so a statement made for one call leaves the cache after this many others.
@lru_cache(maxsize=128)
def over_chunks(statement: Any) -> Any:
    """Return the statement to run in place of one over `experiences`.

    If it looks for numbers (`has_number`), it reads the steps that have them. Otherwise it reads
    all steps, and bounds of `seq` also bound `first_seq`, which the indexes of chunks know.
    """
    if not isinstance(statement, Executable) or getattr(statement, "is_text", False):
        return statement
    if statement.get_execution_options().get(IS_OVER_CHUNKS):
        return statement
    return _over(statement)


def over(clause: Any, steps: Any) -> Any:
    """Replace `experiences` in a clause by another table with its columns, and return the clause.

    The clause is part of a statement: CTEs that it shares with other parts are not copied.
    """
    return _Rewriting(steps, keeps_ctes=True).of(clause)


def _over(statement: Any) -> Any:
    elements = list(iterate(statement))
    if not any(element is experiences or _is_alias(element) for element in elements):
        return statement
    lookup = next((element for element in elements if isinstance(element, has_number)), None)
    steps = chunk_steps if lookup is None else steps_at(*list(lookup.clauses)[1:])
    buffer_id = _buffer_id(elements)
    looks_up = buffer_id is not None and isinstance(statement, Select)
    looks_up = looks_up and _looks_up(statement.whereclause)
    return _Rewriting(steps, buffer_id=buffer_id, looks_up=looks_up).of(statement)


def _buffer_id(elements: list[Any]) -> Any:
    """Return the buffer whose steps a statement reads; None if the statement does not name it."""
    return next(
        (
            each.right
            for each in elements
            if isinstance(each, BinaryExpression)
            and each.operator is operators.eq
            and each.left is experiences.c.buffer_id
            and not isinstance(each.right, Column)
        ),
        None,
    )


def _looks_up(condition: Any) -> bool:
    """Return True if only steps with some numbers or ids can meet a condition."""
    is_true = isinstance(condition, UnaryExpression) and condition.operator is operators.is_true
    if is_true or isinstance(condition, Grouping):
        return _looks_up(condition.element)
    if isinstance(condition, BooleanClauseList):
        return condition.operator is operators.and_ and any(map(_looks_up, condition.clauses))
    if not isinstance(condition, is_one_of):
        return False
    column = next(iter(condition.clauses))
    return isinstance(column, Column) and column.table is experiences and column.name in _LOOKUPS


def _is_alias(element: Any) -> bool:
    return isinstance(element, Alias) and element.element is experiences


class _Rewriting:
    """Rewrites one statement.

    Args:
        steps: The table in place of `experiences`; its aliases become aliases of all steps.
        keeps_ctes: CTEs are not changed.
        buffer_id: The buffer, if the statement names it.
        looks_up: The statement names steps, whose chunks are looked up.
    """

    def __init__(
        self,
        steps: Any,
        *,
        keeps_ctes: bool = False,
        buffer_id: Any | None = None,
        looks_up: bool = False,
    ) -> None:
        self._steps, self._aliases = steps, dict[Any, Any]()
        self._keeps_ctes, self._buffer_id, self._looks_up = keeps_ctes, buffer_id, looks_up

    def of(self, clause: Any) -> Any:
        return replacement_traverse(clause, {}, self._replaced)

    def _replaced(self, element: Any, **_: Any) -> Any:
        if self._keeps_ctes and isinstance(element, CTE):
            return element
        table = self._table(element)
        if table is not None:
            return table
        if isinstance(element, Column):
            table = self._table(element.table)
            return None if table is None else table.c[element.name]
        if isinstance(element, has_number) and self._steps is not chunk_steps:
            return true()
        if isinstance(element, is_numbered):
            return self._numbered(element)
        if isinstance(element, BinaryExpression):
            return self._bounded(element)
        if isinstance(element, is_one_of):
            return self._among(element)
        if isinstance(element, Select):
            return self._ordered(element)
        return None

    def _table(self, source: Any) -> Any:
        if source is experiences:
            return self._steps
        if _is_alias(source):
            return self._aliases.setdefault(source, chunk_steps.alias(source.name))
        return None

    def _ordered(self, statement: Select[Any]) -> Any:
        """Return a select that reads chunks in their order, instead of sorting all steps."""
        before = statement._order_by_clauses
        after = [each for clause in before for each in self._order(clause)]
        if len(after) == len(before):
            return None
        return self.of(statement.order_by(None).order_by(*after))

    def _order(self, clause: Any) -> list[Any]:
        is_desc = isinstance(clause, UnaryExpression) and clause.modifier is operators.desc_op
        seq = clause.element if is_desc else clause
        table = self._table_of_all(seq)
        if table is None or seq.name != "seq":
            return [clause]
        columns = [table.c.first_seq, table.c.seq]
        return [column.desc() for column in columns] if is_desc else columns

    def _is_of_all(self, table: Any) -> bool:
        """Return True if a table has the steps of all chunks."""
        return table is not self._steps or table is chunk_steps

    def _numbered(self, element: is_numbered) -> Any:
        number, buffer_id, n = element.clauses
        table = self._table(number.table)
        if table is None:
            return None
        wanted, of_buffer = self.of(n), self.of(buffer_id)
        first = _chunk_of(of_buffer, wanted)
        return and_(
            table.c.buffer_id == of_buffer,
            table.c.first_seq == first,
            table.c.place == wanted - table.c.first_seq,
        )

    def _bounded(self, comparison: Any) -> Any:
        """Return a comparison of `seq` or `id` of all steps, with its bound on `first_seq`."""
        column, op = comparison.left, comparison.operator
        table = self._table_of_all(column)
        if table is None or column.name not in _LOOKUPS:
            return None
        bound, first = self.of(comparison.right), table.c.first_seq
        if column.name == "id":
            if op not in (operator.eq, operators.eq) or self._buffer_id is None:
                return None
            return and_(table.c.id == bound, may_have_id(first, self.of(self._buffer_id), bound))
        if op in (operator.eq, operators.eq):
            return _is_one(table, bound)
        if self._looks_up:
            # SQLite would read all chunks of the range instead of looking them up.
            first = unindexed(first)
        if op in (operator.gt, operator.ge):
            return and_(op(table.c.seq, bound), op(first, bound - (MOST_STEPS - 1)))
        if op in (operator.lt, operator.le):
            return and_(op(table.c.seq, bound), op(first, bound))
        return None

    def _among(self, element: is_one_of) -> Any:
        """Return the condition for a step's `id` or `seq` to be in a list, bounding its chunks."""
        column, values = element.clauses
        table = self._table_of_all(column)
        if table is None or self._buffer_id is None or column.name not in _LOOKUPS:
            return None
        given, may_have = self.of(values), _LOOKUPS[column.name]
        found = may_have(table.c.first_seq, self.of(self._buffer_id), given)
        # Grouped because it may be negated.
        return Grouping(and_(type(element)(table.c[column.name], given), found))

    def _table_of_all(self, column: Any) -> Any:
        """Return the table that replaces a column's table, if it has the steps of all chunks."""
        table = self._table(column.table) if isinstance(column, Column) else None
        return table if table is not None and self._is_of_all(table) else None


def _chunk_of(buffer_id: Any, number: Any) -> Any:
    """Return the first number of the last chunk that begins at or before a number."""
    before = chunks.alias("before")
    return (
        select(before.c.first_seq)
        .where(before.c.buffer_id == buffer_id, before.c.first_seq <= number)
        .order_by(before.c.first_seq.desc())
        .limit(1)
        .correlate_except(before)
        .scalar_subquery()
    )


def _is_one(steps: Any, number: Any) -> Any:
    """Return the condition for a step to have a number.

    Whichever side of a join is read first, the other one is looked up: steps by their chunk and
    place, rows of another table by their number. Bounds alone leave SQLite only the lower one.
    """
    first = steps.c.first_seq
    is_in_chunk = and_(first <= number, first > number - MOST_STEPS)
    is_there = and_(steps.c.place == number - first, is_in_chunk)
    return and_(number == steps.c.seq, is_there) if isinstance(number, ColumnClause) else is_there
