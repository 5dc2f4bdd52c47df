"""One buffer in a database: what `ReplayBuffer` asks of it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from itertools import count
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Select, case, delete, func, select, update
from sqlalchemy.engine import URL

from sqlbuffer.codec import is_storable_text
from sqlbuffer.errors import (
    BufferNotFoundError,
    StorageBusyError,
    StorageError,
    StorageFullError,
    StorageReadOnlyError,
)
from sqlbuffer.packing import Layout
from sqlbuffer.query import EVERYTHING, Node
from sqlbuffer.specs import Fields
from sqlbuffer.storage import catalog, episodes, statements
from sqlbuffer.storage.catalog import BufferInfo, Limits
from sqlbuffer.storage.claims import Housekeeping
from sqlbuffer.storage.dialects import Dialect, dialect_for
from sqlbuffer.storage.engine import (
    begin_epoch,
    close_idle,
    engine_for,
    is_memory,
    own_engine,
    resolve_url,
    server_epoch,
)
from sqlbuffer.storage.episodes import Beginning, Ending
from sqlbuffer.storage.errors import translated
from sqlbuffer.storage.functions import explain
from sqlbuffer.storage.insertion import Insertion, Outcome, Row
from sqlbuffer.storage.keys import EpisodeKey
from sqlbuffer.storage.live_count import LiveCount
from sqlbuffer.storage.models import buffers, experiences
from sqlbuffer.storage.models import episodes as episode_rows
from sqlbuffer.storage.pacing import WAIT_S, Pacer
from sqlbuffer.storage.population import Population
from sqlbuffer.storage.priority_blocks import Blocks
from sqlbuffer.storage.priority_population import Priorities
from sqlbuffer.storage.priority_upkeep import Upkeep
from sqlbuffer.storage.reading import Reading
from sqlbuffer.storage.records import Record, same_content
from sqlbuffer.storage.removal import remove_where
from sqlbuffer.storage.restrictions import Restrictions, SampledWindow
from sqlbuffer.storage.retrying import ONCE_MORE_S, retried
from sqlbuffer.storage.transactions import answer
from sqlbuffer.storage.urls import shown_url

TASKS_AT_ONCE = 500
FIRST_PAGE_ROWS = 200
MAX_PAGE_ROWS = 5_000
PAGE_BYTES = 8 * 2**20
RETRY_S = 30.0
# How long a stream waits at its start for writers under way, rather than note what is there of
# theirs.
SETTLING_S = 0.05
# How often updates of priorities follow what has left the window.
UPDATES_A_CLEANING = 64

# Places in the columns of `statements.ROW_COLUMNS`: seq, then those of a record.
TASK_ID, EPISODE_KEY, STEP, EXECUTE_TIME, MODEL_VERSION = (
    1 + Record._fields.index(name)
    for name in ("task_id", "episode_key", "step", "execute_time", "model_version")
)

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class Options:
    """What an opener of a buffer chose for itself.

    Attributes:
        durability: `relaxed`, `full`, or None for what the server or the file is set to.
        retry_s: How long a call tries again after a lost connection.
        alpha: Exponent of priorities; None: that of the buffer.
        wait_s: How long a call waits for the buffer's rate limiter.
    """

    durability: str | None = None
    retry_s: float = RETRY_S
    alpha: float | None = None
    wait_s: float = WAIT_S


DEFAULT_OPTIONS = Options()


@dataclass(frozen=True)
class Window:
    """Which rows a buffer is: those with low < seq <= high."""

    max_capacity: int | None
    max_episodes: int | None
    evict_by: str
    deletions: int
    live_rows: int
    low: int
    high: int


@dataclass(frozen=True)
class Written:
    """What became of a batch, as ids; and the number of each."""

    inserted: list[str]
    duplicates: list[str]
    conflicts: list[str]
    seqs: dict[str, int]


@dataclass(frozen=True)
class DrawnTasks:
    """The rows of tasks, and the clock and the lower end of the window when they were drawn."""

    tasks: list[list[Row]]
    clock: int | None
    window_low: int


Method = Callable[Concatenate["BufferStore", P], T]


def _started_anew(*, after_loss: bool) -> Callable[[Method[P, T]], Method[P, T]]:
    """Have a method start anew after a deadlock, which undid what it did; or also after a lost
    connection.
    """

    def decorate(method: Method[P, T]) -> Method[P, T]:
        @wraps(method)
        def repeating(self: "BufferStore", /, *args: P.args, **kwargs: P.kwargs) -> T:
            retry_s = self.options.retry_s if after_loss else 0.0
            work = partial(method, self, *args, **kwargs)
            return retried(work, retry_s, self.forget_connections)

        return repeating

    return decorate


_repeats = _started_anew(after_loss=False)
_survives = _started_anew(after_loss=True)


class BufferStore:
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
        options: Options = DEFAULT_OPTIONS,
    ) -> None:
        self._made_engine = made_engine
        self.url, self.info, self._engine, self.options = url, info, engine, options
        self.layout = Layout(info.fields.specs, info.compression)
        self.observation_layout = Layout(
            {name: info.fields.specs[name] for name in info.fields.observations}, info.compression
        )
        self._dialect = dialect_for(self.engine)
        self._live_count = LiveCount()
        self._upkeep = Upkeep()
        self.restrictions = Restrictions(info)
        self.housekeeping = Housekeeping()
        self._updates = count(1)
        self.pacer = Pacer(self)

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
        options: Options = DEFAULT_OPTIONS,
    ) -> "BufferStore":
        """Open a buffer, creating what is missing as far as `create` says (see `ReplayBuffer`)."""
        resolved = resolve_url(url)
        engine = own_engine(url, resolved)

        def info() -> BufferInfo:
            with translated(resolved):
                used = engine if engine is not None else engine_for(resolved)
                catalog.ensure_schema(used, resolved, create)
                return catalog.open_buffer(
                    used,
                    resolved,
                    name,
                    limits,
                    fields,
                    compression,
                    options.alpha,
                    may_create=create is not False,
                )

        # Not for retry_s: who opens a buffer wants to know at once that the URL is wrong.
        found = retried(info, ONCE_MORE_S, lambda: close_idle(resolved))
        made_engine = not isinstance(url, Engine)
        return cls(resolved, found, engine, made_engine=made_engine, options=options)

    @property
    def engine(self) -> Engine:
        """This process's engine: another one after a fork."""
        return self._engine if self._engine is not None else engine_for(self.url)

    @property
    def dialect(self) -> Dialect:
        """The operations of its database."""
        return self._dialect

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return shown_url(self.url)

    def close(self) -> None:
        """Close idle connections of the library's own engine; a database in memory ends."""
        if self._engine is None:
            close_idle(self.url)
        elif self._made_engine:
            self._engine.dispose()

    def __getstate__(self) -> dict[str, Any]:
        if is_memory(self.url):
            raise TypeError(
                "a buffer in memory belongs to one process and cannot be pickled; "
                "give it a file: sqlite:///replay.db"
            )
        return {"url": self.url, "info": self.info, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def insert(
        self,
        records: Sequence[Record],
        *,
        ignore: frozenset[str] = frozenset(),
        endings: Sequence[Ending] = (),
        metas: Mapping[EpisodeKey, str] | None = None,
        whole: EpisodeKey | None = None,
        admitted: bool = False,
    ) -> Written:
        """Store the records whose ids the buffer does not hold, all or none; over lost connections.

        Args:
            records: The batch; may be empty.
            ignore: Fields that do not make a conflict when they differ from the stored row.
            endings: How episodes end with it.
            metas: JSON of what the user says of episodes that may begin with it.
            whole: The episode that it is, where it is stored whole or not at all.
            admitted: The rate limiter has let it in.

        Raises:
            EpisodeExistsError: `whole` is open, or was aborted.
            FlowControlError: The rate limiter did not let it in in time.
        """
        if self.layout.compression is not None:
            stored = self.layout.compress([record.arrays for record in records])
            records = [
                record._replace(arrays=arrays)
                for record, arrays in zip(records, stored, strict=True)
            ]
        first: dict[str, Record] = {}
        for record in records:
            first.setdefault(record.id, record)
        if not admitted:
            self.pacer.before_insert(len(first))

        def end_episodes(connection: Connection, seqs: Mapping[str, int]) -> None:
            episodes.end(connection, self.info.id, endings, seqs)

        insertion = Insertion(
            self._dialect,
            self.url,
            self.info.id,
            list(first.values()),
            end_episodes if endings else None,
            metas,
            whole,
        )
        outcome = self._insert(insertion)
        self._dialect.wrote(self.engine, len(outcome.numbers))
        written = Written(list(outcome.numbers), [], [], outcome.seqs)
        fresh = set(outcome.numbers)
        for record in records:
            if record.id in fresh:
                fresh.discard(record.id)
                continue
            held = outcome.stored.get(record.id)
            other = first[record.id] if held is None else held[1:]
            same = not (outcome.refused and held is None) and same_content(
                record, other, ignore=ignore, layout=self.layout
            )
            (written.duplicates if same else written.conflicts).append(record.id)
        return written

    @_survives
    def _insert(self, insertion: Insertion) -> Outcome:
        return insertion.run(self.engine, self.options.durability)

    def forget_connections(self) -> None:
        """When one connection was lost, those idle in the pool are dead as well."""
        begin_epoch(self.engine)
        self.engine.dispose()

    @_repeats
    def delete(self, node: Node) -> int:
        """Delete the rows that match; return how many."""
        with translated(self.url), self._dialect.writing(self.engine) as connection:
            window = self._window(connection)
            self._note_deletion(connection, window)
            # Nothing newer than the window noted: its lower end follows from the newest row.
            matching = statements.in_window(self.info.id, window.low, node)
            seq = statements.seq_for(node)
            return self._remove(connection, matching, seq <= window.high, seq=seq)

    @_repeats
    def clear(self) -> int:
        """Delete all rows, those behind the window too, and the list of episodes; return how many
        rows were live.
        """
        with translated(self.url), self._dialect.writing(self.engine) as connection:
            window = self._window(connection)
            self._note_deletion(connection, window)
            self._remove(connection, experiences.c.seq <= window.low)
            n_removed = self._remove(connection, experiences.c.seq <= window.high)
            connection.execute(delete(episode_rows).where(episode_rows.c.buffer_id == self.info.id))
            return n_removed

    @_repeats
    def begin_episode(self, beginning: Beginning) -> None:
        """Make the row of an episode.

        Raises:
            EpisodeExistsError: There is one that is open or has steps.
        """
        key, task = beginning.key, beginning.task_id
        with translated(self.url), self._dialect.writing(self.engine) as connection:
            known = self._dialect.free_episode(connection, self.info.id, key, task)
            if known is not None or not episodes.begin(connection, self.info.id, beginning):
                # Where there was none, another process has begun it meanwhile.
                raise episodes.exists(key, task, "open" if known is None else known[0])

    @_repeats
    def resize(self, limits: Mapping[str, int | None]) -> None:
        """Set columns of the buffer that are limits, and evict at once what no longer fits."""
        with translated(self.url), self._dialect.writing(self.engine) as connection:
            self._lock(connection)
            window = self._window(connection)
            self._note_deletion(connection, window)
            connection.execute(update(buffers).where(buffers.c.id == self.info.id).values(**limits))
            if window.evict_by != "row":
                self._dialect.evict(connection, self.info.id)
            else:
                low = self._window(connection).low
                self._remove(connection, experiences.c.seq <= low)

    def _lock(self, connection: Connection) -> None:
        connection.execute(
            select(buffers.c.id).where(buffers.c.id == self.info.id).with_for_update(key_share=True)
        )

    def _note_deletion(self, connection: Connection, window: Window) -> None:
        """Keep the window's lower end, and tell every process that rows inside it leave."""
        low_seq = case((buffers.c.low_seq < window.low, window.low), else_=buffers.c.low_seq)
        connection.execute(
            update(buffers)
            .where(buffers.c.id == self.info.id)
            .values(deletions=buffers.c.deletions + 1, low_seq=low_seq)
        )

    def _remove(
        self, connection: Connection, *conditions: Any, seq: Any = experiences.c.seq
    ) -> int:
        return remove_where(connection, self._dialect, self.info.id, *conditions, seq=seq)

    def update_priorities(self, seqs: Sequence[int], priorities: Sequence[float]) -> int:
        """Set the priorities of rows, each given once, in ascending order; return how many there
        are.
        """
        if not seqs:
            return 0
        n_updated = self._update_priorities(seqs, priorities)
        self._dialect.wrote(self.engine, n_updated)
        if next(self._updates) % UPDATES_A_CLEANING == 0:
            self.seal(())  # whoever draws otherwise than by blocks leaves rows behind as well
        return n_updated

    @_survives
    def _update_priorities(self, seqs: Sequence[int], priorities: Sequence[float]) -> int:
        with (
            translated(self.url),
            self._dialect.writing(self.engine, self.options.durability) as connection,
        ):
            return self._dialect.update_priorities(connection, self._blocks, seqs, priorities)

    def seal(self, blocks: Sequence[int]) -> int:
        """Add up blocks of priorities, so that draws need not read their rows, and delete what is
        left of rows below the window; return how many were added up.

        Left out are blocks that rows can still come to, and those that the window cuts: block *
        size, and 1 for the first, is to be above its lower end. Who cannot write, or would wait for
        long, does nothing.

        Args:
            blocks: Their numbers; may be empty.
        """
        n_sealed = 0
        if not self.info.priorities:
            return n_sealed
        try:
            settled = self.settled()
            for portion in self._blocks.portions(blocks):
                n_sealed += self._seal(portion, settled)
        except (StorageReadOnlyError, StorageBusyError, StorageFullError):
            pass  # draws do without
        return n_sealed

    def seal_due(self) -> None:
        """Add up the blocks of priorities that draws would otherwise read row by row, where these
        are many; called before a draw by priority.
        """
        if not self._upkeep.is_known and self.info.priorities:
            self._note_unsealed()
        self._upkeep.run(self.seal)

    @_survives
    def _note_unsealed(self) -> None:
        with self.population(EVERYTHING) as population:
            population.priorities.note_unsealed()

    @property
    def alpha(self) -> float:
        """The exponent that rows are drawn by."""
        return self.info.alpha if self.options.alpha is None else self.options.alpha

    @_survives
    def _seal(self, blocks: Sequence[int], settled: int) -> int:
        with (
            translated(self.url),
            # What is lost with a server is made again.
            self._dialect.writing(self.engine, "relaxed") as connection,
        ):
            return self._dialect.seal(connection, self._blocks, blocks, settled)

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.info.id, self.info.block_size, self.info.alpha)

    @_survives
    def draw(
        self,
        node: Node,
        choose: Callable[[Population], T],
        columns: Reading | Sequence[Any] = statements.ROW_COLUMNS,
    ) -> T:
        """Return what is chosen of the rows that match and may be sampled.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        with self.population(node, columns, sampled=True) as population:
            found = choose(population)
        self._skip_barred(population)
        return found

    @_survives
    def draw_tasks(self, node: Node, choose: Callable[[Population], Sequence[str]]) -> DrawnTasks:
        """Return the rows of the tasks that are chosen, each task's in its order.

        Raises:
            InsufficientDataError: The buffer has fewer rows than it needs to be sampled.
        """
        with self.population(node, sampled=True) as population:
            found = self._tasks(population.connection, choose(population))
        oldest = population.limits.oldest_version
        tasks = [rows for rows in found.values() if rows and not _has_stale(rows, oldest)]
        return DrawnTasks(tasks, population.clock, population.window_low)

    @_survives
    def write(self, work: Callable[[Connection], T]) -> T:
        """Return what is done in one transaction; anew after a lost connection, also where it was
        committed.
        """
        with (
            translated(self.url),
            self._dialect.writing(self.engine, self.options.durability) as connection,
        ):
            return work(connection)

    @contextmanager
    def population(
        self,
        node: Node,
        columns: Reading | Sequence[Any] = statements.ROW_COLUMNS,
        *,
        sampled: bool = False,
    ) -> Iterator[Population]:
        """What a sampler chooses from, while the connection lives.

        Args:
            node: Which rows.
            columns: What is read of them.
            sampled: Only those that may be sampled.
        """
        limited = sampled and self.restrictions.are_any
        query = self._limited_window if limited else self._sampled_window
        # One state throughout: rows that are evicted meanwhile stay in what is chosen.
        with (
            translated(self.url),
            self._dialect.snapshot(self.engine, query) as connection,
        ):
            found = answer(connection)
            if not found:
                raise self._dropped()
            if not limited:
                ((low, high),) = found
                population = Population(connection, self.info.id, low, high, node, columns)
            else:
                (now,) = found
                population = self.restrictions.population(
                    connection, SampledWindow(*now), server_epoch(self.engine), node, columns
                )
            if self.info.priorities:
                population.priorities = Priorities(
                    population, self.info, self.options.alpha, self._upkeep
                )
            yield population

    @cached_property
    def _sampled_window(self) -> str:
        return _text_of(statements.sampled_window(self.info.id, self.info.evict_by), self.engine)

    @cached_property
    def _limited_window(self) -> str:
        window = statements.sampled_window(self.info.id, self.info.evict_by, limited=True)
        return _text_of(window, self.engine)

    def _skip_barred(self, population: Population) -> None:
        """Where a draw found few rows that may be sampled, find out where they begin."""
        if not self.restrictions.floor.is_due(population):
            return
        # The draw is done, whatever becomes of this.
        with suppress(StorageError), translated(self.url):
            epoch = server_epoch(self.engine)
            settled = self._dialect.settled(self.engine, self.info.id)
            with self._dialect.snapshot(self.engine, self._limited_window) as connection:
                for now in answer(connection):
                    self.restrictions.look(connection, SampledWindow(*now), settled, epoch)

    @property
    def clock(self) -> int | None:
        """The learner's iteration or model version; None before it was set."""
        return self._clock()

    @_survives
    def _clock(self) -> int | None:
        with translated(self.url), self.engine.connect() as connection:
            found = connection.execute(
                select(buffers.c.clock).where(buffers.c.id == self.info.id)
            ).one_or_none()
            if found is None:
                raise self._dropped()
            clock: int | None = found.clock
            return clock

    def set_clock(self, clock: int) -> None:
        """Set the clock."""
        change = update(buffers).where(buffers.c.id == self.info.id).values(clock=clock)
        if not self.write(lambda connection: connection.execute(change).rowcount):
            raise self._dropped()

    @_survives
    def window(self) -> Window:
        """Return the window now."""
        with translated(self.url), self.engine.connect() as connection:
            return self._window(connection)

    def _window(self, connection: Connection) -> Window:
        row = connection.execute(statements.window(self.info.id)).one_or_none()
        if row is None:
            raise self._dropped()
        return Window(
            row.max_capacity,
            row.max_episodes,
            row.evict_unit,
            row.deletions,
            row.live_rows,
            row.low_seq,
            row.high_seq,
        )

    def _dropped(self) -> BufferNotFoundError:
        return BufferNotFoundError(
            f"buffer {self.info.name!r} was dropped from {shown_url(self.url)}"
        )

    @_survives
    def count(self, node: Node) -> int:
        """Return how many rows match; without a condition nothing is scanned."""
        with translated(self.url):
            settled = (
                self._dialect.settled(self.engine, self.info.id) if node == EVERYTHING else None
            )
            with self._dialect.snapshot(self.engine) as connection:
                window = self._window(connection)
                if node == EVERYTHING:
                    return self._count_all(connection, window, settled)
                where = statements.in_window(self.info.id, window.low, node)
                return int(
                    connection.execute(
                        select(func.count()).select_from(experiences).where(where)
                    ).scalar_one()
                )

    @_survives
    def settled(self) -> int:
        """Return a seq up to which no row can appear any more."""
        with translated(self.url):
            settled = self._dialect.settled(self.engine, self.info.id)
            return self.window().high if settled is None else settled

    def _count_all(self, connection: Connection, window: Window, settled: int | None) -> int:
        if window.evict_by != "row":
            return window.live_rows
        end = window.high if settled is None else min(settled, window.high)
        state = (window.deletions, server_epoch(self.engine))
        return self._live_count.count(connection, self.info.id, window.low, window.high, end, state)

    def pages(self, node: Node) -> Iterator[Sequence[Row]]:
        """Stream all rows that match and are there now, in insert order; no transaction is open
        between pages.
        """
        return self._pages(node, *self._now())

    @_survives
    def _now(self) -> tuple[int, int, frozenset[int]]:
        """Return what tells the rows that are there now: all up to a first number, none above a
        second, and between them those of a set: rows may still be committed there.
        """
        with translated(self.url):
            settled = self._dialect.settled(self.engine, self.info.id, SETTLING_S)
            with self._dialect.snapshot(self.engine) as connection:
                high = self._window(connection).high
                if settled is None or settled >= high:
                    return high, high, frozenset()
                low = max(settled, self._window(connection).low)
                recent = statements.in_window(self.info.id, low, EVERYTHING)
                found = connection.execute(statements.seqs(recent)).scalars()
                return settled, high, frozenset(found)

    def _pages(
        self, node: Node, settled: int, end: int, recent: frozenset[int]
    ) -> Iterator[Sequence[Row]]:
        cursor, limit = -1, FIRST_PAGE_ROWS
        while True:
            page = self.after(node, cursor, end, limit)
            if shown := [row for row in page if row[0] <= settled or row[0] in recent]:
                yield shown
            if len(page) < limit:
                return
            cursor, limit = page[-1][0], _next_limit(page)

    @_survives
    def after(self, node: Node, cursor: int, end: int, limit: int) -> list[Row]:
        """Return the first `limit` rows that match with cursor < seq <= end, in insert order."""
        seq = statements.seq_for(node)
        with translated(self.url), self._dialect.snapshot(self.engine) as connection:
            low = max(cursor, self._window(connection).low)
            where = statements.in_window(self.info.id, low, node) & (seq <= end)
            return statements.fetch(connection, statements.rows(where).order_by(seq).limit(limit))

    @_survives
    def page(self, node: Node, offset: int, limit: int) -> list[Row]:
        """Return up to `limit` rows that match, in insert order, after the first `offset`."""
        with self.population(node) as population:
            return population.rows(population.page(offset, limit))

    @_survives
    def tasks(self, task_ids: Sequence[str]) -> dict[str, list[Row]]:
        """Return every live row of the tasks, each task's in the order of (episode, step,
        execute_time).
        """
        with translated(self.url), self._dialect.snapshot(self.engine) as connection:
            return self._tasks(connection, task_ids)

    def _tasks(self, connection: Connection, task_ids: Sequence[str]) -> dict[str, list[Row]]:
        found: dict[str, list[Row]] = {task_id: [] for task_id in task_ids}
        wanted = [task_id for task_id in found if is_storable_text(task_id)]
        low = self._window(connection).low
        for start in range(0, len(wanted), TASKS_AT_ONCE):
            where = statements.of_tasks(self.info.id, low, wanted[start : start + TASKS_AT_ONCE])
            for row in statements.fetch(connection, statements.rows(where)):
                found[row[TASK_ID]].append(row)
        for rows in found.values():
            rows.sort(key=_task_order)
        return found

    def statement(self, node: Node) -> Select[Any]:
        """Return the select of all rows that match."""
        where = statements.in_window(self.info.id, self.window().low, node)
        return statements.rows(where).order_by(statements.seq_for(node))

    def sql(self, node: Node) -> str:
        """Return that select as text, its values written out."""
        return _text_of(self.statement(node), self.engine)

    @_survives
    def explain(self, node: Node) -> str:
        """Return the database's plan of that select."""
        statement = explain(self.statement(node))
        with translated(self.url), self.engine.connect() as connection:
            return "\n".join(str(row[-1]) for row in connection.execute(statement))


def _text_of(statement: Select[Any], engine: Engine) -> str:
    """Return a statement with its values written out."""
    compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
    # A driver with %s placeholders has every other % doubled.
    return str(compiled) % () if compiled.dialect.paramstyle == "pyformat" else str(compiled)


def _has_stale(rows: Sequence[Row], oldest: int | None) -> bool:
    """Tell whether one of the rows is of a version below the oldest that may be sampled."""
    if oldest is None:
        return False
    return any(row[MODEL_VERSION] is not None and row[MODEL_VERSION] < oldest for row in rows)


def _task_order(row: Row) -> tuple[Any, ...]:
    """Order by episode, step and time, then by insert; what is missing comes first."""
    seq, episode, step, time = row[0], row[EPISODE_KEY], row[STEP], row[EXECUTE_TIME]
    return (
        episode is not None,
        episode or "",
        step,
        float("-inf") if time is None else time,
        seq,
    )


def _next_limit(page: Sequence[Row]) -> int:
    size = sum(len(value) for row in page for value in row if isinstance(value, (str, bytes))) or 1
    return max(1, min(MAX_PAGE_ROWS, PAGE_BYTES * len(page) // size))
