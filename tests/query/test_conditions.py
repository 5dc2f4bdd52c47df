"""What section 5 says of conditions, a test a sentence, on both databases."""

import itertools
import json
import math
import sqlite3
import sys
from contextlib import closing, suppress

import numpy as np
import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sqlbuffer import DataRow, Experience, ExpMeta, QueryBuilder, QueryFilter, ReplayBuffer
from sqlbuffer.codec.plain_values import hex_text, unhex_text
from sqlbuffer.errors import ConditionError
from sqlbuffer.query.tree import MAX_DEPTH
from tests.support.sql import run


def fill(buffer, *states, **fields):
    """Store a row a state, with ids 0, 1, 2 ..."""
    for i, state in enumerate(states):
        buffer.add(id=str(i), state=state, step=i, **fields)


def found(buffer, tree):
    """Return the ids that match, and check that plain Python finds the same."""
    ids = [row.id for row in buffer.get_all(tree)]
    assert ids == [row.id for row in QueryFilter(tree).filter(buffer.get_all())]
    assert len(ids) == buffer.size(tree)
    return ids


def leaf(op, value, field="exp_data.state.x"):
    return {"field": field, "op": op, "value": value}


def where(op, value, field="exp_data.state.x"):
    """Return the question as `found` takes it, with a JSON field if none is named."""
    return leaf(op, value, field)


class TestMissing:
    STATES = ({}, {"x": None}, {"x": 1}, {"x": "a"}, None, {"y": {"x": 1}})

    def test_missing_equals_none(self, buffer):
        fill(buffer, *self.STATES)
        missing = ["0", "1", "4", "5"]
        assert found(buffer, where("eq", None)) == missing
        assert found(buffer, where("in", [None])) == missing
        assert found(buffer, {"field": "exp_data.state.x", "op": "is_null"}) == missing
        assert found(buffer, {"field": "exp_data.state.x", "op": "is_not_null"}) == ["2", "3"]
        assert found(buffer, where("ne", None)) == ["2", "3"]
        assert found(buffer, where("not_in", [None])) == ["2", "3"]

    def test_ne_and_not_in_match_the_missing(self, buffer):
        fill(buffer, *self.STATES)
        assert found(buffer, where("ne", 1)) == ["0", "1", "3", "4", "5"]
        assert found(buffer, where("not_in", [1, "a"])) == ["0", "1", "4", "5"]
        assert found(buffer, where("not_in", "abc")) == ["0", "1", "2", "4", "5"]

    @pytest.mark.parametrize("op", ["gt", "gte", "lt", "lte", "like", "not_like"])
    def test_comparisons_and_like_do_not_match_the_missing_and_never_raise(self, buffer, op):
        fill(buffer, *self.STATES)
        text = op in ("like", "not_like")
        assert set(found(buffer, where(op, "a" if text else 1))) <= {"2", "3"}
        for field in ("exp_data.reward_t", "exp_meta.pre_agent", "terminated", "model_version"):
            assert found(buffer, leaf(op, "a", field)) == []

    @pytest.mark.thorough
    def test_columns_that_are_none_are_missing(self, buffer):
        fill(buffer, 1)
        fill_fields = {"pre_agent": "p", "reward": 0.0, "terminated": False, "session_id": "s"}
        buffer.add(id="full", episode_id="e", model_version=0, **fill_fields)
        for field in (
            "exp_meta.pre_agent",
            "exp_data.reward_t",
            "terminated",
            "session_id",
            "episode_id",
            "model_version",
        ):
            assert found(buffer, leaf("eq", None, field)) == ["0"]
            assert found(buffer, leaf("ne", None, field)) == ["full"]
            assert found(buffer, leaf("ne", "x", field)) == ["0", "full"]


