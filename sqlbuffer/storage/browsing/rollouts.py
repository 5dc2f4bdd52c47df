"""Pages of the rollouts of a buffer, filtered and ordered.

Pages go by two columns, of which the second is unique. Rows without a value in the first come last.
"""

import math
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from operator import attrgetter, itemgetter
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    func,
    or_,
    select,
)
from sqlalchemy.engine import URL

from sqlbuffer.codec.plain_values import is_storable_text
from sqlbuffer.query.tree import Node
from sqlbuffer.storage.buffers.catalog import BufferInfo, find_buffer, not_found
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.window import windows
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.episodes import episode_states, episodes
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.rollout_stats import group_stats, rollout_reward, rollout_stats
from sqlbuffer.storage.rows.layouts import steps_of
from sqlbuffer.storage.rows.statements import matching
from sqlbuffer.storage.schema.expressions import (
    SeqList,
    is_number_of,
    numbers_in,
    one_of_keys,
    unindexed,
)


def is_behind(columns: Sequence[Any], after: Sequence[Any], descends: bool) -> ColumnElement[bool]:
    """Return the expression that is true if two columns come after two values."""
    (one, two), (value, tie) = columns, after
    if value is None:
        condition = and_(one.is_(None), two < tie if descends else two > tie)
    elif descends:
        condition = and_(one <= value, or_(one < value, two < tie))
    else:
        condition = and_(one >= value, or_(one > value, two > tie))
    return condition


def ordered(query: Select[Any], columns: Sequence[Any], descends: bool) -> Select[Any]:
    """Return the query ordered by columns, all ascending or all descending."""
    return query.order_by(*(column.desc() if descends else column for column in columns))


def _sqlite_order_of_nulls(_: Connection, columns: Sequence[Any]) -> Sequence[Any]:
    """SQLite would sort an expression of an index that is null in all rows."""
    return columns[1:]


def _postgresql_order_of_nulls(_: Connection, columns: Sequence[Any]) -> Sequence[Any]:
    return columns


_order_of_nulls = by_database(sqlite=_sqlite_order_of_nulls, postgresql=_postgresql_order_of_nulls)


def _has_value(value: Any) -> Any:
    """Return the expression for a column, or an expression of an index, that is not null.

    SQLite finds the values of an expression by a bound alone.
    """
    return value.is_not(None) if hasattr(value, "nullable") else value >= -math.inf


def rows_in_order(
    connection: Connection,
    query: Select[Any],
    columns: Sequence[Any],
    after: Sequence[Any] | None,
    descends: bool,
    limit: int,
) -> list[Any]:
    """Return the first rows of a query behind two values; None: from its begin.

    Two statements, of which an index serves each: the databases put nulls at different ends.
    """
    value, rows = columns[0], list[Any]()
    of_nulls = _order_of_nulls(connection, columns)
    parts: list[tuple[Any, Sequence[Any]]] = []
    if after is None:
        parts.append((_has_value(value), columns))
    else:
        is_among_nulls = after[0] is None
        parts.append((is_behind(columns, after, descends), of_nulls if is_among_nulls else columns))
    if getattr(value, "nullable", True) and (after is None or after[0] is not None):
        parts.append((value.is_(None), of_nulls))
    for part, order in parts:
        if n_more := limit - len(rows):
            rest = ordered(query.where(part), order, descends).limit(n_more)
            rows += connection.execute(rest).all()
    return rows


@dataclass(frozen=True)
class Rollout:
    """An episode, or the steps of a task that belong to no episode.

    Attributes:
        number: Key of the episode in `episodes`; None for steps without an episode.
        task_id: The task.
        agent_id: The acting agent; None for all agents of steps without an episode.
        episode_id: The user's id of the episode.
        status: `open`, `complete`, `aborted` or `abandoned`.
        length: Number of steps, so far while it is open.
        return_: Sum of the rewards; None if no step has one.
        reward: Reward of the episode itself.
        model_version: Version of the model at its start.
        meta: JSON of the metadata given when it was stored.
        started_at: Time when its first step was written; text on SQLite.
        ended_at: Time when its end was written.
        group_id: The user's id of its group.
    """

    task_id: str
    number: int | None = None
    agent_id: str | None = None
    episode_id: str | None = None
    status: str | None = None
    length: int | None = None
    return_: float | None = None
    reward: float | None = None
    model_version: int | None = None
    meta: str | None = None
    started_at: Any = None
    ended_at: Any = None
    group_id: str | None = None


