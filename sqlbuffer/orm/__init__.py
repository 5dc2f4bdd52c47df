"""Mapped SQLAlchemy classes over the views, and conditions as SQLAlchemy expressions.

A session reads what `ReplayBuffer` reads. It inserts rows as plain SQL does: the database numbers
them and evicts what no longer fits. It never changes or deletes a row.

Example:
    >>> from sqlalchemy import select
    >>> from sqlalchemy.orm import Session
    >>> from sqlbuffer import QueryBuilder, ReplayBuffer
    >>> database = engine("sqlite://")
    >>> buffer = ReplayBuffer(database, max_capacity=2)
    >>> with Session(database) as session:
    ...     for step in range(3):
    ...         session.add(Experience(task_id="t", agent_id="a", step=step, state={"x": step}))
    ...     session.commit()
    >>> [row.exp_meta.step for row in buffer.get_all()]
    [1, 2]
    >>> late = to_sqlalchemy(QueryBuilder().gt("exp_data.state.x", 1))
    >>> with Session(database) as session:
    ...     [row.step for row in session.scalars(select(Experience).where(late))]
    [2]
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine, inspect
from sqlalchemy.orm import Mapper
from sqlalchemy.orm.util import AliasedInsp
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.checks import checked_dict, checked_flag, checked_instance, refused
from sqlbuffer.fields.specs import FieldSpec
from sqlbuffer.orm.mapped_classes import Buffer, Episode, Experience, Task
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.query.tree_checks import check
from sqlbuffer.storage.database.engine import engine_for, own_engine, resolve_url
from sqlbuffer.storage.database.transactions import BEGIN, Begin
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.rows.conditions import compile_condition


def to_sqlalchemy(
    condition: Tree | QueryBuilder | None,
    entity: Any = Experience,
    *,
    fields: Mapping[str, FieldSpec] | None = None,
) -> ColumnElement[bool]:
    """Return a condition as an expression over `Experience`, with bound values.

    It matches rows of all buffers: add `Experience.buffer == name` to the statement.

    Args:
        condition: Result of `QueryBuilder.build`, or a builder; None matches every row.
        entity: `Experience`, or an alias of it.
        fields: Typed fields of the buffer (`ReplayBuffer.fields`); needed if the condition uses
            some.

    Raises:
        ArgumentError: `entity` is not a mapped class, or `fields` are not those of a buffer.
        ConditionError: The condition is malformed or too large, or uses an unknown field.

    Example:
        >>> print(to_sqlalchemy({"field": "exp_meta.step", "op": "gt", "value": 3}))
        v_experiences.step > :param_1
    """
    specs = {} if fields is None else checked_dict(fields, "fields", "buffer.fields")
    for spec in specs.values():
        checked_instance(spec, "each value of fields", FieldSpec, "one of buffer.fields")
    mapped = None if isinstance(entity, str) else inspect(entity, raiseerr=False)
    if not isinstance(mapped, (Mapper, AliasedInsp)):
        raise refused(entity, "entity", "Experience, or an alias of it")
    declared = {name: spec.column for name, spec in specs.items()}
    return compile_condition(check(condition, declared), mapped.selectable)


def engine(url: Database = None, *, writes: bool = False) -> Engine:
    """Return an engine with the settings of a buffer's own engine. It does not make a schema.

    Args:
        url: A URL as for `ReplayBuffer`, or an engine to set up. A database in memory belongs to
            one engine, so give the same engine to `ReplayBuffer`.
        writes: True takes the write lock of SQLite at the start of each transaction. Without it, a
            transaction that reads before it inserts fails if another process wrote in between.

    Raises:
        ArgumentError: `writes` is not True or False.
        URLError: The URL is not of SQLite or PostgreSQL.

    Example:
        >>> engine("sqlite:///replay.db").dialect.name
        'sqlite'
    """
    writes = checked_flag(writes, "writes")
    resolved = resolve_url(url)
    found = own_engine(url, resolved) or engine_for(resolved)
    return found.execution_options(**{BEGIN: Begin(writes=True)}) if writes else found


__all__ = ["Buffer", "Episode", "Experience", "Task", "engine", "to_sqlalchemy"]
