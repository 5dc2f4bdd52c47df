"""What a mirror says of how far it is behind, and of what holds it back."""

import subprocess
import sys
from contextlib import closing

import numpy as np
import pytest
from typer.testing import CliRunner

from sqlbuffer import ReplayBuffer
from sqlbuffer.cli import app
from sqlbuffer.errors import StorageUnreachableError
from tests.support.episodes import FIELDS
from tests.support.proxy import Proxy, assert_one_line_each
from tests.support.sql import connected


def columns(n):
    t = np.arange(n)
    return {"obs": np.zeros((n, 2)), "action": t}


@pytest.fixture
def server_url(make_database_url):
    return make_database_url("postgresql", schema=True)


@pytest.mark.parametrize("options", [{}, {"shared": True}])
def test_steps_that_were_not_looked_at_are_counted(buffer_url, options):
    with (
        ReplayBuffer(buffer_url, fields=FIELDS) as buffer,
        buffer.mirror(refresh_s=3_600, **options) as first,
        buffer.mirror(refresh_s=3_600, **options) as mirror,
    ):
        for n in (0, 7, 300):
            buffer.extend(columns(n))
            assert mirror.lag().steps == n
            first.refresh()
            mirror.refresh()
            assert (mirror.lag().steps, mirror.lag().held_back_by) == (0, None)
        buffer.clear()
        buffer.extend(columns(4))
        assert mirror.lag().steps == 4


def test_a_step_that_is_committed_late_counts_although_its_number_is_lower(server_url):
    with (
        ReplayBuffer(server_url, fields=FIELDS) as buffer,
        buffer.mirror(refresh_s=3_600) as mirror,
    ):
        buffer.extend(columns(10))
        with connected(server_url) as connection:
            connection.exec_driver_sql(
                "SELECT sqlbuffer_reserve_v1(1, 3)"
            )  # holds numbers, and commits nothing
            buffer.extend(columns(5))
            mirror.refresh()
            assert mirror.lag().steps == 0
        buffer.extend(columns(2))
        assert mirror.lag().steps == 2


def test_steps_are_unknown_while_the_database_is_away(server_url, caplog):
    with (
        closing(Proxy(server_url)) as proxy,
        ReplayBuffer(proxy.url, fields=FIELDS, retry_s=0) as buffer,
        buffer.mirror(refresh_s=3_600) as mirror,
    ):
        proxy.closed = True
        proxy.cut_all()
        lag = mirror.lag()
        assert (lag.steps, lag.held_back_by) == (None, None)
        assert "cannot reach" in lag.error
        assert [record.message for record in caplog.records] == [
            f"the lag of a mirror of buffer 'default' is unknown: {lag.error}"
        ]
        assert_one_line_each(caplog.records)
        with pytest.raises(StorageUnreachableError):
            mirror.refresh()
        assert "cannot reach" in mirror.lag().error
        proxy.closed = False
        mirror.refresh()
        assert (mirror.lag().steps, mirror.lag().error) == (0, None)
        proxy.cut_all()  # while no connection was in use
        assert (mirror.lag().steps, mirror.lag().error) == (0, None)
        assert len(caplog.records) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="Linux lists the locks of processes")
def test_a_process_that_keeps_a_file_locked_is_named(make_database_url):
    url = make_database_url("sqlite", schema=True)
    path = url.removeprefix("sqlite:///")
    script = (
        "import fcntl, os, sys; lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); "
        "fcntl.flock(lock, fcntl.LOCK_EX); os.utime(lock, (0, 0)) if len(sys.argv) > 2 else None; "
        "print('held', flush=True); sys.stdin.read()"
    )
    with ReplayBuffer(url, fields=FIELDS) as buffer, buffer.mirror(refresh_s=3_600) as mirror:
        buffer.extend(columns(3))
        mirror.refresh()
        for is_old in (False, True):
            arguments = [sys.executable, "-c", script, f"{path}.lock", *["old"] * is_old]
            with subprocess.Popen(
                arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            ) as writer:
                writer.stdout.readline()
                found = mirror.lag().held_back_by
                told = CliRunner().invoke(app, ["doctor", url], env={"COLUMNS": "300"}).output
                writer.stdin.close()
            if is_old:
                assert found.pid == writer.pid
                assert found.age_s > 5
                assert "python" in found.application
                assert f"kill {writer.pid}" in told
            else:
                assert found is None
                assert "held by a writer right now" in told
