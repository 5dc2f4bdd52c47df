"""The parts of a store, each made with what it needs and used alone."""

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from sqlbuffer.encoding.records import encode_rows
from sqlbuffer.query.tree import EVERYTHING
from sqlbuffer.storage.buffers.open_buffer import OpenBuffer, OwnWrites
from sqlbuffer.storage.buffers.sessions import Sessions
from sqlbuffer.storage.flow import Pacer
from sqlbuffer.storage.labels.writing import Labelling
from sqlbuffer.storage.priorities.keeping import PriorityKeeping
from sqlbuffer.storage.reading import RowQueries
from sqlbuffer.storage.retention.deletion import Deletion
from sqlbuffer.storage.retention.expiry import Expiry
from sqlbuffer.storage.retention.quarantine import Quarantine
from sqlbuffer.storage.rows.layouts import layout_of
from sqlbuffer.storage.sampling.candidate_source import CandidateSource
from sqlbuffer.storage.store import BufferStore
from sqlbuffer.storage.use_counts import UseCounting
from sqlbuffer.storage.writing.rows import RowWriter, WriteBatch
from tests.support.rows import make_row
from tests.support.storage_hooks import open_store


@pytest.fixture
def buffer(buffer_url):
    store = open_store(buffer_url, max_capacity=3, priorities=True)
    yield OpenBuffer(store.url, store.info)
    store.close()


@pytest.mark.parametrize("part", ["draws", "writer", "chunk_writer", "priorities", "uses"])
def test_threads_that_need_a_part_first_get_the_same_one(buffer_url, part):
    store = open_store(buffer_url, priorities=True)
    start = Barrier(8)

    def get(_):
        start.wait()
        return getattr(store, part)

    with ThreadPoolExecutor(8) as threads:
        parts = list(threads.map(get, range(8)))
    assert all(one is parts[0] for one in parts)
    assert getattr(store, part) is parts[0]
    store.close()


@pytest.fixture
def source(buffer):
    return CandidateSource(buffer)


def write(buffer, source, n=4):
    batch = WriteBatch(encode_rows([make_row(step=i) for i in range(n)], None, None))
    return RowWriter(buffer, source.whole_rows, Pacer(buffer), lambda: None).store(batch)


def test_a_store_is_an_open_buffer_and_its_parts():
    assert BufferStore.__bases__ == (OpenBuffer,)


def test_rows_are_written_read_and_deleted(buffer, source):
    assert write(buffer, source).seqs.tolist() == [1, 2, 3, 4]
    queries = RowQueries(buffer, source, OwnWrites())
    assert [row[0] for page in queries.pages(EVERYTHING) for row in page] == [2, 3, 4]
    assert Quarantine(buffer).add([3], "why") == 1
    with source.candidates(EVERYTHING, sampled=True) as candidates:
        assert list(candidates.keys()) == [2, 4]
    assert Deletion(buffer).clear() == 3
    assert queries.count(EVERYTHING) == 0


def test_rows_are_inserted_within_a_transaction_of_the_caller(buffer, source):
    writer = RowWriter(buffer, source.whole_rows, Pacer(buffer), lambda: None)
    batch = WriteBatch(encode_rows([make_row()], None, None))

    def work(connection, insert):
        assert insert(batch).inserted == 1
        return insert(batch).duplicates

    assert writer.store_within(batch, work) == 1

    def failing(connection, insert):
        insert(WriteBatch(encode_rows([make_row(step=1)], None, None)))
        raise LookupError("after the insert")

    with pytest.raises(LookupError):
        writer.store_within(batch, failing)
    assert RowQueries(buffer, source, OwnWrites()).count(EVERYTHING) == 1


def test_priorities_are_read_by_the_candidates_of_a_source_that_has_them(buffer, source):
    write(buffer, source)
    keeping = PriorityKeeping(buffer)
    assert keeping.update_priorities(np.array([2, 3, 99]), np.array([0.5, 2.0, 1.0])) == 2
    with CandidateSource(buffer, keeping.of).candidates(EVERYTHING) as candidates:
        assert list(candidates.priorities.of([2, 3])) == [0.5, 2.0]


def test_the_clock_the_labels_and_the_uses_need_the_buffer_alone(buffer, source):
    write(buffer, source)
    sessions = Sessions(buffer)
    assert (sessions.clock(), sessions.current()) == (None, None)
    sessions.start("s")
    assert sessions.set_version(7, "s") is True
    assert (sessions.clock(), sessions.current()) == (7, "s")
    assert UseCounting(buffer, source.restrictions).is_on is False
    assert Expiry(source).run().total == 0
    assert Labelling(buffer, layout_of(buffer.info).at).buffer is buffer
