"""Condition trees: how they are built, checked, and what they mean in plain Python."""

import copy
import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    FifoSampler,
    LatestSampler,
    QueryBuilder,
    QueryFilter,
    RandomSampler,
    RandomTaskSample,
    ReplayBuffer,
)
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.query_filter import integer_bound, real_bound
from sqlbuffer.query.tree import MAX_DEPTH, check
from tests.query.strategies import rows_and_conditions

A = {"field": "a", "value": 1, "op": "eq"}
B = {"field": "b", "value": 2, "op": "eq"}
C = {"field": "c", "value": 3, "op": "eq"}


def eq_a():
    return QueryBuilder().eq("a", 1)


def eq_b():
    return QueryBuilder().eq("b", 2)


class TestBuilder:
    """The numbers are those of the worked examples in AWorld's behaviour."""

    @pytest.mark.parametrize(
        ("builder", "tree"),
        [
            pytest.param(eq_a(), A, id="1"),
            pytest.param(eq_a().and_().eq("b", 2), {"and_": [A, B]}, id="2"),
            pytest.param(
                eq_a().and_().eq("b", 2).or_().eq("c", 3), {"or_": [{"and_": [A, B]}, C]}, id="3"
            ),
            pytest.param(
                eq_a().or_().eq("b", 2).and_().eq("c", 3), {"and_": [{"or_": [A, B]}, C]}, id="4"
            ),
            pytest.param(
                eq_a().and_().eq("b", 2).and_().eq("c", 3), {"and_": [{"and_": [A, B]}, C]}, id="5"
            ),
            pytest.param(
                eq_a().or_().nested(eq_b().and_().eq("c", 3)),
                {"or_": [A, {"and_": [B, C]}]},
                id="6",
            ),
            pytest.param(QueryBuilder().nested(QueryBuilder().nested(eq_a())), A, id="7"),
            pytest.param(QueryBuilder().is_null("a"), {"field": "a", "op": "is_null"}, id="8"),
            pytest.param(
                QueryBuilder().in_("a", [1, 2]), {"field": "a", "value": [1, 2], "op": "in"}, id="9"
            ),
            pytest.param(
                QueryBuilder().or_().and_().eq("a", 1).eq("b", 2).eq("c", 3),
                {"and_": [{"or_": [A, B]}, C]},
                id="11",
            ),
            pytest.param(QueryBuilder().and_().eq("a", 1).eq("b", 2), {"and_": [A, B]}),
            pytest.param(eq_a().eq("b", 2).or_(), {"or_": [A, B]}),
        ],
    )
    def test_a_chain_builds_aworlds_tree(self, builder, tree):
        assert builder.build() == tree

    def test_a_value_that_is_a_dict_with_a_key_nested_stays_itself(self):
        # AWorld replaces it by its entry (example 10): a defect, not a meaning.
        value = {"nested": 5, "x": 1}
        assert QueryBuilder().eq("a", value).build() == {"field": "a", "value": value, "op": "eq"}

    def test_a_builder_stays_usable_after_build(self):
        builder = eq_a()
        assert builder.build() == A
        assert builder.and_().eq("b", 2).build() == {"and_": [A, B]}

    def test_nested_takes_the_other_builder_as_it_is_now(self):
        other = eq_b()
        builder = eq_a().and_().nested(other)
        other.or_().eq("c", 3)
        assert builder.build() == {"and_": [A, B]}

    @pytest.mark.parametrize(
        ("method", "op"),
        [
            ("eq", "eq"),
            ("ne", "ne"),
            ("gt", "gt"),
            ("gte", "gte"),
            ("lt", "lt"),
            ("lte", "lte"),
            ("in_", "in"),
            ("not_in", "not_in"),
            ("like", "like"),
            ("not_like", "not_like"),
        ],
    )
    def test_every_operator_makes_one_leaf(self, method, op):
        builder = getattr(QueryBuilder(), method)("exp_meta.step", "x")
        assert builder.build() == {"field": "exp_meta.step", "value": "x", "op": op}

    def test_the_operators_without_a_value_have_no_value_key(self):
        assert QueryBuilder().is_not_null("a").build() == {"field": "a", "op": "is_not_null"}

    def test_between_makes_one_leaf_with_two_bounds(self):
        tree = QueryBuilder().between("a", 1, 2).build()
        assert tree == {"field": "a", "value": [1, 2], "op": "between"}

    @pytest.mark.parametrize(
        ("builder", "remedy"),
        [
            (QueryBuilder(), "add one, such as"),
            (eq_a().eq("b", 2), r"write \.and_\(\) or \.or_\(\) between .*, 1 more"),
            (eq_a().eq("b", 2).eq("c", 3), ", 2 more: "),
            (eq_a().and_().or_().eq("b", 2), "leave out 1, or add the conditions"),
            (QueryBuilder().and_().eq("a", 1), "leave out 1"),
            (eq_a().and_(), "joins two conditions: leave out 1"),
        ],
    )
    def test_a_wrong_number_of_operators_is_refused_with_a_remedy(self, builder, remedy):
        message = f"^Mismatch between condition and operator counts: .*; ?.*{remedy}"
        with pytest.raises(ValueError, match=message):
            builder.build()
        with pytest.raises(ConditionError, match=message):
            QueryBuilder().nested(builder)

    def test_an_empty_builder_is_told_that_it_is_empty(self):
        with pytest.raises(ConditionError, match="the condition is empty"):
            QueryBuilder().build()

    def test_nested_wants_a_builder(self):
        with pytest.raises(ConditionError, match="builder is a QueryBuilder"):
            QueryBuilder().nested(None)

    def test_values_become_what_json_has(self):
        values = [
            np.int64(1),
            np.float32(0.5),
            np.str_("a"),
            np.bool_(True),
            (1, (2,)),
            {3},
            range(2),
        ]
        built = [QueryBuilder().eq("a", value).build()["value"] for value in values]
        assert built == [1, 0.5, "a", True, [1, [2]], [3], [0, 1]]
        assert json.loads(json.dumps(built)) == built
        assert [type(value) for value in built[:4]] == [int, float, str, bool]
        assert QueryBuilder().in_("a", np.array([1, 2]).tolist()).build()["value"] == [1, 2]

    @pytest.mark.parametrize("value", [object(), b"bytes", np.ones(2), 1j])
    def test_values_that_json_has_not_are_refused(self, value):
        with pytest.raises(ConditionError):
            QueryBuilder().eq("a", value)
        with pytest.raises(ConditionError):
            QueryBuilder().in_("a", [value])

    def test_a_value_nested_too_deep_is_refused(self):
        value = []
        value.append(value)
        with pytest.raises(ConditionError, match="nested deeper than 100 levels"):
            QueryBuilder().eq("a", value)
        with pytest.raises(ConditionError, match="nested deeper than 100 levels"):
            check({"field": "exp_data.state", "op": "eq", "value": {"a": value}})

    @pytest.mark.parametrize("wrap", [lambda value: [value], lambda value: {"a": value}])
    def test_a_value_may_be_nested_100_levels_deep(self, wrap):
        value = 1
        for _ in range(100):
            value = wrap(value)
        assert check(QueryBuilder().eq("exp_data.state", value).build()).value == value
        with pytest.raises(ConditionError, match="nested deeper than 100 levels"):
            QueryBuilder().eq("exp_data.state", wrap(value))


