"""What a write returns, what it refuses, and that it is all or nothing."""

import logging
import multiprocessing
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sqlalchemy import text

from sqlbuffer import Experience, ExpMeta, ReplayBuffer, StoreResult
from sqlbuffer.errors import BufferNotFoundError, FieldError, StorageError
from sqlbuffer.storage.writing import rows
from tests.recording.envs import Scripted
from tests.recording.test_single import buffer_for, take
from tests.support.processes import TIMEOUT_S, run_at_once
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
from tests.support.waiting_steps import NEVER_S


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        yield buffer


def test_a_stored_row_comes_back(buffer):
    row = make_row(1)
    assert buffer.store(row) == StoreResult(inserted=1, duplicates=0, conflicts=0)
    assert list(buffer.get_all()) == [row]


def test_a_batch_is_numbered_in_its_order(buffer):
    assert buffer.store_batch(make_rows(range(5))).inserted == 5
    rows = list(buffer.get_all())
    assert steps_of(rows) == [0, 1, 2, 3, 4]
    assert seqs_of(rows) == [1, 2, 3, 4, 5]


def test_a_batch_may_be_any_iterable(buffer):
    assert buffer.store_batch(row for row in make_rows(range(3))).inserted == 3


@pytest.mark.parametrize("nothing", [[], (), iter(())])
def test_an_empty_batch_stores_nothing(buffer, nothing):
    assert buffer.store_batch(nothing) == StoreResult(0, 0, 0)


def test_storing_no_row_is_refused(buffer):
    with pytest.raises(FieldError, match="data: row 0: expected a DataRow, got None"):
        buffer.store(None)


def test_a_resent_id_is_not_stored_again(buffer):
    rows = make_rows(range(10), prefix="r")
    buffer.store_batch(rows)
    assert buffer.store_batch(rows) == StoreResult(inserted=0, duplicates=10, conflicts=0)
    assert buffer.store(rows[3]) == StoreResult(inserted=0, duplicates=1, conflicts=0)
    assert steps_of(buffer) == list(range(10))


@pytest.mark.parametrize(
    "ids",
    [
        ["plain", "1/2-3_4"],
        ["plain", "NULL"],
        ["null", "x,y"],
        ["x,y", "x", "y"],
        ["{", "}"],
        ["{}", 'quo"te'],
        ["back\\slash", "space d", " "],
        ["Ümläut", "\u00a0", "\n"],
        ["", "empty"],
    ],
)
def test_ids_are_any_text(buffer, ids):
    rows = make_rows(range(len(ids)))
    for row, id_ in zip(rows, ids, strict=True):
        row.id = id_
    assert buffer.store_batch(rows).inserted == len(ids)
    assert buffer.store_batch(rows).duplicates == len(ids)
    assert [row.id for row in buffer] == ids


def test_new_rows_of_a_partly_known_batch_are_stored(buffer):
    buffer.store_batch(make_rows(range(5), prefix="r"))
    result = buffer.store_batch(make_rows(range(3, 8), prefix="r"))
    assert result == StoreResult(inserted=3, duplicates=2, conflicts=0)
    assert seqs_of(buffer) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_the_same_id_within_a_batch_is_stored_once(buffer):
    row, other = make_row(1, id="x"), make_row(2, id="x")
    assert buffer.store_batch([row, row, row]) == StoreResult(1, 2, 0)
    assert buffer.store_batch([make_row(3, id="y"), other, make_row(4, id="y")]) == StoreResult(
        inserted=1, duplicates=0, conflicts=2, conflicting_ids=("x", "y")
    )
    assert steps_of(buffer) == [1, 3]


def test_a_conflict_keeps_the_stored_row_and_is_logged(buffer, caplog):
    buffer.store_batch(make_rows(range(3), prefix="r"))
    with caplog.at_level(logging.WARNING, logger="sqlbuffer"):
        result = buffer.store_batch([make_row(0, id="r0"), make_row(9, id="r1")])
    assert result == StoreResult(inserted=0, duplicates=1, conflicts=1)
    assert result.conflicting_ids == ("r1",)
    assert steps_of(buffer) == [0, 1, 2]
    (record,) = caplog.records
    assert "'default'" in record.getMessage()
    assert "r1" in record.getMessage()


