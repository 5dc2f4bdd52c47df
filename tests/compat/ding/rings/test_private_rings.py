"""What private rings do that the tests of all buffers do not see."""

import gc
import threading
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from sqlbuffer.compat.ding import create_buffer, prioritized_ring
from tests.compat.ding.conftest import held
from tests.support.processes import TIMEOUT_S


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
