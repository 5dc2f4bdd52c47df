"""Priorities of rows: what they begin with on each way in, and what an update sets."""

import asyncio

import numpy as np
import pytest
import torch

from sqlbuffer import PriorityUpdate, ReplayBuffer, aio
from sqlbuffer.errors import BufferNotFoundError, FieldError
from sqlbuffer.query.builder import QueryBuilder
from sqlbuffer.storage.buffers.catalog import block_size
from sqlbuffer.storage.priorities.blocks import FEW_BLOCKS, FEW_ROWS, Upkeep
from tests.support.rows import make_row
from tests.support.sql import buffer_id, is_sqlite, numbered, run, scalar
from tests.support.typed_buffer import both_layouts, table_of

FIELDS = {"obs": ("float32", (2,))}
OBS = np.zeros((3, 2), np.float32)


@pytest.fixture
def buffer(buffer_url, make_buffer):
    with make_buffer(buffer_url, create=True, priorities=True) as buffer:
        yield buffer


@pytest.fixture
def typed(buffer_url):
    with ReplayBuffer(buffer_url, create=True, priorities=True, fields=FIELDS) as buffer:
        yield buffer


def make_rows(n, first=0):
    return [make_row(step=first + i) for i in range(n)]


def initial(url):
    """Return the priorities that rows began with, in the order of seq."""
    found = run(
        url,
        "SELECT initial_priority FROM (SELECT seq, initial_priority FROM experiences UNION ALL "
        "SELECT seq, initial_priority FROM chunk_steps) s ORDER BY seq",
    )
    return [priority for (priority,) in found]


def current(url):
    """Return {seq: priority}."""
    return dict(run(url, "SELECT seq, priority FROM v_priorities ORDER BY seq"))


def largest_ever(url):
    return scalar(url, "SELECT max_priority FROM buffers")


def test_rows_begin_with_one_while_no_priority_was_set(buffer, buffer_url):
    buffer.store_batch(make_rows(2))
    buffer.add(state=1)
    assert initial(buffer_url) == [1.0, 1.0, 1.0]
    assert largest_ever(buffer_url) is None


@both_layouts
def test_rows_begin_with_the_largest_priority_ever_set(buffer, buffer_url):
    buffer.store_batch(make_rows(3))
    buffer.update_priorities([1, 2], [0.25, 0.5], eps=0)
    buffer.add(state=1)
    buffer.update_priorities([2, 4], 0.125, eps=0)
    buffer.add(state=1)
    buffer.update_priorities([1], [7.0], eps=0)
    buffer.add(state=1)
    assert initial(buffer_url) == [1.0, 1.0, 1.0, 0.5, 0.5, 7.0]


@both_layouts
def test_rows_begin_with_what_they_are_given(buffer, buffer_url):
    buffer.add(state=1, priority=0.5)
    buffer.store(make_row(step=1), priority=np.float32(0.25))
    buffer.store_batch(make_rows(2, 2), priority=3)
    buffer.store_batch(make_rows(2, 4), priority=[0.0, 4.5])
    buffer.store_batch(make_rows(2, 6), priority=torch.tensor([1.5, 2.5]))
    assert initial(buffer_url) == [0.5, 0.25, 3.0, 3.0, 0.0, 4.5, 1.5, 2.5]
    assert current(buffer_url) == dict(enumerate(initial(buffer_url), 1))
    assert scalar(buffer_url, "SELECT count(*) FROM priorities") == 0


def test_given_priorities_count_as_set(buffer, buffer_url):
    buffer.add(state=1, priority=0.5)
    buffer.add(state=1)
    buffer.store_batch(make_rows(2), priority=[3.0, 2.0])
    buffer.add(state=1)
    buffer.add(state=1, priority=1.0)
    buffer.add(state=1)
    assert initial(buffer_url) == [0.5, 0.5, 3.0, 2.0, 3.0, 1.0, 3.0]


def test_one_that_was_given_counts_though_rows_begin_with_it_anyway(buffer, buffer_url):
    buffer.add(state=1, priority=1.0)
    buffer.update_priorities([1], [0.5], eps=0)
    buffer.add(state=1)
    assert initial(buffer_url) == [1.0, 1.0]


