"""What the library's transactions are like: durability, limits on waiting, isolation."""

import signal
import sys
import time
from contextlib import contextmanager

import pytest
from psycopg.pq import TransactionStatus
from sqlalchemy import create_engine, event, make_url

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.errors import BufferConfigError, InsufficientDataError, StorageBusyError
from sqlbuffer.storage.database import readonly, transactions
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.dialects import writing
from tests.support import sql
from tests.support.processes import wait_until
from tests.support.proxy import proxied
from tests.support.sql import connected, run
from tests.support.stepped_rows import make_row, steps_of

SETTINGS = (
    "synchronous_commit",
    "lock_timeout",
    "statement_timeout",
    "idle_in_transaction_session_timeout",
    "transaction_isolation",
    "jit",
)


@pytest.fixture
def postgres_buffer_url(make_database_url):
    """Return a database that notes the settings under which each row was inserted."""
    url = make_database_url("postgresql", schema=True)
    values = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    columns = ", ".join(f"{name} text" for name in SETTINGS)
    run(url, f"CREATE TABLE noted ({columns})")
    run(
        url,
        "CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN INSERT INTO noted VALUES ({values}); RETURN NULL; END $$",
    )
    run(
        url,
        "CREATE TRIGGER note AFTER INSERT ON experiences FOR EACH ROW EXECUTE FUNCTION note()",
    )
    return url


def noted(url):
    ((*values,),) = run(url, "SELECT * FROM noted")
    return dict(zip(SETTINGS, values, strict=True))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("durability", "server", "expected"),
    [
        (None, "on", "on"),
        (None, "off", "off"),
        (None, "local", "local"),
        ("relaxed", "on", "off"),
        ("full", "off", "on"),
        ("full", "local", "on"),
        ("full", "remote_apply", "remote_apply"),
    ],
)
def test_a_write_on_postgresql_is_as_durable_as_asked(
    postgres_buffer_url, durability, server, expected
):
    database = make_url(postgres_buffer_url).database
    run(postgres_buffer_url, f'ALTER DATABASE "{database}" SET synchronous_commit = {server}')
    with ReplayBuffer(postgres_buffer_url, durability=durability) as buffer:
        buffer.store(make_row(1))
    assert noted(postgres_buffer_url)["synchronous_commit"] == expected


def test_durability_does_not_outlive_its_transaction(postgres_buffer_url):
    for durability in ("relaxed", None):
        buffer = ReplayBuffer(postgres_buffer_url, durability=durability)
        run(postgres_buffer_url, "DELETE FROM noted")
        buffer.store(make_row(1))
        expected = "off" if durability else "on"
        assert noted(postgres_buffer_url)["synchronous_commit"] == expected


def test_no_statement_on_postgresql_waits_for_ever(postgres_buffer_url):
    ReplayBuffer(postgres_buffer_url).store(make_row(1))
    found = noted(postgres_buffer_url)
    assert found["lock_timeout"] == "30s"
    assert found["statement_timeout"] == "10min"
    assert found["idle_in_transaction_session_timeout"] == "1min"
    assert found["transaction_isolation"] == "read committed"


