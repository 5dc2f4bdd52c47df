"""Rollouts to play, as rows: put, taken for a time by one worker, and done or given out again.

An item and its episode change in one transaction: a trigger on episodes ends the item of an episode
that ends. Whoever takes an item again first aborts the episode of the attempt before, so that its
writer can store nothing more.
"""

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import orjson
from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Connection,
    Double,
    Integer,
    Table,
    Text,
    UniqueConstraint,
    bindparam,
    case,
    cast,
    exists,
    false,
    func,
    literal,
    null,
    or_,
    select,
    text,
    update,
)

from sqlbuffer.encoding.episode_records import EpisodeEnd, EpisodeStart
from sqlbuffer.errors import ArgumentError, EpisodeExistsError, LeaseLostError
from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.transactions import driver_of
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.episodes import LENGTH, begin, end, episodes
from sqlbuffer.storage.episodes import exists as episode_exists
from sqlbuffer.storage.schema.expressions import (
    KeyList,
    SeqList,
    in_seconds,
    is_number_of,
    is_one_of,
    seconds_ago,
    utc_now,
)
from sqlbuffer.storage.schema.metadata import (
    JSON,
    KEY,
    SERIAL,
    TIME,
    json_parameter,
    metadata,
    partial_index,
)

_CHANGED = (
    "status, attempt, max_attempts, worker, leased_until, episode_id, reason, is_consumed, "
    "taken_at, ended_at"
)
work_items = Table(
    "work_items",
    metadata,
    Column("id", SERIAL, primary_key=True, comment="order of the items, and their key"),
    Column("buffer_id", Integer, nullable=False, comment="the buffer"),
    Column("group_id", KEY, nullable=False, comment="the group of rollouts"),
    Column(
        "sibling", Integer, nullable=False, comment="number of the rollout in its group, from 0"
    ),
    Column("task_id", KEY, nullable=False, comment="the task"),
    Column("payload", JSON, comment="what the rollout needs, as given"),
    Column(
        "status",
        Text,
        nullable=False,
        server_default="waiting",
        comment="waiting, taken, done or failed",
    ),
    Column(
        "attempt",
        Integer,
        nullable=False,
        server_default=text("0"),
        comment="how often it was taken",
    ),
    Column("max_attempts", Integer, comment="largest number of attempts; null: any"),
    Column("worker", KEY, comment="who has taken it last"),
    Column(
        "leased_until",
        TIME,
        comment="when the lease of that one runs out; null unless it is taken",
    ),
    Column("episode_id", KEY, comment="the episode of the last attempt"),
    Column("reason", Text, comment="why the last attempt failed"),
    Column(
        "is_consumed",
        Boolean,
        nullable=False,
        server_default=false(),
        comment="true: its rollout was used by an acknowledged lease, or its steps have left",
    ),
    Column("created_at", TIME, nullable=False, server_default=utc_now(), comment="when it was put"),
    Column("taken_at", TIME, comment="when it was taken last"),
    Column("ended_at", TIME, comment="when it was done, or failed for good"),
    UniqueConstraint(
        "buffer_id", "group_id", "sibling", name="uq_work_items_buffer_id_group_id_sibling"
    ),
    CheckConstraint("status IN ('waiting', 'taken', 'done', 'failed')", name="status_known"),
    info={
        "is_vacuumed": True,
        "writer_may": f"INSERT, UPDATE ({_CHANGED})",
        "learner_may": f"INSERT, UPDATE ({_CHANGED}), DELETE",
    },
    # Numbers are unique: episodes name them.
    sqlite_autoincrement=True,
)


_W = work_items.c
partial_index("ix_work_items_waiting", _W.buffer_id, _W.id, where=text("status = 'waiting'"))
partial_index("ix_work_items_taken", _W.buffer_id, _W.leased_until, where=text("status = 'taken'"))
partial_index(
    "ix_work_items_stored",
    _W.buffer_id,
    _W.id,
    where=text("status = 'done' AND NOT is_consumed"),
)

# A transaction that puts items, or takes some with a limit, holds (this, buffer id) as an advisory
# lock.
_POSTGRESQL_WORK_LOCK = 1_397_836_870