class TestCheck:
    @pytest.mark.thorough
    @pytest.mark.slow
    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(rows_and_conditions())
    def test_trees_are_data_json_in_json_out(self, drawn):
        rows, conditions = drawn
        for tree in conditions:
            copied = json.loads(json.dumps(tree))
            assert QueryFilter(copied).filter(rows) == QueryFilter(tree).filter(rows)

    @pytest.mark.thorough
    @pytest.mark.slow
    @settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
    @given(rows_and_conditions())
    def test_checking_leaves_the_tree_as_it_was(self, drawn):
        for tree in drawn[1]:
            before = copy.deepcopy(tree)
            check(tree)
            assert repr(tree) == repr(before)

    @pytest.mark.parametrize("condition", [None, {}])
    def test_no_condition_matches_everything(self, condition):
        assert QueryFilter(condition).filter([make_row()]) == [make_row()]

    def test_a_builder_stands_for_its_tree(self):
        builder = QueryBuilder().eq("exp_meta.step", 3)
        assert check(builder) == check(builder.build())

    def test_nested_wrappers_may_stand_in_a_tree(self):
        leaf = {"field": "id", "op": "is_null"}
        assert check({"nested": {"nested": leaf}}) == check(leaf)

    @pytest.mark.parametrize(
        "tree",
        [
            [],
            "id",
            1,
            {"and": []},
            {"or": [A]},
            {"AND_": []},
            {"and_": {}},
            {"and_": "id"},
            {"and_": [1]},
            {"and_": [None]},
            {"or_": [{}]},
            {"and_": [], "or_": []},
            {"field": "id"},
            {"op": "eq"},
            {"field": "id", "value": 1},
            {"field": "id", "op": "eq", "value": 1, "extra": 1},
            {"field": "id", "op": "eq"},
            {"field": "id", "op": "EQ", "value": 1},
            {"field": "id", "op": "==", "value": 1},
            {"field": "id", "op": None, "value": 1},
            {"field": "id", "op": ["eq"], "value": 1},
            {"field": None, "op": "eq", "value": 1},
            {"field": "exp_meta.step", "op": "gt", "value": None},
            {"field": "exp_meta.step", "op": "lt", "value": [1]},
            {"field": "exp_meta.step", "op": "gte", "value": {"a": 1}},
            {"field": "exp_meta.step", "op": "between", "value": 1},
            {"field": "exp_meta.step", "op": "between", "value": [1]},
            {"field": "exp_meta.step", "op": "between", "value": [1, None]},
            {"field": "exp_meta.step", "op": "in", "value": 1},
            {"field": "exp_meta.step", "op": "in", "value": None},
            {"field": "exp_meta.step", "op": "not_in", "value": 1.5},
            {"field": "exp_meta.step", "op": "eq", "value": 2**63},
            {"field": "exp_meta.step", "op": "in", "value": [10**400]},
            {"field": "exp_data.state", "op": "eq", "value": [-(2**63) - 1]},
            {"field": "exp_data.state", "op": "eq", "value": {1: 2}},
            {"field": "exp_data.state", "op": "eq", "value": b"bytes"},
        ],
        ids=lambda tree: str(list(tree.items())[-1])[:40] if isinstance(tree, dict) else None,
    )
    def test_a_malformed_tree_is_refused(self, tree):
        with pytest.raises(ConditionError):
            check(tree)
        with pytest.raises(ConditionError):
            check({"or_": [{"field": "id", "op": "is_null"}, tree]})

    def test_the_key_without_underscore_is_explained(self):
        with pytest.raises(ConditionError, match="with the underscore"):
            check({"and": [A, B]})

    def test_an_unknown_operator_names_the_known_ones(self):
        with pytest.raises(
            ConditionError, match="unknown operator 'equals' on id; known are eq, ne"
        ):
            check({"field": "id", "op": "equals", "value": 1})

    def test_an_unknown_field_names_the_nearest(self):
        with pytest.raises(ConditionError, match=r"did you mean task_id or"):
            check(QueryBuilder().eq("taskid", 1))

    def test_errors_stay_short(self):
        big = QueryBuilder().in_("exp_meta.step", list(range(100_000)))
        for tree in ([big.build()], {"and_": big.build()}, {"and_": [[1] * 100_000]}):
            with pytest.raises(ConditionError) as caught:
                check(tree)
            assert len(str(caught.value)) < 1000

    @pytest.mark.thorough
    @pytest.mark.parametrize("join", ["and_", "or_"])
    def test_long_chains_of_one_operator_are_flat(self, join):
        builder = QueryBuilder().eq("exp_meta.step", 0)
        for step in range(1, 20_000):
            getattr(builder, join)().eq("exp_meta.step", step)
        assert len(check(builder).parts) == 20_000

    def test_too_deep_nesting_is_refused(self):
        def alternating(depth):
            tree = {"field": "id", "op": "is_null"}
            for level in range(depth):
                tree = {("and_", "or_")[level % 2]: [tree]}
            return tree

        check(alternating(MAX_DEPTH))
        for depth in (MAX_DEPTH + 1, 5000, 100_000):
            with pytest.raises(ConditionError, match=f"nested deeper than {MAX_DEPTH} levels"):
                check(alternating(depth))

    @pytest.mark.thorough
    def test_a_tree_in_itself_is_refused(self):
        tree = {"and_": []}
        tree["and_"].append({"or_": [tree]})
        with pytest.raises(ConditionError, match="nested deeper"):
            check(tree)
        tree = {"and_": []}
        tree["and_"].append(tree)
        with pytest.raises(ConditionError, match="or itself"):
            check(tree)