class TestLike:
    def test_like_is_case_sensitive(self, buffer):
        fill(buffer, {"x": "Ab"}, {"x": "ab"}, {"x": "ÄB"}, {"x": "äb"})
        assert found(buffer, where("like", "A")) == ["0"]
        assert found(buffer, where("like", "ä")) == ["3"]
        assert found(buffer, where("not_like", "b")) == ["2"]

    @pytest.mark.thorough
    def test_percent_and_underscore_are_literal(self, buffer):
        texts = ["100%", "100x", "a_b", "axb", "a\\b", "a\\_b"]
        fill(buffer, *({"x": text} for text in texts))
        assert found(buffer, where("like", "%")) == ["0"]
        assert found(buffer, where("like", "_")) == ["2", "5"]
        assert found(buffer, where("like", "\\")) == ["4", "5"]
        assert found(buffer, where("like", "\\_")) == ["5"]
        assert found(buffer, where("like", "")) == [str(i) for i in range(6)]
        for i, text in enumerate(texts):
            buffer.add(id=f"task {i}", task_id=text)
        assert found(buffer, leaf("like", "0%", "exp_meta.task_id")) == ["task 0"]
        assert found(buffer, leaf("like", "a_b", "exp_meta.task_id")) == ["task 2"]

    def test_like_finds_an_element_of_a_list(self, buffer):
        fill(
            buffer, {"x": ["a", "b"]}, {"x": ["ab"]}, {"x": []}, {"x": [["a"], 1]}, {"x": {"a": 1}}
        )
        assert found(buffer, where("like", "a")) == ["0", "4"]
        assert found(buffer, where("not_like", "a")) == ["1", "2", "3"]

    def test_like_finds_a_key_of_a_dict(self, buffer):
        states = {"a": 1, "$x": 2}, {"b": "a"}, {}, {1: "a"}, np.zeros(2), math.nan, {"\0": None}
        fill(buffer, *({"x": state} for state in states))
        for key, matching in {"a": ["0"], "$x": ["0"], "$array": [], "\0": ["6"]}.items():
            dicts = ["0", "1", "2", "6"]
            assert found(buffer, where("like", key)) == matching
            assert found(buffer, where("not_like", key)) == [i for i in dicts if i not in matching]
        assert found(buffer, where("like", 1)) == []
        assert found(buffer, where("not_like", 1)) == ["0", "1", "2", "6"]
        assert found(buffer, where("not_like", [1])) == []  # a list is no key in Python

    @pytest.mark.thorough
    @pytest.mark.slow
    def test_like_finds_an_element_of_any_type(self, buffer):
        lists = [1, "1"], [1.0], [True], [None, math.inf], [[1, 2]], [{"a": 1.0}], ["a"], []
        fill(buffer, *({"x": each} for each in lists), {"x": "1"}, {"x": 1}, {})
        for value, matching in (
            (1, ["0", "1", "2"]),
            (1.0, ["0", "1", "2"]),
            (False, []),
            (None, ["3"]),
            (math.inf, ["3"]),
            (math.nan, []),
            ([1.0, 2], ["4"]),
            ([1], []),
            ({"a": 1}, ["5"]),
        ):
            assert found(buffer, where("like", value)) == matching
            rest = [str(i) for i in range(8) if str(i) not in matching]
            assert found(buffer, where("not_like", value)) == rest
            assert found(buffer, leaf("like", value, "exp_meta.task_id")) == []
            assert found(buffer, leaf("not_like", value, "exp_meta.step")) == []

    def test_odd_characters_are_found(self, buffer):
        fill(
            buffer, {"x": "a\0b"}, {"x": "\ud800"}, {"x": ["\0"]}, {"x": "ab"}, {"x": "\U0001d11e"}
        )
        assert found(buffer, where("like", "\0")) == ["0", "2"]
        assert found(buffer, where("like", "\ud800")) == ["1"]
        assert found(buffer, where("like", "a")) == ["0", "3"]
        assert found(buffer, where("eq", "a\0b")) == ["0"]
        assert found(buffer, where("in", "xa\0by\ud800")) == ["0", "1"]


