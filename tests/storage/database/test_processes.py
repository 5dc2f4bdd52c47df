"""One buffer in many processes and threads: pickled, forked, spawned and killed."""

import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import create_engine, make_url

from sqlbuffer import LatestSampler, RandomSampler, ReplayBuffer, processes
from sqlbuffer.processes import is_alive, new_holder
from sqlbuffer.storage import dialects
from sqlbuffer.storage.database import transactions
from sqlbuffer.storage.database.engine import POOL_SIZE, engine_for, resolve_url
from sqlbuffer.storage.dialects import writing
from tests.support.array_rows import make_array_row
from tests.support.processes import FRESH, TIMEOUT_S, run_at_once, running, wait_until
from tests.support.sql import is_sqlite, run, scalar
from tests.support.stepped_rows import EVERY_ROW, make_row, make_rows, seqs_of, step_is, steps_of
from tests.support.storage_hooks import each_checked_out

METHODS = ["fork", FRESH]  # and "spawn" among the integrations


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer


def test_a_buffer_can_be_pickled(buffer):
    buffer.store_batch(make_rows(range(5)))
    copy = pickle.loads(pickle.dumps(buffer))
    assert (copy.name, copy.max_capacity, copy.evict_by) == ("default", None, "row")
    assert (len(copy), steps_of(copy)) == (5, [0, 1, 2, 3, 4])
    copy.store(make_row(5))
    assert len(buffer) == 6


def test_a_pickled_buffer_still_rebuilds_its_types(buffer_url):
    buffer = ReplayBuffer(buffer_url, state_type=dict[str, float], action_type=float)
    buffer.add(state={"x": 1}, actions=[1])
    (row,) = pickle.loads(pickle.dumps(buffer))
    assert isinstance(row.exp_data.state["x"], float)
    assert isinstance(row.exp_data.actions[0], float)


def test_a_pickled_buffer_keeps_its_password(make_database_url):
    url = make_url(make_database_url("postgresql", schema=True))
    url = url.set(username=url.username or "postgres", password=url.password or "pw")
    copy = pickle.loads(pickle.dumps(ReplayBuffer(url)))
    assert copy._store.url.password == url.password
    assert len(copy) == 0
    engine_for(resolve_url(url)).dispose()


def test_a_buffer_in_memory_refuses_to_be_pickled():
    with pytest.raises(TypeError, match="in memory"):
        pickle.dumps(ReplayBuffer("sqlite://"))


def store_and_sample(buffer, number):
    stored = sum(buffer.store_batch(make_rows(range(20), prefix=f"p{number}_")).inserted
                 for _ in range(2))  # fmt: skip
    return stored, len(buffer) >= 20, len(buffer.sample(10)), os.getpid()


def check_children(buffer, method):
    """Check that children use the buffer that their parent uses."""
    buffer.store_batch(make_rows(range(50)))  # the parent's connections are open and used
    assert len(buffer.sample(5)) == 5
    results = run_at_once([(store_and_sample, buffer, number) for number in range(3)], method)
    assert [result[:3] for result in results] == [(20, True, 10)] * 3
    assert len({result[3] for result in results}) == 3
    assert len(buffer) == 110
    assert buffer.store(make_row(1)).inserted == 1


@pytest.mark.thorough
@pytest.mark.parametrize("method", METHODS)
def test_children_use_the_buffer_of_their_parent(buffer, method):
    check_children(buffer, method)


@pytest.mark.thorough
def test_a_child_forked_in_the_middle_of_a_stream_does_not_disturb_it(buffer):
    buffer.store_batch(make_rows(range(1_000)))
    rows = buffer.get_all()
    first = [next(rows) for _ in range(10)]
    run_at_once([(store_and_sample, buffer, number) for number in range(2)])
    assert steps_of([*first, *rows]) == list(range(1_000))


@pytest.mark.thorough
def test_a_child_forked_while_a_thread_held_a_lock_does_not_wait_for_it(buffer):
    buffer.store_batch(make_rows(range(10)))
    assert len(buffer) == 10
    locks = list(processes._locks)
    assert locks
    with ExitStack() as held:
        for lock in locks:
            held.enter_context(lock)
        calls = [(store_and_sample, buffer, 0)]
        with running(calls) as workers:
            ((stored, *_),) = workers.results()
    assert stored == 20


@pytest.mark.thorough
def test_a_child_may_fork_again(buffer):
    assert run_at_once([(in_a_grandchild, buffer)]) == [20]
    assert len(buffer) == 20


def in_a_grandchild(buffer):
    multiprocessing.current_process()._config["daemon"] = False
    ((stored, *_),) = run_at_once([(store_and_sample, buffer, 0)])
    return stored


