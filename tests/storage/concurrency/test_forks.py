"""Processes that are forked while their parent uses a SQLite file."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event
from sqlalchemy.exc import StatementError
from sqlalchemy.pool import Pool

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageError
from tests.support.markdown import ROOT
from tests.support.processes import TIMEOUT_S, run_at_once, running, wait_until
from tests.support.sql import scalar
from tests.support.stepped_rows import make_row, make_rows

pytestmark = pytest.mark.combinations

N_ROWS = 150


@pytest.fixture
def url(make_database_url):
    return make_database_url("sqlite", schema=True)


def store_rows(url, buffer, name, acknowledged):
    """Store rows one by one; count each in a file as soon as it is acknowledged."""
    buffer = buffer or ReplayBuffer(url)
    stored = 0
    with open(acknowledged, "ab", buffering=0) as log:
        for step in range(N_ROWS):
            stored += buffer.store(make_row(step, task=name)).inserted
            log.write(b".")
    return stored


def n_acknowledged(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def assert_whole(url, n_rows):
    assert scalar(url, "PRAGMA integrity_check") == "ok"
    assert scalar(url, "SELECT count(*) FROM v_experiences") == n_rows


@pytest.mark.thorough
def test_a_parent_that_closes_leaves_its_childrens_log_alone(url, tmp_path):
    """One child uses the inherited buffer, the other opens its own; a third process writes too."""
    buffer = ReplayBuffer(url)
    buffer.store(make_row(0, task="parent"))
    logs = [tmp_path / "inherited", tmp_path / "own"]
    calls = [(store_rows, url, buffer, "a", logs[0]), (store_rows, url, None, "b", logs[1])]
    with running(calls) as children:
        wait_until(lambda: min(map(n_acknowledged, logs)) >= 20, "the children's first rows")
        buffer.close()
        third = run_at_once([(store_rows, url, None, "third", tmp_path / "third")], "spawn")
        assert [*children.results(), *third] == [N_ROWS] * 3
    assert_whole(url, 1 + 3 * N_ROWS)


def fork_and_end(url, log):
    buffer = ReplayBuffer(url)
    buffer.store(make_row(0, task="parent"))
    if os.fork() == 0:
        # Not the runner's copy of this process: it ends without its parent's handlers.
        try:
            store_rows(url, buffer, "child", log)
        finally:
            os._exit(0)
    wait_until(lambda: n_acknowledged(Path(log)) >= 20, "the child's first rows")
    return buffer


@pytest.mark.thorough
def test_a_parent_that_ends_leaves_its_childs_log_alone(url, tmp_path):
    log = tmp_path / "acknowledged"
    code = f"from {__name__} import fork_and_end; kept = fork_and_end({url!r}, {str(log)!r})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S, cwd=ROOT)
    assert store_rows(url, None, "third", tmp_path / "third") == N_ROWS
    wait_until(lambda: n_acknowledged(log) == N_ROWS, "the child's last row")
    assert_whole(url, 1 + 2 * N_ROWS)


STORING_BESIDE_A_CHILD = """
import os, sys
from sqlbuffer import ReplayBuffer
buffer = ReplayBuffer(sys.argv[1])
buffer.add(state=0)
child = os.fork()
if child:
    os.waitpid(child, 0)