def make_row(step=3, **data):
    return DataRow(ExpMeta("t1", None, "a1", step, 0.5), Experience(**data), "id1")


def matches(field, op, value, **data):
    tree = {"field": field, "op": op, "value": value}
    return QueryFilter(tree).check_condition(make_row(**data))


class TestFilter:
    """What a condition means, without a database: the reference of `tests/query`."""

    def test_filter_keeps_the_order_and_the_rows_themselves(self):
        rows = [make_row(step) for step in (3, 1, 2)]
        kept = QueryFilter(QueryBuilder().gt("exp_meta.step", 1)).filter(iter(rows))
        assert [row is match for row, match in zip((rows[0], rows[2]), kept, strict=True)] == [
            True
        ] * 2

    @pytest.mark.parametrize(
        "field", ["exp_meta.pre_agent", "exp_data.reward_t", "exp_data.state.x.y"]
    )
    def test_missing_equals_none(self, field):
        assert matches(field, "eq", None)
        assert matches(field, "ne", "x")
        assert matches(field, "not_in", ["x"])
        assert matches(field, "in", ["x", None])
        assert matches(field, "is_null", None)
        assert not matches(field, "eq", 0)
        assert not matches(field, "ne", None)
        assert not matches(field, "in", [0, "", False])
        assert not matches(field, "not_in", [None])
        assert not matches(field, "is_not_null", None)
        for op in ("gt", "gte", "lt", "lte"):
            assert not matches(field, op, 0)
            assert not matches(field, op, "")
        assert not matches(field, "like", "")
        assert not matches(field, "not_like", "x")

    @pytest.mark.parametrize(
        ("value", "target", "same"),
        [
            (3, 3.0, True),
            (3, "3", False),
            (True, 1, True),
            (0, False, True),
            (0, None, False),
            ("", None, False),
            (2**53, 2.0**53, True),
            (2**53 + 1, 2.0**53, False),
            (2**63 - 1, 2.0**63, False),
            (-0.0, 0, True),
            (math.nan, math.nan, False),
            (math.inf, math.inf, True),
            ([1, 2], [1, 2], True),
            ([1, 2], (1, 2), True),
            ([1], [1.0], True),
            ([True], [1], False),
            ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
            ({"a": None}, {}, False),
            ({"$float": "inf"}, math.inf, False),
            ({"$str": ""}, "", False),
            ("[1]", [1], False),
            (2**70, 5, False),
            (b"a", "a", False),
            ("\0", "\0", True),
            ("\ud800", "\ud800", True),
        ],
    )
    def test_eq_compares_as_python_does_and_never_raises(self, value, target, same):
        assert matches("exp_data.state.x", "eq", target, state={"x": value}) is same
        assert matches("exp_data.state.x", "ne", target, state={"x": value}) is not same
        assert matches("exp_data.state[0]", "in", [target], state=[value]) is same
        assert matches("exp_data.state", "not_in", [target], state=value) is not same

    @pytest.mark.parametrize(
        ("smaller", "greater"),
        [
            (1, 2),
            (-math.inf, -(2**63)),
            (2**63 - 1, 2.0**63),
            (2.0**53, 2**53 + 1),
            (False, True),
            (0.5, True),
            ("", "a"),
            ("Z", "a"),
            ("z", "é"),
            ("a", "a\0"),
            ("\ud7ff", "\ud800"),
            ("\udfff", "\ue000"),
            ("\uffff", "\U00010000"),
        ],
    )
    def test_numbers_and_text_are_ordered_as_in_python(self, smaller, greater):
        for op in ("lt", "lte", "ne"):
            assert matches("exp_data.state", op, greater, state=smaller)
            assert not matches("exp_data.state", "gt", greater, state=smaller)
        for op in ("gt", "gte", "ne"):
            assert matches("exp_data.state", op, smaller, state=greater)
            assert not matches("exp_data.state", "lt", smaller, state=greater)

    @pytest.mark.parametrize("op", ["eq", "gt", "gte", "lt", "lte", "like", "not_like"])
    @pytest.mark.parametrize("state", ["5", 5, None, [5], {"a": 5}, True, b"5", {5}, np.ones(1)])
    def test_a_value_of_another_type_does_not_match(self, op, state):
        target = 0 if isinstance(state, str) and op not in ("like", "not_like") else "0"
        if isinstance(state, (str, list, dict)) and op == "not_like":
            return
        assert not matches("exp_data.state", op, target, state=state)

    def test_like_is_a_case_sensitive_substring_without_wildcards(self):
        for part in ("", "100%", "a_b", "100% a_b"):
            assert matches("exp_data.state", "like", part, state="100% a_b")
            assert not matches("exp_data.state", "not_like", part, state="100% a_b")
        for part in ("A_B", "1%b", "a%", "_", "AXB"):
            assert not matches("exp_data.state", "like", part, state="100% axb")

    def test_like_finds_elements_of_lists(self):
        assert matches("exp_data.state.tags", "like", "a", state={"tags": ["a", "b"]})
        assert not matches("exp_data.state.tags", "like", "a", state={"tags": ["ab", 1, ["a"]]})
        assert matches("exp_data.state.tags", "not_like", "a", state={"tags": ["ab", 1, ["a"]]})

    def test_in_a_text_asks_for_a_part_of_it(self):
        assert matches("exp_meta.task_id", "in", "x t1 y")
        assert not matches("exp_meta.task_id", "in", "x T1 y")
        assert matches("exp_meta.task_id", "not_in", "")
        assert not matches("exp_meta.step", "in", "3")
        assert matches("exp_meta.pre_agent", "not_in", "text")

    def test_in_nothing_matches_nothing_and_not_in_nothing_everything(self):
        assert not matches("exp_meta.task_id", "in", [])
        assert matches("exp_meta.task_id", "not_in", [])
        assert matches("exp_meta.pre_agent", "not_in", [])

    def test_between_includes_both_bounds(self):
        found = [matches("exp_meta.step", "between", bounds) for bounds in ([3, 3], [0, 3], [4, 9])]
        assert found == [True, True, False]
        assert not matches("exp_meta.step", "between", [9, 0])
        assert not matches("exp_data.reward_t", "between", [0, 1])

    def test_numbers_given_for_text_keys_mean_their_text(self):
        row = DataRow(ExpMeta(7, None, "a", 1, 0.0), Experience())
        for tree in (
            QueryBuilder().eq("exp_meta.task_id", 7),
            QueryBuilder().in_("exp_meta.task_id", [7]),
        ):
            assert QueryFilter(tree).check_condition(row)

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (".a.b", 1),
            (".list[0]", 10),
            (".list.0", 10),
            (".list[-1]", 30),
            (".list[3]", None),
            (".list[-4]", None),
            ('.list."0"', None),
            (".tuple[1]", 2),
            (".tuple[-2]", 1),
            (".digits.0", "zero"),
            (".digits[0]", "zero"),
            ('.digits."0"', "zero"),
            (".digits.01", "zero one"),
            (".digits[1]", None),
            ('."a.b"', "dotted"),
            ('.""', "empty"),
            (".$float", "dollar"),
            (".text[0]", None),
            (".a.b.c", None),
            (".a[0]", None),
            (".pairs.1", None),
            (".set[0]", None),
        ],
    )
    def test_paths_reach_into_dicts_lists_and_tuples(self, path, value):
        state = {
            "a": {"b": 1},
            "list": [10, 20, 30],
            "tuple": (1, 2),
            "digits": {"0": "zero", "01": "zero one"},
            "a.b": "dotted",
            "": "empty",
            "$float": "dollar",
            "text": "abc",
            "pairs": {1: "one"},
            "set": {1},
        }
        assert matches(f"exp_data.state{path}", "eq", value, state=state)

    def test_empty_groups(self):
        row = make_row()
        assert QueryFilter({"and_": []}).check_condition(row)
        assert not QueryFilter({"or_": []}).check_condition(row)


