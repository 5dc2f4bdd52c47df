"""`watch` on a terminal and in a pipe, as a process of its own."""

import fcntl
import json
import os
import pty
import re
import signal
import struct
import termios
from contextlib import suppress

from sqlbuffer import RateLimiter, ReplayBuffer
from tests.cli.conftest import start
from tests.integrations.cli.terminal import run_on_terminal
from tests.support.array_rows import make_array_row
from tests.support.sql import buffer_id
from tests.support.sql import run as run_sql


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
