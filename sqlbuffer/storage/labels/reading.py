"""Steps with their late values, in conditions and in selects."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import orjson
from sqlalchemy import Connection, Select, Text, bindparam, cast, column, func, select
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.elements import ColumnElement, Null
from sqlalchemy.sql.functions import FunctionElement

from sqlbuffer.query.tree import Group, Node
from sqlbuffer.storage.database.transactions import fetch
from sqlbuffer.storage.labels.tables import label_history, labels
from sqlbuffer.storage.labels.values import Label
from sqlbuffer.storage.schema.expressions import SeqList, is_number_of, processed
from sqlbuffer.storage.schema.metadata import JSON, TIME
from sqlbuffer.storage.schema.number_keys import is_numbered

LATE = ("reward_t", "adv_t", "v_t", "extra", "fields")


class late_labels(FunctionElement[Any]):
    """The labels of a row, as a table to the right of a join: `late_labels(buffer_id, seq)`.

    Each row is looked up: PostgreSQL would rather read all labels, or all from the first one on.
    """

    inherit_cache = True


_LATE_COLUMNS = "buffer_id, seq, reward_t, adv_t, v_t, extra, fields"


@compiles(late_labels, "postgresql")
def _pg_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    buffer_id, seq = processed(element, compiler, kw)
    return (
        f"LATERAL (SELECT {_LATE_COLUMNS} FROM labels WHERE buffer_id = {buffer_id} "
        f"AND seq = {seq} OFFSET 0)"
    )


@compiles(late_labels, "sqlite")
def _sqlite_late_labels(element: late_labels, compiler: Any, **kw: Any) -> str:
    return "labels"


@lru_cache(maxsize=64)
def _late_of(steps: Any) -> Any:
    """Return the labels to the right of a join with a table of steps."""
    columns = (column(name, labels.c[name].type) for name in ("buffer_id", "seq", *LATE))
    return late_labels(steps.c.buffer_id, steps.c.seq).table_valued(*columns, name="late")


def resolve_labels(node: Node, has_labels: bool) -> Node:
    """Return a condition that uses current values, if rows may have values that were given late."""
    if not has_labels:
        return node
    if isinstance(node, Group):
        return replace(node, parts=tuple(resolve_labels(part, has_labels) for part in node.parts))
    if node.field.column not in LATE:
        return node
    return replace(node, field=replace(node.field, is_labelled=True))


_noted = label_history.c
_HISTORY = select(
    _noted.seq,
    _noted.version,
    _noted.reward_t,
    _noted.adv_t,
    _noted.v_t,
    cast(_noted.extra, Text),
    cast(_noted.fields, Text),
).where(
    _noted.buffer_id == bindparam("of_buffer", type_=_noted.buffer_id.type),
    is_number_of(_noted.seq, bindparam("seqs", type_=SeqList())),
)
_HISTORY_UNTIL = _HISTORY.where(_noted.labelled_at <= bindparam("until", type_=TIME))


def label_histories(
    connection: Connection, buffer_id: int, seqs: Sequence[int], until: Any = None
) -> dict[int, dict[int, Label]]:
    """Return the labels of some rows by their versions.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        seqs: The rows.
        until: Without those given after this time of the database; None: all.
    """
    parameters = {"of_buffer": buffer_id, "seqs": list(seqs)}
    statement = _HISTORY
    if until is not None:
        statement, parameters["until"] = _HISTORY_UNTIL, until
    histories: dict[int, dict[int, Label]] = {seq: {} for seq in seqs}
    for seq, version, *reals, extra, fields in fetch(connection, statement, parameters):
        trees = (tree and orjson.loads(tree) for tree in (extra, fields))
        histories[seq][version] = Label(*reals, *trees)
    return histories


class merged_fields(FunctionElement[Any]):
    """Declared fields of a row with the late ones in their place: `merged_fields(own, late)`."""

    inherit_cache = True
    type = JSON


@compiles(merged_fields, "postgresql")
def _pg_merged_fields(element: merged_fields, compiler: Any, **kw: Any) -> str:
    stored, late = processed(element, compiler, kw)
    return f"coalesce({stored} || {late}, {stored}, {late})"


@compiles(merged_fields, "sqlite")
def _sqlite_merged_fields(element: merged_fields, compiler: Any, **kw: Any) -> str:
    stored, late = processed(element, compiler, kw)
    return f"coalesce(json_patch({stored}, {late}), {stored}, {late})"


def value_of(name: str, table: Any) -> ColumnElement[Any]:
    """Return a value of one step of a table of steps or an alias of it; looked up one by one."""
    late = (
        select(labels.c[name])
        .where(is_numbered(labels.c.seq, table.c.buffer_id, table.c.seq))
        .correlate(table)
        .scalar_subquery()
    )
    if name == "fields":
        return merged_fields(table.c[name], late)
    value: ColumnElement[Any] = func.coalesce(late, table.c[name], type_=labels.c[name].type)
    return value


def with_labels(rows: Select[Any], steps: Any) -> Select[Any]:
    """Return a select of columns of steps with late values in place of the steps' own.

    `fields` has the late fields only: the others are in the bytes of the step.

    Args:
        rows: The select.
        steps: The table that it reads: `experiences`, or that of steps in chunks.
    """
    columns = [_late_column(column, steps) for column in rows.selected_columns]
    late = _late_of(steps).c
    is_its = is_numbered(late.seq, steps.c.buffer_id, steps.c.seq)
    return rows.with_only_columns(*columns).select_from(steps.outerjoin(_late_of(steps), is_its))


def _late_column(column: Any, steps: Any) -> Any:
    late = _late_of(steps).c
    if column.name == "fields":
        return cast(late.fields, Text).label("fields")
    if column.name not in LATE or _is_left_out(column):
        return column
    name = column.name
    value = func.coalesce(late[name], steps.c[name], type_=steps.c[name].type)
    return (cast(value, Text) if name == "extra" else value).label(name)


def _is_left_out(column: Any) -> bool:
    """Return True if a column is not read, and so has a null in its place."""
    return isinstance(getattr(column, "element", None), Null)
