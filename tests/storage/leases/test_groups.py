"""Groups that are claimed whole, or not at all."""

import numpy as np
import psycopg
import pytest
from sqlalchemy import make_url

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import BufferConfigError
from sqlbuffer.storage.leases.choosing import ClaimRequest
from tests.storage.leases.drawn_batches import drawn
from tests.support.leases import (
    GivenBack,
    grow_old,
    none_left,
    row_of,
    steps_leased,
    store,
    uses_of,
)
from tests.support.sql import run, scalar

ORDERS = ("random", "fifo", "freshest", "stalest")
OBS = {"obs": ("float32", (1,))}


@pytest.fixture
def buffer(buffer_url):
    """A buffer whose tasks are rows without episodes: `a` of 3, `b` of 2 and `c` of 3."""
    with ReplayBuffer(buffer_url, leases=True, max_use=2) as buffer:
        for task, steps in (("a", (0, 1)), ("b", (2, 3)), ("c", (4, 5)), ("a", (6,)), ("c", (7,))):
            buffer.store_batch([row_of(step, task=task) for step in steps])
        yield buffer


def tasks_leased(buffer, n, **options):
    """Return the tasks of the groups of a batch that is given back."""
    try:
        with buffer.lease(n, group_by="task_id", timeout_s=0, **options) as batch:
            raise GivenBack
    except GivenBack:
        tasks = [{row.exp_meta.task_id for row in group} for group in batch.groups]
        assert [row for group in batch.groups for row in group] == batch.rows
        assert all(len(task) == 1 for task in tasks)
        return [task.pop() for task in tasks]


@pytest.mark.parametrize("order", ORDERS)
def test_whole_groups_of_enough_rollouts_are_claimed(buffer, order):
    assert sorted(tasks_leased(buffer, 2, min_group_size=3, order=order)) == ["a", "c"]
    said = none_left(buffer, 3, group_by="task_id", min_group_size=3, order=order)
    assert "2 groups may be claimed, 1 of fewer than 3 rollouts ('b': 2);" in said


def test_groups_come_in_the_order_of_their_first_rows(buffer):
    assert tasks_leased(buffer, 3, order="fifo") == ["a", "b", "c"]
    with buffer.lease(1, group_by="task_id", order="fifo") as batch:
        assert [row.exp_meta.step for row in batch] == [0, 1, 6]
        assert tasks_leased(buffer, 2, order="fifo") == ["b", "c"]
        assert "1 leased by others ('a': 3 until 20" in none_left(buffer, 3, group_by="task_id")


def test_freshest_and_stalest_go_by_a_groups_versions(buffer_url):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        for task, version in (("a", 5), ("b", None), ("c", 7), ("b", 9), ("d", 4)):
            buffer.store_batch([row_of(0, task=task, model_version=version)])
        assert tasks_leased(buffer, 4, order="freshest") == ["b", "c", "a", "d"]
        assert tasks_leased(buffer, 4, order="stalest") == ["b", "d", "a", "c"]


def test_rows_that_arrive_after_the_claim_are_a_group_of_their_own(buffer, buffer_url):
    with buffer.lease(1, group_by="task_id", order="fifo") as batch:
        assert len(batch) == 3
        buffer.store_batch([row_of(10 + i, task="a") for i in range(2)])
        none_left(buffer, 4, group_by="task_id", order="fifo", min_group_size=2)
        assert tasks_leased(buffer, 3, min_group_size=2, order="fifo") == ["b", "c", "a"]
    # The first ones were used once and are free again: they stay a group, behind unused ones.
    with buffer.lease(4, group_by="task_id", order="fifo") as batch:
        steps = [[row.exp_meta.step for row in group] for group in batch.groups]
    assert steps == [[2, 3], [4, 5, 7], [10, 11], [0, 1, 6]]
    found = run(buffer_url, "SELECT count(DISTINCT group_seq) FROM queue_items WHERE task_id = 'a'")
    assert found == [(1,)]  # three rows were used up


def test_a_group_with_a_row_that_is_leased_by_itself_is_not_claimed(buffer):
    with buffer.lease(1, order="fifo"):
        assert tasks_leased(buffer, 2, order="fifo") == ["b", "c"]
        for order in ORDERS:
            none_left(buffer, 3, group_by="task_id", order=order)


@pytest.mark.parametrize("order", ORDERS)
def test_a_task_is_whole_when_its_episodes_have_ended(buffer_url, order):
    options = {"min_group_size": 2, "order": order}
    with ReplayBuffer(buffer_url, leases=True, fields=OBS, flush_s=1e-3) as buffer:
        arrays = {"obs": np.zeros((3, 1)), "reward": np.ones(3)}
        buffer.store_episode(arrays, task_id="g")
        with buffer.episode("g") as late:
            late.append(obs=[0.0], reward=1.0)
            buffer.store_episode(arrays, task_id="g")
            buffer.flush()
            said = none_left(buffer, 1, group_by="task_id", **options)
            assert "0 groups may be claimed, 1 with an open episode ('g': 2 and 1 open);" in said
        assert tasks_leased(buffer, 1, **options) == ["g"]
        assert len(buffer) == 7


