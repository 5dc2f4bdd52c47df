"""What a reader sees of writers that commit while it reads, step by step."""

import pytest
from sqlalchemy import text

from sqlbuffer import RandomSampler, RandomTaskSample, ReplayBuffer
from sqlbuffer.storage.buffers.window import BLOCK
from sqlbuffer.storage.reading import FIRST_PAGE_ROWS
from tests.support.sql import buffer_id, plain_engine
from tests.support.stepped_rows import make_rows, steps_of, tasks_of

pytestmark = pytest.mark.combinations

EARLIER = FIRST_PAGE_ROWS + BLOCK
INSERT = text(
    "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) VALUES (:id, 'late', 'a', 1)"
)


@pytest.fixture
def late_writer(make_database_url):
    """Yield (buffer, connection): a plain SQL writer that has drawn a number behind the first page
    of a stream and the first block of a count, and commits later than rows that come after its own.
    """
    url = make_database_url("postgresql", schema=True)
    engine = plain_engine(url)
    with ReplayBuffer(url) as buffer, engine.connect() as connection:
        buffer.store_batch(make_rows(range(EARLIER)))
        connection.execute(INSERT, {"id": buffer_id(url)})
        buffer.store_batch(make_rows(range(10), task="after"))
        yield buffer, connection
    engine.dispose()


def test_a_stream_leaves_out_rows_committed_since_it_began(late_writer):
    """PostgreSQL gives out numbers before the commit; SQLite's writers come one at a time."""
    buffer, connection = late_writer
    rows = buffer.get_all()
    first = next(rows)
    connection.commit()
    tasks = tasks_of([first, *rows])
    assert tasks.count("late") == 0
    assert len(tasks) == EARLIER + 10
    assert tasks_of(buffer).count("late") == 1


@pytest.mark.thorough
def test_a_stream_shows_a_transaction_whole_or_not_at_all(late_writer):
    buffer, connection = late_writer
    rows = buffer.get_all()
    first = next(rows)
    connection.execute(INSERT, {"id": buffer._store.info.id})  # numbered past the stream's end
    connection.commit()
    assert tasks_of([first, *rows]).count("late") in (0, 2)
    assert tasks_of(buffer).count("late") == 2


@pytest.mark.thorough
@pytest.mark.slow
def test_a_length_remembers_no_count_of_rows_that_may_still_come(late_writer):
    buffer, connection = late_writer
    buffer.store_batch(make_rows(range(2 * BLOCK), task="later"))
    n_rows = EARLIER + 10 + 2 * BLOCK
    assert [len(buffer) for _ in range(3)] == [n_rows] * 3
    connection.commit()
    assert [len(buffer) for _ in range(3)] == [n_rows + 1] * 3


class InterruptedSampler(RandomSampler):
    """Others write between its choice and the reading of what it chose."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def choose(self, candidates, batch_size):
        chosen = super().choose(candidates, batch_size)
        self.write()
        return chosen


class InterruptedTaskSampler(RandomTaskSample):
    """Others write between its choice and the reading of what it chose."""

    def __init__(self, write):
        super().__init__()
        self.write = write

    def choose_tasks(self, candidates, n):
        chosen = super().choose_tasks(candidates, n)
        self.write()
        return chosen


@pytest.fixture(params=["row", "task"])
def full_buffer(request, buffer_url):
    """Return a buffer of 10 tasks of 10 rows each, which is full."""
    with ReplayBuffer(buffer_url, max_capacity=100, evict_by=request.param) as buffer:
        for task in range(10):
            buffer.store_batch(make_rows(range(10), task=f"t{task}"))
        yield buffer


def test_a_sample_holds_the_rows_it_chose_when_others_evict_them_meanwhile(full_buffer):
    """Or it is smaller than was asked for, though enough rows matched at every moment."""
    sampler = InterruptedSampler(lambda: full_buffer.store_batch(make_rows(range(65), task="new")))
    assert len(full_buffer.sample(50, sampler=sampler, strict=True)) == 50


def test_sampled_tasks_are_whole_when_others_evict_them_meanwhile(full_buffer):
    sampler = InterruptedTaskSampler(
        lambda: full_buffer.store_batch(make_rows(range(65), task="new"))
    )
    tasks = full_buffer.sample_tasks(5, sampler=sampler, strict=True)
    assert [sorted(steps_of(task)) for task in tasks] == [list(range(10))] * 5