numbers = (
    st.integers(-(2**63), 2**63 - 1)
    | st.integers(-5, 5)
    | st.floats()
    | st.sampled_from([2.0**53, 2**53 + 1, 2.0**63, -(2.0**63), 2**63 - 1, 0.5, -0.5])
)
OPERATORS = {
    "eq": lambda a, b: a == b,
    "gt": lambda a, b: a > b,
    "gte": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "lte": lambda a, b: a <= b,
}


class TestBounds:
    @given(
        st.sampled_from(list(OPERATORS)),
        numbers,
        st.integers(-(2**63), 2**63 - 1) | st.integers(-5, 5),
    )
    def test_a_bound_for_integers_compares_as_the_number_does(self, op, number, stored):
        bound_op, bound = integer_bound(op, number)
        holds = bound if bound_op == "const" else OPERATORS[bound_op](stored, bound)
        assert holds == OPERATORS[op](stored, number)

    @given(st.sampled_from(list(OPERATORS)), numbers, st.floats(allow_nan=False))
    def test_a_bound_for_floats_compares_as_the_number_does(self, op, number, stored):
        for value in (stored, math.nextafter(stored, 0), float(number)):
            bound_op, bound = real_bound(op, number)
            holds = bound_op != "const" and OPERATORS[bound_op](value, bound)
            assert holds == OPERATORS[op](value, number)


