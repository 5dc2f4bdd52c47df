"""Conditions as large as they may be, and larger."""

import pytest

from sqlbuffer import QueryBuilder
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.tree import MAX_DEPTH
from tests.query.test_conditions import found, leaf


@pytest.mark.each_value
@pytest.mark.parametrize(
    "field", ["exp_meta.step", "exp_data.state.x", "exp_data.actions[0].x", "episode_id"]
)
def test_two_thousand_conditions_in_a_chain(buffer, field):
    for i in range(3):
        buffer.add(id=str(i), step=i, state={"x": i}, actions=[{"x": i}], episode_id=str(i))
    any_of, none_of = QueryBuilder().eq(field, 1), QueryBuilder().ne(field, 1)
    for i in range(1000, 2999):
        any_of.or_().eq(field, i)
        none_of.and_().ne(field, i)
    assert buffer.size(none_of) == 2
    assert buffer.delete(any_of) == 1


@pytest.mark.each_value
@pytest.mark.parametrize("field", ["exp_meta.step", "exp_data.state[0].x"])
@pytest.mark.parametrize("first", [True, False])
def test_nesting_up_to_the_limit_works_and_beyond_is_refused(buffer, field, first):
    def nested(depth, width):
        tree = leaf("gte", 0, field)
        for level in range(depth):
            leaves = [leaf("gte" if level % 2 else "lt", 0, field)] * width
            group = "and_" if level % 2 else "or_"
            tree = {group: [tree, *leaves] if first else [*leaves, tree]}
        return tree

    buffer.add(id="a", step=1, state=[{"x": 1}])
    assert found(buffer, nested(MAX_DEPTH, 1)) == ["a"]
    assert found(buffer, nested(MAX_DEPTH, 10)) == ["a"]
    assert len(buffer.sample_tasks(1, condition=nested(MAX_DEPTH, 10))) == 1
    for call in (buffer.size, buffer.sql, buffer.explain, buffer.delete):
        with pytest.raises(ConditionError, match="large groups in large groups"):
            call(nested(MAX_DEPTH, 100))
    for depth in (MAX_DEPTH + 1, 3000):
        for call in (buffer.size, buffer.sql, buffer.explain, buffer.delete):
            with pytest.raises(ConditionError, match="nested deeper"):
                call(nested(depth, 1))
