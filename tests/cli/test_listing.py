import csv
import io
import json

import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import ODD_TASK
from tests.support import sql
from tests.support.array_rows import make_array_row
from tests.support.cli_errors import error_lines
from tests.support.leases import expire


def cells(text):
    """Return the table's rows, by column."""
    lines = [line.strip("│").split("│") for line in text.splitlines() if line.startswith("│")]
    header, *rows = [[cell.strip() for cell in line] for line in lines]
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_ls_lists_buffers(run, filled):
    rows = {row["buffer"]: row for row in cells(run("ls", filled).stdout)}
    assert list(rows) == ["arrays", "empty", "talks"]
    assert rows["arrays"]["rows"] == "20"
    assert rows["arrays"]["capacity"] == "100"
    assert rows["arrays"]["fill"] == "20%"
    assert rows["arrays"]["tasks"] == "4"
    assert rows["talks"]["capacity"] == rows["talks"]["fill"] == "-"
    assert rows["empty"]["rows"] == rows["empty"]["tasks"] == "0"
    assert rows["empty"]["last_insert_at"] == "-"


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["ls", "info"])
def test_the_formats_say_the_same(run, filled, command):
    as_json = json.loads(run(command, filled, "--json").stdout)
    lines = [json.loads(line) for line in run(command, filled, "--ndjson").stdout.splitlines()]
    table = list(csv.DictReader(io.StringIO(run(command, filled, "--csv").stdout)))
    assert as_json == lines
    assert [row["buffer"] for row in as_json] == ["arrays", "empty", "talks"]
    assert as_json[0]["fill"] == 0.2
    assert as_json[2]["capacity"] is None
    assert as_json[0]["last_insert_at"].endswith("Z")
    assert [row["tasks"] for row in table] == [str(row["tasks"]) for row in as_json]
    assert table[2]["capacity"] == ""


def test_ls_counts_only_what_is_in_the_window(run, schema_url):
    with ReplayBuffer(schema_url, max_capacity=50) as buffer:
        buffer.store_batch([make_array_row(task=n, step=n) for n in range(50)])
        # By hand, so that nothing is evicted.
        sql.run(schema_url, "UPDATE buffers SET max_capacity = 10")
    (row,) = json.loads(run("ls", schema_url, "--json").stdout)
    assert (row["rows"], row["capacity"], row["tasks"], row["fill"]) == (10, 10, 10, 1.0)


def test_ls_lists_tasks_the_latest_first_and_says_how_many_there_are(run, filled):
    result = run("ls", filled, "arrays", "--limit", "3")
    assert [row["task_id"] for row in cells(result.stdout)] == ["task_0", "task_1", "task_2"]
    assert result.stderr == "1 more tasks; --limit 0 lists all\n"
    everything = run("ls", filled, "--buffer", "arrays", "--limit", "0", "--json")
    rows = json.loads(everything.stdout)
    assert everything.stderr == ""
    assert len(rows) == 4
    assert rows[0] == {
        "task_id": "task_0",
        "task_name": "test",
        "steps": 5,
        "agents": 1,
        "total_reward": 5.0,
        "first_at": rows[0]["first_at"],
        "last_at": rows[0]["last_at"],
    }
    assert rows[0]["first_at"].startswith("2023-11-14T22:13:20")


def test_the_latest_task_is_the_one_whose_last_step_is_latest(run, schema_url):
    with ReplayBuffer(schema_url) as buffer:
        buffer.store_batch([make_array_row(task=n, step=step) for n, step in enumerate([1, 3, 2])])
    rows = json.loads(run("ls", schema_url, "--tasks", "--json").stdout)
    assert [row["task_id"] for row in rows] == ["task_1", "task_2", "task_0"]


def test_a_task_is_shown_as_it_is_called(run, filled):
    text = run("ls", filled, "talks").stdout
    assert "[red]task 'q' \"数" in text
    (row,) = json.loads(run("ls", filled, "talks", "--json").stdout)
    assert row["task_id"] == ODD_TASK
    assert row["total_reward"] == 0.0


def test_control_characters_do_not_reach_the_terminal(run, schema_url):
    with ReplayBuffer(schema_url) as buffer:
        buffer.add(task_id="\x1b[2Jgone\x07\x9b", step=1)
    result = run("ls", schema_url, "--tasks")
    assert "\\x1b[2Jgone\\x07\\x9b" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.thorough
def test_a_time_that_no_calendar_has_is_no_error(run, schema_url):
    with ReplayBuffer(schema_url) as buffer:
        buffer.add(task_id="milliseconds", execute_time=1.7e12)
        buffer.add(task_id="never", execute_time=float("inf"))
    for command in (
        ["ls", schema_url, "--tasks"],
        ["info", schema_url],
        ["show", schema_url, "never"],
    ):
        result = run(*command)
        assert result.exit_code == 0
    rows = json.loads(run("ls", schema_url, "--tasks", "--json").stdout)
    assert {row["task_id"] for row in rows} == {"milliseconds", "never"}


@pytest.mark.parametrize("command", [("ls",), ("info",)])
def test_a_database_without_buffers_says_so(run, schema_url, command):
    result = run(*command, schema_url)
    assert result.exit_code == 0
    assert "no buffers yet" in result.stderr
    assert run(*command, schema_url, "--json").stdout == "[]\n"


def test_an_empty_buffer_says_so(run, filled):
    result = run("ls", filled, "empty")
    assert result.exit_code == 0
    assert "buffer 'empty' is empty" in result.stderr
    assert run("ls", filled, "empty", "--csv").stdout.count("\n") == 1


