"""Set the model version and session; groups that are too old or of another session leave."""

from dataclasses import replace
from typing import Any

from orjson import loads
from sqlalchemy import BigInteger, Connection, Text, bindparam, cast, delete, select, update

from sqlbuffer.storage.buffers import sessions
from sqlbuffer.storage.buffers.sessions import INSERT_SESSION
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.extensions.fragments.adding import Worker, drop
from sqlbuffer.storage.extensions.fragments.deleting import delete_left
from sqlbuffer.storage.extensions.fragments.fetching import hold_no_more
from sqlbuffer.storage.extensions.fragments.leaving import every, leave, leave_stale, oldest_allowed
from sqlbuffer.storage.extensions.fragments.pool import ID, Pool, Rules, change_rules, read
from sqlbuffer.storage.extensions.participants import change
from sqlbuffer.storage.extensions.tables import CONSUMER, WORKER, item_groups, participants
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.schema.server_clock import age_s
from sqlbuffer.storage.store import BufferStore

# When a session begins, workers without a fragment for this long are removed, and lists prepared
# longer ago: consumers that are gone would hold their groups for ever.
FORGOTTEN_S = 30 * 86_400
_TABLE = participants.c
_OWN = _TABLE.buffer_id == ID
_STATES = select(_TABLE.name, cast(_TABLE.state, Text)).where(_OWN)
_WAITING = _STATES.where(_TABLE.oldest_version.is_not(None))
_STALE = _WAITING.where(_TABLE.oldest_version < bindparam("oldest", type_=BigInteger()))
_IS_OLD = age_s(_TABLE.seen_at) > FORGOTTEN_S
_OLD_LISTS = _STATES.where(_TABLE.role == CONSUMER, _IS_OLD)
_FORGET_WORKERS = delete(participants).where(_OWN, _TABLE.role == WORKER, _IS_OLD)


def set_version(store: BufferStore, session: str, version: int) -> Pool:
    """Set the session and its model version; return the state of the groups after it."""
    if session:
        # In a separate transaction: a process that stores the session's first fragment waits for
        # the row of the groups while it holds the session's. No process may wait in the other
        # order.
        key = {"buffer_id": store.info.id, "key": session}
        store.write(lambda connection: connection.execute(INSERT_SESSION, key).rowcount)

    def work(connection: Connection) -> Pool:
        pool = read(connection, store, locked=True)
        _note(connection, store, session, version)
        is_other, pool.session, pool.version = session != pool.session, session, version
        if is_other:
            _leave_all(connection, store, pool)
        else:
            _drop_stale(connection, store, pool)
            leave_stale(connection, store, pool)
        pool.save(connection, store.info.id)
        return pool

    pool = store.write(work)
    delete_left(store)
    return pool


def _note(connection: Connection, store: BufferStore, session: str, version: int) -> None:
    """Set the session and clock that core calls read."""
    store.lock(connection)
    if session:
        sessions.start_session(connection, store.info.id, session)
    else:
        own = update(buffers).where(buffers.c.id == store.info.id)
        connection.execute(own.values(session_id=None))
    sessions.set_session_version(connection, store.info.id, version, session or None)


def _leave_all(connection: Connection, store: BufferStore, pool: Pool) -> None:
    leave(connection, store.info.id, pool, every(connection, store.info.id), "other_session")
    for name, worker in _waiting(connection, _WAITING, of=store.info.id):
        _drop_first(connection, store.info.id, pool, name, worker, len(worker.waiting))
    _forget_gone(connection, store.info.id)


def _forget_gone(connection: Connection, buffer_id: int) -> None:
    connection.execute(_FORGET_WORKERS, {"of": buffer_id})
    for consumer, state in connection.execute(_OLD_LISTS, {"of": buffer_id}).all():
        hold_no_more(connection, buffer_id, consumer, loads(state)["groups"])


def _drop_stale(connection: Connection, store: BufferStore, pool: Pool) -> None:
    """Drop the waiting fragments up to the last one that is too old."""
    allowed = oldest_allowed(pool)
    for name, worker in _waiting(connection, _STALE, of=store.info.id, oldest=allowed):
        last = max(i for i, each in enumerate(worker.waiting) if each.version < allowed)
        _drop_first(connection, store.info.id, pool, name, worker, last + 1)


def _waiting(connection: Connection, statement: Any, **given: int) -> list[tuple[str, Worker]]:
    """Return the workers with fragments that wait for their neighbours."""
    found = connection.execute(statement, given).all()
    return [(name, Worker.of(loads(state))) for name, state in found]


def _drop_first(
    connection: Connection, buffer_id: int, pool: Pool, name: str, worker: Worker, n: int
) -> None:
    """Drop the first n waiting fragments of a worker."""
    drop(connection, buffer_id, pool, worker.origin(name), worker.waiting[:n])
    left = replace(worker, waiting=worker.waiting[n:])
    change(connection, buffer_id, WORKER, name, left.state(), left.oldest_version)


def clear(store: BufferStore, rules: Rules | None = None) -> None:
    """Delete all fragments, groups, workers and lists; replace the rules if new ones are given."""

    def work(connection: Connection) -> None:
        own_rules = read(connection, store, locked=True).rules
        store.note_deletion(connection)
        remove_where(connection, store.info.id, origin=store.origin)
        for table in (item_groups, participants):
            connection.execute(delete(table).where(table.c.buffer_id == store.info.id))
        _note_nothing(connection, store)
        Pool(own_rules).save(connection, store.info.id)
        if rules is not None:
            change_rules(connection, store, rules)

    store.write(work)


def _note_nothing(connection: Connection, store: BufferStore) -> None:
    own = update(buffers).where(buffers.c.id == store.info.id)
    connection.execute(own.values(session_id=None, clock=None))
