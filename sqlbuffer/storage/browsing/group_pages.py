"""A page of the tasks of a buffer, with the spread of their episodes' returns."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, func, select

from sqlbuffer.storage.browsing import postgresql, sqlite
from sqlbuffer.storage.browsing.key_order import rows_in_order
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.episodes.keys import one_of
from sqlbuffer.storage.rollout_stats.tables import group_changes, group_stats, rollout_stats

_in_order = by_database(sqlite=sqlite.in_order, postgresql=postgresql.in_order)

# Name of an order -> its column, and True if it descends.
GROUP_SORTS = {
    "spread": ("spread", True),
    "alike": ("spread", False),
    "task": ("task_id", False),
}


@dataclass(frozen=True)
class ListedGroup:
    """The episodes of a task.

    Attributes:
        task_id: The task.
        n_rollouts: Number of episodes.
        n_returns: Number of episodes with a finite return.
        mean: Mean of these returns; None if there is none.
        std: Their standard deviation (of the population).
        least: Smallest of them.
        greatest: Largest of them.
    """

    task_id: str
    n_rollouts: int
    n_returns: int
    mean: float | None
    std: float | None
    least: float | None
    greatest: float | None

    @property
    def spread(self) -> float | None:
        """The greatest return less the least."""
        if self.least is None or self.greatest is None:
            return None
        return self.greatest - self.least

    @property
    def is_alike(self) -> bool:
        """Several finite returns are equal, so a policy gradient learns nothing from them."""
        return self.n_returns > 1 and self.spread == 0

    @property
    def among(self) -> str:
        """Text with the number of episodes with a finite return, if others have none."""
        return "" if self.n_returns == self.n_rollouts else f" among {self.n_returns:,}"


@dataclass(frozen=True)
class GroupPage:
    """A page of groups.

    Attributes:
        groups: Groups of the page.
        after: Argument `after` of the next page; None for the last page.
    """

    groups: list[ListedGroup]
    after: list[Any] | None


_own = group_stats.c


def group_page(
    connection: Connection,
    buffer_id: int,
    sort: str = "spread",
    after: Sequence[Any] | None = None,
    limit: int = 50,
) -> GroupPage:
    """Return a page of the groups of a buffer.

    Args:
        connection: The transaction.
        buffer_id: The buffer.
        sort: Order: `spread`, largest spread first; `alike`, smallest spread first; `task`, by
            task. Groups without a finite return have no spread and come last.
        after: `GroupPage.after` of the page before; None for the first page.
        limit: Maximum number of groups.
    """
    keys = select(group_stats).where(_own.buffer_id == buffer_id)
    name, descends = GROUP_SORTS[sort]
    columns = (_own[name], _own.task_id)
    with _in_order(connection):
        found = rows_in_order(connection, keys, columns, after, descends, limit + 1)
    last = found[limit - 1] if found[limit:] else None
    return GroupPage(
        _listed(connection, buffer_id, found[:limit]),
        None if last is None else [last._mapping[name], last.task_id],
    )


def group_of(connection: Connection, buffer_id: int, task_id: str) -> ListedGroup | None:
    """Return the group of a task; None if it has no episodes."""
    keys = select(group_stats).where(_own.buffer_id == buffer_id, _own.task_id == task_id)
    found = _listed(connection, buffer_id, connection.execute(keys).all())
    return found[0] if found else None


def _listed(connection: Connection, buffer_id: int, found: Sequence[Any]) -> list[ListedGroup]:
    """Return groups, with the changes that concurrent writers have not applied yet."""
    now = _added_up(connection, buffer_id, [row.task_id for row in found])
    return [now.get(row.task_id) or _group(*row[1:-1]) for row in found]


def _group(
    task_id: str,
    n_rollouts: int,
    n_returns: int,
    mean: float | None,
    m2: float,
    least: float | None,
    greatest: float | None,
) -> ListedGroup:
    std = math.sqrt(m2 / n_returns) if n_returns else None
    return ListedGroup(task_id, n_rollouts, n_returns, mean, std, least, greatest)


def _added_up(
    connection: Connection, buffer_id: int, tasks: Sequence[str]
) -> dict[str, ListedGroup]:
    """Return the groups that have unapplied changes, computed from their rollouts."""
    left = group_changes.c
    pending = select(left.task_id).where(left.buffer_id == buffer_id, one_of(left.task_id, tasks))
    changed = list(connection.execute(pending.distinct()).scalars()) if tasks else []
    if not changed:
        return {}
    rollout = rollout_stats.c
    is_one = (
        (rollout.buffer_id == buffer_id)
        & one_of(rollout.task_id, changed)
        & (rollout.episode_id != 0)
    )
    is_finite = func.abs(rollout["return"]) < 1e100
    value = func.coalesce(rollout["return"], 0.0)
    counts = select(rollout.task_id, func.count()).where(is_one).group_by(rollout.task_id)
    n_rollouts: dict[str, int] = dict(connection.execute(counts).all())
    means = (
        select(rollout.task_id, func.avg(value).label("mean"))
        .where(is_one, is_finite)
        .group_by(rollout.task_id)
        .subquery("means")
    )
    sums = (
        select(
            rollout.task_id,
            func.count(),
            means.c.mean,
            func.sum((value - means.c.mean) * (value - means.c.mean)),
            func.min(value),
            func.max(value),
        )
        .join(means, means.c.task_id == rollout.task_id)
        .where(is_one, is_finite)
        .group_by(rollout.task_id, means.c.mean)
    )
    finite = {task: rest for task, *rest in connection.execute(sums)}
    nothing = [0, None, 0.0, None, None]
    return {task: _group(task, n, *finite.get(task, nothing)) for task, n in n_rollouts.items()}