def test_columns_and_episodes_take_priorities(typed, buffer_url):
    typed.extend({"obs": OBS, "priority": np.array([0.5, 2.0, 1.0], np.float32)})
    typed.extend({"obs": OBS}, priority=0.25)
    typed.store_episode({"obs": OBS, "priority": [3.0, 0.5, 1]})
    typed.store_episode({"obs": OBS}, priority=1.5)
    typed.extend({"obs": OBS})
    expected = [0.5, 2.0, 1.0, 0.25, 0.25, 0.25, 3.0, 0.5, 1.0, 1.5, 1.5, 1.5, 3.0, 3.0, 3.0]
    assert initial(buffer_url) == expected


def test_steps_of_an_episode_take_priorities(typed, buffer_url):
    with typed.episode() as episode:
        episode.append(obs=OBS[0], priority=0.5)
        episode.append(obs=OBS[0], priority=np.float64(4.0))
        with pytest.raises(FieldError, match="priority: expected a number from 0 to 1e"):
            episode.append(obs=OBS[0], priority=float("nan"))
        episode.append(obs=OBS[0], priority=2)
    with typed.episode() as episode:
        episode.append(obs=OBS[0])
    assert initial(buffer_url) == [0.5, 4.0, 2.0, 4.0]


def test_rows_of_plain_sql_begin_with_the_largest_priority_ever_set(buffer, buffer_url):
    insert = (
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) VALUES (:id, 't', 'a', 1)"
    )
    number = buffer_id(buffer_url)
    run(buffer_url, insert, id=number)
    buffer.add(state=1, priority=6.0)
    run(buffer_url, insert, id=number)
    if not is_sqlite(buffer_url):
        run(buffer_url, insert.replace("new_experiences", "experiences"), id=number)
    assert initial(buffer_url) in ([1.0, 6.0, 6.0], [1.0, 6.0, 6.0, 6.0])


def test_asyncio_takes_priorities(buffer, buffer_url):
    async def use():
        other = aio.AsyncReplayBuffer(buffer)
        await other.store(make_row(step=1), priority=2.0)
        await other.store_batch(make_rows(2, 2), priority=[0.5, 0.25])
        await other.add(state=1, priority=1.0)
        return await other.update_priorities([1, 9], 4.0, eps=0.5)

    assert asyncio.run(use()) == PriorityUpdate(updated=1, missing=1)
    assert current(buffer_url) == {1: 4.5, 2: 0.5, 3: 0.25, 4: 1.0}


def test_a_row_sent_again_with_another_priority_is_a_duplicate(buffer, buffer_url):
    row = make_row()
    buffer.store(row, priority=2.0)
    result = buffer.store(row, priority=5.0)
    assert (result.inserted, result.duplicates, result.conflicts) == (0, 1, 0)
    assert buffer.store(row).duplicates == 1
    buffer.add(state=1)
    assert initial(buffer_url) == [2.0, 2.0]  # what was not stored was not set


def test_rows_of_buffers_without_priorities_have_none(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state=1)
    assert initial(buffer_url) == [None]


def test_a_priority_is_refused_where_there_are_none(buffer_url):
    plain = ReplayBuffer(buffer_url)
    typed = ReplayBuffer(buffer_url, name="typed", fields=FIELDS)
    with typed.episode() as episode:
        for call in (
            lambda: plain.add(state=1, priority=1.0),
            lambda: plain.store(make_row(), priority=1.0),
            lambda: plain.store_batch(make_rows(2), priority=[1.0, 1.0]),
            lambda: plain.store_batch([], priority=1.0),
            lambda: typed.extend({"obs": OBS, "priority": [1, 1, 1]}),
            lambda: typed.extend({"obs": OBS}, priority=1.0),
            lambda: typed.store_episode({"obs": OBS}, priority=1.0),
            lambda: typed.store_episode({"obs": OBS, "priority": [1.0, 1.0, 1.0]}),
            lambda: episode.append(obs=OBS[0], priority=1.0),
            lambda: plain.update_priorities([1], [1.0]),
            lambda: plain.update_priorities([], []),
        ):
            with pytest.raises(FieldError, match="priorities=True"):
                call()
    assert initial(buffer_url) == []


