"""Reads that are no samples: all rows, pages, tasks, counts."""

import pytest
from sqlalchemy import text

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, ReplayBuffer
from sqlbuffer.query.tree import EVERYTHING
from tests.support.sql import connected, is_sqlite, run, run_outside_transaction
from tests.support.stepped_rows import (
    EVERY_ROW,
    make_row,
    make_rows,
    seqs_of,
    step_is,
    steps_between,
    steps_of,
)

LARGE = Experience(state="x" * 100_000)
EVEN_TASK = QueryBuilder().eq("exp_meta.task_id", "even").build()


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer


def test_an_empty_buffer_is_true_and_has_nothing(buffer):
    assert bool(buffer) is True
    assert len(buffer) == buffer.size() == buffer.size(EVERY_ROW) == 0
    assert list(buffer) == list(buffer.get_all()) == []
    assert buffer.get_paginated(1, 10) == []
    assert buffer.get_by_task_id("t1") == []
    assert buffer.get_batch_by_task_ids([]) == {}
    assert buffer.clear() == buffer.delete(step_is(1)) == 0


def test_size_counts_what_matches(buffer):
    buffer.store_batch(make_rows(range(10)))
    assert buffer.size(steps_between(3, 5)) == 3
    assert buffer.size(query_condition=step_is(9)) == 1
    assert buffer.size(step_is(10)) == 0
    assert buffer.size({}) == 10


def test_a_builder_serves_as_a_condition(buffer):
    buffer.store_batch(make_rows(range(10)))
    builder = QueryBuilder().lt("exp_meta.step", 3)
    assert buffer.size(builder) == 3
    assert steps_of(buffer.get_all(builder)) == [0, 1, 2]
    assert steps_of(buffer.get_paginated(2, 2, builder)) == [2]


def test_both_names_of_a_condition_at_once_are_refused(buffer):
    for call in (buffer.size, buffer.get_all, buffer.delete, buffer.sample):
        with pytest.raises(TypeError, match="not both"):
            call(condition=step_is(1), query_condition=step_is(1))


@pytest.fixture
def long_buffer(buffer):
    """Return a buffer of many pages, every other row of it of the task `even`."""
    for start in range(0, 3_000, 1_000):
        steps = range(start, start + 1_000)
        buffer.store_batch([make_row(step, task="odd" if step % 2 else "even") for step in steps])
    return buffer


@pytest.mark.thorough
@pytest.mark.slow
def test_all_rows_come_in_insert_order_over_many_pages(long_buffer):
    rows = list(long_buffer.get_all())
    assert steps_of(rows) == list(range(3_000))
    assert steps_of(long_buffer) == list(range(3_000))
    assert steps_of(long_buffer.get_all(EVEN_TASK)) == list(range(0, 3_000, 2))
    assert steps_of(long_buffer.get_all(query_condition=steps_between(995, 1_205))) == list(
        range(995, 1_206)
    )


@pytest.mark.thorough
def test_rows_stored_while_all_are_read_are_left_out(long_buffer):
    rows = long_buffer.get_all()
    first = next(rows)
    long_buffer.store_batch(make_rows(range(5_000, 5_010)))
    assert steps_of([first, *rows]) == list(range(3_000))


@pytest.mark.thorough
def test_rows_evicted_before_their_page_is_read_are_left_out(long_buffer):
    rows = long_buffer.get_all()
    first = [next(rows) for _ in range(10)]
    long_buffer.resize(1_000)
    rest = steps_of(rows)
    assert steps_of(first) == list(range(10))
    assert rest[-1_000:] == list(range(2_000, 3_000))
    assert rest == sorted(rest)
    assert len(rest) < 2_000


def open_transactions(url):
    """Return how many of the library's connections hold a transaction or a snapshot open."""
    statement = (
        "SELECT count(*) FROM pg_stat_activity WHERE application_name LIKE 'sqlbuffer%' AND "
        "datname = current_database() AND (xact_start IS NOT NULL OR backend_xmin IS NOT NULL)"
    )
    return run(url, statement)[0][0]


@pytest.mark.thorough
def test_no_transaction_is_open_between_pages(long_buffer, buffer_url):
    rows = long_buffer.get_all()
    for _ in range(300):
        next(rows)
    other = ReplayBuffer(buffer_url, name="other")
    assert other.store_batch(make_rows(range(10))).inserted == 10
    if is_sqlite(buffer_url):
        # It reports 1 where a reader is in its way.
        ((busy, *_),) = run_outside_transaction(buffer_url, "PRAGMA wal_checkpoint(TRUNCATE)")
        assert busy == 0
    else:
        assert open_transactions(buffer_url) == 0
    run_outside_transaction(buffer_url, "VACUUM")
    assert len(list(rows)) == 2_700


