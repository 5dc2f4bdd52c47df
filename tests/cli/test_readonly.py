"""The helper that runs a user's SQL cannot write."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageError, StorageReadOnlyError
from sqlbuffer.storage.database import readonly
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
