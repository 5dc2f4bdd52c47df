"""The connections of the page read, are few, have limits, and recover."""

import threading
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from sqlalchemy import make_url, text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import (
    ReadLimitError,
    StorageBusyError,
    StorageError,
    StorageReadOnlyError,
    StorageUnreachableError,
    URLError,
)
from sqlbuffer.storage.browsing import read_pool
from sqlbuffer.storage.browsing.read_pool import ReadPool
from sqlbuffer.storage.database import readonly, readonly_server
from sqlbuffer.storage.database.statement_process import StatementLimits
from tests.support import sql
from tests.support.array_rows import make_array_row

ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT {} FROM n"
SMALL = {"max_rows": 10, "max_bytes": 10_000}


@pytest.fixture
def pool(schema_url):
    pool = ReadPool(schema_url)
    yield pool
    pool.close()


@pytest.fixture
def filled(schema_url):
    with ReplayBuffer(schema_url) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(30)])
        yield buffer


def test_a_connection_reads_one_state_of_the_database(pool, filled):
    count = text("SELECT count(*) FROM v_experiences")
    with pool.connection() as connection:
        assert connection.execute(count).scalar() == 30
        filled.store(make_array_row(step=30))
        assert connection.execute(count).scalar() == 30
    with pool.connection() as connection:
        assert connection.execute(count).scalar() == 31


@pytest.mark.parametrize(
    "statement",
    ["DELETE FROM experiences", "UPDATE buffers SET name = 'x'", "CREATE TABLE mine (n integer)"],
)
def test_a_connection_changes_nothing(pool, filled, statement):
    with pytest.raises(StorageError), pool.connection() as connection:
        connection.execute(text(statement))
    assert len(filled) == 30


def test_an_answer_has_columns_and_rows(pool, filled):
    answer = pool.query(
        "SELECT step, task_id FROM v_experiences WHERE step < 2 ORDER BY 1", **SMALL
    )
    assert answer.columns == ["step", "task_id"]
    assert answer.rows == [(0, "task_0"), (1, "task_0")]
    assert not answer.is_cut
    assert answer.seconds > 0


def test_an_answer_ends_at_the_most_rows(pool, filled):
    question = "SELECT step FROM v_experiences ORDER BY step LIMIT {}"
    assert not pool.query(question.format(10), **SMALL).is_cut
    answer = pool.query(question.format(11), **SMALL)
    assert answer.is_cut
    assert answer.rows == [(step,) for step in range(10)]


def test_an_answer_ends_at_the_most_bytes(pool):
    value = "hex(zeroblob(2000))" if pool.engine.name == "sqlite" else "repeat('0', 4000)"
    answer = pool.query(" UNION ALL ".join([f"SELECT {value} AS v"] * 5), **SMALL)
    assert answer.is_cut
    assert len(answer.rows) == 2


def test_an_answer_whose_first_row_is_too_large_has_none(pool):
    value = "hex(zeroblob(6000))" if pool.engine.name == "sqlite" else "repeat('0', 12000)"
    answer = pool.query(f"SELECT {value} AS v", **SMALL)
    assert (answer.columns, answer.rows, answer.is_cut) == (["v"], [], True)


@pytest.mark.parametrize("what", ["count(*)", "n"])
def test_a_statement_without_end_ends_at_the_time_limit(pool, what):
    question = ENDLESS.format(what) + ("" if "(" in what else " WHERE n < 0")
    with pytest.raises(ReadLimitError, match=r"limit of 0\.2 s"):
        pool.query(question, time_s=0.2, **SMALL)
    with pytest.raises(ReadLimitError, match=r"limit of 0\.2 s"), pool.connection(time_s=0.2) as c:
        c.execute(text(question)).all()
    assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]


@pytest.fixture
def small_memory(monkeypatch):
    """Allow 64 MB, counted from what the process has now."""
    peak = Path("/proc/self/clear_refs")
    if not peak.exists():
        pytest.skip("allowed: this system does not forget the most memory that a process had")
    peak.write_text("5")
    for module in (read_pool, readonly, readonly_server):
        monkeypatch.setattr(module, "MAX_GROWTH_BYTES", 64 * 2**20)


@pytest.mark.thorough
def test_values_are_limited_before_they_fill_the_memory(pool, small_memory):
    large = {
        "sqlite": "WITH RECURSIVE n(n, v) AS (SELECT 1, zeroblob(15000000) UNION ALL "
        "SELECT n + 1, zeroblob(15000000) FROM n) SELECT * FROM n ORDER BY v, n",
        "postgresql": "SELECT repeat('x', 150000000)",
    }[pool.engine.name]
    with pytest.raises(ReadLimitError, match="MB of memory"):
        pool.query(large, time_s=60, **SMALL)
    assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]


