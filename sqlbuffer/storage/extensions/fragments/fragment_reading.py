"""Read fragments by id, and the state of a buffer's groups."""

from typing import Any

from sqlalchemy import BigInteger, Text, bindparam, cast, func, select

from sqlbuffer.storage.buffers.open_buffer import retry_on_disconnect
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import fetch, snapshot
from sqlbuffer.storage.dialects.connections import at_once
from sqlbuffer.storage.extensions.fragments.deleting import remove
from sqlbuffer.storage.extensions.fragments.fetching import Prepared, prepared
from sqlbuffer.storage.extensions.fragments.pool import ID, Pool, read
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.store import BufferStore

_IS_ID = (experiences.c.buffer_id == ID) & (experiences.c.id == bindparam("id", type_=Text()))
_SEQ = select(experiences.c.seq).where(_IS_ID)
_SIZE = select(
    func.coalesce(
        func.sum(
            func.coalesce(experiences.c.payload_bytes, func.length(experiences.c.arrays), 0)
            + func.coalesce(func.length(cast(experiences.c.state, Text)), 0)
            + func.coalesce(func.length(cast(experiences.c.actions, Text)), 0)
            + func.coalesce(func.length(cast(experiences.c.extra, Text)), 0)
        ),
        0,
    ).cast(BigInteger)
).where(experiences.c.buffer_id == ID)


class FragmentReader:
    """Reads the fragments of a buffer.

    Args:
        store: The buffer.
    """

    def __init__(self, store: BufferStore) -> None:
        self.buffer = store

    @retry_on_disconnect
    def row(self, id_: str, payloads: Payloads) -> Row | None:
        """Return the row of a fragment; None if it does not exist."""
        store = self.buffer
        with translated(store.url), snapshot(store.engine) as connection:
            select_row = select(*payloads.columns).where(_IS_ID)
            given: dict[str, Any] = {"of": store.info.id, "id": id_}
            found = fetch(connection, select_row, given)
            rows = payloads.complete(connection, found)
            return rows[0] if rows else None

    @retry_on_disconnect
    def prepared(self, consumer: str) -> list[Prepared]:
        """Return the list that was prepared last for a consumer."""
        store = self.buffer
        with translated(store.url), at_once(store.engine) as connection:
            found = prepared(connection, store.info.id, consumer).fragments
            if not found:
                read(connection, store)  # raises if the buffer was dropped
            return found

    @retry_on_disconnect
    def pool(self) -> Pool:
        """Return the state of the groups."""
        store = self.buffer
        with translated(store.url), at_once(store.engine) as connection:
            return read(connection, store)

    def size_bytes(self) -> int:
        """Return the size of all payloads in bytes."""
        of = {"of": self.buffer.info.id}
        return int(self.buffer.read(lambda c: c.execute(_SIZE, of).scalar_one()))


def delete(store: BufferStore, id_: str) -> bool:
    """Delete a fragment; return True if it existed."""

    def work(connection: Any) -> bool:
        seq = connection.execute(_SEQ, {"of": store.info.id, "id": id_}).scalar_one_or_none()
        if seq is not None:
            remove(connection, store, [seq])
        return seq is not None

    return store.write(work)
