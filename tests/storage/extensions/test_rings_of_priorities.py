"""What rings of items drawn by priority stand on: uses, rows that are too old, and counts."""

from types import SimpleNamespace

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.ding import AdvancedReplayBuffer
from sqlbuffer.storage.buffers.live_count import LiveCount
from sqlbuffer.storage.extensions import prioritized_ring
from sqlbuffer.storage.extensions.prioritized_ring import PriorityRing
from sqlbuffer.storage.retention.expiry import StaleRows
from sqlbuffer.storage.use_counts import add_uses, uses_of
from tests.support.sql import connected, run


@pytest.fixture
def buffer(buffer_url):
    config = {"replay_buffer_size": 20_000, "max_use": 2, "max_staleness": 1_000, "seed": 1}
    buffer = AdvancedReplayBuffer({**config, "url": buffer_url})
    buffer.push([{"obs": i, "collect_iter": i % 3} for i in range(20_000)], 0)
    yield buffer
    buffer.close()


def rows_of(buffer):
    """Return the ring of rows behind a buffer at a URL."""
    return buffer._ring._ring


def test_uses_add_up_by_row(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        store = buffer._store
        for counts, expected in (({7: 2, 3: 1}, {7: 2, 3: 1}), ({7: 1, 9: 4}, {7: 3, 9: 4})):
            assert store.write(lambda c, n=counts: add_uses(c, 1, n)) == expected
        assert store.write(lambda c: add_uses(c, 1, {})) == {}
        found = store.write(lambda c: uses_of(c, 1, [9, 8, 7]))
        assert found == {9: 4, 7: 3}


def test_each_row_is_read_once_to_know_how_old_it_is(buffer_url):
    with ReplayBuffer(buffer_url, max_capacity=8) as buffer:
        for version in (3, None, 1, 2):
            buffer.add(state=1, model_version=version)
        stale = StaleRows()
        with connected(buffer_url) as connection:
            stale.follow(connection, 1, 0, 4)
            assert stale.taken(2, 0) == [3]
            assert stale.taken(2, 0) == []
            run(buffer_url, "DELETE FROM experiences WHERE seq <= 4")
            stale.follow(connection, 1, 0, 4)
            assert stale.taken(3, 1) == [4]
            assert stale.taken(9, 1) == []  # seq 1 has left the window


def test_only_who_saw_the_last_state_says_what_was_deleted():
    live = LiveCount()
    live._state, live._blocks = (0, 1), {0: 5, 1: 4_096}
    live.removed((0, 1), (2, 1), [1, 2, 4_096 * 9])
    assert (live._state, live._blocks) == ((2, 1), {0: 3, 1: 4_096})
    live.removed((0, 1), (3, 1), [3])
    assert (live._state, live._blocks) == ((2, 1), {0: 3, 1: 4_096})


@pytest.mark.slow
def test_blocks_stay_counted_as_samples_use_items_up(buffer, buffer_url):
    blocks = "SELECT count(*) FROM experiences WHERE seq BETWEEN 4096 AND 16383"
    for iteration in range(4):
        for _ in range(8):
            buffer.sample(64, 999 + iteration)  # those of one iteration leave each time
        ring = rows_of(buffer)
        assert len(ring.item_count._live._blocks) == (3 if buffer.count() else 0)
        assert sum(ring.item_count._live._blocks.values()) == run(buffer_url, blocks)[0][0]
        assert buffer.count() == run(buffer_url, "SELECT count(*) FROM experiences")[0][0]
    assert buffer.count() == 0


@pytest.mark.slow
def test_what_an_interrupted_sample_has_removed_is_not_taken_for_gone(
    buffer, buffer_url, monkeypatch
):
    def interrupted(*_):
        raise KeyboardInterrupt

    buffer.sample(64, 0)
    for iteration in (1_000, 1_001):  # another third is too old each time
        with monkeypatch.context() as patched:
            patched.setattr(PriorityRing, "_drawn", interrupted)
            with pytest.raises(KeyboardInterrupt):
                buffer.sample(64, iteration)
    assert run(buffer_url, "SELECT count(*) FROM experiences")[0][0] == 20_000
    for iteration, left in ((1_000, {1, 2}), (1_001, {2})):
        assert {item["obs"] % 3 for item in buffer.sample(64, iteration)} == left
        held = run(buffer_url, "SELECT model_version, count(*) FROM experiences GROUP BY 1")
        assert {version for version, _ in held} == left
        n_held = sum(n for _, n in held)
        # Counted anew, and rightly.
        newest = buffer.sample(64, iteration, sample_range=slice(n_held - 8, None))
        assert min(item["obs"] for item in newest) >= 20_000 - 48


@pytest.mark.slow
def test_rows_that_were_pushed_out_are_forgotten_though_they_are_not_old(buffer_url):
    config = {"replay_buffer_size": 100, "max_staleness": 5, "url": buffer_url}
    buffer = AdvancedReplayBuffer(config)
    for _ in range(30):
        buffer.push([{"obs": i, "collect_iter": 10**6} for i in range(100)], 0)
        buffer.sample(1, 0)
    assert len(rows_of(buffer)._stale._oldest_first) < 1_500
    assert buffer.sample(1, 10**6 + 5) is None
    assert buffer.count() == 0
    buffer.close()


@pytest.mark.slow
def test_sums_of_blocks_are_kept_as_items_leave(buffer, buffer_url):
    ring = rows_of(buffer)
    for iteration in range(3):
        for _ in range(6):
            batch = buffer.sample(64, 999 + iteration)
            keys = ("replay_unique_id", "replay_buffer_idx")
            info = {key: [item[key] for item in batch] for key in keys}
            buffer.update({**info, "priority": [0.5 + i % 5 for i in range(64)]})
        size = ring.store.info.block_size
        kept = run(buffer_url, "SELECT block, n_rows, weight_sum FROM priority_blocks")
        assert len(kept) > 60
        held = run(buffer_url, "SELECT seq, priority FROM v_priorities")
        of_block = {}
        for seq, priority in held:
            of_block.setdefault(seq // size, []).append(priority**0.6)
        for block, n_rows, weight_sum in kept:
            weights = of_block.get(block, [])
            assert n_rows == len(weights)
            assert weight_sum == pytest.approx(sum(weights), abs=1e-6)


def test_uses_of_items_that_were_pushed_out_are_deleted(buffer_url):
    buffer = AdvancedReplayBuffer({"url": buffer_url, "replay_buffer_size": 100})
    for _ in range(3):
        buffer.push([{"obs": i} for i in range(100)], 0)
        buffer.sample(50, 0)
    assert run(buffer_url, "SELECT count(*) FROM uses")[0][0] > 50
    rows_of(buffer)._cleaned_to = -10_000
    buffer.sample(1, 0)
    ((n_left, first),) = run(buffer_url, "SELECT count(*), min(seq) FROM uses")
    assert 0 < n_left <= 51
    assert first > 200
    buffer.close()


def test_a_batch_at_the_lower_limit_is_drawn(make_ring, monkeypatch):
    now = [1_000.5]
    monkeypatch.setattr(prioritized_ring, "time", SimpleNamespace(time=lambda: now[0]))
    limits = {"push_sample_rate_limit": {"min": 1}, "window_seconds": 30}
    buffer = make_ring("advanced", size=100, thruput_controller=limits)
    for _ in range(4):
        buffer.push([{"obs": i} for i in range(64)], 0)
        now[0] += 0.4
        assert len(buffer.sample(64, 0)) == 64
        assert buffer.sample(1, 0) is None
        now[0] += 2.7
    now[0] -= 3_600  # a clock that was set back: counts decay from there on
    assert buffer.sample(1, 0) is None
    buffer.push([{"obs": i} for i in range(64)], 0)
    assert len(buffer.sample(64, 0)) == 64
