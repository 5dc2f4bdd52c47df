"""The change log is bounded, and a follower that is too old learns it."""

import pytest

from sqlbuffer import ReplayBuffer
from sqlbuffer.storage.changes import is_trimmed, log_position
from tests.storage.changes.log_entries import entries
from tests.support.sql import connected, is_sqlite, run, scalar
from tests.support.stepped_rows import make_rows

TRIM = "SELECT sqlbuffer_trim_changes_v1()"
LONG_AGO = "UPDATE change_log_starts SET noted_at = noted_at - interval '10 minutes'"


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.store_batch(make_rows(range(300)))
        yield buffer


def position(url):
    with connected(url) as connection:
        return log_position(connection)


def misses(url, seen, number=1):
    with connected(url) as connection:
        return is_trimmed(connection, number, seen)


def log(url, n):
    """Log n changes by plain SQL, each in a transaction of its own; they are numbered on."""
    for _ in range(n):
        run(url, "INSERT INTO change_log (buffer_id, kind, seqs) VALUES (1, 'labelled', :s)",
            s="[1]" if is_sqlite(url) else [1])  # fmt: skip


def age(url):
    """Make the log ten minutes older; on SQLite two trimmings further on."""
    if is_sqlite(url):
        run(url, "UPDATE change_log SET inserted_at = '2020-01-01T00:00:00.000Z'")
    else:
        scalar(url, TRIM)
        run(url, LONG_AGO)


def trim(url):
    if is_sqlite(url):
        last = scalar(url, "SELECT coalesce(max(id), 0) FROM change_log")
        log(url, 64 - last % 64)
    else:
        scalar(url, TRIM)


@pytest.mark.thorough
def test_old_entries_are_trimmed_and_new_ones_stay(buffer_url, buffer):
    before = position(buffer_url)
    buffer.annotate([1, 2], reward=1.0)
    age(buffer_url)
    seen = position(buffer_url)
    buffer.annotate([3], reward=1.0)
    trim(buffer_url)
    assert entries(buffer_url)[0] == ("labelled", [3])
    assert misses(buffer_url, before)
    assert not misses(buffer_url, seen)
    assert not misses(buffer_url, position(buffer_url))


@pytest.mark.thorough
def test_nothing_is_trimmed_before_its_time(buffer_url, buffer):
    before = position(buffer_url)
    buffer.annotate([1, 2], reward=1.0)
    for _ in range(3):
        trim(buffer_url)
    assert entries(buffer_url)[0] == ("labelled", [1, 2])
    assert not misses(buffer_url, before)


@pytest.mark.thorough
def test_a_log_that_is_emptied_is_known_to_be_trimmed(buffer_url, buffer):
    before = position(buffer_url)
    buffer.annotate([1], reward=1.0)
    age(buffer_url)
    trim(buffer_url)
    run(buffer_url, "DELETE FROM change_log")
    assert misses(buffer_url, before)


@pytest.mark.thorough
def test_the_log_of_another_buffer_is_trimmed_apart(buffer_url, buffer):
    with ReplayBuffer(buffer_url, name="other") as other:
        before = position(buffer_url)
        buffer.annotate([1], reward=1.0)
        age(buffer_url)
        other.store_batch(make_rows(range(2)))
        other.annotate([1], reward=1.0)
        trim(buffer_url)
        assert misses(buffer_url, before)
        assert not misses(buffer_url, before, other._store.info.id)
        assert entries(buffer_url, "other") == [("labelled", [1])]


@pytest.mark.thorough
@pytest.mark.slow
def test_the_log_keeps_its_last_10_000_entries(buffer_url, buffer):
    before = position(buffer_url)
    log(buffer_url, 1)
    seen = position(buffer_url)
    many, seqs = (
        ("WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < 10100)", "'[1]'")
        if is_sqlite(buffer_url)
        else ("WITH g AS (SELECT generate_series(1, 50) AS n)", "'{1}'")
    )
    for _ in range(1 if is_sqlite(buffer_url) else 202):
        run(
            buffer_url,
            f"{many} INSERT INTO change_log (buffer_id, kind, seqs) "
            f"SELECT 1, 'labelled', {seqs} FROM g",
        )
    trim(buffer_url)
    assert 9_900 <= scalar(buffer_url, "SELECT count(*) FROM change_log") <= 10_063
    assert misses(buffer_url, before)
    assert misses(buffer_url, seen)
    assert not misses(buffer_url, position(buffer_url))


@pytest.fixture
def url(make_database_url):
    url = make_database_url("postgresql", schema=True)
    with ReplayBuffer(url) as buffer:
        buffer.store_batch(make_rows(range(3)))
    return url


def test_an_entry_that_is_committed_late_is_kept_until_everybody_could_see_it(url):
    """Its time is that of the beginning of its transaction."""
    log(url, 1)
    with connected(url) as late:
        late.exec_driver_sql(
            "INSERT INTO change_log (buffer_id, kind, seqs, inserted_at) "
            "VALUES (1, 'deleted', '{1}', now() - interval '1 hour')"
        )
        age(url)
        seen = position(url)
        late.commit()
        assert scalar(url, TRIM) == 1
        assert entries(url) == [("deleted", [1])]
        assert not misses(url, seen)
        after = position(url)
        run(url, LONG_AGO)
        assert scalar(url, TRIM) == 1
        assert misses(url, seen)
        assert not misses(url, after)


def test_a_transaction_open_elsewhere_does_not_make_followers_start_again(url):
    with connected(url) as other:
        other.exec_driver_sql("SELECT pg_current_xact_id()")
        for _ in range(3):
            log(url, 1)
            age(url)
            seen = position(url)
            scalar(url, TRIM)
            assert not misses(url, seen)


def test_what_was_restored_from_another_server_is_deleted_and_harms_nobody(url):
    log(url, 1)
    scalar(url, TRIM)
    run(url, "UPDATE change_log SET xid = '9000000000000'")
    far = "'9000000000000:9000000000005:'"
    run(url, f"UPDATE change_log_starts SET trimmed_snapshot = {far}, next_snapshot = {far}")
    seen = position(url)
    assert not misses(url, seen)
    log(url, 1)
    scalar(url, TRIM)
    assert scalar(url, "SELECT count(*) FROM change_log") == 1
    assert not misses(url, seen)
    age(url)
    assert scalar(url, TRIM) == 1
    assert misses(url, seen)
