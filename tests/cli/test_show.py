import csv
import io
import json

import pytest

from sqlbuffer import ReplayBuffer
from tests.cli.conftest import ODD_TASK, talk
from tests.support import sql
from tests.support.array_rows import make_array_row
from tests.support.cli_errors import error_lines


def test_show_reads_like_a_protocol(run, filled):
    result = run("show", filled, "task_2", "--buffer", "arrays")
    assert result.exit_code == 0
    head, first, *_, last = result.stdout.split("\n\n")
    assert head.splitlines() == [
        "task     task_2  (test)",
        "buffer   arrays",
        "agents   agent",
        "steps    5",
        "reward   5 in total",
        "time     2023-11-14 22:13:20Z to 2023-11-14 22:13:24Z",
    ]
    assert first.splitlines() == [
        "step 0  agent agent  reward 1",
        "  state    float32(4,) [0 0 0 0]",
        "  actions  [0]",
    ]
    assert last.startswith("step 4  agent agent  reward 1\n")


def test_show_prints_messages_as_a_conversation_without_what_was_said_before(run, filled):
    text = run("show", filled, ODD_TASK).stdout
    assert "task     [red]task 'q' \"数\n学\"  (数学)" in text
    first, second = text.split("\nstep ")[1:]
    assert first.partition("  messages\n")[2] == (
        "    system: Be brief.\n"
        "      Be kind.\n"
        "    user: 2+2? [bold]数学[/bold]\n"
        '    assistant calls: add({"a": 2})\n'
    )
    assert second.startswith("1  agent solver  terminated\n")
    assert "reward 0" in first
    assert second.partition("  messages\n")[2].splitlines()[:2] == [
        "    (3 messages as before)",
        "    tool: 4",
    ]
    for part in ("frame: uint8(8, 8) min 0 mean 0 max 0", "nan: nan", "none: none", "2 bytes"):
        assert part in first


@pytest.mark.parametrize(
    ("messages", "shown"),
    [
        ("just text", "messages just text"),
        ([], "messages\n"),
        ([{"role": "user", "content": "\x1b[31m"}], "user: \\x1b[31m"),
        ([{"content": 5}], "-: 5"),
        ([{"role": "user"}], "user: {}"),
        (["hello"], "-: hello"),
        ([{"role": "a", "content": [{"image": b"abc"}, "x"]}], "a: {image: 3 bytes}\n      x"),
        ([{"role": "a", "tool_calls": [{"id": 1}, 7]}], "a calls: {id: 1}\n    a calls: 7"),
        (
            [{"role": "a", "tool_calls": [{"function": {"name": "f", "arguments": {"x": 1}}}]}],
            'a calls: f({"x": 1})',
        ),
        ([{"role": "a", "tool_calls": "odd", "content": ""}], "a: {"),
    ],
)
def test_messages_of_any_shape_are_shown(run, sqlite_url, messages, shown):
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="t", messages=messages)
    result = run("show", sqlite_url, "t")
    assert result.exit_code == 0
    assert shown in result.stdout


def test_agents_do_not_share_what_was_said_before(run, sqlite_url):
    said = [{"role": "user", "content": "hello"}]
    with ReplayBuffer(sqlite_url) as buffer:
        for step, agent in enumerate("aba"):
            buffer.add(task_id="t", agent_id=agent, step=step, messages=said)
    text = run("show", sqlite_url, "t").stdout
    assert text.count("user: hello") == 2
    assert text.count("(1 messages as before)") == 1


def test_episodes_have_headings(run, sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        for episode in ("e1", "e2"):
            rows = [make_array_row(step=step, episode_id=episode) for step in range(2)]
            buffer.store_batch(rows)
    text = run("show", sqlite_url, "task_0").stdout
    assert [line for line in text.splitlines() if "episode" in line] == ["episode e1", "episode e2"]


def test_json_rows_are_what_add_takes(run, filled):
    rows = json.loads(run("show", filled, ODD_TASK, "--json").stdout)
    assert [row["step"] for row in rows] == [0, 1]
    assert rows[0]["state"] == {"frame": [[0] * 8] * 8, "nan": None, "none": None, "raw": "YWI="}
    assert rows[0]["reward_t"] == 0.0
    assert rows[1]["reward_t"] is None
    assert rows[1]["messages"] == talk()[1].exp_data.messages
    with ReplayBuffer("sqlite://") as buffer:
        for row in rows:
            del row["seq"]
            assert buffer.add(**row).inserted == 1


def test_csv_and_ndjson_print_the_rows_in_full_too(run, filled):
    table = list(csv.DictReader(io.StringIO(run("show", filled, ODD_TASK, "--csv").stdout)))
    lines = [
        json.loads(line) for line in run("show", filled, ODD_TASK, "--ndjson").stdout.splitlines()
    ]
    assert [json.loads(row["messages"]) for row in table] == [row["messages"] for row in lines]
    assert table[0]["task_id"] == lines[0]["task_id"] == ODD_TASK
    assert (table[0]["terminated"], lines[0]["terminated"]) == ("false", False)


@pytest.mark.thorough
def test_the_buffer_that_has_the_task_is_found(run, filled):
    assert "buffer   arrays" in run("show", filled, "task_1").stdout
    with ReplayBuffer(filled, name="talks") as buffer:
        buffer.store(make_array_row(task=1))
    result = run("show", filled, "task_1")
    assert result.exit_code == 2
    assert "'arrays', 'talks'" in result.stderr
    assert run("show", filled, "task_1", "--buffer", "talks").exit_code == 0


@pytest.mark.parametrize("options", [(), ("--buffer", "arrays")])
def test_an_unknown_task_is_named_with_those_like_it(run, filled, options):
    result = run("show", filled, "task_9", *options)
    assert result.exit_code == 3
    assert "no task 'task_9'" in result.stderr
    assert "did you mean 'task_" in result.stderr
    assert len(error_lines(result.stderr)) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("task", ["zzz", "", "a\0b", "\ud800"])
def test_a_task_like_no_other_is_told_where_tasks_are_listed(run, filled, task):
    result = run("show", filled, task, "--buffer", "arrays")
    assert result.exit_code == 3
    assert "sqlbuffer ls URL --tasks" in result.stderr


def test_a_row_typed_in_sql_is_shown(run, sqlite_url):
    ReplayBuffer(sqlite_url).close()
    sql.run(
        sqlite_url,
        "INSERT INTO new_experiences (buffer_id, task_id, agent_id, step) VALUES (1, 't', 'a', 1)",
    )
    text = run("show", sqlite_url, "t").stdout
    assert "reward   - in total" in text
    assert "time     -" in text
    assert "step 1  agent a\n" in text


def test_show_prints_one_episode_of_a_task(run, tmp_path):
    url = f"sqlite:///{tmp_path}/episodes.db"
    with ReplayBuffer(url) as buffer:
        for key in ("a", "b"):
            buffer.store_episode({"reward": [1.0, 2.0]}, task_id="t", episode_id=key)
    found = json.loads(run("show", url, "t", "--episode", "b", "--json").stdout)
    assert [row["episode_id"] for row in found] == ["b", "b"]
    missing = run("show", url, "t", "--episode", "c")
    assert missing.exit_code != 0
    assert "no episode 'c' of task 't'; it has 'a', 'b'" in missing.stderr