def browsed_buffer(connection: Connection, url: URL, name: str) -> OpenBuffer:
    """Return a buffer by name.

    It opens no connection of its own while it is used only in functions that take a connection.

    Raises:
        BufferNotFoundError: No such buffer.
    """
    info = find_buffer(connection, name) if is_storable_text(name) else None
    if info is None:
        raise not_found(name, url)
    return OpenBuffer(url, info)


def find_episode(connection: Connection, buffer: OpenBuffer, number: int) -> Rollout | None:
    """Return an episode of a buffer; None if the buffer has none of that number."""
    episode, state = episodes.c, episode_states.c
    if not 0 < number < 2**63:
        return None
    row = connection.execute(
        select(
            episode.task_id, episode.agent_id, episode.key, state.status, episode.length,
            episode["return"], episode.reward, episode.model_version, cast(episode.meta, Text),
            episode.started_at, episode.ended_at, episode.group_id,
        )
        .join(episode_states, state.id == episode.id)
        .where(episode.id == number, episode.buffer_id == buffer.info.id)
    ).one_or_none()  # fmt: skip
    if row is None:
        return None
    task_id, agent_id, key, status, length, return_, *rest = row
    if status in ("open", "abandoned"):
        # `episodes` has these sums only after the episode has ended.
        sums = rollout_stats.c
        is_own = (sums.buffer_id == buffer.info.id) & (sums.task_id == task_id)
        so_far = select(sums.length, sums["return"]).where(is_own, sums.episode_id == number)
        length, return_ = connection.execute(so_far).one_or_none() or (None, None)
    return Rollout(task_id, number, agent_id, key, status, length, return_, *rest)


@dataclass(frozen=True)
class Relatives:
    """The episodes that an episode came from and that came from it.

    Attributes:
        parent_id: Id of the episode that it came from; None if it was not given.
        parent: Key of that one in `episodes`; None if the buffer has none of that id.
        children: Keys and ids of the episodes that came from it, in the order in which they began.
        has_more: There are more of them.
    """

    parent_id: str | None = None
    parent: int | None = None
    children: Sequence[tuple[int, str]] = ()
    has_more: bool = False


MOST_CHILDREN = 50


def relatives_of(connection: Connection, buffer_id: int, number: int) -> Relatives:
    """Return the relatives of an episode; of parents with the same id, the one of its task."""
    of_buffer = episodes.c.buffer_id == buffer_id
    own = select(episodes.c.key, episodes.c.task_id, episodes.c.parent_id)
    key, task_id, parent_id = connection.execute(own.where(episodes.c.id == number)).one()
    parent = None
    if parent_id is not None:
        is_near = case((episodes.c.task_id == task_id, 0), else_=1)
        parents = select(episodes.c.id).where(of_buffer, episodes.c.key == parent_id)
        parent = connection.execute(parents.order_by(is_near, episodes.c.id).limit(1)).scalar()
    children = select(episodes.c.id, episodes.c.key).where(of_buffer, episodes.c.parent_id == key)
    some = connection.execute(children.order_by(episodes.c.id).limit(MOST_CHILDREN + 1)).all()
    return Relatives(
        parent_id, parent, [(id_, name) for id_, name in some[:MOST_CHILDREN]],
        len(some) > MOST_CHILDREN,
    )  # fmt: skip