def _sqlite_lock(connection: Connection, buffer_id: int) -> None:
    """Do nothing: no other transaction writes at the same time."""


def _postgresql_lock(connection: Connection, buffer_id: int) -> None:
    """Wait until no other transaction holds the lock of the buffer's work."""
    values = (_POSTGRESQL_WORK_LOCK, buffer_id)
    driver_of(connection).execute("SELECT pg_advisory_xact_lock(%s, %s)", values)


_lock = by_database(sqlite=_sqlite_lock, postgresql=_postgresql_lock)

_SQLITE_PUT = (
    "INSERT INTO work_items (buffer_id, group_id, sibling, task_id, payload, max_attempts) "
    "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (buffer_id, group_id, sibling) DO NOTHING"
)
_POSTGRESQL_PUT = (
    "INSERT INTO work_items (buffer_id, group_id, sibling, task_id, payload, max_attempts) "
    "SELECT %s, t.group_id, s.sibling, t.task_id, t.payload::jsonb, %s "
    "FROM unnest(%s::text[], %s::text[], %s::text[]) WITH ORDINALITY "
    "AS t(group_id, task_id, payload, place) CROSS JOIN generate_series(0, %s - 1) AS s(sibling) "
    "ORDER BY t.place, s.sibling ON CONFLICT (buffer_id, group_id, sibling) DO NOTHING"
)


def _sqlite_put(
    connection: Connection,
    buffer_id: int,
    tasks: "Sequence[NewWork]",
    group_size: int,
    max_attempts: int | None,
) -> int:
    """Insert the items that do not exist; return how many."""
    rows = (
        (buffer_id, task.group_id, sibling, task.task_id, task.payload, max_attempts)
        for task in tasks
        for sibling in range(group_size)
    )
    n_new: int = driver_of(connection).executemany(_SQLITE_PUT, rows).rowcount
    return n_new


def _postgresql_put(
    connection: Connection,
    buffer_id: int,
    tasks: "Sequence[NewWork]",
    group_size: int,
    max_attempts: int | None,
) -> int:
    columns = ([getattr(t, name) for t in tasks] for name in ("group_id", "task_id", "payload"))
    values = (buffer_id, max_attempts, *columns, group_size)
    n_new: int = driver_of(connection).execute(_POSTGRESQL_PUT, values).rowcount
    return n_new


_put = by_database(sqlite=_sqlite_put, postgresql=_postgresql_put)
_OF_BUFFER = _W.buffer_id == bindparam("of_buffer", type_=Integer())
_GROUPS = is_one_of(_W.group_id, bindparam("groups", type_=KeyList()))
_TASKS_OF_GROUPS = select(_W.group_id, _W.task_id, cast(_W.payload, Text)).where(
    _OF_BUFFER, _GROUPS, _W.sibling == 0
)
_RETRY = (
    update(work_items)
    .where(_OF_BUFFER, _GROUPS, _W.status == "failed")
    .values(
        status="waiting",
        max_attempts=_W.attempt + bindparam("more", type_=Integer()),
        ended_at=null(),
    )
)

