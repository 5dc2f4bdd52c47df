"""Rows that are claimed for a while, and acknowledged, given back or lost."""

import asyncio
import contextlib
import os
import pickle

import numpy as np
import pytest
from sqlalchemy import make_url

from sqlbuffer import QueryBuilder, RateLimiter, ReplayBuffer, aio
from sqlbuffer.errors import (
    ArgumentError,
    BufferConfigError,
    FlowControlError,
    InsufficientDataError,
    LeaseLostError,
    StorageReadOnlyError,
)
from sqlbuffer.storage.leases.choosing import ClaimRequest
from sqlbuffer.storage.leases.leases import FEWEST_DONE
from tests.storage.leases.drawn_batches import drawn
from tests.support.leases import (
    GivenBack,
    expire,
    none_left,
    put_clock_back,
    row_of,
    steps_leased,
    store,
    uses_of,
)
from tests.support.sql import is_sqlite, run, scalar, stored_rows
from tests.support.typed_buffer import both_layouts


@pytest.fixture
def buffer(buffer_url, make_buffer):
    """A buffer of six rows, each to be used twice."""
    with make_buffer(buffer_url, leases=True, max_use=2) as buffer:
        store(buffer, range(6))
        yield buffer


@both_layouts
def test_a_batch_is_nobody_elses_while_it_is_leased(buffer):
    with buffer.lease(4, order="fifo") as batch:
        assert batch.seqs.tolist() == [1, 2, 3, 4]
        assert [row.seq for row in batch] == [1, 2, 3, 4] == [row.seq for row in batch.rows]
        assert (len(batch), batch[0].exp_data.state, batch.groups) == (4, {"step": 0}, [])
        assert sorted(steps_leased(buffer, 2)) == [4, 5]
        assert "2 rows may be claimed, 4 leased by others;" in none_left(buffer, 3)


@both_layouts
def test_leaving_the_block_counts_a_use_and_the_last_one_retires_the_row(buffer, buffer_url):
    for _ in range(2):
        with buffer.lease(2, order="fifo"):
            pass
    assert uses_of(buffer_url) == dict.fromkeys(range(3, 7), 0)
    assert len(buffer) == len(list(buffer.get_all())) == 4
    assert stored_rows(buffer_url) == (0 if buffer.fields else 4)
    assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 2
    assert steps_leased(buffer, 4, order="fifo") == [2, 3, 4, 5]


def test_the_newest_row_that_is_retired_does_not_bring_older_ones_back(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1, max_capacity=3) as buffer:
        store(buffer, range(9))
        with buffer.lease(1, order="freshest") as batch:
            assert batch.seqs.tolist() == [9]
        assert [row.seq for row in buffer.get_all()] == [7, 8]
        assert steps_leased(buffer, 2, order="fifo") == [6, 7]


def test_rows_that_are_used_up_may_stay(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1, keep_expired=True) as buffer:
        store(buffer, range(4))
        with buffer.lease(3, order="fifo"):
            pass
        assert len(buffer) == 4
        assert uses_of(buffer_url) == {1: 1, 2: 1, 3: 1, 4: 0}
        assert buffer.stats().uses.mean == 0.75
        assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 0
        assert "1 rows may be claimed" in none_left(buffer, 2)
        for order in ("random", "fifo", "freshest", "stalest"):
            assert steps_leased(buffer, 1, order=order) == [3]
        assert steps_leased(buffer, 1, group_by="task_id") == [3]


def test_rows_that_are_used_up_and_stay_leave_when_they_are_to_expire(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1, keep_expired=True) as buffer:
        store(buffer, range(4))
        with buffer.lease(3, order="fifo"):
            buffer.quarantine([2])
        buffer.release([])  # takes out what is used up where it does not stay
        assert len(buffer) == 4
        assert (buffer.expire().used_up, len(buffer)) == (2, 2)
        assert uses_of(buffer_url) == {2: 1, 4: 0}
        buffer.release([2])
        assert (buffer.expire().used_up, buffer.expire().total) == (1, 0)
        assert [row.seq for row in buffer] == [4]
        assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 3