def episode_metas(connection: Connection, numbers: Sequence[int]) -> dict[int, str]:
    """Return the JSON of the metadata of episodes that have some, by their numbers."""
    episode = episodes.c
    is_own = is_number_of(episode.id, bindparam(None, list(numbers), SeqList()))
    metas = select(episode.id, cast(episode.meta, Text)).where(is_own, episode.meta.is_not(None))
    return dict(connection.execute(metas).all()) if numbers else {}


# Rollouts that no index orders or finds are searched among the newest ones.
LOOKED_AT = 10_000
LOOKED_AT_BY_CONDITION = 1_000
# Name of an order -> its column, and True if it descends. Rollouts without a value come last.
INDEXED_SORTS = {
    "newest": ("first_seq", True),
    "oldest": ("first_seq", False),
    "best": ("rollout_reward", True),
    "worst": ("rollout_reward", False),
    "longest": ("length", True),
    "shortest": ("length", False),
    "spread": ("spread", True),
    "task": ("task_id", False),
    "task descending": ("task_id", True),
}
_OTHER_COLUMNS = {
    "episode": "key",
    "agent": "agent_id",
    "status": "status",
    "own reward": "reward",
    "model": "model_version",
    "ended": "ended_at",
}
SORTS = INDEXED_SORTS | {
    f"{name}{ending}": (column, bool(ending))
    for name, column in _OTHER_COLUMNS.items()
    for ending in ("", " descending")
}


_OPPOSITE = {
    name: next(other for other, way in SORTS.items() if way == (column, not descends))
    for name, (column, descends) in SORTS.items()
    if column != "spread"
}


