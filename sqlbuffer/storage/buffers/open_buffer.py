"""An opened buffer: its connections and its window."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Select
from sqlalchemy.engine import URL

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import (
    BufferNotFoundError,
)
from sqlbuffer.query.condition_tree import Node
from sqlbuffer.query.selected_fields import SelectedFields
from sqlbuffer.storage.buffers.catalog import BufferInfo
from sqlbuffer.storage.database.engine import (
    begin_epoch,
    close_idle,
    engine_for,
    server_epoch,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.database.transactions import answer
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.dialects.base import Dialect
from sqlbuffer.storage.flow.pacing import WAIT_S
from sqlbuffer.storage.labels.late_values import resolve_labels
from sqlbuffer.storage.priorities.priority_candidates import Priorities
from sqlbuffer.storage.priorities.upkeep import Upkeep
from sqlbuffer.storage.rows import statements
from sqlbuffer.storage.rows.payload_parts import Payloads
from sqlbuffer.storage.rows.row_selection import RowSelection
from sqlbuffer.storage.sampling.candidates import Candidates
from sqlbuffer.storage.sampling.restrictions import Restrictions, SampledWindow
from sqlbuffer.storage.writing.applied_writes import WriteOnce

RETRY_S = 30.0

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True)
class OpenerOptions:
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


DEFAULT_OPTIONS = OpenerOptions()


@dataclass(frozen=True)
class BufferWindow:
    """Which rows a buffer is: those with low < seq <= high."""

    max_capacity: int | None
    max_episodes: int | None
    evict_by: str
    deletions: int
    live_rows: int
    low: int
    high: int
    has_labels: bool


Method = Callable[Concatenate[Any, P], T]


def retry_on_disconnect(method: Method[P, T]) -> Method[P, T]:
    """Repeat a method after a deadlock, which undid what it did, or a lost connection."""

    @wraps(method)
    def repeating(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(method, self, *args, **kwargs)
        return retried(work, self.options.retry_s, self.forget_connections)

    return repeating


class OpenBuffer:
    """What all that is asked of a buffer goes by.

    Attributes:
        url: Resolved URL of the database.
        info: The buffer.
        options: What the opener chose.
        restrictions: What it restricts sampling to.
        layout: How the bytes of its rows are laid out.
    """

    url: URL
    info: BufferInfo
    options: OpenerOptions
    restrictions: Restrictions
    layout: Layout
    _engine: Engine | None
    _made_engine: bool
    _dialect: Dialect
    _upkeep: Upkeep

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

    def forget_connections(self) -> None:
        """When one connection was lost, those idle in the pool are dead as well."""
        begin_epoch(self.engine)
        self.engine.dispose()

    def once(self) -> WriteOnce[Any]:
        """Return what has one write to this buffer take effect once."""
        return WriteOnce(self._dialect, self.url, self.info.id, self.options.retry_s)

    def write(self, work: Callable[[Connection], T], durability: str | None = None) -> T:
        """Return what is done in one transaction; done once, also over lost connections.

        Args:
            work: What is done. Called again where the transaction was not committed.
            durability: Another one than the opener chose.
        """
        once: WriteOnce[T] = self.once()
        durability = durability or self.options.durability
        return retried(
            lambda: once.run(self.engine, durability, work),
            self.options.retry_s,
            self.forget_connections,
        )

    @retry_on_disconnect
    def window(self) -> BufferWindow:
        """Return the window now."""
        with translated(self.url), self.engine.connect() as connection:
            return self._window(connection)

    def _window(self, connection: Connection) -> BufferWindow:
        row = connection.execute(statements.window(self.info.id)).one_or_none()
        if row is None:
            raise self._dropped()
        return BufferWindow(
            row.max_capacity,
            row.max_episodes,
            row.evict_unit,
            row.deletions,
            row.live_rows,
            row.low_seq,
            row.high_seq,
            bool(row.has_labels),
        )

    def dropped(self) -> BufferNotFoundError:
        """Return the error of a buffer that is there no more."""
        return self._dropped()

    def _dropped(self) -> BufferNotFoundError:
        return BufferNotFoundError(
            f"buffer {self.info.name!r} was dropped from {shown_url(self.url)}"
        )

    @contextmanager
    def candidates(
        self,
        node: Node,
        columns: RowSelection | Sequence[Any] | None = None,
        *,
        sampled: bool = False,
    ) -> Iterator[Candidates]:
        """What a sampler chooses from, while the connection lives.

        Args:
            node: Which rows.
            columns: What is read of them; whole rows by default.
            sampled: Only those that may be sampled.
        """
        columns = self.whole_rows.reading if columns is None else columns
        # One state throughout: rows that are evicted meanwhile stay in what is chosen.
        with (
            translated(self.url),
            self._dialect.snapshot(self.engine, self._sampled_window) as connection,
        ):
            found = answer(connection)
            if not found:
                raise self._dropped()
            now = SampledWindow(*found[0])
            node = resolve_labels(node, bool(now.has_labels))
            if not (sampled and self.restrictions.are_any(now)):
                candidates = Candidates(connection, self.info.id, now.low, now.high, node, columns)
            else:
                candidates = self.restrictions.candidates(
                    connection, now, server_epoch(self.engine), node, columns
                )
            candidates.has_labels = bool(now.has_labels)
            if self.info.priorities:
                candidates.priorities = self.priorities_of(candidates)
            yield candidates

    def priorities_of(self, candidates: Candidates) -> Priorities:
        """Return the priorities of the candidates."""
        return Priorities(candidates, self.info, self.options.alpha, self._upkeep)

    @cached_property
    def whole_rows(self) -> Payloads:
        """What reads whole rows."""
        return self.payloads()

    def payloads(
        self, wanted: SelectedFields | None = None, only: frozenset[str] | None = None
    ) -> Payloads:
        """Return what reads rows, whole or in part."""
        return Payloads(self.info.id, self.layout, wanted, only)

    @cached_property
    def _sampled_window(self) -> str:
        return text_of(statements.sampled_window(self.info.id, self.info.evict_by), self.engine)

    def sampled_window(self, connection: Connection) -> SampledWindow:
        """Return which rows may be sampled, and what limits go by."""
        statement = statements.sampled_window(self.info.id, self.info.evict_by)
        found = connection.execute(statement).one_or_none()
        if found is None:
            raise self._dropped()
        return SampledWindow(*found)

    @retry_on_disconnect
    def settled(self) -> int:
        """Return a seq up to which no row can appear any more."""
        with translated(self.url):
            settled = self._dialect.settled(self.engine, self.info.id)
            return self.window().high if settled is None else settled


def text_of(statement: Select[Any], engine: Engine) -> str:
    """Return a statement with its values written out."""
    compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
    # A driver with %s placeholders has every other % doubled.
    return str(compiled) % () if compiled.dialect.paramstyle == "pyformat" else str(compiled)