buffer.add(state=1)
print(len(buffer), flush=True)
"""


def test_parent_and_child_end_without_a_word_about_the_writer_they_had(url):
    command = [sys.executable, "-c", STORING_BESIDE_A_CHILD, url]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, cwd=ROOT)
    assert (ended.stdout, ended.stderr) == ("2\n3\n", "")


@contextmanager
def threads_that(work, n_threads):
    """Run `work(number, ended)` in threads until the block ends."""
    ended = threading.Event()
    threads = [threading.Thread(target=work, args=(number, ended)) for number in range(n_threads)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(TIMEOUT_S)


@pytest.mark.thorough
def test_children_forked_while_threads_write_can_store(url):
    n_children = 15
    buffer = ReplayBuffer(url)
    stored = [0, 0]

    def write(number, ended):
        while not ended.is_set():
            stored[number] += buffer.store_batch(
                make_rows(range(64), prefix=f"w{number}_{stored[number]}_")
            ).inserted

    with threads_that(write, 2):
        wait_until(lambda: all(stored), "both threads to write")
        for number in range(n_children):
            calls = [(store_rows_of, buffer, f"c{number}_")]
            with running(calls) as child:
                assert child.results() == [10]
    assert_whole(url, sum(stored) + 10 * n_children)


def store_rows_of(buffer, prefix):
    return buffer.store_batch(make_rows(range(10), prefix=prefix)).inserted


@pytest.mark.thorough
def test_children_forked_beside_the_background_flush_of_episodes_can_store(url):
    buffer = ReplayBuffer(url, fields={"obs": ("float32", (3,))}, flush_s=0.001)
    n_children = 10
    with buffer.episode() as episode:
        for number in range(n_children):
            for _ in range(300):
                episode.append(obs=[0.0, 1.0, 2.0])
            assert run_at_once([(store_steps, buffer, number)]) == [5]
    assert_whole(url, 300 * n_children + 5 * n_children)


@pytest.mark.slow  # left out as a whole where processes are: they begin in a thread
def test_a_fork_waits_for_the_first_use_of_a_connection_that_another_thread_opens(url):
    """Not until its deadline: the thread must not wait for the fork in turn."""
    buffer = ReplayBuffer(url)
    buffer.close()
    opened, children = threading.Event(), []

    def wait_for_a_fork(_connection, _record):
        if threading.current_thread() is reader and not opened.is_set():
            opened.set()
            forking.start()
            time.sleep(0.5)  # until that thread waits

    reader = threading.Thread(target=lambda: len(ReplayBuffer(url)))
    forking = threading.Thread(target=lambda: children.extend(run_at_once([(len, buffer)])))
    event.listen(Pool, "connect", wait_for_a_fork)
    try:
        reader.start()
        reader.join(TIMEOUT_S)
        forking.join(TIMEOUT_S)
    finally:
        event.remove(Pool, "connect", wait_for_a_fork)
    assert opened.is_set()
    assert children == [0]


def store_steps(buffer, number):
    columns = {"obs": [[float(number)] * 3] * 5}
    return buffer.extend(columns).inserted


def test_a_fork_ends_no_transaction_of_another_thread(url):
    """Another thread's transaction ends before the fork, and the child reads what it wrote."""
    buffer = ReplayBuffer(url)
    engine = create_engine(url)
    adopted = ReplayBuffer(engine)
    begun, may_end = threading.Event(), threading.Event()

    def hold(_number, _ended):
        with engine.connect() as connection:
            connection.exec_driver_sql("SELECT count(*) FROM experiences")
            begun.set()
            may_end.wait(TIMEOUT_S)

    with threads_that(hold, 1):
        assert begun.wait(TIMEOUT_S)
        threading.Timer(0.2, may_end.set).start()
        assert (
            run_at_once([(store_rows_of, buffer, "a"), (store_rows_of, adopted, "b")]) == [10] * 2
        )
        assert may_end.is_set()
    assert len(adopted) == len(buffer) == 20
    engine.dispose()
    assert_whole(url, 20)


def in_a_transaction(engine):
    return engine.connect()


def test_a_child_forked_inside_a_transaction_says_what_to_do(url):
    engine = create_engine(url)
    buffer = ReplayBuffer(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM experiences")
        for work in (store_rows_of, store_and_ignore):
            with pytest.raises(StorageError, match=r"forked while .*spawn"):
                run_at_once([(work, buffer, "c")])
        with pytest.raises(StorageError, match="spawn"):
            run_at_once([(store_rows, url, None, "c", os.devnull)])
        assert run_at_once([(store_rows_of, buffer, "s")], "forkserver") == [10]
    # The parent goes on, and so do children that are forked later.
    assert run_at_once([(store_rows_of, buffer, "d")]) == [10]
    engine.dispose()
    assert_whole(url, 20)


def store_and_ignore(buffer, prefix):
    with suppress(StorageError):
        store_rows_of(buffer, prefix)
    return store_rows_of(buffer, prefix)


def test_a_child_does_not_read_through_a_connection_of_its_parent(url):
    engine = create_engine(url)
    ReplayBuffer(engine)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT count(*) FROM experiences")
        with pytest.raises(StatementError, match="spawn"):
            run_at_once([(count_rows, connection)])
        assert count_rows(connection) == 0
    engine.dispose()


def count_rows(connection):
    return connection.exec_driver_sql("SELECT count(*) FROM experiences").scalar_one()


def test_connections_that_the_library_did_not_make_count_as_open(url):
    """An engine with a creator opens files itself; nothing can close its connections for a fork."""
    path = url.removeprefix("sqlite:///")
    engine = create_engine(url, creator=lambda: sqlite3.connect(path, check_same_thread=False))
    buffer = ReplayBuffer(engine)
    buffer.store(make_row(1))
    with pytest.raises(StorageError, match="spawn"):
        run_at_once([(store_rows_of, ReplayBuffer(url), "c")])
    engine.dispose()
    assert_whole(url, 1)


@pytest.mark.thorough
@pytest.mark.slow
def test_two_threads_fork_at_the_same_time(url):
    buffer = ReplayBuffer(url)
    results = []

    def fork(number, _ended):
        results.extend(run_at_once([(store_rows_of, buffer, f"c{number}_")]))

    with threads_that(fork, 3):
        pass
    assert results == [10] * 3
    assert_whole(url, 30)


def test_a_fork_in_a_database_in_memory_keeps_a_copy():
    buffer = ReplayBuffer("sqlite://")
    buffer.store_batch(make_rows(range(5)))
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(len(buffer)))
    process.start()
    assert receiver.poll(TIMEOUT_S)
    assert receiver.recv() == 5
    process.join(TIMEOUT_S)
    assert len(buffer) == 5