def test_a_value_of_sqlite_has_a_limit_of_its_own(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    pool = ReadPool(sqlite_url)
    with pytest.raises(ReadLimitError, match="16 MiB"):
        pool.query("SELECT zeroblob(100000000)", **SMALL)
    with pool.connection() as connection:  # the library's own reading takes what is stored
        size = connection.execute(text("SELECT length(zeroblob(100000000))")).scalar()
    assert size == 100_000_000
    pool.close()


def test_a_fifth_request_waits_and_is_told_that_all_are_busy(schema_url):
    pool = ReadPool(schema_url, wait_s=0.05)
    entered, leave = threading.Barrier(5), threading.Event()

    def hold():
        with pool.connection():
            entered.wait(30)
            leave.wait(30)

    threads = [threading.Thread(target=hold) for _ in range(4)]
    for thread in threads:
        thread.start()
    entered.wait(30)
    with pytest.raises(StorageBusyError, match="all 4 connections"), pool.connection():
        pass
    with pytest.raises(StorageBusyError):
        ReplayBuffer(pool.engine, "default", create=False, retry_s=0)
    if pool.engine.name == "sqlite":  # statements of users run elsewhere
        assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]
    else:
        with pytest.raises(StorageBusyError, match="all 4 connections"):
            pool.query("SELECT 1", **SMALL)
    leave.set()
    for thread in threads:
        thread.join(30)
    assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]
    pool.close()


def test_a_fifth_statement_on_sqlite_waits_and_is_told_that_four_run(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    pool, url, limits = ReadPool(sqlite_url, wait_s=0.05), make_url(sqlite_url), StatementLimits()
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(pool._processes.answering(url, "SELECT 1", limits))
        with pytest.raises(StorageBusyError, match="4 statements run"):
            pool.query("SELECT 1", **SMALL)
    assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]
    pool.close()


@pytest.mark.parametrize("layout", ["rows", "chunks"])
def test_the_library_reads_through_the_same_connections(schema_url, layout):
    fields = {"obs": ("float32", (3,))} if layout == "chunks" else None
    with ReplayBuffer(schema_url, "b", fields=fields) as writer:
        if fields:
            writer.extend({"obs": np.ones((300, 3), "float32")}, task_id="task_0")
        else:
            writer.store_batch([make_array_row(step=step) for step in range(300)])
    pool = ReadPool(schema_url)
    buffer = ReplayBuffer(pool.engine, "b", create=False)
    everything = QueryBuilder().eq("task_id", "task_0").build()
    assert sum(1 for _ in buffer.get_all(everything)) == 300
    assert len(buffer) == 300
    assert sum(1 for _ in buffer) == 300
    assert len(buffer.sample(16)) == 16
    with pytest.raises(StorageReadOnlyError):
        buffer.delete(everything)
    buffer.close()
    assert pool.query("SELECT count(*) AS n FROM v_experiences", **SMALL).rows == [(300,)]
    assert pool.engine.pool.checkedout() == 0
    pool.close()


def test_a_file_that_another_one_replaces_is_opened_again(make_database_url, tmp_path):
    urls = [make_database_url("sqlite", schema=True) for _ in range(2)]
    for url, name in zip(urls, ["first", "second"], strict=True):
        ReplayBuffer(url, name).close()
    pool = ReadPool(urls[0])
    names = "SELECT name FROM buffers"
    assert pool.query(names, **SMALL).rows == [("first",)]
    first, second = (Path(make_url(url).database) for url in urls)
    first.rename(tmp_path / "away.db")
    with pytest.raises(StorageUnreachableError):
        pool.query(names, **SMALL)
    assert not first.exists()
    second.rename(first)
    assert pool.query(names, **SMALL).rows == [("second",)]
    pool.close()


def test_connections_that_the_server_ended_are_opened_again(make_database_url):
    url = make_database_url("postgresql", schema=True)
    pool = ReadPool(url)
    assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]
    sql.run(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid <> pg_backend_pid()",
    )
    with pytest.raises(StorageUnreachableError):
        pool.query("SELECT 7 AS n", **SMALL)
    assert pool.query("SELECT 7 AS n", **SMALL).rows == [(7,)]
    pool.close()


def test_only_a_database_that_is_there_is_read(tmp_path):
    with pytest.raises(StorageUnreachableError, match="there is no file"):
        ReadPool(f"sqlite:///{tmp_path}/none.db")
    assert not list(tmp_path.glob("*"))
    with pytest.raises(URLError, match="in memory"):
        ReadPool("sqlite://")


@pytest.mark.parametrize(
    "statement", ["SELECT '\0'", "SELECT '\ud800'", f"SELECT '{'x' * 200_000}'"]
)
def test_a_text_that_is_no_statement_is_refused(pool, statement):
    with pytest.raises(StorageError, match="statement"):
        pool.query(statement, **SMALL)
