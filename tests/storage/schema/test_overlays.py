"""Whatever removes rows also removes what the registered overlay tables hold of them."""

import pytest
from sqlalchemy import Boolean, Double, Integer, LargeBinary, column, insert, select
from sqlalchemy import table as lightweight

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.database import vacuum
from sqlbuffer.storage.database.engine import engine_for, resolve_url
from sqlbuffer.storage.schema.metadata import delete_range, overlays, whole_metadata
from tests.support.sql import buffer_id, connected, run, scalar
from tests.support.stepped_rows import make_row, step_is

VALUES = {Boolean: False, Integer: 1, Double: 1.0, LargeBinary: b"x"}


def some_value(column):
    return next((v for type_, v in VALUES.items() if isinstance(column.type, type_)), "x")


def mark_rows(url, name):
    """Write a row of the overlay for each row of the buffer that has none."""
    overlay = overlays()[name]
    run(url, f"UPDATE buffers SET {overlay.flag} = true")
    table, experiences = overlay.table, whole_metadata().tables["experiences"]
    has_one = select(1).where(
        table.c.buffer_id == experiences.c.buffer_id, table.c.seq == experiences.c.seq
    )
    with connected(url) as connection:
        seqs = select(experiences.c.seq).where(~has_one.exists())
        required = {
            column.name: some_value(column)
            for column in table.c
            if not column.nullable and column.server_default is None
        }
        own = {"buffer_id": buffer_id(url)}
        if connection.dialect.name == "sqlite" and "integer_key" in table.info:
            table = lightweight(name, column("key"), *map(column, {*required, *own, "seq"}))
        for seq in connection.scalars(seqs).all():
            row = {**required, **own, "seq": seq}
            if "key" in table.c:
                row["key"] = own["buffer_id"] << 40 | seq
            connection.execute(insert(table).values(row))


def seqs_in(url, table):
    return [seq for (seq,) in run(url, f"SELECT seq FROM {table} ORDER BY seq")]


@pytest.fixture(params=overlays())
def overlay(request):
    return request.param


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("by", ["library", "plain SQL"])
@pytest.mark.parametrize("evict_by", ["row", "task", "episode"])
def test_a_deleted_row_leaves_nothing_in_an_overlay(buffer_url, overlay, evict_by, by):
    limit = {"max_episodes": 9} if evict_by == "episode" else {"max_capacity": 9}
    with ReplayBuffer(buffer_url, evict_by=evict_by, **limit) as buffer:
        buffer.store_batch([make_row(step, episode="e") for step in range(5)])
        mark_rows(buffer_url, overlay)
        assert seqs_in(buffer_url, overlay) == [1, 2, 3, 4, 5]
        if by == "library":
            assert buffer.delete(step_is(1)) == 1
        else:
            run(buffer_url, "DELETE FROM experiences WHERE step = 1")
        assert seqs_in(buffer_url, overlay) == [1, 3, 4, 5]


@pytest.mark.thorough
@pytest.mark.each_value
@pytest.mark.parametrize("evict_by", ["task", "episode"])
def test_a_task_or_episode_that_is_evicted_leaves_nothing_in_an_overlay(
    buffer_url, overlay, evict_by
):
    limit = {"max_episodes": 1} if evict_by == "episode" else {"max_capacity": 3}
    with ReplayBuffer(buffer_url, evict_by=evict_by, **limit) as buffer:
        for key in ("a", "b"):
            buffer.store_batch([make_row(step, task=key, episode=key) for step in range(2)])
            run(buffer_url, f"UPDATE episodes SET status = 'complete' WHERE key = '{key}'")
            mark_rows(buffer_url, overlay)
        assert seqs_in(buffer_url, overlay) == seqs_in(buffer_url, "experiences") == [3, 4]


@pytest.mark.thorough
@pytest.mark.each_value
def test_a_row_that_is_evicted_leaves_an_overlay_at_once_or_by_range(buffer_url, overlay):
    with ReplayBuffer(buffer_url, max_capacity=4) as buffer:
        buffer.store_batch([make_row(step) for step in range(4)])
        mark_rows(buffer_url, overlay)
        buffer.store_batch([make_row(step) for step in range(4, 7)])
        mark_rows(buffer_url, overlay)
        if overlays()[overlay].leaves_late:
            assert seqs_in(buffer_url, overlay) == [1, 2, 3, 4, 5, 6, 7]
            with engine_for(resolve_url(buffer_url)).begin() as connection:
                table = overlays()[overlay].table
                delete_range(connection, table, buffer_id(buffer_url), above=0, up_to=3)
        assert seqs_in(buffer_url, overlay) == seqs_in(buffer_url, "experiences") == [4, 5, 6, 7]


@pytest.mark.thorough
@pytest.mark.each_value
def test_a_dropped_buffer_leaves_nothing_in_an_overlay(buffer_url, overlay):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store(make_row(1))
        mark_rows(buffer_url, overlay)
    ReplayBuffer.drop(buffer_url, "default")
    assert scalar(buffer_url, f"SELECT count(*) FROM {overlay}") == 0


# They belong to chunks alone, and leave with their chunk.
OF_CHUNKS = {
    "step_ids": "has_step_ids", "deleted_steps": "has_deleted", "replaced_steps": "has_changes",
    "chunks": "has_chunks",
}  # fmt: skip


def test_every_table_by_buffer_and_seq_is_registered():
    by_seq = {
        name
        for name, table in whole_metadata().tables.items()
        if {"buffer_id", "seq"} <= {column.name for column in table.primary_key}
    }
    # A row of `time_marks` is about all steps up to its number.
    assert by_seq == {"experiences", "time_marks", *overlays(), *OF_CHUNKS} - {"chunks"}


def test_every_flag_is_a_column_of_buffers():
    flags = {
        column.name for column in whole_metadata().tables["buffers"].c if column.name[:4] == "has_"
    }
    known = {overlay.flag for overlay in overlays().values()} | set(OF_CHUNKS.values())
    assert known | {"has_followers", "has_holds", "has_messages"} == flags


def test_the_library_vacuums_every_overlay(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with connected(url) as connection:
        assert set(overlays()) <= {table.name for table in vacuum._tables(connection)}
