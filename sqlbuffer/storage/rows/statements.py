"""Selects over one buffer, the same for both databases."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Select,
    Table,
    Text,
    and_,
    cast,
    column,
    func,
    select,
    table,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.encoding.records import Record
from sqlbuffer.query.condition_tree import Group, Node
from sqlbuffer.storage.buffers.tables import experiences, sessions
from sqlbuffer.storage.episodes.keys import one_of
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.labels import late_values
from sqlbuffer.storage.rows.conditions import compile_condition
from sqlbuffer.storage.schema.planner import unindexed

_JSON_COLUMNS = {"state", "actions", "messages", "extra", "fields"}

# The status of every episode, also of abandoned ones.
episode_states = table(
    "episode_states", column("id"), column("buffer_id"), column("n_rows"), column("status", Text())
)


def _column(name: str) -> ColumnElement[Any]:
    if name == "episode_key":
        return (
            select(episodes.c.key)
            .where(episodes.c.id == experiences.c.episode_id)
            .scalar_subquery()
        )
    if name == "session_key":
        return (
            select(sessions.c.key)
            .where(sessions.c.id == experiences.c.session_id)
            .scalar_subquery()
        )
    # As text, with any JSON loader of the driver.
    return cast(experiences.c[name], Text) if name in _JSON_COLUMNS else experiences.c[name]


ROW_COLUMNS = (experiences.c.seq, *(_column(name).label(name) for name in Record._fields))


def seq_for(node: Node, over: Any = experiences) -> ColumnElement[int]:
    """Return `seq` for bounds and orders: unindexed if the condition names ids or tasks.

    Without statistics neither planner knows how few rows a task has, and both would rather walk the
    primary key.
    """
    seq: ColumnElement[int] = over.c.seq
    return unindexed(seq) if names_few_rows(node) else seq


def names_few_rows(node: Node) -> bool:
    """Return True if a condition is limited to given ids or tasks."""
    if isinstance(node, Group):
        return node.kind == "all" and any(map(names_few_rows, node.parts))
    return node.op in ("eq", "in") and not node.negated and node.field.column in ("id", "task_id")


def matching(buffer_id: int, node: Node, over: Any = experiences) -> ColumnElement[bool]:
    """Return the expression for matching rows of a buffer, in the window or not."""
    return and_(over.c.buffer_id == buffer_id, compile_condition(node, over))


def in_window(buffer_id: int, low: int, node: Node) -> ColumnElement[bool]:
    """Return the expression for rows of a buffer above `low` that match."""
    return and_(matching(buffer_id, node), seq_for(node) > low)


def of_tasks(buffer_id: int, low: int, task_ids: Sequence[str]) -> ColumnElement[bool]:
    """Return the expression for rows of a buffer above `low` that belong to one of the tasks."""
    return and_(
        experiences.c.buffer_id == buffer_id,
        one_of(experiences.c.task_id, task_ids),
        unindexed(experiences.c.seq) > low,
    )


def seqs(where: ColumnElement[bool]) -> Select[Any]:
    """Select keys."""
    return select(experiences.c.seq).where(where)


def runs(where: ColumnElement[bool]) -> Select[Any]:
    """Select the first and last key of each run of consecutive keys, in order."""
    seq = experiences.c.seq
    before_run = (seq - func.row_number().over(order_by=seq)).label("before_run")
    found = select(seq, before_run).where(where).subquery("found").c
    first = func.min(found.seq)
    return select(first, func.max(found.seq)).group_by(found.before_run).order_by(first)


def rows(
    where: ColumnElement[bool], columns: Sequence[Any] = ROW_COLUMNS, *, has_labels: bool = False
) -> Select[Any]:
    """Select whole rows in the order of `Record`, `seq` first; or other columns.

    Args:
        where: Condition that rows must match.
        columns: The columns.
        has_labels: Read values that were given late.
    """
    if not has_labels:
        return select(*columns).where(where)
    return select(*late_values.with_late(columns)).select_from(late_values.joined()).where(where)


def first_rows_of_tasks(
    buffer_id: int, low: int, node: Node, among: ColumnElement[bool]
) -> Select[Any]:
    """Select (seq, task_id) of the given rows that are the first matching row of their task."""
    earlier: Table | Any = experiences.alias("earlier")
    is_first = ~(
        select(1)
        .where(
            matching(buffer_id, node, earlier),
            earlier.c.task_id == experiences.c.task_id,
            unindexed(earlier.c.seq) > low,
            unindexed(earlier.c.seq) < experiences.c.seq,
        )
        # Without the offset PostgreSQL would make an anti-join over all rows of the buffer.
        .offset(0)
        .exists()
    )
    return select(experiences.c.seq, experiences.c.task_id).where(among, is_first)


def has_no_row(
    buffer_id: int, low: int, task_id: Any, rows: Any, which: ColumnElement[bool]
) -> ColumnElement[bool]:
    """Return the condition that a task has no such row above `low`.

    Args:
        buffer_id: The buffer.
        low: Lower end of the window.
        task_id: The column with the task.
        rows: An alias of `experiences`.
        which: Condition on the alias.
    """
    own = rows.c
    found = select(1).where(
        own.buffer_id == buffer_id, own.task_id == task_id, unindexed(own.seq) > low, which
    )
    return ~found.offset(0).exists()


def matching_tasks(where: ColumnElement[bool]) -> Select[Any]:
    """Select each task with a matching row, once."""
    return select(experiences.c.task_id).where(where).group_by(experiences.c.task_id)
