"""Configurations of buffers with a layout."""

from collections.abc import Mapping
from typing import Any

import orjson
from sqlalchemy import Connection, Text, cast, select, text

from sqlbuffer.storage.buffers.catalog import lock_as_writer
from sqlbuffer.storage.extensions.tables import buffer_layouts
from sqlbuffer.storage.store import BufferStore

_MAKE = text(
    "INSERT INTO buffer_layouts (buffer_id, config, state) VALUES (:buffer_id, :config, :state) "
    "ON CONFLICT (buffer_id) DO NOTHING"
)


def make_layout(
    connection: Connection,
    store: BufferStore,
    config: Mapping[str, Any],
    state: Mapping[str, Any] | None = None,
) -> None:
    """Store the configuration of a new buffer, unless another process was faster."""
    # With a writer's rights: a process that stores to a ring may not lock the row of the buffer
    # otherwise.
    lock_as_writer(connection, store.info.id)
    texts = {
        name: None if value is None else orjson.dumps(value).decode()
        for name, value in (("config", config), ("state", state))
    }
    connection.execute(_MAKE, {"buffer_id": store.info.id, **texts})


def stored_config(store: BufferStore, layout: str) -> dict[str, Any] | None:
    """Return the stored configuration of a buffer.

    Returns:
        None if it has another layout, or if its maker died before storing the configuration.
    """
    if store.info.layout != layout:
        return None
    own = buffer_layouts.c.buffer_id == store.info.id
    stored = select(cast(buffer_layouts.c.config, Text)).where(own)
    found = store.read(lambda connection: connection.execute(stored).scalar_one_or_none())
    config: dict[str, Any] | None = None if found is None else orjson.loads(found)
    return config
