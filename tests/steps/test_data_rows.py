"""The row classes."""

import copy
import dataclasses
import math
import pickle
import uuid

import numpy as np
import pytest
from pydantic import BaseModel, TypeAdapter, ValidationError

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.compat.aworld import common
from sqlbuffer.encoding.records import encode_row, encode_rows
from sqlbuffer.errors import FieldError
from sqlbuffer.steps import uuid7, uuid7s

META = ("task_1", "search", "agent_1", 3, 1700000000.5, "agent_0")


def make_row(**data):
    return DataRow(ExpMeta(*META), Experience(**data))


class TestConstruction:
    def test_meta_takes_aworlds_six_fields_in_aworlds_order(self):
        meta = ExpMeta(*META)
        names = ("task_id", "task_name", "agent_id", "step", "execute_time", "pre_agent")
        assert tuple(getattr(meta, name) for name in names) == META
        assert meta == ExpMeta(**dict(zip(names, META, strict=True)))
        assert (meta.episode_id, meta.model_version, meta.session_id) == (None, None, None)

    def test_pre_agent_may_be_left_out(self):
        assert ExpMeta(*META[:5]).pre_agent is None

    def test_experience_takes_aworlds_six_fields_in_aworlds_order(self):
        data = Experience({"x": 1}, ["left"], 1.0, 0.5, 0.25, [{"role": "user"}])
        assert (data.state, data.actions, data.reward_t, data.adv_t, data.v_t, data.messages) == (
            {"x": 1},
            ["left"],
            1.0,
            0.5,
            0.25,
            [{"role": "user"}],
        )
        assert (data.terminated, data.truncated, data.extra) == (None, None, None)

    def test_row_takes_meta_data_and_id_in_that_order(self):
        meta, data = ExpMeta(*META), Experience(1, [2])
        row = DataRow(meta, data, "my id")
        assert (row.exp_meta, row.exp_data, row.id) == (meta, data, "my id")
        assert row.exp_meta is meta
        assert row.seq is None

    def test_an_id_is_made_where_none_is_given_and_ids_ascend(self):
        rows = [make_row() for _ in range(100)]
        assert len({row.id for row in rows}) == 100
        prefixes = [row.id[:13] for row in rows]
        assert prefixes == sorted(prefixes)
        assert all(row.id[14] == "7" for row in rows)

    @pytest.mark.parametrize("action", ["left", 0, False, {"name": "go"}, [1, 2]])
    def test_one_action_becomes_a_list_of_one(self, action):
        assert Experience(state=1, action=action).actions == [action]

    def test_action_and_actions_together_are_refused(self):
        with pytest.raises(ValueError, match="not both"):
            Experience(state=1, actions=[1], action=1)

    @pytest.mark.parametrize("kind", [np.int64, np.float32, np.uint8, np.float64, "tensor"])
    def test_scalars_of_numpy_and_torch_become_pythons(self, kind):
        kind = pytest.importorskip("torch").tensor if kind == "tensor" else kind
        meta = ExpMeta(kind(7), "t", kind(8), kind(3), kind(5), model_version=kind(2))
        data = Experience(1, [2], kind(1), kind(2), kind(3), terminated=kind(1) == kind(1))
        assert (type(meta.step), type(meta.execute_time)) == (int, float)
        assert (type(meta.model_version), type(data.reward_t)) == (int, float)
        assert data.terminated is True
        assert encode_row(DataRow(meta, data)).step == 3

    def test_numbers_become_text_where_a_key_is_text(self):
        meta = ExpMeta(7, "t", np.int64(8), 1, 0, episode_id=9, session_id=10)
        assert (meta.task_id, meta.agent_id) == ("7", "8")
        assert (meta.episode_id, meta.session_id) == ("9", "10")
        assert DataRow(meta, Experience(), 11).id == "11"

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("step", 1.5),
            ("step", "one"),
            ("step", None),
            ("execute_time", "soon"),
            ("task_id", None),
            ("task_id", ["t"]),
            ("model_version", np.array([1, 2])),
            ("unknown", 1),
        ],
    )
    def test_meta_of_another_type_is_refused_by_name(self, name, value):
        fields = {"task_id": "t", "task_name": "n", "agent_id": "a", "step": 1, "execute_time": 0.0}
        with pytest.raises(ValueError, match=name):
            ExpMeta(**{**fields, name: value})

    @pytest.mark.parametrize(
        ("name", "value"),
        [("reward_t", "much"), ("reward_t", [1]), ("terminated", 2), ("extra", 1), ("rewards", 1)],
    )
    def test_data_of_another_type_is_refused_by_name(self, name, value):
        with pytest.raises(ValueError, match=name):
            Experience(**{name: value})

    def test_a_row_wants_rows_parts(self):
        with pytest.raises(ValueError, match="ExpMeta"):
            DataRow("meta", Experience())


