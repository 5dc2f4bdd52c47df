"""Marks of what consumers have acknowledged, and the way back to them.

What a consumer with marks acknowledges is kept: its rows are neither free nor removed until every
mark that is left includes them. So each of these marks can be restored.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import (
    Connection,
    Integer,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    null,
    or_,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from sqlbuffer.errors import ArgumentError, CheckpointNotFoundError
from sqlbuffer.storage.database.errors import Deadlock
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.leases.choosing import BUFFER, COUNT, SEQS, in_seqs
from sqlbuffer.storage.leases.leases import (
    FREE_AGAIN,
    LEASES,
    RUNS,
    LeaseKeeping,
    close_groups,
    evict,
)
from sqlbuffer.storage.leases.retirement import retire
from sqlbuffer.storage.leases.spreads import compare_again
from sqlbuffer.storage.leases.tables import KEPT_UNTIL, checkpoints, leases, queue_items
from sqlbuffer.storage.sample_log import samples
from sqlbuffer.storage.schema.expressions import (
    KeyList,
    SeqList,
    in_seconds,
    is_number_of,
    is_one_of,
    listed,
    utc_time,
)

SHOWN = 5  # marks that an error names


@dataclass(frozen=True)
class Checkpoint:
    """A mark of what a consumer has acknowledged; `ReplayBuffer.checkpoint` makes it.

    Attributes:
        name: Its name.
        consumer: Whose mark it is.
        states: The states of the loaders and samplers that were given, in their order.
        created_at: When it was made, by the database's clock.

    Example:
        >>> from sqlbuffer import RandomSampler, ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://")
        >>> sampler = RandomSampler(seed=7)
        >>> mark = buffer.checkpoint("step-1", consumer="trainer-0", loaders=[sampler])
        >>> mark.name, mark.states[0]["seed"]
        ('step-1', 7)
    """

    name: str
    consumer: str
    states: list[Any]
    created_at: datetime


@dataclass(frozen=True)
class Restored:
    """What `ReplayBuffer.restore` has done.

    Attributes:
        name: The mark that the consumer went back to.
        consumer: The consumer.
        states: The states of loaders and samplers, as `checkpoint` noted them.
        n_leases: Batches that were undone or revoked.
        n_freed: Rows of them that are free again.
        n_missing: Rows of them that were evicted or deleted meanwhile.

    Example:
        >>> from sqlbuffer import ReplayBuffer
        >>> buffer = ReplayBuffer("sqlite://", leases=True)
        >>> _ = buffer.add(state=1, actions=[0])
        >>> mark = buffer.checkpoint("start", consumer="trainer-0")
        >>> buffer.lease(1, consumer="trainer-0").take().ack()
        >>> buffer.restore("start", consumer="trainer-0")
        Restored(name='start', consumer='trainer-0', states=[], n_leases=1, n_freed=1, n_missing=0)
    """

    name: str
    consumer: str
    states: list[Any]
    n_leases: int
    n_freed: int
    n_missing: int


# Rows whose leases end with one statement.
ROWS_AT_ONCE = 10_000

_of_leases: Any = is_one_of(queue_items.c.lease_id, bindparam(LEASES, type_=KeyList()))
_HOLD = (
    select(queue_items.c.seq)
    .where(in_seqs, _of_leases)
    .order_by(queue_items.c.seq)
    .with_for_update(key_share=True)
)
_END = (
    update(queue_items)
    .where(in_seqs, _of_leases)
    .values(
        used_up=func.coalesce(queue_items.c.n_uses >= bindparam(COUNT, type_=Integer()), false()),
        **FREE_AGAIN,
    )
)
_UNDO = (
    update(queue_items)
    .where(in_seqs, _of_leases)
    .values(
        # What is leased still was not counted.
        n_uses=queue_items.c.n_uses - case((queue_items.c.leased_until == KEPT_UNTIL, 1), else_=0),
        used_up=False,
        **FREE_AGAIN,
    )
    .returning(queue_items.c.seq)
)
_EPISODES = "p_episodes"
_OF_EPISODES = is_number_of(episodes.c.id, bindparam(_EPISODES, type_=SeqList()))
_LOCK_EPISODES = (
    select(episodes.c.id)
    .where(_OF_EPISODES)
    .order_by(episodes.c.id)
    .with_for_update(key_share=True)
)
_is_used = (
    select(1)
    .where(
        queue_items.c.buffer_id == bindparam(BUFFER, type_=Integer()),
        queue_items.c.episode_id == episodes.c.id,
        queue_items.c.n_uses > 0,
    )
    .correlate(episodes)
    .exists()
)
_FORGET_USE = update(episodes).where(_OF_EPISODES, ~_is_used).values(was_used=False, used_at=null())
_is_kept = leases.c.acknowledged & (leases.c.leased_until == KEPT_UNTIL)


def make(
    keeping: LeaseKeeping, name: str, consumer: str, states: Sequence[Any], keep: int
) -> Checkpoint:
    """Mark what a consumer has acknowledged, and delete all but its newest marks.

    Args:
        keeping: Leases the rows of the buffer.
        name: Name of the mark.
        consumer: The consumer.
        states: JSON values to keep with it.
        keep: Number of marks to keep, with this one.

    Raises:
        ArgumentError: The consumer has a mark of this name.
    """
    marks, own = _Marks(keeping, consumer), _own_leases(keeping, consumer)
    text = json.dumps(list(states))

    def work(connection: Connection) -> Checkpoint:
        numbers = dict(marks.locked(connection))
        if name in numbers:
            raise ArgumentError(
                f"consumer {consumer!r} has a checkpoint {name!r} already: give each another "
                f"name, such as the number of the step, or go back to it with restore()"
            )
        number = max(numbers.values(), default=0) + 1
        values = {
            "buffer_id": keeping.buffer.info.id, "consumer": consumer, "number": number,
            "name": name, "states": text,
        }  # fmt: skip
        try:
            connection.execute(insert(checkpoints), values)
        except IntegrityError as error:
            raise Deadlock(f"{error.orig}; try again") from error
        new = own & _is_kept & leases.c.checkpoint.is_(None)
        connection.execute(update(leases).where(new).values(checkpoint=number))
        oldest = [*numbers.values(), number][-keep:][0]
        marks.delete(connection, checkpoints.c.number < oldest)
        _end(connection, keeping, own & _is_kept & (leases.c.checkpoint <= oldest))
        return marks.all(connection)[-1]

    made = keeping.buffer.write(work)
    _clean(keeping)
    return made


def restore(keeping: LeaseKeeping, name: str, consumer: str) -> Restored:
    """Free what a consumer has taken after a mark, and delete its later marks.

    Raises:
        CheckpointNotFoundError: The consumer has no mark of this name.
    """
    marks, own = _Marks(keeping, consumer), _own_leases(keeping, consumer)

    def work(connection: Connection) -> tuple[Restored, list[int]]:
        number = dict(marks.locked(connection)).get(name)
        if number is None:
            raise _not_found(keeping, name, consumer, marks.all(connection))
        is_later = or_(leases.c.checkpoint.is_(None), leases.c.checkpoint > number)
        undone = _undo(connection, keeping, own & (~leases.c.acknowledged | (_is_kept & is_later)))
        marks.delete(connection, checkpoints.c.number > number)
        states = marks.all(connection)[-1].states
        return (
            Restored(name, consumer, states, len(undone.sizes), undone.n_freed, undone.n_missing),
            undone.sizes,
        )

    restored, sizes = keeping.buffer.write(work)
    for n_rows in sizes:
        keeping.sessions.undo(n_rows, None)  # the log entries stay, as undone
    keeping.restrictions.eligible_low.forget()
    return restored


def checkpoints_of(
    keeping: LeaseKeeping, consumer: str | None, name: str | None
) -> list[Checkpoint]:
    """Return the marks of one consumer or of all, of one name or any; oldest first for each."""
    marks = _Marks(keeping, consumer)
    found = keeping.buffer.read(marks.all)
    return [mark for mark in found if name in (None, mark.name)]


def forget(keeping: LeaseKeeping, consumer: str) -> int:
    """Delete all marks of a consumer; return how many. What it acknowledged counts for good."""
    marks, own = _Marks(keeping, consumer), _own_leases(keeping, consumer)

    def work(connection: Connection) -> int:
        n_marks = len(marks.locked(connection))
        marks.delete(connection, checkpoints.c.number > 0)
        _end(connection, keeping, own & _is_kept)
        return n_marks

    n_marks = keeping.buffer.write(work)
    _clean(keeping)
    return n_marks


class _Marks:
    """The marks of a consumer, or of all consumers."""

    def __init__(self, keeping: LeaseKeeping, consumer: str | None) -> None:
        self._is_own = checkpoints.c.buffer_id == keeping.buffer.info.id
        if consumer is not None:
            self._is_own &= checkpoints.c.consumer == consumer

    def locked(self, connection: Connection) -> list[tuple[str, int]]:
        """Return their names and numbers, oldest first, after acknowledgements under way."""
        statement = select(checkpoints.c.name, checkpoints.c.number).where(self._is_own)
        rows = connection.execute(statement.order_by(checkpoints.c.number).with_for_update())
        return [(name, int(number)) for name, number in rows]

    def all(self, connection: Connection) -> list[Checkpoint]:
        """Return them, oldest first."""
        mark = checkpoints.c
        statement = select(mark.name, mark.consumer, mark.states, mark.created_at)
        rows = connection.execute(
            statement.where(self._is_own).order_by(mark.consumer, mark.number)
        )
        return [
            Checkpoint(name, consumer, json.loads(states), utc_time(created_at))
            for name, consumer, states, created_at in rows
        ]

    def delete(self, connection: Connection, which: Any) -> None:
        connection.execute(delete(checkpoints).where(self._is_own, which))


def _own_leases(keeping: LeaseKeeping, consumer: str) -> Any:
    return (leases.c.buffer_id == keeping.buffer.info.id) & (leases.c.consumer == consumer)


def _not_found(
    keeping: LeaseKeeping, name: str, consumer: str, marks: Sequence[Checkpoint]
) -> CheckpointNotFoundError:
    names = [repr(mark.name) for mark in marks[-SHOWN:]]
    has = f"its newest ones are {', '.join(names)}" if names else "it has none"
    return CheckpointNotFoundError(
        f"buffer {keeping.buffer.info.name!r}: consumer {consumer!r} has no checkpoint {name!r}; "
        f"{has}"
    )


def _end(connection: Connection, keeping: LeaseKeeping, which: Any) -> None:
    """End kept leases: their rows are free, or leave if they are used up."""
    max_use = keeping.buffer.info.config.sampling.max_use
    ended = _read(connection, which)
    values = {BUFFER: keeping.buffer.info.id, COUNT: max_use}
    for some in _by_rows(ended):
        seqs = _seqs_of(some)
        parameters = {**values, SEQS: seqs, LEASES: [lease.id for lease in some]}
        connection.execute(_HOLD, parameters)
        if max_use is not None:
            for group_by, of_groups in _grouped(some):
                close_groups(connection, group_by, {**values, SEQS: of_groups}, retires=True)
        connection.execute(_END, parameters)
        evict(connection, keeping, seqs, keeping.buffer.window_in(connection).low)
    # They stay for a while, so that a repeated acknowledgement succeeds.
    connection.execute(update(leases).where(which).values(leased_until=in_seconds(0.0)))


class _Undone(NamedTuple):
    n_freed: int
    n_missing: int
    sizes: list[int]


def _undo(connection: Connection, keeping: LeaseKeeping, which: Any) -> _Undone:
    """Free the rows of leases, and undo the uses of those that were acknowledged.

    Return the number of rows that are free, and of those that have left, and the size of each lease
    that still had rows. Those that a lease has lost when it ran out may be held by others.
    """
    taken, low = _read(connection, which), keeping.buffer.window_in(connection).low
    buffer = {BUFFER: keeping.buffer.info.id}
    freed: set[int] = set()
    for some in _by_rows(taken):
        seqs = _seqs_of(some)
        values = {**buffer, SEQS: seqs, LEASES: [lease.id for lease in some]}
        connection.execute(_HOLD, values)
        freed.update(connection.execute(_UNDO, values).scalars())
        compare_again(connection, keeping.buffer.info.id, seqs)
        noted = sorted({id_ for lease in some for id_ in lease.episodes})
        if noted:
            numbers = {**buffer, _EPISODES: noted}
            connection.execute(_LOCK_EPISODES, numbers)
            connection.execute(_FORGET_USE, numbers)
        evict(connection, keeping, seqs, low)
    ids = bindparam(None, [lease.id for lease in taken], KeyList())
    of_buffer = leases.c.buffer_id == keeping.buffer.info.id
    gone = delete(leases).where(of_buffer, is_one_of(leases.c.id, ids)).returning(leases.c.id)
    ended = set(connection.execute(gone).scalars())  # others were given back meanwhile
    undone = [
        lease
        for lease in taken
        if lease.id in ended and (lease.runs or not freed.isdisjoint(lease.seqs))
    ]
    batches = [lease.batch_id for lease in undone if lease.batch_id is not None]
    if batches:
        is_batch = is_number_of(samples.c.id, bindparam(None, batches, SeqList()))
        connection.execute(update(samples).where(is_batch).values(undone=True))
    missing = [
        seq
        for lease in undone
        if lease.runs
        for seq in lease.seqs
        if seq not in freed or seq <= low
    ]
    sizes = [
        len(lease.seqs) if lease.runs else len(freed.intersection(lease.seqs)) for lease in undone
    ]
    return _Undone(sum(seq > low for seq in freed), len(missing), sizes)


class _Taken(NamedTuple):
    id: str
    seqs: Sequence[int]
    episodes: Sequence[int]
    group_by: str | None
    batch_id: int | None
    runs: bool


def _read(connection: Connection, which: Any) -> list[_Taken]:
    lease = leases.c
    columns = lease.id, lease.seqs, lease.episodes, lease.group_by, lease.batch_id, RUNS
    rows = connection.execute(select(*columns).where(which).order_by(lease.id))
    return [
        _Taken(id_, listed(seqs), listed(noted or []), *rest) for id_, seqs, noted, *rest in rows
    ]


def _by_rows(taken: Sequence[_Taken]) -> Iterator[list[_Taken]]:
    """Yield leases whose rows go into one statement."""
    some: list[_Taken] = []
    for lease in taken:
        some.append(lease)
        if sum(len(lease.seqs) for lease in some) >= ROWS_AT_ONCE:
            yield some
            some = []
    if some:
        yield some


def _seqs_of(taken: Iterable[_Taken]) -> list[int]:
    return sorted(seq for lease in taken for seq in lease.seqs)


def _grouped(taken: Sequence[_Taken]) -> Iterator[tuple[str, list[int]]]:
    """Yield the rows of the leases by each column that groups of rollouts share."""
    for group_by in ("task_id", "group_id"):
        seqs = _seqs_of(lease for lease in taken if lease.group_by == group_by)
        if seqs:
            yield group_by, seqs


def _clean(keeping: LeaseKeeping) -> None:
    if keeping.buffer.info.config.sampling.max_use is not None:
        retire(keeping.buffer)