def test_an_open_episode_without_a_write_for_long_is_none(buffer_url):
    with ReplayBuffer(
        buffer_url, leases=True, fields=OBS, flush_s=1e-3, open_timeout_s=500
    ) as buffer:
        episode = buffer.episode("g")
        episode.append(obs=[0.0], reward=1.0)
        buffer.flush()
        none_left(buffer, 1, group_by="task_id")
        assert "too few: 0 groups may be claimed, 1 open (" in none_left(
            buffer, 1, group_by="episode_id"
        )
        ago = (
            "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-501 seconds')"
            if buffer_url.startswith("sqlite")
            else "now() - interval '501 seconds'"
        )
        for table in ("experiences", "chunks"):
            run(buffer_url, f"UPDATE {table} SET inserted_at = {ago}")
        run(buffer_url, f"UPDATE episodes SET started_at = {ago}")
        told = none_left(buffer, 1, group_by="task_id")
        assert "1 rollouts were aborted or abandoned ('g': 1) (incomplete='include');" in told
        every = {"incomplete": "include"}
        assert tasks_leased(buffer, 1, **every) == ["g"]
        assert len(steps_leased(buffer, 1, group_by="episode_id", **every)) == 1
        episode.end()


@pytest.mark.parametrize("order", ORDERS)
def test_whole_episodes_are_claimed(buffer_url, order):
    with ReplayBuffer(buffer_url, leases=True, fields=OBS, max_capacity=10) as buffer:
        for length in (4, 3, 2, 4):
            arrays = {"obs": np.zeros((length, 1)), "reward": np.ones(length)}
            buffer.store_episode(arrays, task_id="g")
        # Of the first one three steps have left.
        with buffer.lease(3, group_by="episode_id", order=order, timeout_s=0) as batch:
            assert sorted(map(len, batch.groups)) == [2, 3, 4]
        options = {"group_by": "episode_id", "order": order}
        none_left(buffer, 4, **options)
        grow_old(buffer_url, "true")
        assert len(steps_leased(buffer, 4, group_timeout_s=900, **options)) == 10


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
def test_a_task_whose_episode_has_lost_steps_is_not_whole(buffer_url, order):
    with ReplayBuffer(buffer_url, leases=True, fields=OBS, max_capacity=10) as buffer:
        for task, length in (("a", 4), ("a", 3), ("b", 2), ("b", 1), ("c", 1)):
            if task == "c":  # the first step of the first one leaves
                assert sorted(tasks_leased(buffer, 2, order=order)) == ["a", "b"]
            arrays = {"obs": np.zeros((length, 1)), "reward": np.ones(length)}
            buffer.store_episode(arrays, task_id=task)
        options = {"group_by": "task_id", "order": order}
        assert sorted(tasks_leased(buffer, 2, order=order)) == ["b", "c"]
        assert "1 with steps that were evicted ('a': 2);" in none_left(buffer, 3, **options)
        grow_old(buffer_url, "task_id = 'a'")
        options["group_timeout_s"] = 900
        assert len(steps_leased(buffer, 3, **options)) == 10
        none_left(buffer, 3, on_partial="drop", **options)
        assert {row.exp_meta.task_id for row in buffer} == {"b", "c"}


def test_what_is_not_whole_in_time_is_handed_out_as_it_is(buffer, buffer_url):
    options = {"group_by": "task_id", "min_group_size": 3, "group_timeout_s": 900}
    none_left(buffer, 3, **options)
    grow_old(buffer_url, "task_id = 'b' AND seq = 3")
    none_left(buffer, 3, **options)  # its newest row is not old
    grow_old(buffer_url, "task_id = 'b'")
    for order in ORDERS:
        assert sorted(steps_leased(buffer, 3, order=order, **options)) == list(range(8))


@pytest.mark.parametrize("order", ORDERS)
def test_what_is_not_whole_in_time_is_dropped(buffer, buffer_url, order):
    grow_old(buffer_url, "true")
    said = none_left(
        buffer, 3, group_by="task_id", min_group_size=3, group_timeout_s=900, on_partial="drop",
        order=order,
    )  # fmt: skip
    assert "too few: 2 groups may be claimed; wait" in said
    assert len(buffer) == 6
    assert scalar(buffer_url, "SELECT n_partial FROM buffers") == 2
    assert sorted(tasks_leased(buffer, 2)) == ["a", "c"]


@pytest.mark.slow
def test_a_group_that_is_held_is_not_dropped(buffer, buffer_url):
    grow_old(buffer_url, "true")
    options = {"group_by": "task_id", "min_group_size": 3, "group_timeout_s": 900}
    with buffer.lease(3, **options):
        none_left(buffer, 1, on_partial="drop", **options)
        assert len(buffer) == 8
    assert set(uses_of(buffer_url).values()) == {1}