class TestOtherTypes:
    STATES = tuple(
        {"x": x} for x in (5, "5", True, None, [5], {"x": 5}, 5.0, b"5", "x", math.nan, 2**70)
    )

    @pytest.mark.thorough
    def test_a_value_of_another_type_does_not_match_and_never_aborts(self, buffer):
        fill(buffer, *self.STATES)
        assert found(buffer, where("eq", 5)) == ["0", "6"]
        assert found(buffer, where("eq", "5")) == ["1"]
        assert found(buffer, where("gt", 0)) == ["0", "2", "6"]
        assert found(buffer, where("gt", "")) == ["1", "8"]
        assert found(buffer, where("eq", [5])) == ["4"]
        assert found(buffer, where("eq", {"x": 5})) == ["5"]
        assert found(buffer, where("between", [1, 9])) == ["0", "2", "6"]
        assert found(buffer, where("like", "5")) == ["1"]
        assert len(found(buffer, where("ne", 5))) == len(self.STATES) - 2

    @pytest.mark.thorough
    def test_a_column_compared_with_another_type_does_not_match(self, buffer):
        fill(buffer, 1, reward=1.0, terminated=True)
        for field in ("exp_meta.step", "exp_data.reward_t", "terminated", "seq"):
            for value in ("1", [1], {"a": 1}, ""):
                assert found(buffer, leaf("eq", value, field)) == []
                assert found(buffer, leaf("in", [value], field)) == []
                assert found(buffer, leaf("ne", value, field)) == ["0"]
            assert found(buffer, leaf("like", "1", field)) == []
        for value in (True, [1], {}):
            assert found(buffer, leaf("eq", value, "exp_meta.task_id")) == []

    @pytest.mark.thorough
    @pytest.mark.slow
    def test_a_number_is_neither_more_nor_less_than_a_text(self, buffer):
        texts = dict.fromkeys(("task_id", "agent_id", "pre_agent", "episode_id", "session_id"), "5")
        buffer.add(id="5", task_name="5", **texts)
        names = ["id", "exp_meta.task_name", *(f"exp_meta.{name}" for name in texts)]
        for field, value in itertools.product(names, (1, 7.5, True)):
            for op in ("gt", "gte", "lt", "lte"):
                assert found(buffer, leaf(op, value, field)) == []
            assert found(buffer, leaf("between", [value, value + 5], field)) == []
            assert found(buffer, leaf("gte", "1", field)) == ["5"]
        for field in names[:2]:
            assert found(buffer, leaf("eq", 5, field)) == []
            assert found(buffer, leaf("in", [5, 6], field)) == []
            assert found(buffer, leaf("ne", 5, field)) == ["5"]
            assert found(buffer, leaf("not_in", [5], field)) == ["5"]

    @pytest.mark.thorough
    def test_lists_and_dicts_are_equal_when_their_elements_are(self, buffer):
        values = [1, 2], [1.0, 2.0], [True, 2], ["1", 2], [1, 2, 3], {"a": [1]}, {"a": [1.0]}
        values += {"a": 1}, {"b": [1]}, {"a": [1], "b": None}, [2, 1], [0.1, -0.0], [2**53 + 1]
        fill(buffer, *({"x": value} for value in values))
        for value, matching in (
            ([1, 2], ["0", "1"]),
            ([1.0, 2], ["0", "1"]),
            ([True, 2.0], ["2"]),
            ({"a": [1.0]}, ["5", "6"]),
            ({"b": None, "a": [1]}, ["9"]),
            ([0.1, -0.0], ["11"]),
            ([2.0**53], []),
        ):
            assert found(buffer, where("eq", value)) == matching
            assert found(buffer, where("in", [value])) == matching
            assert len(found(buffer, where("ne", value))) == len(values) - len(matching)

    def test_numbers_mean_their_text_where_a_key_is_text(self, buffer):
        buffer.add(id="a", task_id=7)
        buffer.add(id="b", task_id="7.0")
        assert found(buffer, leaf("eq", 7, "exp_meta.task_id")) == ["a"]
        assert found(buffer, leaf("in", [7, 7.0], "exp_meta.task_id")) == ["a", "b"]


