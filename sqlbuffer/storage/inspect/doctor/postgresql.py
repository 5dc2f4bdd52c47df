"""Checks of a PostgreSQL database."""

import time
from collections.abc import Sequence

from sqlalchemy import Connection
from sqlalchemy.engine import URL

from sqlbuffer.display import shown_size
from sqlbuffer.errors import StorageError
from sqlbuffer.storage.buffers.hanging import postgresql_hanging_writers
from sqlbuffer.storage.inspect.doctor.finding import Checks, Finding, fetch_all, fetch_one
from sqlbuffer.storage.migrations.required_features import check_advisory_locks
from sqlbuffer.storage.schema.metadata import metadata

LONG_TRANSACTION_S = 300
MANY_CONNECTIONS = 0.8
MANY_DEAD_ROWS = 100_000
CLOCK_TOLERANCE_S = 2.0
# The tables of steps.
_STEPS = "ARRAY['experiences', 'chunks', 'chunk_data']"


def _rights(connection: Connection, url: URL) -> Sequence[Finding]:
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


def _advisory_locks(connection: Connection, url: URL) -> Sequence[Finding]:
    check_advisory_locks(connection.engine, url)
    return [Finding("advisory locks", "OK", "a second connection is kept out")]


def _autovacuum(connection: Connection, url: URL) -> Sequence[Finding]:
    (setting,) = fetch_one(connection, "SELECT current_setting('autovacuum')")
    if setting == "on":
        return [Finding("autovacuum", "OK", "on")]
    remedy = "set autovacuum = on in postgresql.conf and reload"
    return [Finding("autovacuum", "WARN", "off: dead rows stay for ever", remedy)]


def _vacuum(connection: Connection, url: URL) -> Sequence[Finding]:
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
        FROM pg_class c WHERE c.oid = ANY ({_STEPS}::regclass[])""",
    )
    if not may and has_maintain:
        rights = "bool_and(has_table_privilege(t.oid, 'MAINTAIN'))"
        query = f"SELECT {rights} FROM unnest({_STEPS}::regclass[]) AS t(oid)"
        (may,) = fetch_one(connection, query)
    found = [Finding("may VACUUM", "OK", f"role {role}")]
    if not may and not writes:
        found = [Finding("may VACUUM", "OK", f"role {role} only reads; writers clean up")]
    elif not may:
        grant = f'GRANT MAINTAIN ON experiences, chunks, chunk_data TO "{role}"'
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
    for table in switched_off:
        remedy = f"ALTER TABLE {table} RESET (autovacuum_enabled)"
        found.append(Finding(f"autovacuum of {table}", "WARN", "switched off", remedy))
    return found


def _citus(connection: Connection, url: URL) -> Sequence[Finding]:
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
        names=list(metadata.tables),
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


def _dead_rows(connection: Connection, url: URL) -> Sequence[Finding]:
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
    found = Finding("dead rows", "OK", detail)
    if dead > max(MANY_DEAD_ROWS, live):
        remedy = "end old transactions (below), then VACUUM experiences, chunks, chunk_data"
        found = Finding("dead rows", "WARN", detail, remedy)
    return [found, Finding("size of the steps", "OK", shown_size(size))]


def _old_transactions(connection: Connection, url: URL) -> Sequence[Finding]:
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


def _hanging_writers(connection: Connection, url: URL) -> Sequence[Finding]:
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


def _connections(connection: Connection, url: URL) -> Sequence[Finding]:
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


def _durability(connection: Connection, url: URL) -> Sequence[Finding]:
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


def _encoding(connection: Connection, url: URL) -> Sequence[Finding]:
    (encoding,) = fetch_one(connection, "SELECT current_setting('server_encoding')")
    if encoding == "UTF8":
        return [Finding("encoding", "OK", "UTF8")]
    remedy = "move to a database made with ENCODING 'UTF8'"
    detail = f"{encoding}: rows with other characters are refused"
    return [Finding("encoding", "WARN", detail, remedy)]


def _clock(connection: Connection, url: URL) -> Sequence[Finding]:
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


CHECKS = Checks(
    (
        *(_advisory_locks, _autovacuum, _old_transactions, _connections),
        *(_durability, _encoding, _clock),
    ),
    (),
    (_rights, _citus, _vacuum, _dead_rows, _hanging_writers),
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
        *(_autovacuum, _old_transactions, _connections, _durability, _clock),
        *(_citus, _vacuum, _dead_rows, _hanging_writers),
    ),
)
