import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from subprocess import PIPE, Popen

import psycopg
import pytest
from sqlalchemy import make_url

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.errors import SchemaTooNewError
from sqlbuffer.storage.buffers import hanging
from sqlbuffer.storage.database import sqlite as sqlite_database
from sqlbuffer.storage.database.writer_lock import writer_lock
from sqlbuffer.storage.inspect import doctor
from tests.conftest import close_pool
from tests.support import sql
from tests.support.array_rows import make_array_row
from tests.support.postgres import running_server

COMMON = [
    "reachable",
    "schema",
    "can read",
    "can write",
    "triggers, views, indexes",
    "settings",
]
OF_SQLITE = ["lock file", "journal mode", "WAL size", "file system", "disk space"]
OF_POSTGRESQL = [
    "advisory locks",
    "autovacuum",
    "may VACUUM",
    "dead rows",
    "size of the steps",
    "oldest transaction",
    "connections",
    "durability",
    "encoding",
    "clock",
]


def findings(url, **options):
    return {finding.name: finding for finding in doctor.examine(url, **options)}


def of_server(url):
    """Return the names of what a PostgreSQL is asked; the tests' own does not wait for the disk."""
    waits = sql.scalar(url, "SHOW fsync") == "on"
    return OF_POSTGRESQL if waits else [*(set(OF_POSTGRESQL) - {"durability"}), "fsync"]


def path_of(url):
    return Path(url.removeprefix("sqlite:///"))


def test_a_healthy_database_is_all_ok(run, filled):
    result = run("doctor", filled, "--full")
    lines = result.stdout.splitlines()
    names = [line[5:].partition(": ")[0] for line in lines]
    own = [*OF_SQLITE, "integrity"] if sql.is_sqlite(filled) else of_server(filled)
    buffers = [f"buffer {name!r}" for name in ("arrays", "empty", "talks")]
    assert result.exit_code == 0
    assert sorted(names) == sorted([*COMMON, *own, *buffers])
    # The disk of the machine may be full, and its server busy.
    assert {line[:4] for line in lines} <= {"OK  ", "WARN"}
    assert "OK   buffer 'arrays': 20 rows, capacity 100" in lines


def test_json_has_a_finding_an_object(run, filled):
    rows = json.loads(run("doctor", filled, "--json").stdout)
    assert list(rows[0]) == ["status", "check", "detail", "remedy"]
    assert rows[0]["status"] == "OK"
    assert rows[0]["detail"].startswith(("SQLite 3.", "PostgreSQL 1"))
    lines = run("doctor", filled, "--ndjson").stdout.splitlines()
    assert [json.loads(line)["check"] for line in lines] == [row["check"] for row in rows]


def test_nothing_is_changed(filled):
    if sql.is_sqlite(filled):
        before = path_of(filled).read_bytes()
    list(doctor.examine(filled, full=True))
    if sql.is_sqlite(filled):
        assert path_of(filled).read_bytes() == before
    with ReplayBuffer(filled, name="arrays") as buffer:
        assert buffer.store(make_array_row(step=99)).inserted == 1


def test_a_database_without_the_schema_fails_with_4(run, database_url):
    with sql.connected(database_url):
        pass
    result = run("doctor", database_url)
    assert result.exit_code == 4
    assert "FAIL schema: " in result.stdout
    assert "sqlbuffer db init" in result.stdout
    assert "OK   reachable: " in result.stdout


def test_a_file_that_is_no_database_fails_with_3(run, tmp_path):
    (tmp_path / "notes.db").write_text("no database, but long enough to be mistaken for one\n" * 9)
    result = run("doctor", "notes.db")
    assert result.exit_code == 3
    assert result.stdout.startswith("FAIL reachable: ")