@pytest.mark.thorough
@pytest.mark.parametrize(
    "wrong",
    [
        float("nan"), -1.0, -1e-9, float("inf"), -float("inf"), 1.1e100, 10**400, True, "1", b"1",
        1j, [[1.0, 1.0]], [1.0], [1.0, 2.0, 3.0], [1.0, None], [1.0, True], [1.0, float("nan")],
        ["1", "2"], [1.0, -2.0], [1.0, 10**400], [[1.0], [1.0, 2.0]], {1.0, 2.0}, {"a": 1.0},
        np.array([True, False]), np.array([1.0, np.inf]), np.ma.array([1.0, 2.0], mask=[0, 1]),
        torch.tensor([1.0, float("nan")]), np.array(["2020-01-01"] * 2, "M8[D]"), len,
    ],
    ids=repr,
)  # fmt: skip
def test_no_other_priority_is_taken(sqlite_url, wrong):
    with ReplayBuffer(sqlite_url, priorities=True) as buffer:
        buffer.store_batch(make_rows(2))
        with pytest.raises(FieldError, match="priorit"):
            buffer.store_batch(make_rows(2, 2), priority=wrong)
        with pytest.raises(FieldError, match="priorit"):
            buffer.update_priorities([1, 2], wrong)
        assert len(buffer) == 2
    assert current(sqlite_url) == {1: 1.0, 2: 1.0}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "wrong",
    [
        1, None, [1.0, 2.0], [True, False], ["1", "2"], [[1, 2]], [1, None], [1, 2.5], "12",
        np.array([1.0, 2.0]), np.array([2**64 - 1, 1], np.uint64), [2**70, 1], {1, 2},
        torch.tensor([1.0, 2.0]), [float("nan"), 1],
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_of_rows_are_integers(sqlite_url, wrong):
    with ReplayBuffer(sqlite_url, priorities=True) as buffer:
        buffer.store_batch(make_rows(2))
        with pytest.raises(FieldError, match="seqs"):
            buffer.update_priorities(wrong, 2.0)
    assert current(sqlite_url) == {1: 1.0, 2: 1.0}


@pytest.mark.thorough
@pytest.mark.parametrize("wrong", [None, -1, float("nan"), float("inf"), True, "1", [1.0, 2.0]])
def test_eps_is_a_number_from_0_on(sqlite_url, wrong):
    with ReplayBuffer(sqlite_url, priorities=True) as buffer:
        buffer.store_batch(make_rows(2))
        with pytest.raises(FieldError, match="eps"):
            buffer.update_priorities([1, 2], 2.0, wrong)
        with pytest.raises(FieldError, match="eps"):
            buffer.update_priorities([1, 2], 1e100, 1e90)
    assert current(sqlite_url) == {1: 1.0, 2: 1.0}


@both_layouts
def test_an_update_adds_eps(buffer, buffer_url):
    buffer.store_batch(make_rows(4))
    assert buffer.update_priorities([3, 1], [0.5, 0.0]) == PriorityUpdate(updated=2, missing=0)
    buffer.update_priorities([2], [0.0], eps=0)
    assert current(buffer_url) == {1: 1e-6, 2: 0.0, 3: 0.500001, 4: 1.0}


def test_an_update_takes_lists_and_arrays_and_tensors(buffer, buffer_url):
    buffer.store_batch(make_rows(2))
    for i, (seqs, priorities) in enumerate(
        [
            ([1, 2], [5, 6.0]),
            ((1, 2), np.array([5, 6], np.float16)),
            (np.array([1, 2], np.uint8), np.array([5, 6])),
            (torch.tensor([1, 2]), torch.tensor([5.0, 6.0], requires_grad=True)),
            (torch.tensor([1, 2], dtype=torch.int16), torch.tensor([5, 6], dtype=torch.bfloat16)),
        ]
    ):
        assert buffer.update_priorities(seqs, priorities, eps=i).updated == 2
        assert current(buffer_url) == {1: 5.0 + i, 2: 6.0 + i}
    for i, one in enumerate([3, np.float32(3.0), torch.tensor(3.0), np.array(3.0)]):
        assert buffer.update_priorities([1, 2], one, eps=i).updated == 2
        assert current(buffer_url) == {1: 3.0 + i, 2: 3.0 + i}


def test_nothing_is_updated_by_no_rows(buffer, buffer_url):
    for seqs in ([], np.empty(0, np.int64), torch.tensor([], dtype=torch.int64)):
        for priorities in ([], 1.0, np.empty(0)):
            assert buffer.update_priorities(seqs, priorities) == PriorityUpdate(0, 0)
    assert buffer.update_priorities([1, 2], 1.0) == PriorityUpdate(0, 2)
    assert largest_ever(buffer_url) is None


@both_layouts
def test_the_last_of_equal_rows_counts(buffer, buffer_url):
    buffer.store_batch(make_rows(3))
    updated = buffer.update_priorities([3, 1, 3, 9, 3, 9], [1.0, 2.0, 3.0, 4.0, 0.5, 5.0], eps=0)
    assert updated == PriorityUpdate(updated=2, missing=1)
    assert current(buffer_url) == {1: 2.0, 2: 1.0, 3: 0.5}
    assert largest_ever(buffer_url) == 2.0


@pytest.mark.parametrize("n", [1, 2, 3, 1_024, 1_025, 2_500])
@both_layouts
def test_any_number_of_priorities_is_set_to_the_last_bit(buffer, buffer_url, n):
    rng = np.random.default_rng(n)
    buffer.store_batch(make_rows(n))
    expected = dict.fromkeys(range(1, n + 1), 1.0)
    for _ in range(2):
        seqs = np.unique(rng.integers(1, n + 5, n))
        values = 10.0 ** rng.uniform(-300, 100, len(seqs)) * rng.random(len(seqs))
        there = seqs <= n
        n_there = int(there.sum())
        updated = buffer.update_priorities(seqs, values, eps=0)
        assert updated == PriorityUpdate(n_there, len(seqs) - n_there)
        expected |= dict(zip(seqs[there].tolist(), values[there].tolist(), strict=True))
        assert current(buffer_url) == expected


@pytest.mark.parametrize("limits", [{}, {"evict_by": "task"}, {"max_episodes": 2}], ids=repr)
def test_rows_that_left_meanwhile_are_skipped_and_counted(buffer_url, limits):
    limits = limits if "max_episodes" in limits else {"max_capacity": 6, **limits}
    with ReplayBuffer(buffer_url, priorities=True, fields=FIELDS, **limits) as buffer:
        for _ in range(3):
            buffer.store_episode({"obs": OBS})
        numbers = [2, 5, 8, -1, 0, 10, 2**40]
        assert buffer.update_priorities(numbers, 2.0, eps=0) == PriorityUpdate(2, 5)
        assert current(buffer_url) == {4: 1.0, 5: 2.0, 6: 1.0, 7: 1.0, 8: 2.0, 9: 1.0}
        assert run(buffer_url, "SELECT seq FROM priorities ORDER BY seq") == [(5,), (8,)]


def test_rows_of_other_buffers_are_left_alone(buffer, buffer_url):
    with ReplayBuffer(buffer_url, name="other", priorities=True) as other:
        buffer.store_batch(make_rows(2))
        other.store_batch(make_rows(2))
        buffer.update_priorities([1, 2], [3.0, 4.0], eps=0)
        assert other.update_priorities([2], [0.5], eps=0).updated == 1
        other.add(state=1)
    found = run(buffer_url, "SELECT buffer, seq, priority FROM v_priorities ORDER BY buffer, seq")
    assert found == [
        ("default", 1, 3.0), ("default", 2, 4.0), ("other", 1, 1.0), ("other", 2, 0.5),
        ("other", 3, 0.5),
    ]  # fmt: skip


@both_layouts
def test_deleted_rows_have_no_priority(buffer, buffer_url):
    buffer.store_batch(make_rows(4))
    buffer.update_priorities([1, 2, 3, 4], [1, 2, 3, 4], eps=0)
    buffer.delete(QueryBuilder().in_("seq", [1, 3]).build())
    assert run(buffer_url, "SELECT seq FROM priorities ORDER BY seq") == [(2,), (4,)]
    assert buffer.update_priorities([1, 2], 0.0) == PriorityUpdate(1, 1)
    run(buffer_url, f"DELETE FROM {table_of(buffer)} WHERE seq = 4")
    assert run(buffer_url, "SELECT seq FROM priorities ORDER BY seq") == [(2,)]
    buffer.clear()
    assert run(buffer_url, "SELECT seq FROM priorities") == []
    buffer.add(state=1)
    assert initial(buffer_url) == [4.0]  # ever set


def test_a_dropped_buffer_is_noticed(buffer, buffer_url):
    buffer.store_batch(make_rows(2))
    buffer.update_priorities([1], 2.0)
    buffer._store.priorities.summarize([0])
    ReplayBuffer.drop(buffer_url, "default")
    with pytest.raises(BufferNotFoundError, match="dropped"):
        buffer.update_priorities([1], 2.0)
    assert run(buffer_url, "SELECT 1 FROM priorities") == []
    assert run(buffer_url, "SELECT 1 FROM priority_blocks") == []


@both_layouts
def test_the_view_tells_what_was_updated(buffer, buffer_url):
    buffer.store_batch(make_rows(2), priority=[0.5, 0.25])
    buffer.update_priorities([2], [0.25], eps=0)
    found = run(
        buffer_url,
        "SELECT seq, task_id, step, priority, initial_priority, updated FROM v_priorities "
        "ORDER BY seq",
    )
    assert found == [(1, "task_0", 0, 0.5, 0.5, False), (2, "task_0", 1, 0.25, 0.25, True)]


def test_rows_written_by_hand_have_one(buffer, buffer_url):
    columns, values = numbered(buffer_url, ":id", "1")
    run(
        buffer_url,
        f"INSERT INTO experiences ({columns}, task_id, agent_id, step) "
        f"VALUES ({values}, 't', 'a', 1)",
        id=buffer_id(buffer_url),
    )
    assert current(buffer_url) == {1: 1.0}
    assert buffer.update_priorities([1], 3.0, eps=0).updated == 1
    assert current(buffer_url) == {1: 3.0}


# Which blocks of priorities are added up, and how large they are.


NONE = np.empty(0, np.int64)


def summarized(upkeep: Upkeep) -> list[int]:
    """Return the blocks that are added up next."""
    asked: list[int] = []

    def summarize(blocks):
        asked.extend(blocks)
        return len(blocks)

    upkeep.run(summarize)
    return asked


@pytest.mark.parametrize("size", [256, 512, FEW_ROWS])
def test_blocks_are_added_up_where_reading_their_rows_takes_longer(size):
    n_few = FEW_ROWS // size
    blocks, upkeep = np.arange(10, 20), Upkeep()
    is_missing = np.arange(10) < n_few
    upkeep.note(size, blocks, is_missing, NONE)
    assert summarized(upkeep) == list(range(10, 10 + n_few))
    is_missing[n_few - 1] = False
    upkeep.note(size, blocks, is_missing, NONE)
    assert summarized(upkeep) == []


def test_a_large_block_is_added_up_as_soon_as_it_is_full():
    upkeep = Upkeep()
    upkeep.note(8_192, np.arange(3), np.array([False, True, False]), NONE)
    assert summarized(upkeep) == [1]


def test_many_blocks_are_added_up_however_small_they_are():
    upkeep = Upkeep()
    for n, due in ((FEW_BLOCKS - 1, []), (FEW_BLOCKS, list(range(FEW_BLOCKS)))):
        upkeep.note(1, np.arange(n), np.ones(n, bool), NONE)
        assert summarized(upkeep) == due


@pytest.mark.parametrize(
    ("capacity", "size"),
    [(1, 256), (100_000, 256), (1_000_000, 512), (10_000_000, 8_192), (None, 2_048)],
)
def test_blocks_are_as_large_as_leaves_few_of_them(capacity, size):
    assert block_size(capacity) == size
