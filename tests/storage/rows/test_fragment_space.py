"""Fragments that leave give their space back: no growth over ten turnovers."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import make_url

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database import vacuum
from sqlbuffer.storage.rows.payload_parts import PART_BYTES
from tests.support.fragments import lost_parts, make_fragment, parts_of
from tests.support.sql import is_sqlite, run, scalar

CAPACITY = 8
MADE = [make_fragment(n) for n in range(CAPACITY)]


@pytest.fixture(autouse=True)
def small_scale(monkeypatch):
    """Have writers look after a few fragments as they would after many."""
    monkeypatch.setattr(vacuum, "MIN_DEAD_BYTES", 2 * PART_BYTES)
    monkeypatch.setattr(vacuum, "BYTES_BETWEEN_LOOKS", 2 * PART_BYTES)
    # A snapshot of a moment, as the server's own statistics take one, is no reason to wait here.
    monkeypatch.setattr(vacuum, "FIRST_PAUSE_S", 0.0)


def turn_over(buffer, times):
    """Write the buffer full, so many times; return its size on the disk."""
    for _ in range(times):
        for n in range(0, CAPACITY, 2):
            for row in MADE[n : n + 2]:
                row.id = f"{row.id}'"
            buffer.store_batch(MADE[n : n + 2])
            thread = vacuum.cleaner_for(buffer._store.engine).thread
            if thread is not None:
                thread.join(30)
    return size_of(buffer)


def size_of(buffer):
    url = buffer._store.url.render_as_string(hide_password=False)
    if not is_sqlite(url):
        return scalar(url, "SELECT pg_total_relation_size('payload_parts')")
    path = Path(make_url(url).database)
    return sum(p.stat().st_size for p in (path, Path(f"{path}-wal")) if p.exists())


def leave_to_writers(url):
    """Have the server not clean the table by itself, nor its large values."""
    off = "autovacuum_enabled = off, toast.autovacuum_enabled = off"
    run(url, f"ALTER TABLE payload_parts SET ({off})")


@pytest.fixture
def buffer(buffer_url):
    if not is_sqlite(buffer_url):
        leave_to_writers(buffer_url)
    with closing(ReplayBuffer(buffer_url, max_capacity=CAPACITY)) as buffer:
        yield buffer


@pytest.mark.thorough
@pytest.mark.slow
def test_ten_turnovers_do_not_grow_the_database(buffer_url, buffer):
    early, later, last = (turn_over(buffer, 5) for _ in range(3))
    # A statement of the server may keep what left for one look longer, but not in each part.
    assert last < 1.25 * later or later < 1.25 * early
    assert len(parts_of(buffer_url)) == CAPACITY
    assert lost_parts(buffer_url) == 0
    assert size_of(buffer) < 8 * CAPACITY * PART_BYTES


def test_without_looking_by_bytes_the_table_would_grow(make_database_url, monkeypatch):
    monkeypatch.setattr(vacuum, "BYTES_BETWEEN_LOOKS", 2**60)
    monkeypatch.setattr(vacuum, "SECONDS_BETWEEN_LOOKS", 1e9)
    url = make_database_url("postgresql", schema=True)
    leave_to_writers(url)
    with ReplayBuffer(url, max_capacity=CAPACITY) as buffer:
        early = turn_over(buffer, 2)
        assert turn_over(buffer, 4) > 2 * early
