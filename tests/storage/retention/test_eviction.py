"""Which rows a buffer is, at every moment (I2), and what leaves it."""

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import BufferConfigError, ConditionError
from tests.support.processes import run_at_once, running, wait_until
from tests.support.sql import (
    buffer_id,
    connected,
    is_sqlite,
    numbered,
    run,
    scalar,
    stored_rows,
)
from tests.support.stepped_rows import (
    EVERY_ROW,
    make_row,
    make_rows,
    seqs_of,
    step_is,
    steps_between,
    steps_of,
    tasks_of,
)
from tests.support.typed_buffer import both_layouts, table_of

# One statement, so one state of the database.
WINDOW_BY_SQL = """
SELECT (SELECT count(*) FROM v_experiences WHERE buffer = 'default') AS n_rows,
    (SELECT rows FROM v_buffers WHERE buffer = 'default') AS n_of_buffers,
    (SELECT coalesce(sum(steps), 0) FROM v_tasks WHERE buffer = 'default') AS n_of_tasks,
    (SELECT coalesce(sum(steps), 0) FROM v_agents WHERE buffer = 'default') AS n_of_agents,
    (SELECT coalesce(min(seq), 0) FROM v_experiences WHERE buffer = 'default') AS low,
    (SELECT coalesce(max(seq), 0) FROM v_experiences WHERE buffer = 'default') AS high
"""

WAITING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
    "AND wait_event_type = 'Lock' AND query LIKE 'UPDATE buffers%'"
)


def holds_exactly(buffer, url, steps):
    """Tell whether every read, count and view shows the rows with these steps alone."""
    n = len(steps)
    by_view = run(url, "SELECT step FROM v_experiences WHERE buffer = 'default' ORDER BY seq")
    assert [step for (step,) in by_view] == steps
    *counts, _low, _high = map(int, run(url, WINDOW_BY_SQL)[0])
    assert counts == [n] * 4
    assert len(buffer) == buffer.size() == buffer.size(EVERY_ROW) == n
    assert steps_of(buffer) == steps
    assert steps_of(buffer.get_paginated(1, n + 1)) == steps
    assert sorted(steps_of(buffer.sample(n + 1))) == sorted(steps)
    assert sorted(steps_of(buffer.get_by_task_id("t1"))) == sorted(steps)
    return True


@pytest.mark.thorough
@pytest.mark.slow
def test_the_oldest_rows_leave_first(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=10)
    for start in range(0, 49, 7):
        buffer.store_batch(make_rows(range(start, start + 7)))
        assert holds_exactly(buffer, buffer_url, list(range(max(0, start - 3), start + 7)))
    assert stored_rows(buffer_url) == 10


@both_layouts
def test_holes_of_deleted_rows_count_against_the_capacity(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, max_capacity=10)
    buffer.store_batch(make_rows(range(1, 11)))
    assert buffer.delete(steps_between(5, 8)) == 4
    assert holds_exactly(buffer, buffer_url, [1, 2, 3, 4, 9, 10])
    buffer.store_batch(make_rows(range(11, 14)))
    assert holds_exactly(buffer, buffer_url, [4, 9, 10, 11, 12, 13])


@both_layouts
def test_deleting_the_newest_rows_does_not_bring_old_ones_back(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, max_capacity=10)
    buffer.store_batch(make_rows(range(1, 16)))
    low_before = min(seqs_of(buffer))
    assert buffer.delete(steps_between(11, 15)) == 5
    assert holds_exactly(buffer, buffer_url, [6, 7, 8, 9, 10])
    assert buffer.delete(steps_between(10, 10)) == 1
    buffer.resize(100)
    assert holds_exactly(buffer, buffer_url, [6, 7, 8, 9])
    assert min(seqs_of(buffer)) == low_before


def test_rows_behind_the_window_stay_hidden_when_the_newest_are_deleted(make_database_url):
    """PostgreSQL alone leaves rows behind the window: those locked when their turn came."""
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url, max_capacity=5)
    buffer.store_batch(make_rows(range(1, 6)))
    with connected(url) as other:
        other.execute(text("SELECT 1 FROM experiences WHERE seq <= 3 FOR UPDATE"))
        buffer.store_batch(make_rows(range(6, 9)))
    assert stored_rows(url) == 8
    assert holds_exactly(buffer, url, [4, 5, 6, 7, 8])
    buffer.delete(steps_between(7, 8))
    assert holds_exactly(buffer, url, [4, 5, 6])
    run(url, "DELETE FROM experiences WHERE step = 6")
    assert holds_exactly(buffer, url, [4, 5])
    buffer.resize(100)
    assert holds_exactly(buffer, url, [4, 5])
    buffer.clear()
    assert stored_rows(url) == 0
    assert holds_exactly(buffer, url, [])


