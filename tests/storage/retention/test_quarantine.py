"""Rows are put into quarantine and released."""

import asyncio
import math

import numpy as np
import pytest

from sqlbuffer import PrioritizedSampler, QueryBuilder, ReplayBuffer, aio
from sqlbuffer.errors import ConditionError, FieldError
from tests.support.limited_rows import rows_of, steps_in
from tests.support.sql import run, scalar
from tests.support.statements import selects
from tests.support.typed_buffer import both_layouts, table_of

OLD = QueryBuilder().eq("exp_meta.model_version", 1)
ALL = QueryBuilder().gte("exp_meta.step", 0)


@pytest.fixture
def buffer(buffer_url, make_buffer):
    with make_buffer(buffer_url, max_capacity=10) as buffer:
        buffer.store_batch(rows_of([1, 2] * 3))
        yield buffer


@both_layouts
def test_rows_are_counted_once_and_keep_their_reason(buffer, buffer_url):
    assert buffer.quarantine(OLD, reason="éarly") == 3
    assert buffer.quarantine(ALL, reason="later") == 3
    assert buffer.quarantine(ALL.build()) == 0
    listed = run(buffer_url, "SELECT buffer, seq, step, reason FROM v_quarantine ORDER BY seq")
    assert listed[:2] == [("default", 1, 0, "éarly"), ("default", 2, 1, "later")]
    assert scalar(buffer_url, "SELECT count(quarantined_at) FROM v_quarantine") == 6
    assert buffer.sample(9) == []
    assert (buffer.release(OLD), buffer.release(OLD), buffer.release(ALL)) == (3, 0, 3)
    assert len(buffer.sample(9)) == 6


@both_layouts
def test_rows_are_named_by_numbers_too(buffer):
    seqs = [row.exp_meta.step + 1 for row in buffer.sample(3)]
    assert buffer.quarantine(np.array([*seqs, seqs[0], 99, -5, 0, 2**63 - 1])) == 3
    assert steps_in(buffer.sample(9)) == sorted({*range(6)} - {seq - 1 for seq in seqs})
    assert buffer.quarantine([]) == 0
    assert buffer.release({seqs[0], 99}) == 1
    assert buffer.release(seqs) == 2


@both_layouts
def test_rows_that_match_later_are_not_in_quarantine(buffer):
    assert buffer.quarantine(ALL) == 6
    buffer.store_batch(rows_of([7]))
    assert len(buffer.sample(9)) == 1


def test_every_process_sees_it_with_its_next_call(buffer, buffer_url):
    with ReplayBuffer(buffer_url) as other:
        assert len(other.sample(9)) == 6
        buffer.quarantine(OLD)
        assert steps_in(other.sample(9)) == [1, 3, 5]
        buffer.release(OLD)
        assert len(other.sample(9)) == 6


def test_a_buffer_that_has_released_all_looks_for_none(buffer, buffer_url):
    flag = "SELECT has_quarantine FROM buffers"
    for expected in (False, True):
        assert bool(scalar(buffer_url, flag)) is expected
        with selects(buffer) as noted:
            buffer.sample(3)
        whole = " ".join(text for text in noted if "FROM v_windows" not in text)
        assert ("quarantine" in whole) is expected
        buffer.quarantine(OLD)
    buffer.release([1])
    assert scalar(buffer_url, flag)
    buffer.release(OLD)
    assert not scalar(buffer_url, flag)


@both_layouts
def test_evicted_and_deleted_rows_leave_quarantine(buffer, buffer_url):
    buffer.quarantine(ALL)
    buffer.delete(QueryBuilder().eq("exp_meta.step", 0))
    buffer.store_batch(rows_of([5] * 8))  # evicts the four oldest
    assert scalar(buffer_url, "SELECT count(*) FROM v_quarantine") == 2
    assert scalar(buffer_url, "SELECT count(*) FROM quarantine") == 2
    run(buffer_url, f"DELETE FROM {table_of(buffer)}")
    assert scalar(buffer_url, "SELECT count(*) FROM quarantine") == 0
    run(
        buffer_url,
        "INSERT INTO quarantine (buffer_id, seq) SELECT id, 1 FROM buffers",
    )  # as a writer and this call at the same moment may leave one
    buffer.release(OLD)
    assert scalar(buffer_url, "SELECT count(*) FROM quarantine") == 0


@pytest.mark.parametrize("rows", [None, {}])
def test_an_empty_condition_is_refused(buffer, rows):
    for call in ("quarantine", "release"):
        with pytest.raises(ConditionError, match=rf"{call}\(\) needs a condition, or the numbers"):
            getattr(buffer, call)(rows)
    assert len(buffer.sample(9)) == 6


@pytest.mark.parametrize(
    "rows", ["t1", 3, [1.5], [True], [math.nan], [[1]], ["a"], [None], [2**64]]
)
def test_what_names_no_rows_is_refused(buffer, rows):
    with pytest.raises(FieldError, match=r"release\(\) takes a condition or the numbers of rows; "):
        buffer.release(rows)


@pytest.mark.parametrize("reason", [3, b"no", "a\0b", "x" * 8193])
def test_a_reason_is_text(buffer, reason):
    with pytest.raises(FieldError, match="reason: "):
        buffer.quarantine(OLD, reason=reason)


def test_an_empty_buffer_has_nothing_to_put_there(buffer):
    buffer.clear()
    assert (buffer.quarantine(ALL), buffer.release(ALL)) == (0, 0)


@both_layouts
def test_drawn_by_priority_the_probabilities_are_those_of_what_is_left(buffer_url, make_buffer):
    with make_buffer(buffer_url, name="weighted", priorities=True, alpha=1.0) as buffer:
        buffer.store_batch(rows_of([1, 2, 2]), priority=[8.0, 1.0, 3.0])
        buffer.quarantine(OLD)
        rows = buffer.sample(64, sampler=PrioritizedSampler(exact=True))
        assert set(rows.probabilities.tolist()) == {0.25, 0.75}
        assert buffer.sample(8, sampler=PrioritizedSampler()).probabilities is None
        buffer.release(OLD)
        rows = buffer.sample(64, sampler=PrioritizedSampler())
        assert 8 / 12 in rows.probabilities


def test_asyncio_has_the_same_calls(buffer_url):
    async def use():
        async with await aio.AsyncReplayBuffer.open(buffer_url) as buffer:
            await buffer.store_batch(rows_of([1, 2]))
            assert await buffer.quarantine(OLD, reason="r") == 1
            assert len(await buffer.sample(5)) == 1
            return await buffer.release(OLD)

    assert asyncio.run(use()) == 1
