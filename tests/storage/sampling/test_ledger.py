"""Batches are noted, and `v_samples` shows what each held."""

import time

import numpy as np
import pytest

from sqlbuffer import (
    FifoSampler,
    LatestSampler,
    QueryBuilder,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
    mix,
)
from sqlbuffer.errors import InsufficientDataError, StorageReadOnlyError
from sqlbuffer.samplers import Sampler
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from tests.support.limited_rows import FIELDS, arrays_of, rows_of, store_episodes, uses_in
from tests.support.proxy import proxied
from tests.support.sql import buffer_id, run, scalar
from tests.support.stepped_rows import seqs_of

BATCHES = (
    "SELECT batch_id, clock, sampler, seed FROM v_samples WHERE position = 1 ORDER BY batch_id"
)


def seqs_noted(url):
    """Return {batch: its seqs in their order}."""
    found = {}
    statement = "SELECT batch_id, position, seq FROM v_samples ORDER BY batch_id, position"
    for batch_id, position, seq in run(url, statement):
        found.setdefault(batch_id, []).append(seq)
        assert position == len(found[batch_id])
    return found


@pytest.fixture(params=[None, 100], ids=["any use", "max use"])
def buffer(request, buffer_url):
    with ReplayBuffer(
        buffer_url, fields=FIELDS, track_samples=True, max_use=request.param
    ) as buffer:
        store_episodes(buffer, [[1] * 6, [1] * 6])
        yield buffer


def test_every_batch_is_noted_as_it_was_handed_out(buffer, buffer_url):
    expected = {}
    for clock in (None, 1, 2):
        if clock is not None:
            buffer.set_clock(clock)
        for batch in (
            buffer.sample_arrays(7),
            buffer.sample_transitions(5, n_step=2, sampler=RandomSampler(seed=9)),
            next(iter(buffer.loader("trajectory", 2, seed=4))),
            mix({buffer: 1.0}).sample_arrays(3),
        ):
            (number,) = set(batch.info["batch_id"].tolist())
            expected[number] = batch.info["seq"].tolist()
    assert seqs_noted(buffer_url) == expected
    found = run(buffer_url, BATCHES)
    samplers = [("RandomSampler", seed) for seed in (None, "9", "4", None)]
    assert [row[1:] for row in found] == [
        (clock, *sampler) for clock in (None, 1, 2) for sampler in samplers
    ]


def test_rows_and_tasks_are_noted(buffer_url):
    with ReplayBuffer(buffer_url, track_samples=True) as buffer:
        buffer.store_batch(rows_of([None] * 8, per_task=2))
        drawn = [
            seqs_of(buffer.sample(4, sampler=LatestSampler())),
            seqs_of(buffer.sample(20)),
            seqs_of(row for task in buffer.sample_tasks(2) for row in task),
            seqs_of(
                row for task in buffer.sample(3, sampler=RandomTaskSample(seed=2)) for row in task
            ),
        ]
        assert list(seqs_noted(buffer_url).values()) == drawn
        names = [(row[2], row[3]) for row in run(buffer_url, BATCHES)]
        assert names == [
            ("LatestSampler", None),
            ("RandomSampler", None),
            ("RandomTaskSample", None),
            ("RandomTaskSample", "2"),
        ]


def test_batches_of_passes_are_noted(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, track_samples=True) as buffer:
        buffer.extend(arrays_of(7))
        batches = list(buffer.loader("step", 3, epochs=1, seed=1))
        noted = seqs_noted(buffer_url)
        assert [batch.info["seq"].tolist() for batch in batches] == list(noted.values())
        assert [int(batch.info["batch_id"][0]) for batch in batches] == list(noted)
        assert {row[2] for row in run(buffer_url, BATCHES)} == {"pass"}


def test_what_raises_and_what_is_empty_is_not_noted(buffer, buffer_url):
    with pytest.raises(InsufficientDataError):
        buffer.sample_transitions(40, sampler=FifoSampler())
    assert buffer.sample(1, condition=QueryBuilder().eq("task_id", "?")) == []
    assert scalar(buffer_url, "SELECT count(*) FROM samples") == 0


