"""A mirror sets priorities for all who draw from its buffer."""

import time
from contextlib import closing

import numpy as np
import pytest

from sqlbuffer import PrioritizedSampler, PriorityUpdate, QueryBuilder
from sqlbuffer.errors import (
    BufferConfigError,
    FieldError,
    InsufficientDataError,
    StorageError,
    StorageUnreachableError,
)
from tests.support.mirror_priorities import (
    assert_same,
    columns,
    opened,
    priorities_of,
    weights_of,
)
from tests.support.processes import running, wait_until
from tests.support.proxy import Proxy
from tests.support.sql import connected, is_sqlite, run


@pytest.fixture
def buffer(buffer_url):
    with opened(buffer_url) as buffer:
        buffer.store_episode(columns(100), episode_id="first")
        yield buffer


@pytest.fixture
def mirror(buffer):
    # Looks only when it is told to.
    with buffer.mirror(refresh_s=3_600) as mirror:
        yield mirror


def test_updates_are_used_at_once_and_written_back(buffer, mirror, buffer_url):
    with opened(buffer_url) as other, other.mirror(refresh_s=3_600) as second:
        for each in (mirror, second):
            each.refresh()  # what this process commits is taken by the next draw
        assert mirror.update_priorities(np.arange(1, 101), 0.0, eps=0.0) == PriorityUpdate(100, 0)
        assert mirror.update_priorities([7, 8, 7], [1.0, 2.0, 3.0], eps=0.0).updated == 2
        assert priorities_of(mirror, 2) == {7: 3.0, 8: 2.0}
        with pytest.raises(InsufficientDataError):
            priorities_of(mirror, 3)
        assert set(priorities_of(second, 100).values()) == {1.0}
        mirror.refresh()
        assert priorities_of(buffer, 2) == {7: 3.0, 8: 2.0}
        second.refresh()
        assert priorities_of(second, 2) == {7: 3.0, 8: 2.0}
        assert second.update_priorities([9], 5.0, eps=0.0).updated == 1
    assert priorities_of(buffer, 3) == {7: 3.0, 8: 2.0, 9: 5.0}
    mirror.refresh()
    assert_same(mirror, buffer, 3)


def test_the_thread_writes_updates_back(buffer):
    with buffer.mirror(refresh_s=0.02) as mirror:
        mirror.update_priorities(np.arange(1, 101), 4.0, eps=0.0)
        wait_until(lambda: set(priorities_of(buffer, 100).values()) == {4.0}, "the update")


def test_the_last_of_two_updates_counts(buffer, mirror, buffer_url):
    with opened(buffer_url) as other:
        mirror.update_priorities([1, 2, 3], 5.0, eps=0.0)
        other.update_priorities([1, 2], 2.0, eps=0.0)
        other.update_priorities([4], 3.0, eps=0.0)
        # A draw reads what this process has written, and keeps what is not written yet.
        assert [priorities_of(mirror, 100)[seq] for seq in (1, 2, 3, 4)] == [5.0, 5.0, 5.0, 3.0]
        assert [priorities_of(buffer, 100)[seq] for seq in (1, 2, 3, 4)] == [2.0, 2.0, 1.0, 3.0]
        mirror.refresh()  # the mirror's own are written last
        assert priorities_of(mirror, 100)[1] == priorities_of(buffer, 100)[1] == 5.0
        mirror.update_priorities([2], 6.0, eps=0.0)
        mirror.refresh()
        other.update_priorities([2, 3], 0.5, eps=0.0)
        mirror.refresh()
        assert [priorities_of(mirror, 100)[seq] for seq in (1, 2, 3)] == [5.0, 0.5, 0.5]
        assert_same(mirror, buffer, 100)


def test_updates_of_the_buffer_itself_are_used_at_once(buffer, mirror):
    buffer.update_priorities(np.arange(1, 101), 0.0, eps=0.0)
    buffer.update_priorities([50], 2.0)
    assert set(mirror.sample_arrays(8, sampler=PrioritizedSampler()).seq.tolist()) == {50}


def test_steps_that_are_not_in_the_buffer_are_counted(buffer, mirror, buffer_url):
    buffer.store_episode(columns(290))
    buffer.delete(QueryBuilder().eq("exp_meta.step", 288).build())
    gone = [5, 90, 389, 10_000]
    for source in (mirror, buffer):
        assert source.update_priorities([*gone, 200], 3.0) == PriorityUpdate(1, 4)
    assert mirror.update_priorities([], []) == PriorityUpdate(0, 0)
    with opened(buffer_url) as other:
        other.extend(columns(1))
        assert mirror.update_priorities([391], 3.0) == PriorityUpdate(1, 0)


@pytest.mark.parametrize(
    ("seqs", "priorities", "eps"),
    [
        ([1], np.nan, 1e-6),
        ([1, 2], [1.0, np.inf], 1e-6),
        ([1], -0.5, 1e-6),
        ([1], 1.0, np.nan),
        ([1], 1e100, 1e90),
        ([1, 2], [1.0, 2.0, 3.0], 1e-6),
        ([1.5], 1.0, 1e-6),
        ([[1]], 1.0, 1e-6),
        ([1], "much", 1e-6),
        ([1], None, 1e-6),
        (None, 1.0, 1e-6),
    ],
)
def test_what_the_buffer_refuses_is_refused(buffer, mirror, seqs, priorities, eps):
    with pytest.raises(FieldError) as theirs:
        buffer.update_priorities(seqs, priorities, eps)
    with pytest.raises(FieldError) as ours:
        mirror.update_priorities(seqs, priorities, eps)
    assert str(ours.value) == str(theirs.value)
    assert set(priorities_of(mirror, 100).values()) == {1.0}


