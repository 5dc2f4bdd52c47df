"""Delete the payloads of groups that have left, after the call that took them out.

Each deletion is a transaction of its own, so that no call that adds or fetches waits for it. A
group that has left and that no list holds is never fetched again: its deletion locks only the row
of the buffer, as every deletion does. If a call is killed or meets other writers, a later call
deletes the remaining groups.
"""

import logging
from collections.abc import Sequence

from sqlalchemy import Connection, Integer, bindparam, delete, select

from sqlbuffer.errors import SQLBufferError, StorageBusyError
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.dialects.connections import at_once, hurried
from sqlbuffer.storage.extensions.fragments.leaving import IS_NAMED, OWN, numbers
from sqlbuffer.storage.extensions.tables import item_groups
from sqlbuffer.storage.rows.removal import remove_rows
from sqlbuffer.storage.store import BufferStore

logger = logging.getLogger("sqlbuffer")

# Groups that one transaction deletes; a new version waits for it. Groups of 8 MB take PostgreSQL 15
# ms each.
AT_ONCE = 8
# Seconds to wait for other processes, which delete for this call too.
WAIT_S = 1.0
_TABLE = item_groups.c
_LEFT = (
    select(_TABLE.number, _TABLE.seqs)
    .where(OWN, _TABLE.place.is_(None), _TABLE.n_pins == 0)
    .order_by(_TABLE.number)
    .limit(bindparam("count", type_=Integer()))
)
_FORGET = delete(item_groups).where(OWN, IS_NAMED)


def delete_left(store: BufferStore, most: int | None = None) -> None:
    """Delete groups that have left and that no list holds, with their payloads.

    Errors are ignored: the call that started this is done.

    Args:
        store: The buffer.
        most: Maximum number of groups; None for all.
    """
    try:
        while (most is None or most > 0) and _is_any_left(store):
            n = AT_ONCE if most is None else min(AT_ONCE, most)
            with (
                translated(store.url),
                hurried(store.engine, WAIT_S) as connection,
            ):
                n_deleted = delete_some(connection, store, n)
            most = None if most is None else most - max(n_deleted, 1)
    except StorageBusyError:
        pass
    except SQLBufferError as error:
        logger.warning("fragments that have left are not deleted yet: %s", error)


def _is_any_left(store: BufferStore) -> bool:
    with translated(store.url), at_once(store.engine) as connection:
        return connection.execute(_LEFT, {"of": store.info.id, "count": 1}).first() is not None


def delete_some(connection: Connection, store: BufferStore, n: int) -> int:
    """Delete n groups at most, in a transaction; return how many."""
    # First, like every deletion: then no other process has these groups.
    store.note_deletion(connection)
    rows = connection.execute(_LEFT, {"of": store.info.id, "count": n})
    found = [(group, numbers(seqs)) for group, seqs in rows]
    if found:
        seqs = [seq for _, seqs in found for seq in seqs]
        remove_rows(connection, store.info.id, seqs, store.origin)
        gone = [group for group, _ in found]
        connection.execute(_FORGET, {"of": store.info.id, "named": gone})
    return len(found)


def remove(connection: Connection, store: BufferStore, seqs: Sequence[int]) -> None:
    """Delete fragments."""
    store.note_deletion(connection)
    remove_rows(connection, store.info.id, seqs, store.origin)
