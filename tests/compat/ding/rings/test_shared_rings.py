"""What rings in a database do that the tests of all buffers do not see."""

import gc
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.compat.ding import AdvancedReplayBuffer, create_buffer, prioritized_ring
from sqlbuffer.compat.ding.prioritized_ring import BLOCK, CellWeights, PrioritizedRing
from sqlbuffer.compat.ding.shared_ring import Numbers
from tests.compat.ding.conftest import held
from tests.support.priorities import assert_shares
from tests.support.processes import TIMEOUT_S
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


@pytest.mark.thorough
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


# What private rings do that the tests of all buffers do not see.


def private(kind="advanced", size=5, **changes):
    return create_buffer({"type": kind, "replay_buffer_size": size, **changes})


@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_many_laps_leave_the_newest_items(kind):
    buffer, n = private(kind, size=130), 0
    rng = np.random.default_rng(1)
    while n < 2_000:
        items = [{"n": n + i} for i in range(int(rng.integers(1, 200)))]
        buffer.push(items, 0)
        n += len(items)
        assert [item["n"] for item in held(buffer)] == list(range(max(0, n - 130), n))
        newest = buffer.sample(4, 0, slice(-2, None), *([True] if kind == "naive" else []))
        assert {item["n"] for item in newest} <= {n - 1, n - 2}
    buffer.close()


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_memory_is_free_when_the_items_of_a_push_have_left(kind):
    buffer = private(kind, size=6)
    buffer.push([{"obs": np.zeros(2)} for _ in range(6)], 0)
    ring = getattr(buffer._ring, "place", buffer._ring)
    first = weakref.ref(ring._copies[0])
    buffer.push([{"obs": np.zeros(2)} for _ in range(5)], 0)
    gc.collect()
    assert first() is not None
    buffer.push({"obs": 1}, 0)
    gc.collect()
    assert first() is None
    buffer.close()
    assert not any(ring._copies)


def test_the_rate_limit_decays_by_the_clock(monkeypatch):
    now = [1_000.5]
    monkeypatch.setattr(prioritized_ring, "time", SimpleNamespace(time=lambda: now[0]))
    limits = {"push_sample_rate_limit": {"min": 1}, "window_seconds": 30}
    buffer = private(size=100, thruput_controller=limits)
    buffer.push([{"obs": i} for i in range(30)], 0)
    for _ in range(3):
        assert len(buffer.sample(10, 0)) == 10
    assert buffer.sample(1, 0) is None
    now[0] += 60
    buffer.push([{"obs": i} for i in range(30)], 0)
    assert len(buffer.sample(29, 0)) == 29
    assert buffer.sample(10, 0) is None
    buffer.close()


@pytest.mark.thorough
def test_threads_push_and_sample_by_priority_and_every_count_is_exact():
    buffer = private(size=64, max_use=3)
    buffer.push([{"obs": -1}] * 16, 0)
    n_drawn, failures = [], []

    def work():
        try:
            for _ in range(30):
                buffer.push([{"obs": i} for i in range(8)], 0)
                batch = buffer.sample(8, 0)
                if batch is not None:
                    n_drawn.append(len(batch))
                    keys = ("replay_unique_id", "replay_buffer_idx")
                    info = {key: [item[key] for item in batch] for key in keys}
                    buffer.update({**info, "priority": [2.0] * 8})
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert failures == []
    state = buffer.state_dict()
    assert (state["push_count"], state["valid_count"]) == (16 + 4 * 30 * 8, buffer.count())
    assert buffer.beta == pytest.approx(0.4 + len(n_drawn) * 0.6 / 100_000)
    assert all(use < 3 for use in state["use_count"].values())
    buffer.close()


# Draws from cells: one number from each of equal parts of the sum of all weights.


N_BLOCKS = 20
N_CELLS = N_BLOCKS * BLOCK


def filled(low, end):
    """Return cells with priorities for the numbers low to end - 1, and these priorities."""
    numbers = np.arange(low, end)
    priorities = np.random.default_rng(0).gamma(1.0, 1.0, numbers.size)
    priorities[::7] = 0.0
    cells = CellWeights(N_BLOCKS, alpha=0.6)
    cells.set(numbers % N_CELLS, priorities)
    return cells, dict(zip(numbers.tolist(), priorities.tolist(), strict=True))


# Few parts have blocks of their own; many share them.
@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 3, 40])
@pytest.mark.parametrize("low", [0, 5_000, 7 * N_CELLS - 100])
def test_numbers_are_drawn_by_weight_also_where_the_ring_wraps(n, low):
    end = low + N_CELLS - BLOCK
    cells, priorities = filled(low, end)
    drawn = [number for key in range(3_000 // n) for number in cells.draw(key, low, end, n)]
    weights = {number: p**0.6 for number, p in priorities.items()}
    of_block = {number: number // BLOCK for number in weights}
    assert all(weights[number] > 0 for number in drawn)
    sums = {}
    for number, weight in weights.items():
        sums[of_block[number]] = sums.get(of_block[number], 0.0) + weight
    assert_shares([of_block[number] for number in drawn], sums)
    # Within blocks too: by the place in the block.
    places = {}
    for number, weight in weights.items():
        places[number % BLOCK] = places.get(number % BLOCK, 0.0) + weight
    assert_shares([number % BLOCK for number in drawn], places)


def test_each_part_has_its_number_in_order():
    cells, priorities = filled(0, N_CELLS - BLOCK)
    ends = np.cumsum([p**0.6 for p in priorities.values()])
    for key in range(50):
        for n in (2, 40):
            drawn = cells.draw(key, 0, N_CELLS - BLOCK, n)
            assert (np.sort(drawn) == drawn).all()
            parts = ends[drawn] / ends[-1] * n
            # A block may hold the edge of two parts.
            assert (np.abs(parts - np.arange(n) - 0.5) < 0.5 + 2 * n / N_BLOCKS).all()


def test_a_key_repeats_a_draw_and_a_change_is_seen():
    cells, _ = filled(0, 300)
    first = cells.draw(7, 0, 300, 3).tolist()
    assert cells.draw(7, 0, 300, 3).tolist() == first
    cells.set(np.arange(300), 0.0)
    cells.set(np.array([123]), 2.0)
    assert cells.draw(7, 0, 300, 3).tolist() == [123] * 3
    assert cells.least() == 2.0


@pytest.mark.thorough
@pytest.mark.slow
def test_only_given_numbers_are_drawn():
    cells, priorities = filled(0, 1_000)
    among = np.arange(100, 400, 3)
    drawn = [number for key in range(400) for number in cells.draw(key, 0, 1_000, 8, among)]
    assert_shares(drawn, {number: priorities[number] ** 0.6 for number in among.tolist()})


def test_nothing_is_drawn_where_all_weights_are_0():
    cells = CellWeights(3, alpha=0.0)
    cells.set(np.arange(5), 0.0)
    assert cells.draw(1, 0, 5, 2).size == 0
    assert cells.draw(1, 0, 0, 2).size == 0
    assert cells.least() == np.inf