def test_a_duplicate_is_not_logged(buffer, caplog):
    with caplog.at_level(logging.DEBUG, logger="sqlbuffer"):
        buffer.store_batch(make_rows(range(3), prefix="r") * 2)
    assert not caplog.records


CHANGES = [
    {"task_id": "other"},
    {"task_name": "other"},
    {"agent_id": "other"},
    {"step": 2},
    {"pre_agent": "other"},
    {"episode_id": "other"},
    {"model_version": 2},
    {"session_id": "other"},
    {"state": {"x": 2}},
    {"state": {"x": 1.0}},
    {"actions": [1]},
    {"messages": []},
    {"extra": {}},
    {"reward": 0.5},
    {"reward": None},
    {"reward": -0.0},
    {"adv_t": 1.0},
    {"v_t": float("nan")},
    {"terminated": False},
    {"truncated": True},
]


def test_a_conflict_is_any_field_that_differs(buffer):
    fields = {
        "id": "x",
        "task_id": "t",
        "task_name": "n",
        "agent_id": "a",
        "step": 1,
        "pre_agent": "p",
        "episode_id": "e",
        "model_version": 1,
        "session_id": "s",
        "state": {"x": 1},
        "actions": [0],
        "reward": 0.0,
        "v_t": 1.0,
        "terminated": True,
    }
    assert buffer.add(**fields).inserted == 1
    assert buffer.add(**fields).duplicates == 1
    silent = [change for change in CHANGES if buffer.add(**{**fields, **change}).conflicts != 1]
    assert silent == []


def test_a_retried_add_is_a_duplicate_although_the_clock_went_on(buffer):
    assert buffer.add(id="x", state=1).inserted == 1
    assert buffer.add(id="x", state=1) == StoreResult(0, 1, 0)
    assert buffer.add(id="x", state=1, execute_time=1.0) == StoreResult(0, 0, 1)


def test_a_conflict_with_a_row_that_the_same_batch_evicts_is_not_silent(buffer_url, caplog):
    buffer = ReplayBuffer(buffer_url, max_capacity=3)
    buffer.store_batch(make_rows(range(3), prefix="r"))
    other = make_row(99, id="r0")
    result = buffer.store_batch([other, *make_rows(range(10, 13))])
    assert result == StoreResult(inserted=3, duplicates=0, conflicts=1)
    assert result.conflicting_ids == ("r0",)


@pytest.mark.thorough
@pytest.mark.slow
def test_resends_into_a_full_buffer_cost_no_live_row(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=100)
    rows = make_rows(range(100), prefix="r")
    buffer.store_batch(rows)
    assert buffer.store_batch(rows * 50) == StoreResult(0, 5_000, 0)
    for _ in range(50):
        assert buffer.store_batch(rows) == StoreResult(0, 100, 0)
    assert list(buffer) == rows
    buffer.store(make_row(100))
    # No number was burnt either, or more than one row had left.
    assert seqs_of(buffer) == list(range(2, 102))


def test_an_id_whose_row_left_the_window_can_be_used_again(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=3)
    buffer.store_batch(make_rows(range(5), prefix="r"))
    assert buffer.store(make_row(7, id="r0")) == StoreResult(1, 0, 0)
    assert steps_of(buffer) == [3, 4, 7]


def test_an_id_whose_row_is_behind_the_window_but_still_in_the_table_can_be_used_again(
    make_database_url,
):
    # Only PostgreSQL leaves rows behind the window for a while.
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url, max_capacity=3)
    buffer.store_batch(make_rows(range(3), prefix="r"))
    with connected(url) as other:
        other.execute(text("SELECT 1 FROM experiences WHERE seq = 1 FOR UPDATE"))
        buffer.store(make_row(3))  # its eviction skips the locked row
    assert stored_rows(url) == 4
    assert steps_of(buffer) == [1, 2, 3]
    assert len(buffer) == 3
    assert buffer.store(make_row(8, id="r0")) == StoreResult(1, 0, 0)
    assert steps_of(buffer) == [2, 3, 8]