class TestValues:
    def test_an_empty_in_matches_nothing_and_an_empty_not_in_everything(self, buffer):
        fill(buffer, {"x": 1}, {})
        for field in ("exp_data.state.x", "exp_meta.task_id", "exp_meta.step", "terminated"):
            assert found(buffer, leaf("in", [], field)) == []
            assert found(buffer, leaf("not_in", [], field)) == ["0", "1"]

    def test_none_inside_in_stands_for_the_missing(self, buffer):
        fill(buffer, {"x": 1}, {"x": 2}, {})
        assert found(buffer, where("in", [1, None])) == ["0", "2"]
        assert found(buffer, where("not_in", [1, None])) == ["1"]
        assert found(buffer, leaf("in", [None, 1], "exp_data.reward_t")) == ["0", "1", "2"]

    def test_values_of_several_types_inside_in(self, buffer):
        values = [1, 2.5, "a", "it's", True, [1], {"a": "\0"}, "\0", math.inf, 2**53 + 1]
        fill(buffer, *({"x": value} for value in values))
        assert found(buffer, where("in", values)) == [str(i) for i in range(len(values))]
        assert found(buffer, where("in", values[5:])) == ["5", "6", "7", "8", "9"]
        assert found(buffer, where("in", [2.5, "a"])) == ["1", "2"]

    @pytest.mark.thorough
    @pytest.mark.slow
    def test_quotes_and_backslashes_are_themselves(self, buffer):
        texts = ["it's", 'say "x"', "back\\slash", "\\'", "%s", ":x", "?", "$1", "--", "/*", "\n"]
        fill(buffer, *({"x": text, text: 1} for text in texts))
        for i, text in enumerate(texts):
            buffer.add(id=f"task {i}", task_id=text)
            assert found(buffer, where("eq", text)) == [str(i)]
            assert found(buffer, where("in", [text, "other"])) == [str(i)]
            assert found(buffer, leaf("eq", text, "exp_meta.task_id")) == [f"task {i}"]
            quoted = text.replace("\\", "\\\\").replace('"', '\\"')
            assert found(buffer, leaf("eq", 1, f'exp_data.state."{quoted}"')) == [str(i)]

    def test_zero_and_false_and_nothing_differ_as_in_python(self, buffer):
        fill(buffer, *({"x": x} for x in (0, False, 0.0, -0.0, None, "", "0", [], {})))
        assert found(buffer, where("eq", 0)) == ["0", "1", "2", "3"]
        assert found(buffer, where("eq", False)) == ["0", "1", "2", "3"]
        assert found(buffer, where("eq", "")) == ["5"]
        assert found(buffer, where("eq", [])) == ["7"]
        assert found(buffer, where("eq", {})) == ["8"]
        assert found(buffer, where("eq", None)) == ["4"]
        buffer.clear()
        fill(buffer, 1, reward=0.0, terminated=False)
        assert found(buffer, leaf("eq", 0, "exp_data.reward_t")) == ["0"]
        assert found(buffer, leaf("eq", False, "terminated")) == ["0"]
        assert found(buffer, leaf("eq", 0, "terminated")) == ["0"]
        assert found(buffer, leaf("lt", 1, "exp_data.terminated")) == ["0"]

    @pytest.mark.thorough
    def test_nan_equals_nothing_and_is_not_missing(self, buffer):
        buffer.add(id="nan", state={"x": math.nan}, reward=math.nan, execute_time=math.nan)
        buffer.add(id="none", state={"x": None}, execute_time=1.0)
        buffer.add(id="one", state={"x": 1}, reward=1.0, execute_time=1.0)
        for field in ("exp_data.state.x", "exp_data.reward_t", "exp_meta.execute_time"):
            assert found(buffer, leaf("eq", math.nan, field)) == []
            assert found(buffer, leaf("in", [math.nan], field)) == []
            assert found(buffer, leaf("ne", math.nan, field)) == ["nan", "none", "one"]
            assert found(buffer, leaf("gt", -math.inf, field))[-1] == "one"
            assert "nan" not in found(buffer, leaf("gte", -math.inf, field))
            assert "nan" not in found(buffer, leaf("lte", math.inf, field))
            assert "nan" not in found(buffer, leaf("eq", None, field))
        assert found(buffer, leaf("eq", None, "exp_data.extra")) == ["nan", "none", "one"]

    @pytest.mark.thorough
    def test_numbers_beyond_the_exact_ones_of_floats_stay_exact(self, buffer):
        numbers = [2**53, 2**53 + 1, 2.0**53, 2**63 - 1, 2.0**63, -(2**63), 1e300, math.inf]
        fill(buffer, *({"x": number} for number in numbers))
        assert found(buffer, where("eq", 2**53)) == ["0", "2"]
        assert found(buffer, where("eq", 2**53 + 1)) == ["1"]
        assert found(buffer, where("gt", 2**63 - 1)) == ["4", "6", "7"]
        assert found(buffer, where("lt", 2.0**63)) == ["0", "1", "2", "3", "5"]
        assert found(buffer, where("eq", math.inf)) == ["7"]
        assert found(buffer, where("lte", -(2.0**63))) == ["5"]
        for i, number in enumerate(numbers):
            buffer.add(id=f"reward {i}", reward=number)
        assert found(buffer, leaf("eq", 2**53 + 1, "exp_data.reward_t")) == []
        assert "reward 4" in found(buffer, leaf("gt", 2**63 - 1, "exp_data.reward_t"))
        buffer.clear()
        buffer.add(id="step", step=2**63 - 1)
        assert found(buffer, leaf("lt", 2.0**63, "exp_meta.step")) == ["step"]
        assert found(buffer, leaf("eq", 2.0**63, "exp_meta.step")) == []
        assert found(buffer, leaf("gt", 1.5, "exp_meta.step")) == ["step"]

    def test_between_includes_both_bounds(self, buffer):
        fill(buffer, *({"x": x} for x in (0, 1, 2, 3, "1", None)))
        assert found(buffer, where("between", [1, 2])) == ["1", "2"]
        assert found(buffer, where("between", [2, 1])) == []
        assert found(buffer, where("between", ["0", "2"])) == ["4"]
        assert found(buffer, leaf("between", [0.5, 2.5], "exp_meta.step")) == ["1", "2"]


