"""Opens the ring in the database that a config names."""

from pathlib import Path
from typing import Any

from sqlbuffer.compat.database_files import file_url, is_url
from sqlbuffer.compat.ding.errors import ReplayConfigError
from sqlbuffer.config import DEFAULT_CONFIG, DEFAULT_CONNECTION, BufferConfig, Connection
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.database.engine import resolve_url
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.extensions.ring_buffer import ItemRing, make_ring
from sqlbuffer.storage.extensions.tables import RING
from sqlbuffer.storage.store import BufferStore


def opened_ring(
    url: str,
    name: str,
    kind: str,
    size: int,
    config: BufferConfig = DEFAULT_CONFIG,
    options: Connection = DEFAULT_CONNECTION,
) -> ItemRing:
    """Return the ring at a URL; a missing one is made.

    Args:
        url: URL of the database.
        name: Name of the ring in the database.
        kind: Kind of buffer that uses it.
        size: Largest number of items.
        config: Other stored settings.
        options: Settings of this process.

    Raises:
        ReplayConfigError: It was made with other settings.
    """
    wanted = config.replace({"max_capacity": size})
    try:
        store = BufferStore.open(url, name, wanted, create=None, options=options, layout=RING)
    except BufferConfigError as error:
        said = str(error).replace("max_capacity=", "replay_buffer_size=")
        raise ReplayConfigError(
            f"{said.partition('; leave')[0]}; give the stored value, or another name: "
            f"{{'name': ...}}"
        ) from None
    made_as = make_ring(store, kind)
    if made_as is None:
        raise ReplayConfigError(
            f"buffer {name!r} at {store.shown_url} was made by another part of this package; "
            f"give another name: {{'name': ...}}"
        )
    if made_as != kind:
        raise ReplayConfigError(
            f"buffer {name!r} at {store.shown_url} was made as type {made_as!r}, not {kind!r}; "
            f"give that type, or another name: {{'name': ...}}"
        )
    return ItemRing(store, kind, size)


def url_of(url: Any) -> str | None:
    """Return the URL that a config means; None: the memory of this process.

    Raises:
        ReplayConfigError: It is neither a URL nor a path.
        URLError: A URL of another database.
    """
    if url is None:
        return None
    if not isinstance(url, (str, Path)) or not str(url):
        raise ReplayConfigError(f"url is a database URL or the path of a SQLite file, got {url!r}")
    if not is_url(url):
        return file_url(url)
    return None if is_memory(resolve_url(url)) else url