def test_a_database_in_memory_is_a_usage_error(run):
    assert run("doctor", "sqlite://").exit_code == 2


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "statement", "missing"),
    [
        ("sqlite", "DROP TRIGGER trg_experiences_delete_v1", "trigger trg_experiences_delete_v1"),
        ("sqlite", "DROP INDEX uq_experiences_buffer_id_id", "index uq_experiences_buffer_id_id"),
        (
            "postgresql",
            "ALTER TABLE experiences DISABLE TRIGGER trg_experiences_insert_v1",
            "trigger trg_experiences_insert_v1",
        ),
        (
            "postgresql",
            "DROP TRIGGER trg_experiences_number_v1 ON experiences",
            "trigger trg_experiences_number_v1",
        ),
        ("postgresql", "DROP VIEW v_groups", "view v_groups"),
    ],
)
def test_what_the_migrations_made_and_is_gone_fails(
    run, make_database_url, kind, statement, missing
):
    url = make_database_url(kind, schema=True)
    sql.run(url, statement)
    result = run("doctor", url)
    assert result.exit_code == 1
    assert f"missing or switched off: {missing}; create" in result.stdout
    assert f"sqlbuffer db sql --dialect {kind}" in result.stdout


@pytest.mark.thorough
def test_rows_behind_the_window_are_counted_and_resize_removes_them(run, schema_url, monkeypatch):
    monkeypatch.setattr(doctor, "MANY_STRAGGLERS", 10)
    with ReplayBuffer(schema_url, name="b", max_capacity=100) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(50)])
        # By hand, so that nothing is evicted.
        sql.run(schema_url, "UPDATE buffers SET max_capacity = 5")
        found = findings(schema_url)["buffer 'b'"]
        assert found.status == "WARN"
        assert found.detail == "5 rows, capacity 5, and 45 evicted rows that are not removed yet"
        assert found.remedy == "`sqlbuffer resize URL 5 --buffer b` removes them"
        assert run("resize", schema_url, "5", "--buffer", "b").exit_code == 0
        found = findings(schema_url)["buffer 'b'"]
    assert (found.status, found.detail) == ("OK", "5 rows, capacity 5")


def test_a_column_that_says_something_else_than_the_configuration_is_a_warning(schema_url):
    ReplayBuffer(schema_url, name="b", max_capacity=100, rate_limiter=RateLimiter(2.0)).close()
    ReplayBuffer(schema_url, name="c", max_capacity=100).close()
    assert findings(schema_url)["settings"].detail == "2 configurations agree with the columns"
    sql.run(schema_url, "UPDATE buffers SET max_capacity = 5, flow = NULL WHERE name = 'b'")
    found = findings(schema_url)["settings"]
    assert found.status == "WARN"
    assert "buffer 'b': max_capacity is 5, and its configuration says 100; flow is" in found.detail
    assert "'c'" not in found.detail
    assert "sqlbuffer resize URL N" in found.remedy


def test_a_configuration_of_a_later_release_fails(schema_url):
    ReplayBuffer(schema_url, name="b").close()
    sql.run(schema_url, """UPDATE buffers SET config = '{"weather": {}}'""")
    found = findings(schema_url)["settings"]
    assert (found.status, found.error) == ("FAIL", SchemaTooNewError)
    assert "'weather'" in found.detail


def test_a_count_that_went_wrong_fails(run, schema_url):
    with ReplayBuffer(schema_url, max_capacity=100, evict_by="task") as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(9)])
    assert findings(schema_url)["buffer 'default'"].status == "OK"
    sql.run(schema_url, "UPDATE buffers SET live_rows = 4")
    result = run("doctor", schema_url)
    assert result.exit_code == 1
    assert "9 rows, capacity 100; the stored count says 4" in result.stdout


def test_a_journal_without_a_log_is_a_warning(make_database_url):
    url = make_database_url("sqlite", schema=True)
    sql.run_outside_transaction(url, "PRAGMA journal_mode = DELETE")
    found = findings(url)["journal mode"]
    assert found.status == "WARN"
    assert "PRAGMA journal_mode = WAL" in found.remedy


