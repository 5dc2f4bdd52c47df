"""The log of a SQLite file stays short, also after a reader that kept a transaction open."""

import sqlite3
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import numpy as np
import pytest

from sqlbuffer import ReplayBuffer
from tests.support.processes import run_at_once, wait_until

FIELDS = {"obs": ("float32", (2_048,))}
# A commit cuts the log back to 64 MiB at best.
MUCH, LITTLE = 66 * 2**20, 16 * 2**20
MANY = {"obs": np.zeros((256, 2_048), np.float32)}
FEW = {"obs": np.zeros((1, 2_048), np.float32)}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "replay.db"


@pytest.fixture
def buffer(path):
    with ReplayBuffer(f"sqlite:///{path}", fields=FIELDS, max_capacity=1_000) as buffer:
        buffer.extend(MANY)
        yield buffer


def log_of(path):
    return Path(f"{path}-wal").stat().st_size


@contextmanager
def reading(path):
    """Keep a read transaction open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM buffers").fetchone()
        yield


def enlarge(buffer, path):
    with reading(path):
        while log_of(path) < MUCH:
            buffer.extend(MANY)


@pytest.mark.slow
def test_writers_cut_the_log_back_when_the_reader_has_ended(buffer, path):
    enlarge(buffer, path)

    def is_cut_back():
        buffer.extend(FEW)
        buffer.sample_arrays(16)
        return log_of(path) < LITTLE

    wait_until(is_cut_back, "a small log", timeout_s=15)
    buffer.extend(MANY)
    assert len(buffer) == 1_000


def test_a_writer_moves_the_log_before_it_is_long(buffer, path):
    for _ in range(32):
        buffer.extend(MANY)  # 2 MiB
        assert log_of(path) < LITTLE
    assert path.stat().st_size > 4 * 2**20


def test_a_writer_moves_the_log_earlier_while_others_write(buffer, path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("PRAGMA wal_autocheckpoint = 0")  # it moves nothing itself
        other.execute("CREATE TABLE theirs (n INTEGER)")
        for n in range(32):
            buffer.extend(MANY)  # 2 MiB
            other.execute("INSERT INTO theirs VALUES (?)", (n,))
            assert log_of(path) < 5 * 2**20  # alone it would be longer


def store_much(path):
    with ReplayBuffer(f"sqlite:///{path}") as buffer:
        for _ in range(20):
            buffer.extend(MANY)
            assert log_of(path) < 3 * LITTLE


@pytest.mark.thorough
@pytest.mark.slow
def test_several_writers_keep_the_log_short(buffer, path):
    run_at_once([(store_much, path)] * 4)
    assert len(buffer) == 1_000


# The last process to close the file would remove the log.
OTHER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT count(*) FROM buffers").fetchone()
print("open", flush=True)
sys.stdin.read()
"""


def store_once(url):
    with ReplayBuffer(url) as buffer:
        buffer.extend(FEW)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_writer_that_lives_for_a_moment_cuts_the_log_back(buffer, path):
    enlarge(buffer, path)
    command = [sys.executable, "-c", OTHER, path]
    with Popen(command, stdin=PIPE, stdout=PIPE, text=True) as other:
        assert other.stdout.readline() == "open\n"
        buffer.close()
        run_at_once([(store_once, f"sqlite:///{path}")])
        assert log_of(path) < LITTLE
        other.communicate()