# The words are literals: an index of some items serves no parameter.
_WAITS, _IS_TAKEN = text("status = 'waiting'"), text("status = 'taken'")
_MOST = bindparam("most", type_=BigInteger())
_COLUMNS = (
    _W.id, _W.group_id, _W.sibling, _W.task_id, cast(_W.payload, Text).label("payload"),
    _W.attempt, _W.max_attempts, _W.worker, _W.episode_id,
)  # fmt: skip
# The time at which the transaction began: an index serves no time that changes.
_HAS_RUN_OUT = _W.leased_until <= seconds_ago(literal(0.0))
_EXPIRED = (
    select(*_COLUMNS)
    .where(_OF_BUFFER, _IS_TAKEN, _HAS_RUN_OUT)
    .order_by(_W.leased_until)
    .limit(_MOST)
    .with_for_update(skip_locked=True)
)
_WAITING = (
    select(*_COLUMNS)
    .where(_OF_BUFFER, _WAITS)
    .order_by(_W.id)
    .limit(_MOST)
    .with_for_update(skip_locked=True)
)
_TAKE = (
    update(work_items)
    .where(_W.id == bindparam("of_id", type_=BigInteger()))
    .values(
        status="taken",
        attempt=bindparam("of_attempt", type_=Integer()),
        worker=bindparam("of_worker", type_=Text()),
        leased_until=in_seconds(bindparam("lease_s", type_=Double())),
        episode_id=bindparam("of_episode", type_=Text()),
        taken_at=in_seconds(0.0),
        reason=null(),
        is_consumed=False,
    )
)
_GIVE_UP = (
    update(work_items)
    .where(is_number_of(_W.id, bindparam("ids", type_=SeqList())))
    .values(
        status="failed",
        reason="its lease ran out, and it has no attempts left",
        leased_until=null(),
        ended_at=in_seconds(0.0),
    )
)
_EPISODE_NAMES = (
    episodes.c.buffer_id == bindparam("of_buffer", type_=Integer()),
    is_one_of(episodes.c.key, bindparam("keys", type_=KeyList())),
    is_one_of(episodes.c.task_id, bindparam("tasks", type_=KeyList())),
)
_OF_ITEM = select(episodes.c.item_id).where(*_EPISODE_NAMES)
_OPEN = select(episodes.c.id, episodes.c.item_id).where(
    *_EPISODE_NAMES, episodes.c.status == "open"
)
_LOCK_OPEN = (
    select(
        episodes.c.id, episodes.c.key, episodes.c.task_id, episodes.c.item_id, episodes.c.attempt,
        cast(episodes.c.writers, Text).label("writers"), LENGTH.label("length"),
    )
    # By their numbers: in the order of these, SQLite would read all episodes to find their names.
    .where(
        is_number_of(episodes.c.id, bindparam("ids", type_=SeqList())),
        episodes.c.status == "open",
    )
    .order_by(episodes.c.id)
    .with_for_update(key_share=True, skip_locked=True, of=episodes)
)  # fmt: skip
_HOLD_OPEN = (
    select(episodes.c.id)
    .where(
        *_EPISODE_NAMES,
        episodes.c.status == "open",
        episodes.c.item_id == bindparam("of_id", type_=BigInteger()),
    )
    .with_for_update(key_share=True)
)
_REPLACE_WRITER = (
    update(episodes)
    .where(episodes.c.id == bindparam("of_id"))
    .values(
        attempt=bindparam("of_attempt", type_=Integer()),
        writer=null(),
        writers=json_parameter("of_writers"),
    )
)
_NOTE_WRITERS = update(episodes).where(*_EPISODE_NAMES).values(writers=json_parameter("of_writers"))
_ITEM = _W.id == bindparam("of_id", type_=BigInteger())
_OWN = (_ITEM, _OF_BUFFER, _W.attempt == bindparam("of_attempt", type_=Integer()))
_STATE = select(
    _W.status, _W.attempt, _W.worker, _W.leased_until, _W.reason, _W.max_attempts
).where(_ITEM, _OF_BUFFER)
_HOLD = _STATE.with_for_update()
_PROLONG = (
    update(work_items)
    .where(*_OWN, _W.status == "taken")
    .values(leased_until=in_seconds(bindparam("lease_s", type_=Double())))
)
_MAY_RETRY = or_(_W.max_attempts.is_(None), _W.attempt < _W.max_attempts)
_FAIL = (
    update(work_items)
    .where(*_OWN, _W.status.in_(("taken", "waiting")))  # waiting: its episode was aborted
    .values(
        status=case(
            (bindparam("retries", type_=Boolean()) & _MAY_RETRY, "waiting"), else_="failed"
        ),
        ended_at=case(
            (bindparam("retries", type_=Boolean()) & _MAY_RETRY, null()), else_=in_seconds(0.0)
        ),
        reason=bindparam("of_reason", type_=Text()),
        leased_until=null(),
    )
)
_GIVE_BACK = (
    update(work_items)
    .where(*_OWN, _W.status == "taken")
    .values(
        status="waiting",
        # This attempt does not count.
        max_attempts=_W.max_attempts + 1,
        leased_until=null(),
    )
)
_HAS_ANY = select(
    exists(select(1).where(_OF_BUFFER, _IS_TAKEN, _HAS_RUN_OUT)).label("has_lost"),
    exists(select(1).where(_OF_BUFFER, _WAITS)).label("has_waiting"),
).where(buffers.c.id == bindparam("of_buffer", type_=Integer()))
_N_TAKEN = select(func.count()).select_from(
    select(1).select_from(work_items).where(_OF_BUFFER, _IS_TAKEN).limit(_MOST).subquery()
)
# The rollouts that no acknowledged lease has used yet, and 1 for those with held steps. A
# subquery with a limit is run for each: PostgreSQL would make an EXISTS a table of all episodes. A
# chunk without steps left is deleted.
_STORED = {
    has_chunks: text(
        f"SELECT w.id, (SELECT 1 FROM {steps} s WHERE s.buffer_id = w.buffer_id "
        "AND s.episode_id = (SELECT e.id FROM episodes e WHERE e.buffer_id = w.buffer_id "
        f"AND e.key = w.episode_id AND e.task_id = w.task_id) AND {last} > :low "
        "ORDER BY s.t LIMIT 1) FROM work_items w WHERE w.buffer_id = :of_buffer "
        "AND w.status = 'done' AND NOT w.is_consumed ORDER BY w.id LIMIT :most"
    )
    for has_chunks, steps, last in (
        (False, "experiences", "+s.seq"),
        (True, "chunks", "s.first_seq + s.n_steps - 1"),
    )
}
_SETTLE = (
    update(work_items)
    .where(is_number_of(_W.id, bindparam("ids", type_=SeqList())))
    .values(is_consumed=True)
)