def test_the_id_of_a_deleted_row_can_be_used_again(buffer):
    buffer.store_batch(make_rows(range(3), prefix="r"))
    buffer.delete(step_is(1))
    assert buffer.store(make_row(9, id="r1")).inserted == 1
    buffer.clear()
    assert buffer.store_batch(make_rows(range(3), prefix="r")).inserted == 3


@pytest.mark.parametrize("bad", [0, 7, 9])
def test_one_bad_row_keeps_the_whole_batch_out(buffer, bad):
    rows = make_rows(range(10))
    rows[bad].exp_data.state = {"socket": object()}
    with pytest.raises(FieldError, match=rf"row {bad}: .*socket"):
        buffer.store_batch(rows)
    assert len(buffer) == 0
    assert list(buffer) == []


def test_a_batch_that_the_database_refuses_half_way_leaves_nothing(buffer, buffer_url):
    buffer.store(make_row(1, id="kept"))
    run(
        buffer_url,
        "CREATE TRIGGER unlucky BEFORE INSERT ON experiences WHEN NEW.step = 13 "
        "BEGIN SELECT RAISE(ABORT, 'unlucky'); END"
        if is_sqlite(buffer_url)
        else "ALTER TABLE experiences ADD CONSTRAINT unlucky CHECK (step <> 13)",
    )
    with pytest.raises(StorageError, match="unlucky"):
        buffer.store_batch([make_row(step, episode=f"e{step}") for step in range(20)])
    assert steps_of(buffer) == [1]
    assert scalar(buffer_url, "SELECT count(*) FROM episodes") == 0
    assert buffer.store(make_row(2)).inserted == 1
    assert len(buffer) == 2


def test_a_batch_larger_than_the_capacity_leaves_its_newest_rows(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=10)
    buffer.store_batch(make_rows(range(5)))
    assert buffer.store_batch(make_rows(range(100, 135))).inserted == 35
    assert steps_of(buffer) == list(range(125, 135))
    assert len(buffer) == stored_rows(buffer_url) == 10


def test_a_capacity_of_one_holds_the_newest_row(buffer_url):
    buffer = ReplayBuffer(buffer_url, max_capacity=1)
    for step in range(3):
        buffer.store(make_row(step))
        assert steps_of(buffer) == [step]
    buffer.store_batch(make_rows(range(10, 15)))
    assert steps_of(buffer) == [14]
    assert steps_of(buffer.sample(8)) == [14]


@pytest.mark.thorough
def test_a_buffer_without_capacity_is_unlimited(buffer):
    assert buffer.max_capacity is None
    for start in range(0, 3_000, 1_000):
        buffer.store_batch(make_rows(range(start, start + 1_000)))
    assert len(buffer) == buffer.size(EVERY_ROW) == 3_000


def test_the_version_of_a_batch_is_for_rows_that_name_none(buffer):
    own = make_row(1)
    own.exp_meta.model_version = 7
    buffer.store_batch([own, make_row(2)], model_version=9)
    assert [row.exp_meta.model_version for row in buffer] == [7, 9]


def test_a_single_row_and_its_fields_are_stored_alike(buffer):
    row = make_row(4, task="t9")
    buffer.store(row)
    buffer.add(
        state={"step": 4}, actions=[4], reward=4.0, task_id="t9", task_name="a task",
        agent_id="a1", step=4, execute_time=4.0,
    )  # fmt: skip
    one, other = buffer
    assert (one.exp_meta, one.exp_data) == (other.exp_meta, other.exp_data)


def test_add_needs_no_field_at_all(buffer):
    buffer.add()
    (row,) = buffer
    assert row.exp_data == Experience()
    assert row.exp_meta == ExpMeta("default", None, "default", 0, row.exp_meta.execute_time)


