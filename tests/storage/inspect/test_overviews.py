"""What `ls`, `info` and `watch` say of databases that are too large to count."""

import json

import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.storage.buffers.live_count import BLOCK
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.inspect import listings
from tests.storage.plans.watch import Watch
from tests.support.array_rows import make_array_row
from tests.support.sql import buffer_id, fill
from tests.support.sql import run as run_sql
from tests.support.statements import selects

N_ROWS = 13_000


@pytest.fixture
def large(schema_url, monkeypatch):
    """Return the URL of a database that has more rows than are counted."""
    fill(schema_url, N_ROWS, rows_per_task=1_000).close()
    monkeypatch.setattr("sqlbuffer.storage.inspect.listings.MOST_COUNTED", 1_000)
    return schema_url


def rows_of(result):
    return json.loads(result.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "info"])
def test_rows_are_the_size_of_the_window_and_tasks_are_not_counted(run, large, command):
    ReplayBuffer(large).delete(QueryBuilder().eq("exp_meta.task_id", "t3").build())
    (found,) = rows_of(run(command, large, "--json"))
    assert (found["rows"], found["tasks"]) == (N_ROWS, None)
    assert "--exact counts both" in run(command, large).stderr
    (found,) = rows_of(run(command, large, "--json", "--exact"))
    assert (found["rows"], found["tasks"]) == (N_ROWS - 1_000, 12)
    assert "--exact" not in run(command, large, "--exact").stderr


@pytest.mark.parametrize("command", ["ls", "info"])
def test_counted_blocks_say_what_is_missing(run, large, command):
    counts = "SELECT :id, n, :rows FROM (SELECT 1 AS n UNION ALL SELECT 2) blocks"
    insert = f"INSERT INTO row_blocks (buffer_id, block, n_rows) {counts}"
    run_sql(large, insert, id=buffer_id(large), rows=BLOCK - 100)
    (found,) = rows_of(run(command, large, "--json"))
    assert found["rows"] == N_ROWS - 200


@pytest.mark.parametrize("command", ["ls", "info"])
def test_buffers_that_evict_whole_tasks_are_counted_however_large_others_are(run, large, command):
    with ReplayBuffer(large, name="tasks", evict_by="task", max_capacity=100) as buffer:
        buffer.store_batch([make_array_row(task=n // 8, step=n) for n in range(64)])
        buffer.delete(QueryBuilder().eq("exp_meta.task_id", "task_1").build())
    found = rows_of(run(command, large, "--json"))
    assert [(row["buffer"], row["rows"]) for row in found] == [("default", N_ROWS), ("tasks", 56)]


def test_info_says_when_the_first_and_the_last_row_were_taken(run, large):
    run_sql(large, "UPDATE experiences SET execute_time = 1700000000 + seq")
    (measured,) = rows_of(run("info", large, "--json"))
    (exact,) = rows_of(run("info", large, "--json", "--exact"))
    assert measured.keys() == exact.keys()
    assert {key for key in exact if exact[key] != measured[key]} == {"tasks"}


@pytest.mark.slow
def test_an_emptied_buffer_has_no_rows(run, large):
    with ReplayBuffer(large) as buffer:
        buffer.clear()
        fill(large, N_ROWS, name="other").close()
    (found, _) = rows_of(run("ls", large, "--json"))
    assert (found["rows"], found["last_insert_at"]) == (0, None)


def test_watch_says_the_size_of_the_window_unless_it_is_to_count(run, large):
    ReplayBuffer(large).delete(QueryBuilder().eq("exp_meta.task_id", "t3").build())
    found = json.loads(run("watch", large, "--once", "--json").stdout)
    assert found["rows"] == N_ROWS
    exact = json.loads(run("watch", large, "--once", "--json", "--exact").stdout)
    assert exact["rows"] == N_ROWS - 1_000
    assert exact["inserted"] == found["inserted"] == N_ROWS


@pytest.mark.slow
def test_watch_asks_no_more_for_many_buffers_than_for_few(schema_url):
    def make(number):
        settings = {"priorities": True, "max_use": 9} if number % 2 else {}
        with ReplayBuffer(schema_url, name=f"buffer {number:02}", **settings) as buffer:
            buffer.store_batch([make_array_row(task=0, step=n) for n in range(number + 1)])
            buffer.sample(1)
            buffer.stats()

    def looked():
        with ReplayBuffer(schema_url, name="buffer 00") as buffer, selects(buffer) as statements:
            found = listings.figures(schema_url, None, 60.0)
        return found, len(statements)

    for number in range(3):
        make(number)
    _, n_statements = looked()
    for number in range(3, 12):
        make(number)
    found, n_now = looked()
    assert n_now <= n_statements
    assert [stats.buffer for stats in found] == [f"buffer {n:02}" for n in range(12)]
    assert [stats.rows for stats in found] == list(range(1, 13))
    assert [stats.sampled for stats in found] == [1] * 12
    uses = [stats.uses and stats.uses.n for stats in found]
    assert uses == [n + 1 if n % 2 else None for n in range(12)]


@pytest.mark.parametrize(
    "look",
    [
        listings.buffers,
        listings.buffers_in_full,
        lambda url: listings.figures(url, None, 60.0),
    ],
    ids=["ls", "info", "watch"],
)
def test_no_overview_reads_all_rows(make_database_url, monkeypatch, look):
    url = make_database_url("postgresql", schema=True)
    monkeypatch.setattr("sqlbuffer.storage.inspect.listings.MOST_COUNTED", 1_000)
    fill(url, N_ROWS, rows_per_task=1_000).close()
    # Where the rows of the last minute begin is found by bisection.
    run_sql(url, "UPDATE experiences SET inserted_at = now() - interval '1 hour' WHERE seq < 9000")
    run_sql(url, "UPDATE buffers SET created_at = now() - interval '1 day'")
    with Watch(engine_for(resolve_url(url)), tables=("experiences",)) as watch:
        look(url)
    assert 0 < watch.rows_scanned + watch.rows_fetched < 200