class NewWork(NamedTuple):
    """The rollouts of one task to put.

    Attributes:
        group_id: Their group.
        task_id: The task.
        payload: JSON that each of them gets; None for none.
    """

    group_id: str
    task_id: str
    payload: str | None


class TakenWork(NamedTuple):
    """An item that was taken.

    Attributes:
        id: Its key.
        group_id: Its group.
        sibling: Its number in the group.
        task_id: Its task.
        payload: JSON that was put with it; None for none.
        attempt: Number of this attempt, from 1.
        max_attempts: Largest number of attempts; None for any.
        worker: Who has taken it.
        episode_id: Id of its episode in this attempt.
        lease_s: Duration of its lease, in seconds.
    """

    id: int
    group_id: str
    sibling: int
    task_id: str
    payload: str | None
    attempt: int
    max_attempts: int | None
    worker: str
    episode_id: str
    lease_s: float


def put(
    buffer: OpenBuffer,
    tasks: Sequence[NewWork],
    group_size: int,
    max_attempts: int | None,
    *,
    retry_failed: bool,
) -> int:
    """Add the items that do not exist yet; return how many are new, or wait again.

    Raises:
        ArgumentError: A group has another task.
        BufferNotFoundError: The buffer was dropped.
    """
    known = {task.group_id: task for task in tasks}

    def work(connection: Connection) -> int:
        buffer.window_in(connection)  # unless it was dropped
        _lock(connection, buffer.info.id)
        own = {"of_buffer": buffer.info.id, "groups": list(known)}
        for group_id, stored, payload in connection.execute(_TASKS_OF_GROUPS, own):
            if stored != known[group_id].task_id:
                raise ArgumentError(
                    f"group {group_id!r} has rollouts of task {stored!r}, and not of "
                    f"{known[group_id].task_id!r}; give another group_id"
                )
            if _parsed(payload) != _parsed(known[group_id].payload):
                raise ArgumentError(
                    f"group {group_id!r} was put with another payload; its rollouts have one, so "
                    f"give another group_id"
                )
        n_new = 0
        if retry_failed:
            n_new += connection.execute(_RETRY, {**own, "more": max_attempts}).rowcount
        return n_new + _put(connection, buffer.info.id, tasks, group_size, max_attempts)

    return buffer.write(work)


def _parsed(payload: str | None) -> Any:
    return None if payload is None else orjson.loads(payload)


