"""The parts of `ReplayBuffer`, each made and used alone."""

import numpy as np
import pytest

from sqlbuffer import RandomSampler, RandomTaskSample
from sqlbuffer.errors import BufferConfigError, ConditionError, FieldError
from sqlbuffer.front.leasing import Leasing
from sqlbuffer.front.reading import Conditions, RowDecoding, RowReader
from sqlbuffer.front.row_changes import RowChanges
from sqlbuffer.front.sampling import BatchSampler, converted
from sqlbuffer.front.writing import StepWriter
from sqlbuffer.query.tree import EVERYTHING
from tests.support.rows import make_row
from tests.support.storage_hooks import open_store


@pytest.fixture
def store(buffer_url):
    opened = open_store(buffer_url, priorities=True)
    yield opened
    opened.close()


@pytest.fixture
def decoding(store):
    return RowDecoding(store.source, None, None)


def stored(store, n=4):
    rows = [make_row(task=i % 2, step=i) for i in range(n)]
    result = StepWriter(store).store_rows(rows)
    assert (result.inserted, result.duplicates, result.conflicts) == (n, 0, 0)
    return rows, result


def test_the_writer_returns_the_numbers_in_the_order_of_the_call(store):
    rows, result = stored(store)
    assert result.seqs.tolist() == [1, 2, 3, 4]
    again = StepWriter(store).store_rows([make_row(step=9), *rows[::-1]])
    assert (again.inserted, again.duplicates) == (1, 4)
    assert again.seqs.tolist() == [5, 4, 3, 2, 1]


def test_the_reader_reads_what_the_writer_stored(store, decoding):
    rows, _ = stored(store)
    reader = RowReader(store.rows, decoding)
    assert [row.id for row in reader.all(EVERYTHING, None)] == [row.id for row in rows]
    assert [row.id for row in reader.page(EVERYTHING, 2, 3, None)] == [rows[3].id]
    assert [row.id for row in reader.tasks(["task_1"], None)["task_1"]] == [rows[1].id, rows[3].id]


def test_the_decoding_reads_the_fields_that_are_named(store, decoding):
    stored(store, 1)
    (row,) = RowReader(store.rows, decoding).all(EVERYTHING, ["reward_t"])
    assert row.exp_data.reward_t is not None
    assert row.exp_data.state is None
    with pytest.raises(FieldError):
        decoding.of(["nothing"])


def test_the_sampler_draws_rows_and_tasks(store, decoding):
    rows, _ = stored(store)
    sampler = BatchSampler(store, decoding)
    drawn = sampler.sample(RandomSampler(seed=1), 9, EVERYTHING, None, False, None)
    assert {row.id for row in drawn} == {row.id for row in rows}
    assert {len(task) for task in sampler.tasks(None, 9, EVERYTHING)} == {2}
    assert len(sampler.peek(RandomTaskSample(), 9, EVERYTHING)) == 2
    assert sampler.peek(None, 0, EVERYTHING) == []
    assert converted(len, drawn) == 4


def test_the_conditions_check_what_a_call_is_about(store):
    conditions = Conditions(store.info)
    assert conditions.node(None) == EVERYTHING
    assert conditions.rows([3, 1, 3], "quarantine") == [1, 3]
    with pytest.raises(ConditionError, match="quarantine"):
        conditions.rows(None, "quarantine")


def test_the_changes_reach_the_rows(store, decoding):
    _, result = stored(store)
    changes, seqs = RowChanges(store, Conditions(store.info)), sorted(result.seqs.tolist())
    assert changes.annotate(seqs[:2], {"reward_t": 0.5}, None, None, {}) == 2
    update = changes.update_priorities(np.array([*seqs, 99]), 0.25, 0.0)
    assert (update.updated, update.missing) == (4, 1)
    assert changes.quarantine([seqs[0]], "bad") == 1
    assert len(BatchSampler(store, decoding).sample(None, 9, EVERYTHING, None, False, None)) == 3
    assert changes.release([seqs[0]]) == 1


def test_leases_need_a_buffer_that_has_them(store, decoding):
    with pytest.raises(BufferConfigError, match="leases=True"):
        Leasing(store, decoding.whole).lease(
            1, EVERYTHING, group_by=None, min_group_size=None, group_timeout_s=None,
            on_partial="use", order="fifo", timeout_s=0, lease_s=1.0,
        )  # fmt: skip
