"""One buffer in a database: what `ReplayBuffer` asks of it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, delete, select, update
from sqlalchemy.engine import URL

from sqlbuffer.encoding.episode_records import EpisodeStart
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import (
    SessionNotFoundError,
    StorageError,
    StorageFullError,
)
from sqlbuffer.fields.buffer_fields import Fields
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.stats import Stats
from sqlbuffer.storage.buffers import catalog, sessions
from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.buffers.buffer_window import SampledWindow
from sqlbuffer.storage.buffers.layouts import layout_of
from sqlbuffer.storage.buffers.limits import Limits
from sqlbuffer.storage.buffers.live_count import LiveCount
from sqlbuffer.storage.buffers.open_buffer import (
    DEFAULT_OPTIONS,
    OpenerOptions,
    retry_on_disconnect,
)
from sqlbuffer.storage.buffers.settling import settled_seq
from sqlbuffer.storage.buffers.tables import buffers, experiences
from sqlbuffer.storage.database.engine import (
    close_idle,
    engine_for,
    is_memory,
    own_engine,
    resolve_url,
    server_epoch,
    was_reached,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import retried_at_opening
from sqlbuffer.storage.database.transactions import answer, snapshot
from sqlbuffer.storage.dialects.connections import make_room
from sqlbuffer.storage.episodes import lifecycle
from sqlbuffer.storage.episodes.lifecycle import free_episode
from sqlbuffer.storage.episodes.tables import episodes as episode_rows
from sqlbuffer.storage.flow.pacing import Pacer
from sqlbuffer.storage.inspect.buffer_stats import stats
from sqlbuffer.storage.labels.labelling import Labelling
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.leases.keeping import LeaseKeeping, Ledger, not_leased
from sqlbuffer.storage.migrations.schema_presence import ensure_schema
from sqlbuffer.storage.priorities.priority_keeping import PriorityKeeping
from sqlbuffer.storage.priorities.upkeep import Upkeep
from sqlbuffer.storage.reading.row_queries import RowQueries
from sqlbuffer.storage.retention import quarantine as quarantining
from sqlbuffer.storage.retention.eviction import evict
from sqlbuffer.storage.retention.expiry import Expiry
from sqlbuffer.storage.retention.quarantine import Rows
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.removal import remove_where
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.rows.stored_rows import Row
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.restrictions import Restrictions
from sqlbuffer.storage.use_counts.counted_buffer import Housekeeping
from sqlbuffer.storage.watermarks.watermark import Watermark
from sqlbuffer.storage.writing.row_storing import RowStoring

T = TypeVar("T")


@dataclass(frozen=True)
class DrawnTasks:
    """The rows of tasks, and the clock and the lower end of the window when they were drawn."""

    tasks: list[list[Row]]
    clock: int | None
    window_low: int


class BufferStore(RowStoring, RowQueries, PriorityKeeping, LeaseKeeping, Labelling):
    """Reads and writes one buffer.

    Args:
        url: Resolved URL of the database.
        info: The buffer.
        engine: An engine of this buffer alone, used instead of this process's engine of the URL.
        made_engine: That engine is this library's and not the user's.
        options: What the opener chose.
    """

    def __init__(
        self,
        url: URL,
        info: BufferInfo,
        engine: Engine | None = None,
        *,
        made_engine: bool = False,
        options: OpenerOptions = DEFAULT_OPTIONS,
    ) -> None:
        self._made_engine = made_engine
        self.url, self.info, self._engine, self.options = url, info, engine, options
        self.layout = Layout(info.fields.specs, info.compression)
        self.observation_layout = Layout(
            {name: info.fields.specs[name] for name in info.fields.observations}, info.compression
        )
        self._live_count = LiveCount()
        self.watermark = Watermark(info.id)
        self._upkeep = Upkeep()
        self.restrictions = Restrictions(info)
        self.housekeeping = Housekeeping()
        self.ledger = Ledger()
        self._updates = count(1)
        self.pacer = Pacer(self)
        self.expiry = Expiry(self)
        self.remove_expired_if_due = self.expiry.run_if_due

    @classmethod
    def open(
        cls,
        url: str | URL | Engine | None,
        name: str,
        *,
        limits: Limits,
        create: bool | None,
        fields: Fields | None = None,
        compression: str | None = None,
        options: OpenerOptions = DEFAULT_OPTIONS,
        layout: str | None = None,
    ) -> "BufferStore":
        """Open a buffer, creating what is missing as far as `create` says (see `ReplayBuffer`).

        A new one has that layout; one that is there may have another.
        """
        resolved = resolve_url(url)
        engine = own_engine(url, resolved)

        def info() -> BufferInfo:
            with translated(resolved):
                used = engine if engine is not None else engine_for(resolved)
                ensure_schema(used, resolved, create)
                return catalog.open_buffer(
                    used,
                    resolved,
                    name,
                    limits,
                    fields,
                    compression,
                    options.alpha,
                    layout,
                    may_create=create is not False,
                )

        found = retried_at_opening(
            info,
            options.retry_s,
            lambda: close_idle(resolved),
            lambda: was_reached(resolved, engine),
        )
        made_engine = not isinstance(url, Engine)
        return cls(resolved, found, engine, made_engine=made_engine, options=options)

    def __getstate__(self) -> dict[str, Any]:
        if is_memory(self.url):
            raise TypeError(
                "a buffer in memory belongs to one process and cannot be pickled; "
                "give it a file: sqlite:///replay.db"
            )
        return {"url": self.url, "info": self.info, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def delete(self, node: Node) -> int:
        """Delete the rows that match; return how many."""
        layout = layout_of(self.info)

        def work(connection: Connection) -> int:
            layout.lock(connection, self.info.id)
            window = self.note_deletion(connection)
            # Nothing newer than the window noted: its lower end follows from the newest row.
            matching = statements.in_window(
                self.info.id, window.low, resolve_labels(node, window.has_labels)
            )
            seq = statements.seq_for(node)
            n_removed = remove_where(
                connection, self.info.id, matching, seq <= window.high, seq=seq
            )
            if n_removed:
                layout.after_delete(connection, self.info.id)
            return n_removed

        return self._delete(work)

    def clear(self) -> int:
        """Delete all rows, those behind the window too, and the list of episodes; return how many
        rows were live.
        """
        layout = layout_of(self.info)

        def work(connection: Connection) -> int:
            layout.lock(connection, self.info.id)
            window = self.note_deletion(connection)
            remove_where(connection, self.info.id, experiences.c.seq <= window.low)
            n_removed = remove_where(connection, self.info.id, experiences.c.seq <= window.high)
            connection.execute(delete(episode_rows).where(episode_rows.c.buffer_id == self.info.id))
            layout.after_clear(connection, self.info.id)
            return n_removed

        return self._delete(work)

    def _delete(self, work: Callable[[Connection], int]) -> int:
        """Return what is done in a transaction that deletes; on a full disk too, where it can."""
        with translated(self.url):
            advice = make_room(self.engine)
        try:
            return self.write(work)
        except StorageFullError as error:
            cause = str(error).partition("; ")[0]
            raise StorageFullError(f"{cause}; {advice}") from error

    def quarantine(self, rows: Rows, reason: str | None) -> int:
        """Take rows out of sampling; return how many were not in quarantine."""

        def work(connection: Connection) -> int:
            self.lock(connection)
            low = self._window(connection).low
            return quarantining.put(connection, self.info.id, low, rows, reason)

        return self.write(work)

    def release(self, rows: Rows) -> int:
        """Put rows back into sampling; return how many were in quarantine."""

        def work(connection: Connection) -> int:
            self.lock(connection)
            low = self._window(connection).low
            return quarantining.release(connection, self.info.id, low, rows)

        return self.write(work)

    def begin_episode(self, beginning: EpisodeStart) -> None:
        """Make the row of an episode.

        Raises:
            EpisodeExistsError: There is one that is open or has steps.
        """
        key, task = beginning.key, beginning.task_id

        def work(connection: Connection) -> None:
            known = free_episode(connection, self.info.id, key, task)
            if known is not None or not lifecycle.begin(connection, self.info.id, beginning):
                # Where there was none, another process has begun it meanwhile.
                raise lifecycle.exists(key, task, "open" if known is None else known[0])

        self.write(work)

    def resize(self, limits: Mapping[str, int | None]) -> None:
        """Set columns of the buffer that are limits, and evict at once what no longer fits."""
        layout_of(self.info).check_resize(self.info.name)

        def work(connection: Connection) -> None:
            self.lock(connection)
            window = self.note_deletion(connection)
            connection.execute(update(buffers).where(buffers.c.id == self.info.id).values(**limits))
            if window.evict_by != "row":
                evict(connection, self.info.id)
            else:
                low = self._window(connection).low
                left = experiences.c.seq <= low
                if self.info.leases:
                    left = left & not_leased(self.info.id)
                remove_where(connection, self.info.id, left)

        self.write(work)

    def stats(self, window_s: float) -> Stats:
        """Return figures of the buffer, with rates over that many seconds."""
        self.pacer.publish_now()
        return self.with_retries(lambda: stats(self, window_s))

    @retry_on_disconnect
    def draw(
        self,
        node: Node,
        choose: Callable[[Candidates], T],
        columns: RowSelection | Sequence[Any] | None = None,
    ) -> T:
        """Return what is chosen of the rows that match and may be sampled.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        with self.candidates(node, columns, sampled=True) as candidates:
            found = choose(candidates)
        self._find_eligible_low(candidates)
        self.remove_expired_if_due()
        return found

    @retry_on_disconnect
    def draw_tasks(
        self,
        node: Node,
        choose: Callable[[Candidates], Sequence[str]],
        payloads: Payloads | None = None,
    ) -> DrawnTasks:
        """Return the rows of the tasks that are chosen, each task's in its order.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        with self.candidates(node, sampled=True) as candidates:
            limits = candidates.limits.of_steps
            found = self._tasks(candidates.connection, choose(candidates), payloads, limits)
        self.remove_expired_if_due()
        tasks = [rows for rows in found.values() if rows]
        return DrawnTasks(tasks, candidates.clock, candidates.window_low)

    def _find_eligible_low(self, candidates: Candidates) -> None:
        """Where a draw found few rows that may be sampled, find out where they begin."""
        if not self.restrictions.eligible_low.is_due(candidates):
            return
        # The draw is done, whatever becomes of this.
        with suppress(StorageError), translated(self.url):
            epoch = server_epoch(self.engine)
            settled = settled_seq(self.engine, self.watermark)
            with snapshot(self.engine, self._sampled_window) as connection:
                for now in answer(connection):
                    self.restrictions.look(connection, SampledWindow(*now), settled, epoch)

    @property
    def clock(self) -> int | None:
        """The learner's iteration or model version; None before it was set."""
        return self._clock()

    @retry_on_disconnect
    def _clock(self) -> int | None:
        with translated(self.url), self.engine.connect() as connection:
            found = connection.execute(
                select(buffers.c.clock).where(buffers.c.id == self.info.id)
            ).one_or_none()
            if found is None:
                raise self._dropped()
            clock: int | None = found.clock
            return clock

    @retry_on_disconnect
    def session(self) -> str | None:
        """Return the key of the buffer's current session; None: none was started."""
        with translated(self.url), self.engine.connect() as connection:
            return sessions.current(connection, self.info.id)

    def start_session(self, key: str) -> None:
        """Make a session of that key, or resume it, as the current one."""

        def work(connection: Connection) -> None:
            self.lock(connection)
            sessions.start(connection, self.info.id, key)

        self.write(work)
        self.remove_expired_if_due()

    def set_version(self, version: int, session: str | None) -> bool:
        """Note the model version of a session, by default of the current one, and move the clock
        with it if it is that; return whether it is.

        Raises:
            SessionNotFoundError: No session of that key.
        """

        def work(connection: Connection) -> bool | None:
            self.lock(connection)
            return sessions.set_version(connection, self.info.id, version, session)

        is_current = self.write(work)
        if is_current is None:
            raise SessionNotFoundError(
                f"buffer {self.info.name!r} has no session {session!r}; start it with "
                f"start_session({session!r}), or leave session_id out"
            )
        self.remove_expired_if_due()
        return is_current
