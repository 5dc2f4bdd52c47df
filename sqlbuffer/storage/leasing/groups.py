"""Which groups a consumer gets: each whole, or not at all.

The rows of a group that nobody has claimed yet have no `group_seq`; its first claim gives them one,
and rows that arrive later are a group of their own.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from sqlalchemy import (
    BigInteger,
    Connection,
    Select,
    Text,
    and_,
    bindparam,
    case,
    column,
    func,
    literal,
    select,
    table,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.query import EVERYTHING
from sqlbuffer.storage import functions as fn
from sqlbuffer.storage.leasing.rows import lowest, one_of
from sqlbuffer.storage.leasing.wanted import GROUPS, ORDERS, Scope, Wanted
from sqlbuffer.storage.models import episodes
from sqlbuffer.storage.models import queue_items as items
from sqlbuffer.storage.types import IntegerList, KeyList

Key = tuple[Any, int | None]  # a task or an episode, and the group's number

# How many rows are looked at for the groups that come first; then as many more each time.
FIRST_ROWS, GROWTH = 1_024, 8
# Numbers are drawn for the first rows of random groups; where that finds too few, all groups are
# looked at.
PROBES, PROBE_ROUNDS = 512, 6


# Who is open here is not abandoned.
_states = table("episode_states", column("id", BigInteger()), column("status", Text()))


class Group(NamedTuple):
    """What there is of a group in the queue."""

    key: Any
    group_seq: int | None
    first_seq: int
    n_rows: int
    size: int
    n_held: int
    is_claimable: bool
    is_late: bool

    @property
    def name(self) -> Key:
        """What tells it from others."""
        return self.key, self.group_seq


def groups(scope: Scope, wanted: Wanted, keys: Sequence[Any] | None = None) -> Select[Any]:
    """Select the groups of a buffer in the columns of `Group`, of all tasks or episodes or of those
    given.
    """
    parts = _parts(scope, wanted, keys).subquery("parts")
    own = parts.c
    is_open = (
        select(case((_states.c.status == "open", 1), else_=0))
        .where(_states.c.id == episodes.c.id)
        .correlate(episodes)
        .scalar_subquery()
    )
    n_open = func.sum(case((episodes.c.status == "open", is_open), else_=0))
    n_clipped = func.sum(case((own.n < episodes.c.length, 1), else_=0))
    rollouts = func.sum(case((own.episode_id.is_(None), own.n), else_=1)) - n_open
    if wanted.group_by == "episode_id":
        is_whole = (n_open == 0) & (n_clipped == 0)
    else:
        # What was claimed once is closed: an episode that goes on is another group's.
        is_whole = ((n_open == 0) | own.group_seq.is_not(None)) & (
            rollouts >= wanted.min_group_size
        )
    late: ColumnElement[bool] = literal(False)
    if wanted.group_timeout_s is not None:
        late = ~is_whole & (fn.age_s(func.max(own.newest)) > wanted.group_timeout_s)
    may_go: Any = is_whole if wanted.drops or wanted.group_timeout_s is None else is_whole | late
    may_go = and_(func.sum(own.n_barred) == 0, func.max(own.matches) == 1, may_go)
    return (
        select(
            own.key, own.group_seq, func.min(own.first_seq).label("first_seq"),
            func.sum(own.n).label("n_rows"), rollouts.label("size"),
            func.sum(own.n_held).label("n_held"), case((may_go, 1), else_=0).label("claimable"),
            case((late, 1), else_=0).label("late"),
        )
        .select_from(parts.outerjoin(episodes, episodes.c.id == own.episode_id))
        .group_by(own.key, own.group_seq)
    )  # fmt: skip


def _parts(scope: Scope, wanted: Wanted, keys: Sequence[Any] | None) -> Select[Any]:
    """Select what groups hold of each episode, and of rows without one."""
    key = GROUPS[wanted.group_by or "task_id"]
    held = case((items.c.leased_until.is_(None), 0), (fn.is_past(items.c.leased_until), 0), else_=1)
    matches: Any = literal(1, BigInteger())
    if scope.node != EVERYTHING:
        matches = case((scope.matches, 1), else_=0)
    found = select(
        key.label("key"), items.c.group_seq, items.c.episode_id,
        func.min(items.c.seq).label("first_seq"), func.count().label("n"),
        func.sum(case((scope.allowed, 0), else_=1)).label("n_barred"),
        func.sum(held).label("n_held"), func.max(items.c.inserted_at).label("newest"),
        func.max(matches).label("matches"),
    )  # fmt: skip
    found = found.where(scope.held, key.is_not(None))
    found = found.group_by(key, items.c.group_seq, items.c.episode_id)
    return found if keys is None else found.where(_is_key(wanted, keys))


def _is_key(wanted: Wanted, keys: Sequence[Any]) -> ColumnElement[bool]:
    key = GROUPS[wanted.group_by or "task_id"]
    type_ = KeyList() if wanted.group_by == "task_id" else IntegerList()
    return fn.is_one_of(key, bindparam(None, list(keys), type_, unique=True))


class GroupChoice:
    """The groups that one attempt chooses.

    Args:
        connection: The claim's transaction.
        scope: The queue.
        wanted: What is asked for.

    Attributes:
        late: Groups that it met which are to be dropped.
    """

    def __init__(self, connection: Connection, scope: Scope, wanted: Wanted) -> None:
        self._connection, self._scope, self._wanted = connection, scope, wanted
        self.late: list[Group] = []

    def choose(self) -> list[list[int]]:
        """Return the rows of up to n groups, locked, in the order asked for."""
        taken: dict[Key, list[int]] = {}
        for candidates in self._candidates():
            for group in candidates:
                if group.is_late and self._wanted.drops and not group.n_held:
                    self.late.append(group)
            free = [g for g in candidates if g.is_claimable and g.name not in taken]
            while free and len(taken) < self._wanted.n:
                missing = self._wanted.n - len(taken)
                taken |= self.lock(free[:missing])
                free = free[missing:]
            if len(taken) == self._wanted.n:
                break
        return list(taken.values())

    def lock(self, chosen: Sequence[Group], *, late: bool = False) -> dict[Key, list[int]]:
        """Return the rows of those of the groups that could be locked whole, in their order.

        Whoever has the first row of a group goes on: two that each lock a part of it would both
        leave it. New rows may have been committed between two statements, so what was locked is
        compared with what is there after.
        """
        firsts = select(items.c.seq).where(
            items.c.buffer_id == self._scope.buffer_id, one_of([g.first_seq for g in chosen])
        )
        won = set(self._connection.execute(firsts.with_for_update(skip_locked=True)).scalars())
        names = [group.name for group in chosen if group.first_seq in won]
        if not names:
            return {}
        keys = list(dict.fromkeys(key for key, _ in names))
        key = GROUPS[self._wanted.group_by or "task_id"]
        found = self._connection.execute(
            select(key, items.c.group_seq, items.c.seq)
            .where(self._scope.held, _is_key(self._wanted, keys))
            .order_by(items.c.seq)
            .with_for_update(skip_locked=True)
        )
        locked: dict[Key, list[int]] = {name: [] for name in names}
        for own, group_seq, seq in found:
            if (own, group_seq) in locked:
                locked[own, group_seq].append(seq)
        now = {group.name: group for group in self._read(keys)}
        return {
            name: seqs
            for name, seqs in locked.items()
            if (group := now.get(name)) is not None
            and group.n_rows == len(seqs)
            and ((group.is_late and not group.n_held) if late else group.is_claimable)
        }

    def _read(self, keys: Sequence[Any] | None = None) -> list[Group]:
        found = self._connection.execute(groups(self._scope, self._wanted, keys))
        return [_group(row) for row in found]

    def _candidates(self) -> Iterator[list[Group]]:
        """Yield groups in the order asked for, until there are no more."""
        if self._wanted.order != "random":
            yield from self._in_order()
            return
        probed = self._probed()
        if probed is not None:
            yield probed
        else:
            every = self._read()
            random.shuffle(every)
            yield every

    def _in_order(self) -> Iterator[list[Group]]:
        """Yield groups in the order of their first rows, of more and more rows."""
        seen: set[Key] = set()
        limit, order = FIRST_ROWS, ORDERS[self._wanted.order]
        key = GROUPS[self._wanted.group_by or "task_id"]
        while True:
            place = func.row_number().over(order_by=order).label("place")
            rows = select(key.label("key"), items.c.group_seq, place)
            rows = rows.where(self._scope.held, self._scope.allowed, key.is_not(None))
            first = rows.order_by(*order).limit(limit).subquery().c
            statement = select(first.key, first.group_seq, func.count())
            statement = statement.group_by(first.key, first.group_seq)
            found = self._connection.execute(statement.order_by(func.min(first.place))).all()
            new = [(own, number) for own, number, _ in found if (own, number) not in seen]
            seen.update(new)
            if new:
                read = {g.name: g for g in self._read(list(dict.fromkeys(own for own, _ in new)))}
                yield [read[name] for name in new if name in read]
            if sum(n for *_, n in found) < limit:
                return
            limit *= GROWTH

    def _probed(self) -> list[Group] | None:
        """Return n groups that may be claimed, uniform over them: a number that is drawn counts
        where it is the first row of its group. None where too few are found.
        """
        scope, n = self._scope, self._wanted.n
        assert scope.high is not None
        low = lowest(self._connection, scope)
        span = scope.high - low
        if span <= 2 * PROBES:
            return None
        rng = np.random.default_rng()
        drawn: set[int] = set()
        found: list[Group] = []
        for _ in range(PROBE_ROUNDS):
            numbers = (low + 1 + (rng.random(PROBES) * span).astype(np.int64)).tolist()
            new = [seq for seq in dict.fromkeys(numbers) if seq not in drawn]
            drawn.update(new)
            firsts = {name: seq for seq, name in self._first_rows(new)}
            if firsts:
                keys = list(dict.fromkeys(key for key, _ in firsts))
                read = {g.name: g for g in self._read(keys) if g.name in firsts}
                place = {seq: i for i, seq in enumerate(new)}
                found += sorted(
                    (g for g in read.values() if g.is_claimable or g.is_late),
                    key=lambda group: place[firsts[group.name]],
                )
            if sum(group.is_claimable for group in found) >= n:
                return found
        return None

    def _first_rows(self, seqs: Sequence[int]) -> Iterator[tuple[int, Key]]:
        earlier: Any = items.alias("earlier")
        key = GROUPS[self._wanted.group_by or "task_id"]
        before = earlier.c[key.key]
        has_earlier = (
            select(1)
            .where(
                earlier.c.buffer_id == self._scope.buffer_id,
                before == key,
                earlier.c.seq > self._scope.low,
                earlier.c.seq < items.c.seq,
                earlier.c.group_seq.is_not_distinct_from(items.c.group_seq),
                ~earlier.c.used_up,
            )
            .correlate(items)
            .offset(0)
            .exists()
        )
        found = select(items.c.seq, key, items.c.group_seq).where(
            self._scope.held, self._scope.allowed, key.is_not(None), one_of(seqs), ~has_earlier
        )
        for seq, own, group_seq in self._connection.execute(found):
            yield seq, (own, group_seq)


def _group(row: Any) -> Group:
    *numbers, claimable, late = row
    key, group_seq, first_seq, n_rows, size, n_held = numbers
    return Group(
        key, group_seq, int(first_seq), int(n_rows), int(size), int(n_held), claimable == 1,
        late == 1,
    )  # fmt: skip
