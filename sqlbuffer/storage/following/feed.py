"""Follow a buffer of chunks: read its state, and then its changes, look by look.

Whole episodes are kept: a matching step is drawn with its neighbours.

Changes of a SQLite file show without a statement. `PRAGMA data_version` reports them too, but on a
connection that is kept open, and a fork would wait for it.
"""

import os
import time
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Integer, bindparam, literal, select

from sqlbuffer.encoding.packing import MAX_CHUNK_STEPS
from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.query.tree import EVERYTHING, Node, facts_of_episodes
from sqlbuffer.storage.buffers.hanging import (
    HangingWriter,
    postgresql_hanging_writers,
    sqlite_hanging_writers,
)
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer
from sqlbuffer.storage.changes import ChangeEntry, Follower, changes_since
from sqlbuffer.storage.database.errors import ONCE_MORE_S, retried, translated
from sqlbuffer.storage.database.transactions import answer, reading, snapshot
from sqlbuffer.storage.database.urls import is_memory, sqlite_path
from sqlbuffer.storage.dialects import by_database
from sqlbuffer.storage.episodes import episodes
from sqlbuffer.storage.following import postgresql, sqlite
from sqlbuffer.storage.following.state import (
    MOST_CHUNKS,
    Anchor,
    BufferState,
    ChunkRow,
    ChunkSpan,
    EpisodeState,
)
from sqlbuffer.storage.labels.reading import resolve_labels
from sqlbuffer.storage.marks import Marks, Wanted, read_marks, runs_of
from sqlbuffer.storage.migrations.migrate import check
from sqlbuffer.storage.priorities.draws import UPDATED, arrays
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.layouts import StepLayout, layout_of
from sqlbuffer.storage.rows.statements import BUFFER_ID, LOW
from sqlbuffer.storage.schema.expressions import SeqList, is_number_of

# Some file systems store the time of a change in steps of two seconds.
COARSEST_NS = 2_500_000_000


class FileMark(NamedTuple):
    """Data of the file system about a database file and its log.

    Attributes:
        parts: Number, size and time of the last change of each.
        is_old: The last change is old enough that a later one must have another time.
    """

    parts: tuple[tuple[int, int, int], ...]
    is_old: bool


def file_mark(path: Path) -> FileMark | None:
    """Return the mark of a database file; None if it cannot be read."""
    now, parts = time.time_ns(), []
    for file in (path, path.with_name(path.name + "-wal")):
        try:
            status = os.stat(file)
        except FileNotFoundError:
            continue
        except OSError:
            return None
        parts.append((status.st_ino, status.st_size, status.st_mtime_ns))
    newest = max((time_ns for _, _, time_ns in parts), default=now)
    return FileMark(tuple(parts), newest + COARSEST_NS < now)


def is_unchanged(before: FileMark | None, now: FileMark | None) -> bool:
    """Return True if nothing can have been committed since an earlier mark was taken."""
    return before is not None and now is not None and before.is_old and before.parts == now.parts


_count_beyond = by_database(sqlite=sqlite.count_beyond, postgresql=postgresql.count_beyond)
_hanging_writers = by_database(
    sqlite=sqlite_hanging_writers,
    postgresql=postgresql_hanging_writers,
)


class Backlog(NamedTuple):
    """Steps that a follower has not read yet.

    Attributes:
        n_steps: Number of steps of the buffer that are not in the follower's state.
        writer: The writer whose transaction has been open longest, if it hangs.
    """

    n_steps: int
    writer: HangingWriter | None


def backlog_of(buffer: OpenBuffer, state: BufferState) -> Backlog:
    """Return the backlog of a follower. An outage is not waited for.

    Raises:
        StorageError: The database cannot be read.
    """
    buffer_id = buffer.info.id

    def look() -> Backlog:
        with translated(buffer.url), reading(buffer.engine) as connection:
            n_steps = _count_beyond(connection, buffer_id, state)
            writers = _hanging_writers(connection, buffer.url, buffer_id)
        return Backlog(n_steps, writers[0][1] if writers else None)

    return retried(look, ONCE_MORE_S, buffer.forget_connections)


# Maximum number of steps that one statement looks up.
_AT_ONCE = 10_000
# If the range of the steps has at most this many times their number, the whole range is read.
MOST_BESIDE = 8


class KeptSteps(Protocol):
    """Steps that a follower has."""

    def has_episode(self, id_: int) -> bool:
        """Return True if it has steps of an episode, by its key."""

    def missing(self, seqs: Sequence[int]) -> list[int]:
        """Return those of some steps that it does not have."""


