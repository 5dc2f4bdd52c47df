"""Writing until the disk is full: a named error, nothing lost, and on it goes when there is space.

Each test runs in a child process, which takes its small disk or its limit with it.
"""

import os
import re
import resource
import shutil
from contextlib import suppress

import psycopg
import pytest

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.errors import StorageFullError
from tests.support.batches import counts, held, ids_of, integrity, make_batch
from tests.support.processes import run_at_once
from tests.support.servers import own_server, server_programs, server_user
from tests.support.small_disk import fill, may_mount, mount_small_disk
from tests.support.typed_buffer import both_layouts

pytestmark = pytest.mark.combinations

BATCH = 64
MIB = 2**20

needs_mount = pytest.mark.skipif(
    not may_mount(), reason="allowed: this user may not mount a small disk"
)


def fill_up(buffer):
    """Store batches until the disk is full, then try one that never fits; return those stored."""
    stored = []
    with suppress(StorageFullError):
        while True:
            name = f"w_{len(stored)}"
            assert buffer.store_batch(make_batch(name, BATCH)).inserted == BATCH
            stored.append(name)
    assert stored
    for _ in range(3):
        with pytest.raises(StorageFullError, match="free space"):
            buffer.store_batch(make_batch("large", 100 * BATCH))
    return stored


def check(url, buffer, stored):
    """Check that all that was stored is there, and nothing of a batch that was refused."""
    assert [id_ for _, id_ in held(url)] == ids_of(stored, BATCH)
    assert counts(url, buffer) == {BATCH * len(stored)}
    assert len(buffer.sample(16)) == 16


def go_on(url, buffer, stored):
    """Store the batch that was refused, with the same buffer."""
    stored = [*stored, f"w_{len(stored)}"]
    assert buffer.store_batch(make_batch(stored[-1], BATCH)).inserted == BATCH
    check(url, buffer, stored)


@needs_mount
@both_layouts
def test_a_sqlite_file_survives_a_full_disk(open_folder, make_buffer):
    run_at_once([(fill_sqlite, open_folder, make_buffer)])


def fill_sqlite(folder, make_buffer):
    mount_small_disk(folder, 8 * MIB)
    ballast, url = folder / "ballast", f"sqlite:///{folder / 'replay.db'}"
    with make_buffer(url) as buffer:
        fill(ballast, leave_bytes=3 * MIB)
        stored = fill_up(buffer)
        check(url, buffer, stored)
        assert integrity(url) == "ok"
        ballast.unlink()
        go_on(url, buffer, stored)
    assert integrity(url) == "ok"


@needs_mount
@both_layouts
def test_a_full_disk_says_how_much_to_free_and_then_sqlite_deletes_and_stores(
    open_folder, make_buffer
):
    run_at_once([(clear_full_sqlite, open_folder, make_buffer)])


def clear_full_sqlite(folder, make_buffer):
    mount_small_disk(folder, 8 * MIB)
    ballast, url = folder / "ballast", f"sqlite:///{folder / 'replay.db'}"
    with make_buffer(url) as buffer:
        fill(ballast, leave_bytes=3 * MIB)
        stored = fill_up(buffer)
        rest = []
        with suppress(StorageFullError):
            while True:  # into what a batch that did not fit has left of the log
                rest.append(f"r_{len(rest)}")
                buffer.store_batch(make_batch(rest[-1], 1))
        n_rows = BATCH * len(stored) + len(rest) - 1
        with pytest.raises(StorageFullError, match="deleting rows needs") as caught:
            buffer.delete(QueryBuilder().gt("seq", 0).build())
        assert len(buffer) == n_rows
        number, unit = re.search(r"needs ([\d.]+) (kB|MB) more", str(caught.value)).groups()
        needed = int(float(number) * {"kB": 10**3, "MB": 10**6}[unit])
        os.truncate(ballast, ballast.stat().st_size - needed)
        assert buffer.clear() == n_rows
        assert buffer.store_batch(make_batch("later", BATCH)).inserted == BATCH
        check(url, buffer, ["later"])
    assert integrity(url) == "ok"


@needs_mount
@both_layouts
def test_on_a_full_disk_steps_are_stored_in_the_space_of_deleted_ones(open_folder, make_buffer):
    run_at_once([(replace_on_full_sqlite, open_folder, make_buffer)])


def replace_on_full_sqlite(folder, make_buffer):
    """The log is full after three batches, and the file has space for sixty."""
    mount_small_disk(folder, 16 * MIB)
    url = f"sqlite:///{folder / 'replay.db'}"
    with make_buffer(url) as buffer:
        for number in range(100):
            buffer.store_batch(make_batch(f"w_{number}", BATCH))
        buffer.delete(QueryBuilder().lte("seq", 80 * BATCH).build())
    with make_buffer(url) as buffer:
        fill(folder / "ballast", leave_bytes=300_000)
        later = [f"later_{number}" for number in range(60)]
        for name in later:
            assert buffer.store_batch(make_batch(name, BATCH)).inserted == BATCH
        check(url, buffer, [*(f"w_{number}" for number in range(80, 100)), *later])
    assert integrity(url) == "ok"


@needs_mount
def test_a_full_disk_is_named_when_a_sqlite_file_is_opened(open_folder):
    run_at_once([(open_on_full_disk, open_folder)])


def open_on_full_disk(folder):
    mount_small_disk(folder, 4 * MIB)
    ballast, url = folder / "ballast", f"sqlite:///{folder / 'replay.db'}"
    with ReplayBuffer(url) as buffer:
        buffer.store_batch(make_batch("w_0", BATCH))
    fill(ballast, leave_bytes=0)
    with pytest.raises(StorageFullError, match="free space"):
        ReplayBuffer(url)
    ballast.unlink()
    with ReplayBuffer(url) as buffer:
        go_on(url, buffer, ["w_0"])


def test_a_sqlite_file_survives_a_limit_to_its_size(open_folder):
    run_at_once([(fill_limited_sqlite, open_folder)])


def fill_limited_sqlite(folder):
    url = f"sqlite:///{folder / 'replay.db'}"
    with ReplayBuffer(url) as buffer:
        _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2 * MIB, hard))
        stored = fill_up(buffer)
        check(url, buffer, stored)
        assert integrity(url) == "ok"
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
        go_on(url, buffer, stored)
    assert integrity(url) == "ok"


@needs_mount
@both_layouts
def test_postgresql_survives_a_full_disk(open_folder, make_buffer):
    """The disk of the tables: where that of the log is full, the server stops by itself."""
    programs = server_programs()
    if programs is None:
        pytest.skip("allowed: no programs of PostgreSQL that this user may run")
    run_at_once([(fill_postgresql, programs, open_folder, make_buffer)])


def fill_postgresql(programs, folder, make_buffer):
    mount_small_disk(folder, 64 * MIB)
    with own_server(programs) as server:
        tables, ballast = folder / "tables", folder / "ballast"
        tables.mkdir()
        if (user := server_user()) is not None:
            shutil.chown(tables, user)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute(f"CREATE TABLESPACE small LOCATION '{tables}'")
            connection.execute("CREATE DATABASE small TABLESPACE small")
        url = server.url.replace("/postgres?", "/small?")
        with make_buffer(url, create=True) as buffer:
            fill(ballast, leave_bytes=2 * MIB)
            stored = fill_up(buffer)
            check(url, buffer, stored)
            ballast.unlink()
            go_on(url, buffer, stored)
            fill(ballast, leave_bytes=0)
            # Deleted rows stay in their places until a VACUUM.
            assert buffer.clear() == BATCH * (len(stored) + 1)