def test_a_lock_that_another_holds_is_a_busy_database(postgres_buffer_url, monkeypatch):
    monkeypatch.setattr(transactions, "LOCK_TIMEOUT_S", 1)
    buffer = ReplayBuffer(postgres_buffer_url)
    with connected(postgres_buffer_url) as connection:
        connection.exec_driver_sql("LOCK TABLE experiences IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StorageBusyError, match="lock timeout; try again"):
            buffer.store(make_row(1))
        with pytest.raises(StorageBusyError, match="lock timeout"):
            buffer.sample(1)
    assert buffer.store(make_row(1)).inserted == 1


@pytest.mark.parametrize("isolation_level", [None, "AUTOCOMMIT", "SERIALIZABLE"])
def test_an_engine_of_the_user_keeps_its_own_transactions(postgres_buffer_url, isolation_level):
    given = {} if isolation_level is None else {"isolation_level": isolation_level}
    engine = create_engine(
        make_url(postgres_buffer_url).set(drivername="postgresql+psycopg"), **given
    )
    settings = ", ".join(f"current_setting('{name}')" for name in SETTINGS)
    with engine.connect() as connection:
        before = connection.exec_driver_sql(f"SELECT {settings}").one()
    buffer = ReplayBuffer(engine)
    buffer.store(make_row(1))
    assert steps_of(buffer.sample(3)) == [1]
    assert noted(postgres_buffer_url)["lock_timeout"] == "30s"
    assert noted(postgres_buffer_url)["transaction_isolation"] == "read committed"
    assert noted(postgres_buffer_url)["jit"] == "off"
    with engine.connect() as connection:
        assert connection.exec_driver_sql(f"SELECT {settings}").one() == before
    engine.dispose()


def store(buffer):
    buffer.store_batch([make_row(step, task=f"t{step % 4}") for step in range(64)])


def lease_groups(buffer):
    with buffer.lease(2, group_by="task_id", min_group_size=16, timeout_s=0) as batch:
        assert len(batch) == 32


def wait_for_groups(buffer):
    lease = buffer.lease(2, group_by="task_id", min_group_size=17, timeout_s=0.01)
    with pytest.raises(InsufficientDataError, match="group"), lease:
        pass


def sample_and_delete(buffer):
    assert len(buffer.sample(8)) == len(buffer.sample(8, sampler=PrioritizedSampler())) == 8
    assert len(buffer.sample_tasks(1)) == 1
    assert len(buffer) == len(list(buffer.get_all())) == 64
    assert buffer.update_priorities([1, 2], 2.0).updated == 2
    assert buffer.stats() is not None
    assert buffer.delete(QueryBuilder().eq("exp_meta.step", 3)) == 1


def test_no_transaction_on_postgresql_compiles_its_statements(make_database_url):
    url = make_database_url("postgresql")
    run(url, f'ALTER DATABASE "{make_url(url).database}" SET jit = on')
    found = set()

    def note(connection, _cursor, statement, *_):
        driver = connection.connection.driver_connection
        if driver.info.transaction_status == TransactionStatus.INTRANS:
            ((jit,),) = driver.execute("SELECT current_setting('jit')").fetchall()
            found.add((jit, statement if jit != "off" else ""))

    event.listen(engine_for(resolve_url(url)), "before_cursor_execute", note)
    with ReplayBuffer(url, create=True, leases=True, priorities=True) as buffer:
        for operation in (store, lease_groups, wait_for_groups, sample_and_delete):
            assert found == {("off", "")}  # the migrations first
            found.clear()
            operation(buffer)
        assert found == {("off", "")}
    typed = readonly.query(url, "SELECT current_setting('jit')")
    assert typed.rows == [("off",)]


@pytest.mark.thorough
def test_a_server_that_compiles_everything_compiles_nothing_of_the_library(jit_database_url):
    url = jit_database_url
    half = QueryBuilder().lt("exp_data.state.mod", 50)
    with ReplayBuffer(url, create=True) as buffer:
        assert "JIT" not in buffer.explain(half)
        plain = "\n".join(line for (line,) in run(url, f"EXPLAIN {buffer.sql(half)}"))
        assert "JIT" in plain, "the server does not compile this one"
        engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
        with ReplayBuffer(engine) as other:
            assert "JIT" not in other.explain(half)
        engine.dispose()


@pytest.mark.parametrize(("durability", "level"), [(None, 1), ("relaxed", 1), ("full", 2)])
def test_a_write_on_sqlite_is_as_durable_as_asked(sqlite_url, durability, level):
    with ReplayBuffer(sqlite_url, durability="full") as earlier:
        earlier.store(make_row(0))  # its connection is used again
    ReplayBuffer(sqlite_url).store(make_row(0))
    buffer = ReplayBuffer(sqlite_url, durability=durability)
    buffer.store(make_row(1))
    store = buffer._store
    with writing(store.engine, durability) as connection:
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar_one() == level
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar_one() == "wal"


@pytest.mark.parametrize("durability", ["FULL", "", 1])
def test_an_unknown_durability_is_refused(sqlite_url, durability):
    with pytest.raises(BufferConfigError, match="durability is one of relaxed, full, or omitted"):
        ReplayBuffer(sqlite_url, durability=durability)


@pytest.mark.parametrize("retry_s", [-1, float("nan"), float("inf"), "30", True, None])
def test_a_time_to_retry_that_is_none_is_refused(sqlite_url, retry_s):
    with pytest.raises(BufferConfigError, match="retry_s is a number of seconds"):
        ReplayBuffer(sqlite_url, retry_s=retry_s)


# An interrupt ends a query of the helper that reads, also on the server.


ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT {} FROM n"
ASLEEP = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
)


def test_an_interrupt_between_a_question_and_its_answer_ends_both(postgres_url):
    with pytest.raises(KeyboardInterrupt), interrupted_when_asked():
        readonly.query(postgres_url, "SELECT pg_sleep(600)")
    wait_until(lambda: not sql.run(postgres_url, ASLEEP), "the end of the query")
    assert readonly.query(postgres_url, "SELECT 7").rows == [(7,)]


def test_an_interrupt_ends_a_question_that_is_on_its_way_to_the_server(postgres_url):
    with proxied(postgres_url) as proxy:
        proxy.slow = b"FETCH"
        with pytest.raises(KeyboardInterrupt), interrupted_when_asked():
            readonly.query(proxy.url, "SELECT pg_sleep(600)")
        wait_until(lambda: proxy.n_slow, "the question at the server")
        time.sleep(0.2)
        wait_until(lambda: not sql.run(postgres_url, ASLEEP), "the end of the query")


@contextmanager
def interrupted_when_asked():
    """Interrupt as soon as the driver has sent what it will fetch."""

    def trace(frame, event, _argument):
        if frame.f_code.co_name != "_exec_command":
            return None
        status = frame.f_locals["self"].pgconn.transaction_status
        is_asked = event == "line" and status == TransactionStatus.ACTIVE
        if is_asked and b"FETCH" in frame.f_locals["command"]:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)


# SQLite searches the longer text for seconds without a look at anything else.
STUCK = "SELECT instr(hex(zeroblob(7000000)), hex(zeroblob(3500000)) || '1')"


def asked(url, statement):
    with readonly.asked(url, statement) as found:
        return list(found.rows)


@pytest.mark.parametrize(
    ("query", "statement"),
    [(readonly.query, ENDLESS.format("count(*)")), (asked, STUCK)],
    ids=["of the library", "of a user"],
)
def test_ctrl_c_ends_a_question_that_sqlite_works_on(sqlite_url, query, statement):
    ReplayBuffer(sqlite_url).close()
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            query(sqlite_url, statement)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