def test_several_buffers_in_one_database_do_not_touch_each_other(buffer_url):
    small = ReplayBuffer(buffer_url, name="small", max_capacity=5)
    large = ReplayBuffer(buffer_url, name="large")
    by_task = ReplayBuffer(buffer_url, name="by_task", max_capacity=4, evict_by="task")
    rows = make_rows(range(20), prefix="same")
    for buffer in (small, large, by_task):
        assert buffer.store_batch(rows).inserted == 20
    assert steps_of(small) == list(range(15, 20))
    assert steps_of(large) == list(range(20))
    assert steps_of(by_task) == list(range(16, 20))
    large.delete(steps_between(0, 17))
    small.clear()
    assert (len(small), len(large), len(by_task)) == (0, 2, 4)
    assert steps_of(large.get_by_task_id("t1")) == [18, 19]
    assert steps_of(by_task.get_by_task_id("t1")) == [16, 17, 18, 19]
    assert small.get_by_task_id("t1") == []
    assert small.store_batch(rows).inserted == 20


def test_a_dropped_buffer_leaves_nothing_and_takes_nothing_along(buffer_url):
    rows = [make_row(step, episode="e1") for step in range(3)]
    for name in ("kept", "dropped"):
        buffer = ReplayBuffer(buffer_url, name=name, max_capacity=9, evict_by="task")
        buffer.store_batch(rows)
        buffer.add(session_id="s1", task_id="t2")
    number = buffer_id(buffer_url, "dropped")
    ReplayBuffer.drop(buffer_url, "dropped")
    assert ReplayBuffer.list(buffer_url) == ["kept"]
    for table in ("experiences", "episodes", "sessions", "tasks"):
        counted = dict(
            run(buffer_url, f"SELECT buffer_id, count(*) FROM {table} GROUP BY buffer_id")
        )
        assert number not in counted
        assert counted[buffer_id(buffer_url, "kept")] > 0
    assert len(ReplayBuffer(buffer_url, name="kept")) == 4
    anew = ReplayBuffer(buffer_url, name="dropped")
    assert (len(anew), anew.max_capacity, anew.evict_by) == (0, None, "row")


def test_dropping_an_unknown_buffer_says_so(buffer_url):
    with pytest.raises(BufferNotFoundError, match="'absent'"):
        ReplayBuffer.drop(buffer_url, "absent")


USES = {
    "store": lambda buffer: buffer.store(make_row(1)),
    "len": len,
    "size": lambda buffer: buffer.size(EVERY_ROW),
    "sample": lambda buffer: buffer.sample(1),
    "sample_tasks": lambda buffer: buffer.sample_tasks(1),
    "get_all": lambda buffer: list(buffer.get_all()),
    "get_by_task_id": lambda buffer: buffer.get_by_task_id("t1"),
    "delete": lambda buffer: buffer.delete(step_is(1)),
    "clear": lambda buffer: buffer.clear(),
    "resize": lambda buffer: buffer.resize(5),
}


def test_using_a_dropped_buffer_says_that_it_was_dropped(buffer, buffer_url):
    buffer.store(make_row(1))
    ReplayBuffer.drop(buffer_url, "default")
    ReplayBuffer(buffer_url, name="another").store(make_row(2))
    said = {}
    for name, use in USES.items():
        with pytest.raises(Exception) as info:  # noqa: PT011
            use(buffer)
        said[name] = isinstance(info.value, BufferNotFoundError) and "dropped" in str(info.value)
    assert said == dict.fromkeys(USES, True)
    assert len(ReplayBuffer(buffer_url, name="another")) == 1


def drop(url, name):
    ReplayBuffer.drop(url, name)


@pytest.mark.thorough
@pytest.mark.slow
def test_buffers_can_be_dropped_at_the_same_time(buffer_url):
    for number in range(4):
        ReplayBuffer(buffer_url, name=f"b{number}").store_batch(make_rows(range(500)))
    run_at_once([(drop, buffer_url, f"b{number}") for number in range(4)])
    assert ReplayBuffer.list(buffer_url) == []
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0