def test_used_up_items_of_rows_that_are_gone_hold_nobody_up(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1, keep_expired=True) as buffer:
        store(buffer, range(4))
        with buffer.lease(3, order="fifo"):
            pass
        # As a restored backup may have it: no delete of a row leaves these.
        run(
            buffer_url,
            "INSERT INTO queue_items (buffer_id, seq, task_id, group_id, freshness, used_up) "
            "SELECT 1, seq + 90, task_id, task_id, freshness, used_up FROM queue_items "
            "WHERE used_up",
        )
        assert buffer.expire().used_up == 3
        assert [row.seq for row in buffer] == [4]


@both_layouts
@pytest.mark.parametrize("error", [GivenBack, KeyboardInterrupt, SystemExit])
def test_an_exception_gives_the_rows_back_and_counts_nothing(buffer, buffer_url, error):
    with pytest.raises(error), buffer.lease(6):
        raise error
    assert set(uses_of(buffer_url).values()) == {0}
    assert sorted(steps_leased(buffer, 6)) == list(range(6))
    assert run(buffer_url, "SELECT * FROM leases") == []


@both_layouts
def test_a_lost_consumers_rows_come_back_when_its_lease_runs_out(buffer, buffer_url):
    lost = buffer.lease(4, order="fifo")
    lost.__enter__()
    none_left(buffer, 3)
    expire(buffer_url)
    assert steps_leased(buffer, 6, order="fifo") == list(range(6))


@pytest.mark.parametrize("taken", ["taken_by_another", "by_nobody"])
def test_an_acknowledgement_after_the_lease_ran_out_counts_nothing(buffer, buffer_url, taken):
    late = buffer.lease(4, order="fifo")
    late.__enter__()
    expire(buffer_url)
    other = buffer.lease(4, order="fifo")
    if taken == "taken_by_another":
        other.__enter__()
    with pytest.raises(LeaseLostError, match="lease for longer"):
        late.__exit__(None, None, None)
    assert set(uses_of(buffer_url).values()) == {0}
    if taken == "taken_by_another":
        other.__exit__(None, None, None)
        assert list(uses_of(buffer_url).values()) == [1, 1, 1, 1, 0, 0]


def test_a_lease_that_ran_out_is_not_renewed_nor_given_back_from_its_new_owner(buffer, buffer_url):
    late = buffer.lease(6)
    batch = late.__enter__()
    expire(buffer_url)
    with buffer.lease(6):
        with pytest.raises(LeaseLostError):
            batch.renew()
        late.__exit__(GivenBack, GivenBack(), None)
        none_left(buffer)
    assert set(uses_of(buffer_url).values()) == {1}


def test_a_renewed_lease_runs_on(buffer, buffer_url):
    with buffer.lease(6, lease_s=1) as batch:
        assert 0 < batch.remaining_s <= 1
        batch.renew(60)
        assert 50 < batch.remaining_s <= 60
        until = "SELECT count(*) FROM queue_items WHERE leased_until > {}"
        later = (
            "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '50 seconds')"
            if is_sqlite(buffer_url)
            else "now() + interval '50 seconds'"
        )
        assert scalar(buffer_url, until.format(later)) == 6
        batch.renew()
        assert batch.remaining_s <= 1
        batch.renew(60)


@pytest.mark.parametrize("is_renewed", [False, True])
def test_a_lease_from_before_the_clock_was_put_back_is_lost(buffer, buffer_url, is_renewed):
    gone = buffer.lease(6, lease_s=8_000)
    batch = gone.__enter__()
    put_clock_back(buffer_url, 30)  # a correction
    with ReplayBuffer(buffer_url) as other:
        none_left(other)
    if is_renewed:
        put_clock_back(buffer_url, -3_600)
        batch.renew()
    put_clock_back(buffer_url, 3_600)
    with ReplayBuffer(buffer_url) as other:
        assert sorted(steps_leased(other, 6)) == list(range(6))
        with pytest.raises(LeaseLostError):
            gone.__exit__(None, None, None)
        with other.lease(6), ReplayBuffer(buffer_url) as third:
            none_left(third)
    assert set(uses_of(buffer_url).values()) == {1}