def test_a_large_log_is_a_warning(make_database_url, monkeypatch):
    url = make_database_url("sqlite", schema=True)
    monkeypatch.setattr(doctor, "LARGE_WAL_BYTES", 1000)
    with ReplayBuffer(url) as buffer:
        buffer.store(make_array_row())
        found = findings(url)["WAL size"]
    assert found.status == "WARN"
    assert "fuser" in found.remedy


READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM buffers").fetchone()
print("reading", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not Path("/proc/locks").exists(), reason="allowed: no /proc/locks here")
def test_the_process_behind_which_the_log_grows_is_named(make_database_url, monkeypatch):
    url = make_database_url("sqlite", schema=True)
    monkeypatch.setattr(doctor, "LARGE_WAL_BYTES", 1000)
    command = [sys.executable, "-c", READER, path_of(url)]
    with (
        ReplayBuffer(url) as buffer,
        Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process,
    ):
        assert process.stdout.readline() == "reading\n"
        buffer.store(make_array_row())
        found = findings(url)["WAL size"]
        process.communicate()
        later = findings(url)["WAL size"]
    assert f"process {process.pid} (" in found.detail
    assert "end that transaction" in found.remedy
    assert "none is open now" in later.detail


def test_the_lock_file_is_free_held_or_not_there(make_database_url):
    url = make_database_url("sqlite", schema=True)
    assert "first writer makes it" in findings(url)["lock file"].detail
    path = Path(f"{path_of(url)}.lock")
    assert not path.exists()
    path.touch()
    assert findings(url)["lock file"].detail.endswith("free")
    with writer_lock(path, 1):
        assert findings(url)["lock file"].detail.endswith("held by a writer right now")


def test_a_writer_at_work_is_no_failure(make_database_url):
    url = make_database_url("sqlite", schema=True)
    with closing(sqlite3.connect(path_of(url), isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        found = findings(url)["can write"]
        other.execute("ROLLBACK")
    assert (found.status, found.detail) == ("OK", "another process is writing right now")


def test_a_file_that_may_not_be_written_is_a_warning(make_database_url, monkeypatch):
    url = make_database_url("sqlite", schema=True)
    path = path_of(url)
    for place in (path, path.parent):
        # Not by the mode of the file: who runs as root may write it all the same.
        monkeypatch.setattr(os, "access", lambda asked, mode, place=place: Path(asked) != place)
        found = findings(url)["can write"]
        assert found.status == "WARN"
        assert found.detail.startswith(f"{place} is not writable")


def test_a_damaged_file_fails_the_full_check_alone(run, make_database_url):
    url = make_database_url("sqlite", schema=True)
    sql.fill(url, 2000).close()
    sql.run_outside_transaction(url, "PRAGMA wal_checkpoint(TRUNCATE)")
    (page,) = sql.run(
        url, "SELECT rootpage FROM sqlite_master WHERE name = 'ix_tasks_buffer_id_last_seq'"
    )[0]
    (size,) = sql.run(url, "PRAGMA page_size")[0]
    with path_of(url).open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xff" * 64)
    assert "integrity" not in findings(url)
    result = run("doctor", url, "--full")
    assert result.exit_code == 1
    assert "FAIL integrity: " in result.stdout
    assert "backup" in result.stdout


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "9p", "fuse.sshfs", "lustre"])
def test_a_network_file_system_is_a_warning(make_database_url, monkeypatch, tmp_path, kind):
    url = make_database_url("sqlite", schema=True)
    mounts = tmp_path / "mountinfo"
    mounts.write_text(f"36 35 98:0 / / rw - {kind} server:/export rw\n")
    monkeypatch.setattr(sqlite_database, "MOUNTS", mounts)
    found = findings(url)["file system"]
    assert found.status == "WARN"
    assert kind in found.detail
    assert "PostgreSQL" in found.remedy


