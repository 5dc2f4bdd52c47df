"""Begin a copy: what its source holds now, and what the target is to hold."""

from collections.abc import Iterable

from sqlalchemy import Connection

from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.storage.copies.copied_parts import SourceIdentity
from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.copy_target import CopyProgress, CopyTarget
from sqlbuffer.storage.copies.source_steps import CopySource
from sqlbuffer.storage.database.engine import is_memory
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot
from sqlbuffer.storage.holds.hold import Hold


def take_hold(source: CopySource) -> None:
    """Hold the steps of a source, where it may be written. Writers under way may not see it yet."""
    source.hold = Hold(source.buffer)
    try:
        source.hold.take()
    except StorageReadOnlyError:
        source.hold = None


def resume_copy(source: CopySource, target: CopyTarget, progress: CopyProgress) -> None:
    """Go on with the hold of an unfinished copy, or with another one if that has ended.

    Raises:
        CopyError: Steps have left in between, or the source is another one now.
    """
    copied = progress.range
    newest = target.newest(copied.cursor)
    if newest is not None:
        source.check_same(*newest)
    if progress.hold_id is not None:
        source.hold = Hold(source.buffer, progress.hold_id)
        if source.hold.extend(max(copied.cursor, copied.low)):
            return
    take_hold(source)
    source.settled()
    source.check_left(copied, progress.n_left)
    target.buffer.write(target.note_hold)


def begin_copy(source: CopySource, target: CopyTarget, identity: SourceIdentity) -> None:
    """Write what a copy has of the buffer as a whole, its episodes among it.

    All of it is of one state of the source, in one transaction of the target.
    """
    take_hold(source)
    settled = source.settled()
    with translated(source.buffer.url), snapshot(source.buffer.engine) as there:
        state = source.state(there, settled)
        # Two buffers in memory may have one connection.
        all_at_once = is_memory(source.buffer.url)
        held = list(source.episodes(there, state.range)) if all_at_once else None
        if held is not None:
            there.rollback()

        def begin(here: Connection) -> None:
            pages: Iterable[TableRows] = (
                held if held is not None else source.episodes(there, state.range)
            )
            target.begin(here, identity, state, pages)

        target.buffer.write(begin)
