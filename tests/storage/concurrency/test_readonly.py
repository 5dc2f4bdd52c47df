"""Reading a SQLite file that one may not write, while others write it."""

import itertools
import multiprocessing
import os
import time

import pytest

from sqlbuffer import LatestSampler, ReplayBuffer
from sqlbuffer.errors import StorageReadOnlyError, StorageUnreachableError
from tests.support.batches import is_as_written, make_batch
from tests.support.processes import run_at_once, running, wait_until

pytestmark = pytest.mark.combinations

CAPACITY, BATCH, ROUNDS = 400, 8, 10
NOBODY = 65534


def write_until_told(url, enough):
    with ReplayBuffer(url) as buffer:
        number = 0
        while not enough.is_set():
            buffer.store_batch(make_batch(f"w_{number}", BATCH))
            number += 1


def newest(buffer):
    (row,) = buffer.sample(1, sampler=LatestSampler())
    return row.seq


def read_while_others_write(url):
    """Read in every way, each time after others have written more; return what a write met."""
    with ReplayBuffer(url, create=False) as buffer:
        for _ in range(ROUNDS):
            seen = newest(buffer)
            wait_until(lambda: newest(buffer) > seen, "more rows")  # noqa: B023
            rows = list(buffer.get_all())
            assert 1 <= len(rows) <= CAPACITY
            assert all(map(is_as_written, [*rows, *buffer.sample(32)]))
            assert 1 <= len(buffer) <= CAPACITY
            assert all(map(is_as_written, itertools.chain(*buffer.sample_tasks(2))))
        return [refusal(buffer, write) for write in (store, ReplayBuffer.clear, shrink)]


def store(buffer):
    buffer.store_batch(make_batch("mine", BATCH))


def shrink(buffer):
    buffer.resize(1)


def refusal(buffer, write):
    with pytest.raises(StorageReadOnlyError) as info:
        write(buffer)
    return str(info.value)


def as_another_user(path):
    """Become a user that may not write the file, if this one is root; else lock it away."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    else:
        for name in ("", "-wal", "-shm"):
            os.chmod(f"{path}{name}", 0o444)


def read_as_another_user(url, path):
    # What the library imports late must be there before files of this user's are out of reach.
    ReplayBuffer("sqlite://").add(state=1)
    as_another_user(path)
    return read_while_others_write(url)


def read_beside_a_writer(path, read, *arguments):
    """Run `read` in a process beside one that writes, and return what it returned."""
    url = f"sqlite:///{path}"
    with ReplayBuffer(url, max_capacity=CAPACITY) as buffer:
        store(buffer)
        enough = multiprocessing.get_context("fork").Event()
        with running([(write_until_told, url, enough)]) as writer:
            wait_until(lambda: len(buffer) > BATCH, "the writer to have the file open")
            (result,) = run_at_once([(read, *arguments)])
            enough.set()
            writer.results()
        assert len(buffer) <= CAPACITY
    return result


def read_only(path):
    return f"sqlite:///file:{path}?mode=ro&uri=true"


@pytest.mark.thorough
@pytest.mark.slow
def test_a_read_only_open_reads_while_others_write(open_folder):
    path = open_folder / "replay.db"
    for text in read_beside_a_writer(path, read_while_others_write, read_only(path)):
        assert "was opened for reading only" in text
        assert "not writable" not in text


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("form", [read_only, "sqlite:///{}".format], ids=["read_only", "plain"])
def test_a_user_who_may_not_write_the_file_reads_while_others_write(open_folder, form):
    path = open_folder / "replay.db"
    for text in read_beside_a_writer(path, read_as_another_user, form(path), path):
        assert str(path) in text
        said = ("Permission denied", "not writable", "was opened for reading only")
        assert any(words in text for words in said)


def read_across_a_torn_header(url, path, is_ready, is_torn):
    # See `read_as_another_user`.
    ReplayBuffer("sqlite://").add(state=1)
    as_another_user(path)
    with ReplayBuffer(url, create=False) as buffer:
        before = list(buffer.get_all())
        is_ready.set()
        assert is_torn.wait(30)
        return list(buffer.get_all()) == before, len(before)


@pytest.mark.thorough
def test_a_reader_without_rights_waits_for_a_header_that_is_being_written(open_folder):
    path = open_folder / "replay.db"
    url, spawned = f"sqlite:///{path}", multiprocessing.get_context("spawn")
    is_ready, is_torn = spawned.Event(), spawned.Event()
    with ReplayBuffer(url) as buffer:
        buffer.store_batch(make_batch("w", BATCH))
        arguments = (url, path, is_ready, is_torn)
        with (
            open(f"{path}-shm", "r+b", buffering=0) as index,
            running([(read_across_a_torn_header, *arguments)], "spawn") as reader,
        ):
            wait_until(is_ready.is_set, "the reader")
            whole = index.read(4)
            index.seek(0)
            index.write(b"\0\0\0\0")  # the second copy of the header says otherwise
            is_torn.set()
            time.sleep(0.5)
            index.seek(0)
            index.write(whole)
            assert reader.results() == [(True, BATCH)]


def test_a_read_only_open_creates_nothing(open_folder):
    path = open_folder / "replay.db"
    for create in (None, True, False):
        with pytest.raises(StorageUnreachableError, match="unable to open"):
            ReplayBuffer(read_only(path), create=create)
    assert not path.exists()