@dataclass(frozen=True)
class Selection:
    """Steps that a follower takes in one look.

    Attributes:
        firsts: First steps of the chunks to read, in order.
        n_steps: Number of steps in these chunks.
        matching: Steps that match.
        new: All new chunks, also those that are not read.
        unmatched: Steps that were changed and do not match.
        older: Steps of older chunks to read, whose later changes must be read too.
        open_episodes: Episodes that may match when they end, if the condition names their facts.
    """

    firsts: Sequence[int]
    n_steps: int
    matching: Sequence[int]
    new: Sequence[ChunkSpan]
    unmatched: Sequence[int] = ()
    older: Sequence[int] = ()
    open_episodes: frozenset[int] = frozenset()


class SelectedSteps:
    """Finds the steps that meet a condition, and the chunks to read for them.

    Args:
        buffer_id: The buffer.
        node: The condition.
        steps: How its steps are stored.
        database: Module of the database in this folder.
    """

    def __init__(self, buffer_id: int, node: Node, steps: StepLayout, database: Any) -> None:
        self._buffer_id, self._node, self._database = buffer_id, node, database
        self._steps, self._table = steps, steps.of(buffer_id)
        # The group and the parent of an episode never change.
        constant = {"group_id", "parent_id"}
        self._has_facts = any(fact.column not in constant for fact in facts_of_episodes(node))

    def at_start(self, connection: Connection, now: BufferState) -> Selection:
        """Return the steps to take of a whole buffer."""
        node = resolve_labels(self._node, bool(now.has_labels))
        where = statements.in_window(self._buffer_id, now.low, node, self._table)
        seqs = connection.execute(select(self._table.c.seq).where(where)).scalars().all()
        matching = np.sort(np.array(seqs, np.int64))
        new = _left(self._database.all_spans(connection, self._buffer_id, now.low), now)
        hits = _with_any(new, matching)
        hit_episodes = _episodes(hits)
        kept = {span.first_seq for span in hits}
        spans = [s for s in new if s.first_seq in kept or s.episode_id in hit_episodes]
        return Selection(
            [span.first_seq for span in spans],
            _n_steps(spans),
            matching.tolist(),
            new,
            open_episodes=self._open_among(connection, _episodes(new)),
        )

    def at_look(
        self,
        connection: Connection,
        before: BufferState,
        now: BufferState,
        changed: Sequence[int],
        changed_episodes: Collection[int],
        were_open: Collection[int],
        held: KeptSteps,
    ) -> Selection:
        """Return the steps to take of the changes.

        Args:
            connection: Connection to read from.
            before: The state that was read last.
            now: The state to read.
            changed: Steps that were changed since.
            changed_episodes: Episodes that a call changed since, by their keys.
            were_open: Episodes that were open at the last look; see `Selection`.
            held: Steps that the follower has.
        """
        database, buffer_id = self._database, self._buffer_id
        new_spans = _left(database.new_spans(connection, buffer_id, before, now), now)
        firsts = {span.first_seq for span in new_spans}
        are_open: frozenset[int] = frozenset()
        if self._has_facts:
            known = _episodes(new_spans).union(changed_episodes, were_open)
            are_open = self._open_among(connection, known)
            # While an episode stays open, only a call changes its facts.
            stay_open = are_open.intersection(were_open).difference(changed_episodes)
            spans = database.episode_spans(connection, buffer_id, sorted(known - stay_open))
            changed = sorted({*changed, *_seqs(_left(spans, now))})
        # Apart, because changed steps may be far from new ones.
        matching = self._matching(connection, now, _seqs(new_spans))
        matching |= self._matching(connection, now, changed)
        missed = held.missing([seq for seq in changed if seq in matching])
        other_spans = database.step_spans(connection, buffer_id, missed) if missed else []
        hits = _with_any([*new_spans, *other_spans], np.sort(np.array(list(matching), np.int64)))
        hit_episodes = _episodes(hits)
        unknown = [id_ for id_ in sorted(hit_episodes) if not held.has_episode(id_)]
        if unknown:
            other_spans = [*other_spans, *database.episode_spans(connection, buffer_id, unknown)]
        older = {s.first_seq: s for s in _left(other_spans, now) if s.first_seq not in firsts}
        older = {first: older[first] for first in held.missing(list(older))}
        older_seqs = _seqs(older.values())
        matching |= self._matching(connection, now, older_seqs)
        hit = {span.first_seq for span in hits}
        kept = [
            span
            for span in new_spans
            if span.first_seq in hit
            or span.episode_id in hit_episodes
            or (span.episode_id is not None and held.has_episode(span.episode_id))
        ]
        spans = sorted([*kept, *older.values()])
        return Selection(
            [span.first_seq for span in spans],
            _n_steps(spans),
            sorted(matching),
            new_spans,
            sorted(set(changed).difference(matching)),
            older_seqs,
            are_open,
        )

    def _open_among(self, connection: Connection, ids: Iterable[int]) -> frozenset[int]:
        """Return which episodes are open, by their keys; none if the condition has no facts."""
        listed = sorted(ids) if self._has_facts else []
        if not listed:
            return frozenset()
        is_named = is_number_of(episodes.c.id, bindparam(None, listed, SeqList(), unique=True))
        is_open = (episodes.c.buffer_id == self._buffer_id) & (episodes.c.status == "open")
        return frozenset(
            connection.execute(select(episodes.c.id).where(is_named, is_open)).scalars()
        )

    def _matching(self, connection: Connection, now: BufferState, seqs: Iterable[int]) -> set[int]:
        """Return the given steps that match and are in the window."""
        node, listed = resolve_labels(self._node, bool(now.has_labels)), sorted(seqs)
        matching = set[int]()
        if listed and now.high - listed[0] < MOST_BESIDE * len(listed) + MAX_CHUNK_STEPS:
            # A lookup of each step would read the values of its whole chunk again.
            first = max(listed[0], now.low + 1)
            seq = self._table.c.seq
            where = statements.matching(self._buffer_id, node, self._table) & (seq >= first)
            matching.update(connection.execute(select(seq).where(where)).scalars())
            return matching.intersection(listed)
        for i in range(0, len(listed), _AT_ONCE):
            wanted = bindparam(None, listed[i : i + _AT_ONCE], SeqList(), unique=True)
            table, is_one = self._steps.at(literal(self._buffer_id, Integer()), wanted)
            where = statements.matching(self._buffer_id, node, table) & is_one
            matching.update(connection.execute(select(table.c.seq).where(where)).scalars())
        return {seq for seq in matching if seq > now.low}


