"""Classes that SQLAlchemy maps to the views; `docs/reference/views.md` lists the columns."""

import time
from datetime import datetime
from typing import Any

from sqlalchemy import BigInteger, Connection, FetchedValue, Text, and_, event
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
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.errors import ImmutableRowError
from sqlbuffer.orm.value_types import ExtraPayload, Payload, RealValue, RowNumber, UtcTime
from sqlbuffer.steps.ids import uuid7


class _View(DeclarativeBase):
    type_annotation_map = {str: Text, int: BigInteger, float: RealValue, datetime: UtcTime}  # noqa: RUF012


def _made(*arguments: Any, **options: Any) -> MappedColumn[Any]:
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
        episode: The episode; None for a step without one.

    Example:
        >>> Experience(buffer="robots", task_id="t", agent_id="a", step=1, reward=0.5).reward
        0.5
    """

    __tablename__ = "v_experiences"
    # After an insert into a view, SQLite returns the values that were sent.
    __mapper_args__ = {"eager_defaults": False}  # noqa: RUF012

    buffer: Mapped[str] = mapped_column(primary_key=True, default="default")
    seq: Mapped[int] = _made(RowNumber, primary_key=True, autoincrement=False)
    first_seq: Mapped[int] = _made()
    id: Mapped[str | None] = mapped_column(default_factory=uuid7, insert_default=uuid7)
    task_id: Mapped[str]
    task_name: Mapped[str | None] = mapped_column(default=None)
    agent_id: Mapped[str]
    pre_agent: Mapped[str | None] = mapped_column(default=None)
    episode_id: Mapped[str | None] = _made()
    step: Mapped[int]
    execute_time: Mapped[float | None] = mapped_column(
        default_factory=time.time, insert_default=time.time
    )
    inserted_at: Mapped[datetime] = _made()
    reward: Mapped[float | None] = mapped_column(default=None)
    advantage: Mapped[float | None] = mapped_column(default=None)
    value: Mapped[float | None] = mapped_column(default=None)
    terminated: Mapped[bool | None] = mapped_column(default=None)
    truncated: Mapped[bool | None] = mapped_column(default=None)
    model_version: Mapped[int | None] = mapped_column(default=None)
    session_id: Mapped[str | None] = _made()
    state: Mapped[Any] = mapped_column(Payload, default=None)
    actions: Mapped[Any] = mapped_column(Payload, default=None)
    messages: Mapped[Any] = mapped_column(Payload, default=None)
    extra: Mapped[dict[Any, Any] | None] = mapped_column(ExtraPayload, default=None)
    fields: Mapped[dict[str, Any] | None] = _made(Payload)
    special_numbers: Mapped[dict[str, Any] | None] = _made(Payload)

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
    status: Mapped[str]
    length: Mapped[int | None]
    episode_return: Mapped[float | None]
    reward: Mapped[float | None]
    first_seq: Mapped[int | None]
    last_seq: Mapped[int | None]
    model_version: Mapped[int | None]
    meta: Mapped[Any] = mapped_column(Payload)
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]

    steps: Mapped[list[Experience]] = relationship(
        primaryjoin=lambda: _is_step_of_episode(),
        order_by=lambda: (Experience.step, Experience.seq),
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
