"""8 writers and 2 readers on one small buffer: nothing lost, nothing halved, nobody hears of it."""

import multiprocessing
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from sqlbuffer import DataRow, ReplayBuffer
from tests.support.batches import (
    batches_of,
    counts,
    held,
    ids_of,
    integrity,
    is_as_written,
    log_inserts,
    logged,
    make_batch,
)
from tests.support.processes import running, wait_until
from tests.support.sql import is_sqlite, run, scalar, stored_rows
from tests.support.stepped_rows import EVERY_ROW

pytestmark = pytest.mark.combinations

WRITERS, READERS, BATCH = 8, 2, 8
PATIENCE_S = 200.0


def write(url, name, n_batches, writing):
    """Store batches and return the names of those acknowledged, in order."""
    acknowledged = []
    try:
        with ReplayBuffer(url) as buffer:
            for number in range(n_batches):
                batch = f"{name}_{number}"
                assert buffer.store_batch(make_batch(batch, BATCH)).inserted == BATCH
                acknowledged.append(batch)
    finally:
        with writing.get_lock():
            writing.value -= 1
    return acknowledged


@dataclass
class Seen:
    """What a reader saw.

    Attributes:
        rounds: How often it read in every way.
        missed: (id, low) of rows that it missed of batches that it saw. Their numbers are known at
            the end only: at most `low`, or they were there to be seen.
    """

    rounds: int = 0
    missed: set[tuple[str, int]] = field(default_factory=set)

    def note_missing(self, ids: Iterable[str], low: int) -> None:
        for name, steps in batches_of(ids).items():
            assert len(set(steps)) == len(steps), f"{name} was read twice: {steps}"
            absent = set(range(BATCH)) - set(steps)
            self.missed |= {(f"{name}_{step}", low) for step in absent}


class Reader:
    """Reads in every way there is, while others write."""

    def __init__(self, url, buffer, seen):
        self.url, self.buffer, self.seen = url, buffer, seen
        self.capacity, self.by_task = buffer.max_capacity, buffer.evict_by == "task"

    def read_views(self):
        rows = held(self.url)
        assert len(rows) <= self.capacity
        if rows:
            # One statement, so the lower end of its window follows from what it saw.
            low = 0 if self.by_task else rows[-1][0] - self.capacity
            assert rows[0][0] > low
            self.seen.note_missing([id_ for _, id_ in rows], low)
        steps = [n for (n,) in run(self.url, "SELECT steps FROM v_tasks")]
        assert sum(steps) <= self.capacity
        assert max(steps, default=0) <= BATCH

    def read_all(self):
        """Batches that lie across two pages may lose rows to eviction in between."""
        rows = list(self.buffer.get_all())
        assert len(rows) <= self.capacity
        seqs = [row.seq for row in rows]
        assert seqs == sorted(set(seqs))
        if self.by_task:
            halves = {name for name, steps in self.batches(rows).items() if len(steps) < BATCH}
            gone = {name for name in halves if not self.buffer.get_by_task_id(name)}
            rows = [row for row in rows if row.exp_meta.task_id not in gone]
        self.check(rows)

    def read_samples(self):
        rows = self.buffer.sample(32)
        assert 1 <= len({row.id for row in rows}) == len(rows) <= 32
        assert all(map(is_as_written, rows))
        for task in list(self.batches(rows))[:3]:
            self.check(self.buffer.get_by_task_id(task))
        for rows in self.buffer.sample_tasks(3):
            self.check(rows)
            assert len(self.batches(rows)) == 1

    def read_counts(self):
        assert len(self.buffer) <= self.capacity
        assert self.buffer.size(EVERY_ROW) <= self.capacity
        assert scalar(self.url, "SELECT rows FROM v_buffers") <= self.capacity

    def check(self, rows: list[DataRow]) -> None:
        assert all(map(is_as_written, rows))
        low = 0 if self.by_task else scalar(self.url, "SELECT low_seq FROM v_windows")
        self.seen.note_missing([row.id for row in rows], low)

    @staticmethod
    def batches(rows):
        return batches_of(row.id for row in rows)


