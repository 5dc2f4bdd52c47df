"""Connections that die, pools that are shared, writers that wait."""

import logging
import threading
import time
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.engine import URL

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import (
    StorageBusyError,
    StorageReadOnlyError,
    StorageUnreachableError,
    URLError,
)
from sqlbuffer.storage.database import engine as engines
from sqlbuffer.storage.database.urls import shown_url
from sqlbuffer.storage.database.writer_lock import writer_lock
from tests.support.malformed_urls import MALFORMED_URLS, NO_PASSWORD, PASSWORDS, SECRET
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


# No password is in what the library says.


def texts_of(error):
    """Yield the texts of an error, of its causes, and of what it was raised in the handling of."""
    while error is not None:
        yield from (str(error), repr(error))
        error = error.__cause__ or error.__context__


def test_no_malformed_url_is_echoed(caplog):
    caplog.set_level(logging.DEBUG)
    assert len(set(MALFORMED_URLS)) == 200
    for url in MALFORMED_URLS:
        for call in (ReplayBuffer, ReplayBuffer.list):
            with pytest.raises(URLError) as info:
                call(url)
            assert not [text for text in texts_of(info.value) if SECRET in text], url
    assert SECRET not in caplog.text


@pytest.mark.parametrize("password", PASSWORDS)
def test_a_password_of_any_characters_stays_hidden_when_the_server_does_not_answer(
    password, caplog
):
    caplog.set_level(logging.DEBUG)
    url = URL.create("postgresql", "me", password, "127.0.0.1", 1, "db")
    for given in (url, url.render_as_string(hide_password=False)):
        with pytest.raises(StorageUnreachableError, match="check that the server runs") as info:
            ReplayBuffer(given, retry_s=0)
        assert not [text for text in texts_of(info.value) if SECRET in text]
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "option",
    ["password", "passfile", "sslpassword", "passwd", "PWD", "auth_token", "client_secret", "key"],
)
def test_options_that_hold_secrets_are_not_shown(option):
    url = make_url(f"postgresql://me@host/db?sslmode=require&sslkey=me.key&{option}={SECRET}")
    assert shown_url(url) == "postgresql://me@host/db?sslkey=me.key&sslmode=require"


def test_a_url_that_ends_behind_an_empty_password_is_not_echoed(caplog):
    for url in (NO_PASSWORD, f"{NO_PASSWORD}/", f"{NO_PASSWORD}?sslmode=require"):
        with pytest.raises(URLError, match=r"empty password .* leave out the colon") as info:
            ReplayBuffer(url, retry_s=0)
        assert not [text for text in texts_of(info.value) if SECRET in text]
    assert SECRET not in caplog.text


def test_a_variable_that_expands_to_nothing_is_no_url(monkeypatch):
    monkeypatch.setenv("SQLBUFFER_URL", "")
    with pytest.raises(URLError):
        ReplayBuffer()


def test_an_at_sign_in_a_password_is_named_with_its_escape():
    with pytest.raises(URLError, match=r"@ in its password .* write it as %40"):
        ReplayBuffer("postgresql://me:p@ss@host/db")


def test_a_connection_string_of_libpq_is_named():
    with pytest.raises(URLError, match="not connection strings of libpq"):
        ReplayBuffer("host=localhost dbname=replay")


@pytest.mark.parametrize(
    "url", ["postgresql://me:s3cret\udcff@host/db", "sqlite:///s3cret\udcff.db"]
)
def test_a_url_that_is_no_text_is_refused_without_an_echo(monkeypatch, url):
    monkeypatch.setenv("SQLBUFFER_URL", url)
    for call in (ReplayBuffer, ReplayBuffer.list):
        with pytest.raises(URLError, match="has bytes that are not UTF-8") as info:
            call()
        assert not [text for text in texts_of(info.value) if SECRET in text]
