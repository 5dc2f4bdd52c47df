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

import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Connection,
    Dialect,
    Double,
    Engine,
    FetchedValue,
    Text,
    and_,
    event,
    inspect,
)
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    MappedAsDataclass,
    MappedColumn,
    Mapper,
    WriteOnlyMapped,
    foreign,
    mapped_column,
    object_session,
    relationship,
)
from sqlalchemy.orm.util import AliasedInsp
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator

from sqlbuffer.checks import checked_dict, checked_flag, checked_instance, refused
from sqlbuffer.codec.decoder import untag
from sqlbuffer.codec.encoder import Encoder
from sqlbuffer.errors import FieldError, ImmutableRowError
from sqlbuffer.fields import FieldSpec
from sqlbuffer.query.builder import QueryBuilder, Tree
from sqlbuffer.query.tree import check
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.database.engine import engine_for, own_engine, resolve_url
from sqlbuffer.storage.database.transactions import BEGIN, Begin
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.rows.conditions import compile_condition

__all__ = ["Buffer", "Episode", "Experience", "Task", "engine", "to_sqlalchemy"]


# Tags of values whose bytes are kept outside the JSON.
_BYTE_TAGS = frozenset({"$array", "$scalar", "$tensor", "$bytes"})


class Payload(TypeDecorator[Any]):
    """JSON with tags, as Python values. A value with arrays or bytes keeps its tags."""

    impl = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
    cache_ok = True

    def coerce_compared_value(self, op: Any, value: Any) -> Any:
        # The other side of an operator is a path or a scalar, not a payload.
        return self.impl_instance.coerce_compared_value(op, value)

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        tree = Encoder().tree(value, "payload")
        if _needs_bytes(tree):
            raise FieldError("a session stores no arrays or bytes: use ReplayBuffer.store")
        return tree

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return value if _needs_bytes(value) else untag(value, b"")