def test_a_child_may_use_a_buffer_made_of_an_engine(buffer_url):
    drivername = "sqlite" if is_sqlite(buffer_url) else "postgresql+psycopg"
    engine = create_engine(make_url(buffer_url).set(drivername=drivername))
    buffer = ReplayBuffer(engine)
    buffer.store_batch(make_rows(range(30)))
    (stored, *_), (again, *_) = run_at_once(
        [(store_and_sample, buffer, number) for number in range(2)], FRESH
    )
    assert (stored, again) == (20, 20)
    assert len(buffer) == 70
    engine.dispose()


@pytest.mark.thorough
def test_a_seeded_sampler_draws_the_same_in_a_child(buffer):
    buffer.store_batch(make_rows(range(2_000)))
    calls = [(sample_seqs, buffer, RandomSampler(seed=3))]
    ((from_child),) = run_at_once(calls, FRESH)
    assert from_child == sample_seqs(buffer, RandomSampler(seed=3))


def sample_seqs(buffer, sampler):
    return [seqs_of(buffer.sample(16, sampler=sampler)) for _ in range(3)]


@pytest.mark.thorough
@pytest.mark.slow
def test_8_threads_store_and_sample(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=300)
    start = threading.Barrier(8)

    def work(number):
        start.wait(TIMEOUT_S)
        for turn in range(15):
            first = turn * 10
            rows = make_rows(range(first, first + 10), task=f"t{number}", prefix=f"w{number}_")
            assert buffer.store_batch(rows).inserted == 10
            assert 1 <= len(buffer.sample(20)) <= 20
            assert len(buffer) <= 300
            assert buffer.sample_tasks(1)
            assert buffer.size(step_is(first)) <= 8

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
    assert len(buffer) == buffer.size(EVERY_ROW) == 300
    assert seqs_of(buffer) == list(range(901, 1_201))
    engine = buffer._store.engine
    with each_checked_out(engine):
        assert engine.pool.checkedout() == 0


def test_a_connection_in_use_when_the_buffer_is_closed_is_closed_after_it(buffer):
    buffer.store(make_row(1))
    engine = buffer._store.engine
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        buffer.close()
        assert connection.exec_driver_sql("SELECT count(*) FROM experiences").scalar_one() == 1
    with pytest.raises((sqlite3.ProgrammingError, psycopg.OperationalError), match="closed"):
        driver.execute("SELECT 1")
    assert len(buffer) == 1


def test_threads_share_a_database_in_memory():
    buffer = ReplayBuffer("sqlite://", max_capacity=50)

    def work(number):
        for turn in range(10):
            buffer.store(make_row(turn, id=f"{number}_{turn}"))
            assert buffer.sample(4)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert len(buffer) == 40


@pytest.mark.thorough
def test_there_is_one_small_pool_per_url_and_process(buffer_url):
    buffers = [ReplayBuffer(buffer_url, name=f"b{number}") for number in range(20)]
    for buffer in buffers:
        buffer.store(make_row(1))
        buffer.sample(1)
    assert len({id(buffer._store.engine) for buffer in buffers}) == 1
    assert buffers[0]._store.engine is engine_for(resolve_url(buffer_url))
    assert buffers[0]._store.engine.pool.checkedin() <= POOL_SIZE
    ((in_child),) = run_at_once([(id_of_engine, buffers[0])])
    assert in_child != id(buffers[0]._store.engine)


def id_of_engine(buffer):
    return id(buffer._store.engine)


def sessions_of(url):
    statement = "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
    return [name for (name,) in run(url, statement) if name.startswith("sqlbuffer")]


def test_postgresql_shows_which_process_a_session_belongs_to(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url)
    for _ in range(10):
        buffer.store(make_row(1))
        len(buffer)
    assert sessions_of(url) == [f"sqlbuffer {os.getpid()}"]
    with running([(hold_open, buffer)]) as workers:
        (child,) = workers.processes
        wait_until(lambda: f"sqlbuffer {child.pid}" in sessions_of(url), "the child's own session")
    buffer.close()
    wait_until(lambda: sessions_of(url) == [], "the sessions to end")
    assert len(buffer) == 10


def hold_open(buffer):
    buffer.sample(1)
    threading.Event().wait(TIMEOUT_S)


def test_the_application_name_of_the_url_wins(make_database_url):
    url = make_database_url("postgresql", schema=True)
    named = make_url(url).update_query_dict({"application_name": "sqlbuffer-actor-7"})
    assert len(ReplayBuffer(named)) == 0
    assert sessions_of(url) == ["sqlbuffer-actor-7"]
    engine_for(resolve_url(named)).dispose()


