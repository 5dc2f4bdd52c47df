"""Opens, makes and overwrites the buffer of a folder or a URL."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlbuffer.compat.memmap.config.buffer_config import Config, target
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.config import BufferConfig
from sqlbuffer.errors import (
    BufferNotFoundError,
    SchemaMissingError,
    StorageReadOnlyError,
    StorageUnreachableError,
)
from sqlbuffer.fields import Fields
from sqlbuffer.storage.extensions.layout_rows import make_layout, stored_config
from sqlbuffer.storage.extensions.slots.slot_writers import other_writers
from sqlbuffer.storage.extensions.tables import SLOTS
from sqlbuffer.storage.retention.deletion import drop_buffer
from sqlbuffer.storage.store import BufferStore


def check_options(
    overwrite: Any, read_only: Any, flush_every: Any, name: Any, cache_bytes: Any
) -> None:
    """Raise where an option of the constructor is invalid."""
    if overwrite is not None and not isinstance(overwrite, bool):
        raise MemmapTypeError(f"overwrite is True or False, got {overwrite!r}")
    if not isinstance(read_only, bool):
        raise MemmapTypeError(f"read_only is True or False, got {read_only!r}")
    if not isinstance(flush_every, int) or isinstance(flush_every, bool):
        raise MemmapTypeError(f"flush_every_store_step is a number, got {flush_every!r}")
    if flush_every < 0:
        raise MemmapError(f"flush_every_store_step must be >= 0, got {flush_every}")
    if not isinstance(name, str) or not name:
        raise MemmapTypeError(f"name is a text, got {name!r}")
    if not isinstance(cache_bytes, int) or isinstance(cache_bytes, bool) or cache_bytes < 0:
        raise MemmapTypeError(f"cache_bytes is a number of bytes, 0 for none, got {cache_bytes!r}")


def open_or_make(
    folder: Any, name: str, config: Config, fields: Fields, overwrite: bool | None
) -> BufferStore:
    """Return the buffer; make it if it is missing or if it should be overwritten.

    Args:
        folder: The folder or the URL.
        name: Name of the buffer in the database.
        config: Configuration of a new buffer.
        fields: Typed fields in the database.
        overwrite: Whether to replace an existing buffer; None: only in a folder.

    Raises:
        MemmapError: It is stored with another configuration, or another process writes to the
            buffer that would be overwritten.
        StorageUnreachableError: The folder cannot be made.
    """
    url, path = target(folder)
    if path is not None:
        _make_folder(path)
    store = _found(url, name)
    if store is not None and (overwrite or (overwrite is None and path is not None)):
        _drop(store, url, folder)
        store = None
    if store is None:
        wanted = BufferConfig(fields=fields)
        store = BufferStore.open(url, name, wanted, create=None, layout=SLOTS)
    # Its maker may have died, or may not have had the right, before it had slots.
    is_begun = store.info.layout == SLOTS and stored_config(store, SLOTS) is None
    if is_begun and store.info.config.fields.specs == fields.specs:
        given = config.to_json()
        store.write(lambda connection: make_layout(connection, store, given))
    check_same(folder, config, config_of(store))
    return store


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageUnreachableError(
            f"cannot make the folder {path}: {error.strerror}; name a folder that may be written"
        ) from error


@contextmanager
def roles_in_errors(folder: Any) -> Iterator[None]:
    """Add to the error of a role that may not write: which role may, and how to read."""
    try:
        yield
    except StorageReadOnlyError as error:
        if target(folder)[0].startswith("sqlite"):
            raise
        raise StorageReadOnlyError(
            f"{error}. Storing here takes the role sqlbuffer_learner or the owner's; to read, open "
            f"it with overwrite=False, read_only=True"
        ) from None


def _found(url: str, name: str) -> BufferStore | None:
    try:
        return BufferStore.open(url, name, create=False)
    except (BufferNotFoundError, SchemaMissingError):
        return None


def open_existing(folder: Any, name: str) -> tuple[BufferStore, Config]:
    """Return an existing buffer and its configuration.

    Raises:
        MemmapError: There is none.
    """
    url, path = target(folder)
    store = _found(url, name)
    if store is None:
        raise _missing(folder, path, name)
    return store, config_of(store)


def config_of(store: BufferStore) -> Config:
    """Return the configuration that a buffer was made with."""
    found = stored_config(store, SLOTS)
    if found is None:
        raise _of_another_part(store)
    return Config.from_json(found)


def _of_another_part(store: BufferStore) -> MemmapError:
    return MemmapError(
        f"buffer {store.info.name!r} at {store.shown_url} was made by another part of this "
        f"package and has no slots of episodes; choose another name=..."
    )


def check_same(folder: Any, given: Config, stored: Config) -> None:
    """Raise where a buffer was made with another configuration."""
    if lines := given.differences(stored):
        raise MemmapError(
            f"buffer at `{folder}` was created with a different config:\n  "
            + "\n  ".join(lines)
            + "\nPass `overwrite = True` to recreate the buffer with the new config."
        )


def _drop(store: BufferStore, url: str, folder: Any) -> None:
    """Delete a buffer, unless another process writes to it."""
    # One whose maker died before it had slots is deleted as well.
    if store.info.layout != SLOTS:
        raise _of_another_part(store)
    others = other_writers(store)
    if others:
        host, pid, _ = others[0].rsplit(" ", 2)
        raise MemmapError(
            f"process {pid} on {host} writes to the buffer at `{folder}`: overwriting would delete "
            f"its episodes. Pass `overwrite = False` to write to it too, or end that process."
        )
    drop_buffer(url, store.info.name, store.options.retry_s)


def _missing(folder: Any, path: Path | None, name: str) -> MemmapError:
    if path is None:
        return MemmapError(f"there is no buffer {name!r} at this URL")
    hint = ""
    if (path / "metadata.pkl").exists():
        hint = (
            "; it has files of memmap-replay-buffer itself, which are copied by reading each "
            "episode there and giving it to `store_episode` here"
        )
    return MemmapError(
        f"there is no replay buffer in {folder} (no replay.sqlite, which this package has in place "
        f"of metadata.pkl){hint}"
    )
