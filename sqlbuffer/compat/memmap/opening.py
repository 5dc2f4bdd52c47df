"""Opens, makes and overwrites the buffer of a folder or a URL."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sqlbuffer.buffer import ReplayBuffer as CoreBuffer
from sqlbuffer.buffer import Transaction
from sqlbuffer.compat.memmap.errors import MemmapError, MemmapTypeError
from sqlbuffer.compat.memmap.fields import Config, target
from sqlbuffer.compat.memmap.rows import MetaCoder
from sqlbuffer.compat.memmap.slots import (
    CONFIG,
    RING,
    WRITERS,
    BookChange,
    Ring,
    SlotBook,
    writers_in,
)
from sqlbuffer.config import BufferConfig
from sqlbuffer.errors import (
    BufferNotFoundError,
    DocumentChangedError,
    SchemaMissingError,
    StorageReadOnlyError,
    StorageUnreachableError,
)
from sqlbuffer.fields import Fields
from sqlbuffer.processes import is_here
from sqlbuffer.steps import uuid7
from sqlbuffer.storage.replacing import is_replaceable, open_store


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
) -> CoreBuffer:
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
    core = _found(url, name)
    if core is not None and (overwrite or (overwrite is None and path is not None)):
        _drop(core, url, folder)
        core = None
    if core is None:
        core = _of_store(open_store(url, name, BufferConfig(fields=fields), create=None))
    # Its maker may have died, or may not have had the right, before it had slots.
    if is_of_slots(core) and core.documents.get(CONFIG) is None and core.fields == fields.specs:
        _make_slots(core, config)
    check_same(folder, config, config_of(core))
    return core


def _make_slots(core: CoreBuffer, config: Config) -> None:
    """Make an empty buffer one with slots, unless another process was faster."""

    def work(tx: Transaction) -> None:
        prefix = uuid7()
        tx.documents.put(CONFIG, {**config.to_json(), "episodes": prefix}, version=0)
        book = SlotBook(core, config.max_episodes, config.circular, prefix, MetaCoder(config.meta))
        ring = Ring(deletions=tx.locked([])[1])
        tx.documents.put_many({RING: ring.to_json(), **book.blank_pages()})

    with suppress(DocumentChangedError):
        core.transaction(work)


def register(book: SlotBook, holder: str) -> None:
    """Register a writer of a buffer's slots.

    Dead writers are removed, and episodes whose steps others have deleted.
    """

    def work(tx: Transaction) -> None:
        change = BookChange(book, tx)
        change.empty_gone(change.ring.deletions)
        dead = [name for name, is_living in writers_in(tx.documents, book.timeout_s).items()
                if not is_living]  # fmt: skip
        if dead:
            tx.documents.delete_many([f"{WRITERS}{name}" for name in dead])
        change.changed[f"{WRITERS}{holder}"] = time.time()
        change.store()

    book.core.transaction(work)


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


def _found(url: str, name: str) -> CoreBuffer | None:
    try:
        return _of_store(open_store(url, name, create=False))
    except (BufferNotFoundError, SchemaMissingError):
        return None


def open_existing(folder: Any, name: str) -> tuple[CoreBuffer, Config]:
    """Return an existing buffer and its configuration.

    Raises:
        MemmapError: There is none.
    """
    url, path = target(folder)
    core = _found(url, name)
    if core is None:
        raise _missing(folder, path, name)
    return core, config_of(core)


def config_of(core: CoreBuffer) -> Config:
    """Return the configuration that a buffer was made with.

    Raises:
        MemmapError: It has no slots.
    """
    document = core.documents.get(CONFIG) if is_of_slots(core) else None
    if document is None:
        raise _of_another_part(core)
    return Config.from_json(document.value)


def is_of_slots(core: CoreBuffer) -> bool:
    """Return True for a buffer that was made to have slots."""
    return is_replaceable(core._store)


def _of_store(store: Any) -> CoreBuffer:
    core = CoreBuffer.__new__(CoreBuffer)
    core.__setstate__({"store": store, "types": (None, None), "session": None})
    return core


def _of_another_part(core: CoreBuffer) -> MemmapError:
    return MemmapError(
        f"buffer {core.name!r} at {core.url} was made by another part of this package and has no "
        f"slots of episodes; choose another name=..."
    )


def check_same(folder: Any, config: Config, stored: Config) -> None:
    """Raise where a buffer was made with another configuration."""
    if lines := config.differences(stored):
        raise MemmapError(
            f"buffer at `{folder}` was created with a different config:\n  "
            + "\n  ".join(lines)
            + "\nPass `overwrite = True` to recreate the buffer with the new config."
        )


def _drop(core: CoreBuffer, url: str, folder: Any) -> None:
    """Delete a buffer, unless another process writes to it."""
    # One whose maker died before it had slots is deleted as well.
    if not is_of_slots(core):
        raise _of_another_part(core)
    writers = writers_in(core.documents, core._store.info.config.episodes.open_timeout_s)
    others = sorted(name for name, is_living in writers.items() if is_living and not is_here(name))
    if others:
        host, pid, _ = others[0].rsplit(" ", 2)
        raise MemmapError(
            f"process {pid} on {host} writes to the buffer at `{folder}`: overwriting would delete "
            f"its episodes. Pass `overwrite = False` to write to it too, or end that process."
        )
    CoreBuffer.drop(url, core.name)


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
