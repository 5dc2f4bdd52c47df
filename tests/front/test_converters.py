"""Converters."""

import math

import numpy as np
import pytest

from sqlbuffer import ColumnsConverter, Converter, DataRow, DefaultConverter, Experience, ExpMeta
from sqlbuffer.errors import FieldError


def make_rows(states, **data):
    return [
        DataRow(
            ExpMeta("t", None, f"a{i}", i, 0.5 + i, model_version=i),
            Experience(state, [i], **data),
            f"id{i}",
            seq=i + 1,
        )
        for i, state in enumerate(states)
    ]


def columns_of(rows, *names):
    return ColumnsConverter(names).to_dataset_row(rows)


def test_the_default_converter_returns_what_it_gets():
    rows = make_rows([1, 2])
    assert DefaultConverter().to_dataset_row(rows) is rows


def test_a_converter_is_a_class_with_one_method():
    class Rewards(Converter[float]):
        def to_dataset_row(self, task_experience):
            return sum(row.exp_data.reward_t or 0.0 for row in task_experience)

    assert Rewards().to_dataset_row(make_rows([1, 2], reward_t=1.5)) == 3.0
    with pytest.raises(TypeError, match="abstract"):
        Converter()


def test_columns_have_one_entry_a_row_in_the_order_of_the_rows():
    columns = ColumnsConverter().to_dataset_row(make_rows([[0, 1], [2, 3], [4, 5]]))
    assert list(columns) == list(ColumnsConverter.DEFAULT)
    assert columns["seq"].tolist() == [1, 2, 3]
    assert columns["id"].tolist() == ["id0", "id1", "id2"]
    assert columns["agent_id"].tolist() == ["a0", "a1", "a2"]
    assert columns["step"].tolist() == [0, 1, 2]
    assert columns["state"].tolist() == [[0, 1], [2, 3], [4, 5]]
    assert columns["actions"].tolist() == [[0], [1], [2]]
    assert all(len(column) == 3 for column in columns.values())


def test_every_field_of_a_row_is_a_column():
    rows = make_rows([1], reward_t=1.0, adv_t=2.0, v_t=3.0, messages=["m"], extra={"x": 1})
    columns = columns_of(rows, "task_name", "execute_time", "model_version", "messages", "extra")
    assert columns["task_name"].tolist() == [None]
    assert columns["execute_time"].tolist() == [0.5]
    assert columns["model_version"].tolist() == [0]
    assert columns["messages"].tolist() == [["m"]]
    assert columns["extra"].tolist() == [{"x": 1}]


def test_numbers_that_are_none_become_nan_and_zero_stays_zero():
    rows = [*make_rows([0], reward_t=0.0), *make_rows([0])]
    rewards = columns_of(rows, "reward_t")["reward_t"]
    assert rewards.dtype == np.float64
    assert rewards[0] == 0.0
    assert math.isnan(rewards[1])


def test_flags_are_booleans_and_none_is_false():
    rows = [row for flag in (True, False, None) for row in make_rows([0], terminated=flag)]
    flags = columns_of(rows, "terminated")["terminated"]
    assert flags.dtype == np.bool_
    assert flags.tolist() == [True, False, False]


def test_arrays_of_one_shape_are_stacked_and_keep_their_dtype():
    states = [np.full((2, 3), i, np.uint8) for i in range(4)]
    stacked = columns_of(make_rows(states), "state")["state"]
    assert (stacked.shape, stacked.dtype) == ((4, 2, 3), np.uint8)
    assert stacked[3].tolist() == states[3].tolist()


@pytest.mark.parametrize(
    "states",
    [
        [[1, 2], [1]],
        [{"x": 1}, {"x": 2}],
        ["a", "b"],
        [None, 1],
        [np.ones(2), np.ones(3)],
        [np.ones((2, 2)), np.ones((2, 3))],
        [[np.ones(2)], [np.ones(3)]],
        [[1, "a"], [2, "b"]],
    ],
    ids=str,
)
def test_payloads_that_do_not_stack_stay_as_they_are(states):
    column = columns_of(make_rows(states), "state")["state"]
    assert (column.dtype, column.shape) == (object, (len(states),))
    assert all(ours is theirs for ours, theirs in zip(states, column, strict=True))


def test_no_rows_make_empty_columns():
    columns = ColumnsConverter().to_dataset_row([])
    assert all(len(column) == 0 for column in columns.values())


def test_unknown_columns_are_refused_and_the_known_ones_named():
    row = DataRow(ExpMeta("t", None, "a", 1, 0.0), Experience(), seq=4, fields={"obs": 1})
    with pytest.raises(FieldError, match=r"seq 4 has no column 'rewards'; it has obs, .*reward_t"):
        ColumnsConverter(["seq", "rewards"]).to_dataset_row([row])


def test_typed_fields_are_columns():
    meta = ExpMeta("t", None, "a", 1, 0.0)
    rows = [DataRow(meta, Experience(), fields={"obs": np.full(2, n)}) for n in range(3)]
    found = ColumnsConverter(["obs"]).to_dataset_row(rows)["obs"]
    assert found.tolist() == [[0, 0], [1, 1], [2, 2]]
    rows[0].fields["obs"] = np.zeros(3)
    found = ColumnsConverter(["obs"]).to_dataset_row(rows)["obs"]
    assert [len(each) for each in found] == [3, 2, 2]


def test_columns_are_named_as_in_conditions():
    metas = [ExpMeta("t", None, "a", step, 0.0) for step in range(3)]
    rows = [
        DataRow(meta, Experience(state={"x": [i, 0.5], "tag": "u"}, reward_t=i, actions=[{"a": i}]))
        for i, meta in enumerate(metas)
    ]
    del rows[2].exp_data.state["tag"]
    names = ["step", "exp_meta.step", "reward", "exp_data.reward_t"]
    columns = columns_of(rows, *names, "state.x", "state.x[1]", "actions[0].a", "state.tag")
    assert [columns[name].tolist() for name in names] == [[0, 1, 2]] * 4
    assert columns["state.x"].shape == (3, 2)
    assert columns["state.x[1]"].tolist() == [0.5] * 3
    assert columns["actions[0].a"].tolist() == [0, 1, 2]
    assert columns["state.tag"].tolist() == ["u", "u", None]


def test_a_typed_field_of_a_short_name_is_meant_before_it():
    row = DataRow(ExpMeta("t", None, "a", 1, 0.0), Experience(v_t=9.0), fields={"v_t": 1.5})
    assert columns_of([row], "v_t")["v_t"].tolist() == [1.5]


@pytest.mark.parametrize("name", ["state.", "exp_meta.nothing", "", None])
def test_a_column_that_no_row_can_have_is_refused(name):
    with pytest.raises(FieldError):
        columns_of([], name)
