"""The window of a buffer, and its settled rows."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    Boolean,
    Engine,
    Integer,
    Select,
    Text,
    bindparam,
    column,
    func,
    null,
    select,
    table,
)
from sqlalchemy.sql.elements import ColumnElement

from sqlbuffer.storage.buffers import postgresql, sqlite
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.database.transactions import is_joined
from sqlbuffer.storage.dialects.by_database import by_database
from sqlbuffer.storage.watermarks import Watermark

windows = table(
    "v_windows",
    column("buffer_id"),
    column("buffer", Text()),
    column("max_capacity"),
    column("max_episodes"),
    column("evict_unit", Text()),
    column("deletions"),
    column("live_rows"),
    column("clock"),
    column("session_id"),
    column("has_labels", Boolean()),
    column("has_quarantine"),
    column("has_deleted"),
    column("low_seq"),
    column("high_seq"),
)

_chunks = table("chunks", column("buffer_id"), column("first_seq"), column("episode_id"))


@dataclass(frozen=True)
class BufferWindow:
    """The rows of a buffer: those with low < seq <= high."""

    max_capacity: int | None
    max_episodes: int | None
    evict_by: str
    deletions: int
    live_rows: int
    low: int
    high: int
    has_labels: bool


@dataclass(frozen=True)
class SampledWindow:
    """The rows that may be sampled, low < seq <= high, and the state that limits depend on.

    Attributes:
        low: Lower end.
        high: The newest row.
        clock: The buffer's clock.
        deletions: Counter that grows with every delete inside the window.
        live_rows: Rows held, if whole tasks or episodes are evicted.
        session: Number of the current session.
        has_labels: Rows may have been annotated.
        has_quarantine: Rows may be in quarantine.
        has_deleted: Steps of chunks may have been deleted.
        newest_single: First number of the newest chunk without an episode; None if there is none,
            or that was not asked for.
    """

    low: int
    high: int
    clock: int | None
    deletions: int
    live_rows: int
    session: int | None
    has_labels: bool
    has_quarantine: bool
    has_deleted: bool
    newest_single: int | None

    @property
    def span(self) -> int:
        """Largest possible number of rows."""
        return max(self.high - self.low, 0)


# With the columns of `BufferWindow`. Made once: to make it takes longer than to run it.
SELECT_WINDOW = select(
    *(
        windows.c[name]
        for name in (
            "max_capacity", "max_episodes", "evict_unit", "deletions", "live_rows", "low_seq",
            "high_seq", "has_labels",
        )
    )
).where(windows.c.buffer_id == bindparam("of_buffer", type_=Integer()))  # fmt: skip


def select_sampled_window(
    buffer_id: int, evict_by: str, steps: Any, *, finds_single: bool = False
) -> Select[Any]:
    """Select the window of a buffer with the columns of `SampledWindow`.

    If whole tasks or episodes are evicted, the window begins at the oldest row, without a gap.

    Args:
        buffer_id: The buffer.
        evict_by: Unit of eviction.
        steps: The table of its steps.
        finds_single: Read `newest_single` of steps in chunks.
    """
    single: ColumnElement[Any] = null()
    if finds_single and steps is not experiences:
        of_buffer = _chunks.c.buffer_id == buffer_id, _chunks.c.episode_id.is_(None)
        single = select(func.max(_chunks.c.first_seq)).where(*of_buffer).scalar_subquery()
    low: ColumnElement[int] = windows.c.low_seq
    if evict_by != "row":
        # Only the rows show where the oldest row is.
        own = steps.c
        oldest = select(func.min(own.seq) - 1).where(own.buffer_id == buffer_id, own.seq > low)
        low = func.coalesce(oldest.scalar_subquery(), low)
    others = (
        windows.c[name]
        for name in (
            "high_seq", "clock", "deletions", "live_rows", "session_id", "has_labels",
            "has_quarantine", "has_deleted",
        )
    )  # fmt: skip
    own = windows.c.buffer_id == buffer_id
    return select(low, *others, single.label("newest_single")).where(own)


settled_seq = by_database(sqlite=sqlite.settled_seq, postgresql=postgresql.settled_seq)
_clean = by_database(sqlite=sqlite.clean_after_write, postgresql=postgresql.clean_after_write)


def clean_after_write(
    engine: Engine, n_rows: int, n_bytes: int = 0, inserted_into: Watermark | None = None
) -> None:
    """Clean after a write, unless it is part of a transaction that goes on.

    Args:
        engine: The engine.
        n_rows: Number of rows that were written.
        n_bytes: Their size in bytes.
        inserted_into: Watermark of the buffer, if the rows are new.
    """
    if not is_joined():
        _clean(engine, n_rows, n_bytes, inserted_into)