@pytest.mark.thorough
def test_names_are_any_text(buffer_url):
    names = [
        "Größe 大小 🚀",
        "a'b\"c",
        "%s :x {} \\",
        "SELECT",
        " padded ",
        "e\u0301",
        "é",
        "A",
        "a",
    ]
    for name in names:
        buffer = ReplayBuffer(buffer_url, name=name, max_capacity=2)
        buffer.store_batch(
            [make_row(step, task=name, agent=name, id=f"{name}{step}") for step in (1, 2)]
        )
    for name in names:
        again = ReplayBuffer(buffer_url, name=name)
        assert (again.name, len(again)) == (name, 2)
        assert tasks_of(again.get_by_task_id(name)) == [name, name]
    assert ReplayBuffer.list(buffer_url) == sorted(names)
    assert (
        run(buffer_url, "SELECT DISTINCT buffer FROM v_experiences WHERE buffer <> task_id") == []
    )
    for name in names:
        ReplayBuffer.drop(buffer_url, name)
    assert ReplayBuffer.list(buffer_url) == []


def send(url, batches):
    buffer = ReplayBuffer(url)
    results = [buffer.store_batch(batch) for batch in batches]
    return (
        sum(result.inserted for result in results),
        sum(result.duplicates for result in results),
        sum(result.conflicts for result in results),
    )


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_that_send_the_same_batches_store_them_once(buffer_url):
    batches = [make_rows(range(start, start + 100), prefix="r") for start in range(0, 2_000, 100)]
    with ReplayBuffer(buffer_url) as buffer:
        results = run_at_once([(send, buffer_url, batches)] * 2)
        assert [sum(numbers) for numbers in zip(*results, strict=True)] == [2_000, 2_000, 0]
        assert len(buffer) == 2_000
        assert sorted(steps_of(buffer)) == list(range(2_000))


def send_in_step(url, batches, barrier):
    buffer = ReplayBuffer(url)
    inserted = 0
    try:
        for batch in batches:
            barrier.wait(TIMEOUT_S)
            inserted += buffer.store_batch(batch).inserted
    except Exception:
        barrier.abort()
        raise
    return inserted


@pytest.mark.thorough
@pytest.mark.slow
def test_two_processes_that_send_the_same_rows_in_opposite_order_store_them_once(buffer_url):
    batches = [make_rows(range(start, start + 300), prefix="r") for start in range(0, 3_000, 300)]
    backwards = [batch[::-1] for batch in batches]
    barrier = multiprocessing.get_context("fork").Barrier(2)
    with ReplayBuffer(buffer_url) as buffer:
        calls = [(send_in_step, buffer_url, each, barrier) for each in (batches, backwards)]
        assert sum(run_at_once(calls)) == 3_000
        assert len(buffer) == 3_000
        assert sorted(steps_of(buffer)) == list(range(3_000))


def test_a_row_committed_between_the_look_and_the_insert_is_found(make_database_url, monkeypatch):
    """PostgreSQL only: on SQLite writers come one at a time."""
    url = make_database_url("postgresql", schema=True)
    buffer = ReplayBuffer(url)
    insert = rows.insert_records

    def insert_late(connection, *arguments, **options):
        monkeypatch.undo()
        other = ReplayBuffer(url)
        other.store_batch([make_row(1, id="r1"), make_row(22, id="r2")])
        return insert(connection, *arguments, **options)

    monkeypatch.setattr(rows, "insert_records", insert_late)
    result = buffer.store_batch(make_rows(range(4), prefix="r"))
    assert result == StoreResult(inserted=2, duplicates=1, conflicts=1, conflicting_ids=("r2",))
    assert sorted(steps_of(buffer)) == [0, 1, 3, 22]


