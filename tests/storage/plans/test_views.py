"""The documented filters of `v_experiences` read the rows that they find, not the window (I9).

Queries over whole buffers read each step a few times.
"""

import pytest

from tests.support.sql import fill
from tests.support.watch import assert_compares_little, wait_for_cleaner, watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_ROWS = 100_000
N_BATCHES = 20
MOST_ROWS_READ = 1_000
MOST_STEPS = 20_000
FILTERS = {
    "seq > 99980": 20,
    "seq = 77777": 1,
    "seq BETWEEN 500 AND 509": 10,
    "id = 'id77777'": 1,
    "task_id = 't2500'": 20,
}

DRAWS_AND_STEPS = (
    "SELECT s.clock, avg(e.reward) FROM v_samples s JOIN v_experiences e "
    "ON e.buffer = s.buffer AND e.seq = s.seq WHERE s.buffer = 'rows' GROUP BY s.clock"
)


def fill_large(url):
    """Fill two buffers of the same numbers."""
    for name in ("other", "rows"):
        settings = {"max_capacity": N_ROWS, "track_samples": True}
        with fill(url, N_ROWS, name=name, rows_per_task=20, **settings) as buffer:
            for _ in range(N_BATCHES):
                buffer.sample(64)
            wait_for_cleaner(buffer)


@pytest.mark.parametrize("condition", FILTERS)
def test_a_filter_of_the_steps_of_a_buffer_uses_an_index(large_url, condition):
    query = f"SELECT step, reward FROM v_experiences WHERE buffer = 'rows' AND {condition}"
    with watched(large_url) as watch, watch.engine.connect() as connection:
        assert len(connection.exec_driver_sql(query).all()) == FILTERS[condition]
        connection.rollback()
    assert watch.rows_scanned < 300  # PostgreSQL scans a table of few rows, such as `buffers`
    assert watch.rows_fetched < MOST_ROWS_READ
    assert watch.steps < MOST_STEPS


def test_a_join_of_draws_and_steps_compares_no_draw_with_all_steps(unchanged_url):
    assert_compares_little(unchanged_url, DRAWS_AND_STEPS, N_ROWS)
