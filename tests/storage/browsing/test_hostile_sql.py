"""SQL that writes files, switches modes, locks, sleeps or recurses changes nothing, and stops no
other client.
"""

import hashlib
import threading
from contextlib import suppress
from functools import partial
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import text

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import ReadLimitError, StorageError, StorageReadOnlyError
from sqlbuffer.storage.browsing.read_pool import ReadPool
from sqlbuffer.storage.database import readonly
from tests.support import sql
from tests.support.array_rows import make_array_row

SMALL = {"max_rows": 10, "max_bytes": 10_000}
# SQLite searches the longer text for seconds without a look at any limit: the process has to end.
STUCK = "SELECT instr(hex(zeroblob({0})), hex(zeroblob({0} / 2)) || '1')"
ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT count(*) FROM n"

# `{folder}` is where nothing may appear.
OF_SQLITE = [
    "VACUUM",
    "VACUUM INTO '{folder}/copy.db'",
    "ATTACH '{folder}/other.db' AS other",
    "ATTACH 'file:{folder}/other.db?mode=rwc' AS other",
    "DETACH main",
    "PRAGMA query_only = 0",
    "PRAGMA journal_mode = delete",
    "PRAGMA journal_mode",
    "PRAGMA wal_checkpoint(truncate)",
    "PRAGMA writable_schema = 1",
    "PRAGMA temp_store_directory = '{folder}'",
    "PRAGMA table_info(sqlbuffer_alembic_version)",
    "SELECT * FROM pragma_table_info('buffers')",
    "SELECT * FROM pragma_database_list",
    "SELECT load_extension('{folder}/evil.so')",
    "SELECT LOAD_EXTENSION('{folder}/evil.so', 'start')",
    "SELECT writefile('{folder}/file', 'x')",
    "SELECT readfile('/etc/passwd')",
    "SELECT edit('x', 'touch {folder}/file')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT fts3_tokenizer('simple', x'0000000000000000')",
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "END",
    "ROLLBACK",
    "SAVEPOINT a",
    "RELEASE a",
    "CREATE TABLE mine (n integer)",
    "CREATE TEMP TABLE mine (n integer)",
    "CREATE TEMP VIEW mine AS SELECT 1",
    "CREATE TEMP TRIGGER mine AFTER INSERT ON buffers BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE mine USING fts5(text)",
    "CREATE VIRTUAL TABLE temp.mine USING rtree(a, b, c)",
    "ANALYZE",
    "REINDEX",
    "DROP TABLE labels",
    "DROP VIEW v_tasks",
    "ALTER TABLE buffers RENAME TO gone",
    "DELETE FROM experiences",
    "WITH x AS (SELECT 1) DELETE FROM experiences",
    "DELETE FROM experiences RETURNING seq",
    "UPDATE buffers SET name = 'x'",
    "UPDATE sqlite_master SET sql = ''",
    "INSERT INTO buffers (name) VALUES ('x')",
    "REPLACE INTO buffers (name) VALUES ('x')",
    "EXPLAIN DELETE FROM experiences",
    "EXPLAIN QUERY PLAN DELETE FROM experiences",
    "SELECT 1; DELETE FROM experiences",
    "; DELETE FROM experiences",
]

