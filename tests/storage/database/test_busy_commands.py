"""Commands end with 5 where another writer holds the database."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage import dialects
from sqlbuffer.storage.database import transactions
from sqlbuffer.storage.dialects import writing
from tests.support.array_rows import make_array_row


@pytest.mark.parametrize(
    "words", [("resize", "5", "--yes"), ("delete", "--all-rows", "--yes")], ids=" ".join
)
def test_a_database_that_another_writer_holds_is_5(run, buffer_url, monkeypatch, words):
    monkeypatch.setattr(dialects, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(transactions, "LOCK_TIMEOUT_S", 1)
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(9)])
        with writing(buffer._store.engine) as connection:
            connection.exec_driver_sql("UPDATE buffers SET deletions = deletions + 1")
            result = run(words[0], buffer_url, *words[1:])
    assert result.exit_code == 5
    assert "try again" in result.stderr
    assert result.stderr.splitlines()[1:] == ["See `sqlbuffer errors StorageBusyError`"]