def test_a_number_taken_by_hand_makes_no_writer_hang(buffer, buffer_url):
    """Whoever numbers rows by hand may be ahead of PostgreSQL's sequence; SQLite takes notice."""
    buffer.store(make_row(1))
    columns, second = numbered(buffer_url, ":id", "2")
    _, third = numbered(buffer_url, ":id", "3")
    run(
        buffer_url,
        f"INSERT INTO experiences ({columns}, task_id, agent_id, step) "
        f"VALUES ({second}, 't', 'a', 2), ({third}, 't', 'a', 3)",
        id=buffer_id(buffer_url),
    )
    if not is_sqlite(buffer_url):
        with pytest.raises(StorageError, match="pk_experiences"):
            buffer.store_batch(make_rows([4, 5]))
    assert buffer.store_batch(make_rows([6, 7])).inserted == 2
    assert sorted(steps_of(buffer)) == [1, 2, 3, 6, 7]


def test_a_row_of_plain_sql_can_be_stored_in_another_buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer, ReplayBuffer(buffer_url, name="other") as other:
        number = scalar(buffer_url, "SELECT id FROM buffers WHERE name = 'default'")
        run(
            buffer_url,
            "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) "
            f"VALUES ({number}, 't', 'a', 7)",
        )
        assert other.store_batch(buffer).inserted == 1
        (row,) = other
        assert row.exp_meta.step == 7
        assert row.id


# The queue of steps that a recorded environment fills.


def test_what_waits_is_bounded_when_every_step_ends_an_episode(sqlite_url):
    env, options = Scripted([(1, "terminated")]), {"flush_s": NEVER_S, "max_pending": 5}
    with buffer_for(sqlite_url, env, **options) as buffer, buffer.record(env) as recorded:
        recorded.reset()
        other = ReplayBuffer(sqlite_url, buffer.name)
        for n in range(1, 24):
            take(recorded, 1)
            assert n - len(other) <= 5


# An interrupt during a write leaves nothing half done, and nothing is stored twice.


FIELDS = {"obs": ("float32", (2,))}
N_STEPS, N_INTERRUPTS = 5, 30
# Where a write waits for the database, and where it comes back from it.
INTERRUPTED = {
    "do_execute", "do_executemany", "_init_metadata", "do_commit", "insert_columns", "write",
    "_execute_gen", "_maybe_prepare_gen", "_exec_command", "_commit_gen", "_start_copy_gen",
}  # fmt: skip


def calls_in(work: Callable[[], object], interrupt_at: int = -1) -> int:
    """Run `work`, interrupted at one of the calls that it makes; return how many there were."""
    n_calls = 0

    def trace(frame: Any, *_: Any) -> None:
        nonlocal n_calls
        if frame.f_code.co_name in INTERRUPTED:
            n_calls += 1
            if n_calls == interrupt_at:
                sys.settrace(None)
                raise KeyboardInterrupt

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return n_calls


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.parametrize("by", ["episode", "columns"])
def test_a_write_that_is_interrupted_anywhere_is_stored_once(buffer_url: str, by: str) -> None:
    with ReplayBuffer(buffer_url, fields=FIELDS, flush_s=1_000.0) as buffer:

        def work_of(number: int) -> Callable[[], object]:
            obs = np.full((N_STEPS, 2), number, np.float32)
            if by == "columns":
                ids = [f"{number}_{step}" for step in range(N_STEPS)]
                return lambda: buffer.extend({"obs": obs}, id=ids, task_id=[*"ababa"])
            episode = buffer.episode(episode_id=f"e{number}")
            for own in obs:
                episode.append(obs=own, reward=1.0)
            episode.finish()
            return buffer.flush

        work_of(0)()  # with statements that are compiled once
        n_calls = calls_in(work_of(1))
        for number in range(2, 2 + N_INTERRUPTS):
            work = work_of(number)
            with pytest.raises(KeyboardInterrupt):
                calls_in(work, 1 + n_calls * (number - 2) // N_INTERRUPTS)
            work()
            assert len(buffer) == N_STEPS * (number + 1)
        rows = list(buffer)
        assert len(rows) == len({row.seq for row in rows}) == len(buffer)
        assert len({(row.exp_meta.task_id, row.exp_meta.step, row.id) for row in rows}) == len(rows)