@pytest.mark.thorough
@both_layouts
def test_growing_does_not_bring_old_rows_back(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, max_capacity=5)
    buffer.store_batch(make_rows(range(1, 9)))
    buffer.resize(20)
    assert buffer.max_capacity == 20
    assert holds_exactly(buffer, buffer_url, [4, 5, 6, 7, 8])
    buffer.store_batch(make_rows(range(9, 30)))
    assert holds_exactly(buffer, buffer_url, list(range(10, 30)))
    buffer.resize(None)
    assert buffer.max_capacity is None
    buffer.store_batch(make_rows(range(30, 60)))
    assert holds_exactly(buffer, buffer_url, list(range(10, 60)))


@both_layouts
def test_shrinking_evicts_at_once(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url)
    buffer.store_batch(make_rows(range(1, 51)))
    buffer.resize(8)
    assert stored_rows(buffer_url) == (0 if buffer.fields else 8)
    assert holds_exactly(buffer, buffer_url, list(range(43, 51)))
    assert make_buffer(buffer_url).max_capacity == 8


def test_rows_left_after_a_shrink_behind_a_hole_can_be_deleted_by_hand(buffer_url):
    buffer = ReplayBuffer(buffer_url)
    buffer.store_batch(make_rows(range(1, 11)))
    buffer.delete(steps_between(6, 10))
    buffer.resize(3)
    assert holds_exactly(buffer, buffer_url, [3, 4, 5])
    run(buffer_url, "DELETE FROM experiences WHERE step = 3")
    assert holds_exactly(buffer, buffer_url, [4, 5])


def test_typed_steps_deleted_at_the_end_of_the_newest_chunk_still_count(buffer_url):
    buffer = ReplayBuffer(buffer_url, fields={"obs": ("float32", (2,))})
    buffer.extend({"obs": np.zeros((10, 2), np.float32)}, task_id="t", step=range(1, 11))
    buffer.delete(steps_between(9, 10))
    buffer.resize(5)
    assert steps_of(buffer) == [6, 7, 8]
    buffer.extend({"obs": np.zeros((3, 2), np.float32)}, task_id="t", step=range(11, 14))
    assert steps_of(buffer) == [11, 12, 13]


@pytest.mark.parametrize("capacity", [0, -1, 2.5, "9", True])
def test_a_capacity_that_is_no_positive_integer_is_refused(buffer_url, capacity):
    buffer = ReplayBuffer(buffer_url)
    with pytest.raises(BufferConfigError, match="max_capacity"):
        buffer.resize(capacity)
    with pytest.raises(BufferConfigError, match="max_capacity"):
        ReplayBuffer(buffer_url, name="new", max_capacity=capacity)


@both_layouts
def test_clear_empties_and_the_numbers_go_on(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, max_capacity=10)
    buffer.store_batch(make_rows(range(1, 14)))
    assert buffer.clear() == 10
    assert holds_exactly(buffer, buffer_url, [])
    assert buffer.clear() == 0
    buffer.store_batch(make_rows([14, 15]))
    assert seqs_of(buffer) == [14, 15]
    assert holds_exactly(buffer, buffer_url, [14, 15])


def test_delete_refuses_an_empty_condition(buffer_url):
    buffer = ReplayBuffer(buffer_url)
    buffer.store(make_row(1))
    for empty in (None, {}):
        with pytest.raises(ConditionError, match=r"clear\(\)"):
            buffer.delete(empty)
    assert len(buffer) == 1


@both_layouts
def test_delete_says_how_many_rows_went(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url)
    buffer.store_batch(make_rows(range(10)))
    assert buffer.delete(steps_between(2, 5)) == 4
    assert buffer.delete(steps_between(2, 5)) == 0
    assert buffer.delete(query_condition=step_is(9)) == 1
    assert steps_of(buffer) == [0, 1, 6, 7, 8]


