"""What rings in a database do that the tests of all buffers do not see."""

from types import SimpleNamespace

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.ding import AdvancedReplayBuffer, create_buffer, prioritized_ring
from sqlbuffer.compat.ding.prioritized_ring import PrioritizedRing
from sqlbuffer.compat.ding.shared_ring import Numbers
from tests.compat.ding.conftest import held
from tests.support.sql import run

KEYS = ("replay_unique_id", "replay_buffer_idx")


@pytest.fixture
def buffer(buffer_url):
    config = {"replay_buffer_size": 20_000, "max_use": 2, "max_staleness": 1_000, "seed": 1}
    buffer = AdvancedReplayBuffer({**config, "url": buffer_url})
    buffer.push([{"obs": i, "collect_iter": i % 3} for i in range(20_000)], 0)
    yield buffer
    buffer.close()


def n_rows(url):
    return run(url, "SELECT count(*) FROM experiences")[0][0]


def test_numbers_of_pushes_are_found_though_numbers_of_steps_are_left_out():
    numbers = Numbers().after(0, [1, 2, 3], 5).after(3, [6, 7], 5)
    assert (numbers.runs, numbers.n, numbers.newest) == (((2, 3, 1), (3, 6, 2)), 3, 7)
    assert numbers == Numbers().after(0, [1, 2, 3], 5).after(3, [6], 5).after(4, [7], 5)
    # Numbers up to 7 - 5 have left.
    assert [numbers.seq_of(i) for i in range(6)] == [None, None, 3, 6, 7, None]
    assert numbers.seqs_to(6) == [3, 6]
    assert numbers.above(3).runs == ((3, 6, 2),)


@pytest.mark.thorough
@pytest.mark.slow
def test_items_that_are_used_up_or_too_old_leave_the_table(buffer, buffer_url):
    for iteration in range(4):
        for _ in range(8):
            buffer.sample(64, 999 + iteration)  # those of one iteration leave each time
        assert buffer.count() == n_rows(buffer_url)
    assert buffer.count() == 0


@pytest.mark.thorough
@pytest.mark.slow
def test_what_an_interrupted_sample_has_removed_is_not_taken_for_gone(
    buffer, buffer_url, monkeypatch
):
    def interrupted(*_):
        raise KeyboardInterrupt

    buffer.sample(64, 0)
    for iteration in (1_000, 1_001):  # another third is too old each time
        with monkeypatch.context() as patched:
            patched.setattr(PrioritizedRing, "_sampled", interrupted)
            with pytest.raises(KeyboardInterrupt):
                buffer.sample(64, iteration)
    assert n_rows(buffer_url) == 20_000
    for iteration, left in ((1_000, {1, 2}), (1_001, {2})):
        assert {item["obs"] % 3 for item in buffer.sample(64, iteration)} == left
        held_rows = run(buffer_url, "SELECT model_version, count(*) FROM experiences GROUP BY 1")
        assert {version for version, _ in held_rows} == left
        n_held = sum(n for _, n in held_rows)
        newest = buffer.sample(64, iteration, sample_range=slice(n_held - 8, None))
        assert min(item["obs"] for item in newest) >= 20_000 - 48


@pytest.mark.thorough
@pytest.mark.slow
def test_rows_that_were_pushed_out_are_forgotten_though_they_are_not_old(buffer_url):
    config = {"replay_buffer_size": 100, "max_staleness": 5, "url": buffer_url}
    buffer = AdvancedReplayBuffer(config)
    for _ in range(30):
        buffer.push([{"obs": i, "collect_iter": 10**6} for i in range(100)], 0)
        buffer.sample(1, 0)
    assert len(buffer._ring.place.versions._oldest_first) < 1_500
    assert buffer.sample(1, 10**6 + 5) is None
    assert buffer.count() == 0
    buffer.close()


@pytest.mark.thorough
@pytest.mark.slow
def test_sums_of_blocks_are_kept_as_items_leave(buffer, buffer_url):
    for iteration in range(3):
        for _ in range(6):
            batch = buffer.sample(64, 999 + iteration)
            info = {key: [item[key] for item in batch] for key in KEYS}
            buffer.update({**info, "priority": [0.5 + i % 5 for i in range(64)]})
        size = run(buffer_url, "SELECT block_size FROM buffers")[0][0]
        kept = run(buffer_url, "SELECT block, n_rows, weight_sum FROM priority_blocks")
        assert len(kept) > 60
        held_rows = run(buffer_url, "SELECT seq, priority FROM v_priorities")
        of_block = {}
        for seq, priority in held_rows:
            of_block.setdefault(seq // size, []).append(priority**0.6)
        for block, n_rows_of_block, weight_sum in kept:
            weights = of_block.get(block, [])
            assert n_rows_of_block == len(weights)
            assert weight_sum == pytest.approx(sum(weights), abs=1e-6)


def test_a_batch_at_the_lower_limit_is_drawn(make, monkeypatch):
    now = [1_000.5]
    monkeypatch.setattr(prioritized_ring, "time", SimpleNamespace(time=lambda: now[0]))
    limits = {"push_sample_rate_limit": {"min": 1}, "window_seconds": 30}
    buffer = make("advanced", size=100, thruput_controller=limits)
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


def test_items_are_steps_of_an_ordinary_buffer(buffer_url):
    buffer = create_buffer(
        {"type": "naive", "url": buffer_url, "name": "ring"}, None, "exp", "mine"
    )
    buffer.push([{"obs": 1, "reward": 0.5, "collect_iter": 7}, {"obs": 2}], 30)
    with ReplayBuffer(buffer_url, name="ring") as core:
        first, second = core
        assert (first.exp_data.state["obs"], first.exp_data.reward_t) == (1, 0.5)
        meta = first.exp_meta
        assert (meta.task_id, meta.agent_id, meta.step, meta.model_version) == (
            "mine",
            "exp",
            30,
            7,
        )
        assert second.exp_meta.model_version is None
        assert core.documents.get("ring").value["push_count"] == 2
        assert core.delete([first.seq]) == 1
    assert held(buffer) == [{"obs": 2}]
    assert buffer.sample(1, 0, slice(0, 1)) == [{"obs": 2}]
    buffer.push({"obs": 3}, 0)
    assert (held(buffer), buffer.count()) == ([{"obs": 2}, {"obs": 3}], 2)
    buffer.close()