# Name of a value of a rollout that filters compare -> its column here.
FILTERED = {
    "episode": "key",
    "task": "task_id",
    "group": "group_id",
    "agent": "agent_id",
    "status": "status",
    "model": "model_version",
    "reward": "rollout_reward",
    "length": "length",
    "spread": "spread",
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class RolloutFilter:
    """A comparison with a value of a rollout; rollouts without the value do not match.

    Attributes:
        name: One of `FILTERED`.
        comparison: `=`, `!=`, `<`, `<=`, `>` or `>=`.
        value: A text or a number, as the column has them.
    """

    name: str
    comparison: str
    value: Any

    @property
    def column(self) -> str:
        """Column of the value."""
        return FILTERED[self.name]

    def on(self, value: Any) -> Any:
        """Return the comparison of a value or of a column with the filter's value."""
        return _COMPARISONS[self.comparison](value, self.value)

    def matches(self, value: Any) -> bool:
        """Return True if a value matches; None and NaN do not."""
        return value is not None and value == value and bool(self.on(value))


@dataclass(frozen=True)
class RolloutQuery:
    """Filter and order of a page of rollouts.

    Attributes:
        sort: One of `SORTS`.
        group_id: Their group: `group_id` of the episodes, or else their task.
        filters: Comparisons that all must match.
        words: Texts that the id of the episode, its task, group or agent must contain, in any case.
        condition: Condition that at least one step must match.
        after: `RolloutPage.after` of the page before, for the same query: numbers and texts, in the
            order of the columns that sort the page.
    """

    sort: str = "newest"
    group_id: str | None = None
    filters: tuple[RolloutFilter, ...] = ()
    words: tuple[str, ...] = ()
    condition: Node | None = None
    after: Sequence[Any] | None = None

    @property
    def is_filtered(self) -> bool:
        """The query leaves out some rollouts."""
        return bool(self.filters or self.words) or (
            self.group_id is not None or self.condition is not None
        )

    def exact(self, name: str) -> str | None:
        """Return the one text that a value must be; None if no filter says so."""
        texts = [f.value for f in self.filters if (f.name, f.comparison) == (name, "=")]
        return texts[0] if texts else None

    @property
    def is_indexed(self) -> bool:
        """Indexes alone find the rollouts in their order."""
        return self.sort in INDEXED_SORTS and not self.is_filtered

    @property
    def is_of_group(self) -> bool:
        """The query wants the rollouts of a group in the order of their rewards."""
        is_ordered = INDEXED_SORTS.get(self.sort, ("",))[0] == "rollout_reward"
        return is_ordered and self == RolloutQuery(
            self.sort, group_id=self.group_id, after=self.after
        )


@dataclass(frozen=True)
class ListedRollout:
    """An episode, or the steps of a task that belong to no episode.

    Attributes:
        task_id: The task.
        number: Key of the episode in `episodes`; 0 for the steps without an episode.
        length: Steps written.
        return_: Sum of their rewards; None if no step has one.
        first_seq: Number of the first step.
        last_seq: Number of the last step.
        group_id: Its group.
        rollout_reward: Reward of the episode itself, or else `return_`.
        is_held: The last step is still held.
        spread: Spread of the rewards in the group; None while one has no reward.
        episode_id: The user's id of the episode.
        agent_id: The acting agent.
        status: `open`, `complete`, `aborted` or `abandoned`; None without an episode.
        reward: Reward of the episode itself.
        model_version: Version of the model at its start.
        started_at: Time when its first step was written; text on SQLite.
        ended_at: Time when its end was written.
    """

    task_id: str
    number: int
    length: int
    return_: float | None
    first_seq: int
    last_seq: int
    group_id: str
    rollout_reward: float | None
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
        rollouts: Rollouts of the page.
        after: Argument `after` of the next page; None for the last page.
        looked_at: Number of the newest rollouts that were filtered and sorted; None for all.
    """

    rollouts: list[ListedRollout]
    after: list[Any] | None
    looked_at: int | None


def _sqlite_in_order(connection: Connection) -> AbstractContextManager[None]:
    """Do nothing: SQLite walks an index if that avoids a sort."""
    return nullcontext()


@contextmanager
def _postgresql_in_order(connection: Connection) -> Iterator[None]:
    """Make statements with an ORDER BY and a LIMIT walk an index.

    With statistics of another buffer the planner would rather sort all rows of this one.
    """
    connection.exec_driver_sql("SET LOCAL enable_sort = off")
    yield
    connection.exec_driver_sql("SET LOCAL enable_sort = on")


in_order = by_database(sqlite=_sqlite_in_order, postgresql=_postgresql_in_order)

_own = rollout_stats.c
# Values of episodes, in the order in which `ListedRollout` ends with them.
_NAMES = {
    "key": episodes.c.key,
    "agent_id": episodes.c.agent_id,
    # Not a join: PostgreSQL would read one of the two completely, or compare all numbers with all.
    "status": (
        select(episode_states.c.status)
        .where(episode_states.c.id == episodes.c.id)
        .scalar_subquery()
    ),
    "reward": episodes.c.reward,
    "model_version": episodes.c.model_version,
    "started_at": episodes.c.started_at,
    "ended_at": episodes.c.ended_at,
}
_parts = rollout_stats.alias("parts").c
# Concurrent writers may have added to several parts of a task without episodes; the first part
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
        query: Filter and order of the rollouts.
        limit: Maximum number of rollouts.
    """
    with in_order(connection):
        if not (query.is_indexed or query.is_of_group):
            return _among_newest(connection, info, query, limit)
        if query.sort == "spread":
            return _by_spread(connection, info.id, query, limit)
        return _by_column(connection, info.id, query, limit)


MOST_NEWER = 1_000


def n_newer(connection: Connection, buffer_id: int, since: int) -> int:
    """Return how many rollouts began behind a step, at most `MOST_NEWER`.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        since: Number of the step.
    """
    newer = select(_own.first_seq).where(_own.buffer_id == buffer_id, _own.first_seq > since)
    some = newer.where(_IS_FIRST_PART).limit(MOST_NEWER).subquery()
    return int(connection.execute(select(func.count()).select_from(some)).scalar_one())


def neighbours(
    connection: Connection, info: BufferInfo, query: RolloutQuery, task_id: str, number: int
) -> tuple[ListedRollout | None, ListedRollout | None]:
    """Return the rollouts before and behind an episode in a list; None at an end of the list.

    Args:
        connection: The transaction.
        info: The buffer.
        query: Filter and order of the list. That of the spread has no rollout before another.
        task_id: The task of the episode.
        number: Its key in `episodes`.
    """
    is_own = (_own.task_id == task_id) & (_own.episode_id == number)
    rows = connection.execute(_rollouts(info.id).where(is_own)).all()
    if not rows or query.sort not in _OPPOSITE:
        return None, None
    name = SORTS[query.sort][0]
    ((value, first_seq),) = _keys_of(connection, info.id, name, list(rows[:1]))
    tie = number if query.is_indexed and name == "task_id" else first_seq
    behind = rollout_page(connection, info, replace(query, after=[value, tie]), 1).rollouts
    before = replace(query, sort=_OPPOSITE[query.sort])
    rollouts = rollout_page(connection, info, replace(before, after=[value, tie]), 1).rollouts
    if value is None and not rollouts:
        # Those without a value come last in both orders.
        last = rollout_page(connection, info, before, 1).rollouts
        rollouts = [row for row in last if _has_place(connection, info.id, name, row)]
    elif value is not None:
        rollouts = [row for row in rollouts if _has_place(connection, info.id, name, row)]
    return (rollouts[0] if rollouts else None), (behind[0] if behind else None)


def _has_place(connection: Connection, buffer_id: int, name: str, row: ListedRollout) -> bool:
    """Return True if a rollout has a value in the column of an order."""
    is_own = (_own.task_id == row.task_id) & (_own.episode_id == row.number)
    rows = list(connection.execute(_rollouts(buffer_id).where(is_own)).all())
    return _keys_of(connection, buffer_id, name, rows[:1])[0][0] is not None


def group_rewards(
    connection: Connection, buffer_id: int, group_id: str, limit: int
) -> dict[int, float | None]:
    """Return the rewards of the episodes of a group, without aborted ones, by their numbers.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        group_id: The group.
        limit: Maximum number of episodes.
    """
    is_own = (_own.buffer_id == buffer_id) & (_own.group_id == group_id) & (_own.episode_id != 0)
    columns = select(_own.episode_id, rollout_reward).where(is_own, ~_own.is_aborted)
    return dict(connection.execute(columns.limit(limit)).all())


def _by_column(
    connection: Connection, buffer_id: int, query: RolloutQuery, limit: int
) -> RolloutPage:
    """Return rollouts in the order of one of their own columns."""
    name, descends = SORTS[query.sort]
    # The index of tasks goes on with the numbers of their episodes.
    tie = "episode_id" if name == "task_id" else "first_seq"
    columns = (_COLUMNS[name], _own[tie])
    keys = _rollouts(buffer_id).where(_IS_FIRST_PART)
    if query.group_id is not None:
        keys = keys.where(_own.group_id == query.group_id)
    rows = rows_in_order(connection, keys, columns, query.after, descends, limit + 1)
    last = rows[limit - 1]._mapping if rows[limit:] else None
    after = None if last is None else [last[name], last[tie]]
    return RolloutPage(_listed_rollouts(connection, buffer_id, rows[:limit]), after, None)


def _by_spread(
    connection: Connection, buffer_id: int, query: RolloutQuery, limit: int
) -> RolloutPage:
    """Return the episodes of the groups whose rewards differ most, the best of each group first."""
    group, rollouts = group_stats.c, list[Any]()
    spread: dict[str, float] = {}
    place = None if query.after is None else list(query.after)
    if place is not None:
        spread[place[1]] = place[0]
        rollouts += _best_of_group(connection, buffer_id, place[1], place[2:], limit + 1)
    while len(rollouts) <= limit:
        groups = select(group.spread, group.group_id).where(
            group.buffer_id == buffer_id, group.spread.is_not(None)
        )
        columns = (group.spread, group.group_id)
        if place is not None:
            groups = groups.where(is_behind(columns, place[:2], True))
        listed = connection.execute(ordered(groups, columns, True).limit(limit)).all()
        if not listed:
            break
        for place in map(list, listed):
            spread[place[1]] = place[0]
            n_more = limit + 1 - len(rollouts)
            rollouts += (
                _best_of_group(connection, buffer_id, place[1], None, n_more) if n_more else []
            )
    after = None
    if rollouts[limit:]:
        last = rollouts[limit - 1]
        after = [spread[last.group_id], last.group_id, last.rollout_reward, last.first_seq]
    return RolloutPage(_listed_rollouts(connection, buffer_id, rollouts[:limit]), after, None)


def _best_of_group(
    connection: Connection, buffer_id: int, group_id: str, after: Sequence[Any] | None, limit: int
) -> Sequence[Any]:
    columns = (rollout_reward, _own.first_seq)
    keys = _rollouts(buffer_id).where(
        _own.group_id == group_id, _own.episode_id != 0, _has_value(rollout_reward)
    )
    if after is not None:
        keys = keys.where(is_behind(columns, after, True))
    return connection.execute(ordered(keys, columns, True).limit(limit)).all()


def _candidates(
    connection: Connection, buffer_id: int, query: RolloutQuery, limit: int
) -> list[Any]:
    """Return the newest rollouts that a query is about, as far as an index finds them."""
    rollouts = _rollouts(buffer_id).where(_IS_FIRST_PART)
    group_id = query.exact("group") if query.group_id is None else query.group_id
    if (key := query.exact("episode")) is not None:
        return _of_key(connection, buffer_id, key, limit)
    if (task_id := query.exact("task")) is not None:
        newest = rollouts.where(_own.task_id == task_id).order_by(_own.episode_id.desc())
    elif group_id is not None:
        newest = rollouts.where(_own.group_id == group_id).order_by(_own.first_seq.desc())
    else:
        newest = rollouts.order_by(_own.first_seq.desc())
    return list(connection.execute(newest.limit(limit)).all())


def _of_key(connection: Connection, buffer_id: int, key: str, limit: int) -> list[Any]:
    """Return the rollouts of the episodes with an id of the user."""
    is_own = (episodes.c.buffer_id == buffer_id) & (episodes.c.key == key)
    own = connection.execute(select(episodes.c.id, episodes.c.task_id).where(is_own).limit(limit))
    tasks = dict(own.all())
    if not tasks:
        return []
    # Not a join, nor an order: planners would walk all rollouts.
    numbers = bindparam(None, list(tasks), SeqList())
    of_key = _rollouts(buffer_id).where(
        one_of_keys(_own.task_id, set(tasks.values())), is_number_of(_own.episode_id, numbers)
    )
    return sorted(connection.execute(of_key).all(), key=attrgetter("first_seq"), reverse=True)


def _named(
    connection: Connection, buffer_id: int, word: str, limit: int, rows: Sequence[Any]
) -> list[Any]:
    """Return the rollouts of the episode, of the task or of the group with an id, but for some."""
    found = _of_key(connection, buffer_id, word, limit)
    for name in ("task", "group"):
        query = RolloutQuery(filters=(RolloutFilter(name, "=", word),))
        found += _candidates(connection, buffer_id, query, limit)
    seen = {(row.task_id, row.episode_id) for row in rows}
    return [
        row
        for row in {(r.task_id, r.episode_id): r for r in found}.values()
        if (row.task_id, row.episode_id) not in seen
    ]


def _among_newest(
    connection: Connection, info: BufferInfo, query: RolloutQuery, limit: int
) -> RolloutPage:
    """Return those of the newest rollouts that match the query, in its order.

    They are filtered and sorted here: planners without statistics of a buffer join them badly.
    """
    n_most = LOOKED_AT if query.condition is None else LOOKED_AT_BY_CONDITION
    rows = _candidates(connection, info.id, query, n_most + 1)
    looked_at = n_most if len(rows) > n_most else None
    matches = rows[:n_most]
    if looked_at is not None and len(query.words) == 1:
        matches += _named(connection, info.id, query.words[0], n_most, matches)
    for check in (_with_values, _with_names, _with_words, _with_steps):
        matches = check(connection, info, query, matches)
    name, descends = SORTS[query.sort]
    keys = _keys_of(connection, info.id, name, matches)
    order = sorted(
        ((_rank(key, descends), key, row) for key, row in zip(keys, matches, strict=True)),
        key=itemgetter(0),
        reverse=descends,
    )
    if query.after is not None:
        after = _rank(query.after, descends)
        order = [place for place in order if (place[0] < after if descends else place[0] > after)]
    page = _listed_rollouts(connection, info.id, [row for *_, row in order[:limit]])
    return RolloutPage(page, order[limit - 1][1] if order[limit:] else None, looked_at)


def _keys_of(connection: Connection, buffer_id: int, name: str, rows: list[Any]) -> list[list[Any]]:
    """Return the value of a column and the first number of each rollout."""
    if name == "spread":
        spread = _spreads(connection, buffer_id, {row.group_id for row in rows})
        values: Any = [spread.get(row.group_id) for row in rows]
    elif name in _COLUMNS:
        values = [row._mapping[name] for row in rows]
    else:
        of_episodes = _select_episodes(rows).add_columns(_NAMES[name])
        held: dict[int, Any] = dict(connection.execute(of_episodes).all())
        values = [held.get(row.episode_id) for row in rows]
    return [[_comparable(value), row.first_seq] for value, row in zip(values, rows, strict=True)]


def _comparable(value: Any) -> Any:
    """Return a value of a column as it is compared here and in an address: a time is text."""
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds")
    return None if value != value else value  # NaN has no place


def _rank(key: Sequence[Any], descends: bool) -> tuple[Any, ...]:
    """Return what orders the keys of rollouts; also one that an address makes up."""
    value, first_seq = key
    is_last = value is None
    return is_last != descends, isinstance(value, str), 0 if is_last else value, first_seq


def _with_values(
    connection: Connection, info: BufferInfo, query: RolloutQuery, rows: list[Any]
) -> list[Any]:
    """Return the rollouts that match the query's filters of their own values."""
    for each in query.filters:
        if each.column in _COLUMNS:
            rows = [row for row in rows if each.matches(row._mapping[each.column])]
        elif each.column == "spread":
            spread = _spreads(connection, info.id, {row.group_id for row in rows})
            rows = [row for row in rows if each.matches(spread.get(row.group_id))]
    return rows


def _with_names(
    connection: Connection, info: BufferInfo, query: RolloutQuery, rows: list[Any]
) -> list[Any]:
    """Return the rollouts that match the query's filters of their episodes."""
    conditions = [each.on(_NAMES[each.column]) for each in query.filters if each.column in _NAMES]
    if not conditions:
        return rows
    held = set(connection.execute(_select_episodes(rows).where(*conditions)).scalars())
    return [row for row in rows if row.episode_id in held]


def _with_words(
    connection: Connection, info: BufferInfo, query: RolloutQuery, rows: list[Any]
) -> list[Any]:
    """Return the rollouts whose ids contain all words of the query."""
    words = [word.lower() for word in query.words]
    if not words:
        return rows
    names = _select_episodes(rows).add_columns(_NAMES["key"], _NAMES["agent_id"])
    ids_of = {number: (key, agent) for number, key, agent in connection.execute(names)}
    matches = []
    for row in rows:
        texts = (row.task_id, row.group_id, *ids_of.get(row.episode_id, ()))
        # No key has this character.
        ids = "\0".join(filter(None, texts)).lower()
        if all(word in ids for word in words):
            matches.append(row)
    return matches


def _with_steps(
    connection: Connection, info: BufferInfo, query: RolloutQuery, rows: list[Any]
) -> list[Any]:
    """Return the rollouts with a matching step in the window."""
    if query.condition is None:
        return rows
    table = steps_of(info)
    has_labels = select(windows.c.has_labels).where(windows.c.buffer_id == info.id)
    is_labelled = bool(connection.execute(has_labels).scalar_one_or_none())
    step = select(1).where(
        matching(info.id, resolve_labels(query.condition, is_labelled), table),
        # Or SQLite would read the whole window for each episode.
        unindexed(table.c.seq) > _low_of(info.id),
    )
    numbers = bindparam(None, [row.episode_id for row in rows if row.episode_id], SeqList())
    listed = numbers_in(numbers).table_valued(column("value", BigInteger))
    of_episode = step.where(table.c.episode_id == listed.c.value).offset(0).exists()
    held = set(connection.execute(select(listed.c.value).where(of_episode)).scalars())
    of_tasks = {row.task_id for row in rows if not row.episode_id}
    is_own = one_of_keys(table.c.task_id, of_tasks) & table.c.episode_id.is_(None)
    without = step.with_only_columns(table.c.task_id).where(is_own).distinct()
    tasks = set(connection.execute(without).scalars()) if of_tasks else set()
    return [
        row for row in rows if (row.episode_id in held if row.episode_id else row.task_id in tasks)
    ]


def _spreads(
    connection: Connection, buffer_id: int, group_ids: set[str]
) -> dict[str, float | None]:
    group = group_stats.c
    statement = select(group.group_id, group.spread).where(
        group.buffer_id == buffer_id, one_of_keys(group.group_id, group_ids)
    )
    return dict(connection.execute(statement).all())


def _listed_rollouts(
    connection: Connection, buffer_id: int, rows: Sequence[Any]
) -> list[ListedRollout]:
    """Return rollouts with their values from other tables."""
    if not rows:
        return []
    spread = _spreads(connection, buffer_id, {row.group_id for row in rows})
    names = _select_episodes(rows).add_columns(*_NAMES.values())
    names_of = {number: rest for number, *rest in connection.execute(names)}
    whole = _without_episode(connection, buffer_id, {r.task_id for r in rows if not r.episode_id})
    low = connection.execute(select(_low_of(buffer_id))).scalar_one() or 0
    listed = []
    for row in rows:
        task_id, number, length, return_, first_seq, last_seq, group_id, reward = row
        if not number:
            length, return_, last_seq = whole.get(task_id, (length, return_, last_seq))
            reward = return_
        is_held = last_seq > low
        rest = names_of.get(number, [None] * len(_NAMES))
        listed.append(
            ListedRollout(
                task_id, number, length, return_, first_seq, last_seq, group_id, reward, is_held,
                spread.get(group_id), *rest,
            )
        )  # fmt: skip
    return listed


def _select_episodes(rows: Sequence[Any]) -> Select[Any]:
    """Return a select of the numbers of the rollouts that are episodes, to add columns to."""
    numbers = bindparam(None, [row.episode_id for row in rows if row.episode_id], SeqList())
    return select(episodes.c.id).where(is_number_of(episodes.c.id, numbers))


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
        .where(_own.buffer_id == buffer_id, one_of_keys(_own.task_id, tasks), _own.episode_id == 0)
        .group_by(_own.task_id)
    )
    return {task: (int(n), total, last) for task, n, total, last in connection.execute(sums)}


_COLUMNS: dict[str, Any] = {
    **{
        name: _own[name]
        for name in (
            "task_id", "episode_id", "length", "return", "first_seq", "last_seq", "group_id",
        )
    },
    "rollout_reward": rollout_reward,
}  # fmt: skip


def _rollouts(buffer_id: int) -> Select[Any]:
    columns = (column.label(name) for name, column in _COLUMNS.items())
    return select(*columns).where(_own.buffer_id == buffer_id)


def _low_of(buffer_id: int) -> Any:
    return select(windows.c.low_seq).where(windows.c.buffer_id == buffer_id).scalar_subquery()
