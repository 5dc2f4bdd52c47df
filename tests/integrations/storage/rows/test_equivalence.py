"""Very many conditions select the same rows in SQLite, in PostgreSQL and in plain Python."""

from hypothesis import HealthCheck, given, settings

from tests.query.strategies import rows_and_conditions
from tests.storage.rows.test_equivalence import check_equivalence


@settings(max_examples=20, suppress_health_check=list(HealthCheck))
@given(drawn=rows_and_conditions())
def test_random_conditions_select_the_same_rows_everywhere(buffers, drawn):
    check_equivalence(buffers, drawn)
