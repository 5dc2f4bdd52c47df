import csv
import io
import json
import re

import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from tests.cli.conftest import ODD_TASK
from tests.support.cli_errors import error_lines


def drawn(result):
    assert result.exit_code == 0
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_sample_draws_rows_and_shows_them_in_short(run, filled):
    result = run("sample", filled, "--buffer", "arrays", "-n", "3")
    assert result.exit_code == 0
    assert result.stdout.count("float32(4,) [") == 3
    assert result.stderr == ""


def test_a_seed_draws_the_same_again(run, filled):
    options = ("--buffer", "arrays", "-n", "4", "--ndjson")
    first, again, other = (
        [row["seq"] for row in drawn(run("sample", filled, *options, "--seed", seed))]
        for seed in ("1", "1", "2")
    )
    assert first == again != other
    assert len(set(first)) == 4


def test_sample_prints_rows_in_full_in_every_format(run, filled):
    options = ("--buffer", "talks", "-n", "2", "--seed", "3")
    rows = json.loads(run("sample", filled, *options, "--json").stdout)
    table = list(csv.DictReader(io.StringIO(run("sample", filled, *options, "--csv").stdout)))
    assert {row["task_id"] for row in rows} == {ODD_TASK}
    assert [row["seq"] for row in rows] == [int(row["seq"]) for row in table]
    assert json.loads(table[0]["state"])["frame"] == [[0] * 8] * 8


def test_whole_tasks_are_drawn_and_shown_a_line_each(run, filled):
    result = run("sample", filled, "--buffer", "arrays", "--tasks", "-n", "2")
    assert len(re.findall(r"│ task_\d  │ test      │     5 │", result.stdout)) == 2
    rows = drawn(run("sample", filled, "--buffer", "arrays", "--tasks", "-n", "2", "--ndjson"))
    assert len(rows) == 10
    assert [row["step"] for row in rows] == [*range(5), *range(5)]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        (("--eq", "step=3"), {3}),
        (("--eq", "exp_meta.step=3", "--eq", "task_id=task_1"), {3}),
        (("--condition", '{"field": "exp_meta.step", "op": "gt", "value": 2}'), {3, 4}),
        (
            ("--condition", '{"field": "exp_meta.step", "op": "gt", "value": 2}', "--eq", "step=4"),
            {4},
        ),
        (("--eq", "actions[0]=1"), {1, 3}),
        (("--eq", "terminated=false", "--eq", "reward_t=1"), {0, 1, 2, 3, 4}),
        (("--eq", "task_name=other"), set()),
    ],
)
def test_only_rows_that_match_are_drawn(run, filled, options, steps):
    rows = drawn(run("sample", filled, "--buffer", "arrays", "-n", "20", "--ndjson", *options))
    assert {row["step"] for row in rows} == steps


def test_declared_fields_are_asked_for_by_their_names(run, sqlite_url):
    fields = {"level": {"dtype": "int64", "column": True}, "map": {"dtype": "U8", "column": True}}
    with ReplayBuffer(sqlite_url, fields=fields) as buffer:
        buffer.extend({"level": [1, 2, 2], "map": ["a", "7", "b"]})
    assert len(drawn(run("sample", sqlite_url, "--eq", "level=2", "--ndjson"))) == 2
    assert len(drawn(run("sample", sqlite_url, "--eq", "map=7", "--ndjson"))) == 1
    assert "did you mean level?" in run("sample", sqlite_url, "--eq", "levels=2").stderr
    assert run("delete", sqlite_url, "--eq", "level=2", "--yes").exit_code == 0
    assert len(ReplayBuffer(sqlite_url)) == 1


def test_text_keys_compare_as_text(run, sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        for task in ("007", "1e3", "null"):
            buffer.add(task_id=task)
    for task in ("007", "1e3", "null"):
        (row,) = drawn(run("sample", sqlite_url, "--eq", f"task_id={task}", "--ndjson"))
        assert row["task_id"] == task


def test_a_value_may_hold_an_equals_sign_and_be_text(run, sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="t", state={"name": "a=b"})
    (row,) = drawn(run("sample", sqlite_url, "--eq", "state.name=a=b", "--ndjson"))
    assert row["state"] == {"name": "a=b"}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        ("--condition", "{"),
        ("--condition", "{}"),
        ("--condition", "[]"),
        ("--condition", "5"),
        ("--condition", '{"field": "exp_meta.stepp", "op": "eq", "value": 1}'),
        ("--eq", "step"),
        ("--eq", "stepp=1"),
        ("--eq", "=1"),
        ("-n", "-1"),
        ("-n", "many"),
        ("--seed", "-1"),
    ],
)
def test_what_cannot_be_drawn_is_a_usage_error_in_one_line(run, filled, options):
    result = run("sample", filled, "--buffer", "arrays", *options)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert len(error_lines(result.stderr)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--buffer", "empty"), "buffer 'empty' is empty\n"),
        (("--buffer", "empty", "--tasks", "--eq", "step=1"), "buffer 'empty' is empty\n"),
        (("--buffer", "talks"), "all 2 rows held in buffer 'talks', of 5 asked for\n"),
        (("--buffer", "talks", "--tasks"), "all 1 tasks held in buffer 'talks', of 5 asked for\n"),
        (("--buffer", "talks", "-n", "2"), ""),
        (
            ("--buffer", "talks", "--eq", "step=1"),
            "all 1 rows that match in buffer 'talks', of 5 asked for\n",
        ),
    ],
)
def test_it_is_said_when_fewer_rows_match(run, filled, options, said):
    result = run("sample", filled, *options)
    assert result.exit_code == 0
    assert result.stderr == said


@pytest.mark.thorough
def test_looking_at_rows_uses_none_and_waits_for_nobody(run, buffer_url):
    limits = {"max_use": 1, "max_staleness": 0, "min_size": 9, "track_samples": True}
    limiter = RateLimiter(1, min_size=100)
    with ReplayBuffer(buffer_url, **limits, rate_limiter=limiter) as buffer:
        for step in range(3):
            buffer.add(task_id="t", step=step, model_version=0)
        buffer.set_clock(5)
        for _ in range(2):
            rows = drawn(run("sample", buffer_url, "-n", "9", "--ndjson"))
            tasks = drawn(run("sample", buffer_url, "-n", "9", "--tasks", "--ndjson"))
            assert {row["step"] for row in rows} == {row["step"] for row in tasks} == {0, 1, 2}
        assert buffer.stats().uses.max == buffer.flow().sampled == buffer.stats().sampled == 0
    shown = run("sql", buffer_url, "SELECT count(*) AS n FROM v_samples", "--ndjson")
    assert drawn(shown) == [{"n": 0}]