# Each of them would call `pg_advisory_lock`, in words of PostgreSQL's grammar.
LOCKS = [
    "SELECT pg_advisory_lock(1)",
    "SELECT pg_advisory_lock_shared(1)",
    "SELECT pg_try_advisory_lock(1)",
    "SELECT pg_advisory_xact_lock(1)",
    "SELECT pg_advisory_unlock_all()",
    "SELECT PG_Advisory_Lock(1)",
    'SELECT "pg_advisory_lock"(1)',
    "SELECT pg_catalog.pg_advisory_lock(1)",
    'SELECT "pg_catalog" . /* ( */ "pg_advisory_lock" -- (\n (1)',
    "SELECT pg_advisory_lock\t\n\f\v(1)",
    'SELECT U&"pg\\005fadvisory\\005flock"(1)',
    "SELECT u&\"pg!005fadvisory_lock\" UESCAPE '!' (1)",
    "SELECT (1::bigint).pg_advisory_lock",
    "SELECT (n.n).pg_advisory_lock FROM (SELECT 1::bigint) AS n(n)",
    "SELECT * FROM pg_advisory_lock(1)",
    "SELECT * FROM ROWS FROM (pg_advisory_lock(1), pg_advisory_lock(2)) AS r",
    "SELECT 1 LIMIT (SELECT 1 FROM pg_advisory_lock(1))",
    "SELECT 1 ORDER BY pg_advisory_lock(1)::text",
    "VALUES (1, pg_advisory_lock(1)), (2, pg_advisory_lock(2))",
    "WITH a AS MATERIALIZED (SELECT pg_advisory_lock(1)) SELECT 1 FROM a",
    "EXPLAIN ANALYZE SELECT pg_advisory_lock(1)",
    "EXPLAIN (ANALYZE, FORMAT JSON) SELECT pg_advisory_lock(1)",
    # A lexer that goes wrong in the text takes the call for a part of it, or for a comment.
    "SELECT E'\\'', pg_advisory_lock(1), '\\'",
    "SELECT '\\', pg_advisory_lock(1), '\\'",
    "SELECT e'a'\n'\\'', pg_advisory_lock(1), ''",
    "SELECT e'a' -- a comment\n  '\\'', pg_advisory_lock(1), ''",
    "SELECT $$ ' $$, pg_advisory_lock(1), $$ ' $$",
    "SELECT $a$ $b$ $a$, pg_advisory_lock(1), $a$ $b$ $a$",
    'SELECT 1 AS "a""--", pg_advisory_lock(1)',
    "SELECT /* /* */ ' */ pg_advisory_lock(1) AS \"'\"",
    "SELECT 1 /**/ +/**/ 1, pg_advisory_lock(1)",
    "SELECT 1 --\r, pg_advisory_lock(1)",
    "SELECT N'\\', pg_advisory_lock(1), N'\\'",
    "SELECT x$a$.n, pg_advisory_lock(1), 1 AS y$a$ FROM (SELECT 1) AS x$a$(n)",
    # Functions that run a text as SQL.
    "SELECT query_to_xml('SELECT pg_advisory_lock(1)', true, true, '')",
    "SELECT query_to_xml_and_xmlschema('SELECT pg_advisory_lock(1)', true, true, '')",
    "SELECT * FROM ts_stat('SELECT to_tsvector(pg_advisory_lock(1)::text)')",
    "SELECT ts_rewrite('a'::tsquery, 'SELECT ''a''::tsquery, pg_advisory_lock(1)::text::tsquery')",
]
OF_POSTGRESQL = [
    *LOCKS,
    "SET statement_timeout = 0",
    "SET ROLE postgres",
    "RESET ROLE",
    "SET TRANSACTION READ WRITE",
    "SET SESSION CHARACTERISTICS AS TRANSACTION READ WRITE",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT set_config('default_transaction_read_only', 'off', false)",
    "SELECT set_config('role', 'none', true)",
    "SELECT set_config('statement_timeout', '0', true)",
    "SELECT setseed(0.5)",
    "BEGIN",
    "COMMIT",
    "COMMIT AND CHAIN",
    "ROLLBACK",
    "SAVEPOINT a",
    "COMMIT; DELETE FROM experiences",
    "SELECT 1; COMMIT; DELETE FROM experiences",
    "SELECT 1) AS x; COMMIT; DELETE FROM experiences; --",
    "PREPARE a AS DELETE FROM experiences",
    "EXECUTE a",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "FETCH ALL FROM sqlbuffer",
    "DISCARD ALL",
    "DO $$ BEGIN PERFORM pg_advisory_lock(1); END $$",
    "CALL nothing()",
    "LISTEN experiences",
    "NOTIFY experiences",
    "SELECT pg_notify('experiences', 'x')",
    "LOCK TABLE experiences",
    "SELECT * FROM buffers FOR UPDATE",
    "SELECT * FROM buffers FOR KEY SHARE",
    "VACUUM",
    "ANALYZE",
    "CHECKPOINT",
    "COPY experiences TO '{folder}/copy'",
    "COPY (SELECT 1) TO PROGRAM 'touch {folder}/file'",
    "COPY buffers FROM PROGRAM 'touch {folder}/file'",
    "CREATE TEMP TABLE mine (n integer)",
    "CREATE FUNCTION mine() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
    "SELECT 1 AS n INTO mine",
    "DROP VIEW v_tasks",
    "TRUNCATE experiences",
    "DELETE FROM experiences",
    "WITH gone AS (DELETE FROM experiences RETURNING 1) SELECT * FROM gone",
    "INSERT INTO buffers (name) VALUES ('x')",
    "MERGE INTO buffers b USING buffers o ON b.id = o.id WHEN MATCHED THEN DELETE",
    "EXPLAIN ANALYZE DELETE FROM experiences",
    "EXPLAIN (ANALYZE) DELETE FROM experiences",
    "EXPLAIN DELETE FROM experiences",
    "EXPLAIN ANALYZE WITH gone AS (DELETE FROM experiences RETURNING 1) SELECT * FROM gone",
    "EXPLAIN SELECT 1; DELETE FROM experiences",
    "EXPLAIN (ANALYZE) SELECT 1; COMMIT",
    "SHOW role; DELETE FROM experiences",
    "SELECT nextval('buffers_id_seq')",
    "SELECT setval('buffers_id_seq', 1)",
    "SELECT lo_create(0)",
    "SELECT lo_from_bytea(0, 'x')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT lo_export(1, '{folder}/file')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('/etc/passwd')",
    "SELECT pg_stat_file('/etc/passwd')",
    "SELECT * FROM pg_ls_dir('/')",
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity",
    "SELECT pg_cancel_backend(pid) FROM pg_stat_activity",
    "SELECT pg_reload_conf()",
    "SELECT pg_rotate_logfile()",
    "SELECT pg_switch_wal()",
    "SELECT pg_create_restore_point('x')",
    "SELECT pg_logical_emit_message(false, 'x', 'x')",
    "SELECT pg_create_physical_replication_slot('x', true)",
    "SELECT pg_promote()",
    "SELECT pg_export_snapshot()",
    "SELECT pg_stat_reset()",
    "SELECT pg_log_backend_memory_contexts(pg_backend_pid())",
    "SELECT pg_import_system_collations('pg_catalog')",
    "SELECT sqlbuffer_reserve_v1(1, 100)",
    "SELECT sqlbuffer_lock_v1(1)",
]