class ExtraPayload(Payload):
    """A dict as JSON with tags."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        if value is not None and not isinstance(value, Mapping):
            raise FieldError(f"extra: expected a dict, got {type(value).__name__}")
        return super().process_bind_param(value, dialect)


def _needs_bytes(tree: Any) -> bool:
    if isinstance(tree, list):
        return any(map(_needs_bytes, tree))
    return isinstance(tree, dict) and (
        not _BYTE_TAGS.isdisjoint(tree) or any(map(_needs_bytes, tree.values()))
    )


class RealValue(TypeDecorator[float]):
    """A float. NaN is refused: the columns hold null for it, and its tag is not sent along."""

    impl = Double
    cache_ok = True

    def process_bind_param(self, value: float | None, dialect: Dialect) -> float | None:
        if value is not None and value != value:
            raise FieldError("a session stores no NaN: use ReplayBuffer.store")
        return value


class UtcTime(TypeDecorator[datetime]):
    """A time in UTC; SQLite has it as text."""

    impl = Text().with_variant(TIMESTAMP(timezone=True), "postgresql")
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> Any:
        if value is None or dialect.name == "postgresql":
            return value
        return value.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def process_result_value(self, value: Any, dialect: Dialect) -> datetime | None:
        if isinstance(value, str):
            value = datetime.fromisoformat(value)
        return None if value is None else value.astimezone(UTC)


class RowNumber(TypeDecorator[int]):
    """The number that the database gives to a row."""

    impl = BigInteger
    cache_ok = True

    def column_expression(self, column: ColumnElement[Any]) -> ColumnElement[Any]:
        return row_number_of(column)


class row_number_of(FunctionElement[int]):
    """The number of a row; in RETURNING, of the row that was inserted."""

    inherit_cache = True
    type = BigInteger()


@compiles(row_number_of)
def _column_itself(element: row_number_of, compiler: Any, **kw: Any) -> str:
    return str(compiler.process(element.clauses, **kw))


@compiles(row_number_of, "sqlite")
def _sqlite_row_number(element: row_number_of, compiler: Any, **kw: Any) -> str:
    if compiler.isinsert:
        # RETURNING has the values sent to the view, but sees the effects of the row's trigger.
        return "(SELECT next_seq - 1 FROM buffers WHERE name = v_experiences.buffer)"
    return _column_itself(element, compiler, **kw)


class _View(DeclarativeBase):
    type_annotation_map = {str: Text, int: BigInteger, float: RealValue, datetime: UtcTime}  # noqa: RUF012


def _from_database(*arguments: Any, **options: Any) -> MappedColumn[Any]:
    """Return a column that the database fills in."""
    return mapped_column(*arguments, server_default=FetchedValue(), init=False, **options)


class Experience(MappedAsDataclass, _View, kw_only=True, eq=False, repr=False):
    """A step in the window of its buffer, with labels in place (`v_experiences`).

    The constructor takes the values of a new row. The database makes all other values; `seq` is
    available after the flush. Without `ORDER BY`, rows come in any order.

    Attributes:
        buffer: Name of the buffer.
        seq: Insert order within the buffer.
        first_seq: `seq` of the first step that is stored with it, at most 255 below its
            own. A condition on `seq` uses an index if it bounds `first_seq` as well.
        id: Unique id within the buffer; a UUIDv7 by default.
        execute_time: Unix time in seconds; now by default.
        reward: Reward of the step; NaN is None here, as in other numbers.
        state: The observation: a Python value. A value with arrays or bytes is JSON with tags, as
            in `actions`, `messages` and `extra`; read it by `ReplayBuffer`.
        fields: Declared fields that conditions can use.
        special_numbers: Numbers that are NaN or -0.0, by the columns of the table `experiences`.
        t: Place in its episode: 0, 1, 2 and so on.
        episode: The episode; None for a step without one.

    Example:
        >>> Experience(buffer="robots", task_id="t", agent_id="a", step=1, reward=0.5).reward
        0.5
    """

    __tablename__ = "v_experiences"
    # After an insert into a view, SQLite returns the values that were sent.
    __mapper_args__ = {"eager_defaults": False}  # noqa: RUF012

    buffer: Mapped[str] = mapped_column(primary_key=True, default="default")
    seq: Mapped[int] = _from_database(RowNumber, primary_key=True, autoincrement=False)
    first_seq: Mapped[int] = _from_database()
    id: Mapped[str | None] = mapped_column(default_factory=uuid7, insert_default=uuid7)
    task_id: Mapped[str]
    task_name: Mapped[str | None] = mapped_column(default=None)
    agent_id: Mapped[str]
    pre_agent: Mapped[str | None] = mapped_column(default=None)
    episode_id: Mapped[str | None] = mapped_column(default=None)
    step: Mapped[int]
    execute_time: Mapped[float | None] = mapped_column(
        default_factory=time.time, insert_default=time.time
    )
    inserted_at: Mapped[datetime] = _from_database()
    reward: Mapped[float | None] = mapped_column(default=None)
    advantage: Mapped[float | None] = mapped_column(default=None)
    value: Mapped[float | None] = mapped_column(default=None)
    terminated: Mapped[bool | None] = mapped_column(default=None)
    truncated: Mapped[bool | None] = mapped_column(default=None)
    model_version: Mapped[int | None] = mapped_column(default=None)
    session_id: Mapped[str | None] = _from_database()
    state: Mapped[Any] = mapped_column(Payload, default=None)
    actions: Mapped[Any] = mapped_column(Payload, default=None)
    messages: Mapped[Any] = mapped_column(Payload, default=None)
    extra: Mapped[dict[Any, Any] | None] = mapped_column(ExtraPayload, default=None)
    fields: Mapped[dict[str, Any] | None] = _from_database(Payload)
    special_numbers: Mapped[dict[str, Any] | None] = _from_database(Payload)
    attempt: Mapped[int | None] = _from_database()
    group_id: Mapped[str | None] = mapped_column(default=None)
    t: Mapped[int | None] = _from_database()
    parent_id: Mapped[str | None] = mapped_column(default=None)

    episode: Mapped["Episode | None"] = relationship(
        primaryjoin=lambda: _is_step_of_episode(), viewonly=True, init=False
    )


class Episode(_View):
    """An episode; it stays when its steps are evicted (`v_episodes`).

    Attributes:
        meta: Values given when it was stored.
        steps: Its steps that are in the window, in order.

    Example:
        >>> from sqlalchemy import select
        >>> best = select(Episode).order_by(Episode.episode_return.desc()).limit(10)
    """

    __tablename__ = "v_episodes"

    buffer: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    episode_id: Mapped[str] = mapped_column(primary_key=True)
    agent_id: Mapped[str | None]
    group_id: Mapped[str | None]
    parent_id: Mapped[str | None]
    status: Mapped[str]
    length: Mapped[int | None]
    episode_return: Mapped[float | None]
    reward: Mapped[float | None]
    episode_reward: Mapped[float | None]
    first_seq: Mapped[int | None]
    last_seq: Mapped[int | None]
    model_version: Mapped[int | None]
    meta: Mapped[Any] = mapped_column(Payload)
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    attempt: Mapped[int | None]

    steps: Mapped[list[Experience]] = relationship(
        primaryjoin=lambda: _is_step_of_episode(),
        order_by=lambda: Experience.t,
        viewonly=True,
    )


class Task(_View):
    """A task with rows in the window (`v_tasks`).

    Attributes:
        n_steps: Number of rows.
        n_agents: Number of agents that took part.
        experiences: The rows, in insert order.

    Example:
        >>> from sqlalchemy import select
        >>> best = select(Task).order_by(Task.total_reward.desc()).limit(10)
    """

    __tablename__ = "v_tasks"

    buffer: Mapped[str] = mapped_column(primary_key=True)
    task_id: Mapped[str] = mapped_column(primary_key=True)
    task_name: Mapped[str | None]
    n_steps: Mapped[int] = mapped_column("steps")
    n_agents: Mapped[int] = mapped_column("agents")
    total_reward: Mapped[float | None]
    mean_reward: Mapped[float | None]

    experiences: Mapped[list[Experience]] = relationship(
        primaryjoin=lambda: and_(
            Task.buffer == foreign(Experience.buffer), Task.task_id == foreign(Experience.task_id)
        ),
        order_by=lambda: Experience.seq,
        viewonly=True,
    )


class Buffer(_View):
    """A buffer (`v_buffers`).

    Attributes:
        n_rows: Number of rows.
        experiences: The rows: `select()` selects them in insert order, `add()` inserts one.

    Example:
        >>> from sqlalchemy import select
        >>> full = select(Buffer.name).where(Buffer.n_rows == Buffer.capacity)
    """

    __tablename__ = "v_buffers"

    name: Mapped[str] = mapped_column("buffer", primary_key=True)
    buffer_id: Mapped[int]
    n_rows: Mapped[int] = mapped_column("rows")
    capacity: Mapped[int | None]
    evict_by: Mapped[str]
    max_age_s: Mapped[float | None]
    max_bytes: Mapped[int | None]
    created_at: Mapped[datetime]
    last_insert_at: Mapped[datetime | None]

    experiences: WriteOnlyMapped[Experience] = relationship(
        primaryjoin=lambda: Buffer.name == foreign(Experience.buffer),
        order_by=lambda: Experience.seq,
        passive_deletes="all",
    )


def _is_step_of_episode() -> ColumnElement[bool]:
    return and_(
        Episode.buffer == foreign(Experience.buffer),
        Episode.task_id == foreign(Experience.task_id),
        Episode.episode_id == foreign(Experience.episode_id),
    )


@event.listens_for(_View, "before_insert", propagate=True)
def _refuse_insert(_mapper: Mapper[Any], _connection: Connection, target: Any) -> None:
    if not isinstance(target, Experience):
        raise ImmutableRowError(
            f"a session adds no {type(target).__name__}: the database makes it of what is stored"
        )


@event.listens_for(_View, "before_update", propagate=True)
def _refuse_update(_mapper: Mapper[Any], _connection: Connection, target: Any) -> None:
    session = object_session(target)
    if session is not None and session.is_modified(target, include_collections=False):
        raise ImmutableRowError(
            f"a session changes no {type(target).__name__}: rows are written once; "
            "ReplayBuffer.annotate gives rewards, advantages, values and extra that come late"
        )


@event.listens_for(_View, "before_delete", propagate=True)
def _refuse_delete(_mapper: Mapper[Any], _connection: Connection, target: Any) -> None:
    raise ImmutableRowError(
        f"a session deletes no {type(target).__name__}: ReplayBuffer.delete deletes rows, and "
        "ReplayBuffer.drop a buffer"
    )


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
    database_engine = own_engine(url, resolved) or engine_for(resolved)
    return (
        database_engine.execution_options(**{BEGIN: Begin(writes=True)})
        if writes
        else database_engine
    )
