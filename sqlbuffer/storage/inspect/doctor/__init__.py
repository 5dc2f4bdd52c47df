"""Checks of a database, with one finding each. They change no data."""

import re
import warnings
from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, Engine, Text, cast, literal, select
from sqlalchemy.engine import URL

from sqlbuffer.errors import StorageError
from sqlbuffer.storage.buffers import catalog
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.sqlite import NetworkFileSystemWarning, existing_file
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.holds import holds
from sqlbuffer.storage.inspect.doctor import postgresql, sqlite
from sqlbuffer.storage.inspect.doctor.finding import (
    Check,
    Finding,
    failure,
    fetch_all,
)
from sqlbuffer.storage.migrations import migrate
from sqlbuffer.storage.schema.server_clock import in_seconds

__all__ = ["Finding", "examine", "glance"]

_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
# A server is refused for a feature that it lacks, never for its version.
OLDEST_TESTED = {"sqlite": (3, 38), "postgresql": (15,)}
_CHECKS = {"sqlite": sqlite.CHECKS, "postgresql": postgresql.CHECKS}
MANY_STRAGGLERS = 10_000
_CREATE = re.compile(
    r"^(CREATE|DROP) (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|TRIGGER|FUNCTION|VIEW) \"?(\w+)",
    re.MULTILINE,
)


def examine(url: Database, *, full: bool = False) -> Iterator[Finding]:
    """Check a database, most basic checks first.

    Args:
        url: The database.
        full: Also read the whole of a SQLite file.

    Raises:
        URLError: Not a URL of SQLite or PostgreSQL, or a database in memory.
    """
    resolved = resolve_url(url)
    try:
        if resolved.get_backend_name() == "sqlite":
            existing_file(resolved)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NetworkFileSystemWarning)  # a finding of its own
            engine = engine_for(resolved)
        with translated(resolved), reading(engine) as connection:
            yield _reachable(connection)
    except StorageError as error:
        yield failure("reachable", error)
        return
    schema = _schema(engine, resolved)
    yield schema
    has_schema = schema.status == "OK"
    checks = _CHECKS[engine.dialect.name]
    for check in [
        *checks.server,
        *(checks.full if full else ()),
        *((*checks.schema, _objects, _settings, _buffers, _copies, _holds) if has_schema else ()),
    ]:
        yield from _guarded(check, engine, resolved)


def glance(connection: Connection, url: URL) -> list[Finding]:
    """Run the checks that need no scan, no lock and no right to write.

    Args:
        connection: A connection, which may be read-only.
        url: The database, resolved.
    """
    checks = [*_CHECKS[connection.dialect.name].quick, _copies]
    return [finding for check in checks for finding in check(connection, url)]


def _guarded(check: Check, engine: Engine, url: URL) -> Sequence[Finding]:
    try:
        # A transaction for each check: a failed one does not affect the others.
        with translated(url), reading(engine) as connection:
            return check(connection, url)
    except StorageError as error:
        return [failure(check.__name__.strip("_").replace("_", " "), error)]


def _reachable(connection: Connection) -> Finding:
    kind = connection.dialect.name
    version = connection.dialect.server_version_info or ()
    have, tested = (".".join(map(str, numbers)) for numbers in (version, OLDEST_TESTED[kind]))
    shown = f"{_NAMES[kind]} {have}"
    if version < OLDEST_TESTED[kind]:
        return Finding("reachable", "WARN", shown, f"the oldest that the tests ran on is {tested}")
    return Finding("reachable", "OK", shown)


def _schema(engine: Engine, url: URL) -> Finding:
    try:
        with translated(url), reading(engine) as connection:
            revision = migrate.current(connection)
            migrate.check(connection, url, revision)
            later = f", later than this package's own, {migrate.HEAD}, which it supports"
            return Finding(
                "schema", "OK", f"revision {revision}{'' if revision == migrate.HEAD else later}"
            )
    except StorageError as error:
        return failure("schema", error)


def _objects(connection: Connection, url: URL) -> Sequence[Finding]:
    """Compare the objects of the database with those of the migrations."""
    kind = connection.dialect.name
    expected = _expected_objects(kind)
    present = {(kind_, name) for kind_, name in fetch_all(connection, _CHECKS[kind].objects)}
    missing = sorted(expected - present)
    if not missing:
        triggers = sum(kind_ == "trigger" for kind_, _ in expected)
        detail = f"{triggers} triggers and {len(expected) - triggers} other objects are all there"
        return [Finding("triggers, views, indexes", "OK", detail)]
    return [
        Finding(
            "triggers, views, indexes",
            "FAIL",
            "missing or switched off: " + ", ".join(f"{kind_} {name}" for kind_, name in missing),
            f"create them again: `sqlbuffer db sql --dialect {kind}` prints how",
            StorageError,
        )
    ]


