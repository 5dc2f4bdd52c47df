"""SQLite files that are read with immutable=1, which leaves their log out."""

import os
import signal
import subprocess
import sys

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.errors import StorageReadOnlyError
from tests.conftest import close_pool
from tests.support.processes import running
from tests.support.stepped_rows import make_row, make_rows


@pytest.fixture
def url(make_database_url):
    return make_database_url("sqlite", schema=True)


def store_and_die(url):
    ReplayBuffer(url).store_batch(make_rows(range(100)))
    os.kill(os.getpid(), signal.SIGKILL)


def with_option(url, option):
    return f"{url}?{option}"


def test_a_file_whose_last_rows_are_in_its_log_is_refused_until_they_are_moved(url):
    with running([(store_and_die, url)]) as workers:
        workers.processes[0].join(60)
        assert workers.processes[0].exitcode == -signal.SIGKILL
    immutable = with_option(url, "immutable=1")
    with pytest.raises(StorageReadOnlyError, match="-wal holds rows") as caught:
        ReplayBuffer(immutable)
    command = str(caught.value).split("`")[1].replace("python", sys.executable, 1)
    subprocess.run(command, shell=True, check=True)
    with ReplayBuffer(immutable) as buffer:
        assert len(buffer) == 100


@pytest.mark.parametrize("option", ["mode=ro", "immutable=1"])
def test_the_error_of_a_write_names_the_option_that_forbids_it(url, option):
    with ReplayBuffer(url) as writer:
        writer.store(make_row(1))
    close_pool(url)
    with (
        ReplayBuffer(with_option(url, option)) as buffer,
        pytest.raises(StorageReadOnlyError, match="to write, open it without mode=ro") as caught,
    ):
        buffer.store(make_row(2))
    assert "not writable" not in str(caught.value)
