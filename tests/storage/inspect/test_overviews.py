"""What `ls`, `info` and `watch` say of databases, also of those that are too large to count."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.storage.buffers.window import BLOCK
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.inspect import listings
from sqlbuffer.storage.inspect.buffer_stats import first_numbers
from tests.support.array_rows import make_array_row
from tests.support.sql import buffer_id, fill, scalar
from tests.support.sql import run as run_sql
from tests.support.statements import selects
from tests.support.watch import Watch

N_ROWS = 13_000
LISTINGS = "sqlbuffer.storage.inspect.listings"


@pytest.fixture
def large(schema_url, monkeypatch):
    """Return the URL of a database that has more rows than tasks are counted of."""
    fill(schema_url, N_ROWS, rows_per_task=1_000).close()
    monkeypatch.setattr(f"{LISTINGS}.MOST_COUNTED", 1_000)
    return schema_url


@pytest.fixture
def uncounted(large, estimating):
    """Return the URL of a database whose rows are estimated."""
    return large


@pytest.fixture
def estimating(monkeypatch):
    for name in ("MOST_UNCOUNTED", "MOST_UNCOUNTED_LIVE"):
        monkeypatch.setattr(f"{LISTINGS}.{name}", 1_000)


def rows_of(result):
    return json.loads(result.stdout)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "info"])
def test_rows_of_large_databases_are_counted_and_tasks_are_not(run, large, command):
    with ReplayBuffer(large) as buffer:
        buffer.delete(QueryBuilder().eq("exp_meta.task_id", "t3").build())
        n_rows = len(buffer)
    (found,) = rows_of(run(command, large, "--json"))
    assert (found["rows"], found["exact"], found["tasks"]) == (n_rows, True, None)
    assert n_rows == N_ROWS - 1_000
    result = run(command, large)
    assert result.stderr == "tasks are not counted; --exact counts them\n"
    assert "≈" not in result.stdout
    (found,) = rows_of(run(command, large, "--json", "--exact"))
    assert (found["rows"], found["tasks"]) == (n_rows, 12)
    assert "--exact" not in run(command, large, "--exact").stderr


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("fields", [None, {"number": "int64"}], ids=["rows", "chunks"])
def test_lists_and_views_say_what_len_says(run, buffer_url, fields, monkeypatch):
    monkeypatch.setattr(f"{LISTINGS}.MOST_COUNTED", 100)
    # The window cuts a block, and has holes at both ends and in a block that is whole.
    with ReplayBuffer(buffer_url, fields=fields, max_capacity=6_000) as buffer:
        steps = np.arange(9_000)
        buffer.extend({"number" if fields else "state": steps, "step": steps}, task_id="t")
        buffer.delete(QueryBuilder().in_("exp_meta.step", [3_500, 5_000, 5_001, 8_999]).build())
        n_rows = len(buffer)
    assert n_rows == 5_996
    for command in ("ls", "info"):
        (found,) = rows_of(run(command, buffer_url, "--json"))
        assert (found["rows"], found["exact"]) == (n_rows, True)
    assert rows_of(run("watch", buffer_url, "--once", "--json"))["rows"] == n_rows
    assert scalar(buffer_url, "SELECT rows FROM v_buffers") == n_rows


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("command", ["ls", "info"])
def test_estimates_are_marked(run, uncounted, command):
    ReplayBuffer(uncounted).delete(QueryBuilder().eq("exp_meta.task_id", "t3").build())
    (found,) = rows_of(run(command, uncounted, "--json"))
    assert (found["rows"], found["exact"]) == (N_ROWS, False)
    result = run(command, uncounted)
    assert "≈ 13,000" in result.stdout
    assert "--exact counts rows and tasks" in result.stderr
    assert "12,000" in run(command, uncounted, "--exact").stdout


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("command", ["ls", "info"])
def test_counted_blocks_say_what_is_missing(run, uncounted, command):
    counts = "SELECT :id, n, :rows FROM (SELECT 1 AS n UNION ALL SELECT 2) blocks"
    insert = f"INSERT INTO row_blocks (buffer_id, block, n_rows) {counts}"
    run_sql(uncounted, insert, id=buffer_id(uncounted), rows=BLOCK - 100)
    (found,) = rows_of(run(command, uncounted, "--json"))
    assert found["rows"] == N_ROWS - 200


@pytest.mark.each_value
@pytest.mark.parametrize("command", ["ls", "info"])
def test_buffers_that_evict_whole_tasks_are_counted_however_large_others_are(
    run, uncounted, command
):
    with ReplayBuffer(uncounted, name="tasks", evict_by="task", max_capacity=100) as buffer:
        buffer.store_batch([make_array_row(task=n // 8, step=n) for n in range(64)])
        buffer.delete(QueryBuilder().eq("exp_meta.task_id", "task_1").build())
    found = rows_of(run(command, uncounted, "--json"))
    listed = [(row["buffer"], row["rows"], row["exact"]) for row in found]
    assert listed == [("default", N_ROWS, False), ("tasks", 56, True)]


@pytest.mark.thorough
def test_info_says_when_the_first_and_the_last_row_were_taken(run, large):
    run_sql(large, "UPDATE experiences SET execute_time = 1700000000 + seq")
    (measured,) = rows_of(run("info", large, "--json"))
    (exact,) = rows_of(run("info", large, "--json", "--exact"))
    assert measured.keys() == exact.keys()
    assert {key for key in exact if exact[key] != measured[key]} == {"tasks"}


@pytest.mark.thorough
@pytest.mark.slow
def test_an_emptied_buffer_has_no_rows(run, large):
    with ReplayBuffer(large) as buffer:
        buffer.clear()
        fill(large, N_ROWS, name="other").close()
    (found, _) = rows_of(run("ls", large, "--json"))
    assert (found["rows"], found["last_insert_at"]) == (0, None)


@pytest.mark.thorough
def test_watch_counts_rows_or_marks_its_estimate(run, large, request):
    ReplayBuffer(large).delete(QueryBuilder().eq("exp_meta.task_id", "t3").build())
    counted = rows_of(run("watch", large, "--once", "--json"))
    request.getfixturevalue("estimating")
    found = rows_of(run("watch", large, "--once", "--json"))
    exact = rows_of(run("watch", large, "--once", "--json", "--exact"))
    assert (found["rows"], found["exact"]) == (N_ROWS, False)
    for figures in (counted, exact):
        assert (figures["rows"], figures["exact"]) == (N_ROWS - 1_000, True)
    assert exact["inserted"] == found["inserted"] == N_ROWS
    assert "rows ≈ 13,000, fill -" in run("watch", large, "--once").stdout


@pytest.mark.thorough
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
def test_no_overview_reads_all_rows(make_database_url, monkeypatch, estimating, look):
    url = make_database_url("postgresql", schema=True)
    monkeypatch.setattr(f"{LISTINGS}.MOST_COUNTED", 1_000)
    fill(url, N_ROWS, rows_per_task=1_000).close()
    # Where the rows of the last minute begin is found by bisection.
    run_sql(url, "UPDATE experiences SET inserted_at = now() - interval '1 hour' WHERE seq < 9000")
    run_sql(url, "UPDATE buffers SET created_at = now() - interval '1 day'")
    with Watch(engine_for(resolve_url(url)), tables=("experiences",)) as watch:
        look(url)
    assert 0 < watch.rows_scanned + watch.rows_fetched < 200


# Searching ordered ranges together.


# Where a range begins, how many numbers are before the searched one, and how many are not.
ranges = st.lists(
    st.tuples(st.integers(-(2**40), 2**40), st.integers(0, 5_000), st.integers(0, 5_000))
)


@given(ranges)
def test_the_first_number_of_each_range_is_found(chosen):
    low = np.array([start for start, _, _ in chosen], np.int64)
    wanted = low + np.array([n for _, n, _ in chosen], np.int64)
    high = wanted + np.array([n for _, _, n in chosen], np.int64)
    found = first_numbers(low, high, lambda places, numbers: numbers < wanted[places])
    np.testing.assert_array_equal(found, wanted)


def test_a_range_of_a_million_takes_five_questions():
    asked = []

    def is_before(places, numbers):
        asked.append(len(numbers))
        return numbers < 123_456

    (found,) = first_numbers(np.array([0]), np.array([1_000_000]), is_before)
    assert found == 123_456
    assert len(asked) == 5