def may_take(buffer: OpenBuffer, max_ahead: int | None) -> bool:
    """Return True if an item may be there to take, with two or three statements that lock nothing.

    Raises:
        BufferNotFoundError: The buffer was dropped.
    """

    def look(connection: Connection) -> bool:
        found = connection.execute(_HAS_ANY, {"of_buffer": buffer.info.id}).one_or_none()
        if found is None:
            raise buffer.dropped()
        if found.has_lost or not found.has_waiting:
            return bool(found.has_lost)
        return max_ahead is None or _n_ahead(connection, buffer, max_ahead)[0] < max_ahead

    return buffer.read(look)


def take(
    buffer: OpenBuffer, n: int, worker: str, lease_s: float, max_ahead: int | None
) -> list[TakenWork]:
    """Take up to n items: those whose lease ran out, then those that wait, the oldest first.

    Args:
        buffer: The buffer.
        n: Largest number of items.
        worker: Who takes them.
        lease_s: Duration of their leases.
        max_ahead: See `Work.take`.
    """

    def work(connection: Connection) -> list[TakenWork]:
        if buffer.info.config.retention.evict_by == "episode":
            # First, as in evictions: an episode that ends may exceed the limit.
            lock_as_writer(connection, buffer.info.id)
        if max_ahead is not None:
            _lock(connection, buffer.info.id)
        taken = _take_expired(connection, buffer, n, worker, lease_s)
        room = n - len(taken)
        if max_ahead is not None and room:
            room = min(room, _room(connection, buffer, max_ahead))
        if room > 0:
            own = {"of_buffer": buffer.info.id, "most": room}
            taken += _claim(connection, connection.execute(_WAITING, own), worker, lease_s)
        return taken

    return buffer.write(work)


def _claim(
    connection: Connection, items: Iterable[Any], worker: str, lease_s: float
) -> list[TakenWork]:
    """Give locked items their next attempt."""
    taken = [_next_attempt(item, worker, lease_s) for item in items]
    if taken:
        rows = [
            {
                "of_id": item.id, "of_attempt": item.attempt, "of_worker": worker,
                "lease_s": lease_s, "of_episode": item.episode_id,
            }
            for item in taken
        ]  # fmt: skip
        connection.execute(_TAKE, rows)
    return taken


def _next_attempt(item: Any, worker: str, lease_s: float) -> TakenWork:
    attempt = item.attempt + 1
    return TakenWork(
        item.id, item.group_id, item.sibling, item.task_id, item.payload, attempt,
        item.max_attempts, worker, f"{item.group_id}/{item.sibling}/{attempt}", lease_s,
    )  # fmt: skip


def _take_expired(
    connection: Connection, buffer: OpenBuffer, n: int, worker: str, lease_s: float
) -> list[TakenWork]:
    """Take items whose lease ran out, and abort the episodes of their attempts.

    Items without attempts left fail. An item whose writer stores steps at this moment is left out.
    """
    taken: list[TakenWork] = []
    while len(taken) < n:
        own = {"of_buffer": buffer.info.id, "most": n - len(taken)}
        items = connection.execute(_EXPIRED, own).all()
        if not items:
            break
        locked, busy = _lock_episodes(connection, buffer, items)
        free = [item for item in items if item.id not in busy]
        spent = [
            item.id
            for item in free
            if item.max_attempts is not None and item.attempt >= item.max_attempts
        ]
        # Before their episodes end: that would end the items.
        if spent:
            connection.execute(_GIVE_UP, {"ids": spent})
        taken += _claim(
            connection, [item for item in free if item.id not in spent], worker, lease_s
        )
        _replace_writers(connection, buffer, locked, worker)
        if not spent:
            break
    return taken


def _lock_episodes(
    connection: Connection, buffer: OpenBuffer, items: Sequence[Any]
) -> tuple[list[Any], set[int]]:
    """Lock the open episodes of locked items.

    Return them, and the items whose episodes are locked by others.
    """
    ids = {item.id for item in items}
    names = {
        "of_buffer": buffer.info.id,
        "keys": [item.episode_id for item in items],
        "tasks": list({item.task_id for item in items}),
    }
    # Their names may be those of other episodes.
    is_open = {id_: item_id for id_, item_id in connection.execute(_OPEN, names) if item_id in ids}
    locked = connection.execute(_LOCK_OPEN, {"ids": sorted(is_open)}).all() if is_open else []
    return list(locked), {*is_open.values()} - {episode.item_id for episode in locked}


