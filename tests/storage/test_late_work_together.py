"""What sessions, leases, parts and labels mean for each other."""

import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from tests.leases.queue import expire, none_left, steps_leased, store
from tests.support.fragments import make_fragment, parts_of
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