class TestBehaviour:
    def test_rows_are_equal_by_content(self):
        one, other = (
            DataRow(
                ExpMeta("t", None, "a", 1, math.nan),
                Experience({"x": np.ones(2)}, [1], math.nan, messages=[np.float32(1)]),
                "id",
            )
            for _ in range(2)
        )
        assert one == other
        other.exp_data.state["x"][0] = 2
        assert one != other
        assert one.exp_data != "something else"

    def test_seq_is_no_part_of_equality(self):
        row = make_row()
        read = copy.deepcopy(row)
        read.seq = 5
        assert read == row

    def test_rows_are_mutable_and_unhashable_as_in_aworld(self):
        row = make_row()
        row.exp_data.reward_t = 2.0
        assert row.exp_data.reward_t == 2.0
        for part in (row, row.exp_meta, row.exp_data):
            with pytest.raises(TypeError):
                hash(part)

    def test_rows_can_be_pickled_copied_and_replaced(self):
        row = make_row(state=np.ones(2), action=1)
        assert pickle.loads(pickle.dumps(row)) == row
        assert copy.deepcopy(row) == row
        changed = dataclasses.replace(row.exp_data, reward_t=5.0)
        assert (changed.actions, changed.reward_t) == ([1], 5.0)

    def test_to_dict_has_aworlds_keys_and_the_others_only_where_set(self):
        plain = make_row(state={"x": 1}, action="left").to_dict()
        assert list(plain) == ["exp_meta", "exp_data", "id"]
        assert list(plain["exp_meta"]) == [
            "task_id",
            "task_name",
            "agent_id",
            "step",
            "execute_time",
            "pre_agent",
        ]
        assert plain["exp_data"] == {
            "state": {"x": 1},
            "actions": ["left"],
            "reward_t": None,
            "adv_t": None,
            "v_t": None,
            "messages": None,
        }
        full = DataRow(
            ExpMeta("t", None, "a", 1, 0.0, episode_id="e", model_version=0),
            Experience(terminated=False, extra={}),
        ).to_dict()
        assert (full["exp_meta"]["episode_id"], full["exp_meta"]["model_version"]) == ("e", 0)
        assert (full["exp_data"]["terminated"], full["exp_data"]["extra"]) == (False, {})

    def test_to_dict_keeps_repeated_values(self):
        assert make_row(state=[1, 1, None, None]).to_dict()["exp_data"]["state"] == [
            1,
            1,
            None,
            None,
        ]

    def test_to_dict_makes_models_plain(self):
        @dataclasses.dataclass
        class Observation:
            content: str

        assert make_row(state=Observation("c")).to_dict()["exp_data"]["state"] == {"content": "c"}