def _replace_writers(
    connection: Connection, buffer: OpenBuffer, locked: Sequence[Any], worker: str
) -> None:
    """Abort locked episodes in place of their writers, which can store nothing more."""
    if not locked:
        return
    rows = [
        {
            "of_id": episode.id,
            "of_attempt": episode.attempt + 1,
            "of_writers": _with_writer(
                episode.writers, episode.attempt + 1, worker, episode.length
            ),
        }
        for episode in locked
    ]
    connection.execute(_REPLACE_WRITER, rows)
    _abort(connection, buffer, [(episode.key, episode.task_id) for episode in locked])


def _abort(connection: Connection, buffer: OpenBuffer, keys: Iterable[tuple[str, str]]) -> None:
    endings = [EpisodeEnd(key, task_id, "aborted", None) for key, task_id in keys]
    end(connection, buffer.info.id, endings, {})


def _with_writer(writers: str | None, attempt: int, holder: str | None, from_t: int) -> str:
    """Return the JSON of an episode's writers with another one."""
    listed = [] if writers is None else orjson.loads(writers)
    at = f"{datetime.now(UTC).isoformat(timespec='milliseconds')[:-6]}Z"
    listed.append({"attempt": attempt, "holder": holder, "at": at, "from_t": from_t})
    return orjson.dumps(listed).decode()


def _room(connection: Connection, buffer: OpenBuffer, max_ahead: int) -> int:
    """Return how many more rollouts may be taken. Those that have left are noted as consumed."""
    while True:
        n_ahead, gone = _n_ahead(connection, buffer, max_ahead)
        if not gone:
            return max(0, max_ahead - n_ahead)
        connection.execute(_SETTLE, {"ids": gone})


def _n_ahead(connection: Connection, buffer: OpenBuffer, most: int) -> tuple[int, list[int]]:
    """Return how many rollouts are taken, or complete and held; `most` at most.

    Also return items whose steps have left the buffer: with some, more rollouts may be held.
    """
    own = {"of_buffer": buffer.info.id, "low": buffer.window_in(connection).low}
    n_taken = int(connection.execute(_N_TAKEN, {**own, "most": most}).scalar_one())
    if n_taken >= most:
        return n_taken, []
    statement = _STORED[buffer.info.has_chunks]
    stored = connection.execute(statement, {**own, "most": most - n_taken}).all()
    gone = [id_ for id_, is_held in stored if not is_held]
    return n_taken + len(stored) - len(gone), gone


def begin_episode(buffer: OpenBuffer, item: TakenWork, beginning: EpisodeStart) -> None:
    """Begin the episode of an item, if this attempt still has it.

    Raises:
        EpisodeExistsError: This attempt has begun it before, or another episode has its id.
        LeaseLostError: Another worker has the item, or it has ended.
    """

    def work(connection: Connection) -> None:
        own = {"of_buffer": buffer.info.id, "of_id": item.id}
        state = connection.execute(_HOLD, own).one_or_none()
        if state is None or (state.status, state.attempt) != ("taken", item.attempt):
            raise _lost(buffer, item, state, "began an episode")
        if not begin(connection, buffer.info.id, beginning):
            raise _begun(connection, buffer, item)
        writers: str | None = None
        for attempt in range(2, item.attempt + 1):
            writers = _with_writer(writers, attempt, item.worker, 0)
        if writers is not None:
            names = {
                "of_buffer": buffer.info.id, "keys": [beginning.key],
                "tasks": [beginning.task_id], "of_writers": writers,
            }  # fmt: skip
            connection.execute(_NOTE_WRITERS, names)

    buffer.write(work)