def _left(spans: Iterable[ChunkSpan], now: BufferState) -> list[ChunkSpan]:
    """Return the chunks with a step in the window."""
    return [span for span in spans if span.first_seq + span.n_steps - 1 > now.low]


def _with_any(spans: Sequence[ChunkSpan], seqs: Any) -> list[ChunkSpan]:
    """Return the chunks that have one of the steps, which are sorted."""
    firsts = np.array([span.first_seq for span in spans], np.int64)
    ends = firsts + np.array([span.n_steps for span in spans], np.int64)
    has_any = np.searchsorted(seqs, firsts) < np.searchsorted(seqs, ends)
    return [span for span, has in zip(spans, has_any.tolist(), strict=True) if has]


def _episodes(spans: Iterable[ChunkSpan]) -> set[int]:
    return {span.episode_id for span in spans if span.episode_id is not None}


def _seqs(spans: Iterable[ChunkSpan]) -> list[int]:
    return [span.first_seq + i for span in spans for i in range(span.n_steps)]


def _n_steps(spans: Iterable[ChunkSpan]) -> int:
    return sum(span.n_steps for span in spans)


Integers = NDArray[np.int64]
Reals = NDArray[np.float64]

NO_PRIORITIES = np.zeros(0, np.int64), np.zeros(0)
CHUNKS_A_PAGE = 512

_count_steps = by_database(sqlite=sqlite.count_steps, postgresql=postgresql.count_steps)
_all_chunks = by_database(sqlite=sqlite.all_chunks, postgresql=postgresql.all_chunks)
_new_chunks = by_database(sqlite=sqlite.new_chunks, postgresql=postgresql.new_chunks)
_chunks_at = by_database(sqlite=sqlite.chunks_at, postgresql=postgresql.chunks_at)
_priorities_of = by_database(sqlite=sqlite.priorities_of, postgresql=postgresql.priorities_of)
_read_episodes = by_database(sqlite=sqlite.episodes, postgresql=postgresql.episodes)
_session_keys = by_database(sqlite=sqlite.session_keys, postgresql=postgresql.session_keys)
_DATABASES = {"sqlite": sqlite, "postgresql": postgresql}