@pytest.mark.parametrize("keep_expired", [False, True])
def test_a_row_that_was_used_up_and_is_sent_again_is_known_where_it_stays(buffer_url, keep_expired):
    rows = [row_of(step) for step in range(4)]
    options = {"leases": True, "max_use": 1, "keep_expired": keep_expired}
    with ReplayBuffer(buffer_url, **options) as buffer:
        buffer.store_batch(rows)
        with buffer.lease(4):
            pass
        sent_again = buffer.store_batch(rows)
        if keep_expired:
            assert (sent_again.inserted, sent_again.duplicates) == (0, 4)
            none_left(buffer)
        else:
            assert (sent_again.inserted, sent_again.duplicates) == (4, 0)
            assert sorted(steps_leased(buffer, 4)) == [0, 1, 2, 3]


def test_orders(buffer_url, make_buffer):
    with make_buffer(buffer_url, leases=True) as buffer:
        for step, version in enumerate([3, None, 1, 3, None, 2]):
            buffer.store_batch([row_of(step, model_version=version)])
        assert steps_leased(buffer, 6, order="fifo") == [0, 1, 2, 3, 4, 5]
        assert steps_leased(buffer, 6, order="freshest") == [3, 0, 5, 2, 4, 1]
        assert steps_leased(buffer, 6, order="stalest") == [1, 4, 2, 5, 0, 3]


