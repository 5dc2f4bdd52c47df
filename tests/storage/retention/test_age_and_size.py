"""Steps leave by age and by size, at most a minute late, and no clock empties a buffer."""

import datetime
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest

from sqlbuffer import BufferConfig, QueryBuilder, Removed, ReplayBuffer
from sqlbuffer.errors import ArgumentError, BufferConfigError
from sqlbuffer.storage.holds import Hold
from sqlbuffer.storage.retention.counted_time import witness
from tests.support.limited_rows import rows_of, steps_in
from tests.support.passed_time import evicted, let_pass, set_clock
from tests.support.sql import is_sqlite, plain_engine, run, scalar
from tests.support.typed_buffer import both_layouts

HOUR = 3_600.0


def make_due(buffer):
    buffer._store.sweep.due_at = 0.0


def store(buffer, first, n):
    """Store rows with steps from `first` on, and have the next write sweep."""
    rows = rows_of([None] * (first + n))[first:]
    buffer.store_batch(rows)
    make_due(buffer)


@pytest.fixture
def buffer(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_age="1h") as buffer:
        yield buffer


@both_layouts
def test_steps_leave_when_they_are_too_old(buffer, buffer_url):
    store(buffer, 0, 10)
    let_pass(buffer_url, HOUR - 60)
    store(buffer, 10, 10)
    assert len(buffer) == 20
    let_pass(buffer_url, 61)
    store(buffer, 20, 5)  # a write sweeps
    assert steps_in(buffer.get_all()) == list(range(10, 25))
    assert len(buffer) == 15
    let_pass(buffer_url, HOUR + 1)
    assert buffer.expire() == Removed(0, 0, 0, aged=15)  # no write does
    assert len(buffer) == 0
    assert buffer.expire() == Removed(0, 0, 0)
    assert evicted(buffer_url) == {"age": 25}
    assert scalar(buffer_url, "SELECT count(*) FROM experiences") == 0
    assert scalar(buffer_url, "SELECT count(*) FROM chunks") == 0
    store(buffer, 25, 3)
    assert len(buffer) == 3


@both_layouts
def test_steps_of_plain_sql_and_of_before_the_limit_leave_too(buffer_url, make_buffer):
    with make_buffer(buffer_url) as buffer:
        store(buffer, 0, 10)
        let_pass(buffer_url, HOUR)
        store(buffer, 10, 10)
        let_pass(buffer_url, 10)
        buffer.resize(max_age="2h")
        assert (len(buffer), buffer.max_age) == (20, 2 * HOUR)
        buffer.resize(max_age=datetime.timedelta(hours=1))
        assert steps_in(buffer.get_all()) == list(range(10, 20))
        let_pass(buffer_url, HOUR)
        assert buffer.expire() == Removed(0, 0, 0, aged=10)
        buffer.resize(max_age=None)
        assert scalar(buffer_url, "SELECT count(*) FROM time_marks") == 0
        store(buffer, 20, 10)
        let_pass(buffer_url, 100 * HOUR)
        store(buffer, 30, 1)
        assert len(buffer) == 11