def test_a_group_with_a_row_that_is_barred_is_left(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_staleness=1) as buffer:
        for task, version in (("a", 3), ("a", 1), ("b", 3), ("b", None)):
            buffer.store_batch([row_of(0, task=task, model_version=version)])
        buffer.set_clock(3)
        for order in ORDERS:
            assert tasks_leased(buffer, 1, order=order) == ["b"]
            none_left(buffer, 2, group_by="task_id", order=order)


def test_a_condition_names_groups_by_one_of_their_rows(buffer):
    of = QueryBuilder().eq("exp_meta.step", 6).build()
    for order in ORDERS:
        assert sorted(steps_leased(buffer, 1, group_by="task_id", condition=of, order=order)) == [
            0,
            1,
            6,
        ]
        none_left(buffer, 2, group_by="task_id", condition=of, order=order)


@pytest.mark.each_value
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize(("n_tasks", "n"), [(12, 3), (500, 4)], ids=["read", "probed"])
def test_random_is_uniform_over_groups_whatever_their_size(buffer_url, n_tasks, n):
    stats = pytest.importorskip("scipy.stats")
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        # One of them is as large as all others together.
        sizes = [n_tasks * 2, *[1 + i % 4 for i in range(n_tasks - 1)]]
        rows = [row_of(0, task=f"g{i}") for i, size in enumerate(sizes) for _ in range(size)]
        np.random.default_rng(1).shuffle(rows)
        buffer.store_batch(rows)
        counts = dict.fromkeys((f"g{i}" for i in range(n_tasks)), 0)
        rounds = 200
        tasks = [row.exp_meta.task_id for row in rows]
        for seqs in drawn(buffer, ClaimRequest(n, 60.0, group_by="task_id"), rounds):
            of_batch = {tasks[seq - 1] for seq in seqs}
            assert len(of_batch) == n
            for task in of_batch:
                counts[task] += 1
        # By size, which would tell if rows were drawn instead.
        of_size = [
            [counts[f"g{i}"] for i in range(1, n_tasks) if sizes[i] == k] for k in (1, 2, 3, 4)
        ]
        n_drawn = rounds * n - counts["g0"]
        expected = [n_drawn * len(part) / (n_tasks - 1) for part in of_size]
        assert stats.chisquare([sum(part) for part in of_size], expected).pvalue > 1e-4
        assert counts["g0"] < rounds / 2


def test_groups_take_a_buffer_with_leases(buffer_url):
    with ReplayBuffer(buffer_url, name="none") as buffer, pytest.raises(BufferConfigError):
        buffer.lease(1, group_by="task_id")


def test_store_and_claim_many_groups_once_each(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_use=1) as buffer:
        for i in range(6):
            store(buffer, range(4), task=f"g{i}")
        seen = []
        for _ in range(3):
            with buffer.lease(2, group_by="task_id", min_group_size=4) as batch:
                seen += [group[0].exp_meta.task_id for group in batch.groups]
        assert sorted(seen) == [f"g{i}" for i in range(6)]
        assert len(buffer) == 0


@pytest.mark.parametrize("order", ORDERS)
def test_steps_without_an_episode_are_in_no_group_of_one(buffer_url, order):
    with ReplayBuffer(buffer_url, leases=True) as buffer:
        store(buffer, range(3))
        none_left(buffer, 1, group_by="episode_id", order=order)
        with buffer.episode(episode_id="mine") as episode:
            episode.append(state=3, actions=[0])
        assert len(steps_leased(buffer, 1, group_by="episode_id", order=order)) == 1
        none_left(buffer, 2, group_by="episode_id", order=order)


def test_the_error_names_episodes_as_their_writers_did(buffer_url):
    with ReplayBuffer(buffer_url, leases=True, max_capacity=2) as buffer:
        with buffer.episode(episode_id="mine") as episode:
            for step in range(3):
                episode.append(state=step, actions=[0])
        assert "('mine': 1)" in none_left(buffer, group_by="episode_id")


def test_a_group_that_cannot_be_locked_whole_is_left(make_database_url):
    url = make_database_url("postgresql", schema=True)
    plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with ReplayBuffer(url, leases=True) as buffer, psycopg.connect(plain) as other:
        for task in ("a", "b"):
            store(buffer, range(3), task=task)
        # As one who claims this row by itself does before its commit.
        other.execute("SELECT 1 FROM queue_items WHERE seq = 2 FOR UPDATE")
        for order in ORDERS:
            assert tasks_leased(buffer, 1, order=order) == ["b"]
            none_left(buffer, 2, group_by="task_id", order=order)
        other.rollback()
        assert len(tasks_leased(buffer, 2)) == 2
