"""Checks of a database, with one finding each. They change no data."""

import os
import re
import shutil
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, Text, cast, literal, select, text
from sqlalchemy.engine import URL

from sqlbuffer.display import shown_age, shown_size
from sqlbuffer.errors import SQLBufferError, StorageError
from sqlbuffer.storage.buffers import catalog
from sqlbuffer.storage.buffers.hanging import (
    HANGING_S,
    postgresql_hanging_writers,
    sqlite_lock_holder,
)
from sqlbuffer.storage.buffers.tables import buffers
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.database.errors import translated
from sqlbuffer.storage.database.sqlite import (
    NetworkFileSystemWarning,
    existing_file,
    filesystem_of,
    opened_file,
    warn_of_network,
)
from sqlbuffer.storage.database.transactions import reading
from sqlbuffer.storage.database.urls import Database
from sqlbuffer.storage.database.wal import LARGE_WAL_BYTES as CUT_BACK_TO_BYTES
from sqlbuffer.storage.database.wal import wal_path
from sqlbuffer.storage.database.writer_lock import lock_path
from sqlbuffer.storage.holds import holds
from sqlbuffer.storage.migrations import migrate
from sqlbuffer.storage.migrations.required_features import check_advisory_locks
from sqlbuffer.storage.schema.expressions import in_seconds
from sqlbuffer.storage.schema.metadata import whole_metadata

Status = Literal["OK", "WARN", "FAIL"]


@dataclass(frozen=True)
class Finding:
    """The result of one check.

    Attributes:
        name: Subject of the check.
        status: `OK`, `WARN` or `FAIL`.
        detail: Result of the check.
        remedy: Action to take; empty if all is well.
        error: Error that the library would raise for a failure.
    """

    name: str
    status: Status
    detail: str
    remedy: str = ""
    error: type[SQLBufferError] | None = None


Check = Callable[[Connection, URL], Sequence[Finding]]


@dataclass(frozen=True)
class Checks:
    """The checks of one kind of database.

    They are those of the server, the thorough ones, those of the schema, and the ones that read
    only little.
    """

    server: tuple[Check, ...]
    full: tuple[Check, ...]
    schema: tuple[Check, ...]
    objects: str
    quick: tuple[Check, ...]


def failure(name: str, error: SQLBufferError) -> Finding:
    what, _, remedy = str(error).rpartition("; ")
    return Finding(name, "FAIL", what or str(error), remedy if what else "", type(error))


def fetch_all(connection: Connection, statement: str, **parameters: Any) -> Sequence[Any]:
    return connection.execute(text(statement), parameters).all()


def fetch_one(connection: Connection, statement: str, **parameters: Any) -> Any:
    return connection.execute(text(statement), parameters).one()


try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LARGE_WAL_BYTES = 100_000_000
READ_LOCKS = range(123, 128)
# Other readers may start or end between two looks.
LOOKS, LOOK_PAUSE_S = 5, 0.05
LITTLE_SPACE_BYTES = 1_000_000_000


def _sqlite_can_read(connection: Connection, url: URL) -> Sequence[Finding]:
    rows = fetch_one(connection, "SELECT count(*) FROM sqlite_master")[0]
    return [Finding("can read", "OK", f"{existing_file(url)}, {rows} objects")]


