"""Opens or makes the buffer of a config, a folder or a URL."""

from typing import Any

from sqlbuffer.compat.database_files import full_path
from sqlbuffer.compat.minestudio import argument_checks
from sqlbuffer.compat.minestudio.config import Config, location
from sqlbuffer.compat.minestudio.errors import FragmentError, FragmentTypeError
from sqlbuffer.errors import BufferNotFoundError, SchemaMissingError, StorageUnreachableError
from sqlbuffer.storage.extensions.fragments import pool
from sqlbuffer.storage.extensions.fragments.versions import clear
from sqlbuffer.storage.extensions.tables import FRAGMENTS
from sqlbuffer.storage.store import BufferStore

NAME = "replay_buffer"


def open_or_make(config: Config, url: Any, name: str) -> tuple[BufferStore, pool.Rules]:
    """Return the buffer of a config, made if missing, and its rules.

    Raises:
        FragmentError: It is stored with another config.
    """
    store = plain_store(_target(config, url), name)
    stored = pool.find_rules(store)
    if stored is None:
        pool.make(store, config.rules)
        stored = pool.find_rules(store) or config.rules
    if config.clear:
        clear(store, config.rules)
        stored = config.rules
    if lines := config.rules.differences(stored):
        raise FragmentError(
            f"Replay buffer already initialized at {store.shown_url} with another config:\n  "
            + "\n  ".join(lines)
            + "\nGive the same config, omit config to use the stored one, or set clear: true in "
            "it to delete the contents of the buffer."
        )
    if config.rules != stored:  # in what may differ
        store.write(lambda connection: pool.change_rules(connection, store, config.rules))
    return store, config.rules


def open_existing(url: Any, name: str) -> tuple[BufferStore, pool.Rules]:
    """Return an existing buffer and its rules.

    Raises:
        FragmentError: There is none.
    """
    check_name(name)
    try:
        store = BufferStore.open(url, name, create=False)
    except (BufferNotFoundError, SchemaMissingError, StorageUnreachableError) as error:
        if not isinstance(error, StorageUnreachableError) or "cannot open" in str(error):
            # Give advice about the config here, except for tables that an administrator makes.
            said, _, advice = str(error).partition(";")
            if isinstance(error, SchemaMissingError):
                said += f";{advice}"
            raise FragmentError(
                f"Replay buffer not initialized: {said}. Make it with config=..., or say where "
                f"it is with url=... or SQLBUFFER_URL"
            ) from None
        raise
    rules = pool.find_rules(store)
    if rules is None:
        raise FragmentError(
            f"Replay buffer not initialized: buffer {name!r} at {store.shown_url} has no chunks; "
            f"make it with config=..., or choose another name=..."
        )
    return store, rules


def plain_store(url: Any, name: str) -> BufferStore:
    """Return a buffer, made if missing; it may have no chunks yet."""
    check_name(name)
    store = BufferStore.open(url, name, create=None, layout=FRAGMENTS)
    if store.info.layout != FRAGMENTS or store.info.config.retention.max_capacity:
        raise FragmentError(
            f"buffer {name!r} at {store.shown_url} was made by another part of this package, or "
            f"resized by it; choose another name=..., or undo that with resize(None)"
        )
    return store


def check_name(name: Any) -> None:
    """Raise where a name is empty."""
    if not argument_checks.key(name, "name"):
        raise FragmentTypeError(f"name is a text, got {name!r}")


def database_config(store: BufferStore, config: Config | None) -> dict[str, Any]:
    """Return what `FragmentStore` takes to open a buffer: a folder if it was given as one."""
    name = {} if store.info.name == NAME else {"name": store.info.name}
    where = None if config is None else config.database_config
    if where is None or where.path is None:
        return {"url": store.url.render_as_string(hide_password=False), **name}
    shards = {} if where.num_shards is None else {"num_shards": where.num_shards}
    return {"path": str(full_path(where.path)), **shards, **name}


def _target(config: Config, url: Any) -> Any:
    where = config.database_config
    if url is not None and where.url is not None:
        raise FragmentError("give url=... or database_config.url, not both")
    if url is not None:
        return url
    return location(where.path, where.url)
