"""A new model version or session: what is too old, or of another session, leaves."""

from typing import Any

from orjson import loads
from sqlalchemy import BigInteger, Connection, Text, bindparam, cast, delete, select, update

from sqlbuffer.storage.buffers import sessions
from sqlbuffer.storage.buffers.sessions import INSERT_SESSION
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.extensions.fragments.adding import Origin, WaitingFragments, as_text, drop
from sqlbuffer.storage.extensions.fragments.deleting import delete_left
from sqlbuffer.storage.extensions.fragments.fetching import hold_no_more
from sqlbuffer.storage.extensions.fragments.leaving import every, leave, leave_stale, oldest_allowed
from sqlbuffer.storage.extensions.fragments.pool import ID, Pool, Rules, as_json, change_rules, read
from sqlbuffer.storage.extensions.fragments.tables import chunks, fragment_workers, prepared_lists
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.schema.server_clock import age_s
from sqlbuffer.storage.store import BufferStore

# Workers without a fragment for so long are forgotten when a session begins, and lists that were
# prepared so long ago: consumers that are gone would hold their chunks for ever.
FORGOTTEN_S = 30 * 86_400
_TABLE = fragment_workers.c
_OWN = _TABLE.buffer_id == ID
_WAITING = select(
    _TABLE.worker_uuid, _TABLE.session, _TABLE.last_fid, cast(_TABLE.waiting, Text)
).where(_OWN, _TABLE.oldest_waiting.is_not(None))
_STALE = _WAITING.where(_TABLE.oldest_waiting < bindparam("oldest", type_=BigInteger()))
_LISTS = prepared_lists.c
_OLD_LISTS = select(_LISTS.consumer, cast(_LISTS.chunks, Text)).where(
    _LISTS.buffer_id == ID, age_s(_LISTS.fetched_at) > FORGOTTEN_S
)
_KEEP = (
    update(fragment_workers)
    .where(_OWN, _TABLE.worker_uuid == bindparam("worker", type_=Text()))
    .values(waiting=as_json("kept"), oldest_waiting=bindparam("least", type_=BigInteger()))
)


def set_version(store: BufferStore, session: str, version: int) -> Pool:
    """Go on to a version of a session's model; return the state behind it."""
    if session:
        # In a transaction of its own: whoever stores the session's first fragment waits for the
        # row of the chunks while it holds the session's, and nobody may wait the other way round.
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
    """Say the same to all that reads the buffer otherwise."""
    store.lock(connection)
    if session:
        sessions.start(connection, store.info.id, session)
    else:
        own = update(buffers).where(buffers.c.id == store.info.id)
        connection.execute(own.values(session_id=None))
    sessions.set_version(connection, store.info.id, version, session or None)


def _leave_all(connection: Connection, store: BufferStore, pool: Pool) -> None:
    leave(connection, store.info.id, pool, every(connection, store.info.id), "other_session")
    for origin, waiting in _waiting(connection, _WAITING, of=store.info.id):
        _keep(connection, store.info.id, pool, origin, waiting, len(waiting))
    _forget_gone(connection, store.info.id)


def _forget_gone(connection: Connection, buffer_id: int) -> None:
    is_old = age_s(_TABLE.seen_at) > FORGOTTEN_S
    own = _TABLE.buffer_id == buffer_id
    connection.execute(delete(fragment_workers).where(own, is_old))
    for consumer, held in connection.execute(_OLD_LISTS, {"of": buffer_id}).all():
        hold_no_more(connection, buffer_id, consumer, loads(held))


def _drop_stale(connection: Connection, store: BufferStore, pool: Pool) -> None:
    """Drop what waits behind a fragment that is too old, and that."""
    allowed = oldest_allowed(pool)
    for origin, waiting in _waiting(connection, _STALE, of=store.info.id, oldest=allowed):
        last = max(i for i, each in enumerate(waiting) if each.version < allowed)
        _keep(connection, store.info.id, pool, origin, waiting, last + 1)


def _waiting(
    connection: Connection, statement: Any, **given: int
) -> list[tuple[Origin, list[WaitingFragments]]]:
    """Return what waits for its neighbours, by where it is from."""
    found = []
    for worker, session, last_fid, text in connection.execute(statement, given).all():
        waiting = [WaitingFragments(*each) for each in loads(text)]
        found.append((Origin(worker, session, last_fid - len(waiting) + 1), waiting))
    return found


def _keep(
    connection: Connection,
    buffer_id: int,
    pool: Pool,
    origin: Origin,
    waiting: list[WaitingFragments],
    n_dropped: int,
) -> None:
    """Drop the first fragments of a worker that wait."""
    drop(connection, buffer_id, pool, origin, waiting[:n_dropped])
    kept = waiting[n_dropped:]
    least = min((each.version for each in kept), default=None)
    given = {"of": buffer_id, "worker": origin.worker, "kept": as_text(kept), "least": least}
    connection.execute(_KEEP, given)


def clear(store: BufferStore, rules: Rules | None = None) -> None:
    """Delete all fragments, and forget chunks, workers and what was prepared; go by other rules
    from now on where some are given.
    """

    def work(connection: Connection) -> None:
        own_rules = read(connection, store, locked=True).rules
        store.note_deletion(connection)
        remove_where(connection, store.info.id)
        for table in (chunks, fragment_workers, prepared_lists):
            connection.execute(delete(table).where(table.c.buffer_id == store.info.id))
        _note_nothing(connection, store)
        Pool(own_rules).save(connection, store.info.id)
        if rules is not None:
            change_rules(connection, store, rules)

    store.write(work)


def _note_nothing(connection: Connection, store: BufferStore) -> None:
    own = update(buffers).where(buffers.c.id == store.info.id)
    connection.execute(own.values(session_id=None, clock=None))
