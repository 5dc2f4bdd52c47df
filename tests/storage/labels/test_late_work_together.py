"""What sessions, leases, parts and labels mean for each other."""

import pytest

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer
from sqlbuffer.storage.schema.metadata import whole_metadata
from tests.support.fragments import make_fragment, parts_of
from tests.support.leases import expire, none_left, steps_leased, store
from tests.support.sql import run, scalar, stored_rows

BY_TASK = {"group_by": "task_id"}
GOOD = QueryBuilder().gt("exp_data.reward_t", 5.0)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_leased_batch_has_what_is_in_parts_and_what_was_given_late(buffer_url, compression):
    rows = [make_fragment(0), make_fragment(1, 10), make_fragment(2)]
    with ReplayBuffer(buffer_url, leases=True, max_use=1, compression=compression) as buffer:
        buffer.store_batch(rows)
        buffer.annotate([1, 2], reward=[9.0, 8.0], extra={"judge": "late"})
        for row, reward in zip(rows, (9.0, 8.0), strict=False):
            row.exp_data.reward_t, row.exp_data.extra = reward, {"judge": "late"}
        with buffer.lease(2, order="fifo") as batch:
            assert batch.rows == rows[:2]
            assert batch.arrays()["reward"].tolist() == [9.0, 8.0]
        with buffer.lease(1, **BY_TASK) as batch:
            assert batch.groups == [rows[2:]]
    assert (stored_rows(buffer_url), parts_of(buffer_url)) == (0, {})


def test_typed_fields_are_leased_with_rewards_that_were_given_late(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, fields={"x": "float32"}) as buffer:
        buffer.extend({"x": [1.0, 2.0], "reward": [0.0, 0.0]})
        buffer.annotate([2], reward=7.0)
        with buffer.lease(2, order="fifo") as batch:
            found = batch.arrays()
        assert (found["reward"].tolist(), found["x"].tolist()) == ([0.0, 7.0], [1.0, 2.0])


def test_conditions_of_a_lease_see_what_was_given_late(buffer_url):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        for task in "abc":
            store(buffer, range(2), task=task)
        none_left(buffer, condition=GOOD)
        none_left(buffer, condition=GOOD, **BY_TASK)
        buffer.annotate([3], reward=6.0)
        with buffer.lease(1, timeout_s=0, condition=GOOD) as batch:
            assert batch.seqs.tolist() == [3]
        with buffer.lease(1, timeout_s=0, condition=GOOD, **BY_TASK) as batch:
            assert batch.seqs.tolist() == [3, 4]
        assert "1 rows may be claimed" in none_left(buffer, 2, condition=GOOD)


