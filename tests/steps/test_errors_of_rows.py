"""A wrong value in a row is an error of the library, whoever makes the row."""

import copy
import dataclasses
import pickle

import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.compat.aworld import common
from sqlbuffer.errors import FieldError

WRONG = {
    "a number for a part": (
        lambda: DataRow(1, 2),
        "exp_meta: expected ExpMeta, such as exp_meta=ExpMeta(...), got 1",
    ),
    "a wrong part of a part": (
        lambda: DataRow({"task_id": [1]}, {}),
        "exp_meta.task_id: expected text, such as task_id='a', got [1]",
    ),
    "a wrong number": (
        lambda: DataRow(ExpMeta("t"), Experience(), seq="x"),
        "seq: expected an integer, such as seq=3, got 'x'",
    ),
    "nothing": (lambda: ExpMeta(), "ExpMeta needs task_id; add task_id=..."),
    "a list for text": (
        lambda: ExpMeta([1]),
        "task_id: expected text, such as task_id='a', got [1]",
    ),
    "half a step": (
        lambda: ExpMeta("t", step=1.5),
        "step: expected an integer, such as step=3, got 1.5",
    ),
    "a misspelt name": (
        lambda: ExpMeta("t", taskname="x"),
        "ExpMeta has no 'taskname'; did you mean task_name?",
    ),
    "a strange name": (
        lambda: DataRow(ExpMeta("t"), Experience(), zzz=1),
        "DataRow has no 'zzz'; it has exp_meta, exp_data, id, seq, fields",
    ),
    "too many values": (
        lambda: ExpMeta("t", None, "a", 1, 0.0, "b", "c"),
        "ExpMeta takes 6 values by place; give the others by name",
    ),
    "a value twice": (
        lambda: ExpMeta("t", task_id="x"),
        "ExpMeta: task_id is given by its place and by its name; leave one out",
    ),
    "text for a reward": (
        lambda: Experience(reward_t="high"),
        "reward_t: expected a number, such as reward_t=0.5, got 'high'",
    ),
    "digits for a reward": (
        lambda: Experience(reward_t="1.0"),
        "reward_t: expected a number, such as reward_t=0.5, got '1.0'",
    ),
    "digits for a step": (
        lambda: ExpMeta("t", step="7"),
        "step: expected an integer, such as step=3, got '7'",
    ),
    "bytes for a key": (
        lambda: ExpMeta(b"ab"),
        "task_id: expected text, such as task_id='a', got b'ab'",
    ),
    "text for a flag": (
        lambda: Experience(truncated="yes"),
        "truncated: expected True or False, such as truncated=True, got 'yes'",
    ),
    "text for a time": (
        lambda: ExpMeta("t", execute_time="5"),
        "execute_time: expected a number, such as execute_time=0.5, got '5'",
    ),
    "a number for a flag": (
        lambda: Experience(terminated=7),
        "terminated: expected True or False, such as terminated=True, got 7",
    ),
    "a number for a dict": (
        lambda: Experience(extra=3),
        "extra: expected a dict, such as extra={'a': 1}, got 3",
    ),
    "two actions": (
        lambda: Experience(action=1, actions=[1]),
        "give actions=[...] or action=..., not both",
    ),
    "a copy": (
        lambda: dataclasses.replace(ExpMeta("t"), step="x"),
        "step: expected an integer, such as step=3, got 'x'",
    ),
    "arguments of add": (
        lambda: ReplayBuffer("sqlite://").add(state=1, reward="high"),
        "reward_t: expected a number, such as reward_t=0.5, got 'high'",
    ),
}


@pytest.mark.parametrize(("make", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_value_names_the_field_the_value_and_what_is_expected(make, message):
    with pytest.raises(FieldError) as caught:
        make()
    assert str(caught.value) == message
    assert caught.value.__cause__ is None
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (type(copied), str(copied)) == (FieldError, message)


@pytest.mark.parametrize(
    "make",
    [
        lambda: common.Observation(images=5),
        lambda: common.Observation.model_validate({"images": 5}),
        lambda: common.Observation.model_validate_json('{"images": 5}'),
        lambda: common.Observation.model_validate_strings({"images": "5"}),
    ],
)
def test_models_of_aworld_raise_the_same_error(make):
    with pytest.raises(FieldError, match=r"^images: expected a list, such as images=\[1, 2\], got"):
        make()


def test_a_model_inside_another_one_says_where_the_value_is():
    with pytest.raises(FieldError, match=r"^action_result\.0\.error: expected text"):
        common.Observation(action_result=[{"error": [1]}])


class Page(BaseModel):
    title: str


def test_a_stored_state_that_is_not_of_the_type_is_named_with_its_row(buffer_url):
    with ReplayBuffer(buffer_url) as buffer:
        buffer.add(state={"title": 5}, id="first")
    with ReplayBuffer(buffer_url, state_type=Page) as buffer, pytest.raises(FieldError) as caught:
        list(buffer)
    assert str(caught.value) == (
        "row 'first': exp_data.state is not what the buffer's type takes: title: expected text, "
        "such as title='a', got 5"
    )


def test_rows_copy_and_pickle_as_before():
    row = DataRow(ExpMeta("t", step=3), Experience(state=[1]), seq=5)
    for same in (copy.deepcopy(row), pickle.loads(pickle.dumps(row)), dataclasses.replace(row)):
        assert same == row
        assert same.seq == 5


def test_models_of_users_that_hold_rows_keep_the_errors_of_pydantic():
    assert TypeAdapter(ExpMeta).validate_python({"task_id": 7}).task_id == "7"
    with pytest.raises(ValidationError):
        TypeAdapter(ExpMeta).validate_python({"task_id": [1]})