def _sqlite_can_write(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    for place in (path, path.parent):
        if not os.access(place, os.W_OK):
            return [
                Finding(
                    "can write",
                    "WARN",
                    f"{place} is not writable for this user: reading only",
                    f"writers must be able to write the file and its folder: chmod u+w {place}",
                )
            ]
    try:
        with opened_file(path, timeout=0, isolation_level=None) as file:
            file.execute("BEGIN IMMEDIATE")
            file.execute("ROLLBACK")
    except sqlite3.OperationalError as error:
        if "locked" not in str(error):
            raise
        return [Finding("can write", "OK", "another process is writing right now")]
    return [Finding("can write", "OK", "the file and its folder are writable")]


def _sqlite_lock_file(connection: Connection, url: URL) -> Sequence[Finding]:
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
        writer = sqlite_lock_holder(url)
        if writer is not None and writer.age_s > HANGING_S:
            detail = f"{path}, held by {writer}: all other writers wait"
            return [Finding("lock file", "WARN", detail, f"end its transaction: kill {writer.pid}")]
        return [Finding("lock file", "OK", f"{path}, held by a writer right now")]
    finally:
        os.close(descriptor)
    return [Finding("lock file", "OK", f"{path}, free")]


def _sqlite_journal(connection: Connection, url: URL) -> Sequence[Finding]:
    (mode,) = fetch_one(connection, "PRAGMA journal_mode")
    if mode == "wal":
        return [
            Finding("journal mode", "OK", "WAL: readers and the writer do not wait for each other")
        ]
    path = existing_file(url)
    return [
        Finding(
            "journal mode",
            "WARN",
            f"{mode}: readers and the writer block each other",
            f"while nothing has it open: sqlite3 '{path}' 'PRAGMA journal_mode = WAL'",
        )
    ]


def _sqlite_wal_size(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    log = wal_path(path)
    n_bytes, n_file_bytes = log.stat().st_size if log.exists() else 0, path.stat().st_size
    is_larger = n_bytes > max(CUT_BACK_TO_BYTES, n_file_bytes)
    if n_bytes <= LARGE_WAL_BYTES and not is_larger:
        return [Finding("WAL size", "OK", shown_size(n_bytes))]
    readers = _sqlite_lasting_readers(path)
    if readers:
        cause = f"{', '.join(readers)} keeps a read transaction open, and the log grows behind it"
        remedy = "end that transaction (commit, close the cursor, or end the process)"
    elif readers is None:
        cause = "probably a process keeps a read transaction open, and the log grows behind it"
        remedy = f"find it with `fuser {path}` and end its transaction"
    else:
        cause = "a read transaction was open for a long time; none is open now"
        remedy = f"nothing, if writers continue (`fuser {path}` names the processes)"
    return [
        Finding(
            "WAL size",
            "WARN",
            f"{shown_size(n_bytes)} next to a file of {shown_size(n_file_bytes)}: {cause}",
            f"{remedy}; then the next writer cuts the log back, or "
            f"sqlite3 '{path}' 'PRAGMA wal_checkpoint(TRUNCATE)'",
        )
    ]


def _sqlite_lasting_readers(path: Path) -> list[str] | None:
    """Return the other processes that read one state of a file at several looks.

    Return None if this machine does not show them.
    """
    lasting: set[tuple[int, int]] | None = None
    for look in range(LOOKS):
        if look:
            time.sleep(LOOK_PAUSE_S)
        try:
            locks = _sqlite_read_locks(path)
        except OSError:
            return None
        lasting = locks if lasting is None else lasting & locks
    pids = sorted({pid for pid, _ in lasting or ()})
    return [f"process {pid}{_sqlite_name_of(pid)}" for pid in pids]


def _sqlite_read_locks(path: Path) -> set[tuple[int, int]]:
    """Return (process, lock) of the read transactions of other processes.

    The locks are those of bytes 123 to 127 of the -shm file; see SQLite's walformat.html. That file
    is not opened: closing it would release this process's locks on it.
    """
    shm = os.stat(f"{path}-shm")
    place = f"{os.major(shm.st_dev):02x}:{os.minor(shm.st_dev):02x}:{shm.st_ino}"
    locks = set()
    for line in Path("/proc/locks").read_text().splitlines():
        match line.split():
            case [_, "POSIX", _, "READ", pid, where, start, _] if where == place:
                if int(start) in READ_LOCKS and int(pid) != os.getpid():
                    locks.add((int(pid), int(start)))
    return locks


def _sqlite_name_of(pid: int) -> str:
    # Its arguments are not read: they may contain passwords.
    try:
        return f" ({Path(f'/proc/{pid}/comm').read_text().strip()})"
    except OSError:
        return ""


def _sqlite_file_system(connection: Connection, url: URL) -> Sequence[Finding]:
    path = existing_file(url)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warn_of_network(path)
    findings = [Finding("file system", "OK", filesystem_of(path) or "not known on this machine")]
    if caught:
        detail, _, remedy = str(caught[0].message).rpartition("; ")
        findings = [Finding("file system", "WARN", detail, remedy)]
    free, size = shutil.disk_usage(path.parent).free, path.stat().st_size
    if free < LITTLE_SPACE_BYTES or free < size // 10:
        detail = f"{shown_size(free)} free, the file has {shown_size(size)}"
        return [
            *findings,
            Finding("disk space", "WARN", detail, "free space or lower the capacity"),
        ]
    return [*findings, Finding("disk space", "OK", f"{shown_size(free)} free")]


def _sqlite_integrity(connection: Connection, url: URL) -> Sequence[Finding]:
    lines = [line for (line,) in fetch_all(connection, "PRAGMA quick_check(5)")]
    if lines == ["ok"]:
        return [Finding("integrity", "OK", "quick_check found nothing")]
    remedy = "restore the last backup, or save what can be read with sqlite3's .recover"
    return [Finding("integrity", "FAIL", "; ".join(lines), remedy, StorageError)]


_SQLITE_CHECKS = Checks(
    (
        _sqlite_can_read,
        _sqlite_can_write,
        _sqlite_lock_file,
        _sqlite_journal,
        _sqlite_wal_size,
        _sqlite_file_system,
    ),
    (_sqlite_integrity,),
    (),
    "SELECT type, name FROM sqlite_master",
    (_sqlite_wal_size, _sqlite_file_system),
)


LONG_TRANSACTION_S = 300
MANY_CONNECTIONS = 0.8
MANY_DEAD_ROWS = 100_000
CLOCK_TOLERANCE_S = 2.0
# The tables of steps.
_TABLES_OF_STEPS = "ARRAY['experiences', 'chunks', 'chunk_data']"


def _postgresql_rights(connection: Connection, url: URL) -> Sequence[Finding]:
    role, reads, inserts, draws, deletes, is_standby, is_read_only = fetch_one(
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
             WHERE proname LIKE 'sqlbuffer\\_reserve\\_seqs\\_v%' AND pronamespace = (
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
        remedy = "writers need the URL of a server that accepts writes"
        return [read, Finding("can write", "WARN", f"the server is {what}: reading only", remedy)]
    if not (inserts and draws):
        detail, remedy = f"role {role} only reads", grant.format("sqlbuffer_writer")
        return [read, Finding("can write", "WARN", detail, f"to store: {remedy}")]
    detail = "store and delete" if deletes else "store, not delete (enough for a writer)"
    return [read, Finding("can write", "OK", f"role {role} may {detail}")]


def _postgresql_advisory_locks(connection: Connection, url: URL) -> Sequence[Finding]:
    check_advisory_locks(connection.engine, url)
    return [Finding("advisory locks", "OK", "a second connection is kept out")]


def _postgresql_autovacuum(connection: Connection, url: URL) -> Sequence[Finding]:
    (setting,) = fetch_one(connection, "SELECT current_setting('autovacuum')")
    if setting == "on":
        return [Finding("autovacuum", "OK", "on")]
    remedy = "set autovacuum = on in postgresql.conf and reload"
    return [Finding("autovacuum", "WARN", "off: dead rows stay for ever", remedy)]


def _postgresql_vacuum(connection: Connection, url: URL) -> Sequence[Finding]:
    role, writes, may, has_maintain, switched_off = fetch_one(
        connection,
        f"""SELECT current_user, has_table_privilege('experiences', 'INSERT'),
            bool_and(pg_has_role(c.relowner, 'USAGE')) OR EXISTS (
                SELECT 1 FROM pg_database
                WHERE datname = current_database() AND pg_has_role(datdba, 'USAGE')),
            current_setting('server_version_num')::int >= 170000,
            array_remove(array_agg(
                CASE WHEN c.reloptions::text ~ 'autovacuum_enabled=(off|false|0)' THEN c.relname END
                ORDER BY c.relname), NULL)
        FROM pg_class c WHERE c.oid = ANY ({_TABLES_OF_STEPS}::regclass[])""",
    )
    if not may and has_maintain:
        rights = "bool_and(has_table_privilege(t.oid, 'MAINTAIN'))"
        query = f"SELECT {rights} FROM unnest({_TABLES_OF_STEPS}::regclass[]) AS t(oid)"
        (may,) = fetch_one(connection, query)
    findings = [Finding("may VACUUM", "OK", f"role {role}")]
    if not may and not writes:
        findings = [Finding("may VACUUM", "OK", f"role {role} only reads; writers clean up")]
    elif not may:
        grant = f'GRANT MAINTAIN ON experiences, chunks, chunk_data TO "{role}"'
        findings = [
            Finding(
                "may VACUUM",
                "WARN",
                f"role {role} may not: evicted rows wait for the server's own autovacuum",
                f"{grant}, or let its owner write"
                if has_maintain
                else "let the owner of the table write, or grant its role",
            )
        ]
    for table in switched_off:
        remedy = f"ALTER TABLE {table} RESET (autovacuum_enabled)"
        findings.append(Finding(f"autovacuum of {table}", "WARN", "switched off", remedy))
    return findings


def _postgresql_citus(connection: Connection, url: URL) -> Sequence[Finding]:
    """Look for tables of the library that Citus has distributed."""
    (is_there,) = fetch_one(
        connection, "SELECT to_regclass('pg_catalog.pg_dist_partition') IS NOT NULL"
    )
    if not is_there:
        return []
    # A local table that Citus knows has neither a key nor a group.
    distributed = fetch_all(
        connection,
        """SELECT c.relname::text FROM pg_catalog.pg_dist_partition p
        JOIN pg_class c ON c.oid = p.logicalrel
        JOIN pg_class own ON own.oid = 'experiences'::regclass
        WHERE c.relname = ANY (:names) AND c.relnamespace = own.relnamespace
            AND NOT (p.partmethod = 'n' AND p.repmodel <> 't' AND p.colocationid = 0)
        ORDER BY c.relname""",
        names=list(whole_metadata().tables),
    )
    if not distributed:
        return [Finding("Citus", "OK", "installed, and none of the tables is distributed")]
    names = [name for (name,) in distributed]
    return [
        Finding(
            "Citus",
            "FAIL",
            f"distributes {', '.join(names)}: transaction ids of the coordinator do not bound "
            f"those of the workers, so readers that follow a buffer lose rows",
            "; ".join(f"SELECT undistribute_table('{name}')" for name in names),
            StorageError,
        )
    ]


def _postgresql_dead_rows(connection: Connection, url: URL) -> Sequence[Finding]:
    live, dead, size, cleaned_at = fetch_one(
        connection,
        """SELECT sum(n_live_tup)::bigint, sum(n_dead_tup)::bigint,
            sum(pg_total_relation_size(relid))::bigint,
            to_char(max(greatest(last_vacuum, last_autovacuum)), 'YYYY-MM-DD HH24:MI')
        FROM pg_stat_user_tables
        WHERE relid IN ('experiences'::regclass, 'chunks'::regclass, 'chunk_data'::regclass)""",
    )
    cleaned = f"vacuumed {cleaned_at}" if cleaned_at else "never vacuumed"
    detail = f"{dead:,} dead and {live:,} live rows (estimates), {cleaned}"
    finding = Finding("dead rows", "OK", detail)
    if dead > max(MANY_DEAD_ROWS, live):
        remedy = "end old transactions (below), then VACUUM experiences, chunks, chunk_data"
        finding = Finding("dead rows", "WARN", detail, remedy)
    return [finding, Finding("size of the steps", "OK", shown_size(size))]


def _postgresql_old_transactions(connection: Connection, url: URL) -> Sequence[Finding]:
    sees_all, prepared = fetch_one(
        connection,
        """SELECT pg_has_role('pg_read_all_stats', 'USAGE'),
            (SELECT extract(epoch FROM clock_timestamp() - min(prepared))::float8
             FROM pg_prepared_xacts WHERE database = current_database())""",
    )
    oldest = fetch_all(
        connection,
        """SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8, pid,
            coalesce(application_name, ''), coalesce(state, '')
        FROM pg_stat_activity
        WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
        ORDER BY xact_start LIMIT 1""",
    )
    scope = "" if sees_all else " (of this role's own; pg_read_all_stats sees all)"
    effect = "holds back the cleaning of evicted rows"
    finding = Finding("oldest transaction", "OK", f"none is open{scope}")
    for age_s, pid, program, state in oldest:
        detail = f"{age_s:,.0f} s, process {pid} {program!r}, {state}{scope}"
        finding = Finding("oldest transaction", "OK", detail)
        if age_s > LONG_TRANSACTION_S:
            remedy = f"end it, or SELECT pg_terminate_backend({pid})"
            finding = Finding("oldest transaction", "WARN", f"{detail}: {effect}", remedy)
    if prepared is None or prepared <= LONG_TRANSACTION_S:
        return [finding]
    detail = f"one is {prepared:,.0f} s old and {effect}"
    remedy = "COMMIT PREPARED or ROLLBACK PREPARED it (SELECT * FROM pg_prepared_xacts)"
    return [finding, Finding("prepared transactions", "WARN", detail, remedy)]


def _postgresql_hanging_writers(connection: Connection, url: URL) -> Sequence[Finding]:
    names: dict[int, str] = dict(map(tuple, fetch_all(connection, "SELECT id, name FROM buffers")))
    return [
        Finding(
            f"writer of {names.get(number, number)!r}",
            "WARN",
            f"{writer}, whose steps stay invisible until it commits",
            f"end it, or SELECT pg_terminate_backend({writer.pid})",
        )
        for number, writer in postgresql_hanging_writers(connection, url)
    ]


def _postgresql_connections(connection: Connection, url: URL) -> Sequence[Finding]:
    limit, reserved, used = fetch_one(
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


def _postgresql_durability(connection: Connection, url: URL) -> Sequence[Finding]:
    risks = {
        "fsync": "a crash of the machine may destroy the whole database",
        "full_page_writes": "a crash of the machine may damage tables",
        "synchronous_commit": "a crash of the server may lose the rows stored just before",
    }
    off = [
        name
        for name in risks
        if fetch_one(connection, "SELECT current_setting(:name)", name=name)[0] == "off"
    ]
    if not off:
        return [
            Finding("durability", "OK", "fsync, full_page_writes and synchronous_commit are on")
        ]
    return [
        Finding(name, "WARN", f"off: {risks[name]}", f"set {name} = on in postgresql.conf")
        for name in off
    ]


def _postgresql_encoding(connection: Connection, url: URL) -> Sequence[Finding]:
    (encoding,) = fetch_one(connection, "SELECT current_setting('server_encoding')")
    if encoding == "UTF8":
        return [Finding("encoding", "OK", "UTF8")]
    remedy = "move to a database made with ENCODING 'UTF8'"
    detail = f"{encoding}: rows with other characters are refused"
    return [Finding("encoding", "WARN", detail, remedy)]


def _postgresql_clock(connection: Connection, url: URL) -> Sequence[Finding]:
    asked_at = time.time()
    (server,) = fetch_one(connection, "SELECT extract(epoch FROM clock_timestamp())::float8")
    round_trip_s = time.time() - asked_at
    difference_s = server - asked_at - round_trip_s / 2
    if abs(difference_s) <= CLOCK_TOLERANCE_S + round_trip_s:
        return [Finding("clock", "OK", f"{difference_s:+.2f} s between server and this machine")]
    direction = "ahead of" if difference_s > 0 else "behind"
    detail = f"the server is {abs(difference_s):,.1f} s {direction} this machine"
    remedy = "synchronise both (NTP): execute_time is the client's clock, inserted_at the server's"
    return [Finding("clock", "WARN", detail, remedy)]


_POSTGRESQL_CHECKS = Checks(
    (
        *(
            _postgresql_advisory_locks,
            _postgresql_autovacuum,
            _postgresql_old_transactions,
            _postgresql_connections,
        ),
        *(_postgresql_durability, _postgresql_encoding, _postgresql_clock),
    ),
    (),
    (
        _postgresql_rights,
        _postgresql_citus,
        _postgresql_vacuum,
        _postgresql_dead_rows,
        _postgresql_hanging_writers,
    ),
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
    (
        *(
            _postgresql_autovacuum,
            _postgresql_old_transactions,
            _postgresql_connections,
            _postgresql_durability,
            _postgresql_clock,
        ),
        *(
            _postgresql_citus,
            _postgresql_vacuum,
            _postgresql_dead_rows,
            _postgresql_hanging_writers,
        ),
    ),
)


__all__ = ["Finding", "examine", "glance"]

_NAMES = {"sqlite": "SQLite", "postgresql": "PostgreSQL"}
# A server is refused for a feature that it lacks, never for its version.
OLDEST_TESTED = {"sqlite": (3, 38), "postgresql": (15,)}
_CHECKS = {"sqlite": _SQLITE_CHECKS, "postgresql": _POSTGRESQL_CHECKS}
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
        *(
            (*checks.schema, _objects, _settings, _buffers, _copies, _holds, _moved_clocks)
            if has_schema
            else ()
        ),
    ]:
        yield from _guarded(check, engine, resolved)


def glance(connection: Connection, url: URL) -> list[Finding]:
    """Run the checks that need no scan, no lock and no right to write.

    Args:
        connection: A connection, which may be read-only.
        url: The database, resolved.
    """
    checks = [*_CHECKS[connection.dialect.name].quick, _copies, _moved_clocks]
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
    objects: set[tuple[str, str]] = set()
    for verb, kind, name in _CREATE.findall(migrate.sql(dialect)):
        (objects.add if verb == "CREATE" else objects.discard)((kind.lower(), name))
    return objects


def _settings(connection: Connection, url: URL) -> Sequence[Finding]:
    """Compare the columns that SQL reads with the configurations."""
    disagreements = catalog.disagreements(connection)
    wrong = [
        f"buffer {name!r}: {'; '.join(lines)}" for name, lines in disagreements.items() if lines
    ]
    if not wrong:
        return [
            Finding(
                "settings", "OK", f"{len(disagreements):,} configurations agree with the columns"
            )
        ]
    remedy = "set the columns back by SQL, or the limits with `sqlbuffer resize URL N`"
    return [Finding("settings", "WARN", ". ".join(wrong), remedy)]


def _buffers(connection: Connection, url: URL) -> Sequence[Finding]:
    rows = fetch_all(
        connection,
        """SELECT w.buffer, w.max_capacity, b.max_age_s, b.max_bytes, w.evict_unit, w.live_rows,
            (SELECT count(*) FROM experiences e
             WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq)
            + (SELECT count(*) FROM chunk_steps e
               WHERE e.buffer_id = w.buffer_id AND e.seq > w.low_seq),
            (SELECT count(*) FROM experiences e
             WHERE e.buffer_id = w.buffer_id AND e.seq <= w.low_seq)
            -- The window hides the beginning of the first chunk until it has left as a whole.
            + (SELECT coalesce(sum(c.n_steps), 0) FROM chunks c
               WHERE c.buffer_id = w.buffer_id AND c.first_seq + c.n_steps - 1 <= w.low_seq)
        FROM v_windows w JOIN buffers b ON b.id = w.buffer_id ORDER BY w.buffer""",
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


def _moved_clocks(connection: Connection, url: URL) -> Sequence[Finding]:
    """Name buffers with a limit of age for which the database's clock was set."""
    rows = fetch_all(
        connection,
        """SELECT b.name, r.unseen_s, r.moved_s FROM retention_states r
        JOIN buffers b ON b.id = r.buffer_id
        WHERE (r.unseen_s <> 0 OR r.moved_s <> 0) AND b.max_age_s IS NOT NULL ORDER BY b.name""",
    )
    return [
        Finding(
            f"max_age of {name!r}",
            "WARN",
            f"{unseen_s:,.0f} s passed by the database's clock and do not count as age: no process "
            f"looked at the buffer, and the clock may have been set"
            if unseen_s
            else f"the database's clock was set by {moved_s:,.0f} s; steps age by the machines' "
            f"monotonic clocks",
            f"if its clock is right now: `sqlbuffer expire URL --buffer {name} --accept-clock`",
        )
        for name, unseen_s, moved_s in rows
    ]


def _holds(connection: Connection, url: URL) -> Sequence[Finding]:
    """Name holds: their steps are not deleted before they are copied."""
    hold = holds.c
    rows = connection.execute(
        select(buffers.c.name, hold.low_seq, cast(hold.live_until, Text))
        .join_from(holds, buffers, hold.buffer_id == buffers.c.id)
        .where(hold.live_until > in_seconds(literal(0.0)))
        .order_by(buffers.c.name, hold.low_seq)
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
    name: str,
    capacity: int | None,
    max_age_s: float | None,
    max_bytes: int | None,
    evict_by: str,
    counted: int,
    live: int,
    outside: int,
) -> Finding:
    limits = [
        *([] if capacity is None else [f"capacity {capacity:,}"]),
        *([] if max_age_s is None else [f"at most {shown_age(max_age_s)} old"]),
        *([] if max_bytes is None else [f"at most {shown_size(max_bytes)}"]),
    ]
    detail = f"{live:,} rows, {', '.join(limits) or 'unlimited'}"
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
