"""Declared fields that conditions can use: the same rows as a copy in `extra` would give."""

import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sqlbuffer import (
    DataRow,
    Experience,
    ExpMeta,
    QueryBuilder,
    QueryFilter,
    RandomSampler,
    ReplayBuffer,
)
from sqlbuffer.errors import ConditionError
from tests.conftest import KINDS
from tests.query.strategies import FLOATS, INTEGERS, ODD_TEXTS, TEXTS
from tests.support.sql import is_sqlite, run, scalar

FIELDS = {
    "obs": ("float32", (2,)),
    "level": {"dtype": "int64", "column": True},
    "loss": {"dtype": "float64", "column": True, "default": 0.5},
    "small": {"dtype": "float32", "column": True, "default": 0.0},
    "solved": {"dtype": "bool", "column": True, "default": False},
    "map": {"dtype": "U8", "column": True, "default": "none"},
    "huge": {"dtype": "int64", "column": True, "default": 0},
    "größe": {"dtype": "int8", "column": True, "default": 0},
}
COLUMNS = [name for name in FIELDS if name != "obs"]
FLOAT32 = [float(np.float32(x)) for x in FLOATS if not 1e38 < abs(x) < math.inf]


def make_columns(levels, **more):
    return {"obs": np.zeros((len(levels), 2), np.float32), "level": levels, **more}


@pytest.fixture
def buffer(buffer_url):
    with ReplayBuffer(buffer_url, fields=FIELDS) as buffer:
        yield buffer


def levels_of(buffer, condition):
    batch = buffer.sample_arrays(
        buffer.size(condition), sampler=RandomSampler(), condition=condition
    )
    return sorted(batch.level.tolist())


def test_a_condition_names_the_field_wherever_conditions_are_taken(buffer):
    buffer.extend(make_columns(np.arange(10)), task_id=[f"t{i}" for i in range(10)])
    high = QueryBuilder().gte("level", 7)
    assert levels_of(buffer, high) == [7, 8, 9]
    assert {row.exp_meta.task_id for row in buffer.sample(9, condition=high)} == {"t7", "t8", "t9"}
    assert len(list(buffer.get_all(high))) == len(buffer.get_paginated(1, 5, high)) == 3
    assert len(buffer.sample_tasks(5, condition=high)) == 3
    assert "fields" in buffer.sql(high)
    assert "chunks" in buffer.explain(high)
    nested = {
        "and_": [high.build(), {"or_": [{"nested": {"field": "level", "op": "ne", "value": 8}}]}]
    }
    assert levels_of(buffer, nested) == [7, 9]
    assert buffer.delete(high) == 3
    assert buffer.size() == 7


def test_an_unknown_name_is_refused_with_the_columns_among_the_hints(buffer):
    with pytest.raises(ConditionError, match=r"unknown field 'levl'; did you mean level\?"):
        buffer.size(QueryBuilder().eq("levl", 1))
    with pytest.raises(ConditionError, match=r"'obs' is kept among the arrays.*column=True"):
        buffer.size(QueryBuilder().eq("obs", 1))
    with pytest.raises(ConditionError, match="unknown field 'level'"):
        QueryFilter(QueryBuilder().eq("level", 1).build())


def test_other_buffers_of_the_database_do_not_know_the_field(buffer_url, buffer):
    with (
        ReplayBuffer(buffer_url, name="other") as other,
        pytest.raises(ConditionError, match="unknown field 'level'"),
    ):
        other.size(QueryBuilder().eq("level", 1))
    assert ReplayBuffer(buffer_url).size(QueryBuilder().eq("level", 1)) == 0


def test_the_values_come_back_as_arrays_and_are_seen_by_analysts(buffer_url, buffer):
    buffer.extend(make_columns([1, 2], map=["a", "\0b"], loss=[math.nan, -0.0]))
    batch = buffer.sample_arrays(2, sampler=RandomSampler(seed=0))
    rows = dict(zip(batch.level.tolist(), zip(batch.map, batch.loss, strict=True), strict=True))
    assert rows[1][0] == "a"
    assert math.isnan(rows[1][1])
    assert rows[2][0] == "\0b"
    assert math.copysign(1, rows[2][1]) == -1
    level = (
        "json_extract(fields, '$.level')" if is_sqlite(buffer_url) else "(fields ->> 'level')::int"
    )
    assert run(buffer_url, f"SELECT {level} FROM v_experiences ORDER BY seq") == [(1,), (2,)]


def test_rows_of_other_buffers_have_no_column(buffer_url, buffer):
    buffer.extend(make_columns([1]))
    assert buffer.size(QueryBuilder().is_null("level")) == 0
    assert buffer.size(QueryBuilder().ne("level", 3)) == 1
    with ReplayBuffer(buffer_url, name="plain", fields={"obs": "float32"}) as plain:
        plain.extend({"obs": [1.0]})
    assert scalar(buffer_url, "SELECT count(fields) FROM experiences") == 0