def test_a_full_disk_is_a_warning(make_database_url, monkeypatch):
    monkeypatch.setattr(doctor, "LITTLE_SPACE_BYTES", 10**18)
    assert findings(make_database_url("sqlite", schema=True))["disk space"].status == "WARN"


@pytest.fixture
def server_url(make_database_url):
    return make_database_url("postgresql", schema=True)


def with_setting(url, name, value):
    """Return the URL of sessions with a setting."""
    options = f"-c {name}={value}"
    return make_url(url).update_query_dict({"options": options}).render_as_string(False)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_server_that_waits_for_the_disk_is_durable():
    with running_server() as server:
        url = server.create_database()
        found = findings(url)
        close_pool(url)
    assert found["durability"].status == "OK"
    assert "fsync" not in found


def test_lost_durability_is_a_warning(server_url):
    found = findings(with_setting(server_url, "synchronous_commit", "off"))
    assert "durability" not in found
    assert found["synchronous_commit"].status == "WARN"
    assert "synchronous_commit = on" in found["synchronous_commit"].remedy


def test_a_server_that_only_reads_is_a_warning(server_url):
    found = findings(with_setting(server_url, "default_transaction_read_only", "on"))
    assert found["can read"].status == "OK"
    assert found["can write"].status == "WARN"


def test_an_old_transaction_is_named_with_what_ends_it(server_url, monkeypatch):
    monkeypatch.setattr(doctor, "LONG_TRANSACTION_S", 0)
    with psycopg.connect(server_url, application_name="a notebook") as analyst:
        analyst.execute("SELECT 1")
        found = findings(server_url)["oldest transaction"]
        process = analyst.info.backend_pid
    assert found.status == "WARN"
    assert f"process {process} 'a notebook', idle in transaction" in found.detail
    assert f"pg_terminate_backend({process})" in found.remedy


def test_a_hanging_writer_is_named_with_what_ends_it(server_url, monkeypatch):
    monkeypatch.setattr(hanging, "HANGING_S", 0.0)
    with (
        ReplayBuffer(server_url, "walk"),
        psycopg.connect(server_url, application_name="rollouts") as writer,
    ):
        assert "writer of 'walk'" not in findings(server_url)
        writer.execute("SELECT sqlbuffer_reserve_v1(1, 4)")
        found = findings(server_url)["writer of 'walk'"]
        process = writer.info.backend_pid
    assert found.status == "WARN"
    assert f"process {process} of " in found.detail
    assert "('rollouts')" in found.detail
    assert f"pg_terminate_backend({process})" in found.remedy


def test_many_connections_are_a_warning(server_url, monkeypatch):
    monkeypatch.setattr(doctor, "MANY_CONNECTIONS", 0.0)
    found = findings(server_url)["connections"]
    assert found.status == "WARN"
    assert "pgbouncer" in found.remedy


def test_clocks_that_differ_are_a_warning(server_url, monkeypatch):
    now = doctor.time.time
    monkeypatch.setattr(doctor.time, "time", lambda: now() - 3600)
    found = findings(server_url)["clock"]
    assert found.status == "WARN"
    assert "the server is 3,600.0 s ahead of this machine" in found.detail


def test_many_dead_rows_are_a_warning(server_url, monkeypatch):
    monkeypatch.setattr(doctor, "MANY_DEAD_ROWS", -1)
    with ReplayBuffer(server_url) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(50)])
        buffer.clear()
    sql.run_outside_transaction(server_url, "ANALYZE experiences")  # or the counts may lag
    found = findings(server_url)["dead rows"]
    assert found.status == "WARN"
    assert "VACUUM" in found.remedy


@pytest.mark.parametrize("table", ["experiences", "chunks", "chunk_data"])
def test_a_table_without_autovacuum_is_a_warning(server_url, table):
    sql.run(server_url, f"ALTER TABLE {table} SET (autovacuum_enabled = off)")
    assert findings(server_url)[f"autovacuum of {table}"].status == "WARN"