def _begun(connection: Connection, buffer: OpenBuffer, item: TakenWork) -> EpisodeExistsError:
    """Return the error of an item whose episode exists."""
    names = {"of_buffer": buffer.info.id, "keys": [item.episode_id], "tasks": [item.task_id]}
    if connection.execute(_OF_ITEM, names).scalar() != item.id:
        return episode_exists(connection, buffer.info.id, item.episode_id, item.task_id)
    return EpisodeExistsError(
        f"episode {item.episode_id!r} of task {item.task_id!r} was begun before by attempt "
        f"{item.attempt} of its work item; write on with that writer, or call item.fail(), and "
        f"take the item again"
    )


def prolong(buffer: OpenBuffer, item: TakenWork, lease_s: float) -> None:
    """Have the lease of an item run out in `lease_s` seconds.

    Raises:
        LeaseLostError: Another worker has the item, or it has ended.
    """

    def work(connection: Connection) -> None:
        own = _own(buffer, item)
        if not connection.execute(_PROLONG, {**own, "lease_s": lease_s}).rowcount:
            raise _lost(buffer, item, _state(connection, own), "renewed the lease")

    buffer.write(work)


def fail(buffer: OpenBuffer, item: TakenWork, reason: str, *, retry: bool) -> None:
    """End an attempt without a rollout: its open episode is aborted.

    Raises:
        LeaseLostError: Another worker has the item, or it is done.
    """

    def work(connection: Connection) -> None:
        if buffer.info.config.retention.evict_by == "episode":
            lock_as_writer(connection, buffer.info.id)
        own = _own(buffer, item)
        names = {"of_buffer": own["of_buffer"], "keys": [item.episode_id], "tasks": [item.task_id]}
        # The episode before the item, as those who end it lock them.
        episode = connection.execute(_HOLD_OPEN, {**names, "of_id": item.id}).one_or_none()
        values = {**own, "retries": retry, "of_reason": reason}
        if not connection.execute(_FAIL, values).rowcount:
            state = _state(connection, own)
            if state is None or (state.status, state.attempt) != ("failed", item.attempt):
                raise _lost(buffer, item, state, "failed it")
        if episode is not None:
            _abort(connection, buffer, [(item.episode_id, item.task_id)])

    buffer.write(work)


def give_back(buffer: OpenBuffer, items: Sequence[TakenWork]) -> None:
    """Let others take items that this call got and nobody receives."""

    def work(connection: Connection) -> None:
        for item in items:
            connection.execute(_GIVE_BACK, _own(buffer, item))

    buffer.write(work)


def forget(connection: Connection, buffer_id: int) -> None:
    """Delete the items of a buffer."""
    connection.execute(work_items.delete().where(_W.buffer_id == buffer_id))


def default_worker() -> str:
    """Return the name of this process."""
    return f"{os.uname().nodename}/{os.getpid()}"


def _own(buffer: OpenBuffer, item: TakenWork) -> dict[str, Any]:
    return {"of_buffer": buffer.info.id, "of_id": item.id, "of_attempt": item.attempt}


def _state(connection: Connection, own: dict[str, Any]) -> Any:
    return connection.execute(_STATE, own).one_or_none()


def _lost(buffer: OpenBuffer, item: TakenWork, state: Any, call: str) -> LeaseLostError:
    """Return the error for a call on an item that this attempt no longer has."""
    name = (
        f"buffer {buffer.info.name!r}: work item {item.group_id!r}, sibling {item.sibling}, "
        f"attempt {item.attempt}"
    )
    if state is None:
        return LeaseLostError(
            f"{name} was deleted, as the buffer was cleared, before its worker {call}; take another"
        )
    if state.attempt != item.attempt:
        return LeaseLostError(
            f"{name} was lost before its worker {call}: its lease ran out, and {state.worker!r} "
            f"has taken it as attempt {state.attempt}; take another item, and call heartbeat() in "
            f"time or take with a longer lease_s"
        )
    reason = "" if state.reason is None else f" ({state.reason})"
    ended = {
        "done": "is done: its episode is complete",
        "failed": f"has failed{reason}",
        "waiting": f"was given up{reason}, and waits to be taken again",
    }
    return LeaseLostError(
        f"{name} {ended.get(state.status, 'ended')}, before its worker {call}; take another item"
    )