class News:
    """Changes that one look found. They are read while the look is open, and valid when it closed.

    Attributes:
        state: The state of the buffer.
        is_start: The buffer is read from the start: earlier knowledge is no longer valid.
        marks: What became of steps after they were stored, as it is now.
        labelled: Steps that were labelled since; some may have been deleted again.
        changed_episodes: Episodes that a call changed since, also by a later reward of a step.
        released: Steps that are no longer in quarantine.
        selection: Steps that meet the condition of the follower; None if it has no condition.
        priorities: Steps whose priorities were set, with the priorities, if the buffer keeps them.
    """

    def __init__(
        self,
        connection: Connection,
        buffer_id: int,
        before: BufferState | None,
        now: BufferState,
        selected: SelectedSteps | None = None,
    ) -> None:
        self._connection, self._buffer_id, self._before = connection, buffer_id, before
        self._selected = selected
        self.labelled: Sequence[int] = ()
        self.changed_episodes: Collection[int] = ()
        self.selection: Selection | None = None
        self.state, self.is_start = now, before is None
        self.read: list[tuple[int, int, str]] = []
        self.open_episodes: set[int] = set()
        self.marks = Marks()
        self.released: Sequence[int] = ()
        self.priorities: tuple[Integers, Reals] = NO_PRIORITIES
        self.cursor: _Cursor | None = None
        self._reads_priorities = False

    def read_changes(self, entries: Sequence[ChangeEntry]) -> None:
        """Read the changes of steps that were stored before; `chunks` reads those of other steps.

        Args:
            entries: New entries of the change log; not needed at the start.
        """
        if self.is_start:
            return
        changed: dict[str, set[int]] = {}
        for entry in entries:
            changed.setdefault(entry.kind, set()).update(entry.seqs or ())
        self.marks.deleted = sorted(changed.get("deleted", ()))
        self.changed_episodes = changed.get("episodes", ())
        labelled, moved = changed.get("labelled"), changed.get("quarantined")
        if labelled:
            self.labelled = sorted(labelled)
            self._read_marks(runs_of(labelled), Wanted(labels=True))
        if moved:
            self._read_marks(runs_of(moved), Wanted(quarantine=True))
            self.released = sorted(moved.difference(self.marks.quarantined))

    def _read_marks_of(self, page: Sequence[ChunkRow]) -> None:
        """Read the marks of the steps of chunks."""
        now = self.state
        wanted = Wanted(
            labels=bool(now.has_labels),
            quarantine=bool(now.has_quarantine),
            deleted=bool(now.has_deleted),
            replaced=bool(now.has_replaced),
        )
        self._read_marks([(chunk.first_seq, chunk.n_steps) for chunk in page], wanted)

    def _read_marks(self, runs: Sequence[tuple[int, int]], wanted: Wanted) -> None:
        """Read marks of the steps of runs of numbers, (first, n)."""
        marks = read_marks(self._connection, self._buffer_id, runs, wanted, has_chunks=True)
        self.marks.add(marks)

    def read_priorities(self, entries: Sequence[ChangeEntry], origin: str) -> None:
        """Read the priorities that were set.

        Args:
            entries: New entries of the change log; not needed at the start.
            origin: Origin of the entries for priorities that the follower has set itself.
        """
        self._reads_priorities = True
        if self.is_start:
            parameters = {BUFFER_ID: self._buffer_id, LOW: self.state.low}
            seqs, values = arrays(self._connection, UPDATED, parameters, (np.int64, np.float64))
            self.priorities = seqs, values
            return
        changed: set[int] = set()
        for entry in entries:
            if entry.kind == "priorities" and entry.origin != origin:
                changed.update(entry.seqs or ())
        if changed:
            self._read_priorities_of(sorted(changed))

    def _read_priorities_of(self, steps: Sequence[int]) -> None:
        priorities = _priorities_of(self._connection, self._buffer_id, steps)
        seqs, values = zip(*priorities, strict=True) if priorities else ((), ())
        self.priorities = (
            np.concatenate([self.priorities[0], np.array(seqs, np.int64)]),
            np.concatenate([self.priorities[1], np.array(values, np.float64)]),
        )

    def count_steps(self) -> int:
        """Return the number of steps to read from the start."""
        if self._selected is not None:
            self.selection = self._selected.at_start(self._connection, self.state)
            return self.selection.n_steps
        return _count_steps(self._connection, self._buffer_id, self.state.low)

    def chunks(self, kept: KeptSteps) -> Iterator[list[ChunkRow]]:
        """Yield the new chunks, many at a time; once, and before `episodes`.

        Args:
            kept: Steps that the follower has.
        """
        connection, buffer_id, now = self._connection, self._buffer_id, self.state
        if self._selected is not None:
            chosen = self._choose(self._selected, kept)
            # Chunks that are not kept are compared as well, to see if the state continues this one.
            self.read = [(s.first_seq, s.n_steps, s.id) for s in chosen.new[-MOST_CHUNKS:]]
            for page in _chunks_at(connection, buffer_id, chosen.firsts, CHUNKS_A_PAGE):
                self._read_marks_of(page)
                yield page
            return
        if self._before is None:
            pages = _all_chunks(connection, buffer_id, now.low, CHUNKS_A_PAGE)
        else:
            pages = _new_chunks(connection, buffer_id, self._before, now, CHUNKS_A_PAGE)
        for page in pages:
            self.read += [(chunk.first_seq, chunk.n_steps, chunk.id) for chunk in page]
            del self.read[:-MOST_CHUNKS]
            if self.is_start:
                self._read_marks_of(page)
            yield page

    def _choose(self, selected: SelectedSteps, kept: KeptSteps) -> Selection:
        """Return the steps to read, with the state of the older ones."""
        connection, now = self._connection, self.state
        if self._before is None:
            return self.selection or selected.at_start(connection, now)
        selection = selected.at_look(
            connection,
            self._before,
            now,
            self.labelled,
            self.changed_episodes,
            self.open_episodes,
            kept,
        )
        self.selection = selection
        if selection.older and self._reads_priorities:
            self._read_priorities_of(selection.older)
        return selection

    def episodes(self, new_ids: Sequence[int]) -> list[EpisodeState]:
        """Return the current state of the given episodes, and of those that were open."""
        episode_ids = sorted(self.open_episodes.union(new_ids))
        states = _read_episodes(self._connection, episode_ids) if episode_ids else []
        self.open_episodes = {episode.id for episode in states if episode.status == "open"}
        if self.selection is not None:
            self.open_episodes |= self.selection.open_episodes
        return states

    def session_keys(self, numbers: Sequence[int]) -> list[tuple[int, str]]:
        """Return (number, id) of sessions."""
        return _session_keys(self._connection, numbers) if numbers else []


