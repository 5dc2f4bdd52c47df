"""What TensorBoard and Prometheus are given, read back."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import ArgumentError, MissingExtraError
from sqlbuffer.monitoring import PrometheusCollector, TensorBoardMonitor, prometheus_text
from tests.support.array_rows import make_array_row
from tests.support.processes import wait_until
from tests.support.sql import run


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, name='with "quotes"', max_capacity=8) as buffer:
        buffer.store_batch([make_array_row(step=step, model_version=step) for step in range(10)])
        run(buffer_url, "UPDATE buffers SET clock = 12")
        buffer.sample(4)
        yield buffer


def test_prometheus_reads_the_text(buffer):
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    from prometheus_client import REGISTRY
    from prometheus_client.parser import text_string_to_metric_families

    before = [family.name for family in REGISTRY.collect()]
    families = {f.name: f for f in text_string_to_metric_families(prometheus_text(buffer))}
    assert [family.name for family in REGISTRY.collect()] == before
    found = {
        (sample.name, *sorted(sample.labels.values())): (sample.value, family.type)
        for family in families.values()
        for sample in family.samples
    }
    name = 'with "quotes"'
    assert found["sqlbuffer_rows", name] == (8, "gauge")
    assert found["sqlbuffer_capacity_rows", name] == (8, "gauge")
    assert found["sqlbuffer_inserted_rows_total", name] == (10, "counter")
    assert found["sqlbuffer_evicted_rows_total", name] == (2, "counter")
    assert found["sqlbuffer_sampled_rows_total", name] == (4, "counter")
    assert found["sqlbuffer_sampled_batches_total", name] == (1, "counter")
    assert found["sqlbuffer_waiting_calls", "insert", name] == (0, "gauge")
    assert found["sqlbuffer_row_staleness_iterations", "max", name] == (10, "gauge")
    assert found["sqlbuffer_clock_iterations", name] == (12, "gauge")
    assert 0 <= found["sqlbuffer_oldest_row_age_seconds", name][0] < 60
    assert not [key for key in found if key[0] == "sqlbuffer_row_uses"]
    assert all(family.documentation for family in families.values())


def test_a_registry_of_the_user_s_collects_several_buffers_at_each_scrape(buffer, buffer_url):
    client = pytest.importorskip(
        "prometheus_client", reason="allowed: prometheus_client is not installed"
    )
    registry = client.CollectorRegistry()
    with ReplayBuffer(buffer_url, name="other") as other:
        registry.register(PrometheusCollector(buffer, other))
        for n in range(2):
            assert registry.get_sample_value("sqlbuffer_rows", {"buffer": "other"}) == n
            assert registry.get_sample_value("sqlbuffer_rows", {"buffer": buffer.name}) == 8
            other.add(step=n)


def read_events(folder):
    """Return {tag: {step: value}} of the events in a folder."""
    from tensorboardX.proto.event_pb2 import Event

    found = {}
    (path,) = folder.glob("events*")
    data = path.read_bytes()
    while data:
        size = int.from_bytes(data[:8], "little")
        event = Event.FromString(data[12 : 12 + size])
        data = data[12 + size + 4 :]
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            held = value.histo if kind == "histo" else value.simple_value
            found.setdefault(value.tag, {})[event.step] = held
    return found


def test_tensorboard_has_scalars_and_histograms(buffer, tmp_path):
    pytest.importorskip("tensorboardX", reason="allowed: tensorboardX is not installed")
    monitor = TensorBoardMonitor(buffer, tmp_path / "runs", every_s=3_600)
    assert monitor.write(step=7)
    assert not monitor.write(step=8)
    buffer.sample(2)
    assert monitor.write(step=9, now=True)
    monitor.close()
    found = read_events(tmp_path / "runs")
    home = f"sqlbuffer/{buffer.name}"
    home = next(tag for tag in found if tag.endswith("/rows")).removesuffix("/rows")
    assert found[f"{home}/rows"] == {7: 8.0, 9: 8.0}
    assert found[f"{home}/sampled"] == {7: 4.0, 9: 6.0}
    assert found[f"{home}/samples_per_insert"][7] == pytest.approx(0.4)
    # Steps 2 to 9 are held, and the clock is 12.
    assert found[f"{home}/staleness_mean"][7] == np.mean(12 - np.arange(2, 10))
    histogram = found[f"{home}/staleness"][7]
    assert (histogram.num, histogram.min, histogram.max) == (8, 3, 10)
    assert f"{home}/uses_mean" not in found


class Noting:
    def __init__(self):
        self.noted = []

    def add_scalar(self, tag, value, step):
        self.noted.append((tag, value, step))

    def add_histogram(self, tag, values, step):
        self.noted.append((tag, len(values), step))


def test_a_thread_writes_until_the_block_ends_and_survives_the_database(buffer, buffer_url, caplog):
    writer = Noting()
    with TensorBoardMonitor(buffer, writer, every_s=0.01) as monitor:
        tag = f"sqlbuffer/{buffer.name}/rows"
        wait_until(lambda: sum(noted[0] == tag for noted in writer.noted) >= 2, "two looks")
        ReplayBuffer.drop(buffer_url, buffer.name)
        wait_until(lambda: "dropped" in caplog.text, "the error is logged")
        assert monitor._thread.is_alive()
    assert monitor._thread is None


@pytest.mark.parametrize("every_s", [-1, float("nan"), True, None, "1"])
def test_a_monitor_that_cannot_be_is_refused(every_s):
    with ReplayBuffer("sqlite://") as buffer:
        with pytest.raises(ArgumentError, match="every_s"):
            TensorBoardMonitor(buffer, Noting(), every_s=every_s)
        with pytest.raises(TypeError, match="writer is a SummaryWriter or the path of a folder"):
            TensorBoardMonitor(buffer, 5)


@pytest.mark.parametrize("window_s", [0, None, 3_601])
def test_a_monitor_refuses_a_window_when_it_is_made(window_s):
    refused = pytest.raises(ArgumentError, match="window_s")
    with ReplayBuffer("sqlite://") as buffer, refused:
        TensorBoardMonitor(buffer, Noting(), window_s=window_s)


def test_what_is_no_buffer_is_not_monitored():
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    with ReplayBuffer("sqlite://") as buffer:
        for given in (None, "sqlite://", [buffer]):
            with pytest.raises(TypeError, match="buffer is a ReplayBuffer"):
                TensorBoardMonitor(given, Noting())
            with pytest.raises(TypeError, match="each of buffers is a ReplayBuffer"):
                PrometheusCollector(given)


def test_buffers_of_one_name_are_not_collected_together(buffer):
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    with ReplayBuffer("sqlite://", name=buffer.name) as other:
        for given in (buffer, other):
            with pytest.raises(ValueError, match="two buffers are named"):
                prometheus_text(buffer, given)


def test_a_folder_is_text_bytes_or_a_path(buffer, tmp_path):
    pytest.importorskip("tensorboardX", reason="allowed: tensorboardX is not installed")
    logs = tmp_path / "logs"
    text = str(logs / "größe")
    for folder in (text, os.fsencode(text), Path(text)):
        TensorBoardMonitor(buffer, folder).close()
    assert [path.name for path in logs.iterdir()] == ["größe"]


def test_a_package_that_is_missing_is_named(monkeypatch, tmp_path):
    for name in ("tensorboardX", "torch.utils.tensorboard", "prometheus_client.core"):
        monkeypatch.setitem(sys.modules, name, None)
    with ReplayBuffer("sqlite://") as buffer:
        with pytest.raises(MissingExtraError, match=r"\[tensorboardX\]"):
            TensorBoardMonitor(buffer, tmp_path)
        with pytest.raises(MissingExtraError, match=r"\[prometheus\]"):
            prometheus_text(buffer)
