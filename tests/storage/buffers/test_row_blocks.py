"""Counts of rows by block, which `len` of any process adds up."""

import shutil
from contextlib import ExitStack
from itertools import count

import pytest
from sqlalchemy import make_url, text

from sqlbuffer import QueryBuilder, ReplayBuffer
from sqlbuffer.storage.buffers.window import BLOCK
from sqlbuffer.storage.database.vacuum import cleaner_for
from sqlbuffer.storage.dialects import writing
from sqlbuffer.storage.rows.removal import remove_rows
from sqlbuffer.storage.writing.rows import reserve_seqs
from tests.conftest import KINDS, close_pool
from tests.support.array_rows import make_array_row
from tests.support.processes import wait_until
from tests.support.sql import connected, fill, run, scalar

KEPT = "SELECT block, n_rows FROM row_blocks ORDER BY block"
TRUE = (
    "SELECT k.block, (SELECT count(*) FROM experiences e WHERE e.buffer_id = k.buffer_id "
    "AND e.seq / 4096 = k.block) FROM row_blocks k ORDER BY k.block"
)


def store(buffer, n):
    first = buffer.stats().inserted
    buffer.store_batch([make_array_row(task=s // 50, step=s) for s in range(first, first + n)])


def store_until_counted(buffer, url):
    """Write as many rows as a writer looks after; wait until all full blocks but the first, which
    the window may cut, are counted.
    """
    store(buffer, 5_000)
    end = (buffer.stats().inserted + 1) // BLOCK
    wait_until(
        lambda: [block for block, _ in run(url, KEPT)][-1:] == [end - 1], f"{end} blocks counted"
    )


@pytest.fixture(scope="module", params=KINDS)
def copied(request, tmp_path_factory):
    """Return a function that makes a copy of a database with a buffer of 13,000 rows whose blocks 1
    and 2 are counted.
    """
    with ExitStack() as stack:
        if request.param == "sqlite":
            folder = tmp_path_factory.mktemp("counted")
            paths = (folder / f"{number}.db" for number in count())

            def copy(url=None):
                path = next(paths)
                template = request.getfixturevalue("sqlite_template")
                shutil.copyfile(make_url(url).database if url else template, path)
                return f"sqlite:///{path}"

        else:
            server = request.getfixturevalue("postgres_server")

            def copy(url=None):
                template = url or request.getfixturevalue("postgres_template")
                url = server.create_database(template=template)
                stack.callback(server.drop_database, url)
                return url

        original = copy()
        with fill(original, 8_000) as buffer:
            store_until_counted(buffer, original)
        close_pool(original)
        yield lambda: copy(original)


@pytest.fixture
def large(copied):
    """Return the URL of a buffer of 13,000 rows whose blocks 1 and 2 are counted."""
    url = copied()
    yield url
    close_pool(url)


def fresh_len(url, name="default"):
    with ReplayBuffer(url, name=name, create=False) as buffer:
        return len(buffer)


def rows_shown(url):
    """Return what the view says, which adds the same counts up."""
    return scalar(url, "SELECT rows FROM v_buffers")


def n_rows(url):
    return scalar(
        url,
        "SELECT count(*) FROM experiences e JOIN v_windows w ON w.buffer_id = e.buffer_id "
        "AND e.seq > w.low_seq",
    )


@pytest.mark.thorough
@pytest.mark.slow
def test_a_writer_counts_full_blocks_and_any_process_adds_them_up(large):
    assert run(large, KEPT) == run(large, TRUE)
    assert fresh_len(large) == rows_shown(large) == n_rows(large)
    # They are not counted again: what is noted is believed.
    run(large, "UPDATE row_blocks SET n_rows = n_rows - 7 WHERE block = 2")
    assert fresh_len(large) == rows_shown(large) == n_rows(large) - 7


@pytest.mark.thorough
@pytest.mark.slow
def test_deletes_inside_the_window_are_subtracted(large):
    with ReplayBuffer(large) as buffer:
        before = len(buffer)
        assert buffer.delete(QueryBuilder().eq("exp_meta.task_id", "t60").build()) == 100
        assert len(buffer) == fresh_len(large) == before - 100 == rows_shown(large)
        assert dict(run(large, KEPT))[1] == BLOCK - 100
    assert run(large, KEPT) == run(large, TRUE)


@pytest.mark.slow
def test_a_delete_that_is_undone_leaves_the_counts(large):
    with ReplayBuffer(large) as buffer:
        before = len(buffer)
        store = buffer._store
        with writing(store.engine) as connection:
            store.note_deletion(connection)
            assert remove_rows(connection, store.info.id, range(9_000, 9_100)) == 100
            connection.rollback()
    assert fresh_len(large) == before == n_rows(large)


@pytest.mark.thorough
def test_rows_deleted_by_plain_sql_are_not_counted(large):
    run(large, "DELETE FROM experiences WHERE seq BETWEEN 5000 AND 9000")
    assert fresh_len(large) == rows_shown(large) == n_rows(large)
    assert run(large, KEPT) == run(large, TRUE)


@pytest.mark.thorough
def test_emptying_a_buffer_leaves_no_count(large):
    with ReplayBuffer(large) as buffer:
        buffer.clear()
        assert len(buffer) == fresh_len(large) == rows_shown(large) == 0
        store(buffer, 10)
        assert len(buffer) == fresh_len(large) == 10


def test_dropping_a_buffer_drops_its_counts(large):
    ReplayBuffer.drop(large, "default")
    assert run(large, KEPT) == []


@pytest.mark.thorough
@pytest.mark.slow
def test_counts_of_blocks_that_have_left_the_window_go(large):
    with ReplayBuffer(large) as buffer:
        buffer.resize(9_000)
        assert len(buffer) == fresh_len(large) == rows_shown(large) == n_rows(large) == 9_000
        store_until_counted(buffer, large)
        assert len(buffer) == fresh_len(large) == rows_shown(large) == n_rows(large) == 9_000
    low = scalar(large, "SELECT low_seq FROM v_windows")
    assert [block for block, _ in run(large, KEPT)] == [low // BLOCK + 1]


@pytest.mark.thorough
@pytest.mark.slow
def test_buffers_that_evict_whole_tasks_count_no_blocks(buffer_url):
    with ReplayBuffer(buffer_url, evict_by="task", max_capacity=100_000) as buffer:
        store(buffer, 5_000)
        assert len(buffer) == fresh_len(buffer_url) == 5_000
    assert run(buffer_url, KEPT) == []


@pytest.mark.thorough
@pytest.mark.slow
def test_numbers_of_a_transaction_that_is_undone_are_no_rows(buffer_url):
    with fill(buffer_url, 4_000) as buffer:
        opened = buffer._store
        with writing(opened.engine) as connection:
            reserve_seqs(connection, opened.info.id, [f"burnt{i}" for i in range(300)])
            connection.rollback()
        store_until_counted(buffer, buffer_url)
        assert len(buffer) == fresh_len(buffer_url) == n_rows(buffer_url) == 9_000
    assert run(buffer_url, KEPT) == run(buffer_url, TRUE)


class TestOnPostgreSQL:
    @pytest.fixture
    def filled(self, make_database_url):
        url = make_database_url("postgresql", schema=True)
        fill(url, 20_000).close()
        return url

    COUNT = "SELECT sqlbuffer_count_rows_v1((SELECT id FROM buffers), :settled)"

    def test_nothing_is_counted_while_somebody_deletes(self, filled):
        with connected(filled) as connection:
            connection.execute(text("DELETE FROM experiences WHERE seq = 5000"))
            assert scalar(filled, self.COUNT, settled=20_000) == 0
        assert scalar(filled, self.COUNT, settled=20_000) == 3
        assert run(filled, KEPT) == run(filled, TRUE)

    @pytest.mark.slow
    def test_a_block_is_not_counted_while_a_row_may_still_come_to_it(self, filled):
        with ReplayBuffer(filled) as buffer:
            with connected(filled) as late:
                # These rows have their numbers and are not committed.
                late.execute(
                    text(
                        "INSERT INTO experiences (buffer_id, task_id, agent_id, step) SELECT "
                        "(SELECT id FROM buffers), 'late', 'a', s FROM generate_series(1, 600) s"
                    )
                )
                store(buffer, 5_000)
                cleaner_for(buffer._store.engine).thread.join()
                assert [block for block, _ in run(filled, KEPT)] in ([], [1], [1, 2], [1, 2, 3])
                assert fresh_len(filled) == len(buffer) == 25_000
            store_until_counted(buffer, filled)
            assert run(filled, KEPT) == run(filled, TRUE)
            assert fresh_len(filled) == n_rows(filled) == 30_600
