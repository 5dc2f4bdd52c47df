"""The query language builds AWorld's trees; numbers are those of the worked examples."""

import operator
from itertools import product

import pytest

from sqlbuffer.compat.aworld import QueryBuilder, QueryFilter
from sqlbuffer.errors import ConditionError
from tests.compat.aworld.aworld_rows import row

A = {"field": "a", "value": 1, "op": "eq"}
B = {"field": "b", "value": 2, "op": "eq"}
C = {"field": "c", "value": 3, "op": "eq"}


def builder():
    return QueryBuilder()


def reused():
    chain = builder().eq("a", 1)
    chain.build()
    return chain.and_().eq("b", 2)


EXAMPLES = {
    1: (builder().eq("a", 1), A),
    2: (builder().eq("a", 1).and_().eq("b", 2), {"and_": [A, B]}),
    3: (builder().eq("a", 1).and_().eq("b", 2).or_().eq("c", 3), {"or_": [{"and_": [A, B]}, C]}),
    4: (builder().eq("a", 1).or_().eq("b", 2).and_().eq("c", 3), {"and_": [{"or_": [A, B]}, C]}),
    5: (builder().eq("a", 1).and_().eq("b", 2).and_().eq("c", 3), {"and_": [{"and_": [A, B]}, C]}),
    6: (
        builder().eq("a", 1).or_().nested(builder().eq("b", 2).and_().eq("c", 3)),
        {"or_": [A, {"and_": [B, C]}]},
    ),
    7: (builder().nested(builder().nested(builder().eq("a", 1))), A),
    8: (builder().is_null("a"), {"field": "a", "op": "is_null"}),
    9: (builder().in_("a", [1, 2]), {"field": "a", "value": [1, 2], "op": "in"}),
    10: (
        builder().eq("a", {"nested": 5, "x": 1}),
        {"field": "a", "value": {"nested": 5, "x": 1}, "op": "eq"},
    ),
    11: (
        builder().or_().and_().eq("a", 1).eq("b", 2).eq("c", 3),
        {"and_": [{"or_": [A, B]}, C]},
    ),
    12: (reused(), {"and_": [A, B]}),
}


@pytest.mark.parametrize("number", EXAMPLES)
def test_worked_example_builds_its_tree(number):
    chain, tree = EXAMPLES[number]
    assert chain.build() == tree
    assert chain.build() == tree


@pytest.mark.parametrize(
    "name", ["eq", "ne", "gt", "gte", "lt", "lte", "in", "not_in", "like", "not_like"]
)
def test_leaf_has_field_value_and_operator(name):
    method = getattr(builder(), "in_" if name == "in" else name)
    assert method("a", "x").build() == {"field": "a", "value": "x", "op": name}


def test_leaf_without_a_value_has_none():
    assert builder().is_not_null("a").build() == {"field": "a", "op": "is_not_null"}


@pytest.mark.parametrize(
    "chain",
    [
        builder(),
        builder().eq("a", 1).eq("b", 2),
        builder().eq("a", 1).and_().or_().eq("b", 2),
        builder().and_().eq("a", 1),
    ],
)
def test_operators_that_do_not_fit_the_conditions_are_refused(chain):
    with pytest.raises(ConditionError, match=r"^Mismatch between condition and operator counts"):
        chain.build()
    with pytest.raises(ValueError, match="Mismatch"):
        builder().nested(chain)


@pytest.mark.parametrize(
    ("chain", "tree"),
    [
        (builder().and_().eq("a", 1).eq("b", 2), {"and_": [A, B]}),
        (builder().eq("a", 1).eq("b", 2).or_(), {"or_": [A, B]}),
    ],
)
def test_operators_may_stand_anywhere(chain, tree):
    assert chain.build() == tree


def test_nested_takes_a_builder():
    with pytest.raises(ValueError, match="builder is a QueryBuilder"):
        builder().nested(None)


def test_nested_builds_at_once():
    inner = builder().eq("a", 1)
    outer = builder().nested(inner)
    inner.and_().eq("b", 2)
    assert outer.build() == A


def test_filter_keeps_the_rows_that_match():
    rows = [row("task_1", 1), row("task_1", 2), row("task_2", 1)]
    query = builder().eq("exp_meta.task_id", "task_1").and_().gt("exp_meta.step", 1).build()
    assert QueryFilter(query).filter(rows) == [rows[1]]
    assert [QueryFilter(query).check_condition(row) for row in rows] == [False, True, False]
    assert QueryFilter(None).filter(rows) == QueryFilter({}).filter(rows) == rows


def test_null_conditions_of_the_builder_can_be_checked():
    assert QueryFilter(builder().is_null("exp_meta.pre_agent").build()).check_condition(row())
    assert QueryFilter(builder().is_not_null("exp_meta.task_id").build()).check_condition(row())


def test_missing_value_equals_none_and_is_no_error():
    def holds(chain):
        return QueryFilter(chain.build()).check_condition(row())

    field = "exp_data.reward_t"
    assert holds(builder().eq(field, None))
    assert holds(builder().ne(field, 1))
    assert holds(builder().not_in(field, [1]))
    assert not holds(builder().gt(field, 1))
    assert not holds(builder().like("exp_meta.pre_agent", ""))
    assert holds(builder().like("exp_meta.task_id", "sk_"))
    assert not holds(builder().like("exp_meta.task_id", "sk%"))


UPSTREAM = {
    "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "gte": operator.ge, "lt": operator.lt,
    "lte": operator.le, "in": lambda v, t: v in t, "not_in": lambda v, t: v not in t,
    "like": lambda v, t: t in v, "not_like": lambda v, t: t not in v,
}  # fmt: skip
SCALARS = [None, 0, 1, 1.0, 2.5, True, False, "", "a", "ab", "1"]
LISTS = [[], [1], [1.0], [1, 2], [1.0, 2], ["a"], ["a", 1], [None], [[1]], [[1.0]], [{"a": 1}]]
VALUES = [*SCALARS, *LISTS, {}, {"a": 1}, {"a": 1.0}, {"b": None}, {"a": [1]}]


def expected(op, value, target):
    """Return what AWorld's filter says, or that the row does not match where that raises."""
    try:
        return UPSTREAM[op](value, target)
    except TypeError:
        return op == "not_in"


def is_refused(op, target):
    """Tell whether a condition has no meaning here, whatever the row."""
    if op in ("gt", "gte", "lt", "lte"):
        return target is None or isinstance(target, (list, dict))
    return op in ("in", "not_in") and not isinstance(target, (str, list, dict))


@pytest.mark.thorough
@pytest.mark.parametrize("op", UPSTREAM)
def test_a_filter_does_what_aworlds_does(op):
    stored, named = row(), row()
    for value, target in product(VALUES, VALUES):
        leaf = {"field": "exp_data.state", "op": op, "value": target}
        if is_refused(op, target):
            with pytest.raises(ConditionError):
                QueryFilter(leaf)
            continue
        stored.exp_data.state = value
        assert QueryFilter(leaf).check_condition(stored) == expected(op, value, target), leaf
        if value is None or isinstance(value, str):
            named.exp_meta.task_name = named.id = value
            for field in ("exp_meta.task_name", "id"):
                found = QueryFilter({**leaf, "field": field}).check_condition(named)
                assert found == expected(op, value, target), (field, leaf, value)
