"""Every condition selects the same rows in SQLite, in PostgreSQL and in plain Python."""

import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import select

from sqlbuffer import QueryFilter
from sqlbuffer.query.tree import check
from sqlbuffer.storage.buffers.tables import experiences
from sqlbuffer.storage.rows.conditions import compile_condition
from tests.query.strategies import rows_and_conditions


def store_afresh(buffers, data):
    """Make the rows all that each buffer holds, and give them the seq they have there."""
    for buffer in buffers.values():
        buffer.clear()
        buffer.store_batch(data)
        held = {row.id: row.seq for row in buffer.get_all()}
        for row in data:
            assert row.seq in (None, held[row.id])
            row.seq = held[row.id]


def ids_by_database(buffer, conditions):
    """Return the ids that each condition selects, by one statement: one each takes five times as
    long.
    """
    selects = [
        select(experiences.c.id).where(compile_condition(check(tree), experiences)).subquery()
        for tree in conditions
    ]
    columns = [experiences.c.id.in_(select(found.c.id)) for found in selects]
    with buffer._store.engine.connect() as connection:
        found = connection.execute(select(experiences.c.id, *columns)).all()
    return [{id_ for id_, *matches in found if matches[i]} for i in range(len(conditions))]


def check_equivalence(buffers, drawn):
    rows, conditions = drawn
    store_afresh(buffers, rows)
    expected = [{row.id for row in QueryFilter(tree).filter(rows)} for tree in conditions]
    for kind, buffer in buffers.items():
        selected = ids_by_database(buffer, conditions)
        for tree, ids, expected_ids in zip(conditions, selected, expected, strict=True):
            assert ids == expected_ids, (kind, tree)
    # And the whole way, through the front door.
    for buffer in buffers.values():
        assert {row.id for row in buffer.get_all(conditions[0])} == expected[0]


# Ten times as many are tried among the integrations.
@pytest.mark.slow
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
@given(drawn=rows_and_conditions())
def test_random_conditions_select_the_same_rows_everywhere(buffers, drawn):
    check_equivalence(buffers, drawn)