INSERT_BY_VIEW = (
    "INSERT INTO new_experiences (buffer_id, id, task_id, agent_id, step, execute_time, state, "
    "reward_t) VALUES (:buffer_id, :id, 't1', 'a1', :step, 1.5, :state, 0.25)"
)
INSERT_BY_TABLE = INSERT_BY_VIEW.replace("new_experiences", "experiences")


@pytest.fixture(params=["view", "table"])
def insert_by_hand(request, buffer_url):
    """Return a function that inserts one row by plain SQL, without a number."""
    if request.param == "table" and is_sqlite(buffer_url):
        next_seq = "(SELECT next_seq FROM buffers WHERE id = :buffer_id)"
        columns, values = numbered(buffer_url, ":buffer_id", next_seq)
        statement = INSERT_BY_TABLE.replace("(buffer_id", f"({columns}").replace(
            "(:buffer_id", f"({values}"
        )
    else:
        statement = INSERT_BY_VIEW if request.param == "view" else INSERT_BY_TABLE

    def insert(step, *, id=None, number=None):
        number = buffer_id(buffer_url) if number is None else number
        state = '{"by": "hand"}'
        run(buffer_url, statement, buffer_id=number, id=id, step=step, state=state)

    return insert


@pytest.mark.thorough
def test_rows_inserted_by_plain_sql_count_and_evict(buffer_url, insert_by_hand):
    buffer = ReplayBuffer(buffer_url, max_capacity=4)
    buffer.store_batch(make_rows([1, 2]))
    for step in (3, 4, 5):
        insert_by_hand(step)
    assert holds_exactly(buffer, buffer_url, [2, 3, 4, 5])
    assert stored_rows(buffer_url) == 4
    buffer.store_batch(make_rows([6, 7]))
    assert holds_exactly(buffer, buffer_url, [4, 5, 6, 7])
    (by_hand, *_) = buffer
    assert by_hand.exp_data.state == {"by": "hand"}
    assert (by_hand.exp_data.reward_t, by_hand.exp_meta.execute_time) == (0.25, 1.5)


def test_rows_inserted_by_plain_sql_evict_whole_tasks(buffer_url, insert_by_hand):
    buffer = ReplayBuffer(buffer_url, max_capacity=4, evict_by="task")
    buffer.store_batch([*make_rows([1, 2], task="old"), *make_rows([3, 4], task="t1")])
    insert_by_hand(5)
    assert holds_exactly(buffer, buffer_url, [3, 4, 5])
    insert_by_hand(6)
    insert_by_hand(7)
    assert holds_exactly(buffer, buffer_url, [4, 5, 6, 7])


def test_an_id_stored_by_plain_sql_is_known(buffer_url, insert_by_hand):
    buffer = ReplayBuffer(buffer_url)
    insert_by_hand(1, id="x")
    assert buffer.store(make_row(1, id="x")).conflicts == 1
    with pytest.raises(Exception, match=r"(?i)unique"):
        insert_by_hand(2, id="x")
    assert steps_of(buffer) == [1]


@pytest.mark.parametrize("target", ["experiences", "new_experiences"])
def test_plain_sql_for_an_unknown_buffer_is_refused(buffer_url, target):
    ReplayBuffer(buffer_url)
    columns, values = "buffer_id", "4711"
    if target == "experiences":
        columns, values = numbered(buffer_url, "4711", "1")
    with pytest.raises(Exception, match="no buffer"):
        run(
            buffer_url,
            f"INSERT INTO {target} ({columns}, task_id, agent_id, step) "
            f"VALUES ({values}, 't', 'a', 1)",
        )
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0


