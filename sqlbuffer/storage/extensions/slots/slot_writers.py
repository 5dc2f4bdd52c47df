"""The processes that write to slots, as far as they live."""

from sqlalchemy import (
    Connection,
    delete,
    select,
    text,
)

from sqlbuffer.storage.database.holders import is_alive, is_here
from sqlbuffer.storage.extensions.slots.episode_slots import of_buffer
from sqlbuffer.storage.extensions.slots.slot_layout import (
    empty_slots,
    lock_ring,
)
from sqlbuffer.storage.extensions.slots.tables import slot_writers
from sqlbuffer.storage.schema.server_clock import age_s
from sqlbuffer.storage.store import BufferStore

_SEE = text(
    "INSERT INTO slot_writers (buffer_id, holder) VALUES (:buffer_id, :holder) "
    "ON CONFLICT (buffer_id, holder) DO UPDATE SET seen_at = excluded.seen_at"
)


def living(connection: Connection, buffer_id: int, timeout_s: float) -> set[str]:
    """Return the writers of a buffer that live, as far as that is known."""
    age = age_s(slot_writers.c.seen_at)
    found = connection.execute(
        select(slot_writers.c.holder, age).where(of_buffer(slot_writers, buffer_id))
    )
    return {holder for holder, age_s in found if is_alive(holder, age_s, timeout_s)}


def other_writers(store: BufferStore) -> list[str]:
    """Return those of other processes that write to a buffer's slots."""
    with store.engine.connect() as connection:
        found = living(connection, store.info.id, store.info.open_timeout_s)
    return sorted(each for each in found if not is_here(each))


def register(store: BufferStore, holder: str) -> None:
    """Note that a process writes to a buffer's slots; forget those that died, and episodes whose
    steps were deleted by plain SQL.
    """

    def work(connection: Connection) -> None:
        lock_ring(connection, store.info.id)
        empty_slots(connection, store.info.id)
        alive = living(connection, store.info.id, store.info.open_timeout_s)
        of = of_buffer(slot_writers, store.info.id)
        for gone in set(connection.execute(select(slot_writers.c.holder).where(of)).scalars()):
            if gone not in alive:
                connection.execute(delete(slot_writers).where(of, slot_writers.c.holder == gone))
        note_alive(connection, store.info.id, holder)

    store.write(work)


def note_alive(connection: Connection, buffer_id: int, holder: str) -> None:
    """Note that a writer lives."""
    connection.execute(_SEE, {"buffer_id": buffer_id, "holder": holder})