@pytest.mark.parametrize("command", [("ls", "--tasks"), ("sample",), ("resize", "5")])
def test_several_buffers_want_one_named(run, filled, command):
    result = run(command[0], filled, *command[1:])
    assert result.exit_code == 2
    assert "--buffer NAME" in result.stderr
    assert "'arrays', 'empty', 'talks'" in result.stderr


def test_the_buffer_default_is_meant_where_there_are_several(run, filled):
    with ReplayBuffer(filled) as buffer:
        buffer.add(task_id="of default")
    assert "of default" in run("ls", filled, "--tasks").stdout


@pytest.mark.thorough
@pytest.mark.parametrize(
    "command", [("ls",), ("sample",), ("resize", "5"), ("delete", "--all-rows"), ("show", "t")]
)
def test_a_buffer_that_is_not_there_is_named_with_those_that_are(run, filled, command):
    result = run(command[0], filled, *command[1:], "--buffer", "array")
    assert result.exit_code == 3
    assert "no buffer 'array'" in result.stderr
    assert "'arrays', 'empty', 'talks'" in result.stderr
    assert len(error_lines(result.stderr)) == 1


def test_two_buffers_at_once_are_a_usage_error(run, filled):
    assert run("ls", filled, "arrays", "--buffer", "talks").exit_code == 2


@pytest.mark.parametrize(
    "options", [("--json", "--csv"), ("--csv", "--ndjson"), ("--json", "--ndjson")]
)
@pytest.mark.parametrize(
    "command", [("info",), ("ls",), ("show", "t"), ("sql", "SELECT 1"), ("sample",), ("doctor",)]
)
def test_two_formats_at_once_are_a_usage_error(run, command, options):
    result = run(*command, *options)
    assert result.exit_code == 2
    assert f"{options[0]} and {options[1]} exclude each other" in result.stderr


def test_info_shows_every_buffer(run, schema_url):
    for name, capacity in (("small", 10), ("unlimited", None)):
        with ReplayBuffer(schema_url, name=name, max_capacity=capacity) as buffer:
            buffer.store_batch([make_array_row(task=n // 8, step=n) for n in range(24)])
    ReplayBuffer(schema_url, name="[red]empty[/]", max_capacity=1).close()
    lines = run("info", schema_url).output.splitlines()
    assert lines[0].endswith("schema 0001")
    cells = {
        row[0]: row[1:6]
        for row in ([cell.strip() for cell in line.strip("│").split("│")] for line in lines)
        if len(row) > 1
    }
    assert cells["small"] == ["10", "10", "100%", "2", "row"]
    assert cells["unlimited"] == ["24", "-", "-", "3", "row"]
    assert cells["[red]empty[/]"] == ["0", "1", "0%", "0", "row"]


@pytest.mark.thorough
def test_info_shows_limits_and_what_is_out_where_a_buffer_has_some(run, schema_url):
    ReplayBuffer(schema_url, name="plain").close()
    assert "max_use" not in run("info", schema_url).output
    settings = {"max_use": 3, "max_staleness": 0, "min_size": 2, "priorities": True}
    with ReplayBuffer(schema_url, name="full", leases=True, max_capacity=6, **settings) as buffer:
        buffer.store_batch([make_array_row(task=0, step=n) for n in range(8)])
        buffer.quarantine([1, 2, 3, 4])
        buffer.set_clock(7)
        with buffer.lease(2, order="freshest"), buffer.lease(1, order="fifo"):
            found = json.loads(run("info", schema_url, "--json").output)
            table = run("info", schema_url).output
        buffer.lease(2, order="freshest").__enter__()
        expire(schema_url)
        assert json.loads(run("info", schema_url, "--json").output)[0]["leased"] == 0
    own = {"leased": 3, "quarantined": 2, "clock": 7, "alpha": 0.6}
    own |= {name: settings[name] for name in ("max_use", "max_staleness", "min_size")}
    assert {name: found[0][name] for name in own} == own
    assert {name: found[1][name] for name in own} == {
        "leased": 0, "quarantined": 0, "clock": None, "alpha": None, "max_use": None,
        "max_staleness": None, "min_size": 0,
    }  # fmt: skip
    assert "max_use" in table
    assert "expired" not in table


def test_info_of_a_database_without_buffers(run, schema_url):
    result = run("info", schema_url)
    assert result.exit_code == 0
    assert "no buffers yet" in result.output


def test_info_shows_the_typed_fields_of_each_buffer(run, schema_url):
    fields = {"obs": ("float32", (3, 2)), "level": {"dtype": "int64", "column": True}}
    meta = {"seed": "int64"}
    ReplayBuffer(schema_url, name="typed", fields=fields, meta_fields=meta).close()
    ReplayBuffer(schema_url, name="plain").close()
    plain, typed = json.loads(run("info", schema_url, "--json").output)
    assert plain["fields"] is None
    expected = [
        ("obs", "step", "float32", [3, 2], False),
        ("level", "step", "int64", [], True),
        ("seed", "episode", "int64", [], False),
    ]
    assert [tuple(field.values()) for field in typed["fields"]] == expected
    table = run("info", schema_url).output
    assert [*typed["fields"][0]] == ["field", "level", "dtype", "shape", "comparable"]
    lines = [line.replace(" ", "") for line in table.splitlines()]
    assert "│typed│obs│step│float32│[3,2]│false│" in lines
    assert "│typed│seed│episode│int64│[]│false│" in lines
    assert "comparable" not in run("info", schema_url, "--csv").output.splitlines()[1]
