import json
import re

import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.errors import FlowControlError, StorageReadOnlyError
from tests.support.array_rows import make_array_row
from tests.support.sql import is_sqlite
from tests.support.sql import run as run_sql


def date_ahead(url):
    """Date all rows an hour ahead: rates are over one second then, on a slow machine too."""
    later = "now() + interval '1 hour'"
    if is_sqlite(url):
        later = "strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '+1 hour')"
    run_sql(url, f"UPDATE buffers SET created_at = {later}")
    run_sql(url, f"UPDATE experiences SET inserted_at = {later}")


@pytest.mark.thorough
def test_prints_a_line_a_buffer_where_nobody_s_terminal_is(run, filled):
    date_ahead(filled)
    lines = run("watch", filled, "--once").stdout.splitlines()
    assert [re.match(r"\S+Z (\w+): ", line)[1] for line in lines] == ["arrays", "empty", "talks"]
    assert "rows 20, fill 20%, in/s (60s) 20, out/s (60s) 0, out/in 0, waiting -," in lines[0]
    assert "rows 0, fill 0%, in/s (60s) 0, out/s (60s) 0, out/in -," in lines[1]
    (line,) = run("watch", filled, "--once", "--buffer", "talks").stdout.splitlines()
    assert "talks: rows 2, fill -" in line


def test_rates_say_over_which_time_they_are_and_that_draws_are_about(run, filled):
    with ReplayBuffer(filled, name="talks") as buffer:
        buffer.sample(2)
    (line,) = run("watch", filled, "--once", "-b", "talks", "--window", "2.5").stdout.splitlines()
    assert re.search(r"in/s \(2.5s\) \S+, out/s \(2.5s\) ≈ \S+,", line)


@pytest.mark.thorough
def test_json_has_every_figure_on_a_line(run, filled):
    with ReplayBuffer(filled, name="arrays", max_capacity=100) as buffer:
        buffer.sample(5)
        buffer.stats()
    run_sql(filled, "UPDATE buffers SET clock = 3")
    run_sql(filled, "UPDATE experiences SET model_version = 1")
    lines = run("watch", filled, "--once", "--json").stdout.splitlines()
    found = [json.loads(line) for line in lines]
    assert [figures["buffer"] for figures in found] == ["arrays", "empty", "talks"]
    arrays = found[0]
    assert (arrays["rows"], arrays["inserted"], arrays["sampled"], arrays["batches"]) == (
        20,
        20,
        5,
        1,
    )
    assert (arrays["fill"], arrays["samples_per_insert"]) == (0.2, 0.25)
    assert arrays["staleness"] == {
        "n": 20, "mean": 2, "min": 2, "p10": 2, "median": 2, "p90": 2, "max": 2,
    }  # fmt: skip
    assert (arrays["priorities"], arrays["uses"], arrays["waiting"]) == (None, None, [])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--every", "0"], 2, "--every is from 0.1"),
        (["--every", "nan"], 2, "--every"),
        (["--window", "-1"], 2, "--window"),
        (["--buffer", "other"], 3, "no buffer 'other'"),
    ],
)
def test_what_cannot_be_watched_is_refused(run, filled, arguments, code, said):
    result = run("watch", filled, "--once", *arguments)
    assert result.exit_code == code
    assert said in result.stderr


def test_a_database_that_is_not_there_or_has_no_schema_is_told(run, tmp_path):
    assert run("watch", f"sqlite:///{tmp_path}/none.db", "--once").exit_code == 3
    (tmp_path / "empty.db").touch()
    result = run("watch", f"sqlite:///{tmp_path}/empty.db", "--once")
    assert (result.exit_code, "db init" in result.stderr) == (4, True)


def test_a_database_that_may_only_be_read_is_watched(run, tmp_path):
    path = tmp_path / "replay.db"
    with ReplayBuffer(f"sqlite:///{path}") as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(3)])
    run_sql(f"sqlite:///{path}", "PRAGMA wal_checkpoint(TRUNCATE)")
    url = f"sqlite:///file:{path}?immutable=1&uri=true"
    result = run("watch", url, "--once")
    assert "default: rows 3" in result.stdout
    before = sorted(tmp_path.iterdir())
    assert run("watch", url, "--once", "--json").exit_code == 0
    assert sorted(tmp_path.iterdir()) == before


def test_analysts_watch_writers_keep_the_pace_and_learners_set_it(with_roles, login, run):
    learner, writer, analyst = (
        login(f"sqlbuffer_{role}") for role in ("learner", "writer", "analyst")
    )
    with ReplayBuffer(learner, name="older", wait_s=0) as buffer:
        buffer.set_rate_limiter(RateLimiter(1, 2, 4))
    with ReplayBuffer(writer, name="older", wait_s=0.1) as buffer:
        buffer.store_batch([make_array_row(step=step) for step in range(10, 13)])
        assert len(buffer.sample(2)) == 2
        with pytest.raises(FlowControlError):
            buffer.sample(4)
        with pytest.raises(StorageReadOnlyError):
            buffer.set_rate_limiter(None)
    assert "older: rows 7" in run("watch", analyst, "--once").stdout
    query = "SELECT inserted, sampled, may_insert FROM v_flow"
    assert run("sql", analyst, query, "--csv").stdout.splitlines()[1] == "3,2,true"
    with ReplayBuffer(analyst, name="older") as buffer:
        assert (buffer.flow().inserted, buffer.flow().sampled) == (3, 2)