def test_parts_with_values_given_late_are_read_in_part(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        row = make_fragment(0)
        row.exp_data.extra = {"own": 1}
        buffer.store_batch([row, make_fragment(1)])
        buffer.annotate([1], reward=9.0, extra={"judge": 2})
        for fields in (["state.number", "reward_t"], ["state.number", "extra"], ["state.number"]):
            for found in (buffer.sample(2, fields=fields), list(buffer.get_all(fields=fields))):
                data = min(found, key=lambda row: row.seq).exp_data
                assert data.state == {"number": 0}
                assert data.reward_t == (9.0 if "reward_t" in fields else None)
                assert data.extra == ({"own": 1, "judge": 2} if "extra" in fields else None)
        assert buffer.store_batch([row]).duplicates == 1
        row.exp_data.reward_t = 9.0
        assert buffer.store_batch([row]).conflicts == 1


def test_rows_of_a_trainer_that_was_lost_expire_when_its_lease_has_run_out(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_staleness=0) as buffer:
        store(buffer, range(2), model_version=1)
        buffer.lease(1, order="fifo").__enter__()
        buffer.set_clock(5)
        assert (buffer.expire().expired, stored_rows(buffer_url)) == (1, 1)
        expire(buffer_url)
        assert (buffer.expire().expired, stored_rows(buffer_url)) == (1, 0)
        assert run(buffer_url, "SELECT * FROM queue_items") == []


def test_a_row_in_quarantine_is_not_retired_before_it_is_released(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1) as buffer:
        store(buffer, range(3))
        with buffer.lease(2, order="fifo"):
            buffer.quarantine([1])
        assert [row.seq for row in buffer.get_all()] == [1, 3]
        assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 1
        assert steps_leased(buffer, 1) == [2]
        none_left(buffer, 2)
        assert buffer.release([1]) == 1
        assert [row.seq for row in buffer.get_all()] == [3]
        assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 2


def test_a_group_that_is_given_up_stays_where_a_row_is_in_quarantine_or_none_matches(buffer_url):
    options = {**BY_TASK, "min_group_size": 3, "group_timeout_s": 1e-3, "on_partial": "drop"}
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        for task in "abc":
            store(buffer, range(2), task=task)
        buffer.quarantine([1])
        of_a_and_b = QueryBuilder().in_("exp_meta.task_id", ["a", "b"])
        none_left(buffer, condition=of_a_and_b, **options)
        assert {row.exp_meta.task_id for row in buffer.get_all()} == {"a", "c"}
        assert scalar(buffer_url, "SELECT n_partial FROM buffers") == 2
        buffer.release([1])
        none_left(buffer, **options)
        assert (len(buffer), scalar(buffer_url, "SELECT n_partial FROM buffers")) == (0, 6)


def _tables_with_rows(url: str) -> dict[str, int]:
    """Return how many rows each table has of those that name a buffer."""
    names = [name for name, table in whole_metadata().tables.items() if "buffer_id" in table.c]
    counts = {name: scalar(url, f"SELECT count(*) FROM {name}") for name in names}
    return {name: n for name, n in counts.items() if n}


def _fill_all(url: str) -> ReplayBuffer:
    """Return a buffer of which every narrow table has rows."""
    buffer = ReplayBuffer(url, create=True, leases=True, priorities=True, track_samples=True)
    buffer.start_session("s")
    buffer.store_episode({"reward": [1.0]}, task_id="t0", episode_id="e")
    buffer.store_batch([make_fragment(n, session_id="s") for n in range(3)])
    store(buffer, range(300), task="many")
    buffer.sample(4, sampler=PrioritizedSampler())
    buffer.update_priorities([1, 2, 3, 200], 2.0)
    buffer.annotate([1, 2, 3, 200], reward=2.0, extra={"judge": 1})
    buffer.quarantine([2, 3, 200])
    with buffer.lease(1, order="fifo"):
        pass
    buffer.lease(1, order="freshest").__enter__()
    sums = "(buffer_id, block, n_rows, weight_sum, max_priority)"
    run(url, f"INSERT INTO priority_blocks {sums} SELECT id, 0, 255, 256.0, 2.0 FROM buffers")
    return buffer


# Of the buffer, and not of a row.
OF_BUFFER = {
    "sessions", "samples", "flow", "flow_history", "leases", "applied_writes", "change_log",
    "change_log_starts", "eviction_counts",
}  # fmt: skip


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("end", ["clear", "delete", "hand", "drop"])
def test_deleted_rows_leave_nothing_in_any_table(buffer_url, end):
    buffer = _fill_all(buffer_url)
    filled = {*_tables_with_rows(buffer_url)}
    assert filled >= {
        "experiences", "episodes", "priorities", "priority_blocks", "queue_items", "leases",
        "labels", "label_history", "quarantine", "payload_parts", "samples", "sessions",
        "change_log",
    }  # fmt: skip
    if end == "clear":
        buffer.clear()
    elif end == "delete":
        buffer.delete(QueryBuilder().gte("exp_meta.step", 0))
    elif end == "hand":
        run(buffer_url, "DELETE FROM experiences")
    buffer.close()
    if end == "drop":
        ReplayBuffer.drop(buffer_url, "default")
        assert _tables_with_rows(buffer_url) == {}
    else:
        # Of episodes there is a list of those whose steps have left. What plain SQL deletes counts
        # in their returns.
        left = {
            "clear": OF_BUFFER,
            "delete": OF_BUFFER | {"episodes"},
            "hand": OF_BUFFER | {"episodes", "rollout_stats", "group_stats", "queue_groups"},
        }[end]
        assert {*_tables_with_rows(buffer_url)} <= left


@pytest.mark.parametrize("settings", [{"evict_by": "task"}, {"max_episodes": 2}])
def test_tasks_and_episodes_that_are_evicted_take_all_of_their_rows_along(buffer_url, settings):
    with ReplayBuffer(buffer_url, max_capacity=4, create=True, **settings) as buffer:
        for number in range(4):
            task, at = f"t{number}", number * 2
            rows = [make_fragment(n, task_id=task, episode_id=task) for n in (at, at + 1)]
            buffer.store_batch(rows)
            seqs = [row.seq for row in buffer.get_by_task_id(task)]
            buffer.annotate(seqs, reward=9.0)
            buffer.quarantine(seqs[:1])
            if "max_episodes" in settings:
                run(buffer_url, "UPDATE episodes SET status = 'complete', ended_at = started_at")
        assert {row.exp_meta.task_id for row in buffer} == {"t2", "t3"}
    for table in ("experiences", "labels", "label_history", "payload_parts", "quarantine"):
        assert {seq for (seq,) in run(buffer_url, f"SELECT seq FROM {table}")} <= set(range(5, 9))
