"""The state of a buffer that a follower reads, and the proof that it is the one it knows."""

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

# Number of the newest chunks that are compared.
MOST_CHUNKS = 1_000


class AnchorQueries(NamedTuple):
    """Queries of a database.

    Attributes:
        chunk_ids: Returns (first_seq, id) of chunks that begin with one of the numbers.
        newest_entry: Returns (id, time) of the newest entry of a buffer's change log, or None.
        entry_time: Returns the time of an entry, or None.
        session: Returns a value that is lost when the database loses its newest transactions.
    """

    chunk_ids: Callable[[Connection, int, Sequence[int]], list[tuple[int, str]]]
    newest_entry: Callable[[Connection, int], tuple[int, str] | None]
    entry_time: Callable[[Connection, int], str | None]
    session: Callable[[Connection], Hashable]


class Anchor:
    """The chunks and the entry of the change log that were read last.

    Some databases may lack rows that were read before, and give the same numbers and transaction
    ids again: a server that crashed with relaxed durability, one that took over for another, and a
    copied file. Recent rows are compared if that can have happened, and the newest chunk in each
    look.

    Args:
        buffer_id: The buffer.
        queries: Queries of its database.
    """

    def __init__(self, buffer_id: int, queries: AnchorQueries) -> None:
        self._buffer_id, self._queries = buffer_id, queries
        self._chunks: deque[tuple[int, int, str]] = deque(maxlen=MOST_CHUNKS)
        self._entry: tuple[int, str] | None = None
        # Deleted steps: a chunk disappears when all its steps are deleted.
        self._deleted: set[int] = set()
        self._sessions: WeakSet[Any] = WeakSet()

    def is_certain(self, connection: Connection) -> bool:
        """Return True if nothing can have been lost since an earlier look: its session is open."""
        return self._queries.session(connection) in self._sessions

    def holds(self, connection: Connection, low: int) -> bool:
        """Return True if a state still has the rows that were read.

        Args:
            connection: Connection that sees the state.
            low: Steps up to this number have left.
        """
        if not self.is_certain(connection):
            return self._has_all(connection, low)
        for chunk in reversed(self._chunks):
            ids = self._queries.chunk_ids(connection, self._buffer_id, [chunk[0]])
            if ids:
                return ids == [(chunk[0], chunk[2])]
            if not self._has_left(chunk, low):
                return False
        # All rows that were read have left.
        return not self._chunks

    def _has_all(self, connection: Connection, low: int) -> bool:
        firsts = [first for first, _, _ in self._chunks]
        ids = dict(self._queries.chunk_ids(connection, self._buffer_id, firsts))
        for chunk in self._chunks:
            id_ = ids.get(chunk[0])
            if id_ != chunk[2] and (id_ is not None or not self._has_left(chunk, low)):
                return False
        if self._chunks and not ids:
            return False
        if self._entry is None:
            return True
        # A trimmed entry proves nothing: the buffer is read again.
        return self._queries.entry_time(connection, self._entry[0]) == self._entry[1]

    def _has_left(self, chunk: tuple[int, int, str], low: int) -> bool:
        first, n_steps, _ = chunk
        return all(seq <= low or seq in self._deleted for seq in range(first, first + n_steps))

    def note_deleted(self, seqs: Sequence[int]) -> None:
        """Note that steps were deleted, before `holds`."""
        self._deleted.update(seqs)

    def newest_entry(self, connection: Connection) -> tuple[int, str] | None:
        """Return the entry to compare later: the newest one in a state."""
        return self._queries.newest_entry(connection, self._buffer_id)

    def session(self, connection: Connection) -> Hashable:
        """Return the session of a look; see `AnchorQueries`."""
        return self._queries.session(connection)

    def note(
        self,
        chunks: Sequence[tuple[int, int, str]],
        entry: tuple[int, str] | None,
        session: Hashable,
        *,
        is_start: bool,
    ) -> None:
        """Store what a look has read, once all of it was read.

        Args:
            chunks: (first_seq, number of steps, id) of each new chunk.
            entry: The newest entry of the change log; None: there is none, or none is new.
            session: The session of the look.
            is_start: The look has read everything.
        """
        if is_start:
            self._chunks.clear()
            self._deleted.clear()
        self._chunks.extend(chunks)
        if is_start or entry is not None:
            self._entry = entry
        if self._deleted and self._chunks:
            oldest = min(first for first, _, _ in self._chunks)
            self._deleted = {seq for seq in self._deleted if seq >= oldest}
        self._sessions.add(session)

    def as_json(self) -> Any:
        """Return the argument of `of_json`."""
        return {
            "chunks": list(self._chunks),
            "entry": self._entry,
            "deleted": sorted(self._deleted),
        }

    def of_json(self, told: Any) -> None:
        """Load the anchor of another process."""
        self._chunks.extend((first, n_steps, id_) for first, n_steps, id_ in told["chunks"])
        self._entry = None if told["entry"] is None else (told["entry"][0], told["entry"][1])
        self._deleted = set(told["deleted"])


Reals = NDArray[np.float64]


class BufferState(NamedTuple):
    """A committed state of a buffer.

    Attributes:
        low: Steps up to this number have left.
        high: The newest step.
        clock: The buffer's clock; None before it was set.
        session: Number of the current session; None before any was started.
        has_labels: Steps may have annotated values.
        has_quarantine: Steps may be in quarantine.
        has_deleted: Steps of chunks may have been deleted.
        has_replaced: Values of steps may have been replaced in place.
        created_at: Time when the buffer was made: another buffer of its name has another time.
        position: Position in the change log; see `changes.log_position`.
        revision: The revision of the database's schema.
        n_added: Number of typed fields that have been added to the buffer.
    """

    low: int
    high: int
    clock: int | None
    session: int | None
    has_labels: bool
    has_quarantine: bool
    has_deleted: bool
    has_replaced: bool
    created_at: str
    position: str
    revision: str
    n_added: int


class ChunkRow(NamedTuple):
    """A chunk as its tables hold it; see `chunks.tables`.

    Attributes:
        terminated_nulls: Steps whose `terminated` is null: None for no step; empty for all steps;
            otherwise JSON with the flags.
        truncated_nulls: The same for `truncated`.
        adv_t: Their advantages, a list or its JSON; None for none.
        v_t: Their values in the same form.
        priorities: Priorities that the steps began with; None for 1.0.
    """

    first_seq: int
    n_steps: int
    id: str
    task_id: str
    agent_id: str
    step: int
    steps: Any
    episode_id: int | None
    t: int | None
    session_id: int | None
    model_version: int | None
    rewards: bytes | None
    ends: bytes | None
    terminated_nulls: str | None
    truncated_nulls: str | None
    block_steps: int
    offsets: Any
    records: bytes
    layout: int
    adv_t: Any
    v_t: Any
    priorities: Reals | None


class ChunkSpan(NamedTuple):
    """The range of the steps of a chunk."""

    first_seq: int
    n_steps: int
    episode_id: int | None
    id: str


class EpisodeState(NamedTuple):
    """An episode as the table `episodes` holds it."""

    id: int
    key: str
    status: str
    length: int | None
    final_arrays: bytes | None
    return_: float | None
    reward: float | None
    group_id: str | None
    parent_id: str | None
    meta: str | None
