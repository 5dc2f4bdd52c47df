"""The layout of buffers with slots: what slots show after steps were changed or deleted."""

from sqlalchemy import Connection, Integer, bindparam, delete, select, text, update

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.buffers.layouts import BufferLayout
from sqlbuffer.storage.extensions.tables import buffer_layouts, slots

_ID = bindparam("buffer_id", type_=Integer())
_LOCK = select(buffer_layouts.c.changes).where(buffer_layouts.c.buffer_id == _ID).with_for_update()
_NOTE = text("UPDATE buffer_layouts SET changes = changes + 1 WHERE buffer_id = :buffer_id")
# The offset keeps PostgreSQL from joining with the whole buffer where it has no statistics.
_EMPTY = text(
    "UPDATE slots SET length = 0, meta = NULL, tail = NULL, episode_id = NULL "
    "WHERE buffer_id = :buffer_id AND length > 0 AND episode_id IS NOT NULL AND NOT EXISTS ("
    "SELECT 1 FROM experiences e WHERE e.buffer_id = slots.buffer_id "
    "AND e.episode_id = slots.episode_id LIMIT 1 OFFSET 0)"
)


def lock_ring(connection: Connection, buffer_id: int) -> None:
    """Keep writers of slots waiting until the transaction ends.

    Call it before anything else is locked: writers lock the ring before they delete what a slot
    showed.
    """
    connection.execute(_LOCK, {"buffer_id": buffer_id})


def note_change(connection: Connection, buffer_id: int) -> None:
    """Tell readers that what they read before has changed; the caller holds the ring."""
    connection.execute(_NOTE, {"buffer_id": buffer_id})


def empty_slots(connection: Connection, buffer_id: int) -> None:
    """Empty the slots whose finished episode has no step any more; the caller holds the ring."""
    connection.execute(_EMPTY, {"buffer_id": buffer_id})
    note_change(connection, buffer_id)


def clear_slots(connection: Connection, buffer_id: int) -> None:
    """Forget the slots of every writer, and begin with the first; the caller holds the ring."""
    connection.execute(delete(slots).where(slots.c.buffer_id == buffer_id))
    zero = update(buffer_layouts).where(buffer_layouts.c.buffer_id == buffer_id)
    connection.execute(zero.values(next_number=0, n_held=0))


class SlotLayout(BufferLayout):
    """Slots show episodes: core calls that delete steps empty them."""

    def lock(self, connection: Connection, buffer_id: int) -> None:
        lock_ring(connection, buffer_id)

    def after_delete(self, connection: Connection, buffer_id: int) -> None:
        empty_slots(connection, buffer_id)

    def after_clear(self, connection: Connection, buffer_id: int) -> None:
        clear_slots(connection, buffer_id)

    def check_resize(self, name: str) -> None:
        raise BufferConfigError(
            f"buffer {name!r} is one of sqlbuffer.compat.memmap and holds what its slots show; "
            f"make it again with another max_episodes=..."
        )
