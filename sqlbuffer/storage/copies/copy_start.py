"""Begin a copy: read the state of its source, and write it to the target."""

from collections.abc import Iterable
from typing import Any

from sqlalchemy import URL, select

from sqlbuffer.errors import CopyError, StorageReadOnlyError
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.copies.parts import SourceIdentity, TableRows
from sqlbuffer.storage.copies.source import CopySource
from sqlbuffer.storage.copies.tables import copies
from sqlbuffer.storage.copies.target import CopyProgress, CopyTarget
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.database.transactions import reading, snapshot
from sqlbuffer.storage.database.urls import is_memory
from sqlbuffer.storage.holds import Hold


def take_hold(source: CopySource) -> None:
    """Hold the steps of a source, if it can be written.

    Writers under way may not see the hold yet.

    Raises:
        CopyError: The source is itself an unfinished copy or import.
    """
    _check_finished(source.store)
    source.hold = Hold(source.store)
    try:
        source.hold.take()
    except StorageReadOnlyError:
        source.hold = None


def _check_finished(buffer: OpenBuffer) -> None:
    """Raise an error if a buffer is an unfinished copy: its steps would look complete."""
    own = select(copies).where(copies.c.buffer_id == buffer.info.id, copies.c.finished_at.is_(None))

    def look() -> Any:
        with translated(buffer.url), reading(buffer.engine) as connection:
            return connection.execute(own).one_or_none()

    found = buffer.with_retries(look)
    if found is not None:
        raise CopyError(
            f"buffer {buffer.info.name!r} in {buffer.shown_url} is an unfinished copy or import of "
            f"{found.source_buffer!r} in {found.source_database}: it has {found.n_steps:,} steps, "
            f"and is at seq {found.copied_seq:,} of {found.high_seq:,}; copy or import again to "
            f"complete it, or drop it"
        )


def resume_copy(source: CopySource, target: CopyTarget, progress: CopyProgress) -> None:
    """Continue with the hold of an unfinished copy, or with a new one if that has ended.

    Raises:
        CopyError: Steps have left in between, or the source is a different buffer now.
    """
    copied = progress.range
    newest = target.newest(copied.cursor)
    if newest is not None:
        source.check_same(*newest)
    if progress.hold_id is not None:
        source.hold = Hold(source.store, progress.hold_id)
        if source.hold.extend(max(copied.cursor, copied.low)):
            return
    take_hold(source)
    source.settled()
    source.check_left(copied, progress.n_left)
    target.buffer.write(target.note_hold)


def begin_copy(source: CopySource, target: CopyTarget, identity: SourceIdentity) -> None:
    """Write the data of the buffer as a whole, and its episodes.

    All of it is of one state of the source, in one transaction of the target.
    """
    take_hold(source)
    settled = source.settled()
    buffer, once = target.buffer, target.buffer.once()
    has_begun = False

    def begin_at_once() -> None:
        nonlocal has_begun
        if has_begun:
            return  # the source was lost at the end of its transaction
        with translated(source.buffer.url), snapshot(source.buffer.engine) as there:
            state = source.state(there, settled)
            pages = _translated(source.episodes(there, state.range), source.buffer.url)
            if is_memory(source.buffer.url):  # two buffers may share one connection
                pages = list(pages)
                there.rollback()
            once.run(
                buffer.engine,
                buffer.options.durability,
                lambda here: target.begin(here, identity, state, pages),
            )
            has_begun = True

    def forget_connections() -> None:
        source.buffer.forget_connections()
        buffer.forget_connections()

    # Both transactions again, whichever database was lost.
    retried(begin_at_once, buffer.options.retry_s, forget_connections)


def _translated(pages: Iterable[TableRows], url: URL) -> Iterable[TableRows]:
    with translated(url):
        yield from pages