def read(url, writing):
    seen = Seen()
    with ReplayBuffer(url) as buffer:
        wait_until(lambda: len(buffer) > 0, "a first batch")
        reader = Reader(url, buffer, seen)
        while writing.value or not seen.rounds:
            reader.read_views()
            reader.read_all()
            reader.read_samples()
            reader.read_counts()
            seen.rounds += 1
    return seen


def count(url, writing):
    """Count again and again: what len() remembers must not miss rows that were still to come."""
    seen = Seen()
    with ReplayBuffer(url) as buffer:
        while writing.value:
            len(buffer)
            seen.rounds += 1
        assert len(buffer) == buffer.size(EVERY_ROW)
    return seen


def write_and_read(url, n_batches):
    """Return the acknowledged batches of each writer, and what each reader saw."""
    writing = multiprocessing.get_context("fork").Value("i", WRITERS)
    writers = [(write, url, f"w{number}", n_batches, writing) for number in range(WRITERS)]
    readers = [(read, url, writing)] * READERS + [(count, url, writing)]
    with running(writers + readers) as workers:
        results = workers.results(PATIENCE_S)
    return results[:WRITERS], results[WRITERS:]


def check_log(url, acknowledged):
    """Check that acknowledged rows and no others were inserted, once and in order; return them."""
    log = logged(url)
    numbers = {id_: seq for seq, id_ in log}
    assert len({seq for seq, _ in log}) == len(numbers) == len(log), "something was stored twice"
    assert set(numbers) == set(ids_of([name for names in acknowledged for name in names], BATCH))
    for names in acknowledged:
        seqs = [numbers[id_] for id_ in ids_of(names, BATCH)]
        assert seqs == sorted(seqs), "a writer's rows are not in the order in which it wrote them"
    return log


def check_readers(log, seen):
    numbers = {id_: seq for seq, id_ in log}
    for reader in seen:
        halved = [(id_, numbers[id_], low) for id_, low in reader.missed if numbers[id_] > low]
        assert not halved, "rows missing from a batch that was seen"


# Both are more than the 1,024 numbers below which a sampler reads the whole window; the second is
# more than the 4,096 rows that len() counts once only.
@pytest.mark.slow
@pytest.mark.each_value
@pytest.mark.parametrize(("capacity", "n_batches"), [(1_500, 250), (10_000, 200)])
def test_8_writers_and_2_readers_lose_nothing_and_keep_the_capacity(
    schema_url, capacity, n_batches
):
    with ReplayBuffer(schema_url, max_capacity=capacity) as buffer:
        log_inserts(schema_url)
        acknowledged, seen = write_and_read(schema_url, n_batches)
        assert [len(names) for names in acknowledged] == [n_batches] * WRITERS
        log = check_log(schema_url, acknowledged)
        check_readers(log, seen)
        assert held(schema_url) == log[-capacity:]
        assert [(row.seq, row.id) for row in buffer.get_all()] == log[-capacity:]
        assert counts(schema_url, buffer) == {capacity}
    check_table(schema_url, capacity)


@pytest.mark.slow
def test_8_writers_and_2_readers_see_whole_tasks_only_where_tasks_are_evicted(schema_url):
    capacity, n_batches = 500, 100
    with ReplayBuffer(schema_url, max_capacity=capacity, evict_by="task") as buffer:
        log_inserts(schema_url)
        acknowledged, seen = write_and_read(schema_url, n_batches)
        log = check_log(schema_url, acknowledged)
        check_readers(log, seen)
        # The tasks whose last write is newest, as many as fit.
        last_writes = {id_.rpartition("_")[0]: seq for seq, id_ in log}
        newest = sorted(last_writes, key=last_writes.__getitem__)[-(capacity // BATCH) :]
        assert {id_ for _, id_ in held(schema_url)} == set(ids_of(newest, BATCH))
        assert counts(schema_url, buffer) == {capacity // BATCH * BATCH}
    assert scalar(schema_url, "SELECT count(*) FROM tasks") == capacity // BATCH
    check_table(schema_url, capacity // BATCH * BATCH)


def check_table(url, n_rows):
    """Check that eviction kept up: the table holds the window, and what was in flight."""
    if is_sqlite(url):
        assert stored_rows(url) == n_rows
        assert integrity(url) == "ok"
    else:
        assert n_rows <= stored_rows(url) <= n_rows + WRITERS * BATCH
