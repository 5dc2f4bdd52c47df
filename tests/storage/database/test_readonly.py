"""The helper that runs a user's SQL reads row by row and cannot write."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageError, StorageReadOnlyError
from sqlbuffer.storage.database import readonly
from tests.support import sql as plain_sql
from tests.support.array_rows import make_array_row


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
        readonly.query(filled, statement)
    assert readonly.query(filled, "SELECT count(*) FROM v_tasks").rows == [(1,)]


@pytest.mark.parametrize("first", ["COMMIT", "ROLLBACK"])
def test_a_second_statement_is_refused(filled, first):
    with pytest.raises(StorageError):
        readonly.query(filled, f"{first}; DELETE FROM experiences")
    assert readonly.query(filled, "SELECT count(*) FROM v_tasks").rows == [(1,)]


def test_columns_are_named_and_a_percent_sign_is_one(filled):
    answer = readonly.query(
        filled, "SELECT task_id, 7 % 4 AS rest FROM v_tasks WHERE task_id LIKE 't%'"
    )
    assert answer == readonly.Answer(["task_id", "rest"], [("task_0", 3)])


def test_the_buffer_can_be_written_afterwards(filled):
    readonly.query(filled, "SELECT 1")
    with ReplayBuffer(filled) as buffer:
        assert buffer.store(make_array_row(step=1)).inserted == 1


def test_a_sqlite_file_is_read_from_a_path_with_special_characters(tmp_path):
    url = f"sqlite:///{tmp_path}/a b%23#c.db"
    with ReplayBuffer(url) as buffer:
        buffer.store(make_array_row())
        assert readonly.query(url, "SELECT count(*) FROM v_tasks").rows == [(1,)]


def test_rows_come_before_the_last_is_read(schema_url):
    plain_sql.fill(schema_url, 3000).close()
    statement = "SELECT seq FROM v_experiences ORDER BY seq"
    with readonly.stream(schema_url, statement) as found:
        assert found.columns == ["seq"]
        assert next(found.rows) == (1,)
        with ReplayBuffer(schema_url) as buffer:  # the reader keeps no writer waiting
            assert buffer.store(make_array_row()).inserted == 1
        assert sum(1 for _ in found.rows) == 2999


def test_a_stream_that_is_left_gives_its_connection_back(schema_url):
    plain_sql.fill(schema_url, 3000).close()
    for _ in range(20):  # more than the pool has
        with readonly.stream(schema_url, "SELECT seq FROM v_experiences") as found:
            next(found.rows)


def test_parameters_are_bound(schema_url):
    statement = "SELECT '100%' AS percent, :word AS word, '12:30' AS time"
    answer = readonly.query(schema_url, statement, {"word": "it's"})
    assert answer.rows == [("100%", "it's", "12:30")]
