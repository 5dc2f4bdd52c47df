"""Rows come back from both databases as they were stored, to the bit."""

import dataclasses
import datetime as dt
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from sqlbuffer import DataRow, Experience, ExpMeta, ReplayBuffer
from sqlbuffer.codec.equality import equal
from sqlbuffer.errors import FieldError
from tests.support.payloads import FLOATS, arrays_in, floats, keys, messages, nested, payloads

META = ExpMeta("t", None, "a", 1, 0.0)
REALS = ("reward_t", "adv_t", "v_t")


def stored(buffer, *rows):
    """Return the rows as they come back, and check that storing them again changes nothing."""
    buffer.clear()
    assert buffer.store_batch(rows).inserted == len(rows)
    assert buffer.store_batch(rows).duplicates == len(rows)
    return list(buffer.get_all())


def bits(number):
    return None if number is None else struct.pack(">d", number)


experiences = st.builds(
    Experience,
    state=payloads,
    actions=payloads,
    messages=messages,
    extra=st.none() | st.dictionaries(keys, payloads, max_size=3),
    **dict.fromkeys(REALS, st.none() | floats),
)


@pytest.mark.thorough
@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.lists(experiences, min_size=1, max_size=5), time=floats)
def test_rows_come_back_equal_to_the_bit(buffers, data, time):
    rows = [
        DataRow(ExpMeta("t", None, "a", i, time), experience) for i, experience in enumerate(data)
    ]
    for buffer in buffers.values():
        for given_row, read in zip(rows, stored(buffer, *rows), strict=True):
            assert read == given_row
            assert bits(read.exp_meta.execute_time) == bits(time)
            for name in ("state", "actions", "messages", "extra"):
                ours, theirs = getattr(given_row.exp_data, name), getattr(read.exp_data, name)
                assert equal(ours, theirs, strict=True), name
                assert all(array.flags.writeable for array in arrays_in(theirs))
            for name in REALS:
                ours, theirs = getattr(given_row.exp_data, name), getattr(read.exp_data, name)
                assert bits(ours) == bits(theirs), name


@pytest.mark.thorough
@pytest.mark.parametrize("number", FLOATS, ids=str)
def test_a_reward_keeps_its_bits_beside_any_extra(buffer, number):
    extras = [None, {}, {"x": number}, {"$none": 1, "$reals": {"reward_t": 1}}, {1: number}]
    rows = [DataRow(META, Experience(reward_t=number, v_t=number, extra=extra)) for extra in extras]
    for row, read in zip(rows, stored(buffer, *rows), strict=True):
        assert bits(read.exp_data.reward_t) == bits(read.exp_data.v_t) == bits(number)
        assert read.exp_data.adv_t is None
        assert equal(read.exp_data.extra, row.exp_data.extra, strict=True)


def test_the_deepest_payload_is_stored(buffer):
    deepest = {"list": nested(99), "tuple": nested(49, lambda inner: (inner,))}
    assert stored(buffer, DataRow(META, Experience(deepest)))[0].exp_data.state == deepest


def test_a_large_array_comes_back(buffer):
    image = np.random.default_rng(1).integers(0, 256, (210, 160, 3), np.uint8)
    read = stored(buffer, DataRow(META, Experience({"frames": [image, image]})))[0]
    assert equal(read.exp_data.state, {"frames": [image, image]}, strict=True)


def test_none_and_false_and_zero_stay_apart(buffer):
    values = [None, False, 0, 0.0, "", [], {}, (), b"", {"a": None}]
    rows = [DataRow(META, Experience(value, [value], terminated=False)) for value in values]
    for value, read in zip(values, stored(buffer, *rows), strict=True):
        assert equal(read.exp_data.state, value, strict=True)
        assert equal(read.exp_data.actions, [value], strict=True)
        assert (read.exp_data.terminated, read.exp_data.truncated) == (False, None)


def test_a_row_that_differs_by_one_bit_is_a_conflict(buffer):
    pairs = [
        (1, 1.0),
        (0.0, -0.0),
        ([1], (1,)),
        (np.zeros(2), -np.zeros(2)),
        (np.zeros(2), np.zeros(2, np.float32)),
        ({"x": True}, {"x": 1}),
        (math.nan, -math.nan),
    ]
    for i, (value, other) in enumerate(pairs):
        buffer.store(DataRow(META, Experience(value), f"id{i}"))
        assert buffer.store(DataRow(META, Experience(value), f"id{i}")).duplicates == 1
        assert buffer.store(DataRow(META, Experience(other), f"id{i}")).conflicts == 1


