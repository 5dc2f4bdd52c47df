"""What every test needs of the storage's internals.

Tests outside `tests/storage` use public names only. This module is the exception: no public call
makes a schema without a buffer, closes the pool of a URL, stops what comes by chance, or brings
blocks of priorities into a given state.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
from sqlalchemy import Connection, Engine, text

from sqlbuffer import BufferConfig, ReplayBuffer
from sqlbuffer.encoding.records import Record
from sqlbuffer.storage.database import engine, kept_connections, pipelines
from sqlbuffer.storage.database.engine import close_idle, engine_for, resolve_url
from sqlbuffer.storage.database.sqlite import CONNECTION_PRAGMAS
from sqlbuffer.storage.database.transactions import BEGIN, READ
from sqlbuffer.storage.database.vacuum import cleaner_for
from sqlbuffer.storage.migrations import migrate as migrations
from sqlbuffer.storage.rows.payload_parts import PART_BYTES
from sqlbuffer.storage.sampling import rare_conditions
from sqlbuffer.storage.schema.metadata import roles_script
from sqlbuffer.storage.schema.views import VIEWS as VIEWS
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.writing.rows import WriteBatch

__all__ = [
    "CONNECTION_PRAGMAS",
    "PART_BYTES",
    "VIEWS",
    "cleaner_of",
    "close_pool",
    "each_checked_out",
    "engine_behind",
    "engine_of",
    "first_query",
    "forget_conditions",
    "housekeeping_on_request",
    "keep_blocks",
    "make_groups",
    "migrate",
    "open_store",
    "remembered_conditions",
    "remembering_in_small_buffers",
    "run_inside",
    "sharing_compiled_statements",
    "store_records",
    "summarize_blocks",
]

# A test of random conditions makes thousands.
_MOST_STATEMENTS = 2_000


def migrate(url: str) -> None:
    """Make the schema in an empty database."""
    migrations.upgrade(url)
    close_pool(url)


def engine_of(url: str) -> Engine:
    """Return the engine that the library uses for a URL, to watch its connections."""
    return engine_for(resolve_url(url))


def engine_behind(buffer: ReplayBuffer) -> Engine:
    """Return the engine of an open buffer, also of one in memory."""
    return buffer._store.engine


@contextmanager
def each_checked_out(engine: Engine) -> Iterator[None]:
    """Have each transaction of a file check a connection out of the pool: listeners see that."""
    is_kept = engine in kept_connections._kept
    kept_connections.drop_connections(engine)
    try:
        yield
    finally:
        if is_kept:
            kept_connections.keep_connections(engine)


@contextmanager
def remembering_in_small_buffers(most: int = rare_conditions.MOST_NUMBERS) -> Iterator[None]:
    """Let draws remember up to `most` steps of conditions on buffers that take no time to scan."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rare_conditions, "FEWEST_STEPS", 1)
        patch.setattr(rare_conditions, "MOST_NUMBERS", most)
        yield


@contextmanager
def counting_in_pipelines(query: str, note: Callable[[Any, Any], None]) -> Iterator[None]:
    """Run a query before and after the work of each transaction that is sent as a whole, and pass
    the two rows on.
    """
    answers = pipelines._answers

    def counted(driver: Any, statements: Sequence[pipelines.Statement]) -> list[pipelines.Rows]:
        if statements[-1].text != "COMMIT":
            return answers(driver, statements)
        *begin, work, commit = statements
        count = pipelines.Statement(query)
        *of_begin, before, rows, after, end = answers(driver, [*begin, count, work, count, commit])
        note(before[0], after[0])
        return [*of_begin, rows, end]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipelines, "_answers", counted)
        yield


def remembered_conditions(buffer: ReplayBuffer) -> int:
    """Return how many rare conditions an open buffer remembers."""
    return len(buffer._store.source.rare_conditions.known)


def forget_conditions(buffer: ReplayBuffer) -> None:
    """Let the next draws of an open buffer scan it."""
    buffer._store.source.rare_conditions.clear()


def cleaner_of(engine: Engine) -> threading.Thread | None:
    """Return the thread that looks after dead rows, if there is one."""
    return cleaner_for(engine).thread


def run_inside(buffer: ReplayBuffer, statement: str) -> None:
    """Run a statement in a transaction of an open buffer."""
    buffer._store.write(lambda connection: connection.execute(text(statement)))


def first_query(connection: Connection) -> str | None:
    """Return the query that the driver sends along with the beginning of a transaction."""
    begin = connection.get_execution_options().get(BEGIN, READ)
    return None if begin is None else begin.query


def close_pool(url: str) -> None:
    """Close what the library keeps open for a URL: files and connections would add up."""
    close_idle(resolve_url(url))


def make_groups(url: str) -> list[str]:
    """Run the script of roles in a database and return the groups that it made."""
    query = "SELECT rolname FROM pg_roles WHERE NOT rolcanlogin"
    with psycopg.connect(url, autocommit=True) as connection:
        known = {name for (name,) in connection.execute(query)}
        connection.execute(roles_script())
        return [name for (name,) in connection.execute(query) if name not in known]


@contextmanager
def housekeeping_on_request() -> Iterator[None]:
    """Run no housekeeping that a test did not ask for.

    A pass would remove used-up rows between two lines of a slow test. A look at dead rows comes by
    chance, among the statements that a test counts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sqlbuffer.storage.retention.expiry.EXPIRE_EVERY_S", 3_600.0)
        patch.setattr("sqlbuffer.storage.database.vacuum.chance", lambda: 0.0)
        yield


class _CompiledStatements(dict[tuple[Any, ...], Any]):
    """Compiled statements of all engines; SQLAlchemy keeps those of each engine apart."""

    def get(self, key: tuple[Any, ...], default: Any = None) -> Any:
        return super().get(self._shared(key), default)

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:
        if len(self) >= _MOST_STATEMENTS:
            self.clear()
        super().__setitem__(self._shared(key), compiled)

    @staticmethod
    def _shared(key: tuple[Any, ...]) -> tuple[Any, ...]:
        dialect, *rest = key
        return (type(dialect), dialect.server_version_info, dialect.default_schema_name, *rest)


@contextmanager
def sharing_compiled_statements() -> Iterator[None]:
    """Compile each statement once for all databases, not once for the database of each test."""
    options = {"compiled_cache": _CompiledStatements()}
    create_engine = engine.create_engine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            engine,
            "create_engine",
            lambda *args, **settings: create_engine(*args, execution_options=options, **settings),
        )
        yield


def summarize_blocks(buffer: ReplayBuffer, n: int) -> int:
    """Summarize the first n blocks of priorities, and return how many it could."""
    return buffer._store.priorities.summarize(range(n))


def keep_blocks(buffer: ReplayBuffer) -> None:
    """Let draws of this buffer leave blocks of priorities without a summary as they are."""
    buffer._store.priorities.upkeep.is_known = True


def open_store(url: str, **settings: Any) -> BufferStore:
    """Open a buffer without a `ReplayBuffer`, for tests of its parts alone."""
    return BufferStore.open(url, "default", BufferConfig.of(**settings), create=True)


def store_records(store: BufferStore, records: Sequence[Record]) -> None:
    """Store rows that are encoded already."""
    store.writer.store(WriteBatch(records))
