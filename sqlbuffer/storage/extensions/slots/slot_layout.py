"""The layout of buffers with slots: updates slots after steps were changed or deleted."""

from sqlalchemy import Connection, Integer, bindparam, delete, select, text, update

from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.buffers.catalog import BufferLayout
from sqlbuffer.storage.extensions.tables import buffer_layouts, slots

_ID = bindparam("buffer_id", type_=Integer())
_LOCK = select(buffer_layouts.c.changes).where(buffer_layouts.c.buffer_id == _ID).with_for_update()
_NOTE = text("UPDATE buffer_layouts SET changes = changes + 1 WHERE buffer_id = :buffer_id")
# The offset keeps PostgreSQL from joining with the whole buffer if it has no statistics.
_EMPTY = text(
    "UPDATE slots SET length = 0, meta = NULL, tail = NULL, episode_id = NULL "
    "WHERE buffer_id = :buffer_id AND length > 0 AND episode_id IS NOT NULL AND NOT EXISTS ("
    "SELECT 1 FROM experiences e WHERE e.buffer_id = slots.buffer_id "
    "AND e.episode_id = slots.episode_id LIMIT 1 OFFSET 0) AND NOT EXISTS ("
    "SELECT 1 FROM chunks c WHERE c.buffer_id = slots.buffer_id "
    "AND c.episode_id = slots.episode_id LIMIT 1 OFFSET 0)"
)


def note_change(connection: Connection, buffer_id: int) -> None:
    """Tell readers that rows have changed since they read them; the caller holds the lock."""
    connection.execute(_NOTE, {"buffer_id": buffer_id})


class SlotLayout(BufferLayout):
    """The layout with slots: calls that delete steps empty slots."""

    def lock(self, connection: Connection, buffer_id: int) -> None:
        """Make writers of slots wait: they take the same lock before they delete steps."""
        connection.execute(_LOCK, {"buffer_id": buffer_id})

    def after_delete(self, connection: Connection, buffer_id: int) -> None:
        """Empty the slots whose finished episode has no steps any more."""
        connection.execute(_EMPTY, {"buffer_id": buffer_id})
        note_change(connection, buffer_id)

    def after_clear(self, connection: Connection, buffer_id: int) -> None:
        """Reset the slots of every writer, and begin with the first."""
        connection.execute(delete(slots).where(slots.c.buffer_id == buffer_id))
        zero = update(buffer_layouts).where(buffer_layouts.c.buffer_id == buffer_id)
        connection.execute(zero.values(next_number=0, n_held=0))

    def check_resize(self, name: str) -> None:
        """Raise an error: the episodes of slots stay until the slots are used again."""
        raise BufferConfigError(
            f"buffer {name!r} is one of sqlbuffer.compat.memmap and holds what its slots show; "
            f"make it again with another max_episodes=..."
        )