class TestTypes:
    class Action(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str
        at: dt.datetime
        size: float = math.inf

    class State(BaseModel):
        model_config = ConfigDict(arbitrary_types_allowed=True)
        image: np.ndarray
        seen: set[int]
        position: tuple[int, int]

    ACTIONS = (
        Action(name="\0", at=dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        Action(name="go", at=dt.datetime(2024, 1, 2), size=-0.0),
    )

    def make_row(self):
        state = self.State(image=np.ones((2, 2), np.uint8), seen={1, 2}, position=(3, 4))
        return DataRow(META, Experience(state, list(self.ACTIONS)))

    def test_models_come_back_as_dicts_without_a_type(self, buffer):
        read = stored(buffer, self.make_row())[0].exp_data
        assert equal(
            read.state,
            {"image": np.ones((2, 2), np.uint8), "seen": {1, 2}, "position": (3, 4)},
            strict=True,
        )
        assert read.actions == [action.model_dump() for action in self.ACTIONS]

    def test_models_are_rebuilt_with_a_type(self, buffer_url):
        row = self.make_row()
        with ReplayBuffer(buffer_url, state_type=self.State, action_type=self.Action) as buffer:
            reads = [stored(buffer, row)[0], buffer.sample(1)[0], buffer.sample_tasks(1)[0][0]]
        for read in reads:
            assert isinstance(read.exp_data.state, self.State)
            assert equal(read.exp_data.state, row.exp_data.state, strict=True)
            assert read.exp_data.actions == list(self.ACTIONS)
            assert all(isinstance(action, self.Action) for action in read.exp_data.actions)

    def test_each_action_of_a_tuple_and_one_alone_is_rebuilt(self, buffer_url):
        with ReplayBuffer(buffer_url, action_type=self.Action) as buffer:
            rows = [DataRow(META, Experience(1, a)) for a in (self.ACTIONS, self.ACTIONS[0], None)]
            assert [row.exp_data.actions for row in stored(buffer, *rows)] == [
                self.ACTIONS,
                self.ACTIONS[0],
                None,
            ]

    def test_any_type_that_pydantic_knows_will_do(self, buffer_url):
        @dataclasses.dataclass
        class Point:
            x: int
            y: Any = None

        with ReplayBuffer(buffer_url, state_type=Point, action_type=int) as buffer:
            read = stored(buffer, DataRow(META, Experience(Point(1), [1, 2])))[0]
        assert read.exp_data.state == Point(1)

    def test_what_the_type_does_not_take_names_the_row_and_the_path(self, buffer_url):
        with ReplayBuffer(buffer_url, action_type=self.Action) as buffer:
            buffer.store(DataRow(META, Experience(1, [self.ACTIONS[0], "go"]), "my id"))
            with pytest.raises(FieldError, match=r"row 'my id': exp_data.actions\[1\] .*Action"):
                list(buffer.get_all())


class TestRefusals:
    @pytest.mark.parametrize("name", ["state", "actions", "messages", "extra"])
    def test_nothing_is_written_of_a_batch_with_a_row_that_cannot_be(self, buffer, name):
        rows = [DataRow(META, Experience({"x": i})) for i in range(3)]
        value, path = {"a": [{"b": object()}]}, r"\.a\[0\]\.b"
        if name == "messages":
            value, path = [value], rf"\[0\]{path}"
        setattr(rows[2].exp_data, name, value)
        with pytest.raises(FieldError, match=rf"^row 2: exp_data\.{name}{path}: cannot store"):
            buffer.store_batch(rows)
        assert len(buffer) == 0
        with pytest.raises(FieldError, match=rf"exp_data\.{name}{path}"):
            buffer.add(**{name: value})
        assert len(buffer) == 0

    @pytest.mark.parametrize("key", ["a\0b", "\ud800", "x" * 601, "é" * 301])
    def test_keys_that_text_columns_cannot_hold_are_refused(self, buffer, key):
        for name in ("task_id", "agent_id", "episode_id", "session_id", "id"):
            with pytest.raises(FieldError, match=name):
                buffer.add(**{name: key})
        assert len(buffer) == 0

    def test_the_longest_keys_of_any_kind_are_stored(self, buffer):
        # Random, so that no index can shorten them.
        letters = "".join(map(chr, np.random.default_rng(1).integers(0x4E00, 0x9FFF, 200)))
        assert len(letters.encode()) == 600
        names = ("task_id", "agent_id", "episode_id", "session_id", "id")
        buffer.add(**dict.fromkeys(names, letters))
        assert buffer.get_by_task_id(letters)[0].exp_meta.session_id == letters

    @pytest.mark.parametrize("step", [2**63 - 1, -(2**63), 0])
    def test_the_largest_integers_are_stored(self, buffer, step):
        buffer.add(step=step, model_version=step)
        (row,) = buffer.get_all()
        assert (row.exp_meta.step, row.exp_meta.model_version) == (step, step)
