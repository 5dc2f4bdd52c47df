"""Prometheus scrapes what the exporter serves, and alerts name only figures that it has."""

import re

import pytest
import yaml

from deploy.services import EXPORTER_PORT, DatabaseCollector
from sqlbuffer import ReplayBuffer
from tests.conftest import close_pool
from tests.docs.pages import text_of
from tests.support.deployment import DEPLOY

PAGE = "docs/how-to/monitor-and-alert.md"
SCRAPED = yaml.safe_load((DEPLOY / "prometheus.yml").read_text(encoding="utf-8"))
(GROUP,) = yaml.safe_load((DEPLOY / "alerts.yml").read_text(encoding="utf-8"))["groups"]
ALERTS = {rule["alert"]: rule for rule in GROUP["rules"]}


def samples_of(url):
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    return [sample for family in DatabaseCollector(url).collect() for sample in family.samples]


@pytest.fixture
def scraped(make_database_url):
    """Return what the exporter serves about a buffer that has every figure."""
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url, max_capacity=10, max_use=5, max_staleness=100) as buffer:
        for step in range(20):
            buffer.add(task_id="t", step=step, model_version=1)
        buffer.set_clock(3)
        buffer.sample(4)
    yield samples_of(url)
    close_pool(url)


def test_every_rule_names_figures_labels_and_points_that_there_are(scraped):
    names = {sample.name for sample in scraped} | {"up"}
    labels = {name for sample in scraped for name in sample.labels}
    points = {sample.labels["stat"] for sample in scraped if "stat" in sample.labels}
    for name, rule in ALERTS.items():
        # Functions and keywords are followed by a bracket, or are operators.
        words = set(re.findall(r"\b(?:sqlbuffer_\w+|up)\b", rule["expr"]))
        assert words, name
        assert words <= names, name
        assert set(re.findall(r'stat="(\w+)"', rule["expr"])) <= points
        assert set(re.findall(r"\$labels\.(\w+)", str(rule["annotations"]))) <= labels
        assert set(rule) == {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("page", "ticket")


def test_the_exporter_serves_the_figures_of_a_database(scraped):
    found = {sample.name: sample.value for sample in scraped}
    assert found["sqlbuffer_up"] == 1
    assert found["sqlbuffer_rows"] == 10
    assert found["sqlbuffer_database_bytes"] > 1e6
    checks = {s.labels["check"]: s.value for s in scraped if s.name == "sqlbuffer_check_status"}
    assert checks["autovacuum"] == checks["oldest transaction"] == checks["connections"] == 0


@pytest.mark.thorough
def test_the_exporter_follows_buffers_that_come_and_go(schema_url):
    pytest.importorskip("prometheus_client", reason="allowed: prometheus_client is not installed")
    collector = DatabaseCollector(schema_url)

    def buffers():
        families = collector.collect()
        return {
            sample.labels["buffer"]
            for family in families
            for sample in family.samples
            if sample.name == "sqlbuffer_rows"
        }

    assert buffers() == set()
    for name in ("first", "second"):
        ReplayBuffer(schema_url, name).close()
    assert buffers() == {"first", "second"}
    ReplayBuffer.drop(schema_url, "first")
    assert buffers() == {"second"}
    ReplayBuffer(schema_url, "first").close()
    assert buffers() == {"first", "second"}


def test_a_database_that_does_not_answer_is_a_figure(capsys):
    (sample,) = samples_of("postgresql://me@127.0.0.1:1/replay")
    assert (sample.name, sample.value) == ("sqlbuffer_up", 0)
    assert "no figures" in capsys.readouterr().err


def test_prometheus_scrapes_the_exporter():
    (job,) = SCRAPED["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"exporter:{EXPORTER_PORT}"]}]
    assert f'job="{job["job_name"]}"' in ALERTS["SqlbufferDown"]["expr"]
    assert SCRAPED["rule_files"] == ["alerts.yml"]


def test_the_page_explains_every_alert():
    assert [name for name in ALERTS if f"`{name}`" not in text_of(PAGE)] == []