def test_one_statement_may_write_to_several_buffers(make_database_url):
    """PostgreSQL, whose triggers see whole statements."""
    url = make_database_url("postgresql", schema=True)
    buffers = [
        ReplayBuffer(url, name="rows", max_capacity=3),
        ReplayBuffer(url, name="tasks", max_capacity=3, evict_by="task"),
        ReplayBuffer(url, name="all"),
    ]
    run(
        url,
        "INSERT INTO experiences (buffer_id, task_id, agent_id, step) "
        "SELECT b.id, 't1', 'a1', s FROM generate_series(1, 5) s, buffers b",
    )
    assert [sorted(steps_of(buffer)) for buffer in buffers] == [
        [3, 4, 5],
        [3, 4, 5],
        [1, 2, 3, 4, 5],
    ]
    assert [len(buffer) for buffer in buffers] == [3, 3, 5]


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("evict_by", ["row", "task"])
def test_the_count_stays_right_when_rows_are_deleted_by_hand(buffer_url, evict_by):
    buffer = ReplayBuffer(buffer_url, max_capacity=20_000, evict_by=evict_by)
    rows = [make_row(step, task=f"t{step // 500}") for step in range(10_000)]
    for start in range(0, 10_000, 2_500):
        buffer.store_batch(rows[start : start + 2_500])
    assert len(buffer) == 10_000  # and whole blocks are remembered from here on
    run(buffer_url, "DELETE FROM experiences WHERE step BETWEEN 100 AND 119")
    assert len(buffer) == buffer.size(EVERY_ROW) == 9_980
    run(buffer_url, "DELETE FROM experiences WHERE step = 9999")
    assert len(buffer) == buffer.size(EVERY_ROW) == 9_979
    run(buffer_url, "DELETE FROM experiences WHERE task_id = 't5'")
    assert len(buffer) == buffer.size(EVERY_ROW) == 9_479
    if not is_sqlite(buffer_url):
        run(buffer_url, "TRUNCATE experiences")
        assert len(buffer) == buffer.size(EVERY_ROW) == 0
        buffer.store_batch(rows[:3])
        assert len(buffer) == 3


@pytest.mark.thorough
@pytest.mark.slow
def test_a_count_in_another_process_follows_deletes_and_resizes(buffer_url):
    counting = ReplayBuffer(buffer_url)
    counting.store_batch(make_rows(range(9_000)))
    assert len(counting) == 9_000
    run_at_once([(delete_steps, buffer_url, 10, 19)])
    assert len(counting) == 8_990
    run_at_once([(resize, buffer_url, 6_000)])
    assert len(counting) == counting.size(EVERY_ROW) == 6_000
    run_at_once([(resize, buffer_url, 10_000)])
    counting.store_batch(make_rows(range(9_000, 14_000)))
    assert len(counting) == counting.size(EVERY_ROW) == 10_000


def delete_steps(url, low, high):
    ReplayBuffer(url).delete(steps_between(low, high))


def resize(url, capacity):
    ReplayBuffer(url).resize(capacity)


def write(url, task, n_rows, sizes):
    """Store rows of one task in batches of the sizes, over and over."""
    buffer = ReplayBuffer(url)
    written, turn = 0, 0
    while written < n_rows:
        size = min(sizes[turn % len(sizes)], n_rows - written)
        buffer.store_batch(make_rows(range(written, written + size), task=task))
        written += size
        turn += 1
    return written


@pytest.mark.thorough
@pytest.mark.slow
def test_the_window_is_exact_at_every_moment_of_a_run_with_several_writers(buffer_url):
    capacity, sizes = 200, (1, 40, 7, 64, 13)
    buffer = ReplayBuffer(buffer_url, max_capacity=capacity)
    looks = 0
    with running([(write, buffer_url, f"t{i}", 3_000, sizes) for i in range(3)]) as writers:
        while writers.running and looks < 10_000:
            n_rows, n_of_buffers, n_of_tasks, n_of_agents, low, high = map(
                int, run(buffer_url, WINDOW_BY_SQL)[0]
            )
            assert n_rows == n_of_buffers == n_of_tasks == n_of_agents
            assert n_rows <= capacity
            assert n_rows == 0 or high - low < capacity
            if is_sqlite(buffer_url):  # no number is in flight there
                assert n_rows == min(high, capacity)
            assert len(buffer) <= capacity
            assert buffer.size(EVERY_ROW) <= capacity
            seqs = seqs_of(buffer.get_all())
            assert seqs == sorted(set(seqs))
            assert not seqs or seqs[-1] - seqs[0] < capacity
            looks += 1
        assert writers.results() == [3_000] * 3
    assert looks > 3
    assert seqs_of(buffer) == list(range(9_001 - capacity, 9_001))
    assert len(buffer) == buffer.size(EVERY_ROW) == capacity
    # Behind the window lie at most rows that were in flight when their turn came.
    assert stored_rows(buffer_url) <= capacity + 3 * 2 * max(sizes)