class _Cursor(NamedTuple):
    """Where the next look continues.

    Attributes:
        state: The state that was read, with what the database needs to find later changes.
        entry: The newest entry of the change log; None: there is none, or none is new.
        session: The session of the look.
        mark: The file when it was read; None on a server.
    """

    state: BufferState
    entry: tuple[int, str] | None
    session: Hashable
    mark: FileMark | None


class Feed:
    """Reads the changes of a buffer, in one state of the database at a time.

    A look that is not passed to `accept` changes nothing: the next one reads the same again.

    Args:
        buffer: The buffer; its steps are in chunks.
        writable: The same buffer where the follower registers; a standby cannot be written.
        node: Condition of the wanted steps; their episodes are read as a whole.
        reads_priorities: Looks read the priorities that were set.

    Attributes:
        origin: Signs the follower's own updates of priorities, which looks leave out.
        is_registered: Changes that only followers need are logged.
        state: The state that was read last; None before the first look, and when it must start
            again.
    """

    def __init__(
        self,
        buffer: OpenBuffer,
        writable: OpenBuffer,
        node: Node = EVERYTHING,
        *,
        reads_priorities: bool = False,
    ) -> None:
        self._buffer, self._reads_priorities = buffer, reads_priorities
        self._follower = Follower(writable)
        self.origin = str(uuid4())
        self.is_registered = False
        self._database = _DATABASES[buffer.url.get_backend_name()]
        self._selected = None
        if node != EVERYTHING:
            self._selected = SelectedSteps(
                buffer.info.id, node, layout_of(buffer.info), self._database
            )
        is_file = self._database is sqlite and not is_memory(buffer.url)
        self._path = sqlite_path(buffer.url) if is_file else None
        self._mark: FileMark | None = None
        self._anchor = Anchor(buffer.info.id, self._database.ANCHOR)
        self._open_episodes: set[int] = set()
        self.state: BufferState | None = None

    def register(self) -> None:
        """Register the follower, so that changes are logged that only followers need.

        A role without that right can follow buffers that evict by row; in others it would not see
        which steps leave.

        Raises:
            StorageReadOnlyError: The role lacks the right, and the buffer evicts by task or by
                episode.
        """
        if self.is_registered and self._follower.renew():
            return
        misses_priorities = self.is_registered and self._reads_priorities
        # Evictions by row are known without the log.
        if misses_priorities or self._buffer.info.config.retention.evict_by != "row":
            self.start_again()
        try:
            self._follower.register()
            self.is_registered = True
        except StorageReadOnlyError:
            self.is_registered = False
            if self._buffer.info.config.retention.evict_by != "row":
                raise
        if self.is_registered and self._reads_priorities:
            self.start_again()  # priorities may be missing in the log

    def cursor(self) -> Any:
        """Return JSON from which another process can continue; see `resume`."""
        return {
            "follower": self._follower.id if self.is_registered else None,
            "state": self.state,
            "anchor": self._anchor.as_json(),
            "open_episodes": sorted(self._open_episodes),
        }

    def resume(self, cursor: Any) -> None:
        """Continue from the state of another process, which the next look checks."""
        if cursor["follower"] is not None:
            self._follower.id, self.is_registered = cursor["follower"], True
        self.state = state_of(cursor)
        self._anchor.of_json(cursor["anchor"])
        self._open_episodes = set(cursor["open_episodes"])

    def start_again(self) -> None:
        """Make the next look read everything."""
        self.state = None

    def leave(self) -> None:
        """End the registration."""
        if self.is_registered:
            self.is_registered = False
            with suppress(Exception):  # it is removed after a while in any case
                self._follower.leave()

    @contextmanager
    def look(self) -> Iterator[News | None]:
        """Yield the changes, to be read in the block; None if there are none.

        When the block has ended, the whole look was read, and `accept` takes it.

        Raises:
            BufferNotFoundError: The buffer was dropped.
            SchemaTooNewError: The database was upgraded for a later release.
        """
        buffer, buffer_id = self._buffer, self._buffer.info.id
        mark = None if self._path is None else file_mark(self._path)
        if self.state is not None and is_unchanged(self._mark, mark):
            yield None
            return
        query = self._database.state_query(buffer_id)
        with translated(buffer.url), snapshot(buffer.engine, query) as connection:
            rows = answer(connection)
            if not rows:
                raise buffer.dropped()
            now = BufferState._make(rows[0])
            before = self.state
            if before is not None and now.revision != before.revision:
                check(connection, buffer.url, now.revision)
                before = None
            is_same = now == before and self._anchor.is_certain(connection)
            is_same = is_same and self._database.is_final(now)
            if is_same and self._database is postgresql:
                yield None  # no transaction has ended since
                return
            entries: list[ChangeEntry] | None = None
            if before is not None and before.created_at == now.created_at:
                entries = changes_since(
                    connection, buffer_id, before.position, now.position, origin=self.origin
                )
            if entries is None or not self._continues(connection, now, entries):
                before, entries = None, []
            news = News(connection, buffer_id, before, now, self._selected)
            news.open_episodes = set() if before is None else set(self._open_episodes)
            news.read_changes(entries)
            if self._reads_priorities:
                news.read_priorities(entries, self.origin)
            yield news
            has_new = news.is_start or bool(entries)
            news.cursor = _Cursor(
                self._database.noted(connection, buffer_id, now),
                self._anchor.newest_entry(connection) if has_new else None,
                self._anchor.session(connection),
                mark,
            )

    def accept(self, news: News) -> None:
        """Continue after a look: the follower has its changes. The look is closed."""
        cursor = news.cursor
        assert cursor is not None
        self._anchor.note(news.read, cursor.entry, cursor.session, is_start=news.is_start)
        self._open_episodes = news.open_episodes
        self.state, self._mark = cursor.state, cursor.mark

    def _continues(
        self, connection: Connection, now: BufferState, entries: Sequence[ChangeEntry]
    ) -> bool:
        """Return True if the changes are known, and the state continues the one read last."""
        # Plain SQL has deleted some, or a layer has replaced some in place.
        if any(entry.seqs is None or entry.kind == "replaced" for entry in entries):
            return False
        for entry in entries:
            if entry.kind == "deleted" and entry.seqs is not None:
                self._anchor.note_deleted(entry.seqs)
        return self._anchor.holds(connection, now.low)


def state_of(cursor: Any) -> BufferState:
    """Return the state that was read last, from a cursor of `Feed`."""
    return BufferState._make(cursor["state"])