def write_batches_for_ever(url, name, size):
    buffer = ReplayBuffer(url)
    batch = 0
    while True:
        buffer.store_batch([make_row(step, task=f"{name}_{batch}") for step in range(size)])
        batch += 1


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_writers_killed_in_mid_stream_leave_whole_batches_only(buffer_url, evict_by):
    size, kills = 50, 4
    buffer = ReplayBuffer(buffer_url, evict_by=evict_by)
    for kill in range(kills):
        calls = [(write_batches_for_ever, buffer_url, f"{kill}{name}", size) for name in "xy"]
        target = len(buffer) + 3 * size
        with running(calls) as writers:
            wait_until(lambda: len(buffer) >= target, "some batches")  # noqa: B023
            for process in writers.processes:
                os.kill(process.pid, signal.SIGKILL)
            for process in writers.processes:
                process.join(TIMEOUT_S)
            assert [process.exitcode for process in writers.processes] == [-signal.SIGKILL] * 2
        # Nobody is left waiting for the lock of a dead writer.
        assert buffer.store_batch(make_rows(range(size), task=f"own_{kill}")).inserted == size
    counts = run(buffer_url, "SELECT task_id, count(*) FROM experiences GROUP BY task_id")
    assert {count for _, count in counts} == {size}
    assert len(buffer) == buffer.size(EVERY_ROW) == size * len(counts)
    if evict_by == "task":
        assert scalar(buffer_url, "SELECT sum(n_rows) FROM tasks") == len(buffer)
    if is_sqlite(buffer_url):
        assert scalar(buffer_url, "PRAGMA integrity_check") == "ok"


def store_and_die(url, rows):
    ReplayBuffer(url).store_batch(rows)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.thorough
def test_a_batch_that_was_acknowledged_survives_the_death_of_its_writer(buffer_url, buffer):
    for start in range(0, 50, 10):
        with running([(store_and_die, buffer_url, make_rows(range(start, start + 10)))]) as writers:
            writers.processes[0].join(TIMEOUT_S)
        assert steps_of(buffer) == list(range(start + 10))


@pytest.mark.thorough
def test_a_writer_does_not_wait_for_a_child_forked_while_it_wrote(buffer_url):
    """A lock outlives its holder for as long as a child forked under it has the file open."""
    buffer = ReplayBuffer(buffer_url)
    with ExitStack() as stack:
        with writing(buffer._store.engine):
            stack.enter_context(running([(wait_for_nothing,)]))
        assert run_at_once([(store_one, buffer_url)]) == [1]
    assert len(buffer) == 1


def wait_for_nothing():
    threading.Event().wait(TIMEOUT_S)


def store_one(url):
    return ReplayBuffer(url).store(make_row(3)).inserted


def test_connections_that_the_server_closed_are_replaced(make_database_url):
    """After a restart of the server, say; the first call may fail, the next ones work."""
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url)
    buffer.store_batch(make_rows(range(5)))
    run(
        url,
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE application_name LIKE 'sqlbuffer%' AND datname = current_database()",
    )
    wait_until(lambda: sessions_of(url) == [], "the sessions to end")
    wait_until(lambda: works(buffer), "a working connection", timeout_s=10)
    assert steps_of(buffer) == [0, 1, 2, 3, 4]
    assert steps_of(buffer.sample(1, sampler=LatestSampler())) == [4]


def works(buffer):
    from sqlbuffer.errors import StorageUnreachableError

    try:
        return len(buffer) == 5
    except StorageUnreachableError:
        return False


@pytest.mark.thorough
def test_a_process_that_ends_without_close_moves_the_log_into_the_file(make_database_url):
    url = make_database_url("sqlite")
    code = f"from sqlbuffer import ReplayBuffer; b = ReplayBuffer({url!r}); b.add(reward=1.0)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=TIMEOUT_S)
    path = Path(url.removeprefix("sqlite:///"))
    assert not path.with_name(f"{path.name}-wal").exists()
    with sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True) as file:
        assert file.execute("SELECT count(*) FROM experiences").fetchone() == (1,)


# Commands end with 5 where another writer holds the database.


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


# Which processes that hold something are alive.


def test_who_lives_is_known_exactly_on_this_machine():
    class Owner:
        pass

    owner = Owner()
    holder = new_holder(owner)
    host = holder.split()[0]
    assert is_alive(holder, 1e9, 1.0)
    del owner
    assert not is_alive(holder, 0.0, 1.0)
    assert is_alive(f"{host} {os.getppid()} 0", 1e9, 1.0)
    assert is_alive(f"{host} 1 0", 1e9, 1.0)
    assert not is_alive(f"{host} {2**22 + 5} 0", 0.0, 1.0)
    assert is_alive("elsewhere 1 0", 0.5, 1.0)
    assert not is_alive("elsewhere 1 0", 1.5, 1.0)