def test_numbers_burnt_by_a_rollback_count_against_the_capacity(make_database_url):
    """PostgreSQL: SQLite takes its numbers back."""
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url, max_capacity=10)
    buffer.store_batch(make_rows(range(10)))
    number = buffer_id(url)
    run(url, f"SELECT nextval('sqlbuffer_seq_{number}') FROM generate_series(1, 4)")
    buffer.store(make_row(99))
    assert holds_exactly(buffer, url, [5, 6, 7, 8, 9, 99])


def tasks_held(buffer):
    held = {}
    for task, step in zip(tasks_of(buffer), steps_of(buffer), strict=True):
        held.setdefault(task, []).append(step)
    return held


@both_layouts
def test_by_task_the_task_whose_last_write_is_oldest_leaves_whole(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, max_capacity=10, evict_by="task")
    for task in "abc":
        buffer.store_batch(make_rows(range(3), task=task))
    buffer.store(make_row(3, task="a"))  # b is the oldest now
    assert len(buffer) == 10
    buffer.store(make_row(0, task="d"))
    assert tasks_held(buffer) == {"a": [0, 1, 2, 3], "c": [0, 1, 2], "d": [0]}
    assert len(buffer) == 8
    assert stored_rows(buffer_url) == (0 if buffer.fields else 8)
    buffer.store_batch(make_rows(range(1, 4), task="d"))
    assert tasks_held(buffer) == {"a": [0, 1, 2, 3], "d": [0, 1, 2, 3]}


def test_by_task_a_batch_may_push_out_several_tasks(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=12, evict_by="task")
    for task in "abcdef":
        buffer.store_batch(make_rows(range(2), task=task))
    buffer.store_batch(make_rows(range(5), task="g"))
    assert tasks_held(buffer) == {"d": [0, 1], "e": [0, 1], "f": [0, 1], "g": [0, 1, 2, 3, 4]}


def test_by_task_a_lone_task_loses_its_own_oldest_rows(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=5, evict_by="task")
    buffer.store_batch(make_rows(range(3), task="a"))
    buffer.store_batch(make_rows(range(7), task="b"))
    assert tasks_held(buffer) == {"b": [2, 3, 4, 5, 6]}
    buffer.store_batch(make_rows(range(7, 9), task="b"))
    assert tasks_held(buffer) == {"b": [4, 5, 6, 7, 8]}
    buffer.store(make_row(0, task="c"))
    assert tasks_held(buffer) == {"c": [0]}


def test_by_task_interleaved_tasks_leave_by_their_last_write(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=9, evict_by="task")
    for step in range(3):
        buffer.store_batch([make_row(step, task=task) for task in ("a", "b", "c")])
    buffer.store(make_row(3, task="a"))
    assert tasks_held(buffer) == {"a": [0, 1, 2, 3], "c": [0, 1, 2]}
    buffer.store_batch(make_rows(range(2), task="d"))
    buffer.store(make_row(4, task="a"))
    assert tasks_held(buffer) == {"a": [0, 1, 2, 3, 4], "d": [0, 1]}


def test_by_task_the_same_batches_leave_the_same_tasks_on_both_databases(both_urls):
    held = []
    for url in both_urls.values():
        buffer = ReplayBuffer(url, max_capacity=4, evict_by="task")
        buffer.store_batch([make_row(step, task=task) for step, task in enumerate("xxyy")])
        buffer.store_batch([make_row(4, task="z"), make_row(5, task="x")])
        held.append(tasks_held(buffer))
    assert held[0] == held[1]


@both_layouts
def test_by_task_a_deleted_row_makes_room(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, max_capacity=4, evict_by="task")
    for task in "ab":
        buffer.store_batch(make_rows(range(2), task=task))
    assert buffer.delete(step_is(0)) == 2
    assert len(buffer) == 2
    buffer.store_batch(make_rows(range(2), task="c"))
    assert tasks_held(buffer) == {"a": [1], "b": [1], "c": [0, 1]}
    run(buffer_url, f"DELETE FROM {table_of(buffer)} WHERE task_id IN ('a', 'c')")
    assert len(buffer) == 1
    buffer.store_batch(make_rows(range(3), task="d"))
    assert tasks_held(buffer) == {"b": [1], "d": [0, 1, 2]}
    assert run(buffer_url, "SELECT task_id, n_rows FROM tasks ORDER BY task_id") == [
        ("b", 1),
        ("d", 3),
    ]


