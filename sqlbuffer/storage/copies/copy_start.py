"""Begin a copy: what its source holds now, and what the target is to hold."""

from collections.abc import Iterable

from sqlalchemy import Connection

from sqlbuffer.storage.copies.copied_tables import TableRows
from sqlbuffer.storage.copies.copy_target import CopyTarget
from sqlbuffer.storage.copies.source_steps import CopySource, SourceIdentity
from sqlbuffer.storage.database.engine import is_memory
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.transactions import snapshot


def begin_copy(source: CopySource, target: CopyTarget, identity: SourceIdentity) -> None:
    """Write what a copy has of the buffer as a whole, its episodes among it.

    All of it is of one state of the source, in one transaction of the target.
    """
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
