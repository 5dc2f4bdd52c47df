"""The examples of `docs/reference/views.md` read summaries, or each step a few times."""

import pytest

from tests.benchmarks.questions import LAYOUTS, PAGE, fill, questions
from tests.support.markdown import blocks
from tests.support.sql import connected, is_sqlite
from tests.support.watch import rows_handled, watched

pytestmark = [pytest.mark.thorough, pytest.mark.combinations]

N_STEPS = 10_000  # in 1,000 episodes and 125 groups
N_EXAMPLES = len(blocks(PAGE, "sql")) + 1
STEP_TABLES = ("experiences", "chunks", "chunk_data", "deleted_steps", "labels")
MOST_STEPS_READ = 1_000
# These count the steps of blocks that no writer has counted, as all are in a test.
COUNTING = ("v_buffers", "v_storage")


def fill_large(url):
    """Fill a buffer of each layout."""
    for name, settings in LAYOUTS.items():
        fill(url, N_STEPS, name, **settings)


@pytest.mark.parametrize("number", range(N_EXAMPLES))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_example_reads_no_more_than_it_has_to(unchanged_url, layout, number):
    question, statement, is_slow = list(questions(unchanged_url, layout))[number]
    statement = statement.replace("%", "%%")
    watch = watched(unchanged_url, tables=STEP_TABLES)
    with watch, watch.engine.connect() as connection:
        assert connection.exec_driver_sql(statement).all(), question
        connection.rollback()
    if not is_slow and not any(view in statement for view in COUNTING):
        assert watch.rows_scanned + watch.rows_fetched < MOST_STEPS_READ, question
    assert watch.steps < (250 if is_slow else 80) * N_STEPS, question
    if not is_sqlite(unchanged_url):
        with connected(unchanged_url) as connection:
            handled = rows_handled(connection, statement)
        assert handled < 20 * N_STEPS, question