def test_steps_of_an_episode_are_found_by_their_fields(buffer):
    with buffer.episode(episode_id="e") as episode:
        for i in range(3):
            episode.append(obs=[0.0, 0.0], level=i, loss=math.nan, map=f"m{i}", huge=2**63 - 1)
    assert levels_of(buffer, QueryBuilder().gte("level", 1)) == [1, 2]
    assert levels_of(buffer, QueryBuilder().eq("map", "m2")) == [2]
    assert buffer.size(QueryBuilder().is_null("loss")) == 0
    assert buffer.size(QueryBuilder().lt("loss", 1)) == 0


def test_rows_that_are_sent_again_are_duplicates(buffer):
    columns = make_columns([1, 2], loss=[math.nan, -0.0], huge=[-(2**63), 1], id=["a", "b"])
    assert buffer.extend(columns).inserted == 2
    assert buffer.extend(columns).duplicates == 2
    assert buffer.extend({**columns, "level": [1, 3]}).conflicts == 1


@pytest.fixture(scope="module")
def typed_buffers(urls):
    """Yield a buffer with the fields in each database of the module."""
    made = {kind: ReplayBuffer(url, name="typed", fields=FIELDS) for kind, url in urls.items()}
    assert set(made) == set(KINDS)
    return made


texts = st.sampled_from(
    [text for text in TEXTS + ODD_TEXTS if len(text) <= 8 and text[-1:] != "\0"]
)
values = {
    "level": st.sampled_from(INTEGERS),
    "loss": st.sampled_from(FLOATS),
    "small": st.sampled_from(FLOAT32),
    "solved": st.booleans(),
    "map": texts,
    "huge": st.sampled_from([0, 1, 2**53 + 1, 2**63 - 1, -(2**63)]),
    "größe": st.integers(-3, 3),
}
operands = st.sampled_from([*FLOATS, *INTEGERS, True, False]) | texts
leaves = st.one_of(
    st.tuples(st.sampled_from(["eq", "ne", "in", "not_in"]), st.none() | operands),
    st.tuples(st.sampled_from(["gt", "gte", "lt", "lte"]), operands),
    st.tuples(st.just("between"), st.tuples(operands, operands)),
    st.tuples(st.sampled_from(["like", "not_like", "in", "not_in"]), texts),
    st.tuples(st.sampled_from(["is_null", "is_not_null"]), st.none()),
)


def leaf(field, op, value):
    if op in ("in", "not_in") and not isinstance(value, str):
        value = [value]
    return {"field": field, "op": op, "value": value}


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    rows=st.lists(st.fixed_dictionaries(values), min_size=1, max_size=6),
    wanted=st.lists(st.tuples(st.sampled_from(COLUMNS), leaves), min_size=1, max_size=8),
)
def test_every_operator_selects_what_a_copy_in_extra_says(typed_buffers, rows, wanted):
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    columns["obs"] = np.zeros((len(rows), 2), np.float32)
    ids = [str(i) for i in range(len(rows))]
    for kind, buffer in typed_buffers.items():
        buffer.clear()
        buffer.extend({**columns, "extra": rows, "id": ids})
        stored = list(buffer)
        for field, (op, value) in wanted:
            reference = QueryFilter(leaf(f"exp_data.extra.{field}", op, value)).filter(stored)
            found = buffer.get_all(leaf(field, op, value))
            assert [row.id for row in found] == [row.id for row in reference], (kind, field, op)
            in_memory = QueryFilter(leaf(field, op, value), buffer.fields).filter(stored)
            assert in_memory == reference, (kind, field, op)


def test_a_filter_knows_what_rows_will_be_when_they_are_stored(buffer):
    def row(**fields):
        return DataRow(ExpMeta("t"), Experience(), fields={"obs": [0.0, 0.0], **fields})

    rows = [row(level=1, small=0.1), row(level=2, map="a"), row(level=3, loss=-0.0)]
    buffer.store_batch(rows)
    for name, op, value in [
        ("level", "gt", 1),
        ("small", "eq", 0.1),
        ("small", "gt", 0.1),
        ("loss", "eq", 0.5),
        ("map", "eq", "none"),
        ("solved", "eq", False),
        ("step", "eq", 0),
    ]:
        condition = leaf(name, op, value)
        found = [each.id for each in buffer.get_all(condition)]
        for those in (rows, list(buffer)):
            kept = QueryFilter(condition, buffer.fields).filter(those)
            assert [each.id for each in kept] == found, (name, op)


def test_a_filter_takes_the_same_names_as_the_buffer(buffer):
    with pytest.raises(ConditionError, match=r"unknown field 'levl'; did you mean level\?"):
        QueryFilter(QueryBuilder().eq("levl", 1), buffer.fields)
    with pytest.raises(ConditionError, match=r"'obs' is kept among the arrays.*column=True"):
        QueryFilter(QueryBuilder().eq("obs", 1), buffer.fields)
