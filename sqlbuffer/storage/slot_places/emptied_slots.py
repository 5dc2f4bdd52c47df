"""What becomes of slots (`slots.py`) when steps that they show are changed or deleted in place."""

from sqlalchemy import Connection, Integer, bindparam, delete, select, text, update

from sqlbuffer.storage.slot_places.tables import slot_rings, slots

_ID = bindparam("buffer_id", type_=Integer())
_LOCK = select(slot_rings.c.buffer_id).where(slot_rings.c.buffer_id == _ID).with_for_update()
_NOTE = text("UPDATE slot_rings SET changes = changes + 1 WHERE buffer_id = :buffer_id")
# The offset keeps PostgreSQL from joining with the whole buffer where it has no statistics.
_EMPTY = text(
    "UPDATE slots SET length = 0, meta = NULL, tail = NULL, episode_id = NULL "
    "WHERE buffer_id = :buffer_id AND length > 0 AND episode_id IS NOT NULL AND NOT EXISTS ("
    "SELECT 1 FROM experiences e WHERE e.buffer_id = slots.buffer_id "
    "AND e.episode_id = slots.episode_id LIMIT 1 OFFSET 0)"
)


def lock_ring(connection: Connection, buffer_id: int) -> bool:
    """Keep writers of slots waiting until the transaction ends; return whether there are slots.

    Before anything else is locked: they lock it before they delete what a slot showed.
    """
    return connection.execute(_LOCK, {"buffer_id": buffer_id}).first() is not None


def note_change(connection: Connection, buffer_id: int) -> None:
    """Have readers not go by what they read before; the caller holds the ring."""
    connection.execute(_NOTE, {"buffer_id": buffer_id})


def empty_slots(connection: Connection, buffer_id: int) -> None:
    """Have finished episodes without a step be shown no longer, after others than their writer
    deleted steps; the caller holds the ring.
    """
    connection.execute(_EMPTY, {"buffer_id": buffer_id})
    note_change(connection, buffer_id)


def clear_slots(connection: Connection, buffer_id: int) -> None:
    """Forget the slots of every writer, and begin with the first; the caller holds the ring."""
    connection.execute(delete(slots).where(slots.c.buffer_id == buffer_id))
    zero = update(slot_rings).where(slot_rings.c.buffer_id == buffer_id)
    connection.execute(zero.values(next_turn=0, num_episodes=0))
