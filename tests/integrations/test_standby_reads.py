"""All that reads works with the standby's own URL: calls, the command line, the page."""

import json
import re
from operator import itemgetter

import pytest
from typer.testing import CliRunner

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.cli import app as command_line
from sqlbuffer.errors import StorageReadOnlyError
from sqlbuffer.web import app
from tests.conftest import close_pool
from tests.support.rows import make_row
from tests.support.servers import primary_and_standby, server_programs, wait_for_replay
from tests.support.web_client import WebClient

LENGTH = 10


@pytest.fixture(scope="module")
def urls():
    """Yield the URLs of a primary with two buffers, and of its standby, which has them as well."""
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    with primary_and_standby(programs) as (primary, standby):
        with ReplayBuffer(
            primary.url, "walks", create=True, leases=True, fields={"x": "int64"},
            observation_fields=["x"],
        ) as walks:  # fmt: skip
            for n in range(4):
                x = [100 * n + t for t in range(LENGTH)]
                ends = [t == LENGTH - 1 for t in range(LENGTH)]
                walks.store_episode(
                    {"x": x, "reward": [1.0] * LENGTH, "terminated": ends},
                    episode_id=f"e{n}", task_id=f"t{n}",
                )  # fmt: skip
        with ReplayBuffer(primary.url, "rows") as rows:
            rows.store_batch([make_row(step=step) for step in range(20)])
        wait_for_replay(primary, standby)
        yield primary.url, standby.url
        close_pool(primary.url)
        close_pool(standby.url)


@pytest.fixture
def walks(urls):
    with ReplayBuffer(urls[1], "walks") as buffer:
        yield buffer


@pytest.fixture
def run(urls, tmp_path, monkeypatch):
    """Run a command with the URL of the standby in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SQLBUFFER_URL", urls[1])

    def invoke(*words):
        result = CliRunner().invoke(command_line, list(words))
        assert result.exit_code == 0, result.output
        return result.stdout

    return invoke


@pytest.mark.parametrize("mode", ["step", "transition", "n_step", "window", "trajectory"])
def test_batches_of_each_mode_are_read(walks, mode):
    options = {"n_step": {"n_step": 3}, "window": {"length": 4}}.get(mode, {})
    (first, *_) = walks.loader(mode, 4, epochs=1, **options)
    assert first.n_rows >= 4


def test_steps_tasks_and_transitions_are_drawn_and_read(walks):
    drawn = walks.sample_transitions(16, n_step=2)
    assert (drawn.next_x - drawn.x <= 2).all()
    assert [len(rows) for rows in walks.sample_tasks(2)] == [LENGTH] * 2
    assert [row.fields["x"] for row in walks.get_by_task_id("t2")] == [*range(200, 210)]
    assert len(walks.sample(4, condition=QueryBuilder().lt("step", 5).build())) == 4
    assert len(walks.get_paginated(page=1, page_size=7)) == 7
    assert walks.stats().rows == 4 * LENGTH


def test_leases_name_the_standby(walks):
    with pytest.raises(StorageReadOnlyError, match=r"server is a standby.* the primary"):
        walks.lease(2, timeout_s=0).__enter__()


def test_ranks_of_a_process_that_reads_the_standby_share_a_pass(urls):
    primary, standby = urls
    seen = []
    for rank in range(2):
        with ReplayBuffer(primary, "walks", read_url=standby) as buffer:
            loader = buffer.loader("step", 5, epochs=1, shard=(rank, 2), even=True)
            batches = [batch.x.tolist() for batch in loader]
            assert len(batches) == 4
            seen += [x for batch in batches for x in batch]
    assert sorted(seen) == [100 * n + t for n in range(4) for t in range(LENGTH)]


def test_commands_list_and_show(run):
    listed = {own["buffer"]: own["rows"] for own in json.loads(run("ls", "--json"))}
    assert listed == {"walks": 40, "rows": 20}
    assert "walks" in run("info")
    assert "t1" in run("show", "t1", "-b", "walks")
    counted = run("sql", "SELECT buffer, count(*) AS n FROM v_experiences GROUP BY 1", "--json")
    assert {own["buffer"]: own["n"] for own in json.loads(counted)} == listed
    watched = [json.loads(line) for line in run("watch", "--once", "--json").splitlines()]
    assert sorted(map(itemgetter("buffer", "rows"), watched)) == [("rows", 20), ("walks", 40)]


def test_doctor_says_that_it_is_a_standby(run):
    found = {own["check"]: own for own in map(json.loads, run("doctor", "--ndjson").splitlines())}
    assert "the server is a standby: reading only" in found["can write"]["detail"]
    assert found["advisory locks"]["status"] == "OK"


def test_commands_export_and_report(run, urls, tmp_path):
    run("report", "-o", "report.html")
    assert ">walks</h1>" in (tmp_path / "report.html").read_text(encoding="utf-8")
    exported = run("export", urls[1], "out", "-b", "rows")
    assert ": 20 steps" in exported


def test_the_page_shows_each_view(urls):
    client = WebClient(app(urls[1]))
    (episode,) = re.findall(
        r"/buffers/walks/episodes/\d+", client.get("/episodes?buffer=walks").text
    )[:1]
    views = ("/", "/buffer?buffer=walks", episode, "/buffers/rows/task?task=t", "/sql")
    assert {path: client.get(path).status_code for path in views} == dict.fromkeys(views, 200)
