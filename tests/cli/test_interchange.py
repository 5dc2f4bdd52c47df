"""`sqlbuffer export`, `import` and `insert`."""

import json
from pathlib import Path

import pytest

from sqlbuffer import ReplayBuffer
from tests.support.copied_buffers import comparable, json_rows, typed_steps


@pytest.mark.each_value
@pytest.mark.parametrize("make", [json_rows, typed_steps])
def test_a_buffer_goes_out_and_comes_back(run, buffer_url, make):
    source = make(buffer_url, "source")
    done = run("export", buffer_url, "out", "--buffer", "source")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("exported 'source' in ")
    assert f": {len(source)} steps, " in done.stdout
    done = run("import", "out", "copy.db")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.startswith("restored out to 'source' in ")
    assert comparable(list(ReplayBuffer("copy.db", "source"))) == comparable(list(source))
    again = run("import", "out", "copy.db")
    assert f"{len(source)} were there already" in again.stdout
    taken = run("export", buffer_url, "out", "--buffer", "source")
    assert taken.exit_code == 1
    assert "has an export already" in taken.stderr
    assert run("export", buffer_url, "out", "-b", "source", "--overwrite").exit_code == 0


@pytest.mark.thorough
def test_steps_and_columns_are_chosen(run, buffer_url):
    source = json_rows(buffer_url, "source")
    wanted = '{"field": "step", "op": "lt", "value": 15}'
    words = ["--format", "jsonl", "--columns", "step,reward", "--where", wanted]
    done = run("export", buffer_url, "-", *words)
    assert done.exit_code == 0, done.stderr
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["step"] for step in steps] == [
        row.exp_meta.step for row in source if row.exp_meta.step < 15
    ]
    assert set(steps[0]) <= {"step", "reward_t"}
    done = run("export", buffer_url, "steps.jsonl", "--format", "jsonl", "--eq", "agent_id=agent-1")
    assert done.exit_code == 0, done.stderr
    lines = Path("steps.jsonl").read_text().rstrip("\n").split("\n")
    assert {json.loads(line)["agent_id"] for line in lines} == {"agent-1"}


@pytest.mark.thorough
def test_keys_of_lines_are_those_that_commands_print(run, buffer_url):
    buffer = typed_steps(buffer_url, "source")
    assert run("export", buffer_url, "steps.jsonl", "-f", "jsonl").exit_code == 0
    printed = run("sample", buffer_url, "-n", "1", "--eq", "step=10", "--ndjson")
    known = set(json.loads(printed.stdout)) | {"arrays", "priority"}
    for line in Path("steps.jsonl").read_text().rstrip("\n").split("\n"):
        assert set(json.loads(line)) <= known
    ReplayBuffer(buffer_url, "again", config=buffer.config)
    done = run("insert", buffer_url, "--buffer", "again", "-", input=printed.stdout)
    assert done.exit_code == 0, done.stderr
    assert len(ReplayBuffer(buffer_url, "again")) == 1


def test_lines_of_a_pipe_make_a_buffer(run):
    done = run("insert", "new.db", "--buffer", "b", "-", input='{"state": 1, "reward": 0.5}\n')
    assert done.exit_code == 0, done.stderr
    assert "appended standard input to 'b' in sqlite:///" in done.stdout
    assert [row.exp_data.state for row in ReplayBuffer("new.db", "b")] == [1]
    done = run("insert", "new.db", "--buffer", "b", "-", input='{"state": 2}\n{"stat": 3}\n')
    assert done.exit_code == 2
    assert "line 2: unknown key 'stat' (did you mean state?)" in done.stderr
    assert "steps stored before it: 1" in done.stderr
    Path("more.jsonl").write_text('{"state": 3}\n')
    assert run("import", "more.jsonl", "new.db", "--buffer", "b").exit_code == 0
    assert [row.exp_data.state for row in ReplayBuffer("new.db", "b")] == [1, 2, 3]


@pytest.mark.parametrize("line", ["{", '{"reward": "much"}', '{"x": "text"}', "[1]"])
def test_a_first_line_that_is_wrong_makes_nothing(run, line):
    done = run("insert", "new.db", "--buffer", "b", "-", input=line + '\n{"state": 1}\n')
    assert done.exit_code == 2
    assert "sqlbuffer: line 1: " in done.stderr
    assert "steps stored before it: 0" in done.stderr
    assert not Path("new.db").exists()


def test_a_wrong_name_makes_nothing(run):
    done = run("insert", "new.db", "--buffer", "", "-", input='{"state": 1}\n')
    assert done.exit_code == 2
    assert not Path("new.db").exists()


def test_no_line_makes_no_buffer(run):
    done = run("insert", "new.db", "--buffer", "b", "-", input="\n")
    assert done.exit_code == 0, done.stderr
    assert "standard input has no steps: none is stored in 'b' in sqlite:///" in done.stdout
    assert "which is not made" in done.stdout
    assert not Path("new.db").exists()
    done = run("insert", "new.db", "--buffer", "b", "-", input='{"x": 1}\n')
    assert "1 of 1 step, in" in done.stdout
    assert list(ReplayBuffer("new.db", "b").fields) == ["x"]


def test_words_that_mean_nothing_are_named(run, buffer_url):
    json_rows(buffer_url, "source")
    done = run("export", buffer_url, "out", "--format", "csv")
    assert done.exit_code == 2
    assert "there is no format 'csv'; choose from parquet, jsonl" in done.stderr
    done = run("export", buffer_url, "-")
    assert done.exit_code == 2
    assert "parquet is not written to standard output" in done.stderr
    done = run("import", "nothing", "copy.db")
    assert done.exit_code == 2
    assert "there is no nothing" in done.stderr
    done = run("import", "nothing", "copy.db", "--column", "obs")
    assert done.exit_code == 2
    assert "--column takes NAME=FIELD" in done.stderr