@both_layouts
def test_by_task_shrinking_evicts_whole_tasks_at_once(buffer_url, make_buffer):
    buffer = make_buffer(buffer_url, evict_by="task")
    for task in "abc":
        buffer.store_batch(make_rows(range(4), task=task))
    buffer.resize(9)
    assert tasks_held(buffer) == {"b": [0, 1, 2, 3], "c": [0, 1, 2, 3]}
    buffer.resize(3)
    assert tasks_held(buffer) == {"c": [1, 2, 3]}
    assert len(buffer) == 3
    assert stored_rows(buffer_url) == (0 if buffer.fields else 3)
    buffer.clear()
    assert len(buffer) == scalar(buffer_url, "SELECT count(*) FROM tasks") == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_by_task_two_writers_never_pass_the_capacity(buffer_url):
    # So large that a task is not evicted between its halves while its writer has to wait.
    capacity = 600
    buffer = ReplayBuffer(buffer_url, max_capacity=capacity, evict_by="task")
    with running([(write_tasks, buffer_url, name, 120) for name in ("x", "y")]) as writers:
        while writers.running:
            n_rows, low_count, n_tasks = run(
                buffer_url,
                "SELECT (SELECT count(*) FROM experiences), (SELECT live_rows FROM buffers), "
                "(SELECT coalesce(sum(n_rows), 0) FROM tasks)",
            )[0]
            assert n_rows == low_count == n_tasks
            assert n_rows <= capacity
            assert len(buffer) <= capacity
            # A task that has been written whole is there whole or not at all.
            counts = run(buffer_url, "SELECT count(*) FROM experiences GROUP BY task_id")
            assert {count for (count,) in counts} <= {5, 10}
        writers.results()
    assert len(buffer) == capacity == stored_rows(buffer_url)
    assert {len(steps) for steps in tasks_held(buffer).values()} == {10}


def write_tasks(url, prefix, n_tasks):
    buffer = ReplayBuffer(url)
    for task in range(n_tasks):
        for half in (range(5), range(5, 10)):
            buffer.store_batch(make_rows(half, task=f"{prefix}{task}"))


def test_by_task_a_task_table_that_lost_its_rows_makes_no_writer_hang(make_database_url):
    """PostgreSQL: an owner may switch triggers off for a clean-up."""
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url, max_capacity=4, evict_by="task")
    buffer.store_batch([make_row(1, task=task) for task in "abcd"])
    with connected(url) as connection:
        connection.execute(text("ALTER TABLE experiences DISABLE TRIGGER USER"))
        connection.execute(text("DELETE FROM experiences"))
        connection.execute(text("ALTER TABLE experiences ENABLE TRIGGER USER"))
    started = time.monotonic()
    assert buffer.store(make_row(2, task="e")).inserted == 1
    assert time.monotonic() - started < 60


@pytest.mark.thorough
@pytest.mark.slow
def test_two_deletes_by_hand_do_not_lock_each_other_out(make_database_url):
    url = make_database_url("postgresql", schema=True)
    for number in range(5):
        ReplayBuffer(url, name=f"b{number}").store_batch(make_rows(range(200)))
    run_at_once([(delete_by_hand, url, remainder) for remainder in range(4)])
    assert scalar(url, "SELECT count(*) FROM experiences") == 0


def delete_by_hand(url, remainder):
    for start in range(0, 200, 40):
        run(
            url,
            "DELETE FROM experiences WHERE step % 4 = :r AND step >= :s AND step < :s + 40",
            r=remainder,
            s=start,
        )


def test_a_delete_that_read_an_old_window_does_not_bring_rows_back(make_database_url):
    """PostgreSQL: another delete commits while the statement that looks at the window waits."""
    url = make_database_url("postgresql", schema=True)
    buffer, other = ReplayBuffer(url, max_capacity=5), ReplayBuffer(url)
    buffer.store_batch(make_rows(range(1, 6)))

    def store_and_delete(tx):
        tx.store_batch(make_rows(range(6, 9)))
        tx.delete(steps_between(7, 8))
        late = threads.submit(buffer.delete, step_is(99))
        wait_until(lambda: scalar(url, WAITING), "a delete that waits for this transaction")
        return late

    with connected(url) as holder, ThreadPoolExecutor(1) as threads:
        holder.execute(text("SELECT 1 FROM experiences WHERE seq <= 3 FOR UPDATE"))
        assert other.transaction(store_and_delete).result() == 0
    assert holds_exactly(other, url, [4, 5, 6])