def asked(url, statement):
    """Run a statement as `sqlbuffer sql` does."""
    with readonly.asked(url, statement) as found:
        return readonly.Answer(found.columns, list(found.rows))


@pytest.fixture
def database(request, make_database_url):
    url = make_database_url(request.param, schema=True)
    with ReplayBuffer(url) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(5)])
    return url


def contents(folder: Path) -> dict[str, str]:
    """Return a hash of each file, but not of the log and its index, which readers open."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and not path.name.endswith(("-wal", "-shm"))
    }


def is_refused(pool: ReadPool, url: str, statement: str) -> bool:
    """Run a statement as the page does, and as `sqlbuffer sql` does."""
    small = partial(pool.query, time_s=60, **SMALL)
    for query in (small, partial(asked, url)):
        with suppress(StorageError):
            query(statement)
            return False
        if query is not small and url.startswith("sqlite"):
            continue  # its process has ended
        # The connection is as it was before.
        with pytest.raises(StorageReadOnlyError):
            query("DELETE FROM experiences")
        if query("SELECT count(*) FROM v_experiences").rows != [(5,)]:
            return False
    return True


@pytest.mark.thorough
@pytest.mark.parametrize("database", ["sqlite"], indirect=True)
def test_sqlite_refuses_what_does_more_than_read(database, tmp_path):
    before = contents(tmp_path)
    pool = ReadPool(database, size=1)
    run = [
        statement
        for statement in OF_SQLITE
        if not is_refused(pool, database, statement.format(folder=tmp_path))
        or contents(tmp_path) != before
    ]
    assert run == []
    pool.close()


STATE = """SELECT (SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
            WHERE l.locktype = 'advisory' AND d.datname = current_database()),
    (SELECT count(*) FROM pg_class), (SELECT count(*) FROM pg_proc),
    (SELECT count(*) FROM pg_largeobject_metadata),
    (SELECT last_value FROM buffers_id_seq),
    (SELECT count(*) FROM pg_replication_slots),
    (SELECT string_agg(name, ' ') FROM buffers)"""


@pytest.mark.thorough
@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_postgresql_refuses_what_does_more_than_read(database, tmp_path):
    tmp_path.chmod(0o777)
    pool = ReadPool(database, size=1)
    before = sql.run(database, STATE)
    run = [
        statement
        for statement in OF_POSTGRESQL
        if not is_refused(pool, database, statement.replace("{folder}", str(tmp_path)))
        or sql.run(database, STATE) != before
        or contents(tmp_path)
    ]
    assert run == []
    pool.close()


@pytest.mark.parametrize("database", ["postgresql"], indirect=True)
def test_the_statements_that_lock_are_ones_that_postgresql_takes(database):
    """What the test above sees refused is refused for what it would do, not as malformed."""
    with psycopg.connect(database, autocommit=True) as connection:
        for statement in LOCKS:
            connection.execute("BEGIN")
            with suppress(psycopg.errors.FeatureNotSupported):  # XML, where it is left out
                connection.execute(statement)
            connection.execute("ROLLBACK")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("database", "statement"),
    [
        ("sqlite", "EXPLAIN QUERY PLAN SELECT * FROM v_tasks"),
        ("sqlite", "EXPLAIN SELECT * FROM buffers"),
        ("sqlite", "EXPLAIN VACUUM INTO '/nowhere/copy.db'"),  # it lists the steps
        ("sqlite", "SELECT * FROM json_each('[1, 2]'), json_tree('[1]')"),
        ("sqlite", "SELECT name FROM sqlite_master"),
        ("sqlite", "SELECT group_concat(name), max(id) OVER (), random() FROM buffers"),
        ("sqlite", "VALUES (1)"),
        ("postgresql", "SHOW server_version"),
        ("postgresql", "SHOW ALL;"),
        ("postgresql", "show transaction isolation level"),
        ("postgresql", "EXPLAIN SELECT * FROM v_tasks"),
        ("postgresql", "EXPLAIN (SELECT 1)"),
        ("postgresql", "EXPLAIN ((SELECT 1) UNION (SELECT 2));"),
        ("postgresql", "EXPLAIN ANALYZE VERBOSE SELECT 1"),
        ("postgresql", "/* why */ explain (ANALYZE, FORMAT JSON) WITH a AS (SELECT 1) TABLE a"),
        ("postgresql", "TABLE buffers"),
        ("postgresql", "SELECT random(), clock_timestamp(), gen_random_uuid()"),
        ("postgresql", "SELECT pg_total_relation_size('buffers'), count(*) FROM pg_locks"),
        ("postgresql", "SELECT * FROM buffers TABLESAMPLE system (100)"),
        ("postgresql", "SELECT 'pg_advisory_lock(1)', $$ lo_export(1) $$ -- pg_reload_conf()"),
        ("postgresql", "SELECT 'a\\' AS \"o'clock\", E'it''s \\' fine', 1 AS système"),
        ("postgresql", "SELECT string_agg(name, ',' ORDER BY name), max(id) FROM buffers"),
        ("postgresql", "SELECT pg_sleep(0)"),
    ],
    indirect=["database"],
)
def test_what_only_reads_is_run(database, statement):
    pool = ReadPool(database)
    assert pool.query(statement, max_rows=1000, max_bytes=10**7).rows
    pool.close()
    assert asked(database, statement).columns


def test_tables_of_json_are_still_read_after_the_schema_changed(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    pool = ReadPool(sqlite_url, size=1)
    question = "SELECT value FROM json_each('[7]')"
    assert pool.query(question, **SMALL).rows == [(7,)]
    sql.run(sqlite_url, "CREATE TABLE other (n integer)")
    assert pool.query(f"{question} UNION SELECT n FROM other", **SMALL).rows == [(7,)]
    pool.close()


@pytest.mark.thorough
@pytest.mark.parametrize("size", [7_000_000, 400_000])
def test_statements_that_never_look_at_a_limit_end_at_it_and_stop_no_page(sqlite_url, size):
    ReplayBuffer(sqlite_url).close()
    pool, ended = ReadPool(sqlite_url), []

    def ask():
        with pytest.raises(ReadLimitError, match=r"limit of 0\.2 s"):
            pool.query(STUCK.format(size), time_s=0.2, **SMALL)
        ended.append(True)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        with pool.connection() as connection:
            assert connection.execute(text("SELECT count(*) FROM buffers")).scalar() == 1
    assert len(ended) == 4
    assert pool.query("SELECT 7", **SMALL).rows == [(7,)]
    pool.close()


def test_a_sleep_ends_at_the_time_limit(postgres_url):
    pool = ReadPool(postgres_url)
    with pytest.raises(ReadLimitError, match=r"limit of 0\.2 s"):
        pool.query("SELECT pg_sleep(600)", time_s=0.2, **SMALL)
    pool.close()


def test_statements_run_as_the_analyst_where_there_is_the_role(url_with_roles):
    pool = ReadPool(url_with_roles)
    for query in (
        lambda text: pool.query(text, **SMALL),
        lambda text: asked(url_with_roles, text),
    ):
        assert query("SELECT current_user").rows == [("sqlbuffer_analyst",)]
        assert query("SELECT count(*) FROM v_tasks").rows == [(1,)]
        with pytest.raises(StorageReadOnlyError, match="permission denied"):
            query("SELECT rolpassword FROM pg_authid")
    pool.close()


@pytest.mark.thorough
def test_a_writer_goes_on_while_statements_without_end_run(schema_url):
    pool = ReadPool(schema_url)
    ended = []

    def ask():
        with pytest.raises(ReadLimitError):
            pool.query(ENDLESS, time_s=1.0, **SMALL)
        ended.append(True)

    threads = [threading.Thread(target=ask) for _ in range(4)]
    with ReplayBuffer(schema_url) as buffer:
        for thread in threads:
            thread.start()
        n_stored = 0
        while not ended:
            n_stored += buffer.store(make_array_row(step=n_stored)).inserted
        for thread in threads:
            thread.join()
        assert len(ended) == 4
        # One that waited for them would have stored one row.
        assert len(buffer) == n_stored >= 3
    pool.close()