class TestPaths:
    @pytest.mark.thorough
    @pytest.mark.slow
    def test_paths_reach_into_dicts_lists_and_tuples_of_every_payload(self, buffer):
        payload = {"info": {"level": 3}, "tags": ["a", "b"], "pair": (1, {"x": 2}), "0": "zero"}
        buffer.add(id="a", state=payload, actions=[payload], messages=[[payload]], extra=payload)
        roots = (
            "exp_data.state",
            "exp_data.actions[0]",
            "exp_data.messages.0[0]",
            "exp_data.extra",
        )
        for root in roots:
            assert found(buffer, leaf("eq", 3, f"{root}.info.level")) == ["a"]
            assert found(buffer, leaf("eq", "b", f"{root}.tags[1]")) == ["a"]
            assert found(buffer, leaf("eq", "b", f"{root}.tags[-1]")) == ["a"]
            assert found(buffer, leaf("eq", 2, f"{root}.pair[1].x")) == ["a"]
            assert found(buffer, leaf("eq", 1, f"{root}.pair[-2]")) == ["a"]
            assert found(buffer, leaf("eq", "zero", f"{root}.0")) == ["a"]
            assert found(buffer, leaf("eq", None, f"{root}.tags[2]")) == ["a"]
            assert found(buffer, leaf("eq", None, f'{root}.tags."0"')) == ["a"]

    def test_an_index_into_a_number_or_a_text_is_missing(self, buffer):
        fill(buffer, 1, "a", True, [[1]], {"x": 1})
        for path in ("[0][0][0]", "[-1][0][0]", ".x[0]", "[0][0].x", ".x.x"):
            assert found(buffer, leaf("ne", None, f"exp_data.state{path}")) == []

    @pytest.mark.thorough
    @pytest.mark.parametrize(
        "key",
        [
            "a.b",
            "0",
            "-1",
            "",
            " ",
            "[0]",
            "$x",
            "$float",
            "$tuple",
            "'",
            "\\",
            '"',
            "\0",
            "\ud800",
        ],
    )
    def test_any_key_can_be_quoted(self, buffer, key):
        fill(buffer, {key: {key: "in"}}, {key: "in"}, [["in"]], (("in",),), {"a": {"b": "in"}})
        quoted = '."' + key.replace("\\", "\\\\").replace('"', '\\"') + '"'
        assert found(buffer, leaf("eq", "in", f"exp_data.state{quoted}{quoted}")) == ["0"]
        assert found(buffer, leaf("eq", "in", f"exp_data.state{quoted}")) == ["1"]

    def test_the_longest_path_works(self, buffer):
        state = "in"
        for _ in range(100):
            state = {"a": state}
        fill(buffer, state)
        assert found(buffer, leaf("eq", "in", "exp_data.state" + ".a" * 100)) == ["0"]

    def test_four_indexes_work(self, buffer):
        fill(buffer, [[[["in"]]]], ((({"0": "in"},),),), {"0": [{"0": ("in",)}]}, [[["in"]]])
        assert found(buffer, leaf("eq", "in", "exp_data.state[0][0][0][0]")) == ["0", "1", "2"]

    def test_an_unknown_field_names_the_nearest(self, buffer):
        with pytest.raises(ConditionError, match=r"did you mean exp_meta\.task_id"):
            buffer.size({"field": "exp_meta.taskid", "op": "eq", "value": 1})