def test_updates_are_kept_while_the_database_is_away(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with closing(Proxy(url)) as proxy, opened(proxy.url, retry_s=0) as buffer:
        buffer.extend(columns(50))
        with buffer.mirror(refresh_s=3_600) as mirror:
            proxy.closed = True
            proxy.cut_all()
            mirror.update_priorities(np.arange(1, 51), 0.0, eps=0.0)
            mirror.update_priorities([4], 3.0, eps=0.0)
            with pytest.raises(StorageUnreachableError):
                mirror.refresh()
            assert priorities_of(mirror, 1) == {4: 3.0}
            proxy.closed = False
            mirror.refresh()
            assert priorities_of(buffer, 1) == {4: 3.0}


REFUSE = {
    "sqlite": (
        "CREATE TRIGGER refuse BEFORE INSERT ON priorities "
        "BEGIN SELECT RAISE(ABORT, 'no more of them'); END",
        "DROP TRIGGER refuse",
    ),
    "postgresql": (
        "ALTER TABLE priorities ADD CONSTRAINT refuse CHECK (priority < 0) NOT VALID",
        "ALTER TABLE priorities DROP CONSTRAINT refuse",
    ),
}


def test_updates_that_could_not_be_written_are_not_lost_in_silence(buffer, mirror, buffer_url):
    refuse, allow = REFUSE["sqlite" if is_sqlite(buffer_url) else "postgresql"]
    run(buffer_url, refuse)
    mirror.update_priorities([4], 3.0, eps=0.0)
    buffer.extend(columns(1))
    with pytest.raises(StorageError):
        mirror.refresh()
    assert mirror.lag().high == 101
    assert priorities_of(mirror, 101)[4] == 3.0
    run(buffer_url, allow)
    mirror.refresh()
    assert priorities_of(buffer, 101)[4] == 3.0
    run(buffer_url, refuse)
    mirror.update_priorities([5], 3.0, eps=0.0)
    with pytest.raises(StorageError):
        mirror.close()
    with pytest.raises(BufferConfigError, match="the mirror is closed"):
        mirror.sample_arrays(4)


def test_a_mirror_that_starts_again_keeps_what_was_set(buffer, mirror, buffer_url):
    mirror.update_priorities([4], 3.0, eps=0.0)
    with connected(buffer_url) as connection:
        connection.exec_driver_sql("DELETE FROM followers")
    mirror.refresh()
    with buffer.mirror(refresh_s=3_600) as other:
        for source in (mirror, other, buffer):
            assert priorities_of(source, 100)[4] == 3.0


def test_a_closed_mirror_sets_no_priorities(buffer):
    with buffer.mirror() as mirror:
        mirror.update_priorities([1], 9.0, eps=0.0)
    for call in (
        lambda: mirror.update_priorities([1], 2.0),
        lambda: mirror.sample_arrays(2, sampler=PrioritizedSampler()),
    ):
        with pytest.raises(BufferConfigError, match="the mirror is closed"):
            call()
    assert priorities_of(buffer, 100)[1] == 9.0


def update(url, worker, until):
    """Draw by priority, and set what was drawn to numbers of this worker."""
    rng = np.random.default_rng(worker)
    with opened(url) as buffer, buffer.mirror(refresh_s=0.01) as mirror:
        while time.time() < until:
            batch = mirror.sample_arrays(32, sampler=PrioritizedSampler())
            mirror.update_priorities(batch.seq, worker + rng.random(32), eps=0.0)
    return True


@pytest.mark.thorough
def test_learners_that_update_the_same_steps_agree_in_the_end(buffer, mirror, buffer_url):
    with running([(update, buffer_url, worker, time.time() + 1.0) for worker in (1, 2)]) as workers:
        assert all(workers.results(60))
    mirror.refresh()
    assert_same(mirror, buffer, 100)
    assert set(map(int, priorities_of(buffer, 100).values())) <= {1, 2}


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_changes_leaves_the_priorities_of_the_buffer(buffer, mirror, buffer_url, seed):
    rng = np.random.default_rng(seed)
    with opened(buffer_url) as other:
        for _ in range(40):
            high = mirror.lag().high
            seqs = rng.integers(max(high - 300, 1), high + 2, 12)
            values = rng.exponential(size=12) * (rng.random(12) > 0.2)
            match rng.integers(8):
                case 0 | 1:
                    mirror.update_priorities(seqs, values, eps=0.0)
                case 2:
                    other.update_priorities(seqs, values, eps=0.0)
                case 3:
                    other.extend(columns(30), priority=rng.random(30))
                case 4:
                    buffer.delete(QueryBuilder().in_("seq", seqs[:3].tolist()).build())
                case 5:
                    buffer.quarantine(seqs[:2])
                case 6:
                    buffer.release(seqs)
                case 7:
                    mirror.refresh()
            mirror.sample_arrays(4, sampler=PrioritizedSampler())
    mirror.refresh()
    weights = weights_of(buffer_url)
    barred = {seq for (seq,) in run(buffer_url, "SELECT seq FROM v_quarantine")}
    weights = {seq: weight for seq, weight in weights.items() if seq not in barred}
    batch = mirror.sample_arrays(
        len(weights), sampler=PrioritizedSampler(replace=False, exact=True)
    )
    total = sum(weights.values())
    assert sorted(batch.seq.tolist()) == sorted(weights)
    expected = [weights[seq] / total for seq in batch.seq.tolist()]
    np.testing.assert_allclose(batch.probabilities, expected, rtol=1e-9)