# Conditions and samplers print what they do.


@pytest.mark.parametrize(
    ("builder", "shown"),
    [
        (QueryBuilder(), "QueryBuilder(empty)"),
        (QueryBuilder().eq("task_id", "t1"), "QueryBuilder(task_id eq 't1')"),
        (
            QueryBuilder().gt("step", 3).or_().is_null("state.x"),
            "QueryBuilder(step gt 3 or state.x is_null)",
        ),
    ],
)
def test_a_condition_prints_its_comparisons(builder, shown):
    assert repr(builder) == shown


def test_a_long_condition_prints_in_short():
    assert len(repr(QueryBuilder().in_("step", list(range(100_000))))) < 100


def test_a_chain_that_is_not_finished_prints():
    builder = QueryBuilder().eq("step", 1).and_()
    assert repr(builder) == "QueryBuilder(step eq 1)"
    assert repr(builder.nested(QueryBuilder().eq("id", 1))) == "QueryBuilder(step eq 1 and id eq 1)"


def test_a_sampler_prints_its_arguments():
    assert repr(RandomSampler(replace=True, seed=7)) == "RandomSampler(replace=True, seed=7)"
    assert repr(RandomTaskSample(seed=7)) == "RandomTaskSample(seed=7)"
    assert (repr(FifoSampler()), repr(LatestSampler())) == ("FifoSampler()", "LatestSampler()")


