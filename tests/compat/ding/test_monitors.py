"""What watches an advanced buffer: its helper classes, TensorBoard tags and text."""

import logging
import multiprocessing
import threading

import numpy as np
import pytest

from sqlbuffer.compat.ding import (
    PeriodicThruputMonitor,
    SampledDataAttrMonitor,
    ThruputController,
    TickTime,
    UsedDataRemover,
    create_buffer,
    generate_id,
)
from sqlbuffer.errors import StorageUnreachableError
from tests.support.processes import TIMEOUT_S, wait_until

KEYS = (
    "use_avg", "use_max", "priority_avg", "priority_max", "priority_min", "staleness_avg",
    "staleness_max", "beta",
)  # fmt: skip


class Scalars:
    def __init__(self):
        self.written = []

    def add_scalar(self, tag, value, x):
        self.written.append((tag, value, x))


def test_figures_are_over_the_newest_batches_one_more_than_it_looks_back():
    ticks = TickTime()
    monitor = SampledDataAttrMonitor(ticks, 2)
    assert (monitor.avg["use"](), monitor.min["priority"]()) == (0, 0)
    for i in range(1, 7):
        monitor.use_avg, monitor.use_max, monitor.priority_min = float(i), 10 - i, float(i)
        ticks.step()
        first = max(1, i - 2)
        assert monitor.avg["use"]() == sum(range(first, i + 1)) / (i + 1 - first)
        assert monitor.max["use"]() == 10 - first
        assert monitor.min["priority"]() == first
    ticks.step(100)
    assert monitor.avg["use"]() == 6.0


def test_a_frozen_monitor_stays_at_its_time():
    ticks = TickTime()
    monitor = SampledDataAttrMonitor(ticks, 2)
    assert (monitor.time, monitor.expire) == (ticks, 2)
    monitor.staleness_max = 3
    ticks.step()
    monitor.freeze()
    ticks.step(5)
    assert (monitor.fixed_time(), monitor.current_time()) == (1, 6)
    assert monitor.max["staleness"]() == 3
    monitor.staleness_max = 9
    assert monitor.max["staleness"]() == 3
    monitor.unfreeze()
    assert (monitor.fixed_time(), monitor.max["staleness"]()) == (6, 9)


@pytest.mark.parametrize(
    ("name", "value"), [("use_max", 1.0), ("use_avg", 1), ("use_max", True), ("priority_avg", None)]
)
def test_an_attribute_takes_its_own_type_only(name, value):
    with pytest.raises(TypeError, match=name):
        setattr(SampledDataAttrMonitor(TickTime(), 5), name, value)


def test_a_monitor_is_asked_for_what_it_has_not():
    monitor = SampledDataAttrMonitor(TickTime(), 5)
    with pytest.raises(KeyError, match="'use' has no 'min'"):
        monitor.min["use"]
    with pytest.raises(ValueError, match="use_avg was not set"):
        _ = monitor.use_avg
    with pytest.raises(AttributeError, match="nothing"):
        _ = monitor.nothing
    assert monitor.get_property_attribute("use") == ["max", "avg"]
    monitor.register_attribute_value("mine", "use", lambda: 42)
    assert monitor.mine["use"]() == 42


@pytest.mark.parametrize(
    ("ticks", "expire", "error"),
    [
        (None, 5, AttributeError),
        (TickTime(), None, TypeError),
        (TickTime(), "5", TypeError),
        (TickTime(), 0, ValueError),
        (TickTime(), -1, ValueError),
    ],
)
def test_a_monitor_that_cannot_be_is_refused(ticks, expire, error):
    with pytest.raises(error):
        SampledDataAttrMonitor(ticks, expire)


