"""What may be wrong with a database, one finding a check. Nothing is changed."""

import os
import re
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine import URL

from sqlbuffer.errors import SQLBufferError, StorageError
from sqlbuffer.storage import migrate
from sqlbuffer.storage.catalog import OLDEST_VERSIONS
from sqlbuffer.storage.engine import engine_for, resolve_url
from sqlbuffer.storage.errors import translated
from sqlbuffer.storage.filesystems import NetworkFileSystemWarning, filesystem_of, warn_of_network
from sqlbuffer.storage.readonly import existing_file
from sqlbuffer.storage.sqlite import lock_path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
Status = Literal["OK", "WARN", "FAIL"]

LARGE_WAL_BYTES = 100_000_000
LITTLE_SPACE_BYTES = 1_000_000_000
LONG_TRANSACTION_S = 300
MANY_CONNECTIONS = 0.8
MANY_DEAD_ROWS = 100_000
MANY_STRAGGLERS = 10_000
CLOCK_TOLERANCE_S = 2.0
_CREATE = re.compile(
    r"^(CREATE|DROP) (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|TRIGGER|FUNCTION|VIEW) \"?(\w+)",
    re.MULTILINE,
)


@dataclass(frozen=True)
class Finding:
    """What one check found.

    Attributes:
        name: What was checked.
        status: `OK`, `WARN` or `FAIL`.
        detail: What was found.
        remedy: What to do about it; empty where all is well.
        error: What the library would raise for a failure.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    error: type[SQLBufferError] | None = None


_Check = Callable[[Connection, URL], Sequence[Finding]]


def examine(url: str | URL | None, *, full: bool = False) -> Iterator[Finding]:
    """Check a database, most basic things first.

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
        with translated(resolved), engine.connect() as connection:
            yield _reachable(connection)
    except StorageError as error:
        yield _failure("reachable", error)
        return
    schema = _schema(engine, resolved)
    yield schema
    has_schema = schema.status == "OK"
    checks = _CHECKS[engine.dialect.name]
    for check in [
        *checks.server,
        *(checks.full if full else ()),
        *((*checks.schema, _objects, _buffers) if has_schema else ()),
    ]:
        yield from _guarded(check, engine, resolved)


def _guarded(check: _Check, engine: Engine, url: URL) -> Sequence[Finding]:
    try:
        # A transaction each: one that failed takes no others along.
        with translated(url), engine.connect() as connection:
            return check(connection, url)
    except StorageError as error:
        return [_failure(check.__name__.strip("_").replace("_", " "), error)]


def _failure(name: str, error: SQLBufferError) -> Finding:
    what, _, remedy = str(error).rpartition("; ")
    return Finding(name, "FAIL", what or str(error), remedy if what else "", type(error))


def _reachable(connection: Connection) -> Finding:
    kind = connection.dialect.name
    version = connection.dialect.server_version_info or ()
    have, need = (".".join(map(str, numbers)) for numbers in (version, OLDEST_VERSIONS[kind]))
    shown = f"{_NAMES[kind]} {have}"
    if version < OLDEST_VERSIONS[kind]:
        return Finding("reachable", "FAIL", shown, f"sqlbuffer needs {need} or later", StorageError)
    return Finding("reachable", "OK", shown)


def _schema(engine: Engine, url: URL) -> Finding:
    try:
        with translated(url), engine.connect() as connection:
            migrate.check(connection, url)
            return Finding("schema", "OK", f"revision {migrate.current(connection)}")
    except StorageError as error:
        return _failure("schema", error)


def _rows(connection: Connection, statement: str, **parameters: Any) -> Sequence[Any]:
    return connection.execute(text(statement), parameters).all()


def _one(connection: Connection, statement: str, **parameters: Any) -> Any:
    return connection.execute(text(statement), parameters).one()


# SQLite


def _can_read(connection: Connection, url: URL) -> Sequence[Finding]:
    rows = _one(connection, "SELECT count(*) FROM sqlite_master")[0]
    return [Finding("can read", "OK", f"{existing_file(url)}, {rows} objects")]