@pytest.mark.each_value
@pytest.mark.slow
@pytest.mark.parametrize(("n_rows", "n"), [(40, 8), (3_000, 40)], ids=["ordered", "probed"])
def test_random_is_uniform_over_the_rows_that_may_be_claimed(buffer_url, n_rows, n):
    stats = pytest.importorskip("scipy.stats")
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(n_rows))
        # Holes: every fifth number is gone, and the first quarter is leased.
        buffer.delete(QueryBuilder().in_("exp_meta.step", list(range(0, n_rows, 5))))
        with buffer.lease(n_rows // 4, order="fifo") as held:
            free = sorted({*range(n_rows)} - {*range(0, n_rows, 5)} - {*(held.seqs - 1).tolist()})
            assert len(held) == n_rows // 4
            counts = np.zeros(n_rows)
            for steps in drawn(buffer, ClaimRequest(n, 60.0), 150):
                assert len(set(steps)) == n
                counts[np.array(steps) - 1] += 1
    counted = counts[free]
    assert counted.sum() == counts.sum() == 150 * n
    # In 20 stretches of about as many rows: without replacement, so a little less than it varies.
    parts = [part.sum() for part in np.array_split(counted, 20)]
    expected = [150 * n * len(part) / len(free) for part in np.array_split(counted, 20)]
    assert stats.chisquare(parts, expected).pvalue > 1e-4


@both_layouts
def test_a_condition_says_which_rows(buffer):
    of = QueryBuilder().gt("exp_data.state.step", 2).build()
    for order in ("random", "fifo", "freshest", "stalest"):
        assert sorted(steps_leased(buffer, 3, condition=of, order=order)) == [3, 4, 5]
    assert "3 rows may be claimed, 3 that do not match the condition;" in none_left(
        buffer, 4, condition=of
    )


@both_layouts
def test_rows_that_are_too_old_are_not_leased(buffer_url, make_buffer):
    with make_buffer(buffer_url, leases=True, max_staleness=1, max_use=9) as buffer:
        for step, version in enumerate([1, 2, 3, None]):
            buffer.store_batch([row_of(step, model_version=version)])
        buffer.set_clock(3)
        for order in ("random", "fifo", "freshest", "stalest"):
            assert sorted(steps_leased(buffer, 3, order=order)) == [1, 2, 3]
            none_left(buffer, 4, order=order)


def test_nothing_is_leased_before_there_are_enough_rows(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, min_size=5) as buffer:
        store(buffer, range(4))
        assert "min_size" in none_left(buffer)
        store(buffer, range(1))
        assert len(steps_leased(buffer, 5)) == 5


def test_the_rate_limiter_counts_what_is_leased(buffer_url):
    limiter = RateLimiter(samples_per_insert=1.0, min_size=4, error_buffer=8.0)
    with ReplayBuffer(buffer_url, leases=True, rate_limiter=limiter) as buffer:
        store(buffer, range(4))
        steps_leased(buffer, 4)
        assert buffer.flow().sampled == 0  # given back
        with buffer.lease(4):
            assert buffer.flow().sampled == 4
        with buffer.lease(4):
            pass
        with pytest.raises(FlowControlError, match="add collectors"), buffer.lease(4, timeout_s=0):
            pass
        assert buffer.flow().sampled == 8


def test_a_batch_is_noted(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, track_samples=True) as buffer:
        store(buffer, range(4))
        with buffer.lease(2, order="fifo") as batch:
            noted = "SELECT seq, sampler FROM v_samples WHERE batch_id = :id ORDER BY position"
            found = run(buffer_url, noted, id=batch.batch_id)
            assert found == [(1, "lease (fifo)"), (2, "lease (fifo)")]
        steps_leased(buffer, 2)
        assert scalar(buffer_url, "SELECT count(*) FROM samples") == 1


def test_typed_fields_come_as_arrays(buffer_url):
    fields = {"obs": ("float32", (2,))}
    with ReplayBuffer(buffer_url, leases=True, fields=fields) as buffer:
        obs = np.arange(8, dtype=np.float32).reshape(4, 2)
        buffer.extend({"obs": obs, "reward": np.arange(4.0)}, task_id="t")
        with buffer.lease(3, order="fifo") as batch:
            arrays = batch.arrays()
            assert arrays.obs.tolist() == obs[:3].tolist()
            assert arrays.reward.tolist() == [0, 1, 2]
            assert arrays.info["seq"].tolist() == batch.seqs.tolist()
            assert list(batch.arrays(["reward"])) == ["reward"]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_leased_arrays_are_those_of_a_draw(buffer_url, compression):
    fields = {"image": ("uint8", (-1,)), "weight": "float32", "name": "U4"}
    with ReplayBuffer(buffer_url, leases=True, fields=fields, compression=compression) as buffer:
        images = [np.arange(n, dtype=np.uint8) for n in (2, 0, 3)]
        columns = {"image": images, "weight": np.ones(3), "name": ["a", "", "dé"]}
        buffer.extend(columns, terminated=[False, True, False], task_id="t")
        buffer.annotate([2, 3], weight=[0.5, 0.25], adv_t=[-1.0, 2.0], reward=3.0)
        names = ["image", "weight", "name", "reward", "terminated", "truncated", "adv_t", "v_t"]
        with buffer.lease(3, order="fifo") as batch:
            for fields in (None, names):
                leased = batch.arrays(fields)
                drawn = next(iter(buffer.loader("step", 3, fields=fields, epochs=1, shuffle=False)))
                assert leased.keys() == drawn.keys()
                for name, values in leased.items():
                    np.testing.assert_array_equal(values, drawn[name], strict=True)
                for name, values in leased.info.items():
                    np.testing.assert_array_equal(values, drawn.info[name], strict=True)


def test_plain_sql_inserts_can_be_leased(buffer, buffer_url):
    run(
        buffer_url,
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) VALUES (1, 't', 'a', 6)",
    )
    assert sorted(steps_leased(buffer, 7)) == list(range(7))


@both_layouts
def test_rows_that_are_deleted_while_they_are_leased_are_not_counted(buffer, buffer_url):
    with buffer.lease(4, order="fifo") as batch:
        assert buffer.delete(QueryBuilder().lte("exp_meta.step", 1)) == 2
        assert [row.exp_data.state["step"] for row in batch] == [0, 1, 2, 3]
    assert uses_of(buffer_url) == {3: 1, 4: 1, 5: 0, 6: 0}
    with buffer.lease(4):
        assert buffer.clear() == 4
    assert uses_of(buffer_url) == {}


