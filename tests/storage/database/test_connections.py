"""Connections that die, pools that are shared, writers that wait."""

import threading
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageBusyError, StorageReadOnlyError, StorageUnreachableError
from sqlbuffer.storage.database import engine as engines
from sqlbuffer.storage.database.writer_lock import writer_lock
from tests.support.processes import wait_until
from tests.support.sql import is_sqlite, scalar


def end_connections(url: str) -> int:
    """End the library's connections on the server, as its restart would."""
    with psycopg.connect(url, autocommit=True) as admin:
        ended = admin.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND application_name LIKE 'sqlbuffer %'"
        ).fetchall()
    return len(ended)


def test_without_retries_a_dropped_connection_is_a_named_error_and_the_next_call_works(
    postgres_url: str,
) -> None:
    with ReplayBuffer(postgres_url, create=True, retry_s=0) as buffer:
        buffer.add(state=1)
        assert end_connections(postgres_url) >= 1
        with pytest.raises(StorageUnreachableError, match="check that the server runs"):
            buffer.add(state=2)
        assert buffer.add(state=3).inserted == 1
        assert end_connections(postgres_url) >= 1
        with pytest.raises(StorageUnreachableError):
            buffer.sample(8)
        assert [row.exp_data.state for row in buffer.get_all()] == [1, 3]


def test_a_dropped_connection_is_replaced_unseen(postgres_url: str) -> None:
    with ReplayBuffer(postgres_url, create=True) as buffer:
        buffer.add(state=1)
        assert end_connections(postgres_url) >= 1
        assert buffer.add(state=2).inserted == 1
        assert end_connections(postgres_url) >= 1
        assert len(buffer.sample(8)) == 2


def test_a_connection_that_died_while_idle_is_replaced_unseen(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "IDLE_BEFORE_PING_S", 0.0)
    with ReplayBuffer(postgres_url, create=True) as buffer:
        buffer.add(state=1)
        assert end_connections(postgres_url) >= 1
        assert buffer.add(state=2).inserted == 1
        assert len(buffer) == 2


def test_buffers_of_one_url_share_one_engine(database_url: str) -> None:
    with (
        ReplayBuffer(database_url, create=True) as one,
        ReplayBuffer(database_url, name="b") as two,
    ):
        assert one._store.engine is two._store.engine


def n_connections(url: str) -> int:
    """Return how many connections to a database this process has open, idle or not."""
    if is_sqlite(url):
        # The last connection to close deletes the log.
        return int(Path(f"{make_url(url).database}-wal").exists())
    found: int = scalar(
        url,
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND application_name LIKE 'sqlbuffer %'",
    )
    return found


def test_who_connects_behind_the_last_close_leaves_no_connection_open(schema_url: str) -> None:
    resolved = engines.resolve_url(schema_url)
    engine = engines.engine_for(resolved)
    with engine.connect() as in_use:
        in_use.execute(text("SELECT * FROM buffers"))
        engines.close_idle(resolved)  # another thread's buffer
    with engine.connect() as late:
        late.execute(text("SELECT * FROM buffers"))
        assert n_connections(schema_url) == 1
    wait_until(lambda: n_connections(schema_url) == 0, "the connections are closed")


@pytest.mark.thorough
@pytest.mark.slow
def test_threads_that_open_and_close_at_once_leave_no_connection_open(buffer_url: str) -> None:
    ReplayBuffer(buffer_url).close()
    kept = []  # or the collector would close what is left

    def open_and_close() -> None:
        for _ in range(8):
            with ReplayBuffer(buffer_url) as buffer:
                kept.append(buffer._store.engine)
                buffer.add(state=1)

    threads = [threading.Thread(target=open_and_close) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(kept) == 32
    wait_until(lambda: n_connections(buffer_url) == 0, "the connections are closed", 5)


def test_a_writer_waits_for_another_and_gives_up_with_a_named_error(tmp_path: Path) -> None:
    path = tmp_path / "replay.db.lock"
    held, release = threading.Event(), threading.Event()

    def hold() -> None:
        with writer_lock(path, 30):
            held.set()
            assert release.wait(30)

    holder = threading.Thread(target=hold)
    holder.start()
    assert held.wait(30)
    with pytest.raises(StorageBusyError, match="another writer held"), writer_lock(path, 0.05):
        pass
    release.set()
    holder.join(30)
    # The waiter that gave up lets go of the lock when it gets it.
    with writer_lock(path, 30):
        pass


def test_writers_that_wait_are_let_in_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "replay.db.lock"
    inside, most = [0], [0]

    def write() -> None:
        for _ in range(20):
            with writer_lock(path, 30):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0)
                inside[0] -= 1

    threads = [threading.Thread(target=write) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert most == [1]


def test_a_lock_file_that_cannot_be_made_is_a_named_error(tmp_path: Path) -> None:
    missing = tmp_path / "no" / "replay.db.lock"
    with pytest.raises(StorageReadOnlyError, match="lock file"), writer_lock(missing, 1):
        pass
