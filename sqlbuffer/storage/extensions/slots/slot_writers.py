"""The living processes that write to slots."""

from sqlalchemy import Connection, select

from sqlbuffer.storage.buffers.catalog import layout_of
from sqlbuffer.storage.database.holders import is_alive, is_here
from sqlbuffer.storage.extensions.participants import forget, note_seen
from sqlbuffer.storage.extensions.tables import WRITER, participants
from sqlbuffer.storage.schema.server_clock import age_s
from sqlbuffer.storage.store import BufferStore

_WRITERS = select(participants.c.name, age_s(participants.c.seen_at)).where(
    participants.c.role == WRITER
)


def _writers(connection: Connection, buffer_id: int, timeout_s: float) -> dict[str, bool]:
    """Return the writers of a buffer, each with True if it is alive."""
    found = connection.execute(_WRITERS.where(participants.c.buffer_id == buffer_id))
    return {holder: is_alive(holder, age_s, timeout_s) for holder, age_s in found}


def living(connection: Connection, buffer_id: int, timeout_s: float) -> set[str]:
    """Return the writers of a buffer that are alive, as far as that is known."""
    found = _writers(connection, buffer_id, timeout_s)
    return {holder for holder, is_living in found.items() if is_living}


def other_writers(store: BufferStore) -> list[str]:
    """Return the writers of a buffer's slots in other processes."""
    timeout_s = store.info.config.episodes.open_timeout_s
    found = store.read(lambda connection: living(connection, store.info.id, timeout_s))
    return sorted(each for each in found if not is_here(each))


def register(store: BufferStore, holder: str) -> None:
    """Register a writer of a buffer's slots.

    Dead writers are removed, and episodes whose steps were deleted by plain SQL.
    """

    def work(connection: Connection) -> None:
        layout = layout_of(store.info)
        layout.lock(connection, store.info.id)
        layout.after_delete(connection, store.info.id)
        found = _writers(connection, store.info.id, store.info.config.episodes.open_timeout_s)
        for gone in (name for name, is_living in found.items() if not is_living):
            forget(connection, store.info.id, WRITER, gone)
        note_seen(connection, store.info.id, WRITER, holder)

    store.write(work)