SAMPLED = {
    "sample": lambda buffer: buffer.sample(2),
    "tasks": lambda buffer: buffer.sample_tasks(1),
    "arrays": lambda buffer: buffer.sample_arrays(2),
    "loader": lambda buffer: next(iter(buffer.loader("step", 2))),
    "pass": lambda buffer: next(iter(buffer.loader("step", 2, epochs=1))),
}


@pytest.mark.parametrize("call", SAMPLED)
def test_rows_whose_uses_leases_count_are_not_sampled_otherwise(buffer, call):
    with pytest.raises(BufferConfigError, match=r"lease\(|max_use"):
        SAMPLED[call](buffer)


@pytest.mark.parametrize("call", SAMPLED)
def test_without_a_limit_of_uses_leases_do_not_matter_to_sampling(buffer_url, call):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(4))
        with buffer.lease(4):
            assert SAMPLED[call](buffer)
        assert uses_of(buffer_url) == dict.fromkeys(range(1, 5), 1)


WRONG = [
    {"n": 0}, {"n": -1}, {"n": True}, {"n": None}, {"n": 1.0}, {"n": "3"}, {"n": 2**63},
    {"order": "lifo"}, {"order": None}, {"group_by": "agent_id"}, {"group_by": 3},
    {"min_group_size": 2}, {"group_timeout_s": 2.0}, {"on_partial": "drop"},
    {"on_partial": "keep"}, {"group_by": "task_id", "min_group_size": 0},
    {"group_by": "task_id", "group_timeout_s": 0}, {"group_by": "episode_id", "min_group_size": 2},
    {"group_by": "task_id", "group_timeout_s": float("nan")},
    {"group_by": "task_id", "on_partial": "drop"}, {"timeout_s": -1}, {"timeout_s": None},
    {"timeout_s": float("nan")}, {"timeout_s": float("inf")}, {"lease_s": 0}, {"lease_s": True},
    {"lease_s": "1"},
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_malformed_arguments_are_refused_at_the_door(sqlite_url, wrong):
    with ReplayBuffer(sqlite_url, leases=True) as buffer, pytest.raises(ArgumentError):
        buffer.lease(**{"n": 1, **wrong})


def test_a_buffer_without_leases_says_how_to_get_them(buffer_url):
    with (
        ReplayBuffer(buffer_url) as buffer,
        pytest.raises(BufferConfigError, match="leases=True"),
    ):
        buffer.lease(1)


@pytest.mark.parametrize("other", [{"evict_by": "task"}, {"max_episodes": 4}])
def test_a_buffer_that_leases_evicts_by_row(sqlite_url, other):
    with pytest.raises(BufferConfigError, match="evicts by row"):
        ReplayBuffer(sqlite_url, leases=True, **other)


def test_an_empty_buffer_says_so(buffer_url):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        for order in ("random", "fifo", "freshest", "stalest"):
            never = "too few: the buffer is empty (nothing has been stored into it);"
            assert never in none_left(buffer, order=order)
            assert never in none_left(buffer, order=order, group_by="task_id")


def test_a_lease_is_taken_once_at_a_time(buffer):
    lease = buffer.lease(1)
    with lease, pytest.raises(RuntimeError, match="taken already"), lease:
        pass


def test_a_batch_is_not_pickled(buffer):
    with buffer.lease(1) as batch, pytest.raises(TypeError, match=r"batch\.rows"):
        pickle.dumps(batch)


def test_a_lease_is_not_pickled(buffer):
    with pytest.raises(TypeError, match="send the buffer"):
        pickle.dumps(buffer.lease(1))


@pytest.mark.parametrize("is_given_back", [False, True])
def test_a_batch_whose_block_has_ended_is_not_renewed(buffer, is_given_back):
    with contextlib.suppress(GivenBack), buffer.lease(2) as batch:
        assert batch.remaining_s > 0
        if is_given_back:
            raise GivenBack
    assert batch.remaining_s == 0
    with pytest.raises(LeaseLostError, match="or its block has ended, so it cannot be renewed"):
        batch.renew()


@both_layouts
@pytest.mark.parametrize("group_by", [None, "task_id", "episode_id"])
def test_the_error_says_why_a_buffer_has_nothing_to_lease(buffer_url, make_buffer, group_by):
    settings = {"leases": True, "max_use": 1, "max_capacity": 3, "keep_expired": True}
    with make_buffer(buffer_url, **settings) as buffer:
        never = none_left(buffer, group_by=group_by)
        assert "too few: the buffer is empty (nothing has been stored into it);" in never
        store(buffer, range(5))
        if group_by == "episode_id":
            assert "0 groups may be claimed, 3 rows in no episode;" in none_left(
                buffer, group_by=group_by
            )
        buffer.clear()
        emptied = none_left(buffer, group_by=group_by)
        assert "is empty (all rows that were stored have left: 5 evicted, deleted or" in emptied


@both_layouts
def test_the_error_has_a_word_for_each_reason_why_rows_are_not_leased(buffer_url, make_buffer):
    settings = {"max_staleness": 1, "current_session_only": True, "max_use": 1}
    with make_buffer(buffer_url, leases=True, keep_expired=True, **settings) as buffer:
        store(buffer, range(3), model_version=1)
        assert "too few: 3 rows may be claimed; wait" in none_left(buffer, 4)
        buffer.start_session("s")
        buffer.set_model_version(5)
        buffer.quarantine([1])
        stale = "more than 1 behind the clock (max_staleness)"
        assert f"0 rows may be claimed, 1 in quarantine, 2 {stale};" in none_left(buffer)
        store(buffer, range(3, 9), model_version=5, session_id="s")
        buffer.start_session("t")
        buffer.set_model_version(5)
        store(buffer, range(9, 12), model_version=5, session_id="t")
        with buffer.lease(1, order="fifo"):
            said = none_left(buffer, 3, condition=QueryBuilder().gt("step", 10))
        assert "1 rows may be claimed, 1 leased by others, 10 that do not match the" in said
        said = none_left(buffer, 4)
        assert "too few: 2 rows may be claimed, 1 used up (max_use 1), 1 in quarantine, " in said
        assert f"2 {stale}, 6 of another session (current_session_only);" in said


@both_layouts
def test_the_error_has_a_word_for_each_reason_why_groups_are_not_leased(buffer_url, make_buffer):
    settings = {"max_staleness": 1, "current_session_only": True, "max_use": 2}
    by_task = {"group_by": "task_id", "min_group_size": 2}
    with make_buffer(buffer_url, leases=True, **settings) as buffer:
        buffer.start_session("s")
        for task in "abc":
            store(buffer, range(2), task=task, model_version=5, session_id="s")
        store(buffer, [0], task="small", model_version=5, session_id="s")
        store(buffer, range(2), task="stale", model_version=1, session_id="s")
        buffer.set_model_version(5)
        buffer.quarantine([1])
        with buffer.lease(1, order="fifo", **by_task):
            said = none_left(buffer, 3, **by_task)
            few = none_left(buffer, condition=QueryBuilder().eq("task_id", "x"), **by_task)
        assert "too few: 1 groups may be claimed, 1 leased by others ('b': 2 until 20" in said
        assert (
            "Z), 1 with rows in quarantine ('a': 2, 1 row), 1 with rows more than 1 behind" in said
        )
        assert "(max_staleness) ('stale': 2, 3 versions too old), 1 of fewer than 2 " in said
        assert "rollouts ('small': 1);" in said
        assert "0 groups may be claimed, 1 leased by others ('b': 2 until 20" in few
        assert "Z), 4 without a row that" in few


def test_a_forked_child_that_leaves_the_block_counts_nothing(buffer, buffer_url):
    lease = buffer.lease(3)
    lease.__enter__()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            lease.__exit__(None, None, None)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert set(uses_of(buffer_url).values()) == {0}
    lease.__exit__(None, None, None)
    assert sorted(uses_of(buffer_url).values()) == [0, 0, 0, 1, 1, 1]


@both_layouts
def test_views_show_what_is_out(buffer, buffer_url):
    lease = buffer.lease(2, order="fifo")
    batch = lease.__enter__()
    found = run(buffer_url, "SELECT buffer, lease_id, rows, alive FROM v_leases")
    assert found == [("default", batch.lease_id, 2, True)]
    found = run(buffer_url, "SELECT task_id, rows, free, leased, uses FROM v_queue")
    assert found == [("t", 6, 4, 2, 0)]
    expire(buffer_url)
    assert not scalar(buffer_url, "SELECT alive FROM v_leases")
    lease.__exit__(GivenBack, GivenBack(), None)
    assert run(buffer_url, "SELECT * FROM v_leases") == []


def test_leases_are_awaited(buffer_url):
    async def main():
        async with await aio.AsyncReplayBuffer.open(buffer_url, leases=True, max_use=1) as buffer:
            await buffer.store_batch([row_of(step) for step in range(4)])
            async with buffer.lease(2, order="fifo") as batch:
                await batch.renew(30)
                assert [row.seq for row in batch] == [1, 2] == batch.seqs.tolist()
                assert len(batch) == 2
            assert await buffer.size() == 2
            with pytest.raises(GivenBack):
                async with buffer.lease(2):
                    raise GivenBack
            assert await buffer.size() == 2
            with pytest.raises(InsufficientDataError):
                async with buffer.lease(3, timeout_s=0):
                    pass

    asyncio.run(main())


def test_a_cancelled_wait_ends(buffer_url):
    async def main():
        async with await aio.AsyncReplayBuffer.open(buffer_url, leases=True) as buffer:
            lease = buffer.lease(1, timeout_s=600)
            waiting = asyncio.ensure_future(lease.__aenter__())
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            await buffer.store_batch([row_of(1)])
            async with buffer.lease(1, timeout_s=0) as batch:
                assert len(batch) == 1

    asyncio.run(main())


# Who may only read leases nothing, and copies of a buffer know nothing of its leases.


def read_only(url):
    """Return a URL of the same database that cannot write."""
    if is_sqlite(url):
        return f"sqlite:///file:{make_url(url).database}?immutable=1&uri=true"
    options = {"options": "-c default_transaction_read_only=on"}
    return make_url(url).update_query_dict(options).render_as_string(False)


@pytest.mark.parametrize("options", [{}, {"group_by": "task_id"}], ids=["rows", "groups"])
def test_who_may_only_read_leases_nothing_and_is_told_so(buffer_url, options):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(4))
    with ReplayBuffer(read_only(buffer_url), create=False) as reader:
        lease = reader.lease(1, timeout_s=0, **options)
        with pytest.raises(StorageReadOnlyError, match=r"read(-|ing )?only"):
            lease.__enter__()
        assert len(reader) == 4
    assert run(buffer_url, "SELECT * FROM leases") == []
    assert set(uses_of(buffer_url).values()) == {0}