def test_counts_of_the_throughput_are_exact_under_threads():
    monitor = PeriodicThruputMonitor("buffer", {"seconds": 1000}, None, None)
    controller = ThruputController(
        {"push_sample_rate_limit": {"max": 2, "min": 0}, "window_seconds": 30}, clock=lambda: 0.0
    )

    def count():
        for _ in range(2_000):
            monitor.count(pushed=2, sampled=1, removed=3)
            controller.count(pushed=2, sampled=1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    counts = (monitor.push_data_count, monitor.sample_data_count, monitor.remove_data_count)
    assert counts == (16_000, 8_000, 24_000)
    assert (controller.history_push_count, controller.history_sample_count) == (16_000, 8_000)
    monitor.close()


def test_each_period_is_written_and_counted_anew(caplog):
    caplog.set_level(logging.INFO, "sqlbuffer")
    scalars = Scalars()
    monitor = PeriodicThruputMonitor(
        "buffer", {"seconds": 0.01}, logging.getLogger("sqlbuffer"), scalars
    )
    monitor.push_data_count += 3
    monitor.valid_count = 3
    wait_until(lambda: len(scalars.written) >= 8, "two periods")
    monitor.close()
    monitor.close()
    tags = ("pushed_in", "sampled_out", "removed", "current_have")
    written = scalars.written
    assert [(tag, x) for tag, _, x in written[:8]] == [
        (f"buffer_sec/{tag}", period) for period in (0, 1) for tag in tags
    ]
    assert sum(value for tag, value, _ in written if tag == "buffer_sec/pushed_in") == 3
    assert "current_have 3" in caplog.text


def test_counts_of_the_controller_decay_to_a_hundredth_within_the_window():
    now = [0.0]
    controller = ThruputController(
        {"push_sample_rate_limit": {"max": 2, "min": 0.5}, "window_seconds": 3}, lambda: now[0]
    )
    assert controller.can_push(5)[0]  # nothing was sampled
    controller.history_push_count += 5
    assert controller.can_sample(10)[0]
    assert controller.can_sample(11) == (False, "push(5.0) / sample(0.0 + 11) < min (0.5)")
    controller.history_sample_count += 4
    assert controller.can_push(3)[0]
    assert controller.can_push(4) == (False, "push(5.0 + 4) / sample(4.0) > max (2)")
    now[0] = 1.0
    assert controller.history_push_count == pytest.approx(5 * 0.01 ** (1 / 3))
    now[0] = 3.0
    assert controller.history_sample_count == pytest.approx(0.04)
    controller.close()


def test_a_ratio_at_its_limit_is_within_it():
    now = [0.0]
    limits = {"push_sample_rate_limit": {"max": 2, "min": 1}, "window_seconds": 30}
    controller = ThruputController(limits, lambda: now[0])
    for _ in range(20):
        controller.count(pushed=64)
        now[0] += 0.75  # DI-engine's counts decay once a second
        assert controller.can_sample(64)[0]
        controller.count(sampled=64)
        assert not controller.can_sample(1)[0]
        now[0] += 0.25
    limits["push_sample_rate_limit"]["min"] = 0.1
    by_tenths = ThruputController(limits, lambda: 0.0)
    by_tenths.count(pushed=3)
    assert by_tenths.can_sample(30)[0]  # 0.1 * 30 is above 3
    assert not by_tenths.can_sample(31)[0]


def test_a_remover_deletes_the_files_that_used_items_name(tmp_path):
    paths = [tmp_path / str(i) for i in range(3)]
    for path in paths:
        path.write_bytes(b"1")
    remover = UsedDataRemover()
    remover.add_used_data({"data_id": str(paths[0])})
    remover.start()
    with pytest.raises(RuntimeError, match="runs already"):
        remover.start()
    wait_until(lambda: not paths[0].exists(), "the file is gone")
    remover.add_used_data({"data_id": str(paths[1])})
    remover.add_used_data({"data_id": str(tmp_path / "none")})
    remover.close()
    remover.add_used_data({"data_id": str(paths[2])})
    remover.close()
    assert not any(path.exists() for path in paths)
    for wrong in (3, {}, None):
        with pytest.raises(AssertionError, match="data_id"):
            remover.add_used_data(wrong)


def test_files_of_tracked_items_go_when_they_leave(make, tmp_path):
    paths = [tmp_path / str(i) for i in range(6)]
    for path in paths:
        path.write_bytes(b"1")
    changes = {"enable_track_used_data": True, "max_staleness": 2}
    buffer = make("advanced", size=3, **changes)
    buffer.start()
    items = [{"data_id": str(path), "collect_iter": i} for i, path in enumerate(paths)]
    buffer.push(items[:4], 0)
    wait_until(lambda: not paths[0].exists(), "the file is gone")
    assert buffer.sample(1, 4) is not None
    wait_until(lambda: not paths[2].exists(), "the file is gone")
    assert not paths[1].exists()
    buffer.clear()
    wait_until(lambda: not paths[3].exists(), "the file is gone")
    assert paths[4].exists()
    buffer.close()


def test_figures_of_samples_are_written_now_and_then_on_both_axes(make):
    scalars = Scalars()
    buffer = make(
        "advanced", size=5, anneal_step=0, monitor={"sampled_data_attr": {"print_freq": 2}}
    )
    buffer._tb_logger = scalars
    buffer.push([{"obs": i, "collect_iter": 1} for i in range(2)], 11)
    for iteration in (5, -1, 7, 8):
        buffer.sample(2, iteration)
    assert [tag for tag, _, x in scalars.written if x == 5] == [f"buffer_iter/{k}" for k in KEYS]
    tags = [f"buffer_{axis}/{k}" for k in KEYS for axis in ("iter", "step")]
    assert [tag for tag, _, _ in scalars.written] == 2 * tags
    assert {x for tag, _, x in scalars.written if "_step/" in tag} == {11}
    values = {tag: value for tag, value, _ in scalars.written}
    assert values["buffer_iter/beta"] == 0.4
    assert values["buffer_iter/staleness_max"] == 6
    assert values["buffer_iter/use_max"] >= 3


@pytest.mark.thorough
def test_what_was_written_is_flushed_at_close_and_the_logger_stays_open(place):
    class Flushed(Scalars):
        calls = 0

        def flush(self):
            self.calls += 1

        def close(self):
            raise AssertionError("it is the caller's")

    for kind in ("naive", "advanced"):
        scalars = Flushed()
        buffer = create_buffer({"type": kind, "name": kind, **place}, scalars)
        buffer.close()
        assert scalars.calls == 1
    create_buffer({"type": "naive", "name": "naive", **place}, Scalars()).close()  # has none


def test_a_fork_counts_though_a_thread_of_its_parent_was_counting():
    limits = {"push_sample_rate_limit": {"max": 2, "min": 0}, "window_seconds": 30}
    throughput = PeriodicThruputMonitor("buffer", {"seconds": 60}, None, None)
    attributes, controller = SampledDataAttrMonitor(TickTime(), 5), ThruputController(limits)

    def count():
        throughput.count(pushed=1)
        attributes.use_max = 1
        controller.count(pushed=1)

    with throughput._mutex, attributes._mutex, controller._mutex:
        child = multiprocessing.get_context("fork").Process(target=count, daemon=True)
        child.start()
        child.join(TIMEOUT_S)
        assert child.exitcode == 0
    throughput.close()


def test_a_push_is_done_though_the_items_cannot_be_counted_for_the_figures(make, monkeypatch):
    for kind in ("naive", "advanced"):
        buffer = make(kind, name=kind)
        with monkeypatch.context() as patched:
            patched.setattr(type(buffer._ring), "count", unreachable)
            buffer.push([{"obs": 1}] * 3, 0)
            assert len(buffer.sample(2, 0)) == 2
            buffer._throughput.write()
        assert (buffer.count(), buffer.push_count) == (3, 3)


def unreachable(ring):
    raise StorageUnreachableError("the server went away")


def test_a_period_may_be_longer_than_any_program_runs():
    throughput = PeriodicThruputMonitor("buffer", {"seconds": 1e300}, None, None)
    throughput._thread.join(0.05)
    assert throughput._thread.is_alive()
    throughput.close()


def test_without_a_step_or_an_iteration_their_axis_is_left_out(make):
    scalars = Scalars()
    buffer = make("advanced", size=5)
    buffer._tb_logger = scalars
    buffer.push([{"obs": 1}], -1)
    buffer.sample(1, -1)
    assert scalars.written == []


def test_only_the_first_of_several_learners_writes(make, monkeypatch):
    distributed = pytest.importorskip("torch.distributed")
    scalars = Scalars()
    buffer = make("advanced", size=5)
    buffer._tb_logger = scalars
    buffer.push([{"obs": 1}], 3)
    monkeypatch.setattr(distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(distributed, "get_rank", lambda: 1)
    buffer.sample(1, 1)
    assert scalars.written == []


def test_the_throughput_of_each_kind_is_written(make):
    for kind in ("naive", "advanced"):
        scalars = Scalars()
        buffer = make(kind, name=kind)
        buffer._throughput._tb_logger = scalars
        buffer.push([{"obs": 1}] * 3, 0)
        buffer.sample(2, 0)
        buffer._throughput.write()
        values = {tag: value for tag, value, _ in scalars.written}
        assert values == {
            f"{kind}_sec/pushed_in": 3,
            f"{kind}_sec/sampled_out": 2,
            f"{kind}_sec/removed": 0,
            f"{kind}_sec/current_have": 3,
        }


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_the_number_of_items_is_that_of_the_moment_when_it_is_written(make, kind):
    scalars = Scalars()
    buffer = make(kind, size=1_000)
    buffer._throughput._tb_logger = scalars

    def current():
        buffer._throughput.write()
        return scalars.written[-1][:2]

    buffer.push({"obs": 1}, 0)
    buffer.push([{"obs": 1} for _ in range(999)], 0)
    assert current() == ("buffer_sec/current_have", 1_000)
    buffer.clear()
    assert current() == ("buffer_sec/current_have", 0)
    buffer.push({"obs": 1}, 0)
    buffer.close()
    assert current() == ("buffer_sec/current_have", 0)  # and it is not opened again
    assert buffer._ring_ is None


@pytest.mark.parametrize("tracks", [False, True])
@pytest.mark.parametrize("kind", ["naive", "advanced"])
def test_items_that_are_overwritten_or_cleared_count_as_removed(make, kind, tracks):
    buffer = make(kind, size=5, enable_track_used_data=tracks)
    monitor = buffer._throughput

    def push(n):
        buffer.push([{"data_id": None} for _ in range(n)], 0)
        return monitor.remove_data_count

    assert [push(n) for n in (3, 2, 4, 1)] == [0, 0, 4, 5]
    assert push(12) == 17  # the five that it held, and seven that have no room
    buffer.clear()
    assert monitor.remove_data_count == 22
    assert [push(n) for n in (5, 2)] == [22, 24]


def test_removed_items_of_an_advanced_buffer_are_counted_once_each(make):
    buffer = make("advanced", size=5, max_use=1)
    buffer.push([{"obs": i} for i in range(5)], 0)
    assert len(buffer.sample(2, 0)) == 2  # equal priorities: two items, and both are used up
    buffer.push([{"obs": i} for i in range(5)], 0)  # overwrites the three that are left
    assert (buffer.count(), buffer._throughput.remove_data_count) == (5, 5)
    buffer.clear()
    assert buffer._throughput.remove_data_count == 10


def test_an_id_is_the_name_and_the_number():
    assert generate_id("buffer", np.int64(3)) == "buffer_3"