@both_layouts
def test_the_oldest_steps_leave_for_the_size(buffer_url, make_buffer):
    with make_buffer(buffer_url) as buffer:
        store(buffer, 0, 2_000)
        n_bytes = buffer.size_bytes()
        buffer.resize(max_bytes=n_bytes // 2)
        # On PostgreSQL small JSON takes more bytes in the table than as text.
        least = 0.3 if is_sqlite(buffer_url) else 0.1
        assert n_bytes * least < buffer.size_bytes() <= n_bytes // 2
        assert 2_000 * least < len(buffer) <= 1_000
        kept = steps_in(buffer.get_all())
        assert kept == list(range(2_000 - len(kept), 2_000))
        assert evicted(buffer_url) == {"bytes": 2_000 - len(kept)}
        let_pass(buffer_url, 20)
        store(buffer, 2_000, 500)
        assert buffer.expire().oversize == 0  # the write has swept
        assert buffer.size_bytes() <= n_bytes // 2
        assert steps_in(buffer.get_all())[-1] == 2_499
        assert scalar(buffer_url, "SELECT count(*) FROM time_marks") < 600
        buffer.resize(max_bytes=None)
        assert buffer.max_bytes is None


@pytest.mark.parametrize("unit", ["task", "episode"])
@both_layouts
def test_whole_tasks_and_episodes_leave_with_their_newest_step(buffer_url, make_buffer, unit):
    def store_in(key, first, n):
        rows = rows_of([None] * (first + n))[first:]
        columns = {"state": [{"i": row.exp_meta.step} for row in rows]}
        if buffer.fields:
            columns["number"] = [row.exp_meta.step for row in rows]
        keys = {"task_id": key} | ({"episode_id": key} if unit == "episode" else {})
        buffer.extend(columns, step=[row.exp_meta.step for row in rows], **keys)
        if unit == "episode":
            buffer.end_episode(key, key)

    with ReplayBuffer(
        buffer_url,
        max_age="1h",
        evict_by=unit,
        **({"fields": {"number": "int64"}} if make_buffer is not ReplayBuffer else {}),
    ) as buffer:
        store_in("a", 0, 3)
        store_in("b", 3, 3)
        let_pass(buffer_url, HOUR / 2)
        make_due(buffer)
        store_in("c", 6, 2)
        if unit == "task":
            store_in("a", 8, 2)
        let_pass(buffer_url, HOUR / 2 + 20)
        if unit == "episode":
            buffer.extend(
                {"state": [0]} | ({"number": [9]} if buffer.fields else {}),
                task_id="d",
                episode_id="open",
                step=[9],
            )
        removed = buffer.expire()
        left = {row.exp_meta.task_id for row in buffer.get_all()}
        if unit == "task":
            assert (removed.aged, left) == (3, {"a", "c"})
        else:
            assert (removed.aged, left) == (6, {"c", "d"})
        let_pass(buffer_url, 2 * HOUR)
        buffer.expire()
        if unit == "episode":  # it stays until it has ended
            assert len(buffer) == 1
            buffer.end_episode("open", "d")
            buffer.expire()
        assert len(buffer) == 0
        assert evicted(buffer_url) == {"age": 10 if unit == "task" else 9}
        assert scalar(buffer_url, "SELECT live_rows FROM buffers") == 0


DAY = 24 * HOUR


def warned(url):
    """Return whether `doctor` says that the clock was set."""
    result = subprocess.run(
        [sys.executable, "-m", "sqlbuffer.cli", "doctor", url], capture_output=True, text=True
    )
    return "max_age of" in result.stdout


def restart(url):
    """Have all looks be of machines that are gone."""
    run(url, "UPDATE clock_looks SET clock_id = CAST(at AS text)")


@both_layouts
@pytest.mark.parametrize("days", [30, -30])
def test_steps_age_by_the_time_that_passes_whatever_the_clock_shows(buffer, buffer_url, days):
    store(buffer, 0, 10)
    set_clock(buffer_url, days * DAY)
    assert buffer.expire() == Removed(0, 0, 0)
    let_pass(buffer_url, HOUR / 2)
    store(buffer, 10, 10)
    assert len(buffer) == 20
    let_pass(buffer_url, HOUR / 2 + 20)
    assert buffer.expire() == Removed(0, 0, 0, aged=10)
    set_clock(buffer_url, -days * DAY)
    store(buffer, 20, 5)
    let_pass(buffer_url, HOUR / 2)
    assert buffer.expire() == Removed(0, 0, 0, aged=10)
    let_pass(buffer_url, HOUR / 2 + 20)
    assert buffer.expire(accept_clock=True) == Removed(0, 0, 0, aged=5)


def test_a_clock_that_creeps_does_not_make_steps_old(buffer_url):
    with ReplayBuffer(buffer_url, max_age="1h") as buffer:
        store(buffer, 0, 10)
        for _ in range(20):
            set_clock(buffer_url, 4.9 * 60)
            buffer.expire()
        assert len(buffer) == 10


@pytest.mark.parametrize("days", [30, -30])
def test_a_clock_that_was_wrong_around_a_restart_empties_no_buffer(buffer_url, days):
    with ReplayBuffer(buffer_url, max_age="7d") as buffer:
        store(buffer, 0, 10)
        restart(buffer_url)
        set_clock(buffer_url, days * DAY)
        store(buffer, 10, 10)
        assert buffer.expire().total == 0
        for _ in range(2):
            restart(buffer_url)
            set_clock(buffer_url, -days * DAY)
            assert buffer.expire().total == 0
            days = -days
        assert len(buffer) == 20
        let_pass(buffer_url, 7 * DAY + 20)
        assert buffer.expire().aged == 20


@both_layouts
def test_a_time_that_no_process_saw_counts_up_to_half_of_the_age(buffer, buffer_url):
    store(buffer, 0, 10)
    for first in (10, 20):
        set_clock(buffer_url, HOUR * 0.45)
        restart(buffer_url)
        store(buffer, first, 10)
    assert len(buffer) == 30
    set_clock(buffer_url, HOUR * 0.45)
    restart(buffer_url)
    assert buffer.expire() == Removed(0, 0, 0, aged=10)
    set_clock(buffer_url, HOUR * 0.55)
    restart(buffer_url)
    assert buffer.expire() == Removed(0, 0, 0)
    assert buffer.expire(accept_clock=True) == Removed(0, 0, 0, aged=20)


def test_a_limit_that_is_taken_away_and_set_again_forgets_no_move(buffer_url):
    with ReplayBuffer(buffer_url, max_age="1h", max_bytes="1 GB") as buffer:
        store(buffer, 0, 10)
        set_clock(buffer_url, 30 * DAY)
        buffer.expire()
        buffer.resize(max_age=None)
        buffer.resize(max_age="1h")
        assert len(buffer) == 10


@both_layouts
@pytest.mark.parametrize("unit", ["task", "episode"])
def test_interleaved_units_leave_for_the_size(buffer_url, make_buffer, unit):
    most, rng = 300_000, np.random.default_rng(0)
    fields = {} if make_buffer is ReplayBuffer else {"fields": {"number": "int64"}}
    with ReplayBuffer(buffer_url, max_bytes=most, evict_by=unit, **fields) as buffer:
        for part in range(10):
            for key in map(str, range(10)):
                noise = [{"x": rng.integers(0, 256, 3_000, np.uint8)} for _ in range(3)]
                more = {"number": range(3)} if fields else {}
                ids = {"task_id": key} | ({"episode_id": key} if unit == "episode" else {})
                buffer.extend({"state": noise, **more}, **ids)
                if unit == "episode" and part == 9:
                    buffer.end_episode(key, key)
            let_pass(buffer_url, 20)
            buffer.expire()
        buffer.expire()
        assert 0.5 * most < buffer.size_bytes() <= most
        assert set(evicted(buffer_url)) == {"bytes"}


def test_steps_of_a_transaction_under_way_count_later(make_database_url):
    url = make_database_url("postgresql", schema=True)
    rng = np.random.default_rng(0)

    def noise(n):
        return [{"x": rng.integers(0, 256, 3_000, np.uint8)} for _ in range(n)]

    with ReplayBuffer(url, max_bytes=1_000_000) as buffer, ReplayBuffer(url) as other:

        def work(tx):
            tx.extend({"state": noise(600)}, task_id="long")
            with ThreadPoolExecutor() as pool:  # as another process would
                pool.submit(other.add, task_id="short").result()
                pool.submit(other.expire).result()

        buffer.transaction(work)
        for _ in range(2):
            let_pass(url, 20)
            other.add(task_id="short")
            other.expire()
        assert buffer.size_bytes() < 1_100_000


def test_settings_say_what_they_take(buffer_url):
    day = 86_400.0
    for given, seconds in {
        "7d": 7 * day, "12h": day / 2, "90 min": 5_400.0, "1.5 hours": 5_400.0, 30: 30.0,
        "2 Weeks": 14 * day, datetime.timedelta(days=1): day, np.float32(2): 2.0,
    }.items():  # fmt: skip
        assert BufferConfig.of(max_age=given).retention.max_age == seconds
    for given, n_bytes in {
        "200 GB": 200 * 10**9, "500 MiB": 500 * 2**20, "1,000": 1_000, 7: 7, "1.5kB": 1_500,
    }.items():  # fmt: skip
        assert BufferConfig.of(max_bytes=given).retention.max_bytes == n_bytes
    for given in (0, -1, math.nan, math.inf, True, "0d", "7 fortnights", "", "d", "-3h", [], "1e3"):
        with pytest.raises(BufferConfigError, match="max_age is a text such as '7d'"):
            BufferConfig.of(max_age=given)
    for given in (0, -1, math.nan, 1.5, True, "0 B", "3 GHz", "", "GB", [], "0.1 B"):
        with pytest.raises(BufferConfigError, match="max_bytes is a text such as '200 GB'"):
            BufferConfig.of(max_bytes=given)
    with ReplayBuffer(buffer_url, max_age="7d", max_bytes="1 GB") as buffer:
        assert (buffer.max_age, buffer.max_bytes) == (7 * day, 10**9)
        with pytest.raises(BufferConfigError, match=r"max_age=604800.0.*buffer.resize\(max_age"):
            ReplayBuffer(buffer_url, max_age="8d")
        with pytest.raises(BufferConfigError, match="max_age"):
            buffer.resize(max_age="soon")
        with pytest.raises(ArgumentError, match="max_bytes="):
            buffer.resize()
        ReplayBuffer(buffer_url, max_age=7 * day).close()


@both_layouts
def test_the_limits_go_together(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_age="1h", max_bytes="1 GB", max_capacity=15) as buffer:
        assert buffer.expire() == Removed(0, 0, 0)  # empty
        store(buffer, 0, 10)
        let_pass(buffer_url, HOUR / 2)
        store(buffer, 10, 10)
        assert steps_in(buffer.get_all()) == list(range(5, 20))
        let_pass(buffer_url, HOUR / 2 + 1)
        store(buffer, 20, 2)
        assert steps_in(buffer.get_all()) == list(range(10, 22))
        let_pass(buffer_url, 10)
        buffer.expire()
        assert evicted(buffer_url) == {"capacity": 7, "age": 3}


@both_layouts
def test_evictions_are_counted_by_reason(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_capacity=10, max_staleness=5) as buffer:
        for first in range(0, 50, 10):
            buffer.store_batch(rows_of([first] * (first + 10))[first:])
        make_due(buffer)
        store(buffer, 50, 5)
        make_due(buffer)
        let_pass(buffer_url, 20)
        store(buffer, 55, 5)
        assert evicted(buffer_url) == {"capacity": 50}
        assert buffer.delete([51, 52]) == 2
        assert evicted(buffer_url) == {"capacity": 50, "deleted": 2}
        buffer.clear()
        assert evicted(buffer_url) == {"capacity": 50, "deleted": 10}


def test_older_hours_are_added_up(buffer_url):
    with ExitStack() as stack:
        buffers = [stack.enter_context(ReplayBuffer(buffer_url)) for _ in range(3)]
        for buffer in buffers:
            buffer.add(state=1)
            assert buffer.delete([1, 2, 3]) == 1
        assert scalar(buffer_url, "SELECT count(*) FROM eviction_counts") == 3
        run(buffer_url, "UPDATE eviction_counts SET hour = hour - 2")
        buffers[0].resize(max_capacity=100)
        buffers[0].expire()
        assert scalar(buffer_url, "SELECT count(*) FROM eviction_counts") == 1
        assert evicted(buffer_url) == {"deleted": 3}
        run(buffer_url, "UPDATE eviction_counts SET hour = hour - 10000")
        let_pass(buffer_url, 20)
        buffers[0].expire()
        assert evicted(buffer_url) == {}


@both_layouts
def test_steps_are_deleted_by_the_time_at_which_they_were_written(buffer_url, make_buffer):
    with make_buffer(buffer_url) as buffer:
        store(buffer, 0, 10)
        let_pass(buffer_url, 10 * 24 * HOUR)
        store(buffer, 10, 10)
        assert buffer.delete(older_than="7d", dry_run=True) == 10
        assert len(buffer) == 20
        first = QueryBuilder().lt("exp_meta.step", 4).build()
        assert buffer.delete(first, older_than="7d", dry_run=True) == 4
        assert buffer.delete(first, older_than="7d") == 4
        assert buffer.delete([5, 6, 15], older_than="7d", dry_run=True) == 2
        assert buffer.delete([5, 6, 15], older_than="7d") == 2
        assert buffer.delete([15], dry_run=True) == 1
        assert buffer.delete(older_than=datetime.timedelta(days=11)) == 0
        assert buffer.delete(older_than="7d") == 4
        assert steps_in(buffer.get_all()) == list(range(10, 20))
        with pytest.raises(ArgumentError, match="older_than"):
            buffer.delete(older_than=0)
        with pytest.raises(ArgumentError, match="dry_run"):
            buffer.delete(older_than=1, dry_run="yes")


@both_layouts
def test_leased_steps_and_held_steps_are_deleted_later(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_age="1h", leases=True, max_use=1) as buffer:
        store(buffer, 0, 10)
        with buffer.lease(3):
            let_pass(buffer_url, HOUR + 10)
            assert buffer.expire().aged == 10
            assert len(buffer) == 0
            assert physical(buffer_url) in (3, 10)  # a chunk stays as a whole
        buffer.expire()
        assert physical(buffer_url) == 0
    with make_buffer(buffer_url, "held", max_age="1h") as buffer:
        store(buffer, 0, 10)
        hold = Hold(buffer._store)
        hold.take()
        let_pass(buffer_url, HOUR + 10)
        assert buffer.expire().aged == 10
        assert (len(buffer), physical(buffer_url)) == (0, 10)
        hold.release()
        buffer.expire()
        assert physical(buffer_url) == 0


def physical(url):
    """Return how many steps the tables have, inside of windows or not."""
    rows = scalar(url, "SELECT count(*) FROM experiences")
    return rows + scalar(url, "SELECT coalesce(sum(n_steps), 0) FROM chunks")


def test_rows_of_plain_sql_leave(buffer_url):
    with ReplayBuffer(buffer_url, max_age="1h", max_bytes=10_000) as buffer:
        insert = (
            "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step, state) "
            "SELECT id, 'sql', 'a', 1, '{\"x\": 1}' FROM buffers"
        )
        buffer.expire()
        for _ in range(5):
            run(buffer_url, insert)
        assert len(buffer) == 5
        let_pass(buffer_url, HOUR - 60)
        assert buffer.expire() == Removed(0, 0, 0)
        let_pass(buffer_url, 70)
        assert buffer.expire() == Removed(0, 0, 0, aged=5)


def test_calls_of_a_transaction_and_of_several_openers_are_marked(buffer_url):
    with ExitStack() as stack:
        buffers = [stack.enter_context(ReplayBuffer(buffer_url, max_age="1h")) for _ in range(3)]
        for i, buffer in enumerate(buffers):
            make_due(buffer)
            buffer.transaction(lambda tx, i=i: tx.extend({"state": [i] * 5}, task_id="t"))
            let_pass(buffer_url, HOUR / 3)
        assert scalar(buffer_url, "SELECT count(*) FROM time_marks") == 3
        assert [len(buffer) for buffer in buffers] == [15] * 3
        for buffer in buffers:
            make_due(buffer)
            buffer.transaction(lambda tx: tx.extend({"state": [9]}, task_id="t"))
        assert [len(buffer) for buffer in buffers] == [13] * 3


@both_layouts
def test_an_open_snapshot_keeps_what_leaves(buffer, buffer_url):
    store(buffer, 0, 10)
    snapshot = "BEGIN" if is_sqlite(buffer_url) else "BEGIN ISOLATION LEVEL REPEATABLE READ"
    engine = plain_engine(buffer_url)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        driver.isolation_level = None
        driver.execute(snapshot)
        (before,) = driver.execute("SELECT count(*) FROM v_experiences").fetchone()
        let_pass(buffer_url, HOUR + 10)
        assert buffer.expire().aged == 10
        assert (before, len(buffer)) == (10, 0)
        assert driver.execute("SELECT count(*) FROM v_experiences").fetchone() == (10,)
        driver.execute("ROLLBACK")
    engine.dispose()


@both_layouts
def test_a_copy_has_the_limits_and_its_steps_keep_their_age(buffer, buffer_url, tmp_path):
    store(buffer, 0, 10)
    let_pass(buffer_url, HOUR * 0.4)
    store(buffer, 10, 10)
    target = f"sqlite:///{tmp_path}/copy.db"
    with ReplayBuffer(target, config=buffer.config, create=True) as copy:
        buffer.copy_to(copy)
    with ReplayBuffer(target, create=False) as copy:
        assert (copy.max_age, len(copy)) == (HOUR, 20)
        assert copy.expire() == Removed(0, 0, 0)
        let_pass(target, HOUR * 0.6 + 20)
        assert copy.expire() == Removed(0, 0, 0, aged=10)
        assert evicted(target) == {"age": 10}


def test_a_reader_changes_nothing(buffer, buffer_url):
    store(buffer, 0, 10)
    with ReplayBuffer(buffer_url) as reader:
        let_pass(buffer_url, HOUR + 10)
        make_due(reader)
        reader.sample(5)
        assert len(list(reader)) == 10
    assert len(buffer) == 10


def test_every_process_of_a_machine_has_the_same_witness():
    program = (
        "from sqlbuffer.storage.retention.counted_time import witness; print(witness().clock_id)"
    )
    ids = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    }
    assert ids == {witness().clock_id}