def test_a_pickled_copy_of_a_buffer_leases_what_its_original_has_not(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1) as buffer:
        store(buffer, range(5))
        with buffer.lease(3, order="fifo") as batch:
            copy = pickle.loads(pickle.dumps(buffer))
            none_left(copy, 3)
            assert steps_leased(copy, 2, order="fifo") == [3, 4]
            with copy.lease(1, order="fifo"):
                copy.close()  # the connections are everybody's
            batch.renew()
        assert [row.exp_meta.step for row in buffer] == [4]


# What is leased leaves the window like all rows, but its payload stays until it is released.


def sweep(url):
    """Clean up as the library does behind writers from time to time."""
    if not is_sqlite(url):
        run(url, "SELECT sqlbuffer_sweep_v1()")


@pytest.fixture
def full(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=5, max_capacity=10) as buffer:
        store(buffer, range(10))
        yield buffer


@pytest.mark.parametrize("ending", ["acknowledged", "given back"])
def test_what_is_held_stays_until_it_is_released(full, buffer_url, ending):
    lease = full.lease(4, order="fifo")
    lease.__enter__()
    store(full, range(10, 18))
    assert [row.seq for row in full.get_all()] == list(range(9, 19))
    assert len(full) == 10
    held = run(buffer_url, "SELECT seq, state FROM experiences WHERE seq <= 8 ORDER BY seq")
    assert [seq for seq, _ in held] == [1, 2, 3, 4]
    none_left(full, 11)
    error = None if ending == "acknowledged" else GivenBack
    lease.__exit__(error, error and error(), None)
    assert stored_rows(buffer_url) == scalar(buffer_url, "SELECT count(*) FROM queue_items") == 10
    assert scalar(buffer_url, "SELECT n_used_up FROM buffers") == 0
    assert sorted(steps_leased(full, 10)) == list(range(8, 18))


