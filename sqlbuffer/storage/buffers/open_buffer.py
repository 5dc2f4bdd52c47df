"""An open buffer: its connections, its transactions and its window."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, Select, case, update
from sqlalchemy.engine import URL

from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import (
    BufferNotFoundError,
)
from sqlbuffer.storage.buffers.applied_writes import WriteOnce
from sqlbuffer.storage.buffers.buffer_info import BufferInfo
from sqlbuffer.storage.buffers.buffer_window import BufferWindow, select_window
from sqlbuffer.storage.buffers.locks import lock_buffer
from sqlbuffer.storage.buffers.settling import settled_seq
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import (
    begin_epoch,
    close_idle,
    engine_for,
)
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.retrying import retried
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.watermarks.watermark import Watermark

RETRY_S = 30.0
WAIT_S = 300.0

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


Method = Callable[Concatenate[Any, P], T]


def retry_on_disconnect(method: Method[P, T]) -> Method[P, T]:
    """Repeat a method after a deadlock, which undid what it did, or a lost connection."""

    @wraps(method)
    def repeating(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        work = partial(method, self, *args, **kwargs)
        return retried(work, self.options.retry_s, self.forget_connections)

    return repeating


class OpenBuffer:
    """A buffer that this process has opened: its connections, transactions and window.

    Attributes:
        url: Resolved URL of the database.
        info: The buffer.
        options: What the opener chose.
        layout: How the bytes of its rows are laid out.
    """

    url: URL
    info: BufferInfo
    options: OpenerOptions
    layout: Layout
    watermark: Watermark
    _engine: Engine | None
    _made_engine: bool

    @property
    def engine(self) -> Engine:
        """This process's engine: another one after a fork."""
        return self._engine if self._engine is not None else engine_for(self.url)

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
        return WriteOnce(self.url, self.info.id, self.options.retry_s)

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
        row = connection.execute(select_window(self.info.id)).one_or_none()
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

    def lock(self, connection: Connection) -> None:
        """Lock the row of the buffer until the transaction ends."""
        if not lock_buffer(connection, self.info.id):
            raise self._dropped()

    def note_deletion(self, connection: Connection) -> BufferWindow:
        """Keep the window's lower end, and count a deletion inside it; return the window."""
        window = self._window(connection)
        low_seq = case((buffers.c.low_seq < window.low, window.low), else_=buffers.c.low_seq)
        connection.execute(
            update(buffers)
            .where(buffers.c.id == self.info.id)
            .values(deletions=buffers.c.deletions + 1, low_seq=low_seq)
        )
        return window

    def dropped(self) -> BufferNotFoundError:
        """Return the error of a buffer that is there no more."""
        return self._dropped()

    def _dropped(self) -> BufferNotFoundError:
        return BufferNotFoundError(
            f"buffer {self.info.name!r} was dropped from {shown_url(self.url)}"
        )

    @retry_on_disconnect
    def settled(self) -> int:
        """Return a seq up to which no row can appear any more."""
        with translated(self.url):
            settled = settled_seq(self.engine, self.watermark)
            return self.window().high if settled is None else settled


def text_of(statement: Select[Any], engine: Engine) -> str:
    """Return a statement with its values written out."""
    compiled = statement.compile(engine, compile_kwargs={"literal_binds": True})
    # A driver with %s placeholders has every other % doubled.
    return str(compiled) % () if compiled.dialect.paramstyle == "pyformat" else str(compiled)