def _expected_objects(dialect: str) -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for verb, kind, name in _CREATE.findall(migrate.sql(dialect)):
        (found.add if verb == "CREATE" else found.discard)((kind.lower(), name))
    return found


def _settings(connection: Connection, url: URL) -> Sequence[Finding]:
    """Compare the columns that SQL reads with the configurations."""
    found = catalog.disagreements(connection)
    wrong = [f"buffer {name!r}: {'; '.join(lines)}" for name, lines in found.items() if lines]
    if not wrong:
        return [Finding("settings", "OK", f"{len(found):,} configurations agree with the columns")]
    remedy = "set the columns back by SQL, or the limits with `sqlbuffer resize URL N`"
    return [Finding("settings", "WARN", ". ".join(wrong), remedy)]


def _buffers(connection: Connection, url: URL) -> Sequence[Finding]:
    rows = fetch_all(
        connection,
        """SELECT w.buffer, w.max_capacity, w.evict_unit, w.live_rows,
            (SELECT count(*) FROM experiences e
             WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq)
            + (SELECT count(*) FROM chunk_steps e
               WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq),
            (SELECT count(*) FROM experiences e
             WHERE e.buffer_id = w.buffer_id AND e.seq <= w.low_seq)
            -- The window hides the beginning of the first chunk until it has left as a whole.
            + (SELECT coalesce(sum(c.n_steps), 0) FROM chunks c
               WHERE c.buffer_id = w.buffer_id AND c.first_seq + c.n_steps - 1 <= w.low_seq)
        FROM v_windows w ORDER BY w.buffer""",
    )
    return [_buffer(*row) for row in rows] or [Finding("buffers", "OK", "none yet")]


def _copies(connection: Connection, url: URL) -> Sequence[Finding]:
    """Name unfinished copies: they accept no steps until they are complete."""
    rows = fetch_all(
        connection,
        """SELECT b.name, c.source_buffer, c.source_database, c.copied_seq, c.high_seq
        FROM copies c JOIN buffers b ON b.id = c.buffer_id
        WHERE c.finished_at IS NULL ORDER BY b.name""",
    )
    return [
        Finding(
            f"copy {name!r}",
            "WARN",
            f"unfinished copy of {source!r} in {database}, at seq {copied:,} of {high:,}; it takes "
            f"no other steps",
            "copy again to continue it, or drop it",
        )
        for name, source, database, copied, high in rows
    ]


def _holds(connection: Connection, url: URL) -> Sequence[Finding]:
    """Name holds: their steps are not deleted before they are copied."""
    own = holds.c
    rows = connection.execute(
        select(buffers.c.name, own.low_seq, cast(own.live_until, Text))
        .join_from(holds, buffers, own.buffer_id == buffers.c.id)
        .where(own.live_until > in_seconds(literal(0.0)))
        .order_by(buffers.c.name, own.low_seq)
    )
    return [
        Finding(
            f"hold on {name!r}",
            "OK",
            f"a copy keeps steps above seq {low:,} until {until}, unless it continues",
        )
        for name, low, until in rows
    ]


def _buffer(
    name: str, capacity: int | None, evict_by: str, counted: int, live: int, outside: int
) -> Finding:
    limit = "unlimited" if capacity is None else f"capacity {capacity:,}"
    detail = f"{live:,} rows, {limit}"
    if outside:
        detail += f", and {outside:,} evicted rows that are not removed yet"
    wrong = f"; the stored count says {counted:,}" if evict_by != "row" else ""
    if wrong and counted != live:
        remedy = f"delete a task, or `sqlbuffer delete URL --buffer {name} --all-rows`"
        return Finding(f"buffer {name!r}", "FAIL", detail + wrong, remedy, StorageError)
    if outside > max(MANY_STRAGGLERS, capacity or 0):
        size = "unlimited" if capacity is None else capacity
        remedy = f"`sqlbuffer resize URL {size} --buffer {name}` removes them"
        return Finding(f"buffer {name!r}", "WARN", detail, remedy)
    return Finding(f"buffer {name!r}", "OK", detail)