def _can_write(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            return [
                Finding(
                    "can write",
                    "WARN",
                    f"{place} is not writable for this user: reading only",
                    f"whoever stores has to write the file and its folder: chmod u+w {place}",
                )
            ]
    try:
        with closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as own:
            own.execute("BEGIN IMMEDIATE")
            own.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return [Finding("can write", "OK", "another process is writing right now")]
    return [Finding("can write", "OK", "the file and its folder are writable")]


def _lock_file(connection: Connection, url: URL) -> Sequence[Finding]:
    path = lock_path(url)
    if path is None or fcntl is None:
        return []
    if not path.exists():
        return [Finding("lock file", "OK", "not there yet; the first writer makes it")]
    try:
        descriptor = os.open(path, os.O_RDWR)
    except OSError as error:
        remedy = f"every user who stores must write it: chmod a+rw {path}"
        return [Finding("lock file", "WARN", f"{path}: {error.strerror}", remedy)]
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return [Finding("lock file", "OK", f"{path}, held by a writer right now")]
    finally:
        os.close(descriptor)
    return [Finding("lock file", "OK", f"{path}, free")]


def _journal(connection: Connection, url: URL) -> Sequence[Finding]:
    (mode,) = _one(connection, "PRAGMA journal_mode")
    if mode == "wal":
        return [
            Finding("journal mode", "OK", "WAL: readers and the writer do not wait for each other")
        ]
    path = existing_file(url)
    return [
        Finding(
            "journal mode",
            "WARN",
            f"{mode}: readers block the writer, and it them",
            f"while nothing has it open: sqlite3 '{path}' 'PRAGMA journal_mode = WAL'",
        )
    ]


def _wal_size(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    wal = path.with_name(f"{path.name}-wal")
    n_bytes = wal.stat().st_size if wal.exists() else 0
    if n_bytes <= LARGE_WAL_BYTES:
        return [Finding("WAL size", "OK", _size(n_bytes))]
    return [
        Finding(
            "WAL size",
            "WARN",
            f"{_size(n_bytes)}: checkpoints do not get through",
            f"end the reader that keeps a transaction open (`fuser {path}` names processes)",
        )
    ]


def _file_system(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_network(path)
    found = [Finding("file system", "OK", filesystem_of(path) or "not known on this machine")]
    if caught:
        detail, _, remedy = str(caught[0].message).rpartition("; ")
        found = [Finding("file system", "WARN", detail, remedy)]
    free, size = shutil.disk_usage(path.parent).free, path.stat().st_size
    if free < LITTLE_SPACE_BYTES or free < size // 10:
        detail = f"{_size(free)} free, the file has {_size(size)}"
        return [*found, Finding("disk space", "WARN", detail, "free space or lower the capacity")]
    return [*found, Finding("disk space", "OK", f"{_size(free)} free")]


def _integrity(connection: Connection, url: URL) -> Sequence[Finding]:
    found = [line for (line,) in _rows(connection, "PRAGMA quick_check(5)")]
    if found == ["ok"]:
        return [Finding("integrity", "OK", "quick_check found nothing")]
    remedy = "restore the last backup, or save what can be read with sqlite3's .recover"
    return [Finding("integrity", "FAIL", "; ".join(found), remedy, StorageError)]


# PostgreSQL


def _rights(connection: Connection, url: URL) -> Sequence[Finding]:
    role, reads, inserts, draws, deletes, is_standby, is_read_only = _one(
        connection,
        """SELECT current_user,
            has_table_privilege('v_experiences', 'SELECT')
                AND has_table_privilege('experiences', 'SELECT')
                AND has_table_privilege('buffers', 'SELECT'),
            has_table_privilege('experiences', 'INSERT')
                AND has_table_privilege('buffers', 'INSERT')
                AND has_table_privilege('episodes', 'INSERT')
                AND has_table_privilege('sessions', 'INSERT'),
            (SELECT bool_and(has_function_privilege(oid, 'EXECUTE')) FROM pg_proc
             WHERE proname LIKE 'sqlbuffer\\_draw\\_v%' AND pronamespace = (
                 SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)),
            has_table_privilege('experiences', 'DELETE'),
            pg_is_in_recovery(), current_setting('default_transaction_read_only') = 'on'""",
    )
    grant = 'GRANT {} TO "' + role + '" (see `sqlbuffer db roles`)'
    read = (
        Finding("can read", "OK", f"role {role}")
        if reads
        else Finding(
            "can read", "FAIL", f"role {role} may not", grant.format("sqlbuffer_analyst"),
            StorageError,
        )
    )  # fmt: skip
    if is_standby or is_read_only:
        what = "a standby" if is_standby else "set to default_transaction_read_only"
        remedy = "whoever stores needs the URL of a server that may be written"
        return [read, Finding("can write", "WARN", f"the server is {what}: reading only", remedy)]
    if not (inserts and draws):
        detail, remedy = f"role {role} only reads", grant.format("sqlbuffer_writer")
        return [read, Finding("can write", "WARN", detail, f"to store: {remedy}")]
    detail = "store and delete" if deletes else "store, not delete (enough for a writer)"
    return [read, Finding("can write", "OK", f"role {role} may {detail}")]


def _autovacuum(connection: Connection, url: URL) -> Sequence[Finding]:
    (setting,) = _one(connection, "SELECT current_setting('autovacuum')")
    if setting == "on":
        return [Finding("autovacuum", "OK", "on")]
    remedy = "set autovacuum = on in postgresql.conf and reload"
    return [Finding("autovacuum", "WARN", "off: dead rows stay for ever", remedy)]


def _vacuum(connection: Connection, url: URL) -> Sequence[Finding]:
    role, may, has_maintain, options = _one(
        connection,
        """SELECT current_user,
            pg_has_role(c.relowner, 'USAGE') OR EXISTS (
                SELECT 1 FROM pg_database
                WHERE datname = current_database() AND pg_has_role(datdba, 'USAGE')),
            current_setting('server_version_num')::int >= 170000,
            coalesce(c.reloptions::text, '')
        FROM pg_class c WHERE c.oid = 'experiences'::regclass""",
    )
    if not may and has_maintain:
        (may,) = _one(connection, "SELECT has_table_privilege('experiences', 'MAINTAIN')")
    found = [Finding("may VACUUM", "OK", f"role {role}")]
    if not may:
        grant = f'GRANT MAINTAIN ON experiences TO "{role}"'
        found = [
            Finding(
                "may VACUUM",
                "WARN",
                f"role {role} may not: evicted rows wait for the server's own autovacuum",
                f"{grant}, or let its owner write"
                if has_maintain
                else "let the owner of the table write, or grant its role",
            )
        ]
    if re.search(r"autovacuum_enabled=(off|false|0)", options):
        remedy = "ALTER TABLE experiences RESET (autovacuum_enabled)"
        found.append(Finding("autovacuum of the table", "WARN", "switched off", remedy))
    return found


def _dead_rows(connection: Connection, url: URL) -> Sequence[Finding]:
    live, dead, size, cleaned_at = _one(
        connection,
        """SELECT n_live_tup, n_dead_tup, pg_total_relation_size(relid),
            to_char(greatest(last_vacuum, last_autovacuum), 'YYYY-MM-DD HH24:MI')
        FROM pg_stat_user_tables WHERE relid = 'experiences'::regclass""",
    )
    cleaned = f"vacuumed {cleaned_at}" if cleaned_at else "never vacuumed"
    detail = f"{dead:,} dead beside {live:,} live (estimates), {cleaned}"
    found = Finding("dead rows", "OK", detail)
    if dead > max(MANY_DEAD_ROWS, live):
        remedy = "end old transactions (below), then VACUUM experiences"
        found = Finding("dead rows", "WARN", detail, remedy)
    return [found, Finding("size of experiences", "OK", _size(size))]


def _old_transactions(connection: Connection, url: URL) -> Sequence[Finding]:
    sees_all, prepared = _one(
        connection,
        """SELECT pg_has_role('pg_read_all_stats', 'USAGE'),
            (SELECT extract(epoch FROM clock_timestamp() - min(prepared))::float8
             FROM pg_prepared_xacts WHERE database = current_database())""",
    )
    oldest = _rows(
        connection,
        """SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, pid,
            coalesce(application_name, ''), coalesce(state, '')
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        ORDER BY xact_start LIMIT 1""",
    )
    scope = "" if sees_all else " (of this role's own; pg_read_all_stats sees all)"
    holds = "holds back the cleaning of evicted rows"
    found = Finding("oldest transaction", "OK", f"none is open{scope}")
    for age_s, pid, program, state in oldest:
        detail = f"{age_s:,.0f} s, process {pid} {program!r}, {state}{scope}"
        found = Finding("oldest transaction", "OK", detail)
        if age_s > LONG_TRANSACTION_S:
            remedy = f"end it, or SELECT pg_terminate_backend({pid})"
            found = Finding("oldest transaction", "WARN", f"{detail}: {holds}", remedy)
    if prepared is None or prepared <= LONG_TRANSACTION_S:
        return [found]
    detail = f"one is {prepared:,.0f} s old and {holds}"
    remedy = "COMMIT PREPARED or ROLLBACK PREPARED it (SELECT * FROM pg_prepared_xacts)"
    return [found, Finding("prepared transactions", "WARN", detail, remedy)]


def _connections(connection: Connection, url: URL) -> Sequence[Finding]:
    limit, reserved, used = _one(
        connection,
        """SELECT current_setting('max_connections')::int,
            current_setting('superuser_reserved_connections')::int,
            (SELECT sum(numbackends) FROM pg_stat_database)::int""",
    )
    detail = f"{used} in use, max_connections = {limit}"
    if used < MANY_CONNECTIONS * (limit - reserved):
        return [Finding("connections", "OK", detail)]
    remedy = "put pgbouncer before the server (transaction mode), or raise max_connections"
    return [Finding("connections", "WARN", detail, remedy)]


def _durability(connection: Connection, url: URL) -> Sequence[Finding]:
    risks = {
        "fsync": "a crash of the machine may destroy the whole database",
        "full_page_writes": "a crash of the machine may damage tables",
        "synchronous_commit": "a crash of the server may take the last moments of stored rows",
    }
    off = [
        name
        for name in risks
        if _one(connection, "SELECT current_setting(:name)", name=name)[0] == "off"
    ]
    if not off:
        return [
            Finding("durability", "OK", "fsync, full_page_writes and synchronous_commit are on")
        ]
    return [
        Finding(name, "WARN", f"off: {risks[name]}", f"set {name} = on in postgresql.conf")
        for name in off
    ]


def _encoding(connection: Connection, url: URL) -> Sequence[Finding]:
    (encoding,) = _one(connection, "SELECT current_setting('server_encoding')")
    if encoding == "UTF8":
        return [Finding("encoding", "OK", "UTF8")]
    remedy = "move to a database made with ENCODING 'UTF8'"
    detail = f"{encoding}: rows with other characters are refused"
    return [Finding("encoding", "WARN", detail, remedy)]


def _clock(connection: Connection, url: URL) -> Sequence[Finding]:
    asked_at = time.time()
    (server,) = _one(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    round_trip_s = time.time() - asked_at
    difference_s = server - asked_at - round_trip_s / 2
    if abs(difference_s) <= CLOCK_TOLERANCE_S + round_trip_s:
        return [Finding("clock", "OK", f"{difference_s:+.2f} s between server and this machine")]
    direction = "ahead of" if difference_s > 0 else "behind"
    detail = f"the server is {abs(difference_s):,.1f} s {direction} this machine"
    remedy = "synchronise both (NTP): execute_time is the client's clock, inserted_at the server's"
    return [Finding("clock", "WARN", detail, remedy)]


# Both


def _objects(connection: Connection, url: URL) -> Sequence[Finding]:
    """Compare what there is with what the migrations make."""
    kind = connection.dialect.name
    expected = _expected_objects(kind)
    present = {(kind_, name) for kind_, name in _rows(connection, _CHECKS[kind].objects)}
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


def _buffers(connection: Connection, url: URL) -> Sequence[Finding]:
    rows = _rows(
        connection,
        """SELECT w.buffer, w.max_capacity, w.evict_unit, w.live_rows,
            (SELECT count(*) FROM experiences e
             WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq),
            (SELECT count(*) FROM experiences e
             WHERE e.buffer_id = w.buffer_id AND e.seq <= w.low_seq)
        FROM v_windows w ORDER BY w.buffer""",
    )
    return [_buffer(*row) for row in rows] or [Finding("buffers", "OK", "none yet")]


def _buffer(
    name: str, capacity: int | None, evict_by: str, counted: int, live: int, outside: int
) -> Finding:
    limit = "unlimited" if capacity is None else f"capacity {capacity:,}"
    detail = f"{live:,} rows, {limit}"
    if outside:
        detail += f", and {outside:,} evicted rows that are not removed yet"
    wrong = f"; the count kept beside it says {counted:,}" if evict_by == "task" else ""
    if wrong and counted != live:
        remedy = f"delete a task, or `sqlbuffer delete URL --buffer {name} --all-rows`"
        return Finding(f"buffer {name!r}", "FAIL", detail + wrong, remedy, StorageError)
    if outside > max(MANY_STRAGGLERS, capacity or 0):
        size = "unlimited" if capacity is None else capacity
        remedy = f"`sqlbuffer resize URL {size} --buffer {name}` removes them"
        return Finding(f"buffer {name!r}", "WARN", detail, remedy)
    return Finding(f"buffer {name!r}", "OK", detail)


def _size(n_bytes: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if n_bytes < 1000:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:,.3g} GB"


@dataclass(frozen=True)
class _Checks:
    """The checks of one kind of database: of the server, the thorough ones, those of the schema."""

    server: tuple[_Check, ...]
    full: tuple[_Check, ...]
    schema: tuple[_Check, ...]
    objects: str


_CHECKS = {
    "sqlite": _Checks(
        (_can_read, _can_write, _lock_file, _journal, _wal_size, _file_system),
        (_integrity,),
        (),
        "SELECT type, name FROM sqlite_master",
    ),
    "postgresql": _Checks(
        (_autovacuum, _old_transactions, _connections, _durability, _encoding, _clock),
        (),
        (_rights, _vacuum, _dead_rows),
        """SELECT CASE relkind WHEN 'i' THEN 'index' WHEN 'v' THEN 'view' ELSE 'table' END,
            relname::text
        FROM pg_class WHERE relnamespace = (
            SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)
        UNION ALL
        SELECT 'function', proname::text FROM pg_proc WHERE pronamespace = (
            SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)
        UNION ALL
        SELECT 'trigger', t.tgname::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
        WHERE NOT t.tgisinternal AND t.tgenabled <> 'D' AND c.relnamespace = (
            SELECT relnamespace FROM pg_class WHERE oid = 'experiences'::regclass)""",
    ),
}