class TestRefusals:
    @pytest.mark.parametrize("name", ["state", "actions", "messages", "extra"])
    @pytest.mark.parametrize("reward", [None, math.nan])
    def test_a_refusal_names_the_row_and_the_path_inside_it(self, name, reward):
        value = {"a": [{"b": object()}]}
        if name == "messages":
            value = value["a"]
        rows = [make_row(), make_row(**{name: value}, reward_t=reward)]
        place = r"(\.a)?\[0\]\.b"
        with pytest.raises(FieldError, match=rf"^row 1: exp_data\.{name}{place}: cannot store"):
            encode_rows(rows)

    @pytest.mark.parametrize(
        ("part", "name", "value", "reason"),
        [
            ("exp_meta", "task_id", "a\0b", "U\\+0000"),
            ("exp_meta", "agent_id", "\ud800", "surrogate"),
            ("exp_meta", "task_id", "x" * 601, "longer than 600 bytes"),
            ("exp_meta", "agent_id", "é" * 301, "longer than 600 bytes"),
            ("exp_meta", "pre_agent", "x" * 8193, "longer than 8192 bytes"),
            ("exp_meta", "step", 2**63, "64 bits"),
            ("exp_meta", "step", 10**400, "64 bits"),
            ("exp_meta", "step", 1.5, "64 bits"),
            ("exp_meta", "model_version", -(2**63) - 1, "64 bits"),
            ("exp_meta", "execute_time", "now", "number"),
            ("exp_data", "reward_t", 10**400, "too large"),
            ("exp_data", "v_t", "1", "number"),
            ("exp_data", "terminated", "yes", "True, False or None"),
            ("exp_data", "truncated", 1, "True, False or None"),
            ("exp_data", "extra", [1], "expected a dict"),
        ],
    )
    def test_what_columns_cannot_hold_is_refused_also_where_it_was_assigned(
        self, part, name, value, reason
    ):
        row = make_row()
        setattr(getattr(row, part), name, value)
        with pytest.raises(FieldError, match=rf"^row 0: {part}\.{name}: .*{reason}"):
            encode_rows([row])

    def test_extra_that_is_no_dict_is_refused_beside_a_nan_too(self):
        row = make_row(reward_t=math.nan)
        row.exp_data.extra = [1]
        with pytest.raises(FieldError, match=r"exp_data\.extra: expected a dict, got list"):
            encode_row(row)

    def test_the_longest_keys_are_taken(self):
        row = make_row()
        row.exp_meta.task_id, row.exp_meta.pre_agent = "é" * 300, "x" * 8192
        assert encode_row(row).task_id == "é" * 300

    def test_assigned_numbers_of_numpy_are_taken(self):
        row = make_row()
        row.exp_meta.step, row.exp_data.reward_t = np.int32(5), np.float32(0.5)
        row.exp_data.terminated = np.bool_(True)
        record = encode_row(row, model_version=np.int64(3))
        assert (record.step, record.reward_t, record.terminated) == (5, 0.5, True)
        assert (type(record.step), type(record.model_version)) == (int, int)

    @pytest.mark.parametrize("row", [None, {"id": 1}, Experience()])
    def test_something_that_is_no_row_is_refused(self, row):
        with (
            ReplayBuffer("sqlite://") as buffer,
            pytest.raises(FieldError, match="row 1: expected a DataRow, got"),
        ):
            buffer.store_batch([make_row(), row])


# Ids of rows and chunks. No database.


@pytest.mark.parametrize("ids", [[uuid7()], uuid7s(500)], ids=["one", "many"])
def test_ids_are_uuids_of_version_7(ids):
    found = [uuid.UUID(text) for text in ids]
    assert [str(one) for one in found] == ids
    assert {(one.version, one.variant) for one in found} == {(7, uuid.RFC_4122)}
    assert len(set(ids)) == len(ids)


def test_later_ids_are_greater_by_the_millisecond():
    first = uuid7()
    later = next(text for text in iter(uuid7, None) if text[:13] != first[:13])
    assert later > first
    assert uuid7s(0) == []


# A wrong value in a row is an error of the library, whoever makes the row.


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


@pytest.mark.thorough
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
