"""Take rows out of sampling, and put them back."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import (
    Connection,
    Integer,
    Text,
    bindparam,
    delete,
    insert,
    literal,
    select,
    update,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query.tree import Group, Leaf, Node
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.changes import log_change
from sqlbuffer.storage.eligibility import is_in_quarantine, quarantine
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import layout_of, steps_of
from sqlbuffer.storage.schema.parameters import SeqList
from sqlbuffer.storage.schema.planner import unindexed

# A checked condition, or numbers of rows.
Rows = Node | Sequence[int]


def put(
    connection: Connection,
    info: BufferInfo,
    low: int,
    rows: Rows,
    reason: str | None,
    origin: str,
) -> int:
    """Put rows into quarantine; return how many were not in it.

    Args:
        connection: Transaction that holds the row of the buffer.
        info: The buffer.
        low: Lower end of its window.
        rows: Condition or numbers of the rows.
        reason: Reason, stored with each row.
        origin: The opener that does it; see `OpenBuffer.origin`.
    """
    buffer_id = info.id
    _forget(connection, buffer_id, low)
    steps, are_these = these(info, low, rows)
    is_new = ~is_in_quarantine(steps.c.buffer_id, steps.c.seq)
    chosen = select(steps.c.buffer_id, steps.c.seq, literal(reason, Text()).label("reason")).where(
        are_these, is_new
    )
    made = insert(quarantine).from_select(["buffer_id", "seq", "reason"], chosen)
    new = connection.execute(made.returning(quarantine.c.seq)).scalars().all()
    if new:
        _flag(connection, buffer_id, True)
        log_change(connection, buffer_id, "quarantined", new, origin)
    return len(new)


def release(connection: Connection, info: BufferInfo, low: int, rows: Rows, origin: str) -> int:
    """Take rows out of quarantine; return how many were in it. The arguments are those of `put`."""
    buffer_id = info.id
    _forget(connection, buffer_id, low)
    steps, are_these = these(info, low, rows)
    named = select(steps.c.seq).where(are_these)
    own = (quarantine.c.buffer_id == buffer_id) & quarantine.c.seq.in_(named)
    found = connection.execute(delete(quarantine).where(own).returning(quarantine.c.seq))
    released = found.scalars().all()
    log_change(connection, buffer_id, "quarantined", released, origin)
    if not connection.execute(select(_own(buffer_id).exists())).scalar_one():
        _flag(connection, buffer_id, False)  # the quarantine is empty now
    return len(released)


def these(info: BufferInfo, low: int, rows: Rows) -> tuple[Any, ColumnElement[bool]]:
    """Return a table of steps, and the condition for rows of a buffer above `low`."""
    if isinstance(rows, (Leaf, Group)):
        steps = steps_of(info)
        return steps, statements.in_window(info.id, low, resolve_labels(rows, True), steps)
    wanted = bindparam(None, rows, SeqList(), unique=True)
    steps, is_one = layout_of(info).at(literal(info.id, Integer()), wanted)
    # PostgreSQL would read all rows above an indexed bound, and search for each in the list.
    return steps, is_one & (unindexed(steps.c.seq) > low)


def _own(buffer_id: int, *conditions: Any) -> Any:
    return select(quarantine.c.seq).where(quarantine.c.buffer_id == buffer_id, *conditions)


def _forget(connection: Connection, buffer_id: int, low: int) -> None:
    """Delete entries of rows that were evicted while they were put into quarantine."""
    gone = (quarantine.c.buffer_id == buffer_id) & (quarantine.c.seq <= low)
    connection.execute(delete(quarantine).where(gone))


def _flag(connection: Connection, buffer_id: int, value: bool) -> None:
    own = update(buffers).where(buffers.c.id == buffer_id, buffers.c.has_quarantine != value)
    connection.execute(own.values(has_quarantine=value))
