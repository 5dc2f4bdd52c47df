"""The helper that runs a user's SQL reads row by row and cannot write."""

import os
import signal
import sqlite3

import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageError, StorageReadOnlyError
from sqlbuffer.storage.database import readonly
from sqlbuffer.storage.database.statement_process import StatementLimits, StatementProcesses
from tests.support import sql as plain_sql
from tests.support.array_rows import make_array_row


def asked(url, statement):
    """Run a statement of a user."""
    with readonly.asked(url, statement) as found:
        return readonly.Answer(found.columns, list(found.rows))


@pytest.fixture
def filled(schema_url):
    with ReplayBuffer(schema_url) as buffer:
        buffer.store(make_array_row())
        yield schema_url


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM experiences",
        "UPDATE buffers SET name = 'x'",
        "INSERT INTO buffers (name) VALUES ('x')",
        "DROP VIEW v_tasks",
        "CREATE TABLE mine (n integer)",
    ],
)
def test_a_statement_that_writes_is_refused(filled, statement):
    with pytest.raises(StorageReadOnlyError):
        asked(filled, statement)
    assert asked(filled, "SELECT count(*) FROM v_tasks").rows == [(1,)]


@pytest.mark.parametrize("first", ["COMMIT", "ROLLBACK"])
def test_a_second_statement_is_refused(filled, first):
    with pytest.raises(StorageError):
        asked(filled, f"{first}; DELETE FROM experiences")
    assert asked(filled, "SELECT count(*) FROM v_tasks").rows == [(1,)]


def test_columns_are_named_and_a_percent_sign_is_one(filled):
    answer = asked(filled, "SELECT task_id, 7 % 4 AS rest FROM v_tasks WHERE task_id LIKE 't%'")
    assert answer == readonly.Answer(["task_id", "rest"], [("task_0", 3)])


def test_the_buffer_can_be_written_afterwards(filled):
    asked(filled, "SELECT 1")
    with ReplayBuffer(filled) as buffer:
        assert buffer.store(make_array_row(step=1)).inserted == 1


def test_a_sqlite_file_is_read_from_a_path_with_special_characters(tmp_path):
    url = f"sqlite:///{tmp_path}/a b%23#c.db"
    with ReplayBuffer(url) as buffer:
        buffer.store(make_array_row())
        assert asked(url, "SELECT count(*) FROM v_tasks").rows == [(1,)]


@pytest.mark.parametrize("stream", [readonly.stream, readonly.asked])
def test_rows_come_before_the_last_is_read(schema_url, stream):
    plain_sql.fill(schema_url, 3000).close()
    statement = "SELECT seq FROM v_experiences ORDER BY seq"
    with stream(schema_url, statement) as found:
        assert found.columns == ["seq"]
        assert next(found.rows) == (1,)
        with ReplayBuffer(schema_url) as buffer:  # the reader keeps no writer waiting
            assert buffer.store(make_array_row()).inserted == 1
        assert sum(1 for _ in found.rows) == 2999


@pytest.mark.thorough
@pytest.mark.parametrize(("stream", "n"), [(readonly.stream, 20), (readonly.asked, 2)])
def test_a_stream_that_is_left_gives_its_connection_back(schema_url, stream, n):
    plain_sql.fill(schema_url, 3000).close()
    for _ in range(n):  # 20 are more than the pool has
        with stream(schema_url, "SELECT seq FROM v_experiences") as found:
            next(found.rows)


def test_parameters_are_bound(schema_url):
    statement = "SELECT '100%' AS percent, :word AS word, '12:30' AS time"
    answer = readonly.query(schema_url, statement, {"word": "it's"})
    assert answer.rows == [("100%", "it's", "12:30")]


def test_values_of_sqlite_are_those_that_it_has(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    statement = (
        "SELECT NULL, 1, -9223372036854775808, 9223372036854775807, 0.1, -0.0, 1e-310, 9e999, "
        "-9e999, '', 'é\u2028\n\"', x'', x'00ff7b', '{\"bytes\":\"\"}', CAST(x'61ff' AS TEXT)"
    )
    with sqlite3.connect(sqlite_url.removeprefix("sqlite:///")) as connection:
        connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        expected = connection.execute(statement).fetchall()
    connection.close()
    assert repr(asked(sqlite_url, statement).rows) == repr(expected)


def test_a_process_is_kept_and_one_that_dies_is_replaced(sqlite_url):
    ReplayBuffer(sqlite_url).close()
    url, limits = make_url(sqlite_url), StatementLimits()
    processes = StatementProcesses(1, 1.0)

    def rows(statement):
        with processes.answering(url, statement, limits) as found:
            return list(found.rows)

    assert rows("SELECT 7") == [(7,)]
    (kept,) = processes._idle
    with processes.answering(url, "SELECT 1 UNION ALL SELECT 2", limits) as found:
        assert next(found.rows) == (1,)
        os.kill(kept._process.pid, signal.SIGKILL)
        with pytest.raises(StorageError, match="ended with status -9"):
            next(found.rows)
    assert rows("SELECT 8") == [(8,)]
    (other,) = processes._idle
    assert other is not kept
    processes.close()
    assert not other.is_running
