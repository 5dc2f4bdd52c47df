"""Rows of transactions that are prepared first and committed later (two-phase commit)."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.rows.layouts import STEP
from tests.storage.buffers.settled_rows import SettledRows
from tests.support.servers import own_server, server_programs
from tests.support.sql import buffer_id, plain_engine, run_outside_transaction
from tests.support.stepped_rows import make_row


def prepare(url, name, step):
    with plain_engine(url).connect() as connection:
        connection.exec_driver_sql(
            "INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
            f"VALUES ({buffer_id(url)}, 't', 'a', {step})"
        )
        yield
        connection.exec_driver_sql(f"PREPARE TRANSACTION '{name}'")
        connection.rollback()
        yield
    run_outside_transaction(url, f"COMMIT PREPARED '{name}'")
    yield


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_of_a_prepared_transaction_are_not_missed():
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with (
        own_server(programs, max_prepared_transactions=4) as server,
        ReplayBuffer(server.url, create=True) as buffer,
    ):
        settled = SettledRows(buffer._store)
        late = prepare(server.url, "late", 1)
        next(late)
        buffer.store(make_row(2))
        assert settled.read(10) == []
        next(late)
        assert settled.read(10) == []
        another = prepare(server.url, "another", 3)
        next(another)
        next(another)
        assert settled.read(10) == []
        next(late)
        assert [row[STEP] for row in settled.read(10)] == [1, 2]
        next(another)
        assert [row[STEP] for row in settled.read(10)] == [3]
