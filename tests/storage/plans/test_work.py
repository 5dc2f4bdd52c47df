"""Taking work does not scan the items, nor the episodes (I9): at 100,000 of each."""

import pytest

from sqlbuffer import ReplayBuffer
from tests.support.sql import buffer_id, fill, is_sqlite, run
from tests.support.watch import wait_for_cleaner, watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

TABLES = ("work_items", "episodes", "experiences")
N_ITEMS, N_PLAYED = 100_000, 60
MOST_ROWS_READ, MOST_STEPS = 3_000, 150_000


def fill_large(url):
    """Fill a buffer with steps and items: half are done and consumed, some are taken and lost."""
    with fill(url, N_ITEMS, name="work") as buffer:
        number = buffer_id(url, "work")
        numbers = (
            "WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < :n)"
            if is_sqlite(url)
            else "WITH g AS (SELECT n FROM generate_series(1, CAST(:n AS integer)) n)"
        )
        past, future = (
            ("'2026-01-01T00:00:00.000Z'", "'9000-01-01T00:00:00.000Z'")
            if is_sqlite(url)
            else ("timestamptz '2026-01-01'", "timestamptz '9000-01-01'")
        )
        run(
            url,
            "INSERT INTO work_items (buffer_id, group_id, sibling, task_id, status, attempt, "
            f"episode_id, is_consumed, leased_until) {numbers} SELECT {number}, 'g' || (n / 8), "
            "n % 8, 't' || (n / 8), CASE WHEN n % 2 = 0 THEN 'done' WHEN n % 100 = 1 THEN 'taken' "
            "ELSE 'waiting' END, n % 2, CASE WHEN n % 2 = 0 THEN 'e' || n END, n % 2 = 0, "
            f"CASE WHEN n % 100 = 1 THEN CASE WHEN n % 500 = 1 THEN {past} ELSE {future} END END "
            "FROM g",
            n=N_ITEMS,
        )
        run(
            url,
            f"INSERT INTO episodes (buffer_id, key, task_id, status) {numbers} "
            f"SELECT {number}, 'e' || n, 't' || (n / 8), 'complete' FROM g",
            n=N_ITEMS,
        )
        for item in buffer.work.take(N_PLAYED):
            with item.episode() as episode:
                episode.append(state=1)
        wait_for_cleaner(buffer)


CALLS = {
    "items": (8, {}),
    "with a limit": (8, {"max_ahead": 1_000}),
    "nothing": (8, {"max_ahead": N_PLAYED // 2}),
}


@pytest.mark.parametrize("call", CALLS)
def test_taking_items_reads_those_alone(large_url, call):
    n, options = CALLS[call]
    with ReplayBuffer(large_url, name="work") as buffer:
        # Those that were lost are taken in any case.
        run(large_url, "UPDATE work_items SET status = 'waiting' WHERE status = 'taken'")
        n_taken = 0 if call == "nothing" else n
        assert len(buffer.work.take(n, **options)) == n_taken
        with watched(large_url, tables=TABLES, noted="work_items") as watch:
            items = buffer.work.take(n, **options)
            assert len(items) == n_taken
        assert watch.rows_scanned < 300
        assert watch.rows_fetched < MOST_ROWS_READ
        assert watch.steps < MOST_STEPS
        assert watch.rows_fetched or watch.steps


def test_items_that_were_lost_are_found_without_a_scan(large_url):
    past = "'2026-01-01T00:00:00.000Z'"
    with ReplayBuffer(large_url, name="work") as buffer:
        items = buffer.work.take(8)
        for item in items[:3]:
            item.episode().append(state=1)
        buffer.flush()
        ids = ", ".join(str(item._taken.id) for item in items)
        run(large_url, f"UPDATE work_items SET leased_until = {past} WHERE id IN ({ids})")
        with watched(large_url, tables=TABLES, noted="work_items") as watch:
            again = buffer.work.take(4)
            assert {item._taken.id for item in again} <= {item._taken.id for item in items}
        assert watch.rows_scanned < 300
        assert watch.rows_fetched < MOST_ROWS_READ
        assert watch.steps < MOST_STEPS


def test_the_witness_would_see_a_scan(large_url):
    with ReplayBuffer(large_url, name="work"):
        with watched(large_url, tables=TABLES) as watch, watch.engine.connect() as connection:
            query = "SELECT count(*) FROM work_items WHERE attempt = 1"
            connection.exec_driver_sql(query).all()
            connection.rollback()
        assert watch.rows_scanned + watch.rows_fetched > 0.9 * N_ITEMS or watch.steps > MOST_STEPS