def test_what_a_lost_consumer_held_goes_when_its_lease_has_run_out(full, buffer_url):
    full.lease(4, order="fifo").__enter__()
    store(full, range(10, 18))
    assert stored_rows(buffer_url) == 14
    expire(buffer_url)
    store(full, range(18, 19))
    sweep(buffer_url)
    assert stored_rows(buffer_url) == scalar(buffer_url, "SELECT count(*) FROM queue_items") == 10


@pytest.mark.thorough
@pytest.mark.slow
def test_what_is_held_far_below_the_window_goes_too(full, buffer_url):
    lease = full.lease(2, order="fifo")
    lease.__enter__()
    for _ in range(40):
        store(full, range(50))
    assert stored_rows(buffer_url) == 12
    lease.__exit__(None, None, None)
    assert stored_rows(buffer_url) == 10


def test_shrinking_leaves_what_is_held(full, buffer_url):
    with full.lease(3, order="fifo"):
        full.resize(4)
        assert [row.seq for row in full.get_all()] == [7, 8, 9, 10]
        assert stored_rows(buffer_url) == 7
    assert stored_rows(buffer_url) == 4


@pytest.mark.thorough
@pytest.mark.slow
def test_turnover_leaves_nothing_behind(full, buffer_url):
    for start in range(10, 400, 5):
        store(full, range(start, start + 5))
        with full.lease(3, order="fifo"):
            store(full, range(1))
    sweep(buffer_url)
    held = scalar(buffer_url, "SELECT count(*) FROM queue_items")
    assert stored_rows(buffer_url) == held == len(full) == 10
    full.store(row_of(1))
    assert scalar(buffer_url, "SELECT count(*) FROM leases") <= 2 * FEWEST_DONE