def test_the_library_leaves_no_transaction_open_after_any_call(make_database_url):
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url)
    buffer.store_batch(make_rows(range(10)))
    for call in (
        lambda: len(buffer),
        lambda: buffer.size(step_is(1)),
        lambda: buffer.sample(3),
        lambda: buffer.sample_tasks(3),
        lambda: buffer.get_by_task_id("t1"),
        lambda: buffer.get_paginated(1, 5),
        lambda: buffer.max_capacity,
        lambda: buffer.delete(step_is(1)),
        lambda: ReplayBuffer.list(url),
    ):
        call()
        assert open_transactions(url) == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_pages_of_large_payloads_are_small(buffer):
    buffer.store_batch([DataRow(ExpMeta("t", None, "a", i, 0.0), LARGE) for i in range(450)])
    first, *others = [len(page) for page in buffer._store.rows.pages(EVERYTHING)]
    assert first + sum(others) == 450
    assert max(others) <= 85  # 8 MiB


def test_pages_are_counted_from_one(buffer):
    buffer.store_batch(make_rows(range(10)))
    assert steps_of(buffer.get_paginated(1, 4)) == [0, 1, 2, 3]
    assert steps_of(buffer.get_paginated(2, 4)) == [4, 5, 6, 7]
    assert steps_of(buffer.get_paginated(3, 4)) == [8, 9]
    assert buffer.get_paginated(4, 4) == []
    assert buffer.get_paginated(10**6, 10**6) == []
    assert steps_of(buffer.get_paginated(page=1, page_size=100)) == list(range(10))
    assert steps_of(buffer.get_paginated(2, 2, steps_between(3, 8))) == [5, 6]


@pytest.mark.parametrize("page", [0, -1])
def test_a_page_below_one_is_refused(buffer, page):
    with pytest.raises(ValueError, match="page is an integer from 1 on"):
        buffer.get_paginated(page, 10)


@pytest.mark.parametrize("page_size", [0, -1])
def test_a_page_size_below_one_is_refused(buffer, page_size):
    with pytest.raises(ValueError, match="page_size is an integer from 1 on"):
        buffer.get_paginated(1, page_size)


def test_a_task_comes_back_by_episode_step_and_time(buffer):
    order = [
        (None, 1, 0.0),
        (None, 2, 0.0),
        ("A", 9, 0.0),
        ("a", 1, 5.0),
        ("a", 1, 6.0),
        ("a", 2, 1.0),
        ("a", 10, 0.0),
        ("b", 0, 0.0),
        ("é", 0, 0.0),
    ]
    for position in (3, 8, 5, 0, 7, 2, 6, 1, 4):
        episode, step, time = order[position]
        buffer.store(make_row(step, task="t", episode=episode, time=time))
    buffer.store(make_row(1, task="other"))
    rows = buffer.get_by_task_id("t")
    assert [
        (row.exp_meta.episode_id, row.exp_meta.step, row.exp_meta.execute_time) for row in rows
    ] == order
    (task,) = buffer.sample_tasks(5, condition=QueryBuilder().eq("exp_meta.task_id", "t"))
    assert task == rows


def test_rows_of_a_task_that_are_alike_keep_their_insert_order(buffer):
    buffer.store_batch([make_row(1, task="t", time=0.0) for _ in range(20)])
    assert seqs_of(buffer.get_by_task_id("t")) == list(range(1, 21))


def test_several_tasks_come_back_in_the_order_asked_for(buffer):
    for task in "abc":
        buffer.store_batch(make_rows(range(3), task=task))
    found = buffer.get_batch_by_task_ids(["c", "absent", "a", "c"])
    assert list(found) == ["c", "absent", "a"]
    assert {task: steps_of(rows) for task, rows in found.items()} == {
        "c": [0, 1, 2],
        "absent": [],
        "a": [0, 1, 2],
    }


def test_more_tasks_than_one_statement_takes_come_back(buffer):
    buffer.store_batch([make_row(1, task=f"t{i}") for i in range(1_200)])
    found = buffer.get_batch_by_task_ids([f"t{i}" for i in range(1_200)])
    assert [len(rows) for rows in found.values()] == [1] * 1_200


def test_task_ids_that_no_text_column_holds_are_of_no_task(buffer):
    buffer.store(make_row(1, task="t"))
    for odd in ("t\0", "\ud800", "t'; DROP TABLE experiences; --"):
        assert buffer.get_by_task_id(odd) == []
    assert len(buffer) == 1


def test_a_buffer_is_a_context_manager_and_usable_after_it(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store(make_row(1))
    assert len(buffer) == 1
    buffer.close()
    buffer.close()
    assert steps_of(buffer) == [1]


def test_an_error_inside_the_context_passes(buffer_url):
    with pytest.raises(KeyError), ReplayBuffer(buffer_url):
        raise KeyError


def test_a_reader_sees_the_last_commit_while_a_writer_is_busy(buffer, buffer_url):
    buffer.store_batch(make_rows(range(3)))
    with connected(buffer_url) as writer:
        writer.execute(text("UPDATE experiences SET step = 99"))
        assert steps_of(buffer) == [0, 1, 2]
        assert sorted(steps_of(buffer.sample(5))) == [0, 1, 2]
        assert len(buffer) == 3
        writer.rollback()