HOSTILE = [
    "x' OR '1'='1",
    "x'); DROP TABLE experiences; --",
    'x"; DROP TABLE experiences; --',
    "x\\'; DROP TABLE experiences; --",
    "$$; DROP TABLE experiences; $$",
    "%(param_1)s %s %%",
    ":param_1 ? $1",
    "{0} {} %d",
    "*/ OR 1=1 /*",
    "}', '$') OR 1=1 --",
    "' || (SELECT id FROM experiences) || '",
]


class TestHostility:
    @pytest.mark.each_value
    @pytest.mark.thorough
    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_values_are_only_values(self, buffer, text):
        buffer.add(id="plain", state={"x": "y"})
        assert found(buffer, leaf("eq", text, "id")) == []
        buffer.add(
            id=text, task_id=text, agent_id=text, session_id=text, state={"x": text, text: 1}
        )
        fields = ("id", "exp_meta.task_id", "exp_meta.agent_id", "session_id", "exp_data.state.x")
        for field in fields:
            assert found(buffer, leaf("eq", text, field)) == [text]
            assert found(buffer, leaf("in", [text], field)) == [text]
            assert found(buffer, leaf("like", text, field)) == [text]
            assert found(buffer, leaf("gte", text, field))[-1] == text
        assert found(buffer, where("eq", {"a": text})) == []
        assert found(buffer, leaf("eq", {"x": text, text: 1}, "exp_data.state")) == [text]
        assert [row.id for row in buffer.get_by_task_id(text)] == [text]
        assert buffer.delete(leaf("eq", text, "id")) == 1
        assert [row.id for row in buffer.get_all()] == ["plain"]

    @pytest.mark.thorough
    @pytest.mark.parametrize("text", HOSTILE)
    def test_hostile_field_names_are_paths_or_refused(self, buffer, text):
        buffer.add(id="plain", state={"x": "y", text: 1})
        quoted = text.replace("\\", "\\\\").replace('"', '\\"')
        assert found(buffer, leaf("eq", 1, f'exp_data.state."{quoted}"')) == ["plain"]
        assert found(buffer, leaf("ne", None, f'exp_data.state.x."{quoted}"')) == []
        for name in (text, f"exp_meta.{text}", f"exp_meta.step{text}", f"id {text}"):
            with pytest.raises(ConditionError):
                buffer.size(leaf("eq", 1, name))
        with suppress(ConditionError):
            assert buffer.size(leaf("eq", "nothing", f"exp_data.state.{text}")) == 0
        assert [row.id for row in buffer.get_all()] == ["plain"]