def test_what_is_too_old_leaves_when_nobody_holds_it_any_more(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_staleness=1) as buffer:
        buffer.store_batch([row_of(step, model_version=1) for step in range(4)])
        buffer.lease(2, order="fifo").__enter__()
        buffer.set_clock(9)
        assert buffer.expire().expired == 2
        assert [row.seq for row in buffer.get_all()] == [1, 2]
        expire(buffer_url)
        assert buffer.expire().expired == 2


@pytest.mark.thorough
def test_what_is_in_quarantine_or_of_another_session_is_not_leased(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, current_session_only=True) as buffer:
        buffer.start_session("old")
        store(buffer, range(3), task="a", session_id="old")
        buffer.start_session("new")
        store(buffer, range(3, 7), task="b", session_id="new")
        store(buffer, range(7, 9), task="c", session_id="new")
        buffer.quarantine([4], reason="odd")
        for order in ("random", "fifo", "freshest", "stalest"):
            assert sorted(steps_leased(buffer, 5, order=order)) == [4, 5, 6, 7, 8]
            none_left(buffer, 6, order=order)
            assert sorted(steps_leased(buffer, 1, order=order, group_by="task_id")) == [7, 8]
            none_left(buffer, 2, order=order, group_by="task_id")
        buffer.release([4])
        assert len(steps_leased(buffer, 6)) == 6
