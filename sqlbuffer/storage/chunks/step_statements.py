"""Statements over `experiences`, for buffers whose steps are in chunks."""

import operator
from typing import Any, TypeVar, cast

from sqlalchemy import Alias, BinaryExpression, Column, and_
from sqlalchemy.sql import operators
from sqlalchemy.sql.visitors import replacement_traverse

from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.step_relations import chunk_steps
from sqlbuffer.storage.chunks.tables import MOST_STEPS

T = TypeVar("T")


def over(clause: T, steps: Any = chunk_steps) -> T:
    """Return a statement or expression over `experiences`, over another table of steps.

    Bounds of `seq` bound `first_seq` as well, which the indexes of chunks know.

    Args:
        clause: The statement.
        steps: A table with the columns of `experiences`; an alias of `experiences` becomes an alias
            of it.
    """
    aliases: dict[Any, Any] = {}
    is_all = steps is chunk_steps

    def table_for(source: Any) -> Any:
        if source is experiences:
            return steps
        if isinstance(source, Alias) and source.element is experiences:
            return aliases.setdefault(source, chunk_steps.alias(source.name))
        return None

    def replaced(element: Any, **_: Any) -> Any:
        found = table_for(element)
        if found is not None:
            return found
        if isinstance(element, Column):
            source = table_for(element.table)
            return None if source is None else source.c[element.name]
        if is_all and isinstance(element, BinaryExpression) and _is_seq(element.left):
            return _bounded(element, table_for(element.left.table), replaced)
        return None

    result: Any = replacement_traverse(cast(Any, clause), {}, replaced)
    return cast(T, result)


def _is_seq(column: Any) -> bool:
    return (
        isinstance(column, Column)
        and column.name == "seq"
        and (
            column.table is experiences
            or (isinstance(column.table, Alias) and column.table.element is experiences)
        )
    )


def _bounded(comparison: Any, steps: Any, replaced: Any) -> Any:
    """Return a comparison of `seq` with what it says of `first_seq`."""
    op = comparison.operator
    bound = replacement_traverse(comparison.right, {}, replaced)
    seq, first = steps.c.seq, steps.c.first_seq
    if op in (operator.gt, operator.ge):
        return and_(op(seq, bound), op(first, bound - (MOST_STEPS - 1)))
    if op in (operator.lt, operator.le):
        return and_(op(seq, bound), op(first, bound))
    if op is operators.eq:
        return and_(seq == bound, first <= bound, first > bound - MOST_STEPS)
    return None
