"""Databases of 10 million rows. Each takes minutes to make and about 4 GB on a disk."""

import pytest
from sqlalchemy import make_url, text

from sqlbuffer import ReplayBuffer
from tests.conftest import close_pool, migrate
from tests.support.postgres import running_server
from tests.support.sql import buffer_id, connected, run_outside_transaction

N_ROWS = 10_000_000
ROWS_PER_TASK = 1_000
N_BUFFERS = 2_000


@pytest.fixture(scope="session")
def disk_server():
    """Yield a server on a disk that does not wait for it."""
    with running_server(fsync="off") as server:
        yield server


@pytest.fixture(scope="session")
def million_rows(disk_server):
    """Return the URL of a database with buffers of 10 million and of 100,000 rows, in tasks of
    1,000 rows.
    """
    url = _made(disk_server)
    for name, n_rows in (("large", N_ROWS), ("small", N_ROWS // 100)):
        fill_quickly(url, name, n_rows)
    run_outside_transaction(url, "VACUUM ANALYZE")
    yield url
    close_pool(url)
    disk_server.drop_database(url)


@pytest.fixture(scope="session")
def many_buffers(disk_server):
    """Return the URL of a database with 2,000 buffers of 200 rows."""
    url = _made(disk_server)
    with connected(url) as connection:
        for statement in (
            f"INSERT INTO buffers (name, max_capacity) SELECT 'b' || g, 10000 "
            f"FROM generate_series(1, {N_BUFFERS}) g",
            "SET LOCAL session_replication_role = replica",
            "INSERT INTO experiences (buffer_id, seq, task_id, agent_id, step, state, reward_t) "
            "SELECT b.id, s, 't' || s / 100, 'a', s, '{}', 0 "
            "FROM buffers b CROSS JOIN generate_series(1, 200) s",
            "SELECT setval('sqlbuffer_seq_' || id, 200) FROM buffers",
        ):
            connection.execute(text(statement))
    run_outside_transaction(url, "VACUUM ANALYZE")
    yield url
    close_pool(url)
    disk_server.drop_database(url)


def fill_quickly(url, name, n_rows):
    """Fill a buffer past its triggers, and count its blocks as its writers would have done."""
    ReplayBuffer(url, name=name, create=True).close()
    number = buffer_id(url, name)
    with connected(url) as connection:
        connection.execute(text("SET LOCAL session_replication_role = replica"))
        connection.execute(
            text(
                "INSERT INTO experiences (buffer_id, seq, id, task_id, agent_id, step, "
                f"execute_time, state, reward_t) SELECT {number}, s, 'id' || s, "
                f"'t' || (s - 1) / {ROWS_PER_TASK}, 'a' || s % 4, s % {ROWS_PER_TASK}, 1.7e9 + s, "
                f"jsonb_build_object('mod', s % 100), 0 FROM generate_series(1, {n_rows}) s"
            )
        )
        connection.execute(text(f"SELECT setval('sqlbuffer_seq_{number}', {n_rows})"))
    count = f"SELECT sqlbuffer_count_rows_v1({number}, {n_rows})"
    while run_outside_transaction(url, count) != [(0,)]:
        pass


def _made(server):
    url = make_url(server.create_database()).render_as_string(hide_password=False)
    migrate(url)
    return url