def test_nothing_is_noted_unasked(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        buffer.extend(arrays_of(5))
        assert "batch_id" not in buffer.sample_arrays(3).info
    assert scalar(buffer_url, "SELECT count(*) FROM samples") == 0


class Weighted(Sampler):
    """The oldest rows, with a probability for each."""

    def choose(self, candidates, batch_size):
        return candidates.oldest(batch_size)

    def columns(self, candidates, seqs):
        return {"probabilities": np.array(seqs) / 64}


def test_probabilities_are_noted_where_the_sampler_tells_them(buffer, buffer_url):
    buffer.sample_arrays(3, sampler=Weighted())
    found = run(buffer_url, "SELECT seq, probability FROM v_samples ORDER BY position")
    assert found == [(1, 1 / 64), (2, 2 / 64), (3, 3 / 64)]
    buffer.sample_arrays(2)
    assert scalar(buffer_url, "SELECT count(*) FROM v_samples WHERE probability IS NULL") == 2


def test_the_view_answers_what_trained_an_iteration_and_where_an_episode_was_used(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS, track_samples=True, max_capacity=6) as buffer:
        store_episodes(buffer, [[1, 2, 3], [1] * 3])
        for iteration in (1, 2, 3):
            buffer.set_clock(iteration)
            buffer.sample_arrays(3, sampler=FifoSampler() if iteration != 2 else LatestSampler())
        trained_2 = run(buffer_url, "SELECT DISTINCT episode_id FROM v_samples WHERE clock = 2")
        assert trained_2 == [("e1",)]
        used_in = "SELECT DISTINCT clock FROM v_samples WHERE episode_id = :key ORDER BY clock"
        assert run(buffer_url, used_in, key="e0") == [(1,), (3,)]
        staleness = "SELECT clock, avg(clock - model_version) FROM v_samples GROUP BY clock"
        found = sorted((clock, float(mean)) for clock, mean in run(buffer_url, staleness))
        assert found == [(1, -1.0), (2, 1.0), (3, 1.0)]
        # Rows that have left are shown by their number.
        buffer.store_episode(arrays_of(2), episode_id="e2")
        shown = "SELECT seq, model_version, id IS NULL FROM v_samples WHERE clock = 1 ORDER BY 1"
        assert [(*row, bool(gone)) for *row, gone in run(buffer_url, shown)] == [
            (1, 1, True),
            (2, 2, True),
            (3, 3, False),
        ]


def test_notes_and_counts_are_of_the_same_batches(buffer_url):
    with ReplayBuffer(buffer_url, track_samples=True, max_use=3) as buffer:
        buffer.store_batch(rows_of([None] * 20))
        while buffer.sample(7, sampler=RandomSampler(replace=True)):
            pass
        counted = uses_in(buffer_url)
        noted = [seq for seqs in seqs_noted(buffer_url).values() for seq in seqs]
        assert counted == {seq: noted.count(seq) for seq in set(noted)}
        assert counted.total() == 60


def test_notes_are_kept_for_a_while(buffer_url):
    with ReplayBuffer(buffer_url, track_samples=True, keep_samples_s=3_600.0) as buffer:
        buffer.store_batch(rows_of([None] * 4))
        buffer.sample(1)
    number = buffer_id(buffer_url)
    statement = (
        "INSERT INTO samples (buffer_id, sampler, n_rows, seqs, sampled_at) "
        "SELECT :id, 'Old', 1, seqs, '{}' FROM samples LIMIT 1"
    )
    for age_s in (3_000, 4_000):
        at = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(time.time() - age_s))
        run(buffer_url, statement.format(at), id=number)
    assert scalar(buffer_url, "SELECT count(*) FROM samples") == 3
    with ReplayBuffer(buffer_url) as buffer:
        buffer.sample(1)
        names = run(buffer_url, "SELECT sampler FROM samples ORDER BY sampled_at")
        assert names == [("Old",), ("RandomSampler",), ("RandomSampler",)]


def test_numbers_of_batches_are_not_given_twice(buffer_url):
    with ReplayBuffer(buffer_url, track_samples=True) as buffer:
        buffer.store_batch(rows_of([None] * 4))
        buffer.sample(1)
        first = scalar(buffer_url, "SELECT max(id) FROM samples")
        run(buffer_url, "DELETE FROM samples")
        buffer.sample(1)
        assert scalar(buffer_url, "SELECT max(id) FROM samples") > first


def test_a_file_that_cannot_be_written_says_why(tmp_path):
    path = tmp_path / "replay.db"
    with ReplayBuffer(f"sqlite:///{path}", track_samples=True) as buffer:
        buffer.store_batch(rows_of([None]))
    with (
        ReplayBuffer(f"sqlite:///file:{path}?immutable=1&uri=true") as buffer,
        pytest.raises(StorageReadOnlyError, match=r"writes \(track_samples\)"),
    ):
        buffer.sample(1)


def test_buffers_that_note_and_that_do_not_are_mixed(buffer_url):
    with (
        ReplayBuffer(buffer_url, name="a", fields=FIELDS, track_samples=True) as a,
        ReplayBuffer(buffer_url, name="b", fields=FIELDS) as b,
    ):
        for each in (a, b):
            each.extend(arrays_of(4))
        assert mix({b: 0.5, a: 0.5}).sample_arrays(8).n_rows == 8
        assert mix({a: 0.5, b: 0.5}).sample_arrays(8).n_rows == 8
    assert len(seqs_noted(buffer_url)) == 2


@pytest.mark.parametrize("cut", ["before", "after"])
def test_a_batch_survives_a_lost_connection_and_has_a_number_of_its_own(make_database_url, cut):
    """The batch is noted once, also where its commit was answered by nothing."""
    url = make_database_url("postgresql", schema=True)
    with proxied(url) as proxy:
        buffer = ReplayBuffer(proxy.url, max_use=2, track_samples=True)
        buffer.store_batch(rows_of([None] * 10))
        proxy.cuts = [cut]
        rows = buffer.sample(4)
        assert (len(rows), proxy.n_cut) == (4, 1)
        assert run(url, "SELECT count(*) FROM samples") == [(1,)]
        newest = "SELECT seq FROM v_samples WHERE batch_id = :id ORDER BY position"
        assert [seq for (seq,) in run(url, newest, id=rows.batch_id)] == seqs_of(rows)
        assert max(uses_in(url).values()) == 1
        engine_for(resolve_url(proxy.url)).dispose()
