"""An open buffer: its connections, its transactions and its window."""

import os
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar
from uuid import uuid4

from sqlalchemy import (
    Connection,
    Engine,
    Integer,
    Select,
    bindparam,
    case,
    select,
    update,
)
from sqlalchemy.engine import URL

from sqlbuffer.config import DEFAULT_CONNECTION, BufferConfig
from sqlbuffer.config import Connection as ConnectionOptions
from sqlbuffer.encoding.packing import Layout
from sqlbuffer.errors import BufferConfigError, BufferNotFoundError, StorageFullError
from sqlbuffer.storage.buffers.catalog import BufferInfo, lock_buffer, read_config
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.buffers.window import SELECT_WINDOW, BufferWindow, settled_seq, windows
from sqlbuffer.storage.buffers.writes import WriteOnce
from sqlbuffer.storage.database.engine import begin_epoch, close_idle, engine_for
from sqlbuffer.storage.database.errors import retried, translated
from sqlbuffer.storage.database.transactions import is_joined, joined_connection, reading
from sqlbuffer.storage.database.urls import is_memory, shown_url
from sqlbuffer.storage.dialects import reuse_log
from sqlbuffer.storage.watermarks import Watermark

# Limit of the waiting steps that a draw may leave out: one for this many stored steps.
FEWEST_STORED_FOR_ONE = 64


class WaitingSteps(Protocol):
    """Steps that wait to be stored."""

    @property
    def n_waiting(self) -> int:
        """Number of waiting steps."""

    @property
    def is_empty(self) -> bool:
        """No step waits."""

    def store_now(self) -> None:
        """Store the waiting steps, as far as a rate limiter allows without a wait."""


class OwnWrites:
    """Stores the waiting steps of this process before it reads the buffer.

    A call that reads rows sees all steps. A random draw may leave out the newest ones if they are
    few compared to the stored ones: storing them before each draw would make a chunk of each step.
    A writer stores them after `flush_s` in any case.
    """

    def __init__(self) -> None:
        self._queues: list[WaitingSteps] = []
        self._n_stored = 0

    def add(self, queue: WaitingSteps) -> None:
        """Add a queue whose waiting steps are stored before reads."""
        self._queues.append(queue)

    def store(self) -> None:
        """Store all waiting steps; not in a transaction, which may be undone."""
        if is_joined():
            return
        for queue in self._queues:
            if not queue.is_empty:
                queue.store_now()

    def store_before_draw(self, n: int, count: Callable[[], int]) -> None:
        """Store the waiting steps if they are too many for the draw to leave out.

        Args:
            n: Number of items to draw.
            count: Function that returns how many steps are stored.
        """
        n_waiting = 0
        for queue in self._queues:  # a third of the time of a generator
            n_waiting += queue.n_waiting
        if n_waiting and self._is_missed(n_waiting, n):
            self._n_stored = count()
            if self._is_missed(n_waiting, n):
                self.store()
                self._n_stored += n_waiting

    def catch_up(self) -> None:
        """Do nothing: a read sees what was committed; see `StandbyReads`."""

    def catch_up_with_all(self) -> None:
        """Do nothing: a read sees what other processes have committed too."""

    def wait_for(self, seq: int) -> None:
        """Do nothing: a read sees what another process has read."""

    def _is_missed(self, n_waiting: int, n: int) -> bool:
        return self._n_stored < max(n, n_waiting * FEWEST_STORED_FOR_ONE)


# SQLite reads a whole chunk for one of its steps: this size fills two pages. PostgreSQL reads parts
# of 2 KB.
CHUNK_BYTES = {"sqlite": 8_000, "postgresql": 2**18}

_LOW, _HIGH = (
    select(windows.c[name]).where(windows.c.buffer_id == buffers.c.id).scalar_subquery()
    for name in ("low_seq", "high_seq")
)
_NOTE_DELETION = (
    update(buffers)
    .where(buffers.c.id == bindparam("own_id", type_=Integer()))
    .values(
        deletions=buffers.c.deletions + 1,
        # Another process may have raised it since the statement began.
        low_seq=case((buffers.c.low_seq < _LOW, _LOW), else_=buffers.c.low_seq),
    )
    .returning(
        *(
            buffers.c[name]
            for name in (
                "max_capacity", "max_episodes", "evict_unit", "deletions", "live_rows", "low_seq",
            )
        ),
        _HIGH,
        buffers.c.has_labels,
        buffers.c.n_added,
    )
)  # fmt: skip

