"""A page of the rollouts of a buffer: which ones, and in which order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, and_, bindparam, func, or_, select

from sqlbuffer.query.condition_tree import Node
from sqlbuffer.storage.browsing import postgresql, sqlite
from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.buffers.buffer_window import windows
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.chunks.step_relations import chunk_steps
from sqlbuffer.storage.chunks.step_statements import over
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes.keys import one_of
from sqlbuffer.storage.episodes.tables import episodes
from sqlbuffer.storage.rollout_stats.tables import group_stats, rollout_stats
from sqlbuffer.storage.rows.statements import episode_states, matching
from sqlbuffer.storage.schema.column_types import SeqList
from sqlbuffer.storage.schema.list_parameters import is_number_of

_in_order = by_database(sqlite=sqlite.in_order, postgresql=postgresql.in_order)

# What no index orders or finds is looked for among the newest ones.
LOOKED_AT = 10_000
LOOKED_AT_BY_CONDITION = 1_000
# The name of an order -> its column, and whether it descends.
SORTS = {
    "newest": ("first_seq", True),
    "oldest": ("first_seq", False),
    "best": ("return", True),
    "worst": ("return", False),
    "longest": ("length", True),
    "shortest": ("length", False),
    "spread": ("spread", True),
}


@dataclass(frozen=True)
class RolloutQuery:
    """Which rollouts, and in which order.

    Attributes:
        sort: One of `SORTS`.
        task_id: Of this task alone.
        episode_id: With this id of the user's.
        agent_id: Of this agent alone.
        status: `open`, `complete` or `aborted`.
        model_version: Of this version of the model.
        least_return: With at least this return.
        most_return: With at most this return.
        condition: With a step that matches.
        after: Where the page before ended, as `RolloutPage.after` says for the same query; numbers
            and texts, in the order of the columns that it is ordered by.
    """

    sort: str = "newest"
    task_id: str | None = None
    episode_id: str | None = None
    agent_id: str | None = None
    status: str | None = None
    model_version: int | None = None
    least_return: float | None = None
    most_return: float | None = None
    condition: Node | None = None
    after: Sequence[Any] | None = None

    @property
    def is_filtered(self) -> bool:
        """Some rollouts are left out, so that indexes alone do not find the others."""
        return self.is_narrowed or self.task_id is not None

    @property
    def is_narrowed(self) -> bool:
        """Rollouts are left out by more than their task."""
        wanted = (
            self.episode_id, self.agent_id, self.status, self.model_version, self.least_return,
            self.most_return, self.condition,
        )  # fmt: skip
        return any(value is not None for value in wanted)


@dataclass(frozen=True)
class ListedRollout:
    """An episode, or the steps of a task that belong to none.

    Attributes:
        task_id: The task.
        number: Key of the episode in `episodes`; 0: the steps without an episode.
        length: Steps written.
        return_: Sum of their rewards; None: none has one.
        first_seq: Number of the first step.
        last_seq: Number of the last step.
        is_held: The last step is still held.
        spread: How much the returns of the task's episodes differ; None: there is none.
        episode_id: The user's id of the episode.
        agent_id: Who acts.
        status: `open`, `complete`, `aborted` or `abandoned`; None without an episode.
        reward: The episode's own reward.
        model_version: Version of the model at its start.
        started_at: When its first step was written; text on SQLite.
        ended_at: When its end was written.
    """

    task_id: str
    number: int
    length: int
    return_: float | None
    first_seq: int
    last_seq: int
    is_held: bool
    spread: float | None
    episode_id: str | None
    agent_id: str | None
    status: str | None
    reward: float | None
    model_version: int | None
    started_at: Any
    ended_at: Any


@dataclass(frozen=True)
class RolloutPage:
    """A page of rollouts.

    Attributes:
        rollouts: They.
        after: What the next page is asked with; None: this is the last.
        looked_at: Only that many of the newest were looked at; None: all.
    """

    rollouts: list[ListedRollout]
    after: list[Any] | None
    looked_at: int | None


_own = rollout_stats.c
_parts = rollout_stats.alias("parts").c
# Writers of one moment may have added to several parts of a task without episodes; the first one
# stands for all.
_IS_FIRST_PART = or_(
    _own.episode_id != 0,
    ~select(1)
    .where(
        _parts.buffer_id == _own.buffer_id,
        _parts.task_id == _own.task_id,
        _parts.episode_id == 0,
        _parts.part < _own.part,
    )
    .exists(),
)


def rollout_page(
    connection: Connection, info: BufferInfo, query: RolloutQuery, limit: int = 50
) -> RolloutPage:
    """Return a page of the rollouts of a buffer.

    Args:
        connection: The transaction.
        info: The buffer.
        query: Which ones.
        limit: How many at most.
    """
    with _in_order(connection):
        if query.is_filtered:
            return _filtered(connection, info, query, limit)
        if query.sort == "spread":
            return _by_spread(connection, info.id, query, limit)
        return _by_column(connection, info.id, query, limit)


def _by_column(
    connection: Connection, buffer_id: int, query: RolloutQuery, limit: int
) -> RolloutPage:
    """Return rollouts in the order of a column of their own."""
    name, descends = SORTS[query.sort]
    columns = (_own[name], _own.first_seq)
    keys = _rollouts(buffer_id).where(_IS_FIRST_PART)
    if name != "first_seq":
        # Rollouts without a return have no place in that order.
        keys = keys.where(_own[name].is_not(None))
    if query.after is not None:
        keys = keys.where(_is_behind(columns, query.after, descends))
    found = connection.execute(_ordered(keys, columns, descends).limit(limit + 1)).all()
    after = [found[limit - 1]._mapping[name], found[limit - 1].first_seq] if found[limit:] else None
    return RolloutPage(_listed(connection, buffer_id, found[:limit]), after, None)


def _by_spread(
    connection: Connection, buffer_id: int, query: RolloutQuery, limit: int
) -> RolloutPage:
    """Return the episodes of the tasks whose returns differ most, the best of each task first."""
    group, found = group_stats.c, list[Any]()
    spread: dict[str, float] = {}
    place = None if query.after is None else list(query.after)
    if place is not None:
        spread[place[1]] = place[0]
        found += _best_of_task(connection, buffer_id, place[1], place[2:], limit + 1)
    while len(found) <= limit:
        groups = select(group.spread, group.task_id).where(
            group.buffer_id == buffer_id, group.spread.is_not(None)
        )
        columns = (group.spread, group.task_id)
        if place is not None:
            groups = groups.where(_is_behind(columns, place[:2], True))
        listed = connection.execute(_ordered(groups, columns, True).limit(limit)).all()
        if not listed:
            break
        for place in map(list, listed):
            spread[place[1]] = place[0]
            n_more = limit + 1 - len(found)
            found += _best_of_task(connection, buffer_id, place[1], None, n_more) if n_more else []
    after = None
    if found[limit:]:
        last = found[limit - 1]
        after = [spread[last.task_id], last.task_id, last._mapping["return"], last.first_seq]
    return RolloutPage(_listed(connection, buffer_id, found[:limit]), after, None)


def _best_of_task(
    connection: Connection, buffer_id: int, task_id: str, after: Sequence[Any] | None, limit: int
) -> Sequence[Any]:
    columns = (_own["return"], _own.first_seq)
    keys = _rollouts(buffer_id).where(
        _own.task_id == task_id, _own.episode_id != 0, _own["return"].is_not(None)
    )
    if after is not None:
        keys = keys.where(_is_behind(columns, after, True))
    return connection.execute(_ordered(keys, columns, True).limit(limit)).all()


def _filtered(
    connection: Connection, info: BufferInfo, query: RolloutQuery, limit: int
) -> RolloutPage:
    """Return those among the newest rollouts that are wanted."""
    buffer_id = info.id
    n_most = LOOKED_AT if query.condition is None else LOOKED_AT_BY_CONDITION
    newest = _rollouts(buffer_id).where(_IS_FIRST_PART)
    if query.task_id is None:
        newest = newest.order_by(_own.first_seq.desc())
    else:
        newest = newest.where(_own.task_id == query.task_id).order_by(_own.episode_id.desc())
    n_there = select(func.count()).select_from(newest.limit(n_most + 1).subquery())
    is_cut = connection.execute(n_there).scalar_one() > n_most
    own = newest.limit(n_most).subquery("own").c
    name, descends = SORTS[query.sort]
    column = group_stats.c.spread if name == "spread" else own[name]
    is_group = (group_stats.c.buffer_id == buffer_id) & (group_stats.c.task_id == own.task_id)
    keys = (
        select(*own)
        .outerjoin(episodes, episodes.c.id == own.episode_id)
        .outerjoin(group_stats, is_group)
        .where(*_filters(info, query, own))
    )
    if name != "first_seq":
        keys = keys.where(column.is_not(None))
    n_before = int(query.after[0]) if query.after else 0
    keys = _ordered(keys, (column, own.first_seq), descends).limit(limit + 1).offset(n_before)
    found = connection.execute(keys).all()
    return RolloutPage(
        _listed(connection, buffer_id, found[:limit]),
        [n_before + limit] if found[limit:] else None,
        n_most if is_cut else None,
    )


def _filters(info: BufferInfo, query: RolloutQuery, own: Any) -> list[ColumnElement[bool]]:
    equal = (
        (episodes.c.key, query.episode_id),
        (episodes.c.agent_id, query.agent_id),
        (episodes.c.status, query.status),
        (episodes.c.model_version, query.model_version),
    )
    found = [column == value for column, value in equal if value is not None]
    if query.least_return is not None:
        found.append(own["return"] >= query.least_return)
    if query.most_return is not None:
        found.append(own["return"] <= query.most_return)
    if query.condition is not None:
        found.append(_has_step(info, query.condition, own))
    return found


def _has_step(info: BufferInfo, node: Node, own: Any) -> ColumnElement[bool]:
    """Return the expression for a rollout having a step that matches, in the window."""
    table: Any = chunk_steps if info.has_chunks else experiences
    is_match = matching(info.id, node)
    step = select(1).where(
        over(is_match, chunk_steps) if info.has_chunks else is_match,
        table.c.task_id == own.task_id,
        table.c.seq > _low_of(info.id),
    )
    # Each with the index that finds its steps.
    of_episode = step.where(table.c.episode_id == own.episode_id).exists()
    without = step.where(table.c.episode_id.is_(None)).exists()
    return or_(and_(own.episode_id != 0, of_episode), and_(own.episode_id == 0, without))


def _listed(connection: Connection, buffer_id: int, found: Sequence[Any]) -> list[ListedRollout]:
    """Return rollouts with what other tables say of them."""
    if not found:
        return []
    group, own, state = group_stats.c, episodes.c, episode_states.c
    tasks = {row.task_id for row in found}
    spreads = select(group.task_id, group.spread).where(
        group.buffer_id == buffer_id, one_of(group.task_id, tasks)
    )
    spread = dict(connection.execute(spreads).all())
    numbers = bindparam(None, [row.episode_id for row in found if row.episode_id], SeqList())
    names = (
        select(
            own.id, own.key, own.agent_id, state.status, own.reward, own.model_version,
            own.started_at, own.ended_at,
        )
        .join(episode_states, state.id == own.id)
        # Of both: PostgreSQL would read one of them whole.
        .where(is_number_of(own.id, numbers), is_number_of(state.id, numbers))
    )  # fmt: skip
    named = {number: rest for number, *rest in connection.execute(names)}
    whole = _without_episode(connection, buffer_id, {r.task_id for r in found if not r.episode_id})
    low = connection.execute(select(_low_of(buffer_id))).scalar_one() or 0
    listed = []
    for row in found:
        task_id, number, length, return_, first_seq, last_seq = row
        if not number:
            length, return_, last_seq = whole.get(task_id, (length, return_, last_seq))
        is_held = last_seq > low
        rest = named.get(number, [None] * 7)
        listed.append(
            ListedRollout(
                task_id, number, length, return_, first_seq, last_seq, is_held,
                spread.get(task_id), *rest,
            )
        )  # fmt: skip
    return listed


def _without_episode(
    connection: Connection, buffer_id: int, tasks: set[str]
) -> dict[str, tuple[int, float | None, int]]:
    """Return length, return and last number of the steps without an episode, by task."""
    if not tasks:
        return {}
    sums = (
        select(
            _own.task_id, func.sum(_own.length), func.sum(_own["return"]), func.max(_own.last_seq)
        )
        .where(_own.buffer_id == buffer_id, one_of(_own.task_id, tasks), _own.episode_id == 0)
        .group_by(_own.task_id)
    )
    return {task: (int(n), total, last) for task, n, total, last in connection.execute(sums)}


def _rollouts(buffer_id: int) -> Select[Any]:
    return select(
        _own.task_id, _own.episode_id, _own.length, _own["return"], _own.first_seq, _own.last_seq
    ).where(_own.buffer_id == buffer_id)


def _low_of(buffer_id: int) -> Any:
    return select(windows.c.low_seq).where(windows.c.buffer_id == buffer_id).scalar_subquery()


def _is_behind(columns: Sequence[Any], after: Sequence[Any], descends: bool) -> ColumnElement[bool]:
    """Return the expression for two columns being behind two values."""
    (one, two), (value, tie) = columns, after
    if descends:
        found = and_(one <= value, or_(one < value, two < tie))
    else:
        found = and_(one >= value, or_(one > value, two > tie))
    return found


def _ordered(query: Select[Any], columns: Sequence[Any], descends: bool) -> Select[Any]:
    return query.order_by(*(column.desc() if descends else column for column in columns))
