"""The demo as a process of its own, which spawns its writers."""

import os
import signal
import subprocess
import sys

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import SQLBufferError
from tests.support.processes import wait_until


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