@pytest.mark.thorough
def test_roles_are_told_what_they_may(run, with_roles, login):
    sql.run(with_roles, "REVOKE MAINTAIN ON experiences FROM sqlbuffer_writer")
    owner, writer, analyst = (
        findings(url) for url in (with_roles, login("sqlbuffer_writer"), login("sqlbuffer_analyst"))
    )
    assert "may store and delete" in owner["can write"].detail
    assert owner["may VACUUM"].status == "OK"
    assert "may store, not delete" in writer["can write"].detail
    assert writer["may VACUUM"].status == "WARN"
    assert "owner" in writer["may VACUUM"].remedy
    assert analyst["may VACUUM"].status == "OK"
    assert "only reads; writers clean up" in analyst["may VACUUM"].detail
    assert analyst["can read"].status == "OK"
    assert analyst["can write"].status == "WARN"
    assert "GRANT sqlbuffer_writer" in analyst["can write"].remedy
    assert "of this role's own" in analyst["oldest transaction"].detail
    assert run("doctor", login("sqlbuffer_analyst")).exit_code == 0


def test_a_role_without_any_right_fails(run, with_roles, login):
    result = run("doctor", login())
    assert result.exit_code == 1
    assert "FAIL" in result.stdout
    assert "permission denied" in result.stdout or "GRANT sqlbuffer_analyst" in result.stdout


# The columns of Citus 12, whose extension cannot be installed here: what follows shows what the
# library makes of them, not what Citus writes.
PG_DIST_PARTITION = (
    "CREATE TABLE pg_catalog.pg_dist_partition (logicalrel regclass NOT NULL, "
    'partmethod "char" NOT NULL, partkey text, colocationid integer DEFAULT 0 NOT NULL, '
    "repmodel \"char\" DEFAULT 'c' NOT NULL, autoconverted boolean DEFAULT false NOT NULL)"
)


@pytest.fixture
def citus_url(make_database_url):
    """Return a database with a table that stands in for the catalog of Citus."""
    url = make_database_url("postgresql", schema=True)
    with psycopg.connect(url) as connection:
        connection.execute("SET allow_system_table_mods = on")
        connection.execute(PG_DIST_PARTITION)
    return url


def distribute(url, table, method, group, model):
    sql.run(
        url,
        "INSERT INTO pg_dist_partition (logicalrel, partmethod, colocationid, repmodel) "
        "VALUES (CAST(:name AS regclass), :method, :group, :model)",
        name=table,
        method=method,
        group=group,
        model=model,
    )


def test_tables_that_citus_distributes_are_refused_by_name(citus_url):
    distribute(citus_url, "experiences", "h", 1, "s")
    distribute(citus_url, "buffers", "n", 2, "t")  # a reference table
    found = findings(citus_url)["Citus"]
    assert found.status == "FAIL"
    assert "distributes buffers, experiences: transaction ids" in found.detail
    assert "SELECT undistribute_table('experiences')" in found.remedy


def test_tables_of_all_capabilities_are_looked_at_where_nothing_else_is_imported(citus_url):
    distribute(citus_url, "change_log", "h", 1, "s")
    command = [sys.executable, "-m", "sqlbuffer", "doctor", citus_url]
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "distributes change_log" in said.stdout


def test_a_database_of_citus_with_tables_that_are_not_distributed_is_fine(citus_url):
    assert findings(citus_url)["Citus"].status == "OK"
    distribute(citus_url, "episodes", "n", 0, "s")  # local to the coordinator
    sql.run(citus_url, "CREATE SCHEMA other")
    sql.run(citus_url, "CREATE TABLE other.experiences (n integer)")
    distribute(citus_url, "other.experiences", "h", 1, "s")
    assert findings(citus_url)["Citus"].status == "OK"
