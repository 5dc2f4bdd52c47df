"""The command as a shell runs it: pipes, terminals, signals, exit codes."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from contextlib import suppress

import pytest

from sqlbuffer import RateLimiter, ReplayBuffer
from sqlbuffer.errors import SQLBufferError
from tests.cli.conftest import start
from tests.cli.test_destroying import held
from tests.integrations.cli.terminal import run_on_terminal
from tests.support import sql
from tests.support.array_rows import make_array_row
from tests.support.cli_errors import error_lines
from tests.support.processes import wait_until
from tests.support.sql import buffer_id
from tests.support.sql import run as run_sql

ENDLESS = "WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n) SELECT {} FROM n"
ASLEEP = (
    "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
)


def finish(process):
    stdout, stderr = process.communicate(timeout=60)
    return process.returncode, stdout, stderr


def test_a_table_on_a_terminal_is_drawn_with_styles_and_elsewhere_without(filled):
    shown = run_on_terminal("ls", filled)
    assert shown.exit_code == 0
    assert "┃ buffer" in shown.text
    assert shown.styled != shown.text
    code, stdout, stderr = finish(start("ls", filled))
    assert (code, stderr) == (0, "")
    assert "│ arrays" in stdout
    assert "\x1b" not in stdout


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_fits_its_terminal_and_shows_every_value(filled, width):
    shown = run_on_terminal("info", filled, width=width)
    _, *lines = shown.text.splitlines()
    assert max(map(len, lines)) <= width
    for value in ("arrays", "talks", "empty", "20%", "created_at"):
        assert value in shown.text


def test_columns_without_room_become_a_block_a_row(filled):
    text = run_on_terminal("sql", filled, "SELECT * FROM v_experiences WHERE step = 4").text
    assert "-- 1 --\n" in text
    assert "      task_id  task_0\n" in text
    assert "-- 4 --\n" in text


def test_a_terminal_gets_the_first_rows_and_is_told(schema_url):
    sql.fill(schema_url, 1500).close()
    text = run_on_terminal("sql", schema_url, "SELECT seq FROM v_experiences ORDER BY seq").text
    assert "│ 1000 │" in text
    assert "│ 1001 │" not in text
    assert "these are the first 1,000 rows" in text


def test_options_choose_the_format_on_a_terminal_too(filled):
    text = run_on_terminal("ls", filled, "--ndjson").text
    assert [json.loads(line)["buffer"] for line in text.splitlines()] == [
        "arrays",
        "empty",
        "talks",
    ]


def test_doctor_colours_its_verdicts_on_a_terminal(filled):
    shown = run_on_terminal("doctor", filled)
    assert "\x1b[32mOK" in shown.styled
    assert "OK   schema: revision" in shown.text


@pytest.mark.each_value
@pytest.mark.parametrize("format_", ["--ndjson", "--csv", "--json"])
def test_a_reader_that_leaves_ends_the_command_quietly(schema_url, format_):
    sql.fill(schema_url, 20_000).close()
    process = start("sql", schema_url, "SELECT * FROM v_experiences", format_)
    assert process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    assert finish(process) == (141, None, "")


def test_a_reader_that_leaves_a_table_ends_it_quietly(schema_url):
    sql.fill(schema_url, 20_000).close()
    process = start("sql", schema_url, "SELECT * FROM v_experiences")
    process.stdout.close()
    process.stdout = None
    assert finish(process) == (141, None, "")


def test_ctrl_c_ends_a_listing_with_130_and_no_traceback(schema_url):
    process = start("sql", schema_url, ENDLESS.format("n"), "--ndjson")
    assert process.stdout.readline() == '{"n":1}\n'
    os.kill(process.pid, signal.SIGINT)
    code, _, stderr = finish(process)
    assert (code, stderr) == (130, "")


def test_ctrl_c_ends_a_question_that_the_server_works_on(postgres_url):
    process = start("sql", postgres_url, "SELECT pg_sleep(600)")
    wait_until(lambda: sql.run(postgres_url, ASLEEP), "the query")
    os.kill(process.pid, signal.SIGINT)
    code, _, stderr = finish(process)
    assert (code, stderr) == (130, "")
    wait_until(lambda: not sql.run(postgres_url, ASLEEP), "the end of the query")


def test_text_that_the_terminal_cannot_write_is_escaped(sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="数学", state={"odd": "\ud800"})
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for options in ((), ("--json",), ("--csv",)):
        process = start("show", sqlite_url, "数学", *options, env=environment)
        code, stdout, stderr = finish(process)
        assert (code, stderr) == (0, "")
        assert "\\u6570\\u5b66" in stdout
        if options == ("--json",):
            assert json.loads(stdout)[0]["state"] == {"odd": "\ud800"}


def test_a_lone_surrogate_is_valid_json_in_utf8(sqlite_url):
    with ReplayBuffer(sqlite_url) as buffer:
        buffer.add(task_id="数学", state={"odd": "\ud800"})
    environment = {**os.environ, "PYTHONIOENCODING": "utf-8"}
    code, stdout, _ = finish(start("show", sqlite_url, "数学", "--json", env=environment))
    assert code == 0
    assert json.loads(stdout)[0]["state"] == {"odd": "\ud800"}
    assert "数学" in stdout


def test_a_full_disk_under_the_output_is_one_line(filled):
    if not os.path.exists("/dev/full"):
        pytest.skip("allowed: no /dev/full on this machine")
    with open("/dev/full", "w") as full:
        process = start("ls", filled, stdout=full)
        code, _, stderr = finish(process)
    assert code == 1
    assert stderr == "sqlbuffer: No space left on device\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("--version",), 0),
        (("ls", "missing.db"), 3),
        (("ls", "--nonsense"), 2),
        (("nonsense",), 2),
        (("show", "missing.db"), 2),
        (("db", "nonsense"), 2),
    ],
)
def test_the_exit_code_reaches_the_shell(words, code):
    found, stdout, stderr = finish(start(*words))
    assert found == code
    assert len(error_lines(stdout + stderr)) == 1


UNREACHABLE = "postgresql://me:secret@localhost:1/replay"
READING = [("info",), ("ls",), ("ls", "--tasks"), ("show", "t"), ("sql", "SELECT 1"), ("sample",)]
WRITING = [("resize", "5"), ("delete", "--all-rows", "--yes")]
OTHERS = [("doctor",), ("db", "check"), ("db", "sql"), ("db", "current"), ("db", "init")]


@pytest.mark.parametrize("words", [*READING, *WRITING, *OTHERS], ids=" ".join)
def test_a_server_that_does_not_answer_is_3_and_its_password_stays_hidden(run, words):
    at = 2 if words[0] == "db" else 1
    result = run(*words[:at], UNREACHABLE, *words[at:])
    assert result.exit_code == 3
    assert len(error_lines(result.output)) == 1
    assert "check that the server runs" in result.output
    assert "secret" not in result.output


@pytest.mark.parametrize("words", [*READING[:4], READING[5], *WRITING], ids=" ".join)
def test_a_database_without_the_schema_is_4(run, postgres_url, words):
    result = run(words[0], postgres_url, *words[1:])
    assert result.exit_code == 4
    assert "sqlbuffer db init" in result.stderr
    assert len(error_lines(result.stderr)) == 1


def test_a_sqlite_file_without_the_schema_is_4(run, tmp_path):
    sql.run(f"sqlite:///{tmp_path}/other.db", "CREATE TABLE mine (n integer)")
    for words in (("ls",), ("sample",), ("resize", "5")):
        result = run(words[0], "other.db", *words[1:])
        assert result.exit_code == 4
        assert "sqlbuffer db init" in result.stderr


# `resize` and `delete` ask on a terminal.


@pytest.mark.parametrize(
    ("answer", "exit_code", "rows"), [("y\n", 0, 8), ("YES\n", 0, 8), ("n\n", 1, 20), ("\n", 1, 20)]
)
def test_on_a_terminal_the_answer_decides(filled, answer, exit_code, rows):
    words = ("resize", filled, "8", "--buffer", "arrays")
    shown = run_on_terminal(*words, answer=answer)
    assert shown.exit_code == exit_code
    assert "12 of 20 rows leave buffer 'arrays' for good. Go on? [y/N]" in shown.text
    assert ("nothing was changed" in shown.text) == (rows == 20)
    assert len(held(filled)) == rows


def test_the_end_of_input_is_no_answer(filled):
    shown = run_on_terminal("delete", filled, "--buffer", "arrays", "--all-rows", answer="\x04")
    assert shown.exit_code == 1
    assert len(held(filled)) == 20


# `watch` on a terminal and in a pipe, as a process of its own.


def test_shows_one_table_on_a_terminal_and_who_waits(filled):
    with ReplayBuffer(filled, name="arrays", rate_limiter=None) as buffer:
        buffer.set_rate_limiter(RateLimiter(1))
    # Heard of until the test is over.
    run_sql(
        filled,
        "INSERT INTO flow_waits (buffer_id, holder, host, pid, role, n_rows, heartbeat_at) "
        "VALUES (:id, 'a learner', 'here', 1, 'sample', 256, '2999-01-01T00:00:00.000Z')",
        id=buffer_id(filled, "arrays"),
    )
    shown = run_on_terminal("watch", filled, "--once", width=120)
    assert shown.exit_code == 0
    assert re.search(r"┃\s+in/s ┃\s+out/s ┃\s+┃", shown.text)
    assert re.search(
        r"buffer\s+┃\s+rows ┃ fill ┃\s+\(60s\) ┃ \(60s\) ┃ out/in ┃ waiting", shown.text
    )
    assert re.search(r"│ arrays\s+│\s+20 │ 20%\s+│.*1 to sample", shown.text)


def test_goes_on_until_ctrl_c_and_then_ends_well(filled):
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    process = start(
        "watch", filled, "--every", "0.1", stdin=theirs, stdout=theirs, stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )  # fmt: skip
    os.close(theirs)
    shown = read_until(ours, b"talks", b"")
    ReplayBuffer(filled, name="arrays").store_batch([make_array_row(task=9, step=9)])
    shown = read_until(ours, b" 21 ", shown)
    process.send_signal(signal.SIGINT)
    with suppress(OSError):
        while part := os.read(ours, 65536):
            shown += part
    os.close(ours)
    assert process.wait(60) == 0
    assert b"Traceback" not in shown


def read_until(descriptor, wanted, shown):
    while wanted not in shown:
        shown += os.read(descriptor, 65536)
    return shown


def test_a_pipe_gets_a_line_a_look_until_it_ends(filled):
    process = start("watch", filled, "-b", "talks", "--every", "0.1", "--json")
    assert [json.loads(process.stdout.readline())["rows"] for _ in range(3)] == [2, 2, 2]
    process.send_signal(signal.SIGINT)
    _, complaint = process.communicate(timeout=60)
    assert (process.returncode, complaint) == (0, "")


def test_a_reader_that_leaves_ends_it(filled):
    process = start("watch", filled, "--every", "0.1")
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == ""
    assert process.wait(60) == 141
    process.stderr.close()


# The demo as a process of its own, which spawns its writers.


def test_ctrl_c_ends_the_demo_and_its_writers(sqlite_url, tmp_path):
    code = "from sqlbuffer.cli import app; app()"
    command = [sys.executable, "-c", code, "demo", "--url", sqlite_url, "--episodes", "5000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        wait_until(lambda: rows_of(sqlite_url), "the first rows")
        os.killpg(process.pid, signal.SIGINT)  # a terminal signals the whole group
        _, errors = process.communicate(timeout=60)
        assert process.returncode == 130
        assert errors == "sqlbuffer: interrupted; the stored steps stay in the buffer\n"
        wait_until(lambda: not alive(process.pid), "the end of the writers")
        assert rows_of(sqlite_url) > 0
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def alive(group):
    """Return the processes of a group that run; a dead one may wait long for who reaps it."""
    command = ["ps", "-e", "-o", "pgid=,stat=,args="]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    members = [line.split(None, 2) for line in lines]
    return [line for line in members if line[0] == str(group) and not line[1].startswith("Z")]


def rows_of(url):
    try:
        with ReplayBuffer(url, name="demo", create=False) as buffer:
            return len(buffer)
    except SQLBufferError:  # not there yet
        return 0