class TestShownSql:
    CONDITIONS = (
        leaf("eq", "50%", "exp_meta.task_id"),
        leaf("eq", "50%%", "exp_meta.task_id"),
        leaf("like", "%", "exp_data.state.x"),
        leaf("in", ["it's", "a\\b", "50%", "ü"], "id"),
        leaf("in", [], "id"),
        leaf("in", [1, 2**53 + 1, 0.5, "50%", None], "exp_data.state.x"),
        leaf("in", [1, 2], "exp_meta.step"),
        leaf("lt", math.inf, "exp_data.reward_t"),
        leaf("gt", -math.inf, "exp_data.reward_t"),
        leaf("lte", math.inf, "exp_data.state.x"),
        leaf("eq", 2**63 - 1, "exp_data.state.x"),
        leaf("eq", 0.1, "exp_data.state.x"),
        leaf("eq", True, "terminated"),
        leaf("eq", {"a": ["it's", "%"]}, "exp_data.state.x"),
        leaf("eq", 1, 'exp_data.state."it\'s 50% \\" \\\\"[0]'),
        leaf("not_in", ["e"], "episode_id"),
        {"and_": [leaf("ne", 1), {"or_": [leaf("gt", "a"), leaf("is_null", None)]}]},
    )
    STATES = (
        {"x": "50%"},
        {"x": 1},
        {"x": 2**63 - 1},
        {"x": 0.1},
        {"x": {"a": ["it's", "%"]}},
        {"it's 50% \" \\": [1]},
        {},
    )

    @pytest.mark.thorough
    @pytest.mark.parametrize("tree", CONDITIONS, ids=str)
    def test_the_sql_can_be_run_as_it_is(self, buffer, url, tree):
        if tree.get("op") == "is_null":
            del tree["value"]
        for i, state in enumerate(self.STATES):
            buffer.add(id="50%" if i == 0 else str(i), task_id="50%", state=state, reward=i, step=i)
        buffer.add(id="a\\b", task_id="50%%", state={"x": "%%"})
        buffer.add(id="it's", terminated=True, reward=math.inf, episode_id="e")
        assert first_column(url, buffer.sql(tree)) == [row.seq for row in buffer.get_all(tree)]

    def test_the_sql_without_a_condition_selects_everything(self, buffer, url):
        fill(buffer, 1, 2)
        assert first_column(url, buffer.sql()) == [row.seq for row in buffer.get_all()]

    @pytest.mark.parametrize("tree", CONDITIONS, ids=str)
    def test_explain_shows_a_plan(self, buffer, tree):
        assert buffer.explain(tree)

    @pytest.mark.thorough
    def test_explain_names_the_index_of_a_task(self, buffer, kind, url_of):
        # Many tasks: for a handful of rows a scan is the better plan once there are statistics.
        metas = (ExpMeta(f"t{i}", None, "a", i, 0.0) for i in range(3000))
        buffer.store_batch([DataRow(meta, Experience()) for meta in metas])
        if kind == "postgresql":  # its statistics may be those of other tests' rows
            run(url_of(kind), "ANALYZE experiences")
        plan = buffer.explain(QueryBuilder().eq("exp_meta.task_id", "t1500"))
        assert "ix_experiences_buffer_id_task_id" in plan


def first_column(url, statement):
    """Return the first column of what a plain client gets for a statement's text."""
    if url.startswith("sqlite"):
        connection = sqlite3.connect(url.removeprefix("sqlite:///"))
    else:
        connection = psycopg.connect(url)
    with closing(connection):
        return [row[0] for row in connection.execute(statement)]


class TestSize:
    @pytest.mark.thorough
    @pytest.mark.slow
    def test_fifty_thousand_members(self, buffer):
        fill(buffer, *({"x": x} for x in (7, "id7", 7.0, "other", 10**6)), reward=7.0)
        ids = [f"id{i}" for i in range(50_000)]
        numbers = list(range(50_000))
        for tree, expected in (
            (leaf("in", [*ids, "3"], "id"), ["3"]),
            (leaf("not_in", ids, "id"), ["0", "1", "2", "3", "4"]),
            (leaf("in", numbers, "exp_meta.step"), ["0", "1", "2", "3", "4"]),
            (where("in", [*ids, *numbers, None]), ["0", "1", "2"]),
        ):
            assert [row.id for row in buffer.get_all(tree)] == expected
        assert buffer.delete(leaf("in", [*ids, "0"], "id")) == 1

    def test_deep_nesting_works_where_the_call_stack_is_deep_already(self, buffer):
        tree = leaf("gte", 0, "exp_meta.step")
        for level in range(MAX_DEPTH):
            tree = {"and_" if level % 2 else "or_": [tree, leaf("eq", None, "exp_meta.step")]}
        buffer.add(step=1)

        def deeper(levels):
            return deeper(levels - 1) if levels else buffer.size(tree)

        assert deeper(300) == buffer.size(tree)