P = ParamSpec("P")
T = TypeVar("T")


class OpenBuffer:
    """A buffer that this process has opened: its connections, transactions and window.

    Args:
        url: Resolved URL of the database.
        info: The buffer.
        engine: An engine of this buffer alone; if omitted, this process's engine of the URL.
        made_engine: The library made that engine, not the user.
        options: Options of the opener.

    Attributes:
        layout: Byte layout of its steps.
        observation_layout: Byte layout of an observation.
        is_closed: True if it was closed: draws are refused, and reads and writes still work.
        watermark: Number up to which no row can appear any more.
        last_window: The window that was read last; None before the first read.
        own_writes: Stores the waiting steps of this process before it reads.
    """

    def __init__(
        self,
        url: URL,
        info: BufferInfo,
        engine: Engine | None = None,
        *,
        made_engine: bool = False,
        options: ConnectionOptions = DEFAULT_CONNECTION,
    ) -> None:
        self.url, self.info, self.options = url, info, options
        self._engine, self._made_engine = engine, made_engine
        fields, compression = info.config.fields, info.config.payloads.compression
        self.layout = self._layout_of(info.config)
        self.observation_layout = Layout(
            {name: fields.specs[name] for name in fields.observations}, compression
        )
        self.watermark = Watermark(info.id)
        self.last_window: BufferWindow | None = None
        self.own_writes = OwnWrites()
        self._origins: dict[int, str] = {}
        self.is_closed = False

    def _layout_of(self, config: BufferConfig) -> Layout:
        compression = config.payloads.compression
        chunk_bytes = CHUNK_BYTES[self.url.get_backend_name()]
        layout = Layout(config.fields.specs, compression, chunk_bytes)
        layout.learn = self.learn_fields
        return layout

    def learn_fields(self, connection: Connection | None = None) -> Layout:
        """Take the fields that have been added to the buffer since; return the layout of all.

        Args:
            connection: The transaction, if there is one.
        """
        config = (
            self.current_config() if connection is None else read_config(connection, self.info.id)
        )
        newest = self._layout_of(config)
        if newest.number > self.layout.number:
            fields = {"fields": config.fields}
            self.info.config = self.info.config.model_copy(update=fields)
            self.layout.become(newest)
        return self.layout

    @property
    def shares_messages(self) -> bool:
        """Whether each message of its conversations is stored once."""
        return self.info.config.payloads.shared_messages

    @property
    def reading(self) -> "OpenBuffer":
        """The same buffer where it is read, which may be a standby."""
        return self

    def __getstate__(self) -> dict[str, Any]:
        if is_memory(self.url):
            raise TypeError(
                "a buffer in memory belongs to one process and cannot be pickled; "
                "give it a file: sqlite:///replay.db"
            )
        return {"url": self.url, "info": self.info, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    @property
    def engine(self) -> Engine:
        """This process's engine; after a fork it is another one."""
        return self._engine if self._engine is not None else engine_for(self.url)

    @property
    def origin(self) -> str:
        """The random id by which this opener, in this process, signs entries of the change log."""
        return self._origins.setdefault(os.getpid(), str(uuid4()))

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return shown_url(self.url)

    def text_of(self, statement: Select[Any]) -> str:
        """Return a statement as it runs here, with its values written out."""
        compiled = statement.compile(self.engine, compile_kwargs={"literal_binds": True})
        # A driver with %s placeholders has every other % doubled.
        return str(compiled) % () if compiled.dialect.paramstyle == "pyformat" else str(compiled)

    def close(self) -> None:
        """Close idle connections of the library's own engine; a database in memory ends."""
        self.is_closed = True
        if self._engine is None:
            close_idle(self.url)
        elif self._made_engine:
            self._engine.dispose()

    def check_open(self) -> None:
        """Raise before a draw if this object was closed.

        Raises:
            BufferConfigError: It was.
        """
        if self.is_closed:
            name = self.info.name
            raise BufferConfigError(
                f"buffer {name!r} is closed, by close() or the end of its with block, and gives no "
                f"batches; draw before that, or open it again: "
                f"ReplayBuffer({self.shown_url!r}, {name!r})"
            )

    def forget_connections(self) -> None:
        """Drop the pool's idle connections: when one connection was lost, they are dead as well."""
        begin_epoch(self.engine)
        self.engine.dispose()

    def once(self, *, is_queued: bool = False) -> WriteOnce[Any]:
        """Return a runner that makes one write to this buffer take effect once; see `WriteOnce`."""
        return WriteOnce(self.url, self.info.id, self.options.retry_s, is_queued=is_queued)

    def with_retries(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, called again after a lost connection, and once more if the
        disk was full and the log had space.
        """
        try:
            return retried(work, self.options.retry_s, self.forget_connections)
        except StorageFullError:
            # The log is busy with the transaction around, which is tried again as a whole.
            if is_joined() or not reuse_log(self.engine):
                raise
        return retried(work, self.options.retry_s, self.forget_connections)

    def write(
        self,
        work: Callable[[Connection], T],
        durability: str | None = None,
        wait_s: float | None = None,
    ) -> T:
        """Run `work` in one transaction that takes effect once, also after lost connections.

        Args:
            work: Function to run. It is called again if the transaction was not committed.
            durability: Durability for this write, instead of the opener's.
            wait_s: See `Begin`.
        """
        connection = joined_connection(self.engine)
        if connection is not None:
            with translated(self.url):
                return work(connection)
        once: WriteOnce[T] = self.once()
        durability = durability or self.options.durability
        return self.with_retries(lambda: once.run(self.engine, durability, work, wait_s=wait_s))

    def read(self, work: Callable[[Connection], T]) -> T:
        """Return the result of `work` on a connection that reads, also after lost connections."""
        connection = joined_connection(self.engine)
        if connection is not None:
            with translated(self.url):
                return work(connection)

        def look() -> T:
            with translated(self.url), reading(self.engine) as connection:
                return work(connection)

        return self.with_retries(look)

    def window(self) -> BufferWindow:
        """Return the current window."""
        return self.read(self.window_in)

    def current_config(self) -> BufferConfig:
        """Return the configuration that is stored now."""
        return self.read(lambda connection: read_config(connection, self.info.id))

    def window_in(self, connection: Connection) -> BufferWindow:
        """Return the window in a transaction.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        row = connection.execute(SELECT_WINDOW, {"of_buffer": self.info.id}).one_or_none()
        return self._window_of(connection, row)

    def _window_of(self, connection: Connection, row: Any) -> BufferWindow:
        if row is None:
            raise self.dropped()
        self.last_window = BufferWindow(*row)
        if self.last_window.n_added > self.layout.number:
            self.learn_fields(connection)
        return self.last_window

    def lock(self, connection: Connection) -> None:
        """Lock the row of the buffer until the transaction ends."""
        if not lock_buffer(connection, self.info.id):
            raise self.dropped()

    def note_deletion(self, connection: Connection) -> BufferWindow:
        """Store the window's lower end, count a deletion inside it, and return the window.

        Raises:
            BufferNotFoundError: The buffer was dropped.
        """
        row = connection.execute(_NOTE_DELETION, {"own_id": self.info.id}).one_or_none()
        return self._window_of(connection, row)

    def dropped(self) -> BufferNotFoundError:
        """Return the error for a buffer that was dropped."""
        return BufferNotFoundError(
            f"buffer {self.info.name!r} was dropped from {shown_url(self.url)}"
        )

    def settled(self) -> int:
        """Return a seq up to which no row can appear any more."""

        def look() -> int:
            with translated(self.url):
                settled = settled_seq(self.engine, self.watermark)
                return self.window().high if settled is None else settled

        return self.with_retries(look)


class BufferPart(Protocol):
    """An object that works on an open buffer."""

    @property
    def buffer(self) -> OpenBuffer:
        """The buffer."""


Part = TypeVar("Part", bound=BufferPart)


def retry_on_disconnect(
    method: Callable[Concatenate[Part, P], T],
) -> Callable[Concatenate[Part, P], T]:
    """Repeat a method of a part after a deadlock, which undid it, or after a lost connection."""

    @wraps(method)
    def repeating(self: Part, /, *args: P.args, **kwargs: P.kwargs) -> T:
        buffer, work = self.buffer, partial(method, self, *args, **kwargs)
        return retried(work, buffer.options.retry_s, buffer.forget_connections)

    return repeating