@both_layouts
def test_large_steps_fill_the_size(buffer_url, make_buffer):
    """Between nine tenths of the limit and all of it, though each step is a large part of it."""
    most, payload = 2_000_000, 50_000

    def store_large(buffer, first, n):
        rng = np.random.default_rng(first)
        rows = rows_of([None] * (first + n))[first:]
        for row in rows:  # noise: PostgreSQL compresses what repeats
            row.exp_data.state = {"noise": rng.integers(0, 256, payload, np.uint8)}
        buffer.store_batch(rows)
        make_due(buffer)

    with make_buffer(buffer_url, max_bytes=most) as buffer:
        for first in (0, 100, 200):
            store_large(buffer, first, 100)
            let_pass(buffer_url, 20)
        buffer.expire()
        kept = steps_in(buffer.get_all())
        assert kept == list(range(300 - len(kept), 300))
        # A chunk leaves as a whole.
        chunk = 0 if make_buffer is ReplayBuffer else 256 * 1024
        assert 0.9 * most - payload - chunk < len(kept) * payload <= most
        buffer.resize(max_bytes=most // 2)
        assert 0.4 * most - payload - chunk < len(buffer) * payload <= most // 2


def test_texts_count_by_their_bytes(buffer_url):
    text = "漢字" * 500  # 3,000 bytes in 1,000 characters
    with ReplayBuffer(buffer_url) as buffer:
        rows = rows_of([None] * 10)
        for i, row in enumerate(rows):
            row.exp_data.state = {"text": f"{i}{text}"}
        buffer.store_batch(rows)
        least = 10 * 3_000 if is_sqlite(buffer_url) else 100  # compressed
        assert least < buffer.size_bytes() < 10 * 3_300


def test_shared_messages_count_for_the_size(buffer_url):
    rng = np.random.default_rng(0)
    with ReplayBuffer(buffer_url, shared_messages=True, max_bytes=200_000) as buffer:
        for n in range(20):
            noise = "".join(map(chr, rng.integers(33, 127, 20_000)))
            buffer.add(messages=[{"role": "user", "content": noise}], step=n)
        make_due(buffer)
        let_pass(buffer_url, 20)
        buffer.expire()
        assert 4 <= len(buffer) <= 10


@both_layouts
def test_what_a_resize_evicts_is_counted(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_capacity=100) as buffer:
        buffer.store_batch(rows_of([None] * 120))
        buffer.resize(50)
        buffer.resize(10_000)
        buffer.expire()
        assert evicted(buffer_url) == {"capacity": 70}
        assert buffer.stats().evicted == 70


def test_counts_that_are_deleted_after_a_year_are_not_counted_again(buffer_url):
    with ReplayBuffer(buffer_url, evict_by="task", max_capacity=100) as buffer:
        buffer.store_batch(rows_of([None] * 20))
        buffer.delete({"field": "step", "op": "lt", "value": 7})
        buffer.expire()
        assert evicted(buffer_url) == {"deleted": 7}
        run(buffer_url, "UPDATE eviction_counts SET hour = hour - 9000")
        let_pass(buffer_url, 20)
        buffer.expire()
        assert evicted(buffer_url) == {}


def test_doctor_and_views_show_the_limits(buffer_url):
    with ReplayBuffer(buffer_url, max_age="7d", max_bytes="200 GB"):
        limits = run(buffer_url, "SELECT max_age_s, max_bytes FROM v_buffers")
        assert limits == [(7 * 86_400.0, 200_000_000_000)]