class TestTrees:
    def test_a_tree_from_json_selects_the_same(self, buffer):
        fill(buffer, *({"x": x} for x in (1, "a", None, [1])))
        builder = QueryBuilder().in_("exp_data.state.x", (1, "a")).or_().is_null("exp_data.state.x")
        copied = json.loads(json.dumps(builder.build()))
        assert found(buffer, copied) == found(buffer, builder.build()) == ["0", "1", "2"]

    def test_and_does_not_bind_tighter_than_or(self, buffer):
        fill(buffer, *({"x": x} for x in range(3)))
        field = "exp_data.state.x"
        builder = QueryBuilder().eq(field, 0).or_().eq(field, 1).and_().eq("exp_meta.step", 1)
        assert found(buffer, builder.build()) == ["1"]
        group = QueryBuilder().eq(field, 1).and_().eq("exp_meta.step", 1)
        assert found(buffer, QueryBuilder().eq(field, 0).or_().nested(group).build()) == ["0", "1"]

    def test_query_condition_is_another_name_everywhere(self, buffer):
        fill(buffer, 1, 2)
        tree = leaf("eq", "0", "id")
        assert buffer.size(query_condition=tree) == 1
        assert [row.id for row in buffer.get_all(query_condition=tree)] == ["0"]
        assert [row.id for row in buffer.sample(5, query_condition=tree)] == ["0"]
        assert buffer.sql(query_condition=tree) == buffer.sql(tree)
        with pytest.raises(TypeError, match="not both"):
            buffer.size(tree, query_condition=tree)


@pytest.mark.thorough
def test_text_is_ordered_by_bytes_whatever_the_locale(icu_database_url):
    texts = ["a", "B", "Z", "_", "é", "ab", "\uffff", "\U00010000"]
    with ReplayBuffer(icu_database_url, create=True) as buffer:
        for text in texts:
            buffer.add(
                id=text,
                task_id=text,
                episode_id=text,
                session_id=text,
                state={"x": text},
                agent_id=text,
            )
        fields = ("id", "exp_meta.task_id", "episode_id", "session_id", "exp_data.state.x")
        for field in fields:
            for text in texts:
                for op in ("gt", "lte", "like"):
                    found(buffer, leaf(op, text, field))
                assert found(buffer, leaf("lt", text, field)) == [t for t in texts if t < text]
            assert found(buffer, leaf("gt", "\0", field)) == texts
            assert found(buffer, leaf("between", ["A", "a"], field)) == ["a", "B", "Z", "_"]
        rows = [
            DataRow(ExpMeta("same", None, "a", 1, 0.0, episode_id=text), Experience())
            for text in texts
        ]
        buffer.store_batch(rows)
        episodes = [row.exp_meta.episode_id for row in buffer.get_by_task_id("same")]
        assert episodes == sorted(texts)


class Calls:
    """Counts the calls of this thread, those of C functions and of generators included."""

    def __enter__(self):
        self.n = 0
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, _frame, event, _argument):
        self.n += event.endswith("call")


@pytest.mark.parametrize("op", ["eq", "gt", "lte", "in", "like"])
def test_a_long_text_is_compared_without_a_call_for_each_character(schema_url, op):
    """One call for each of a million characters took 5 s."""
    text = "é" * 200_000
    with ReplayBuffer(schema_url) as buffer:
        fill(buffer, {"x": text}, {"x": "short\0"})
        tree = where(op, [text] if op == "in" else text)
        found(buffer, tree)
        with Calls() as calls:
            assert found(buffer, tree) == {"gt": [], "lte": ["0", "1"]}.get(op, ["0"])
    assert calls.n < len(text) / 2


@given(st.text(st.characters()))
def test_groups_of_hex_digits_have_the_order_of_the_characters(text):
    assert hex_text(text) == "".join(f"{ord(char):06x};" for char in text)
    assert unhex_text(hex_text(text)) == text