# Short names mean what AWorld's long paths mean, on both databases and in Python.


PAIRS = {
    "task_id": ("exp_meta.task_id", "t1"),
    "step": ("exp_meta.step", 2),
    "agent_id": ("exp_meta.agent_id", "a0"),
    "reward": ("exp_data.reward_t", 1.0),
    "reward_t": ("exp_data.reward_t", 1.0),
    "v_t": ("exp_data.v_t", 0.0),
    "state.x": ("exp_data.state.x", 1),
    "state.tags[0]": ("exp_data.state.tags[0]", "even"),
    "actions[0]": ("exp_data.actions[0]", 3),
    "extra": ("exp_data.extra", {"k": 1}),
}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        for i in range(6):
            buffer.add(
                task_id=f"t{i // 3}",
                agent_id=f"a{i % 2}",
                step=i % 3,
                reward=float(i % 2),
                v_t=float(i % 3),
                state={"x": i % 2, "tags": ["odd" if i % 2 else "even"]},
                actions=[i],
                extra={"k": i % 4},
            )
        yield buffer


@pytest.mark.thorough
@pytest.mark.parametrize("short", PAIRS)
def test_a_short_name_finds_the_rows_of_the_long_one(buffer, short):
    long, value = PAIRS[short]
    found = [
        [row.seq for row in buffer.get_all(QueryBuilder().eq(name, value))]
        for name in (short, long)
    ]
    assert found[0] == found[1]
    assert 0 < len(found[0]) < 6
    rows = QueryFilter(QueryBuilder().eq(short, value)).filter(buffer.get_all())
    assert [row.seq for row in rows] == found[0]


def test_a_typo_names_what_may_be_meant(buffer):
    with pytest.raises(ConditionError, match=r"unknown field 'task'; did you mean task_id"):
        buffer.size(QueryBuilder().eq("task", 1))


def test_fields_are_named_as_in_conditions(buffer):
    (row, *_) = buffer.get_all(fields=["task_id", "reward", "state.x"])
    assert (row.exp_meta.task_id, row.exp_data.reward_t) == ("t0", 0.0)
    assert (row.exp_data.state, row.exp_data.actions) == ({"x": 0}, None)
